/* Linears of the 4-bit forms, and the sum over blocks that share columns. */
#include "kernels/cuda/linear_quant/linear_quant.h"

int cuda_launch_quant_4bit(void *stream, const struct quant_linear *args,
                           const struct quant_plan *plan)
{
    return args->layout.form == QUANT_INT4 ? quant_launch<QUANT_INT4>(stream, args, plan)
                                           : quant_launch<QUANT_INT4_PLAIN>(stream, args, plan);
}

int cuda_allow_quant_4bit(uint32_t max_shared)
{
    int code = quant_allow<QUANT_INT4>(max_shared);
    return code != 0 ? code : quant_allow<QUANT_INT4_PLAIN>(max_shared);
}

enum { THREADS = 256, MAX_BLOCKS = 65535 };

/* Adds the planes of args.split and stores the sums. Bytes: (4 or 8)·m·n per plane. */
static __global__ void __launch_bounds__(THREADS)
    quant_finish(struct quant_linear q, uint32_t n_splits)
{
    cuda_op_begin();
    bool wide = quant_is_wide(q.layout.form), gated = q.put == QUANT_PUT_GATED;
    size_t plane = quant_split_elements(q.n_panels, q.m);
    size_t n_items = quant_n_items(q.n_panels, q.m, gated);
    auto sum_of = [&](size_t at) {
        const int32_t *narrow = (const int32_t *)q.split;
        const int64_t *whole = (const int64_t *)q.split;
        int64_t sum = 0;
        for (uint32_t i = 0; i < n_splits; i++) {
            size_t part = quant_split_part(at, plane, i);
            sum += wide ? whole[part] : narrow[part];
        }
        return wide
                   ? sum
                   : (int64_t)(int32_t)sum; /* parts of a 32-bit sum may overflow; the total fits */
    };
    for (size_t i = cuda_wide_item(blockIdx.x, THREADS, threadIdx.x); i < n_items;
         i += cuda_wide_grid_items(gridDim.x, THREADS)) {
        struct quant_item item = quant_item_of(i, q.n_panels, gated);
        size_t at = quant_split_at(q.n_panels, q.m, 0, item.token, item.panel, item.row);
        if (gated)
            quant_put_gated(&q, item.panel, item.row, item.token, sum_of(at),
                            sum_of(quant_split_behind(at)));
        else
            quant_put(&q, item.panel, item.row, item.token, sum_of(at));
    }
}

int cuda_launch_quant_finish(void *stream, const struct quant_linear *args, uint32_t n_splits)
{
    uint64_t n = quant_split_elements(args->n_panels, args->m);
    return CUDA_LAUNCH(quant_finish, cuda_n_blocks(n, THREADS, MAX_BLOCKS), THREADS, 0, stream,
                       *args, n_splits);
}

/* linear_finish: y = float(T)·(unit·s) from the sum over ranks; overwrites y. Bytes: 12·m·n. */
static __global__ void __launch_bounds__(THREADS)
    quant_rank_sums(struct quant_linear q, const int32_t *low, size_t low_stride, bool two_planes)
{
    cuda_op_begin();
    const struct quant_part *part = &q.parts[0];
    uint64_t n_items = cuda_n_elements(q.m, part->n_rows);
    for (uint64_t i = cuda_wide_item(blockIdx.x, THREADS, threadIdx.x); i < n_items;
         i += cuda_wide_grid_items(gridDim.x, THREADS)) {
        uint32_t n = cuda_column_of(i, part->n_rows), token = cuda_row_of(i, part->n_rows);
        float *y = part->y + cuda_element(token, part->y_stride, n);
        int32_t first = low[cuda_element(token, low_stride, n)];
        int64_t sum = two_planes ? quant_of_planes(first, *(const int32_t *)y) : first;
        float scale = q.act.scale[token];
        *y = quant_or_nan(quant_scaled(part, n, scale, sum), scale);
    }
}

int cuda_launch_quant_rank_sums(void *stream, const struct quant_linear *args, const int32_t *low,
                                size_t low_stride, bool two_planes)
{
    uint64_t n = cuda_n_elements(args->m, args->parts[0].n_rows);
    return CUDA_LAUNCH(quant_rank_sums, cuda_n_blocks(n, THREADS, MAX_BLOCKS), THREADS, 0, stream,
                       *args, low, low_stride, two_planes);
}
