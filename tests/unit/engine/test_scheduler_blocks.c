/* Whose blocks are whose: preemption, sharing among choices and equal prompts, those of drafts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/step.h"
#include "support_scheduler.h"

static void test_preemption_takes_the_least_lost_work(void **state)
{
    (void)state;
    struct bench *b = &bench;
    static const uint32_t lengths[] = {40, 20, 60};
    struct request *r[3];
    struct scheduler_config cfg = bench_small;
    cfg.n_blocks = 18; /* 40, 20 and 60 tokens take 5, 3 and 8 blocks, and 3 more soon */
    bench_open(b, &cfg);
    for (uint32_t i = 0; i < 3; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, i, lengths[i], 30, 1, 0, ""));
    while (!r[0]->n_preemptions && !r[1]->n_preemptions && !r[2]->n_preemptions)
        assert_true(bench_step(b));
    assert_int_equal(r[1]->n_preemptions,
                     1); /* the shortest, though it is older than the longest */
    assert_int_equal(r[0]->n_preemptions + r[2]->n_preemptions, 0);
    while (scheduler_any(b->sched))
        assert_true(bench_step(b));
    for (uint32_t i = 0; i < 3; i++) {
        bench_assert_answer(r[i], true);
        request_release(r[i]);
    }
    bench_close(b);
}

static void test_preemption_spares_higher_priority(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[2];
    struct scheduler_config cfg = bench_small;
    cfg.n_blocks = 12;
    bench_open(b, &cfg);
    scheduler_add(b->sched, r[0] = bench_make(b, 0, 60, 30, 1, 0, "")); /* older and longer */
    scheduler_add(b->sched, r[1] = bench_make(b, 1, 10, 50, 1, 5, ""));
    while (!r[0]->n_preemptions && scheduler_any(b->sched))
        assert_true(bench_step(b));
    assert_int_equal(r[0]->n_preemptions, 1);
    assert_int_equal(r[1]->n_preemptions, 0);
    while (scheduler_any(b->sched))
        assert_true(bench_step(b));
    for (uint32_t i = 0; i < 2; i++)
        request_release(r[i]);
    bench_close(b);
}

/* Full blocks of the prompt are there once; a last one that is not full is copied by all but the
 * last choice that writes to it. Nothing of the prompt is computed twice. */
static void test_choices_share_the_prompt_and_copy_on_write(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_prompt, n_choices, n_full, n_copies;
    } rows[] = {{61, 4, 7, 3}, {64, 4, 8, 0}, {63, 8, 7, 7},
                {8, 8, 1, 0},  {1, 3, 0, 2},  {65, 2, 8, 1}};
    struct bench *b = &bench;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct scheduler_stats s;
        uint32_t n_copies = 0, n_prefill_rows = 0, n_choices = rows[i].n_choices;
        struct request *r;
        bench_open(b, &bench_small);
        scheduler_add(b->sched, r = bench_make(b, 0, rows[i].n_prompt, 10, n_choices, 0, ""));
        while (r->choices[n_choices - 1].n_ids < 2) {
            assert_true(bench_step(b));
            n_copies += b->plan.n_copies;
            n_prefill_rows += b->plan.n_prefill_rows;
            for (uint32_t c = 1; c < n_choices; c++)
                assert_int_equal(r->choices[c].n_ids, r->choices[0].n_ids);
        }
        scheduler_get_stats(b->sched, &s);
        assert_int_equal(s.n_blocks - s.n_blocks_free, rows[i].n_full + n_choices);
        assert_int_equal(n_copies, rows[i].n_copies);
        assert_int_equal(n_prefill_rows, rows[i].n_prompt);
        while (bench_step(b))
            ;
        bench_assert_answer(r, true);
        request_release(r);
        bench_close(b);
    }
}

/* Blocks taken for drafts that were wrong are given back with the step. */
static void test_drafts_hold_no_blocks(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    struct request *r;
    uint32_t n_behind = 0;
    cfg.n_draft_rows = 12;
    bench_open(b, &cfg);
    scheduler_set_row_cost(b->sched, 1e6f);
    b->repeats = true;
    b->limits.draft_tokens = 12;
    scheduler_add(b->sched, r = bench_make(b, 3, 30, 300, 1, 0, ""));
    while (r->choices[0].n_ids < 290) {
        struct scheduler_stats s;
        const struct sequence *seq = &r->choices[0];
        uint32_t end;
        assert_true(bench_step(b));
        end = b->batch->positions[b->batch->n_rows - 1] / BLOCK + 1;
        scheduler_get_stats(b->sched, &s);
        assert_int_equal(s.n_blocks - s.n_blocks_free, (seq->n_computed + BLOCK - 1) / BLOCK);
        n_behind += end > s.n_blocks - s.n_blocks_free;
    }
    assert_true(n_behind > 5 && b->n_accepted > 50);
    while (bench_step(b))
        ;
    bench_assert_answer(r, true);
    request_release(r);
    bench_close(b);
}

/* Equal prompts that are computed side by side: when a block is whole, one copy of it stays. */
static void test_equal_blocks_computed_at_once_become_one(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[3];
    struct scheduler_config cfg = bench_small;
    struct scheduler_stats s;
    cfg.prefix_cache = true;
    bench_open(b, &cfg);
    for (uint32_t i = 0; i < 3; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, 4, 61, 10, 1, 0, ""));
    while (r[2]->choices[0].n_ids < 2)
        assert_true(bench_step(b));
    scheduler_get_stats(b->sched, &s);
    assert_int_equal(s.n_prefix_hit_tokens, 0);
    assert_int_equal(s.n_blocks - s.n_blocks_free, 7 + 3);
    while (bench_step(b))
        ;
    for (uint32_t i = 0; i < 3; i++) {
        bench_assert_answer(r[i], true);
        request_release(r[i]);
    }
    bench_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preemption_takes_the_least_lost_work),
        cmocka_unit_test(test_preemption_spares_higher_priority),
        cmocka_unit_test(test_choices_share_the_prompt_and_copy_on_write),
        cmocka_unit_test(test_drafts_hold_no_blocks),
        cmocka_unit_test(test_equal_blocks_computed_at_once_become_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
