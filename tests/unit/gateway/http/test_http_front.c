/* The front of HTTP over real sockets: origins, hosts, keys, addresses, drain and counters. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/access/api_keys.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "proto/rpc/server/access.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/gateway.h"
#include "server/gateway/http/http_front.h"
#include "server/gateway/http_surfaces.h"
#include "tests/unit/base/support_cmocka.h"

enum { WAIT_MS = 5000 };

static void handle(void *arg, struct http_exchange *exchange)
{
    struct http_reply reply = {.status = 200, .content_type = "text/plain"};
    (void)arg;
    strbuf_printf(&reply.body, "caller=%s", http_exchange_request(exchange)->caller);
    http_exchange_reply(exchange, &reply);
}

static void page(void *arg, struct http_reply *reply)
{
    (void)arg;
    strbuf_add_str(&reply->body, "page\n");
}

static const struct http_route routes[] = {
    {.path = "/page", .page = page},
    {.path = "/metrics", .page = page},
    {.path = "/v1/x", .handle = handle, .methods = HTTP_POST | HTTP_GET},
};

static struct {
    struct http_front *front;
    struct access *access;
    struct gateway_limits limits;
    struct counters counters;
    char folder[32], keys[64], key[API_KEY_BYTES];
    struct http_surfaces surfaces; /* its routes take the place of the test's own */
} f;

static void write_keys(void)
{
    struct error err;
    struct strbuf line = {0};
    assert_int_equal(api_key_create(f.key, &err), 0);
    assert_int_equal(api_key_line("acme", f.key, "", "", &line, &err), 0);
    FILE *file = fopen(f.keys, "we");
    fprintf(file, "%s\n", strbuf_str(&line));
    fchmod(fileno(file), 0600);
    fclose(file);
    strbuf_fini(&line);
}

/* `listen` may have "%s" for the test's folder. */
static void start(const char *listen, const char *origins, bool with_keys)
{
    struct error err;
    char text[512];
    struct access_config access = {0};
    snprintf(f.folder, sizeof(f.folder), "/tmp/sluice-front-XXXXXX");
    assert_non_null(mkdtemp(f.folder));
    snprintf(f.keys, sizeof(f.keys), "%s/keys", f.folder);
    const char *at = strstr(listen, "%s");
    snprintf(text, sizeof(text), "%.*s%s%s", at ? (int)(at - listen) : (int)strlen(listen), listen,
             at ? f.folder : "", at ? at + 2 : "");
    if (with_keys) {
        write_keys();
        access.keys_file = f.keys;
    }
    assert_int_equal(access_create(&access, "", &f.access, &err), 0);
    gateway_limits_init(&f.limits);
    f.limits.http_body_budget = 1 << 20;
    counters_init(&f.counters);
    const struct http_front_config config = {
        .listen = text,
        .grpc = "127.0.0.1:18001",
        .origins = origins,
        .access = f.access,
        .limits = &f.limits,
        .counters = &f.counters,
        .routes = f.surfaces.routes ? f.surfaces.routes : routes,
        .n_routes = f.surfaces.routes ? f.surfaces.n_routes : 3,
        .n_threads = 2,
        .max_connections = 64};
    if (http_front_create(&config, &f.front, &err) != 0)
        fail_msg("%s", err.message);
}

static void stop(void)
{
    http_front_destroy(f.front);
    access_destroy(f.access);
    counters_fini(&f.counters);
    unlink(f.keys);
    assert_int_equal(rmdir(f.folder), 0); /* no socket is left */
}

static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(http_front_port(f.front)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* Sends bytes, and reads the answer up to its end. */
static unsigned ask_raw(int fd, const char *text, struct strbuf *out)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    char bytes[4096];
    ssize_t n = 1;
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    strbuf_clear(out);
    while (n > 0 && poll(&ready, 1, WAIT_MS) > 0) {
        n = recv(fd, bytes, sizeof(bytes), 0);
        if (n > 0)
            strbuf_add(out, bytes, (size_t)n);
    }
    close(fd);
    return (unsigned)strtoul(strbuf_str(out) + strlen("HTTP/1.1 "), NULL, 10);
}

