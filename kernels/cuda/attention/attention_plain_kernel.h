/* attention_plain_kernel.h: attention by fused multiply-adds, on both paths. For F32 caches, and
 * for shapes that the tiled kernels do not support. Their vectors do not start at multiples of 16
 * bytes, or are longer than 256 elements. Also the kernel that combines the groups of path D and of
 * this kernel.
 *
 * Shapes: head_dim up to MAX_DIM (256 or 576), v_dim up to 512; more than 256 elements are summed
 * 256 at a time. A latent cache has V in the vectors of K. A block
 * computes up to 8 heads of one KV head for one row. The block walks over groups of 512 positions,
 * a warp per partition, as in attention_decode_kernel.h. Scores: a lane per position, elements in
 * index order. Values: a lane per element, positions in index order. Only visible positions are
 * read. Bytes: as path D; operations: 2 · heads · (head_dim + v_dim) per position. Bound: the loads
 * (each lane walks along its own vector): about a third of memory's rate. Shared memory 28 KiB, for
 * 576: 38 KiB. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: attention_plain.cu attention_plain registers 168 shared 1024
 *    ptxas: attention_plain.cu attention_combine registers 120 shared 1024
 *    ptxas: attention_plain.cu attention_combine on sm_90a registers 96 shared 1024
 */
#pragma once

#include "kernels/cuda/attention/attention_types.h"
#include "kernels/cuda/thread.h"

/* A block's shared memory. */
template <uint32_t MAX_DIM> struct plain_shared {
    float q[PLAIN_HEADS][MAX_DIM];
    float p[CUDA_GROUP_PARTITIONS][PLAIN_HEADS][CUDA_PARTITION]; /* for each warp */
    float x[CUDA_GROUP_PARTITIONS][PLAIN_ELEMS];                 /* for each warp, one head's */
    float max[CUDA_GROUP_PARTITIONS][PLAIN_HEADS], sum[CUDA_GROUP_PARTITIONS][PLAIN_HEADS];
};

CUDA_DEVICE float plain_element(enum dtype type, const uint8_t *vector, uint32_t i)
{
    if (type == DTYPE_F32)
        return ((const float *)vector)[i];
    if (type == DTYPE_F16)
        return maths_f16_to_f32(((const uint16_t *)vector)[i]);
    if (type == DTYPE_BF16)
        return maths_bf16_to_f32(((const uint16_t *)vector)[i]);
    return type == DTYPE_I8 ? (float)((int32_t)vector[i] - CUDA_KV_CODE_BIAS)
                            : maths_f8_to_f32(vector[i]);
}

CUDA_DEVICE float plain_warp_max(float x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        float other = __shfl_xor_sync(0xFFFFFFFFu, x, lanes);
        x = other > x ? other : x;
    }
    return x;
}

CUDA_DEVICE float plain_warp_sum(float x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2)
        x += __shfl_xor_sync(0xFFFFFFFFu, x, lanes);
    return x;
}

