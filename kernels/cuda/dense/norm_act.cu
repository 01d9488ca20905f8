/* A norm whose result is the activations of linears: rows of f16 or bf16 for dense weights. Or,
 * with a scale per row, of E4M3 for f8 weights and of f16 for widened weights. The bits are those
 * of norm.cu, and then act_halves, act_f8 or act_f16. The f32 rows are not written. Bytes: 6·m·n +
 * 4·n, with E4M3 5·m·n + 4·n.
 *
 *    ptxas: norm_act.cu norm_(halves|scaled) registers 72 shared 4096
 */
#include "kernels/cuda/dense/act_scaled.h"
#include "kernels/cuda/dense_job.h"
#include "kernels/cuda/norm_row.h"

enum { MAX_BLOCKS = 65535 };

enum {
    BATCH = 2,       /* fours that a thread loads before it uses the first */
    BLOCKS_OF_SM = 7 /* others run while one adds a row's squares */
};

/* The operands of four columns that come from device memory. */
struct norm_operands {
    float4 w, bias;
};

template <enum dense_form FORM>
CUDA_DEVICE uint32_t norm_half(const struct norm_rows &job, float x, float w, float bias,
                               float mean, float scale, bool exists)
{
    float normed = norm_scaled(x, mean, scale, w);
    return exists ? act_half(job.bias ? normed + bias : normed, FORM) : 0;
}

/* Stores the rows' activations, with zeros after the last column. */
template <enum dense_form FORM>
CUDA_DEVICE void norm_put_halves(const struct block *b, const float *stage,
                                 const struct norm_rows &job, uint16_t *dst, uint32_t row,
                                 uint32_t n_rows, const float *means, const float *scales)
{
    bool whole = job.n <= NORM_CHUNK;
    size_t stride = dense_act_stride(job.n), from_stride = whole ? norm_pitch(job.n) : job.x_stride;
    const float *from = whole ? stage : job.x + cuda_row(row, job.x_stride);
    uint32_t fours = norm_n_fours(1, stride), n_items = norm_n_fours(n_rows, stride);
    for (uint32_t i = b->tid; i < n_items; i = norm_batch_item(i, BATCH, b->n_threads)) {
        struct norm_operands four[BATCH];
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            uint32_t item = norm_batch_item(i, j, b->n_threads);
            struct norm_place at = norm_place_in(item, fours, n_rows);
            uint32_t n = item < n_items ? four_below(at.column, job.n) : 0;
            four[j].w = four_load(job.w + at.column, n);
            four[j].bias = four_load(job.bias + at.column, job.bias ? n : 0);
        }
#pragma unroll
        for (uint32_t j = 0; j < BATCH; j++) {
            uint32_t item = norm_batch_item(i, j, b->n_threads);
            struct norm_place at = norm_place_in(item, fours, n_rows);
            if (item >= n_items)
                continue;
            uint32_t n = four_below(at.column, job.n);
            float4 w = four[j].w, bias = four[j].bias;
            float4 x = four_load(from + cuda_element(at.row, from_stride, at.column), n);
            float mean = means[at.row], scale = scales[at.row];
            uint32_t h[FOUR] = {norm_half<FORM>(job, x.x, w.x, bias.x, mean, scale, n > 0),
                                norm_half<FORM>(job, x.y, w.y, bias.y, mean, scale, n > 1),
                                norm_half<FORM>(job, x.z, w.z, bias.z, mean, scale, n > 2),
                                norm_half<FORM>(job, x.w, w.w, bias.w, mean, scale, n > 3)};
            uint2 pairs = {fragment_pair(h[0], h[1]), fragment_pair(h[2], h[3])};
            *(uint2 *)(dst + cuda_element(row + at.row, stride, at.column)) = pairs;
        }
    }
}

template <enum dense_form FORM>
static __global__ void __launch_bounds__(CUDA_ROW_THREADS, BLOCKS_OF_SM)
    norm_halves(struct norm_rows job, uint16_t *dst)
{
    CUDA_SHARED(shared_bytes);
    __shared__ struct block_shared shared;
    cuda_op_begin();
    struct block b = {&shared, threadIdx.x, blockDim.x, nullptr, nullptr};
    float *stage = (float *)shared_bytes, *means = shared.floats, *scales = means + NORM_MAX_ROWS;
    uint32_t rows = norm_block_rows(job.n);
    for (uint32_t row = norm_block_first(blockIdx.x, rows); row < job.n_rows;
         row += norm_block_first(gridDim.x, rows)) {
        uint32_t n_rows = norm_rows_left(job.n_rows, row, rows);
        norm_stats(&b, stage, &job, row, n_rows, means, scales);
        norm_put_halves<FORM>(&b, stage, job, dst, row, n_rows, means, scales);
        block_sync(&b); /* afterwards shared memory may be overwritten */
    }
}

