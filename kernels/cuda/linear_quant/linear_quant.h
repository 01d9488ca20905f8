/* linear_quant.h: linears of quantized weights, y[m, n] = x·Wᵀ in block integers
 * (docs/house/numerics.md). The same kernel serves every number of rows, in four sizes
 * (quant_index.h).
 *
 * The work of a warp: P panels (16 rows each) × NT tiles (8 rows of activations), over its share of
 * the pairs. A pair is 64 columns. A group of warps (one, or the 8 of QUANT_LARGE) has a ring of
 * N_STAGES pairs in shared memory. Copies by cp.async fill the ring, 16 bytes from consecutive
 * addresses. The data lie in the order in which lanes read them, 16 or 8 bytes each, without bank
 * conflicts. Products are mma.m16n8k32 (m16n8k16 if a scale has 16 columns) of codes as bytes with
 * lo. A run's sums are scaled by an IMAD each. hi is multiplied only if a tile's run has outliers.
 * 16-bit offsets are a small separate product (quant_offsets).
 *
 * Bytes: weights n·k·b/8, once (b: 4.5 Q4_0, 5 Q4_1 and Q4_K, 8.5 Q8_0, 5.5 Q5_0, 6 Q5_1, 5.69
 * Q5_K, 3.06 Q2_K, 3.56 Q3_K, 6.56 Q6_K). Activations m·k, plus hi if there is any, from L2 per 32
 * rows of W (QUANT_LARGE: 64 or 128). Operations: 2·m·n·k.
 *
 * Warp instructions of one pair of two panels (INT4: 1,152 bytes), counted in PTX without moves.
 * Copies, flags, barrier and loop take 60. Loading and unpacking codes and scales takes 40. Per
 * tile: 3 loads, 4 mma, 16 IMAD and 5 others; with outliers in a run 2 mma and 16 to 30 others
 * more. That is 155 at m ≤ 8 and about 240 at m = 32. An H100's SM gets 14.5 bytes of memory per
 * cycle, so a pair in 79 cycles with 318 issue slots. Half are used at m ≤ 8, so memory is the
 * bound. Three quarters are used at m = 32, where IMAD (16 lanes per cycle and quarter) take 64 · 2
 * / 4 = 32 cycles and mma as many. With 4.8 TB/s (20.8 bytes, 221 issue slots) 70 % are used at m ≤
 * 8, and issue is the bound at m = 32. Wide forms have as many IMAD, forms with sub-blocks of 16
 * columns twice as many, and 4 to 8 IMAD.WIDE per super-block. The instruction dp4a does not help
 * with few rows. An mma computes a tile's 8 columns for the price of one; dp4a takes two
 * instructions per word and row. QUANT_LARGE is bound by IMAD and mma, both 8 cycles for 4,096
 * products of a quarter: 2,048 per cycle and SM.
 *
 * In flight per SM: 3 or 4 stages · 1,152 B · 8 to 24 warps, 27 to 110 KiB of INT4. Registers on
 * sm_90a: QUANT_ROWS_8 81 to 128, two to three blocks of 8 warps or one of 16 per SM. QUANT_ROWS_16
 * 101 to 183, QUANT_ROWS_32 133 to 255, QUANT_LARGE 157 to 246, one to two blocks. No spills. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: linear_quant_4bit.cu ILj0ELj0E registers 96 shared 1024
 *    ptxas: linear_quant_4bit.cu ILj0ELj1E registers 128 shared 1024
 *    ptxas: linear_quant_4bit.cu ILj0ELj2E registers 184 shared 1024
 *    ptxas: linear_quant_4bit.cu ILj0ELj3E registers 255 shared 1024
 *    ptxas: linear_quant_4bit.cu ILj0ELj3E on sm_90a registers 192 shared 1024
 *    ptxas: linear_quant_4bit.cu ILj1ELj0E registers 88 shared 1024
 *    ptxas: linear_quant_4bit.cu ILj1ELj1E registers 104 shared 1024
 *    ptxas: linear_quant_4bit.cu ILj1ELj2E registers 136 shared 1024
 *    ptxas: linear_quant_4bit.cu ILj1ELj3E registers 160 shared 1024
 *    ptxas: linear_quant_4bit.cu quant_rank_sums registers 24
 *    ptxas: linear_quant_4bit.cu quant_finish registers 40
 *    ptxas: linear_quant_8bit.cu ILj2ELj0E registers 96 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj2ELj1E registers 136 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj2ELj2E registers 208 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj2ELj3E registers 184 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj3ELj0E registers 96 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj3ELj1E registers 136 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj3ELj2E registers 200 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj3ELj3E registers 168 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj4ELj0E registers 96 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj4ELj1E registers 144 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj4ELj2E registers 208 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj4ELj2E on sm_90a registers 200 shared 1024
 *    ptxas: linear_quant_8bit.cu ILj4ELj3E registers 200 shared 1024
 *    ptxas: linear_quant_super.cu ILj5ELj0E registers 112 shared 1024
 *    ptxas: linear_quant_super.cu ILj5ELj1E registers 168 shared 1024
 *    ptxas: linear_quant_super.cu ILj5ELj2E registers 255 shared 1024
 *    ptxas: linear_quant_super.cu ILj5ELj3E registers 248 shared 1024
 *    ptxas: linear_quant_super.cu ILj6ELj0E registers 128 shared 1024
 *    ptxas: linear_quant_super.cu ILj6ELj1E registers 184 shared 1024
 *    ptxas: linear_quant_super.cu ILj6ELj2E registers 255 shared 1024
 *    ptxas: linear_quant_super.cu ILj6ELj3E registers 232 shared 1024
 *    ptxas: linear_quant_super.cu ILj6ELj3E on sm_90a registers 224 shared 1024
 *    ptxas: linear_quant_super.cu ILj7ELj0E registers 112 shared 1024
 *    ptxas: linear_quant_super.cu ILj7ELj1E registers 168 shared 1024
 *    ptxas: linear_quant_super.cu ILj7ELj2E registers 224 shared 1024
 *    ptxas: linear_quant_super.cu ILj7ELj3E registers 200 shared 1024
 *    ptxas: linear_quant_super.cu ILj8ELj0E registers 120 shared 1024
 *    ptxas: linear_quant_super.cu ILj8ELj1E registers 168 shared 1024
 *    ptxas: linear_quant_super.cu ILj8ELj2E registers 232 shared 1024
 *    ptxas: linear_quant_super.cu ILj8ELj3E registers 200 shared 1024
 *    ptxas: linear_quant_table.cu linear_quant.*ELj0E registers 120 shared 1024
 *    ptxas: linear_quant_table.cu linear_quant.*ELj1E registers 168 shared 1024
 *    ptxas: linear_quant_table.cu linear_quant.*ELj2E registers 232 shared 1024
 *    ptxas: linear_quant_table.cu linear_quant.*ELj3E registers 208 shared 1024
 *    ptx: linear_quant_4bit.cu linear_quant mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32
 *    ptx: linear_quant_8bit.cu linear_quant mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32
 *    ptx: linear_quant_super.cu linear_quant mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32
 */
