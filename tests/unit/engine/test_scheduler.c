/* The scheduler under random traffic, with a model that is a hash: each KV place holds the hash of
 * all tokens up to it, read through the block tables as an executor would. So a wrong block, copy,
 * shared prefix, replay or draft changes tokens, and every request's answer can be told beforehand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/draft.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/step.h"

enum { VOCAB = 1000, MAX_BLOCKS = 4096, BLOCK = 8 };

struct bench {
    struct scheduler *sched;
    struct scheduler_config cfg;
    struct step_batch *batch;
    struct scheduler_plan plan;
    struct request_limits limits;
    struct sample_result results[256];
    uint64_t kv[MAX_BLOCKS * BLOCK];
    uint64_t written[MAX_BLOCKS * BLOCK]; /* step that wrote the place last */
    uint64_t n_steps;
    int64_t now;
    bool repeats; /* the model's answers mostly go round in circles: what drafts foretell */
    uint64_t n_drafted, n_accepted;
};

static struct bench bench;

static void open_bench(struct bench *b, const struct scheduler_config *given)
{
    struct error err;
    memset(b, 0, sizeof(*b));
    b->cfg = *given;
    b->cfg.block_size = BLOCK;
    b->cfg.max_blocks_per_seq = b->cfg.n_blocks < 64 ? b->cfg.n_blocks : 64;
    b->cfg.max_requests = 600;
    b->cfg.share_generated = true;
    b->limits = (struct request_limits){.vocab_size = VOCAB,
                                        .context_tokens = b->cfg.max_blocks_per_seq * BLOCK,
                                        .max_concurrent = b->cfg.max_seqs};
    struct step_limits limits = {b->cfg.max_rows, b->cfg.max_seqs, b->cfg.max_blocks_per_seq,
                                 b->cfg.n_draft_rows};
    assert_true(b->cfg.n_blocks <= MAX_BLOCKS && b->cfg.max_seqs <= 256);
    assert_int_equal(scheduler_create(&b->cfg, &b->sched, &err), 0);
    assert_int_equal(step_batch_create(&limits, &b->batch, &err), 0);
}

static void close_bench(struct bench *b)
{
    struct scheduler_stats s;
    scheduler_get_stats(b->sched, &s);
    assert_int_equal(s.n_blocks_free, b->cfg.n_blocks);
    assert_int_equal(s.n_queued + s.n_running + s.n_paused + s.n_used_slots, 0);
    assert_null(scheduler_any(b->sched));
    scheduler_destroy(b->sched);
    step_batch_destroy(b->batch);
}

static uint64_t mix(uint64_t h, uint32_t token)
{
    h = (h ^ token) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

/* After tokens whose hash is h and whose last is `last`. */
static uint32_t token_of(const struct bench *b, uint64_t h, uint32_t choice, uint32_t last)
{
    uint64_t drawn = mix(h, 7777 + choice) >> 20;
    if (b->repeats && drawn % 5)
        return (last + 1) % 7;
    return (uint32_t)drawn % VOCAB;
}

static uint64_t *place(struct bench *b, const struct step_batch *batch, uint32_t s, uint32_t at)
{
    uint32_t block = batch->block_tables[s * batch->limits.max_blocks_per_seq + at / BLOCK];
    assert_true(block < b->cfg.n_blocks);
    return &b->kv[block * BLOCK + at % BLOCK];
}

/* Draws from sample i's row, when nothing that its attention would see has been overwritten. */
static void draw(struct bench *b, uint32_t i)
{
    const struct step_batch *t = b->batch;
    const struct sequence *seq = b->plan.samples[i];
    uint32_t row = t->sample_rows[i], s = t->seq_of_row[row];
    uint64_t h = 1;
    for (uint32_t at = 0; at <= t->positions[row]; at++) {
        uint32_t n = sequence_n_tokens(seq);
        h = mix(h, at < n ? sequence_token(seq, at) : seq->draft->ids[at - n]);
        assert_true(*place(b, t, s, at) == h);
    }
    b->results[i] = (struct sample_result){.id = token_of(b, h, seq->choice, t->token_ids[row])};
}

/* What an executor does, with checks of everything the batch promises. */
static void execute(struct bench *b)
{
    const struct step_batch *t = b->batch;
    assert_true(t->n_rows <= b->cfg.max_rows && t->n_seqs <= b->cfg.max_seqs);
    for (uint32_t i = 0; i < b->plan.n_copies; i++)
        memcpy(&b->kv[b->plan.copies[i].to * BLOCK], &b->kv[b->plan.copies[i].from * BLOCK],
               BLOCK * sizeof(b->kv[0]));
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        assert_true(t->seq_start[s + 1] > t->seq_start[s]);
        assert_true(t->seq_start[s + 1] - t->seq_start[s] <=
                    b->cfg.prefill_chunk_tokens + b->cfg.n_draft_rows);
        for (uint32_t r = t->seq_start[s]; r < t->seq_start[s + 1]; r++) {
            uint32_t at = t->positions[r];
            assert_int_equal(t->seq_of_row[r], s);
            assert_true(r == t->seq_start[s] || at == t->positions[r - 1] + 1);
            assert_ptr_equal(place(b, t, s, at), &b->kv[t->kv_slots[r]]);
            assert_true(b->written[t->kv_slots[r]] != b->n_steps); /* by one row alone */
            b->written[t->kv_slots[r]] = b->n_steps;
            b->kv[t->kv_slots[r]] = mix(at ? *place(b, t, s, at - 1) : 1, t->token_ids[r]);
        }
    }
    assert_int_equal(t->n_sample_rows, b->plan.n_samples);
    assert_true(b->plan.n_drafted <= b->cfg.n_draft_rows);
    for (uint32_t i = 0; i < b->plan.n_samples; i++)
        draw(b, i);
}

