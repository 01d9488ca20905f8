/* weight_quant_cuda.h: quantized linears of the CUDA backend. The integers are those of the CPU's
 * packing (kernels/cpu/weight_cpu.h) in the order of quant_index.h. Then comes a unit (f32) per
 * row. Private to kernels/cuda. */
#pragma once

#include "kernels/cuda/quant_index.h"
#include "kernels/weight.h"
#include "kernels/weight_header.h"

struct weight_quant {
    struct weight base; /* act_kind ACT_INT8 */
    struct quant_layout layout;
    uint32_t n_parts; /* segments of k_local: 1, or those of a LINEAR_ROW's split */
    uint32_t part_bounds[N_SEGMENTS + 1]; /* from 0 to k_local */
    uint64_t units_at, n_bytes;           /* offset of the units in the data; size of the data */
    const uint8_t *data;                  /* device address */
};

static inline const struct weight_quant *weight_quant(const struct weight *w)
{
    return (const struct weight_quant *)w;
}

static inline const float *weight_quant_units(const struct weight_quant *w)
{
    return (const float *)(const void *)(w->data + w->units_at);
}

/* Return true if these functions, not those of dense weights, handle a weight. */
bool weight_desc_is_quant(const struct weight_desc *desc);
bool weight_is_quant(const struct weight *w);

/* Slots of the op table, for quantized weights. */
size_t weight_device_bytes_quant(const struct weight_desc *desc, struct error *err);
size_t weight_slice_bytes_quant(const struct weight_desc *desc, uint32_t n_rows);
int weight_pack_slice_quant(const struct weight_desc *desc, uint32_t row_begin, uint32_t n_rows,
                            const void *raw, void *slice,
                            struct weight_copy copies[WEIGHT_MAX_COPIES], uint32_t *out_n_copies,
                            struct error *err);
int weight_bind_quant(const struct weight_desc *desc, void *data, struct weight **out_weight,
                      struct error *err);
