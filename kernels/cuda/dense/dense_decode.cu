#include "kernels/cuda/dense/dense_decode_kernel.h"

typedef void decode_kernel(const struct dense_job job);

#define TILES_2(form, slices) dense_decode<form, 0, slices>, dense_decode<form, 1, slices>
#define TILES_3(form, slices) TILES_2(form, slices), dense_decode<form, 2, slices>
#define TILES_4(form, slices) TILES_3(form, slices), dense_decode<form, 3, slices>
#define FORMS(slices)                                                                              \
    {                                                                                              \
        {TILES_2(DENSE_F32, slices)}, {TILES_4(DENSE_F16, slices)}, {TILES_4(DENSE_BF16, slices)}, \
            {TILES_3(DENSE_INT8, slices)},                                                         \
        {                                                                                          \
            TILES_3(DENSE_F8, slices)                                                              \
        }                                                                                          \
    }

/* [few slices, or 8][form][tile], the tiles of dense_n_tiles(). */
static decode_kernel *const kernels[2][N_DENSE_FORMS][DENSE_N_TILES] = {FORMS(DENSE_FEW_SLICES),
                                                                        FORMS(CUDA_SEGMENTS)};

static decode_kernel *kernel_of(enum dense_form form, uint32_t tile, uint32_t n_slices)
{
    return kernels[n_slices > DENSE_FEW_SLICES][form][tile];
}

static int allow(enum dense_form form, uint32_t i, uint32_t n_slices, uint32_t max_shared)
{
    uint32_t wanted = dense_shared_bytes(form, dense_decode_tile(i, n_slices), n_slices);
    return CUDA_ALLOW_SHARED(kernel_of(form, i, n_slices),
                             (int)(wanted < max_shared ? wanted : max_shared));
}

/* A tile that is too large for 8 slices may fit with the 4 slices of a rank. */
int cuda_dense_allow_decode(uint32_t max_shared)
{
    int code = 0;
    for (uint32_t f = 0; f < N_DENSE_FORMS; f++)
        for (uint32_t i = 0; i < dense_n_tiles((enum dense_form)f); i++)
            for (uint32_t n = DENSE_FEW_SLICES; code == 0 && n <= CUDA_SEGMENTS;
                 n += CUDA_SEGMENTS - DENSE_FEW_SLICES)
                code = allow((enum dense_form)f, i, n, max_shared);
    return code;
}

int cuda_launch_dense_decode(void *stream, enum dense_form form, const struct dense_job *job,
                             uint32_t max_shared)
{
    uint32_t n_slices = job->slices.count;
    uint32_t i = dense_choose_tile(form, job->m, n_slices, max_shared);
    struct dense_tile tile = dense_decode_tile(i, n_slices);
    uint32_t n_blocks = 0, block_rows = dense_block_rows(tile, job->gated);
    for (uint32_t p = 0; p < (job->gated ? 1 : job->n_parts); p++)
        n_blocks += dense_n_blocks(job->parts[p].n, block_rows);
    dim3 grid(dense_n_blocks(job->m, dense_tile_tokens(tile)), n_blocks);
    decode_kernel *kernel = kernel_of(form, i, n_slices);
    return CUDA_LAUNCH(kernel, grid, dense_n_threads(n_slices),
                       dense_shared_bytes(form, tile, n_slices), stream, *job);
}
