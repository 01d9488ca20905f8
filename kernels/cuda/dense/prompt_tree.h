/* prompt_tree.h: the contract's tree over the segments of a row-split matrix, in the kernels of
 * path P, which compute segment after segment. Included by .cu files only. */
#pragma once

#include "kernels/cuda/dense_job.h"
#include "kernels/cuda/thread.h"

/* Sums of the contract's tree that wait for their right neighbour. Bit l of `present`: level l has
 * one. N sums per thread. */
template <uint32_t N> struct prompt_tree {
    float waiting[3][N];
    uint32_t present;
};

/* Adds segment s to the tree. After the last segment d holds the total. An empty segment is +0,
 * which changes nothing. */
template <uint32_t N>
CUDA_DEVICE void prompt_tree_put(struct prompt_tree<N> *tree, float d[N], uint32_t s,
                                 const struct dense_slices &slices)
{
    uint32_t level = 0, present = cuda_bit(slices.present, s);
#pragma unroll 1
    for (; cuda_bit(s, level); level++) {
        if (!cuda_bit(tree->present, level))
            continue;
        present = 1;
#pragma unroll
        for (uint32_t i = 0; i < N; i++)
            d[i] = tree->waiting[level][i] + d[i];
    }
    if (s + 1 == slices.count)
        return;
    tree->present = cuda_with_bit(tree->present, level, present);
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        tree->waiting[level][i] = d[i];
        d[i] = 0.0f;
    }
}
