/* Tests the blocks of layers with a window. Each position of both pools has a hash of all tokens so
 * far. The bench reads the hashes through the tables, as an executor reads K and V. So a block that
 * was given back too early changes an answer or fails an assertion. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/model/step.h"
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"
#include "tests/unit/engine/support/support_scheduler.h"

enum { MAX_LIVE = 200 };

/* The blocks that the windows of all sequences take at most, as plan.c counts them. */
static uint32_t blocks_for(const struct scheduler_config *cfg, uint32_t reach)
{
    uint32_t n =
        cfg->max_seqs * ((reach - 1 + BLOCK - 1) / BLOCK + 3) + (cfg->max_rows + BLOCK - 1) / BLOCK;
    return n < cfg->n_blocks ? n : cfg->n_blocks;
}

static struct scheduler_config with_windows(struct scheduler_config cfg, uint32_t reach)
{
    cfg.window_reach = reach;
    cfg.n_window_blocks = blocks_for(&cfg, reach);
    return cfg;
}

static uint32_t first_seen(const struct bench *b, uint32_t at)
{
    uint32_t reach = b->cfg.window_reach;
    uint32_t before = b->cfg.windows_are_chunks ? at % reach : reach - 1;
    return at > before ? (at - before) / BLOCK : 0;
}

static uint32_t n_held(const struct bench *b)
{
    struct scheduler_stats s;
    scheduler_get_stats(b->sched, &s);
    return b->cfg.n_window_blocks - s.n_window_blocks_free;
}

/* Between steps a sequence has the blocks that its next token sees. A sequence that had a row in
 * the step has no others. A choice first shares the leader's. The cache's two tables agree. */
static void check_windows(const struct bench *b)
{
    const struct scheduler_windows *w = &b->sched->windows;
    for (uint32_t i = 0; i < b->sched->n_running; i++) {
        const struct sequence *seq = b->sched->running[i];
        const uint32_t *table = kv_cache_table(w->kv, seq->slot);
        uint32_t n = kv_cache_table_len(b->sched->kv, seq->slot);
        assert_int_equal(kv_cache_table_len(w->kv, seq->slot), n);
        for (uint32_t k = 0; k < n; k++) {
            bool is_seen = k >= first_seen(b, seq->n_computed);
            assert_true(is_seen ? table[k] != KV_BLOCK_NONE
                                : table[k] == KV_BLOCK_NONE || seq->last_step < b->n_steps);
        }
    }
    for (uint32_t i = 0; i < b->cfg.n_blocks; i++) {
        uint32_t own = w->block_of[i];
        assert_true(own == KV_BLOCK_NONE || w->owner_of[own] == i);
        assert_true(own == KV_BLOCK_NONE || prefix_cache_node(b->sched->prefix, i));
    }
    uint32_t n_cached = 0;
    for (uint32_t i = 0; i < b->cfg.n_window_blocks; i++) {
        assert_true(w->owner_of[i] == KV_BLOCK_NONE || w->block_of[w->owner_of[i]] == i);
        n_cached += w->owner_of[i] != KV_BLOCK_NONE && !kv_cache_n_refs(w->kv, i);
    }
    assert_int_equal(kv_cache_n_kept_free(w->kv), n_cached); /* none that nobody can find */
}

static bool step(struct bench *b)
{
    bool ran = bench_step(b);
    check_windows(b);
    return ran;
}

static void run_alone(struct bench *b, struct request *r)
{
    scheduler_add(b->sched, r);
    while (step(b))
        ;
    bench_assert_answer(r, true);
}

static void test_a_long_answer_holds_the_window_alone(void **state)
{
    static const uint32_t reaches[] = {1, 2, 8, 9, 16, 17, 20};
    struct bench *b = &bench;
    (void)state;
    for (size_t i = 0; i < sizeof(reaches) / sizeof(reaches[0]); i++) {
        struct scheduler_config cfg = with_windows(bench_small, reaches[i]);
        uint32_t most = (reaches[i] - 1 + BLOCK - 1) / BLOCK + 1;
        bench_open(b, &cfg);
        struct request *r = bench_make(b, 3, 100, 300, 1, 0, "");
        scheduler_add(b->sched, r);
        while (step(b)) {
            assert_true(n_held(b) <= most);
            assert_true(n_held(b) == 0 || r->state == REQUEST_ACTIVE);
        }
        bench_assert_answer(r, true);
        request_release(r);
        bench_close(b);
    }
}

