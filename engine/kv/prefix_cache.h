/* prefix_cache.h: finds KV blocks by their content. The key of a full block is its own tokens, the
 * node of the block before it, and the caller's salt. Look-ups compare all three in full; a hash
 * alone never decides. So two callers share blocks only if their salts are equal. Engine thread
 * only. Allocates at create, never after. Does not own blocks: kv_cache counts them, and the owner
 * calls prefix_cache_remove() when a block gets new content. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct error;
struct prefix_cache;

/* Digest of identity and salt (SHA-256, first 16 bytes): nobody can construct a collision. */
struct prefix_salt {
    uint64_t words[2];
};

/* The node before the first block. Sequences with another rope (longrope, scheduler.h) compute
 * other K and V from the same tokens, so they have a root of their own. */
#define PREFIX_ROOT      0ull
#define PREFIX_ROOT_LONG UINT64_MAX

/* *out_cache is owned. */
int prefix_cache_create(uint32_t n_blocks, uint32_t block_size, struct prefix_cache **out_cache,
                        struct error *err);
void prefix_cache_destroy(struct prefix_cache *cache);

/* The block that holds tokens[block_size] after node `parent` (a root for the first block), or
 * KV_BLOCK_NONE. *out_node is the `parent` of the next block. */
uint32_t prefix_cache_find(const struct prefix_cache *cache, const struct prefix_salt *salt,
                           uint64_t parent, const uint32_t *tokens, uint64_t *out_node);

/* Records a block. If an equal block is recorded already, nothing changes. Returns the node for the
 * next block. *out_block is the recorded block: `block` or the earlier one. Nodes are never
 * reused. */
uint64_t prefix_cache_insert(struct prefix_cache *cache, const struct prefix_salt *salt,
                             uint64_t parent, const uint32_t *tokens, uint32_t block,
                             uint32_t *out_block);

/* Removes a block; does nothing if the block is not recorded. */
void prefix_cache_remove(struct prefix_cache *cache, uint32_t block);
/* The node behind a recorded block; 0 if the block is not recorded. */
uint64_t prefix_cache_node(const struct prefix_cache *cache, uint32_t block);
uint32_t prefix_cache_n_entries(const struct prefix_cache *cache);
