#include "kernels/cuda/weight_cuda.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/device_cuda.h"
#include "kernels/cuda/index.h"
#include "kernels/ops.h"

enum { ALIGN = 64, CHUNK = 256 };

static const size_t data_offset = (sizeof(struct weight_cuda) + ALIGN - 1) / ALIGN * ALIGN;

static bool is_dense(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16;
}

/* Fills the header, which holds every size. */
static int lay_out(const struct weight_desc *desc, struct weight_cuda *w, struct error *err)
{
    bool is_row = desc->role == WEIGHT_LINEAR_ROW, is_vector = desc->role == WEIGHT_VECTOR;
    if (desc->role == WEIGHT_EMBEDDING)
        return error_set(err, STATUS_UNIMPLEMENTED, "weight: embeddings are not built on CUDA");
    if (!is_dense(desc->source))
        return error_set(err, STATUS_UNIMPLEMENTED, "weight: type %s is not built on CUDA",
                         dtype_name(desc->source));
    *w = (struct weight_cuda){
        .base = {.magic = WEIGHT_MAGIC,
                 .role = desc->role,
                 .source = desc->source,
                 .act_kind = is_vector ? 0 : ACT_F32,
                 .n_partial_planes = is_vector ? 0 : 1,
                 .n_rows = desc->n_rows,
                 .k_total = desc->k_total,
                 .k_begin = is_row ? segments_begin(&desc->k_segments) : 0,
                 .k_local = is_row ? segments_len(&desc->k_segments) : desc->k_total,
                 .vector_offset = is_vector ? (int64_t)data_offset : 0},
        .n_parts = 1,
    };
    w->part_bounds[1] = w->base.k_local;
    if (is_row) {
        const struct segments *seg = &desc->k_segments;
        w->n_parts = seg->count;
        for (uint32_t s = 0; s <= seg->count; s++)
            w->part_bounds[s] = seg->bounds[seg->first + s] - segments_begin(seg);
    }
    w->row_bytes = (uint64_t)w->base.k_local *
                   (is_vector || desc->source == DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
    if (__builtin_mul_overflow(w->row_bytes, (uint64_t)desc->n_rows, &w->n_bytes) ||
        w->n_bytes > SIZE_MAX / 2)
        return error_set(err, STATUS_INVALID_ARGUMENT, "weight: %u x %u elements are too many",
                         desc->n_rows, desc->k_total);
    return 0;
}

size_t weight_bytes_cuda(const struct weight_desc *desc, struct error *err)
{
    struct weight_cuda w = {0};
    return lay_out(desc, &w, err) == 0 ? cuda_round_up(data_offset + w.n_bytes, ALIGN) : 0;
}

int weight_init_cuda(const struct weight_desc *desc, void *memory, struct error *err)
{
    struct weight_cuda w;
    int rc = lay_out(desc, &w, err);
    if (rc == 0)
        memcpy(memory, &w, sizeof(w));
    return rc;
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

int weight_pack_rows_cuda(struct weight *weight, uint32_t row_begin, uint32_t n_rows,
                          const void *raw, struct error *err)
{
    const struct weight_cuda *w = weight_cuda(weight);
    enum dtype source = (enum dtype)weight->source;
    size_t raw_bytes = dtype_row_bytes(source, weight->k_total);
    uint8_t *data = (uint8_t *)weight + data_offset;
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint8_t *from = (const uint8_t *)raw + raw_bytes * r +
                              (size_t)weight->k_begin * dtype_block_bytes(source);
        uint8_t *to = data + w->row_bytes * (row_begin + r);
        if (!row_is_finite(source, from, weight->k_local))
            return error_set(err, STATUS_FAILED_PRECONDITION,
                             "weight: row %u (%s) holds a value that is not finite", row_begin + r,
                             dtype_name(source));
        if (weight->role == WEIGHT_VECTOR)
            dtype_to_f32(source, from, weight->k_local, (float *)(void *)to);
        else
            memcpy(to, from, w->row_bytes);
    }
    return 0;
}

int weight_upload_cuda(struct device *device, const struct weight *packed,
                       struct weight **out_weight, struct error *err)
{
    struct weight_cuda *w = calloc(1, sizeof(*w));
    void *data = NULL;
    if (w == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "cuda:%u: out of memory", device->index);
    *w = *weight_cuda(packed);
    int rc = device->ops->alloc(device, w->n_bytes, &data, err);
    if (rc == 0)
        rc = cuda_check(err, device->index, "weight upload",
                        cudaMemcpy(data, (const uint8_t *)packed + data_offset, w->n_bytes,
                                   cudaMemcpyHostToDevice));
    if (rc != 0) {
        if (data != NULL)
            device->ops->free(device, data, w->n_bytes);
        free(w);
        return rc;
    }
    w->device = data;
    if (w->base.role == WEIGHT_VECTOR) /* weight_vector() gives the device's address */
        w->base.vector_offset = (int64_t)((intptr_t)data - (intptr_t)w);
    *out_weight = &w->base;
    return 0;
}

void weight_release_cuda(struct device *device, struct weight *weight)
{
    if (weight == NULL)
        return;
    struct weight_cuda *w = (struct weight_cuda *)weight;
    device->ops->free(device, (void *)(uintptr_t)w->device, w->n_bytes);
    free(w);
}
