/* dense_decode_index.h: the distribution of work and data in path D's kernel of dense linears. The
 * functions map blocks, warps and lanes to matrices, rows, tokens and columns. They also map
 * fragments to places in a lane's ring, and sums to results. Plain functions of numbers and of the
 * job, for the GPU and for the CPU. On the CPU tests/unit/kernels/cuda/test_cuda_dense_place.c
 * multiplies whole matrices with them.
 *
 * A piece is 512 bytes of a stage: 16 per lane, for 8 weight rows or 8 tokens. The weights' pieces
 * come first: 2i and 2i + 1 are rows 0 to 7 and 8 to 15 of row tile i. */
#pragma once

#include "kernels/cuda/dense_job.h"
#include "kernels/cuda/fragment.h"

/* The work of a warp: the matrix, its first row there, the first token, and a slice of the
 * columns. */
struct decode_share {
    uint32_t part, row, token, slice;
};

/* A lane's part of a share: the sources of its copies for the next group of columns. The pointers
 * even and odd are the weights of the lane's first row in row tiles 0 and 1. The pointer x is the
 * activations of its token in token tile 0. */
struct decode_lane {
    const unsigned char *even, *odd, *x;
    /* half: bytes from row g of a tile to row g + 8; pair: bytes from row tile i to i + 2 */
    size_t half, pair;
    size_t x_step; /* bytes from one token tile to the next */
    /* w_valid bit i: the row of piece i exists; x_valid bit i: the token in token tile i exists */
    uint32_t w_valid, x_valid;
    uint32_t column, end; /* first column that the lane copies of the next group; slice's end */
};

/* Returns the matrix of a block of weight rows, and the block's first row in it. Blocks of one
 * matrix are adjacent. */
CUDA_HD uint32_t decode_part(const struct dense_job *job, uint32_t block, uint32_t block_rows,
                             uint32_t *out_row)
{
    uint32_t part = 0;
    CUDA_UNROLL
    for (uint32_t i = 0; i + 1 < DENSE_MAX_PARTS; i++) {
        uint32_t n_blocks = dense_n_blocks(job->parts[i].n, block_rows);
        if (!job->gated && part == i && i + 1 < job->n_parts && block >= n_blocks) {
            block -= n_blocks;
            part = i + 1;
        }
    }
    *out_row = block * block_rows;
    return part;
}

CUDA_HD struct decode_share decode_share_of(const struct dense_job *job, struct dense_tile tile,
                                            uint32_t token_block, uint32_t row_block, uint32_t warp)
{
    struct decode_share share = {0, 0, token_block * dense_tile_tokens(tile), warp};
    share.part = decode_part(job, row_block, dense_block_rows(tile, job->gated), &share.row);
    return share;
}

/* Returns the columns of a group that belong to one lane. */
DENSE_HD uint32_t decode_place(enum dense_form form)
{
    return dense_group(form) / 4;
}

CUDA_HD struct decode_lane decode_lane_of(const struct dense_job *job, enum dense_form form,
                                          struct dense_tile tile, struct decode_share share,
                                          uint32_t lane)
{
    const uint32_t g = fragment_group(lane), row = share.row, n = job->parts[share.part].n;
    const size_t x_bytes = job->x_stride * dense_act_bytes(form);
    struct decode_lane at = {NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0};
    at.column = job->slices.bounds[share.slice] + fragment_member(lane) * decode_place(form);
    at.end = job->slices.bounds[share.slice + 1];
    at.half = 8 * job->w_row_bytes;
    at.pair = (job->gated ? 2 : 4) * at.half;
    at.even = (const unsigned char *)job->parts[share.part].w + (row + g) * job->w_row_bytes +
              (size_t)at.column * dense_weight_bytes(form);
    at.odd = job->gated ? (const unsigned char *)job->parts[1].w +
                              (at.even - (const unsigned char *)job->parts[0].w)
                        : at.even + 2 * at.half;
    for (uint32_t i = 0; i < dense_w_pieces(tile); i++)
        at.w_valid |= (row + dense_piece_row(i, job->gated) + g < n ? 1u : 0u) << i;
    at.x = (const unsigned char *)job->x + (share.token + g) * x_bytes +
           (size_t)at.column * dense_act_bytes(form);
    at.x_step = DENSE_TOKENS * x_bytes;
    for (uint32_t i = 0; i < tile.n_token_tiles; i++)
        at.x_valid |= (share.token + i * DENSE_TOKENS + g < job->m ? 1u : 0u) << i;
    return at;
}

