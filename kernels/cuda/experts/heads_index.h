/* heads_index.h: products of heads (ops.h, heads_linear) as products of experts that all rows take.
 * Blocks of a head's rows are adjacent. Plain functions of numbers.
 * tests/unit/kernels/cuda/test_cuda_experts_index.c checks them. */
#pragma once

#include "kernels/cuda/experts/experts_index.h"

/* Returns the rows of a tile for m rows. */
CUDA_HD uint32_t heads_tile_rows(uint32_t m)
{
    return m <= EXPERTS_FEW_ROWS ? EXPERTS_FEW_ROWS : EXPERTS_MANY_ROWS;
}

/* Returns the head of a block; each head has n_blocks. */
CUDA_HD uint32_t heads_head_of(uint32_t block, uint32_t n_blocks)
{
    return block / n_blocks;
}

/* Returns the number of a block among those of its head. */
CUDA_HD uint32_t heads_block_of(uint32_t block, uint32_t n_blocks)
{
    return block % n_blocks;
}

/* Returns the blocks of rows of a product: token_blocks for experts (n_blocks 0), n_blocks per head
 * for heads. */
CUDA_HD uint32_t heads_n_blocks(uint32_t token_blocks, uint32_t n_blocks, uint32_t n_heads)
{
    return n_blocks > 0 ? n_blocks * n_heads : token_blocks;
}
