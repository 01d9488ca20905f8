#include "server/gateway/openai/openai_exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"
#include "server/gateway/base/error_names.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/http/http_generation.h"
#include "server/gateway/http/http_ignored.h"
#include "server/gateway/openai/openai_answer.h"
#include "server/gateway/openai/openai_chat.h"
#include "server/gateway/openai/openai_error.h"
#include "server/gateway/openai/openai_models.h"
#include "server/gateway/openai/openai_request.h"

/* A request while it is answered. */
struct openai_exchange {
    /* Owned. NULL once the request cannot be tried again. */
    struct openai_request *request;
    struct dispatch *dispatch;
    struct openai_answer answer;
    uint32_t n_choices; /* for each prompt */
    size_t n_prompts;
    struct openai_answer_prompt *prompts; /* owned: n_prompts */
    struct openai_answer_choice *choices; /* owned: n_choices for each prompt */
    char model[];
};

static void forget_request(struct openai_exchange *exchange)
{
    if (!exchange->request)
        return;
    openai_request_fini(exchange->request);
    free(exchange->request);
    exchange->request = NULL;
}

/* --- the answer --- */

/* The proto has one number of alternatives. Names the field that set it, if not the usual one. */
static void name_top(const struct openai_answer *answer, struct error *err)
{
    if (strcmp(err->field, "output.top_n") == 0 && answer->n_prompt_top > answer->n_top)
        error_names_set(err, "prompt_logprobs");
}

static void refuse(void *surface, const struct error *err, char *out_headers,
                   struct http_reply *reply)
{
    const struct openai_exchange *exchange = surface;
    struct error named = *err;
    name_top(&exchange->answer, &named);
    openai_models_error_reply(exchange->dispatch, &named, exchange->answer.is_chat, out_headers,
                              reply);
}

static void put_frame(void *surface, size_t i_prompt, const struct relay_frame *frame,
                      struct strbuf *out)
{
    struct openai_exchange *exchange = surface;
    struct openai_answer *answer = &exchange->answer;
    struct openai_answer_prompt *prompt = &exchange->prompts[i_prompt];
    uint32_t first = (uint32_t)i_prompt * exchange->n_choices;
    if (frame->kind == RELAY_FRAME_WHOLE) {
        openai_answer_choices(answer, prompt, frame, first);
    } else if (frame->kind == RELAY_FRAME_PROMPT_INFO) {
        if (exchange->n_prompts == 1)
            forget_request(exchange); /* the request was accepted */
        openai_answer_prompt_info(answer, prompt, &frame->prompt_info);
    } else if (frame->kind == RELAY_FRAME_TOKENS) {
        uint32_t i = first + frame->tokens.choice;
        openai_answer_tokens(answer, prompt, &exchange->choices[i], i, frame, out);
    } else if (frame->kind == RELAY_FRAME_FINISHED) {
        uint32_t i = first + frame->finished.choice;
        openai_answer_finish(answer, prompt, &exchange->choices[i], i, &frame->finished, out);
    }
}

static void flush(void *surface, struct strbuf *out)
{
    struct openai_exchange *exchange = surface;
    openai_answer_flush(&exchange->answer, out);
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
    struct openai_exchange *exchange = surface;
    openai_answer_flush(&exchange->answer, out);
    refuse(surface, err, headers, &reply);
    strbuf_add_str(out, "data: ");
    strbuf_add(out, strbuf_str(&reply.body), reply.body.n_bytes);
    strbuf_add_str(out, "\n\ndata: [DONE]\n\n");
    strbuf_fini(&reply.body);
}

static void whole(void *surface, struct http_reply *reply)
{
    struct openai_exchange *exchange = surface;
    openai_answer_whole(&exchange->answer, exchange->prompts, exchange->n_prompts, &reply->body);
}

static void add_header(char *headers, const char *header)
{
    size_t n = strlen(headers);
    if (!strstr(headers, header))
        snprintf(headers + n, HTTP_GENERATION_HEADER_BYTES - n, "%s", header);
}

/* Tries again without max_tokens if it exceeds the operator's limit. Tries again with all system
 * messages at the front if the template refused the messages. */
static const Sluice__V1__GenerateRequest *again(void *surface, size_t i_prompt,
                                                const struct error *err, char *headers)
{
    struct openai_exchange *exchange = surface;
    struct openai_request *request = exchange->request;
    if (request && openai_request_unbind(request, err)) {
        add_header(headers, "X-Sluice-Changed: max_tokens cut to the limit of the model\r\n");
        return openai_request_choose(request, i_prompt) ? &request->request : NULL;
    }
    if (!request || err->reason != REASON_TEMPLATE_REFUSED ||
        !openai_chat_may_merge(&request->chat) ||
        !openai_chat_merge(&request->chat, &request->arena) ||
        !openai_request_choose(request, i_prompt))
        return NULL;
    add_header(headers, "X-Sluice-Changed: system messages merged to the front\r\n");
    return &request->request;
}

