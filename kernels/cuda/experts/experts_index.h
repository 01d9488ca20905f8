/* experts_index.h: the tiles of a layer of experts on the GPU. A tile is tile_rows adjacent rows of
 * the work memory, all of one expert; its last rows may be unused. Tiles are ordered as pairs are
 * (kernels/experts.h). The host knows a bound of the number of tiles, so launches have a fixed
 * grid. The device's table says which tiles exist. Plain functions of numbers and of the routes.
 * tests/unit/kernels/cuda/test_cuda_experts_index.c checks them. */
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

/* Returns the place in the table of a tile's expert; the tile is number i of the tiles from `first`
 * on. */
CUDA_HD uint32_t experts_tile_at(uint32_t n_experts, uint32_t first, uint32_t i)
{
    return n_experts + 1 + first + i;
}

/* Returns the tiles of expert e; begins as in struct expert_routes. */
CUDA_HD uint32_t experts_tiles_of(const uint32_t *begins, uint32_t e, uint32_t tile_rows)
{
    return experts_n_tiles(begins[e + 1] - begins[e], tile_rows);
}

/* Returns the first tile of expert e. For e = n_experts: the tiles of all experts. */
CUDA_HD uint32_t experts_first_tile(const uint32_t *begins, uint32_t e, uint32_t tile_rows)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < e; i++)
        first += experts_tiles_of(begins, i, tile_rows);
    return first;
}

/* Fills the table's part of expert e. For e = n_experts: of the tiles that no expert has, up to
 * n_tiles. */
CUDA_HD void experts_fill(uint32_t *table, const uint32_t *begins, uint32_t n_experts, uint32_t e,
                          uint32_t tile_rows, uint32_t n_tiles)
{
    uint32_t first = experts_first_tile(begins, e, tile_rows);
    uint32_t n = e < n_experts ? experts_tiles_of(begins, e, tile_rows) : n_tiles - first;
    table[e] = first;
    for (uint32_t i = 0; i < n; i++)
        table[experts_tile_at(n_experts, first, i)] = e < n_experts ? e : EXPERTS_NO_TILE;
}

/* Returns the rows of the work memory of n tiles. */
CUDA_HD uint32_t experts_n_slots(uint32_t n, uint32_t tile_rows)
{
    return n * tile_rows;
}

/* Returns the row of the work memory of a pair, among all tiles of the step. */
CUDA_HD uint32_t experts_slot(uint32_t first_tile, uint32_t tile_rows, uint32_t pair,
                              uint32_t first_pair)
{
    return first_tile * tile_rows + (pair - first_pair);
}

/* Returns the pair of a row of the work memory, among all tiles of the step. The pair exists if it
 * is below the expert's end. */
CUDA_HD uint32_t experts_pair(uint32_t slot, uint32_t first_tile, uint32_t tile_rows,
                              uint32_t first_pair)
{
    return first_pair + (slot - first_tile * tile_rows);
}

/* Sets the pair of row `slot` of a batch, whose tiles begin at tile `first` of the step. The row's
 * tile is one of expert e, whose tiles begin at first_tile. Returns false if the row is unused. */
CUDA_HD bool experts_find_pair(const uint32_t *begins, uint32_t e, uint32_t first_tile,
                               uint32_t first, uint32_t tile_rows, uint32_t slot,
                               uint32_t *out_pair)
{
    *out_pair =
        experts_pair(experts_n_slots(first, tile_rows) + slot, first_tile, tile_rows, begins[e]);
    return *out_pair < begins[e + 1];
}

/* Sets the row in a batch of row `slot` of all tiles of the step. The batch is n tiles from tile
 * `first` on. Returns false if the row belongs to another batch. */
CUDA_HD bool experts_find_slot(uint32_t slot, uint32_t first, uint32_t n, uint32_t tile_rows,
                               uint32_t *out_slot)
{
    uint32_t begin = experts_n_slots(first, tile_rows);
    *out_slot = slot - begin;
    return slot >= begin && *out_slot < experts_n_slots(n, tile_rows);
}

/* Returns the tile of a block that computes block_rows rows, a divisor of tile_rows. */
CUDA_HD uint32_t experts_tile_of(uint32_t block, uint32_t block_rows, uint32_t tile_rows)
{
    return block * block_rows / tile_rows;
}
