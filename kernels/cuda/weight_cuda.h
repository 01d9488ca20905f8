/* weight_cuda.h: dense weights of the CUDA backend. Packed in host memory (shared between the
 * replicas of a version), row-major [n_rows][k_local] as the checkpoint has them, vectors as f32;
 * weight_upload makes the device's copy. Private to kernels/cuda. */
#pragma once

#include "kernels/weight.h"
#include "kernels/weight_header.h"

struct device;

struct weight_cuda {
    struct weight base;
    uint32_t n_parts;                     /* segments of k_local: 1, or those of a LINEAR_ROW */
    uint32_t part_bounds[N_SEGMENTS + 1]; /* from 0 to k_local */
    uint64_t row_bytes;
    uint64_t n_bytes;   /* of the data */
    const void *device; /* the device's copy; NULL in packed memory */
};

static inline const struct weight_cuda *weight_cuda(const struct weight *w)
{
    return (const struct weight_cuda *)w;
}

size_t weight_bytes_cuda(const struct weight_desc *desc, struct error *err);
int weight_init_cuda(const struct weight_desc *desc, void *memory, struct error *err);
int weight_pack_rows_cuda(struct weight *weight, uint32_t row_begin, uint32_t n_rows,
                          const void *raw, struct error *err);
int weight_upload_cuda(struct device *device, const struct weight *packed,
                       struct weight **out_weight, struct error *err);
void weight_release_cuda(struct device *device, struct weight *weight);