template <uint32_t MAX_DIM, bool ALIBI> struct plain_warp {
    const struct attention_cuda *a;
    struct plain_shared<MAX_DIM> *shared;
    uint32_t i_warp, lane, i_kv, seq, base;
    struct attention_span seen; /* visible positions of the partition */
    uint32_t first_slot, own;   /* first head of the tile; position of the row */

    __device__ const uint8_t *page(const void *pool, struct attention_plane plane,
                                   uint32_t position) const
    {
        uint32_t block = __ldg(a->block_tables + attention_table_at(a, seq, base + position));
        return block < a->kv.n_blocks
                   ? (const uint8_t *)pool + attention_page_at(a, plane, block, i_kv)
                   : nullptr;
    }

    __device__ float scale(const uint8_t *from, struct attention_plane plane,
                           uint32_t position) const
    {
        return kv_cuda_is_coded(&a->kv)
                   ? *(const float *)(from + attention_scale_in_page(a, plane, position))
                   : 1.0f;
    }

    __device__ void score_position(uint32_t position, float x[PLAIN_HEADS]) const
    {
        const uint8_t *from =
            attention_sees(seen, position) ? page(a->kv.k, a->k, position) : nullptr;
        float dots[PLAIN_HEADS] = {};
        for (uint32_t h = 0; h < PLAIN_HEADS; h++)
            x[h] = -INFINITY;
        if (from == nullptr)
            return;
        const uint8_t *vector = from + attention_vector_in_page(a, a->k, position);
        for (uint32_t i = 0; i < a->kv.head_dim; i++) {
            float k = plain_element(a->kv.dtype, vector, i);
#pragma unroll
            for (uint32_t h = 0; h < PLAIN_HEADS; h++)
                dots[h] = fmaf(shared->q[h][i], k, dots[h]);
        }
        float factor = attention_scaled(a->factor, scale(from, a->k, position));
#pragma unroll
        for (uint32_t h = 0; h < PLAIN_HEADS; h++) {
            struct attention_bias<ALIBI> bias;
            bias.begin(a, attention_head_at(a, i_kv, first_slot + h), own);
            x[h] = bias.of(attention_score(dots[h], factor, a->softcap), base + position);
        }
    }

    /* Computes the weights of the partition, times the scales of V, and their maximum and sum. */
    __device__ void weigh(void)
    {
        float x[PLAIN_POSITIONS][PLAIN_HEADS];
#pragma unroll
        for (uint32_t i = 0; i < PLAIN_POSITIONS; i++)
            score_position(plain_item(i, lane), x[i]);
#pragma unroll
        for (uint32_t h = 0; h < PLAIN_HEADS; h++) {
            float max = -INFINITY, sum = 0.0f;
            for (uint32_t i = 0; i < PLAIN_POSITIONS; i++)
                max = x[i][h] > max ? x[i][h] : max;
            max = attention_reference(plain_warp_max(max));
            for (uint32_t i = 0; i < PLAIN_POSITIONS; i++) {
                float p = attention_exp2(x[i][h] - max);
                sum += p;
                shared->p[i_warp][h][plain_item(i, lane)] = p;
            }
            shared->max[i_warp][h] = max;
            shared->sum[i_warp][h] = plain_warp_sum(sum);
        }
        __syncwarp();
    }

    /* Sums the elements from `begin` on. */
    __device__ void multiply_values(float d[PLAIN_SLOTS][PLAIN_HEADS], uint32_t begin) const
    {
        for (uint32_t position = seen.begin; position < seen.end; position++) {
            const uint8_t *from = page(a->kv.v, a->v, position);
            if (from == nullptr)
                continue;
            const uint8_t *vector = from + attention_vector_in_page(a, a->v, position);
            float factor = scale(from, a->v, position), p[PLAIN_HEADS];
#pragma unroll
            for (uint32_t h = 0; h < PLAIN_HEADS; h++)
                p[h] = attention_scaled(shared->p[i_warp][h][position], factor);
#pragma unroll
            for (uint32_t s = 0; s < PLAIN_SLOTS; s++) {
                uint32_t i = begin + plain_item(s, lane);
                float v = i < a->kv.v_dim ? plain_element(a->kv.dtype, vector, i) : 0.0f;
#pragma unroll
                for (uint32_t h = 0; h < PLAIN_HEADS; h++)
                    d[s][h] = fmaf(p[h], v, d[s][h]);
            }
        }
    }
};

/* Loads the row's heads of a tile as floats; zeros for missing heads. */
template <uint32_t MAX_DIM>
CUDA_DEVICE void plain_load_queries(const struct attention_cuda *a,
                                    struct plain_shared<MAX_DIM> *shared, uint32_t row,
                                    uint32_t i_kv, uint32_t first_slot)
{
    for (uint32_t h = 0; h < PLAIN_HEADS; h++) {
        uint32_t head = attention_head_at(a, i_kv, first_slot + h);
        for (uint32_t i = threadIdx.x; i < a->kv.head_dim; i += DECODE_THREADS)
            shared->q[h][i] = head < a->n_heads ? a->q[attention_input_of(a, row, head, i)] : 0.0f;
    }
    __syncthreads();
}

/* Folds element i of head h over the partitions [begin, end) of a group, in index order. */
template <uint32_t MAX_DIM>
CUDA_DEVICE float plain_fold(const struct plain_shared<MAX_DIM> *shared, uint32_t h, uint32_t i,
                             uint32_t begin, uint32_t end, float *out_max, float *out_sum)
{
    float max = shared->max[begin][h], x = 0.0f, sum = 0.0f;
    for (uint32_t w = begin + 1; w < end; w++)
        max = shared->max[w][h] > max ? shared->max[w][h] : max;
    for (uint32_t w = begin; w < end; w++) {
        float weight = attention_exp2(shared->max[w][h] - max);
        x = fmaf(shared->x[w][i], weight, x);
        sum = fmaf(shared->sum[w][h], weight, sum);
    }
    *out_max = max;
    *out_sum = sum;
    return x;
}

