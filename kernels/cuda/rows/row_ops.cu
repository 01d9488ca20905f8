#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows/row_ops.h"

enum { MAX_BLOCKS = 65535, KV_THREADS = 128 };

CUDA_DEVICE struct block this_block(struct block_shared *shared)
{
    return {shared, threadIdx.x, blockDim.x, nullptr, nullptr};
}

static __global__ void embed_rows(float *y, size_t y_stride, const uint32_t *ids, uint32_t n_rows,
                                  struct embed_cuda w)
{
    cuda_op_begin();
    struct block b = this_block(nullptr);
    for (uint32_t row = blockIdx.x; row < n_rows; row += gridDim.x) {
        const uint8_t *raw = embed_raw_row(&w, ids[row]);
        if (w.scales && raw)
            embed_codes_row(&b, y + cuda_row(row, y_stride), raw, w.scales[ids[row]], w.is_f8,
                            w.n_cols);
        else
            embed_row(&b, y + cuda_row(row, y_stride), w.type, raw, w.n_cols);
    }
}

static __global__ void add_rows(float *y, size_t y_stride, const float *x, size_t x_stride,
                                uint32_t n_rows, uint32_t n_cols, float factor)
{
    cuda_op_begin();
    struct block b = this_block(nullptr);
    uint32_t begin = row_piece_begin(blockIdx.x), n = row_piece_columns(n_cols, blockIdx.x);
    for (uint32_t row = blockIdx.y; row < n_rows; row += gridDim.y)
        add_row(&b, y + cuda_element(row, y_stride, begin), x + cuda_element(row, x_stride, begin),
                n, factor);
}

static __global__ void scale_rows(float *x, size_t x_stride, const uint32_t *positions,
                                  uint32_t n_rows, uint32_t n_cols, struct scale_cuda p)
{
    cuda_op_begin();
    struct block b = this_block(nullptr);
    uint32_t begin = row_piece_begin(blockIdx.x), n = row_piece_columns(n_cols, blockIdx.x);
    for (uint32_t row = blockIdx.y; row < n_rows; row += gridDim.y)
        scale_row(&b, x + cuda_element(row, x_stride, begin), n, scale_of_row(&p, positions, row),
                  p.softcap);
}

static __global__ void act_mul_rows(float *y, size_t y_stride, const float *gate,
                                    size_t gate_stride, const float *up, size_t up_stride,
                                    uint32_t n_rows, uint32_t n_cols, enum activation kind)
{
    cuda_op_begin();
    struct block b = this_block(nullptr);
    uint32_t begin = row_piece_begin(blockIdx.x), n = row_piece_columns(n_cols, blockIdx.x);
    for (uint32_t row = blockIdx.y; row < n_rows; row += gridDim.y)
        act_mul_row(&b, y + cuda_element(row, y_stride, begin),
                    gate + cuda_element(row, gate_stride, begin),
                    up ? up + cuda_element(row, up_stride, begin) : nullptr, n, kind);
}

static __global__ void rope_rows(float *x, size_t x_stride, uint32_t n_rows, uint32_t n_heads,
                                 const uint32_t *positions, struct rope_cuda p)
{
    __shared__ struct block_shared shared;
    cuda_op_begin();
    struct block b = this_block(&shared);
    for (uint32_t row = blockIdx.x; row < n_rows; row += gridDim.x) {
        struct rope_cuda of_row = rope_of_row(p, row);
        rope_row_cuda(&b, x + cuda_row(row, x_stride), n_heads, positions[row], &of_row);
    }
}

static __global__ void kv_write_rows(struct kv_cuda kv, const float *k, size_t k_stride,
                                     const float *v, size_t v_stride, const uint32_t *slots,
                                     uint32_t n_items)
{
    __shared__ struct block_shared shared;
    cuda_op_begin();
    struct block b = this_block(&shared);
    for (uint32_t i = blockIdx.x; i < n_items; i += gridDim.x) {
        uint32_t row = kv_cuda_item_row(&kv, i), head = kv_cuda_item_head(&kv, i);
        uint32_t slot = slots[row];
        const float *k_row = k + cuda_row(row, k_stride), *v_row = nullptr;
        if (v)
            v_row = v + cuda_element(row, v_stride, kv_cuda_column(head, kv.v_dim));
        if (kv_cuda_has_slot(&kv, slot))
            kv_write_row(&b, &kv, k_row + kv_cuda_column(head, kv.head_dim), v_row, slot, head);
    }
}

static __global__ void rope_kv_rows(float *q, size_t q_stride, uint32_t n_heads,
                                    const uint32_t *positions, struct rope_cuda p,
                                    struct kv_cuda kv, float *k, size_t k_stride, const float *v,
                                    size_t v_stride, const uint32_t *slots, uint32_t n_items)
{
    __shared__ struct block_shared shared;
    cuda_op_begin();
    struct block b = this_block(&shared);
    for (uint32_t i = blockIdx.x; i < n_items; i += gridDim.x) {
        uint32_t row = kv_cuda_item_row(&kv, i);
        struct rope_cuda of_row = rope_of_row(p, row);
        rope_kv_row(&b, &kv, &of_row, q + cuda_row(row, q_stride), n_heads,
                    k + cuda_row(row, k_stride), v + cuda_row(row, v_stride), positions[row],
                    slots[row], kv_cuda_item_head(&kv, i));
    }
}

