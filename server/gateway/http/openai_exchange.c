#include "server/gateway/http/openai_exchange.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/trace.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/dispatch/generation.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/http/openai_answer.h"
#include "server/gateway/http/openai_request.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/relay/relay_sink.h"

struct openai_exchange;

/* One prompt. The sink may live longer than the exchange's answer. */
struct part {
    struct relay_sink base;
    struct openai_exchange *exchange; /* retained */
    struct relay *relay;              /* retained */
    uint32_t first_choice;            /* its choices follow from this index on */
    bool is_over;
    struct openai_choice choices[RELAY_MAX_CHOICES];
};

struct openai_exchange {
    _Atomic uint32_t n_refs;
    struct http_exchange *http; /* retained */
    struct openai_answer answer;
    char model[192];
    char ignored[512];
    bool streams;
    struct error error; /* the first error of a part; status 0: none */
    struct strbuf whole_choices;
    size_t n_parts, n_over;
    struct part *parts[OPENAI_MAX_PROMPTS];
};

static void exchange_release(struct openai_exchange *exchange)
{
    if (atomic_fetch_sub(&exchange->n_refs, 1) != 1)
        return;
    http_exchange_release(exchange->http);
    strbuf_fini(&exchange->whole_choices);
    free(exchange);
}

/* --- the sink of a prompt --- */

static void ready(struct relay_sink *sink)
{
    http_exchange_kick(((struct part *)sink)->exchange->http);
}

static void cut_off(struct relay_sink *sink, const struct error *status)
{
    (void)status;
    http_exchange_abort(((struct part *)sink)->exchange->http);
}

static void destroy_part(struct relay_sink *sink)
{
    struct part *part = (struct part *)sink;
    relay_release(part->relay);
    exchange_release(part->exchange);
    free(part);
}

static const struct relay_sink_ops sink_ops = {.name = "openai",
                                               .ready = ready,
                                               .cut_off = cut_off,
                                               .taken_over = cut_off,
                                               .destroy = destroy_part};

/* --- frames --- */

/* What a call of `next` writes, and the tokens that wait for their choice's end: the last tokens
 * and the finish reason go into one chunk. */
struct writer {
    struct openai_exchange *exchange;
    struct part *part;
    struct strbuf *text;
};

static void put_frame(void *ctx, const struct relay_frame *frame)
{
    struct writer *w = ctx;
    struct openai_exchange *exchange = w->exchange;
    struct openai_answer *answer = &exchange->answer;
    if (frame->kind == RELAY_FRAME_PROMPT_INFO) {
        answer->n_prompt_tokens += frame->prompt_info.n_prompt_tokens;
        answer->n_cached_tokens += frame->prompt_info.n_cached_tokens;
    } else if (frame->kind == RELAY_FRAME_TOKENS) {
        openai_answer_chunk(answer, &w->part->choices[frame->tokens.choice],
                            w->part->first_choice + frame->tokens.choice, &frame->tokens, NULL,
                            w->text);
    } else if (frame->kind == RELAY_FRAME_FINISHED) {
        openai_answer_chunk(answer, &w->part->choices[frame->finished.choice],
                            w->part->first_choice + frame->finished.choice, NULL, &frame->finished,
                            w->text);
    } else if (frame->kind == RELAY_FRAME_WHOLE) {
        openai_answer_choices(answer, frame->whole, w->part->first_choice,
                              &exchange->whole_choices);
    }
    if (frame->last) {
        w->part->is_over = true;
        exchange->n_over++;
        if (frame->error && !exchange->error.status)
            exchange->error = *frame->error;
    }
}

/* Ends the other prompts of a request whose prompt failed. */
static void cancel_all(struct openai_exchange *exchange, const char *why)
{
    struct error err;
    error_set(&err, STATUS_CANCELLED, "%s", why);
    for (size_t i = 0; i < exchange->n_parts; i++)
        if (!exchange->parts[i]->is_over)
            dispatch_cancel(exchange->parts[i]->relay, &err);
}

static void reply_error(struct openai_exchange *exchange, struct http_out *out)
{
    char headers[HTTP_ERROR_HEADER_BYTES];
    struct http_reply reply = {.status = 500};
    openai_request_name_field(&exchange->error);
    http_error_reply(&exchange->error, headers, &reply);
    http_out_reply(out, &reply);
}