/* Sends a request with further header lines, and reads the answer up to its end. */
static unsigned ask_on(int fd, const char *line, const char *headers, struct strbuf *out)
{
    struct strbuf text = {0};
    strbuf_printf(&text, "%s HTTP/1.1\r\nConnection: close\r\n%s\r\n", line, headers);
    unsigned status = ask_raw(fd, strbuf_str(&text), out);
    strbuf_fini(&text);
    return status;
}

static unsigned ask(const char *line, const char *headers, struct strbuf *out)
{
    return ask_on(dial(), line, headers, out);
}

/* Other servers reflected any origin, so every site could use a server on its visitor's machine. */
static void test_pages_of_other_sites_are_refused(void **state)
{
    static const struct {
        const char *origin;
        unsigned status;
    } rows[] = {
        {"http://localhost:3000", 200},
        {"https://127.0.0.1", 200},
        {"http://[::1]:5173", 200},
        {"http://0.0.0.0:8080", 200},
        {"tauri://localhost", 200},
        {"vscode-webview://abc", 200},
        {"app://obsidian.md", 200},
        {"file://", 200},
        {"https://chat.example", 200},
        {"https://chat.example:8443", 403},
        {"http://chat.example", 403},
        {"https://evil.example", 403},
        {"http://localhost.evil.example", 403},
        {"http://127.0.0.1.evil.example", 403},
        {"http://localhost@evil.example", 403},
        {"null", 403},
    };
    struct strbuf answer = {0};
    (void)state;
    start("127.0.0.1:0", "https://chat.example", false);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char headers[256], allow[256];
        snprintf(headers, sizeof(headers), "Host: localhost\r\nOrigin: %s\r\n", rows[i].origin);
        snprintf(allow, sizeof(allow), "Access-Control-Allow-Origin: %s\r\n", rows[i].origin);
        unsigned status = ask("GET /v1/x", headers, &answer);
        bool allows = strstr(strbuf_str(&answer), "Access-Control-Allow-Origin") != NULL;
        if (status != rows[i].status || allows != (status == 200) ||
            (allows && !strstr(strbuf_str(&answer), allow)))
            fail_msg("%s: %s", rows[i].origin, strbuf_str(&answer));
        assert_true(!allows || strstr(strbuf_str(&answer), "Vary: Origin\r\n"));
        snprintf(headers, sizeof(headers),
                 "Host: localhost\r\nOrigin: %s\r\nAccess-Control-Request-Method: POST\r\n"
                 "Access-Control-Request-Headers: authorization\r\n",
                 rows[i].origin);
        status = ask("OPTIONS /v1/x", headers, &answer);
        assert_int_equal(status, rows[i].status == 200 ? 204 : 403);
        assert_true(!strstr(strbuf_str(&answer), "Access-Control-Allow-Headers: authorization") ==
                    (status != 204));
    }
    strbuf_fini(&answer);
    stop();
}

/* Pages in a browser did not see the headers that OpenAI's client library obeys when it tries
 * again.
 */
static void test_pages_may_read_every_header_of_ours(void **state)
{
    static const char *const names[] = {"X-Request-Id", "X-Sluice-Ignored", "X-Sluice-Changed",
                                        "Retry-After",  "Retry-After-Ms",   "X-Should-Retry"};
    struct strbuf answer = {0};
    (void)state;
    start("127.0.0.1:0", "", false);
    assert_int_equal(ask("GET /v1/x", "Host: localhost\r\nOrigin: http://localhost\r\n", &answer),
                     200);
    const char *list = strstr(strbuf_str(&answer), "Access-Control-Expose-Headers: ");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *at = list ? strstr(list, names[i]) : NULL;
        size_t n = strlen(names[i]);
        while (at && at[n] != ',' && at[n] != '\r') /* the begin of a longer name */
            at = strstr(at + n, names[i]);
        if (!at || at > strstr(list, "\r\n"))
            fail_msg("%s is not exposed", names[i]);
    }
    strbuf_fini(&answer);
    stop();
}

