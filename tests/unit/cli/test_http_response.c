#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "clients/cli/http/http_response.h"
#include "tests/unit/base/support_cmocka.h"

#define N(rows) (sizeof(rows) / sizeof((rows)[0]))

/* The outcome of a response. */
struct outcome {
    int rc;
    enum reason reason; /* if rc is a failure */
    unsigned status;
    bool keeps_open, is_over;
    size_t n_used;
    char body[256], content_type[64], location[64];
};

/* Feeds the text in pieces of `step` bytes; `closes`: then the connection ends. */
static struct outcome read_in_steps(const char *text, size_t n, size_t step, bool closes)
{
    struct http_response response = {0};
    struct outcome out = {0};
    struct strbuf body;
    struct error err;
    strbuf_init(&body, sizeof(out.body) - 1);
    while (!out.rc && out.n_used < n && response.state != HTTP_RESPONSE_OVER) {
        size_t used = 0, left = n - out.n_used;
        out.rc = http_response_feed(&response, text + out.n_used, left < step ? left : step, &used,
                                    &body, &err);
        out.n_used += used;
    }
    if (!out.rc && closes)
        out.rc = http_response_close(&response, &err);
    out.reason = out.rc ? err.reason : REASON_NONE;
    out.status = response.status;
    out.keeps_open = response.keeps_open;
    out.is_over = response.state == HTTP_RESPONSE_OVER;
    snprintf(out.body, sizeof(out.body), "%s", strbuf_str(&body));
    snprintf(out.content_type, sizeof(out.content_type), "%s", response.content_type);
    snprintf(out.location, sizeof(out.location), "%.60s", response.location);
    strbuf_fini(&body);
    http_response_fini(&response);
    return out;
}

#define CHUNKED "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"

static void test_a_response_is_the_same_at_every_split(void **state)
{
    static const struct {
        const char *text;
        unsigned status;
        const char *body, *content_type;
        bool keeps_open;
    } rows[] = {
        {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello", "", true},
        {"HTTP/1.1 200\r\ncontent-length:5 \r\nConnection: close\r\n\r\nhello", 200, "hello", "",
         false},
        {CHUNKED "Content-Type: Text/Event-Stream; charset=utf-8\r\n\r\n"
                 "3\r\nhel\r\n2;a=b\r\nlo\r\n0\r\nX-Trailer: 1\r\n\r\n",
         200, "hello", "text/event-stream", true},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
         "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}",
         404, "{}", "", true},
        {"HTTP/1.1 204 No Content\r\n\r\n", 204, "", "", true},
        {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", "", false},
        {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\nhi", 200, "hi", "",
         true},
        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi", 200, "hi", "",
         true},
        {"\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", "", true},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        size_t n = strlen(rows[i].text);
        for (size_t step = 1; step <= n; step++) {
            struct outcome out = read_in_steps(rows[i].text, n, step, false);
            assert_int_equal(out.rc, 0);
            assert_true(out.is_over);
            assert_int_equal(out.n_used, n);
            assert_int_equal(out.status, rows[i].status);
            assert_string_equal(out.body, rows[i].body);
            assert_string_equal(out.content_type, rows[i].content_type);
            assert_int_equal(out.keeps_open, rows[i].keeps_open);
        }
    }
}

static void test_bytes_of_the_next_response_are_left(void **state)
{
    static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 500";
    struct outcome out = read_in_steps(text, strlen(text), 1000, false);
    (void)state;
    assert_int_equal(out.rc, 0);
    assert_string_equal(out.body, "hi");
    assert_int_equal(out.n_used, strlen(text) - strlen("HTTP/1.1 500"));
}

static void test_a_body_without_length_ends_with_the_connection(void **state)
{
    static const char text[] = "HTTP/1.1 200 OK\r\n\r\nhello";
    struct outcome out = read_in_steps(text, strlen(text), 3, true);
    (void)state;
    assert_int_equal(out.rc, 0);
    assert_string_equal(out.body, "hello");
    assert_true(out.is_over);
    assert_false(out.keeps_open);
}

static void test_a_redirect_names_its_target(void **state)
{
    static const char text[] =
        "HTTP/1.1 301 Moved\r\nLocation: https://h/v1\r\nContent-Length: 0\r\n\r\n";
    struct outcome out = read_in_steps(text, strlen(text), 5, false);
    (void)state;
    assert_int_equal(out.status, 301);
    assert_string_equal(out.location, "https://h/v1");
}

static void test_broken_framing_is_refused_at_every_split(void **state)
{
    static const char *const rows[] = {
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/2 200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 600 OK\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
        CHUNKED "Content-Length: 5\r\n\r\n0\r\n\r\n",
        CHUNKED "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
        CHUNKED "\r\nx\r\n",
        CHUNKED "\r\n-1\r\n",
        CHUNKED "\r\n123456789\r\n",
        CHUNKED "\r\n3\r\nhelX",
        CHUNKED "\r\n3\nhel\r\n",
        "HTTP/1.1 200 OK\r\n Folded: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nSpace : x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\001b\r\n\r\n",
        "HTTP/1.1 101 Switching\r\n\r\n",
        "\r\n\r\n",
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        size_t n = strlen(rows[i]);
        for (size_t step = 1; step <= n; step++) {
            struct outcome out = read_in_steps(rows[i], n, step, false);
            if (out.rc != STATUS_DATA_LOSS)
                fail_msg("row %zu, step %zu: %d", i, step, out.rc);
        }
    }
    static const char nul[] = "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n";
    assert_int_equal(read_in_steps(nul, sizeof(nul) - 1, 1000, false).rc, STATUS_DATA_LOSS);
}