/* Blocks of earlier chunks are free again. A window of the chunk's length would hold as many blocks
 * at the begin of a chunk as at its end. */
static void test_a_new_chunk_frees_the_blocks_of_the_last_one(void **state)
{
    static const uint32_t chunks[] = {1, 7, 8, 16, 20, 64};
    struct bench *b = &bench;
    (void)state;
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        struct scheduler_config cfg = with_windows(bench_small, chunks[i]);
        uint32_t n_ends = 0;
        cfg.windows_are_chunks = true;
        bench_open(b, &cfg);
        struct request *r = bench_make(b, 3, 100, 300, 1, 0, "");
        struct sequence *seq = &r->choices[0];
        scheduler_add(b->sched, r);
        while (step(b)) {
            uint32_t at = seq->n_computed, begin = at - at % chunks[i];
            if (r->state != REQUEST_ACTIVE)
                continue;
            assert_int_equal(n_held(b), (at + BLOCK - 1) / BLOCK - begin / BLOCK);
            n_ends += at == begin;
        }
        assert_true(n_ends >= 300 / chunks[i]);
        bench_assert_answer(r, true);
        request_release(r);
        bench_close(b);
    }
}

/* Prompts of other seeds share no prefix and take their blocks of the caches. */
static void run_others(struct bench *b, uint32_t n, uint32_t n_prompt)
{
    for (uint32_t i = 0; i < n; i++) {
        struct request *r = bench_make(b, 100 + 7 * i, n_prompt, 2, 1, 0, "");
        run_alone(b, r);
        request_release(r);
    }
}

/* The window before the end of a prompt stays cached, though the sequence passed it. Other prompts
 * took all blocks that no hit needs. */
static void test_the_same_prompt_finds_its_end(void **state)
{
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    (void)state;
    cfg.prefix_cache = true;
    cfg.n_blocks = 400;
    cfg.max_seqs = 4;
    cfg = with_windows(cfg, 16);
    bench_open(b, &cfg);
    struct request *r = bench_make(b, 3, 100, 120, 1, 0, "");
    run_alone(b, r);
    assert_int_equal(r->n_cached_tokens, 0);
    request_release(r);
    run_others(b, 6, 60);
    r = bench_make(b, 3, 100, 120, 1, 0, "");
    run_alone(b, r);
    assert_int_equal(r->n_cached_tokens, 96);
    request_release(r);
    bench_close(b);
}

/* After a short answer the end of the prompt stays cached. Other requests run at once then, and
 * pass more blocks than the pool has. */
static void test_the_end_of_a_prompt_outlasts_passed_blocks(void **state)
{
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    struct request *r, *others[3];
    (void)state;
    cfg.prefix_cache = true;
    cfg.n_blocks = 400;
    cfg.max_seqs = 4;
    cfg = with_windows(cfg, 16);
    bench_open(b, &cfg);
    for (uint32_t again = 0; again < 2; again++) {
        r = bench_make(b, 3, 100, 30, 1, 0, "");
        run_alone(b, r);
        assert_int_equal(r->n_cached_tokens, again ? 96 : 0);
        request_release(r);
        for (uint32_t i = 0; i < 3; i++)
            scheduler_add(b->sched, others[i] = bench_make(b, 100 + 7 * i, 60, 100, 1, 0, ""));
        while (step(b))
            ;
        for (uint32_t i = 0; i < 3; i++) {
            bench_assert_answer(others[i], true);
            request_release(others[i]);
        }
    }
    bench_close(b);
}

/* A prefix whose window is gone is computed again. The request that notices keeps the window at the
 * end of the shared prefix, and the next one finds it. */
static void test_third_request_finds_the_end_of_the_shared_prefix(void **state)
{
    struct bench *b = &bench;
    struct scheduler_config cfg = bench_small;
    (void)state;
    cfg.prefix_cache = true;
    cfg.n_blocks = 400;
    cfg.max_seqs = 4;
    cfg = with_windows(cfg, 9);
    bench_open(b, &cfg);
    uint32_t found[3];
    for (uint32_t i = 0; i < 3; i++) { /* the first half of the prompts is the same */
        struct request *r = bench_make(b, 3 + 6 * i, 200, 10, 1, 0, "");
        run_alone(b, r);
        found[i] = r->n_cached_tokens;
        request_release(r);
        run_others(b, 3, 160);
    }
    assert_int_equal(found[0], 0);
    assert_int_equal(found[1], 0);
    assert_int_equal(found[2], 96);
    bench_close(b);
}

