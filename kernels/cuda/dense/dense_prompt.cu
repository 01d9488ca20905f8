#include "kernels/cuda/dense/dense_prompt_kernel.h"

typedef void prompt_kernel(const struct dense_job job);

static prompt_kernel *const kernels[N_DENSE_FORMS] = {
    nullptr,
    dense_prompt<DENSE_F16>,
    dense_prompt<DENSE_BF16>,
    dense_prompt<DENSE_INT8>,
    dense_prompt<DENSE_F8>,
};

int cuda_dense_allow_prompt(uint32_t max_shared)
{
    for (uint32_t f = DENSE_F16; f < N_DENSE_FORMS; f++) {
        uint32_t n_bytes = prompt_shared_bytes((enum dense_form)f);
        int code =
            CUDA_ALLOW_SHARED(kernels[f], (int)(n_bytes < max_shared ? n_bytes : max_shared));
        if (code != 0)
            return code;
    }
    return 0;
}

int cuda_launch_dense_prompt(void *stream, enum dense_form form, const struct dense_job *job)
{
    prompt_kernel *kernel = kernels[form];
    dim3 grid(dense_n_blocks(job->m, PROMPT_TILE), dense_n_blocks(job->parts[0].n, PROMPT_TILE));
    return CUDA_LAUNCH(kernel, grid, PROMPT_THREADS, prompt_shared_bytes(form), stream, *job);
}
