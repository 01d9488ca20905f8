#include "engine/kv/kv_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/seeded_bug.h"

struct block {
    uint32_t n_refs;
    uint32_t prev, next; /* list of kept blocks without holders */
    bool kept;
    bool proven; /* was found again since it was kept; decides in which list it is, */
    bool passed; /* as does this: a window has passed the block */
};

/* In the order of eviction. */
enum list { LIST_PASSED, LIST_NEW, LIST_PROVEN, N_LISTS };

struct kv_cache {
    struct kv_cache_config cfg;
    struct block *blocks; /* [n_blocks + N_LISTS]; the last entries head the lists */
    /* Stack of unused blocks in a ring: taken from its top. Blocks from the front of a table go to
     * the bottom, so that kv_cache_peek() stays right. */
    uint32_t *unused;
    uint32_t unused_bottom, n_unused, n_kept_free, n_proven;
    uint32_t *tables;   /* [n_slots][max_blocks_per_seq] */
    uint32_t *lens;     /* [n_slots] */
    uint32_t *fronts;   /* [n_slots] entries without a block */
    uint32_t *versions; /* [n_slots] */
};

int kv_cache_create(const struct kv_cache_config *cfg, struct kv_cache **out_cache,
                    struct error *err)
{
    if (!cfg->n_blocks || !cfg->n_slots || !cfg->max_blocks_per_seq ||
        cfg->n_blocks >= KV_BLOCK_NONE - N_LISTS)
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "KV cache: %u blocks, %u slots, %u blocks per sequence: all must be at least 1",
            cfg->n_blocks, cfg->n_slots, cfg->max_blocks_per_seq);
    struct kv_cache *cache = calloc(1, sizeof(*cache));
    if (!cache)
        goto no_memory;
    cache->cfg = *cfg;
    cache->blocks = calloc((size_t)cfg->n_blocks + N_LISTS, sizeof(*cache->blocks));
    cache->unused = calloc(cfg->n_blocks, sizeof(*cache->unused));
    cache->tables = calloc(cfg->n_slots, (size_t)cfg->max_blocks_per_seq * sizeof(*cache->tables));
    cache->lens = calloc(cfg->n_slots, sizeof(*cache->lens));
    cache->fronts = calloc(cfg->n_slots, sizeof(*cache->fronts));
    cache->versions = calloc(cfg->n_slots, sizeof(*cache->versions));
    if (!cache->blocks || !cache->unused || !cache->tables || !cache->lens || !cache->fronts ||
        !cache->versions)
        goto no_memory;
    for (uint32_t i = cfg->n_blocks; i < cfg->n_blocks + N_LISTS; i++)
        cache->blocks[i].prev = cache->blocks[i].next = i;
    for (uint32_t i = 0; i < cfg->n_blocks; i++)
        cache->unused[i] = cfg->n_blocks - 1 - i;
    cache->n_unused = cfg->n_blocks;
    *out_cache = cache;
    return 0;
no_memory:
    kv_cache_destroy(cache);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "KV cache: no memory for %u block tables",
                     cfg->n_slots);
}

void kv_cache_destroy(struct kv_cache *cache)
{
    if (!cache)
        return;
    free(cache->blocks);
    free(cache->unused);
    free(cache->tables);
    free(cache->lens);
    free(cache->fronts);
    free(cache->versions);
    free(cache);
}

uint32_t kv_cache_n_blocks(const struct kv_cache *cache)
{
    return cache->cfg.n_blocks;
}

uint32_t kv_cache_n_free(const struct kv_cache *cache)
{
    return cache->n_unused + cache->n_kept_free;
}

uint32_t kv_cache_n_kept_free(const struct kv_cache *cache)
{
    return cache->n_kept_free;
}

uint32_t kv_cache_n_refs(const struct kv_cache *cache, uint32_t block)
{
    return cache->blocks[block].n_refs;
}

static uint32_t *table_of(const struct kv_cache *cache, uint32_t slot)
{
    assert(slot < cache->cfg.n_slots);
    return cache->tables + (size_t)slot * cache->cfg.max_blocks_per_seq;
}

const uint32_t *kv_cache_table(const struct kv_cache *cache, uint32_t slot)
{
    return table_of(cache, slot);
}

uint32_t kv_cache_table_len(const struct kv_cache *cache, uint32_t slot)
{
    return cache->lens[slot];
}

uint32_t kv_cache_table_version(const struct kv_cache *cache, uint32_t slot)
{
    return cache->versions[slot];
}

uint32_t kv_cache_front(const struct kv_cache *cache, uint32_t slot)
{
    return cache->fronts[slot];
}

/* --- unused blocks --- */

/* The i-th unused block from the bottom. */
static uint32_t *unused_at(const struct kv_cache *cache, uint32_t i)
{
    uint64_t at = (uint64_t)cache->unused_bottom + i;
    return &cache->unused[at % cache->cfg.n_blocks];
}

