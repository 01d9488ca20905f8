/* dense_prompt_index.h: the distribution of work and data in path P's kernels of dense linears
 * (dense_prompt_kernel.h, dense_wgmma_kernel.h). The functions map threads to copies and places in
 * a stage, warps to fragments, lanes to results. Plain functions of numbers and of the job, for the
 * GPU and for the CPU. On the CPU tests/unit/kernels/cuda/test_cuda_dense_place.c multiplies with
 * them. */
#pragma once

#include "kernels/cuda/dense_job.h"
#include "kernels/cuda/fragment.h"

enum {
    PROMPT_PIECES = PROMPT_LINE / DENSE_PIECE,         /* pieces of a token's row in a stage */
    PROMPT_ROWS = PROMPT_THREADS / PROMPT_PIECES,      /* rows that all threads copy at once */
    PROMPT_X_COPIES = PROMPT_TILE / PROMPT_ROWS,       /* copies per thread */
    PROMPT_WARP_STEPS = PROMPT_LINE / 32,              /* multiplications along a stage */
    PROMPT_SUMS = 64,                                  /* per thread */
    PROMPT_ROW_WARPS = PROMPT_TILE / PROMPT_WARP_COLS, /* warps with the same tokens */
    WGMMA_ROW_TILES = WGMMA_ROWS / 8,
};

/* Returns the number of 16-byte pieces of a weight row in a stage. */
DENSE_HD uint32_t prompt_w_pieces(enum dense_form form)
{
    return prompt_w_line(form) / DENSE_PIECE;
}

/* Returns the number of weight rows that all threads copy at once. */
DENSE_HD uint32_t prompt_w_rows(enum dense_form form)
{
    return PROMPT_THREADS / prompt_w_pieces(form);
}

/* Returns the copies per thread for n_rows weight rows. */
DENSE_HD uint32_t prompt_w_copies(enum dense_form form, uint32_t n_rows)
{
    return n_rows / prompt_w_rows(form);
}

/* A thread's copies: one piece of several rows, for stage after stage. */
struct prompt_source {
    const unsigned char *x, *w; /* the thread's piece of its first row, at column 0 */
    size_t x_step, w_step;      /* bytes from one of the thread's rows to its next */
    uint32_t x_at, w_at;        /* place of the thread's first piece in a stage */
    uint32_t x_valid, w_valid;  /* bit i: the thread's row i exists */
    /* the next stage's segment and first column; end of that segment */
    uint32_t segment, column, end;
};

/* Moves to the segment that contains `column`; at a segment's end to the beginning of the next. */
CUDA_HD void prompt_enter(struct prompt_source *at, const struct dense_slices *slices)
{
    while (at->segment < slices->count && at->column >= slices->bounds[at->segment + 1])
        at->segment++;
    at->end = at->segment < slices->count ? slices->bounds[at->segment + 1] : at->column;
}

