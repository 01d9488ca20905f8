#include "clients/cli/http/http_response.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "proto/http/http_head.h"

enum { MAX_LENGTH_DIGITS = 18 };

/* The facts of one head. */
struct facts {
    unsigned status;
    bool is_1_0, closes, keeps, is_chunked, has_length;
    uint64_t length;
    char content_type[64], location[256];
};

static int broken(const char *rule, struct error *err)
{
    return error_set(err, STATUS_DATA_LOSS, "the server's HTTP response is broken: %s", rule);
}

void http_response_fini(struct http_response *response)
{
    strbuf_fini(&response->head);
}

void http_response_reset(struct http_response *response)
{
    struct strbuf head = response->head;
    strbuf_clear(&head);
    *response = (struct http_response){.head = head};
}

/* --- the head --- */

/* "HTTP/1.1 200 OK"; the text after the status may be missing. */
static int read_status(const char *line, struct facts *out, struct error *err)
{
    bool good =
        strncmp(line, "HTTP/1.", 7) == 0 && (line[7] == '0' || line[7] == '1') && line[8] == ' ';
    for (int i = 9; i < 12 && good; i++)
        good = isdigit((unsigned char)line[i]) != 0;
    if (!good || (line[12] && line[12] != ' ') || line[9] < '1' || line[9] > '5')
        return broken("the first line is no status of HTTP/1.1", err);
    out->is_1_0 = line[7] == '0';
    out->status = (unsigned)(line[9] - '0') * 100 + (unsigned)(line[10] - '0') * 10 +
                  (unsigned)(line[11] - '0');
    return 0;
}

static int read_length(const char *value, struct facts *out, struct error *err)
{
    size_t n = strspn(value, "0123456789");
    uint64_t length = 0;
    if (n == 0 || n > MAX_LENGTH_DIGITS || value[n])
        return broken("Content-Length is no number of bytes", err);
    for (const char *p = value; *p; p++)
        length = length * 10 + (uint64_t)(*p - '0');
    if (out->has_length && out->length != length)
        return broken("Content-Length is given twice, with two values", err);
    out->has_length = true;
    out->length = length;
    return 0;
}

static void copy_type(const char *value, char *out, size_t n_out)
{
    size_t n = 0;
    for (; value[n] && value[n] != ';' && value[n] != ' ' && n + 1 < n_out; n++)
        out[n] = (char)tolower((unsigned char)value[n]);
    out[n] = '\0';
}

static int take_header(const char *name, const char *value, struct facts *out, struct error *err)
{
    if (strcasecmp(name, "content-length") == 0)
        return read_length(value, out, err);
    if (strcasecmp(name, "transfer-encoding") == 0) {
        if (out->is_chunked || strcasecmp(value, "chunked") != 0)
            return broken("Transfer-Encoding is not chunked", err);
        out->is_chunked = true;
    } else if (strcasecmp(name, "content-encoding") == 0) {
        if (value[0] && strcasecmp(value, "identity") != 0)
            return broken("the body is compressed, although the request did not allow that", err);
    } else if (strcasecmp(name, "connection") == 0) {
        out->closes |= http_head_list_has(value, "close");
        out->keeps |= http_head_list_has(value, "keep-alive");
    } else if (strcasecmp(name, "content-type") == 0) {
        copy_type(value, out->content_type, sizeof(out->content_type));
    } else if (strcasecmp(name, "location") == 0) {
        snprintf(out->location, sizeof(out->location), "%s", value);
    }
    return 0;
}

/* Splits "NAME: VALUE" in place. */
static int read_header(char *line, struct facts *out, struct error *err)
{
    static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789!#$%&'*+-.^_`|~";
    size_t n = strspn(line, name_chars);
    if (n == 0 || line[n] != ':')
        return broken("a header is not NAME: VALUE", err);
    line[n] = '\0';
    char *value = line + n + 1 + strspn(line + n + 1, " \t");
    size_t n_value = strlen(value);
    while (n_value && (value[n_value - 1] == ' ' || value[n_value - 1] == '\t'))
        value[--n_value] = '\0';
    for (const char *p = value; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7F)
            return broken("a header has a control character", err);
    return take_header(line, value, out, err);
}

/* The head is whole, with CRLF after each line. Cuts the lines apart in place. */
static int read_head(char *text, size_t n_bytes, struct facts *out, struct error *err)
{
    size_t n_lines = 0;
    *out = (struct facts){0};
    if (memchr(text, '\0', n_bytes))
        return broken("the head has a NUL", err);
    for (char *line = text, *end; line < text + n_bytes; line = end + 2) {
        end = strstr(line, "\r\n");
        if (!end) /* a CR inside a line hides no LF: http_head_find_end() saw them all */
            return broken("a line has no end", err);
        *end = '\0';
        if (!*line && n_lines == 0) /* an empty line before the status */
            continue;
        if (!*line)
            break;
        if (n_lines > HTTP_RESPONSE_HEADERS)
            return broken("the response has too many headers", err);
        int rc = n_lines++ == 0 ? read_status(line, out, err) : read_header(line, out, err);
        if (rc)
            return rc;
    }
    return n_lines ? 0 : broken("the head is empty", err);
}

static bool has_body(unsigned status)
{
    return status != 204 && status != 304;
}

