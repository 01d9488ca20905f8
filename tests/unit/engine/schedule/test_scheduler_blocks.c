/* Tests of the requests' KV blocks: preemption, sharing by choices and by equal prompts, and the
 * blocks of drafts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model/step.h"
#include "engine/request/sequence.h"
#include "engine/schedule/fair_share.h"
#include "engine/schedule/scheduler_private.h"
#include "tests/unit/engine/support/support_scheduler.h"

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
    assert_int_equal(r[1]->n_preemptions, 1); /* the shortest, not the youngest */
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

/* Full blocks of the prompt exist once. A last, partial block is copied by each choice that writes
 * to it, except the last. No prompt token is computed twice. */
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

/* Opens a bench whose n requests go round in circles, the drafter's best case, and runs until each
 * has some tokens. */
static void open_drafting(struct bench *b, struct scheduler_config cfg, struct request **r,
                          uint32_t n)
{
    cfg.n_draft_rows = 12;
    bench_open(b, &cfg);
    b->repeats = true;
    b->limits.draft_tokens = 12;
    scheduler_set_row_cost(b->sched, 1e6f);
    for (uint32_t i = 0; i < n; i++)
        scheduler_add(b->sched, r[i] = bench_make(b, i, 9, 400, 1, 0, ""));
    while (r[n - 1]->choices[0].n_ids < 60)
        assert_true(bench_step(b));
}

static void close_drafting(struct bench *b, struct request **r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        scheduler_end_request(b->sched, r[i]);
        bench_assert_answer(r[i], false);
        request_release(r[i]);
    }
    bench_close(b);
}

static uint64_t drafted_in(struct bench *b, uint32_t n_steps)
{
    uint64_t before = b->n_drafted;
    for (uint32_t i = 0; i < n_steps; i++)
        assert_true(bench_step(b));
    return b->n_drafted - before;
}

/* A drafted row counts only if the draft is right. Where rows cost more, the scheduler drafts less.
 */
static void test_drafts_are_fewer_where_rows_cost_more(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[4];
    open_drafting(b, bench_small, r, 4);
    assert_true(drafted_in(b, 15) > 60);
    /* the cost of a step is 1 base + n rows; at n = 4 a draft pays from a chance of 1.1 · 4 / 5 */
    scheduler_set_row_cost(b->sched, 1.0f);
    assert_true(drafted_in(b, 15) < 30);
    scheduler_set_row_cost(b->sched, 0.01f);
    assert_int_equal(drafted_in(b, 5), 0);
    close_drafting(b, r, 4);
}

/* Drafts leave the rows that a prompt can use. */
static void test_drafts_leave_the_rows_to_prompts(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    struct request *r[3];
    cfg.max_rows = 18;
    open_drafting(b, cfg, r, 2);
    assert_true(drafted_in(b, 10) > 20);
    scheduler_add(b->sched, r[2] = bench_make(b, 7, 160, 2, 1, 0, ""));
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(drafted_in(b, 1), 0);
        assert_int_equal(b->plan.n_prefill_rows, 16);
    }
    assert_true(drafted_in(b, 10) > 5);
    close_drafting(b, r, 3);
}

/* Where few blocks are free, drafts take none. */
static void test_drafts_cost_nobody_a_block(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    struct request *r[3];
    struct scheduler_stats s;
    cfg.n_blocks = 40;
    open_drafting(b, cfg, r, 3);
    for (;;) {
        scheduler_get_stats(b->sched, &s);
        bool scarce = s.n_blocks_free <= s.n_used_slots;
        uint64_t n = drafted_in(b, 1);
        scheduler_get_stats(b->sched, &s);
        if (s.n_preemptions) /* from here on, a step without drafts may preempt too */
            break;
        if (scarce)
            assert_int_equal(n, 0);
    }
    close_drafting(b, r, 3);
}

/* Requests with equal prompts compute the same blocks side by side. Only one copy of a full block
 * stays. */
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

/* Returns the charge of the only caller. */
static uint64_t charged(const struct bench *b)
{
    return fair_share_counter(b->sched->share, b->sched->last_caller);
}

/* Each computed token counts once and each generated token twice, through all disturbances. A
 * cached token does not count. The last drawn token is not computed. */
