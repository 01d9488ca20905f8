/* Tests of steps that are written before the tokens that they continue. Covers steps that come as
 * expected, steps that differ and why, and that nothing else changes. The code in
 * support_scheduler.c compares the expected step with the real one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/model/step.h"
#include "engine/request/sequence.h"
#include "engine/schedule/fair_share.h"
#include "engine/schedule/scheduler_private.h"
#include "tests/unit/engine/support/support_scheduler.h"

enum { N = 3 };

static void open_ahead(struct bench *b, const struct scheduler_config *cfg)
{
    bench_open(b, cfg);
    b->looks_ahead = true;
}

/* N requests that decode, the next step expected. */
static void start(struct bench *b, const struct scheduler_config *cfg, struct request **r)
{
    open_ahead(b, cfg);
    for (uint32_t i = 0; i < N; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, i, 10, 40, 1, 0, ""));
    while (!b->is_expected)
        assert_true(bench_step(b));
    assert_true(bench_step(b) && b->is_expected);
    assert_int_equal(b->n_kept, 1);
}

static void finish(struct bench *b, struct request **r, uint32_t n, bool whole)
{
    while (scheduler_any(b->sched))
        assert_true(bench_step(b));
    for (uint32_t i = 0; i < n; i++) {
        bench_assert_answer(r[i], whole);
        request_release(r[i]);
    }
    bench_close(b);
}

/* --- steps as expected --- */

static void test_decoding_every_step_is_as_expected(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[N];
    start(b, &bench_small, r);
    uint64_t first = b->n_steps - 1; /* the steps before the first expected step */
    while (scheduler_any(b->sched)) {
        assert_true(bench_step(b));
        assert_int_equal(b->n_kept, b->n_steps - first);
    }
    assert_true(b->n_kept > 36); /* each request filled 5 blocks */
    finish(b, r, N, true);
}

/* A choice that has all its tokens is not expected in the next step. */
static void test_a_choice_at_its_limit_is_left_out(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[N];
    open_ahead(b, &bench_small);
    for (uint32_t i = 0; i < N; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, i, 6, 5 + 9 * i, 1, 0, ""));
    while (!b->is_expected)
        assert_true(bench_step(b));
    for (uint32_t i = 1; i < 5 + 9 * (N - 1); i++) {
        uint32_t n_alive = i < 5 ? 3 : i < 14 ? 2 : 1;
        assert_true(bench_step(b));
        assert_true(b->plan.n_samples == n_alive);
        /* From step 5 on, an ended request's freed blocks may go to other requests. The expected
         * step had other blocks for them. */
        assert_true(b->n_kept == i || i >= 5);
    }
    assert_true(b->n_kept >= 20);
    finish(b, r, N, true);
}

/* The prefix cache fills the pool. The cache loses a block when a step takes the block, not when a
 * step is expected to. */
static void test_a_cached_block_is_taken_by_the_step_alone(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[2];
    struct scheduler_stats s;
    struct scheduler_config cfg = bench_small;
    cfg.n_blocks = 20;
    cfg.prefix_cache = true;
    open_ahead(b, &cfg);
    scheduler_add(b->sched, r[0] = bench_make(b, 1, 100, 50, 1, 0, ""));
    while (scheduler_any(b->sched))
        assert_true(bench_step(b));
    scheduler_add(b->sched, r[1] = bench_make(b, 2, 10, 120, 1, 0, ""));
    scheduler_get_stats(b->sched, &s);
    assert_true(s.n_blocks_cached == 18 && s.n_blocks_free == 20);
    uint64_t n_kept = b->n_kept;
    while (scheduler_any(b->sched))
        assert_true(bench_step(b));
    assert_int_equal(b->n_kept - n_kept, 119); /* all steps but those of the prompt */
    scheduler_get_stats(b->sched, &s);
    assert_int_equal(s.n_blocks_cached, 19); /* 3 blocks of the first sequence, 16 of its own */
    finish(b, r, 2, true);
}

/* --- steps that differ --- */

static void stop_one(struct bench *b, struct request **r)
{
    scheduler_end_sequence(b->sched, &r[1]->choices[0]);
}

static void cancel_last(struct bench *b, struct request **r)
{
    scheduler_end_request(b->sched, r[N - 1]);
}

static void pause_first(struct bench *b, struct request **r)
{
    scheduler_pause(b->sched, r[0], true);
}

static void raise_last(struct bench *b, struct request **r)
{
    scheduler_set_priority(b->sched, r[N - 1], 5);
}

static void submit(struct bench *b, struct request **r)
{
    scheduler_add(b->sched, r[N] = bench_make(b, N, 10, 40, 1, 0, ""));
}

/* An event between the tokens and the next step makes that step differ from the expected one. The
 * step after is expected again. */