static int begin_body(struct http_response *r, const struct facts *facts, struct error *err)
{
    if (facts->is_chunked && facts->has_length)
        return broken("Content-Length and Transfer-Encoding exclude each other", err);
    if (facts->is_chunked && facts->is_1_0)
        return broken("HTTP/1.0 has no Transfer-Encoding", err);
    r->status = facts->status;
    r->keeps_open = facts->is_1_0 ? facts->keeps && !facts->closes : !facts->closes;
    snprintf(r->content_type, sizeof(r->content_type), "%s", facts->content_type);
    snprintf(r->location, sizeof(r->location), "%s", facts->location);
    if (!has_body(r->status) || (facts->has_length && facts->length == 0)) {
        r->state = HTTP_RESPONSE_OVER;
    } else if (facts->is_chunked) {
        r->state = HTTP_RESPONSE_IN_CHUNKS;
    } else if (facts->has_length) {
        r->state = HTTP_RESPONSE_IN_LENGTH;
        r->n_left = facts->length;
    } else {
        r->state = HTTP_RESPONSE_TO_END;
        r->keeps_open = false;
    }
    return 0;
}

/* True for the first bytes of HTTP/2: a SETTINGS frame without flags. A server of gRPC sends it to
 * each client. */
static bool is_http2(const struct strbuf *head)
{
    const unsigned char *bytes = (const unsigned char *)head->data;
    return head->n_bytes >= 5 && bytes[0] == 0 && bytes[3] == 4 && bytes[4] == 0;
}

static int refuse_grpc(struct error *err)
{
    error_set(err, STATUS_UNAVAILABLE, "the server's port speaks gRPC over HTTP/2");
    return error_reason(err, REASON_GRPC_PORT);
}

/* Takes bytes of the head. *out_used may stop before the end, at the body's first byte. */
static int feed_head(struct http_response *r, const char *bytes, size_t n_bytes, size_t *out_used,
                     struct error *err)
{
    struct facts facts;
    size_t before = r->head.n_bytes;
    size_t n =
        HTTP_RESPONSE_HEAD_BYTES - before < n_bytes ? HTTP_RESPONSE_HEAD_BYTES - before : n_bytes;
    if (!strbuf_add(&r->head, bytes, n))
        return error_no_memory(err);
    if (is_http2(&r->head))
        return refuse_grpc(err);
    /* Another protocol would leave the client waiting for the end of a head. */
    if (r->head.n_bytes >= 5 && memcmp(r->head.data, "HTTP/", 5) != 0 && r->head.data[0] != '\r')
        return broken("the server does not speak HTTP/1.1", err);
    switch (http_head_find_end(r->head.data, r->head.n_bytes, &r->n_scanned)) {
    case HTTP_HEAD_PART:
        *out_used = n;
        if (r->head.n_bytes >= HTTP_RESPONSE_HEAD_BYTES)
            return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                             "the head of the server's HTTP response has over %d bytes",
                             HTTP_RESPONSE_HEAD_BYTES);
        return 0;
    case HTTP_HEAD_BROKEN:
        return broken("a line of the head does not end with CRLF", err);
    case HTTP_HEAD_WHOLE:
        break;
    }
    *out_used = r->n_scanned - before;
    int rc = read_head(r->head.data, r->n_scanned, &facts, err);
    strbuf_clear(&r->head);
    r->n_scanned = 0;
    if (rc)
        return rc;
    if (facts.status == 101)
        return broken("the server changes the protocol", err);
    if (facts.status >= 200)
        return begin_body(r, &facts, err);
    if (++r->n_interim > HTTP_RESPONSE_INTERIM)
        return broken("too many interim responses", err);
    return 0;
}

/* --- the body --- */

static int no_room(const struct strbuf *body, struct error *err)
{
    if (!body->limit)
        return error_no_memory(err);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                     "the server's HTTP response has over %zu bytes", body->limit);
}

static int feed_chunks(struct http_response *r, const char *bytes, size_t n_bytes, size_t *out_used,
                       struct strbuf *body, struct error *err)
{
    switch (http_chunks_decode(&r->chunks, bytes, n_bytes, out_used, body)) {
    case 0:
        return 0;
    case 200:
        r->state = HTTP_RESPONSE_OVER;
        return 0;
    case 400:
        return broken("a chunk of the body is no chunk", err);
    default:
        return no_room(body, err);
    }
}

static int feed_body(struct http_response *r, const char *bytes, size_t n_bytes, size_t *out_used,
                     struct strbuf *body, struct error *err)
{
    if (r->state == HTTP_RESPONSE_IN_CHUNKS)
        return feed_chunks(r, bytes, n_bytes, out_used, body, err);
    size_t n = n_bytes;
    if (r->state == HTTP_RESPONSE_IN_LENGTH && n > r->n_left)
        n = (size_t)r->n_left;
    *out_used = n;
    if (!strbuf_add(body, bytes, n))
        return no_room(body, err);
    if (r->state == HTTP_RESPONSE_IN_LENGTH && (r->n_left -= n) == 0)
        r->state = HTTP_RESPONSE_OVER;
    return 0;
}

int http_response_feed(struct http_response *response, const char *bytes, size_t n_bytes,
                       size_t *out_used, struct strbuf *body, struct error *err)
{
    size_t at = 0;
    int rc = 0;
    while (!rc && at < n_bytes && response->state != HTTP_RESPONSE_OVER) {
        size_t used = 0;
        rc = response->state == HTTP_RESPONSE_IN_HEAD
                 ? feed_head(response, bytes + at, n_bytes - at, &used, err)
                 : feed_body(response, bytes + at, n_bytes - at, &used, body, err);
        at += used;
    }
    *out_used = at;
    return rc;
}

int http_response_close(struct http_response *response, struct error *err)
{
    if (response->state == HTTP_RESPONSE_TO_END)
        response->state = HTTP_RESPONSE_OVER;
    if (response->state == HTTP_RESPONSE_OVER)
        return 0;
    return error_set(err, STATUS_DATA_LOSS, "the server closed the connection before %s",
                     response->status ? "the end of its response" : "it sent a response");
}
