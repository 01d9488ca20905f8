/* dense_index.h: partition of dense linears on CUDA: forms of weights and activations, the order of
 * every sum over K, tiles, shared memory. Plain numbers for the GPU and for the CPU, where
 * tests/unit/kernels/cuda/test_cuda_dense_index.c checks them.
 *
 * Rows of weights and of prepared activations begin at multiples of 64 bytes and end in zeros.
 *
 * The sum over K is split into at most 8 slices. For a column-split or whole matrix, K is split
 * like a dimension of the contract (units of 32, kernels/segments.h). A row-split matrix has its
 * segments as slices, so a slice is the same sum on any number of ranks. Within a slice the decode
 * kernel goes from front to back in groups. A group is 64 bytes of a weight row, 16 for each of
 * four lanes. A lane's 16 bytes are whole fragments, because the columns of a group are multiplied
 * in a permuted order. The order is the same for weights and activations:
 *
 *     form        group  of lane t      multiplication c takes of that lane, as fragment columns
 *     f16, bf16   32     8t … 8t+7      8t+4c+{0,1}: 2t, 2t+1;   8t+4c+{2,3}: 2t+8, 2t+9    c < 2
 *     int8        64     16t … 16t+15   16t+4c+{0,2}: 2t, 2t+1;  16t+4c+{1,3}: 2t+8, 2t+9   c < 4
 *     f8          64     16t … 16t+15   16t+8c+{0..3}: 4t..4t+3; 16t+8c+{4..7}: 4t+16..     c < 2
 *     f32         16     4t … 4t+3      a chain of FMAs per lane, then lanes (0+1) + (2+3)
 *
 * Slices are added by the contract's tree without absent slices; scales are applied afterwards. */
#pragma once

#include "kernels/cuda/index.h"

#ifdef __cplusplus /* kernels need the tiles as constants */
#define DENSE_HD CUDA_HD constexpr
#else
#define DENSE_HD CUDA_HD
#endif

enum dense_form { DENSE_F32, DENSE_F16, DENSE_BF16, DENSE_INT8, DENSE_F8, N_DENSE_FORMS };

enum {
    DENSE_LINE = 64,         /* bytes of a group; rows begin at multiples of these */
    DENSE_ACT_MULTIPLE = 64, /* elements to which rows of prepared activations are padded */
    DENSE_PIECE = 16,        /* bytes that a lane copies at once */
    DENSE_WARP = 32,
    DENSE_TOKENS = 8,  /* tokens of a tile: columns of a fragment */
    DENSE_W_ROWS = 16, /* weight rows of a tile: rows of a fragment */
    DENSE_MAX_PARTS = 3,
    DENSE_PAIRED = 16, /* int8's activations are reordered within this many columns */
};

/* Bytes of an element of a weight, and of the activation that it is multiplied with. */
DENSE_HD uint32_t dense_weight_bytes(enum dense_form form)
{
    return form == DENSE_F32 ? 4 : form == DENSE_INT8 || form == DENSE_F8 ? 1 : 2;
}

DENSE_HD uint32_t dense_act_bytes(enum dense_form form)
{
    return form == DENSE_F32 ? 4 : form == DENSE_F8 ? 1 : 2;
}

/* Columns of a group. */
DENSE_HD uint32_t dense_group(enum dense_form form)
{
    return DENSE_LINE / dense_weight_bytes(form);
}

CUDA_HD size_t dense_row_bytes(enum dense_form form, uint32_t k)
{
    return cuda_round_up((size_t)k * dense_weight_bytes(form), DENSE_LINE);
}

/* Returns the bytes from one row of prepared activations to the next, `stride` elements. */
CUDA_HD size_t dense_act_row_bytes(enum dense_form form, size_t stride)
{
    return stride * dense_act_bytes(form);
}

/* Returns the elements from one row of prepared activations to the next. */
CUDA_HD size_t dense_act_stride(uint32_t k)
{
    return cuda_round_up(k, DENSE_ACT_MULTIPLE);
}

