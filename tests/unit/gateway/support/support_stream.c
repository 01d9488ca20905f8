#include "tests/unit/gateway/support/support_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/status.h"
#include "tests/unit/base/support_cmocka.h"

enum { WAIT_S = 20 };

static void complain(struct client_bidi *bidi, const char *what)
{
    if (!bidi->complaint)
        bidi->complaint = what;
}

/* Call under the lock. */
static struct client_answer *answer_of(struct client_bidi *bidi, const char *id)
{
    for (unsigned i = 0; i < bidi->n_answers; i++)
        if (strcmp(bidi->answers[i].id, id) == 0)
            return &bidi->answers[i];
    assert_true(bidi->n_answers < CLIENT_MAX_REQUESTS);
    struct client_answer *answer = &bidi->answers[bidi->n_answers++];
    snprintf(answer->id, sizeof(answer->id), "%s", id);
    return answer;
}

static void add_ids(struct client_answer *answer, uint32_t choice, const uint32_t *ids, size_t n)
{
    unsigned n_ids = answer->n_ids[choice] + (unsigned)n;
    answer->ids[choice] = realloc(answer->ids[choice], (n_ids + 1) * sizeof(uint32_t));
    assert_non_null(answer->ids[choice]);
    if (n)
        memcpy(answer->ids[choice] + answer->n_ids[choice], ids, n * sizeof(uint32_t));
    answer->n_ids[choice] = n_ids;
    answer->n_tokens += (unsigned)n;
}

static void take_tokens(struct client_bidi *bidi, struct client_answer *answer,
                        const Sluice__V1__Tokens *tokens)
{
    char text[FAKE_TEXT_BYTES];
    const char *at = tokens->text;
    if (tokens->choice >= STREAM_MAX_CHOICES || answer->finished[tokens->choice]) {
        complain(bidi, "tokens of a choice that is over or never was");
        return;
    }
    if (tokens->first_index != answer->n_ids[tokens->choice])
        complain(bidi, "first_index leaves a gap or repeats");
    for (size_t i = 0; i < tokens->n_ids; i++) {
        fake_text(tokens->ids[i], bidi->text_bytes, text);
        if (strncmp(at, text, strlen(text)) != 0)
            complain(bidi, "the text is not that of the ids");
        else
            at += strlen(text);
    }
    if (*at || !tokens->n_ids)
        complain(bidi, "more text than ids, or no ids");
    add_ids(answer, tokens->choice, tokens->ids, tokens->n_ids);
    if (tokens->n_ids > answer->max_ids)
        answer->max_ids = (unsigned)tokens->n_ids;
    if (bidi->n_order < CLIENT_MAX_ORDER)
        bidi->order[bidi->n_order++] = (uint16_t)(answer - bidi->answers);
}

static void take_finished(struct client_bidi *bidi, struct client_answer *answer,
                          const Sluice__V1__Finished *finished)
{
    if (finished->choice >= STREAM_MAX_CHOICES || answer->finished[finished->choice] ||
        answer->has_receipt) {
        complain(bidi, "finished twice, or after the receipt");
        return;
    }
    if (finished->n_tokens != answer->n_ids[finished->choice])
        complain(bidi, "finished with another number of tokens");
    answer->finished[finished->choice] = true;
    answer->cumulative[finished->choice] = (double)finished->cumulative_logprob;
    answer->n_finished++;
    if (!finished->receipt)
        return;
    answer->has_receipt = answer->over = true;
    answer->n_resumes = finished->receipt->n_resumes;
    answer->n_usage_tokens = finished->usage->n_generated_tokens;
}

static void take_error(struct client_answer *answer, const Sluice__V1__Error *error, bool goes_on)
{
    if (answer->n_errors == CLIENT_MAX_ERRORS)
        return; /* the test looks at no more messages */
    struct error *out = &answer->errors[answer->n_errors];
    error_set(out, status_from_grpc(error->code), "%s", error->message);
    snprintf(out->field, sizeof(out->field), "%s", error->field);
    error_reason_parse(out, error->reason);
    out->retry_after_ms = error->retry_after_ms;
    answer->goes_on[answer->n_errors++] = goes_on;
    answer->over = answer->over || !goes_on;
}

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    struct client_bidi *bidi = arg;
    const Sluice__V1__GenerateStreamResponse *response =
        (const Sluice__V1__GenerateStreamResponse *)message;
    (void)stream;
    pthread_mutex_lock(&bidi->lock);
    struct client_answer *answer = answer_of(bidi, response->request_id);
    bool error = response->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_ERROR;
    if (answer->over && !error)
        complain(bidi, "a frame after the end");
    if (response->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_PROMPT_INFO)
        answer->n_infos++;
    else if (response->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_TOKENS)
        take_tokens(bidi, answer, response->tokens);
    else if (response->frame_case == SLUICE__V1__GENERATE_STREAM_RESPONSE__FRAME_FINISHED)
        take_finished(bidi, answer, response->finished);
    else
        take_error(answer, response->error, response->goes_on);
    pthread_cond_broadcast(&bidi->changed);
    pthread_mutex_unlock(&bidi->lock);
}