static void test_each_token_is_charged_once(void **state)
{
    (void)state;
    struct bench *b = &bench;
    for (int drafts = 0; drafts < 2; drafts++) {
        struct scheduler_config cfg = bench_small;
        struct request *r, *other;
        cfg.n_blocks = 24;
        cfg.prefix_cache = true;
        cfg.n_draft_rows = drafts ? 12 : 0;
        bench_open(b, &cfg);
        scheduler_set_row_cost(b->sched, 1e6f);
        b->repeats = drafts;
        b->limits.draft_tokens = drafts ? 6 : 0;
        scheduler_add(b->sched, r = bench_make(b, 1, 61, 90, 1, 0, ""));
        while (bench_step(b))
            ;
        assert_int_equal(charged(b), 61 + 2 * (90 - 1));
        assert_true(!drafts || b->n_accepted > 10);
        request_release(r);
        scheduler_add(b->sched, r = bench_make(b, 1, 61, 10, 1, 0, "")); /* found */
        while (bench_step(b))
            ;
        assert_int_equal(r->n_cached_tokens, 56);
        assert_int_equal(charged(b), 61 + 2 * (90 - 1) + 61 - 56 + 2 * (10 - 1));
        request_release(r);
        scheduler_add(b->sched, r = bench_make(b, 2, 80, 40, 1, 0, "")); /* preempted */
        while (r->choices[0].n_ids < 20)
            assert_true(bench_step(b));
        scheduler_pause(b->sched, r, true);
        scheduler_add(b->sched, other = bench_make(b, 5, 150, 20, 1, 0, ""));
        while (bench_step(b))
            ;
        scheduler_pause(b->sched, r, false);
        while (bench_step(b))
            ;
        assert_int_equal(r->n_preemptions, 1);
        assert_int_equal(charged(b), 61 + 2 * (90 - 1) + 61 - 56 + 2 * (10 - 1) + 80 +
                                         2 * (40 - 1) + 150 + 2 * (20 - 1));
        request_release(r);
        request_release(other);
        bench_close(b);
    }
}

/* Prompts that come once do not evict a prompt that came twice from the cache. */
static void test_what_was_found_again_stays_in_the_cache(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    cfg.prefix_cache = true;
    bench_open(b, &cfg);
    for (uint32_t i = 0; i < 43; i++) {
        bool hot = i < 2 || i == 42;
        /* With 15 tokens even the first block is never shared. */
        struct request *r =
            hot ? bench_make(b, 0, 65, 3, 1, 0, "") : bench_make(b, 1 + 2 * i, 15, 40, 1, 0, "");
        scheduler_add(b->sched, r);
        while (bench_step(b))
            ;
        if (hot)
            assert_int_equal(r->n_cached_tokens, i ? 64 : 0);
        request_release(r);
    }
    bench_close(b);
}

/* A new prompt would just fit beside a decoding request. The prompt must wait, as the decoding
 * request needs the block next. */
static void test_a_prompt_leaves_blocks_for_those_that_decode(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    struct request *decodes, *waits;
    cfg.n_blocks = 12;
    bench_open(b, &cfg);
    scheduler_add(b->sched, decodes = bench_make(b, 0, 33, 8, 1, 0, "")); /* 5 blocks to its end */
    assert_true(bench_step(b) && bench_step(b) && bench_step(b));
    scheduler_add(b->sched, waits = bench_make(b, 1, 56, 3, 1, 0, ""));
    while (decodes->state != REQUEST_ENDED) {
        assert_int_equal(waits->state, REQUEST_WAITING);
        assert_true(bench_step(b));
    }
    while (bench_step(b))
        ;
    bench_assert_answer(waits, true);
    request_release(decodes);
    request_release(waits);
    bench_close(b);
}

/* Requests that lost their blocks come back in order. A short request behind must not repeatedly
 * take the blocks that the long one waits for. */
static void test_who_waits_for_blocks_is_not_passed_by_one_behind(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    struct request *first, *behind, *now;
    cfg.n_blocks = 12;
    bench_open(b, &cfg);
    scheduler_add(b->sched, first = bench_make(b, 0, 60, 20, 1, 0, ""));
    scheduler_add(b->sched, behind = bench_make(b, 1, 10, 20, 1, 0, ""));
    while (first->choices[0].n_ids < 2 || behind->choices[0].n_ids < 2)
        assert_true(bench_step(b));
    scheduler_pause(b->sched, first, true);
    scheduler_pause(b->sched, behind, true);
    scheduler_add(b->sched, now = bench_make(b, 2, 60, 20, 1, 0, ""));
    while (now->choices[0].n_ids < 2)
        assert_true(bench_step(b));
    assert_true(first->n_preemptions == 1 && behind->n_preemptions == 1);
    scheduler_pause(b->sched, first, false);
    scheduler_pause(b->sched, behind, false);
    while (now->state != REQUEST_ENDED) {
        assert_int_equal(behind->choices[0].n_computed, 0);
        assert_true(bench_step(b));
    }
    while (bench_step(b))
        ;
    bench_assert_answer(first, true);
    bench_assert_answer(behind, true);
    request_release(first);
    request_release(behind);
    request_release(now);
    bench_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preemption_takes_the_least_lost_work),
        cmocka_unit_test(test_preemption_spares_higher_priority),
        cmocka_unit_test(test_choices_share_the_prompt_and_copy_on_write),
        cmocka_unit_test(test_drafts_hold_no_blocks),
        cmocka_unit_test(test_each_token_is_charged_once),
        cmocka_unit_test(test_what_was_found_again_stays_in_the_cache),
        cmocka_unit_test(test_a_prompt_leaves_blocks_for_those_that_decode),
        cmocka_unit_test(test_who_waits_for_blocks_is_not_passed_by_one_behind),
        cmocka_unit_test(test_drafts_are_fewer_where_rows_cost_more),
        cmocka_unit_test(test_drafts_leave_the_rows_to_prompts),
        cmocka_unit_test(test_drafts_cost_nobody_a_block),
        cmocka_unit_test(test_equal_blocks_computed_at_once_become_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
