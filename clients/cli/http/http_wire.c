#include "clients/cli/http/http_wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ev.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "base/clock.h"
#include "base/error.h"
#include "clients/cli/http/http_target.h"

enum { SCRATCH_BYTES = 32 << 10, MAX_READS = 8 };

enum phase {
    PHASE_CLOSED,
    PHASE_CONNECTING,
    PHASE_HANDSHAKE,
    PHASE_RUNNING, /* the request is sent, and its response read */
    PHASE_IDLE,    /* open, without a request */
};

enum io { IO_DONE, IO_LATER, IO_ENDED, IO_FAILED };

struct http_wire {
    struct ev_loop *loop;
    const struct http_target *target;
    struct http_wire_limits limits;
    const struct http_wire_events *events;
    void *arg;
    enum phase phase;
    int fd;
    SSL *ssl;
    const struct addrinfo *address; /* the address that is tried */
    ev_io reader, writer;
    ev_timer timer, soon; /* soon: reports the failure of a send that failed at once */
    struct strbuf request;
    size_t n_sent;
    struct http_response response;
    struct strbuf part;
    int64_t begun_ns, phase_ns, moved_ns; /* request, phase, last byte */
    bool has_request, was_used; /* was_used: the connection has carried a request before */
    bool has_bytes;             /* bytes of this response have come */
};

static void on_readable(EV_P_ ev_io *watcher, int events);
static void on_writable(EV_P_ ev_io *watcher, int events);
static void on_timer(EV_P_ ev_timer *watcher, int events);
static void on_soon(EV_P_ ev_timer *watcher, int events);
static void open_next(struct http_wire *wire);

/* --- the socket --- */

static void close_socket(struct http_wire *wire)
{
    ev_io_stop(wire->loop, &wire->reader);
    ev_io_stop(wire->loop, &wire->writer);
    ev_timer_stop(wire->loop, &wire->timer);
    SSL_free(wire->ssl);
    wire->ssl = NULL;
    if (wire->fd >= 0)
        close(wire->fd);
    wire->fd = -1;
    wire->phase = PHASE_CLOSED;
    wire->was_used = false;
}

static enum io ssl_result(struct http_wire *wire, int rc)
{
    int error = SSL_get_error(wire->ssl, rc);
    if (error == SSL_ERROR_WANT_WRITE)
        ev_io_start(wire->loop, &wire->writer);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return IO_LATER;
    return error == SSL_ERROR_ZERO_RETURN ? IO_ENDED : IO_FAILED;
}

static enum io plain_result(ssize_t n)
{
    if (n == 0)
        return IO_ENDED;
    return errno == EAGAIN || errno == EINTR ? IO_LATER : IO_FAILED;
}

static enum io read_some(struct http_wire *wire, char *bytes, size_t n_bytes, size_t *out_n)
{
    if (wire->ssl) {
        ERR_clear_error();
        int rc = SSL_read_ex(wire->ssl, bytes, n_bytes, out_n);
        return rc == 1 ? IO_DONE : ssl_result(wire, rc);
    }
    ssize_t n = recv(wire->fd, bytes, n_bytes, 0);
    *out_n = n > 0 ? (size_t)n : 0;
    return n > 0 ? IO_DONE : plain_result(n);
}

static enum io write_some(struct http_wire *wire, size_t *out_n)
{
    const char *bytes = wire->request.data + wire->n_sent;
    size_t n_bytes = wire->request.n_bytes - wire->n_sent;
    if (wire->ssl) {
        ERR_clear_error();
        int rc = SSL_write_ex(wire->ssl, bytes, n_bytes, out_n);
        return rc == 1 ? IO_DONE : ssl_result(wire, rc);
    }
    ssize_t n = send(wire->fd, bytes, n_bytes, MSG_NOSIGNAL);
    *out_n = n > 0 ? (size_t)n : 0;
    return n > 0 ? IO_DONE : plain_result(n < 0 ? n : -1);
}

/* --- the end of a request --- */