static void add_unused(struct kv_cache *cache, uint32_t block, bool at_bottom)
{
    if (at_bottom) {
        uint32_t n = cache->cfg.n_blocks;
        cache->unused_bottom = (cache->unused_bottom + n - 1) % n;
    }
    cache->n_unused++;
    *unused_at(cache, at_bottom ? 0 : cache->n_unused - 1) = block;
}

/* --- lists of kept blocks: head.next is the least recently used --- */

static void list_unlink(struct kv_cache *cache, uint32_t i)
{
    struct block *block = &cache->blocks[i];
    cache->blocks[block->prev].next = block->next;
    cache->blocks[block->next].prev = block->prev;
    cache->n_kept_free--;
    cache->n_proven -= block->proven;
}

static void list_append(struct kv_cache *cache, uint32_t i)
{
    struct block *block = &cache->blocks[i];
    enum list list = block->passed ? LIST_PASSED : block->proven ? LIST_PROVEN : LIST_NEW;
    uint32_t head = cache->cfg.n_blocks + list;
    block->prev = cache->blocks[head].prev;
    block->next = head;
    cache->blocks[block->prev].next = i;
    cache->blocks[head].prev = i;
    cache->n_kept_free++;
    cache->n_proven += block->proven;
}

static uint32_t list_first(const struct kv_cache *cache, enum list list)
{
    uint32_t head = cache->cfg.n_blocks + list, i = cache->blocks[head].next;
    return i == head ? KV_BLOCK_NONE : i;
}

/* Adds a kept block without holders to its list. If there are too many proven blocks, the oldest
 * loses that state. */
static void keep_free(struct kv_cache *cache, uint32_t i)
{
    list_append(cache, i);
    if (cache->n_proven <= cache->cfg.max_proven)
        return;
    uint32_t oldest = list_first(cache, LIST_PROVEN);
    list_unlink(cache, oldest);
    cache->blocks[oldest].proven = false;
    list_append(cache, oldest);
}

/* Drops what is known of a kept block's content. */
static void evict_content(struct kv_cache *cache, uint32_t i)
{
    cache->blocks[i].kept = cache->blocks[i].proven = cache->blocks[i].passed = false;
    if (cache->cfg.on_evict)
        cache->cfg.on_evict(cache->cfg.ctx, i);
}

/* Takes a block with unknown content and one holder, or returns KV_BLOCK_NONE. */
static uint32_t take_block(struct kv_cache *cache)
{
    uint32_t i;
    if (cache->n_unused) {
        i = *unused_at(cache, --cache->n_unused);
    } else if (cache->n_kept_free) {
        i = KV_BLOCK_NONE;
        for (enum list list = 0; i == KV_BLOCK_NONE; list++)
            i = list_first(cache, list);
        list_unlink(cache, i);
        evict_content(cache, i);
    } else {
        return KV_BLOCK_NONE;
    }
    cache->blocks[i].n_refs = 1;
    return i;
}

uint32_t kv_cache_peek(const struct kv_cache *cache, struct kv_peek *peek)
{
    uint32_t first = cache->cfg.n_blocks, end = first + N_LISTS;
    if (peek->n_unused < cache->n_unused)
        return *unused_at(cache, cache->n_unused - ++peek->n_unused);
    uint32_t next = cache->blocks[peek->block == KV_BLOCK_NONE ? first : peek->block].next;
    while (next >= first && next + 1 < end) /* the end of a list, and not of the last */
        next = cache->blocks[next + 1].next;
    if (next >= first)
        return KV_BLOCK_NONE;
    peek->block = next;
    return next;
}

/* Adds a holder. */
static void hold_block(struct kv_cache *cache, uint32_t i)
{
    struct block *block = &cache->blocks[i];
    if (!block->n_refs) {
        assert(block->kept);
        list_unlink(cache, i);
        block->passed = false;
    }
    block->n_refs++;
}

/* Drops a holder. The block is free after its last one. */
static void drop_holder(struct kv_cache *cache, uint32_t i, bool is_front, bool passed)
{
    struct block *block = &cache->blocks[i];
    assert(block->n_refs);
    if (--block->n_refs)
        return;
    block->passed = block->kept && passed;
    block->proven = block->proven && !block->passed;
    if (block->kept)
        keep_free(cache, i);
    else
        add_unused(cache, i, is_front);
}

static void drop_block(struct kv_cache *cache, uint32_t i)
{
    drop_holder(cache, i, false, false);
}

bool kv_cache_grow(struct kv_cache *cache, uint32_t slot)
{
    if (cache->lens[slot] == cache->cfg.max_blocks_per_seq)
        return false;
    uint32_t i = take_block(cache);
    if (i == KV_BLOCK_NONE)
        return false;
    table_of(cache, slot)[cache->lens[slot]++] = i;
    return true;
}

static void append_block(struct kv_cache *cache, uint32_t slot, uint32_t block)
{
    assert(block < cache->cfg.n_blocks && cache->lens[slot] < cache->cfg.max_blocks_per_seq);
    hold_block(cache, block);
    table_of(cache, slot)[cache->lens[slot]++] = block;
}

