#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_row.h"

enum { MAX_BLOCKS = 65535 };

static __global__ void norm_blocks(struct norm_rows job)
{
    CUDA_SHARED(stage);
    __shared__ struct block_shared shared;
    cuda_op_begin();
    struct block b = {&shared, threadIdx.x, blockDim.x, nullptr, nullptr};
    uint32_t rows = norm_block_rows(job.n);
    for (uint32_t row = norm_block_first(blockIdx.x, rows); row < job.n_rows;
         row += norm_block_first(gridDim.x, rows))
        norm_run(&b, (float *)stage, &job, row, norm_rows_left(job.n_rows, row, rows));
}

int cuda_launch_norm(void *stream, const struct norm_rows *job)
{
    return CUDA_LAUNCH(norm_blocks, cuda_n_blocks(job->n_rows, norm_block_rows(job->n), MAX_BLOCKS),
                       CUDA_ROW_THREADS, norm_stage_bytes(job->n), stream, *job);
}
