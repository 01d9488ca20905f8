#include "support_worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash_map.h"
#include "proto/rpc/rpc_call.h"
#include "proto/rpc/rpc_server.h"
#include "tests/unit/base/support_cmocka.h"

struct fake_request {
    struct fake_request *next;
    uint64_t id, seed;
    uint32_t *prompt;
    size_t n_prompt;
    uint32_t n_choices, max_tokens;
    uint32_t n_generated[FAKE_MAX_CHOICES], n_released[FAKE_MAX_CHOICES];
    bool finished[FAKE_MAX_CHOICES];
    bool paused, told, logprobs, sums, failed;
    int64_t credit; /* INT64_MAX: no limit */
};

struct fake_session {
    struct fake_session *next;
    struct fake_worker *worker;
    struct rpc_call *call;
    struct fake_request *requests;
    bool greeted;
};

uint32_t fake_token(const uint32_t *prompt, size_t n_prompt, uint64_t seed, uint32_t choice,
                    uint32_t index)
{
    uint64_t place[2] = {choice, index};
    return (uint32_t)(hash_bytes(place, sizeof(place),
                                 hash_bytes(prompt, n_prompt * sizeof(*prompt), seed)) %
                      5000);
}

void fake_text(uint32_t id, uint32_t n_bytes, char *out_text)
{
    int n = snprintf(out_text, FAKE_TEXT_BYTES, "%u", id);
    while (n + 1 < (int)n_bytes && n + 2 < FAKE_TEXT_BYTES)
        out_text[n++] = '.';
    out_text[n++] = ' ';
    out_text[n] = '\0';
}

double fake_logprob_sum(const uint32_t *prompt, size_t n_prompt, uint64_t seed, uint32_t choice,
                        uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum -= (double)(fake_token(prompt, n_prompt, seed, choice, i) % 1000) / 100;
    return sum;
}

/* Everything below is called under the worker's lock. */

static void free_request(struct fake_worker *worker, struct fake_request **at)
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

static void send_items(struct fake_session *session, Sluice__Worker__V1__StepItem **items, size_t n)
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

static void send_error(struct fake_session *session, uint64_t id, int status, const char *reason)
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
    send_items(session, items, 1);
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
        send_error(session, submit->id, STATUS_UNAVAILABLE, "DRAINING");
        return;
    }
    request->id = submit->id;
    request->seed = submit->seed;
    request->n_prompt = strlen(asked->text);
    request->prompt = calloc(request->n_prompt + 1, sizeof(*request->prompt));
    assert_non_null(request->prompt);
    for (size_t i = 0; i < request->n_prompt; i++)
        request->prompt[i] = (unsigned char)asked->text[i];
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
        return error_reason(err, "STALE_EPOCH");
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
            free_request(worker, at);
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
        free_request(worker, &session->requests);
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
    while (worker->stopped && !worker->stopping)
        pthread_cond_wait(&worker->changed, &worker->lock);
    pthread_mutex_unlock(&worker->lock);
    for (; request->text[response.n_ids] && response.n_ids < 64; response.n_ids++)
        ids[response.n_ids] = (unsigned char)request->text[response.n_ids];
    response.ids = ids;
    rpc_call_reply(call, &response.base);
}

/* --- the engine --- */

static void add_finish(struct arena *arena, struct fake_worker *worker,
                       struct fake_request *request, uint32_t choice,
                       Sluice__Worker__V1__StepItem *item)
{
    bool last = true;
    item->finished = arena_alloc(arena, sizeof(*item->finished));
    *item->finished = (Sluice__V1__Finished)SLUICE__V1__FINISHED__INIT;
    item->finished->choice = choice;
    item->finished->reason = SLUICE__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    item->finished->n_tokens = request->n_generated[choice];
    item->finished->has_cumulative_logprob = request->sums;
    item->finished->cumulative_logprob = (float)item->logprob_sum;
    request->finished[choice] = true;
    for (uint32_t i = 0; i < request->n_choices; i++)
        last = last && request->finished[i];
    if (!last)
        return;
    item->finished->usage = arena_alloc(arena, sizeof(Sluice__V1__Usage));
    *item->finished->usage = (Sluice__V1__Usage)SLUICE__V1__USAGE__INIT;
    for (uint32_t i = 0; i < request->n_choices; i++)
        item->finished->usage->n_generated_tokens += request->n_generated[i];
    item->finished->receipt = arena_alloc(arena, sizeof(Sluice__V1__Receipt));
    *item->finished->receipt = (Sluice__V1__Receipt)SLUICE__V1__RECEIPT__INIT;
    item->finished->receipt->replica_id = worker->replica_id;
    item->finished->receipt->numerics_id = worker->numerics_id;
}

