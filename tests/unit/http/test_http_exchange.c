/* Answers that are made over time: parts, back-pressure, clients that leave, bodies, drain. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/http/http_server.h"
#include "tests/unit/base/support_cmocka.h"

enum { TIMEOUT_MS = 1000, WAIT_MS = 5000, MAX_BODY = 100000, BIG = 1 << 20 };

#define HOST "Host: x\r\n"

/* The one stream of a test, as its handler and its events see it. */
static struct {
    pthread_mutex_t lock;
    struct http_exchange *exchange; /* retained */
    int n_parts;                    /* parts that may be sent */
    bool finish, reply, is_big;
    atomic_int n_sent, n_gone, n_done;
} stream = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void next(void *arg, struct http_out *out)
{
    static char big[BIG];
    (void)arg;
    pthread_mutex_lock(&stream.lock);
    if (stream.reply) {
        struct http_reply reply = {.status = 429, .content_type = "text/plain"};
        strbuf_add_str(&reply.body, "later\n");
        http_out_reply(out, &reply);
    }
    for (; !stream.reply && stream.n_sent < stream.n_parts; stream.n_sent++) {
        char text[16];
        http_out_begin(out, 200, "text/event-stream", "Cache-Control: no-cache\r\n");
        snprintf(text, sizeof(text), "part %d\n", (int)stream.n_sent);
        http_out_put(out, stream.is_big ? big : text, stream.is_big ? sizeof(big) : strlen(text));
        if (stream.is_big) {
            stream.n_sent++;
            break;
        }
    }
    if (stream.finish && stream.n_sent == stream.n_parts)
        http_out_finish(out);
    pthread_mutex_unlock(&stream.lock);
}

static void on_gone(void *arg, struct http_exchange *exchange)
{
    (void)arg;
    (void)exchange;
    assert_int_equal(stream.n_done, 0);
    stream.n_gone++;
}

static void on_done(void *arg, struct http_exchange *exchange)
{
    (void)arg;
    (void)exchange;
    stream.n_done++;
}

static const struct http_exchange_events events = {next, on_gone, on_done};

static void handle_stream(void *arg, struct http_exchange *exchange)
{
    (void)arg;
    pthread_mutex_lock(&stream.lock);
    assert_null(stream.exchange);
    http_exchange_retain(exchange);
    stream.exchange = exchange;
    pthread_mutex_unlock(&stream.lock);
    http_exchange_set_events(exchange, &events, NULL);
}

static void handle_echo(void *arg, struct http_exchange *exchange)
{
    const struct http_request *request = http_exchange_request(exchange);
    struct http_reply reply = {.status = 200, .content_type = "text/plain"};
    (void)arg;
    if (request->segments[0])
        strbuf_printf(&reply.body, "[%s]", request->segments[0]);
    strbuf_add(&reply.body, request->body, request->n_body);
    http_exchange_add_header(exchange, "X-Echo: yes");
    http_exchange_reply(exchange, &reply);
}

static void handle_nothing(void *arg, struct http_exchange *exchange)
{
    (void)arg;
    (void)exchange;
}

static const struct http_route routes[] = {
    {.path = "/stream", .handle = handle_stream, .methods = HTTP_POST},
    {.path = "/echo", .handle = handle_echo, .methods = HTTP_POST},
    {.path = "/m/{}/echo", .handle = handle_echo, .methods = HTTP_POST | HTTP_GET},
    {.path = "/nothing", .handle = handle_nothing, .methods = HTTP_POST},
};

static bool admit(void *arg, struct http_exchange *exchange)
{
    struct http_reply reply = {.status = 403, .content_type = "text/plain"};
    (void)arg;
    if (!http_head_header(&http_exchange_request(exchange)->head, "x-refuse"))
        return false;
    strbuf_add_str(&reply.body, "refused\n");
    http_exchange_reply(exchange, &reply);
    return true;
}

static struct http_server *server;