/* One step; finished choices end. False where nothing could run. */
static bool step(struct bench *b)
{
    b->n_steps++;
    b->now += 1000;
    if (!scheduler_schedule(b->sched, b->batch, b->now, &b->plan))
        return false;
    execute(b);
    b->n_drafted += b->plan.n_drafted;
    for (uint32_t i = 0; i < b->plan.n_samples - b->plan.n_drafted; i++)
        for (uint32_t at = i; (at = scheduler_take(b->sched, at, &b->results[at])) != 0;)
            b->n_accepted++;
    scheduler_commit(b->sched);
    for (uint32_t i = 0; i < b->plan.n_samples; i++) {
        struct sequence *seq = b->plan.samples[i];
        if (seq->n_ids == seq->max_ids)
            scheduler_end_sequence(b->sched, seq);
    }
    return true;
}

static struct request *make(struct bench *b, uint32_t seed, uint32_t n_prompt, uint32_t max_tokens,
                            uint32_t n, int32_t priority, const char *caller)
{
    static uint32_t prompt[MAX_BLOCKS];
    struct engine_request req;
    struct request *r;
    struct error err;
    engine_request_init(&req);
    for (uint32_t i = 0; i < n_prompt; i++) /* the first half is shared by many seeds */
        prompt[i] = i < n_prompt / 2 ? i * (1 + seed % 3) : seed * 31 + i * i;
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] %= VOCAB;
    req.prompt_ids = prompt;
    req.n_prompt_ids = n_prompt;
    req.stopping.max_tokens = max_tokens;
    req.sampling.n = n;
    req.priority = priority;
    req.caller = caller;
    req.cache_salt = seed % 2 ? "one" : "other";
    if (request_check(&req, &b->limits, &err) || request_create(&req, &b->limits, &r, &err))
        fail_msg("%s", err.message);
    return r;
}

/* The answer that the request must get whatever happens around it. */
static void assert_answer(const struct request *r, bool whole)
{
    for (uint32_t c = 0; c < r->n_choices; c++) {
        uint64_t h = 1;
        for (uint32_t i = 0; i < r->n_prompt; i++)
            h = mix(h, r->prompt[i]);
        if (whole)
            assert_int_equal(r->choices[c].n_ids, r->max_tokens);
        for (uint32_t i = 0; i < r->choices[c].n_ids; i++) {
            uint32_t last = i ? r->choices[c].ids[i - 1] : r->prompt[r->n_prompt - 1];
            assert_int_equal(r->choices[c].ids[i], token_of(&bench, h, c, last));
            h = mix(h, r->choices[c].ids[i]);
        }
    }
}

static uint32_t rng = 3;
static uint32_t below(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (rng >> 8) % n;
}

