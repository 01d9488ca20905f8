#include "kernels/cuda/dense/dense_act_kernel.h"

enum { MAX_ROW_BLOCKS = 65535 };

int cuda_launch_act_half(void *stream, uint16_t *dst, const float *x, size_t x_stride, uint32_t m,
                         uint32_t k, enum dense_form form)
{
    dim3 grid(cuda_n_blocks(dense_act_stride(k), ACT_BLOCK_COLUMNS, UINT32_MAX),
              cuda_n_blocks(m, 1, MAX_ROW_BLOCKS));
    if (form == DENSE_F16)
        return CUDA_LAUNCH(act_halves<DENSE_F16>, grid, ACT_THREADS, 0, stream, dst, x, x_stride, m,
                           k);
    if (form == DENSE_INT8)
        return CUDA_LAUNCH(act_halves<DENSE_INT8>, grid, ACT_THREADS, 0, stream, dst, x, x_stride,
                           m, k);
    return CUDA_LAUNCH(act_halves<DENSE_BF16>, grid, ACT_THREADS, 0, stream, dst, x, x_stride, m,
                       k);
}

int cuda_launch_act_largest(void *stream, float *largest, const float *x, size_t x_stride,
                            uint32_t m, uint32_t k)
{
    return CUDA_LAUNCH(act_largest, cuda_n_blocks(m, 1, MAX_ROW_BLOCKS), ACT_THREADS, 0, stream,
                       largest, x, x_stride, m, k);
}

int cuda_launch_act_f8(void *stream, uint8_t *dst, float *scale, const float *largest,
                       const float *x, size_t x_stride, uint32_t m, uint32_t k)
{
    return CUDA_LAUNCH(act_f8, cuda_n_blocks(m, 1, MAX_ROW_BLOCKS), ACT_THREADS, 0, stream, dst,
                       scale, largest, x, x_stride, m, k);
}

int cuda_launch_act_f16(void *stream, uint16_t *dst, float *scale, const float *x, size_t x_stride,
                        uint32_t m, uint32_t k)
{
    return CUDA_LAUNCH(act_f16, cuda_n_blocks(m, 1, MAX_ROW_BLOCKS), ACT_THREADS, 0, stream, dst,
                       scale, x, x_stride, m, k);
}

int cuda_launch_dense_scale(void *stream, float *y, size_t y_stride, const float *x,
                            size_t x_stride, const float *row_scale, const float *col_scale,
                            uint32_t m, uint32_t n)
{
    dim3 grid(cuda_n_blocks(n, ACT_THREADS, UINT32_MAX), cuda_n_blocks(m, 1, MAX_ROW_BLOCKS));
    return CUDA_LAUNCH(dense_scale, grid, ACT_THREADS, 0, stream, y, y_stride, x, x_stride,
                       row_scale, col_scale, m, n);
}
