#include "server/worker/serve/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "engine/engine.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/call.h"
#include "server/worker/base/message.h"
#include "server/worker/base/settings.h"
#include "server/worker/base/work_pool.h"
#include "server/worker/serve/heartbeat.h"
#include "server/worker/serve/stream_request.h"
#include "server/worker/state/worker.h"

void session_retain(struct session *session)
{
    atomic_fetch_add(&session->n_refs, 1);
}

void session_release(struct session *session)
{
    if (!session || atomic_fetch_sub(&session->n_refs, 1) != 1)
        return;
    rpc_call_release(session->call);
    hash_map_fini(&session->live);
    pthread_mutex_destroy(&session->lock);
    free(session->items);
    free(session);
}

/* --- to the server --- */

void session_send_step(struct session *session, Sluice__Worker__V1__StepItem **items,
                       size_t n_items, const Sluice__Worker__V1__Load *load)
{
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__Step step = SLUICE__WORKER__V1__STEP__INIT;
    Sluice__Worker__V1__Load copy;
    step.items = items;
    step.n_items = n_items;
    if (load) {
        copy = *load;
        step.load = &copy;
    }
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_STEP;
    response.step = &step;
    pthread_mutex_lock(&session->lock);
    step.step = ++session->n_steps;
    int rc = rpc_call_send(session->call, &response.base); /* under the lock, so frames leave in
                                                            * the order of their numbers */
    pthread_mutex_unlock(&session->lock);
    if (rc != STATUS_RESOURCE_EXHAUSTED)
        return;
    struct error err;
    error_set(&err, STATUS_RESOURCE_EXHAUSTED, "the server does not read its step frames");
    error_reason(&err, REASON_SLOW_READER);
    rpc_call_finish(session->call, &err);
}

void session_send_error(struct session *session, uint64_t id, uint32_t choice,
                        const struct error *why)
{
    Sluice__Worker__V1__StepItem item = SLUICE__WORKER__V1__STEP_ITEM__INIT;
    Sluice__Worker__V1__StepItem *items[1] = {&item};
    struct arena arena;
    arena_init(&arena, 1024, 0);
    item.id = id;
    item.choice = choice;
    item.error = message_error(&arena, why);
    if (item.error)
        session_send_step(session, items, 1, NULL);
    else
        rpc_call_finish(session->call, why); /* no memory for the error: the end of the stream
                                              * loses all requests */
    arena_fini(&arena);
}

void session_send_accepted(struct session *session, uint64_t id)
{
    Sluice__Worker__V1__StepItem item = SLUICE__WORKER__V1__STEP_ITEM__INIT;
    Sluice__Worker__V1__StepItem *items[1] = {&item};
    item.id = id;
    item.accepted = true;
    session_send_step(session, items, 1, NULL);
}

void session_forget(struct session *session, uint64_t id)
{
    pthread_mutex_lock(&session->lock);
    struct stream_request *request = hash_map_remove(&session->live, &id, sizeof(id));
    pthread_mutex_unlock(&session->lock);
    stream_request_release(request);
}

/* --- from the server --- */

static struct stream_request *find(struct session *session, uint64_t id)
{
    pthread_mutex_lock(&session->lock);
    struct stream_request *request = hash_map_get(&session->live, &id, sizeof(id));
    if (request)
        stream_request_retain(request);
    pthread_mutex_unlock(&session->lock);
    return request;
}

static void send_hello(struct session *session, struct engine *engine)
{
    struct worker *worker = session->worker;
    const struct settings *s = worker->settings;
    struct arena arena;
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__HelloReply reply = SLUICE__WORKER__V1__HELLO_REPLY__INIT;
    Sluice__Worker__V1__Load load = SLUICE__WORKER__V1__LOAD__INIT;
    arena_init(&arena, 1024, 0);
    worker_fill_load(worker, engine, &load);
    reply.protocol = WORKER_PROTOCOL_MAX;
    reply.replica_id = message_text(&arena, s->replica);
    reply.epoch = s->epoch;
    reply.model = message_text(&arena, s->name);
    reply.version = message_text(&arena, s->version_id);
    reply.numerics_id = message_text(&arena, engine_numerics_id(engine));
    reply.weights_digest = message_text(&arena, engine_weights_digest(engine));
    reply.device_group = message_text(&arena, s->device_group);
    reply.info = worker->info;
    reply.software_version = message_text(&arena, SLUICE_VERSION);
    reply.load = &load;
    reply.heartbeat_ms = HEARTBEAT_IDLE_MS;
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_HELLO;
    response.hello = &reply;
    if (arena.exhausted) {
        struct error err;
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "hello: out of memory");
        rpc_call_finish(session->call, &err);
    } else {
        rpc_call_send(session->call, &response.base);
    }
    arena_fini(&arena);
}

static int stale(struct error *err, const char *whose, uint64_t given, uint64_t known)
{
    error_set(err, STATUS_FAILED_PRECONDITION, "%s: %llu is stale, the current one is %llu", whose,
              (unsigned long long)given, (unsigned long long)known);
    return error_reason(err, REASON_STALE_EPOCH);
}