/* Reports the end. The callback may destroy the connection, so nothing follows. */
static void end_request(struct http_wire *wire, const struct error *status)
{
    struct error copy = *status;
    wire->has_request = false;
    strbuf_clear(&wire->request);
    if (copy.status || !wire->response.keeps_open)
        close_socket(wire);
    else
        wire->phase = PHASE_IDLE;
    ev_timer_stop(wire->loop, &wire->timer);
    wire->events->on_end(wire->arg, &wire->response, &copy);
}

static void fail(struct http_wire *wire, int status, enum reason reason, const char *text)
{
    struct error err;
    error_set(&err, status, "%s", text);
    error_reason(&err, reason);
    end_request(wire, &err);
}

/* The connection has ended. The server may have closed an unused connection at the moment of the
 * request. Then the request is sent again. */
static void lose(struct http_wire *wire, const char *text)
{
    if (wire->was_used && !wire->has_bytes) {
        close_socket(wire);
        wire->address = wire->target->addresses;
        open_next(wire);
        return;
    }
    fail(wire, STATUS_UNAVAILABLE, REASON_CONNECTION_LOST, text);
}

/* --- the connection --- */

static void fail_connection(struct http_wire *wire, int err_no)
{
    char text[ERROR_MESSAGE_BYTES];
    snprintf(text, sizeof(text), "no server answers on %s: %s", wire->target->url.authority,
             strerror(err_no));
    fail(wire, STATUS_UNAVAILABLE, REASON_NOT_CONNECTED, text);
}

static void begin_phase(struct http_wire *wire, enum phase phase)
{
    wire->phase = phase;
    wire->phase_ns = wire->moved_ns = clock_now_ns();
}

/* Seconds until the next limit of the request. */
static double next_limit_s(const struct http_wire *wire, int64_t now_ns, bool *out_is_total)
{
    int64_t until_ns = INT64_MAX;
    *out_is_total = false;
    if (wire->phase == PHASE_RUNNING && wire->limits.idle_ms)
        until_ns = wire->moved_ns + (int64_t)wire->limits.idle_ms * NS_PER_MS;
    else if (wire->phase == PHASE_CONNECTING || wire->phase == PHASE_HANDSHAKE)
        until_ns = wire->phase_ns + (int64_t)wire->limits.connect_ms * NS_PER_MS;
    int64_t total_ns = wire->begun_ns + (int64_t)wire->limits.total_ms * NS_PER_MS;
    if (wire->limits.total_ms && total_ns < until_ns) {
        until_ns = total_ns;
        *out_is_total = true;
    }
    return until_ns == INT64_MAX ? 1e9 : (double)(until_ns - now_ns) / 1e9;
}

static void set_timer(struct http_wire *wire)
{
    bool is_total;
    double s = next_limit_s(wire, clock_now_ns(), &is_total);
    ev_timer_stop(wire->loop, &wire->timer);
    ev_now_update(wire->loop);
    ev_timer_set(&wire->timer, s > 0 ? s : 0, 0);
    ev_timer_start(wire->loop, &wire->timer);
}

