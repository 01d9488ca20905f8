#include "kernels/cuda/dense/dense_ring_kernel.h"

typedef void ring_kernel(const struct dense_job job, const struct tensor_map x,
                         const struct tensor_map w);

enum { RING_FORMS = 3 };

static ring_kernel *const kernels[RING_FORMS][2] = {
    {dense_ring<DENSE_F16, false>, dense_ring<DENSE_F16, true>},
    {dense_ring<DENSE_BF16, false>, dense_ring<DENSE_BF16, true>},
    {dense_ring<DENSE_F8, false>, dense_ring<DENSE_F8, true>},
};

int cuda_dense_allow_ring(void)
{
    int code = 0;
    for (const auto &of_form : kernels)
        for (ring_kernel *kernel : of_form)
            if (code == 0)
                code = CUDA_ALLOW_SHARED(kernel, (int)ring_shared_bytes());
    return code;
}

int cuda_launch_dense_ring(void *stream, enum dense_form form, const struct dense_job *job,
                           uint32_t n_blocks)
{
    const struct dense_part *part = &job->parts[0];
    ring_kernel *kernel = kernels[form == DENSE_F16    ? 0
                                  : form == DENSE_BF16 ? 1
                                                       : 2][job->slices.count > 1];
    uint32_t n_tiles = ring_n_tiles(job->m, part->n);
    uint64_t x_bytes = dense_act_row_bytes(form, job->x_stride);
    struct tensor_map x, w;
    int code = tensor_map_rows(&x, job->x, job->m, x_bytes, x_bytes, PROMPT_TILE);
    if (code == 0)
        code =
            tensor_map_rows(&w, part->w, part->n, job->w_row_bytes, job->w_row_bytes, WGMMA_ROWS);
    if (code != 0)
        return code;
    return CUDA_LAUNCH(kernel, n_tiles < n_blocks ? n_tiles : n_blocks, RING_THREADS,
                       ring_shared_bytes(), stream, *job, x, w);
}
