#include "kernels/cuda/launch.h"
#include "kernels/cuda/sample/sample_pass.h"

/* Grid: parts of a row, rows. */
static __global__ void __launch_bounds__(SAMPLE_THREADS, 2)
    sample_pass(const float *logits, size_t row_stride, uint32_t vocab,
                const struct sample_params *params, struct sample_state *states,
                unsigned char *scratch, struct sample_result *results)
{
    __shared__ struct sample_shared shared;
    cuda_op_begin();
    uint32_t row = blockIdx.y;
    struct sample_scratch at = sample_scratch_of(vocab);
    const float *own = logits + cuda_row(row, row_stride);
    unsigned char *memory = scratch + cuda_row(row, at.n_bytes);
    const float *x =
        sample_is_adjusted(params + row) ? (const float *)(const void *)(memory + at.x) : own;
    struct sample_row r = {{nullptr, threadIdx.x, blockDim.x, nullptr, nullptr},
                           &shared,
                           params + row,
                           states + row,
                           results + row,
                           own,
                           x,
                           memory,
                           at,
                           vocab,
                           blockIdx.x,
                           gridDim.x};
    sample_run(&r);
}

/* A launch for rows that sample_is_plain(). All have the same params. */
static __global__ void __launch_bounds__(SAMPLE_THREADS, 2)
    sample_plain(const __grid_constant__ struct sample_params params, const float *logits,
                 size_t row_stride, uint32_t vocab, uint32_t *tickets, unsigned char *scratch,
                 struct sample_result *results)
{
    __shared__ struct sample_shared shared;
    __shared__ struct sample_state state;
    cuda_op_begin();
    uint32_t row = blockIdx.y;
    struct sample_scratch at = sample_scratch_of(vocab);
    const float *own = logits + cuda_row(row, row_stride);
    if (threadIdx.x == 0)
        state = {};
    __syncthreads();
    struct sample_row r = {{nullptr, threadIdx.x, blockDim.x, nullptr, nullptr},
                           &shared,
                           &params,
                           &state,
                           results + row,
                           own,
                           own,
                           scratch + cuda_row(row, at.n_bytes),
                           at,
                           vocab,
                           blockIdx.x,
                           gridDim.x};
    sample_run_plain(&r, tickets + row);
}

int cuda_launch_sample_plain(void *stream, const float *logits, size_t row_stride, uint32_t n_rows,
                             uint32_t vocab, uint32_t n_parts, const struct sample_params *params,
                             uint32_t *tickets, unsigned char *scratch,
                             struct sample_result *results)
{
    dim3 grid(n_parts, n_rows);
    return CUDA_LAUNCH(sample_plain, grid, SAMPLE_THREADS, 0, stream, *params, logits, row_stride,
                       vocab, tickets, scratch, results);
}

int cuda_launch_sample(void *stream, const float *logits, size_t row_stride, uint32_t n_rows,
                       uint32_t vocab, uint32_t n_parts, const struct sample_params *params,
                       struct sample_state *states, unsigned char *scratch,
                       struct sample_result *results)
{
    dim3 grid(n_parts, n_rows);
    return CUDA_LAUNCH(sample_pass, grid, SAMPLE_THREADS, 0, stream, logits, row_stride, vocab,
                       params, states, scratch, results);
}
