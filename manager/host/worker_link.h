/* worker_link.h: the manager's connection to one worker: its status stream, and the calls Wake,
 * Keep and Shutdown. Connects and reconnects until closed. Loop thread only. Callbacks come on
 * the loop thread and never after close. */
#pragma once

#include <stdint.h>

#include "manager/base/pb.h"

struct error;
struct ev_loop;
struct loop_queue;
struct worker_link;

struct worker_link_events {
    /* A status of the worker; borrowed for the call. */
    void (*on_status)(void *arg, const pb_status *status);
    /* The worker shares no protocol version with the manager; the link does not try again. */
    void (*on_refused)(void *arg, const struct error *why);
    /* The answer to worker_link_wake: status 0, or why the worker does not wake. */
    void (*on_wake)(void *arg, const struct error *status);
    /* The answer to worker_link_keep: status 0, or why there is no park copy. */
    void (*on_keep)(void *arg, const struct error *status);
    /* The answer to worker_link_shutdown: borrowed; NULL where the call failed. */
    void (*on_shutdown)(void *arg, const Sluice__Worker__V1__ShutdownResponse *response,
                        const struct error *status);
};

/* Once ready, the worker sends a status every interval_ms. `events` is borrowed until close.
 * *out_link is owned. */
int worker_link_open(struct ev_loop *loop, struct loop_queue *queue, const char *socket_path,
                     uint32_t interval_ms, const struct worker_link_events *events, void *arg,
                     struct worker_link **out_link, struct error *err);
void worker_link_close(struct worker_link *link); /* NULL is accepted */

/* Sends Wake to a parked worker, with the launch record of a new process. A worker of a program
 * without launch records refuses the call. */
int worker_link_wake(struct worker_link *link, const pb_launch *record, struct error *err);

/* Asks a worker for a park copy: a copy in host memory of its weights on the GPU. Other replicas
 * own promised_bytes of the free host memory. A budget leaves limit_bytes; 0: no budget. The
 * worker's next status names the copy. */
int worker_link_keep(struct worker_link *link, uint64_t promised_bytes, uint64_t limit_bytes,
                     struct error *err);

/* Asks the worker to drain within grace_ms and to end. */
int worker_link_shutdown(struct worker_link *link, uint32_t grace_ms, struct error *err);
