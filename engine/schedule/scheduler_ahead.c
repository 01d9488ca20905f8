/* Writes the expected next step while the current step runs. The expectation is only a guess: each
 * step is scheduled in full. Rows that match the guess are not written again. If all rows match,
 * the executor need not compare them. So a wrong guess costs time and changes no result. */
#include <string.h>

#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

/* The block of the pool that the token at position `at` is written to. KV_BLOCK_NONE if the block
 * would have to be copied first, or if no block is free. */
static uint32_t block_ahead(const struct scheduler *sched, const struct kv_cache *kv,
                            const struct sequence *seq, uint32_t at, struct kv_peek *peek)
{
    uint32_t i = at / sched->cfg.block_size, n = kv_cache_table_len(kv, seq->slot);
    if (i < n) {
        uint32_t block = kv_cache_table(kv, seq->slot)[i];
        return kv_cache_n_refs(kv, block) > 1 ? KV_BLOCK_NONE : block;
    }
    return i < sched->cfg.max_blocks_per_seq ? kv_cache_peek(kv, peek) : KV_BLOCK_NONE;
}

/* Blocks that the expected step takes. */
struct peeks {
    struct kv_peek blocks, windows;
};

/* Writes the window block of the token at position `at`, and the table. Returns false if there is
 * no such block. */
static bool write_window(struct scheduler *sched, struct step_batch *b, const struct sequence *seq,
                         uint32_t at, struct kv_peek *peek)
{
    const struct kv_cache *kv = sched->windows.kv;
    uint32_t row = b->n_rows, bs = sched->cfg.block_size;
    uint32_t block = kv ? block_ahead(sched, kv, seq, at, peek) : 0;
    if (!kv || block == KV_BLOCK_NONE)
        return !kv;
    scheduler_windows_emit(sched, seq, b, row);
    b->window_tables[(size_t)row * b->limits.max_blocks_per_seq + at / bs] = block;
    b->window_slots[row] = block * bs + at % bs;
    sched->ahead.window_versions[row] = kv_cache_table_version(kv, seq->slot);
    return true;
}

/* Writes the row of the token that is being drawn. Returns false if it has no block or no row. */
static bool write_row(struct scheduler *sched, struct step_batch *b, const struct sequence *seq,
                      struct peeks *peeks)
{
    uint32_t at = seq->n_computed + seq->n_rows, bs = sched->cfg.block_size, row = b->n_rows;
    uint32_t n = kv_cache_table_len(sched->kv, seq->slot);
    uint32_t block = block_ahead(sched, sched->kv, seq, at, &peeks->blocks);
    uint32_t *table = b->block_tables + (size_t)row * b->limits.max_blocks_per_seq;
    uint32_t state_slot = scheduler_states_next(sched, seq);
    if (block == KV_BLOCK_NONE || row == sched->cfg.max_rows ||
        (sched->states && state_slot == STATE_SLOT_NONE) ||
        !write_window(sched, b, seq, at, &peeks->windows))
        return false;
    memcpy(table, kv_cache_table(sched->kv, seq->slot), n * sizeof(*table));
    table[at / bs] = block;
    b->token_ids[row] = 0;
    b->positions[row] = at;
    b->kv_slots[row] = block * bs + at % bs;
    b->seq_of_row[row] = row;
    b->rope_tables[row] = seq->is_long;
    b->is_generated[row] = 1;
    b->sample_rows[row] = row;
    b->seq_start[row] = row;
    b->state_reads[row] = b->state_writes[row] = state_slot;
    b->seq_start[row + 1] = row + 1;
    sched->ahead.slots[row] = seq->slot;
    sched->ahead.versions[row] = kv_cache_table_version(sched->kv, seq->slot);
    b->n_rows = b->n_seqs = b->n_sample_rows = row + 1;
    return true;
}

/* True if a token is being drawn for the sequence, and its next step has exactly that token's
 * row. */
static bool has_one_row_next(const struct sequence *seq)
{
    return seq->state == SEQUENCE_RUNNING && seq->n_rows && seq->samples && !seq->draft;
}

static bool write_rows(struct scheduler *sched, struct step_batch *batch)
{
    struct peeks peeks = {KV_PEEK_FIRST, KV_PEEK_FIRST};
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct sequence *seq = sched->running[i];
        if (seq->request->paused)
            continue;
        if (!has_one_row_next(seq))
            return false;
        if (seq->n_ids + 1 < seq->request->max_tokens && !write_row(sched, batch, seq, &peeks))
            return false;
    }
    return batch->n_rows > 0;
}

bool scheduler_schedule_ahead(struct scheduler *sched, struct step_batch *batch)
{
    step_batch_clear(batch);
    sched->ahead.batch = NULL;
    if (!write_rows(sched, batch)) {
        step_batch_clear(batch);
        return false;
    }
    sched->ahead.batch = batch;
    sched->ahead.n_seqs = batch->n_seqs;
    return true;
}

/* True if the sequence's row reads and writes the expected slots of states. */
static bool has_states_at(const struct scheduler *sched, const struct sequence *seq, uint32_t row)
{
    const struct step_batch *b = sched->batch;
    return !sched->states ||
           (b->state_reads[row] == seq->state_slot &&
            b->state_writes[row] == sched->flight->state_writes[seq->i_state_write].slot);
}

/* True if the row's window block, and its table, are the expected ones. */
static bool has_window_at(const struct scheduler *sched, const struct sequence *seq, uint32_t row)
{
    const struct kv_cache *kv = sched->windows.kv;
    return !kv || (sched->batch->window_slots[row] ==
                       scheduler_windows_slot(sched, seq, seq->n_computed) &&
                   sched->ahead.window_versions[row] == kv_cache_table_version(kv, seq->slot));
}

bool scheduler_ahead_has_row(struct scheduler *sched, const struct sequence *seq)
{
    const struct step_batch *b = sched->batch;
    const struct scheduler_ahead *ahead = &sched->ahead;
    uint32_t row = b->n_rows, bs = sched->cfg.block_size, at = seq->n_computed;
    uint32_t block = kv_cache_table(sched->kv, seq->slot)[at / bs];
    if (ahead->batch == b && b->n_seqs == row + 1 && row < ahead->n_seqs &&
        ahead->slots[row] == seq->slot && b->positions[row] == at &&
        b->kv_slots[row] == block * bs + at % bs && has_states_at(sched, seq, row) &&
        has_window_at(sched, seq, row) &&
        ahead->versions[row] == kv_cache_table_version(sched->kv, seq->slot))
        return true;
    sched->ahead.batch = NULL;
    return false;
}

void scheduler_ahead_close(struct scheduler *sched)
{
    struct step_batch *b = sched->batch;
    b->is_ahead = sched->ahead.batch == b && b->n_rows == sched->ahead.n_seqs &&
                  b->n_seqs == b->n_rows && b->n_sample_rows == b->n_rows;
    sched->ahead.batch = NULL;
}
