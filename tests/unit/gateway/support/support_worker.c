#include "tests/unit/gateway/support/support_worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/server.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_worker_parts.h"

/* Everything below is called under the worker's lock. */

void fake_request_free(struct fake_worker *worker, struct fake_request **at)
{
    struct fake_request *request = *at;
    *at = request->next;
    worker->n_live--;
    pthread_cond_broadcast(&worker->changed);
    free(request->prompt);
    free(request);
}

static struct fake_request **find_request(struct fake_session *session, uint64_t id)
{
    struct fake_request **at = &session->requests;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static void fill_load(const struct fake_worker *worker, Sluice__Worker__V1__Load *load)
{
    load->n_running = worker->n_live;
    load->progress = worker->progress;
    load->n_ready = worker->hangs; /* an engine that hangs takes no cancels either */
    for (const struct fake_session *s = worker->sessions; s; s = s->next)
        for (const struct fake_request *r = s->requests; r; r = r->next)
            load->n_ready += !r->paused;
}

void fake_session_send(struct fake_session *session, Sluice__Worker__V1__StepItem **items, size_t n)
{
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__Step step = SLUICE__WORKER__V1__STEP__INIT;
    Sluice__Worker__V1__Load load = SLUICE__WORKER__V1__LOAD__INIT;
    fill_load(session->worker, &load);
    step.items = items;
    step.n_items = n;
    step.load = &load;
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_STEP;
    response.step = &step;
    rpc_call_send(session->call, &response.base);
}

void fake_session_fail(struct fake_session *session, uint64_t id, int status, const char *reason)
{
    Sluice__Worker__V1__StepItem item = SLUICE__WORKER__V1__STEP_ITEM__INIT, *items[] = {&item};
    Sluice__V1__Error error = SLUICE__V1__ERROR__INIT;
    error.code = status_to_grpc(status);
    error.message = (char *)(uintptr_t) "said by the worker";
    error.reason = (char *)(uintptr_t)reason;
    error.field = (char *)(uintptr_t) "a.field";
    error.retry_after_ms = 70;
    item.id = id;
    item.error = &error;
    fake_session_send(session, items, 1);
}

/* A resume must carry what this worker would have made, and the text that belongs to it. */
static bool continues(const struct fake_worker *worker, const struct fake_request *request,
                      const Sluice__Worker__V1__ResumedChoice *choice)
{
    char text[FAKE_TEXT_BYTES];
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < choice->n_generated_ids; i++) {
        uint32_t id =
            fake_token(request->prompt, request->n_prompt, request->seed, choice->choice, i);
        if (choice->generated_ids[i] != id)
            return false;
        fake_text(id, worker->text_bytes, text);
        n_bytes += i < choice->n_released ? strlen(text) : 0;
    }
    if (request->sums && choice->n_generated_ids &&
        (!choice->has_logprob_sum ||
         choice->logprob_sum != fake_logprob_sum(request->prompt, request->n_prompt, request->seed,
                                                 choice->choice,
                                                 (uint32_t)choice->n_generated_ids)))
        return false;
    return choice->choice < request->n_choices && choice->n_released <= choice->n_generated_ids &&
           n_bytes == choice->text_bytes_sent;
}

static void take_resume(struct fake_worker *worker, struct fake_request *request,
                        const Sluice__Worker__V1__ResumeState *resume)
{
    worker->n_resumed++;
    snprintf(worker->last_numerics_id, sizeof(worker->last_numerics_id), "%s", resume->numerics_id);
    if (resume->n_prompt_token_ids != request->n_prompt ||
        memcmp(resume->prompt_token_ids, request->prompt, 4 * request->n_prompt) != 0)
        worker->n_wrong++;
    for (size_t i = 0; i < resume->n_choices; i++) {
        const Sluice__Worker__V1__ResumedChoice *choice = resume->choices[i];
        if (!continues(worker, request, choice)) {
            worker->n_wrong++;
            continue;
        }
        request->n_generated[choice->choice] = (uint32_t)choice->n_generated_ids;
        request->n_released[choice->choice] = choice->n_released;
        request->finished[choice->choice] = choice->finished;
    }
}