struct traffic {
    const char *name;
    struct scheduler_config cfg;
    uint32_t n_requests;
    uint32_t max_prompt, max_tokens, max_choices;
    uint32_t chaos; /* cancels, pauses and new priorities: one in so many steps; 0: none */
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
     true, /* a caller's second place is taken for another's first */
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
    struct request *r = all[below(n)];
    if (r->state == REQUEST_ENDED)
        return;
    switch (below(8)) {
    case 0:
        scheduler_end_request(b->sched, r);
        break;
    case 1:
        scheduler_end_sequence(b->sched, &r->choices[below(r->n_choices)]);
        break;
    case 2:
        scheduler_set_priority(b->sched, r, (int32_t)below(3) - 1);
        break;
    default:
        scheduler_pause(b->sched, r, below(3) == 0);
    }
}

static void run_traffic(const struct traffic *t, bool drafts, uint64_t *n_preemptions,
                        uint64_t *n_hits, uint64_t *n_accepted)
{
    struct bench *b = &bench;
    struct request **all = calloc(t->n_requests, sizeof(*all));
    static const char *const callers[] = {"ann", "bob", "cid"};
    struct scheduler_stats s;
    uint32_t n = 0;
    struct scheduler_config cfg = t->cfg;
    cfg.n_draft_rows = drafts ? 12 : 0;
    open_bench(b, &cfg);
    b->repeats = drafts;
    b->limits.draft_tokens = drafts ? 6 : 0;
    scheduler_set_row_cost(b->sched, drafts ? 1e6f : 8.0f); /* drafts whenever there is room */
    while (n < t->n_requests || scheduler_any(b->sched)) {
        while (n < t->n_requests && below(3)) {
            uint32_t room = b->limits.context_tokens;
            uint32_t n_prompt = 1 + below(t->max_prompt), max_tokens = 1 + below(t->max_tokens);
            n_prompt = n_prompt < room ? n_prompt : room - 1;
            all[n] = make(b, below(30), n_prompt, max_tokens, 1 + below(t->max_choices),
                          (int32_t)below(3) - 1, callers[below(3)]);
            scheduler_add(b->sched, all[n++]);
        }
        if (t->chaos && n && below(t->chaos) == 0)
            disturb(b, all, n);
        bool ran = step(b);
        if (!ran && n == t->n_requests) /* only what is paused may stand still */
            for (uint32_t i = 0; i < n; i++) {
                assert_true(all[i]->state != REQUEST_ACTIVE || all[i]->paused);
                scheduler_pause(b->sched, all[i], false);
            }
        if (b->n_steps > 300000)
            fail_msg("%s: no end in sight", t->name);
    }
    scheduler_get_stats(b->sched, &s);
    for (uint32_t i = 0; i < n; i++) {
        assert_answer(all[i], !t->chaos);
        request_release(all[i]);
    }
    if (!drafts || cfg.max_rows == 1)
        assert_int_equal(b->n_drafted, 0);
    *n_accepted += b->n_accepted;
    *n_preemptions += s.n_preemptions;
    *n_hits += s.n_prefix_hit_tokens;
    free(all);
    close_bench(b);
}

static void test_random_traffic_every_answer_is_the_undisturbed_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(traffics) / sizeof(traffics[0]); i++) {
        const struct traffic *t = &traffics[i];
        uint64_t n_preemptions = 0, n_hits = 0, n_accepted = 0;
        for (rng = 1; rng < 3000; rng += 300) {
            uint32_t seed = rng;
            run_traffic(t, rng / 300 % 2, &n_preemptions, &n_hits, &n_accepted);
            rng = seed;
        }
        assert_true(n_accepted > 20 || t->cfg.max_rows == 1);
        if ((n_preemptions > 0) != t->expect_preemptions || (n_hits > 0) != t->expect_hits)
            fail_msg("%s: %llu preemptions, %llu tokens from the cache", t->name,
                     (unsigned long long)n_preemptions, (unsigned long long)n_hits);
    }
}

static const struct scheduler_config small = {
    .max_rows = 64, .max_seqs = 8, .n_blocks = 64, .prefill_chunk_tokens = 16};

