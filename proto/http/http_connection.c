#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "base/clock.h"
#include "proto/http/http_private.h"
#include "proto/http/http_tls.h"

static void count(const struct http_connection *connection, enum http_limit limit)
{
    http_server_count(connection->loop->server, limit);
}

static void enter(struct http_connection *connection, enum http_phase phase)
{
    connection->phase = phase;
    connection->since_ns = connection->loop->now_ns;
}

/* --- the end of an exchange and of a connection --- */

static void end_exchange(struct http_connection *connection, bool gone)
{
    struct http_exchange *exchange = connection->exchange;
    if (!exchange)
        return;
    connection->exchange = NULL;
    exchange->connection = NULL;
    if (exchange->events && gone && exchange->events->on_gone)
        exchange->events->on_gone(exchange->arg, exchange);
    if (exchange->events && exchange->events->on_done)
        exchange->events->on_done(exchange->arg, exchange);
    atomic_fetch_sub(&connection->loop->server->n_live, 1);
    http_exchange_release(exchange);
}

void http_connection_end(struct http_connection *connection)
{
    if (connection->phase == HTTP_DEAD)
        return;
    connection->phase = HTTP_DEAD;
    ev_io_stop(connection->loop->ev, &connection->reader);
    ev_io_stop(connection->loop->ev, &connection->writer);
    end_exchange(connection, true);
}

void http_connection_destroy(struct http_connection *connection)
{
    http_connection_end(connection);
    *connection->at = connection->next;
    if (connection->next)
        connection->next->at = connection->at;
    if (connection->is_cut) { /* the client gets a reset, and no end that looks whole */
        struct linger now = {.l_onoff = 1, .l_linger = 0};
        setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    } else if (connection->ssl) {
        SSL_shutdown(connection->ssl);
        ERR_clear_error();
    }
    SSL_free(connection->ssl);
    close(connection->fd);
    strbuf_fini(&connection->in);
    strbuf_fini(&connection->out);
    http_answer_forget_body(connection);
    http_server_forget(connection->loop->server, &connection->peer);
    free(connection);
}

/* The end of every callback. */
static void settle(struct http_connection *connection)
{
    if (connection->phase == HTTP_DEAD)
        http_connection_destroy(connection);
}

/* --- bytes --- */

static bool is_sending(const struct http_connection *connection)
{
    return connection->n_sent < connection->out.n_bytes;
}

/* Empties a buffer. Its memory serves the next answer of any connection. */
static void give_back(struct http_loop *loop, struct strbuf *out)
{
    if (loop->spare.data || out->capacity > HTTP_SPARE_BYTES) {
        strbuf_fini(out);
    } else {
        strbuf_clear(out);
        loop->spare = *out;
    }
    strbuf_init(out, 0);
}

/* Sends the output as far as the client takes it. True if all is sent. */
static bool flush(struct http_connection *connection)
{
    enum http_io result = HTTP_IO_DONE;
    while (result == HTTP_IO_DONE && is_sending(connection)) {
        size_t n = 0;
        result = http_io_transmit(connection, &n);
        connection->n_sent += n;
        if (n)
            connection->since_ns = connection->loop->now_ns;
    }
    if (strbuf_failed(&connection->out) || result == HTTP_IO_FAILED || result == HTTP_IO_ENDED) {
        http_connection_end(connection);
        return false;
    }
    if (is_sending(connection) && result != HTTP_IO_READ_FIRST) {
        ev_io_start(connection->loop->ev, &connection->writer);
        return false;
    }
    ev_io_stop(connection->loop->ev, &connection->writer);
    if (is_sending(connection)) /* every read tries again */
        return false;
    give_back(connection->loop, &connection->out); /* an idle stream holds no buffer */
    connection->n_sent = 0;
    return true;
}

/* --- answers --- */