static void test_what_happens_between_steps_makes_another_one(void **state)
{
    static const struct {
        void (*happens)(struct bench *b, struct request **r);
        uint32_t n_rows; /* decode rows in the next step */
        bool whole;
    } cases[] = {{stop_one, N - 1, false},
                 {cancel_last, N - 1, false},
                 {pause_first, N - 1, true},
                 {raise_last, N, true},
                 {submit, N, true}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct bench *b = &bench;
        struct request *r[N + 1] = {NULL};
        start(b, &bench_small, r);
        cases[i].happens(b, r);
        assert_true(bench_step(b));
        assert_int_equal(b->n_kept, 1);
        assert_int_equal(b->plan.n_decode_rows, cases[i].n_rows);
        assert_true(b->is_expected); /* the prompt is done in one step */
        assert_true(bench_step(b));
        assert_int_equal(b->n_kept, 2);
        scheduler_pause(b->sched, r[0], false);
        finish(b, r, r[N] ? N + 1 : N, cases[i].whole);
    }
}

static void test_prompts_under_way_nothing_is_expected(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[2];
    open_ahead(b, &bench_small);
    scheduler_add(b->sched, r[0] = bench_make(b, 0, 5, 20, 1, 0, ""));
    scheduler_add(b->sched, r[1] = bench_make(b, 1, 40, 20, 2, 0, "")); /* three pieces */
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(bench_step(b));
        assert_false(b->is_expected);
    }
    assert_true(bench_step(b)); /* the choices shared the prompt's last block */
    finish(b, r, 2, true);
}

/* A block that choices share is copied by the step that writes to it. */
static void test_a_shared_block_nothing_is_expected(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r;
    open_ahead(b, &bench_small);
    scheduler_add(b->sched, r = bench_make(b, 0, 12, 20, 2, 0, ""));
    assert_true(bench_step(b) && !b->is_expected);
    assert_true(bench_step(b) && b->plan.n_copies == 1 && b->n_kept == 0);
    assert_true(b->is_expected);
    finish(b, &r, 1, true);
    assert_int_equal(b->n_kept, 18);
}

static void test_no_block_left_nothing_is_expected(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[N];
    struct scheduler_config cfg = bench_small;
    cfg.n_blocks = 11; /* two have 4 each when the third wants its 4th */
    start(b, &cfg, r);
    while (!r[0]->n_preemptions && !r[1]->n_preemptions && !r[2]->n_preemptions) {
        struct scheduler_stats s;
        bool expected = b->is_expected;
        uint64_t n_kept = b->n_kept;
        scheduler_get_stats(b->sched, &s);
        assert_true(bench_step(b));
        assert_int_equal(b->n_kept, n_kept + expected);
        if (!expected)
            assert_true(s.n_blocks_free < N);
    }
    finish(b, r, N, true);
}

static void test_drafts_nothing_is_expected(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r;
    struct scheduler_config cfg = bench_small;
    cfg.n_draft_rows = 12;
    open_ahead(b, &cfg);
    b->limits.draft_tokens = 6;
    scheduler_add(b->sched, r = bench_make(b, 0, 12, 20, 1, 0, ""));
    finish(b, &r, 1, true);
    assert_int_equal(b->n_expected, 0);
}

/* The scheduler replaces a full block by an equal one of another request. The block table then
 * differs from the expected one. */
static void test_a_block_that_was_replaced_makes_another_step(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[2];
    struct scheduler_config cfg = bench_small;
    cfg.prefix_cache = true;
    open_ahead(b, &cfg);
    for (uint32_t i = 0; i < 2; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, 1, 9, 40, 1, 0, ""));
    finish(b, r, 2, true);
    assert_int_equal(b->n_expected - b->n_kept, 5); /* a difference for each full block */
}

/* --- nothing depends on it --- */

static uint64_t trace;

static void note(uint64_t value)
{
    trace = (trace ^ value) * 0x9E3779B97F4A7C15ull;
    trace ^= trace >> 31;
}

/* Notes all fields of the step. */
static void note_schedule(struct bench *b)
{
    const struct step_batch *t = b->batch;
    note((uint64_t)b->plan.n_started << 32 | b->plan.n_prefill_rows);
    for (uint32_t i = 0; i < b->plan.n_copies; i++)
        note((uint64_t)b->plan.copies[i].from << 32 | b->plan.copies[i].to);
    for (uint32_t i = 0; i < b->plan.n_samples; i++) {
        note(b->plan.samples[i]->slot * 8 + b->plan.samples[i]->choice);
        note(t->sample_rows[i]);
    }
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        for (uint32_t row = t->seq_start[s]; row < t->seq_start[s + 1]; row++) {
            note((uint64_t)t->token_ids[row] << 32 | t->positions[row]);
            note((uint64_t)t->kv_slots[row] << 32 | t->is_generated[row]);
        }
        for (uint32_t i = 0; i <= t->positions[t->seq_start[s + 1] - 1] / BLOCK; i++)
            note(t->block_tables[(size_t)s * t->limits.max_blocks_per_seq + i]);
    }
}