static void begin_stream(struct openai_exchange *exchange, struct http_out *out)
{
    char headers[640];
    snprintf(headers, sizeof(headers), "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%s",
             exchange->ignored);
    http_out_begin(out, 200, "text/event-stream; charset=utf-8", headers);
}

static void next_of_stream(struct openai_exchange *exchange, struct http_out *out,
                           struct strbuf *text)
{
    if (exchange->error.status && !http_out_has_begun(out)) {
        reply_error(exchange, out);
        return;
    }
    if (!text->n_bytes && exchange->n_over < exchange->n_parts)
        return;
    begin_stream(exchange, out);
    if (exchange->error.status) {
        struct http_reply reply = {.status = 500};
        char headers[HTTP_ERROR_HEADER_BYTES];
        openai_request_name_field(&exchange->error);
        http_error_reply(&exchange->error, headers, &reply);
        strbuf_add_str(text, "data: ");
        strbuf_add(text, strbuf_str(&reply.body), reply.body.n_bytes);
        strbuf_add_str(text, "\n\ndata: [DONE]\n\n");
        strbuf_fini(&reply.body);
    } else if (exchange->n_over == exchange->n_parts) {
        openai_answer_end(&exchange->answer, text);
    }
    http_out_put(out, strbuf_str(text), text->n_bytes);
    if (exchange->n_over == exchange->n_parts)
        http_out_finish(out);
}

static void next_of_whole(struct openai_exchange *exchange, struct http_out *out)
{
    struct http_reply reply = {
        .status = 200, .content_type = "application/json", .headers = exchange->ignored};
    if (exchange->n_over < exchange->n_parts)
        return;
    if (exchange->error.status) {
        reply_error(exchange, out);
        return;
    }
    openai_answer_whole(&exchange->answer, &exchange->whole_choices, &reply.body);
    reply.body.failed |= strbuf_failed(&exchange->whole_choices);
    http_out_reply(out, &reply);
}

static void next(void *arg, struct http_out *out)
{
    struct openai_exchange *exchange = arg;
    struct strbuf text;
    strbuf_init(&text, 0);
    for (size_t i = 0; i < exchange->n_parts; i++) {
        struct writer writer = {exchange, exchange->parts[i], &text};
        while (!exchange->parts[i]->is_over &&
               relay_deliver(exchange->parts[i]->relay, &exchange->parts[i]->base, put_frame,
                             &writer) != RELAY_NOTHING)
            continue;
    }
    if (exchange->error.status && exchange->n_over < exchange->n_parts)
        cancel_all(exchange, "another prompt of the request failed");
    if (exchange->streams)
        next_of_stream(exchange, out, &text);
    else
        next_of_whole(exchange, out);
    strbuf_fini(&text);
}

static void on_gone(void *arg, struct http_exchange *http)
{
    (void)http;
    cancel_all(arg, "the client is gone");
}

static void on_done(void *arg, struct http_exchange *http)
{
    struct openai_exchange *exchange = arg;
    (void)http;
    for (size_t i = 0; i < exchange->n_parts; i++) {
        struct part *part = exchange->parts[i];
        dispatch_sink_gone(part->relay, &part->base,
                           part->is_over ? exchange->error.status : STATUS_CANCELLED);
        relay_sink_release(&part->base);
    }
    exchange_release(exchange);
}

static const struct http_exchange_events events = {
    .next = next, .on_gone = on_gone, .on_done = on_done};

/* --- the request --- */

static void refuse(struct http_exchange *http, struct error *err)
{
    char headers[HTTP_ERROR_HEADER_BYTES];
    struct http_reply reply = {.status = 400};
    openai_request_name_field(err);
    http_error_reply(err, headers, &reply);
    http_exchange_reply(http, &reply);
}