/* Symptom: a URL with the port of gRPC gave "does not speak HTTP/1.1", and no word of gRPC. */
static void test_the_first_frame_of_grpc_is_known_at_every_split(void **state)
{
    static const char settings[] = "\0\0\x1e\x04\0\0\0\0\0\0\x03\x7f\xff\xff\xff";
    (void)state;
    for (size_t step = 1; step < sizeof(settings); step++) {
        struct outcome out = read_in_steps(settings, sizeof(settings) - 1, step, false);
        assert_int_equal(out.rc, STATUS_UNAVAILABLE);
        assert_int_equal(out.reason, REASON_GRPC_PORT);
    }
    assert_int_equal(read_in_steps(settings, 4, 4, true).rc, STATUS_DATA_LOSS);
}

static void test_a_response_that_is_cut_is_an_error(void **state)
{
    static const char *const rows[] = {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
                                       CHUNKED "\r\n5\r\nhello\r\n0\r\n\r\n"};
    (void)state;
    for (size_t i = 0; i < N(rows); i++)
        for (size_t n = 0; n < strlen(rows[i]); n++)
            assert_int_equal(read_in_steps(rows[i], n, 1000, true).rc, STATUS_DATA_LOSS);
}

static void test_endless_heads_are_bounded(void **state)
{
    static const char *const lines[] = {"X-Endless: 0123456789abcdef\r\n", "0123456789abcdef"};
    (void)state;
    for (size_t i = 0; i < N(lines); i++) {
        struct http_response response = {0};
        struct strbuf body = {0};
        struct error err;
        size_t used, n_fed = 0;
        int rc = http_response_feed(&response, "HTTP/1.1 200 OK\r\n", 17, &used, &body, &err);
        for (; !rc && n_fed < (1u << 20); n_fed += strlen(lines[i]))
            rc = http_response_feed(&response, lines[i], strlen(lines[i]), &used, &body, &err);
        assert_int_equal(rc, STATUS_RESOURCE_EXHAUSTED);
        assert_true(n_fed <= HTTP_RESPONSE_HEAD_BYTES + 64);
        http_response_fini(&response);
    }
    struct http_response response = {0};
    struct strbuf body = {0};
    struct error err;
    size_t used, n_interim = 0;
    int rc = 0;
    for (; !rc && n_interim < 1000; n_interim++)
        rc = http_response_feed(&response, "HTTP/1.1 100 Continue\r\n\r\n", 25, &used, &body, &err);
    assert_int_equal(rc, STATUS_DATA_LOSS);
    assert_int_equal(n_interim, HTTP_RESPONSE_INTERIM + 1);
    http_response_fini(&response);
}

static void test_a_body_above_its_limit_is_refused(void **state)
{
    char text[600] = "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n";
    size_t n = strlen(text);
    (void)state;
    memset(text + n, 'x', 500);
    assert_int_equal(read_in_steps(text, n + 500, 64, false).rc, STATUS_RESOURCE_EXHAUSTED);
    n = (size_t)snprintf(text, sizeof(text), "%s", CHUNKED "\r\n1F4\r\n");
    memset(text + n, 'x', 500);
    assert_int_equal(read_in_steps(text, n + 500, 64, false).rc, STATUS_RESOURCE_EXHAUSTED);
}

static void test_a_connection_carries_two_responses(void **state)
{
    static const char text[] = CHUNKED "\r\n2\r\nhi\r\n0\r\n\r\n";
    struct http_response response = {0};
    struct strbuf body = {0};
    struct error err;
    (void)state;
    for (int i = 0; i < 2; i++) {
        size_t used;
        strbuf_clear(&body);
        assert_int_equal(http_response_feed(&response, text, strlen(text), &used, &body, &err), 0);
        assert_int_equal(response.state, HTTP_RESPONSE_OVER);
        assert_string_equal(strbuf_str(&body), "hi");
        http_response_reset(&response);
    }
    strbuf_fini(&body);
    http_response_fini(&response);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_response_is_the_same_at_every_split),
        cmocka_unit_test(test_bytes_of_the_next_response_are_left),
        cmocka_unit_test(test_a_body_without_length_ends_with_the_connection),
        cmocka_unit_test(test_a_redirect_names_its_target),
        cmocka_unit_test(test_broken_framing_is_refused_at_every_split),
        cmocka_unit_test(test_the_first_frame_of_grpc_is_known_at_every_split),
        cmocka_unit_test(test_a_response_that_is_cut_is_an_error),
        cmocka_unit_test(test_endless_heads_are_bounded),
        cmocka_unit_test(test_a_body_above_its_limit_is_refused),
        cmocka_unit_test(test_a_connection_carries_two_responses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
