/* Linears of the 4-bit forms, and the sum of what blocks share. */
#include "kernels/cuda/linear_quant.h"

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

/* Adds the planes of args.split and puts the sums. Bytes: (4 or 8)·m·n per plane. */
static __global__ void __launch_bounds__(THREADS)
    quant_finish(struct quant_linear q, uint32_t n_splits)
{
    cuda_op_begin();
    bool wide = quant_is_wide(q.layout.form), gated = q.put == QUANT_PUT_GATED;
    uint32_t n_panels = gated ? q.n_panels / 2 : q.n_panels;
    size_t n = (size_t)q.n_panels * QUANT_ROWS, plane = n * q.m;
    size_t n_items = (size_t)n_panels * QUANT_ROWS * q.m;
    auto sum_of = [&](size_t at) {
        int64_t sum = 0;
        for (uint32_t i = 0; i < n_splits; i++)
            sum += wide ? ((const int64_t *)q.split)[i * plane + at]
                        : ((const int32_t *)q.split)[i * plane + at];
        return wide ? sum : (int64_t)(int32_t)sum; /* parts of a sum may exceed 32 bits */
    };
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n_items;
         i += (size_t)gridDim.x * THREADS) {
        uint32_t row = i % QUANT_ROWS, panel = i / QUANT_ROWS % n_panels;
        uint32_t token = (uint32_t)(i / QUANT_ROWS / n_panels);
        panel *= gated ? 2 : 1;
        size_t at = token * n + (size_t)panel * QUANT_ROWS + row;
        if (gated)
            quant_put_gated(&q, panel, row, token, sum_of(at), sum_of(at + QUANT_ROWS));
        else
            quant_put(&q, panel, row, token, sum_of(at));
    }
}

int cuda_launch_quant_finish(void *stream, const struct quant_linear *args, uint32_t n_splits)
{
    uint64_t n = (uint64_t)args->n_panels * QUANT_ROWS * args->m;
    return CUDA_LAUNCH(quant_finish, cuda_n_blocks(n, THREADS, MAX_BLOCKS), THREADS, 0, stream,
                       *args, n_splits);
}

/* linear_finish: y = float(T)·(unit·s) from the sum over ranks, in y's place. Bytes: 12·m·n. */
static __global__ void __launch_bounds__(THREADS)
    quant_rank_sums(struct quant_linear q, const int32_t *low, size_t low_stride, bool two_planes)
{
    cuda_op_begin();
    const struct quant_part *part = &q.parts[0];
    for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
         i < (uint64_t)part->n_rows * q.m; i += (uint64_t)gridDim.x * THREADS) {
        uint32_t n = (uint32_t)(i % part->n_rows), token = (uint32_t)(i / part->n_rows);
        float *y = part->y + token * part->y_stride + n;
        int64_t sum = low[token * low_stride + n];
        if (two_planes)
            sum += (int64_t) * (const int32_t *)y * 65536;
        float scale = q.act.scale[token];
        *y = quant_or_nan(quant_scaled(part, n, scale, sum), scale);
    }
}

int cuda_launch_quant_rank_sums(void *stream, const struct quant_linear *args, const int32_t *low,
                                size_t low_stride, bool two_planes)
{
    uint64_t n = (uint64_t)args->parts[0].n_rows * args->m;
    return CUDA_LAUNCH(quant_rank_sums, cuda_n_blocks(n, THREADS, MAX_BLOCKS), THREADS, 0, stream,
                       *args, low, low_stride, two_planes);
}
