#include "server/gateway/tgi/tgi_error.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/text/json_write.h"
#include "proto/http/http_exchange.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/http/http_generation.h"
#include "server/gateway/tgi/tgi_request.h"

enum { MS_PER_S = 1000 };

struct row {
    int status;
    unsigned http;
    const char *type, *prefix;
};

static const char validation[] = "Input validation error: ";
static const char overloaded[] = "Model is overloaded: ";

static const struct row rows[] = {
    {STATUS_INVALID_ARGUMENT, 422, "validation", validation},
    {STATUS_OUT_OF_RANGE, 422, "validation", validation},
    {STATUS_FAILED_PRECONDITION, 422, "validation", validation},
    {STATUS_ALREADY_EXISTS, 422, "validation", validation},
    {STATUS_UNIMPLEMENTED, 422, "validation", validation},
    {STATUS_UNAUTHENTICATED, 401, "authentication", ""},
    {STATUS_PERMISSION_DENIED, 403, "permission", ""},
    {STATUS_NOT_FOUND, 404, "model_not_found", ""},
    {STATUS_RESOURCE_EXHAUSTED, 429, "overloaded", overloaded},
    {STATUS_UNAVAILABLE, 503, "overloaded", overloaded},
};

static const struct row failed = {0, 424, "generation", "Request failed during generation: "};
static const struct row incomplete = {0, 500, "incomplete_generation", "Incomplete generation: "};

static const struct row *find_row(const struct error *err)
{
    if (err->has_tokens_sent && err->n_tokens_sent)
        return &incomplete;
    if (err->reason == REASON_REPLICA_LOST)
        return &failed;
    if (err->reason == REASON_ANSWER_TOO_LARGE) /* a repeat fails again */
        return &rows[0];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].status == err->status)
            return &rows[i];
    return &failed;
}

unsigned tgi_error_status(const struct error *err)
{
    return find_row(err)->http;
}

void tgi_error_write(const struct error *err, struct strbuf *out)
{
    const struct row *row = find_row(err);
    struct error named = *err;
    char text[ERROR_MESSAGE_BYTES + 64];
    tgi_request_name_field(&named);
    snprintf(text, sizeof(text), "%s%s", row->prefix, named.message);
    strbuf_add_str(out, "{\"error\":");
    json_write_text(out, text, strlen(text));
    strbuf_printf(out, ",\"error_type\":\"%s\"}", row->type);
}

void tgi_error_reply(const struct error *err, char *out_headers, struct http_reply *reply)
{
    out_headers[0] = '\0';
    if (err->status == STATUS_UNAUTHENTICATED)
        http_error_headers(err, out_headers);
    else if (err->retry_after_ms)
        snprintf(out_headers, HTTP_GENERATION_HEADER_BYTES,
                 "Retry-After: %u\r\nRetry-After-Ms: %u\r\n",
                 (err->retry_after_ms + MS_PER_S - 1) / MS_PER_S, err->retry_after_ms);
    reply->status = tgi_error_status(err);
    reply->content_type = "application/json";
    reply->headers = out_headers;
    tgi_error_write(err, &reply->body);
}