/* Returns four normed columns of a row with known mean and scale; zeros from column n on. */
CUDA_DEVICE float4 norm_four_of(const struct norm_rows &job, const float *from, uint32_t column,
                                float mean, float scale)
{
    uint32_t n = four_below(column, job.n);
    float4 x = four_load(from + column, n), w = four_load(job.w + column, n);
    float4 y = {norm_scaled(x.x, mean, scale, w.x), norm_scaled(x.y, mean, scale, w.y),
                norm_scaled(x.z, mean, scale, w.z), norm_scaled(x.w, mean, scale, w.w)};
    if (job.bias)
        y = four_sum(y, four_load(job.bias + column, n));
    float4 below = {n > 0 ? y.x : 0.0f, n > 1 ? y.y : 0.0f, n > 2 ? y.z : 0.0f, n > 3 ? y.w : 0.0f};
    return below;
}

/* A block per row, which is normed twice: for its largest magnitude, and for its codes. */
template <enum dense_form FORM>
static __global__ void __launch_bounds__(CUDA_ROW_THREADS, BLOCKS_OF_SM)
    norm_scaled_rows(struct norm_rows job, void *dst, float *scale_of)
{
    CUDA_SHARED(shared_bytes);
    __shared__ struct block_shared shared;
    cuda_op_begin();
    struct block b = {&shared, threadIdx.x, blockDim.x, nullptr, nullptr};
    float *stage = (float *)shared_bytes, *means = shared.floats, *scales = means + NORM_MAX_ROWS;
    size_t stride = dense_act_stride(job.n);
    uint32_t fours = norm_n_fours(1, stride);
    for (uint32_t row = blockIdx.x; row < job.n_rows; row += gridDim.x) {
        norm_stats(&b, stage, &job, row, 1, means, scales);
        const float *from = job.n <= NORM_CHUNK ? stage : job.x + cuda_row(row, job.x_stride);
        float mean = means[0], scale = scales[0], largest = 0.0f;
        block_sync(&b); /* block_max() overwrites them */
        for (uint32_t i = b.tid; i < fours; i = norm_batch_item(i, 1, b.n_threads))
            largest = four_largest(
                largest, norm_four_of(job, from, norm_place_in(i, fours, 1).column, mean, scale));
        struct act_top top = act_top_of<FORM>(block_max(&b, largest));
        for (uint32_t i = b.tid; i < fours; i = norm_batch_item(i, 1, b.n_threads)) {
            uint32_t column = norm_place_in(i, fours, 1).column;
            float4 y = norm_four_of(job, from, column, mean, scale);
            act_put_scaled<FORM>(dst, cuda_element(row, stride, column), y, top);
        }
        if (b.tid == 0)
            scale_of[row] = act_top_unit<FORM>(top);
        block_sync(&b); /* afterwards shared memory may be overwritten */
    }
}

int cuda_launch_norm_scaled(void *stream, void *dst, float *scale, const struct norm_rows *job,
                            enum dense_form form)
{
    uint32_t n_blocks = cuda_n_blocks(job->n_rows, 1, MAX_BLOCKS);
    if (form == DENSE_F8)
        return CUDA_LAUNCH(norm_scaled_rows<DENSE_F8>, n_blocks, CUDA_ROW_THREADS,
                           norm_stage_bytes(job->n), stream, *job, dst, scale);
    return CUDA_LAUNCH(norm_scaled_rows<DENSE_F16>, n_blocks, CUDA_ROW_THREADS,
                       norm_stage_bytes(job->n), stream, *job, dst, scale);
}

int cuda_launch_norm_half(void *stream, uint16_t *dst, const struct norm_rows *job,
                          enum dense_form form)
{
    uint32_t n_blocks = cuda_n_blocks(job->n_rows, norm_block_rows(job->n), MAX_BLOCKS);
    if (form == DENSE_F16)
        return CUDA_LAUNCH(norm_halves<DENSE_F16>, n_blocks, CUDA_ROW_THREADS,
                           norm_stage_bytes(job->n), stream, *job, dst);
    return CUDA_LAUNCH(norm_halves<DENSE_BF16>, n_blocks, CUDA_ROW_THREADS,
                       norm_stage_bytes(job->n), stream, *job, dst);
}
