#include "engine/kv/prefix_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash_map.h"
#include "base/rng.h"
#include "engine/kv/kv_cache.h"

struct entry {
    struct prefix_salt salt;
    uint64_t parent, node; /* node 0: not recorded */
    uint32_t next;         /* next block in its bucket */
    uint32_t bucket;
};

struct prefix_cache {
    uint32_t n_blocks, block_size, n_entries;
    uint32_t bucket_mask;
    uint64_t last_node;
    uint64_t seed;         /* random: clients cannot craft blocks that share a bucket */
    struct entry *entries; /* [n_blocks] */
    uint32_t *tokens;      /* [n_blocks][block_size] */
    uint32_t *buckets;     /* [bucket_mask + 1] first block or KV_BLOCK_NONE */
};

int prefix_cache_create(uint32_t n_blocks, uint32_t block_size, struct prefix_cache **out_cache,
                        struct error *err)
{
    if (!n_blocks || !block_size || n_blocks > UINT32_MAX / 4)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "prefix cache: %u blocks of %u tokens: both must be at least 1", n_blocks,
                         block_size);
    uint32_t n_buckets = 1;
    while (n_buckets < 2 * n_blocks)
        n_buckets *= 2;
    struct prefix_cache *cache = calloc(1, sizeof(*cache));
    if (!cache)
        goto no_memory;
    cache->n_blocks = n_blocks;
    cache->block_size = block_size;
    cache->seed = rng_u64();
    cache->bucket_mask = n_buckets - 1;
    cache->entries = calloc(n_blocks, sizeof(*cache->entries));
    cache->tokens = calloc(n_blocks, (size_t)block_size * sizeof(*cache->tokens));
    cache->buckets = malloc(n_buckets * sizeof(*cache->buckets));
    if (!cache->entries || !cache->tokens || !cache->buckets)
        goto no_memory;
    memset(cache->buckets, 0xFF, n_buckets * sizeof(*cache->buckets));
    *out_cache = cache;
    return 0;
no_memory:
    prefix_cache_destroy(cache);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "prefix cache: no memory for %u blocks",
                     n_blocks);
}

void prefix_cache_destroy(struct prefix_cache *cache)
{
    if (!cache)
        return;
    free(cache->entries);
    free(cache->tokens);
    free(cache->buckets);
    free(cache);
}

static uint32_t bucket_of(const struct prefix_cache *cache, const struct prefix_salt *salt,
                          uint64_t parent, const uint32_t *tokens)
{
    uint64_t seed = cache->seed ^ salt->words[0] ^ (parent * 0x9E3779B97F4A7C15ull);
    return (uint32_t)hash_bytes(tokens, cache->block_size * sizeof(*tokens), seed) &
           cache->bucket_mask;
}

static uint32_t find_in(const struct prefix_cache *cache, uint32_t bucket,
                        const struct prefix_salt *salt, uint64_t parent, const uint32_t *tokens)
{
    size_t n_bytes = cache->block_size * sizeof(*tokens);
    for (uint32_t i = cache->buckets[bucket]; i != KV_BLOCK_NONE; i = cache->entries[i].next) {
        const struct entry *entry = &cache->entries[i];
        if (entry->parent == parent && entry->salt.words[0] == salt->words[0] &&
            entry->salt.words[1] == salt->words[1] &&
            !memcmp(cache->tokens + (size_t)i * cache->block_size, tokens, n_bytes))
            return i;
    }
    return KV_BLOCK_NONE;
}

uint32_t prefix_cache_find(const struct prefix_cache *cache, const struct prefix_salt *salt,
                           uint64_t parent, const uint32_t *tokens, uint64_t *out_node)
{
    uint32_t block = find_in(cache, bucket_of(cache, salt, parent, tokens), salt, parent, tokens);
    if (block != KV_BLOCK_NONE)
        *out_node = cache->entries[block].node;
    return block;
}

uint64_t prefix_cache_insert(struct prefix_cache *cache, const struct prefix_salt *salt,
                             uint64_t parent, const uint32_t *tokens, uint32_t block,
                             uint32_t *out_block)
{
    uint32_t bucket = bucket_of(cache, salt, parent, tokens);
    uint32_t known = find_in(cache, bucket, salt, parent, tokens);
    *out_block = known != KV_BLOCK_NONE ? known : block;
    if (known != KV_BLOCK_NONE)
        return cache->entries[known].node;
    prefix_cache_remove(cache, block);
    struct entry *entry = &cache->entries[block];
    entry->salt = *salt;
    entry->parent = parent;
    entry->node = ++cache->last_node;
    entry->bucket = bucket;
    entry->next = cache->buckets[bucket];
    cache->buckets[bucket] = block;
    memcpy(cache->tokens + (size_t)block * cache->block_size, tokens,
           cache->block_size * sizeof(*tokens));
    cache->n_entries++;
    return entry->node;
}

void prefix_cache_remove(struct prefix_cache *cache, uint32_t block)
{
    struct entry *entry = &cache->entries[block];
    if (!entry->node)
        return;
    uint32_t *link = &cache->buckets[entry->bucket];
    while (*link != block)
        link = &cache->entries[*link].next;
    *link = entry->next;
    entry->node = 0;
    cache->n_entries--;
}

uint64_t prefix_cache_node(const struct prefix_cache *cache, uint32_t block)
{
    return cache->entries[block].node;
}

uint32_t prefix_cache_n_entries(const struct prefix_cache *cache)
{
    return cache->n_entries;
}
