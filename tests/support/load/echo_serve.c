#include "tests/support/load/echo_serve.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/status.h"
#include "proto/rpc/server/call.h"
#include "tests/support/load/echo_wheel.h"

enum { DEFAULT_TOKENS = 16, HEARTBEAT_MS = 1000 };

/* --- requests --- */

static int copy_ids(const uint32_t *ids, size_t n, uint32_t **out_ids, size_t *out_n,
                    struct error *err)
{
    if (!n)
        return error_field(err, "prompt", "is empty");
    *out_ids = malloc(n * sizeof(**out_ids));
    if (!*out_ids)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "prompt: out of memory");
    memcpy(*out_ids, ids, n * sizeof(*ids));
    *out_n = n;
    return 0;
}

static int text_ids(const char *const *texts, size_t n_texts, uint32_t **out_ids, size_t *out_n,
                    struct error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < n_texts; i++)
        n += strlen(texts[i]);
    uint32_t *ids = malloc((n + 1) * sizeof(*ids));
    if (!ids)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "prompt: out of memory");
    size_t at = 0;
    for (size_t i = 0; i < n_texts; i++)
        for (const char *c = texts[i]; *c; c++)
            ids[at++] = (unsigned char)*c;
    int rc = copy_ids(ids, n, out_ids, out_n, err);
    free(ids);
    return rc;
}

int echo_prompt(const Sluice__V1__GenerateRequest *request, uint32_t **out_ids, size_t *out_n,
                struct error *err)
{
    const char *text = request->text;
    switch (request->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKEN_IDS:
        return copy_ids(request->token_ids->ids, request->token_ids->n_ids, out_ids, out_n, err);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        return text_ids(&text, 1, out_ids, out_n, err);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT:
        text = request->chat->n_messages
                   ? request->chat->messages[request->chat->n_messages - 1]->content
                   : "";
        return text_ids(&text, 1, out_ids, out_n, err);
    default:
        return error_field(err, "prompt", "is missing");
    }
}

static int take_resume(struct request *request, const Sluice__Worker__V1__ResumeState *resume,
                       struct error *err)
{
    request->told = true;
    for (size_t i = 0; i < resume->n_choices; i++) {
        const Sluice__Worker__V1__ResumedChoice *choice = resume->choices[i];
        if (choice->choice >= request->n_choices ||
            choice->text_bytes_sent != (uint64_t)choice->n_released * ECHO_TEXT_BYTES ||
            choice->n_released != choice->n_generated_ids)
            return error_field(err, "submit.resume.choices", "do not continue what was released");
        for (uint32_t t = 0; t < choice->n_generated_ids; t++)
            if (choice->generated_ids[t] !=
                echo_token(request->prompt, request->n_prompt, choice->choice, t))
                return error_field(err, "submit.resume.choices", "another prompt's tokens");
        request->n_generated[choice->choice] = (uint32_t)choice->n_generated_ids;
        request->finished |= (uint8_t)(choice->finished << choice->choice);
    }
    return 0;
}

static int fill_request(struct request *request, const Sluice__Worker__V1__Submit *submit,
                        struct error *err)
{
    const Sluice__V1__GenerateRequest *asked = submit->request;
    const Sluice__Worker__V1__ResumeState *resume = submit->resume;
    int rc = resume ? copy_ids(resume->prompt_token_ids, resume->n_prompt_token_ids,
                               &request->prompt, &request->n_prompt, err)
                    : echo_prompt(asked, &request->prompt, &request->n_prompt, err);
    if (rc)
        return rc;
    request->id = submit->id;
    request->n_choices = asked->sampling && asked->sampling->has_n ? asked->sampling->n : 1;
    request->max_tokens = asked->stopping && asked->stopping->has_max_tokens
                              ? asked->stopping->max_tokens
                              : DEFAULT_TOKENS;
    request->credit = submit->has_credit_tokens ? (int64_t)submit->credit_tokens : -1;
    if (submit->has_deadline_remaining_ns)
        request->deadline_ns = clock_now_ns() + (int64_t)submit->deadline_remaining_ns;
    if (request->n_choices > MAX_CHOICES)
        return error_field(err, "sampling.n", "is over %d", MAX_CHOICES);
    return resume ? take_resume(request, resume, err) : 0;
}

/* --- changes --- */

/* Frees all requests of a session. With `why`, sends each of them this error first. */
static void free_requests(struct session *session, const struct error *why)
{
    struct request *next;
    for (uint32_t i = 0; i < session->echo->config.n_slots; i++)
        for (struct request *request = session->slots[i]; request; request = next) {
            next = request->next;
            if (why)
                echo_send_error(session, request->id, why);
            echo_request_free(session->echo, request);
        }
}

