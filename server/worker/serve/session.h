/* session.h: one Serve stream: a server's requests on this worker. Reference counted; lock
 * inside; any thread. The end of the stream cancels every request that came over it. */
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
    struct hash_map live; /* u64 id → stream_request; each retained */
    uint64_t n_steps;     /* frames sent */

    /* the next two: under worker->lock */
    struct session *next;
    uint64_t number; /* counts opened sessions; the list has the largest first */

    /* the rest: event thread; the frame being gathered */
    Sluice__Worker__V1__StepItem **items; /* owned */
    size_t n_items, items_capacity;
    struct session *next_touched;
    bool touched; /* the session is in that list, even if its items were removed again */
};

/* rpc_handler_fn of Serve; context is the worker. */
void session_handle_serve(void *context, struct rpc_call *call, const ProtobufCMessage *request);

void session_retain(struct session *session);
void session_release(struct session *session);

/* Sends one step frame. A server that reads no frames is cut off, which ends its requests here. */
void session_send_step(struct session *session, Sluice__Worker__V1__StepItem **items,
                       size_t n_items, const Sluice__Worker__V1__Load *load);
/* Sends the load to every greeted server, except servers that still have frames to read. */
void session_send_heartbeats(struct worker *worker, const Sluice__Worker__V1__Load *load);
/* Sends a step frame that ends one request. */
void session_send_error(struct session *session, uint64_t id, uint32_t choice,
                        const struct error *why);
/* Reports to the server that the engine accepted the request. */
void session_send_accepted(struct session *session, uint64_t id);
/* Removes a request from the map and drops the map's reference. */
void session_forget(struct session *session, uint64_t id);

/* Reports to every server that no more submits are accepted. */
void session_drain_all(struct worker *worker, uint64_t grace_ms);
/* Ends the running requests: they answer UNAVAILABLE, reason DRAINING. */
void session_end_requests(struct worker *worker);
/* Ends every stream with UNAVAILABLE, reason DRAINING. */
void session_finish_all(struct worker *worker);
/* Ends every stream with UNAVAILABLE and the reason of `why`: the server counts the replica as
 * lost. */
void session_fail_all(struct worker *worker, const struct error *why);