/* Writes the current elements, those from `first` on. */
template <uint32_t MAX_DIM>
CUDA_DEVICE void plain_store(const struct attention_cuda *a,
                             const struct plain_shared<MAX_DIM> *shared, uint32_t row,
                             uint32_t head, uint32_t h, uint32_t group, uint32_t first,
                             struct attention_span span)
{
    uint32_t begin, end, n = a->kv.v_dim;
    decode_partitions(span, group, &begin, &end);
    for (uint32_t i = threadIdx.x; i < PLAIN_ELEMS && first + i < n; i += DECODE_THREADS) {
        uint32_t elem = first + i;
        float max, sum, x = plain_fold(shared, h, i, begin, end, &max, &sum);
        if (a->parts == nullptr) {
            a->y[attention_output_of(a, attention_row(a, row), head, elem)] =
                attention_sunk_result(attention_sunk_of(a->sinks, head, max), x, sum);
            continue;
        }
        float *part = a->parts + decode_part_at(a, row, head, group), *of_all = part + n;
        part[elem] = x;
        if (elem == 0) {
            of_all[0] = max;
            of_all[1] = sum;
        }
    }
}

/* Combines and stores the sums of the elements from `first` on, for all heads of the tile. */
template <uint32_t MAX_DIM, bool ALIBI>
CUDA_DEVICE void plain_finish(const struct plain_warp<MAX_DIM, ALIBI> *warp,
                              float d[PLAIN_SLOTS][PLAIN_HEADS], uint32_t first_slot,
                              uint32_t group, uint32_t first, struct attention_span span)
{
#pragma unroll
    for (uint32_t h = 0; h < PLAIN_HEADS; h++) {
        uint32_t head = attention_head_at(warp->a, warp->i_kv, first_slot + h);
#pragma unroll
        for (uint32_t s = 0; s < PLAIN_SLOTS; s++)
            warp->shared->x[warp->i_warp][plain_item(s, warp->lane)] = d[s][h];
        __syncthreads();
        if (head < warp->a->n_heads)
            plain_store(warp->a, warp->shared, blockIdx.x, head, h, group, first, span);
        __syncthreads();
    }
}

/* grid: (rows, KV heads × tiles, strides). */
template <uint32_t MAX_DIM, bool ALIBI>
static __global__ void __launch_bounds__(DECODE_THREADS, 3)
    attention_plain(const __grid_constant__ struct attention_cuda a)
{
    CUDA_SHARED(memory);
    cuda_op_begin();
    struct plain_shared<MAX_DIM> *shared = (struct plain_shared<MAX_DIM> *)memory;
    struct attention_tile tile =
        attention_tile_of(blockIdx.y, gridDim.y, a.kv.n_kv_heads, PLAIN_HEADS);
    uint32_t i_kv = tile.i_kv, first_slot = tile.first_slot, first;
    uint32_t row = attention_row(&a, blockIdx.x);
    struct plain_warp<MAX_DIM, ALIBI> warp = {
        &a, shared, cuda_warp_of(threadIdx.x), cuda_lane_of(threadIdx.x), i_kv, a.seq_of_row[row],
            0, {0, 0}, first_slot, a.positions[row]
    };
    if (warp.seq >= a.n_seqs || !attention_has_heads(&a, i_kv, first_slot, PLAIN_HEADS))
        return;
    plain_load_queries(&a, shared, row, i_kv, first_slot);
    struct attention_span span = attention_span_of(a.positions[row], a.window, a.chunk);
    uint32_t end = decode_groups(span, a.n_groups, &first);
    for (uint32_t group = attention_group_of(first, blockIdx.z); group < end; group += gridDim.z) {
        warp.base = attention_partition_begin(group, warp.i_warp);
        warp.seen = attention_span_within(span, warp.base, CUDA_PARTITION);
        bool sees = warp.seen.begin < warp.seen.end;
        if (sees)
            warp.weigh();
        for (uint32_t elem = 0; elem < MAX_DIM && elem < a.kv.v_dim; elem += PLAIN_ELEMS) {
            float d[PLAIN_SLOTS][PLAIN_HEADS] = {};
            if (sees)
                warp.multiply_values(d, elem);
            plain_finish(&warp, d, first_slot, group, elem, span);
        }
    }
}

/* A thread of attention_combine has some elements of a head, and the weight of one group of a
 * chunk. All loads of a step begin before the first is used. */
