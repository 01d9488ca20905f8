/* worker_link.h: the manager's line to one worker: its status stream, and the request to shut down.
 * Connects by itself and again after a loss, until closed. Loop thread only; callbacks come on the
 * loop thread and never after close. */
#pragma once

#include <stdint.h>

#include "manager/base/pb.h"

struct error;
struct ev_loop;
struct loop_queue;
struct worker_link;

struct worker_link_events {
    /* What the worker says of itself; borrowed for the call. */
    void (*on_status)(void *arg, const pb_status *status);
    /* It speaks no version of our protocol, and is not asked again. */
    void (*on_refused)(void *arg, const struct error *why);
    /* The answer to worker_link_wake: status 0, or why it is not woken. */
    void (*on_wake)(void *arg, const struct error *status);
    /* The answer to worker_link_keep: status 0, or why nothing is kept. */
    void (*on_keep)(void *arg, const struct error *status);
    /* The answer to worker_link_shutdown: borrowed; NULL where it failed or never came. */
    void (*on_shutdown)(void *arg, const Sluice__Worker__V1__ShutdownResponse *response,
                        const struct error *status);
};

/* Once ready, the worker is to speak every interval_ms. `events` is borrowed until close. *out_link
 * is owned. */
int worker_link_open(struct ev_loop *loop, struct loop_queue *queue, const char *socket_path,
                     uint32_t interval_ms, const struct worker_link_events *events, void *arg,
                     struct worker_link **out_link, struct error *err);
void worker_link_close(struct worker_link *link); /* NULL is accepted */

/* Tells a worker that is parked to serve, with the flags (NULL-terminated) that one would be
 * started with now. */
int worker_link_wake(struct worker_link *link, char *const *flags, struct error *err);

/* Asks a worker to copy what its GPU has of the weights into the machine's memory, of whose free
 * bytes so many are promised to others; limit_bytes: of a budget, 0: none. Its status names it. */
int worker_link_keep(struct worker_link *link, uint64_t promised_bytes, uint64_t limit_bytes,
                     struct error *err);

/* Asks the worker to drain within grace_ms and end. */
int worker_link_shutdown(struct worker_link *link, uint32_t grace_ms, struct error *err);
