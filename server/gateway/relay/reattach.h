/* reattach.h: the requests that have lost their client and wait for it (relay_reattach takes one up
 * again). The ticker's and the owner's thread. */
#pragma once

#include <stdint.h>

struct gateway;

/* Closes those whose window is over. */
void reattach_tick(struct gateway *gateway, int64_t awake_ns);
/* Closes all: nobody can come back. */
void reattach_end(struct gateway *gateway);
