#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear_int.h"
#include "kernels/cpu/ref.h"
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

static float dense_at(const struct weight_cpu *w, uint32_t row, uint32_t k)
{
    const uint8_t *data = weight_data(w) + w->row_bytes * row;
    if (w->format == PACK_F32)
        return ((const float *)(const void *)data)[k];
    uint16_t half = ((const uint16_t *)(const void *)data)[k];
    return w->format == PACK_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

void ref_linear_dense(const struct linear_job *job, const struct linear_share *share)
{
    const struct weight_cpu *w = job->w;
    for (uint32_t row = share->row_begin; row < share->row_end; row++) {
        const float *x = job->act->x + (size_t)row * job->act->x_stride;
        for (uint32_t n = share->n_begin; n < share->n_end; n++) {
            float parts[N_SEGMENTS] = {0};
            for (uint32_t p = 0; p < w->n_parts; p++) {
                float lanes[LANES] = {0};
                uint32_t begin = w->part_bounds[p];
                for (uint32_t k = begin; k < w->part_bounds[p + 1]; k++) {
                    float *lane = &lanes[(k - begin) % LANES];
                    *lane = fmaf(dense_at(w, n, k), x[k], *lane);
                }
                parts[p] = ref_sum_lanes(lanes);
            }
            job->y[row * job->y_stride + n] = tree_sum(parts, w->part_bounds, w->n_parts);
        }
    }
}
