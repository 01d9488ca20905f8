#include <string.h>

#include "base/clock.h"
#include "manager/base/message.h"
#include "manager/rollout/traffic.h"
#include "manager/rollout/update_rules.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

static pb_gates gates_of(double error_rate, double ttft_ms, double ratio)
{
    pb_gates gates = SLUICE__MANAGER__V1__UPDATE_GATES__INIT;
    gates.has_max_error_rate = error_rate >= 0;
    gates.max_error_rate = error_rate;
    gates.has_max_ttft_ms = ttft_ms > 0;
    gates.max_ttft_ms = ttft_ms;
    gates.has_max_ttft_ratio = ratio > 0;
    gates.max_ttft_ratio = ratio;
    return gates;
}

static struct update_facts shifting(const pb_gates *gates)
{
    return (struct update_facts){.phase = UPDATE_SHIFT,
                                 .gates = gates,
                                 .n_new = 2,
                                 .n_ready = 2,
                                 .n_steps = 3,
                                 .step_ns = 1000,
                                 .measured = true};
}

static struct update_counts counts(uint64_t n_ok, uint64_t n_failed, double ttft_ms)
{
    uint64_t n = n_ok + n_failed;
    return (struct update_counts){.n_ok = n_ok,
                                  .n_failed = n_failed,
                                  .n_queued = n,
                                  .n_prefilled = n,
                                  .queue_s = (double)n * ttft_ms / 4e3,
                                  .prefill_s = (double)n * ttft_ms * 3 / 4e3};
}

static enum update_move decide(const struct update_facts *facts, enum reason reason)
{
    struct update_decision decision;
    update_decide(facts, &decision);
    assert_int_equal(decision.reason, reason);
    assert_int_equal(decision.message[0] != '\0',
                     decision.move == UPDATE_GO_BACK || decision.unmeasured);
    return decision.move;
}

static void test_phases_follow_one_another(void **state)
{
    (void)state;
    pb_gates gates = gates_of(-1, 0, 0);
    struct update_facts facts = shifting(&gates);
    facts.phase = UPDATE_LOAD;
    facts.restarted = true; /* the update notes epochs only when it begins to move traffic */
    facts.n_ready = 1;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    facts.n_ready = 2;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_BEGIN_SHIFT);
    facts = shifting(&gates);
    for (facts.step = 0; facts.step < 3; facts.step++) {
        facts.held_ns = 999;
        assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
        facts.held_ns = 1000;
        facts.measured = false; /* no measurement yet, as after a restart */
        assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
        facts.measured = true;
        assert_int_equal(decide(&facts, REASON_NONE),
                         facts.step < 2 ? UPDATE_NEXT_STEP : UPDATE_RETIRE_OLD);
    }
    for (int phase = UPDATE_DRAIN; phase <= UPDATE_ROLL_BACK; phase++) {
        facts = shifting(&gates);
        facts.phase = (enum update_phase)phase;
        facts.n_leaving = 1;
        facts.n_ready = 0; /* in these phases only n_leaving counts */
        assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
        facts.n_leaving = 0;
        assert_int_equal(decide(&facts, REASON_NONE), UPDATE_SETTLE);
    }
    facts.phase = UPDATE_END;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
}

static void test_failed_or_lost_replica_goes_back(void **state)
{
    (void)state;
    pb_gates gates = gates_of(-1, 0, 0);
    struct update_facts facts = shifting(&gates);
    facts.n_ready = 1;
    assert_int_equal(decide(&facts, REASON_REPLICA_LOST), UPDATE_GO_BACK);
    facts.n_ready = 2;
    facts.restarted = true; /* the replica died and came back, and its requests failed */
    assert_int_equal(decide(&facts, REASON_REPLICA_LOST), UPDATE_GO_BACK);
    facts.measured = false;
    assert_int_equal(decide(&facts, REASON_REPLICA_LOST), UPDATE_GO_BACK);
    facts = shifting(&gates);
    facts.phase = UPDATE_LOAD;
    facts.n_ready = 1;
    facts.n_failed = 1;
    assert_int_equal(decide(&facts, REASON_REPLICA_FAILED), UPDATE_GO_BACK);
}

