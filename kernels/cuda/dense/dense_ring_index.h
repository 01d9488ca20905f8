/* dense_ring_index.h: the distribution of work and data in dense_ring_kernel.h. Plain functions of
 * numbers and of the job, for the GPU and for the CPU. They are
 * tested in tests/unit/kernels/cuda/test_cuda_dense_place.c. */
#pragma once

#include "kernels/cuda/dense/dense_prompt_index.h"

enum {
    RING_STAGES = 4,
    RING_STEPS = PROMPT_LINE / WGMMA_STEP,       /* multiplications along a stage */
    RING_WARPS = PROMPT_THREADS / DENSE_WARP,    /* warps that multiply */
    RING_THREADS = PROMPT_THREADS + WGMMA_GROUP, /* and a group, of which one thread fetches */
    RING_FETCH_REGISTERS = 24,                   /* per thread; 24 + 2 · 240 is at most 3 · 168 */
    RING_MULTIPLY_REGISTERS = 240,
    RING_ZERO_BYTES = PROMPT_WARP_ROWS * PROMPT_LINE,
    RING_ZERO_PIECES = RING_ZERO_BYTES / DENSE_PIECE,
    RING_LOADS = 8,  /* pairs of a residual sum that a thread loads at once */
    RING_HALVES = 2, /* f8: halves of the weight rows, one after the other */
    RING_HALF_ROWS = WGMMA_ROWS / RING_HALVES,
    RING_HALF_SUMS = WGMMA_SUMS / RING_HALVES,
    RING_PAIR_ROWS = WGMMA_ROWS / 2, /* gate and up: weight rows of each in a tile */
    RING_PAIR_COLUMNS = 16,          /* columns that pass through shared memory at once */
    RING_PAIR_CHUNKS = RING_PAIR_ROWS / RING_PAIR_COLUMNS,
    RING_PAIR_TILES = RING_PAIR_COLUMNS / 8,     /* pairs of sums of a thread in a chunk */
    RING_PAIR_PITCH = 2 * RING_PAIR_COLUMNS + 8, /* floats from a token to the next */
    RING_PAIR_LANES = RING_PAIR_COLUMNS / 2,     /* lanes of a token */
    RING_PAIR_TURNS = WGMMA_WARP_TOKENS * RING_PAIR_LANES / DENSE_WARP,
};

/* Shared memory has the stages, then zeros in place of a group's tokens, then two barriers for each
 * stage. Returns the place of the zeros. */
DENSE_HD uint32_t ring_zeros_at(void)
{
    return RING_STAGES * wgmma_stage_bytes();
}

/* Returns the place of piece i of the zeros. */
DENSE_HD uint32_t ring_zero_at(uint32_t i)
{
    return ring_zeros_at() + i * DENSE_PIECE;
}

/* Returns the place of the barrier of a stage's arrival. */
DENSE_HD uint32_t ring_full_at(uint32_t stage)
{
    return ring_zeros_at() + RING_ZERO_BYTES + stage * (uint32_t)sizeof(uint64_t);
}

/* Returns the place of the barrier of a stage's release. */
DENSE_HD uint32_t ring_empty_at(uint32_t stage)
{
    return ring_full_at(RING_STAGES + stage);
}

/* Returns the place of a warp's floats, through which gates pass. */
DENSE_HD uint32_t ring_pairs_at(uint32_t warp)
{
    return ring_full_at(2 * RING_STAGES) +
           warp * WGMMA_WARP_TOKENS * RING_PAIR_PITCH * (uint32_t)sizeof(float);
}

/* Returns a block's shared memory; stages begin at multiples of WGMMA_EIGHT. */
DENSE_HD uint32_t ring_shared_bytes(void)
{
    return ring_pairs_at(RING_WARPS) + WGMMA_EIGHT;
}

/* A place in the ring: the stage, and the parity of the round. */
struct ring_place {
    uint32_t stage, parity;
};

CUDA_HD void ring_next(struct ring_place *at)
{
    at->stage = cuda_stage_after(at->stage, 1, RING_STAGES);
    at->parity ^= at->stage == 0 ? 1u : 0u;
}

/* Returns the parity of the round before: that of the release that a new stage waits for. */
CUDA_HD uint32_t ring_parity_before(struct ring_place at)
{
    return at.parity ^ 1;
}

/* A tile of results: its first token and its first weight row. */
struct ring_tile {
    uint32_t token, row;
};

/* Returns the number of tiles of results. `rows`: weight rows of a tile, RING_PAIR_ROWS for gate
 * and up. */
CUDA_HD uint32_t ring_n_tiles(uint32_t m, uint32_t n, uint32_t rows)
{
    return dense_n_blocks(m, PROMPT_TILE) * dense_n_blocks(n, rows);
}

/* Tiles with the same weight rows are adjacent, so that they share weights in the second cache. */
CUDA_HD struct ring_tile ring_tile_of(uint32_t tile, uint32_t m, uint32_t rows)
{
    uint32_t n_tokens = dense_n_blocks(m, PROMPT_TILE);
    struct ring_tile of = {tile % n_tokens * PROMPT_TILE, tile / n_tokens * rows};
    return of;
}

