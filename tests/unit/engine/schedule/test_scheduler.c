/* Tests the scheduler under random traffic: every answer equals the answer of the request alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/request/sequence.h"
#include "tests/unit/engine/support/support_scheduler.h"

struct traffic {
    const char *name;
    struct scheduler_config cfg;
    uint32_t n_requests;
    uint32_t max_prompt, max_tokens, max_choices;
    uint32_t chaos; /* a cancel, pause or new priority every `chaos` steps on average; 0: none */
    bool expect_preemptions, expect_hits;
};

static const struct traffic traffics[] = {
    {"roomy",
     {.max_rows = 64, .max_seqs = 128, .n_blocks = 2000, .prefill_chunk_tokens = 16},
     100,
     100,
     40,
     1,
     0,
     false,
     false},
    {"places run short: a caller's several yield to another's one",
     {.max_rows = 64, .max_seqs = 6, .n_blocks = 2000, .prefill_chunk_tokens = 16},
     100,
     100,
     40,
     3,
     4,
     true,
     false},
    {"prefix cache",
     {.max_rows = 64,
      .max_seqs = 128,
      .n_blocks = 2000,
      .prefill_chunk_tokens = 16,
      .prefix_cache = true},
     200,
     100,
     40,
     3,
     0,
     false,
     true},
    {"small pool",
     {.max_rows = 64, .max_seqs = 16, .n_blocks = 40, .prefill_chunk_tokens = 16},
     200,
     100,
     90,
     1,
     0,
     true,
     false},
    {"small pool, choices, cache",
     {.max_rows = 64,
      .max_seqs = 16,
      .n_blocks = 40,
      .prefill_chunk_tokens = 16,
      .prefix_cache = true},
     200,
     100,
     90,
     4,
     0,
     true,
     true},
    {"few rows",
     {.max_rows = 7,
      .max_seqs = 16,
      .n_blocks = 16,
      .prefill_chunk_tokens = 7,
      .prefix_cache = true},
     120,
     60,
     40,
     2,
     0,
     true,
     true},
    {"one row at a time",
     {.max_rows = 1,
      .max_seqs = 4,
      .n_blocks = 20,
      .prefill_chunk_tokens = 1,
      .prefix_cache = true},
     40,
     30,
     20,
     2,
     0,
     true, /* a caller's second place goes to a caller without a place */
     true},
    {"chaos",
     {.max_rows = 48,
      .max_seqs = 12,
      .n_blocks = 30,
      .prefill_chunk_tokens = 16,
      .prefix_cache = true},
     400,
     100,
     90,
     4,
     2,
     true,
     true},
    {"chaos, no cache",
     {.max_rows = 48, .max_seqs = 12, .n_blocks = 30, .prefill_chunk_tokens = 16},
     400,
     100,
     90,
     4,
     2,
     true,
     false},
    {"prompts and answers cross longrope's border",
     {.max_rows = 64,
      .max_seqs = 128,
      .n_blocks = 2000,
      .prefill_chunk_tokens = 16,
      .long_rope_after = 64,
      .prefix_cache = true},
     200,
     100,
     90,
     4,
     0,
     false,
     true},
    {"longrope and chaos, a border within a block",
     {.max_rows = 48,
      .max_seqs = 12,
      .n_blocks = 30,
      .prefill_chunk_tokens = 16,
      .long_rope_after = 61,
      .prefix_cache = true},
     400,
     100,
     90,
     4,
     2,
     true,
     true},
    {"longrope without a cache",
     {.max_rows = 7,
      .max_seqs = 16,
      .n_blocks = 40,
      .prefill_chunk_tokens = 7,
      .long_rope_after = 41},
     120,
     60,
     40,
     2,
     0,
     true,
     false},
    {"one sequence fills the pool",
     {.max_rows = 32,
      .max_seqs = 6,
      .n_blocks = 13,
      .prefill_chunk_tokens = 32,
      .prefix_cache = true},
     100,
     103,
     104,
     3,
     3,
     true,
     true},
};

static void disturb(struct bench *b, struct request **all, uint32_t n)
{
    struct request *r = all[bench_below(n)];
    if (r->state == REQUEST_ENDED)
        return;
    uint32_t event = bench_below(8);
    if (event < 2 && scheduler_is_in_flight(r)) {
        bench_settle(b);
        if (r->state == REQUEST_ENDED)
            return;
    }
    switch (event) {
    case 0:
        scheduler_end_request(b->sched, r);
        break;
    case 1:
        scheduler_end_sequence(b->sched, &r->choices[bench_below(r->n_choices)]);
        break;
    case 2:
        scheduler_set_priority(b->sched, r, (int32_t)bench_below(3) - 1);
        break;
    default:
        scheduler_pause(b->sched, r, bench_below(3) == 0);
    }
}

