/* The memory of unfinished bodies, over all connections of two servers. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/http/http_budget.h"
#include "proto/http/http_server.h"
#include "tests/unit/base/support_cmocka.h"

enum { WAIT_MS = 10000, K = 1 << 10, MAX_BODY = 512 * K, BUDGET = 2048 * K, N_MOST = 32 };

static struct {
    struct http_budget budget;
    struct http_server *servers[2];
    int fds[N_MOST];
} f;

static void handle(void *arg, struct http_exchange *exchange)
{
    struct http_reply reply = {.status = 200, .content_type = "text/plain"};
    (void)arg;
    strbuf_printf(&reply.body, "%zu bytes", http_exchange_request(exchange)->n_body);
    http_exchange_reply(exchange, &reply);
}

static const struct http_route routes[] = {{.path = "/x", .handle = handle, .methods = HTTP_POST}};

static int start(void **state)
{
    struct http_server_config config;
    struct error err;
    (void)state;
    http_budget_init(&f.budget, BUDGET, MAX_BODY);
    http_server_config_init(&config);
    config.listen = "127.0.0.1:0";
    config.routes = routes;
    config.n_routes = 1;
    config.max_body_bytes = MAX_BODY;
    config.budget = &f.budget;
    config.timeout_ms = config.handshake_ms = config.idle_ms = 10 * WAIT_MS;
    for (int i = 0; i < 2; i++)
        assert_int_equal(http_server_create(&config, &f.servers[i], &err), 0);
    for (int i = 0; i < N_MOST; i++)
        f.fds[i] = -1;
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (int i = 0; i < N_MOST; i++)
        if (f.fds[i] >= 0)
            close(f.fds[i]);
    for (int i = 0; i < 2; i++)
        http_server_destroy(f.servers[i]);
    assert_int_equal(atomic_load(&f.budget.n_bytes), 0); /* nothing is lost */
    return 0;
}

