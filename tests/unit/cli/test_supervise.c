#include "base/clock.h"
#include "base/error.h"
#include "clients/cli/supervise.h"
#include "tests/unit/base/support_cmocka.h"

/* One run of the child, seen to end `after_ms` after its start. */
static void run_once(struct child *child, int64_t after_ms)
{
    struct error err;
    assert_int_equal(child_start(child, &err), 0);
    int64_t until = clock_now_ns() + 10 * NS_PER_S;
    while (!child_reap(child, child->started_ns + after_ms * NS_PER_MS))
        assert_true(clock_now_ns() < until);
}

static void test_a_child_that_never_runs_is_given_up(void **state)
{
    (void)state;
    struct child child = {
        .name = "test", .log_path = "/dev/null", .argv = {"/bin/false"}, .pidfd = -1};
    char text[64];
    for (int i = 0; i < 5; i++) {
        assert_false(child_is_hopeless(&child));
        run_once(&child, 10);
    }
    assert_true(child_is_hopeless(&child));
    assert_string_equal(child_end_text(&child, text), "exit status 1");
    assert_int_equal(child.backoff_ms, 1600);
}

/* A manager that is killed again and again must not take the data plane with it. */
static void test_a_child_that_ran_is_restarted_for_ever(void **state)
{
    (void)state;
    struct child child = {
        .name = "test", .log_path = "/dev/null", .argv = {"/bin/false"}, .pidfd = -1};
    run_once(&child, 60000);
    assert_int_equal(child.backoff_ms, 100);
    for (int i = 0; i < 20; i++) {
        run_once(&child, 10);
        assert_false(child_is_hopeless(&child));
    }
    assert_int_equal(child.backoff_ms, 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_that_never_runs_is_given_up),
        cmocka_unit_test(test_a_child_that_ran_is_restarted_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
