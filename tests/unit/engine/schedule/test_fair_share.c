/* Tests of the callers' counters. A held counter is kept. The table remembers the latest released
 * ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/schedule/fair_share.h"

static struct fair_share *open_share(uint32_t n)
{
    struct fair_share *share;
    struct error err;
    assert_int_equal(fair_share_create(n, &share, &err), 0);
    return share;
}

static void test_a_name_is_one_entry_while_it_is_held(void **state)
{
    (void)state;
    struct fair_share *share = open_share(4);
    uint32_t a = fair_share_hold(share, "ann"), b = fair_share_hold(share, "bob");
    assert_true(a != b);
    assert_int_equal(fair_share_hold(share, "ann"), a);
    assert_true(fair_share_hold(share, "") != a);
    fair_share_charge(share, a, 10);
    fair_share_charge(share, a, 5);
    fair_share_raise(share, a, 12);
    assert_int_equal(fair_share_counter(share, a), 15);
    assert_int_equal(fair_share_counter(share, b), 0);
    fair_share_raise(share, b, 12);
    assert_int_equal(fair_share_counter(share, b), 12);
    fair_share_destroy(share);
}

static void test_who_comes_back_has_its_counter_still(void **state)
{
    (void)state;
    struct fair_share *share = open_share(4);
    uint32_t a = fair_share_hold(share, "ann");
    fair_share_charge(share, a, 10);
    fair_share_release(share, a);
    assert_int_equal(fair_share_counter(share, fair_share_hold(share, "ann")), 10);
    fair_share_destroy(share);
}

/* Beyond its size the table forgets the caller that was absent longest, never a caller that is
 * held. */
static void test_full_it_forgets_the_longest_idle(void **state)
{
    (void)state;
    enum { N = 8 };
    struct fair_share *share = open_share(N);
    uint32_t held = fair_share_hold(share, "held"), again;
    char name[16];
    fair_share_charge(share, held, 1);
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof(name), "c%d", i);
        uint32_t c = fair_share_hold(share, name);
        assert_true(c < N && c != held);
        assert_int_equal(fair_share_counter(share, c), 0);
        fair_share_charge(share, c, 100 + (uint64_t)i);
        fair_share_release(share, c);
        again =
            fair_share_hold(share, "c0"); /* "c0" comes again and again, so its counter is kept */
        assert_int_equal(fair_share_counter(share, again), 100);
        fair_share_release(share, again);
    }
    for (int i = 999; i > 999 - (N - 2); i--) {
        snprintf(name, sizeof(name), "c%d", i);
        again = fair_share_hold(share, name);
        assert_int_equal(fair_share_counter(share, again), 100 + (uint64_t)i);
        fair_share_release(share, again);
    }
    again = fair_share_hold(share, "c900");
    assert_int_equal(fair_share_counter(share, again), 0);
    assert_int_equal(fair_share_hold(share, "held"), held);
    assert_int_equal(fair_share_counter(share, held), 1);
    fair_share_destroy(share);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_name_is_one_entry_while_it_is_held),
        cmocka_unit_test(test_who_comes_back_has_its_counter_still),
        cmocka_unit_test(test_full_it_forgets_the_longest_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