static int dial(int i_server)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(http_server_port(f.servers[i_server])),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Sends n bytes, or as many as the server takes. */
static void put(int fd, size_t n)
{
    static const char spaces[16 * K];
    while (n) {
        ssize_t sent = send(fd, spaces, n < sizeof(spaces) ? n : sizeof(spaces), MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        n -= (size_t)sent;
    }
}

static void put_head(int fd, size_t n_body)
{
    char head[128];
    int n = snprintf(head, sizeof(head),
                     "POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", n_body);
    assert_int_equal(send(fd, head, (size_t)n, MSG_NOSIGNAL), n);
}

static void put_chunk(int fd, size_t n)
{
    char line[160];
    int n_line =
        snprintf(line, sizeof(line),
                 "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\n", n);
    assert_int_equal(send(fd, line, (size_t)n_line, MSG_NOSIGNAL), n_line);
    put(fd, n);
}

static unsigned take(int fd, char *out, size_t n_out)
{
    size_t n = 0;
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    out[0] = '\0';
    while (n + 1 < n_out && !strstr(out, "\r\n\r\n") && poll(&ready, 1, WAIT_MS) > 0) {
        ssize_t got = recv(fd, out + n, n_out - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t)got;
        out[n] = '\0';
    }
    return n > 9 ? (unsigned)strtoul(out + 9, NULL, 10) : 0;
}

/* Waits until the unfinished bodies hold n_bytes beyond the free ones. */
static void await_held(uint64_t n_bytes)
{
    int64_t end_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
    while (atomic_load(&f.budget.n_bytes) != n_bytes && clock_now_ns() < end_ns)
        poll(NULL, 0, 5);
    assert_int_equal(atomic_load(&f.budget.n_bytes), n_bytes);
}

static uint64_t n_refused(void)
{
    return http_server_n_limited(f.servers[0], HTTP_LIMIT_BODY_BUDGET) +
           http_server_n_limited(f.servers[1], HTTP_LIMIT_BODY_BUDGET);
}

static void test_a_body_may_hold_what_is_left(void **state)
{
    struct http_budget budget;
    (void)state;
    http_budget_init(&budget, 1000 * K, 400 * K);
    assert_true(http_budget_allows(&budget, 1064 * K));
    assert_false(http_budget_allows(&budget, 1064 * K + 1));
    http_budget_move(&budget, 0, 64 * K); /* the first bytes do not count */
    http_budget_move(&budget, 64 * K, 664 * K);
    assert_int_equal(atomic_load(&budget.n_bytes), 600 * K);
    assert_true(http_budget_allows(&budget, 464 * K));
    assert_false(http_budget_allows(&budget, 664 * K));
    http_budget_move(&budget, 0, 664 * K); /* over the limit: only free bytes are left */
    assert_true(http_budget_allows(&budget, 64 * K));
    assert_false(http_budget_allows(&budget, 64 * K + 1));
    http_budget_move(&budget, 664 * K, 0);
    http_budget_move(&budget, 664 * K, 0);
    assert_int_equal(atomic_load(&budget.n_bytes), 0);
    http_budget_init(&budget, 100, 400 * K); /* the largest body fits where it is alone */
    http_budget_move(&budget, 0, 400 * K);
    assert_true(http_budget_allows(&budget, 400 * K));
}

/* Each connection held a body of the largest size for the time of a request. So clients without
 * keys took 4 GB by 1,024 connections. */
static void test_bodies_of_all_connections_share_a_budget(void **state)
{
    char answer[2048];
    size_t n_held = 0;
    int64_t end_ns = clock_now_ns() + WAIT_MS * NS_PER_MS;
    (void)state;
    for (int i = 0; i < N_MOST; i++) { /* 16 MiB of bodies for 2 MiB of budget */
        f.fds[i] = dial(i % 2);
        put_head(f.fds[i], MAX_BODY);
        put(f.fds[i], MAX_BODY - 1);
        assert_true(atomic_load(&f.budget.n_bytes) <= BUDGET + 64 * K);
    }
    while (n_held * (MAX_BODY - 1 - 64 * K) != atomic_load(&f.budget.n_bytes) || !n_held) {
        assert_true(clock_now_ns() < end_ns);
        poll(NULL, 0, 5);
        n_held = N_MOST - n_refused();
    }
    assert_in_range(n_held, 1, BUDGET / (MAX_BODY - 64 * K));
    for (int i = 0; i < N_MOST; i++) {
        struct pollfd ready = {.fd = f.fds[i], .events = POLLIN};
        if (poll(&ready, 1, 0) == 0)
            continue;
        assert_int_equal(take(f.fds[i], answer, sizeof(answer)), 503);
        assert_non_null(strstr(answer, "Retry-After: 1\r\n"));
        assert_non_null(strstr(answer, "Connection: close\r\n"));
    }
    /* Requests of usual size get through meanwhile, and whole bodies are given back. */
    for (int i = 0; i < 2; i++) {
        int fd = dial(i);
        put_head(fd, 100 * K);
        put(fd, 100 * K);
        assert_int_equal(take(fd, answer, sizeof(answer)), 200);
        close(fd);
    }
    for (int i = 0; i < N_MOST; i++) {
        close(f.fds[i]);
        f.fds[i] = -1;
    }
    await_held(0);
}

/* Clients that hold large bodies and send nothing more do not lock out smaller requests. The
 * length of a body in chunks is unknown at first. */
static void test_the_largest_bodies_make_room(void **state)
{
    char answer[2048];
    (void)state;
    for (int i = 0; i < 3; i++) {
        f.fds[i] = dial(0);
        put_chunk(f.fds[i], 500 * K);
    }
    await_held(3 * (500 - 64) * K);
    for (int i = 3; i < 15; i++) { /* 740 KiB are left: these bodies take most of that */
        f.fds[i] = dial(i % 2);
        put_chunk(f.fds[i], 100 * K);
    }
    /* 432 KiB more are held, so a body of 436 KiB has to go. */
    await_held(2 * (500 - 64) * K + 12 * 36 * K);
    assert_int_equal(n_refused(), 1);
    unsigned n_answers = 0;
    for (int i = 0; i < 3; i++) {
        struct pollfd ready = {.fd = f.fds[i], .events = POLLIN};
        if (poll(&ready, 1, 0) > 0) {
            assert_int_equal(take(f.fds[i], answer, sizeof(answer)), 503);
            n_answers++;
        }
    }
    assert_int_equal(n_answers, 1);
}

/* A length that does not fit is refused before the body is read. */
static void test_a_length_beyond_the_rest_is_refused_unread(void **state)
{
    char answer[2048];
    (void)state;
    for (int i = 0; i < 4; i++) {
        f.fds[i] = dial(0);
        put_head(f.fds[i], MAX_BODY);
        put(f.fds[i], 468 * K);
    }
    await_held(4 * 404 * K); /* 432 KiB are left */
    f.fds[4] = dial(1);
    put_head(f.fds[4], MAX_BODY);
    assert_int_equal(take(f.fds[4], answer, sizeof(answer)), 503);
    assert_int_equal(n_refused(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_body_may_hold_what_is_left),
        cmocka_unit_test_setup_teardown(test_bodies_of_all_connections_share_a_budget, start, stop),
        cmocka_unit_test_setup_teardown(test_the_largest_bodies_make_room, start, stop),
        cmocka_unit_test_setup_teardown(test_a_length_beyond_the_rest_is_refused_unread, start,
                                        stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