static __global__ void copy_heads_rows(float *y, size_t y_stride, const float *x, size_t x_stride,
                                       uint32_t n_rows, uint32_t n_cols, uint32_t width,
                                       uint32_t y_head)
{
    cuda_op_begin();
    struct block b = this_block(nullptr);
    for (uint32_t row = blockIdx.x; row < n_rows; row += gridDim.x)
        copy_heads_row(&b, y + cuda_row(row, y_stride), x + cuda_row(row, x_stride), n_cols, width,
                       y_head);
}

static __global__ void gather_rows(float *y, size_t y_stride, const float *x, size_t x_stride,
                                   const uint32_t *index, uint32_t n_rows, uint32_t n_cols)
{
    cuda_op_begin();
    struct block b = this_block(nullptr);
    for (uint32_t row = blockIdx.x; row < n_rows; row += gridDim.x)
        copy_row(&b, y + cuda_row(row, y_stride), x + cuda_row(index[row], x_stride), n_cols);
}

static dim3 pieces(uint32_t n_rows, uint32_t n_cols)
{
    return dim3(row_n_pieces(n_cols), cuda_n_blocks(n_rows, 1, MAX_BLOCKS));
}

#define LAUNCH(kernel, n_items, n_threads, ...)                                                    \
    return CUDA_LAUNCH(kernel, cuda_n_blocks(n_items, 1, MAX_BLOCKS), n_threads, 0, stream,        \
                       __VA_ARGS__)

int cuda_launch_embed(void *stream, float *y, size_t y_stride, const uint32_t *ids, uint32_t n_rows,
                      const struct embed_cuda *w)
{
    LAUNCH(embed_rows, n_rows, BLOCK_MAX_THREADS, y, y_stride, ids, n_rows, *w);
}

int cuda_launch_add(void *stream, float *y, size_t y_stride, const float *x, size_t x_stride,
                    uint32_t n_rows, uint32_t n_cols, float factor)
{
    return CUDA_LAUNCH(add_rows, pieces(n_rows, n_cols), BLOCK_MAX_THREADS, 0, stream, y, y_stride,
                       x, x_stride, n_rows, n_cols, factor);
}

int cuda_launch_scale(void *stream, float *x, size_t x_stride, const uint32_t *positions,
                      uint32_t n_rows, uint32_t n_cols, const struct scale_cuda *p)
{
    return CUDA_LAUNCH(scale_rows, pieces(n_rows, n_cols), BLOCK_MAX_THREADS, 0, stream, x,
                       x_stride, positions, n_rows, n_cols, *p);
}

int cuda_launch_act_mul(void *stream, float *y, size_t y_stride, const float *gate,
                        size_t gate_stride, const float *up, size_t up_stride, uint32_t n_rows,
                        uint32_t n_cols, int kind)
{
    return CUDA_LAUNCH(act_mul_rows, pieces(n_rows, n_cols), BLOCK_MAX_THREADS, 0, stream, y,
                       y_stride, gate, gate_stride, up, up_stride, n_rows, n_cols,
                       (enum activation)kind);
}

int cuda_launch_rope(void *stream, float *x, size_t x_stride, uint32_t n_rows, uint32_t n_heads,
                     const uint32_t *positions, const struct rope_cuda *p)
{
    LAUNCH(rope_rows, n_rows, BLOCK_MAX_THREADS, x, x_stride, n_rows, n_heads, positions, *p);
}

int cuda_launch_kv_write(void *stream, const struct kv_cuda *kv, const float *k, size_t k_stride,
                         const float *v, size_t v_stride, const uint32_t *slots, uint32_t n_rows)
{
    uint32_t n_items = kv_cuda_n_items(kv, n_rows);
    LAUNCH(kv_write_rows, n_items, KV_THREADS, *kv, k, k_stride, v, v_stride, slots, n_items);
}

int cuda_launch_rope_kv(void *stream, float *q, size_t q_stride, uint32_t n_heads,
                        const uint32_t *positions, const struct rope_cuda *p,
                        const struct kv_cuda *kv, float *k, size_t k_stride, const float *v,
                        size_t v_stride, const uint32_t *slots, uint32_t n_rows)
{
    uint32_t n_items = kv_cuda_n_items(kv, n_rows);
    LAUNCH(rope_kv_rows, n_items, KV_THREADS, q, q_stride, n_heads, positions, *p, *kv, k, k_stride,
           v, v_stride, slots, n_items);
}

int cuda_launch_copy_heads(void *stream, float *y, size_t y_stride, const float *x, size_t x_stride,
                           uint32_t n_rows, uint32_t n_heads, uint32_t width, uint32_t y_head)
{
    LAUNCH(copy_heads_rows, n_rows, BLOCK_MAX_THREADS, y, y_stride, x, x_stride, n_rows,
           copy_heads_columns(n_heads, width), width, y_head);
}

int cuda_launch_gather_rows(void *stream, float *y, size_t y_stride, const float *x,
                            size_t x_stride, const uint32_t *index, uint32_t n_rows,
                            uint32_t n_cols)
{
    LAUNCH(gather_rows, n_rows, BLOCK_MAX_THREADS, y, y_stride, x, x_stride, index, n_rows, n_cols);
}
