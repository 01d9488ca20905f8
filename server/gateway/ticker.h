/* ticker.h: what the gateway does by the clock, on a thread of its own: links that are due or over,
 * requests that wait for a replica or their client, and what is over (slow readers, what stands
 * still, calls without their request). It advances gateway->clock, and tells the watchdog that
 * every lock can be had. */
#pragma once

struct gateway;

/* pthread_create's; arg is the gateway. Ends after wake_stop(&gateway->wake). */
void *ticker_run(void *arg);
