#include "kernels/cuda/dense/dense_fragment.h"
#include "kernels/cuda/launch.h"

enum { THREADS = 128, MAX_ROW_BLOCKS = 65535 };

/* Grid: columns, rows. ptxas: tree_sum.cu tree_sum registers 40 */
static __global__ void tree_sum(float *y, size_t y_stride, const float *planes, size_t plane_stride,
                                size_t row_stride, uint32_t present, uint32_t n_rows,
                                uint32_t n_cols)
{
    cuda_op_begin();
    uint32_t column = cuda_item(blockIdx.x, THREADS, threadIdx.x);
    if (column >= n_cols)
        return;
    for (uint32_t row = blockIdx.y; row < n_rows; row += gridDim.y)
        y[cuda_element(row, y_stride, column)] =
            dense_tree(planes + cuda_element(row, row_stride, column), plane_stride, present);
}

int cuda_launch_tree_sum(void *stream, float *y, size_t y_stride, const float *planes,
                         size_t plane_stride, size_t row_stride, uint32_t present, uint32_t n_rows,
                         uint32_t n_cols)
{
    dim3 grid(cuda_n_blocks(n_cols, THREADS, UINT32_MAX), cuda_n_blocks(n_rows, 1, MAX_ROW_BLOCKS));
    return CUDA_LAUNCH(tree_sum, grid, THREADS, 0, stream, y, y_stride, planes, plane_stride,
                       row_stride, present, n_rows, n_cols);
}