static void say_accepted(struct fake_session *session, uint64_t id)
{
    Sluice__Worker__V1__StepItem item = SLUICE__WORKER__V1__STEP_ITEM__INIT, *items[] = {&item};
    item.id = id;
    item.accepted = true;
    fake_session_send(session, items, 1);
}

static void on_submit(struct fake_session *session, const Sluice__Worker__V1__Submit *submit)
{
    struct fake_worker *worker = session->worker;
    const Sluice__V1__GenerateRequest *asked = submit->request;
    struct fake_request *request = calloc(1, sizeof(*request));
    assert_non_null(request);
    worker->seeds[worker->n_submits % FAKE_SEEDS] = submit->seed;
    worker->n_submits++;
    worker->n_wrong += *find_request(session, submit->id) != NULL;
    worker->deadline_remaining_ns =
        submit->has_deadline_remaining_ns ? submit->deadline_remaining_ns : 0;
    pthread_cond_broadcast(&worker->changed);
    if (worker->draining) {
        free(request);
        fake_session_fail(session, submit->id, STATUS_UNAVAILABLE, "DRAINING");
        return;
    }
    request->id = submit->id;
    request->seed = submit->seed;
    const char *text =
        asked->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT ? asked->text : "other";
    request->n_prompt = strlen(text);
    request->prompt = calloc(request->n_prompt + 1, sizeof(*request->prompt));
    assert_non_null(request->prompt);
    for (size_t i = 0; i < request->n_prompt; i++)
        request->prompt[i] = (unsigned char)text[i];
    request->n_choices = asked->sampling && asked->sampling->has_n ? asked->sampling->n : 1;
    request->max_tokens =
        asked->stopping && asked->stopping->has_max_tokens ? asked->stopping->max_tokens : 16;
    if (asked->sampling && asked->sampling->has_best_of)
        request->n_choices = asked->sampling->best_of;
    request->logprobs = asked->output && asked->output->logprobs;
    request->sums = request->logprobs || (asked->sampling && asked->sampling->has_best_of);
    request->paused = submit->paused;
    worker->n_pauses += submit->paused;
    request->credit = submit->has_credit_tokens ? submit->credit_tokens : INT64_MAX;
    if (submit->resume)
        take_resume(worker, request, submit->resume);
    request->next = session->requests;
    session->requests = request;
    worker->n_live++;
    if (worker->accepts)
        say_accepted(session, request->id);
}

static int on_hello(struct fake_session *session, const Sluice__Worker__V1__Hello *hello,
                    struct error *err)
{
    struct fake_worker *worker = session->worker;
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__HelloReply reply = SLUICE__WORKER__V1__HELLO_REPLY__INIT;
    worker->n_hellos++;
    pthread_cond_broadcast(&worker->changed);
    if (hello->expected_epoch != worker->epoch) {
        error_set(err, STATUS_FAILED_PRECONDITION, "expected_epoch: another process");
        return error_reason(err, REASON_STALE_EPOCH);
    }
    session->greeted = true;
    reply.protocol = 1;
    reply.epoch = worker->hello_epoch ? worker->hello_epoch : worker->epoch;
    reply.numerics_id = worker->numerics_id;
    reply.replica_id = worker->replica_id;
    reply.heartbeat_ms = worker->heartbeat_ms;
    Sluice__Worker__V1__Load load = SLUICE__WORKER__V1__LOAD__INIT;
    fill_load(worker, &load);
    reply.load = &load;
    Sluice__V1__ModelInfo info = SLUICE__V1__MODEL_INFO__INIT;
    Sluice__V1__ModelLimits limits = SLUICE__V1__MODEL_LIMITS__INIT;
    limits.max_concurrent_requests = worker->max_concurrent;
    info.limits = &limits;
    reply.info = worker->max_concurrent ? &info : NULL;
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_HELLO;
    response.hello = &reply;
    rpc_call_send(session->call, &response.base);
    return 0;
}