static int start(void **state)
{
    struct http_server_config config;
    struct error err;
    (void)state;
    stream.exchange = NULL;
    stream.n_parts = 0;
    stream.finish = stream.reply = stream.is_big = false;
    stream.n_sent = stream.n_gone = stream.n_done = 0;
    http_server_config_init(&config);
    config.listen = "127.0.0.1:0";
    config.routes = routes;
    config.n_routes = sizeof(routes) / sizeof(routes[0]);
    config.timeout_ms = TIMEOUT_MS;
    config.max_body_bytes = MAX_BODY;
    config.max_requests = 3;
    config.n_threads = 2;
    config.admit = admit;
    assert_int_equal(http_server_create(&config, &server, &err), 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    http_server_destroy(server);
    http_exchange_release(stream.exchange);
    return 0;
}

static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(http_server_port(server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static void put(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        text += sent;
        n -= (size_t)sent;
    }
}

static void put_text(int fd, const char *text)
{
    put(fd, text, strlen(text));
}

/* Reads until `until` has come (NULL: until the end). */
static void take(int fd, char *out, size_t n_out, const char *until)
{
    size_t n = 0;
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    out[0] = '\0';
    while (n + 1 < n_out && (!until || !strstr(out, until)) && poll(&ready, 1, WAIT_MS) > 0) {
        ssize_t got = recv(fd, out + n, n_out - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
        out[n] = '\0';
    }
    if (until && !strstr(out, until))
        fail_msg("no \"%s\" in:\n%s", until, out);
}

static void until(atomic_int *n, int wanted)
{
    int64_t end_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
    while (atomic_load(n) != wanted) {
        if (clock_now_ns() > end_ns)
            fail_msg("%d, expected %d", atomic_load(n), wanted);
        poll(NULL, 0, 1);
    }
}

static void until_exchange(void)
{
    int64_t end_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
    bool has = false;
    while (!has) {
        assert_true(clock_now_ns() < end_ns);
        pthread_mutex_lock(&stream.lock);
        has = stream.exchange != NULL;
        pthread_mutex_unlock(&stream.lock);
        poll(NULL, 0, 1);
    }
}

static void allow(int n_parts, bool finish)
{
    until_exchange();
    pthread_mutex_lock(&stream.lock);
    stream.n_parts = n_parts;
    stream.finish = finish;
    pthread_mutex_unlock(&stream.lock);
    http_exchange_kick(stream.exchange);
}

#define START_STREAM "POST /stream HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n"

static void test_parts_come_as_chunks(void **state)
{
    char answer[4096];
    int fd = dial();
    (void)state;
    put_text(fd, START_STREAM);
    allow(1, false);
    take(fd, answer, sizeof(answer), "part 0\n");
    assert_non_null(strstr(answer, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(answer, "Content-Type: text/event-stream\r\n"));
    assert_non_null(strstr(answer, "Cache-Control: no-cache\r\n"));
    assert_non_null(strstr(answer, "\r\n\r\n7\r\npart 0\n\r\n"));
    allow(3, true); /* two parts at once are one chunk */
    take(fd, answer, sizeof(answer), "0\r\n\r\n");
    assert_string_equal(answer, "e\r\npart 1\npart 2\n\r\n0\r\n\r\n");
    until(&stream.n_done, 1);
    assert_int_equal(stream.n_gone, 0);
    /* The connection takes the next request. */
    put_text(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhi");
    take(fd, answer, sizeof(answer), "hi");
    close(fd);
}

static void test_an_old_client_gets_the_stream_up_to_the_close(void **state)
{
    char answer[4096];
    int fd = dial();
    (void)state;
    put_text(fd, "POST /stream HTTP/1.0\r\n\r\n");
    allow(2, true);
    take(fd, answer, sizeof(answer), NULL);
    assert_non_null(strstr(answer, "Connection: close\r\n"));
    assert_null(strstr(answer, "chunked"));
    assert_non_null(strstr(answer, "\r\n\r\npart 0\npart 1\n"));
    close(fd);
}

static void test_a_whole_reply_may_come_late(void **state)
{
    char answer[4096];
    int fd = dial();
    (void)state;
    put_text(fd, START_STREAM);
    until_exchange();
    pthread_mutex_lock(&stream.lock);
    stream.reply = true;
    pthread_mutex_unlock(&stream.lock);
    http_exchange_kick(stream.exchange);
    take(fd, answer, sizeof(answer), "later\n");
    assert_non_null(strstr(answer, "HTTP/1.1 429 Too Many Requests\r\n"));
    assert_non_null(strstr(answer, "Content-Length: 6\r\n"));
    until(&stream.n_done, 1);
    close(fd);
}

/* The library that served before neither saw a close, nor slept meanwhile. */
static void test_a_client_that_leaves_is_gone_at_once(void **state)
{
    enum { FIN, HALF, RST, N_WAYS };
    for (int way = 0; way < N_WAYS; way++)
        for (int begun = 0; begun < 2; begun++) {
            char answer[4096];
            int fd = dial();
            put_text(fd, START_STREAM);
            until_exchange();
            if (begun) {
                allow(1, false);
                take(fd, answer, sizeof(answer), "part 0\n");
            }
            struct linger now = {.l_onoff = 1, .l_linger = 0};
            if (way == RST)
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
            if (way == HALF)
                shutdown(fd, SHUT_WR);
            else
                close(fd);
            until(&stream.n_done, 1);
            assert_int_equal(stream.n_gone, 1);
            http_exchange_kick(stream.exchange); /* nothing happens any more */
            if (way == HALF)
                close(fd);
            stop(state);
            start(state);
        }
}

/* Bytes that a client sends ahead take no memory, and do not hide that the client leaves. */
static void test_bytes_sent_ahead_are_dropped(void **state)
{
    static char ahead[BIG];
    char answer[4096];
    (void)state;
    for (int leaves = 0; leaves < 2; leaves++) {
        int fd = dial();
        put_text(fd, START_STREAM);
        until_exchange();
        memset(ahead, 'a', sizeof(ahead));
        for (int i = 0; i < 64; i++)
            put(fd, ahead, sizeof(ahead));
        assert_int_equal(stream.n_gone, 0);
        if (leaves) {
            close(fd);
            until(&stream.n_done, 1);
            assert_int_equal(stream.n_gone, 1);
            return;
        }
        allow(1, true);
        take(fd, answer, sizeof(answer), NULL);
        assert_non_null(strstr(answer, "part 0\n\r\n0\r\n\r\n"));
        close(fd);
        stop(state);
        start(state);
    }
}

static void test_a_slow_reader_gets_no_further_part(void **state)
{
    static char answer[64 << 20];
    int fd = dial();
    (void)state;
    put_text(fd, START_STREAM);
    until_exchange();
    stream.is_big = true;
    allow(32, true);
    poll(NULL, 0, 200);
    int n_before = stream.n_sent;
    assert_in_range(n_before, 1, 20); /* the kernel's buffers take a few */
    poll(NULL, 0, 2 * TIMEOUT_MS);    /* the maker of a stream ends slow readers, not the server */
    assert_int_equal(stream.n_gone, 0);
    take(fd, answer, sizeof(answer), NULL);
    until(&stream.n_done, 1);
    assert_int_equal(stream.n_sent, 32);
    close(fd);
}

static void test_an_aborted_answer_is_cut_off(void **state)
{
    char answer[4096];
    int fd = dial();
    (void)state;
    put_text(fd, START_STREAM);
    allow(1, false);
    take(fd, answer, sizeof(answer), "part 0\n");
    http_exchange_abort(stream.exchange);
    take(fd, answer, sizeof(answer), NULL);
    assert_string_equal(answer, "");
    until(&stream.n_done, 1);
    assert_int_equal(stream.n_gone, 1);
    close(fd);
}

static void test_requests_with_bodies(void **state)
{
    static const struct {
        const char *request, *answer; /* the answer's begin, or a part of it */
    } rows[] = {
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello", "\r\n\r\nhello"},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello", "X-Echo: yes\r\n"},
        {"POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
         "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
         "\r\n\r\nhello"},
        {"POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n",
         "HTTP/1.1 400"},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 100001\r\n\r\n", "HTTP/1.1 413"},
        {"POST /m/llama%2F3/echo HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n",
         "\r\n\r\n[llama/3]"},
        {"GET /m/a/echo HTTP/1.1\r\n" HOST "\r\n", "\r\n\r\n[a]"},
        {"GET /m//echo HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 404"},
        {"GET /m/a/b/echo HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 404"},
        {"GET /m/a/echo HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\nhi", "HTTP/1.1 400"},
        {"GET /echo HTTP/1.1\r\n" HOST "\r\n", "Allow: POST, OPTIONS\r\n"},
        {"PUT /m/a/echo HTTP/1.1\r\n" HOST "\r\n", "Allow: GET, HEAD, POST, OPTIONS\r\n"},
        {"OPTIONS /echo HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 204"},
        {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 204"},
        {"OPTIONS /nowhere HTTP/1.1\r\n" HOST "\r\n", "HTTP/1.1 404"},
        {"POST /nothing HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n", "HTTP/1.1 500"},
        {"POST /echo HTTP/1.1\r\n" HOST "X-Refuse: 1\r\nContent-Length: 5\r\n\r\nhello",
         "HTTP/1.1 403"},
        {"GET /nowhere HTTP/1.1\r\n" HOST "X-Refuse: 1\r\n\r\n", "HTTP/1.1 403"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char answer[4096];
        int fd = dial();
        put_text(fd, rows[i].request);
        take(fd, answer, sizeof(answer), rows[i].answer);
        close(fd);
    }
}

static void test_a_body_over_the_limit_in_chunks_is_refused(void **state)
{
    static char body[2 * MAX_BODY];
    char answer[4096];
    int fd = dial();
    (void)state;
    memset(body, 'a', sizeof(body));
    put_text(fd, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n30d40\r\n");
    put(fd, body, sizeof(body));
    take(fd, answer, sizeof(answer), NULL);
    assert_non_null(strstr(answer, "HTTP/1.1 413"));
    close(fd);
}

static void test_the_client_may_wait_before_its_body(void **state)
{
    char answer[4096];
    int fd = dial();
    (void)state;
    put_text(fd,
             "POST /echo HTTP/1.1\r\n" HOST "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    take(fd, answer, sizeof(answer), "\r\n\r\n");
    assert_string_equal(answer, "HTTP/1.1 100 Continue\r\n\r\n");
    put_text(fd, "hello");
    take(fd, answer, sizeof(answer), "hello");
    assert_non_null(strstr(answer, "HTTP/1.1 200"));
    close(fd);
}

static void test_every_byte_may_come_alone(void **state)
{
    static const char request[] =
        "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nz";
    char answer[4096];
    int fd = dial();
    (void)state;
    for (size_t i = 0; i < sizeof(request) - 1; i++) {
        put(fd, request + i, 1);
        if (i % 16 == 0)
            poll(NULL, 0, 1);
    }
    take(fd, answer, sizeof(answer), "\r\n\r\nz");
    assert_non_null(strstr(answer, "\r\n\r\nabc"));
    close(fd);
}

static void test_a_connection_has_a_last_request(void **state)
{
    char answer[4096];
    int fd = dial();
    (void)state;
    for (int i = 0; i < 5; i++)
        put_text(fd, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nx");
    take(fd, answer, sizeof(answer), NULL);
    int n = 0;
    for (const char *p = answer; (p = strstr(p, "HTTP/1.1 200")); p++)
        n++;
    assert_int_equal(n, 3);
    assert_non_null(strstr(answer, "Connection: close\r\n"));
    close(fd);
}

static void test_a_drain_finishes_what_runs(void **state)
{
    char answer[4096];
    int idle = dial(), fd = dial();
    (void)state;
    put_text(idle, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\n\r\nx");
    take(idle, answer, sizeof(answer), "\r\n\r\nx");
    put_text(fd, START_STREAM);
    until_exchange();
    http_server_drain(server);
    take(idle, answer, sizeof(answer), NULL); /* closed */
    assert_string_equal(answer, "");
    allow(2, true);
    take(fd, answer, sizeof(answer), NULL);
    assert_non_null(strstr(answer, "part 1\n"));
    assert_non_null(strstr(answer, "0\r\n\r\n"));
    assert_non_null(strstr(answer, "Connection: close\r\n"));
    until(&stream.n_done, 1);
    assert_int_equal(stream.n_gone, 0);
    close(fd);
    close(idle);
    int64_t end_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
    while (http_server_n_connections(server) && clock_now_ns() < end_ns)
        poll(NULL, 0, 1);
    assert_int_equal(http_server_n_connections(server), 0);
    assert_int_equal(http_server_n_live(server), 0);
}

static void test_the_server_may_end_under_a_stream(void **state)
{
    char answer[4096];
    int fd = dial();
    put_text(fd, START_STREAM);
    allow(1, false);
    take(fd, answer, sizeof(answer), "part 0\n");
    http_server_destroy(server);
    assert_int_equal(stream.n_gone, 1);
    assert_int_equal(stream.n_done, 1);
    http_exchange_kick(stream.exchange); /* the owner may not know yet */
    http_exchange_abort(stream.exchange);
    http_exchange_release(stream.exchange);
    close(fd);
    start(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_parts_come_as_chunks, start, stop),
        cmocka_unit_test_setup_teardown(test_an_old_client_gets_the_stream_up_to_the_close, start,
                                        stop),
        cmocka_unit_test_setup_teardown(test_a_whole_reply_may_come_late, start, stop),
        cmocka_unit_test_setup_teardown(test_a_client_that_leaves_is_gone_at_once, start, stop),
        cmocka_unit_test_setup_teardown(test_bytes_sent_ahead_are_dropped, start, stop),
        cmocka_unit_test_setup_teardown(test_a_slow_reader_gets_no_further_part, start, stop),
        cmocka_unit_test_setup_teardown(test_an_aborted_answer_is_cut_off, start, stop),
        cmocka_unit_test_setup_teardown(test_requests_with_bodies, start, stop),
        cmocka_unit_test_setup_teardown(test_a_body_over_the_limit_in_chunks_is_refused, start,
                                        stop),
        cmocka_unit_test_setup_teardown(test_the_client_may_wait_before_its_body, start, stop),
        cmocka_unit_test_setup_teardown(test_every_byte_may_come_alone, start, stop),
        cmocka_unit_test_setup_teardown(test_a_connection_has_a_last_request, start, stop),
        cmocka_unit_test_setup_teardown(test_a_drain_finishes_what_runs, start, stop),
        cmocka_unit_test_setup_teardown(test_the_server_may_end_under_a_stream, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
