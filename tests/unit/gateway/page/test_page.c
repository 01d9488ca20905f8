/* The page of GET /: its policy, its content, and which callers get the page and the figures. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "server/gateway/http/http_front.h"
#include "server/gateway/page/page.h"
#include "tests/unit/base/support_cmocka.h"
#include "tests/unit/gateway/support/support_gateway.h"

enum { MAX_PAGE_BYTES = 48 * 1024, WAIT_S = 10 };

static struct fixture f;

/* --- content --- */

/* Fills *reply; its body is owned by the caller. */
static const char *read_page(struct http_reply *reply)
{
    *reply = (struct http_reply){.status = 200};
    page_reply(NULL, reply);
    return strbuf_str(&reply->body);
}

static void write_base64(const uint8_t *bytes, size_t n, char *out)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t bit = 0; bit < n * 8; bit += 6) {
        unsigned high = bytes[bit / 8], low = bit / 8 + 1 < n ? bytes[bit / 8 + 1] : 0;
        *out++ = letters[((high << 8 | low) >> (10 - bit % 8)) & 63];
    }
    memcpy(out, "=", 2); /* for the 32 bytes of a digest */
}

/* Appends what the policy must say of each element `name`: 'sha256-...='. */
static void hash_elements(const char *page, const char *name, struct strbuf *out)
{
    char open[32], close[32], base64[64];
    struct sha256 *ctx;
    struct error err;
    uint8_t digest[SHA256_BYTES];
    snprintf(open, sizeof(open), "<%s>", name);
    snprintf(close, sizeof(close), "</%s>", name);
    for (const char *begin = page; (begin = strstr(begin, open));) {
        begin += strlen(open);
        const char *end = strstr(begin, close);
        assert_non_null(end);
        assert_int_equal(sha256_create(&ctx, &err), 0);
        sha256_update(ctx, begin, (size_t)(end - begin));
        sha256_final(ctx, digest);
        write_base64(digest, sizeof(digest), base64);
        strbuf_printf(out, " 'sha256-%s'", base64);
    }
    assert_true(out->n_bytes > 0);
}

static void test_the_policy_allows_the_pages_own_scripts_and_style_alone(void **state)
{
    (void)state;
    struct http_reply reply;
    struct strbuf scripts, styles;
    const char *page = read_page(&reply);
    char wanted[1024];
    strbuf_init(&scripts, 0);
    strbuf_init(&styles, 0);
    hash_elements(page, "script", &scripts);
    hash_elements(page, "style", &styles);
    snprintf(wanted, sizeof(wanted),
             "Content-Security-Policy: default-src 'none'; script-src%s; style-src%s; "
             "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
             "frame-ancestors 'none'; require-trusted-types-for 'script'\r\n",
             strbuf_str(&scripts), strbuf_str(&styles));
    assert_non_null(strstr(reply.headers, wanted));
    assert_non_null(strstr(reply.headers, "\r\nX-Content-Type-Options: nosniff\r\n"));
    assert_non_null(strstr(reply.headers, "\r\nReferrer-Policy: no-referrer\r\n"));
    assert_non_null(strstr(reply.headers, "\r\nX-Frame-Options: DENY\r\n"));
    assert_string_equal(reply.content_type, "text/html; charset=utf-8");
    strbuf_fini(&scripts);
    strbuf_fini(&styles);
    strbuf_fini(&reply.body);
}

static void test_the_page_names_no_other_address_and_stays_small(void **state)
{
    (void)state;
    static const char *const banned[] = {
        "url(",  "@import",      "<link rel=\"style", " style=\"",      " on",
        "src=",  "innerHTML",    "outerHTML",         "insertAdjacent", "javascript:",
        "eval(", "localStorage", "document.cookie"};
    static const char icon_namespace[] = "http://www.w3.org/2000/svg";
    struct http_reply reply;
    const char *page = read_page(&reply);
    assert_in_range(reply.body.n_bytes, 1, MAX_PAGE_BYTES);
    assert_int_equal(strlen(page), reply.body.n_bytes);
    for (const char *at = page; (at = strstr(at, "//")); at += 2)
        assert_memory_equal(at - 5, icon_namespace, sizeof(icon_namespace) - 1);
    for (size_t i = 0; i < sizeof(banned) / sizeof(banned[0]); i++)
        for (const char *at = page; (at = strstr(at, banned[i])); at++)
            if (strcmp(banned[i], " on") != 0 || strchr(at, '=') == strpbrk(at + 1, "= >\n"))
                fail_msg("the page has %.40s", at);
    strbuf_fini(&reply.body);
}

/* --- access --- */

static const char key[] = "a key of this test";

static void write_keys(char path[128])
{
    char hex[SHA256_HEX_BYTES];
    struct sha256 *ctx;
    struct error err;
    uint8_t digest[SHA256_BYTES];
    assert_int_equal(sha256_create(&ctx, &err), 0);
    sha256_update(ctx, key, sizeof(key) - 1);
    sha256_final(ctx, digest);
    sha256_hex(digest, hex);
    snprintf(path, 128, "%s/keys", f.dir);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "acme %s\n", hex);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
}