/* Kernels that prepare activations: a thread has four adjacent columns. */
enum {
    ACT_THREADS = 128,
    ACT_WARPS = ACT_THREADS / DENSE_WARP,
    ACT_COLUMNS = 4,
    ACT_BLOCK_COLUMNS = ACT_THREADS * ACT_COLUMNS,
    ACT_BATCH = 4, /* groups of four that a thread loads at once, if a block has a whole row */
    ACT_BATCH_COLUMNS = ACT_BATCH * ACT_BLOCK_COLUMNS
};

/* Returns a thread's first column. */
CUDA_HD uint32_t act_column(uint32_t block, uint32_t thread)
{
    return (block * ACT_THREADS + thread) * ACT_COLUMNS;
}

/* Returns the first column of group `j` of a thread whose first column is i. */
CUDA_HD uint32_t act_batch_column(uint32_t i, uint32_t j)
{
    return i + j * ACT_BLOCK_COLUMNS;
}

/* The kernel that prepares gated activations: each thread has four columns at once. */

CUDA_HD uint32_t gate_column(uint32_t thread)
{
    return thread * ACT_COLUMNS;
}

/* Returns the first column of group j of a thread whose first column is i. */
CUDA_HD uint32_t gate_batch_column(uint32_t i, uint32_t j, uint32_t n_threads)
{
    return i + j * n_threads * ACT_COLUMNS;
}

/* Returns the dynamic shared memory of a row of n products. */
CUDA_HD size_t gate_bytes(uint32_t n)
{
    return dense_act_stride(n) * sizeof(float);
}

enum { GATE_OTHER_BYTES = 8192 }; /* the kernel's other shared memory, at most */

/* Returns the largest gate_bytes() for which the kernel runs. */
CUDA_HD size_t gate_max_bytes(uint32_t max_shared)
{
    return max_shared - GATE_OTHER_BYTES;
}

/* Returns the place of column k in a row of activations for int8 weights. Bytes 4t … 4t+3 are
 * widened as (0, 2) and (1, 3), so two masks widen four bytes. */
CUDA_HD uint32_t dense_paired_at(uint32_t k)
{
    uint32_t in = k % DENSE_PAIRED, t = in / 4, j = in % 4;
    return k - in + 2 * t + j / 2 + 8 * (j % 2);
}

struct dense_slices {
    uint32_t bounds[CUDA_SEGMENTS + 1]; /* columns from 0 to k */
    uint32_t count;                     /* 1, 2, 4 or 8 */
    uint32_t present;                   /* bit s: slice s is not empty */
};

CUDA_HD struct dense_slices dense_slices_from(const uint32_t *bounds, uint32_t count)
{
    struct dense_slices slices = {{0}, count, 0};
    for (uint32_t s = 0; s <= CUDA_SEGMENTS; s++)
        slices.bounds[s] = bounds[s < count ? s : count];
    for (uint32_t s = 0; s < count; s++)
        slices.present |= (slices.bounds[s] < slices.bounds[s + 1] ? 1u : 0u) << s;
    return slices;
}

/* Returns the slices of a matrix that is whole along k. */
CUDA_HD struct dense_slices dense_slices_of(uint32_t k)
{
    uint32_t bounds[CUDA_SEGMENTS + 1];
    for (uint32_t s = 0; s <= CUDA_SEGMENTS; s++)
        bounds[s] = cuda_segment_bound(k, s);
    return dense_slices_from(bounds, CUDA_SEGMENTS);
}

/* Returns the groups of a slice. The last group may reach beyond the slice; both operands count as
 * zeros there. */
CUDA_HD uint32_t dense_n_groups(uint32_t begin, uint32_t end, uint32_t group)
{
    return (end - begin + group - 1) / group;
}

CUDA_HD uint32_t dense_slice_groups(const struct dense_slices *slices, uint32_t s, uint32_t group)
{
    return dense_n_groups(slices->bounds[s], slices->bounds[s + 1], group);
}

/* --- the decode kernel: one warp per slice --- */

/* A block's tile of weight rows and tokens, and the stages of a warp's ring. All tiles give the
 * same bits. More tokens need more weight rows, so that activations are read less often. With a
 * rank's few slices, more stages keep as many bytes in flight. */
