#include "kernels/cuda/dense/dense_ring_kernel.h"

typedef void ring_kernel(const struct dense_job job, const struct tensor_map x,
                         const struct tensor_map w, const struct tensor_map up);

enum { RING_FORMS = 3 };

static ring_kernel *const kernels[RING_FORMS][2] = {
    {dense_ring<DENSE_F16, false, false>, dense_ring<DENSE_F16, true, false>},
    {dense_ring<DENSE_BF16, false, false>, dense_ring<DENSE_BF16, true, false>},
    {dense_ring<DENSE_F8, false, false>, dense_ring<DENSE_F8, true, false>},
};
static ring_kernel *const gated_kernels[2] = {dense_ring<DENSE_F16, false, true>,
                                              dense_ring<DENSE_BF16, false, true>};

int cuda_dense_allow_ring(void)
{
    int code = 0;
    for (const auto &of_form : kernels)
        for (ring_kernel *kernel : of_form)
            if (code == 0)
                code = CUDA_ALLOW_SHARED(kernel, (int)ring_shared_bytes());
    for (ring_kernel *kernel : gated_kernels)
        if (code == 0)
            code = CUDA_ALLOW_SHARED(kernel, (int)ring_shared_bytes());
    return code;
}

/* `up`: the part whose rows are the second half of a tile's. */
static int launch(void *stream, ring_kernel *kernel, enum dense_form form,
                  const struct dense_job *job, const struct dense_part *up, uint32_t n_tiles,
                  uint32_t n_blocks)
{
    const struct dense_part *part = &job->parts[0];
    uint64_t x_bytes = dense_act_row_bytes(form, job->x_stride), w_bytes = job->w_row_bytes;
    struct tensor_map x, w, w_up;
    int code = tensor_map_rows(&x, job->x, job->m, x_bytes, x_bytes, PROMPT_TILE);
    if (code == 0)
        code = tensor_map_rows(&w, part->w, part->n, w_bytes, w_bytes, RING_HALF_ROWS);
    if (code == 0)
        code = tensor_map_rows(&w_up, up->w, up->n, w_bytes, w_bytes, RING_HALF_ROWS);
    if (code != 0)
        return code;
    return CUDA_LAUNCH(kernel, n_tiles < n_blocks ? n_tiles : n_blocks, RING_THREADS,
                       ring_shared_bytes(), stream, *job, x, w, w_up);
}

int cuda_launch_dense_ring(void *stream, enum dense_form form, const struct dense_job *job,
                           uint32_t n_blocks)
{
    uint32_t row = form == DENSE_F16 ? 0 : form == DENSE_BF16 ? 1 : 2;
    return launch(stream, kernels[row][job->slices.count > 1], form, job, &job->parts[0],
                  ring_n_tiles(job->m, job->parts[0].n, WGMMA_ROWS), n_blocks);
}

int cuda_launch_dense_ring_gated(void *stream, enum dense_form form, const struct dense_job *job,
                                 uint32_t n_blocks)
{
    return launch(stream, gated_kernels[form == DENSE_BF16], form, job, &job->parts[1],
                  ring_n_tiles(job->m, job->parts[0].n, RING_PAIR_ROWS), n_blocks);
}