/* Returns the source of a lane's 16 bytes of weight piece i, in the next group. */
CUDA_HD const unsigned char *decode_weights_at(const struct decode_lane *at, uint32_t i)
{
    return (i / 2 % 2 ? at->odd : at->even) + i / 4 * at->pair + i % 2 * at->half;
}

/* Returns the source of a lane's 16 bytes of token tile i, in the next group. */
CUDA_HD const unsigned char *decode_tokens_at(const struct decode_lane *at, uint32_t i)
{
    return at->x + i * at->x_step;
}

/* Returns true if group i, counted from the next, has columns of this lane. */
CUDA_HD bool decode_is_inside(const struct decode_lane *at, enum dense_form form, uint32_t i)
{
    return at->column + i * dense_group(form) < at->end;
}

/* f32 only: rows may begin anywhere and end within a lane's four columns. Returns how many of token
 * tile i's columns exist. */
CUDA_HD uint32_t decode_n_floats(const struct decode_lane *at, uint32_t i)
{
    return at->column < at->end && cuda_bit(at->x_valid, i) ? at->end - at->column : 0;
}

/* Advances the weights to the next group. */
CUDA_HD void decode_next_weights(struct decode_lane *at)
{
    at->even += DENSE_LINE;
    at->odd += DENSE_LINE;
}

/* Advances the activations, and the column, to the next group. */
CUDA_HD void decode_next_tokens(struct decode_lane *at, enum dense_form form)
{
    at->column += dense_group(form);
    at->x += dense_group(form) * dense_act_bytes(form);
}

/* --- a stage --- */

/* Returns a lane's first byte of a stage. */
CUDA_HD uint32_t decode_own_at(uint32_t lane)
{
    return lane * DENSE_PIECE;
}

/* Bytes from piece 0 to the weights' piece i, and to the piece of token tile i. Activations of int8
 * take two pieces per group: the first or the second. */
CUDA_HD uint32_t decode_weight_piece(uint32_t i)
{
    return i * DENSE_PIECE * DENSE_WARP;
}

/* Bytes to rows 0 to 7, or 8 to 15, of row tile r. */
CUDA_HD uint32_t decode_tile_piece(uint32_t r, uint32_t half)
{
    return decode_weight_piece(2 * r + half);
}

CUDA_HD uint32_t decode_token_piece(uint32_t n_row_tiles, uint32_t i)
{
    return decode_weight_piece(2 * n_row_tiles + i);
}

CUDA_HD uint32_t decode_int8_token_piece(uint32_t n_row_tiles, uint32_t i, uint32_t second)
{
    return decode_weight_piece(2 * n_row_tiles + 2 * i + second);
}

/* f32: bytes to the four columns of the lane's quarter of the group, for a given token, in any
 * lane's memory. */
CUDA_HD uint32_t decode_float_at(uint32_t n_row_tiles, uint32_t token, uint32_t lane)
{
    return decode_weight_piece(2 * n_row_tiles) + (token * 4 + fragment_member(lane)) * DENSE_PIECE;
}

/* --- fragments: a lane's words, in memory order, as operands --- */

/* f16, bf16: operands of both multiplications of a group. low, high: the tile's rows 0 to 7 and 8
 * to 15. */
CUDA_HD void decode_a(uint32_t a[2][4], const uint32_t low[4], const uint32_t high[4])
{
    a[0][0] = low[0], a[0][1] = high[0], a[0][2] = low[1], a[0][3] = high[1];
    a[1][0] = low[2], a[1][1] = high[2], a[1][2] = low[3], a[1][3] = high[3];
}

CUDA_HD void decode_b(uint32_t b[2][2], const uint32_t x[4])
{
    b[0][0] = x[0], b[0][1] = x[1];
    b[1][0] = x[2], b[1][1] = x[3];
}

