/* dense_impl.h: dense linear layers in 16-lane vectors. One output is a chain of FMAs per lane over
 * each segment of K, the lanes added by the tree, the segments by the tree of 8: the same bits for
 * any tile. Per call, m rows × n outputs: 2·m·n·k operations, n·k·(2 or 4) bytes of weights. Bound
 * at m = 1: memory; at m ≥ 12: one FMA per cycle. DENSE_NR, DENSE_NM: outputs and rows of a tile.
 */
#pragma once

#include "kernels/cpu/weight_cpu.h"

ALWAYS_INLINE v16 load_weights(const uint8_t *row, uint32_t k, enum pack_format format)
{
    if (format == PACK_F32)
        return v_load((const float *)(const void *)row + k);
    const uint16_t *halves = (const uint16_t *)(const void *)row + k;
    return format == PACK_F16 ? v_load_f16(halves) : v_load_bf16(halves);
}

/* Lane sums of one segment [begin, end) of K for nr outputs × nm rows. */
ALWAYS_INLINE void dense_chains(const uint8_t *w, size_t row_bytes, const float *x, size_t x_stride,
                                uint32_t begin, uint32_t end, enum pack_format format, int nr,
                                int nm, float *out)
{
    v16 acc[DENSE_NR][DENSE_NM];
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
        for (int m = 0; m < nm; m++)
            acc[r][m] = v_zero();
    uint32_t k = begin;
    for (; k + 16 <= end; k += 16) {
        v16 wk[DENSE_NR];
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            wk[r] = load_weights(w + (size_t)r * row_bytes, k, format);
#pragma GCC unroll 16
        for (int m = 0; m < nm; m++) {
            v16 xk = v_load(x + (size_t)m * x_stride + k);
#pragma GCC unroll 16
            for (int r = 0; r < nr; r++)
                acc[r][m] = v_fma(wk[r], xk, acc[r][m]);
        }
    }
    if (k < end) {
#pragma GCC unroll 16
        for (int m = 0; m < nm; m++) {
            v16 xk = v_load_n(x + (size_t)m * x_stride + k, end - k);
#pragma GCC unroll 16
            for (int r = 0; r < nr; r++)
                acc[r][m] =
                    v_fma(load_weights(w + (size_t)r * row_bytes, k, format), xk, acc[r][m]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
        for (int m = 0; m < nm; m++)
            out[r * nm + m] = v_sum(acc[r][m]);
}

ALWAYS_INLINE void dense_tile(const struct linear_job *job, uint32_t n, uint32_t row,
                              enum pack_format format, int nr, int nm)
{
    const struct weight_cpu *w = job->w;
    const uint8_t *weights = weight_data(w) + w->row_bytes * n;
    const float *x = job->act->x + (size_t)row * job->act->x_stride;
    float parts[N_SEGMENTS][DENSE_NR * DENSE_NM];
    for (uint32_t p = 0; p < w->n_parts; p++)
        dense_chains(weights, w->row_bytes, x, job->act->x_stride, w->part_bounds[p],
                     w->part_bounds[p + 1], format, nr, nm, parts[p]);
    for (int r = 0; r < nr; r++)
        for (int m = 0; m < nm; m++) {
            float column[N_SEGMENTS];
            for (uint32_t p = 0; p < w->n_parts; p++)
                column[p] = parts[p][r * nm + m];
            job->y[(row + (uint32_t)m) * job->y_stride + n + (uint32_t)r] =
                tree_sum(column, w->part_bounds, w->n_parts);
        }
}

ALWAYS_INLINE void dense_rows(const struct linear_job *job, const struct linear_share *share,
                              uint32_t n, enum pack_format format, int nr)
{
    uint32_t row = share->row_begin;
    for (; row + DENSE_NM <= share->row_end; row += DENSE_NM)
        dense_tile(job, n, row, format, nr, DENSE_NM);
    for (; row + 2 <= share->row_end; row += 2)
        dense_tile(job, n, row, format, nr, 2);
    for (; row < share->row_end; row++)
        dense_tile(job, n, row, format, nr, 1);
}

ALWAYS_INLINE void dense_share(const struct linear_job *job, const struct linear_share *share,
                               enum pack_format format)
{
    uint32_t n = share->n_begin;
    for (; n + DENSE_NR <= share->n_end; n += DENSE_NR)
        dense_rows(job, share, n, format, DENSE_NR);
    for (; n < share->n_end; n++)
        dense_rows(job, share, n, format, 1);
}

static void linear_dense(const struct linear_job *job, const struct linear_share *share)
{
    switch ((enum pack_format)job->w->format) {
    case PACK_F16:
        dense_share(job, share, PACK_F16);
        break;
    case PACK_BF16:
        dense_share(job, share, PACK_BF16);
        break;
    default:
        dense_share(job, share, PACK_F32);
        break;
    }
}
