#include "tests/unit/engine/support/support_scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/model/step.h"
#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

enum { VOCAB = 1000 };

struct bench bench;

const struct scheduler_config bench_small = {
    .max_rows = 64, .max_seqs = 8, .n_blocks = 64, .prefill_chunk_tokens = 16};

void bench_open(struct bench *b, const struct scheduler_config *given)
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
                                 b->cfg.n_draft_rows, b->cfg.n_window_blocks > 0};
    assert_true(b->cfg.n_blocks <= MAX_BLOCKS && b->cfg.max_seqs <= 256);
    assert_int_equal(scheduler_create(&b->cfg, &b->sched, &err), 0);
    b->cfg.max_flights = b->cfg.max_flights ? b->cfg.max_flights : 1;
    assert_true(b->cfg.max_flights <= BENCH_MOST_FLIGHTS);
    for (uint32_t i = 0; i < b->cfg.max_flights; i++)
        assert_int_equal(step_batch_create(&limits, &b->flights[i].batch, &err), 0);
    b->batch = b->flights[0].batch;
    assert_int_equal(step_batch_create(&limits, &b->expected, &err), 0);
}

void bench_close(struct bench *b)
{
    struct scheduler_stats s;
    scheduler_get_stats(b->sched, &s);
    assert_int_equal(s.n_blocks_free, b->cfg.n_blocks);
    assert_int_equal(s.n_window_blocks_free, b->cfg.n_window_blocks);
    assert_int_equal(s.n_queued + s.n_running + s.n_paused + s.n_used_slots, 0);
    assert_null(scheduler_any(b->sched));
    scheduler_destroy(b->sched);
    for (uint32_t i = 0; i < b->cfg.max_flights; i++)
        step_batch_destroy(b->flights[i].batch);
    step_batch_destroy(b->expected);
}

static uint64_t mix(uint64_t h, uint32_t token)
{
    h = (h ^ token) * 0x9E3779B97F4A7C15ull;
    return h ^ h >> 29;
}

/* The token as longrope's table turns it: each table gives other K and V. */
static uint32_t turned(uint32_t token, uint32_t table)
{
    return token + table * VOCAB;
}

/* The table by which a sequence of n tokens turns all its positions. */
static uint32_t table_of(const struct bench *b, uint32_t n)
{
    return b->cfg.long_rope_after && n > b->cfg.long_rope_after;
}

/* Returns the token that the simulated model draws. `h` is the hash of all tokens so far, and
 * `last` is the last of them. */
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

/* The place of a window's position. */
static uint64_t *window_place(struct bench *b, const struct step_batch *batch, uint32_t s,
                              uint32_t at)
{
    uint32_t block = batch->window_tables[s * batch->limits.max_blocks_per_seq + at / BLOCK];
    assert_true(block < b->cfg.n_window_blocks);
    return &b->window_kv[block * BLOCK + at % BLOCK];
}

/* The first position that a row at position `at` sees through its window. */
static uint32_t window_begin(const struct bench *b, uint32_t at)
{
    if (b->cfg.windows_are_chunks)
        return at - at % b->cfg.window_reach;
    return at + 1 > b->cfg.window_reach ? at + 1 - b->cfg.window_reach : 0;
}

/* Draws the token of sample i. Checks first that no KV place that its row attends to was
 * overwritten. */
static void draw(struct bench *b, uint32_t i)
{
    const struct step_batch *t = b->batch;
    const struct sequence *seq = b->plan.samples[i];
    uint32_t row = t->sample_rows[i], s = t->seq_of_row[row];
    uint32_t table = table_of(b, t->positions[row] + 1);
    uint64_t h = 1;
    for (uint32_t at = 0; at <= t->positions[row]; at++) {
        uint32_t n = sequence_n_tokens(seq);
        h = mix(h, turned(at < n ? sequence_token(seq, at) : seq->draft->ids[at - n], table));
        assert_true(*place(b, t, s, at) == h);
        if (b->cfg.n_window_blocks && at >= window_begin(b, t->positions[row]))
            assert_true(*window_place(b, t, s, at) == h);
    }
    b->results[i] = (struct sample_result){.id = token_of(b, h, seq->choice, t->token_ids[row])};
}

/* Writes the row's position of the window. Every position that the row sees must be there. Entries
 * before the window name any block. */
static void write_window(struct bench *b, uint32_t s, uint32_t r)
{
    const struct step_batch *t = b->batch;
    uint32_t at = t->positions[r];
    for (uint32_t i = 0; b->cfg.n_window_blocks && i < at; i++)
        if (i >= window_begin(b, at))
            assert_true(*window_place(b, t, s, i) == *place(b, t, s, i));
        else
            (void)window_place(b, t, s, i);
    if (!b->cfg.n_window_blocks)
        return;
    assert_ptr_equal(window_place(b, t, s, at), &b->window_kv[t->window_slots[r]]);
    assert_true(b->window_written[t->window_slots[r]] != b->n_steps);
    b->window_written[t->window_slots[r]] = b->n_steps;
    b->window_kv[t->window_slots[r]] = b->kv[t->kv_slots[r]];
}

