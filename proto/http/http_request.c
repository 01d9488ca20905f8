/* http_request.c: reads a request from the bytes that a connection has received. */
#include <stdlib.h>
#include <string.h>

#include "proto/http/http_budget.h"
#include "proto/http/http_private.h"

static void count(const struct http_connection *connection, enum http_limit limit)
{
    http_server_count(connection->loop->server, limit);
}

/* Makes the exchange of the head, which is the first n_scanned bytes. Ends the connection if memory
 * is exhausted. */
static bool make_exchange(struct http_connection *connection)
{
    struct http_exchange *exchange = calloc(1, sizeof(*exchange));
    size_t n = connection->n_scanned;
    if (!exchange) {
        http_connection_end(connection);
        return false;
    }
    atomic_init(&exchange->n_refs, 1);
    exchange->loop = connection->loop;
    atomic_fetch_add(&connection->loop->server->n_refs, 1);
    exchange->connection = connection;
    exchange->request = calloc(1, sizeof(*exchange->request));
    exchange->memory = malloc(n + 1);
    connection->exchange = exchange;
    atomic_fetch_add(&connection->loop->server->n_live, 1);
    if (!exchange->request || !exchange->memory) {
        http_connection_end(connection);
        return false;
    }
    if (n)
        memcpy(exchange->memory, connection->in.data, n);
    exchange->memory[n] = '\0';
    strbuf_consume(&connection->in, n);
    connection->n_scanned = 0;
    return true;
}

void http_request_refuse(struct http_connection *connection, unsigned status, const char *why)
{
    bool has_head = connection->exchange != NULL;
    connection->phase = HTTP_ANSWERING;
    if (!has_head)
        connection->n_scanned = 0;
    if (has_head || make_exchange(connection))
        http_answer_refuse(connection, status, why);
}

/* The head is complete. */
static void take_head(struct http_connection *connection)
{
    const char *why = NULL;
    size_t n = connection->n_scanned;
    if (!make_exchange(connection))
        return;
    struct http_exchange *exchange = connection->exchange;
    struct http_head *head = &exchange->request->head;
    unsigned status = http_head_parse(exchange->memory, n, head, &why);
    exchange->is_head = head->method == HTTP_HEAD;
    exchange->is_1_0 = head->is_1_0;
    connection->n_requests++;
    bool is_last = connection->n_requests >= connection->loop->server->config.max_requests;
    if (is_last && head->keeps_open)
        count(connection, HTTP_LIMIT_REQUESTS);
    connection->closes |= !head->keeps_open || connection->loop->is_draining || is_last;
    if (status) {
        http_request_refuse(connection, status, why);
    } else if (http_answer_head(connection)) {
        connection->phase = HTTP_ANSWERING;
    } else {
        connection->phase = HTTP_IN_BODY;
        connection->chunks = (struct http_chunks){0};
        strbuf_init(&connection->body, connection->loop->server->config.max_body_bytes);
        if (head->expects_continue && !connection->in.n_bytes && (head->is_chunked || head->n_body))
            strbuf_add_str(&connection->out, "HTTP/1.1 100 Continue\r\n\r\n");
    }
}

bool http_request_check_budget(struct http_connection *connection)
{
    if (http_budget_allows(connection->loop->server->config.budget, connection->body.n_bytes))
        return false;
    connection->phase = HTTP_ANSWERING;
    http_answer_refuse_budget(connection);
    return true;
}

bool http_request_read_body(struct http_connection *connection)
{
    struct http_request *request = connection->exchange->request;
    struct strbuf *in = &connection->in, *body = &connection->body;
    unsigned status = 0;
    size_t n = in->n_bytes, n_before = body->n_bytes;
    if (request->head.is_chunked) {
        status = http_chunks_decode(&connection->chunks, strbuf_str(in), in->n_bytes, &n, body);
    } else {
        uint64_t n_left = request->head.n_body - body->n_bytes;
        n = n < n_left ? n : (size_t)n_left;
        if (n && !strbuf_add(body, in->data, n))
            status = 503; /* the length was checked before: memory is exhausted */
        else if (body->n_bytes == request->head.n_body)
            status = 200;
    }
    strbuf_consume(in, n);
    http_budget_move(connection->loop->server->config.budget, n_before, body->n_bytes);
    if (!status)
        return http_request_check_budget(connection);
    connection->phase = HTTP_ANSWERING;
    if (status == 413)
        count(connection, HTTP_LIMIT_BODY_BYTES);
    if (status == 200)
        http_answer_request(connection);
    else
        http_answer_refuse(connection, status,
                           status == 413   ? "the body is over the limit"
                           : status == 503 ? "there is no memory for the body"
                                           : "the body's chunks are not valid");
    return true;
}

bool http_request_read_head(struct http_connection *connection)
{
    size_t limit = connection->loop->server->config.max_header_bytes;
    struct strbuf *in = &connection->in;
    enum http_head_end end =
        http_head_find_end(strbuf_str(in), in->n_bytes, &connection->n_scanned);
    if (end == HTTP_HEAD_WHOLE && connection->n_scanned <= limit) {
        take_head(connection);
        return true;
    }
    if (end == HTTP_HEAD_PART && in->n_bytes <= limit) {
        /* A client that speaks TLS or another protocol would wait for an answer in vain. */
        if (in->n_bytes && (unsigned char)in->data[0] < 0x20 && in->data[0] != '\r' &&
            in->data[0] != '\n')
            http_connection_end(connection);
        return false;
    }
    bool has_line = memchr(in->data, '\n', in->n_bytes) != NULL;
    if (end == HTTP_HEAD_BROKEN) {
        http_request_refuse(connection, 400, "a line ends without CR");
    } else {
        count(connection, HTTP_LIMIT_HEADER_BYTES);
        http_request_refuse(connection, has_line ? 431 : 414, "the head is over the limit");
    }
    return true;
}
