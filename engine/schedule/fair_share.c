#include "engine/schedule/fair_share.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash_map.h"
#include "engine/request/request.h"

enum { NONE = UINT32_MAX };

struct caller {
    char name[REQUEST_MAX_CALLER_BYTES + 1];
    uint64_t counter;
    uint32_t n_holds;
    uint32_t bucket, next; /* list of its bucket: link to the next entry */
    uint32_t older, newer; /* list of entries without holds */
};

struct fair_share {
    struct caller *callers; /* [max_callers + 1]; the last entry heads the list without holds */
    uint32_t max_callers, n_used; /* entries from n_used on were never taken */
    uint32_t *buckets;            /* [bucket_mask + 1] */
    uint32_t bucket_mask;
};

int fair_share_create(uint32_t max_callers, struct fair_share **out_share, struct error *err)
{
    uint32_t n_buckets = 1;
    struct fair_share *share = calloc(1, sizeof(*share));
    if (!share)
        goto no_memory;
    while (n_buckets < max_callers)
        n_buckets *= 2;
    share->max_callers = max_callers;
    share->bucket_mask = n_buckets - 1;
    share->callers = calloc((size_t)max_callers + 1, sizeof(*share->callers));
    share->buckets = malloc(n_buckets * sizeof(*share->buckets));
    if (!share->callers || !share->buckets)
        goto no_memory;
    memset(share->buckets, 0xFF, n_buckets * sizeof(*share->buckets));
    share->callers[max_callers].older = share->callers[max_callers].newer = max_callers;
    *out_share = share;
    return 0;
no_memory:
    fair_share_destroy(share);
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u callers", max_callers);
}

void fair_share_destroy(struct fair_share *share)
{
    if (!share)
        return;
    free(share->callers);
    free(share->buckets);
    free(share);
}

static void idle_unlink(struct fair_share *share, uint32_t i)
{
    struct caller *c = &share->callers[i];
    share->callers[c->older].newer = c->newer;
    share->callers[c->newer].older = c->older;
}

static void idle_push(struct fair_share *share, uint32_t i)
{
    uint32_t head = share->max_callers;
    struct caller *c = &share->callers[i];
    c->older = share->callers[head].older;
    c->newer = head;
    share->callers[c->older].newer = i;
    share->callers[head].older = i;
}

static void unlink_name(struct fair_share *share, uint32_t i)
{
    uint32_t *link = &share->buckets[share->callers[i].bucket];
    while (*link != i)
        link = &share->callers[*link].next;
    *link = share->callers[i].next;
}

/* An entry that was never used, or else the entry that has been without holds longest. */
static uint32_t take_entry(struct fair_share *share)
{
    if (share->n_used < share->max_callers)
        return share->n_used++;
    uint32_t i = share->callers[share->max_callers].newer;
    assert(i != share->max_callers);
    idle_unlink(share, i);
    unlink_name(share, i);
    return i;
}

uint32_t fair_share_hold(struct fair_share *share, const char *name)
{
    uint32_t bucket = (uint32_t)hash_bytes(name, strlen(name), 0) & share->bucket_mask;
    uint32_t i = share->buckets[bucket];
    while (i != NONE && strcmp(share->callers[i].name, name) != 0)
        i = share->callers[i].next;
    if (i != NONE) {
        if (!share->callers[i].n_holds++)
            idle_unlink(share, i);
        return i;
    }
    i = take_entry(share);
    struct caller *c = &share->callers[i];
    *c = (struct caller){.n_holds = 1, .bucket = bucket, .next = share->buckets[bucket]};
    memcpy(c->name, name, strnlen(name, REQUEST_MAX_CALLER_BYTES));
    share->buckets[bucket] = i;
    return i;
}

void fair_share_release(struct fair_share *share, uint32_t i)
{
    assert(share->callers[i].n_holds);
    if (!--share->callers[i].n_holds)
        idle_push(share, i);
}

uint64_t fair_share_counter(const struct fair_share *share, uint32_t i)
{
    return share->callers[i].counter;
}

void fair_share_charge(struct fair_share *share, uint32_t i, uint64_t n_tokens)
{
    share->callers[i].counter += n_tokens;
}

void fair_share_raise(struct fair_share *share, uint32_t i, uint64_t floor)
{
    if (share->callers[i].counter < floor)
        share->callers[i].counter = floor;
}
