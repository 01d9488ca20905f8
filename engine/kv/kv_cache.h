/* kv_cache.h: who holds which block of the KV pool: reference counts, block tables per slot, blocks
 * kept for reuse and copy on write. Accounting alone: the bytes live in the executor's pools.
 * Engine thread only. Allocates at create, never after, and nothing searches. Knows nothing of
 * requests; the scheduler decides who is evicted.
 *
 * Kept blocks that nobody holds are in two lists, each with the least recently used first: those
 * that were found again at least once, up to max_proven of them, and the others, which are taken
 * first (segmented LRU [Karedla et al., Computer 27(3), 1994]). So texts that come once do not
 * wash out what comes again. In both, tails stand before the heads they hang on. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct kv_cache;

#define KV_BLOCK_NONE UINT32_MAX

struct kv_cache_config {
    uint32_t n_blocks;           /* whole pool */
    uint32_t n_slots;            /* block tables */
    uint32_t max_blocks_per_seq; /* length of each table */
    uint32_t max_proven;         /* free blocks that are evicted last; 0: all by LRU */
    /* A kept block is taken for something else: forget what is known of it. May be NULL. */
    void (*on_evict)(void *ctx, uint32_t block);
    void *ctx;
};

/* *out_cache is owned. INVALID_ARGUMENT on a zero dimension, RESOURCE_EXHAUSTED without memory. */
int kv_cache_create(const struct kv_cache_config *cfg, struct kv_cache **out_cache,
                    struct error *err);
void kv_cache_destroy(struct kv_cache *cache);

uint32_t kv_cache_n_blocks(const struct kv_cache *cache);
/* Blocks that can be had now: unused ones and kept ones that nobody holds. */
uint32_t kv_cache_n_free(const struct kv_cache *cache);
/* The kept ones among them. */
uint32_t kv_cache_n_kept_free(const struct kv_cache *cache);
/* Holders of a block. */
uint32_t kv_cache_n_refs(const struct kv_cache *cache, uint32_t block);

/* The table of a slot: borrowed, changes with the calls below. */
const uint32_t *kv_cache_table(const struct kv_cache *cache, uint32_t slot);
uint32_t kv_cache_table_len(const struct kv_cache *cache, uint32_t slot);
/* Another number whenever entries of the table have gone or have become others; those that were
 * appended since do not change it. */
uint32_t kv_cache_table_version(const struct kv_cache *cache, uint32_t slot);

/* Where kv_cache_peek() stands; begin with KV_PEEK_FIRST. Good until anything is taken or let go.
 */
struct kv_peek {
    uint32_t n_unused, block;
};
#define KV_PEEK_FIRST ((struct kv_peek){0, KV_BLOCK_NONE})
/* The block that kv_cache_grow() would take next; with each further call the one after. Takes
 * none. KV_BLOCK_NONE: there is no more. */
uint32_t kv_cache_peek(const struct kv_cache *cache, struct kv_peek *peek);

/* Appends a block of its own to the slot's table: an unused one, else the kept one that is to go
 * first. False, table unchanged, where there is none or the table is full. */
bool kv_cache_grow(struct kv_cache *cache, uint32_t slot);
/* Appends a kept or held block (a prefix hit). */
void kv_cache_attach(struct kv_cache *cache, uint32_t slot, uint32_t block);
/* Gives the empty slot `to` the first n blocks of `from`. */
void kv_cache_share(struct kv_cache *cache, uint32_t from, uint32_t to, uint32_t n);
/* Makes entry i of the slot's table writable: nothing to do where the slot alone holds it and it is
 * not kept; a kept one held alone is dropped from the kept (on_evict); a shared one is replaced by
 * a fresh block and *out_from says which block's bytes must be copied to *out_to (both
 * KV_BLOCK_NONE otherwise). False, unchanged, where a fresh block is needed and none is free. */
bool kv_cache_make_writable(struct kv_cache *cache, uint32_t slot, uint32_t i, uint32_t *out_from,
                            uint32_t *out_to);
/* Whether make_writable would need a fresh block. */
bool kv_cache_needs_copy(const struct kv_cache *cache, uint32_t slot, uint32_t i);
/* Lets go of all blocks of the slot, the last first, so that among kept blocks tails are evicted
 * before the heads they hang on. */
void kv_cache_clear(struct kv_cache *cache, uint32_t slot);
/* Lets go of the slot's blocks behind the first n (where there are more), the last first. */
void kv_cache_trim(struct kv_cache *cache, uint32_t slot, uint32_t n);
/* Blocks of the slot that nobody else holds: what clearing it would free. */
uint32_t kv_cache_n_exclusive(const struct kv_cache *cache, uint32_t slot);

/* Says that a held block's content is worth keeping when its last holder lets go. */
void kv_cache_keep(struct kv_cache *cache, uint32_t block);
/* Puts `block`, which holds the same, in the place of entry i of the slot's table. */
void kv_cache_replace(struct kv_cache *cache, uint32_t slot, uint32_t i, uint32_t block);
