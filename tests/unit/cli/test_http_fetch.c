/* The client against servers on the loopback that say a fixed text, most of them hostile. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "clients/cli/http/http_fetch.h"
#include "clients/cli/http/http_target.h"
#include "tests/unit/base/support_cmocka.h"

#define N(rows) (sizeof(rows) / sizeof((rows)[0]))

enum { CONNECT_MS = 20000, SHORT_MS = 150 };

/* A server that answers each connection with `text`, and then holds or closes it. */
struct server {
    const char *head; /* sent before `text`; NULL: nothing */
    const char *text;
    bool endless; /* repeats `text` until the client leaves */
    bool holds;   /* leaves the connection open */
    int fd;
    uint16_t port;
    pthread_t thread;
    char request[4096]; /* the last request */
};

static void answer(struct server *server, int fd)
{
    size_t n = 0;
    ssize_t got = 1;
    server->request[0] = '\0';
    while (got > 0 && !strstr(server->request, "\r\n\r\n") && n + 1 < sizeof(server->request)) {
        got = recv(fd, server->request + n, sizeof(server->request) - 1 - n, 0);
        n += got > 0 ? (size_t)got : 0;
        server->request[n] = '\0';
    }
    if (server->head)
        (void)send(fd, server->head, strlen(server->head), MSG_NOSIGNAL);
    do
        got = send(fd, server->text, strlen(server->text), MSG_NOSIGNAL);
    while (server->endless && got > 0);
    if (server->holds) /* until the client leaves */
        while (recv(fd, server->request + n, 1, 0) > 0)
            continue;
}

static void *serve(void *arg)
{
    struct server *server = arg;
    for (;;) {
        int fd = accept(server->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        answer(server, fd);
        close(fd);
    }
}

static void start_server(struct server *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t n = sizeof(address);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(server->fd >= 0);
    assert_int_equal(bind(server->fd, (struct sockaddr *)&address, n), 0);
    assert_int_equal(listen(server->fd, 8), 0);
    assert_int_equal(getsockname(server->fd, (struct sockaddr *)&address, &n), 0);
    server->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&server->thread, NULL, serve, server), 0);
}

static void stop_server(struct server *server)
{
    shutdown(server->fd, SHUT_RDWR);
    pthread_join(server->thread, NULL);
    close(server->fd);
}

static struct http_target *make_target(uint16_t port, const char *key)
{
    struct http_target_config config = {
        .ca = "", .client_cert = "", .client_key = "", .server_name = "", .key = key};
    struct http_target *target;
    struct error err;
    char url[64];
    snprintf(url, sizeof(url), "http://127.0.0.1:%u/v1", port);
    assert_int_equal(http_url_parse(url, &config.url, &err), 0);
    assert_int_equal(http_target_create(&config, &target, &err), 0);
    return target;
}

static int record(void *ctx, const char *name, const char *data, size_t n_bytes, struct error *err)
{
    struct strbuf *out = ctx;
    (void)name;
    (void)err;
    strbuf_add(out, data, n_bytes);
    strbuf_add_char(out, ';');
    return 0;
}

/* Sends a POST, and returns the result. */
static int post(uint16_t port, uint32_t idle_ms, uint64_t total_ms, struct strbuf *out,
                struct error *err)
{
    const struct http_wire_limits limits = {CONNECT_MS, idle_ms, total_ms};
    struct http_target *target = make_target(port, "secret");
    struct http_fetch *fetch;
    struct strbuf body = {0};
    strbuf_add_str(&body, "{}");
    assert_int_equal(http_fetch_create(target, &limits, &fetch, err), 0);
    int rc = http_fetch_run(fetch, "/chat/completions", &body, record, out, err);
    http_fetch_destroy(fetch);
    http_target_destroy(target);
    strbuf_fini(&body);
    return rc;
}

#define SSE_HEAD "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"

static void test_a_stream_and_a_whole_answer_are_read(void **state)
{
    static const char *const rows[][2] = {
        {SSE_HEAD "Transfer-Encoding: chunked\r\n\r\n"
                  "a\r\ndata: one\n\r\n1\r\n\n\r\nb\r\ndata: two\n\n\r\n0\r\n\r\n",
         "one;two;"},
        {SSE_HEAD "Content-Length: 22\r\n\r\ndata: one\n\ndata: two\n\n", "one;two;"},
        {SSE_HEAD "\r\ndata: one\n\ndata: two\n\n", "one;two;"},
        {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "{};"},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        struct server server = {.text = rows[i][0]};
        struct strbuf out = {0};
        struct error err;
        start_server(&server);
        assert_int_equal(post(server.port, 0, 0, &out, &err), 0);
        stop_server(&server);
        assert_string_equal(strbuf_str(&out), rows[i][1]);
        assert_non_null(strstr(server.request, "POST /v1/chat/completions HTTP/1.1\r\n"));
        assert_non_null(strstr(server.request, "\r\nAuthorization: Bearer secret\r\n"));
        assert_non_null(strstr(server.request, "\r\nContent-Type: application/json\r\n"));
        assert_non_null(strstr(server.request, "\r\nContent-Length: 2\r\n"));
        strbuf_fini(&out);
    }
}

