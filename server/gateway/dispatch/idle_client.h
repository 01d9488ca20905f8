/* idle_client.h: ends requests that wait for their client for too long. The client has paused
 * the request, gives no credit, or does not read though nothing is in flight. A waiting request
 * keeps a place and KV blocks at its worker. Therefore the request ends after max_pause_ms in a
 * row without a token taken. Other waits have limits of their own. slow_reader_ms limits a
 * message that the client does not take. The reattach window limits the wait for a lost client,
 * resume_ms the wait for a lost replica. */
#pragma once

#include <stdint.h>

struct relay_shared;

/* Ticker thread. */
void idle_client_tick(struct relay_shared *shared, int64_t awake_ns);
