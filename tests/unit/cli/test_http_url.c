#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "clients/cli/http/http_url.h"
#include "tests/unit/base/support_cmocka.h"

#define N(rows) (sizeof(rows) / sizeof((rows)[0]))

static void test_a_url_is_taken_apart(void **state)
{
    static const struct {
        const char *text;
        bool is_tls;
        const char *host, *port, *authority, *base;
    } rows[] = {
        {"http://127.0.0.1:8000", false, "127.0.0.1", "8000", "127.0.0.1:8000", "/v1"},
        {"http://127.0.0.1:8000/", false, "127.0.0.1", "8000", "127.0.0.1:8000", "/v1"},
        {"http://127.0.0.1:8000/v1", false, "127.0.0.1", "8000", "127.0.0.1:8000", "/v1"},
        {"HTTPS://llm.example.org", true, "llm.example.org", "443", "llm.example.org", "/v1"},
        {"https://h/api/v2//", true, "h", "443", "h", "/api/v2"},
        {"http://[::1]:80/v1/", false, "::1", "80", "[::1]:80", "/v1"},
        {"http://[::1]", false, "::1", "80", "[::1]", "/v1"},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        struct http_url url;
        struct error err;
        assert_int_equal(http_url_parse(rows[i].text, &url, &err), 0);
        assert_int_equal(url.is_tls, rows[i].is_tls);
        assert_string_equal(url.host, rows[i].host);
        assert_string_equal(url.port, rows[i].port);
        assert_string_equal(url.authority, rows[i].authority);
        assert_string_equal(url.base, rows[i].base);
    }
}

static void test_a_wrong_url_is_refused(void **state)
{
    static const char *const rows[] = {"",
                                       "127.0.0.1:8000",
                                       "ftp://h",
                                       "http://",
                                       "http:///v1",
                                       "http://:80",
                                       "http://h:",
                                       "http://h:0",
                                       "http://h:65536",
                                       "http://h:80x",
                                       "http://h:-1",
                                       "http://user:secret@h/v1",
                                       "http://h/v1?key=x",
                                       "http://h/v1#x",
                                       "http://h/v 1",
                                       "http://h/v1\r\nX: y",
                                       "http://[::1",
                                       "http://[zz]:80",
                                       "http://h\x7F"};
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        struct http_url url = {.host = "untouched"};
        struct error err;
        if (http_url_parse(rows[i], &url, &err) != STATUS_INVALID_ARGUMENT)
            fail_msg("accepted: %s", rows[i]);
        assert_string_equal(url.host, "untouched");
    }
    char long_host[400] = "http://";
    memset(long_host + 7, 'a', 300);
    struct http_url url;
    struct error err;
    assert_int_equal(http_url_parse(long_host, &url, &err), STATUS_INVALID_ARGUMENT);
}

static void test_this_machine_is_told_from_others(void **state)
{
    static const char *const local[] = {"http://localhost", "http://127.9.9.9", "http://[::1]",
                                        "http://LOCALHOST:80"};
    static const char *const others[] = {"http://localhost.example.org", "http://10.0.0.1",
                                         "http://[::2]", "http://127.0.0.1.example.org"};
    struct http_url url;
    struct error err;
    (void)state;
    for (size_t i = 0; i < N(local); i++) {
        assert_int_equal(http_url_parse(local[i], &url, &err), 0);
        assert_true(http_url_is_local(&url));
    }
    for (size_t i = 0; i < N(others); i++) {
        assert_int_equal(http_url_parse(others[i], &url, &err), 0);
        assert_false(http_url_is_local(&url));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_url_is_taken_apart),
        cmocka_unit_test(test_a_wrong_url_is_refused),
        cmocka_unit_test(test_this_machine_is_told_from_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