/* Records the state after a step. */
static void note_step(struct bench *b)
{
    struct scheduler_stats s;
    scheduler_get_stats(b->sched, &s);
    note((uint64_t)s.n_queued << 32 | s.n_running);
    note((uint64_t)s.n_blocks_free << 32 | s.n_blocks_cached);
    note(s.n_preemptions * 1000003 + s.n_prefix_hit_tokens);
    for (uint32_t i = 0; i < b->cfg.max_requests; i++)
        note(fair_share_counter(b->sched->share, i));
}

static void disturb(struct bench *b, struct request *r)
{
    uint32_t what = bench_below(8);
    if (r->state == REQUEST_ENDED)
        return;
    if (what == 0)
        scheduler_end_request(b->sched, r);
    else if (what == 1)
        scheduler_end_sequence(b->sched, &r->choices[bench_below(r->n_choices)]);
    else if (what == 2)
        scheduler_set_priority(b->sched, r, (int32_t)bench_below(3) - 1);
    else
        scheduler_pause(b->sched, r, bench_below(3) == 0);
}

static uint64_t run_traffic(const struct scheduler_config *cfg, uint32_t seed, bool looks_ahead)
{
    enum { N_REQUESTS = 60 };
    static const char *const callers[] = {"ann", "bob", "cid"};
    struct bench *b = &bench;
    struct request *all[N_REQUESTS];
    uint32_t n = 0, n_kept = 0;
    bench_rng = seed;
    trace = 1;
    bench_open(b, cfg);
    b->on_schedule = note_schedule;
    b->looks_ahead = looks_ahead;
    while (n < N_REQUESTS || scheduler_any(b->sched)) {
        while (n < N_REQUESTS && bench_below(16) == 0) {
            uint32_t n_prompt = 1 + bench_below(60), n_tokens = 1 + bench_below(60);
            all[n] = bench_make(b, bench_below(30), n_prompt, n_tokens, 1 + bench_below(2),
                                (int32_t)bench_below(3) - 1, callers[bench_below(3)]);
            scheduler_add(b->sched, all[n++]);
        }
        if (n && bench_below(20) == 0)
            disturb(b, all[bench_below(n)]);
        if (bench_step(b))
            note_step(b);
        else if (n == N_REQUESTS) /* only paused requests may wait */
            for (uint32_t i = 0; i < n; i++)
                scheduler_pause(b->sched, all[i], false);
    }
    n_kept = (uint32_t)b->n_kept;
    assert_true(looks_ahead ? n_kept > b->n_steps / 8 : n_kept == 0);
    for (uint32_t i = 0; i < n; i++) {
        bench_assert_answer(all[i], false);
        request_release(all[i]);
    }
    bench_close(b);
    return trace;
}

static void test_random_traffic_is_the_same_with_and_without(void **state)
{
    static const struct scheduler_config pools[] = {
        {.max_rows = 64, .max_seqs = 12, .n_blocks = 400, .prefill_chunk_tokens = 16},
        {.max_rows = 48,
         .max_seqs = 8,
         .n_blocks = 40,
         .prefill_chunk_tokens = 64,
         .prefix_cache = true},
        {.max_rows = 64,
         .max_seqs = 6,
         .n_blocks = 100,
         .prefill_chunk_tokens = 64,
         .prefix_cache = true},
        {.max_rows = 64,
         .max_seqs = 8,
         .n_blocks = 200,
         .prefill_chunk_tokens = 64,
         .long_rope_after = 50,
         .prefix_cache = true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++)
        for (uint32_t seed = 1; seed <= 20; seed++)
            assert_true(run_traffic(&pools[i], seed, true) == run_traffic(&pools[i], seed, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoding_every_step_is_as_expected),
        cmocka_unit_test(test_a_choice_at_its_limit_is_left_out),
        cmocka_unit_test(test_a_cached_block_is_taken_by_the_step_alone),
        cmocka_unit_test(test_what_happens_between_steps_makes_another_one),
        cmocka_unit_test(test_prompts_under_way_nothing_is_expected),
        cmocka_unit_test(test_a_shared_block_nothing_is_expected),
        cmocka_unit_test(test_no_block_left_nothing_is_expected),
        cmocka_unit_test(test_drafts_nothing_is_expected),
        cmocka_unit_test(test_a_block_that_was_replaced_makes_another_step),
        cmocka_unit_test(test_random_traffic_is_the_same_with_and_without),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