struct dense_tile {
    uint32_t n_row_tiles, n_token_tiles, n_stages;
};

enum { DENSE_N_TILES = 4, DENSE_FEW_SLICES = 2 };

DENSE_HD struct dense_tile dense_decode_tile(uint32_t i, uint32_t n_slices)
{
    struct dense_tile tile = {i < 2 ? 2u : 4u, 1u << i, i < 2 ? 4u : 3u};
    if (n_slices <= DENSE_FEW_SLICES)
        tile.n_stages *= CUDA_SEGMENTS / DENSE_FEW_SLICES;
    return tile;
}

/* Returns the number of tiles that a form has. The form f32 keeps every sum in four lanes, and f8
 * is widened to f16 on sm_90; both take registers. Activations of int8 have twice the size of the
 * weights, which takes shared memory. */
DENSE_HD uint32_t dense_n_tiles(enum dense_form form)
{
    return form == DENSE_F32 ? 2 : form == DENSE_INT8 || form == DENSE_F8 ? 3 : DENSE_N_TILES;
}

/* 512-byte pieces of a stage: 16 bytes per lane, for 8 rows or tokens. int8 has 16-bit activations:
 * two pieces per group. */
DENSE_HD uint32_t dense_w_pieces(struct dense_tile tile)
{
    return 2 * tile.n_row_tiles;
}

DENSE_HD uint32_t dense_x_pieces(enum dense_form form, struct dense_tile tile)
{
    return (form == DENSE_INT8 ? 2 : 1) * tile.n_token_tiles;
}

DENSE_HD uint32_t dense_stage_bytes(enum dense_form form, struct dense_tile tile)
{
    return (dense_w_pieces(tile) + dense_x_pieces(form, tile)) * DENSE_PIECE * DENSE_WARP;
}

/* Returns the floats from one token of a slice's sums to the next: 8 lanes by 4 use 32 banks. */
DENSE_HD uint32_t dense_sums_pitch(struct dense_tile tile)
{
    return tile.n_row_tiles * DENSE_W_ROWS + 4;
}

DENSE_HD uint32_t dense_sums_bytes(struct dense_tile tile)
{
    return tile.n_token_tiles * DENSE_TOKENS * dense_sums_pitch(tile) * (uint32_t)sizeof(float);
}

/* Returns a block's shared memory: the rings, later overwritten by the slices' sums. */
DENSE_HD uint32_t dense_shared_bytes(enum dense_form form, struct dense_tile tile,
                                     uint32_t n_slices)
{
    uint32_t ring = tile.n_stages * dense_stage_bytes(form, tile), sums = dense_sums_bytes(tile);
    return n_slices * (ring > sums ? ring : sums);
}

/* Returns the tile for n_tokens tokens: the smallest that holds them, within shared memory. */
CUDA_HD uint32_t dense_choose_tile(enum dense_form form, uint32_t n_tokens, uint32_t n_slices,
                                   uint32_t max_shared)
{
    uint32_t i = 0;
    while (i + 1 < dense_n_tiles(form) &&
           dense_decode_tile(i, n_slices).n_token_tiles * DENSE_TOKENS < n_tokens &&
           dense_shared_bytes(form, dense_decode_tile(i + 1, n_slices), n_slices) <= max_shared)
        i++;
    return i;
}

/* Returns the output rows of a block. Gated: gate and up alternate as row tiles, so a block has
 * half as many rows of each. */
CUDA_HD uint32_t dense_block_rows(struct dense_tile tile, uint32_t gated)
{
    return tile.n_row_tiles * DENSE_W_ROWS / (gated ? 2 : 1);
}

/* Returns the number of tokens of a block. */
DENSE_HD uint32_t dense_tile_tokens(struct dense_tile tile)
{
    return tile.n_token_tiles * DENSE_TOKENS;
}

/* Returns the number of threads of a block: a warp per slice. */
DENSE_HD uint32_t dense_n_threads(uint32_t n_slices)
{
    return n_slices * DENSE_WARP;
}

CUDA_HD uint32_t dense_n_blocks(uint32_t n_rows, uint32_t block_rows)
{
    return (n_rows + block_rows - 1) / block_rows;
}