static void add_logprobs(struct arena *arena, Sluice__Worker__V1__StepItem *item)
{
    item->logprobs = arena_calloc(arena, item->n_token_ids + 1, sizeof(*item->logprobs));
    for (; item->n_logprobs < item->n_token_ids; item->n_logprobs++) {
        Sluice__V1__TokenLogprob *logprob = arena_alloc(arena, sizeof(*logprob));
        *logprob = (Sluice__V1__TokenLogprob)SLUICE__V1__TOKEN_LOGPROB__INIT;
        logprob->id = item->token_ids[item->n_logprobs];
        logprob->logprob = -1.5F;
        item->logprobs[item->n_logprobs] = logprob;
    }
}

/* What no worker may say: a token of a choice that has ended. */
static Sluice__Worker__V1__StepItem *talk_on(struct arena *arena, struct fake_request *request,
                                             uint32_t choice)
{
    Sluice__Worker__V1__StepItem *item = arena_alloc(arena, sizeof(*item));
    *item = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    item->id = request->id;
    item->choice = choice;
    item->token_ids = arena_calloc(arena, 1, sizeof(uint32_t));
    item->n_token_ids = item->n_released = 1;
    item->text = arena_calloc(arena, 2, 1);
    item->text[0] = 'x';
    return item;
}

/* Nor this: text of no token, again and again. */
static Sluice__Worker__V1__StepItem *talk_idly(struct arena *arena, struct fake_request *request)
{
    Sluice__Worker__V1__StepItem *item = arena_alloc(arena, sizeof(*item));
    *item = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    item->id = request->id;
    item->text = arena_calloc(arena, FAKE_TEXT_BYTES, 1);
    memset(item->text, 'x', FAKE_TEXT_BYTES - 1);
    return item;
}

/* The step of one choice; NULL where it has nothing to say. */
static Sluice__Worker__V1__StepItem *step_choice(struct arena *arena, struct fake_worker *worker,
                                                 struct fake_request *request, uint32_t choice)
{
    uint32_t made = request->n_generated[choice], n = 0;
    uint32_t most = request->max_tokens + worker->more_tokens;
    if (request->finished[choice] && worker->talks_on)
        return talk_on(arena, request, choice);
    if (worker->idle_text && choice == 0 && made >= worker->stop_after)
        return talk_idly(arena, request);
    if (request->finished[choice] || made >= worker->stop_after ||
        request->credit + worker->late_credit <= 0)
        return NULL;
    Sluice__Worker__V1__StepItem *item = arena_alloc(arena, sizeof(*item));
    *item = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    item->id = request->id;
    item->choice = worker->bad_choice ? worker->bad_choice : choice;
    if (!request->told) {
        item->prompt_info = arena_alloc(arena, sizeof(*item->prompt_info));
        *item->prompt_info = (Sluice__V1__PromptInfo)SLUICE__V1__PROMPT_INFO__INIT;
        item->prompt_info->n_prompt_tokens = (uint32_t)request->n_prompt;
        item->prompt_info->prompt_token_ids = request->prompt;
        item->prompt_info->n_prompt_token_ids = request->n_prompt;
        request->told = true;
    }
    item->token_ids = arena_calloc(arena, worker->tokens_per_step + 1, sizeof(uint32_t));
    for (; n < worker->tokens_per_step && made + n < most && made + n < worker->stop_after; n++)
        item->token_ids[n] =
            fake_token(request->prompt, request->n_prompt, request->seed, choice, made + n);
    item->n_token_ids = n;
    request->n_generated[choice] = made += n;
    bool end = made >= most || (worker->talks_on && choice == 0 && made >= 3);
    uint32_t release = end ? made : made > worker->hold ? made - worker->hold : 0;
    char *text = arena_calloc(arena, (release - request->n_released[choice]) + 1, FAKE_TEXT_BYTES);
    uint32_t *shares =
        arena_calloc(arena, (release - request->n_released[choice]) + 1, sizeof(*shares));
    size_t n_text = 0;
    for (uint32_t i = request->n_released[choice]; i < release; i++) {
        fake_text(fake_token(request->prompt, request->n_prompt, request->seed, choice, i),
                  worker->text_bytes, text + n_text);
        shares[i - request->n_released[choice]] = (uint32_t)strlen(text + n_text);
        n_text += strlen(text + n_text);
    }
    item->text = text;
    item->released_text_bytes = shares;
    item->n_released_text_bytes = worker->no_shares ? 0 : release - request->n_released[choice];
    if (request->credit != INT64_MAX)
        request->credit -= release - request->n_released[choice];
    item->has_logprob_sum = request->sums;
    item->logprob_sum =
        fake_logprob_sum(request->prompt, request->n_prompt, request->seed, choice, made);
    item->n_released = release - request->n_released[choice];
    request->n_released[choice] = release;
    if (request->logprobs)
        add_logprobs(arena, item);
    if (end && !worker->split_ends)
        add_finish(arena, worker, request, choice, item);
    return item;
}

