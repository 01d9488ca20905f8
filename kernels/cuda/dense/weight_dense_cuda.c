/* Rows of dense linears: in the checkpoint's type, or stored as int8 or E4M3 with a scale. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/host/device_cuda.h"
#include "kernels/cuda/linear_cuda.h"
#include "kernels/cuda/weight_cuda.h"
#include "kernels/ops.h"

enum { CHUNK = 256, F8_CAPABILITY = 89 };

#define INT8_MAX_CODE 127.0f
#define F8_MAX_VALUE  448.0f

int weight_dense_lay_out(const struct weight_desc *desc, struct weight_cuda *w, struct error *err)
{
    int capability = desc->store == WEIGHT_STORE_F8 ? device_capability_cuda() : F8_CAPABILITY;
    if (capability < F8_CAPABILITY)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "weight: f8 needs compute capability 8.9; the best "
                         "device of this machine has %d.%d",
                         capability / 10, capability % 10);
    w->form = desc->store == WEIGHT_STORE_INT8 ? DENSE_INT8
              : desc->store == WEIGHT_STORE_F8 ? DENSE_F8
              : desc->source == DTYPE_F32      ? DENSE_F32
              : desc->source == DTYPE_F16      ? DENSE_F16
                                               : DENSE_BF16;
    w->base.act_kind = linear_act_kind(w->form);
    w->row_bytes = dense_row_bytes(w->form, w->base.k_local);
    return 0;
}

static float largest_of(enum dtype type, const uint8_t *raw, uint32_t n)
{
    float values[CHUNK], largest = 0.0f;
    uint32_t bytes = dtype_block_bytes(type);
    for (uint32_t done = 0; done < n; done += CHUNK) {
        uint32_t take = n - done < CHUNK ? n - done : CHUNK;
        dtype_to_f32(type, raw + (size_t)done * bytes, take, values);
        for (uint32_t i = 0; i < take; i++)
            largest = fmaxf(largest, fabsf(values[i]));
    }
    return largest;
}

/* The scale is that of the whole row, so that all ranks use the same scale. */
static void store_row(const struct weight_cuda *w, const uint8_t *raw, uint8_t *row, float *scale)
{
    enum dtype type = (enum dtype)w->base.source;
    uint32_t bytes = dtype_block_bytes(type), n = w->base.k_local;
    bool is_f8 = w->form == DENSE_F8;
    float values[CHUNK], limit = is_f8 ? F8_MAX_VALUE : INT8_MAX_CODE;
    *scale = largest_of(type, raw, w->base.k_total) / limit;
    float unit = *scale > 0.0f ? *scale : 1.0f; /* 1 if the row is all zeros */
    raw += (size_t)w->base.k_begin * bytes;
    for (uint32_t done = 0; done < n; done += CHUNK) {
        uint32_t take = n - done < CHUNK ? n - done : CHUNK;
        dtype_to_f32(type, raw + (size_t)done * bytes, take, values);
        for (uint32_t i = 0; i < take; i++) {
            float code = fminf(fmaxf(values[i] / unit, -limit), limit);
            row[done + i] = is_f8 ? maths_f32_to_f8(code) : (uint8_t)(int8_t)rintf(code);
        }
    }
}

void weight_dense_pack_row(const struct weight_cuda *w, const void *raw, void *row, float *scale)
{
    uint32_t bytes = dtype_block_bytes((enum dtype)w->base.source);
    size_t used = (size_t)w->base.k_local * dense_weight_bytes(w->form);
    if (scale != NULL)
        store_row(w, raw, row, scale);
    else
        memcpy(row, (const uint8_t *)raw + (size_t)w->base.k_begin * bytes, used);
    memset((uint8_t *)row + used, 0, w->row_bytes - used);
}
