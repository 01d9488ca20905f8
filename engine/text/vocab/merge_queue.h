/* merge_queue.h: candidate merges of a long piece, lowest rank first, then leftmost. Private to
 * engine/text. Single-threaded; reusable for further pieces.
 *
 * Each rank has a list of positions. So a text with few different pairs takes linear time. A
 * heap of all candidates would take n log n steps. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct error;

struct merge_place { /* in the list of a rank */
    uint32_t position, next_plus_1;
};

struct merge_list {
    uint32_t rank, head_plus_1, tail_plus_1;
    uint32_t n;
    uint8_t is_unsorted, is_open; /* open: positions were taken from it */
};

struct merge_queue {
    uint32_t *list_of; /* owned: index + 1 into lists, by rank */
    uint32_t n_ranks;
    struct merge_list *lists; /* owned; of this piece */
    size_t n_lists, n_lists_max;
    struct merge_place *places; /* owned */
    size_t n_places, n_places_max;
    uint32_t free_plus_1; /* list of places that were taken */
    uint64_t *ranks;      /* owned heap: ranks with a list that is not empty */
    size_t n_heap, n_heap_max;
    uint64_t *late; /* owned heap of rank << 32 | position: came too late for their list */
    size_t n_late, n_late_max;
    uint32_t *sorted; /* owned scratch */
    size_t n_sorted_max;
};

/* Begins a piece, with ranks below n_ranks. A zeroed queue first. */
int merge_queue_begin(struct merge_queue *queue, uint32_t n_ranks, struct error *err);
int merge_queue_push(struct merge_queue *queue, uint32_t rank, uint32_t position,
                     struct error *err);
/* Takes the first candidate as rank << 32 | position. Returns 0, a failure, or 1 at the end. */
int merge_queue_pop(struct merge_queue *queue, uint64_t *out, struct error *err);
void merge_queue_fini(struct merge_queue *queue);
