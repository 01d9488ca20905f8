/* prefix_cache.h: finds KV blocks by what they hold. A full block is known by its chain: its own
 * tokens, the node of the block before it, and the salt of the caller. Look-ups compare all three
 * in full (a hash alone never decides), so two callers' prefixes meet only where their salts are
 * equal. Engine thread only. Allocates at create, never after. Does not own blocks: kv_cache counts
 * them and calls prefix_cache_remove() when one is taken for something else. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct prefix_cache;

/* Digest of identity and salt (SHA-256, first 16 bytes): collisions cannot be made. */
struct prefix_salt {
    uint64_t words[2];
};

enum { PREFIX_ROOT = 0 };

/* *out_cache is owned. */
int prefix_cache_create(uint32_t n_blocks, uint32_t block_size, struct prefix_cache **out_cache,
                        struct error *err);
void prefix_cache_destroy(struct prefix_cache *cache);

/* The block that holds tokens[block_size] after `parent` (PREFIX_ROOT: first block), or
 * KV_BLOCK_NONE. *out_node names it for the next block's look-up. */
uint32_t prefix_cache_find(const struct prefix_cache *cache, const struct prefix_salt *salt,
                           uint64_t parent, const uint32_t *tokens, uint64_t *out_node);

/* Records a block. Where an equal one is known already, nothing changes. Returns the node to go on
 * with; *out_block tells whose it is: `block`, or the one known. Nodes are never used twice. */
uint64_t prefix_cache_insert(struct prefix_cache *cache, const struct prefix_salt *salt,
                             uint64_t parent, const uint32_t *tokens, uint32_t block,
                             uint32_t *out_block);

/* Forgets a block; nothing happens where it is not known. */
void prefix_cache_remove(struct prefix_cache *cache, uint32_t block);
uint32_t prefix_cache_n_entries(const struct prefix_cache *cache);
