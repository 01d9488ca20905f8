#include <string.h>

#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/fair_share.h"
#include "engine/schedule/scheduler_private.h"

/* Adds a sample for a row: scored 0 draws a token, else the row gives the log-probability of prompt
 * token `scored`. */
static void add_sample(struct scheduler *sched, struct sequence *seq, uint32_t row, uint32_t scored)
{
    sched->batch->sample_rows[sched->batch->n_sample_rows++] = row;
    sched->flight->scored[sched->plan.n_samples] = scored;
    sched->flight->samples[sched->plan.n_samples++] = seq;
    sched->n_scored += scored != 0;
}

/* The choices that wait for the prompt draw their first tokens from the prompt's last row, as the
 * leader does. A resumed leader may be so long that it turns the prompt by another rope. */
static void draw_for_choices(struct scheduler *sched, const struct sequence *leader, uint32_t row)
{
    struct request *r = leader->request;
    for (uint32_t i = 0; i < r->n_choices; i++) {
        struct sequence *seq = &r->choices[i];
        seq->samples = seq->state == SEQUENCE_FORKING && !seq->n_ids &&
                       leader->is_long == scheduler_is_long(&sched->cfg, r->n_prompt);
        if (seq->samples)
            add_sample(sched, seq, row, 0);
    }
}

uint32_t scheduler_batch_cut_to_scores(const struct scheduler *sched, const struct sequence *seq,
                                       uint32_t n)
{
    uint32_t room = sched->cfg.n_score_rows - sched->n_scored, fits = 0;
    while (fits < n && (room || !request_scores_row(seq->request, seq->n_computed + fits))) {
        room -= request_scores_row(seq->request, seq->n_computed + fits);
        fits++;
    }
    return fits;
}

void scheduler_batch_charge(struct scheduler *sched, struct sequence *seq, uint32_t begin,
                            uint32_t end)
{
    uint32_t n_prompt = seq->request->n_prompt, n_prompt_rows = 0;
    begin = begin > seq->n_charged ? begin : seq->n_charged;
    if (begin >= end)
        return;
    if (begin < n_prompt)
        n_prompt_rows = (end < n_prompt ? end : n_prompt) - begin;
    fair_share_charge(sched->share, seq->request->i_caller,
                      (uint64_t)n_prompt_rows * FAIR_SHARE_PROMPT_ROW +
                          (uint64_t)(end - begin - n_prompt_rows) * FAIR_SHARE_GENERATED_ROW);
    seq->n_charged = end;
    uint64_t counter = fair_share_counter(sched->share, seq->request->i_caller);
    if (seq->request->i_caller == sched->last_caller && counter > sched->last_counter)
        sched->last_counter = counter;
}

/* A token of the sequence, or a drafted token behind its last one. */
static uint32_t token_at(const struct sequence *seq, uint32_t at)
{
    uint32_t n = sequence_n_tokens(seq);
    return at < n ? sequence_token(seq, at) : seq->draft->ids[at - n];
}

void scheduler_batch_emit(struct scheduler *sched, struct sequence *seq, uint32_t n)
{
    struct step_batch *b = sched->batch;
    const uint32_t *table = kv_cache_table(sched->kv, seq->slot);
    uint32_t bs = sched->cfg.block_size, s = b->n_seqs++;
    b->seq_start[s] = b->n_rows;
    scheduler_states_choose(sched, seq, n);
    if (n + seq->n_drafts > 1 || !scheduler_ahead_has_row(sched, seq)) {
        memcpy(b->block_tables + (size_t)s * b->limits.max_blocks_per_seq, table,
               kv_cache_table_len(sched->kv, seq->slot) * sizeof(*table));
        scheduler_windows_emit(sched, seq, b, s);
    }
    for (uint32_t i = 0; i < n + seq->n_drafts; i++) {
        uint32_t at = seq->n_computed + i, row = b->n_rows++;
        b->token_ids[row] = token_at(seq, at);
        b->positions[row] = at;
        b->kv_slots[row] = table[at / bs] * bs + at % bs;
        if (sched->windows.kv)
            b->window_slots[row] = scheduler_windows_slot(sched, seq, at);
        b->seq_of_row[row] = s;
        b->rope_tables[row] = seq->is_long;
        b->state_reads[row] = i ? STEP_STATE_PREVIOUS : seq->state_slot;
        b->state_writes[row] = STEP_STATE_NONE;
        b->is_generated[row] = at >= seq->request->n_prompt;
        if (request_scores_row(seq->request, at))
            add_sample(sched, seq, row, at + 1);
        if (at + 1 == seq->request->n_prompt && seq->choice == seq->request->leader)
            draw_for_choices(sched, seq, row);
    }
    scheduler_states_emit(sched, seq, b->seq_start[s]);
    b->seq_start[s + 1] = b->n_rows;
    sched->shape.n_context += step_time_context(seq->n_computed, n + seq->n_drafts);
    scheduler_batch_charge(sched, seq, seq->n_computed, seq->n_computed + n);
    seq->samples = n == sequence_n_left(seq);
    if (seq->samples)
        add_sample(sched, seq, b->n_rows - 1 - seq->n_drafts, 0);
    seq->n_rows = n;
    seq->last_step = sched->n_steps;
    sched->flight->scheduled[sched->flight->n_scheduled++] = seq;
}

/* Drafted samples come last, so that all other samples are adjacent. */
void scheduler_batch_want_drafts(struct scheduler *sched)
{
    uint32_t n = sched->plan.n_samples;
    for (uint32_t s = 0; s < sched->flight->n_scheduled; s++) {
        struct sequence *seq = sched->flight->scheduled[s];
        seq->i_draft = sched->plan.n_samples;
        for (uint32_t i = seq->n_drafts; i > 0; i--)
            add_sample(sched, seq, sched->batch->seq_start[s + 1] - i, 0);
    }
    sched->plan.n_drafted = sched->plan.n_samples - n;
}