static void on_frame(struct fake_session *session, const Sluice__Worker__V1__ServeRequest *frame)
{
    struct fake_worker *worker = session->worker;
    struct fake_request **at = NULL;
    switch (frame->frame_case) {
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT:
        on_submit(session, frame->submit);
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CANCEL:
        at = find_request(session, frame->cancel->id);
        worker->n_cancels++;
        worker->cancel_ns = clock_now_ns();
        if (*at)
            fake_request_free(worker, at);
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_PAUSE:
        at = find_request(session, frame->pause->id);
        worker->n_pauses++;
        if (*at)
            (*at)->paused = true;
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_RESUME:
        at = find_request(session, frame->resume->id);
        worker->n_resumes++;
        if (*at)
            (*at)->paused = false;
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT:
        at = find_request(session, frame->credit->id);
        worker->n_credits++;
        worker->n_wrong += *at && (*at)->credit == INT64_MAX;
        if (*at)
            (*at)->credit += frame->credit->n_tokens;
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_UPDATE:
        at = find_request(session, frame->update->id);
        worker->n_updates++;
        if (*at && frame->update->update->has_max_tokens)
            (*at)->max_tokens = frame->update->update->max_tokens;
        break;
    default:
        worker->n_wrong++;
        break;
    }
    pthread_cond_broadcast(&worker->changed);
}

/* --- the stream's callbacks --- */

static void on_message(void *arg, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct fake_session *session = arg;
    const Sluice__Worker__V1__ServeRequest *frame =
        (const Sluice__Worker__V1__ServeRequest *)message;
    struct error err;
    int rc = 0;
    pthread_mutex_lock(&session->worker->lock);
    while (session->worker->stopped && !session->worker->stopping)
        pthread_cond_wait(&session->worker->changed, &session->worker->lock);
    if (frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_HELLO)
        rc = on_hello(session, frame->hello, &err);
    else if (session->greeted)
        on_frame(session, frame);
    else
        session->worker->n_wrong++;
    pthread_mutex_unlock(&session->worker->lock);
    if (rc)
        rpc_call_finish(call, &err);
}

static void on_half_close(void *arg, struct rpc_call *call)
{
    (void)arg;
    rpc_call_finish(call, NULL);
}

static void on_done(void *arg, struct rpc_call *call)
{
    struct fake_session *session = arg;
    struct fake_worker *worker = session->worker;
    pthread_mutex_lock(&worker->lock);
    while (session->requests)
        fake_request_free(worker, &session->requests);
    struct fake_session **at = &worker->sessions;
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    worker->n_streams_ended++;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
    rpc_call_release(call);
    free(session);
}

static const struct rpc_call_events events = {
    .on_message = on_message,
    .on_half_close = on_half_close,
    .on_done = on_done,
};

static void handle_serve(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct fake_worker *worker = context;
    struct fake_session *session = calloc(1, sizeof(*session));
    assert_non_null(session);
    assert_null(message);
    session->worker = worker;
    session->call = call;
    rpc_call_retain(call);
    pthread_mutex_lock(&worker->lock);
    session->next = worker->sessions;
    worker->sessions = session;
    pthread_mutex_unlock(&worker->lock);
    rpc_call_set_events(call, &events, session);
}

