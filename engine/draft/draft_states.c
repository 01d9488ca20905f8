#include "engine/draft/draft_states.h"

#include <assert.h>
#include <stdlib.h>

#include "base/error.h"
#include "engine/request/draft.h"

/* The states behind the first n_tokens + i tokens of a sequence, i < n_slots. */
struct place {
    uint64_t owner;     /* id of the sequence; 0: none */
    uint64_t last_used; /* step in which the place was kept last */
    uint32_t n_tokens, n_slots;
    uint32_t slots[DRAFT_MAX_TOKENS + 1];
};

/* Work for the end of a pass: a snapshot to record, a slot to drop. */
struct pending {
    uint32_t slot, block; /* STATE_SLOT_NONE: no snapshot */
    enum state_place where;
    bool drops;
};

struct draft_states {
    struct state_cache *cache;
    uint32_t n_places, n_pending;
    uint64_t last_id, now; /* now: number of the current step */
    struct place *places;  /* [n_places] */
    /* A slot is written once in a pass, and dropped once: [2 * n_slots] */
    struct pending *pending;
};

int draft_states_create(uint32_t n_slots, uint32_t n_places, struct draft_states **out_states,
                        struct error *err)
{
    struct draft_states *states = calloc(1, sizeof(*states));
    int rc = 0;
    if (states) {
        states->n_places = n_places;
        states->places = calloc(n_places, sizeof(*states->places));
        states->pending = calloc(n_slots, 2 * sizeof(*states->pending));
    }
    if (!states || !states->places || !states->pending)
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u state slots", n_slots);
    if (!rc)
        rc = state_cache_create(n_slots, &states->cache, err);
    if (rc)
        draft_states_destroy(states);
    else
        *out_states = states;
    return rc;
}

void draft_states_destroy(struct draft_states *states)
{
    if (!states)
        return;
    state_cache_destroy(states->cache);
    free(states->places);
    free(states->pending);
    free(states);
}

const struct state_cache *draft_states_cache(const struct draft_states *states)
{
    return states->cache;
}

void draft_states_begin(struct draft_states *states)
{
    states->now++;
}

/* Blocks have no nodes here. A block has one content until it is forgotten. */
static uint64_t node_of(uint32_t block)
{
    return (uint64_t)block + 1;
}

static void drop_slots(struct draft_states *states, struct place *place)
{
    for (uint32_t i = 0; i < place->n_slots; i++)
        state_cache_drop(states->cache, place->slots[i]);
    place->n_slots = 0;
}

uint32_t draft_states_keep(struct draft_states *states, uint32_t i_place, uint64_t *id, uint32_t n)
{
    assert(i_place < states->n_places);
    struct place *place = &states->places[i_place];
    bool is_owner = *id && place->owner == *id;
    place->last_used = states->now;
    if (!is_owner)
        *id = place->owner = ++states->last_id;
    if (!is_owner || n < place->n_tokens || n - place->n_tokens >= place->n_slots) {
        drop_slots(states, place);
        return 0;
    }
    uint32_t kept = place->slots[n - place->n_tokens];
    state_cache_hold(states->cache, kept);
    drop_slots(states, place);
    place->slots[place->n_slots++] = kept;
    place->n_tokens = n;
    return n;
}

/* --- snapshots --- */

bool draft_states_has(const struct draft_states *states, uint32_t block)
{
    return state_cache_peek(states->cache, node_of(block)) != STATE_SLOT_NONE;
}

void draft_states_attach(struct draft_states *states, uint32_t i_place, uint32_t block, uint32_t n)
{
    struct place *place = &states->places[i_place];
    drop_slots(states, place);
    place->slots[place->n_slots++] = state_cache_find(states->cache, node_of(block));
    place->n_tokens = n;
    assert(place->slots[0] != STATE_SLOT_NONE);
}

void draft_states_forget(struct draft_states *states, uint32_t block)
{
    state_cache_forget(states->cache, node_of(block));
}

static void add_pending(struct draft_states *states, struct pending pending)
{
    states->pending[states->n_pending++] = pending;
}

void draft_states_record(struct draft_states *states, uint32_t block, uint32_t slot,
                         enum state_place where)
{
    add_pending(states, (struct pending){slot, block, where, false});
}

uint32_t draft_states_snapshot(struct draft_states *states, uint32_t block, enum state_place where)
{
    uint32_t slot = state_cache_take(states->cache);
    if (slot != STATE_SLOT_NONE)
        add_pending(states, (struct pending){slot, block, where, true});
    return slot;
}

void draft_states_end_pass(struct draft_states *states)
{
    for (uint32_t i = 0; i < states->n_pending; i++) {
        const struct pending *p = &states->pending[i];
        if (p->block != STATE_SLOT_NONE)
            state_cache_record(states->cache, node_of(p->block), p->slot, p->where);
        if (p->drops)
            state_cache_drop(states->cache, p->slot);
    }
    states->n_pending = 0;
}

/* --- rows --- */

/* Takes the states of the place that was not used for the longest time. Returns false if all were
 * used in this step. */
static bool clear_oldest(struct draft_states *states)
{
    struct place *oldest = NULL;
    for (uint32_t i = 0; i < states->n_places; i++) {
        struct place *place = &states->places[i];
        if (place->n_slots && place->last_used < states->now &&
            (!oldest || place->last_used < oldest->last_used))
            oldest = place;
    }
    if (oldest)
        drop_slots(states, oldest);
    return oldest != NULL;
}

static uint32_t take_slot(struct draft_states *states)
{
    uint32_t slot = state_cache_take(states->cache);
    while (slot == STATE_SLOT_NONE && clear_oldest(states))
        slot = state_cache_take(states->cache);
    return slot;
}

/* The slot of the place's next state, if the state before is not needed any more. A snapshot is
 * overwritten only if no other slot is free. */
static uint32_t next_slot(struct draft_states *states, uint32_t last)
{
    bool alone = last != STATE_SLOT_NONE && state_cache_n_refs(states->cache, last) == 1;
    if (alone && !state_cache_is_snapshot(states->cache, last))
        return last;
    uint32_t slot = take_slot(states);
    if (slot != STATE_SLOT_NONE || !alone)
        return slot;
    state_cache_overwrite(states->cache, last);
    return last;
}

bool draft_states_advance(struct draft_states *states, uint32_t i_place, uint32_t n, bool is_draft,
                          uint32_t *out_read, uint32_t *out_write)
{
    struct place *place = &states->places[i_place];
    uint32_t last = place->n_slots ? place->slots[place->n_slots - 1] : STATE_SLOT_NONE;
    if (is_draft && place->n_slots > DRAFT_MAX_TOKENS)
        return false;
    uint32_t slot = is_draft ? take_slot(states) : next_slot(states, last);
    if (slot == STATE_SLOT_NONE)
        return false;
    *out_read = last;
    *out_write = slot;
    if (is_draft) {
        place->slots[place->n_slots++] = slot;
        return true;
    }
    assert(place->n_slots <= 1);
    if (last != STATE_SLOT_NONE && slot != last)
        add_pending(states, (struct pending){last, STATE_SLOT_NONE, STATE_INSIDE, true});
    place->slots[0] = slot;
    place->n_slots = 1;
    place->n_tokens = n;
    return true;
}