/* Opens the generation of one prompt. */
static int open_part(struct openai_exchange *exchange, struct dispatch *dispatch,
                     const struct relay_params *params, uint32_t n_choices, struct error *err)
{
    struct part *part = calloc(1, sizeof(*part));
    if (!part)
        return error_no_memory(err);
    int rc = generation_open(dispatch, params, &part->relay, err);
    if (rc) {
        free(part);
        return rc;
    }
    relay_sink_init(&part->base, &sink_ops);
    part->exchange = exchange;
    part->first_choice = (uint32_t)exchange->n_parts * n_choices;
    atomic_fetch_add(&exchange->n_refs, 1);
    exchange->parts[exchange->n_parts++] = part;
    return 0;
}

static struct openai_exchange *make_exchange(const struct openai_request *request,
                                             struct http_exchange *http)
{
    struct openai_exchange *exchange = calloc(1, sizeof(*exchange));
    char uuid[UUID_BYTES];
    if (!exchange)
        return NULL;
    atomic_init(&exchange->n_refs, 1);
    http_exchange_retain(http);
    exchange->http = http;
    exchange->streams = request->streams;
    strbuf_init(&exchange->whole_choices, 0);
    rng_uuid(uuid);
    snprintf(exchange->model, sizeof(exchange->model), "%s", request->request.model);
    if (request->ignored.n_bytes)
        snprintf(exchange->ignored, sizeof(exchange->ignored), "X-Sluice-Ignored: %.400s\r\n",
                 strbuf_str(&request->ignored));
    exchange->answer = (struct openai_answer){.is_chat = request->is_chat,
                                              .wants_logprobs = request->wants_logprobs,
                                              .returns_ids = request->returns_ids,
                                              .continuous_usage = request->continuous_usage,
                                              .include_usage = request->include_usage,
                                              .model = exchange->model,
                                              .created = clock_wall_ns() / NS_PER_S};
    snprintf(exchange->answer.id, sizeof(exchange->answer.id), "%s-%s",
             request->is_chat ? "chatcmpl" : "cmpl", uuid);
    return exchange;
}

/* "name:version" names a version. */
static void split_model(struct openai_request *request)
{
    char *colon = strchr(request->request.model, ':');
    if (!colon)
        return;
    *colon = '\0';
    request->request.version = colon + 1;
}

static void answer(struct openai_context *context, struct http_exchange *http, bool is_chat)
{
    const struct http_request *given = http_exchange_request(http);
    struct openai_request request;
    struct trace_context trace;
    struct error err;
    error_clear(&err);
    int rc = openai_request_read(&request, is_chat, context->is_strict, given->body, given->n_body,
                                 &err);
    struct openai_exchange *exchange = rc ? NULL : make_exchange(&request, http);
    if (!rc && !exchange)
        rc = error_no_memory(&err);
    if (!rc)
        split_model(&request);
    uint32_t n_choices = request.sampling.has_n ? request.sampling.n : 1;
    size_t n_prompts = is_chat ? 1 : request.n_prompts;
    const char *parent = http_head_header(&given->head, "traceparent");
    trace_accept(parent, parent ? strlen(parent) : 0, &trace);
    for (size_t i = 0; i < n_prompts && !rc; i++) {
        openai_request_choose(&request, i);
        const struct relay_params params = {.request = &request.request,
                                            .caller =
                                                given->caller[0] ? given->caller : "anonymous",
                                            .trace = &trace,
                                            .deadline_ns = INT64_MAX,
                                            .whole = !request.streams};
        rc = open_part(exchange, context->dispatch, &params, n_choices, &err);
    }
    openai_request_fini(&request);
    if (rc) {
        for (size_t i = 0; exchange && i < exchange->n_parts; i++) {
            dispatch_close(exchange->parts[i]->relay, rc);
            relay_sink_release(&exchange->parts[i]->base);
        }
        if (exchange)
            exchange_release(exchange);
        refuse(http, &err);
        return;
    }
    http_exchange_set_events(http, &events, exchange);
    for (size_t i = 0; i < exchange->n_parts; i++) {
        relay_attach(exchange->parts[i]->relay, &exchange->parts[i]->base);
        generation_start(context->dispatch, exchange->parts[i]->relay);
    }
}

void openai_exchange_chat(void *arg, struct http_exchange *http)
{
    answer(arg, http, true);
}

void openai_exchange_completions(void *arg, struct http_exchange *http)
{
    answer(arg, http, false);
}
