/* draft_states.h: slots of a draft model's recurrent states (state_cache.h). A sequence has a
 * place, its batch slot. A place has the state behind the sequence's tokens. Behind that state it
 * has the states of the drafted tokens, each in a slot of its own. The next step keeps the state of
 * the last accepted token and drops the others. So a rejected token leaves no trace.
 *
 * Snapshots are states behind whole blocks of the prefix cache. Other sequences with the same
 * blocks continue from them. Where slots are scarce, snapshots go first. Then the places go that
 * were not used for the longest time. A sequence without a state computes its tokens again.
 *
 * A pass reads and writes slots on the device. Slots that a pass reads or writes are free only
 * after draft_states_end_pass(). Engine thread only. No allocation after create. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/state_cache.h"

struct draft_states;
struct error;

/* Places 0 .. n_places - 1. *out_states is owned. RESOURCE_EXHAUSTED without memory. */
int draft_states_create(uint32_t n_slots, uint32_t n_places, struct draft_states **out_states,
                        struct error *err);
/* NULL is accepted. */
void draft_states_destroy(struct draft_states *states);
const struct state_cache *draft_states_cache(const struct draft_states *states);

/* A step's drafting begins. Places that are kept from now on do not lose their states in it. */
void draft_states_begin(struct draft_states *states);

/* Keeps the state behind the sequence's first n tokens, and drops all others of the place. *id
 * names the sequence: 0 at first, later what the call before left there. Returns n, or 0 if that
 * state does not exist: another sequence had the place, or the state was dropped. */
uint32_t draft_states_keep(struct draft_states *states, uint32_t place, uint64_t *id, uint32_t n);

/* True if the state behind the block is kept as a snapshot. */
bool draft_states_has(const struct draft_states *states, uint32_t block);
/* The place continues from the snapshot behind the block, which exists: its n-th token is the
 * block's last. */
void draft_states_attach(struct draft_states *states, uint32_t place, uint32_t block, uint32_t n);
/* The content of the block changes: its snapshot is gone. */
void draft_states_forget(struct draft_states *states, uint32_t block);

/* Chooses the slots of a place's next rows. *out_read is the slot before the first row, or
 * STATE_SLOT_NONE for a new sequence. *out_write is the slot behind the last row, which ends with
 * token n. `is_draft`: the row has a drafted token, so the states before it stay. Returns false,
 * with nothing changed, if no slot is free. */
bool draft_states_advance(struct draft_states *states, uint32_t place, uint32_t n, bool is_draft,
                          uint32_t *out_read, uint32_t *out_write);
/* The pass writes the state behind the block to `slot`, which a place holds: it becomes a
 * snapshot. */
void draft_states_record(struct draft_states *states, uint32_t block, uint32_t slot,
                         enum state_place where);
/* Returns a spare slot for a snapshot behind the block, or STATE_SLOT_NONE. */
uint32_t draft_states_snapshot(struct draft_states *states, uint32_t block, enum state_place where);
/* The pass is done. */
void draft_states_end_pass(struct draft_states *states);