/* Refuses a server that a newer one of the same id has replaced. */
static int check_server(struct session *session, const Sluice__Worker__V1__Hello *hello,
                        struct error *err)
{
    struct worker *worker = session->worker;
    uint64_t youngest = 0;
    pthread_mutex_lock(&worker->lock);
    for (const struct session *s = worker->sessions; s; s = s->next)
        if (s != session && strcmp(s->server_id, hello->server_id) == 0 &&
            s->server_epoch > youngest)
            youngest = s->server_epoch;
    snprintf(session->server_id, sizeof(session->server_id), "%s", hello->server_id);
    session->server_epoch = hello->server_epoch;
    pthread_mutex_unlock(&worker->lock);
    return hello->server_epoch < youngest
               ? stale(err, "server_epoch", hello->server_epoch, youngest)
               : 0;
}

static int on_hello(struct session *session, const Sluice__Worker__V1__Hello *hello,
                    struct error *err)
{
    uint64_t epoch = session->worker->settings->epoch;
    int rc = worker_check_protocol(hello->protocol_min, hello->protocol_max, err);
    if (rc)
        return rc;
    if (hello->expected_epoch && hello->expected_epoch != epoch)
        return stale(err, "expected_epoch", hello->expected_epoch, epoch);
    rc = check_server(session, hello, err);
    if (rc)
        return rc;
    struct engine *engine = worker_engine(session->worker, err);
    /* A failed engine ends soon, but the server would open new streams until then. */
    if (!engine || engine_health(engine, err) != 0)
        return err->status;
    send_hello(session, engine);
    pthread_mutex_lock(&session->lock);
    session->greeted = true;
    pthread_mutex_unlock(&session->lock);
    return 0;
}

static int on_submit(struct session *session, const Sluice__Worker__V1__Submit *submit,
                     struct error *err)
{
    struct worker *worker = session->worker;
    uint64_t id = submit->id;
    if (!submit->request)
        return error_field(err, "submit.request", "is missing");
    Sluice__Worker__V1__Submit *copy = (Sluice__Worker__V1__Submit *)message_copy(&submit->base);
    struct stream_request *request = copy ? stream_request_create(session, copy) : NULL;
    pthread_mutex_lock(&session->lock);
    bool known = request && !session->ended && !hash_map_get(&session->live, &id, sizeof(id)) &&
                 hash_map_put(&session->live, &id, sizeof(id), request);
    if (known)
        stream_request_retain(request); /* reference for the pool */
    pthread_mutex_unlock(&session->lock);
    if (!known) {
        bool twice = request != NULL;
        stream_request_release(request);
        return twice ? error_field(err, "submit.id", "%llu is in use by a running request",
                                   (unsigned long long)id)
                     : error_set(err, STATUS_RESOURCE_EXHAUSTED, "submit: out of memory");
    }
    worker_request_begin(worker);
    struct error why;
    if (work_pool_push(worker->pool, stream_request_start, request, &why) != 0) {
        atomic_fetch_add(&worker->n_refused, 1);
        session_send_error(session, id, 0, &why);
        session_forget(session, id);
        stream_request_release(request);
        worker_request_end(worker);
    }
    return 0;
}

static void on_update(struct session *session, const Sluice__Worker__V1__Update *update)
{
    struct error err;
    struct stream_request *request = find(session, update->id);
    if (!request)
        return;
    if (update->update && stream_request_update(request, update->update, &err) != 0)
        log_debug(LOG_EVENT("update refused"), LOG_U64("request", update->id),
                  LOG_STR("message", err.message));
    stream_request_release(request);
}

/* Cancel, credit, pause and resume ignore an unknown id: the request may have ended. */
static void on_change(struct session *session, const Sluice__Worker__V1__ServeRequest *frame)
{
    uint64_t id;
    switch (frame->frame_case) {
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CANCEL:
        id = frame->cancel->id;
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT:
        id = frame->credit->id;
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_PAUSE:
        id = frame->pause->id;
        break;
    default:
        id = frame->resume->id;
        break;
    }
    struct stream_request *request = find(session, id);
    if (!request)
        return;
    if (frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CANCEL)
        stream_request_cancel(request, false);
    else if (frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT)
        stream_request_credit(request, frame->credit->n_tokens);
    else
        stream_request_pause(request,
                             frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_PAUSE);
    stream_request_release(request);
}

static int on_frame(struct session *session, const Sluice__Worker__V1__ServeRequest *frame,
                    struct error *err)
{
    bool hello = frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_HELLO;
    if (hello && session->greeted)
        return error_field(err, "hello", "was sent twice");
    if (hello)
        return on_hello(session, frame->hello, err);
    if (!session->greeted)
        return error_field(err, "hello", "must come first");
    switch (frame->frame_case) {
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT:
        return on_submit(session, frame->submit, err);
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_UPDATE:
        on_update(session, frame->update);
        return 0;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CANCEL:
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT:
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_PAUSE:
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_RESUME:
        on_change(session, frame);
        return 0;
    default:
        return error_field(err, "frame", "is empty or unknown to this worker");
    }
}