/* Choices share the window of the prompt. A last, partial block is copied in both pools. */
static void test_choices_share_the_window_and_copy_on_write(void **state)
{
    static const struct {
        uint32_t n_prompt, n_copies;
    } rows[] = {{61, 3}, {64, 0}, {65, 3}};
    struct bench *b = &bench;
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct scheduler_config cfg = with_windows(bench_small, 12);
        uint32_t n_copies[2] = {0, 0};
        bench_open(b, &cfg);
        struct request *r = bench_make(b, 1, rows[i].n_prompt, 40, 4, 0, "");
        scheduler_add(b->sched, r);
        while (step(b))
            for (uint32_t c = 0; c < b->plan.n_copies; c++)
                n_copies[b->plan.copies[c].is_window]++;
        assert_int_equal(n_copies[0], rows[i].n_copies);
        assert_int_equal(n_copies[1], rows[i].n_copies);
        bench_assert_answer(r, true);
        request_release(r);
        bench_close(b);
    }
}

/* Each step comes as the step before expected, also where a window passes a block. */
static void test_passed_blocks_do_not_change_the_expected_step(void **state)
{
    struct bench *b = &bench;
    struct scheduler_config cfg = with_windows(bench_small, 16);
    struct request *all[4];
    (void)state;
    bench_open(b, &cfg);
    b->looks_ahead = true;
    for (uint32_t i = 0; i < 4; i++)
        scheduler_add(b->sched, all[i] = bench_make(b, i, 10 + i, 110, 1, 0, ""));
    while (step(b))
        ;
    assert_true(b->n_kept > 100 && b->n_kept + 2 >= b->n_expected);
    for (uint32_t i = 0; i < 4; i++) {
        bench_assert_answer(all[i], true);
        request_release(all[i]);
    }
    bench_close(b);
}

static void test_windows_beyond_the_blocks_are_refused(void **state)
{
    struct scheduler *sched = NULL;
    struct error err;
    struct scheduler_config cfg = with_windows(bench_small, 16);
    (void)state;
    cfg.block_size = BLOCK;
    cfg.max_blocks_per_seq = 64;
    cfg.max_requests = 1;
    cfg.n_window_blocks = cfg.n_blocks + 1;
    assert_int_equal(scheduler_create(&cfg, &sched, &err), STATUS_INVALID_ARGUMENT);
    cfg.n_window_blocks = cfg.n_blocks;
    cfg.window_reach = 0;
    assert_int_equal(scheduler_create(&cfg, &sched, &err), STATUS_INVALID_ARGUMENT);
    assert_null(sched);
}

/* --- random schedules --- */

struct totals {
    uint64_t n_preemptions, n_hit_tokens, n_accepted, n_kept, n_crossings, n_copies;
};

static void disturb(struct bench *b, struct request *r)
{
    if (r->state == REQUEST_ENDED)
        return;
    switch (bench_below(8)) {
    case 0:
        scheduler_end_sequence(b->sched, &r->choices[bench_below(r->n_choices)]);
        break;
    case 1:
        scheduler_end_request(b->sched, r);
        break;
    case 2:
        scheduler_set_priority(b->sched, r, (int32_t)bench_below(3) - 1);
        break;
    default:
        scheduler_pause(b->sched, r, bench_below(3) == 0);
    }
}

static struct scheduler_config random_config(bool *out_drafts)
{
    struct scheduler_config cfg = {.max_rows = 2 + bench_below(60),
                                   .max_seqs = 4 + bench_below(6),
                                   .n_blocks = 16 + bench_below(bench_below(2) ? 60 : 300),
                                   .prefill_chunk_tokens = 1 + bench_below(64),
                                   .prefix_cache = bench_below(8) > 0};
    cfg.long_rope_after = bench_below(4) ? 0 : 40 + bench_below(60);
    *out_drafts = bench_below(2);
    cfg.n_draft_rows = *out_drafts ? 12 : 0;
    cfg = with_windows(cfg, 1 + bench_below(bench_below(2) ? 20 : 70));
    cfg.windows_are_chunks = bench_below(3) == 0;
    uint32_t more = cfg.n_blocks - cfg.n_window_blocks;
    cfg.n_window_blocks += bench_below((more < 20 ? more : 20) + 1);
    return cfg;
}