/* The end of a choice whose tokens have all been told. */
static Sluice__Worker__V1__StepItem *split_end(struct arena *arena, struct fake_worker *worker,
                                               struct fake_request *request, uint32_t choice)
{
    if (!worker->split_ends || request->finished[choice] ||
        request->n_generated[choice] < request->max_tokens)
        return NULL;
    Sluice__Worker__V1__StepItem *item = arena_alloc(arena, sizeof(*item));
    *item = (Sluice__Worker__V1__StepItem)SLUICE__WORKER__V1__STEP_ITEM__INIT;
    item->id = request->id;
    item->choice = choice;
    add_finish(arena, worker, request, choice, item);
    return item;
}

static bool is_over(const struct fake_request *request)
{
    for (uint32_t i = 0; i < request->n_choices; i++)
        if (!request->finished[i])
            return false;
    return true;
}

static void step_session(struct fake_worker *worker, struct fake_session *session)
{
    struct arena arena;
    size_t n = 0;
    arena_init(&arena, 1 << 16, 0);
    Sluice__Worker__V1__StepItem **items =
        arena_calloc(&arena, (worker->n_live + 1) * 2 * FAKE_MAX_CHOICES,
                     sizeof(Sluice__Worker__V1__StepItem *));
    for (struct fake_request *r = session->requests; r; r = r->next) {
        for (uint32_t i = 0; i < r->n_choices && (!r->paused || worker->deaf); i++) {
            items[n] = step_choice(&arena, worker, r, i);
            n += items[n] != NULL;
        }
        for (uint32_t i = 0; i < r->n_choices; i++) {
            items[n] = split_end(&arena, worker, r, i);
            n += items[n] != NULL;
        }
        if (worker->fail_status && !r->failed && r->n_generated[0] >= worker->fail_after)
            r->failed = true;
    }
    worker->progress += n != 0;
    if (n)
        send_items(session, items, n);
    for (struct fake_request **at = &session->requests; *at;) {
        if ((*at)->failed)
            send_error(session, (*at)->id, worker->fail_status, worker->fail_reason);
        if ((*at)->failed || is_over(*at))
            free_request(worker, at);
        else
            at = &(*at)->next;
    }
    arena_fini(&arena);
}

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
            step_session(worker, s);
        worker->progress += worker->hangs && worker->layers;
        if (!worker->stopped)
            beat(worker);
        wait_us(worker, worker->step_us);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

/* --- life --- */

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
            send_error(s, s->requests->id, STATUS_UNAVAILABLE, "DRAINING");
            free_request(worker, &s->requests);
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
