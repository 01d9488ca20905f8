#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/index.h"
#include "kernels/cuda/launch.h"

enum { THREADS = 256, MAX_BLOCKS = 4096 };

static __device__ uint16_t narrow_bf16(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

static __device__ uint16_t narrow_f16(float x)
{
    float bounded = x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x;
    return __half_as_ushort(__float2half_rn(bounded));
}

template <uint16_t (*narrow)(float)>
static __global__ void narrow_rows(uint16_t *dst, const float *x, size_t x_stride, uint64_t n,
                                   uint32_t n_cols)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
        dst[i] = narrow(x[cuda_strided(i, n_cols, x_stride)]);
}

int cuda_launch_to_bf16(void *stream, uint16_t *dst, const float *x, size_t x_stride,
                        uint32_t n_rows, uint32_t n_cols)
{
    uint64_t n = (uint64_t)n_rows * n_cols;
    narrow_rows<narrow_bf16>
        <<<cuda_n_blocks(n, THREADS, MAX_BLOCKS), THREADS, 0, (cudaStream_t)stream>>>(
            dst, x, x_stride, n, n_cols);
    return (int)cudaGetLastError();
}

int cuda_launch_to_f16(void *stream, uint16_t *dst, const float *x, size_t x_stride,
                       uint32_t n_rows, uint32_t n_cols)
{
    uint64_t n = (uint64_t)n_rows * n_cols;
    narrow_rows<narrow_f16>
        <<<cuda_n_blocks(n, THREADS, MAX_BLOCKS), THREADS, 0, (cudaStream_t)stream>>>(
            dst, x, x_stride, n, n_cols);
    return (int)cudaGetLastError();
}
