/* reattach.h: closes requests whose client has not reattached within the window. relay_reattach
 * continues such a request. Called by the ticker thread, and by the owner at the end. */
#pragma once

#include <stdint.h>

struct relay_shared;

/* Closes the requests whose window is over. */
void reattach_tick(struct relay_shared *shared, int64_t awake_ns);
/* Closes all of them: no client can reattach any more. */
void reattach_end(struct relay_shared *shared);