/* With DNS rebinding the name of another site leads to a loopback address. */
static void test_names_of_other_sites_lead_nowhere(void **state)
{
    static const struct {
        const char *host;
        unsigned status;
    } rows[] = {{"localhost", 200},         {"localhost:8000", 200},   {"127.0.0.1:8000", 200},
                {"[::1]:8000", 200},        {"192.168.1.7:8000", 200}, {"a.localhost", 200},
                {"evil.example:8000", 421}, {"localhost.evil", 421}};
    struct strbuf answer = {0};
    (void)state;
    start("127.0.0.1:0", "", false);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char headers[128];
        snprintf(headers, sizeof(headers), "Host: %s\r\n", rows[i].host);
        assert_int_equal(ask("GET /v1/x", headers, &answer), rows[i].status);
    }
    strbuf_fini(&answer);
    stop();
}

/* A request line with a URL passed by the check of Host, because only the header was checked. */
static void test_the_host_of_a_url_counts(void **state)
{
    static const struct {
        const char *line, *host;
        unsigned status;
    } rows[] = {{"GET http://evil.example/v1/x", "localhost", 421},
                {"GET http://evil.example:8000/health", "localhost", 421},
                {"GET http://localhost:8000/v1/x", "evil.example", 200},
                {"GET http://127.0.0.1/v1/x", "localhost", 200}};
    struct strbuf answer = {0};
    (void)state;
    start("127.0.0.1:0", "", false);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char headers[128];
        snprintf(headers, sizeof(headers), "Host: %s\r\n", rows[i].host);
        if (ask(rows[i].line, headers, &answer) != rows[i].status)
            fail_msg("%s: %s", rows[i].line, strbuf_str(&answer));
    }
    strbuf_fini(&answer);
    stop();
}

/* Only the first of two Origin headers was checked. */
static void test_two_origins_are_refused(void **state)
{
    struct strbuf answer = {0};
    (void)state;
    start("127.0.0.1:0", "", false);
    assert_int_equal(ask("GET /v1/x",
                         "Host: localhost\r\nOrigin: http://localhost\r\n"
                         "Origin: https://evil.example\r\n",
                         &answer),
                     400);
    assert_null(strstr(strbuf_str(&answer), "Access-Control-Allow-Origin"));
    strbuf_fini(&answer);
    stop();
}

static void test_keys_come_in_either_header_and_not_in_both(void **state)
{
    struct strbuf answer = {0};
    char good[3][256], wrong[256];
    (void)state;
    start("127.0.0.1:0", "", true);
    snprintf(good[0], sizeof(good[0]), "Host: x.localhost\r\nAuthorization: Bearer %s\r\n", f.key);
    snprintf(good[1], sizeof(good[1]), "Host: localhost\r\nX-Api-Key: %s\r\n", f.key);
    snprintf(good[2], sizeof(good[2]), "Host: localhost\r\nauthorization: bearer %s\r\n", f.key);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ask("GET /v1/x", good[i], &answer), 200);
        assert_non_null(strstr(strbuf_str(&answer), "caller=acme"));
    }
    snprintf(wrong, sizeof(wrong),
             "Host: localhost\r\nX-Api-Key: %s\r\nAuthorization: Bearer %s\r\n", f.key, f.key);
    assert_int_equal(ask("GET /v1/x", wrong, &answer), 401);
    assert_int_equal(ask("GET /v1/x", "Host: localhost\r\nX-Api-Key: slk_no\r\n", &answer), 401);
    assert_int_equal(ask("GET /v1/x", "Host: localhost\r\n", &answer), 401);
    assert_non_null(strstr(strbuf_str(&answer), "WWW-Authenticate: Bearer\r\n"));
    assert_non_null(strstr(strbuf_str(&answer), "\"code\":\"api_key_missing\""));
    assert_int_equal(ask("GET /metrics", "Host: localhost\r\n", &answer), 401);
    /* Pages and a preflight are open. */
    static const char *const open[] = {"GET /health", "GET /ping", "HEAD /version", "GET /page"};
    for (size_t i = 0; i < sizeof(open) / sizeof(open[0]); i++)
        assert_int_equal(ask(open[i], "Host: localhost\r\n", &answer), 200);
    assert_int_equal(ask("OPTIONS /v1/x",
                         "Host: localhost\r\nOrigin: http://localhost\r\n"
                         "Access-Control-Request-Method: POST\r\n",
                         &answer),
                     204);
    strbuf_fini(&answer);
    stop();
}