static void handle_tokenize(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    const Sluice__V1__TokenizeRequest *request = (const Sluice__V1__TokenizeRequest *)message;
    Sluice__V1__TokenizeResponse response = SLUICE__V1__TOKENIZE_RESPONSE__INIT;
    struct fake_worker *worker = context;
    uint32_t ids[64];
    pthread_mutex_lock(&worker->lock);
    worker->n_texts++;
    pthread_cond_broadcast(&worker->changed);
    while (worker->stopped && !worker->stopping)
        pthread_cond_wait(&worker->changed, &worker->lock);
    bool draining = worker->draining;
    pthread_mutex_unlock(&worker->lock);
    if (draining) {
        struct error err;
        error_set(&err, STATUS_UNAVAILABLE, "the server is shutting down");
        error_reason(&err, REASON_DRAINING);
        rpc_call_finish(call, &err);
        return;
    }
    for (; request->text[response.n_ids] && response.n_ids < 64; response.n_ids++)
        ids[response.n_ids] = (unsigned char)request->text[response.n_ids];
    response.ids = ids;
    rpc_call_reply(call, &response.base);
}

/* --- life --- */

static void wait_us(struct fake_worker *worker, int64_t us)
{
    struct timespec until;
    int64_t end_ns = clock_now_ns() + us * NS_PER_US;
    until.tv_sec = end_ns / NS_PER_S;
    until.tv_nsec = end_ns % NS_PER_S;
    while (!worker->stopping && clock_now_ns() < end_ns)
        pthread_cond_timedwait(&worker->changed, &worker->lock, &until);
}

static void beat(struct fake_worker *worker)
{
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__Load load = SLUICE__WORKER__V1__LOAD__INIT;
    int64_t now_ns = clock_now_ns();
    if (!worker->heartbeat_ms || now_ns - worker->beat_ns < worker->heartbeat_ms * NS_PER_MS / 2)
        return;
    worker->beat_ns = now_ns;
    fill_load(worker, &load);
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_LOAD;
    response.load = &load;
    for (struct fake_session *s = worker->sessions; s; s = s->next)
        if (s->greeted)
            rpc_call_send(s->call, &response.base);
}

