/* Tests of memory budgets in the form in which operators write them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "manager/settings/memory_budget.h"
#include "tests/support/names.h"

#define G (UINT64_C(1) << 30)

static void test_a_total_and_nodes_are_read(void **state)
{
    struct memory_budget budget;
    struct error err;
    uint64_t n_bytes = 7;
    (void)state;
    assert_int_equal(memory_budget_parse("--memory-budget", "", &budget, &err), 0);
    assert_int_equal(budget.total_bytes, 0);
    assert_int_equal(memory_budget_parse("--memory-budget", "0", &budget, &err), 0);
    assert_int_equal(budget.total_bytes, 0);
    assert_int_equal(memory_budget_parse("--memory-budget", "260000000", &budget, &err), 0);
    assert_int_equal(budget.total_bytes, 260000000);
    assert_int_equal(
        memory_budget_parse("--memory-budget", "node:0=8G,48G,node:63=512M", &budget, &err), 0);
    assert_int_equal(budget.total_bytes, 48 * G);
    assert_true(memory_budget_of(&budget, "cpu:0", &n_bytes));
    assert_int_equal(n_bytes, 8 * G);
    assert_true(memory_budget_of(&budget, "cpu:63", &n_bytes));
    assert_int_equal(n_bytes, G / 2);
    n_bytes = 7;
    assert_false(memory_budget_of(&budget, "cpu:1", &n_bytes));
    assert_false(memory_budget_of(&budget, "cpu", &n_bytes));
    assert_false(memory_budget_of(&budget, "cuda:0", &n_bytes));
    assert_false(memory_budget_of(&budget, "cpu:64", &n_bytes));
    assert_int_equal(n_bytes, 7);
    assert_int_equal(memory_budget_parse("--memory-budget", "node:1=0", &budget, &err), 0);
    /* a budget of 0: nothing may be placed there */
    assert_true(memory_budget_of(&budget, "cpu:1", &n_bytes));
    assert_int_equal(n_bytes, 0);
}

static void test_what_makes_no_sense_is_named_and_changes_nothing(void **state)
{
    static const struct {
        const char *text, *message;
    } bad[] = {
        {",", "--memory-budget"},
        {"8G,,node:0=1G", "--memory-budget"},
        {"8G,9G", "--memory-budget"},
        {"node:0=1G,node:0=2G", "--memory-budget"},
        {"node:=1G", "--memory-budget"},
        {"node:64=1G", "--memory-budget"},
        {"node:-1=1G", "--memory-budget"},
        {"node:1x=1G", "--memory-budget"},
        {"cpu:1=1G", "--memory-budget"},
        {"node:1=", "--memory-budget"},
        {"node:1", "--memory-budget"},
        {"much", "--memory-budget"},
        {"8G,", "--memory-budget"},
        {"11111111111111111111111111111111111111111111111111111111111111111111", "--memory-budget"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct memory_budget budget = {.total_bytes = 5};
        struct error err;
        if (memory_budget_parse("--memory-budget", bad[i].text, &budget, &err) !=
            STATUS_INVALID_ARGUMENT)
            fail_msg("\"%s\" was read", bad[i].text);
        if (!names_all(err.message, bad[i].message) ||
            strncmp(err.message, "--memory-budget: ", 17) != 0)
            fail_msg("\"%s\": %s", bad[i].text, err.message);
        assert_int_equal(budget.total_bytes, 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_total_and_nodes_are_read),
        cmocka_unit_test(test_what_makes_no_sense_is_named_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