static void test_several_addresses_serve(void **state)
{
    struct strbuf answer = {0};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)state;
    start("127.0.0.1:0, [::1]:0,unix:%s/h.sock", "", false);
    assert_int_equal(ask("GET /v1/x", "Host: localhost\r\n", &answer), 200);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/h.sock", f.folder);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(ask_on(fd, "GET /v1/x", "Host: any.name\r\n", &answer), 200);
    assert_int_equal(http_front_n_answers(f.front, 200), 2);
    strbuf_fini(&answer);
    stop();
}

static void test_a_bad_address_is_named(void **state)
{
    static const char *const bad[] = {"127.0.0.1", "127.0.0.1:0,127.0.0.1:x",
                                      "unix:", "a:1,b:1,c:1,d:1,e:1,f:1,g:1,h:1,i:1"};
    (void)state;
    start("127.0.0.1:0", "", false);
    struct http_front_config config = {.origins = "",
                                       .access = f.access,
                                       .limits = &f.limits,
                                       .counters = &f.counters,
                                       .routes = routes,
                                       .n_routes = 3,
                                       .n_threads = 1,
                                       .max_connections = 4};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct error err;
        struct http_front *front;
        config.listen = bad[i];
        assert_int_equal(http_front_create(&config, &front, &err), STATUS_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "--http-listen"));
    }
    char taken[64];
    struct error err;
    struct http_front *front;
    snprintf(taken, sizeof(taken), "127.0.0.1:%u", (unsigned)http_front_port(f.front));
    config.listen = taken;
    assert_int_equal(http_front_create(&config, &front, &err), STATUS_ALREADY_EXISTS);
    assert_int_equal(err.reason, REASON_ADDRESS_IN_USE);
    assert_non_null(strstr(err.message, taken));
    stop();
}

/* API keys cross no network in plain text. A unix socket is on no network: with keys such an
 * address was refused as well. */
static void test_keys_stay_on_this_machine_unless_allowed(void **state)
{
    static const struct {
        const char *listen;
        bool with_keys, allows;
        int status;
    } rows[] = {
        {"127.0.0.1:8000,[::1]:8000", true, false, 0},
        {"unix:/run/sluice/http.sock", true, false, 0},
        {"0.0.0.0:8000", true, false, STATUS_INVALID_ARGUMENT},
        {"[::]:8000", true, false, STATUS_INVALID_ARGUMENT},
        {"127.0.0.1:8000,192.0.2.7:8000", true, false, STATUS_INVALID_ARGUMENT},
        {"192.0.2.7:8000", true, true, 0},
        {"192.0.2.7:8000", false, false, 0},
        {"", true, false, 0},
    };
    (void)state;
    start("127.0.0.1:0", "", true);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err;
        const struct gateway_config config = {
            .listen = "127.0.0.1:8001",
            .listen_unix = "",
            .metrics_listen = "",
            .http_listen = rows[i].listen,
            .access = {.keys_file = rows[i].with_keys ? f.keys : "",
                       .allow_plaintext_keys = rows[i].allows}};
        error_clear(&err);
        int rc = gateway_check(&config, &err);
        if (rc != rows[i].status || (rc && !strstr(err.message, "--http-listen")))
            fail_msg("row %zu: status %d: %s", i, rc, err.message);
    }
    stop();
}