/* The last byte of the answer is sent. */
static void after_answer(struct http_connection *connection)
{
    end_exchange(connection, false);
    if (connection->has_ended) {
        http_connection_end(connection);
    } else if (connection->closes) {
        if (connection->ssl)
            SSL_shutdown(connection->ssl);
        ERR_clear_error();
        shutdown(connection->fd, SHUT_WR);
        enter(connection, HTTP_LINGERS);
    } else {
        enter(connection, HTTP_IDLE);
    }
}

/* Sends what is ready, and lets `next` write until the client takes no more or nothing is left.
 * True if the answer is complete and sent. */
static bool send_answer(struct http_connection *connection)
{
    bool has_put = false;
    while (connection->phase == HTTP_ANSWERING && flush(connection)) {
        struct http_exchange *exchange = connection->exchange;
        if (exchange->is_over)
            return true;
        if (!exchange->events || (has_put && exchange->rests))
            return false;
        has_put = http_answer_next(connection);
        if (!has_put) {
            give_back(connection->loop, &connection->out);
            return false;
        }
        connection->since_ns = connection->loop->now_ns; /* the client has time to take it */
    }
    return false;
}

/* Leaves the loop to others, or goes on to read. A writer that is ready fires in the next turn of
 * the loop, beside the events of the others. */
static void set_yield(struct http_connection *connection, bool yields)
{
    struct ev_loop *ev = connection->loop->ev;
    if (yields) {
        ev_io_stop(ev, &connection->reader); /* further requests wait at the client */
        ev_io_start(ev, &connection->writer);
    } else if (connection->yields && connection->phase != HTTP_DEAD) {
        ev_io_start(ev, &connection->reader);
    }
    connection->yields = yields;
}

/* Does all that the received bytes allow, up to HTTP_MAX_TURN answers. */
static void progress(struct http_connection *connection)
{
    bool goes_on = true, yields = false;
    unsigned n_answers = 0;
    while (goes_on) {
        switch (connection->phase) {
        case HTTP_IDLE:
            yields = connection->in.n_bytes > 0 && n_answers >= HTTP_MAX_TURN;
            goes_on = connection->in.n_bytes > 0 && !yields;
            if (goes_on)
                enter(connection, HTTP_IN_HEAD);
            break;
        case HTTP_IN_HEAD:
            goes_on = http_request_read_head(connection);
            break;
        case HTTP_IN_BODY:
            goes_on = connection->exchange && http_request_read_body(connection);
            if (!goes_on && connection->phase == HTTP_IN_BODY)
                flush(connection); /* 100 Continue */
            break;
        case HTTP_ANSWERING:
            goes_on = send_answer(connection);
            if (goes_on)
                after_answer(connection);
            n_answers += goes_on;
            break;
        default:
            strbuf_clear(&connection->in);
            goes_on = false;
        }
    }
    set_yield(connection, yields);
    if (!connection->in.n_bytes) {
        strbuf_fini(&connection->in);
        strbuf_init(&connection->in, 0);
    }
}

/* --- events --- */

/* The client sends nothing more. While an answer is made, this means that the client has left. */
static void on_end(struct http_connection *connection)
{
    connection->has_ended = true;
    ev_io_stop(connection->loop->ev, &connection->reader);
    bool is_answered = connection->phase == HTTP_ANSWERING && connection->exchange &&
                       connection->exchange->is_over && is_sending(connection);
    if (!is_answered)
        http_connection_end(connection);
}

/* The alert is sent. A close would reset the connection if bytes of the client are unread, and the
 * client might not read the alert. */
static void refuse_handshake(struct http_connection *connection)
{
    SSL_free(connection->ssl);
    connection->ssl = NULL;
    ev_io_stop(connection->loop->ev, &connection->writer);
    shutdown(connection->fd, SHUT_WR);
    enter(connection, HTTP_LINGERS);
}

