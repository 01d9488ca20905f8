#include "kernels/cuda/index.h"
#include "kernels/cuda/launch.h"

enum { THREADS = 256, MAX_BLOCKS = 4096 };

static __global__ void tree_sum(float *y, size_t y_stride, const float *planes, size_t plane_stride,
                                uint32_t present, uint32_t count, uint64_t n, uint32_t n_cols)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float parts[CUDA_SEGMENTS];
        for (uint32_t p = 0; p < count; p++)
            parts[p] = present >> p & 1 ? planes[p * plane_stride + i] : 0.0f;
        y[cuda_strided(i, n_cols, y_stride)] = cuda_tree_sum(parts, present, count);
    }
}

int cuda_launch_tree_sum(void *stream, float *y, size_t y_stride, const float *planes,
                         size_t plane_stride, uint32_t present, uint32_t count, uint32_t n_rows,
                         uint32_t n_cols)
{
    uint64_t n = (uint64_t)n_rows * n_cols;
    tree_sum<<<cuda_n_blocks(n, THREADS, MAX_BLOCKS), THREADS, 0, (cudaStream_t)stream>>>(
        y, y_stride, planes, plane_stride, present, count, n, n_cols);
    return (int)cudaGetLastError();
}