static void test_decodes_come_before_prefill_and_chunks_fill_the_budget(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[3];
    struct scheduler_config cfg = small;
    cfg.max_rows = 20;
    open_bench(b, &cfg);
    for (uint32_t i = 0; i < 2; i++)
        scheduler_add(b->sched, r[i] = make(b, i, 4, 50, 1, 0, ""));
    assert_true(step(b));
    scheduler_add(b->sched, r[2] = make(b, 2, 100, 5, 1, 0, ""));
    for (uint32_t i = 0; i < 6; i++) {
        assert_true(step(b));
        assert_int_equal(b->plan.n_decode_rows, 2);
        assert_int_equal(b->plan.n_decode_ready, 2);
        assert_int_equal(b->plan.n_prefill_rows, 16); /* the chunk, within 20 − 2 rows */
    }
    assert_int_equal(r[2]->choices[0].n_computed, 96);
    assert_int_equal(r[0]->choices[0].n_ids, 7);
    for (uint32_t i = 0; i < 3; i++) {
        scheduler_end_request(b->sched, r[i]);
        request_release(r[i]);
    }
    close_bench(b);
}

static void test_preemption_takes_the_least_lost_work(void **state)
{
    (void)state;
    struct bench *b = &bench;
    static const uint32_t lengths[] = {40, 20, 60};
    struct request *r[3];
    struct scheduler_config cfg = small;
    cfg.n_blocks = 18; /* 40, 20 and 60 tokens take 5, 3 and 8 blocks, and 3 more soon */
    open_bench(b, &cfg);
    for (uint32_t i = 0; i < 3; i++)
        scheduler_add(b->sched, r[i] = make(b, i, lengths[i], 30, 1, 0, ""));
    while (!r[0]->n_preemptions && !r[1]->n_preemptions && !r[2]->n_preemptions)
        assert_true(step(b));
    assert_int_equal(r[1]->n_preemptions,
                     1); /* the shortest, though it is older than the longest */
    assert_int_equal(r[0]->n_preemptions + r[2]->n_preemptions, 0);
    while (scheduler_any(b->sched))
        assert_true(step(b));
    for (uint32_t i = 0; i < 3; i++) {
        assert_answer(r[i], true);
        request_release(r[i]);
    }
    close_bench(b);
}

static void test_preemption_spares_higher_priority(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[2];
    struct scheduler_config cfg = small;
    cfg.n_blocks = 12;
    open_bench(b, &cfg);
    scheduler_add(b->sched, r[0] = make(b, 0, 60, 30, 1, 0, "")); /* older and longer */
    scheduler_add(b->sched, r[1] = make(b, 1, 10, 50, 1, 5, ""));
    while (!r[0]->n_preemptions && scheduler_any(b->sched))
        assert_true(step(b));
    assert_int_equal(r[0]->n_preemptions, 1);
    assert_int_equal(r[1]->n_preemptions, 0);
    while (scheduler_any(b->sched))
        assert_true(step(b));
    for (uint32_t i = 0; i < 2; i++)
        request_release(r[i]);
    close_bench(b);
}

static void test_queue_order_priority_then_arrival(void **state)
{
    (void)state;
    enum { N = 12 };
    struct bench *b = &bench;
    struct request *r[N], *started[N];
    uint32_t n_started = 0;
    struct scheduler_config cfg = small;
    cfg.max_seqs = 1;
    open_bench(b, &cfg);
    for (uint32_t i = 0; i < N; i++)
        scheduler_add(b->sched, r[i] = make(b, i, 4, 2, 1, (int32_t)(i % 3), ""));
    scheduler_set_priority(b->sched, r[11], -1);
    while (step(b))
        for (uint32_t i = 0; i < b->plan.n_started; i++)
            started[n_started++] = b->plan.started[i];
    assert_int_equal(n_started, N);
    assert_ptr_equal(started[N - 1], r[11]);
    for (uint32_t i = 1; i < N; i++)
        assert_true(started[i - 1]->priority > started[i]->priority ||
                    (started[i - 1]->priority == started[i]->priority &&
                     started[i - 1]->arrival < started[i]->arrival));
    for (uint32_t i = 0; i < N; i++)
        request_release(r[i]);
    close_bench(b);
}

/* A caller with 60 requests in the queue does not make another wait for them; and over time both
 * get the same tokens, though one's requests are four times as long. */