/* A client without TLS gets an answer that it can read, and its connection is closed. */
static void refuse_plain(struct http_connection *connection)
{
    SSL_free(connection->ssl);
    connection->ssl = NULL;
    enter(connection, HTTP_ANSWERING);
    http_request_refuse(connection, 400, "this port speaks TLS: use https:// in place of http://");
    progress(connection);
}

/* True if the handshake is complete. */
static bool shake_hands(struct http_connection *connection)
{
    enum http_io result = http_io_shake(connection);
    if (result == HTTP_IO_DONE)
        enter(connection, HTTP_IDLE);
    else if (result == HTTP_IO_PLAIN)
        refuse_plain(connection);
    else if (result == HTTP_IO_FAILED)
        refuse_handshake(connection);
    else if (result == HTTP_IO_ENDED)
        http_connection_end(connection);
    return result == HTTP_IO_DONE;
}

static void read_some(struct http_connection *connection)
{
    enum http_io result = HTTP_IO_DONE;
    do {
        size_t n = 0;
        result = http_io_receive(connection, &n);
        if (result == HTTP_IO_DONE && connection->phase != HTTP_LINGERS && !connection->drops &&
            !strbuf_add(&connection->in, connection->loop->scratch, n))
            result = HTTP_IO_FAILED;
    } while (result == HTTP_IO_DONE && connection->ssl && SSL_pending(connection->ssl) > 0 &&
             connection->phase != HTTP_ANSWERING);
    if (result == HTTP_IO_FAILED) {
        http_connection_end(connection);
        return;
    }
    progress(connection);
    if (result == HTTP_IO_ENDED && connection->phase != HTTP_DEAD && !connection->yields)
        on_end(connection);
    /* A client that sends far ahead loses these requests, but not its answer. Its bytes are read,
     * because a close is only seen behind them. */
    if (connection->phase == HTTP_ANSWERING &&
        connection->in.n_bytes >= connection->loop->server->config.max_header_bytes)
        connection->drops = connection->closes = true;
}

static void on_readable(struct ev_loop *ev, ev_io *watcher, int events)
{
    struct http_connection *connection = watcher->data;
    (void)ev;
    (void)events;
    if (connection->phase != HTTP_HANDSHAKE || shake_hands(connection))
        read_some(connection);
    settle(connection);
}

static void on_writable(struct ev_loop *ev, ev_io *watcher, int events)
{
    struct http_connection *connection = watcher->data;
    (void)events;
    if (connection->phase == HTTP_HANDSHAKE) {
        ev_io_stop(ev, watcher);
        if (shake_hands(connection)) /* may need the watcher again */
            read_some(connection);
        settle(connection);
        return;
    }
    if (connection->phase == HTTP_IN_BODY) {
        flush(connection);
    } else {
        progress(connection);
    }
    if (connection->phase != HTTP_DEAD && !connection->yields && !is_sending(connection))
        ev_io_stop(ev, watcher);
    settle(connection);
}

void http_connection_on_kick(struct http_connection *connection)
{
    if (connection->exchange && atomic_load(&connection->exchange->aborted)) {
        connection->is_cut = true;
        http_connection_end(connection);
    } else if (connection->phase == HTTP_ANSWERING && !is_sending(connection)) {
        progress(connection);
    }
    settle(connection);
}

/* True if the phase has lasted too long. */
static bool is_late(const struct http_connection *connection)
{
    const struct http_server_config *config = &connection->loop->server->config;
    int64_t age_ms = (connection->loop->now_ns - connection->since_ns) / NS_PER_MS;
    switch (connection->phase) {
    case HTTP_HANDSHAKE:
        return age_ms >= config->handshake_ms;
    case HTTP_IDLE:
        return age_ms >= (connection->loop->is_draining ? HTTP_DRAIN_MS
                          : connection->n_requests      ? config->idle_ms
                                                        : config->handshake_ms);
    case HTTP_ANSWERING: /* `next` has an owner, and that owner ends slow readers */
        return connection->exchange->is_over && age_ms >= config->timeout_ms;
    case HTTP_LINGERS:
        return age_ms >= HTTP_LINGER_MS;
    default:
        return age_ms >= config->timeout_ms;
    }
}

