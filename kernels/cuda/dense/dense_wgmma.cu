#include "kernels/cuda/dense/dense_wgmma_kernel.h"

typedef void wgmma_kernel(const struct dense_job job);

static wgmma_kernel *const kernels[2][2] = {
    {dense_wgmma<DENSE_F16, false, false>, dense_wgmma<DENSE_F16, true, false>},
    {dense_wgmma<DENSE_BF16, false, false>, dense_wgmma<DENSE_BF16, true, false>},
};
static wgmma_kernel *const gated_kernels[2] = {dense_wgmma<DENSE_F16, false, true>,
                                               dense_wgmma<DENSE_BF16, false, true>};

int cuda_dense_allow_wgmma(void)
{
    int code = 0;
    for (const auto &of_form : kernels)
        for (wgmma_kernel *kernel : of_form)
            if (code == 0)
                code = CUDA_ALLOW_SHARED(kernel, (int)wgmma_shared_bytes());
    for (wgmma_kernel *kernel : gated_kernels)
        if (code == 0)
            code = CUDA_ALLOW_SHARED(kernel, (int)wgmma_shared_bytes());
    return code;
}

int cuda_launch_wgmma_is_built(void *stream, uint32_t *out)
{
    return CUDA_LAUNCH(wgmma_is_built, 1, 1, 0, stream, out);
}

int cuda_launch_dense_wgmma(void *stream, enum dense_form form, const struct dense_job *job)
{
    wgmma_kernel *kernel = kernels[form == DENSE_BF16][job->slices.count > 1];
    dim3 grid(dense_n_blocks(job->m, PROMPT_TILE), wgmma_n_tiles(job));
    return CUDA_LAUNCH(kernel, grid, PROMPT_THREADS, wgmma_shared_bytes(), stream, *job);
}

int cuda_launch_dense_wgmma_gated(void *stream, enum dense_form form, const struct dense_job *job)
{
    dim3 grid(dense_n_blocks(job->m, PROMPT_TILE),
              dense_n_blocks(job->parts[0].n, WGMMA_PAIR_ROWS));
    return CUDA_LAUNCH(gated_kernels[form == DENSE_BF16], grid, PROMPT_THREADS,
                       wgmma_shared_bytes(), stream, *job);
}
