#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_row.h"

static __global__ void rms_norm_rows(float *y, size_t y_stride, const float *x, size_t x_stride,
                                     const float *w, uint32_t n_rows, uint32_t n_cols, float eps)
{
    __shared__ struct block_shared shared;
    struct block b = {&shared, threadIdx.x, blockDim.x, nullptr, nullptr};
    for (uint32_t row = blockIdx.x; row < n_rows; row += gridDim.x)
        norm_row(&b, y + row * y_stride, x + row * x_stride, w, n_cols, eps);
}

int cuda_launch_rms_norm(void *stream, float *y, size_t y_stride, const float *x, size_t x_stride,
                         const float *w, uint32_t n_rows, uint32_t n_cols, float eps)
{
    uint32_t blocks = cuda_n_blocks(n_rows, 1, 65535);
    rms_norm_rows<<<blocks, CUDA_ROW_THREADS, 0, (cudaStream_t)stream>>>(y, y_stride, x, x_stride,
                                                                         w, n_rows, n_cols, eps);
    return (int)cudaGetLastError();
}