static void *run_engine(void *arg)
{
    struct fake_worker *worker = arg;
    pthread_mutex_lock(&worker->lock);
    while (!worker->stopping) {
        for (struct fake_session *s = worker->sessions; s && !worker->hangs && !worker->stopped;
             s = s->next)
            fake_session_step(worker, s);
        worker->progress += worker->hangs && worker->layers;
        if (!worker->stopped)
            beat(worker);
        wait_us(worker, worker->step_us);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

void fake_worker_init(struct fake_worker *worker, const char *dir, const char *replica_id)
{
    pthread_condattr_t attr;
    memset(worker, 0, sizeof(*worker));
    snprintf(worker->socket, sizeof(worker->socket), "%.64s/%s.sock", dir, replica_id);
    snprintf(worker->replica_id, sizeof(worker->replica_id), "%s", replica_id);
    snprintf(worker->numerics_id, sizeof(worker->numerics_id), "fake");
    worker->epoch = 1;
    worker->step_us = 1000;
    worker->tokens_per_step = 1;
    worker->stop_after = UINT32_MAX;
    pthread_mutex_init(&worker->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&worker->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void fake_worker_fini(struct fake_worker *worker)
{
    fake_worker_kill(worker);
    pthread_cond_destroy(&worker->changed);
    pthread_mutex_destroy(&worker->lock);
}

void fake_worker_start(struct fake_worker *worker)
{
    static const struct rpc_method methods[] = {
        {"Serve", RPC_SHAPE_BIDI, handle_serve},
        {"WatchStatus", RPC_SHAPE_SERVER_STREAM, rpc_unimplemented},
        {"Drain", RPC_SHAPE_UNARY, rpc_unimplemented},
        {"Shutdown", RPC_SHAPE_UNARY, rpc_unimplemented},
        {"Tokenize", RPC_SHAPE_UNARY, handle_tokenize},
        {"Detokenize", RPC_SHAPE_UNARY, rpc_unimplemented},
        {"Wake", RPC_SHAPE_UNARY, rpc_unimplemented},
        {"KeepWeights", RPC_SHAPE_UNARY, rpc_unimplemented},
        {"ApplyChatTemplate", RPC_SHAPE_UNARY, rpc_unimplemented},
    };
    struct rpc_service service = {&sluice__worker__v1__worker__descriptor, methods,
                                  sizeof(methods) / sizeof(methods[0]), worker};
    struct rpc_server_config config;
    struct error err;
    rpc_server_config_init(&config);
    config.services = &service;
    config.n_services = 1;
    config.n_threads = 1;
    config.max_pending_bytes = 64 << 20;
    config.max_message_bytes = 64 << 20;
    error_clear(&err);
    worker->stopping = false;
    worker->draining = false;
    if (rpc_server_create(&config, &worker->server, &err) != 0 ||
        rpc_server_listen_unix(worker->server, worker->socket, &err) != 0 ||
        rpc_server_start(worker->server, &err) != 0)
        fail_msg("fake worker: %s", err.message);
    assert_int_equal(pthread_create(&worker->engine, NULL, run_engine, worker), 0);
}

void fake_worker_kill(struct fake_worker *worker)
{
    if (!worker->server)
        return;
    pthread_mutex_lock(&worker->lock);
    worker->stopping = true;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->engine, NULL);
    rpc_server_destroy(worker->server);
    worker->server = NULL;
}

void fake_worker_drain(struct fake_worker *worker, bool end)
{
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__Draining draining = SLUICE__WORKER__V1__DRAINING__INIT;
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_DRAINING;
    response.draining = &draining;
    pthread_mutex_lock(&worker->lock);
    worker->draining = true;
    for (struct fake_session *s = worker->sessions; s; s = s->next) {
        rpc_call_send(s->call, &response.base);
        while (end && s->requests) {
            fake_session_fail(s, s->requests->id, STATUS_UNAVAILABLE, "DRAINING");
            fake_request_free(worker, &s->requests);
        }
    }
    pthread_mutex_unlock(&worker->lock);
}

void fake_worker_stop(struct fake_worker *worker, bool stopped)
{
    pthread_mutex_lock(&worker->lock);
    worker->stopped = stopped;
    pthread_cond_broadcast(&worker->changed);
    pthread_mutex_unlock(&worker->lock);
}

void fake_worker_hang(struct fake_worker *worker, bool hangs, bool layers)
{
    pthread_mutex_lock(&worker->lock);
    worker->hangs = hangs;
    worker->layers = layers;
    pthread_mutex_unlock(&worker->lock);
}

void fake_worker_stop_after(struct fake_worker *worker, uint32_t n_tokens)
{
    pthread_mutex_lock(&worker->lock);
    worker->stop_after = n_tokens;
    pthread_mutex_unlock(&worker->lock);
}

static bool wait_counter(struct fake_worker *worker, const _Atomic unsigned *counter, unsigned n,
                         bool exactly)
{
    struct timespec until;
    int failed = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += 10;
    pthread_mutex_lock(&worker->lock);
    while ((exactly ? *counter != n : *counter < n) && !failed)
        failed = pthread_cond_timedwait(&worker->changed, &worker->lock, &until);
    bool reached = exactly ? *counter == n : *counter >= n;
    pthread_mutex_unlock(&worker->lock);
    return reached;
}

bool fake_worker_wait(struct fake_worker *worker, const _Atomic unsigned *counter, unsigned n)
{
    return wait_counter(worker, counter, n, false);
}

bool fake_worker_wait_live(struct fake_worker *worker, unsigned n)
{
    return wait_counter(worker, &worker->n_live, n, true);
}

unsigned fake_worker_read(struct fake_worker *worker, const _Atomic unsigned *counter)
{
    pthread_mutex_lock(&worker->lock);
    unsigned n = *counter;
    pthread_mutex_unlock(&worker->lock);
    return n;
}