/* Acts as an executor, and checks every promise of the batch. */
static void execute(struct bench *b)
{
    const struct step_batch *t = b->batch;
    assert_true(t->n_rows <= b->cfg.max_rows && t->n_seqs <= b->cfg.max_seqs);
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        assert_true(t->seq_start[s + 1] > t->seq_start[s]);
        assert_true(t->seq_start[s + 1] - t->seq_start[s] <=
                    b->cfg.prefill_chunk_tokens + b->cfg.n_draft_rows);
        for (uint32_t r = t->seq_start[s]; r < t->seq_start[s + 1]; r++) {
            uint32_t at = t->positions[r];
            assert_int_equal(t->seq_of_row[r], s);
            assert_true(r == t->seq_start[s] || at == t->positions[r - 1] + 1);
            assert_ptr_equal(place(b, t, s, at), &b->kv[t->kv_slots[r]]);
            /* only one row writes each KV place */
            assert_true(b->written[t->kv_slots[r]] != b->n_steps);
            b->written[t->kv_slots[r]] = b->n_steps;
            b->kv[t->kv_slots[r]] =
                mix(at ? *place(b, t, s, at - 1) : 1, turned(t->token_ids[r], t->rope_tables[r]));
            write_window(b, s, r);
        }
    }
    assert_int_equal(t->n_sample_rows, b->plan.n_samples);
    assert_true(b->plan.n_drafted <= b->cfg.n_draft_rows);
    for (uint32_t i = 0; i < b->plan.n_samples; i++)
        draw(b, i);
}

/* --- looking ahead --- */

static void copy_u32(uint32_t *to, const uint32_t *from, size_t n)
{
    memcpy(to, from, n * sizeof(*to));
}

static void keep_expected(struct bench *b)
{
    const struct step_batch *t = b->batch;
    struct step_batch *e = b->expected;
    e->n_rows = t->n_rows;
    copy_u32(e->positions, t->positions, t->n_rows);
    copy_u32(e->kv_slots, t->kv_slots, t->n_rows);
    copy_u32(e->seq_of_row, t->seq_of_row, t->n_rows);
    copy_u32(e->rope_tables, t->rope_tables, t->n_rows);
    copy_u32(e->state_reads, t->state_reads, t->n_rows);
    copy_u32(e->state_writes, t->state_writes, t->n_rows);
    copy_u32(e->sample_rows, t->sample_rows, t->n_rows);
    copy_u32(e->seq_start, t->seq_start, t->n_seqs + 1);
    copy_u32(e->block_tables, t->block_tables, t->n_seqs * t->limits.max_blocks_per_seq);
    if (!b->cfg.n_window_blocks)
        return;
    copy_u32(e->window_slots, t->window_slots, t->n_rows);
    copy_u32(e->window_tables, t->window_tables, t->n_seqs * t->limits.max_blocks_per_seq);
}

/* Looks ahead one step, and checks that the scheduler's statistics do not change. */
static void look_ahead(struct bench *b)
{
    struct scheduler_stats before, after;
    memset(&before, 0, sizeof(before));
    memset(&after, 0, sizeof(after));
    scheduler_get_stats(b->sched, &before);
    b->is_expected = scheduler_schedule_ahead(b->sched, b->batch);
    scheduler_get_stats(b->sched, &after);
    assert_memory_equal(&before, &after, sizeof(before));
    assert_false(b->batch->is_ahead);
    b->n_expected += b->is_expected;
    if (b->is_expected)
        keep_expected(b);
    else
        assert_int_equal(b->batch->n_rows, 0);
}

static void assert_u32(const uint32_t *a, const uint32_t *b, size_t n)
{
    assert_memory_equal(a, b, n * sizeof(*a));
}

/* Checks that all data sent to the device during the step before belong to this step. */
static void check_kept(struct bench *b)
{
    const struct step_batch *t = b->batch, *e = b->expected;
    if (!t->is_ahead)
        return;
    b->n_kept++;
    assert_true(b->is_expected);
    assert_true(t->n_rows == e->n_rows && t->n_seqs == e->n_rows && t->n_sample_rows == e->n_rows);
    assert_u32(t->positions, e->positions, t->n_rows);
    assert_u32(t->kv_slots, e->kv_slots, t->n_rows);
    assert_u32(t->seq_of_row, e->seq_of_row, t->n_rows);
    assert_u32(t->rope_tables, e->rope_tables, t->n_rows);
    if (b->cfg.n_state_slots) {
        assert_u32(t->state_reads, e->state_reads, t->n_rows);
        assert_u32(t->state_writes, e->state_writes, t->n_rows);
    }
    assert_u32(t->sample_rows, e->sample_rows, t->n_rows);
    assert_u32(t->seq_start, e->seq_start, t->n_seqs + 1);
    for (uint32_t s = 0; s < t->n_seqs; s++) {
        size_t at = (size_t)s * t->limits.max_blocks_per_seq;
        const uint32_t *table = kv_cache_table(b->sched->kv, b->plan.samples[s]->slot);
        uint32_t n = t->positions[s] / BLOCK + 1;
        assert_u32(e->block_tables + at, table, n);
        assert_u32(t->block_tables + at, table, n);
        if (b->cfg.n_window_blocks) {
            uint32_t first = window_begin(b, t->positions[s]) / BLOCK;
            table = kv_cache_table(b->sched->windows.kv, b->plan.samples[s]->slot);
            assert_u32(e->window_tables + at + first, table + first, n - first);
            assert_u32(t->window_tables + at + first, table + first, n - first);
            assert_int_equal(t->window_slots[s], e->window_slots[s]);
        }
        assert_true(t->is_generated[s]);
    }
}