void kv_cache_attach(struct kv_cache *cache, uint32_t slot, uint32_t block)
{
    append_block(cache, slot, block);
    cache->blocks[block].proven = cache->blocks[block].kept;
}

void kv_cache_share(struct kv_cache *cache, uint32_t from, uint32_t to, uint32_t n)
{
    assert(!cache->lens[to] && cache->fronts[from] <= n && n <= cache->lens[from]);
    const uint32_t *src = table_of(cache, from);
    kv_cache_skip(cache, to, cache->fronts[from]);
    for (uint32_t i = cache->fronts[from]; i < n; i++)
        append_block(cache, to, src[i]);
}

/* --- tables without blocks at their front --- */

void kv_cache_skip(struct kv_cache *cache, uint32_t slot, uint32_t n)
{
    uint32_t *table = table_of(cache, slot);
    assert(cache->fronts[slot] == cache->lens[slot] &&
           n <= cache->cfg.max_blocks_per_seq - cache->lens[slot]);
    for (uint32_t i = 0; i < n; i++)
        table[cache->lens[slot]++] = KV_BLOCK_NONE;
    cache->fronts[slot] = cache->lens[slot];
}

void kv_cache_drop_front(struct kv_cache *cache, uint32_t slot, bool passed)
{
    uint32_t *entry = table_of(cache, slot) + cache->fronts[slot];
    assert(cache->fronts[slot] < cache->lens[slot]);
    drop_holder(cache, *entry, true, passed);
    *entry = KV_BLOCK_NONE;
    cache->fronts[slot]++;
}

bool kv_cache_needs_copy(const struct kv_cache *cache, uint32_t slot, uint32_t i)
{
    return cache->blocks[table_of(cache, slot)[i]].n_refs > 1;
}

bool kv_cache_make_writable(struct kv_cache *cache, uint32_t slot, uint32_t i, uint32_t *out_from,
                            uint32_t *out_to)
{
    assert(i >= cache->fronts[slot] && i < cache->lens[slot]);
    uint32_t *entry = table_of(cache, slot) + i;
    uint32_t from = *entry;
    *out_from = *out_to = KV_BLOCK_NONE;
    if (cache->blocks[from].n_refs == 1) {
        if (cache->blocks[from].kept)
            evict_content(cache, from);
        return true;
    }
    uint32_t to = take_block(cache);
    if (to == KV_BLOCK_NONE)
        return false;
    drop_block(cache, from);
    *entry = to;
    cache->versions[slot]++;
    *out_from = from;
    *out_to = to;
    return true;
}

void kv_cache_clear(struct kv_cache *cache, uint32_t slot)
{
    cache->versions[slot]++;
    if (cache->lens[slot] && seeded_bug("I5_leaks_a_block"))
        cache->lens[slot]--;
    kv_cache_trim(cache, slot, 0);
}

void kv_cache_trim(struct kv_cache *cache, uint32_t slot, uint32_t n)
{
    const uint32_t *table = table_of(cache, slot);
    cache->versions[slot] += cache->lens[slot] > n;
    while (cache->lens[slot] > n && cache->lens[slot] > cache->fronts[slot])
        drop_block(cache, table[--cache->lens[slot]]);
    if (cache->lens[slot] > n)
        cache->fronts[slot] = cache->lens[slot] = n;
}

void kv_cache_move(struct kv_cache *cache, uint32_t from, uint32_t to)
{
    assert(from != to && !cache->lens[to]);
    memcpy(table_of(cache, to), table_of(cache, from), cache->lens[from] * sizeof(*cache->tables));
    cache->lens[to] = cache->lens[from];
    cache->fronts[to] = cache->fronts[from];
    cache->lens[from] = cache->fronts[from] = 0;
    cache->versions[from]++;
    cache->versions[to]++;
}

uint32_t kv_cache_n_exclusive(const struct kv_cache *cache, uint32_t slot)
{
    const uint32_t *table = table_of(cache, slot);
    uint32_t n = 0;
    for (uint32_t i = cache->fronts[slot]; i < cache->lens[slot]; i++)
        n += cache->blocks[table[i]].n_refs == 1;
    return n;
}

void kv_cache_forget(struct kv_cache *cache, uint32_t i)
{
    struct block *block = &cache->blocks[i];
    bool is_listed = block->kept && !block->n_refs;
    if (is_listed)
        list_unlink(cache, i);
    block->kept = block->proven = block->passed = false;
    if (is_listed)
        add_unused(cache, i, false);
}

void kv_cache_keep(struct kv_cache *cache, uint32_t block)
{
    assert(cache->blocks[block].n_refs);
    cache->blocks[block].kept = true;
}

void kv_cache_replace(struct kv_cache *cache, uint32_t slot, uint32_t i, uint32_t block)
{
    uint32_t *entry = table_of(cache, slot) + i, old = *entry;
    assert(i >= cache->fronts[slot] && i < cache->lens[slot]);
    if (old == block)
        return;
    hold_block(cache, block);
    cache->blocks[block].proven = cache->blocks[block].kept;
    *entry = block;
    cache->versions[slot]++;
    drop_block(cache, old);
}
