/* weight_cuda.h: weights of the CUDA backend (op table slots weight_device_bytes to weight_unbind).
 * On the device, by format:
 *   dense linears: rows of k_local in the checkpoint's type or as stored (int8, E4M3), each padded
 *     with zeros to 64 bytes; for stored types then f32 scales [n_rows]
 *   embeddings: rows in the checkpoint's type, any type
 *   vectors: f32 [k_local]
 *
 * A slice has the same form. Private to kernels/cuda. */
#pragma once

#include "kernels/cuda/dense_index.h"
#include "kernels/weight.h"
#include "kernels/weight_header.h"

struct weight_cuda {
    struct weight base;
    uint32_t n_parts; /* segments of k_local: 1, or those of a LINEAR_ROW's split */
    uint32_t part_bounds[N_SEGMENTS + 1]; /* from 0 to k_local */
    uint64_t row_bytes;
    uint64_t n_bytes;     /* size of the data */
    const void *data;     /* device address */
    enum dense_form form; /* for a dense linear */
    uint64_t scales_at;   /* offset of its scales in the data, 0: none */
    const float *scales;  /* device address of the scales; NULL: none */
};

static inline const struct weight_cuda *weight_cuda(const struct weight *w)
{
    return (const struct weight_cuda *)w;
}

/* In weight_dense_cuda.c: sets form, row_bytes and scales_at of a dense linear's header with known
 * shape. UNIMPLEMENTED if no device of this machine can multiply the form. */
int weight_dense_lay_out(const struct weight_desc *desc, struct weight_cuda *w, struct error *err);
/* Packs one whole raw row (k_total elements) into its place and, for a stored form, sets its
 * scale. */
void weight_dense_pack_row(const struct weight_cuda *w, const void *raw, void *row, float *scale);

size_t weight_device_bytes_cuda(const struct weight_desc *desc, struct error *err);
size_t weight_slice_bytes_cuda(const struct weight_desc *desc, uint32_t n_rows);
int weight_pack_slice_cuda(const struct weight_desc *desc, uint32_t row_begin, uint32_t n_rows,
                           const void *raw, void *slice,
                           struct weight_copy copies[WEIGHT_MAX_COPIES], uint32_t *out_n_copies,
                           struct error *err);
int weight_bind_cuda(const struct weight_desc *desc, void *data, struct weight **out_weight,
                     struct error *err);
void weight_unbind_cuda(struct weight *weight);