/* Returns the number of weight rows from `row` on. */
CUDA_HD uint32_t ring_rows_left(uint32_t row, uint32_t n)
{
    return row < n ? n - row : 0;
}

/* Returns true if all weight rows of the tile exist and can be loaded and stored in aligned pairs.
 */
CUDA_HD bool ring_is_whole(struct ring_tile tile, const struct dense_part *part)
{
    const uint32_t pair = 2 * (uint32_t)sizeof(float);
    const float *to = part->sum != NULL ? part->sum : part->y;
    size_t stride = part->sum != NULL ? part->sum_stride : part->y_stride;
    return ring_rows_left(tile.row, part->n) >= WGMMA_ROWS && cuda_is_multiple(to, pair) &&
           cuda_is_multiple(part->w_scale, pair) && cuda_is_multiple(part->bias, pair) &&
           stride % 2 == 0;
}

/* Columns of a segment: from `begin` to before `end`. */
struct ring_columns {
    uint32_t begin, end;
};

/* Returns the byte at which a column begins in a row of activations, or of weights. */
CUDA_HD uint32_t ring_x_byte(enum dense_form form, uint32_t column)
{
    return column * dense_act_bytes(form);
}

CUDA_HD uint32_t ring_w_byte(enum dense_form form, uint32_t column)
{
    return column * dense_weight_bytes(form);
}

CUDA_HD struct ring_columns ring_columns_of(const struct dense_slices *slices, uint32_t segment)
{
    struct ring_columns of = {slices->bounds[segment], slices->bounds[segment + 1]};
    return of;
}

/* Returns the multiplications of a stage that have columns of the segment, if `left` of its columns
 * are left. A segment ends at a multiple of 32 columns, or at K, after which zeros follow. */
CUDA_HD uint32_t ring_n_steps(enum dense_form form, uint32_t left)
{
    uint32_t columns = WGMMA_STEP / dense_act_bytes(form);
    uint32_t n_steps = (left + columns - 1) / columns;
    return n_steps < RING_STEPS ? n_steps : (uint32_t)RING_STEPS;
}

/* Addresses of the operands of a group in a stage. */
struct ring_operands {
    uint32_t x, w; /* tokens, weight rows */
    uint32_t zeros;
    uint32_t n_steps;
};

/* Returns the address of the tokens for multiplication c; zeros after the segment's end. */
CUDA_HD uint32_t ring_x_at(const struct ring_operands *of, uint32_t c)
{
    return wgmma_step_at(c < of->n_steps ? of->x : of->zeros, c);
}

/* Returns the first sum of a thread for half h of the weight rows. */
CUDA_HD uint32_t ring_half_sum_at(uint32_t half)
{
    return half * RING_HALF_SUMS;
}

/* Returns the address of half h of the weight rows, from that of all. */
CUDA_HD uint32_t ring_half_at(uint32_t w, uint32_t half)
{
    return w + half * RING_HALF_ROWS * PROMPT_LINE;
}

/* Returns the weight row from which a half of a stage's weight rows is fetched. Gate and up: each
 * is a half, from its own matrix. */
CUDA_HD uint32_t ring_half_row(struct ring_tile tile, uint32_t half, bool gated)
{
    return tile.row + (gated ? 0 : half * RING_HALF_ROWS);
}

/* --- gate and up: 16 tokens and 16 columns of a warp at a time --- */

/* Returns the row group j of chunk i, of the gate's sums or of the up's. */
CUDA_HD uint32_t ring_pair_tile(uint32_t i, uint32_t j, uint32_t is_up)
{
    return i * RING_PAIR_TILES + j + is_up * (WGMMA_ROW_TILES / 2);
}

/* Returns the place of that row group's sums in the warp's floats. */
CUDA_HD uint32_t ring_pair_at(uint32_t lane, uint32_t half, uint32_t j, uint32_t is_up)
{
    return (8 * half + fragment_group(lane)) * RING_PAIR_PITCH + is_up * RING_PAIR_COLUMNS + 8 * j +
           2 * fragment_member(lane);
}

/* A lane's two columns of one token. The places gate_at and up_at count in the warp's floats. The
 * token and column count from the first of the warp and chunk. */
struct ring_two {
    uint32_t gate_at, up_at, token, column;
};

/* Returns a lane's columns in a turn. */
CUDA_HD struct ring_two ring_two_of(uint32_t turn, uint32_t lane)
{
    uint32_t token = turn * (DENSE_WARP / RING_PAIR_LANES) + lane / RING_PAIR_LANES;
    uint32_t column = lane % RING_PAIR_LANES * 2, at = token * RING_PAIR_PITCH + column;
    struct ring_two two = {at, at + RING_PAIR_COLUMNS, token, column};
    return two;
}

/* Returns a warp's first token in a tile's. */
CUDA_HD uint32_t ring_warp_token(uint32_t warp)
{
    return warp * WGMMA_WARP_TOKENS;
}

/* Returns the first column of chunk i within its tile. */
CUDA_HD uint32_t ring_chunk_column(uint32_t i)
{
    return i * RING_PAIR_COLUMNS;
}
