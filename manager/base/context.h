/* context.h: the objects that every part of the manager uses. main.c creates and fills one
 * context. Each part borrows the context until the part is destroyed. Loop thread only. Other
 * threads reach the loop through loop_queue_post and store_submit. */
#pragma once

#include <stdint.h>

#include "manager/base/change_hub.h"

struct catalog;
struct ev_loop;
struct loop_queue;
struct settings;
struct store;

struct context {
    const struct settings *settings; /* SIGHUP may change them: read them at each use */
    char *const *environment;        /* for workers and tools */
    int64_t started_unix_ns;
    struct ev_loop *loop;
    struct loop_queue *queue; /* to the loop, from any thread */
    struct store *store;
    struct catalog *catalog; /* the loop's catalog */

    /* Rows or states of workers have changed. Must be notified after every committed change. */
    struct change_hub changes;
    /* A worker has sent a new status, or updates have new figures. */
    struct change_hub progress;
    /* The supervisor's clock, twice a second. */
    struct change_hub ticks;
};