static void on_status(void *arg, struct rpc_stream *stream, const struct error *status)
{
    struct client_bidi *bidi = arg;
    (void)stream;
    pthread_mutex_lock(&bidi->lock);
    bidi->over = true;
    bidi->status = *status;
    pthread_cond_broadcast(&bidi->changed);
    pthread_mutex_unlock(&bidi->lock);
}

void bidi_open(struct fixture *f, struct rpc_client *client, uint64_t timeout_ms,
               struct client_bidi *bidi)
{
    static const struct rpc_stream_events events = {.on_message = on_message,
                                                    .on_status = on_status};
    struct rpc_call_options options = {.timeout_ms = timeout_ms};
    pthread_condattr_t attr;
    struct error err;
    memset(bidi, 0, sizeof(*bidi));
    pthread_mutex_init(&bidi->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&bidi->changed, &attr);
    pthread_condattr_destroy(&attr);
    bidi->text_bytes = f->workers[0].text_bytes;
    assert_int_equal(rpc_stream_open(client ? client : f->client,
                                     &sluice__v1__inference__descriptor, "GenerateStream", NULL,
                                     &options, &events, bidi, &bidi->stream, &err),
                     0);
}

void bidi_close(struct client_bidi *bidi)
{
    rpc_stream_cancel(bidi->stream);
    bidi_wait_end(bidi);
    rpc_stream_release(bidi->stream);
    for (unsigned i = 0; i < bidi->n_answers; i++)
        for (unsigned k = 0; k < STREAM_MAX_CHOICES; k++)
            free(bidi->answers[i].ids[k]);
    pthread_cond_destroy(&bidi->changed);
    pthread_mutex_destroy(&bidi->lock);
}

/* --- frames --- */

void bidi_send(struct client_bidi *bidi, Sluice__V1__GenerateStreamRequest *frame)
{
    assert_int_equal(rpc_stream_send(bidi->stream, &frame->base), 0);
}

void bidi_start_with(struct client_bidi *bidi, const char *id, const struct client_request *request,
                     const struct bidi_extra *extra)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    struct client_message message;
    client_message_fill(request, &message);
    message.request.reattach_window_ms = extra->window_ms;
    message.request.has_credit_tokens = extra->has_credit;
    message.request.credit_tokens = extra->credit;
    message.sampling.has_best_of = extra->best_of > 0;
    message.sampling.best_of = extra->best_of;
    frame.request_id = (char *)(uintptr_t)id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_START;
    frame.start = &message.request;
    bidi_send(bidi, &frame);
}

void bidi_start(struct client_bidi *bidi, const char *id, const struct client_request *request)
{
    bidi_start_with(bidi, id, request, &(struct bidi_extra){0});
}

void bidi_cancel(struct client_bidi *bidi, const char *id)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__CancelFrame cancel = SLUICE__V1__CANCEL_FRAME__INIT;
    frame.request_id = (char *)(uintptr_t)id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_CANCEL;
    frame.cancel = &cancel;
    bidi_send(bidi, &frame);
}

void bidi_pause(struct client_bidi *bidi, const char *id, bool paused)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__PauseFrame pause = SLUICE__V1__PAUSE_FRAME__INIT;
    Sluice__V1__ResumeFrame resume = SLUICE__V1__RESUME_FRAME__INIT;
    frame.request_id = (char *)(uintptr_t)id;
    if (paused) {
        frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_PAUSE;
        frame.pause = &pause;
    } else {
        frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_RESUME;
        frame.resume = &resume;
    }
    bidi_send(bidi, &frame);
}

void bidi_credit(struct client_bidi *bidi, const char *id, uint32_t n_tokens)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__CreditFrame credit = SLUICE__V1__CREDIT_FRAME__INIT;
    credit.n_tokens = n_tokens;
    frame.request_id = (char *)(uintptr_t)id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_CREDIT;
    frame.credit = &credit;
    bidi_send(bidi, &frame);
}

void bidi_update(struct client_bidi *bidi, const char *id, uint32_t max_tokens)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__UpdateFrame update = SLUICE__V1__UPDATE_FRAME__INIT;
    update.has_max_tokens = true;
    update.max_tokens = max_tokens;
    frame.request_id = (char *)(uintptr_t)id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_UPDATE;
    frame.update = &update;
    bidi_send(bidi, &frame);
}

void bidi_reattach(struct client_bidi *bidi, const char *id, uint32_t n_received,
                   const uint32_t *received)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__ReattachFrame reattach = SLUICE__V1__REATTACH_FRAME__INIT;
    Sluice__V1__ReceivedTokens count = SLUICE__V1__RECEIVED_TOKENS__INIT, *list[] = {&count};
    pthread_mutex_lock(&bidi->lock);
    struct client_answer *answer = answer_of(bidi, id);
    if (received)
        add_ids(answer, 0, received, n_received);
    pthread_mutex_unlock(&bidi->lock);
    count.n_tokens = n_received;
    reattach.received = list;
    reattach.n_received = 1;
    frame.request_id = (char *)(uintptr_t)id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_REATTACH;
    frame.reattach = &reattach;
    bidi_send(bidi, &frame);
}

