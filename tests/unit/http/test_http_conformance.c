/* Clients that send ahead, leave, or hit a limit. Nothing may spin the loop or hide that the client
 * left. Every limit is counted. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <malloc.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/http/http_server.h"
#include "tests/unit/base/support_cmocka.h"

enum { WAIT_MS = 5000, QUIET_MS = 300, PAGE_BYTES = 64 << 10, TIMEOUT_MS = 500 };
enum { MAX_STREAM_BYTES = 4 << 10, N_IDLE = 400 };

#define HOST "Host: x\r\n"

static struct http_server *server;
static atomic_int n_gone, n_done, n_live;
static atomic_int n_limits[N_HTTP_LIMITS];

static void page(void *arg, struct http_reply *reply)
{
    (void)arg;
    for (int i = 0; i < PAGE_BYTES; i++)
        strbuf_add_char(&reply->body, 'p');
}

/* A stream sends one part, and then nothing more. */
static void next(void *arg, struct http_out *out)
{
    (void)arg;
    if (!http_out_has_begun(out)) {
        http_out_begin(out, 200, "text/event-stream", NULL);
        strbuf_add_str(http_out_text(out), "data: 1\n\n");
        http_out_rest(out);
    }
}

static void on_gone(void *arg, struct http_exchange *exchange)
{
    (void)arg;
    (void)exchange;
    n_gone++;
}

static void on_done(void *arg, struct http_exchange *exchange)
{
    (void)arg;
    (void)exchange;
    n_done++;
}

static const struct http_exchange_events events = {next, on_gone, on_done};

static void handle_stream(void *arg, struct http_exchange *exchange)
{
    (void)arg;
    n_live++;
    http_exchange_set_events(exchange, &events, NULL);
    http_exchange_kick(exchange);
}

static void on_limit(void *arg, enum http_limit limit)
{
    (void)arg;
    n_limits[limit]++;
}

static const struct http_route routes[] = {
    {.path = "/page", .page = page},
    {.path = "/stream", .handle = handle_stream, .methods = HTTP_GET | HTTP_POST},
};

static int start(void **state)
{
    struct http_server_config config;
    struct error err;
    (void)state;
    n_gone = n_done = n_live = 0;
    for (int i = 0; i < N_HTTP_LIMITS; i++)
        n_limits[i] = 0;
    http_server_config_init(&config);
    config.listen = "127.0.0.1:0";
    config.routes = routes;
    config.n_routes = sizeof(routes) / sizeof(routes[0]);
    config.max_body_bytes = 4 << 20;
    config.max_requests = 3;
    config.max_connections = config.max_connections_per_ip = N_IDLE + 4;
    config.timeout_ms = config.handshake_ms = config.idle_ms = TIMEOUT_MS;
    config.on_limit = on_limit;
    assert_int_equal(http_server_create(&config, &server, &err), 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    http_server_destroy(server);
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

static void put(int fd, const char *text)
{
    size_t n = strlen(text);
    while (n) {
        ssize_t sent = send(fd, text, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0)
            return; /* the server takes no more */
        text += sent;
        n -= (size_t)sent;
    }
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

static void until(const atomic_int *n, int wanted)
{
    int64_t end_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
    while (atomic_load(n) < wanted) {
        if (clock_now_ns() > end_ns)
            fail_msg("%d, expected %d", atomic_load(n), wanted);
        poll(NULL, 0, 1);
    }
}

/* The server needs next to no CPU while nothing moves. */
static void assert_quiet(void)
{
    struct timespec began, ended;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &began);
    poll(NULL, 0, QUIET_MS);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ended);
    double cpu_ms =
        (double)(ended.tv_sec - began.tv_sec) * 1e3 + (double)(ended.tv_nsec - began.tv_nsec) / 1e6;
    if (cpu_ms > QUIET_MS / 10.)
        fail_msg("%.0f ms of CPU in %d ms", cpu_ms, QUIET_MS);
}

static void test_requests_that_are_not_read_wait_quietly(void **state)
{
    char *answer = malloc(8 * PAGE_BYTES);
    int fd = dial();
    (void)state;
    for (int i = 0; i < 40; i++)
        put(fd, "GET /page HTTP/1.1\r\n" HOST "\r\n");
    assert_quiet();
    take(fd, answer, 8 * PAGE_BYTES, NULL); /* the connection carries 3 requests */
    int n = 0;
    for (const char *p = answer; (p = strstr(p, "HTTP/1.1 200")); p++)
        n++;
    assert_int_equal(n, 3);
    close(fd);
    free(answer);
}

static void test_bytes_behind_a_stream_wait_quietly_and_hide_no_end(void **state)
{
    char answer[1024];
    static const char *const starts[] = {"GET /stream HTTP/1.1\r\n" HOST "\r\n",
                                         "POST /stream HTTP/1.1\r\n" HOST
                                         "Content-Length: 2\r\n\r\nhi"};
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int ahead = 0; ahead < 2; ahead++) {
            int fd = dial(), n = n_done;
            put(fd, starts[i]);
            take(fd, answer, sizeof(answer), "data: 1");
            for (int k = 0; ahead && k < 4000; k++)
                put(fd, "GET /page HTTP/1.1\r\n" HOST "\r\n");
            assert_quiet();
            assert_int_equal(n_done, n);
            shutdown(fd, SHUT_WR); /* FIN, behind the bytes */
            until(&n_done, n + 1);
            assert_int_equal(n_gone, n_done);
            assert_quiet();
            close(fd);
        }
}

