/* The row ops of a layer of experts: the table of tiles, gather, combine, sums over ranks. */
#include "kernels/cuda/experts/experts_index.h"
#include "kernels/cuda/experts/experts_job.h"
#include "kernels/cuda/linear_quant/linear_quant_put.h"
#include "kernels/cuda/thread.h"
#include "kernels/router_maths.h"

enum { THREADS = 128, TABLE_THREADS = 256 };

static __global__ void __launch_bounds__(TABLE_THREADS)
    fill_tiles(struct expert_routes routes, uint32_t *table, uint32_t tile_rows, uint32_t n_tiles)
{
    cuda_op_begin();
    for (uint32_t e = threadIdx.x; e <= routes.n_experts; e += TABLE_THREADS)
        experts_fill(table, routes.begins, routes.n_experts, e, tile_rows, n_tiles);
}

int cuda_launch_experts_tiles(void *stream, const struct expert_routes *routes, uint32_t *table,
                              uint32_t tile_rows, uint32_t n_tiles)
{
    return CUDA_LAUNCH(fill_tiles, 1, TABLE_THREADS, 0, stream, *routes, table, tile_rows, n_tiles);
}

/* Returns the expert of a tile of the batch, or EXPERTS_NO_TILE. */
CUDA_DEVICE uint32_t expert_of_tile(const struct experts_tiles *tiles, uint32_t tile)
{
    return tiles->table[experts_tile_at(tiles->n_experts, tiles->first, tile)];
}

CUDA_DEVICE float weight_of_pair(const struct expert_routes *routes, uint32_t row, uint32_t expert)
{
    const uint32_t *ids = routes->ids + cuda_row(row, routes->n_used);
    uint32_t j = 0;
    while (j + 1 < routes->n_used && ids[j] != expert)
        j++;
    return routes->weights[cuda_element(row, routes->n_used, j)];
}

static __global__ void __launch_bounds__(THREADS)
    gather_slots(struct experts_tiles tiles, struct expert_routes routes, bool weighs, float *to,
                 size_t to_stride, const float *x, size_t x_stride, uint32_t n)
{
    cuda_op_begin();
    uint32_t slot = blockIdx.x;
    uint32_t expert = expert_of_tile(&tiles, experts_tile_of(slot, 1, tiles.tile_rows));
    float *dst = to + cuda_row(slot, to_stride);
    uint32_t pair = 0;
    if (expert == EXPERTS_NO_TILE ||
        !experts_find_pair(routes.begins, expert, tiles.table[expert], tiles.first, tiles.tile_rows,
                           slot, &pair)) {
        for (uint32_t i = threadIdx.x; i < n; i += THREADS)
            dst[i] = 0.0f;
        return;
    }
    uint32_t row = routes.rows[pair];
    const float *from = x + cuda_row(row, x_stride);
    float w = weighs ? weight_of_pair(&routes, row, expert) : 1.0f;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        dst[i] = weighs ? router_weighed(from[i], w) : from[i];
}

int cuda_launch_experts_gather(void *stream, const struct experts_tiles *tiles,
                               const struct expert_routes *routes, bool weighs, float *to,
                               size_t to_stride, const float *x, size_t x_stride, uint32_t n)
{
    return CUDA_LAUNCH(gather_slots, experts_n_slots(tiles->n, tiles->tile_rows), THREADS, 0,
                       stream, *tiles, *routes, weighs, to, to_stride, x, x_stride, n);
}

static __global__ void __launch_bounds__(THREADS)
    combine_slots(struct experts_tiles tiles, struct expert_routes routes, bool weighs, float *y,
                  size_t y_stride, const float *from, size_t from_stride, const float *bias,
                  uint32_t n)
{
    cuda_op_begin();
    uint32_t row = blockIdx.y, column = cuda_item(blockIdx.x, THREADS, threadIdx.x);
    if (column >= n)
        return;
    float *to = y + cuda_element(row, y_stride, column);
    float sum = tiles.first == 0 ? 0.0f : *to;
    for (uint32_t j = 0; j < routes.n_used; j++) {
        size_t at = cuda_element(row, routes.n_used, j);
        uint32_t expert = routes.ids[at];
        uint32_t slot = experts_slot(tiles.table[expert], tiles.tile_rows, routes.places[at],
                                     routes.begins[expert]);
        if (!experts_find_slot(slot, tiles.first, tiles.n, tiles.tile_rows, &slot))
            continue;
        float z = from[cuda_element(slot, from_stride, column)];
        if (bias)
            z = z + bias[cuda_element(expert, n, column)];
        sum = fmaf(weighs ? 1.0f : routes.weights[at], z, sum);
    }
    *to = sum;
}

int cuda_launch_experts_combine(void *stream, const struct experts_tiles *tiles,
                                const struct expert_routes *routes, bool weighs, float *y,
                                size_t y_stride, const float *from, size_t from_stride,
                                const float *bias, uint32_t n)
{
    dim3 grid(cuda_n_blocks(n, THREADS, UINT32_MAX), routes->n_rows);
    return CUDA_LAUNCH(combine_slots, grid, THREADS, 0, stream, *tiles, *routes, weighs, y,
                       y_stride, from, from_stride, bias, n);
}

static __global__ void __launch_bounds__(THREADS)
    finish_slots(struct experts_tiles tiles, struct quant_linear q, size_t stride,
                 const int32_t *low, size_t low_stride, bool two_planes)
{
    cuda_op_begin();
    struct quant_part part = q.parts[0];
    uint32_t slot = blockIdx.y, n = cuda_item(blockIdx.x, THREADS, threadIdx.x);
    uint32_t expert = expert_of_tile(&tiles, experts_tile_of(slot, 1, tiles.tile_rows));
    if (n >= part.n_rows || expert == EXPERTS_NO_TILE)
        return;
    part.units = (const float *)((const uint8_t *)part.units + cuda_row(expert, stride));
    float *y = part.y + cuda_element(slot, part.y_stride, n);
    int32_t first = low[cuda_element(slot, low_stride, n)];
    int64_t sum = two_planes ? quant_of_planes(first, *(const int32_t *)y) : first;
    float scale = q.act.scale[slot];
    *y = quant_or_nan(quant_scaled(&part, n, scale, sum), scale);
}

int cuda_launch_experts_sums(void *stream, const struct experts_tiles *tiles,
                             const struct quant_linear *args, size_t stride, const int32_t *low,
                             size_t low_stride, bool two_planes)
{
    dim3 grid(cuda_n_blocks(args->parts[0].n_rows, THREADS, UINT32_MAX),
              experts_n_slots(tiles->n, tiles->tile_rows));
    return CUDA_LAUNCH(finish_slots, grid, THREADS, 0, stream, *tiles, *args, stride, low,
                       low_stride, two_planes);
}