static void test_gates_need_enough_answers_and_are_crossed_beyond_their_limit(void **state)
{
    (void)state;
    static const struct {
        double error_rate, ttft_ms, ratio;
        uint64_t n_ok, n_failed;
        double new_ms;
        uint64_t n_old;
        double old_ms;
        enum reason reason;
    } rows[] = {
        {0.05, 0, 0, 95, 5, 9, 0, 0, REASON_NONE},
        {0.05, 0, 0, 94, 6, 9, 0, 0, REASON_ERROR_RATE},
        {0.05, 0, 0, 10, 9, 9, 0, 0, REASON_NONE}, /* 19 answers are too few to judge */
        {0, 0, 0, 19, 1, 9, 0, 0, REASON_ERROR_RATE},
        {-1, 0, 0, 0, 100, 9, 0, 0, REASON_NONE}, /* no gate */
        {-1, 100, 0, 100, 0, 99, 0, 0, REASON_NONE},
        {-1, 100, 0, 100, 0, 101, 0, 0, REASON_TTFT},
        {-1, 0, 3, 100, 0, 29, 100, 10, REASON_NONE},
        {-1, 0, 3, 100, 0, 31, 100, 10, REASON_TTFT},
        {-1, 0, 3, 100, 0, 31, 19, 10, REASON_NONE}, /* the old version has too few answers */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        pb_gates gates = gates_of(rows[i].error_rate, rows[i].ttft_ms, rows[i].ratio);
        struct update_facts facts = shifting(&gates);
        facts.new_counts = counts(rows[i].n_ok, rows[i].n_failed, rows[i].new_ms);
        facts.old_counts = counts(rows[i].n_old, 0, rows[i].old_ms);
        /* a crossed gate ends the update before the end of a step, however long the step lasted */
        facts.held_ns = 5000;
        enum update_move move = decide(&facts, rows[i].reason);
        assert_int_equal(move, rows[i].reason ? UPDATE_GO_BACK : UPDATE_NEXT_STEP);
    }
    pb_gates gates = gates_of(0, 0, 0);
    gates.has_min_answers = 1;
    struct update_facts facts = shifting(&gates);
    assert_int_equal(decide(&facts, REASON_NONE),
                     UPDATE_STAY); /* no answer at all is too few, though the gate needs 0 */
    gates.min_answers = 1;
    facts.new_counts = counts(0, 1, 1);
    assert_int_equal(decide(&facts, REASON_ERROR_RATE), UPDATE_GO_BACK);
}

static void test_figures_are_means_over_the_step(void **state)
{
    (void)state;
    struct update_counts then = counts(10, 0, 40), now = then;
    pb_gates gates = gates_of(-1, 0, 0);
    assert_true(update_ttft_ms(&(struct update_counts){0}, &gates) == 0); /* NOLINT */
    assert_float_equal(update_ttft_ms(&then, &gates), 40, 1e-9);
    now.n_ok += 5;
    now.n_queued += 5;
    now.n_prefilled += 5;
    now.queue_s += 5 * 0.001;
    now.prefill_s += 5 * 0.002;
    struct update_counts step = update_counts_since(&now, &then);
    assert_int_equal(step.n_ok, 5);
    assert_float_equal(update_ttft_ms(&step, &gates), 3, 1e-9);
}

/* Returns counts with answers in the buckets up to 10, 20, 40 and 80 ms, and beyond. */
static struct update_counts times(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t beyond)
{
    uint64_t n = a + b + c + d + beyond;
    struct update_counts counts = {.n_ok = n,
                                   .n_prefilled = n,
                                   .prefill_s = (double)n * 0.5,
                                   .n_bounds = 4,
                                   .bounds_s = {0.01, 0.02, 0.04, 0.08},
                                   .n_first = {a, b, c, d, beyond}};
    return counts;
}

static void test_the_time_to_the_first_token_is_a_quantile(void **state)
{
    (void)state;
    static const struct {
        uint64_t n[5];
        double quantile, ms; /* below 0: none given */
    } rows[] = {
        {{100, 0, 0, 0, 0}, 0.5, 5},   {{100, 0, 0, 0, 0}, -1, 9},
        {{90, 10, 0, 0, 0}, -1, 10},   {{80, 20, 0, 0, 0}, -1, 15},
        {{50, 0, 0, 50, 0}, 0.75, 60}, {{95, 0, 0, 0, 5}, -1, 90.0 / 9.5},
        {{80, 0, 0, 0, 20}, -1, 80}, /* the histogram has no higher bound */
        {{1, 0, 0, 0, 0}, -1, 9},      {{50, 0, 0, 50, 0}, 0, 500}, /* the mean */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const uint64_t *n = rows[i].n;
        struct update_counts counts = times(n[0], n[1], n[2], n[3], n[4]);
        pb_gates gates = gates_of(-1, 0, 0);
        gates.has_ttft_quantile = rows[i].quantile >= 0;
        gates.ttft_quantile = rows[i].quantile;
        assert_float_equal(update_ttft_ms(&counts, &gates), rows[i].ms, 1e-9);
    }
}

