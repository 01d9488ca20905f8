/* experts_job.h: the kernels of a layer of experts as C functions, in the manner of launch.h. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: router.cu route_rows registers 56 shared 12288
 *    ptxas: router.cu order_pairs registers 40 shared 1024
 *    ptxas: experts_rows.cu (fill_tiles|gather_slots|combine_slots|finish_slots) registers 40
 *    ptxas: experts_dense.cu experts_dense.*Lj8E registers 128 shared 1024 stack 312
 *    ptxas: experts_dense.cu experts_dense.*Lj2E registers 168 shared 1024 stack 312
 */
#pragma once

#include "kernels/cuda/dense_job.h"
#include "kernels/experts.h"

#ifdef __cplusplus
extern "C" {
#endif

struct quant_linear;
struct quant_plan;

/* Linears of heads (ops.h, heads_linear) are products of experts that all rows take. A head's rows
 * are adjacent in the activations of quantized weights, and begin with a tile. */
struct experts_heads {
    uint32_t n_blocks; /* blocks of a head's rows; 0: the product is one of experts */
    uint32_t n_tiles;  /* tiles of a head's rows of quantized activations */
    size_t x_bytes;    /* from a row's activations of a head to those of the next head; dense */
    size_t y_columns;  /* from a head's results to those of the next head */
};

/* The tiles of a batch. */
struct experts_tiles {
    const uint32_t *table; /* experts_index.h; NULL for heads */
    uint32_t n_experts, tile_rows;
    uint32_t first, n; /* the tiles of this batch, from tile `first` on */
    struct experts_heads heads;
};

/* The weights of experts: those of expert e lie e·stride bytes after those of expert 0. */
struct experts_strides {
    size_t weights[DENSE_MAX_PARTS];
};

/* A block of a warp per row: ids and weights of routes. Bytes: 4·m·(n_experts + 2·n_used). */
int cuda_launch_router(void *stream, const struct expert_routes *routes, const float *logits,
                       size_t stride, const struct router_params *p);
/* A block per expert: places, rows and begins. Bytes: 4·n_pairs·n_experts, from the second
 * cache. */
int cuda_launch_router_order(void *stream, const struct expert_routes *routes);
/* Fills the table of tiles; one block. */
int cuda_launch_experts_tiles(void *stream, const struct expert_routes *routes, uint32_t *table,
                              uint32_t tile_rows, uint32_t n_tiles);
/* to[slot] = x of the slot's row, times the pair's weight if `weighs`; zeros for unused slots. */
int cuda_launch_experts_gather(void *stream, const struct experts_tiles *tiles,
                               const struct expert_routes *routes, bool weighs, float *to,
                               size_t to_stride, const float *x, size_t x_stride, uint32_t n);
/* y += weighted outputs of the batch; y starts at 0 in the first batch. */
int cuda_launch_experts_combine(void *stream, const struct experts_tiles *tiles,
                                const struct expert_routes *routes, bool weighs, float *y,
                                size_t y_stride, const float *from, size_t from_stride,
                                const float *bias, uint32_t n);
/* linear_finish of quantized weights: parts[0] of args with the units of each slot's expert. */
int cuda_launch_experts_sums(void *stream, const struct experts_tiles *tiles,
                             const struct quant_linear *args, size_t stride, const int32_t *low,
                             size_t low_stride, bool two_planes);

/* Products: args and job are those of expert 0. In experts_quant_*.cu, by form. */
int cuda_launch_experts_4bit(void *stream, const struct experts_tiles *tiles,
                             const struct quant_linear *args, const struct experts_strides *by,
                             const struct quant_plan *plan);
int cuda_launch_experts_8bit(void *stream, const struct experts_tiles *tiles,
                             const struct quant_linear *args, const struct experts_strides *by,
                             const struct quant_plan *plan);
int cuda_launch_experts_super(void *stream, const struct experts_tiles *tiles,
                              const struct quant_linear *args, const struct experts_strides *by,
                              const struct quant_plan *plan);
int cuda_launch_experts_table(void *stream, const struct experts_tiles *tiles,
                              const struct quant_linear *args, const struct experts_strides *by,
                              const struct quant_plan *plan);
/* DENSE_F32, DENSE_F16 and DENSE_BF16 alone. For heads: tiles->n_experts heads of job->m rows. */
int cuda_launch_experts_dense(void *stream, const struct experts_tiles *tiles, enum dense_form form,
                              const struct dense_job *job, const struct experts_strides *by);
/* Allow all kernels up to max_shared bytes on the current device. */
int cuda_allow_experts_4bit(uint32_t max_shared);
int cuda_allow_experts_8bit(uint32_t max_shared);
int cuda_allow_experts_super(uint32_t max_shared);
int cuda_allow_experts_table(uint32_t max_shared);
int cuda_allow_experts_dense(uint32_t max_shared);

#ifdef __cplusplus
}
#endif
