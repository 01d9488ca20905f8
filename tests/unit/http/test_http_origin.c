/* Origins and hosts: which pages may use a server on this machine. A peer that reflected any
 * origin let every site talk to it. */
#include "proto/http/http_origin.h"
#include "tests/unit/base/support_cmocka.h"

static void test_pages_of_this_machine_are_local(void **state)
{
    static const char *const local[] = {
        "http://localhost",  "http://localhost:3000", "https://LOCALHOST:1", "http://127.0.0.1:80",
        "http://[::1]:8080", "http://0.0.0.0:1",      "app://obsidian.md",   "file://",
        "tauri://localhost", "vscode-webview://1a2b",
    };
    static const char *const foreign[] = {
        "null",
        "",
        "http://example.org",
        "http://localhost.example.org",
        "http://127.0.0.1.example.org",
        "http://example.org#localhost",
        "http://localhost:80@example.org",
        "http://localhost:",
        "http://localhost:8x",
        "http://[::1",
        "http://[::1]x",
        "http://",
        "ftp://localhost",
        "xapp://a",
        "http://127.0.0.2",
    };
    (void)state;
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        if (!http_origin_is_local(local[i]))
            fail_msg("%s is foreign", local[i]);
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        if (http_origin_is_local(foreign[i]))
            fail_msg("%s is local", foreign[i]);
}

static void test_lists_allow_whole_origins(void **state)
{
    (void)state;
    assert_true(http_origin_is_listed("https://a.example", "https://b.example, https://A.example"));
    assert_false(http_origin_is_listed("https://a.example", "https://a.example.org"));
    assert_false(http_origin_is_listed("https://a.example", ""));
    assert_true(http_origin_is_listed("https://a.example", "*"));
}

static void test_hosts_that_no_site_can_have(void **state)
{
    static const char *const local[] = {"localhost",   "localhost:8000", "LocalHost",
                                        "127.0.0.1",   "10.0.0.5:8000",  "[::1]",
                                        "[fe80::1]:1", "a.localhost:1"};
    static const char *const foreign[] = {"",           "example.org", "localhost.example.org:8000",
                                          "[::1",       ".localhost",  "127.0.0.1.nip.io",
                                          "localhost:x"};
    (void)state;
    for (size_t i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        if (!http_origin_host_is_local(local[i]))
            fail_msg("%s is foreign", local[i]);
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]); i++)
        if (http_origin_host_is_local(foreign[i]))
            fail_msg("%s is local", foreign[i]);
}

static void test_a_page_is_of_the_host_that_served_it(void **state)
{
    (void)state;
    assert_true(http_origin_is_of_host("http://gpu.example:8000", "gpu.example:8000"));
    assert_true(http_origin_is_of_host("https://GPU.example", "gpu.example"));
    assert_true(http_origin_is_of_host("http://[2001:db8::1]:8000", "[2001:db8::1]:8000"));
    assert_false(http_origin_is_of_host("http://gpu.example:8000", "gpu.example"));
    assert_false(http_origin_is_of_host("http://gpu.example.evil", "gpu.example"));
    assert_false(http_origin_is_of_host("ftp://gpu.example", "gpu.example"));
    assert_false(http_origin_is_of_host("null", "null"));
    assert_false(http_origin_is_of_host("http://", ""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_page_is_of_the_host_that_served_it),
        cmocka_unit_test(test_pages_of_this_machine_are_local),
        cmocka_unit_test(test_lists_allow_whole_origins),
        cmocka_unit_test(test_hosts_that_no_site_can_have),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
