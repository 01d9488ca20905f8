/* experts_quant.h: products of quantized experts: the kernel of linear_quant.h, whose block takes
 * the weights of its tile's expert. A block computes 32 rows of W × a tile of 8 or 32 slots. Bytes:
 * the weights of the experts that have tiles, once per tile. Linears of heads are such products. */
/* Limits that tests/lint/ptxas.sh checks; the stack has the arguments of the tile's expert:
 *    ptxas: experts_quant_4bit.cu experts_quant.*ELj0E registers 128 shared 1024 stack 352
 *    ptxas: experts_quant_4bit.cu experts_quant.*ELj2E registers 255 shared 1024 stack 352
 *    ptxas: experts_quant_8bit.cu experts_quant.*ELj0E registers 128 shared 1024 stack 352
 *    ptxas: experts_quant_8bit.cu experts_quant.*ELj2E registers 255 shared 1024 stack 352
 *    ptxas: experts_quant_super.cu experts_quant.*ELj0E registers 136 shared 1024 stack 352
 *    ptxas: experts_quant_super.cu Lj[578]ELj2E registers 255 shared 1024 stack 352
 *    ptxas: experts_quant_super.cu Lj6ELj2E registers 255 shared 1024 stack 352 spill 24
 *    (Q2_K with 32 rows spills on sm_80 alone.)
 *    ptxas: experts_quant_table.cu experts_quant.*ELj0E registers 128 shared 1024 stack 352
 *    ptxas: experts_quant_table.cu experts_quant.*ELj2E registers 255 shared 1024 stack 352
 */
#pragma once

#include "kernels/cuda/experts/experts_job.h"
#include "kernels/cuda/experts/heads_index.h"
#include "kernels/cuda/linear_quant/act_quant_heads.h"
#include "kernels/cuda/linear_quant/linear_quant.h"

template <uint32_t FORM, uint32_t KERNEL>
static __global__ void __launch_bounds__(quant_max_threads(FORM, KERNEL), 1)
    experts_quant(struct quant_linear q, struct experts_tiles tiles, struct experts_strides by)
{
    CUDA_SHARED(shared);
    cuda_op_begin();
    uint32_t first_tile = quant_block_tile(KERNEL, blockIdx.y), expert;
    if (tiles.heads.n_blocks > 0) {
        expert = heads_head_of(blockIdx.y, tiles.heads.n_blocks);
        first_tile = quant_block_tile(KERNEL, heads_block_of(blockIdx.y, tiles.heads.n_blocks));
        quant_skip_tiles(&q.act, &q.layout, cuda_row(expert, tiles.heads.n_tiles));
        q.parts[0].y += cuda_row(expert, tiles.heads.y_columns);
    } else {
        uint32_t tile = experts_tile_of(first_tile, QUANT_TILE, tiles.tile_rows);
        expert = tiles.table[experts_tile_at(tiles.n_experts, tiles.first, tile)];
    }
    if (expert == EXPERTS_NO_TILE)
        return;
#pragma unroll
    for (uint32_t p = 0; p < 2; p++) {
        size_t at = cuda_row(expert, by.weights[p]);
        q.parts[p].data += at;
        q.parts[p].units = (const float *)((const uint8_t *)q.parts[p].units + at);
        if (q.parts[p].bias)
            q.parts[p].bias += cuda_element(expert, q.parts[p].n_rows, 0);
    }
    uint32_t group = quant_group_of(KERNEL, threadIdx.x);
    uint32_t n_groups = quant_group_of(KERNEL, blockDim.x);
    uint32_t first_panel = quant_block_panel(FORM, KERNEL, blockIdx.x);
    quant_acc<FORM, KERNEL> acc = {};
    quant_walk<FORM, KERNEL>(&acc, &q, shared + quant_group_at(FORM, KERNEL, group), first_panel,
                             first_tile, group, n_groups);
    quant_put_groups<FORM, KERNEL>(&acc, &q, shared, first_panel, first_tile);
}

template <uint32_t FORM, uint32_t KERNEL>
static int experts_launch_kernel(void *stream, const struct experts_tiles *tiles,
                                 const struct quant_linear *q, const struct experts_strides *by,
                                 const struct quant_plan *plan)
{
    dim3 grid(plan->row_blocks, plan->token_blocks);
    auto kernel = experts_quant<FORM, KERNEL>;
    return CUDA_LAUNCH(kernel, grid, quant_n_threads(plan), plan->shared_bytes, stream, *q, *tiles,
                       *by);
}

template <uint32_t FORM>
static int experts_launch(void *stream, const struct experts_tiles *tiles,
                          const struct quant_linear *q, const struct experts_strides *by,
                          const struct quant_plan *plan)
{
    return plan->kernel == QUANT_ROWS_8
               ? experts_launch_kernel<FORM, QUANT_ROWS_8>(stream, tiles, q, by, plan)
               : experts_launch_kernel<FORM, QUANT_ROWS_32>(stream, tiles, q, by, plan);
}

template <uint32_t FORM> static int experts_allow(uint32_t max_shared)
{
    int code = CUDA_ALLOW_SHARED((experts_quant<FORM, QUANT_ROWS_8>), max_shared);
    return code != 0 ? code : CUDA_ALLOW_SHARED((experts_quant<FORM, QUANT_ROWS_32>), max_shared);
}
