/* Tests of the model of a step's time. The model learns costs that are known here, through noise
 * and disturbances, and forgets old ones. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/forward/step_time.h"

static uint32_t rng;
static double uniform(void)
{
    rng = rng * 1664525u + 1013904223u;
    return (double)(rng >> 8) / (1 << 24);
}

struct machine {
    double fixed, decode, prefill, context; /* ns */
};

static double time_of(const struct machine *m, const struct step_shape *s)
{
    return m->fixed + m->decode * s->n_decode + m->prefill * s->n_prefill +
           m->context * (double)s->n_context;
}

static struct step_shape random_shape(void)
{
    struct step_shape s = {.n_decode = (uint32_t)(uniform() * 33)};
    uint32_t depth = (uint32_t)(uniform() * 4000);
    if (uniform() < 0.5 || !s.n_decode)
        s.n_prefill = 1 + (uint32_t)(uniform() * 256);
    s.n_context = step_time_context(depth, s.n_prefill) + s.n_decode * (uint64_t)depth;
    return s;
}

static double worst_error(const struct step_time *model, const struct machine *m)
{
    double worst = 0;
    for (int i = 0; i < 200; i++) {
        struct step_shape s = random_shape();
        double error = fabs((double)step_time_predict(model, &s) / time_of(m, &s) - 1);
        worst = error > worst ? error : worst;
    }
    return worst;
}

static const struct machine machines[] = {
    {4e6, 5e5, 6e5, 40}, /* a small model, two cores */
    {25e6, 1e6, 6e6, 300}, {0, 2e6, 2e6, 0}, {150e6, 0, 40e6, 900}, {2e5, 1e3, 500, 0.01},
};

static void teach(struct step_time *model, const struct machine *m, int n, double noise,
                  double disturbed)
{
    for (int i = 0; i < n; i++) {
        struct step_shape s = random_shape();
        double ns = time_of(m, &s) * (1 + noise * (2 * uniform() - 1));
        step_time_saw(model, &s, (int64_t)(uniform() < disturbed ? 8 * ns : ns) + 1);
    }
}

static void test_learns_costs_exactly_without_noise(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        struct step_time model = {0};
        rng = (uint32_t)i;
        teach(&model, &machines[i], 300, 0, 0);
        if (worst_error(&model, &machines[i]) > 0.03)
            fail_msg("machine %zu: off by %.3f", i, worst_error(&model, &machines[i]));
    }
}

static void test_noise_and_disturbed_steps_do_not_mislead_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
        struct step_time model = {0};
        rng = (uint32_t)i + 100;
        /* a tenth of the steps takes eight times as long */
        teach(&model, &machines[i], 600, 0.1, 0.1);
        if (worst_error(&model, &machines[i]) > 0.15)
            fail_msg("machine %zu: off by %.3f", i, worst_error(&model, &machines[i]));
    }
}

/* The machine gets twice as slow: within some hundred steps so does the prediction. */
static void test_a_machine_that_changes_is_learned_anew(void **state)
{
    (void)state;
    struct machine slow = {8e6, 1e6, 12e5, 80};
    struct step_time model = {0};
    rng = 7;
    teach(&model, &machines[0], 300, 0.05, 0);
    teach(&model, &slow, 300, 0.05, 0);
    assert_true(worst_error(&model, &slow) < 0.25);
}

/* After 100,000 decode steps the model still knows the cost of mixed steps. */
static void test_what_is_not_seen_for_long_is_kept(void **state)
{
    (void)state;
    struct step_time model = {0};
    struct step_shape decode = {.n_decode = 4, .n_context = 4000};
    struct step_shape mixed = {.n_decode = 4, .n_prefill = 64, .n_context = 4000 + 64 * 32};
    rng = 9;
    teach(&model, &machines[0], 300, 0, 0);
    for (int i = 0; i < 100000; i++)
        step_time_saw(&model, &decode, (int64_t)time_of(&machines[0], &decode));
    double error = (double)step_time_predict(&model, &mixed) / time_of(&machines[0], &mixed) - 1;
    assert_true(fabs(error) < 0.1);
}

static void test_rows_fit_the_limit_and_one_more_does_not(void **state)
{
    (void)state;
    struct step_time model = {0};
    rng = 3;
    assert_int_equal(step_time_fit_rows(&model, &(struct step_shape){.n_decode = 1}, 0, 1000, 256),
                     256);
    teach(&model, &machines[0], 400, 0, 0);
    for (int i = 0; i < 300; i++) {
        struct step_shape s = {.n_decode = (uint32_t)(uniform() * 32)}, with;
        uint32_t depth = (uint32_t)(uniform() * 8000);
        int64_t limit = (int64_t)(uniform() * 3e8);
        uint32_t n = step_time_fit_rows(&model, &s, depth, limit, 256);
        assert_true(n <= 256);
        with = s;
        with.n_prefill = n;
        with.n_context = step_time_context(depth, n);
        assert_true(!n || step_time_predict(&model, &with) <= limit);
        with.n_prefill = n + 1;
        with.n_context = step_time_context(depth, n + 1);
        assert_true(n == 256 || (double)step_time_predict(&model, &with) > 0.94 * (double)limit);
    }
}

/* A single delayed step does not lower the trust in the predictions of other steps. */
static void test_one_step_held_up_leaves_no_more_room_free(void **state)
{
    (void)state;
    struct step_time model = {0};
    struct step_shape s = {.n_decode = 8, .n_prefill = 40, .n_context = 20000};
    rng = 4;
    teach(&model, &machines[0], 400, 0, 0);
    uint32_t before = step_time_fit_rows(&model, &s, 500, 300000000, 1000);
    for (int i = 0; i < 3; i++)
        step_time_saw(&model, &s, (int64_t)(100 * time_of(&machines[0], &s)));
    uint32_t after = step_time_fit_rows(&model, &s, 500, 300000000, 1000);
    assert_true(before > 200 && after <= before && after > before - before / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_learns_costs_exactly_without_noise),
        cmocka_unit_test(test_noise_and_disturbed_steps_do_not_mislead_it),
        cmocka_unit_test(test_a_machine_that_changes_is_learned_anew),
        cmocka_unit_test(test_what_is_not_seen_for_long_is_kept),
        cmocka_unit_test(test_one_step_held_up_leaves_no_more_room_free),
        cmocka_unit_test(test_rows_fit_the_limit_and_one_more_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