int echo_check_protocol(uint32_t own, uint32_t peer_min, uint32_t peer_max, struct error *err)
{
    if (peer_min <= own && peer_max >= own)
        return 0;
    error_set(err, STATUS_FAILED_PRECONDITION,
              "no common protocol version: the peer speaks %u to %u, this worker %u to %u",
              peer_min, peer_max, own, own);
    return error_reason(err, REASON_PROTOCOL_MISMATCH);
}

static int on_hello(struct session *session, const Sluice__Worker__V1__Hello *hello,
                    struct error *err)
{
    const struct echo_config *config = &session->echo->config;
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__HelloReply reply = SLUICE__WORKER__V1__HELLO_REPLY__INIT;
    uint32_t protocol = config->protocol ? config->protocol() : 1;
    if (!config->looks_not &&
        echo_check_protocol(protocol, hello->protocol_min, hello->protocol_max, err) != 0)
        return err->status;
    if (hello->expected_epoch && hello->expected_epoch != config->epoch) {
        error_set(err, STATUS_FAILED_PRECONDITION, "expected_epoch: %llu, this one is %llu",
                  (unsigned long long)hello->expected_epoch, (unsigned long long)config->epoch);
        return error_reason(err, REASON_STALE_EPOCH);
    }
    session->greeted = true;
    reply.heartbeat_ms = config->rate == 0 || config->rate >= 5 ? HEARTBEAT_MS : 0;
    reply.protocol = protocol;
    reply.replica_id = echo_word(config->replica_id);
    reply.epoch = config->epoch;
    reply.model = echo_word(config->model);
    reply.version = echo_word(config->version);
    reply.numerics_id = echo_word(config->numerics_id);
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_HELLO;
    response.hello = &reply;
    rpc_call_send(session->call, &response.base);
    return 0;
}

static void enter(struct session *session, struct request *request)
{
    struct echo *echo = session->echo;
    uint32_t slot = echo->next_slot++ % echo->config.n_slots;
    request->session = session;
    request->at = &session->slots[slot];
    request->next = session->slots[slot];
    if (request->next)
        request->next->at = &request->next;
    session->slots[slot] = request;
    echo->n_live++;
}

/* Answers a submit that it cannot accept in the stream, as a worker does. */
static int on_submit(struct session *session, const Sluice__Worker__V1__Submit *submit,
                     struct error *err)
{
    struct echo *echo = session->echo;
    struct request *request = NULL;
    struct error why;
    uint64_t id = submit->id;
    int rc = 0;
    if (!submit->request || hash_map_get(&session->live, &id, sizeof(id)))
        return error_field(err, "submit", "has no request, or an id that is in use");
    echo->counters.n_accepted_requests++;
    if (echo->draining) {
        rc = error_set(&why, STATUS_UNAVAILABLE, "the worker is draining");
        error_reason(&why, REASON_DRAINING);
    } else if (!(request = calloc(1, sizeof(*request)))) {
        rc = error_set(&why, STATUS_RESOURCE_EXHAUSTED, "submit: out of memory");
    } else if (!(rc = fill_request(request, submit, &why)) &&
               !hash_map_put(&session->live, &id, sizeof(id), request)) {
        rc = error_set(&why, STATUS_RESOURCE_EXHAUSTED, "submit: out of memory");
    }
    if (!rc) {
        enter(session, request);
        return 0;
    }
    if (request)
        free(request->prompt);
    free(request);
    echo_send_error(session, id, &why);
    return 0;
}

static void set_paused(struct echo *echo, struct request *request, bool paused)
{
    if (request->paused != paused)
        echo->n_paused += paused ? 1u : -1u;
    request->paused = paused;
}

/* Handles a change of a request. Ignores an id that has ended. */
static void on_change(struct session *session, const Sluice__Worker__V1__ServeRequest *frame)
{
    struct echo *echo = session->echo;
    struct request *request;
    uint64_t id;
    switch (frame->frame_case) {
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT:
        id = frame->credit->id;
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_UPDATE:
        id = frame->update->id;
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_PAUSE:
        id = frame->pause->id;
        break;
    case SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_RESUME:
        id = frame->resume->id;
        break;
    default:
        id = frame->cancel->id;
        break;
    }
    if (!(request = hash_map_get(&session->live, &id, sizeof(id))))
        return;
    if (frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CREDIT) {
        if (request->credit >= 0)
            request->credit += frame->credit->n_tokens;
    } else if (frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_UPDATE) {
        if (frame->update->update && frame->update->update->has_max_tokens)
            request->max_tokens = frame->update->update->max_tokens;
    } else if (frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_CANCEL) {
        echo->counters.n_cancelled_requests++;
        echo_request_free(echo, request);
    } else {
        set_paused(echo, request,
                   frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_PAUSE);
    }
}

static int on_frame(struct session *session, const Sluice__Worker__V1__ServeRequest *frame,
                    struct error *err)
{
    bool hello = frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_HELLO;
    if (hello && !session->greeted)
        return on_hello(session, frame->hello, err);
    if (hello || !session->greeted)
        return error_field(err, "hello", hello ? "came twice" : "must come first");
    if (frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME__NOT_SET)
        return error_field(err, "frame", "is empty or of a kind this worker does not know");
    if (frame->frame_case == SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_SUBMIT)
        return on_submit(session, frame->submit, err);
    on_change(session, frame);
    return 0;
}