/* A drain refuses the requests of open connections, or serves them if a successor has the
 * addresses. Pages are served in any case. */
static void test_a_drain_refuses_requests_and_serves_pages(void **state)
{
    struct strbuf answer = {0};
    (void)state;
    for (int refuses = 0; refuses < 2; refuses++) {
        start("127.0.0.1:0", "", false);
        int x = dial(), health = dial();
        http_front_drain(f.front, refuses);
        assert_int_equal(ask_on(x, "GET /v1/x", "Host: localhost\r\n", &answer),
                         refuses ? 503 : 200);
        assert_true((strstr(strbuf_str(&answer), "\"code\":\"draining\"") != NULL) == refuses);
        assert_true((strstr(strbuf_str(&answer), "Retry-After: 1\r\n") != NULL) == refuses);
        assert_int_equal(ask_on(health, "GET /health", "Host: localhost\r\n", &answer), 200);
        assert_int_equal(counters_n_refusals(&f.counters, LIMIT_DRAINING), refuses);
        stop();
    }
    strbuf_fini(&answer);
}

/* Refusals before a handler runs had OpenAI's form on the paths of all APIs. */
static void test_each_api_words_the_refusals_of_the_front(void **state)
{
    static const struct {
        const char *line, *body;
    } rows[] = {
        {"GET /v1/models", "{\"error\":{\"message\":\""},
        {"POST /v1/completions", "{\"error\":{\"message\":\""},
        {"GET /nothing", "{\"error\":{\"message\":\""},
        {"POST /", "\",\"error_type\":\""},
        {"POST /generate", "\",\"error_type\":\""},
        {"POST /generate_stream", "\",\"error_type\":\""},
        {"GET /info", "\",\"error_type\":\""},
        {"GET /v2", "\r\n\r\n{\"error\":\""},
        {"POST /v2/models/m/generate", "\r\n\r\n{\"error\":\""},
        {"POST /v2/models/m/versions/1/generate_stream", "\r\n\r\n{\"error\":\""},
    };
    const struct http_surfaces_config config = {0};
    struct strbuf answer = {0};
    struct error err;
    (void)state;
    for (unsigned drains = 0; drains < 2; drains++) {
        assert_int_equal(http_surfaces_init(&f.surfaces, &config, &err), 0);
        start("127.0.0.1:0", "", !drains);
        int fds[sizeof(rows) / sizeof(rows[0])];
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
            fds[i] = dial();
        if (drains)
            http_front_drain(f.front, true);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            unsigned status = ask_on(fds[i], rows[i].line, "Host: localhost\r\n", &answer);
            const char *header = drains ? "Retry-After: 1\r\n" : "WWW-Authenticate: Bearer\r\n";
            if (status != (drains ? 503 : 401) || !strstr(strbuf_str(&answer), rows[i].body) ||
                !strstr(strbuf_str(&answer), header))
                fail_msg("%s: %s", rows[i].line, strbuf_str(&answer));
        }
        stop();
        http_surfaces_fini(&f.surfaces);
    }
    strbuf_fini(&answer);
}