/* Returns the first row of piece i (8 rows) of a stage, relative to the block's first row of its
 * matrix. */
CUDA_HD uint32_t dense_piece_row(uint32_t i, uint32_t gated)
{
    uint32_t tile = i / 2, half = i % 2;
    return (gated ? tile / 2 : tile) * DENSE_W_ROWS + half * 8;
}

/* --- the prompt kernel: tiles of 128 tokens by 128 weight rows --- */

enum {
    PROMPT_TILE = 128,
    PROMPT_THREADS = 256,
    PROMPT_LINE = 128,     /* bytes of a token's row in a stage */
    PROMPT_WARP_ROWS = 64, /* tokens of a warp's tile; 2 × 4 warps */
    PROMPT_WARP_COLS = 32, /* weight rows of a warp's tile */
};

/* Columns of a stage. */
DENSE_HD uint32_t prompt_step(enum dense_form form)
{
    return PROMPT_LINE / dense_act_bytes(form);
}

/* Bytes of a weight row in a stage. */
DENSE_HD uint32_t prompt_w_line(enum dense_form form)
{
    return prompt_step(form) * dense_weight_bytes(form);
}

DENSE_HD uint32_t prompt_n_stages(enum dense_form form)
{
    return form == DENSE_INT8 ? 4 : 3;
}

DENSE_HD uint32_t prompt_stage_bytes(enum dense_form form)
{
    return PROMPT_TILE * (PROMPT_LINE + prompt_w_line(form));
}

/* Returns a block's shared memory: the ring. */
DENSE_HD uint32_t prompt_shared_bytes(enum dense_form form)
{
    return prompt_n_stages(form) * prompt_stage_bytes(form);
}

/* Returns the byte of 16-byte piece p of a row. Equal pieces of 8 rows lie in different banks. */
CUDA_HD uint32_t prompt_piece_at(uint32_t row, uint32_t piece, uint32_t line)
{
    uint32_t turned = line == 128 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3);
    return row * line + turned * DENSE_PIECE;
}

/* --- the prompt kernel of sm_90a: tiles of 128 tokens by 256 weight rows of f16 or bf16 --- */

enum {
    WGMMA_ROWS = 256,   /* weight rows per block; tokens, threads and columns are PROMPT_* */
    WGMMA_GROUP = 128,  /* threads that multiply together, 64 tokens */
    WGMMA_SUMS = 128,   /* per thread */
    WGMMA_STAGES = 4,   /* stages of the ring: two being read, two in flight */
    WGMMA_STEP = 32,    /* bytes of a row per multiplication */
    WGMMA_EIGHT = 1024, /* bytes of eight rows, whose pieces are rotated together */
    WGMMA_TURNED = 1,   /* "128-byte swizzle" */
};

DENSE_HD uint32_t wgmma_stage_bytes(void)
{
    return (PROMPT_TILE + WGMMA_ROWS) * PROMPT_LINE;
}

/* Returns a block's shared memory; stages begin at multiples of WGMMA_EIGHT. */
DENSE_HD uint32_t wgmma_shared_bytes(void)
{
    return WGMMA_STAGES * wgmma_stage_bytes() + WGMMA_EIGHT;
}

/* Returns the bytes from an address in shared memory to the next place where a stage can begin. */
CUDA_HD uint32_t wgmma_skip(uint32_t address)
{
    return (WGMMA_EIGHT - address % WGMMA_EIGHT) % WGMMA_EIGHT;
}

/* Returns a matrix descriptor: rows of 128 bytes along k, rotated by prompt_piece_at(), from
 * `address` in shared memory on. The address is a multiple of WGMMA_EIGHT plus up to three steps.
 * Bits 0 to 13: the address. Bits 16 to 29: a distance that this layout does not use. Bits 32 to
 * 45: the distance from eight rows to the next. All are in units of 16 bytes. Bits 62 and 63: the
 * layout. */
CUDA_HD uint64_t wgmma_matrix(uint32_t address)
{
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)1 << 16 |
           (uint64_t)(WGMMA_EIGHT >> 4) << 32 | (uint64_t)WGMMA_TURNED << 62;
}
