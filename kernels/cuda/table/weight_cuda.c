#include "kernels/cuda/weight_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/index.h"
#include "kernels/cuda/linear_quant/weight_quant_cuda.h"
#include "kernels/ops.h"

enum { ALIGN = 256, CHUNK = 256 };

static bool is_dense(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

static bool is_linear(const struct weight_cuda *w)
{
    return w->base.act_kind != 0;
}

static bool has_scales(const struct weight_cuda *w)
{
    return is_linear(w) && (w->form == DENSE_INT8 || w->form == DENSE_F8);
}

/* Fills the header, including all sizes. */
static int lay_out(const struct weight_desc *desc, struct weight_cuda *w, struct error *err)
{
    bool is_row = desc->role == WEIGHT_LINEAR_ROW, is_vector = desc->role == WEIGHT_VECTOR;
    bool is_table = desc->role == WEIGHT_EMBEDDING;
    if (is_table && dtype_row_bytes(desc->source, desc->k_total) == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "weight: rows of %u elements of %s",
                         desc->k_total, dtype_name(desc->source));
    if (!is_dense(desc->source) && !is_table)
        return error_set(err, STATUS_UNIMPLEMENTED, "weight: type %s is not supported on CUDA",
                         dtype_name(desc->source));
    *w = (struct weight_cuda){
        .base = {.magic = WEIGHT_MAGIC,
                 .role = desc->role,
                 .source = desc->source,
                 .act_kind = is_vector || is_table ? 0 : ACT_F32,
                 .n_partial_planes = is_vector || is_table ? 0 : 1,
                 .n_rows = desc->n_rows,
                 .k_total = desc->k_total,
                 .k_begin = is_row ? segments_begin(&desc->k_segments) : 0,
                 .k_local = is_row ? segments_len(&desc->k_segments) : desc->k_total},
        .n_parts = 1,
    };
    w->part_bounds[1] = w->base.k_local;
    if (is_row) {
        const struct segments *seg = &desc->k_segments;
        w->n_parts = seg->count;
        for (uint32_t s = 0; s <= seg->count; s++)
            w->part_bounds[s] = seg->bounds[seg->first + s] - segments_begin(seg);
    }
    int rc = 0;
    if (is_vector)
        w->row_bytes = w->base.k_local * sizeof(float);
    else if (is_table)
        w->row_bytes = dtype_row_bytes(desc->source, desc->k_total);
    else
        rc = weight_dense_lay_out(desc, w, err);
    if (rc != 0)
        return rc;
    if (__builtin_mul_overflow(w->row_bytes, (uint64_t)desc->n_rows, &w->n_bytes) ||
        w->n_bytes > SIZE_MAX / 2)
        return error_set(err, STATUS_INVALID_ARGUMENT, "weight: %u x %u elements are too many",
                         desc->n_rows, desc->k_total);
    if (has_scales(w)) {
        w->scales_at = cuda_round_up(w->n_bytes, ALIGN);
        w->n_bytes = w->scales_at + desc->n_rows * sizeof(float);
    }
    return 0;
}

size_t weight_device_bytes_cuda(const struct weight_desc *desc, struct error *err)
{
    struct weight_cuda w = {0};
    if (weight_desc_is_quant(desc))
        return weight_device_bytes_quant(desc, err);
    return lay_out(desc, &w, err) == 0 ? cuda_round_up(w.n_bytes, ALIGN) : 0;
}

/* Rows, then their scales. */
static size_t slice_bytes(const struct weight_cuda *w, uint32_t n_rows)
{
    return (w->row_bytes + (has_scales(w) ? sizeof(float) : 0)) * n_rows;
}

size_t weight_slice_bytes_cuda(const struct weight_desc *desc, uint32_t n_rows)
{
    struct weight_cuda w = {0};
    struct error ignored;
    if (weight_desc_is_quant(desc))
        return weight_slice_bytes_quant(desc, n_rows);
    return lay_out(desc, &w, &ignored) == 0 ? slice_bytes(&w, n_rows) : 0;
}

static bool row_is_finite(enum dtype type, const uint8_t *raw, uint32_t n)
{
    float values[CHUNK];
    uint32_t bytes = dtype_block_bytes(type);
    for (uint32_t done = 0; done < n; done += CHUNK) {
        uint32_t take = n - done < CHUNK ? n - done : CHUNK;
        dtype_to_f32(type, raw + (size_t)done * bytes, take, values);
        for (uint32_t i = 0; i < take; i++)
            if (!isfinite(values[i]))
                return false;
    }
    return true;
}

int weight_pack_slice_cuda(const struct weight_desc *desc, uint32_t row_begin, uint32_t n_rows,
                           const void *raw, void *slice,
                           struct weight_copy copies[WEIGHT_MAX_COPIES], uint32_t *out_n_copies,
                           struct error *err)
{
    struct weight_cuda w;
    if (weight_desc_is_quant(desc))
        return weight_pack_slice_quant(desc, row_begin, n_rows, raw, slice, copies, out_n_copies,
                                       err);
    int rc = lay_out(desc, &w, err);
    if (rc != 0)
        return rc;
    size_t raw_bytes = dtype_row_bytes(desc->source, desc->k_total);
    float *scales = (float *)(void *)((uint8_t *)slice + w.row_bytes * n_rows);
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint8_t *from = (const uint8_t *)raw + raw_bytes * r;
        uint8_t *to = (uint8_t *)slice + w.row_bytes * r;
        if (desc->role != WEIGHT_EMBEDDING && !row_is_finite(desc->source, from, desc->k_total))
            return error_set(err, STATUS_FAILED_PRECONDITION,
                             "weight: row %u (%s) holds a value that is not finite", row_begin + r,
                             dtype_name(desc->source));
        if (desc->role == WEIGHT_VECTOR)
            dtype_to_f32(desc->source, from, w.base.k_local, (float *)(void *)to);
        else if (is_linear(&w))
            weight_dense_pack_row(&w, from, to, has_scales(&w) ? &scales[r] : NULL);
        else
            memcpy(to, from, w.row_bytes);
    }
    copies[0] = (struct weight_copy){0, w.row_bytes * row_begin, w.row_bytes * n_rows};
    copies[1] = (struct weight_copy){w.row_bytes * n_rows, w.scales_at + row_begin * sizeof(float),
                                     n_rows * sizeof(float)};
    *out_n_copies = has_scales(&w) ? 2 : 1;
    return 0;
}

int weight_bind_cuda(const struct weight_desc *desc, void *data, struct weight **out_weight,
                     struct error *err)
{
    if (weight_desc_is_quant(desc))
        return weight_bind_quant(desc, data, out_weight, err);
    struct weight_cuda *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a weight's header");
    int rc = lay_out(desc, w, err);
    if (rc != 0) {
        free(w);
        return rc;
    }
    w->data = data;
    if (has_scales(w))
        w->scales = (const float *)(const void *)((const uint8_t *)data + w->scales_at);
    if (desc->role == WEIGHT_VECTOR) /* weight_vector() then returns the device address */
        w->base.vector_offset = (int64_t)((intptr_t)data - (intptr_t)w);
    *out_weight = &w->base;
    return 0;
}

void weight_unbind_cuda(struct weight *weight)
{
    free(weight);
}
