/* Tests of http_ignored.h: the header that names fields without effect. */
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "server/gateway/http/http_ignored.h"
#include "tests/unit/base/support_cmocka.h"

static void test_names_are_ascii_and_once_each(void **state)
{
    (void)state;
    static const struct {
        const char *names[4], *line;
    } rows[] = {
        {{NULL}, ""},
        {{"a"}, "X-Sluice-Ignored: a\r\n"},
        {{"a", "bc", "a", "b"}, "X-Sluice-Ignored: a, bc, b\r\n"},
        {{"a,b", "c d"}, "X-Sluice-Ignored: a?b, c?d\r\n"},
        {{"\xc3\xa9", "x\r\n", "\x7f"}, "X-Sluice-Ignored: ??, x??, ?\r\n"},
        {{"a,b", "a;b", "a b"}, "X-Sluice-Ignored: a?b, a;b\r\n"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char line[HTTP_IGNORED_HEADER_BYTES];
        struct strbuf names = {0};
        for (size_t k = 0; k < 4 && rows[i].names[k]; k++)
            http_ignored_add(&names, rows[i].names[k]);
        http_ignored_header(&names, line, sizeof(line));
        assert_string_equal(line, rows[i].line);
        strbuf_fini(&names);
    }
}

/* Symptom: a long list ended within a name, or lost names without a sign. */
static void test_a_long_list_ends_with_points_after_a_whole_name(void **state)
{
    (void)state;
    char line[HTTP_IGNORED_HEADER_BYTES], name[300];
    struct strbuf names = {0};
    for (int i = 100; i < 200; i++) {
        snprintf(name, sizeof(name), "field-%d", i);
        http_ignored_add(&names, name);
    }
    http_ignored_header(&names, line, sizeof(line));
    const char *end = strstr(line, ", ...\r\n");
    assert_non_null(end);
    assert_int_equal(strlen(end), 7);
    assert_int_equal(strncmp(end - 9, "field-1", 7), 0);
    assert_int_equal(end[-10], ' ');
    strbuf_clear(&names);
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    http_ignored_add(&names, name);
    http_ignored_add(&names, "a");
    name[0] = 'y';
    http_ignored_add(&names, name);
    http_ignored_add(&names, "b"); /* comes after the points, so is left out */
    http_ignored_header(&names, line, sizeof(line));
    assert_non_null(strstr(line, "xx, a, ...\r\n"));
    strbuf_fini(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_ascii_and_once_each),
        cmocka_unit_test(test_a_long_list_ends_with_points_after_a_whole_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
