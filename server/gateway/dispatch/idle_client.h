/* idle_client.h: ends requests whose client makes them wait: paused, without credit, or with
 * nothing under way though something is ready. A waiting request keeps a place and KV blocks at its
 * worker. It ends after max_pause_ms in a row without a token taken. Other waits have limits of
 * their own: a message that the client does not take (slow_reader_ms), a client that is gone (its
 * reattach window), a replica that is lost (resume_ms). */
#pragma once

#include <stdint.h>

struct relay_shared;

/* Ticker's thread. */
void idle_client_tick(struct relay_shared *shared, int64_t awake_ns);
