#include "server/gateway/tgi/tgi_exchange.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/http/http_generation.h"
#include "server/gateway/http/http_ignored.h"
#include "server/gateway/relay/relay_sink.h"
#include "server/gateway/replicas/replicas.h"
#include "server/gateway/tgi/tgi_answer.h"
#include "server/gateway/tgi/tgi_error.h"
#include "server/gateway/tgi/tgi_info.h"
#include "server/gateway/tgi/tgi_model.h"
#include "server/gateway/tgi/tgi_request.h"

/* A request while it is answered. */
struct tgi_exchange {
    const Sluice__V1__GenerateRequest *request; /* borrowed; valid in the handler */
    struct tgi_answer answer;
};

/* --- the answer --- */

static void frame(void *surface, size_t i_prompt, const struct relay_frame *frame,
                  struct strbuf *out)
{
    struct tgi_exchange *exchange = surface;
    (void)i_prompt;
    if (frame->kind == RELAY_FRAME_WHOLE)
        tgi_answer_whole(&exchange->answer, frame);
    else
        tgi_answer_frame(&exchange->answer, frame, out);
}

static void flush(void *surface, struct strbuf *out)
{
    struct tgi_exchange *exchange = surface;
    tgi_answer_flush(&exchange->answer, out);
}

/* The last token's event has said everything. */
static void end(void *surface, struct strbuf *out)
{
    (void)surface;
    (void)out;
}

static void fail(void *surface, const struct error *err, struct strbuf *out)
{
    struct tgi_exchange *exchange = surface;
    tgi_answer_fail(&exchange->answer, err, out);
}

static void whole(void *surface, struct http_reply *reply)
{
    struct tgi_exchange *exchange = surface;
    reply->body = exchange->answer.whole;
    exchange->answer.whole = (struct strbuf){0};
}

static void refuse(void *surface, const struct error *err, char *out_headers,
                   struct http_reply *reply)
{
    (void)surface;
    tgi_error_reply(err, out_headers, reply);
}

static void destroy(void *surface)
{
    struct tgi_exchange *exchange = surface;
    tgi_answer_fini(&exchange->answer);
    free(exchange);
}

static const struct http_generation_ops ops = {.name = "tgi",
                                               .frame = frame,
                                               .flush = flush,
                                               .end = end,
                                               .fail = fail,
                                               .whole = whole,
                                               .refuse = refuse,
                                               .destroy = destroy};

/* --- the request --- */

static const Sluice__V1__GenerateRequest *get_prompt(void *surface, size_t i)
{
    const struct tgi_exchange *exchange = surface;
    (void)i;
    return exchange->request;
}

/* Returns NULL if memory is exhausted. */
static struct tgi_exchange *make_exchange(const struct tgi_request *request, bool is_list,
                                          const struct tgi_model *model)
{
    struct tgi_exchange *exchange = calloc(1, sizeof(*exchange));
    if (!exchange)
        return NULL;
    struct tgi_answer *answer = &exchange->answer;
    tgi_answer_init(answer);
    exchange->request = &request->request;
    answer->is_list = is_list;
    answer->details = request->details;
    answer->samples = request->samples;
    answer->top_n = request->output.top_n;
    memcpy(answer->end_ids, model->end_ids, sizeof(answer->end_ids));
    answer->n_end_ids = model->n_end_ids;
    if (!request->full_text)
        return exchange;
    answer->full_text = strdup(request->inputs);
    if (answer->full_text)
        return exchange;
    destroy(exchange);
    return NULL;
}

static int choose_model(struct dispatch *dispatch, const struct http_request *given,
                        struct tgi_model *out_model, struct error *err)
{
    struct route_table *routes = replicas_routes(dispatch->replicas);
    int rc =
        tgi_model_choose(routes, http_head_header(&given->head, "x-sluice-model"), out_model, err);
    route_table_release(routes);
    return rc;
}

static int begin(struct tgi_context *context, struct http_exchange *http,
                 struct tgi_request *request, bool is_list, struct tgi_model *model,
                 struct error *err)
{
    char headers[HTTP_GENERATION_HEADER_BYTES] = "";
    struct http_generation_config config = {.dispatch = context->dispatch,
                                            .ops = &ops,
                                            .prompt = get_prompt,
                                            .n_prompts = 1,
                                            .streams = request->streams,
                                            .headers = headers};
    request->request.model = model->name.model;
    request->request.version = model->name.version;
    struct tgi_exchange *exchange = make_exchange(request, is_list, model);
    if (!exchange)
        return error_no_memory(err);
    http_ignored_header(&request->ignored, headers, sizeof(headers));
    config.surface = exchange;
    int rc = http_generation_begin(http, &config, err);
    if (rc)
        destroy(exchange);
    return rc;
}

static void reply_error(struct http_exchange *http, const struct error *err)
{
    char headers[HTTP_GENERATION_HEADER_BYTES];
    struct http_reply reply = {.status = 500};
    tgi_error_reply(err, headers, &reply);
    http_exchange_reply(http, &reply);
}

static void answer(struct tgi_context *context, struct http_exchange *http, enum tgi_route path)
{
    const struct http_request *given = http_exchange_request(http);
    struct tgi_request request;
    struct tgi_model model;
    struct error err;
    error_clear(&err);
    int rc = tgi_request_read(&request, path, context->is_strict, given->body, given->n_body, &err);
    if (!rc)
        rc = choose_model(context->dispatch, given, &model, &err);
    if (!rc)
        rc = begin(context, http, &request, path == TGI_ROUTE_COMPAT, &model, &err);
    tgi_request_fini(&request);
    if (rc)
        reply_error(http, &err);
}

void tgi_exchange_compat(void *arg, struct http_exchange *http)
{
    answer(arg, http, TGI_ROUTE_COMPAT);
}

void tgi_exchange_generate(void *arg, struct http_exchange *http)
{
    answer(arg, http, TGI_ROUTE_GENERATE);
}

void tgi_exchange_stream(void *arg, struct http_exchange *http)
{
    answer(arg, http, TGI_ROUTE_STREAM);
}

/* --- /info --- */

void tgi_exchange_info(void *arg, struct http_exchange *http)
{
    struct tgi_context *context = arg;
    struct http_reply reply = {.status = 200, .content_type = "application/json"};
    struct route_table *routes = replicas_routes(context->dispatch->replicas);
    struct tgi_model model;
    struct error err;
    int rc = choose_model(context->dispatch, http_exchange_request(http), &model, &err);
    if (!rc)
        rc = tgi_info_write(routes, &model, context->dispatch->relays->limits, &reply.body, &err);
    route_table_release(routes);
    if (rc)
        reply_error(http, &err);
    else
        http_exchange_reply(http, &reply);
}