/* Refusals by HTTP's own rules had OpenAI's form also on the paths of the other APIs. */
static void test_each_api_words_the_refusals_of_http(void **state)
{
    static const char openai[] = "\r\n\r\n{\"error\":{\"message\":\"",
                      kserve[] = "\r\n\r\n{\"error\":\"",
                      tgi[] = "\",\"error_type\":\"validation\"}";
    static const struct {
        const char *line, *headers;
        unsigned status;
        const char *body;
    } rows[] = {
        {"GET /v1/completions", "", 405, openai},
        {"GET /generate", "", 405, tgi},
        {"POST /info", "", 405, tgi},
        {"POST /v2", "", 405, kserve},
        {"POST /v2/health/live", "", 405, kserve},
        {"DELETE /v2/models/m/generate", "", 405, kserve},
        {"GET /v1/nothing", "", 404, openai},
        {"GET /v2/nothing", "", 404, kserve},
        {"GET /v2/models/m/infer", "", 405, kserve},
        {"GET /v2/models/m/nothing", "", 404, kserve},
        {"GET /info/x", "", 404, "\",\"error_type\":\""},
        {"GET /v2x", "", 404, openai},
        {"GET //x", "", 404, openai},
        {"POST /v1/completions", "Content-Length: 4194305\r\n", 413, openai},
        {"POST /generate", "Content-Length: 4194305\r\n", 413, tgi},
        {"POST /v2/models/m/generate", "Content-Length: 4194305\r\n", 413, kserve},
        {"POST /generate", "Transfer-Encoding: chunked\r\n\r\nx\r\n", 400, tgi},
        {"POST /generate", "Content-Length: x\r\n", 400, tgi},
        {"POST /v2/models/m/generate", "Expect: x\r\n", 417, kserve},
        {"GET /info", "Content-Length: 1\r\n", 400, tgi},
        {"POST /generate", "Transfer-Encoding: gzip\r\n", 501, tgi},
        {"POST /v1/completions", "Transfer-Encoding: gzip\r\n", 501, "\"invalid_request_error\""},
        {"GET /info", "Origin: https://evil.example\r\n", 403, "\"error_type\":\"permission\""},
        {"GET /v2", "Origin: https://evil.example\r\n", 403, kserve},
        {"GET http://evil/info", "", 421, tgi},
        {"GET /", "Origin: https://evil.example\r\n", 403, openai},
    };
    const struct http_surfaces_config config = {0};
    struct strbuf answer = {0};
    struct error err;
    (void)state;
    assert_int_equal(http_surfaces_init(&f.surfaces, &config, &err), 0);
    start("127.0.0.1:0", "", false);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char headers[256];
        snprintf(headers, sizeof(headers), "Host: localhost\r\n%s", rows[i].headers);
        unsigned status = ask(rows[i].line, headers, &answer);
        if (status != rows[i].status || !strstr(strbuf_str(&answer), rows[i].body) ||
            (status == 405 && !strstr(strbuf_str(&answer), "\r\nAllow: ")))
            fail_msg("%s: %s", rows[i].line, strbuf_str(&answer));
    }
    stop();
    http_surfaces_fini(&f.surfaces);
    strbuf_fini(&answer);
}

