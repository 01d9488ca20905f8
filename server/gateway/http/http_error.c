#include "server/gateway/http/http_error.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/text/json_write.h"
#include "proto/http/http_exchange.h"

enum { MS_PER_S = 1000 };

/* The HTTP status and the type of OpenAI's API for each status that an RPC can end with. */
struct error_row {
    int status;
    unsigned http;
    const char *type;
};

static const struct error_row rows[] = {
    {STATUS_INVALID_ARGUMENT, 400, "invalid_request_error"},
    {STATUS_OUT_OF_RANGE, 400, "invalid_request_error"},
    {STATUS_FAILED_PRECONDITION, 400, "invalid_request_error"},
    {STATUS_ALREADY_EXISTS, 400, "invalid_request_error"},
    {STATUS_UNIMPLEMENTED, 400, "invalid_request_error"},
    {STATUS_UNAUTHENTICATED, 401, "authentication_error"},
    {STATUS_PERMISSION_DENIED, 403, "permission_error"},
    {STATUS_NOT_FOUND, 404, "invalid_request_error"},
    {STATUS_RESOURCE_EXHAUSTED, 429, "rate_limit_error"},
    {STATUS_UNAVAILABLE, 503, "server_error"},
    {STATUS_ABORTED, 503, "server_error"},
    {STATUS_DEADLINE_EXCEEDED, 504, "server_error"},
};

static const struct error_row other = {STATUS_INTERNAL, 500, "server_error"};

static const struct error_row *find_row(const struct error *err)
{
    if (err->reason == REASON_TEMPLATE_LIMIT) /* the chat is too large, at any rate of requests */
        return &rows[0];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].status == err->status)
            return &rows[i];
    return &other;
}

unsigned http_error_status(const struct error *err)
{
    return find_row(err)->http;
}

/* Writes the reason in lower case, or null. */
static void write_code(struct strbuf *out, const char *reason)
{
    if (!reason[0]) {
        strbuf_add_str(out, "null");
        return;
    }
    strbuf_add_char(out, '"');
    for (const char *p = reason; *p; p++)
        strbuf_add_char(out, (char)tolower((unsigned char)*p));
    strbuf_add_char(out, '"');
}

static void write_body(struct strbuf *out, const char *message, const char *type, const char *field,
                       const char *reason)
{
    strbuf_add_str(out, "{\"error\":{\"message\":");
    json_write_text(out, message, strlen(message));
    strbuf_printf(out, ",\"type\":\"%s\",\"param\":", type);
    if (field[0])
        json_write_text(out, field, strlen(field));
    else
        strbuf_add_str(out, "null");
    strbuf_add_str(out, ",\"code\":");
    write_code(out, reason);
    strbuf_add_str(out, "}}");
}

/* True if the same request fails again. A client library would repeat it for these statuses. */
static bool is_final(const struct error *err, unsigned status)
{
    const struct reason_facts *facts = reason_facts(err->reason);
    return (status == 429 || status >= 500) && err->reason != REASON_NONE &&
           err->reason != REASON_UNKNOWN && facts->retry == RETRY_NEVER;
}

void http_error_headers(const struct error *err, char *out_headers)
{
    unsigned status = find_row(err)->http;
    uint32_t retry_ms = err->retry_after_ms;
    out_headers[0] = '\0';
    if (status == 401) {
        snprintf(out_headers, HTTP_ERROR_HEADER_BYTES, "WWW-Authenticate: Bearer\r\n");
        return;
    }
    if (is_final(err, status)) {
        snprintf(out_headers, HTTP_ERROR_HEADER_BYTES, "X-Should-Retry: false\r\n");
        return;
    }
    if (!retry_ms && (status == 429 || status == 503))
        retry_ms = MS_PER_S;
    if (retry_ms)
        snprintf(out_headers, HTTP_ERROR_HEADER_BYTES,
                 "Retry-After: %u\r\nRetry-After-Ms: %u\r\nX-Should-Retry: true\r\n",
                 (retry_ms + MS_PER_S - 1) / MS_PER_S, retry_ms);
}

void http_error_reply_as(const struct error *err, const char *code, char *out_headers,
                         struct http_reply *reply)
{
    const struct error_row *row = find_row(err);
    http_error_headers(err, out_headers);
    reply->status = row->http;
    reply->content_type = "application/json";
    reply->headers = out_headers;
    write_body(&reply->body, err->message, row->type, err->field,
               code ? code : error_reason_name(err));
}

void http_error_reply(const struct error *err, char *out_headers, struct http_reply *reply)
{
    http_error_reply_as(err, NULL, out_headers, reply);
}