static void test_hostile_servers_give_errors(void **state)
{
    static const struct {
        struct server server;
        int status;
    } rows[] = {
        {{.text = "X: 0123456789\r\n", .endless = true}, STATUS_DATA_LOSS},
        {{.text = ""}, STATUS_UNAVAILABLE},
        {{.text = "HTTP/1.1 200 OK\r\nX"}, STATUS_DATA_LOSS},
        {{.text = SSE_HEAD "Content-Length: 100\r\n\r\ndata: one\n\n"}, STATUS_DATA_LOSS},
        {{.text = SSE_HEAD "Transfer-Encoding: chunked\r\n\r\n5\r\ndata"}, STATUS_DATA_LOSS},
        {{.text = SSE_HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n"}, STATUS_DATA_LOSS},
        {{.text = "HTTP/1.1 302 Found\r\nLocation: http://other/\r\nContent-Length: 0\r\n\r\n"},
         STATUS_FAILED_PRECONDITION},
        {{.text = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"}, STATUS_UNAVAILABLE},
        {{.text = "HTTP/1.1 401 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
         STATUS_UNAUTHENTICATED},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        struct server server = rows[i].server;
        struct strbuf out = {0};
        struct error err = {0};
        start_server(&server);
        int rc = post(server.port, CONNECT_MS, 0, &out, &err);
        stop_server(&server);
        if (rc != rows[i].status)
            fail_msg("row %zu: %d, %s", i, rc, err.message);
        strbuf_fini(&out);
    }
}

static void test_an_endless_body_and_event_are_bounded(void **state)
{
    static const char *const heads[] = {"HTTP/1.1 200 OK\r\n\r\n", SSE_HEAD "\r\ndata: "};
    static char block[1 << 16];
    (void)state;
    memset(block, 'x', sizeof(block) - 1);
    for (size_t i = 0; i < N(heads); i++) {
        struct server server = {.head = heads[i], .text = block, .endless = true};
        struct error err = {0};
        struct strbuf out = {0};
        start_server(&server);
        assert_int_equal(post(server.port, CONNECT_MS, 0, &out, &err), STATUS_RESOURCE_EXHAUSTED);
        stop_server(&server);
        strbuf_fini(&out);
    }
}

static void test_a_silent_server_runs_into_the_time_outs(void **state)
{
    static const char *const texts[] = {"", "HTTP/1.1 200", SSE_HEAD "\r\ndata: one\n\n"};
    (void)state;
    for (size_t i = 0; i < N(texts); i++)
        for (int total = 0; total < 2; total++) {
            struct server server = {.text = texts[i], .holds = true};
            struct strbuf out = {0};
            struct error err = {0};
            start_server(&server);
            assert_int_equal(
                post(server.port, total ? 0 : SHORT_MS, total ? SHORT_MS : 0, &out, &err),
                STATUS_DEADLINE_EXCEEDED);
            stop_server(&server);
            strbuf_fini(&out);
        }
}

/* The second request finds a connection that the server has closed. The request reached no
 * server, and the command failed. */
static void test_an_unused_connection_that_was_closed_is_replaced(void **state)
{
    const struct http_wire_limits limits = {CONNECT_MS, 0, 0};
    struct server server = {.text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"};
    struct strbuf out = {0};
    struct http_fetch *fetch;
    struct error err = {0};
    (void)state;
    start_server(&server);
    struct http_target *target = make_target(server.port, "");
    assert_int_equal(http_fetch_create(target, &limits, &fetch, &err), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(http_fetch_run(fetch, "/models", NULL, record, &out, &err), 0);
    assert_string_equal(strbuf_str(&out), "{};{};{};");
    http_fetch_destroy(fetch);
    http_target_destroy(target);
    stop_server(&server);
    strbuf_fini(&out);
}

static void test_a_closed_port_is_an_error(void **state)
{
    struct server server = {.text = ""};
    struct strbuf out = {0};
    struct error err = {0};
    (void)state;
    start_server(&server);
    stop_server(&server);
    assert_int_equal(post(server.port, 0, 0, &out, &err), STATUS_UNAVAILABLE);
    assert_int_equal(err.reason, REASON_NOT_CONNECTED);
    strbuf_fini(&out);
}

/* Stops the fetch from another thread, as Ctrl-C of a chat does. */
static int stop_at_event(void *ctx, const char *name, const char *data, size_t n_bytes,
                         struct error *err)
{
    (void)name;
    (void)data;
    (void)n_bytes;
    (void)err;
    http_fetch_stop(*(struct http_fetch **)ctx);
    return 0;
}

static void test_a_stream_is_stopped(void **state)
{
    const struct http_wire_limits limits = {CONNECT_MS, 0, 0};
    struct server server = {.text = SSE_HEAD "\r\ndata: one\n\n", .holds = true};
    struct http_fetch *fetch;
    struct error err = {0};
    (void)state;
    start_server(&server);
    struct http_target *target = make_target(server.port, "");
    assert_int_equal(http_fetch_create(target, &limits, &fetch, &err), 0);
    assert_int_equal(http_fetch_run(fetch, "/models", NULL, stop_at_event, &fetch, &err),
                     STATUS_CANCELLED);
    assert_null(strstr(server.request, "Authorization"));
    assert_non_null(strstr(server.request, "GET /v1/models HTTP/1.1\r\n"));
    http_fetch_destroy(fetch);
    http_target_destroy(target);
    stop_server(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stream_and_a_whole_answer_are_read),
        cmocka_unit_test(test_hostile_servers_give_errors),
        cmocka_unit_test(test_an_endless_body_and_event_are_bounded),
        cmocka_unit_test(test_a_silent_server_runs_into_the_time_outs),
        cmocka_unit_test(test_an_unused_connection_that_was_closed_is_replaced),
        cmocka_unit_test(test_a_closed_port_is_an_error),
        cmocka_unit_test(test_a_stream_is_stopped),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
