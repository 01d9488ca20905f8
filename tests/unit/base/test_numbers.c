#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

static void test_lists_are_read_in_their_order(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        uint64_t values[4];
    } cases[] = {
        {"1", 1, {1}},
        {"32,1,8", 3, {32, 1, 8}},
        {"0,4K,1M,2G", 4, {0, 4096, 1 << 20, 2ULL << 30}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct numbers numbers;
        struct error err;
        assert_int_equal(numbers_parse("x", cases[i].text, 0, 1ULL << 40, &numbers, &err), 0);
        assert_int_equal(numbers.n, cases[i].n);
        assert_memory_equal(numbers.values, cases[i].values, cases[i].n * sizeof(uint64_t));
    }
}

static void test_bad_lists_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "--batch|\"\""},
        {"1,", "--batch|\"\""},
        {",1", "--batch|\"\""},
        {"1, 2", "--batch|\" 2\""},
        {"-1", "--batch|\"-1\""},
        {"1.5", "--batch|1.5"},
        {"K", "--batch|K"},
        {"8,two", "--batch|two"},
        {"0", "--batch|0|1|256"},
        {"1,257", "--batch|257|1|256"},
        {"18446744073709551616", "--batch|18446744073709551616|1|256"},
        {"18446744073709551615K", "--batch|18446744073709551615K|1|256"},
        {"99999999999999999999x", "--batch|99999999999999999999x"},
        {"8,1,8", "--batch|8"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct numbers numbers = {.n = 99};
        struct error err;
        assert_int_equal(numbers_parse("batch", cases[i].text, 1, 256, &numbers, &err),
                         STATUS_INVALID_ARGUMENT);
        assert_true(names_all(err.message, cases[i].message));
        assert_int_equal(numbers.n, 99);
    }
}

static void test_a_list_has_a_limit(void **state)
{
    (void)state;
    char text[256] = "0";
    struct numbers numbers;
    struct error err;
    for (int i = 1; i < NUMBERS_MAX; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), ",%d", i);
    assert_int_equal(numbers_parse("x", text, 0, 99, &numbers, &err), 0);
    assert_int_equal(numbers.n, NUMBERS_MAX);
    assert_int_equal(numbers_max(&numbers), NUMBERS_MAX - 1);
    snprintf(text + strlen(text), sizeof(text) - strlen(text), ",77");
    assert_int_equal(numbers_parse("x", text, 0, 99, &numbers, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "--x|32"));
}

static void test_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t min, max;
        const char *message; /* parts of the error message; NULL: the text is a number */
    } cases[] = {
        {"128", 128, 128, NULL},
        {"64-256", 64, 256, NULL},
        {"7-7", 7, 7, NULL},
        {"256-64", 0, 0, "--max-tokens|256|-64"},
        {"64-", 0, 0, "--max-tokens|\"\""},
        {"-64", 0, 0, "--max-tokens|\"\""},
        {"1-2-3", 0, 0, "--max-tokens|2-3"},
        {"0-5", 0, 0, "--max-tokens|0|1|1000"},
        {"5-1001", 0, 0, "--max-tokens|1001|1|1000"},
        {"many", 0, 0, "--max-tokens|many"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct number_range range = {1, 2};
        struct error err;
        int rc = number_range_parse("max-tokens", cases[i].text, 1, 1000, &range, &err);
        if (cases[i].message) {
            assert_int_equal(rc, STATUS_INVALID_ARGUMENT);
            assert_true(names_all(err.message, cases[i].message));
            continue;
        }
        assert_int_equal(rc, 0);
        assert_int_equal(range.min, cases[i].min);
        assert_int_equal(range.max, cases[i].max);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists_are_read_in_their_order),
        cmocka_unit_test(test_bad_lists_are_named),
        cmocka_unit_test(test_a_list_has_a_limit),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
