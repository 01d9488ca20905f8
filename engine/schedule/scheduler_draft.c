#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

/* Required worth of a correct token, relative to the cost of its row. Above 1 because the estimates
 * are rough. */
#define MARGIN       1.1f
#define LEAST_CHANCE 0.05f

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Prompt rows that the step will probably have besides its decoding rows. They share the fixed cost
 * of the step. At most the waiting prompt rows, and as many as the time limit allows. */
static uint32_t expected_prompt_rows(const struct scheduler *sched, const struct step_shape *decode)
{
    uint32_t n = 0, chunk = sched->cfg.prefill_chunk_tokens;
    for (uint32_t i = 0; i < sched->n_running && n < sched->cfg.max_rows; i++) {
        const struct sequence *seq = sched->running[i];
        uint32_t left = sequence_n_tokens(seq) - seq->n_computed;
        if (seq->state == SEQUENCE_RUNNING && !seq->request->paused && !seq->n_rows &&
            (left > 1 || !seq->n_computed))
            n += min_u32(left, chunk);
    }
    if (scheduler_queue_len(sched->queue) && sched->n_free_slots)
        n += chunk;
    int64_t limit_ns = scheduler_prompts_limit_ns(sched, decode, 0);
    if (!n || !limit_ns || !decode->n_decode)
        return n;
    uint32_t fits = step_time_fit_rows(&sched->time, decode, 0, limit_ns, n);
    return fits > SCHEDULER_LEAST_PREFILL_ROWS ? fits : min_u32(n, SCHEDULER_LEAST_PREFILL_ROWS);
}

/* A step of n useful rows costs base + n. Another row, useful with probability `chance`, pays if it
 * raises the useful rows per cost: chance · (base + n) > n. */
static float least_chance(const struct scheduler *sched, uint32_t n)
{
    float chance = MARGIN * (float)n / (sched->base_rows + (float)n);
    return chance > LEAST_CHANCE ? chance : LEAST_CHANCE;
}

/* Most tokens to draft for the sequence. A single table rotates all rows of a sequence,
 * so the rows of a short sequence end at longrope's border. */
static uint32_t most_drafts(const struct scheduler *sched, const struct sequence *seq)
{
    const struct request *r = seq->request;
    /* The last token that may be generated is drawn from the row before it. */
    uint32_t left = r->max_tokens > seq->n_ids ? r->max_tokens - seq->n_ids - 1 : 0;
    uint32_t n = min_u32(r->max_draft_tokens, left), border = sched->cfg.long_rope_after;
    return border && !seq->is_long ? min_u32(n, border - sequence_n_tokens(seq)) : n;
}

/* Drafts take blocks only while every running sequence could still get a block. */
static bool has_blocks(const struct scheduler *sched)
{
    return kv_cache_n_free(sched->kv) > sched->n_running;
}

/* --- drafts of a model --- */

/* The cost of the step without drafts, and how much longer drafts may make the step. With a fixed
 * target the rest of the target is the limit; else drafting time counts as part of the step.
 * Sequences that only catch up are limited like prompts. */
static struct draft_bounds bounds_of(const struct scheduler *sched, const struct step_shape *decode,
                                     uint32_t in_wait)
{
    uint32_t n = decode->n_decode;
    int64_t target = sched->cfg.target_step_ns, ns = step_time_predict(&sched->time, decode);
    struct draft_bounds b = {
        .n_rows = (float)(n + in_wait),
        .base_rows = sched->base_rows,
        .row_ns = (float)ns / (sched->base_rows + (float)n),
        .margin = MARGIN,
        .room_ns = INT64_MAX,
        .catch_ns = n + in_wait > 1 && target == SCHEDULER_TARGET_AUTO && ns ? ns : INT64_MAX,
    };
    if (target > 0)
        b.room_ns = b.catch_ns = target > ns ? target - ns : 0;
    return b;
}

/* Fills the jobs of the draft model; each sequence gets an equal part of the `spare` rows. Returns
 * the number of jobs. */
static uint32_t make_jobs(struct scheduler *sched, struct sequence **seqs, uint32_t n,
                          uint32_t spare)
{
    uint32_t n_jobs = 0, n_by_model = 0;
    for (uint32_t i = 0; i < n; i++)
        n_by_model += seqs[i]->draft && seqs[i]->draft->by_model;
    uint32_t share = n_by_model && spare > n_by_model ? spare / n_by_model : 1;
    for (uint32_t i = 0; i < n && spare && n_jobs < sched->cfg.n_draft_seqs; i++) {
        struct sequence *seq = seqs[i];
        if (!seq->draft || !seq->draft->by_model || !has_blocks(sched))
            continue;
        uint32_t n_most = min_u32(min_u32(most_drafts(sched, seq), share), spare);
        if (!n_most)
            continue;
        n_most = scheduler_blocks_reserve(sched, seq, 1 + n_most, false) - 1;
        if (!n_most)
            continue;
        sched->jobs[n_jobs++] = (struct draft_job){
            .seq = seq, .table = kv_cache_table(sched->kv, seq->slot), .n_most = n_most};
        spare -= n_most;
    }
    return n_jobs;
}

static void run_draft_model(struct scheduler *sched, uint32_t n_jobs,
                            const struct draft_bounds *bounds)
{
    uint32_t bs = sched->cfg.block_size;
    sched->plan.draft_ns = sched->cfg.propose(sched->cfg.draft_ctx, sched->jobs, n_jobs, bounds);
    for (uint32_t i = 0; i < n_jobs; i++) {
        struct sequence *seq = sched->jobs[i].seq;
        seq->n_drafts = seq->draft->n_ids;
        scheduler_blocks_trim(sched, seq, (seq->n_computed + seq->n_drafts) / bs + 1);
    }
}

/* --- drafts of a step --- */

static struct step_shape decode_shape(struct sequence **seqs, uint32_t n)
{
    struct step_shape shape = {.n_decode = n};
    for (uint32_t i = 0; i < n; i++)
        shape.n_context += step_time_context(seqs[i]->n_computed, 1);
    return shape;
}

void scheduler_draft_choose(struct scheduler *sched, struct sequence **seqs, uint32_t n)
{
    struct step_shape decode = decode_shape(seqs, n);
    uint32_t in_wait = expected_prompt_rows(sched, &decode), room = sched->cfg.max_rows - n;
    uint32_t spare = min_u32(room > in_wait ? room - in_wait : 0, sched->cfg.n_draft_rows);
    if (sched->states)
        spare = min_u32(spare, scheduler_states_n_spare(sched));
    float chance = least_chance(sched, n + in_wait);
    for (uint32_t i = 0; i < n && spare; i++) {
        struct sequence *seq = seqs[i];
        if (!seq->draft || seq->draft->by_model || !has_blocks(sched))
            continue;
        uint32_t n_drafts =
            draft_propose(seq->draft, seq, min_u32(most_drafts(sched, seq), spare), chance);
        if (!n_drafts)
            continue;
        seq->n_drafts = scheduler_blocks_reserve(sched, seq, 1 + n_drafts, false) - 1;
        spare -= seq->n_drafts;
    }
    uint32_t n_jobs = sched->cfg.propose ? make_jobs(sched, seqs, n, spare) : 0;
    if (!n_jobs)
        return;
    struct draft_bounds bounds = bounds_of(sched, &decode, in_wait);
    run_draft_model(sched, n_jobs, &bounds);
}
