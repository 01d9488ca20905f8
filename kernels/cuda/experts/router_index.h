/* router_index.h: the distribution of work and data in the router's kernels (router.cu). A warp
 * routes a row. A block per expert orders the pairs. Plain functions of numbers, for the GPU and
 * for the CPU. tests/unit/kernels/cuda/test_cuda_experts_index.c checks them. */
#pragma once

#include "kernels/cuda/index.h"

/* Returns the lane of the contract's sum that a thread adds up. The two halves of a warp add up the
 * same lanes. */
CUDA_HD uint32_t router_lane_of(uint32_t thread)
{
    return thread % CUDA_LANES;
}

/* Returns the experts of a group. */
CUDA_HD uint32_t router_group_size(uint32_t n_experts, uint32_t n_groups)
{
    return n_experts / n_groups;
}

/* Returns expert i of a group. */
CUDA_HD uint32_t router_expert_at(uint32_t group, uint32_t group_size, uint32_t i)
{
    return group * group_size + i;
}

/* Returns the group of an expert. */
CUDA_HD uint32_t router_group_of(uint32_t expert, uint32_t group_size)
{
    return expert / group_size;
}

/* Returns the pairs of a step. */
CUDA_HD uint32_t router_n_pairs(uint32_t n_rows, uint32_t n_used)
{
    return n_rows * n_used;
}

/* Returns the row of element i of ids[n_rows][n_used]. */
CUDA_HD uint32_t router_row_of(uint32_t i, uint32_t n_used)
{
    return i / n_used;
}

/* Returns the elements of ids that thread t of n_threads counts: [begin, end). */
CUDA_HD void router_share(uint32_t n_pairs, uint32_t t, uint32_t n_threads, uint32_t *out_begin,
                          uint32_t *out_end)
{
    cuda_piece(0, n_pairs, t, n_threads, out_begin, out_end);
}
