#include <string.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/linear/linear_int.h"
#include "kernels/cpu/ref/ref.h"
#include "kernels/cpu/weight_cpu.h"

void linear_int_put(const struct linear_job *job, uint32_t row, uint32_t n, int64_t total)
{
    if (job->y != NULL) {
        float scale = weight_units(job->w)[n] * job->act->scale[row];
        job->y[row * job->y_stride + n] = (float)total * scale;
    } else if (job->high != NULL) {
        job->sums[row * job->sums_stride + n] = (int32_t)(total & 0xFFFF);
        job->high[row * job->y_stride + n] = (int32_t)(total >> 16);
    } else {
        job->sums[row * job->sums_stride + n] = (int32_t)total;
    }
}

/* The contract's expression for integer weights: T = Σ W·a in 64 bits, y = float(T)·(u·s). */
void linear_exact(const struct linear_job *job, const struct linear_share *share)
{
    const struct weight_cpu *w = job->w;
    for (uint32_t row = share->row_begin; row < share->row_end; row++) {
        const int8_t *lo = act_lo(job->act, row);
        const struct act_outlier *outliers = act_outliers(job->act, row);
        for (uint32_t n = share->n_begin; n < share->n_end; n++) {
            int64_t total = 0;
            for (uint32_t k = 0; k < w->base.k_local; k++)
                total += (int64_t)weight_at(w, n, k) * lo[k];
            for (uint32_t i = 0; i < job->act->n_outliers[row]; i++)
                for (uint32_t j = 0; j < ACT_GROUP; j++) {
                    int8_t hi = (int8_t)(outliers[i].hi >> 8 * j & 0xFF);
                    total += 255 * (int64_t)weight_at(w, n, outliers[i].group * ACT_GROUP + j) * hi;
                }
            linear_int_put(job, row, n, total);
        }
    }
}

/* Returns the weight at a column; 0 beyond the last column of a BF16 pair. */
static float dense_at(const struct weight_cpu *w, uint32_t row, uint32_t k)
{
    const uint8_t *panel = weight_panel(w, row / PANEL_ROWS);
    uint32_t lane = row % PANEL_ROWS;
    if (w->format == PACK_F32)
        return ((const float *)(const void *)panel)[(size_t)k * PANEL_ROWS + lane];
    const uint16_t *halves = (const uint16_t *)(const void *)panel;
    return w->format == PACK_F16
               ? dtype_f16_to_f32(halves[(size_t)k * PANEL_ROWS + lane])
               : dtype_bf16_to_f32(halves[((size_t)(k / 2) * PANEL_ROWS + lane) * 2 + k % 2]);
}

void ref_round_bf16(uint32_t *dst, const float *x)
{
    for (int i = 0; i < ACT_RUN; i++) {
        float rounded = dtype_bf16_to_f32(dtype_f32_to_bf16(dense_flushed(x[i])));
        memcpy(&dst[i], &rounded, sizeof(rounded));
    }
}

void dense_ref_linear(const struct linear_job *job, const struct linear_share *share)
{
    const struct weight_cpu *w = job->w;
    const uint32_t *dense = w->base.act_kind == ACT_BF16 ? job->act->bf16 : job->act->f32;
    uint32_t pair = w->format == PACK_BF16 ? 1 : 0;
    for (uint32_t row = share->row_begin; row < share->row_end; row++) {
        const uint32_t *x = act_dense_row(dense, row, job->act->k_pad);
        size_t step = act_group_rows(job->act, row);
        for (uint32_t n = share->n_begin; n < share->n_end; n++) {
            float parts[N_SEGMENTS] = {0};
            for (uint32_t p = 0; p < w->n_parts; p++) {
                uint32_t end = (w->part_bounds[p + 1] + pair) & ~pair;
                for (uint32_t k = w->part_bounds[p]; k < end; k++) {
                    uint32_t column = k ^ pair; /* odd column before even */
                    float xk;
                    memcpy(&xk, x + column * step, sizeof(xk));
                    parts[p] = fmaf(dense_at(w, n, column), xk, parts[p]);
                }
            }
            job->y[row * job->y_stride + n] = tree_sum(parts, w->part_bounds, w->n_parts);
        }
    }
}