/* --- steps in flight --- */

/* Runs the oldest step. */
static void land(struct bench *b)
{
    const struct bench_flight *f = &b->flights[b->first_flight];
    b->n_steps++;
    b->batch = f->batch;
    b->plan = f->plan;
    check_kept(b);
    if (b->on_schedule)
        b->on_schedule(b);
    execute(b);
    b->is_expected = false;
    if (b->looks_ahead)
        look_ahead(b);
    b->n_drafted += b->plan.n_drafted;
    for (uint32_t i = 0; i < b->plan.n_samples - b->plan.n_drafted; i++)
        for (uint32_t at = i; (at = scheduler_take(b->sched, at, &b->results[at])) != 0;)
            b->n_accepted++;
    scheduler_commit(b->sched);
    b->first_flight = (b->first_flight + 1) % b->cfg.max_flights;
    b->n_flights--;
    for (uint32_t i = 0; i < b->plan.n_samples; i++) {
        struct sequence *seq = b->plan.samples[i];
        if (seq->n_ids == seq->max_ids)
            scheduler_end_sequence(b->sched, seq);
    }
}

static void make_moves(struct bench *b, const struct scheduler_plan *plan)
{
    if (!plan->n_copies && !plan->n_moves)
        return;
    bench_settle(b);
    if (b->on_moves)
        b->on_moves(b, plan);
    for (uint32_t i = 0; i < plan->n_copies; i++) {
        const struct kv_copy *copy = &plan->copies[i];
        uint64_t *kv = copy->is_window ? b->window_kv : b->kv;
        memcpy(&kv[copy->to * BLOCK], &kv[copy->from * BLOCK], BLOCK * sizeof(*kv));
    }
}

static bool launch(struct bench *b)
{
    struct bench_flight *f = &b->flights[(b->first_flight + b->n_flights) % b->cfg.max_flights];
    b->now += 1000;
    bool has_rows = scheduler_schedule(b->sched, f->batch, b->now, &f->plan);
    make_moves(b, &f->plan);
    b->n_flights += has_rows;
    return has_rows;
}

void bench_settle(struct bench *b)
{
    while (b->n_flights)
        land(b);
}

bool bench_step(struct bench *b)
{
    uint64_t n_before = b->n_steps;
    while (b->n_flights < b->cfg.max_flights && launch(b))
        ;
    if (b->n_flights)
        land(b);
    bool ran = b->n_steps > n_before;
    b->n_steps += !ran;
    return ran;
}

struct request *bench_make(struct bench *b, uint32_t seed, uint32_t n_prompt, uint32_t max_tokens,
                           uint32_t n, int32_t priority, const char *caller)
{
    static uint32_t prompt[MAX_BLOCKS];
    struct engine_request req;
    struct request *r = NULL;
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

static void add_token(uint64_t h[2], uint32_t token)
{
    for (uint32_t table = 0; table < 2; table++)
        h[table] = mix(h[table], turned(token, table));
}

void bench_assert_answer(const struct request *r, bool whole)
{
    for (uint32_t c = 0; c < r->n_choices; c++) {
        uint64_t h[2] = {1, 1}; /* by table */
        for (uint32_t i = 0; i < r->n_prompt; i++)
            add_token(h, r->prompt[i]);
        if (whole)
            assert_int_equal(r->choices[c].n_ids, r->max_tokens);
        for (uint32_t i = 0; i < r->choices[c].n_ids; i++) {
            uint32_t last = i ? r->choices[c].ids[i - 1] : r->prompt[r->n_prompt - 1];
            uint64_t now = h[table_of(&bench, r->n_prompt + i)];
            assert_int_equal(r->choices[c].ids[i], token_of(&bench, now, c, last));
            add_token(h, r->choices[c].ids[i]);
        }
    }
}

uint32_t bench_rng = 3;
uint32_t bench_below(uint32_t n)
{
    bench_rng = bench_rng * 1664525u + 1013904223u;
    return (bench_rng >> 8) % n;
}
