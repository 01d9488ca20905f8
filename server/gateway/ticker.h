/* ticker.h: what the gateway does by the clock, on a thread of its own: links that are due or over,
 * requests that wait for a replica or their client, and what is over (slow readers, what stands
 * still, calls without their request). It advances gateway->awake_ns, and tells the watchdog that
 * every lock can be had. */
#pragma once

#include <stdint.h>

struct gateway;

/* pthread_create's; arg is the gateway. Ends once gateway->stopping is set and gateway->tick
 * signalled. */
void *ticker_run(void *arg);

/* gateway->awake_ns as it would be now: what begins between two ticks is not over a tick early. Any
 * thread. */
int64_t ticker_awake_ns(struct gateway *gateway);
