/* Slots of recurrent states (state_cache.h). Between steps each sequence with computed tokens holds
 * the slot of the state behind its last one. A step reads that slot, and writes the state behind
 * the sequence's last row. The row writes in place, or to a fresh slot where others need the old
 * state.
 *
 * So nothing is ever copied. A snapshot is a written slot that stays. Choices of one request hold
 * the leader's slot together. Each row with drafts behind it writes a slot of its own. The slot of
 * the last accepted row becomes the sequence's.
 *
 * Sequences hold at most n_running_states slots between steps, and the pool has at least as many.
 * So some sequence always finds a slot. Drafts and snapshots take only slots that no sequence of
 * the step needs. */
#include <assert.h>

#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

/* True if the sequence's next rows need a fresh slot. */
static bool needs_slot(const struct scheduler *sched, const struct sequence *seq)
{
    return seq->state_slot == STATE_SLOT_NONE ||
           state_cache_n_refs(sched->states, seq->state_slot) > 1;
}

uint32_t scheduler_states_n_spare(const struct scheduler *sched)
{
    uint32_t n = state_cache_n_free(sched->states), needed = 0;
    for (uint32_t i = 0; i < sched->n_running; i++) {
        const struct sequence *seq = sched->running[i];
        if (seq->state == SEQUENCE_RUNNING && !seq->request->paused && !seq->n_rows)
            needed += needs_slot(sched, seq) + seq->n_drafts;
    }
    return n > needed ? n - needed : 0;
}

bool scheduler_states_promise(struct scheduler *sched, const struct sequence *seq)
{
    if (!sched->states || !needs_slot(sched, seq))
        return true;
    if (state_cache_n_free(sched->states) <= sched->n_states_promised)
        return false;
    sched->n_states_promised++;
    return true;
}

/* --- snapshots --- */

/* True if the state behind the first n tokens is to be kept. The last block that the same prompt
 * could use again ends a prompt: its last token is always computed. */
static bool wants_snapshot(const struct scheduler *sched, const struct sequence *seq, uint32_t n,
                           enum state_place *out_place)
{
    uint32_t bs = sched->cfg.block_size, n_prompt = seq->request->n_prompt, n_blocks = n / bs;
    if (!sched->prefix || n % bs || (n > n_prompt && !sched->cfg.share_generated))
        return false;
    bool is_end = n_blocks == (n_prompt - 1) / bs || n_blocks == seq->snapshot_block;
    *out_place = is_end ? STATE_END : STATE_INSIDE;
    return is_end || (sched->cfg.snapshot_blocks && n_blocks % sched->cfg.snapshot_blocks == 0);
}

static void record_snapshot(struct scheduler *sched, const struct sequence *seq,
                            const struct state_write *write)
{
    enum state_place place;
    uint32_t n_blocks = write->n_tokens / sched->cfg.block_size;
    if (n_blocks > seq->n_hashed || !wants_snapshot(sched, seq, write->n_tokens, &place))
        return;
    uint32_t block = kv_cache_table(sched->kv, seq->slot)[n_blocks - 1];
    state_cache_record(sched->states, prefix_cache_node(sched->prefix, block), write->slot, place);
}

bool scheduler_states_has_snapshot(const struct scheduler *sched, uint64_t node)
{
    return state_cache_peek(sched->states, node) != STATE_SLOT_NONE;
}

void scheduler_states_attach(struct scheduler *sched, struct sequence *seq, uint64_t node)
{
    seq->state_slot = state_cache_find(sched->states, node);
    assert(seq->state_slot != STATE_SLOT_NONE);
    sched->n_snapshot_hits++;
}

/* --- a step --- */

static void add_write(struct scheduler *sched, struct sequence *seq, uint32_t n_tokens,
                      uint32_t slot)
{
    assert(slot != STATE_SLOT_NONE);
    struct scheduler_flight *flight = sched->flight;
    flight->state_writes[flight->n_state_writes++] = (struct state_write){n_tokens, slot};
    seq->n_state_writes++;
}

/* The slot that the sequence's last row writes. A sequence alone with its slot writes in place. If
 * the slot is a snapshot, the sequence takes a spare slot and spares the snapshot. */
