#include "server/gateway/kserve_http/kserve_http.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/json_write.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/http/http_generation.h"
#include "server/gateway/http/http_ignored.h"
#include "server/gateway/kserve_http/kserve_http_answer.h"
#include "server/gateway/kserve_http/kserve_http_request.h"

enum { MS_PER_S = 1000 };

/* A request while it is answered. */
struct surface {
    const Sluice__V1__GenerateRequest *request; /* borrowed; valid in the handler */
    struct kserve_http_answer answer;
};

/* --- errors --- */

static void write_error(uint64_t given, const struct error *err, struct strbuf *out)
{
    struct error named = *err;
    kserve_request_name_field(given, &named);
    strbuf_add_str(out, "{\"error\":");
    json_write_text(out, named.message, strlen(named.message));
    strbuf_add_char(out, '}');
}

static void fill_refusal(uint64_t given, const struct error *err, char *out_headers,
                         struct http_reply *reply)
{
    out_headers[0] = '\0';
    if (err->status == STATUS_UNAUTHENTICATED)
        http_error_headers(err, out_headers);
    else if (err->retry_after_ms)
        snprintf(out_headers, HTTP_GENERATION_HEADER_BYTES, "Retry-After: %u\r\n",
                 (err->retry_after_ms + MS_PER_S - 1) / MS_PER_S);
    reply->status = http_error_status(err);
    reply->content_type = "application/json";
    reply->headers = out_headers;
    write_error(given, err, &reply->body);
}

void kserve_http_error(const struct error *err, char *out_headers, struct http_reply *reply)
{
    fill_refusal(0, err, out_headers, reply);
}

void kserve_http_refuse(struct http_exchange *http, uint64_t given, const struct error *err)
{
    char headers[HTTP_GENERATION_HEADER_BYTES];
    struct http_reply reply = {.status = 500};
    fill_refusal(given, err, headers, &reply);
    http_exchange_reply(http, &reply);
}

/* --- the answer --- */

static void frame(void *arg, size_t i_prompt, const struct relay_frame *frame, struct strbuf *out)
{
    struct surface *surface = arg;
    (void)i_prompt;
    kserve_http_answer_frame(&surface->answer, frame, out);
}

/* The connection's end is the stream's end. */
static void end(void *arg, struct strbuf *out)
{
    (void)arg;
    (void)out;
}

static void fail(void *arg, const struct error *err, struct strbuf *out)
{
    const struct surface *surface = arg;
    strbuf_add_str(out, "data: ");
    write_error(surface->answer.given, err, out);
    strbuf_add_str(out, "\n\n");
}

static void whole(void *arg, struct http_reply *reply)
{
    struct surface *surface = arg;
    reply->body = surface->answer.whole;
    surface->answer.whole = (struct strbuf){0};
}

static void refuse(void *arg, const struct error *err, char *out_headers, struct http_reply *reply)
{
    const struct surface *surface = arg;
    fill_refusal(surface->answer.given, err, out_headers, reply);
}

static void destroy(void *arg)
{
    struct surface *surface = arg;
    kserve_http_answer_fini(&surface->answer);
    free(surface);
}

static const struct http_generation_ops ops = {.name = "kserve_http",
                                               .frame = frame,
                                               .end = end,
                                               .fail = fail,
                                               .whole = whole,
                                               .refuse = refuse,
                                               .destroy = destroy};

/* --- the request --- */

static const Sluice__V1__GenerateRequest *get_prompt(void *arg, size_t i)
{
    const struct surface *surface = arg;
    (void)i;
    return surface->request;
}

/* Returns NULL if memory is exhausted. */
static struct surface *make_surface(const struct kserve_http_request *request)
{
    const struct kserve_request *base = &request->base;
    struct surface *surface = calloc(1, sizeof(*surface));
    if (!surface)
        return NULL;
    struct kserve_http_answer *answer = &surface->answer;
    surface->request = &base->generate;
    snprintf(answer->id, sizeof(answer->id), "%s", request->id ? request->id : "");
    answer->given = base->given;
    answer->outputs = base->outputs;
    answer->n_choices = base->sampling.has_n ? base->sampling.n : 1;
    if (!base->prepends_prompt)
        return surface;
    answer->prompt = strdup(base->generate.text);
    if (answer->prompt)
        return surface;
    destroy(surface);
    return NULL;
}

static int begin(struct kserve_http *context, struct http_exchange *http,
                 struct kserve_http_request *request, struct error *err)
{
    char headers[HTTP_GENERATION_HEADER_BYTES] = "";
    struct http_generation_config config = {.dispatch = context->dispatch,
                                            .ops = &ops,
                                            .prompt = get_prompt,
                                            .n_prompts = 1,
                                            .streams = request->base.streams,
                                            .headers = headers};
    struct surface *surface = make_surface(request);
    if (!surface)
        return error_no_memory(err);
    http_ignored_header(&request->ignored, headers, sizeof(headers));
    config.surface = surface;
    int rc = http_generation_begin(http, &config, err);
    if (rc)
        destroy(surface);
    return rc;
}

static void answer(struct kserve_http *context, struct http_exchange *http, bool streams)
{
    const struct http_request *given = http_exchange_request(http);
    const char *version = given->segments[1] ? given->segments[1] : "";
    struct kserve_http_request request;
    struct error err;
    error_clear(&err);
    int rc = kserve_http_request_read(&request, given->segments[0], version, streams,
                                      context->is_strict, given->body, given->n_body, &err);
    if (!rc)
        rc = begin(context, http, &request, &err);
    if (rc)
        kserve_http_refuse(http, request.base.given, &err);
    kserve_http_request_fini(&request);
}

void kserve_http_generate(void *arg, struct http_exchange *http)
{
    answer(arg, http, false);
}

void kserve_http_generate_stream(void *arg, struct http_exchange *http)
{
    answer(arg, http, true);
}

void kserve_http_infer(void *arg, struct http_exchange *http)
{
    struct error err;
    (void)arg;
    error_clear(&err);
    error_set(&err, STATUS_UNIMPLEMENTED,
              "tensors over HTTP are not built; use ModelInfer over gRPC, or POST .../generate");
    kserve_http_refuse(http, 0, &err);
}