/* A body that is over the budget gets the API's form, and the time of the next try. */
static void test_the_budget_of_bodies_is_that_of_the_table(void **state)
{
    enum { PART = 16 << 10, HELD = 1 << 20 };
    static const char head[] = "POST /generate HTTP/1.1\r\nHost: localhost\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n400000\r\n",
                      part[PART];
    const struct http_surfaces_config config = {0};
    struct strbuf answer = {0};
    struct error err;
    int fds[16];
    size_t n = 0;
    (void)state;
    assert_int_equal(http_surfaces_init(&f.surfaces, &config, &err), 0);
    start("127.0.0.1:0", "", false);
    for (; n < 16 && !counters_n_refusals(&f.counters, LIMIT_HTTP_BODY_BUDGET); n++) {
        fds[n] = dial(); /* 8 MiB are the least: twice the largest body */
        assert_true(send(fds[n], head, sizeof(head) - 1, MSG_NOSIGNAL) > 0);
        for (size_t i = 0; i < HELD / PART; i++)
            (void)send(fds[n], part, PART, MSG_NOSIGNAL);
    }
    struct pollfd ready[16];
    for (size_t i = 0; i < n; i++)
        ready[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
    assert_true(poll(ready, n, WAIT_MS) > 0);
    for (size_t i = 0; i < n; i++) {
        char bytes[4096];
        ssize_t got = ready[i].revents ? recv(fds[i], bytes, sizeof(bytes) - 1, 0) : 0;
        bytes[got > 0 ? got : 0] = '\0';
        if (got > 0) {
            assert_non_null(strstr(bytes, "HTTP/1.1 503 "));
            assert_non_null(strstr(bytes, "Retry-After: 1\r\n"));
            assert_non_null(strstr(bytes, "\",\"error_type\":\"overloaded\"}"));
        }
        close(fds[i]);
    }
    assert_true(counters_n_refusals(&f.counters, LIMIT_HTTP_BODY_BUDGET) > 0);
    stop();
    http_surfaces_fini(&f.surfaces);
    strbuf_fini(&answer);
}

static void test_limits_are_those_of_the_table(void **state)
{
    struct strbuf answer = {0}, headers = {0};
    (void)state;
    start("127.0.0.1:0", "", false);
    assert_int_equal(ask("POST /v1/x", "Host: localhost\r\nContent-Length: 4194305\r\n", &answer),
                     413);
    strbuf_add_str(&headers, "Host: localhost\r\nX: ");
    for (size_t i = 0; i < f.limits.max_metadata_bytes; i++)
        strbuf_add_char(&headers, 'a');
    strbuf_add_str(&headers, "\r\n");
    assert_int_equal(ask("GET /v1/x", strbuf_str(&headers), &answer), 431);
    assert_non_null(strstr(strbuf_str(&answer), "\"type\":\"invalid_request_error\""));
    assert_int_equal(counters_n_refusals(&f.counters, LIMIT_MESSAGE_BYTES), 1);
    assert_int_equal(counters_n_refusals(&f.counters, LIMIT_METADATA_BYTES), 1);
    for (int i = 0; i < N_HTTP_LIMITS; i++) /* every limit has a counter */
        assert_int_not_equal(http_front_limit((enum http_limit)i), LIMIT_NONE);
    strbuf_fini(&headers);
    strbuf_fini(&answer);
    stop();
}

/* Symptom: a gRPC client at the HTTP port left no sign of the port that it should have. */
static void test_a_client_of_grpc_is_told_the_address_of_grpc(void **state)
{
    struct strbuf answer = {0};
    (void)state;
    start("127.0.0.1:0", "", false);
    assert_int_equal(ask_raw(dial(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &answer), 505);
    assert_non_null(strstr(strbuf_str(&answer), "127.0.0.1:18001"));
    strbuf_fini(&answer);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_of_other_sites_are_refused),
        cmocka_unit_test(test_pages_may_read_every_header_of_ours),
        cmocka_unit_test(test_names_of_other_sites_lead_nowhere),
        cmocka_unit_test(test_the_host_of_a_url_counts),
        cmocka_unit_test(test_two_origins_are_refused),
        cmocka_unit_test(test_keys_come_in_either_header_and_not_in_both),
        cmocka_unit_test(test_several_addresses_serve),
        cmocka_unit_test(test_a_bad_address_is_named),
        cmocka_unit_test(test_keys_stay_on_this_machine_unless_allowed),
        cmocka_unit_test(test_a_drain_refuses_requests_and_serves_pages),
        cmocka_unit_test(test_each_api_words_the_refusals_of_the_front),
        cmocka_unit_test(test_each_api_words_the_refusals_of_http),
        cmocka_unit_test(test_the_budget_of_bodies_is_that_of_the_table),
        cmocka_unit_test(test_limits_are_those_of_the_table),
        cmocka_unit_test(test_a_client_of_grpc_is_told_the_address_of_grpc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