template <uint32_t MAX_DIM> struct combine_thread {
    static constexpr uint32_t ELEMS = combine_elems(MAX_DIM);

    const struct attention_cuda *a;
    const float *parts; /* results of the row and head */
    uint32_t end;       /* end of the row's groups */
    float x[ELEMS], sum;
    float kept[COMBINE_AHEAD][ELEMS]; /* elements of the groups that keep() loaded last */

    /* Loads a number of a group's result; of the last group's beyond the end. */
    ATTENTION_METHOD float load(uint32_t group, uint32_t i) const
    {
        return parts[combine_part_at(combine_within(group, end), a->kv.v_dim, i)];
    }

    ATTENTION_METHOD float load_max(uint32_t group) const
    {
        return load(group, a->kv.v_dim);
    }

    ATTENTION_METHOD float load_sum(uint32_t group) const
    {
        return load(group, a->kv.v_dim + 1);
    }

    ATTENTION_METHOD void keep(uint32_t first)
    {
#pragma unroll
        for (uint32_t i = 0; i < COMBINE_AHEAD; i++)
#pragma unroll
            for (uint32_t s = 0; s < ELEMS; s++)
                kept[i][s] = load(attention_group_of(first, i),
                                  combine_within(combine_elem(s, threadIdx.x), a->kv.v_dim));
    }

    /* Adds the kept groups, n of them or all, in index order. */
    ATTENTION_METHOD void add(const float *weights, const float *sums, uint32_t n)
    {
#pragma unroll
        for (uint32_t i = 0; i < COMBINE_AHEAD; i++)
            if (i < n) {
                sum = fmaf(sums[i], weights[i], sum);
#pragma unroll
                for (uint32_t s = 0; s < ELEMS; s++)
                    x[s] = fmaf(kept[i][s], weights[i], x[s]);
            }
    }
};

/* Combines the groups of a row and head, in index order: y = Σ x·w / Σ sum·w, w = 2^(max − largest
 * max). grid: (rows, heads). Bytes: 4 · (v_dim + 2) per group. */
template <uint32_t MAX_DIM>
static __global__ void __launch_bounds__(COMBINE_THREADS)
    attention_combine(const __grid_constant__ struct attention_cuda a)
{
    CUDA_SHARED(memory);
    cuda_op_begin();
    float *weights = (float *)memory, *sums = weights + COMBINE_CHUNK;
    uint32_t row = attention_row(&a, blockIdx.x), head = blockIdx.y, first;
    uint32_t position = a.positions[row];
    if (a.seq_of_row[row] >= a.n_seqs)
        return;
    struct attention_span span = attention_span_of(position, a.window, a.chunk);
    struct combine_thread<MAX_DIM> own = {
    };
    own.a = &a;
    own.parts = a.parts + decode_part_at(&a, blockIdx.x, head, 0);
    own.end = decode_groups(span, a.n_groups, &first);
    float own_max = own.load_max(attention_group_of(first, threadIdx.x));
    float own_sum = own.load_sum(attention_group_of(first, threadIdx.x));
    float max = -INFINITY;
    own.keep(first);
    for (uint32_t i = cuda_lane_of(threadIdx.x); attention_group_of(first, i) < own.end;
         i += CUDA_WARP)
        max = fmaxf(max, own.load_max(attention_group_of(first, i)));
    max = plain_warp_max(max);
    for (uint32_t chunk = first; chunk < own.end;
         chunk = attention_group_of(chunk, COMBINE_CHUNK)) {
        uint32_t n = combine_left(own.end, chunk, COMBINE_CHUNK);
        if (chunk > first) {
            own_max = own.load_max(attention_group_of(chunk, threadIdx.x));
            own_sum = own.load_sum(attention_group_of(chunk, threadIdx.x));
        }
        __syncthreads(); /* the last chunk's weights have been read */
        weights[threadIdx.x] = attention_exp2(own_max - max);
        sums[threadIdx.x] = own_sum;
        __syncthreads();
        for (uint32_t i = 0; i < n; i += COMBINE_AHEAD) {
            if (chunk > first || i > 0)
                own.keep(attention_group_of(chunk, i));
            own.add(weights + i, sums + i, combine_left(n, i, COMBINE_AHEAD));
        }
    }
    struct attention_sunk sunk = attention_sunk_of(a.sinks, head, max);
    for (uint32_t s = 0; s < combine_elems(MAX_DIM); s++) {
        uint32_t elem = combine_elem(s, threadIdx.x);
        if (elem < a.kv.v_dim)
            a.y[attention_output_of(&a, row, head, elem)] =
                attention_sunk_result(sunk, own.x[s], own.sum);
    }
}