/* Sends a request, and returns the status of the answer. Copies the answer. */
static unsigned ask(const char *request, char *out, size_t n_out)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(http_front_port(f.gateway->http)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval wait = {.tv_sec = WAIT_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t n = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(send(fd, request, strlen(request), 0), strlen(request));
    for (ssize_t got; n + 1 < n_out && (got = recv(fd, out + n, n_out - 1 - n, 0)) > 0;)
        n += (size_t)got;
    out[n] = '\0';
    close(fd);
    assert_memory_equal(out, "HTTP/1.1 ", 9);
    return (unsigned)strtoul(out + 9, NULL, 10);
}

enum { KEY = 1, OPEN_METRICS = 2 };

static void test_the_page_is_open_and_the_figures_need_the_key(void **state)
{
    (void)state;
    static const struct {
        const char *line, *headers;
        unsigned options, status;
    } rows[] = {
        {"GET / HTTP/1.1", "", 0, 200},
        {"GET / HTTP/1.1", "Accept: application/json\r\n", 0, 200},
        {"HEAD / HTTP/1.1", "", 0, 200},
        {"GET /health HTTP/1.1", "", 0, 200},
        {"GET /metrics HTTP/1.1", "", 0, 401},
        {"GET /metrics HTTP/1.1", "", KEY, 200},
        {"GET /metrics HTTP/1.1", "", OPEN_METRICS, 200},
        {"GET /healthz HTTP/1.1", "", 0, 503}, /* no model serves */
        /* The page opens its path to nothing but GET. */
        {"POST / HTTP/1.1", "Content-Length: 0\r\n", 0, 401},
        {"GET /metrics HTTP/1.1", "Origin: http://gpu.example:8000\r\n", KEY, 403},
    };
    char request[512], answer[MAX_PAGE_BYTES + 4096], path[128];
    for (unsigned opens = 0; opens < 2; opens++) {
        fixture_init(&f);
        write_keys(path);
        f.config.access.keys_file = path;
        f.config.http_listen = "127.0.0.1:0";
        f.config.http_open_metrics = opens;
        fixture_start_gateway(&f);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            if ((rows[i].options & OPEN_METRICS) != opens * OPEN_METRICS)
                continue;
            snprintf(request, sizeof(request),
                     "%s\r\nHost: localhost\r\nConnection: close\r\n%s%s%s\r\n", rows[i].line,
                     rows[i].headers, rows[i].options & KEY ? "X-Api-Key: " : "",
                     rows[i].options & KEY ? "a key of this test\r\n" : "");
            if (ask(request, answer, sizeof(answer)) != rows[i].status)
                fail_msg("row %zu: %.60s", i, answer);
        }
        unlink(path);
        fixture_stop(&f);
    }
}

/* Symptom: a chat in the page of a server got 403, because the page's own Origin was not among the
 * sites of --http-origins. */
static void test_a_page_of_this_server_may_call_it_by_address_or_with_keys(void **state)
{
    (void)state;
    static const struct {
        const char *host, *origin;
        bool keys;
        unsigned status;
    } rows[] = {
        {"192.0.2.7:8000", "http://192.0.2.7:8000", false, 200},
        {"192.0.2.7:8000", "http://192.0.2.8:8000", false, 403},
        {"192.0.2.7:8000", "http://192.0.2.7:8001", false, 403},
        /* Any site can make its own name lead here. That site has no key. */
        {"gpu.example:8000", "http://gpu.example:8000", false, 403},
        {"gpu.example:8000", "https://gpu.example:8000", true, 200},
        {"gpu.example:8000", "http://evil.example", true, 403},
    };
    char request[512], answer[8192], path[128];
    for (unsigned keys = 0; keys < 2; keys++) {
        fixture_init(&f);
        write_keys(path);
        f.config.access.keys_file = keys ? path : "";
        f.config.access.allow_plaintext_keys = true;
        f.config.http_listen = "0.0.0.0:0"; /* other names may lead to this address */
        fixture_start_gateway(&f);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            if (rows[i].keys != (bool)keys)
                continue;
            snprintf(request, sizeof(request),
                     "GET /health HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\nConnection: close\r\n\r\n",
                     rows[i].host, rows[i].origin);
            if (ask(request, answer, sizeof(answer)) != rows[i].status)
                fail_msg("row %zu: %.60s", i, answer);
        }
        unlink(path);
        fixture_stop(&f);
    }
}

static void test_the_figures_name_the_state_of_each_replica(void **state)
{
    (void)state;
    static const struct fixture_route routes[] = {{"m", "1", true, 1, 2}};
    static char answer[256 * 1024];
    fixture_init(&f);
    f.config.http_listen = "127.0.0.1:0";
    fixture_start(&f, 2);
    fixture_routes(&f, routes, 1);
    const char *wanted = "sluice_replica_state{model=\"m\",version=\"1\",replica=\"w1\","
                         "state=\"DRAINING\"} 1\n";
    for (int i = 0; i < WAIT_S * 100; i++) {
        assert_int_equal(
            ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", answer,
                sizeof(answer)),
            200);
        if (strstr(answer, wanted))
            break;
        fixture_pause_ms(10);
    }
    assert_non_null(strstr(answer, wanted));
    assert_non_null(strstr(answer, "replica=\"w0\",state=\"READY\"} 1\n"));
    fixture_stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_policy_allows_the_pages_own_scripts_and_style_alone),
        cmocka_unit_test(test_the_page_names_no_other_address_and_stays_small),
        cmocka_unit_test(test_the_page_is_open_and_the_figures_need_the_key),
        cmocka_unit_test(test_a_page_of_this_server_may_call_it_by_address_or_with_keys),
        cmocka_unit_test(test_the_figures_name_the_state_of_each_replica),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
