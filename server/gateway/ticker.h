/* ticker.h: what the gateway does by the clock, on a thread of its own: links that are due or over,
 * requests that wait for a replica or their client, and what is over (slow readers, what stands
 * still, calls without their request). It advances gateway->awake_ns, and tells the watchdog that
 * every lock can be had. */
#pragma once

/* pthread_create's; arg is the gateway. Ends once gateway->stopping is set and gateway->tick
 * signalled. */
void *ticker_run(void *arg);
