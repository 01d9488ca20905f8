/* ticker.h: the gateway's periodic work, on its own thread. The ticker reconnects and closes
 * links and retries waiting requests. The ticker ends slow readers, idle clients, expired
 * reattach windows and calls without a complete request. The ticker also advances gateway->clock
 * and sends signs of life to the watchdog. */
#pragma once

struct gateway;

/* Start routine for pthread_create; arg is the gateway. Ends after wake_stop(&gateway->wake). */
void *ticker_run(void *arg);
