/* linear_quant_put.h: turns a sum into a result, once per result. The float expressions are those
 * of kernels/cpu/ref/ref_linear.c and linear_cpu.c. Included by kernels alone. */
#pragma once

#include "kernels/cuda/linear_quant/linear_quant_args.h"
#include "kernels/cuda/linear_quant/quant_place.h"
#include "kernels/cuda/thread.h"

/* Returns the part of a panel; *out_local is the panel's index in the part. */
CUDA_DEVICE uint32_t quant_part_of(const struct quant_linear *q, uint32_t panel,
                                   uint32_t *out_local)
{
    if (q->put == QUANT_PUT_GATED) {
        *out_local = quant_gated_panel(panel);
        return quant_gated_part(panel);
    }
    uint32_t part = 0;
    for (uint32_t p = 1; p < QUANT_MAX_PARTS; p++)
        part = p < q->n_parts && panel >= q->parts[p].first_panel ? p : part;
    *out_local = panel - q->parts[part].first_panel;
    return part;
}

/* Returns a part by number without indexing the parameters, so that its fields stay uniform
 * operands. */
CUDA_DEVICE struct quant_part quant_part_at(const struct quant_linear *q, uint32_t part)
{
    return part == 0 ? q->parts[0] : part == 1 ? q->parts[1] : q->parts[2];
}

CUDA_DEVICE float quant_scaled(const struct quant_part *part, uint32_t n, float scale, int64_t sum)
{
    float y = quant_scaled_sum(sum, part->units[n], scale);
    return part->bias ? y + part->bias[n] : y;
}

/* Returns the CPU's NaN for a scale of NaN, because NaN bits may differ on the GPU. */
CUDA_DEVICE float quant_or_nan(float y, float scale)
{
    return scale != scale ? NAN : y;
}

/* Stores a whole sum of one part. */
CUDA_DEVICE void quant_put(const struct quant_linear *q, uint32_t panel, uint32_t row,
                           uint32_t token, int64_t sum)
{
    uint32_t local, i_part = quant_part_of(q, panel, &local), n = quant_row_of(local, row);
    struct quant_part part = quant_part_at(q, i_part);
    if (panel >= q->n_panels || n >= part.n_rows || token >= q->m)
        return;
    if (q->put == QUANT_PUT_PARTIAL) {
        q->low[cuda_element(token, q->low_stride, n)] =
            q->high ? quant_low_plane(sum) : (int32_t)sum;
        if (q->high)
            q->high[cuda_element(token, q->high_stride, n)] = quant_high_plane(sum);
        return;
    }
    float scale = q->act.scale[token];
    float y = quant_or_nan(quant_scaled(&part, n, scale, sum), scale);
    part.y[cuda_element(token, part.y_stride, n)] = y;
    if (part.sum) {
        float *at = part.sum + cuda_element(token, part.sum_stride, n);
        *at = quant_or_nan(*at + y, scale);
    }
}

/* Stores a gated result from the whole sums of a row of the gate (panel, even) and of the up part
 * (panel + 1). */
CUDA_DEVICE void quant_put_gated(const struct quant_linear *q, uint32_t panel, uint32_t row,
                                 uint32_t token, int64_t gate_sum, int64_t up_sum)
{
    uint32_t n = quant_row_of(quant_gated_panel(panel), row);
    const struct quant_part *gate = &q->parts[0], *up = &q->parts[1];
    if (panel >= q->n_panels || n >= gate->n_rows || token >= q->m)
        return;
    float scale = q->act.scale[token], y1 = quant_scaled(up, n, scale, up_sum);
    float y0 = maths_gated(quant_scaled(gate, n, scale, gate_sum), y1, q->kind);
    up->y[cuda_element(token, up->y_stride, n)] = quant_or_nan(y1, scale);
    gate->y[cuda_element(token, gate->y_stride, n)] = quant_or_nan(y0, scale);
}
