/* state_cache.h: accounting of the slots that hold recurrent states. The state of a sequence after
 * some token lies in a slot. A slot has a number of holders, as a KV block has. The bytes lie in
 * the executor's pool. Engine thread only. Allocates at create, never after. Knows no requests.
 *
 * A snapshot is a slot with the state behind the last token of a block. The key of the
 * snapshot is the block's node of the prefix cache. Nodes are unique for salt, parent and tokens,
 * and are never reused. So two callers share a snapshot only if their salts are equal.
 *
 * Snapshots without holders are in two lists, least recently used first. Snapshots inside a prompt
 * that were never found are evicted first. Ends of prompts and found snapshots are evicted last. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct state_cache;

#define STATE_SLOT_NONE UINT32_MAX

enum state_place {
    STATE_INSIDE, /* inside a prompt or an answer, at a regular distance */
    STATE_END,    /* at the end of a prompt or of a prefix that prompts share */
};

/* *out_cache is owned. INVALID_ARGUMENT without slots, RESOURCE_EXHAUSTED without memory. */
int state_cache_create(uint32_t n_slots, struct state_cache **out_cache, struct error *err);
void state_cache_destroy(struct state_cache *cache);

/* Slots that can be taken now: unused ones, and snapshots without holders. */
uint32_t state_cache_n_free(const struct state_cache *cache);
uint32_t state_cache_n_snapshots(const struct state_cache *cache);
uint64_t state_cache_n_evictions(const struct state_cache *cache);
uint32_t state_cache_n_refs(const struct state_cache *cache, uint32_t slot);
bool state_cache_is_snapshot(const struct state_cache *cache, uint32_t slot);

/* Returns a slot with one holder and unknown content: an unused one, else the first snapshot in
 * eviction order. STATE_SLOT_NONE: all slots have holders. */
uint32_t state_cache_take(struct state_cache *cache);
/* Adds a holder to a slot that has one. */
void state_cache_hold(struct state_cache *cache, uint32_t slot);
/* Drops a holder. After the last one a snapshot stays until it is evicted; another slot is
 * unused. */
void state_cache_drop(struct state_cache *cache, uint32_t slot);

/* Records a held slot under a node. Does nothing if the node has a snapshot or the slot is one. */
void state_cache_record(struct state_cache *cache, uint64_t node, uint32_t slot,
                        enum state_place place);
/* The slot of the node's snapshot, or STATE_SLOT_NONE. Changes nothing. */
uint32_t state_cache_peek(const struct state_cache *cache, uint64_t node);
/* The same, and adds a holder. */
uint32_t state_cache_find(struct state_cache *cache, uint64_t node);
/* The node's block has new content: the node has no snapshot any more. */
void state_cache_forget(struct state_cache *cache, uint64_t node);
/* The content of a held slot changes: the slot is no snapshot any more. */
void state_cache_overwrite(struct state_cache *cache, uint32_t slot);