void bidi_half_close(struct client_bidi *bidi)
{
    rpc_stream_close_send(bidi->stream);
}

/* --- waiting --- */

struct client_answer *bidi_answer(struct client_bidi *bidi, const char *id)
{
    pthread_mutex_lock(&bidi->lock);
    struct client_answer *answer = answer_of(bidi, id);
    pthread_mutex_unlock(&bidi->lock);
    return answer;
}

enum what { TOKENS, OVER, ERRORS, END };

static bool reached(const struct client_bidi *bidi, const struct client_answer *answer,
                    enum what what, unsigned n)
{
    switch (what) {
    case TOKENS:
        return answer->n_tokens >= n;
    case OVER:
        return answer->over;
    case ERRORS:
        return answer->n_errors >= n;
    default:
        return bidi->over;
    }
}

static struct client_answer *wait_for(struct client_bidi *bidi, const char *id, enum what what,
                                      unsigned n)
{
    struct timespec until;
    int failed = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += WAIT_S;
    pthread_mutex_lock(&bidi->lock);
    struct client_answer *answer = id ? answer_of(bidi, id) : NULL;
    while (!reached(bidi, answer, what, n) && !bidi->complaint && !failed && !bidi->over)
        failed = pthread_cond_timedwait(&bidi->changed, &bidi->lock, &until);
    bool done = reached(bidi, answer, what, n);
    const char *complaint = bidi->complaint;
    pthread_mutex_unlock(&bidi->lock);
    if (complaint)
        fail_msg("client: %s", complaint);
    if (!done)
        fail_msg("client: %s: not what was awaited (%d, %u): %u tokens, %u errors, call %d %s",
                 id ? id : "", (int)what, n, answer ? answer->n_tokens : 0,
                 answer ? answer->n_errors : 0, bidi->status.status, bidi->status.message);
    return answer;
}

struct client_answer *bidi_wait_tokens(struct client_bidi *bidi, const char *id, unsigned n)
{
    return wait_for(bidi, id, TOKENS, n);
}

struct client_answer *bidi_wait_over(struct client_bidi *bidi, const char *id)
{
    return wait_for(bidi, id, OVER, 0);
}

struct error bidi_wait_error(struct client_bidi *bidi, const char *id, unsigned n)
{
    return wait_for(bidi, id, ERRORS, n + 1)->errors[n];
}

int bidi_wait_end(struct client_bidi *bidi)
{
    wait_for(bidi, NULL, END, 0);
    return bidi->status.status;
}

void bidi_expect_error(struct client_bidi *bidi, const char *id, unsigned n, int status,
                       const char *reason, const char *field, bool goes_on)
{
    struct error err = bidi_wait_error(bidi, id, n);
    if (err.status != status || strcmp(error_reason_name(&err), reason) != 0 ||
        strcmp(err.field, field) != 0 || bidi_answer(bidi, id)->goes_on[n] != goes_on)
        fail_msg("%s[%u]: %d %s %s %s", id, n, err.status, error_reason_name(&err), err.field,
                 err.message);
}

unsigned bidi_quiet(struct client_bidi *bidi, const char *id)
{
    for (unsigned n = UINT32_MAX;;) {
        pthread_mutex_lock(&bidi->lock);
        unsigned now = answer_of(bidi, id)->n_tokens;
        pthread_mutex_unlock(&bidi->lock);
        if (now == n)
            return n;
        n = now;
        nanosleep(&(struct timespec){0, 150 * NS_PER_MS}, NULL);
    }
}

void bidi_expect_tokens(struct client_bidi *bidi, const char *id,
                        const struct client_request *request, bool whole)
{
    uint32_t prompt[256];
    const char *text = request->text ? request->text : "a prompt";
    size_t n_prompt = strlen(text);
    uint32_t n = request->n ? request->n : 1;
    uint32_t max_tokens = request->max_tokens ? request->max_tokens : 16;
    struct client_answer *answer = whole ? bidi_wait_over(bidi, id) : bidi_answer(bidi, id);
    for (size_t i = 0; i < n_prompt; i++)
        prompt[i] = (unsigned char)text[i];
    pthread_mutex_lock(&bidi->lock);
    for (uint32_t choice = 0; choice < STREAM_MAX_CHOICES; choice++)
        for (uint32_t i = 0; i < answer->n_ids[choice]; i++)
            assert_int_equal(answer->ids[choice][i],
                             fake_token(prompt, n_prompt, request->seed, choice, i));
    if (whole) {
        assert_int_equal(answer->n_finished, n);
        assert_true(answer->has_receipt);
        assert_int_equal(answer->n_tokens, n * max_tokens);
    }
    pthread_mutex_unlock(&bidi->lock);
}
