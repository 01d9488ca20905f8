/* session.h: one Serve stream: a server's requests on this worker. Reference counted; lock inside;
 * any thread. Its end cancels every request that came over it. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "base/hash_map.h"
#include "sluice/worker/v1/worker.pb-c.h"

struct error;
struct rpc_call;
struct stream_request;
struct worker;

struct session {
    _Atomic uint32_t n_refs;
    struct worker *worker;
    struct rpc_call *call; /* retained */

    pthread_mutex_t lock;
    bool greeted, ended;
    char server_id[64];
    uint64_t server_epoch;
    struct hash_map live; /* u64 id → stream_request, each retained */
    uint64_t n_steps;     /* frames sent */

    /* worker->lock */
    struct session *next;
    uint64_t number; /* of all that were opened; the list has the largest first */

    /* event thread: the frame being gathered */
    Sluice__Worker__V1__StepItem **items; /* owned */
    size_t n_items, items_capacity;
    struct session *next_touched;
    bool touched; /* it is in that list, even if its items have been taken back */
};

/* rpc_handler_fn of Serve; context is the worker. */
void session_handle_serve(void *context, struct rpc_call *call, const ProtobufCMessage *request);

void session_retain(struct session *session);
void session_release(struct session *session);

/* Sends one step frame. A server that takes nothing any more is cut off, which ends its requests
 * here. */
void session_send_step(struct session *session, Sluice__Worker__V1__StepItem **items,
                       size_t n_items, const Sluice__Worker__V1__Load *load);
/* Tells the load to every server that was greeted, save those that have frames to read as it is. */
void session_send_heartbeats(struct worker *worker, const Sluice__Worker__V1__Load *load);
/* A step frame that ends one request. */
void session_send_error(struct session *session, uint64_t id, uint32_t choice,
                        const struct error *why);
/* Takes a request off the map and drops the map's reference. */
/* Tells the server that the engine took the request. */
void session_send_accepted(struct session *session, uint64_t id);
void session_forget(struct session *session, uint64_t id);

/* Tells every server that no more submits are taken. */
void session_drain_all(struct worker *worker, uint64_t grace_ms);
/* Ends what still runs: its requests answer UNAVAILABLE, reason DRAINING. */
void session_end_requests(struct worker *worker);
/* Ends every stream: UNAVAILABLE, reason DRAINING. */
void session_finish_all(struct worker *worker);
/* Ends every stream UNAVAILABLE with the reason of `why`: the server takes the replica for lost. */
void session_fail_all(struct worker *worker, const struct error *why);
