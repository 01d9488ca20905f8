/* The parser of heads alone: heads that it takes, heads that it refuses, and splits of the bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/http/http_head.h"
#include "tests/unit/base/support_cmocka.h"

#define GET  "GET / HTTP/1.1\r\n"
#define HOST "Host: x\r\n"

static char *copy;

static int forget(void **state)
{
    (void)state;
    free(copy);
    copy = NULL;
    return 0;
}

/* Parses a copy with nothing behind it, so that a read past the end is seen. */
static unsigned parse(const char *text, size_t n, struct http_head *head, const char **why)
{
    free(copy);
    copy = malloc(n);
    assert_non_null(copy);
    memcpy(copy, text, n);
    return http_head_parse(copy, n, head, why);
}

static void test_each_breach_of_the_grammar_is_refused(void **state)
{
    static const struct {
        const char *text;
        unsigned status;
    } rows[] = {
        {GET HOST "\r\n", 0},
        {"\r\n" GET HOST "\r\n", 0},
        {"GET http://x/a?b HTTP/1.1\r\n" HOST "\r\n", 0},
        {"GET HTTPS://x HTTP/1.1\r\n" HOST "\r\n", 0},
        {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 0},
        {"GET / HTTP/1.0\r\n\r\n", 0},
        {"BREW /pot HTTP/1.1\r\n" HOST "\r\n", 0},
        {GET HOST "Content-Length: 3\r\n\r\n", 0},
        {GET HOST "X:\r\n\r\n", 0},
        {GET HOST "X: \xC3\xA9\r\n\r\n", 0},
        {"\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET / HTTP/1.1 \r\n" HOST "\r\n", 400},
        {" GET / HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET\t/ HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /\r\n" HOST "\r\n", 400},
        {"GET / http/1.1\r\n" HOST "\r\n", 400},
        {"GET / HTTP/1.12\r\n" HOST "\r\n", 400},
        {"GET / HTTP/1.2\r\n" HOST "\r\n", 505},
        {"GET / HTTP/3.0\r\n" HOST "\r\n", 505},
        {"G@T / HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET * HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET x HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET http:///x HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET http://u@x/ HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET http://x,y HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET http://x/ HTTP/1.1\r\n\r\n", 400},
        {"GET ftp://x/ HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /#a HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /%4 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /%zz HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /\x80 HTTP/1.1\r\n" HOST "\r\n", 400},
        {GET "\r\n", 400},
        {GET HOST HOST "\r\n", 400},
        {GET "Host: a b\r\n\r\n", 400},
        {GET "Host: u@h\r\n\r\n", 400},
        {GET "Host : x\r\n\r\n", 400},
        {GET HOST "X\r\n\r\n", 400},
        {GET HOST ": x\r\n\r\n", 400},
        {GET HOST "X: a\r\n b\r\n\r\n", 400},
        {GET HOST "X: a\rb\r\n\r\n", 400},
        {GET HOST "X: a\x7F\r\n\r\n", 400},
        {GET HOST "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {GET HOST "Content-Length: \r\n\r\n", 400},
        {GET HOST "Content-Length: 0x1\r\n\r\n", 400},
        {GET HOST "Content-Length: 1 1\r\n\r\n", 400},
        {GET HOST "Content-Length: 1234567890123456789\r\n\r\n", 413},
        {GET HOST "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", 400},
        {GET HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {GET HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {GET HOST "Transfer-Encoding: chunked, chunked\r\n\r\n", 400},
        {"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {GET HOST "Expect: 200-ok\r\n\r\n", 417},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct http_head head;
        const char *why = NULL;
        unsigned status = parse(rows[i].text, strlen(rows[i].text), &head, &why);
        if (status != rows[i].status || (status && !why))
            fail_msg("%s\n  status %u, expected %u (%s)", rows[i].text, status, rows[i].status,
                     why ? why : "");
    }
    struct http_head head;
    const char *why;
    static const char nul[] = GET HOST "X: a\0b\r\n\r\n";
    assert_int_equal(parse(nul, sizeof(nul) - 1, &head, &why), 400);
}

static void test_a_head_has_its_facts(void **state)
{
    static const char text[] = "POST /v1/a%20b?x=1&y HTTP/1.1\r\n"
                               "HOST: [::1]:8000\r\n"
                               "Content-LENGTH:  12 \t\r\n"
                               "Expect: 100-Continue\r\n"
                               "Connection: Keep-Alive , CLOSE\r\n"
                               "X-Empty:\r\n\r\n";
    struct http_head head;
    const char *why;
    (void)state;
    assert_int_equal(parse(text, sizeof(text) - 1, &head, &why), 0);
    assert_int_equal(head.method, HTTP_POST);
    assert_string_equal(head.path, "/v1/a%20b");
    assert_string_equal(head.query, "x=1&y");
    assert_int_equal(head.n_body, 12);
    assert_true(head.expects_continue);
    assert_false(head.keeps_open);
    assert_int_equal(head.n_headers, 5);
    assert_string_equal(http_head_header(&head, "host"), "[::1]:8000");
    assert_string_equal(http_head_header(&head, "x-empty"), "");
    assert_null(http_head_header(&head, "x"));
    static const char old[] = "GET http://h?q HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
    assert_int_equal(parse(old, sizeof(old) - 1, &head, &why), 0);
    assert_string_equal(head.path, "/");
    assert_string_equal(head.query, "q");
    assert_true(head.is_1_0 && head.keeps_open);
    assert_string_equal(http_head_header(&head, "host"), "h");
    static const char url[] = "GET http://evil:80/p?q HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_int_equal(parse(url, sizeof(url) - 1, &head, &why), 0);
    assert_string_equal(http_head_header(&head, "host"), "evil:80");
    assert_string_equal(head.path, "/p");
    assert_string_equal(head.query, "q");
}

static void test_too_many_headers_are_refused(void **state)
{
    char text[4096] = GET HOST;
    struct http_head head;
    const char *why;
    (void)state;
    for (int i = 1; i < HTTP_MAX_HEADERS; i++)
        strcat(text, "a: b\r\n");
    size_t n = strlen(text);
    strcpy(text + n, "\r\n");
    assert_int_equal(parse(text, n + 2, &head, &why), 0);
    strcpy(text + n, "a: b\r\n\r\n");
    assert_int_equal(parse(text, n + 8, &head, &why), 431);
}

/* The search goes on where it stopped, whatever the bytes' split was. */
static void test_the_end_is_found_at_any_split(void **state)
{
    static const char text[] = "\r\n" GET HOST "\r\nGET /next";
    size_t whole = strlen("\r\n" GET HOST "\r\n");
    (void)state;
    for (size_t first = 0; first <= sizeof(text) - 1; first++) {
        size_t scanned = 0;
        enum http_head_end end = http_head_find_end(text, first, &scanned);
        assert_int_equal(end, first < whole ? HTTP_HEAD_PART : HTTP_HEAD_WHOLE);
        if (end == HTTP_HEAD_PART)
            end = http_head_find_end(text, sizeof(text) - 1, &scanned);
        assert_int_equal(end, HTTP_HEAD_WHOLE);
        assert_int_equal(scanned, whole);
    }
    size_t scanned = 0;
    assert_int_equal(http_head_find_end("GET /\n", 6, &scanned), HTTP_HEAD_BROKEN);
    scanned = 0;
    assert_int_equal(http_head_find_end("\n", 1, &scanned), HTTP_HEAD_BROKEN);
    scanned = 0;
    assert_int_equal(http_head_find_end("\r\n", 2, &scanned), HTTP_HEAD_PART);
    /* Only one empty line may come first: many of them took quadratic time. */
    assert_int_equal(http_head_find_end("\r\n\r\n\r\n", 6, &scanned), HTTP_HEAD_WHOLE);
    assert_int_equal(scanned, 4);
}

static void test_lists_have_whole_elements(void **state)
{
    (void)state;
    assert_true(http_head_list_has("a, close", "close"));
    assert_true(http_head_list_has("CLOSE", "close"));
    assert_true(http_head_list_has(" ,, close ,", "close"));
    assert_false(http_head_list_has("closed", "close"));
    assert_false(http_head_list_has("a close", "close"));
    assert_false(http_head_list_has("", "close"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_each_breach_of_the_grammar_is_refused, forget),
        cmocka_unit_test_teardown(test_a_head_has_its_facts, forget),
        cmocka_unit_test_teardown(test_too_many_headers_are_refused, forget),
        cmocka_unit_test(test_the_end_is_found_at_any_split),
        cmocka_unit_test(test_lists_have_whole_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