/* Starts a connection to wire->address. False with errno if that failed at once. */
static bool begin_connect(struct http_wire *wire)
{
    const struct addrinfo *a = wire->address;
    int one = 1;
    wire->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (wire->fd < 0)
        return false;
    setsockopt(wire->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(wire->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    if (connect(wire->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        int err_no = errno;
        close(wire->fd);
        wire->fd = -1;
        errno = err_no;
        return false;
    }
    ev_io_set(&wire->reader, wire->fd, EV_READ);
    ev_io_set(&wire->writer, wire->fd, EV_WRITE);
    ev_io_start(wire->loop, &wire->writer);
    begin_phase(wire, PHASE_CONNECTING);
    set_timer(wire);
    return true;
}

/* Connects to wire->address, or to the next address that works. */
static void open_next(struct http_wire *wire)
{
    int err_no = EHOSTUNREACH;
    for (; wire->address; wire->address = wire->address->ai_next) {
        if (begin_connect(wire))
            return;
        err_no = errno;
    }
    fail_connection(wire, err_no);
}

static bool is_address(const char *name)
{
    struct in6_addr six;
    struct in_addr four;
    return inet_pton(AF_INET6, name, &six) == 1 || inet_pton(AF_INET, name, &four) == 1;
}

static bool make_ssl(struct http_wire *wire)
{
    const char *name = wire->target->server_name;
    wire->ssl = SSL_new(wire->target->tls);
    if (!wire->ssl || SSL_set_fd(wire->ssl, wire->fd) != 1)
        return false;
    SSL_set_connect_state(wire->ssl);
    if (is_address(name))
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(wire->ssl), name) == 1;
    return SSL_set_tlsext_host_name(wire->ssl, name) == 1 && SSL_set1_host(wire->ssl, name) == 1;
}

static void fail_handshake(struct http_wire *wire)
{
    char text[ERROR_MESSAGE_BYTES];
    long result = SSL_get_verify_result(wire->ssl);
    unsigned long code = ERR_peek_error();
    const char *why = ERR_reason_error_string(code);
    enum reason reason = REASON_HANDSHAKE_CLOSED;
    if (result == X509_V_ERR_HOSTNAME_MISMATCH || result == X509_V_ERR_IP_ADDRESS_MISMATCH)
        reason = REASON_CERTIFICATE_OTHER_NAME;
    else if (result != X509_V_OK)
        reason = REASON_CERTIFICATE_UNTRUSTED;
    else if (ERR_GET_REASON(code) == SSL_R_WRONG_VERSION_NUMBER ||
             ERR_GET_REASON(code) == SSL_R_HTTP_REQUEST)
        reason = REASON_PEER_WITHOUT_TLS;
    if (result != X509_V_OK)
        why = X509_verify_cert_error_string(result);
    snprintf(text, sizeof(text), "no TLS connection to the server on %s: %s",
             wire->target->url.authority, why ? why : "the server closed the connection");
    ERR_clear_error();
    fail(wire, STATUS_UNAVAILABLE, reason, text);
}

/* --- the request and its response --- */

/* Sends what the socket takes. After a failure the response is read: the server may have answered
 * and closed. */
static void send_more(struct http_wire *wire)
{
    while (wire->n_sent < wire->request.n_bytes) {
        size_t n = 0;
        enum io result = write_some(wire, &n);
        if (result == IO_LATER) {
            ev_io_start(wire->loop, &wire->writer);
            return;
        }
        if (result != IO_DONE)
            break;
        wire->n_sent += n;
        wire->moved_ns = clock_now_ns();
    }
    ev_io_stop(wire->loop, &wire->writer);
}

static void begin_request(struct http_wire *wire)
{
    begin_phase(wire, PHASE_RUNNING);
    wire->n_sent = 0;
    wire->has_bytes = false;
    http_response_reset(&wire->response);
    ev_io_start(wire->loop, &wire->reader);
    set_timer(wire);
    send_more(wire);
}

static void shake_hands(struct http_wire *wire)
{
    ERR_clear_error();
    ev_io_stop(wire->loop, &wire->writer);
    int rc = SSL_do_handshake(wire->ssl);
    if (rc == 1) {
        begin_request(wire);
        return;
    }
    if (ssl_result(wire, rc) != IO_LATER)
        fail_handshake(wire);
}

/* Gives up an address that does not answer, and tries the next address of the host. */
static void try_next(struct http_wire *wire, int err_no)
{
    const struct addrinfo *next = wire->address->ai_next;
    close_socket(wire);
    wire->address = next;
    if (next)
        open_next(wire);
    else
        fail_connection(wire, err_no);
}

static void on_connected(struct http_wire *wire)
{
    int err_no = 0;
    socklen_t n = sizeof(err_no);
    ev_io_stop(wire->loop, &wire->writer);
    if (getsockopt(wire->fd, SOL_SOCKET, SO_ERROR, &err_no, &n) != 0)
        err_no = errno;
    if (err_no) {
        try_next(wire, err_no);
    } else if (wire->target->tls) {
        begin_phase(wire, PHASE_HANDSHAKE);
        if (!make_ssl(wire)) {
            fail_handshake(wire);
            return;
        }
        ev_io_start(wire->loop, &wire->reader);
        shake_hands(wire);
    } else {
        begin_request(wire);
    }
}

/* Hands the bytes on. False if the request has ended, and the connection perhaps destroyed. */
static bool take_bytes(struct http_wire *wire, const char *bytes, size_t n)
{
    struct error err = {0};
    size_t used = 0;
    wire->has_bytes = true;
    wire->moved_ns = clock_now_ns();
    strbuf_clear(&wire->part);
    int rc = http_response_feed(&wire->response, bytes, n, &used, &wire->part, &err);
    if (!rc && wire->part.n_bytes)
        rc = wire->events->on_body(wire->arg, &wire->response, strbuf_str(&wire->part),
                                   wire->part.n_bytes, &err);
    if (rc) {
        end_request(wire, &err);
        return false;
    }
    if (wire->response.state != HTTP_RESPONSE_OVER)
        return true;
    if (used < n ||
        wire->n_sent <
            wire->request.n_bytes) /* bytes behind the response, or a request not all sent */
        wire->response.keeps_open = false;
    end_request(wire, &err);
    return false;
}

static void on_closed(struct http_wire *wire, enum io result)
{
    struct error err = {0};
    if (!wire->has_bytes) {
        lose(wire, "the server closed the connection without a response, as a port of gRPC does; "
                   "check that the address is one of HTTP");
        return;
    }
    /* Without a length, only an orderly end shows that the response is whole. */
    if (result == IO_FAILED && wire->response.state == HTTP_RESPONSE_TO_END)
        error_set(&err, STATUS_DATA_LOSS, "the connection broke within the response");
    else
        (void)http_response_close(&wire->response, &err);
    wire->response.keeps_open = false;
    end_request(wire, &err);
}

static void read_response(struct http_wire *wire)
{
    char scratch[SCRATCH_BYTES];
    enum io result = IO_DONE;
    for (int i = 0; i < MAX_READS || (wire->ssl && SSL_pending(wire->ssl) > 0); i++) {
        size_t n = 0;
        result = read_some(wire, scratch, sizeof(scratch), &n);
        if (result != IO_DONE)
            break;
        if (!take_bytes(wire, scratch, n))
            return;
        if (!wire->ssl && n < sizeof(scratch))
            return; /* the socket is empty, most likely */
    }
    if (result == IO_ENDED || result == IO_FAILED)
        on_closed(wire, result);
}

/* An unused connection is readable. The connection is closed here: the server closed its end, or
 * sent bytes that no request asked for. A TLS session ticket is read and gives no byte. */
static void look_at_idle(struct http_wire *wire)
{
    char byte;
    size_t n = 0;
    if (read_some(wire, &byte, 1, &n) != IO_LATER)
        close_socket(wire);
}

static void on_readable(EV_P_ ev_io *watcher, int events)
{
    struct http_wire *wire = watcher->data;
    (void)loop;
    (void)events;
    if (wire->phase == PHASE_HANDSHAKE)
        shake_hands(wire);
    else if (wire->phase == PHASE_IDLE)
        look_at_idle(wire);
    else
        read_response(wire);
}

static void on_writable(EV_P_ ev_io *watcher, int events)
{
    struct http_wire *wire = watcher->data;
    (void)loop;
    (void)events;
    if (wire->phase == PHASE_CONNECTING)
        on_connected(wire);
    else if (wire->phase == PHASE_HANDSHAKE)
        shake_hands(wire);
    else
        send_more(wire);
}

static void on_timer(EV_P_ ev_timer *watcher, int events)
{
    struct http_wire *wire = watcher->data;
    bool is_total;
    (void)loop;
    (void)events;
    if (!wire->has_request)
        return;
    if (next_limit_s(wire, clock_now_ns(), &is_total) > 0)
        set_timer(wire);
    else if (is_total)
        fail(wire, STATUS_DEADLINE_EXCEEDED, REASON_NONE,
             "the server's answer was not complete within --timeout");
    else if (wire->phase == PHASE_RUNNING)
        fail(wire, STATUS_DEADLINE_EXCEEDED, REASON_NONE,
             "the server has sent nothing for too long");
    else if (wire->phase == PHASE_CONNECTING)
        try_next(wire, ETIMEDOUT);
    else
        fail_connection(wire, ETIMEDOUT);
}

static void on_soon(EV_P_ ev_timer *watcher, int events)
{
    struct http_wire *wire = watcher->data;
    (void)loop;
    (void)events;
    open_next(wire);
}

/* --- life --- */

int http_wire_create(struct ev_loop *loop, const struct http_target *target,
                     const struct http_wire_limits *limits, const struct http_wire_events *events,
                     void *arg, struct http_wire **out_wire, struct error *err)
{
    struct http_wire *wire = calloc(1, sizeof(*wire));
    if (!wire)
        return error_no_memory(err);
    wire->loop = loop;
    wire->target = target;
    wire->limits = *limits;
    wire->events = events;
    wire->arg = arg;
    wire->fd = -1;
    ev_io_init(&wire->reader, on_readable, -1, EV_READ);
    ev_io_init(&wire->writer, on_writable, -1, EV_WRITE);
    ev_timer_init(&wire->timer, on_timer, 0, 0);
    ev_timer_init(&wire->soon, on_soon, 0, 0);
    wire->reader.data = wire->writer.data = wire->timer.data = wire->soon.data = wire;
    *out_wire = wire;
    return 0;
}

void http_wire_destroy(struct http_wire *wire)
{
    if (!wire)
        return;
    close_socket(wire);
    ev_timer_stop(wire->loop, &wire->soon);
    http_response_fini(&wire->response);
    strbuf_fini(&wire->request);
    strbuf_fini(&wire->part);
    free(wire);
}

static void write_request(struct http_wire *wire, const char *path, const struct strbuf *body)
{
    const struct http_target *target = wire->target;
    struct strbuf *out = &wire->request;
    strbuf_clear(out);
    strbuf_printf(out, "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: sluice/%s\r\n",
                  body ? "POST" : "GET", target->url.base, path, target->url.authority,
                  SLUICE_VERSION);
    strbuf_add_str(out, "Accept: text/event-stream, application/json\r\n"
                        "Accept-Encoding: identity\r\n");
    if (target->key[0])
        strbuf_printf(out, "Authorization: Bearer %s\r\n", target->key);
    if (body)
        strbuf_printf(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n",
                      body->n_bytes);
    strbuf_add_str(out, "\r\n");
    if (body)
        strbuf_add(out, strbuf_str(body), body->n_bytes);
}

int http_wire_send(struct http_wire *wire, const char *path, struct strbuf *body, struct error *err)
{
    write_request(wire, path, body);
    if (body)
        strbuf_clear(body);
    if (strbuf_failed(&wire->request))
        return error_no_memory(err);
    wire->has_request = true;
    wire->begun_ns = clock_now_ns();
    if (wire->phase == PHASE_IDLE) {
        wire->was_used = true;
        begin_request(wire);
        return 0;
    }
    wire->address = wire->target->addresses;
    ev_now_update(wire->loop);
    ev_timer_set(&wire->soon, 0, 0);
    ev_timer_start(wire->loop, &wire->soon);
    return 0;
}

void http_wire_cancel(struct http_wire *wire)
{
    if (!wire->has_request)
        return;
    ev_timer_stop(wire->loop, &wire->soon);
    fail(wire, STATUS_CANCELLED, REASON_NONE, "the request was cancelled");
}

bool http_wire_is_open(const struct http_wire *wire)
{
    return wire->phase == PHASE_IDLE;
}