static void destroy(void *surface)
{
    struct openai_exchange *exchange = surface;
    forget_request(exchange);
    openai_answer_fini(&exchange->answer);
    for (size_t i = 0; exchange->prompts && i < exchange->n_prompts; i++)
        openai_answer_prompt_fini(&exchange->prompts[i]);
    free(exchange->prompts);
    free(exchange->choices);
    free(exchange);
}

static const struct http_generation_ops ops = {.name = "openai",
                                               .frame = put_frame,
                                               .flush = flush,
                                               .end = end,
                                               .fail = fail,
                                               .whole = whole,
                                               .refuse = refuse,
                                               .again = again,
                                               .destroy = destroy};

/* --- the request --- */

static const Sluice__V1__GenerateRequest *choose_prompt(void *surface, size_t i)
{
    struct openai_exchange *exchange = surface;
    return openai_request_choose(exchange->request, i) ? &exchange->request->request : NULL;
}

static void fill_answer(struct openai_exchange *exchange, const struct openai_request *request)
{
    struct openai_answer *answer = &exchange->answer;
    char uuid[UUID_BYTES];
    rng_uuid(uuid);
    *answer = (struct openai_answer){
        .is_chat = request->is_chat,
        .wants_logprobs = request->wants_logprobs,
        .returns_ids = request->returns_ids,
        .echoes = request->echoes,
        .n_top = request->n_top,
        .n_prompt_top = request->n_prompt_top,
        .has_prompt_logprobs = request->wants_prompt_logprobs,
        .hides_reasoning = !request->includes_reasoning,
        .continuous_usage = request->continuous_usage,
        .include_usage = request->include_usage,
        .model = exchange->model,
        .created = clock_wall_ns() / NS_PER_S,
    };
    snprintf(answer->id, sizeof(answer->id), "%s-%s", request->is_chat ? "chatcmpl" : "cmpl", uuid);
}

/* Takes the request, also if memory is exhausted. */
static struct openai_exchange *make_exchange(struct openai_request *request)
{
    size_t n_name = strlen(request->model_name) + 1;
    struct openai_exchange *exchange = calloc(1, sizeof(*exchange) + n_name);
    if (!exchange) {
        openai_request_fini(request);
        free(request);
        return NULL;
    }
    exchange->request = request;
    memcpy(exchange->model, request->model_name, n_name);
    fill_answer(exchange, request);
    exchange->n_choices = request->sampling.has_n ? request->sampling.n : 1;
    exchange->n_prompts = openai_request_n_prompts(request);
    exchange->prompts = calloc(exchange->n_prompts, sizeof(*exchange->prompts));
    uint32_t n = exchange->n_choices < RELAY_MAX_CHOICES ? exchange->n_choices : RELAY_MAX_CHOICES;
    exchange->choices = calloc(exchange->n_prompts, (n ? n : 1) * sizeof(*exchange->choices));
    if (exchange->prompts && exchange->choices)
        return exchange;
    destroy(exchange);
    return NULL;
}

/* Takes the request. */
static int begin(struct openai_context *context, struct http_exchange *http,
                 struct openai_request *request, struct error *err)
{
    char headers[HTTP_GENERATION_HEADER_BYTES] = "";
    struct http_generation_config config = {.dispatch = context->dispatch,
                                            .ops = &ops,
                                            .prompt = choose_prompt,
                                            .n_prompts = openai_request_n_prompts(request),
                                            .streams = request->streams,
                                            .ping_ms = context->ping_ms,
                                            .headers = headers};
    bool may_change = (request->is_chat && openai_chat_may_merge(&request->chat)) ||
                      (request->stopping.has_max_tokens &&
                       openai_models_limit_total(context->dispatch, request->request.model));
    http_ignored_header(&request->ignored, headers, sizeof(headers));
    struct openai_exchange *exchange = make_exchange(request);
    if (!exchange)
        return error_no_memory(err);
    exchange->dispatch = context->dispatch;
    config.surface = exchange;
    int rc = http_generation_begin(http, &config, err);
    if (rc) {
        name_top(&exchange->answer, err);
        destroy(exchange);
    } else if (!may_change) {
        forget_request(exchange); /* relays have copies */
    }
    return rc;
}

static int read_and_begin(struct openai_context *context, struct http_exchange *http, bool is_chat,
                          struct error *err)
{
    const struct http_request *given = http_exchange_request(http);
    struct openai_request *request = malloc(sizeof(*request));
    if (!request)
        return error_no_memory(err);
    int rc =
        openai_request_read(request, is_chat, context->is_strict, given->body, given->n_body, err);
    struct model_name name;
    if (!rc)
        rc = openai_models_choose(context->dispatch, request->model_name, &name, err);
    if (rc) {
        openai_request_fini(request);
        free(request);
        return rc;
    }
    openai_request_set_model(request, &name);
    return begin(context, http, request, err);
}

static void answer(struct openai_context *context, struct http_exchange *http, bool is_chat)
{
    struct error err;
    char headers[HTTP_ERROR_HEADER_BYTES];
    struct http_reply reply = {.status = 400};
    error_clear(&err);
    if (read_and_begin(context, http, is_chat, &err) == 0)
        return;
    openai_models_error_reply(context->dispatch, &err, is_chat, headers, &reply);
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
