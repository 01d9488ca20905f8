/* idle_client.h: requests that keep a place and KV blocks at a worker while nothing happens to them
 * because their client wants it so: paused, without credit, or with nothing under way to it though
 * something waits. After max_pause_ms in a row without a token taken they end. What the server
 * itself waits for has limits of its own: a message the client does not take (slow_reader_ms), a
 * client that is gone (its reattach window), a replica that is lost (resume_ms). */
#pragma once

#include <stdint.h>

struct relay_shared;

/* Ticker's thread. */
void idle_client_tick(struct relay_shared *shared, int64_t awake_ns);
