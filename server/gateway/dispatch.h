/* dispatch.h: which replica a request goes to, and the list of those that wait for one.
 * gateway_pick_link, gateway_still_loaded and gateway_dispatch (gateway.h) are here too. Any thread
 * unless said otherwise. */
#pragma once

struct gateway;

/* The ticker: tries again for everything that waits. */
void dispatch_retry_waiting(struct gateway *gateway);
/* Ends everything that waits, at the end of the program. */
void dispatch_end_waiting(struct gateway *gateway);
