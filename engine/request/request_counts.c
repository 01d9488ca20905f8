#include "engine/request/request_counts.h"

#include <assert.h>
#include <stdlib.h>

bool request_counts_init(struct request_counts *counts, uint32_t capacity)
{
    uint32_t n_slots = 16;
    while (n_slots < 2ull * capacity && n_slots < 1u << 31)
        n_slots *= 2;
    *counts = (struct request_counts){.capacity = capacity, .index_mask = n_slots - 1};
    counts->counts = calloc(capacity ? capacity : 1, sizeof(*counts->counts));
    counts->index = calloc(n_slots, sizeof(*counts->index));
    if (counts->counts && counts->index)
        return true;
    request_counts_fini(counts);
    return false;
}

void request_counts_fini(struct request_counts *counts)
{
    free(counts->counts);
    free(counts->index);
    *counts = (struct request_counts){0};
}

void request_counts_add(struct request_counts *counts, uint32_t id, bool generated)
{
    uint32_t at = (id * 2654435769u) & counts->index_mask;
    while (counts->index[at] && counts->counts[counts->index[at] - 1].id != id)
        at = (at + 1) & counts->index_mask;
    if (!counts->index[at]) {
        assert(counts->n < counts->capacity);
        counts->counts[counts->n++] = (struct sample_count){.id = id};
        counts->index[at] = counts->n;
    }
    counts->counts[counts->index[at] - 1].n_generated += generated;
}