static void test_fairness_callers_share_tokens(void **state)
{
    (void)state;
    enum { N = 60, M = 15 };
    struct bench *b = &bench;
    struct request *greedy[N], *modest[M];
    struct scheduler_config cfg = small;
    uint64_t tokens[2] = {0};
    cfg.max_seqs = 1;
    open_bench(b, &cfg);
    for (uint32_t i = 0; i < N; i++)
        scheduler_add(b->sched, greedy[i] = make(b, i, 40, 40, 1, 0, "greedy"));
    for (uint32_t i = 0; i < M; i++)
        scheduler_add(b->sched, modest[i] = make(b, i, 160, 160, 1, 0, "modest"));
    while (modest[M - 1]->state == REQUEST_WAITING) {
        assert_true(step(b));
        for (uint32_t i = 0; i < b->plan.n_started; i++) {
            const struct request *r = b->plan.started[i];
            tokens[r->caller[0] == 'm'] += r->n_prompt + r->max_tokens;
        }
        uint64_t apart = tokens[0] > tokens[1] ? tokens[0] - tokens[1] : tokens[1] - tokens[0];
        assert_true(apart <= 1024 + 320 + 80); /* a quantum and a request of each */
    }
    while (scheduler_any(b->sched))
        assert_true(step(b));
    for (uint32_t i = 0; i < N; i++)
        request_release(greedy[i]);
    for (uint32_t i = 0; i < M; i++)
        request_release(modest[i]);
    close_bench(b);
}

static uint32_t n_ready(struct bench *b)
{
    struct scheduler_stats s;
    scheduler_get_stats(b->sched, &s);
    return s.n_ready;
}

/* A stall is progress that stands still while requests are ready: what waits for the place of a
 * paused one is not. */
static void test_ready_when_paused_ones_hold_every_place_then_none_is(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *held[2], *queued;
    struct scheduler_config cfg = small;
    cfg.max_seqs = 2;
    open_bench(b, &cfg);
    for (uint32_t i = 0; i < 2; i++)
        scheduler_add(b->sched, held[i] = make(b, i, 4, 50, 1, 0, ""));
    assert_int_equal(n_ready(b), 2);
    while (held[0]->choices[0].n_ids < 6 || held[1]->choices[0].n_ids < 6)
        assert_true(step(b));
    for (uint32_t i = 0; i < 2; i++)
        scheduler_pause(b->sched, held[i], true);
    scheduler_add(b->sched, queued = make(b, 2, 4, 5, 1, 0, ""));
    assert_false(step(b));
    assert_int_equal(n_ready(b), 0);
    scheduler_pause(b->sched, held[0], false);
    assert_int_equal(n_ready(b), 2); /* the one that goes on, and the one behind it */
    scheduler_pause(b->sched, held[1], false);
    while (step(b))
        ;
    for (uint32_t i = 0; i < 2; i++)
        request_release(held[i]);
    request_release(queued);
    close_bench(b);
}

static void test_paused_requests_never_block_others(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *big, *little;
    struct scheduler_config cfg = small;
    cfg.n_blocks = 10;
    open_bench(b, &cfg);
    scheduler_add(b->sched, big = make(b, 0, 60, 19, 1, 9, ""));
    while (big->choices[0].n_ids < 15)
        assert_true(step(b));
    assert_int_equal(n_ready(b), 1);
    scheduler_pause(b->sched, big, true);
    assert_false(step(b));
    assert_int_equal(n_ready(b), 0); /* standing still is right */
    scheduler_add(b->sched, little = make(b, 1, 50, 20, 1, -5, ""));
    while (little->state != REQUEST_ENDED)
        assert_true(
            step(b)); /* takes the blocks of the paused one, though its priority is higher */
    assert_answer(little, true);
    assert_true(big->n_preemptions > 0);
    assert_false(step(b));
    scheduler_pause(b->sched, big, false);
    while (step(b))
        ;
    assert_answer(big, true);
    request_release(big);
    request_release(little);
    close_bench(b);
}

