/* experts_index.h: the tiles of a layer of experts on the GPU. A tile is tile_rows adjacent rows of
 * the work memory, all of one expert; its last rows may be unused. Tiles are ordered as pairs are
 * (kernels/experts.h). The host knows a bound of the number of tiles, so launches have a fixed
 * grid. The device's table says which tiles exist. Plain functions of numbers. */
#pragma once

#include "kernels/cuda/index.h"

enum {
    EXPERTS_FEW_ROWS = 8,   /* rows of a tile, for few rows per expert */
    EXPERTS_MANY_ROWS = 32, /* the same for many */
};

#define EXPERTS_NO_TILE 0xFFFFFFFFu

/* Returns the rows of a tile for steps of n_pairs pairs. */
CUDA_HD uint32_t experts_tile_rows(uint32_t n_pairs, uint32_t n_experts)
{
    return n_pairs <= EXPERTS_FEW_ROWS * n_experts ? EXPERTS_FEW_ROWS : EXPERTS_MANY_ROWS;
}

/* Returns the largest number of tiles of n_pairs pairs. */
CUDA_HD uint32_t experts_max_tiles(uint32_t n_pairs, uint32_t n_experts, uint32_t tile_rows)
{
    uint32_t used = n_experts < n_pairs ? n_experts : n_pairs;
    return (n_pairs + used * (tile_rows - 1)) / tile_rows;
}

/* Returns the tiles of an expert with n pairs. */
CUDA_HD uint32_t experts_n_tiles(uint32_t n, uint32_t tile_rows)
{
    return (n + tile_rows - 1) / tile_rows;
}

/* The tables of a step, on the device: [n_experts + 1] the first tile of each expert, then [max
 * tiles] the expert of each tile, or EXPERTS_NO_TILE. */
CUDA_HD uint32_t experts_table_words(uint32_t n_experts, uint32_t n_pairs)
{
    return n_experts + 1 + n_pairs;
}

/* Returns the row of the work memory of a pair, among all tiles of the step. */
CUDA_HD uint32_t experts_slot(uint32_t first_tile, uint32_t tile_rows, uint32_t pair,
                              uint32_t first_pair)
{
    return first_tile * tile_rows + (pair - first_pair);
}

/* Returns the pair of a row of the work memory; it exists if it is below the expert's end. */
CUDA_HD uint32_t experts_pair(uint32_t slot, uint32_t first_tile, uint32_t tile_rows,
                              uint32_t first_pair)
{
    return first_pair + (slot - first_tile * tile_rows);
}

/* Returns the tile of a block that computes block_rows rows, a divisor of tile_rows. */
CUDA_HD uint32_t experts_tile_of(uint32_t block, uint32_t block_rows, uint32_t tile_rows)
{
    return block * block_rows / tile_rows;
}

/* Returns the pairs of thread t of n_threads: [begin, end). */
CUDA_HD void experts_share(uint32_t n_pairs, uint32_t t, uint32_t n_threads, uint32_t *out_begin,
                           uint32_t *out_end)
{
    cuda_piece(0, n_pairs, t, n_threads, out_begin, out_end);
}
