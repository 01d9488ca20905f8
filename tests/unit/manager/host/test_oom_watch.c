/* Tests which process deaths count as kernel OOM kills, by the kernel's counter of kills. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/clock.h"
#include "manager/host/oom_watch.h"
#include "manager/host/process.h"

static uint64_t n_kills;

uint64_t process_oom_kills(void)
{
    return n_kills;
}

static void test_look_when_kills_are_older_than_the_watch_then_they_do_not_count(void **state)
{
    (void)state;
    struct oom_watch watch;
    n_kills = 7;
    oom_watch_init(&watch);
    assert_false(oom_watch_check(&watch, 1));
    assert_false(oom_watch_check(&watch, 100 * NS_PER_S));
}

static void test_look_when_the_count_has_risen_then_for_some_seconds(void **state)
{
    (void)state;
    struct oom_watch watch;
    n_kills = 0;
    oom_watch_init(&watch);
    n_kills = 2; /* the next caller sees the counter rise */
    assert_true(oom_watch_check(&watch, 50 * NS_PER_S));
    /* a large process ends slowly, so this death counts too */
    assert_true(oom_watch_check(&watch, 53 * NS_PER_S));
    assert_false(oom_watch_check(&watch, 61 * NS_PER_S));
    n_kills = 3;
    assert_true(oom_watch_check(&watch, 62 * NS_PER_S));
}

static void test_look_when_the_count_cannot_be_read_then_nothing_is_the_kernels(void **state)
{
    (void)state;
    struct oom_watch watch;
    n_kills = 5;
    oom_watch_init(&watch);
    n_kills = 0;
    assert_false(oom_watch_check(&watch, 1 * NS_PER_S));
    n_kills = 5; /* the counter is readable again, which is no kill */
    assert_false(oom_watch_check(&watch, 2 * NS_PER_S));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_look_when_kills_are_older_than_the_watch_then_they_do_not_count),
        cmocka_unit_test(test_look_when_the_count_has_risen_then_for_some_seconds),
        cmocka_unit_test(test_look_when_the_count_cannot_be_read_then_nothing_is_the_kernels),
    };
    return cmocka_run_group_tests_name("oom_watch", tests, NULL, NULL);
}