static void test_deadlines_queue_prefill_and_decode(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[4], *late;
    struct scheduler_config cfg = small;
    uint32_t n_late = 0;
    cfg.max_seqs = 2;
    open_bench(b, &cfg);
    assert_true(scheduler_next_deadline(b->sched) == INT64_MAX);
    for (uint32_t i = 0; i < 4; i++) { /* decodes, is in prefill, waits, waits without a deadline */
        r[i] = make(b, i, i == 1 ? 200 : 4, 100, 1, 0, "");
        r[i]->deadline_ns = i < 3 ? 5000 - i : 0;
        scheduler_add(b->sched, r[i]);
    }
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(step(b));
        assert_null(scheduler_expired(b->sched, b->now));
    }
    assert_true(scheduler_next_deadline(b->sched) == 4998);
    assert_int_equal(r[2]->state, REQUEST_WAITING);
    while ((late = scheduler_expired(b->sched, 5000))) {
        assert_true(late != r[3]);
        scheduler_end_request(b->sched, late);
        n_late++;
    }
    assert_int_equal(n_late, 3);
    assert_true(scheduler_next_deadline(b->sched) == INT64_MAX);
    while (step(b))
        ;
    assert_answer(r[3], true);
    for (uint32_t i = 0; i < 4; i++)
        request_release(r[i]);
    close_bench(b);
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
        open_bench(b, &small);
        scheduler_add(b->sched, r = make(b, 0, rows[i].n_prompt, 10, n_choices, 0, ""));
        while (r->choices[n_choices - 1].n_ids < 2) {
            assert_true(step(b));
            n_copies += b->plan.n_copies;
            n_prefill_rows += b->plan.n_prefill_rows;
            for (uint32_t c = 1; c < n_choices; c++)
                assert_int_equal(r->choices[c].n_ids, r->choices[0].n_ids);
        }
        scheduler_get_stats(b->sched, &s);
        assert_int_equal(s.n_blocks - s.n_blocks_free, rows[i].n_full + n_choices);
        assert_int_equal(n_copies, rows[i].n_copies);
        assert_int_equal(n_prefill_rows, rows[i].n_prompt);
        while (step(b))
            ;
        assert_answer(r, true);
        request_release(r);
        close_bench(b);
    }
}

/* Blocks taken for drafts that were wrong are given back with the step. */
static void test_drafts_hold_no_blocks(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct scheduler_config cfg = small;
    struct request *r;
    uint32_t n_behind = 0;
    cfg.n_draft_rows = 12;
    open_bench(b, &cfg);
    scheduler_set_row_cost(b->sched, 1e6f);
    b->repeats = true;
    b->limits.draft_tokens = 12;
    scheduler_add(b->sched, r = make(b, 3, 30, 300, 1, 0, ""));
    while (r->choices[0].n_ids < 290) {
        struct scheduler_stats s;
        const struct sequence *seq = &r->choices[0];
        uint32_t end;
        assert_true(step(b));
        end = b->batch->positions[b->batch->n_rows - 1] / BLOCK + 1;
        scheduler_get_stats(b->sched, &s);
        assert_int_equal(s.n_blocks - s.n_blocks_free, (seq->n_computed + BLOCK - 1) / BLOCK);
        n_behind += end > s.n_blocks - s.n_blocks_free;
    }
    assert_true(n_behind > 5 && b->n_accepted > 50);
    while (step(b))
        ;
    assert_answer(r, true);
    request_release(r);
    close_bench(b);
}

/* Equal prompts that are computed side by side: when a block is whole, one copy of it stays. */
static void test_equal_blocks_computed_at_once_become_one(void **state)
{
    (void)state;
    struct bench *b = &bench;
    struct request *r[3];
    struct scheduler_config cfg = small;
    struct scheduler_stats s;
    cfg.prefix_cache = true;
    open_bench(b, &cfg);
    for (uint32_t i = 0; i < 3; i++)
        scheduler_add(b->sched, r[i] = make(b, 4, 61, 10, 1, 0, ""));
    while (r[2]->choices[0].n_ids < 2)
        assert_true(step(b));
    scheduler_get_stats(b->sched, &s);
    assert_int_equal(s.n_prefix_hit_tokens, 0);
    assert_int_equal(s.n_blocks - s.n_blocks_free, 7 + 3);
    while (step(b))
        ;
    for (uint32_t i = 0; i < 3; i++) {
        assert_answer(r[i], true);
        request_release(r[i]);
    }
    close_bench(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_traffic_every_answer_is_the_undisturbed_one),
        cmocka_unit_test(test_decodes_come_before_prefill_and_chunks_fill_the_budget),
        cmocka_unit_test(test_preemption_takes_the_least_lost_work),
        cmocka_unit_test(test_preemption_spares_higher_priority),
        cmocka_unit_test(test_queue_order_priority_then_arrival),
        cmocka_unit_test(test_fairness_callers_share_tokens),
        cmocka_unit_test(test_paused_requests_never_block_others),
        cmocka_unit_test(test_ready_when_paused_ones_hold_every_place_then_none_is),
        cmocka_unit_test(test_deadlines_queue_prefill_and_decode),
        cmocka_unit_test(test_choices_share_the_prompt_and_copy_on_write),
        cmocka_unit_test(test_drafts_hold_no_blocks),
        cmocka_unit_test(test_equal_blocks_computed_at_once_become_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