/* f8: multiplication c uses the words from byte 8c on. */
CUDA_HD uint32_t decode_f8_at(uint32_t c)
{
    return c * DENSE_PIECE / 2;
}

CUDA_HD void decode_f8_a(uint32_t a[4], const uint32_t low[2], const uint32_t high[2])
{
    a[0] = low[0], a[1] = high[0], a[2] = low[1], a[3] = high[1];
}

/* int8: puts the widened words of rows 8·half to 8·half + 7 into the operand of their
 * multiplication. For operand b of multiplication c, x and y are the lane's words of the two
 * pieces. */
CUDA_HD void decode_int8_a(uint32_t a[4], const uint32_t wide[2], uint32_t half)
{
    a[half] = wide[0];
    a[half + 2] = wide[1];
}

CUDA_HD void decode_int8_b(uint32_t b[4][2], const uint32_t x[4], const uint32_t y[4])
{
    b[0][0] = x[0], b[0][1] = y[0];
    b[1][0] = x[1], b[1][1] = y[1];
    b[2][0] = x[2], b[2][1] = y[2];
    b[3][0] = x[3], b[3][1] = y[3];
}

/* --- a slice's sums, [token][row] floats in shared memory --- */

/* Returns the place of the sum in register e of row tile r and token tile i. */
CUDA_HD uint32_t decode_sum_at(struct dense_tile tile, uint32_t r, uint32_t i, uint32_t e,
                               uint32_t lane)
{
    uint32_t token = i * DENSE_TOKENS + fragment_sum_column(lane, e);
    return token * dense_sums_pitch(tile) + r * DENSE_W_ROWS + fragment_sum_row(lane, e);
}

/* f32: four lanes have parts of a sum. Returns true for the lane that stores it, and its place. r:
 * piece of eight rows. */
CUDA_HD bool decode_puts_float(uint32_t token, uint32_t lane)
{
    return token % 4 == fragment_member(lane);
}

CUDA_HD uint32_t decode_float_sum_at(struct dense_tile tile, uint32_t r, uint32_t token,
                                     uint32_t lane)
{
    return token * dense_sums_pitch(tile) + r * 8 + fragment_group(lane);
}

/* Returns the floats from a slice's sums to the next slice's. */
DENSE_HD uint32_t decode_slice_floats(struct dense_tile tile)
{
    return dense_sums_bytes(tile) / (uint32_t)sizeof(float);
}

/* Places in a block's shared memory: slice number `slice`'s sums, in floats, and its ring, in
 * bytes. */
CUDA_HD uint32_t decode_slice_sums(struct dense_tile tile, uint32_t slice)
{
    return slice * decode_slice_floats(tile);
}

CUDA_HD uint32_t decode_slice_ring(enum dense_form form, struct dense_tile tile, uint32_t slice)
{
    return slice * tile.n_stages * dense_stage_bytes(form, tile);
}

/* Returns the results of a block: tokens × rows; gated: rows of the gate. */
CUDA_HD uint32_t decode_n_results(struct dense_tile tile, uint32_t gated)
{
    return dense_tile_tokens(tile) * dense_block_rows(tile, gated);
}

struct decode_result {
    uint32_t token, row; /* indices in the whole result */
    /* place of the result's sum among a slice's sums (gated: of the gate's sum) */
    uint32_t at;
};

CUDA_HD struct decode_result decode_result_of(struct dense_tile tile, uint32_t gated,
                                              struct decode_share share, uint32_t i)
{
    uint32_t rows = dense_block_rows(tile, gated), in = i % rows, pitch = dense_sums_pitch(tile);
    struct decode_result result = {share.token + i / rows, share.row + in, i / rows * pitch + in};
    if (gated)
        result.at = i / rows * pitch + in / DENSE_W_ROWS * 2 * DENSE_W_ROWS + in % DENSE_W_ROWS;
    return result;
}

/* Gated: returns the place of up's sum, from that of the gate's. */
CUDA_HD uint32_t decode_up_at(uint32_t at)
{
    return at + DENSE_W_ROWS;
}
