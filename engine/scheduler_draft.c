#include "engine/draft.h"
#include "engine/scheduler_private.h"

/* What a right token must be worth more than its row's cost: the estimates are rough. */
#define MARGIN       1.1f
#define LEAST_CHANCE 0.05f

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Prompt rows that this step is likely to have besides: they use what a step has too. */
static uint32_t rows_in_wait(const struct scheduler *sched)
{
    uint32_t n = 0, chunk = sched->cfg.prefill_chunk_tokens;
    for (uint32_t i = 0; i < sched->n_running && n < sched->cfg.max_rows; i++) {
        const struct sequence *seq = sched->running[i];
        uint32_t left = sequence_n_tokens(seq) - seq->n_computed;
        if (seq->state == SEQUENCE_RUNNING && !seq->request->paused &&
            (left > 1 || !seq->n_computed))
            n += min_u32(left, chunk);
    }
    if (scheduler_queue_len(sched->queue) && sched->n_free_slots)
        n += chunk;
    return n;
}

/* A step of n rows that all count takes base + n; one more that counts by chance pays where it
 * brings more per time than the step does without it: chance · (base + n) > n. */
static float least_chance(const struct scheduler *sched, uint32_t n)
{
    float chance = MARGIN * (float)n / (sched->base_rows + (float)n);
    return chance > LEAST_CHANCE ? chance : LEAST_CHANCE;
}

static uint32_t most_drafts(const struct sequence *seq)
{
    const struct request *r = seq->request;
    /* The last token that may be generated is drawn from the row before it. */
    uint32_t left = r->max_tokens > seq->n_ids ? r->max_tokens - seq->n_ids - 1 : 0;
    return min_u32(r->max_draft_tokens, left);
}

void drafts_choose(struct scheduler *sched, struct sequence **seqs, uint32_t n)
{
    uint32_t in_wait = rows_in_wait(sched), room = sched->cfg.max_rows - n;
    uint32_t spare = min_u32(room > in_wait ? room - in_wait : 0, sched->cfg.n_draft_rows);
    float chance = least_chance(sched, n + in_wait);
    for (uint32_t i = 0; i < n && spare; i++) {
        struct sequence *seq = seqs[i];
        /* Blocks for drafts are those that all who run could do without. */
        if (!seq->draft || kv_cache_n_free(sched->kv) <= sched->n_running)
            continue;
        uint32_t n_drafts =
            draft_propose(seq->draft, seq, min_u32(most_drafts(seq), spare), chance);
        if (!n_drafts)
            continue;
        seq->n_drafts = blocks_reserve(sched, seq, 1 + n_drafts, false) - 1;
        spare -= seq->n_drafts;
    }
}
