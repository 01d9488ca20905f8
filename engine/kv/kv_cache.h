/* kv_cache.h: accounting of the KV pool's blocks. The accounting covers reference counts, a block
 * table per slot, blocks kept for reuse, and copy on write. The bytes themselves lie in the
 * executor's pools. Engine thread only. Allocates at create, never after, and no function searches.
 * Knows no requests; the scheduler decides which sequence is preempted.
 *
 * Kept blocks without holders are in two lists, least recently used first. Proven blocks were found
 * again at least once; up to max_proven of them have a list of their own. The other list has the
 * rest, which are evicted first (segmented LRU [Karedla et al., Computer 27(3), 1994]). So prompts
 * that come once do not evict prefixes that come again. Within each list, a sequence's last blocks
 * are evicted before its first.
 *
 * Layers with a window have a pool of their own. There the front of a table may have no blocks: the
 * entries before kv_cache_front() are KV_BLOCK_NONE. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct kv_cache;

#define KV_BLOCK_NONE UINT32_MAX

struct kv_cache_config {
    uint32_t n_blocks;           /* size of the whole pool */
    uint32_t n_slots;            /* number of block tables */
    uint32_t max_blocks_per_seq; /* length of each table */
    uint32_t max_proven;         /* most proven blocks without holders; 0: plain LRU */
    /* Called when a kept block gets new content: its old content is gone. May be NULL. */
    void (*on_evict)(void *ctx, uint32_t block);
    void *ctx;
};

/* *out_cache is owned. INVALID_ARGUMENT on a zero dimension, RESOURCE_EXHAUSTED without memory. */
int kv_cache_create(const struct kv_cache_config *cfg, struct kv_cache **out_cache,
                    struct error *err);
void kv_cache_destroy(struct kv_cache *cache);

uint32_t kv_cache_n_blocks(const struct kv_cache *cache);
/* Blocks that can be taken now: unused ones, and kept ones without holders. */
uint32_t kv_cache_n_free(const struct kv_cache *cache);
/* Kept blocks without holders. */
uint32_t kv_cache_n_kept_free(const struct kv_cache *cache);
/* Number of holders of a block. */
uint32_t kv_cache_n_refs(const struct kv_cache *cache, uint32_t block);

/* Block table of a slot. Borrowed; changes with the calls below. */
const uint32_t *kv_cache_table(const struct kv_cache *cache, uint32_t slot);
uint32_t kv_cache_table_len(const struct kv_cache *cache, uint32_t slot);
/* Version of a slot's table. Changes whenever an entry is removed or replaced, not when entries are
 * appended. */
uint32_t kv_cache_table_version(const struct kv_cache *cache, uint32_t slot);

/* Position of kv_cache_peek(); starts as KV_PEEK_FIRST. Valid until a block is taken or dropped. */
struct kv_peek {
    uint32_t n_unused, block;
};
#define KV_PEEK_FIRST ((struct kv_peek){0, KV_BLOCK_NONE})
/* Returns the block that kv_cache_grow() would take next; each further call returns the one after.
 * Takes no block. KV_BLOCK_NONE: no more blocks. */
uint32_t kv_cache_peek(const struct kv_cache *cache, struct kv_peek *peek);

/* Appends a new block to the slot's table: an unused one, else the first kept one in eviction
 * order. Returns false, table unchanged, if there is no block or the table is full. */
bool kv_cache_grow(struct kv_cache *cache, uint32_t slot);
/* Appends a kept block, or a block with other holders (a prefix hit). */
void kv_cache_attach(struct kv_cache *cache, uint32_t slot, uint32_t block);
/* Appends n entries without a block to a table that has no blocks yet. */
void kv_cache_skip(struct kv_cache *cache, uint32_t slot, uint32_t n);
/* Drops the first block of the slot's table; its entry stays, without a block. The version does not
 * change, because nothing reads such an entry. `passed`: if the block is kept, it is evicted before
 * all others. */
void kv_cache_drop_front(struct kv_cache *cache, uint32_t slot, bool passed);
/* Number of entries without a block at the begin of the slot's table. */
uint32_t kv_cache_front(const struct kv_cache *cache, uint32_t slot);
/* Appends the first n entries of slot `from` to the empty slot `to`. */
void kv_cache_share(struct kv_cache *cache, uint32_t from, uint32_t to, uint32_t n);
/* Makes entry i of the slot's table writable. If the slot is the only holder, the block stays; a
 * kept block is no longer kept (on_evict). A shared block is replaced by a fresh one, and the
 * caller must copy the bytes of *out_from to *out_to. Otherwise both are KV_BLOCK_NONE. Returns
 * false, unchanged, if no fresh block is free. */
bool kv_cache_make_writable(struct kv_cache *cache, uint32_t slot, uint32_t i, uint32_t *out_from,
                            uint32_t *out_to);
/* True if kv_cache_make_writable() would need a fresh block. */
bool kv_cache_needs_copy(const struct kv_cache *cache, uint32_t slot, uint32_t i);
/* Drops all blocks of the slot, the last first: so among kept blocks, a sequence's last blocks are
 * evicted first. */
void kv_cache_clear(struct kv_cache *cache, uint32_t slot);
/* Drops the slot's blocks behind the first n, the last first. */
void kv_cache_trim(struct kv_cache *cache, uint32_t slot, uint32_t n);
/* Moves the table of slot `from` to the empty slot `to`. Holders do not change. */
void kv_cache_move(struct kv_cache *cache, uint32_t from, uint32_t to);
/* Blocks of which the slot is the only holder: kv_cache_clear() would free them. */
uint32_t kv_cache_n_exclusive(const struct kv_cache *cache, uint32_t slot);

/* Marks a held block: its content is kept when its last holder drops it. */
void kv_cache_keep(struct kv_cache *cache, uint32_t block);
/* The content of the block is not kept any longer: nothing can find it. No call of on_evict. */
void kv_cache_forget(struct kv_cache *cache, uint32_t block);
/* Replaces entry i of the slot's table by `block`, which has equal content. */
void kv_cache_replace(struct kv_cache *cache, uint32_t slot, uint32_t i, uint32_t block);