/* n_rows: weight rows of a stage; token, row: the block's first. */
CUDA_HD struct prompt_source prompt_source_of(const struct dense_job *job, enum dense_form form,
                                              uint32_t n_rows, uint32_t token, uint32_t row,
                                              uint32_t thread)
{
    const uint32_t w_pieces = prompt_w_pieces(form), w_rows = prompt_w_rows(form);
    uint32_t x_piece = thread % PROMPT_PIECES, x_row = thread / PROMPT_PIECES;
    uint32_t w_piece = thread % w_pieces, w_row = thread / w_pieces;
    size_t x_bytes = job->x_stride * dense_act_bytes(form);
    struct prompt_source at = {NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    at.x = (const unsigned char *)job->x + (token + x_row) * x_bytes + x_piece * DENSE_PIECE;
    at.w = (const unsigned char *)job->parts[0].w + (row + w_row) * job->w_row_bytes +
           w_piece * DENSE_PIECE;
    at.x_step = PROMPT_ROWS * x_bytes;
    at.w_step = w_rows * job->w_row_bytes;
    at.x_at = prompt_piece_at(x_row, x_piece, PROMPT_LINE);
    at.w_at = PROMPT_TILE * PROMPT_LINE + prompt_piece_at(w_row, w_piece, prompt_w_line(form));
    for (uint32_t i = 0; i < PROMPT_X_COPIES; i++)
        at.x_valid |= (token + x_row + i * PROMPT_ROWS < job->m ? 1u : 0u) << i;
    for (uint32_t i = 0; i < prompt_w_copies(form, n_rows); i++)
        at.w_valid |= (row + w_row + i * w_rows < job->parts[0].n ? 1u : 0u) << i;
    return at;
}

/* Makes the weight rows those of another part than part 0; `row` is the block's first in it. */
CUDA_HD void prompt_take_part(struct prompt_source *at, const struct dense_job *job,
                              const struct dense_part *part, enum dense_form form, uint32_t n_rows,
                              uint32_t row, uint32_t thread)
{
    const uint32_t w_pieces = prompt_w_pieces(form), w_rows = prompt_w_rows(form);
    uint32_t w_row = thread / w_pieces;
    at->w = (const unsigned char *)part->w + (row + w_row) * job->w_row_bytes +
            thread % w_pieces * DENSE_PIECE;
    at->w_valid = 0;
    for (uint32_t i = 0; i < prompt_w_copies(form, n_rows); i++)
        at->w_valid |= (row + w_row + i * w_rows < part->n ? 1u : 0u) << i;
}

/* Makes the second half of a stage's weight rows those of part 1, from the block's first row on. */
CUDA_HD void prompt_pair_rows(struct prompt_source *at, const struct dense_job *job,
                              enum dense_form form, uint32_t n_rows, uint32_t row, uint32_t thread)
{
    uint32_t copies = prompt_w_copies(form, n_rows);
    uint32_t w_rows = prompt_w_rows(form), w_row = thread / prompt_w_pieces(form);
    at->w_valid = 0;
    for (uint32_t i = 0; i < copies; i++)
        at->w_valid |= (row + w_row + i % (copies / 2) * w_rows < job->parts[0].n ? 1u : 0u) << i;
}

/* Returns the bytes that prompt_pair_rows() adds to the source of each copy of the second half. */
CUDA_HD intptr_t prompt_pair_skip(const struct dense_job *job, uint32_t n_rows)
{
    return (intptr_t)job->parts[1].w - (intptr_t)job->parts[0].w -
           (intptr_t)(n_rows / 2 * job->w_row_bytes);
}

/* Returns true if the thread's piece of activations in the next stage has columns before the
 * segment's end. For int8, 16 columns of activations lie in the order of dense_paired_at(). So
 * columns of either half may be in either piece. */
CUDA_HD bool prompt_has_x(const struct prompt_source *at, enum dense_form form, uint32_t thread)
{
    uint32_t piece = thread % PROMPT_PIECES, columns = DENSE_PIECE / dense_act_bytes(form);
    uint32_t first = form == DENSE_INT8 ? piece / 2 * DENSE_PAIRED : piece * columns;
    return first < at->end - at->column;
}

/* Returns true if the thread's piece of weights in the next stage has columns before the segment's
 * end. */
CUDA_HD bool prompt_has_w(const struct prompt_source *at, enum dense_form form, uint32_t thread)
{
    return thread % prompt_w_pieces(form) * (DENSE_PIECE / dense_weight_bytes(form)) <
           at->end - at->column;
}

/* Returns the source of the thread's piece of activations for the next stage, in its first row. */
CUDA_HD const unsigned char *prompt_x_of(const struct prompt_source *at, enum dense_form form)
{
    return at->x + (size_t)at->column * dense_act_bytes(form);
}

/* Returns the source of the thread's piece of weights for the next stage, in its first row. */
CUDA_HD const unsigned char *prompt_w_of(const struct prompt_source *at, enum dense_form form)
{
    return at->w + (size_t)at->column * dense_weight_bytes(form);
}

/* Returns the bytes from the thread's first row to its row i. */
CUDA_HD size_t prompt_row_step(uint32_t i, size_t step)
{
    return i * step;
}

/* Returns the bytes from the source of the thread's first weight row to that of its row i of
 * n_copies. `skip`: prompt_pair_skip(), or 0. */
CUDA_HD intptr_t prompt_w_step(uint32_t i, uint32_t n_copies, size_t step, intptr_t skip)
{
    return (intptr_t)(i * step) + (i < n_copies / 2 ? 0 : skip);
}

/* Returns the place of the thread's row i of activations in a stage. The thread's rows are a
 * multiple of 8 apart, so their pieces have the same rotation. */
CUDA_HD uint32_t prompt_x_place(const struct prompt_source *at, uint32_t i)
{
    return at->x_at + i * PROMPT_ROWS * PROMPT_LINE;
}

/* Returns the place of the thread's weight row i in a stage. */
CUDA_HD uint32_t prompt_w_place(const struct prompt_source *at, enum dense_form form, uint32_t i)
{
    return at->w_at + i * prompt_w_rows(form) * prompt_w_line(form);
}

/* Advances to the next stage. */
CUDA_HD void prompt_next(struct prompt_source *at, enum dense_form form,
                         const struct dense_slices *slices)
{
    uint32_t left = at->end - at->column;
    at->column += left < prompt_step(form) ? left : prompt_step(form);
    if (at->column == at->end)
        prompt_enter(at, slices);
}

/* --- dense_prompt: a warp's fragments in a stage, for multiplication c --- */

/* Returns the first byte of the warp's tokens in a stage. */
CUDA_HD uint32_t prompt_warp_x(uint32_t warp)
{
    return warp / PROMPT_ROW_WARPS * PROMPT_WARP_ROWS * PROMPT_LINE;
}

/* Returns the first byte of the warp's weight rows in a stage. */
CUDA_HD uint32_t prompt_warp_w(enum dense_form form, uint32_t warp)
{
    return PROMPT_TILE * PROMPT_LINE +
           warp % PROMPT_ROW_WARPS * PROMPT_WARP_COLS * prompt_w_line(form);
}

/* Returns the bytes from the warp's tokens to the address that a lane passes to ldmatrix for 16
 * tokens. */
CUDA_HD uint32_t prompt_a_at(uint32_t i, uint32_t c, uint32_t lane)
{
    return prompt_piece_at(i * 16 + fragment_load_a_row(lane), 2 * c + fragment_load_a_piece(lane),
                           PROMPT_LINE);
}

/* Returns the bytes from the warp's weight rows to the address that a lane passes to ldmatrix for
 * 16 weight rows. */
CUDA_HD uint32_t prompt_b_at(uint32_t i, uint32_t c, uint32_t lane)
{
    return prompt_piece_at(i * 16 + fragment_load_b_row(lane), 2 * c + fragment_load_b_piece(lane),
                           PROMPT_LINE);
}

/* int8: returns the bytes to the lane's word of eight rows, four columns. */
CUDA_HD uint32_t prompt_int8_at(uint32_t i, uint32_t c, uint32_t lane)
{
    return prompt_piece_at(i * 8 + fragment_group(lane), c, prompt_w_line(DENSE_INT8)) +
           fragment_member(lane) * 4;
}

/* Splits four registers of two tiles' columns into the operands of each tile, b[tile][2]. */
CUDA_HD void prompt_b(uint32_t b[][2], const uint32_t r[4])
{
    b[0][0] = r[0], b[0][1] = r[1];
    b[1][0] = r[2], b[1][1] = r[3];
}

/* --- results --- */

/* Returns the token of register e of token tile i, relative to the block's first token. */
CUDA_HD uint32_t prompt_result_token(uint32_t warp, uint32_t i, uint32_t e, uint32_t lane)
{
    return warp / PROMPT_ROW_WARPS * PROMPT_WARP_ROWS + i * 16 + fragment_sum_row(lane, e);
}

/* Returns the weight row of register e of row tile j, relative to the block's first weight row. */
CUDA_HD uint32_t prompt_result_row(uint32_t warp, uint32_t j, uint32_t e, uint32_t lane)
{
    return warp % PROMPT_ROW_WARPS * PROMPT_WARP_COLS + j * 8 + fragment_sum_column(lane, e);
}

/* Returns a block's first token, or its first of `size` weight rows. */
CUDA_HD uint32_t prompt_first(uint32_t block, uint32_t size)
{
    return block * size;
}

/* --- dense_wgmma --- */

/* Returns the address of a group's tokens. `stage` is the stage's address in shared memory. */
CUDA_HD uint32_t wgmma_x_at(uint32_t stage, uint32_t group)
{
    return stage + group * PROMPT_WARP_ROWS * PROMPT_LINE;
}

/* Returns the address of the weight rows of a stage. */
CUDA_HD uint32_t wgmma_w_at(uint32_t stage)
{
    return stage + PROMPT_TILE * PROMPT_LINE;
}

/* Returns the address of an operand for multiplication c, from the address for multiplication 0. */
CUDA_HD uint32_t wgmma_step_at(uint32_t at, uint32_t c)
{
    return at + c * WGMMA_STEP;
}

CUDA_HD uint32_t wgmma_group_of(uint32_t thread)
{
    return thread / WGMMA_GROUP;
}

/* Returns the index of a thread's sum of token half `half` (0, 1) and row group j. The next sum
 * belongs to the next weight row. */
CUDA_HD uint32_t wgmma_sum_at(uint32_t half, uint32_t j)
{
    return 4 * j + 2 * half;
}

/* Returns the token of these sums, relative to the block's first token. */
CUDA_HD uint32_t wgmma_result_token(uint32_t thread, uint32_t half)
{
    uint32_t warp = thread % WGMMA_GROUP / DENSE_WARP;
    return wgmma_group_of(thread) * PROMPT_WARP_ROWS + 16 * warp + 8 * half +
           fragment_group(thread % DENSE_WARP);
}

/* Returns the weight row of the first of these sums, relative to the block's first weight row. */
CUDA_HD uint32_t wgmma_result_row(uint32_t thread, uint32_t j)
{
    return 8 * j + 2 * fragment_member(thread % DENSE_WARP);
}

/* Returns the rows from the first sums' weight row to that of row group j. */
CUDA_HD uint32_t wgmma_result_step(uint32_t j)
{
    return 8 * j;
}

/* Returns the weight row whose scale a thread brings; `row` is the block's first. */
CUDA_HD uint32_t wgmma_scale_row(uint32_t row, uint32_t thread)
{
    return row + thread;
}

/* A block's part of a job, and its first weight row there. */
struct wgmma_tile {
    uint32_t part, row;
};

/* Returns the tiles of weight rows of all parts: tiles of one part alone, part after part. */
CUDA_HD uint32_t wgmma_n_tiles(const struct dense_job *job)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < job->n_parts; p++)
        n += dense_n_blocks(job->parts[p].n, WGMMA_ROWS);
    return n;
}