static void run_schedule(struct totals *totals)
{
    static const char *const callers[] = {"ann", "bob", "cid"};
    static struct request *all[MAX_LIVE];
    struct bench *b = &bench;
    struct scheduler_stats s;
    bool drafts;
    uint32_t n = 0, n_most = 4 + bench_below(20), n_seeds = 1 + bench_below(20);
    struct scheduler_config cfg = random_config(&drafts);
    bench_open(b, &cfg);
    b->sched->cfg.share_generated = bench_below(4) > 0;
    b->looks_ahead = !drafts;
    b->repeats = drafts;
    b->limits.draft_tokens = drafts ? 6 : 0;
    scheduler_set_row_cost(b->sched, drafts ? 1e6f : 8.0f);
    while (n < n_most || scheduler_any(b->sched)) {
        while (n < n_most && bench_below(3) == 0) {
            uint32_t room = b->limits.context_tokens, n_prompt = 1 + bench_below(110);
            n_prompt = n_prompt < room ? n_prompt : room - 1;
            all[n] = bench_make(b, bench_below(n_seeds), n_prompt, 1 + bench_below(60),
                                bench_below(3) ? 1 : 1 + bench_below(4),
                                (int32_t)bench_below(3) - 1, callers[bench_below(3)]);
            scheduler_add(b->sched, all[n++]);
        }
        if (n && bench_below(6) == 0)
            disturb(b, all[bench_below(n)]);
        if (!step(b) && n >= n_most)
            for (uint32_t i = 0; i < n; i++) {
                assert_true(all[i]->state != REQUEST_ACTIVE || all[i]->paused);
                scheduler_pause(b->sched, all[i], false);
            }
        totals->n_copies += b->plan.n_copies;
        assert_true(b->n_steps < 20000);
    }
    scheduler_get_stats(b->sched, &s);
    for (uint32_t i = 0; i < n; i++) {
        bench_assert_answer(all[i], false);
        request_release(all[i]);
    }
    totals->n_preemptions += s.n_preemptions;
    totals->n_hit_tokens += s.n_prefix_hit_tokens;
    totals->n_crossings += s.n_rope_crossings;
    totals->n_accepted += b->n_accepted;
    totals->n_kept += b->n_kept;
    bench_close(b);
}

/* SLUICE_SCHEDULES in the environment sets the number of schedules. */
static void test_random_schedules_read_the_window_of_their_tokens(void **state)
{
    const char *text = getenv("SLUICE_SCHEDULES");
    uint32_t n = text ? (uint32_t)strtoul(text, NULL, 10) : 1500;
    struct totals totals = {0};
    (void)state;
    for (uint32_t seed = 1; seed <= n; seed++) {
        bench_rng = seed * 2654435761u;
        run_schedule(&totals);
    }
    print_message("%u schedules: %llu preemptions, %llu tokens from the cache, %llu copies\n", n,
                  (unsigned long long)totals.n_preemptions, (unsigned long long)totals.n_hit_tokens,
                  (unsigned long long)totals.n_copies);
    assert_true(totals.n_preemptions > n && totals.n_hit_tokens > 20 * (uint64_t)n);
    assert_true(totals.n_crossings > n / 8 && totals.n_accepted > n && totals.n_kept > n);
    assert_true(totals.n_copies > n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_long_answer_holds_the_window_alone),
        cmocka_unit_test(test_a_new_chunk_frees_the_blocks_of_the_last_one),
        cmocka_unit_test(test_the_same_prompt_finds_its_end),
        cmocka_unit_test(test_the_end_of_a_prompt_outlasts_passed_blocks),
        cmocka_unit_test(test_third_request_finds_the_end_of_the_shared_prefix),
        cmocka_unit_test(test_choices_share_the_window_and_copy_on_write),
        cmocka_unit_test(test_passed_blocks_do_not_change_the_expected_step),
        cmocka_unit_test(test_windows_beyond_the_blocks_are_refused),
        cmocka_unit_test(test_random_schedules_read_the_window_of_their_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