#pragma once

#include "kernels/cuda/linear_quant/launch_quant.h"
#include "kernels/cuda/linear_quant/linear_quant_put.h"
#include "kernels/cuda/linear_quant/linear_quant_tile.h"

/* Returns panel `panel` of all parts, clamped to the last panel. */
CUDA_DEVICE const uint8_t *quant_panel(const struct quant_linear *q, uint32_t panel)
{
    uint32_t local, part = quant_part_of(q, panel < q->n_panels ? panel : q->n_panels - 1, &local);
    const uint8_t *data = part == 0   ? q->parts[0].data
                          : part == 1 ? q->parts[1].data
                                      : q->parts[2].data;
    return data + quant_panel_from(&q->layout, local);
}

/* Sources of this thread's 16-byte pieces of the next pair. The pointers advance from pair to pair,
 * so that a piece takes three instructions. Piece i of a thread goes to (i·GROUP + thread)·16 of
 * its part of the stage. */
template <uint32_t FORM, uint32_t KERNEL> struct quant_copies {
    typedef quant_tile<FORM, KERNEL> tile;
    static constexpr uint32_t OF_CODES = quant_code_pieces(FORM, KERNEL),
                              OF_SUPERS = quant_super_pieces(FORM, KERNEL),
                              OF_SUMS = quant_sum_pieces(FORM, KERNEL);
    static constexpr uint32_t N_CODES = quant_n_copies(OF_CODES, KERNEL),
                              N_SUPERS = quant_n_copies(OF_SUPERS, KERNEL),
                              N_TILES = quant_n_copies(quant_tile_pieces(KERNEL), KERNEL),
                              N_SUMS = quant_n_copies(OF_SUMS, KERNEL);
    const uint8_t *codes[N_CODES],
        *supers[N_SUPERS > 0 ? N_SUPERS : 1]; /* supers: the first pair's */
    const uint8_t *lo[N_TILES], *hi[N_TILES], *flags[N_TILES], *sums[N_SUMS];
    bool tile_valid[N_TILES], sums_valid[N_SUMS];
    uint32_t thread; /* index within the group */
};

