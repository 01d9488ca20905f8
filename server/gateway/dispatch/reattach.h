/* reattach.h: ends requests that have lost their client once the time to come back is over.
 * relay_reattach takes such a request up again. The ticker's and the owner's thread. */
#pragma once

#include <stdint.h>

struct relay_shared;

/* Closes those whose window is over. */
void reattach_tick(struct relay_shared *shared, int64_t awake_ns);
/* Closes all: nobody can come back. */
void reattach_end(struct relay_shared *shared);
