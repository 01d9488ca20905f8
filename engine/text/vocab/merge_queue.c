#include "engine/text/vocab/merge_queue.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/facts/text_facts.h"

/* --- min-heaps --- */

static int heap_push(uint64_t **heap, size_t *n, size_t *n_max, uint64_t value, struct error *err)
{
    if (*n == *n_max) {
        size_t wider = *n_max ? 2 * *n_max : 256;
        uint64_t *grown = realloc(*heap, wider * sizeof(*grown));
        if (!grown)
            return text_facts_no_memory(err);
        *heap = grown;
        *n_max = wider;
    }
    uint64_t *h = *heap;
    size_t i = (*n)++;
    while (i && h[(i - 1) / 2] > value) {
        h[i] = h[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    h[i] = value;
    return 0;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n_heap)
{
    uint64_t least = heap[0];
    uint64_t value = heap[--*n_heap];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= *n_heap)
            break;
        if (child + 1 < *n_heap && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= value)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = value;
    return least;
}

/* --- lists --- */

int merge_queue_begin(struct merge_queue *queue, uint32_t n_ranks, struct error *err)
{
    for (size_t i = 0; i < queue->n_lists; i++)
        queue->list_of[queue->lists[i].rank] = 0;
    queue->n_lists = queue->n_places = queue->n_heap = queue->n_late = 0;
    queue->free_plus_1 = 0;
    if (queue->n_ranks >= n_ranks)
        return 0;
    free(queue->list_of);
    queue->list_of = calloc(n_ranks, sizeof(*queue->list_of));
    queue->n_ranks = queue->list_of ? n_ranks : 0;
    return queue->list_of ? 0 : text_facts_no_memory(err);
}

static int add_list(struct merge_queue *queue, uint32_t rank, struct error *err)
{
    if (queue->n_lists == queue->n_lists_max) {
        size_t wider = queue->n_lists_max ? 2 * queue->n_lists_max : 256;
        struct merge_list *grown = realloc(queue->lists, wider * sizeof(*grown));
        if (!grown)
            return text_facts_no_memory(err);
        queue->lists = grown;
        queue->n_lists_max = wider;
    }
    queue->lists[queue->n_lists++] = (struct merge_list){.rank = rank};
    queue->list_of[rank] = (uint32_t)queue->n_lists;
    return 0;
}

static int add_place(struct merge_queue *queue, struct merge_list *list, uint32_t position,
                     struct error *err)
{
    uint32_t place_plus_1 = queue->free_plus_1;
    if (place_plus_1) {
        queue->free_plus_1 = queue->places[place_plus_1 - 1].next_plus_1;
    } else if (queue->n_places == queue->n_places_max) {
        size_t wider = queue->n_places_max ? 2 * queue->n_places_max : 1024;
        struct merge_place *grown = realloc(queue->places, wider * sizeof(*grown));
        if (!grown)
            return text_facts_no_memory(err);
        queue->places = grown;
        queue->n_places_max = wider;
    }
    if (!place_plus_1)
        place_plus_1 = (uint32_t)++queue->n_places;
    queue->places[place_plus_1 - 1] = (struct merge_place){position, 0};
    if (list->tail_plus_1)
        queue->places[list->tail_plus_1 - 1].next_plus_1 = place_plus_1;
    else
        list->head_plus_1 = place_plus_1;
    list->tail_plus_1 = place_plus_1;
    list->n++;
    return 0;
}

int merge_queue_push(struct merge_queue *queue, uint32_t rank, uint32_t position, struct error *err)
{
    if (!queue->list_of[rank]) {
        int rc = add_list(queue, rank, err);
        if (rc)
            return rc;
    }
    struct merge_list *list = &queue->lists[queue->list_of[rank] - 1];
    bool late = list->tail_plus_1 && queue->places[list->tail_plus_1 - 1].position > position;
    if (late && list->is_open)
        return heap_push(&queue->late, &queue->n_late, &queue->n_late_max,
                         (uint64_t)rank << 32 | position, err);
    if (late)
        list->is_unsorted = 1;
    if (!list->n) {
        int rc = heap_push(&queue->ranks, &queue->n_heap, &queue->n_heap_max, rank, err);
        if (rc)
            return rc;
    }
    return add_place(queue, list, position, err);
}

/* Sorts by 11 bits at a time; `other` is scratch. Returns the array with the result. */
static uint32_t *sort_positions(uint32_t *a, uint32_t *other, size_t n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++)
        most = a[i] > most ? a[i] : most;
    for (uint32_t shift = 0; shift < 32 && most >> shift; shift += 11) {
        size_t counts[2049] = {0};
        for (size_t i = 0; i < n; i++)
            counts[(a[i] >> shift & 2047) + 1]++;
        for (size_t b = 0; b < 2048; b++)
            counts[b + 1] += counts[b];
        for (size_t i = 0; i < n; i++)
            other[counts[a[i] >> shift & 2047]++] = a[i];
        uint32_t *swap = a;
        a = other;
        other = swap;
    }
    return a;
}