static void run_traffic(const struct traffic *t, bool drafts, uint32_t max_flights,
                        uint64_t *n_preemptions, uint64_t *n_hits, uint64_t *n_accepted)
{
    struct bench *b = &bench;
    struct request **all = calloc(t->n_requests, sizeof(*all));
    static const char *const callers[] = {"ann", "bob", "cid"};
    struct scheduler_stats s;
    uint32_t n = 0;
    struct scheduler_config cfg = t->cfg;
    cfg.n_draft_rows = drafts ? 12 : 0;
    cfg.max_flights = max_flights;
    bench_open(b, &cfg);
    b->repeats = drafts;
    b->limits.draft_tokens = drafts ? 6 : 0;
    scheduler_set_row_cost(b->sched, drafts ? 1e6f : 8.0f); /* drafts whenever there is room */
    while (n < t->n_requests || scheduler_any(b->sched)) {
        while (n < t->n_requests && bench_below(3)) {
            uint32_t room = b->limits.context_tokens;
            uint32_t n_prompt = 1 + bench_below(t->max_prompt),
                     max_tokens = 1 + bench_below(t->max_tokens);
            n_prompt = n_prompt < room ? n_prompt : room - 1;
            all[n] = bench_make(b, bench_below(30), n_prompt, max_tokens,
                                1 + bench_below(t->max_choices), (int32_t)bench_below(3) - 1,
                                callers[bench_below(3)]);
            scheduler_add(b->sched, all[n++]);
        }
        if (t->chaos && n && bench_below(t->chaos) == 0)
            disturb(b, all, n);
        bool ran = bench_step(b);
        if (!ran && n == t->n_requests) /* only paused requests may wait now */
            for (uint32_t i = 0; i < n; i++) {
                assert_true(all[i]->state != REQUEST_ACTIVE || all[i]->paused);
                scheduler_pause(b->sched, all[i], false);
            }
        if (b->n_steps > 300000)
            fail_msg("%s: no end in sight", t->name);
    }
    scheduler_get_stats(b->sched, &s);
    for (uint32_t i = 0; i < n; i++) {
        bench_assert_answer(all[i], !t->chaos);
        request_release(all[i]);
    }
    if (!drafts || cfg.max_rows == 1)
        assert_int_equal(b->n_drafted, 0);
    *n_accepted += b->n_accepted;
    *n_preemptions += s.n_preemptions;
    *n_hits += s.n_prefix_hit_tokens;
    free(all);
    bench_close(b);
}

static void check_traffics(uint32_t max_flights, uint32_t n_seeds)
{
    for (size_t i = 0; i < sizeof(traffics) / sizeof(traffics[0]); i++) {
        const struct traffic *t = &traffics[i];
        uint64_t n_preemptions = 0, n_hits = 0, n_accepted = 0;
        for (bench_rng = 1; bench_rng < 300 * n_seeds; bench_rng += 300) {
            uint32_t seed = bench_rng;
            run_traffic(t, bench_rng / 300 % 2, max_flights, &n_preemptions, &n_hits, &n_accepted);
            bench_rng = seed;
        }
        assert_true(n_accepted > (max_flights == 1 ? 10 : 0) || t->cfg.max_rows == 1);
        /* with several in flight a request takes more steps, so more requests run at once */
        bool preempts = t->expect_preemptions || (n_preemptions && max_flights > 1);
        if ((n_preemptions > 0) != preempts || (n_hits > 0) != t->expect_hits)
            fail_msg("%s: %llu preemptions, %llu tokens from the cache", t->name,
                     (unsigned long long)n_preemptions, (unsigned long long)n_hits);
    }
}

static void test_random_traffic_every_answer_is_the_undisturbed_one(void **state)
{
    (void)state;
    check_traffics(1, 10);
}

/* Sequences in flight are neither scheduled again nor preempted, and lose no block. */
static void test_random_traffic_with_steps_in_flight(void **state)
{
    (void)state;
    check_traffics(2, 4);
    check_traffics(4, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_traffic_every_answer_is_the_undisturbed_one),
        cmocka_unit_test(test_random_traffic_with_steps_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