static void count_late(const struct http_connection *connection)
{
    bool is_idle = connection->phase == HTTP_IDLE;
    if (connection->phase == HTTP_IN_BODY || connection->phase == HTTP_IN_HEAD)
        count(connection, HTTP_LIMIT_REQUEST_TIME);
    else if (connection->phase == HTTP_ANSWERING)
        count(connection, HTTP_LIMIT_ANSWER_TIME);
    else if (connection->phase == HTTP_HANDSHAKE || (is_idle && !connection->n_requests))
        count(connection, HTTP_LIMIT_HANDSHAKE);
    else if (is_idle && !connection->loop->is_draining)
        count(connection, HTTP_LIMIT_IDLE);
}

/* True if the answer asked for a call of `next` by now. */
static bool is_silent(const struct http_connection *connection)
{
    const struct http_exchange *exchange = connection->exchange;
    return connection->phase == HTTP_ANSWERING && exchange->wake_ms && exchange->events &&
           !is_sending(connection) &&
           connection->loop->now_ns - connection->since_ns >=
               (int64_t)exchange->wake_ms * NS_PER_MS;
}

void http_connection_sweep(struct http_connection *connection)
{
    bool rests = connection->phase == HTTP_ANSWERING && connection->exchange->rests;
    bool silent = is_silent(connection);
    bool refuses = connection->phase == HTTP_IN_BODY && http_request_check_budget(connection);
    if (silent || refuses || (rests && !is_sending(connection))) {
        if (silent) {
            connection->since_ns = connection->loop->now_ns;
            connection->exchange->is_silent = true;
        }
        progress(connection);
        settle(connection);
        return;
    }
    if (!is_late(connection))
        return;
    bool in_request = connection->phase == HTTP_IN_BODY || connection->phase == HTTP_IN_HEAD;
    count_late(connection);
    if (in_request) {
        http_request_refuse(connection, 408, "the request took too long");
        progress(connection);
    } else {
        http_connection_end(connection);
    }
    settle(connection);
}

void http_connection_drain(struct http_connection *connection)
{
    connection->closes = true;
    if (connection->phase == HTTP_IDLE)
        enter(connection, HTTP_IDLE);
}

/* --- begin --- */

struct http_connection *http_connection_create(struct http_loop *loop, int fd,
                                               const struct http_peer *peer)
{
    struct http_connection *connection = calloc(1, sizeof(*connection));
    if (!connection) {
        close(fd);
        http_server_forget(loop->server, peer);
        return NULL;
    }
    connection->peer = *peer;
    connection->loop = loop;
    connection->fd = fd;
    return connection;
}

void http_connection_start(struct http_connection *connection)
{
    struct http_loop *loop = connection->loop;
    struct http_server *server = loop->server;
    int fd = connection->fd;
    connection->next = loop->connections;
    connection->at = &loop->connections;
    if (connection->next)
        connection->next->at = &connection->next;
    loop->connections = connection;
    ev_io_init(&connection->reader, on_readable, fd, EV_READ);
    ev_io_init(&connection->writer, on_writable, fd, EV_WRITE);
    connection->reader.data = connection->writer.data = connection;
    if (!server->unix_path)
        http_io_set_options(fd, &server->config);
    enter(connection, server->tls ? HTTP_HANDSHAKE : HTTP_IDLE);
    if (server->tls) {
        pthread_mutex_lock(&server->tls_lock);
        connection->ssl = http_tls_accept(server->tls, fd);
        pthread_mutex_unlock(&server->tls_lock);
        if (!connection->ssl) {
            http_connection_destroy(connection);
            return;
        }
    }
    ev_io_start(loop->ev, &connection->reader);
}
