#include "engine/kv/state_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

enum list { LIST_INSIDE, LIST_LASTING, N_LISTS };

struct slot {
    uint32_t n_refs;
    uint64_t node;       /* 0: no snapshot */
    uint32_t next_equal; /* next snapshot in its bucket */
    uint32_t prev, next; /* list of snapshots without holders */
    bool lasting;        /* decides in which list it is */
};

struct state_cache {
    uint32_t n_slots, n_unused, n_snapshots;
    uint32_t n_listed; /* snapshots without holders */
    uint64_t n_evictions;
    struct slot *slots; /* [n_slots + N_LISTS]; the last entries head the lists */
    uint32_t *unused;   /* stack of unused slots */
    uint32_t *buckets;  /* [bucket_mask + 1] first snapshot or STATE_SLOT_NONE */
    uint32_t bucket_mask;
};

int state_cache_create(uint32_t n_slots, struct state_cache **out_cache, struct error *err)
{
    if (!n_slots || n_slots > UINT32_MAX / 4)
        return error_set(err, STATUS_INVALID_ARGUMENT, "state cache: %u slots", n_slots);
    uint32_t n_buckets = 1;
    while (n_buckets < 2 * n_slots)
        n_buckets *= 2;
    struct state_cache *cache = calloc(1, sizeof(*cache));
    if (!cache)
        goto no_memory;
    cache->n_slots = cache->n_unused = n_slots;
    cache->bucket_mask = n_buckets - 1;
    cache->slots = calloc((size_t)n_slots + N_LISTS, sizeof(*cache->slots));
    cache->unused = calloc(n_slots, sizeof(*cache->unused));
    cache->buckets = malloc(n_buckets * sizeof(*cache->buckets));
    if (!cache->slots || !cache->unused || !cache->buckets)
        goto no_memory;
    memset(cache->buckets, 0xFF, n_buckets * sizeof(*cache->buckets));
    for (uint32_t i = n_slots; i < n_slots + N_LISTS; i++)
        cache->slots[i].prev = cache->slots[i].next = i;
    for (uint32_t i = 0; i < n_slots; i++)
        cache->unused[i] = n_slots - 1 - i;
    *out_cache = cache;
    return 0;
no_memory:
    state_cache_destroy(cache);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "state cache: no memory for %u slots",
                     n_slots);
}

void state_cache_destroy(struct state_cache *cache)
{
    if (!cache)
        return;
    free(cache->slots);
    free(cache->unused);
    free(cache->buckets);
    free(cache);
}

uint32_t state_cache_n_free(const struct state_cache *cache)
{
    return cache->n_unused + cache->n_listed;
}

uint32_t state_cache_n_snapshots(const struct state_cache *cache)
{
    return cache->n_snapshots;
}

uint64_t state_cache_n_evictions(const struct state_cache *cache)
{
    return cache->n_evictions;
}

uint32_t state_cache_n_refs(const struct state_cache *cache, uint32_t slot)
{
    assert(slot < cache->n_slots);
    return cache->slots[slot].n_refs;
}

bool state_cache_is_snapshot(const struct state_cache *cache, uint32_t slot)
{
    assert(slot < cache->n_slots);
    return cache->slots[slot].node != 0;
}

/* --- lists of snapshots without holders: head.next is the least recently used --- */

static void list_unlink(struct state_cache *cache, uint32_t i)
{
    struct slot *slot = &cache->slots[i];
    cache->slots[slot->prev].next = slot->next;
    cache->slots[slot->next].prev = slot->prev;
    cache->n_listed--;
}

static void list_append(struct state_cache *cache, uint32_t i)
{
    struct slot *slot = &cache->slots[i];
    uint32_t head = cache->n_slots + (slot->lasting ? LIST_LASTING : LIST_INSIDE);
    slot->prev = cache->slots[head].prev;
    slot->next = head;
    cache->slots[slot->prev].next = i;
    cache->slots[head].prev = i;
    cache->n_listed++;
}

/* The next snapshot to evict; one exists. */
static uint32_t list_first(const struct state_cache *cache)
{
    uint32_t inside = cache->n_slots + LIST_INSIDE, i = cache->slots[inside].next;
    return i != inside ? i : cache->slots[cache->n_slots + LIST_LASTING].next;
}

/* --- snapshots by node --- */

static uint32_t *bucket_of(const struct state_cache *cache, uint64_t node)
{
    return &cache->buckets[(node * 0x9E3779B97F4A7C15ull >> 32) & cache->bucket_mask];
}

static void unrecord(struct state_cache *cache, uint32_t i)
{
    struct slot *slot = &cache->slots[i];
    uint32_t *link = bucket_of(cache, slot->node);
    while (*link != i)
        link = &cache->slots[*link].next_equal;
    *link = slot->next_equal;
    slot->node = 0;
    slot->lasting = false;
    cache->n_snapshots--;
}

uint32_t state_cache_peek(const struct state_cache *cache, uint64_t node)
{
    uint32_t i = *bucket_of(cache, node);
    while (i != STATE_SLOT_NONE && cache->slots[i].node != node)
        i = cache->slots[i].next_equal;
    return i;
}

uint32_t state_cache_find(struct state_cache *cache, uint64_t node)
{
    uint32_t i = state_cache_peek(cache, node);
    if (i == STATE_SLOT_NONE)
        return i;
    if (!cache->slots[i].n_refs)
        list_unlink(cache, i);
    cache->slots[i].n_refs++;
    cache->slots[i].lasting = true;
    return i;
}

void state_cache_record(struct state_cache *cache, uint64_t node, uint32_t slot,
                        enum state_place place)
{
    assert(node && state_cache_n_refs(cache, slot));
    if (cache->slots[slot].node || state_cache_peek(cache, node) != STATE_SLOT_NONE)
        return;
    uint32_t *bucket = bucket_of(cache, node);
    cache->slots[slot].node = node;
    cache->slots[slot].lasting = place == STATE_END;
    cache->slots[slot].next_equal = *bucket;
    *bucket = slot;
    cache->n_snapshots++;
}

void state_cache_forget(struct state_cache *cache, uint64_t node)
{
    uint32_t i = state_cache_peek(cache, node);
    if (i == STATE_SLOT_NONE)
        return;
    if (!cache->slots[i].n_refs) {
        list_unlink(cache, i);
        cache->unused[cache->n_unused++] = i;
    }
    unrecord(cache, i);
}

void state_cache_overwrite(struct state_cache *cache, uint32_t slot)
{
    assert(state_cache_n_refs(cache, slot));
    if (!cache->slots[slot].node)
        return;
    unrecord(cache, slot);
    cache->n_evictions++;
}

/* --- holders --- */

uint32_t state_cache_take(struct state_cache *cache)
{
    uint32_t i;
    if (cache->n_unused) {
        i = cache->unused[--cache->n_unused];
    } else if (cache->n_listed) {
        i = list_first(cache);
        list_unlink(cache, i);
        unrecord(cache, i);
        cache->n_evictions++;
    } else {
        return STATE_SLOT_NONE;
    }
    cache->slots[i].n_refs = 1;
    return i;
}

void state_cache_hold(struct state_cache *cache, uint32_t slot)
{
    assert(state_cache_n_refs(cache, slot));
    cache->slots[slot].n_refs++;
}

void state_cache_drop(struct state_cache *cache, uint32_t slot)
{
    assert(state_cache_n_refs(cache, slot));
    if (--cache->slots[slot].n_refs)
        return;
    if (cache->slots[slot].node)
        list_append(cache, slot);
    else
        cache->unused[cache->n_unused++] = slot;
}
