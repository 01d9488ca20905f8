#include "server/gateway/openai/openai_exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/http/http_generation.h"
#include "server/gateway/openai/openai_answer.h"
#include "server/gateway/openai/openai_request.h"

/* A request while it is answered. */
struct openai_exchange {
    struct openai_request *request; /* borrowed; NULL after the handler */
    struct openai_answer answer;
    char model[192];
    uint32_t n_choices; /* of each prompt */
    struct strbuf whole_choices;
    struct openai_choice *choices; /* owned: n_choices for each prompt */
};

static void refuse(void *surface, const struct error *err, char *out_headers,
                   struct http_reply *reply)
{
    struct error named = *err;
    (void)surface;
    openai_request_name_field(&named);
    http_error_reply(&named, out_headers, reply);
}

static void frame(void *surface, size_t i_prompt, const struct relay_frame *frame,
                  struct strbuf *out)
{
    struct openai_exchange *exchange = surface;
    struct openai_answer *answer = &exchange->answer;
    uint32_t first = (uint32_t)i_prompt * exchange->n_choices;
    if (frame->kind == RELAY_FRAME_WHOLE) {
        openai_answer_choices(answer, frame->whole, first, &exchange->whole_choices);
    } else if (frame->kind == RELAY_FRAME_PROMPT_INFO) {
        answer->n_prompt_tokens += frame->prompt_info.n_prompt_tokens;
        answer->n_cached_tokens += frame->prompt_info.n_cached_tokens;
    } else if (frame->kind == RELAY_FRAME_TOKENS) {
        uint32_t i = first + frame->tokens.choice;
        openai_answer_chunk(answer, &exchange->choices[i], i, &frame->tokens, NULL, out);
    } else if (frame->kind == RELAY_FRAME_FINISHED) {
        uint32_t i = first + frame->finished.choice;
        openai_answer_chunk(answer, &exchange->choices[i], i, NULL, &frame->finished, out);
    }
}

static void end(void *surface, struct strbuf *out)
{
    struct openai_exchange *exchange = surface;
    openai_answer_end(&exchange->answer, out);
}

static void fail(void *surface, const struct error *err, struct strbuf *out)
{
    char headers[HTTP_GENERATION_HEADER_BYTES];
    struct http_reply reply = {.status = 500};
    refuse(surface, err, headers, &reply);
    strbuf_add_str(out, "data: ");
    strbuf_add(out, strbuf_str(&reply.body), reply.body.n_bytes);
    strbuf_add_str(out, "\n\ndata: [DONE]\n\n");
    strbuf_fini(&reply.body);
}

static void whole(void *surface, struct http_reply *reply)
{
    struct openai_exchange *exchange = surface;
    openai_answer_whole(&exchange->answer, &exchange->whole_choices, &reply->body);
    reply->body.failed |= strbuf_failed(&exchange->whole_choices);
}

static void destroy(void *surface)
{
    struct openai_exchange *exchange = surface;
    strbuf_fini(&exchange->whole_choices);
    free(exchange->choices);
    free(exchange);
}

static const struct http_generation_ops ops = {.name = "openai",
                                               .frame = frame,
                                               .end = end,
                                               .fail = fail,
                                               .whole = whole,
                                               .refuse = refuse,
                                               .destroy = destroy};

/* --- the request --- */

static const Sluice__V1__GenerateRequest *choose_prompt(void *surface, size_t i)
{
    struct openai_exchange *exchange = surface;
    openai_request_choose(exchange->request, i);
    return &exchange->request->request;
}

static struct openai_exchange *make_exchange(struct openai_request *request, size_t n_prompts)
{
    struct openai_exchange *exchange = calloc(1, sizeof(*exchange));
    char uuid[UUID_BYTES];
    if (!exchange)
        return NULL;
    exchange->n_choices = request->sampling.has_n ? request->sampling.n : 1;
    exchange->choices = calloc(n_prompts, RELAY_MAX_CHOICES * sizeof(*exchange->choices));
    if (!exchange->choices) {
        free(exchange);
        return NULL;
    }
    exchange->request = request;
    strbuf_init(&exchange->whole_choices, 0);
    rng_uuid(uuid);
    snprintf(exchange->model, sizeof(exchange->model), "%s", request->request.model);
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

static int begin(struct openai_context *context, struct http_exchange *http,
                 struct openai_request *request, struct error *err)
{
    char headers[HTTP_GENERATION_HEADER_BYTES] = "";
    struct http_generation_config config = {.dispatch = context->dispatch,
                                            .ops = &ops,
                                            .prompt = choose_prompt,
                                            .n_prompts = request->is_chat ? 1 : request->n_prompts,
                                            .streams = request->streams,
                                            .headers = headers};
    struct openai_exchange *exchange = make_exchange(request, config.n_prompts);
    if (!exchange)
        return error_no_memory(err);
    split_model(request);
    if (request->ignored.n_bytes)
        snprintf(headers, sizeof(headers), "X-Sluice-Ignored: %.400s\r\n",
                 strbuf_str(&request->ignored));
    config.surface = exchange;
    int rc = http_generation_begin(http, &config, err);
    exchange->request = NULL;
    if (rc)
        destroy(exchange);
    return rc;
}

static void answer(struct openai_context *context, struct http_exchange *http, bool is_chat)
{
    const struct http_request *given = http_exchange_request(http);
    struct openai_request request;
    struct error err;
    error_clear(&err);
    int rc = openai_request_read(&request, is_chat, context->is_strict, given->body, given->n_body,
                                 &err);
    if (!rc)
        rc = begin(context, http, &request, &err);
    openai_request_fini(&request);
    if (!rc)
        return;
    char headers[HTTP_GENERATION_HEADER_BYTES];
    struct http_reply reply = {.status = 400};
    refuse(NULL, &err, headers, &reply);
    http_exchange_reply(http, &reply);
}

void openai_exchange_chat(void *arg, struct http_exchange *http)
{
    answer(arg, http, true);
}

void openai_exchange_completions(void *arg, struct http_exchange *http)
{
    answer(arg, http, false);
}