static void test_a_quantile_is_of_the_step_alone(void **state)
{
    (void)state;
    pb_gates gates = gates_of(-1, 0, 0);
    struct update_counts then = times(0, 0, 0, 100, 0), now = times(50, 0, 0, 100, 0), other = then;
    struct update_counts step = update_counts_since(&now, &then);
    assert_float_equal(update_ttft_ms(&step, &gates), 9, 1e-9);
    /* the version had no worker then */
    step = update_counts_since(&now, &(struct update_counts){0});
    assert_int_equal(step.n_bounds, 4);
    other.bounds_s[3] = 0.09; /* other bounds cannot be compared, so the mean counts */
    step = update_counts_since(&now, &other);
    assert_int_equal(step.n_bounds, 0);
    assert_float_equal(update_ttft_ms(&step, &gates), 500, 1e-9);
    other = then;
    other.n_bounds = 0; /* the worker reported no times for its answers */
    assert_int_equal(update_counts_since(&now, &other).n_bounds, 0);
    other.n_bounds = 3;
    assert_int_equal(update_counts_since(&now, &other).n_bounds, 0);
}

static void test_a_step_with_too_few_answers_is_held(void **state)
{
    (void)state;
    struct update_decision decision;
    pb_gates gates = gates_of(0.05, 0, 0);
    struct update_facts facts = shifting(&gates);
    facts.step_ns = 2 * NS_PER_MS;
    facts.new_counts = counts(19, 0, 1);
    facts.held_ns = 10 * NS_PER_MS - 1; /* a step may last up to five times its length */
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    facts.held_ns++;
    update_decide(&facts, &decision);
    assert_int_equal(decision.move, UPDATE_NEXT_STEP);
    assert_true(decision.unmeasured);
    assert_true(names_all(decision.message, "19|20"));
    facts.step = 2;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_RETIRE_OLD);
    gates.require_answers = 1;
    assert_int_equal(decide(&facts, REASON_TOO_FEW_ANSWERS), UPDATE_GO_BACK);
    facts.held_ns--;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    gates.has_max_wait_ms = 1;
    gates.max_wait_ms = 3;
    facts.held_ns = 5 * NS_PER_MS;
    assert_int_equal(decide(&facts, REASON_TOO_FEW_ANSWERS), UPDATE_GO_BACK);
    facts.held_ns--;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    facts.new_counts = counts(20, 0, 1); /* the answers came: the update continues at once */
    update_decide(&facts, &decision);
    assert_int_equal(decision.move, UPDATE_RETIRE_OLD);
    assert_false(decision.unmeasured);
    facts.new_counts = counts(0, 0, 0);
    gates.has_min_answers = 1;
    gates.min_answers = 0; /* the gate needs no answers */
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_RETIRE_OLD);
    gates.min_answers = 20;
    gates.has_max_error_rate = 0; /* no gate is checked */
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_RETIRE_OLD);
}

/* Symptom: an update of a version without requests took over six minutes. Each step waited for
 * answers that could not come. */
