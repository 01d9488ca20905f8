/* Tests of the life of a slot's process: which phase may follow which. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "manager/slots/slot_phase.h"

static void test_a_life_follows_the_table(void **state)
{
    static const enum slot_phase lives[][8] = {
        {SLOT_EMPTY, SLOT_SERVING, SLOT_DRAINING, SLOT_EXITED, SLOT_EMPTY},
        {SLOT_EMPTY, SLOT_PARKED, SLOT_WAKING, SLOT_SERVING, SLOT_EXITED, SLOT_EMPTY},
        {SLOT_EMPTY, SLOT_PARKED, SLOT_WAKING, SLOT_STUCK, SLOT_PARKED_DRAINING, SLOT_PARKED_EXITED,
         SLOT_EMPTY},
        {SLOT_EMPTY, SLOT_EXITED, SLOT_EMPTY}, /* not started */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(lives) / sizeof(lives[0]); i++)
        for (size_t k = 1; k < 8 && (k == 1 || lives[i][k - 1] != SLOT_EMPTY); k++)
            if (!slot_phase_may_follow(lives[i][k - 1], lives[i][k]))
                fail_msg("life %zu: %s after %s", i, slot_phase_name(lives[i][k]),
                         slot_phase_name(lives[i][k - 1]));
}

static void test_no_process_comes_back_from_its_end(void **state)
{
    (void)state;
    for (int to = SLOT_SERVING; to < SLOT_N_PHASES; to++) {
        enum slot_phase phase = (enum slot_phase)to;
        if (phase != SLOT_EXITED)
            assert_false(slot_phase_may_follow(SLOT_EXITED, phase));
        if (slot_phase_runs(phase))
            assert_false(slot_phase_may_follow(phase, SLOT_EMPTY));
    }
    assert_false(slot_phase_may_follow(SLOT_EMPTY, SLOT_WAKING));
    assert_false(slot_phase_may_follow(SLOT_DRAINING, SLOT_SERVING));
    assert_false(slot_phase_may_follow(SLOT_STUCK, SLOT_WAKING));
}

/* A process may drain, and end, in each phase in which it runs. */
static void test_each_process_may_drain_and_end(void **state)
{
    (void)state;
    for (int from = SLOT_SERVING; from < SLOT_EXITED; from++) {
        enum slot_phase phase = (enum slot_phase)from;
        assert_true(slot_phase_runs(phase));
        assert_true(slot_phase_may_follow(phase, slot_phase_draining(phase)));
        assert_true(slot_phase_may_follow(phase, slot_phase_exited(phase)));
        assert_int_equal(slot_phase_is_parked(slot_phase_exited(phase)),
                         slot_phase_is_parked(phase));
        assert_int_equal(slot_phase_process(slot_phase_exited(phase)), PROCESS_EXITED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_life_follows_the_table),
        cmocka_unit_test(test_no_process_comes_back_from_its_end),
        cmocka_unit_test(test_each_process_may_drain_and_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