static void sort_few(uint32_t *a, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        uint32_t value = a[i];
        size_t at = i;
        for (; at && a[at - 1] > value; at--)
            a[at] = a[at - 1];
        a[at] = value;
    }
}

static int sort_list(struct merge_queue *queue, struct merge_list *list, struct error *err)
{
    enum { FEW = 64 };
    if (queue->n_sorted_max < list->n) {
        free(queue->sorted);
        queue->n_sorted_max = 2 * (size_t)list->n;
        queue->sorted = malloc(2 * queue->n_sorted_max * sizeof(*queue->sorted));
        if (!queue->sorted) {
            queue->n_sorted_max = 0;
            return text_facts_no_memory(err);
        }
    }
    uint32_t *a = queue->sorted;
    size_t n = 0;
    for (uint32_t at = list->head_plus_1; at; at = queue->places[at - 1].next_plus_1)
        a[n++] = queue->places[at - 1].position;
    if (n <= FEW)
        sort_few(a, n);
    else
        a = sort_positions(a, a + queue->n_sorted_max, n);
    uint32_t at = list->head_plus_1;
    for (size_t i = 0; i < n; i++) {
        queue->places[at - 1].position = a[i];
        at = queue->places[at - 1].next_plus_1;
    }
    list->is_unsorted = 0;
    return 0;
}

int merge_queue_pop(struct merge_queue *queue, uint64_t *out, struct error *err)
{
    struct merge_list *list = NULL;
    uint64_t best = UINT64_MAX;
    if (queue->n_heap) {
        list = &queue->lists[queue->list_of[queue->ranks[0]] - 1];
        int rc = list->is_unsorted ? sort_list(queue, list, err) : 0;
        if (rc)
            return rc;
        best = (uint64_t)list->rank << 32 | queue->places[list->head_plus_1 - 1].position;
    }
    if (queue->n_late && queue->late[0] < best) {
        *out = heap_pop(queue->late, &queue->n_late);
        return 0;
    }
    if (!list)
        return 1;
    list->is_open = 1;
    uint32_t taken_plus_1 = list->head_plus_1;
    struct merge_place *taken = &queue->places[taken_plus_1 - 1];
    list->head_plus_1 = taken->next_plus_1;
    if (!list->head_plus_1)
        list->tail_plus_1 = 0;
    taken->next_plus_1 = queue->free_plus_1;
    queue->free_plus_1 = taken_plus_1;
    if (!--list->n)
        heap_pop(queue->ranks, &queue->n_heap);
    *out = best;
    return 0;
}

void merge_queue_fini(struct merge_queue *queue)
{
    free(queue->list_of);
    free(queue->lists);
    free(queue->places);
    free(queue->ranks);
    free(queue->late);
    free(queue->sorted);
    *queue = (struct merge_queue){0};
}
