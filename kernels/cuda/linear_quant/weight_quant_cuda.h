/* weight_quant_cuda.h: quantized linears of the CUDA backend: the integers of the CPU's packing
 * (kernels/cpu/weight_cpu.h) in the order of quant_index.h, then a unit (f32) per row. Private to
 * kernels/cuda. */
#pragma once

#include "kernels/cuda/quant_index.h"
#include "kernels/weight.h"
#include "kernels/weight_header.h"

struct weight_quant {
    struct weight base; /* act_kind ACT_INT8 */
    struct quant_layout layout;
    uint64_t units_at, n_bytes; /* of the data */
    const uint8_t *data;        /* the device's */
};

static inline const struct weight_quant *weight_quant(const struct weight *w)
{
    return (const struct weight_quant *)w;
}

static inline const float *weight_quant_units(const struct weight_quant *w)
{
    return (const float *)(const void *)(w->data + w->units_at);
}

/* Whether these functions, and not those of dense weights, are for a weight. */
bool weight_desc_is_quant(const struct weight_desc *desc);
bool weight_is_quant(const struct weight *w);

/* As the slots of the op table. */
size_t weight_device_bytes_quant(const struct weight_desc *desc, struct error *err);
size_t weight_slice_bytes_quant(const struct weight_desc *desc, uint32_t n_rows);
int weight_pack_slice_quant(const struct weight_desc *desc, uint32_t row_begin, uint32_t n_rows,
                            const void *raw, void *slice,
                            struct weight_copy copies[WEIGHT_MAX_COPIES], uint32_t *out_n_copies,
                            struct error *err);
int weight_bind_quant(const struct weight_desc *desc, void *data, struct weight **out_weight,
                      struct error *err);