static void on_message(void *arg, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct error err;
    if (on_frame(arg, (const Sluice__Worker__V1__ServeRequest *)message, &err) != 0)
        rpc_call_finish(call, &err);
}

/* --- the end --- */

/* Cancels a lost server's requests. This allocates no memory, so that it works when memory is
 * exhausted: otherwise sequences would run for no client. */
static void cancel_requests(struct session *session, bool draining)
{
    struct stream_request *request;
    size_t cursor = 0;
    pthread_mutex_lock(&session->lock);
    while ((request = hash_map_next(&session->live, &cursor, NULL, NULL)))
        stream_request_cancel(request, draining);
    pthread_mutex_unlock(&session->lock);
}

static void on_half_close(void *arg, struct rpc_call *call)
{
    struct session *session = arg;
    cancel_requests(session, false);
    rpc_call_finish(call, NULL);
}

static void on_done(void *arg, struct rpc_call *call)
{
    struct session *session = arg;
    struct worker *worker = session->worker;
    (void)call;
    pthread_mutex_lock(&session->lock);
    session->ended = true;
    pthread_mutex_unlock(&session->lock);
    cancel_requests(session, false);
    pthread_mutex_lock(&worker->lock);
    struct session **link = &worker->sessions;
    while (*link && *link != session)
        link = &(*link)->next;
    if (*link)
        *link = session->next;
    pthread_mutex_unlock(&worker->lock);
    session_release(session); /* drops the stream's reference */
}

static const struct rpc_call_events events = {
    .on_message = on_message, .on_half_close = on_half_close, .on_done = on_done};

void session_handle_serve(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct worker *worker = context;
    struct session *session = calloc(1, sizeof(*session));
    struct error err;
    (void)request;
    if (!session) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "Serve: out of memory");
        rpc_call_finish(call, &err);
        return;
    }
    atomic_init(&session->n_refs, 1);
    pthread_mutex_init(&session->lock, NULL);
    session->worker = worker;
    session->call = call;
    rpc_call_retain(call);
    pthread_mutex_lock(&worker->lock);
    session->number = ++worker->n_sessions;
    session->next = worker->sessions;
    worker->sessions = session;
    pthread_mutex_unlock(&worker->lock);
    rpc_call_set_events(call, &events, session);
}

/* --- all sessions --- */

/* Returns the newest session that is older than `*number`, retained, and sets *number; NULL at
 * the end. A walk begins at UINT64_MAX, holds no lock between sessions and allocates nothing. */
static struct session *next_session(struct worker *worker, uint64_t *number)
{
    pthread_mutex_lock(&worker->lock);
    struct session *session = worker->sessions; /* newest first */
    while (session && session->number >= *number)
        session = session->next;
    if (session) {
        *number = session->number;
        session_retain(session);
    }
    pthread_mutex_unlock(&worker->lock);
    return session;
}

void session_send_heartbeats(struct worker *worker, const Sluice__Worker__V1__Load *load)
{
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__Load copy = *load;
    struct session *session;
    uint64_t number = UINT64_MAX;
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_LOAD;
    response.load = &copy;
    while ((session = next_session(worker, &number))) {
        pthread_mutex_lock(&session->lock);
        bool greeted = session->greeted;
        pthread_mutex_unlock(&session->lock);
        if (greeted && rpc_call_pending_bytes(session->call) == 0)
            rpc_call_send(session->call, &response.base);
        session_release(session);
    }
}

void session_drain_all(struct worker *worker, uint64_t grace_ms)
{
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__Draining draining = SLUICE__WORKER__V1__DRAINING__INIT;
    struct session *session;
    uint64_t number = UINT64_MAX;
    draining.grace_ms = grace_ms;
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_DRAINING;
    response.draining = &draining;
    while ((session = next_session(worker, &number))) {
        rpc_call_send(session->call, &response.base);
        session_release(session);
    }
}

void session_end_requests(struct worker *worker)
{
    struct session *session;
    uint64_t number = UINT64_MAX;
    while ((session = next_session(worker, &number))) {
        cancel_requests(session, true);
        session_release(session);
    }
}

static void finish_all(struct worker *worker, const struct error *status)
{
    struct session *session;
    uint64_t number = UINT64_MAX;
    while ((session = next_session(worker, &number))) {
        rpc_call_finish(session->call, status);
        session_release(session);
    }
}

void session_finish_all(struct worker *worker)
{
    struct error err;
    error_set(&err, STATUS_UNAVAILABLE, "the worker is ending");
    error_reason(&err, REASON_DRAINING);
    finish_all(worker, &err);
}

void session_fail_all(struct worker *worker, const struct error *why)
{
    struct error err;
    error_set(&err, STATUS_UNAVAILABLE, "%s", why->message);
    error_reason_of(&err, why);
    finish_all(worker, &err);
}
