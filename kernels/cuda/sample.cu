#include "kernels/cuda/launch.h"
#include "kernels/cuda/sample_row.h"

static __global__ void sample_rows(const float *logits, size_t row_stride, uint32_t vocab,
                                   const struct sample_params *params, float *scratch,
                                   struct sample_result *results)
{
    __shared__ struct block_shared shared;
    uint32_t row = blockIdx.x;
    struct sample_row r = {{&shared, threadIdx.x, blockDim.x, nullptr, nullptr},
                           params + row,
                           logits + row * row_stride,
                           scratch + (size_t)row * vocab,
                           vocab};
    sample_row_run(&r, results + row);
}

int cuda_launch_sample(void *stream, const float *logits, size_t row_stride, uint32_t n_rows,
                       uint32_t vocab, const struct sample_params *params, float *scratch,
                       struct sample_result *results)
{
    sample_rows<<<n_rows, BLOCK_MAX_THREADS, 0, (cudaStream_t)stream>>>(logits, row_stride, vocab,
                                                                        params, scratch, results);
    return (int)cudaGetLastError();
}
