/* Products of dense experts: the kernel of dense_decode_kernel.h (path D), whose block takes the
 * weights of its tile's expert. Bytes: the weights of the experts that have tiles, once per 8 or 16
 * slots. Linears of heads are such products. */
#include "kernels/cuda/dense/dense_decode_kernel.h"
#include "kernels/cuda/experts/experts_job.h"
#include "kernels/cuda/experts/heads_index.h"

template <enum dense_form FORM, uint32_t TILE, uint32_t SLICES>
static __global__ void __launch_bounds__(dense_n_threads(SLICES), 2)
    experts_dense(struct dense_job job, struct experts_tiles tiles, struct experts_strides by)
{
    CUDA_SHARED(shared);
    constexpr struct dense_tile tile = dense_decode_tile(TILE, SLICES);
    cuda_op_begin();
    uint32_t block = blockIdx.x, expert;
    if (tiles.heads.n_blocks > 0) {
        expert = heads_head_of(block, tiles.heads.n_blocks);
        block = heads_block_of(block, tiles.heads.n_blocks);
        job.x = (const unsigned char *)job.x + cuda_row(expert, tiles.heads.x_bytes);
        job.parts[0].y += cuda_row(expert, tiles.heads.y_columns);
    } else {
        uint32_t i_tile = experts_tile_of(block, dense_tile_tokens(tile), tiles.tile_rows);
        expert = tiles.table[experts_tile_at(tiles.n_experts, tiles.first, i_tile)];
    }
    if (expert == EXPERTS_NO_TILE)
        return;
#pragma unroll
    for (uint32_t p = 0; p < 2; p++) {
        job.parts[p].w = (const unsigned char *)job.parts[p].w + cuda_row(expert, by.weights[p]);
        if (job.parts[p].bias)
            job.parts[p].bias += cuda_element(expert, job.parts[p].n, 0);
    }
    uint32_t slice = cuda_warp_of(threadIdx.x);
    struct decode_share share = decode_share_of(&job, tile, block, blockIdx.y, slice);
    struct decode_lane at = decode_lane_of(&job, FORM, tile, share, cuda_lane_of(threadIdx.x));
    float *sums = (float *)shared;
    decode_slice<FORM, TILE, SLICES>(sums + decode_slice_sums(tile, slice),
                                     shared + decode_slice_ring(FORM, tile, slice), job, &at,
                                     slice);
    decode_results<FORM, TILE, SLICES>(job, sums, share);
}

typedef void experts_kernel(struct dense_job job, struct experts_tiles tiles,
                            struct experts_strides by);

enum { N_FORMS = DENSE_BF16 + 1 };

#define TILES(form, slices) experts_dense<form, 0, slices>, experts_dense<form, 1, slices>
#define FORMS(slices)                                                                              \
    {                                                                                              \
        {TILES(DENSE_F32, slices)}, {TILES(DENSE_F16, slices)},                                    \
        {                                                                                          \
            TILES(DENSE_BF16, slices)                                                              \
        }                                                                                          \
    }

/* [few slices, or 8][form][tile]. */
static experts_kernel *const kernels[2][N_FORMS][2] = {FORMS(DENSE_FEW_SLICES),
                                                       FORMS(CUDA_SEGMENTS)};
static_assert(DENSE_F32 == 0 && DENSE_F16 == 1 && DENSE_BF16 == 2, "the order of kernels[]");

int cuda_allow_experts_dense(uint32_t max_shared)
{
    const uint32_t slices[2] = {DENSE_FEW_SLICES, CUDA_SEGMENTS};
    int code = 0;
    for (uint32_t n = 0; n < 2; n++)
        for (uint32_t f = 0; f < N_FORMS; f++)
            for (uint32_t i = 0; code == 0 && i < 2; i++) {
                uint32_t wanted = dense_shared_bytes((enum dense_form)f,
                                                     dense_decode_tile(i, slices[n]), slices[n]);
                code = CUDA_ALLOW_SHARED(kernels[n][f][i],
                                         (int)(wanted < max_shared ? wanted : max_shared));
            }
    return code;
}

int cuda_launch_experts_dense(void *stream, const struct experts_tiles *tiles, enum dense_form form,
                              const struct dense_job *job, const struct experts_strides *by)
{
    uint32_t n_slices = job->slices.count, i = tiles->tile_rows == EXPERTS_FEW_ROWS ? 0 : 1;
    struct dense_tile tile = dense_decode_tile(i, n_slices);
    uint32_t n_blocks = 0, block_rows = dense_block_rows(tile, job->gated);
    for (uint32_t p = 0; p < (job->gated ? 1 : job->n_parts); p++)
        n_blocks += dense_n_blocks(job->parts[p].n, block_rows);
    struct experts_tiles own = *tiles;
    uint32_t token_blocks = dense_n_blocks(job->m, dense_tile_tokens(tile));
    if (tiles->table == nullptr)
        own.heads.n_blocks = token_blocks;
    dim3 grid(heads_n_blocks(token_blocks, own.heads.n_blocks, own.n_experts), n_blocks);
    return CUDA_LAUNCH(kernels[n_slices > DENSE_FEW_SLICES][form][i], grid,
                       dense_n_threads(n_slices), dense_shared_bytes(form, tile, n_slices), stream,
                       *job, own, *by);
}