/* Returns tile i of the job. */
CUDA_HD struct wgmma_tile wgmma_tile_of(const struct dense_job *job, uint32_t i)
{
    struct wgmma_tile tile = {0, i};
    CUDA_UNROLL
    for (uint32_t p = 0; p + 1 < DENSE_MAX_PARTS; p++) {
        uint32_t n = dense_n_blocks(job->parts[p].n, WGMMA_ROWS);
        if (tile.part == p && p + 1 < job->n_parts && tile.row >= n) {
            tile.part = p + 1;
            tile.row -= n;
        }
    }
    tile.row *= WGMMA_ROWS;
    return tile;
}

/* --- dense_wgmma: results that pass through shared memory, 16 tokens of a warp at a time --- */

enum {
    WGMMA_WARP_TOKENS = 16,
    WGMMA_PITCH = WGMMA_ROWS + 8, /* floats from a token to the next: 4 tokens use 32 banks */
    WGMMA_FOUR = 4,               /* adjacent columns of a lane */
    WGMMA_LINE = WGMMA_FOUR * DENSE_WARP, /* columns that a warp has at once */
    WGMMA_LINES = WGMMA_ROWS / WGMMA_LINE,
    WGMMA_ADD_ITEMS = WGMMA_WARP_TOKENS * WGMMA_ROWS / WGMMA_LINE,
    WGMMA_PAIR_ROWS = WGMMA_ROWS / 2, /* weight rows of gate and of up in a block */
};