static void test_a_step_without_traffic_takes_its_time_and_goes_on(void **state)
{
    (void)state;
    struct update_decision decision;
    pb_gates gates = gates_of(0.05, 0, 3);
    struct update_facts facts = shifting(&gates);
    facts.held_ns = facts.step_ns - 1;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    facts.held_ns++;
    update_decide(&facts, &decision);
    assert_int_equal(decision.move, UPDATE_NEXT_STEP);
    assert_true(decision.unmeasured);
    facts.step = 2;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_RETIRE_OLD);
    /* A request of either version that runs or has ended may be followed by others. */
    facts.new_counts.n_live = 1;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    facts.new_counts.n_live = 0;
    facts.old_counts.n_live = 1;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    facts.old_counts = counts(1, 0, 10);
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    facts.old_counts = counts(0, 0, 0);
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_RETIRE_OLD);
    /* An operator's max_wait_ms and require_answers are obeyed. */
    gates.has_max_wait_ms = 1;
    gates.max_wait_ms = 1;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    gates.has_max_wait_ms = 0;
    gates.require_answers = 1;
    assert_int_equal(decide(&facts, REASON_NONE), UPDATE_STAY);
    facts.held_ns = 5 * facts.step_ns;
    assert_int_equal(decide(&facts, REASON_TOO_FEW_ANSWERS), UPDATE_GO_BACK);
    gates = gates_of(-1, 0, 0); /* without gates nothing is unmeasured */
    update_decide(&facts, &decision);
    assert_int_equal(decision.move, UPDATE_RETIRE_OLD);
    assert_false(decision.unmeasured);
}

/* Symptom: an update that had judged nothing ended as a plain "done". */
static void test_gates_with_too_little_to_look_at_are_told(void **state)
{
    (void)state;
    enum { ERRORS = UPDATE_GATE_ERROR_RATE, RATIO = UPDATE_GATE_TTFT_RATIO };
    pb_gates gates = gates_of(0.05, 0, 3), all = gates_of(0.05, 100, 3), none = gates_of(0, 0, 0);
    struct update_counts no = counts(0, 0, 0), few = counts(19, 0, 1), many = counts(20, 0, 1);
    struct update_counts failed = counts(0, 20, 0);
    failed.n_prefilled = failed.n_queued = 0; /* none had a first token */
    none.has_max_error_rate = none.has_max_ttft_ms = none.has_max_ttft_ratio = 0;
    assert_int_equal(update_unmeasured_gates(&gates, &no, &no), ERRORS | RATIO);
    assert_int_equal(update_unmeasured_gates(&gates, &few, &many), ERRORS | RATIO);
    assert_int_equal(update_unmeasured_gates(&gates, &many, &few), RATIO);
    assert_int_equal(update_unmeasured_gates(&gates, &many, &many), 0);
    assert_int_equal(update_unmeasured_gates(&all, &failed, &many), UPDATE_GATE_TTFT_MS | RATIO);
    assert_int_equal(update_unmeasured_gates(&none, &no, &no), 0);
    gates.has_min_answers = 1;
    gates.min_answers = 0;
    assert_int_equal(update_wanted_answers(&gates), 0);
    assert_int_equal(update_unmeasured_gates(&gates, &no, &no), ERRORS | RATIO);
}

/* A step gives the new version its percent of the old version's share. The other versions keep
 * theirs. At the end the new version has the whole share. */
static void test_steps_move_the_old_versions_share_alone(void **state)
{
    (void)state;
    pb_traffic *base = MESSAGE_NEW(pb_traffic, sluice__manager__v1__traffic__descriptor);
    assert_true(base && traffic_set_weight(base, "1", 6) && traffic_set_weight(base, "other", 3) &&
                traffic_set_weight(base, "2", 1));
    static const uint32_t percents[] = {0, 10, 50, 100};
    for (size_t i = 0; i < 4; i++) {
        uint32_t p = percents[i];
        assert_int_equal(update_weight(base, "1", "1", "2", p), 6 * (100 - p));
        assert_int_equal(update_weight(base, "other", "1", "2", p), 300);
        assert_int_equal(update_weight(base, "2", "1", "2", p), 100 + 6 * p);
        assert_int_equal(update_weight(base, "none", "1", "2", p), 0);
    }
    message_free(&base->base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phases_follow_one_another),
        cmocka_unit_test(test_failed_or_lost_replica_goes_back),
        cmocka_unit_test(test_gates_need_enough_answers_and_are_crossed_beyond_their_limit),
        cmocka_unit_test(test_figures_are_means_over_the_step),
        cmocka_unit_test(test_the_time_to_the_first_token_is_a_quantile),
        cmocka_unit_test(test_a_quantile_is_of_the_step_alone),
        cmocka_unit_test(test_a_step_with_too_few_answers_is_held),
        cmocka_unit_test(test_a_step_without_traffic_takes_its_time_and_goes_on),
        cmocka_unit_test(test_gates_with_too_little_to_look_at_are_told),
        cmocka_unit_test(test_steps_move_the_old_versions_share_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
