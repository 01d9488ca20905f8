/* context.h: what every part of the manager works with. main.c makes one context and fills it. Each
 * part borrows the context until the part is destroyed. Loop thread only. Other threads reach the
 * loop through loop_queue_post and store_submit. */
#pragma once

#include <stdint.h>

#include "manager/base/change_hub.h"

struct catalog;
struct ev_loop;
struct loop_queue;
struct settings;
struct store;

struct context {
    const struct settings *settings; /* SIGHUP may change them: read them anew each time */
    char *const *environment;        /* handed to workers and tools */
    int64_t started_unix_ns;
    struct ev_loop *loop;
    struct loop_queue *queue; /* to the loop, from any thread */
    struct store *store;
    struct catalog *catalog; /* the loop's */

    /* Records, or states of workers, have changed. To be notified after every committed change. */
    struct change_hub changes;
    /* A replica's worker has said something new, or the figures of updates are new. */
    struct change_hub progress;
    /* The supervisor's clock: twice a second. */
    struct change_hub ticks;
};