/* Returns the bytes of a block's sums in shared memory. */
DENSE_HD uint32_t wgmma_sums_bytes(void)
{
    return PROMPT_TILE * WGMMA_PITCH * (uint32_t)sizeof(float);
}

/* A lane's four columns of one token. */
struct wgmma_four {
    uint32_t at;            /* place in the warp's floats */
    uint32_t token, column; /* relative to the block's first token and weight row */
};

/* Returns the index of a warp's first float. */
CUDA_HD uint32_t wgmma_warp_at(uint32_t warp)
{
    return warp * WGMMA_WARP_TOKENS * WGMMA_PITCH;
}

/* Returns the place of wgmma_sum_at(half, j) in the warp's floats. */
CUDA_HD uint32_t wgmma_put_at(uint32_t lane, uint32_t half, uint32_t j)
{
    return (8 * half + fragment_group(lane)) * WGMMA_PITCH + 8 * j + 2 * fragment_member(lane);
}

/* Returns item i of a lane, with `per_token` items for each token. */
CUDA_HD struct wgmma_four wgmma_four_of(uint32_t i, uint32_t per_token, uint32_t warp,
                                        uint32_t lane)
{
    uint32_t token = i / per_token, column = i % per_token * WGMMA_LINE + lane * WGMMA_FOUR;
    struct wgmma_four four = {token * WGMMA_PITCH + column, warp * WGMMA_WARP_TOKENS + token,
                              column};
    return four;
}

/* Returns the place of the up row that belongs to a gate row. */
CUDA_HD uint32_t wgmma_up_at(uint32_t at)
{
    return at + WGMMA_PAIR_ROWS;
}
