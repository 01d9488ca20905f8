/* Tests of the names that requests may give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "manager/base/names.h"

#define N32 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

static void test_a_name_is_of_few_characters(void **state)
{
    static const char *const good[] = {"a", "7b", "Smol-LM2.q4_1", N32 N32};
    static const char *const bad[] = {"",     ".",      "..",  "-a",       "_a",    ".hidden",
                                      "a/b",  "../x",   "a b", "a\nb",     "a\x1b", "\xC3\xA9",
                                      "a%2f", "a\\b",   "a:1", "a;b",      "a$b",   "a'b",
                                      "a\"b", "--help", "a*",  N32 N32 "a"};
    struct error err;
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(name_check("model", good[i], &err), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (name_check("model", bad[i], &err) != STATUS_INVALID_ARGUMENT)
            fail_msg("\"%s\" was taken", bad[i]);
        assert_string_equal(err.field, "model");
    }
}

static void test_a_version_is_of_few_characters(void **state)
{
    static const char *const good[] = {"1", "2026-11-24", "_x", ".5", N32};
    static const char *const bad[] = {"", "a/b", "1 2", "\x7f", "a\tb", N32 "a"};
    struct error err;
    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_int_equal(name_check_version("version", good[i], &err), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(name_check_version("version", bad[i], &err), STATUS_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_is_of_few_characters),
        cmocka_unit_test(test_a_version_is_of_few_characters),
    };
    return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
