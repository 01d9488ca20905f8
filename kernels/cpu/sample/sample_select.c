#include "kernels/cpu/sample/sample_select.h"

#include <stdbool.h>

#include "kernels/cpu/sample/sample_passes.h"

/* Returns true if a comes before b. */
static inline bool before(const float *values, uint32_t a, uint32_t b)
{
    return values[a] > values[b] || (values[a] == values[b] && a < b);
}

static inline void swap(uint32_t *a, uint32_t *b)
{
    uint32_t t = *a;
    *a = *b;
    *b = t;
}

/* Restores a heap whose root is last in the order. */
static void sift_down(const float *values, uint32_t *heap, uint32_t n, uint32_t i)
{
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n)
            return;
        if (child + 1 < n && before(values, heap[child], heap[child + 1]))
            child++;
        if (!before(values, heap[i], heap[child]))
            return;
        swap(&heap[i], &heap[child]);
        i = child;
    }
}

static void make_heap(const float *values, uint32_t *heap, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(values, heap, n, i);
}

static void sort_heap(const float *values, uint32_t *heap, uint32_t n)
{
    while (n > 1) {
        swap(&heap[0], &heap[--n]);
        sift_down(values, heap, n, 0);
    }
}

/* Chooses the median of three as the pivot and moves it to ids[0]. */
static void choose_pivot(const float *values, uint32_t *ids, uint32_t n)
{
    uint32_t *a = &ids[n / 4], *b = &ids[n / 2], *c = &ids[n - 1 - n / 4];
    if (before(values, *b, *a))
        swap(a, b);
    if (before(values, *c, *b))
        swap(b, c);
    if (before(values, *b, *a))
        swap(a, b);
    swap(&ids[0], b);
}

void sample_select(const float *values, uint32_t *ids, uint32_t n, uint32_t k)
{
    uint32_t rounds = 0;
    while (k && k < n) {
        if (++rounds > 48) { /* The ids are in a bad order for quickselect. A heap takes O(n log k)
                                steps for every order. */
            make_heap(values, ids, k);
            for (uint32_t i = k; i < n; i++)
                if (before(values, ids[i], ids[0])) {
                    swap(&ids[i], &ids[0]);
                    sift_down(values, ids, k, 0);
                }
            return;
        }
        choose_pivot(values, ids, n);
        uint32_t pivot = ids[0], split = 0;
        for (uint32_t i = 1; i < n; i++)
            if (before(values, ids[i], pivot))
                swap(&ids[++split], &ids[i]);
        swap(&ids[0], &ids[split]);
        if (k <= split) {
            n = split;
        } else {
            ids += split + 1;
            n -= split + 1;
            k -= split + 1;
        }
    }
}

void sample_select_sorted(const float *values, uint32_t *ids, uint32_t n, uint32_t k)
{
    sample_select(values, ids, n, k);
    make_heap(values, ids, k);
    sort_heap(values, ids, k);
}

uint32_t sample_top(const float *values, uint32_t n, uint32_t k, uint32_t *out_ids)
{
    if (k > n)
        k = n;
    if (!k)
        return 0;
    for (uint32_t i = 0; i < k; i++)
        out_ids[i] = i;
    make_heap(values, out_ids, k);
    const struct sample_passes *passes = sample_passes();
    uint32_t i = k - 1; /* a tie goes to the lower id, which is already in the heap */
    while ((i = passes->next_above(values, i + 1, n, values[out_ids[0]])) < n) {
        out_ids[0] = i;
        sift_down(values, out_ids, k, 0);
    }
    sort_heap(values, out_ids, k);
    return k;
}