static uint32_t last_slot(struct scheduler *sched, const struct sequence *seq)
{
    if (needs_slot(sched, seq)) {
        sched->n_states_promised--;
        return state_cache_take(sched->states);
    }
    if (state_cache_is_snapshot(sched->states, seq->state_slot) && scheduler_states_n_spare(sched))
        return state_cache_take(sched->states);
    state_cache_overwrite(sched->states, seq->state_slot);
    return seq->state_slot;
}

void scheduler_states_choose(struct scheduler *sched, struct sequence *seq, uint32_t n)
{
    uint32_t bs = sched->cfg.block_size, end = seq->n_computed + n;
    enum state_place place;
    seq->i_state_write = sched->flight->n_state_writes;
    seq->n_state_writes = 0;
    if (!sched->states)
        return;
    for (uint32_t at = (seq->n_computed / bs + 1) * bs; at < end; at += bs)
        if (wants_snapshot(sched, seq, at, &place) && scheduler_states_n_spare(sched))
            add_write(sched, seq, at, state_cache_take(sched->states));
    for (uint32_t i = 0; i < seq->n_drafts; i++)
        add_write(sched, seq, end + i, state_cache_take(sched->states));
    add_write(sched, seq, end + seq->n_drafts, last_slot(sched, seq));
}

void scheduler_states_emit(const struct scheduler *sched, const struct sequence *seq, uint32_t row)
{
    struct step_batch *b = sched->batch;
    for (uint32_t i = 0; i < seq->n_state_writes; i++) {
        const struct state_write *write = &sched->flight->state_writes[seq->i_state_write + i];
        b->state_writes[row + write->n_tokens - seq->n_computed - 1] = write->slot;
    }
}

uint32_t scheduler_states_next(const struct scheduler *sched, const struct sequence *seq)
{
    enum state_place place;
    if (!seq->n_state_writes)
        return STATE_SLOT_NONE;
    const struct state_write *last =
        &sched->flight->state_writes[seq->i_state_write + seq->n_state_writes - 1];
    return wants_snapshot(sched, seq, last->n_tokens, &place) ? STATE_SLOT_NONE : last->slot;
}

void scheduler_states_commit(struct scheduler *sched, const struct scheduler_flight *flight,
                             struct sequence *seq)
{
    uint32_t old = seq->state_slot;
    if (!sched->states)
        return;
    for (uint32_t i = 0; i < seq->n_state_writes; i++) {
        const struct state_write *write = &flight->state_writes[seq->i_state_write + i];
        if (write->slot == old) /* in place: the holder is the same */
            old = STATE_SLOT_NONE;
        record_snapshot(sched, seq, write);
        if (write->n_tokens == seq->n_computed)
            seq->state_slot = write->slot;
        else
            state_cache_drop(sched->states, write->slot);
    }
    seq->n_state_writes = 0;
    if (old != STATE_SLOT_NONE)
        state_cache_drop(sched->states, old);
}

/* --- choices, ends --- */

bool scheduler_states_wait_for(const struct scheduler *sched, const struct sequence *seq)
{
    const struct request *r = seq->request;
    bool waits = sched->states || sched->windows.kv;
    for (uint32_t i = 0; waits && i < r->n_choices; i++)
        if (r->choices[i].state == SEQUENCE_FORKING)
            return true;
    return false;
}

uint32_t scheduler_states_cut(const struct scheduler *sched, const struct sequence *seq, uint32_t n)
{
    uint32_t n_prompt = seq->request->n_prompt;
    if (seq->n_computed >= n_prompt || !scheduler_states_wait_for(sched, seq))
        return n;
    return n < n_prompt - seq->n_computed ? n : n_prompt - seq->n_computed;
}

bool scheduler_states_fork(struct scheduler *sched, const struct sequence *leader,
                           struct sequence *seq)
{
    if (!sched->states)
        return true;
    if (leader->n_computed != seq->n_computed)
        return false;
    state_cache_hold(sched->states, leader->state_slot);
    seq->state_slot = leader->state_slot;
    return true;
}

void scheduler_states_release(struct scheduler *sched, struct sequence *seq)
{
    if (sched->states && seq->state_slot != STATE_SLOT_NONE)
        state_cache_drop(sched->states, seq->state_slot);
    seq->state_slot = STATE_SLOT_NONE;
    seq->snapshot_block = 0;
}