static void on_message(void *arg, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct session *session = arg;
    struct error err;
    pthread_mutex_lock(&session->echo->lock);
    int rc = on_frame(session, (const Sluice__Worker__V1__ServeRequest *)message, &err);
    pthread_mutex_unlock(&session->echo->lock);
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
    struct session *session = arg;
    struct echo *echo = session->echo;
    pthread_mutex_lock(&echo->lock);
    free_requests(session, NULL);
    struct session **at = &echo->sessions;
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    pthread_mutex_unlock(&echo->lock);
    hash_map_fini(&session->live);
    free(session->slots);
    free(session);
    rpc_call_release(call);
}

static const struct rpc_call_events events = {
    .on_message = on_message, .on_half_close = on_half_close, .on_done = on_done};

void echo_serve(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct echo *echo = context;
    struct session *session = calloc(1, sizeof(*session));
    struct error err;
    (void)message;
    if (session)
        session->slots = calloc(echo->config.n_slots, sizeof(struct request *));
    if (!session || !session->slots) {
        free(session);
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "Serve: out of memory");
        rpc_call_finish(call, &err);
        return;
    }
    session->echo = echo;
    session->call = call;
    rpc_call_retain(call);
    pthread_mutex_lock(&echo->lock);
    session->next = echo->sessions;
    echo->sessions = session;
    pthread_mutex_unlock(&echo->lock);
    rpc_call_set_events(call, &events, session);
}

/* --- the whole --- */

int echo_create(const struct echo_config *config, struct echo **out_echo, struct error *err)
{
    struct echo *echo = calloc(1, sizeof(*echo));
    pthread_condattr_t attributes;
    if (!echo)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "echo: out of memory");
    echo->config = *config;
    echo->config.n_slots = config->n_slots ? config->n_slots : 1;
    echo->counters = (Sluice__Worker__V1__WorkerCounters)SLUICE__WORKER__V1__WORKER_COUNTERS__INIT;
    pthread_mutex_init(&echo->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&echo->idle, &attributes);
    pthread_condattr_destroy(&attributes);
    int err_no = pthread_create(&echo->wheel, NULL, echo_turn_wheel, echo);
    if (err_no) {
        free(echo);
        return error_errno(err, err_no, "cannot start the wheel");
    }
    *out_echo = echo;
    return 0;
}

/* Under the lock: waits until nothing is live or the time is over. */
static void wait_idle(struct echo *echo, uint32_t grace_ms)
{
    int64_t end_ns = clock_now_ns() + (int64_t)grace_ms * NS_PER_MS;
    struct timespec until = {.tv_sec = end_ns / NS_PER_S, .tv_nsec = end_ns % NS_PER_S};
    while (echo->n_live && clock_now_ns() < end_ns)
        pthread_cond_timedwait(&echo->idle, &echo->lock, &until);
}

uint32_t echo_drain(struct echo *echo, uint32_t grace_ms, uint32_t *out_n_ended)
{
    Sluice__Worker__V1__ServeResponse response = SLUICE__WORKER__V1__SERVE_RESPONSE__INIT;
    Sluice__Worker__V1__Draining draining = SLUICE__WORKER__V1__DRAINING__INIT;
    struct error why;
    error_set(&why, STATUS_UNAVAILABLE, "the worker is draining");
    error_reason(&why, REASON_DRAINING);
    draining.grace_ms = grace_ms;
    response.frame_case = SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_DRAINING;
    response.draining = &draining;
    pthread_mutex_lock(&echo->lock);
    echo->draining = true;
    uint32_t n_before = echo->n_live;
    for (struct session *s = echo->sessions; s; s = s->next)
        if (s->greeted)
            rpc_call_send(s->call, &response.base);
    wait_idle(echo, grace_ms);
    *out_n_ended = echo->n_live;
    for (struct session *s = echo->sessions; s; s = s->next)
        free_requests(s, &why);
    pthread_mutex_unlock(&echo->lock);
    return n_before - *out_n_ended;
}

void echo_fill_load(struct echo *echo, Sluice__Worker__V1__Load *out_load)
{
    pthread_mutex_lock(&echo->lock);
    out_load->n_running = echo->n_live - echo->n_paused;
    out_load->n_paused = echo->n_paused;
    out_load->progress = echo->progress;
    out_load->step_ns = echo->step_ns;
    pthread_mutex_unlock(&echo->lock);
}

void echo_fill_counters(struct echo *echo, Sluice__Worker__V1__WorkerCounters *out_counters)
{
    pthread_mutex_lock(&echo->lock);
    *out_counters = echo->counters;
    pthread_mutex_unlock(&echo->lock);
}
