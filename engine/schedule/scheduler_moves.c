/* Moves a sequence out whose request gives its slots to another request. Its state goes to a place
 * in host memory. Its blocks go to a block table of that place. So the sequence continues later
 * without computing anything again. The moves of bytes are part of the next step's plan.
 *
 * A sequence is moved out if that costs less time than to compute the lost tokens again. Blocks of
 * such sequences are taken before a running sequence is preempted; the sequence then starts over
 * from a snapshot. */
#include <assert.h>

#include "engine/request/draft.h"
#include "engine/request/sequence.h"
#include "engine/schedule/scheduler_private.h"

static uint32_t table_of(const struct scheduler *sched, uint32_t place)
{
    return sched->cfg.max_seqs + place;
}

static bool add_move(struct scheduler *sched, bool to_host, uint32_t slot, uint32_t place)
{
    if (sched->n_moves == SCHEDULER_MOST_MOVES)
        return false;
    sched->moves[sched->n_moves++] = (struct state_move){to_host, slot, place};
    return true;
}

static uint32_t free_place(const struct scheduler *sched)
{
    uint32_t place = 0;
    while (place < sched->cfg.n_host_states && sched->moved[place])
        place++;
    return place;
}

/* True if it takes longer to compute the lost tokens again than to move the state twice. */
static bool pays(const struct scheduler *sched, const struct sequence *seq)
{
    uint32_t lost = scheduler_lost_tokens(sched, seq);
    struct step_shape again = {.n_prefill = lost,
                               .n_context = step_time_context(seq->n_computed - lost, lost)};
    return lost && sched->move_ns <= step_time_predict(&sched->time, &again);
}

bool scheduler_moves_out(struct scheduler *sched, struct sequence *seq)
{
    uint32_t place = free_place(sched);
    if (place == sched->cfg.n_host_states || seq->state_slot == STATE_SLOT_NONE ||
        !pays(sched, seq) || !add_move(sched, true, seq->state_slot, place))
        return false;
    kv_cache_move(sched->kv, seq->slot, table_of(sched, place));
    scheduler_windows_move(sched, seq->slot, table_of(sched, place));
    state_cache_drop(sched->states, seq->state_slot);
    seq->state_slot = STATE_SLOT_NONE;
    seq->place = place;
    sched->moved[place] = seq;
    sched->n_moved_out++;
    return true;
}

/* The sequence starts over. */
static void forget(struct scheduler *sched, struct sequence *seq)
{
    kv_cache_clear(sched->kv, table_of(sched, seq->place));
    scheduler_windows_clear(sched, table_of(sched, seq->place));
    sched->moved[seq->place] = NULL;
    seq->place = SEQUENCE_NO_PLACE;
    draft_cut(seq->draft, 0);
    seq->n_computed = 0;
}

void scheduler_moves_forget(struct scheduler *sched, struct sequence *seq)
{
    if (scheduler_moves_has(sched, seq))
        forget(sched, seq);
}

bool scheduler_moves_in(struct scheduler *sched, struct sequence *seq)
{
    if (!scheduler_moves_has(sched, seq))
        return false;
    uint32_t slot = state_cache_take(sched->states);
    if (slot == STATE_SLOT_NONE || !add_move(sched, false, slot, seq->place)) {
        if (slot != STATE_SLOT_NONE)
            state_cache_drop(sched->states, slot);
        forget(sched, seq);
        return false;
    }
    kv_cache_move(sched->kv, table_of(sched, seq->place), seq->slot);
    scheduler_windows_move(sched, table_of(sched, seq->place), seq->slot);
    sched->moved[seq->place] = NULL;
    seq->place = SEQUENCE_NO_PLACE;
    seq->state_slot = slot;
    return true;
}

bool scheduler_moves_give_blocks(struct scheduler *sched)
{
    for (uint32_t i = sched->cfg.n_host_states; i-- > 0;)
        if (sched->moved[i]) {
            forget(sched, sched->moved[i]);
            sched->n_preemptions++;
            return true;
        }
    return false;
}

uint32_t scheduler_moves_n_blocks(const struct scheduler *sched, const struct sequence *but)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < sched->cfg.n_host_states; i++)
        if (sched->moved[i] && sched->moved[i] != but)
            n += kv_cache_n_exclusive(sched->kv, table_of(sched, i));
    return n;
}

uint32_t scheduler_moves_table_len(const struct scheduler *sched, const struct sequence *seq)
{
    return scheduler_moves_has(sched, seq)
               ? kv_cache_table_len(sched->kv, table_of(sched, seq->place))
               : 0;
}

bool scheduler_moves_has(const struct scheduler *sched, const struct sequence *seq)
{
    return seq->place < sched->cfg.n_host_states && sched->moved[seq->place] == seq;
}
