/* kv_index.h: the GPU's layout of K and V of a layer in the paged cache: vectors in
 * [n_blocks][n_kv_heads][block_size], of head_dim elements in K and of v_dim in V. The argument
 * `dim` of a function is one of the two. Two types store codes of a byte with a scale per vector.
 * int8: a code in −127…127, stored as code + 128. f8: x / scale as E4M3. Each vector of codes is
 * padded to whole dwords. After the codes of a block and head come their scales, [block_size] f32.
 * Plain functions of numbers, for the GPU and the CPU. */
#pragma once

#include <stdbool.h>

#include "kernels/cuda/index.h"
#include "kernels/dtype.h"

enum { CUDA_KV_CODE_BIAS = 128, CUDA_KV_CODE_MAX = 127, CUDA_KV_F8_MAX = 448 };

/* struct kv_layer (ops.h) for kernels: pointers are device addresses. */
struct kv_cuda {
    void *k, *v;
    enum dtype dtype;
    uint32_t n_blocks, block_size, n_kv_heads, head_dim, v_dim;
};

CUDA_HD bool kv_cuda_is_coded(const struct kv_cuda *kv)
{
    return kv->dtype == DTYPE_I8 || kv->dtype == DTYPE_F8_E4M3;
}

/* Returns the items of a write of n_rows: a row and KV head each; heads of a row are adjacent. */
CUDA_HD uint32_t kv_cuda_n_items(const struct kv_cuda *kv, uint32_t n_rows)
{
    return n_rows * kv->n_kv_heads;
}

CUDA_HD uint32_t kv_cuda_item_row(const struct kv_cuda *kv, uint32_t i)
{
    return i / kv->n_kv_heads;
}

CUDA_HD uint32_t kv_cuda_item_head(const struct kv_cuda *kv, uint32_t i)
{
    return i % kv->n_kv_heads;
}

/* Returns the first element of a KV head in a row of K or V. */
CUDA_HD size_t kv_cuda_column(uint32_t head, uint32_t dim)
{
    return (size_t)head * dim;
}

/* Returns true if the pool has slot number `slot`. */
CUDA_HD bool kv_cuda_has_slot(const struct kv_cuda *kv, uint32_t slot)
{
    return slot / kv->block_size < kv->n_blocks;
}

/* Returns the bytes of a vector's elements: F32, F16, BF16, or codes. */
CUDA_HD size_t kv_cuda_vector_bytes(const struct kv_cuda *kv, uint32_t dim)
{
    if (kv_cuda_is_coded(kv))
        return cuda_round_up(dim, 4);
    return (size_t)dim * (kv->dtype == DTYPE_F32 ? 4 : 2);
}

/* Returns the byte offset of a block and head. */
CUDA_HD size_t kv_cuda_page_at(const struct kv_cuda *kv, uint32_t dim, uint32_t block,
                               uint32_t head)
{
    size_t vector = kv_cuda_vector_bytes(kv, dim) + (kv_cuda_is_coded(kv) ? sizeof(float) : 0);
    return ((size_t)block * kv->n_kv_heads + head) * kv->block_size * vector;
}

/* Returns the byte offset of the vector in slot number `slot` (block · block_size + offset) for a
 * head. */
CUDA_HD size_t kv_cuda_vector_at(const struct kv_cuda *kv, uint32_t dim, uint32_t slot,
                                 uint32_t head)
{
    return kv_cuda_page_at(kv, dim, slot / kv->block_size, head) +
           slot % kv->block_size * kv_cuda_vector_bytes(kv, dim);
}

/* The same for its scale; coded types. */
CUDA_HD size_t kv_cuda_scale_at(const struct kv_cuda *kv, uint32_t dim, uint32_t slot,
                                uint32_t head)
{
    return kv_cuda_page_at(kv, dim, slot / kv->block_size, head) +
           kv->block_size * kv_cuda_vector_bytes(kv, dim) + slot % kv->block_size * sizeof(float);
}