/* Symptom of a library: the whole body was read before the refusal. */
static void test_a_declared_body_over_the_limit_is_refused_unread(void **state)
{
    char answer[1024];
    int fd = dial();
    (void)state;
    put(fd, "POST /stream HTTP/1.1\r\n" HOST "Content-Length: 10485760\r\n\r\n");
    take(fd, answer, sizeof(answer), NULL);
    assert_non_null(strstr(answer, "HTTP/1.1 413"));
    assert_non_null(strstr(answer, "Connection: close"));
    assert_int_equal(n_live, 0);
    close(fd);
    assert_int_equal(n_limits[HTTP_LIMIT_BODY_BYTES], 1);
}

static void test_each_limit_is_counted_once(void **state)
{
    static char big[64 << 10];
    char answer[2048];
    (void)state;
    int silent = dial(), dripping = dial(), idle = dial(), last = dial(), long_head = dial();
    put(dripping, "GET /page HT");
    put(idle, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    take(idle, answer, sizeof(answer), "data: 1");
    close(idle);
    idle = dial();
    put(idle, "HEAD /page HTTP/1.1\r\n" HOST "\r\n");
    take(idle, answer, sizeof(answer), "\r\n\r\n");
    for (int i = 0; i < 3; i++) {
        put(last, "HEAD /page HTTP/1.1\r\n" HOST "\r\n");
        take(last, answer, sizeof(answer), "\r\n\r\n");
    }
    assert_non_null(strstr(answer, "Connection: close"));
    memset(big, 'a', sizeof(big) - 1);
    put(long_head, "GET /page HTTP/1.1\r\nX: ");
    put(long_head, big);
    until(&n_limits[HTTP_LIMIT_HANDSHAKE], 1);
    until(&n_limits[HTTP_LIMIT_REQUEST_TIME], 1);
    until(&n_limits[HTTP_LIMIT_IDLE], 1);
    take(dripping, answer, sizeof(answer), "HTTP/1.1 408");
    take(long_head, answer, sizeof(answer), "HTTP/1.1 431");
    poll(NULL, 0, QUIET_MS);
    static const int expected[N_HTTP_LIMITS] = {[HTTP_LIMIT_HANDSHAKE] = 1,
                                                [HTTP_LIMIT_HEADER_BYTES] = 1,
                                                [HTTP_LIMIT_REQUEST_TIME] = 1,
                                                [HTTP_LIMIT_REQUESTS] = 1,
                                                [HTTP_LIMIT_IDLE] = 1};
    for (int i = 0; i < N_HTTP_LIMITS; i++) {
        assert_int_equal(n_limits[i], expected[i]);
        assert_int_equal(http_server_n_limited(server, (enum http_limit)i), expected[i]);
    }
    assert_int_equal(http_server_n_answers(server, 431), 1);
    assert_int_equal(http_server_n_answers(server, 408), 1);
    close(silent);
    close(dripping);
    close(idle);
    close(last);
    close(long_head);
}

/* A request may be on its way when the drain begins; it is answered. The address is closed. */
static void test_a_drain_answers_a_last_request(void **state)
{
    static char answer[2 * PAGE_BYTES];
    int used = dial(), fresh = dial();
    (void)state;
    put(used, "HEAD /page HTTP/1.1\r\n" HOST "\r\n");
    take(used, answer, sizeof(answer), "\r\n\r\n");
    http_server_drain(server);
    int64_t end_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(http_server_port(server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int open = 1; open;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        open = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0;
        close(fd);
        assert_true(clock_now_ns() < end_ns);
    }
    int both[] = {used, fresh};
    for (int i = 0; i < 2; i++) {
        put(both[i], "GET /page HTTP/1.1\r\n" HOST "\r\n");
        take(both[i], answer, sizeof(answer), NULL);
        assert_non_null(strstr(answer, "HTTP/1.1 200"));
        assert_non_null(strstr(answer, "Connection: close"));
        close(both[i]);
    }
}

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void test_an_idle_stream_holds_little(void **state)
{
    static int fds[N_IDLE];
    char answer[1024];
    (void)state;
    for (int i = 0; i < 2; i++) { /* the first stream also costs what all share */
        int fd = dial();
        put(fd, "GET /stream HTTP/1.1\r\n" HOST "\r\n");
        take(fd, answer, sizeof(answer), "data: 1");
        close(fd);
        until(&n_done, i + 1);
    }
    size_t before = heap_bytes();
    for (int i = 0; i < N_IDLE; i++) {
        fds[i] = dial();
        put(fds[i], "GET /stream HTTP/1.1\r\n" HOST "X-Long: a header that is not kept\r\n\r\n");
        take(fds[i], answer, sizeof(answer), "data: 1");
    }
    poll(NULL, 0, QUIET_MS); /* past a sweep */
    size_t each = (heap_bytes() - before) / N_IDLE;
    print_message("%zu bytes for an idle stream\n", each);
    assert_true(each <= MAX_STREAM_BYTES); /* a sanitizer's allocator reports none */
    for (int i = 0; i < N_IDLE; i++)
        close(fds[i]);
    until(&n_done, N_IDLE + 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_requests_that_are_not_read_wait_quietly, start, stop),
        cmocka_unit_test_setup_teardown(test_bytes_behind_a_stream_wait_quietly_and_hide_no_end,
                                        start, stop),
        cmocka_unit_test_setup_teardown(test_a_declared_body_over_the_limit_is_refused_unread,
                                        start, stop),
        cmocka_unit_test_setup_teardown(test_each_limit_is_counted_once, start, stop),
        cmocka_unit_test_setup_teardown(test_a_drain_answers_a_last_request, start, stop),
        cmocka_unit_test_setup_teardown(test_an_idle_stream_holds_little, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