template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_copies_init(quant_copies<FORM, KERNEL> *c, const struct quant_linear *q,
                                   uint32_t thread, uint32_t first_panel, uint32_t first_tile,
                                   uint32_t pair)
{
    c->thread = thread;
#pragma unroll
    for (uint32_t i = 0; i < c->N_CODES; i++) {
        uint32_t piece = quant_piece(KERNEL, i, thread);
        c->codes[i] = quant_panel(q, first_panel + quant_code_panel(FORM, piece)) +
                      quant_code_from(FORM, piece, pair);
    }
    if constexpr (quant_is_super(FORM)) {
#pragma unroll
        for (uint32_t i = 0; i < c->N_SUPERS; i++) {
            uint32_t panel = quant_super_panel(FORM, quant_piece(KERNEL, i, thread));
            c->supers[i] = quant_panel(q, first_panel + panel) + q->layout.supers_at;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < c->N_TILES; i++) {
        uint32_t piece = quant_piece(KERNEL, i, thread);
        uint32_t i_tile = first_tile + quant_piece_tile(piece);
        c->tile_valid[i] = quant_piece_row(i_tile, piece) < q->m;
        size_t fragment = quant_fragment_of(&q->layout, c->tile_valid[i] ? i_tile : 0, pair);
        c->lo[i] = q->act.lo + quant_fragment_from(fragment, piece);
        c->hi[i] = q->act.hi + quant_fragment_from(fragment, piece);
        c->flags[i] = q->act.sums + quant_flag_from(fragment, piece);
    }
#pragma unroll
    for (uint32_t i = 0; i < c->N_SUMS; i++) {
        uint32_t piece = quant_piece(KERNEL, i, thread);
        uint32_t i_tile = first_tile + quant_sum_tile(FORM, piece);
        c->sums_valid[i] = quant_first_token(i_tile) < q->m;
        size_t fragment = quant_fragment_of(&q->layout, c->sums_valid[i] ? i_tile : 0, pair);
        c->sums[i] = (quant_is_hi_sum(FORM, piece) ? q->act.hi_sums : q->act.sums) +
                     quant_sum_from(FORM, fragment, piece);
    }
}

/* Reads which of this thread's pieces of the next pair have outliers. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_read_flags(quant_copies<FORM, KERNEL> *c, bool outliers[])
{
#pragma unroll
    for (uint32_t i = 0; i < c->N_TILES; i++) {
        outliers[i] = c->tile_valid[i] && *c->flags[i] != 0;
        c->flags[i] += QUANT_SUMS_BYTES;
    }
}

/* Queues copies of the next pair's outliers into a stage; zeros for rows without outliers. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_fetch_hi(quant_copies<FORM, KERNEL> *c, uint8_t *stage,
                                const bool outliers[])
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint8_t *hi = stage + tile::HI_AT, *to = hi + quant_own_at(c->thread);
#pragma unroll
    for (uint32_t i = 0; i < c->N_TILES; i++) {
        cp_async_16(to + quant_copy_at(KERNEL, i), c->hi[i], outliers[i]);
        c->hi[i] += QUANT_FRAGMENT_BYTES;
    }
}

/* Copies isd and ism of both runs of a pair. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_fetch_supers(const quant_copies<FORM, KERNEL> *c,
                                    const struct quant_linear *q, uint8_t *to, uint32_t pair)
{
#pragma unroll
    for (uint32_t i = 0; i < c->N_SUPERS; i++) {
        uint32_t from = quant_super_from(&q->layout, FORM, quant_piece(KERNEL, i, c->thread), pair);
        if (quant_has_piece(c->OF_SUPERS, KERNEL, i, c->thread))
            cp_async_16(to + quant_copy_at(KERNEL, i), c->supers[i] + from, true);
    }
}

/* Queues copies of the next pair's weights, those of pair number `pair`, into a stage. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_fetch_weights(quant_copies<FORM, KERNEL> *c, const struct quant_linear *q,
                                     uint8_t *stage, uint32_t pair)
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint8_t *to = stage + quant_own_at(c->thread);
#pragma unroll
    for (uint32_t i = 0; i < c->N_CODES; i++) {
        if (quant_has_piece(c->OF_CODES, KERNEL, i, c->thread))
            cp_async_16(to + quant_copy_at(KERNEL, i), c->codes[i], true);
        c->codes[i] += tile::PAIR;
    }
    if constexpr (tile::SUPER)
        quant_fetch_supers<FORM, KERNEL>(c, q, to + tile::SUPERS_AT, pair);
}

/* The same for activations, without outliers. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_fetch_rows(quant_copies<FORM, KERNEL> *c, uint8_t *stage)
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint8_t *to = stage + quant_own_at(c->thread), *lo = to + tile::LO_AT;
    uint8_t *sums = to + tile::SUMS_AT;
#pragma unroll
    for (uint32_t i = 0; i < c->N_TILES; i++) {
        cp_async_16(lo + quant_copy_at(KERNEL, i), c->lo[i], c->tile_valid[i]);
        c->lo[i] += QUANT_FRAGMENT_BYTES;
    }
#pragma unroll
    for (uint32_t i = 0; i < c->N_SUMS; i++) {
        if (quant_has_piece(c->OF_SUMS, KERNEL, i, c->thread))
            cp_async_16(sums + quant_copy_at(KERNEL, i), c->sums[i], c->sums_valid[i]);
        c->sums[i] += QUANT_SUMS_BYTES;
    }
}

/* Adds Σ offset·Σa over the runs: bytes of offsets times digits of Σa (with outliers), 32 runs at a
 * time, every n_shares-th group of 32. Per 32 runs, panel and tile: 6 mma and about 48 IMAD, an
 * eighth of the cost of adding run by run. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_offsets(quant_acc<FORM, KERNEL> *acc, const struct quant_linear *q,
                               uint32_t lane, uint32_t first_panel, uint32_t first_tile,
                               uint32_t share, uint32_t n_shares)
{
    typedef quant_tile<FORM, KERNEL> tile;
    const uint32_t n_tiles = quant_n_tiles(q->m);
    for (uint32_t chunk = share; chunk < q->layout.n_chunks; chunk += n_shares) {
        uint32_t high[tile::P][4], low[tile::P][4];
#pragma unroll
        for (uint32_t p = 0; p < tile::P; p++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                uint32_t group = quant_offset_group(chunk, i, lane);
                uint4 w = make_uint4(0, 0, 0, 0);
                if (group < q->layout.n_groups)
                    w = load_once_16(quant_panel(q, first_panel + p) +
                                     quant_offset_from(&q->layout, group, lane));
                high[p][quant_offset_register(i, 0)] = w.x;
                high[p][quant_offset_register(i, 1)] = w.y;
                low[p][quant_offset_register(i, 0)] = w.z;
                low[p][quant_offset_register(i, 1)] = w.w;
            }
#pragma unroll
        for (uint32_t nt = 0; nt < tile::NT; nt++) {
            uint32_t i_tile = first_tile + nt < n_tiles ? first_tile + nt : n_tiles - 1;
            const uint8_t *digits = q->act.digits + quant_digits_from(&q->layout, i_tile, chunk);
#pragma unroll
            for (uint32_t j = 0; j < QUANT_DIGITS; j++) {
                uint2 two = *(const uint2 *)(digits + quant_digit_at(j, lane));
                uint32_t b[2] = {two.x, two.y};
#pragma unroll
                for (uint32_t p = 0; p < tile::P; p++) {
                    int32_t d[4] = {0, 0, 0, 0};
                    mma_m16n8k32_s8(d, high[p], b);
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++)
                        d[e] = quant_of_high(d[e]);
                    mma_m16n8k32_u8s8(d, low[p], b);
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++)
                        if constexpr (tile::WIDE)
                            acc->t[p][nt][e] += quant_digit_wide(d[e], j);
                        else
                            acc->t[p][nt][e] += quant_digit_bits(d[e], j);
                }
            }
        }
    }
}

/* Stores a block's sum: a whole sum, or a part that quant_finish adds. */
template <uint32_t FORM>
CUDA_DEVICE void quant_store(const struct quant_linear *q, uint32_t panel, uint32_t row,
                             uint32_t token, typename quant_sum<quant_is_wide(FORM)>::type sum)
{
    if (panel >= q->n_panels || token >= q->m)
        return;
    typedef typename quant_sum<quant_is_wide(FORM)>::type type;
    ((type *)q->split)[quant_split_at(q->n_panels, q->m, blockIdx.z, token, panel, row)] = sum;
}

/* Widens a 32-bit sum to its value; 64-bit sums are unchanged. */
CUDA_DEVICE int64_t quant_whole(uint32_t sum)
{
    return (int32_t)sum;
}
CUDA_DEVICE int64_t quant_whole(int64_t sum)
{
    return sum;
}

/* Stores results directly from the lanes that have them, if one group has all columns. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_put_lanes(const quant_acc<FORM, KERNEL> *acc, const struct quant_linear *q,
                                 uint32_t lane, uint32_t first_panel, uint32_t first_tile)
{
    typedef quant_tile<FORM, KERNEL> tile;
    bool gated = q->put == QUANT_PUT_GATED && gridDim.z == 1;
#pragma unroll
    for (uint32_t nt = 0; nt < tile::NT; nt++)
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            uint32_t row = fragment_sum_row(lane, e);
            uint32_t token = quant_token_of(first_tile + nt, lane, e);
            if (tile::P == 2 && gated) {
                quant_put_gated(q, first_panel, row, token, quant_whole(acc->t[0][nt][e]),
                                quant_whole(acc->t[tile::LAST][nt][e]));
                continue;
            }
#pragma unroll
            for (uint32_t p = 0; p < tile::P; p++)
                if (gridDim.z > 1)
                    quant_store<FORM>(q, first_panel + p, row, token, acc->t[p][nt][e]);
                else
                    quant_put(q, first_panel + p, row, token, quant_whole(acc->t[p][nt][e]));
        }
}

/* Adds the groups' sums in shared memory and stores them. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_put_groups(const quant_acc<FORM, KERNEL> *acc, const struct quant_linear *q,
                                  uint8_t *shared, uint32_t first_panel, uint32_t first_tile)
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint32_t lane = cuda_lane_of(threadIdx.x), n_groups = cuda_warp_of(blockDim.x);
    typename tile::sum *own =
        (typename tile::sum *)(shared + quant_group_at(FORM, KERNEL, cuda_warp_of(threadIdx.x)));
    __syncthreads(); /* no warp reads a ring any more */
#pragma unroll
    for (uint32_t p = 0; p < tile::P; p++)
#pragma unroll
        for (uint32_t nt = 0; nt < tile::NT; nt++)
#pragma unroll
            for (uint32_t e = 0; e < 4; e++)
                own[quant_sum_place(FORM, KERNEL, nt, p, lane, e)] = acc->t[p][nt][e];
    __syncthreads();
    auto sum_of = [&](uint32_t token, uint32_t row) {
        typename tile::sum sum = 0;
        for (uint32_t i = 0; i < n_groups; i++) {
            const uint8_t *of_group = shared + quant_group_at(FORM, KERNEL, i);
            sum += ((const typename tile::sum *)of_group)[quant_sum_of(FORM, KERNEL, token, row)];
        }
        return sum;
    };
    bool gated = q->put == QUANT_PUT_GATED && gridDim.z == 1;
    uint32_t n = gated ? (uint32_t)QUANT_ROWS : quant_warp_rows(FORM, KERNEL);
    for (uint32_t i = threadIdx.x; i < quant_n_puts(KERNEL, n); i += blockDim.x) {
        uint32_t token = quant_put_token(i, n), row = quant_put_row(i, n);
        uint32_t at = quant_first_token(first_tile) + token;
        uint32_t panel = first_panel + quant_panel_of_row(row);
        typename tile::sum sum = sum_of(token, row);
        if (gated)
            quant_put_gated(q, panel, row, at, quant_whole(sum),
                            quant_whole(sum_of(token, row + QUANT_ROWS)));
        else if (gridDim.z > 1)
            quant_store<FORM>(q, panel, quant_row_in_panel(row), at, sum);
        else
            quant_put(q, panel, quant_row_in_panel(row), at, quant_whole(sum));
    }
}

template <uint32_t FORM, uint32_t KERNEL> CUDA_DEVICE void quant_group_sync(void)
{
    if constexpr (quant_group_warps(KERNEL) == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* Queues the first N_STAGES − 1 pairs. The weights are copied before the previous op has ended.
 * Flags are read while the rest is in flight. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_fill(quant_copies<FORM, KERNEL> *c, const struct quant_linear *q,
                            uint8_t *ring, uint32_t begin, uint32_t end)
{
    typedef quant_tile<FORM, KERNEL> tile;
    bool outliers[tile::AHEAD][quant_copies<FORM, KERNEL>::N_TILES];
#pragma unroll
    for (uint32_t i = 0; i < tile::AHEAD; i++)
        if (begin + i < end)
            quant_fetch_weights<FORM, KERNEL>(c, q, ring + cuda_stage_at(i, tile::STAGE),
                                              begin + i);
    cuda_op_begin();
#pragma unroll
    for (uint32_t i = 0; i < tile::AHEAD; i++)
        if (begin + i < end)
            quant_fetch_rows<FORM, KERNEL>(c, ring + cuda_stage_at(i, tile::STAGE));
#pragma unroll
    for (uint32_t i = 0; i < tile::AHEAD; i++)
        if (begin + i < end)
            quant_read_flags<FORM, KERNEL>(c, outliers[i]);
#pragma unroll
    for (uint32_t i = 0; i < tile::AHEAD; i++)
        if (begin + i < end)
            quant_fetch_hi<FORM, KERNEL>(c, ring + cuda_stage_at(i, tile::STAGE), outliers[i]);
    cp_async_commit();
}

/* Computes the group's share of the pairs through its ring. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_walk(quant_acc<FORM, KERNEL> *acc, const struct quant_linear *q,
                            uint8_t *ring, uint32_t first_panel, uint32_t first_tile,
                            uint32_t share, uint32_t n_shares)
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint32_t thread = quant_thread_of(KERNEL, threadIdx.x), lane = cuda_lane_of(thread);
    uint32_t warp_panel = quant_warp_panel(FORM, KERNEL, thread);
    uint32_t warp_tile = quant_warp_tile(KERNEL, thread);
    const uint32_t ends_every = quant_ends_every(&q->layout, FORM);
    uint32_t begin, end;
    cuda_piece(0, q->layout.n_pairs, share, n_shares, &begin, &end);
    quant_copies<FORM, KERNEL> copies;
    quant_copies_init<FORM, KERNEL>(&copies, q, thread, first_panel, first_tile, begin);
    quant_fill<FORM, KERNEL>(&copies, q, ring, begin, end);
    if constexpr (tile::OFFSETS) /* meanwhile the ring fills */
        quant_offsets<FORM, KERNEL>(acc, q, lane, first_panel + warp_panel, first_tile + warp_tile,
                                    share, n_shares);
    quant_place_of_warp at;
    at.lane = lane;
    uint32_t here = 0, next = tile::AHEAD;
    bool outliers[quant_copies<FORM, KERNEL>::N_TILES]; /* outliers of the next pair to fetch; read
                                                           an iteration ahead */
    if (begin + next < end)
        quant_read_flags<FORM, KERNEL>(&copies, outliers);
    cp_async_wait<0>();
    for (uint32_t pair = begin; pair < end; pair++) {
        cp_async_wait<tile::N_STAGES - 2>();
        quant_group_sync<FORM, KERNEL>(); /* all warps of the group have this pair and have finished
                                             the pair before */
        if (pair + tile::AHEAD < end) {
            uint8_t *to = ring + cuda_stage_at(next, tile::STAGE);
            quant_fetch_weights<FORM, KERNEL>(&copies, q, to, pair + tile::AHEAD);
            quant_fetch_rows<FORM, KERNEL>(&copies, to);
            quant_fetch_hi<FORM, KERNEL>(&copies, to, outliers);
        }
        cp_async_commit();
        if (pair + tile::N_STAGES < end)
            quant_read_flags<FORM, KERNEL>(&copies, outliers);
        const uint8_t *stage = ring + cuda_stage_at(here, tile::STAGE);
        const uint8_t *supers = stage + tile::SUPERS_AT, *lo = stage + tile::LO_AT;
        const uint8_t *hi = stage + tile::HI_AT, *sums = stage + tile::SUMS_AT;
        at.panels = stage + quant_stage_pair(FORM, warp_panel);
        at.supers = supers + quant_stage_super(FORM, warp_panel, 0);
        at.lo = lo + quant_stage_fragment(warp_tile);
        at.hi = hi + quant_stage_fragment(warp_tile);
        at.sums = sums + quant_stage_sums(FORM, warp_tile);
        at.ends[0] = ends_every == 1;
        at.ends[1] = quant_ends(pair, ends_every) || pair + 1 == end;
        quant_pair<FORM, KERNEL>(acc, &at);
        here = here + 1 == tile::N_STAGES ? 0 : here + 1;
        next = next + 1 == tile::N_STAGES ? 0 : next + 1;
    }
    cp_async_wait<0>();
}

/* op begins in: quant_fill */
template <uint32_t FORM, uint32_t KERNEL>
static __global__ void __launch_bounds__(quant_max_threads(FORM, KERNEL), 1)
    linear_quant(struct quant_linear q)
{
    CUDA_SHARED(shared);
    uint32_t group = quant_group_of(KERNEL, threadIdx.x);
    uint32_t n_groups = quant_group_of(KERNEL, blockDim.x);
    uint32_t share = quant_share_of(blockIdx.z, n_groups, group);
    uint32_t n_shares = quant_share_of(gridDim.z, n_groups, 0);
    uint32_t first_panel = quant_block_panel(FORM, KERNEL, blockIdx.x);
    uint32_t first_tile = quant_block_tile(KERNEL, blockIdx.y);
    quant_acc<FORM, KERNEL> acc = {};
    quant_walk<FORM, KERNEL>(&acc, &q, shared + quant_group_at(FORM, KERNEL, group), first_panel,
                             first_tile, share, n_shares);
    if constexpr (KERNEL == QUANT_LARGE)
        quant_put_lanes<FORM, KERNEL>(&acc, &q, cuda_lane_of(threadIdx.x),
                                      first_panel + quant_warp_panel(FORM, KERNEL, threadIdx.x),
                                      first_tile + quant_warp_tile(KERNEL, threadIdx.x));
    else
        quant_put_groups<FORM, KERNEL>(&acc, &q, shared, first_panel, first_tile);
}

template <uint32_t FORM, uint32_t KERNEL>
static int quant_launch_kernel(void *stream, const struct quant_linear *q,
                               const struct quant_plan *plan)
{
    dim3 grid(plan->row_blocks, plan->token_blocks, plan->n_splits);
    auto kernel = linear_quant<FORM, KERNEL>;
    return CUDA_LAUNCH(kernel, grid, quant_n_threads(plan), plan->shared_bytes, stream, *q);
}

template <uint32_t FORM>
static int quant_launch(void *stream, const struct quant_linear *q, const struct quant_plan *plan)
{
    switch (plan->kernel) {
    case QUANT_ROWS_8:
        return quant_launch_kernel<FORM, QUANT_ROWS_8>(stream, q, plan);
    case QUANT_ROWS_16:
        return quant_launch_kernel<FORM, QUANT_ROWS_16>(stream, q, plan);
    case QUANT_ROWS_32:
        return quant_launch_kernel<FORM, QUANT_ROWS_32>(stream, q, plan);
    default:
        return quant_launch_kernel<FORM, QUANT_LARGE>(stream, q, plan);
    }
}

template <uint32_t FORM> static int quant_allow(uint32_t max_shared)
{
    int code = CUDA_ALLOW_SHARED((linear_quant<FORM, QUANT_ROWS_8>), max_shared);
    if (code == 0)
        code = CUDA_ALLOW_SHARED((linear_quant<FORM, QUANT_ROWS_16>), max_shared);
    if (code == 0)
        code = CUDA_ALLOW_SHARED((linear_quant<FORM, QUANT_ROWS_32>), max_shared);
    if (code == 0)
        code = CUDA_ALLOW_SHARED((linear_quant<FORM, QUANT_LARGE>), max_shared);
    return code;
}
