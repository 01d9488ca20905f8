/* attention_team_kernel.h: path D of attention for caches of codes (int8, f8), up to 8 heads per KV
 * head and vectors up to 128 elements. The bits are those of attention_decode_kernel.h: the same
 * mma in the same order, the same expressions. Only the distribution differs. There a warp computes
 * a partition; here a team of four warps does. Positions of the scores and elements of the sums are
 * independent, so a team splits them.
 *
 * A block has four teams, one per partition of a group, and fills an SM. All copies of a partition
 * are in flight at once: 32 KiB a team, 128 KiB an SM. The keys of a group are copied from the
 * moment that the previous group's scores are known. The values are copied from the moment that the
 * previous group's sums are known.
 * Block numbers are read a group ahead. A page's scales arrive with its keys, 16 bytes at a time.
 *
 * Keys: a lane copies exactly the bytes that it multiplies, and waits for them alone. Values: a
 * team shares them; a warp multiplies 32 elements of all 128 positions.
 *
 * Order: a team's barriers stand between the writes and reads that its warps share. Sums and stats
 * are for the whole block. An iteration writes them before its first __syncthreads(), reads them
 * before its second, and the next iteration writes them again. All threads pass both barriers: the
 * bounds of the loop are the block's. Yet compute-sanitizer's racecheck (CUDA 13.0, H200) reports
 * races between reads of team_fold() and writes of store_sums() and store_stats(). The reports are
 * false: BAR.SYNC 0 lies on every path between these instructions in the machine code too.
 *
 * Bytes and operations: as attention_decode_kernel.h. Instructions of a partition: about 3,000 by
 * four warps, where that kernel has 11,000 by one. Shared memory 180 KiB: compute capability 9.0
 * and above. Sources: as there. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: attention_team.cu attention_team registers 128 shared 1024
 *    ptx: attention_team.cu attention_team mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
 *    ptx: attention_team.cu attention_team cp.async.cg.shared.global
 */
#pragma once

#include "kernels/cuda/attention/attention_team_place.h"
#include "kernels/cuda/attention/attention_types.h"
#include "kernels/cuda/ptx_barrier.h"

/* A warp of a team. */
template <typename Kv, bool ALIBI> struct team_warp {
    static constexpr struct team_memory AT = team_memory_of();
    static constexpr uint32_t KEY_LOADS = decode_key_loads(TEAM_DIM, 1);
    static constexpr uint32_t KEY_STEPS = decode_key_steps(1);
    static_assert(decode_n_steps(TEAM_DIM, 1) == TEAM_STEPS, "mma along a vector of K");

    const struct attention_cuda *a;
    unsigned char *memory; /* the team's part of shared memory */
    uint32_t lane, g, t, team, part, i_kv, seq;
    struct attention_span seen; /* visible positions of the partition */
    uint32_t page, vector;      /* places of this lane's position, of the next copies */
    uint32_t q[TEAM_STEPS][4];
    float x[TEAM_STAGES][2][2]; /* scores, then weights */
    float max, sum, unit;

    ATTENTION_METHOD void sync(void) const
    {
        warps_sync(team_barrier(team), TEAM_THREADS);
    }

    ATTENTION_METHOD float *float_at(uint32_t at) const
    {
        return (float *)(memory + at);
    }

    /* --- copies --- */

    ATTENTION_METHOD struct attention_span seen_of(struct attention_span span, uint32_t group) const
    {
        return attention_span_within(span, attention_partition_begin(group, team), CUDA_PARTITION);
    }

    /* Returns the block of this lane's position; n_blocks if no row sees the block. */
    ATTENTION_METHOD uint32_t block_of(struct attention_span next, uint32_t group) const
    {
        uint32_t position = team_position(part, lane);
        uint32_t base = attention_partition_begin(group, team);
        if (!team_needs_block(a, next, position))
            return a->kv.n_blocks;
        return __ldg(a->block_tables + attention_table_at(a, seq, base + position));
    }

    ATTENTION_METHOD void locate(struct attention_span next, uint32_t block)
    {
        uint32_t position = team_position(part, lane);
        page = block < a->kv.n_blocks ? team_page_place(a, block, i_kv) : TEAM_NOWHERE;
        vector = page != TEAM_NOWHERE && attention_sees(next, position)
                     ? team_vector_place(a, page, position)
                     : TEAM_NOWHERE;
    }

    /* Copies 16 bytes of the vector at a place; zeros if there is none. `from` is the pool, moved
     * by the lane's bytes within a vector. */
    ATTENTION_METHOD void copy(uint32_t to, const uint8_t *from, uint32_t place, bool exists) const
    {
        exists = exists && place != TEAM_NOWHERE;
        cp_async_16(memory + to, from + team_bytes_of(exists ? place : 0), exists);
    }

    ATTENTION_METHOD void copy_scales(void) const
    {
        uint32_t first = team_scale_position(lane), position = team_position(part, first);
        uint32_t place = __shfl_sync(0xFFFFFFFFu, page, (int)first);
        bool of_key = team_is_key_scale(lane);
        if (place != TEAM_NOWHERE)
            place = team_scales_place(a, place, position);
        if (team_copies_scales(lane))
            copy(team_scale_at(of_key ? AT.k_scales : AT.v_scales, position),
                 (const uint8_t *)(of_key ? a->kv.k : a->kv.v), place, true);
    }

    /* Begins to copy the warp's keys and scales. */
    ATTENTION_METHOD void copy_keys(void) const
    {
        const uint8_t *from = (const uint8_t *)a->kv.k + decode_key_elem(0, t, 1);
#pragma unroll
        for (uint32_t s = 0; s < TEAM_STAGES; s++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                uint32_t place = __shfl_sync(0xFFFFFFFFu, vector, (int)team_key_position(s, i, g));
#pragma unroll
                for (uint32_t j = 0; j < KEY_LOADS; j++)
                    copy(team_key_at(AT, part, s, i, j, lane), from + decode_key_elem(j, 0, 1),
                         place, decode_key_elem(j, t, 1) < a->kv.head_dim);
            }
        copy_scales();
    }

    /* Begins to copy the values of the warp's positions. */
    ATTENTION_METHOD void copy_values(void) const
    {
        uint32_t chunk = team_value_chunk(lane), elem = attention_elem_at(chunk, 16);
        const uint8_t *from = (const uint8_t *)a->kv.v + elem;
        bool exists = elem < a->kv.head_dim;
#pragma unroll
        for (uint32_t i = 0; i < TEAM_COPIES; i++) {
            uint32_t position = team_value_position(i, lane);
            uint32_t place = __shfl_sync(0xFFFFFFFFu, vector, (int)position);
            copy(team_value_at(AT, team_position(part, position), chunk), from, place, exists);
        }
    }

    /* --- scores --- */

    ATTENTION_METHOD void multiply_keys(float d[TEAM_STAGES][2][4]) const
    {
#pragma unroll
        for (uint32_t j = 0; j < KEY_LOADS; j++) {
            if (decode_key_elem(j, 0, 1) >= a->kv.head_dim)
                continue;
            uint32_t words[TEAM_STAGES][2][4];
#pragma unroll
            for (uint32_t s = 0; s < TEAM_STAGES; s++)
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    uint4 loaded = *(const uint4 *)(memory + team_key_at(AT, part, s, i, j, lane));
                    words[s][i][0] = loaded.x;
                    words[s][i][1] = loaded.y;
                    words[s][i][2] = loaded.z;
                    words[s][i][3] = loaded.w;
                }
#pragma unroll
            for (uint32_t e = 0; e < KEY_STEPS; e++)
#pragma unroll
                for (uint32_t s = 0; s < TEAM_STAGES; s++)
#pragma unroll
                    for (uint32_t i = 0; i < 2; i++) {
                        uint32_t b[2];
                        Kv::keys(b, words[s][i], e);
                        Kv::mma(d[s][i], q[decode_step(j, e, 1)], b);
                    }
        }
    }

    ATTENTION_METHOD void scale_scores(uint32_t s, uint32_t i, const float d[4])
    {
        const float2 scales =
            *(const float2 *)(memory +
                              team_scale_at(AT.k_scales, team_score_position(part, s, i, t, 0)));
        x[s][i][0] = attention_scaled(decode_sum_of(d, true, 0, 0),
                                      attention_key_factor(a->factor, scales.x, Kv::unit));
        x[s][i][1] = attention_scaled(decode_sum_of(d, true, 0, 1),
                                      attention_key_factor(a->factor, scales.y, Kv::unit));
    }

    /* Caps, slopes and masks a score. */
    ATTENTION_METHOD void keep_score(const struct attention_bias<ALIBI> *bias, uint32_t s,
                                     uint32_t i, uint32_t c)
    {
        uint32_t position = team_score_position(part, s, i, t, c);
        float score = bias->of(x[s][i][c], position);
        x[s][i][c] = attention_sees(seen, position) ? score : -INFINITY;
        max = fmaxf(max, x[s][i][c]); /* a NaN is left out, as by a comparison */
    }

    ATTENTION_METHOD void cap_scores(void)
    {
#pragma unroll
        for (uint32_t s = 0; s < TEAM_STAGES; s++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++)
                    x[s][i][c] = attention_score(x[s][i][c], 1.0f, a->softcap);
    }

    /* Computes the warp's scores and the partition's maximum. */
    ATTENTION_METHOD void score(const struct attention_bias<ALIBI> *bias)
    {
        float d[TEAM_STAGES][2][4] = {};
        multiply_keys(d);
        max = -INFINITY;
#pragma unroll
        for (uint32_t s = 0; s < TEAM_STAGES; s++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
                scale_scores(s, i, d[s][i]);
        if (a->softcap > 0.0f)
            cap_scores();
#pragma unroll
        for (uint32_t s = 0; s < TEAM_STAGES; s++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++)
                    keep_score(bias, s, i, c);
        max = attention_reference(team_max(AT.maxima, attention_quad_max(max)));
    }

    /* Returns the maximum of the team's four warps, per slot. */
    ATTENTION_METHOD float team_max(uint32_t base, float own) const
    {
        if (t == 0)
            *float_at(team_slot_at(base, part, g)) = own;
        sync();
#pragma unroll
        for (uint32_t i = 0; i < TEAM_WARPS; i++) {
            own = fmaxf(own, *float_at(team_slot_at(base, i, g)));
        }
        return own;
    }

    /* --- weights --- */

    /* Turns scores into weights, stores them for their sum, and multiplies them by the scales. */
    ATTENTION_METHOD void weigh(void)
    {
        unit = 0.0f;
#pragma unroll
        for (uint32_t s = 0; s < TEAM_STAGES; s++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                float2 p;
                p.x = attention_exp2(x[s][i][0] - max);
                p.y = attention_exp2(x[s][i][1] - max);
                *(float2 *)(memory + team_tile_at(AT.weights, team_tile(part, s, i), lane)) = p;
                const float2 scales = *(
                    const float2 *)(memory + team_scale_at(AT.v_scales,
                                                           team_score_position(part, s, i, t, 0)));
                x[s][i][0] = attention_coded_weight(p.x, scales.x);
                x[s][i][1] = attention_coded_weight(p.y, scales.y);
                unit = fmaxf(unit, fmaxf(x[s][i][0], x[s][i][1]));
            }
    }

    /* Packs the weights as operands, in units of the partition's largest. */
    ATTENTION_METHOD void pack(void)
    {
        float most = team_max(AT.units, attention_quad_max(unit));
        float inv = attention_inverse(most);
        unit = attention_scaled(most, Kv::unit);
#pragma unroll
        for (uint32_t s = 0; s < TEAM_STAGES; s++)
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                float low = attention_scaled(x[s][i][0], inv);
                float high = attention_scaled(x[s][i][1], inv);
                uint2 pair;
                pair.x = Kv::pack(low, high);
                pair.y = attention_rest<Kv>(low, high, pair.x);
                *(uint2 *)(memory + team_tile_at(AT.operands, team_tile(part, s, i), lane)) = pair;
            }
    }

    /* Sums the partition's weights, in the order of one warp that has all of them. */
    ATTENTION_METHOD void sum_weights(void)
    {
        sum = 0.0f;
#pragma unroll
        for (uint32_t tile = 0; tile < DECODE_SCORES; tile++) {
            float2 p = *(const float2 *)(memory + team_tile_at(AT.weights, tile, lane));
            sum += p.x;
            sum += p.y;
        }
        sum = attention_quad_sum(sum);
    }

    /* --- sums of values --- */

    ATTENTION_METHOD void multiply_values(float d[TEAM_ELEMS][4]) const
    {
#pragma unroll
        for (uint32_t s = 0; s < DECODE_STAGES; s++) {
            uint2 low =
                *(const uint2 *)(memory + team_tile_at(AT.operands, decode_score_tile(s, 0), lane));
            uint2 high =
                *(const uint2 *)(memory + team_tile_at(AT.operands, decode_score_tile(s, 1), lane));
            const uint32_t p[4] = {low.x, low.y, high.x, high.y};
            uint32_t v[4], first[TEAM_ELEMS], second[TEAM_ELEMS];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                v[i] = *(const uint32_t *)(memory + team_word_at(AT, team_row(s, i, t), part, g));
            Kv::values(first, v[0], v[1]);
            Kv::values(second, v[2], v[3]);
#pragma unroll
            for (uint32_t e = 0; e < TEAM_ELEMS; e++) {
                const uint32_t b[2] = {first[e], second[e]};
                Kv::mma(d[e], p, b);
            }
        }
    }

    ATTENTION_METHOD void store_sums(const float d[TEAM_ELEMS][4]) const
    {
#pragma unroll
        for (uint32_t c = 0; c < 2; c++) {
            float4 four;
            four.x = attention_scaled(decode_sum_of(d[0], true, 0, c), unit);
            four.y = attention_scaled(decode_sum_of(d[1], true, 0, c), unit);
            four.z = attention_scaled(decode_sum_of(d[2], true, 0, c), unit);
            four.w = attention_scaled(decode_sum_of(d[3], true, 0, c), unit);
            *(float4 *)(memory + team_sum_at(AT, g, team_sum_elem(part, t, c))) = four;
        }
    }

    ATTENTION_METHOD void store_stats(unsigned char *shared)
    {
        if (part != 0)
            return;
        sum_weights();
        if (t == 0) {
            *(float *)(shared + team_stat_at(AT, team, false, g)) = max;
            *(float *)(shared + team_stat_at(AT, team, true, g)) = sum;
        }
    }
};

/* Stores the operands of the row's queries: one thread per mma and lane. */
template <typename Kv>
CUDA_DEVICE void team_load_queries(const struct attention_cuda *a, unsigned char *shared,
                                   uint32_t row, uint32_t i_kv)
{
    constexpr struct team_memory AT = team_memory_of();
    uint32_t step = cuda_warp_of(threadIdx.x), lane = cuda_lane_of(threadIdx.x);
    if (step >= TEAM_STEPS)
        return;
    uint32_t elem = decode_step_elem(step, fragment_member(lane), 1);
    uint32_t head = attention_head_at(a, i_kv, decode_slot(lane, 0));
    bool exists = head < a->n_heads && elem < a->kv.head_dim;
    const float *from = a->q + attention_input_of(a, row, exists ? head : 0, exists ? elem : 0);
    float x[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        x[i] = exists ? __ldg(from + i) : 0.0f;
    uint4 q;
    q.x = Kv::pack(x[0], x[1]);
    q.y = attention_rest<Kv>(x[0], x[1], q.x);
    q.z = Kv::pack(x[2], x[3]);
    q.w = attention_rest<Kv>(x[2], x[3], q.z);
    *(uint4 *)(shared + team_query_at(AT, step, lane)) = q;
}

/* Folds one element of one head over the partitions [begin, end) of a group, in index order: as
 * decode_block::fold(). */
CUDA_DEVICE void team_fold(const unsigned char *shared, uint32_t slot, uint32_t elem,
                           uint32_t begin, uint32_t end, float *out_x, float *out_max,
                           float *out_sum)
{
    constexpr struct team_memory AT = team_memory_of();
    float maxima[CUDA_GROUP_PARTITIONS], max = -INFINITY, x = 0.0f, sum = 0.0f;
#pragma unroll
    for (uint32_t w = 0; w < CUDA_GROUP_PARTITIONS; w++)
        if (w >= begin && w < end) {
            maxima[w] = *(const float *)(shared + team_stat_at(AT, w, false, slot));
            max = fmaxf(max, maxima[w]);
        }
#pragma unroll
    for (uint32_t w = 0; w < CUDA_GROUP_PARTITIONS; w++)
        if (w >= begin && w < end) {
            const unsigned char *memory = shared + team_at(AT, w);
            float weight = attention_exp2(maxima[w] - max);
            x = fmaf(*(const float *)(memory + team_sum_at(AT, slot, elem)), weight, x);
            sum = fmaf(*(const float *)(shared + team_stat_at(AT, w, true, slot)), weight, sum);
        }
    *out_x = x;
    *out_max = max;
    *out_sum = sum;
}

CUDA_DEVICE void team_store(const struct attention_cuda *a, const unsigned char *shared,
                            uint32_t i_kv, struct attention_span span, uint32_t group)
{
    uint32_t from, to;
    decode_partitions(span, group, &from, &to);
    for (uint32_t i = threadIdx.x; i < decode_n_items(a->heads_per_kv, TEAM_DIM); i += TEAM_BLOCK) {
        uint32_t slot = team_item_slot(i), elem = team_item_elem(i);
        uint32_t head = attention_head_at(a, i_kv, slot);
        float x, max, sum;
        if (head >= a->n_heads || elem >= a->kv.head_dim)
            continue;
        team_fold(shared, slot, elem, from, to, &x, &max, &sum);
        if (a->parts == nullptr) {
            a->y[attention_output_of(a, attention_row(a, blockIdx.x), head, elem)] =
                attention_sunk_result(attention_sunk_of(a->sinks, head, max), x, sum);
            continue;
        }
        float *part = a->parts + decode_part_at(a, blockIdx.x, head, group);
        float *of_all = part + a->kv.head_dim;
        part[elem] = x;
        if (elem == 0) {
            of_all[0] = max;
            of_all[1] = sum;
        }
    }
}

/* grid: (rows, KV heads, strides). */
template <typename Kv, bool ALIBI>
static __global__ void __launch_bounds__(TEAM_BLOCK, 1)
    attention_team(const __grid_constant__ struct attention_cuda a)
{
    typedef team_warp<Kv, ALIBI> Warp;
    CUDA_SHARED(shared);
    cuda_op_begin();
    uint32_t row = attention_row(&a, blockIdx.x), first, own = a.positions[row];
    Warp warp;
    warp.a = &a;
    warp.team = team_of(threadIdx.x);
    warp.part = team_part(threadIdx.x);
    warp.memory = shared + team_at(Warp::AT, warp.team);
    warp.lane = cuda_lane_of(threadIdx.x);
    warp.g = fragment_group(warp.lane);
    warp.t = fragment_member(warp.lane);
    warp.i_kv = blockIdx.y;
    warp.seq = a.seq_of_row[row];
    if (warp.seq >= a.n_seqs || !team_has_heads(&a, warp.i_kv))
        return;
    struct attention_span span = attention_span_of(own, a.window, a.chunk);
    uint32_t end = decode_groups(span, a.n_groups, &first);
    uint32_t group = attention_group_of(first, blockIdx.z);
    if (group >= end)
        return;
    warp.seen = warp.seen_of(span, group);
    warp.locate(warp.seen, warp.block_of(warp.seen, group));
    warp.copy_keys();
    cp_async_commit();
    warp.copy_values();
    cp_async_commit();
    team_load_queries<Kv>(&a, shared, row, warp.i_kv);
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < TEAM_STEPS; k++) {
        uint4 q = *(const uint4 *)(shared + team_query_at(Warp::AT, k, warp.lane));
        warp.q[k][0] = q.x;
        warp.q[k][1] = q.y;
        warp.q[k][2] = q.z;
        warp.q[k][3] = q.w;
    }
    struct attention_bias<ALIBI> bias;
#pragma unroll 1
    for (uint32_t next; group < end; group = next) {
        next = team_next(group, gridDim.z);
        struct attention_span ahead = {0, 0};
        if (next < end)
            ahead = warp.seen_of(span, next);
        uint32_t block = warp.block_of(ahead, next);
        bool sees = warp.seen.begin < warp.seen.end; /* the same in all of a team */
        cp_async_wait<1>();                          /* keys and scales */
        __syncwarp();
        if (sees) {
            bias.begin(&a, attention_head_at(&a, warp.i_kv, warp.g),
                       own - attention_partition_begin(group, warp.team));
            warp.score(&bias);
            warp.weigh();
        }
        __syncwarp(); /* all lanes have read the scales */
        warp.locate(ahead, block);
        if (next < end)
            warp.copy_keys();
        cp_async_commit();
        cp_async_wait<1>(); /* values */
        if (sees) {
            float d[TEAM_ELEMS][4] = {};
            warp.pack();
            warp.sync();
            warp.multiply_values(d);
            warp.store_sums(d);
            warp.store_stats(shared);
        }
        __syncthreads();
        if (next < end)
            warp.copy_values();
        cp_async_commit();
        team_store(&a, shared, warp.i_kv, span, group);
        warp.seen = ahead;
        __syncthreads();
    }
}

template <typename Kv, bool ALIBI>
static int team_launch(void *stream, const struct attention_cuda *a, const struct decode_plan *plan)
{
    constexpr uint32_t n_bytes = team_memory_of().n_bytes;
    auto *kernel = attention_team<Kv, ALIBI>;
    int code = CUDA_ALLOW_SHARED(kernel, n_bytes);
    return code != 0
               ? code
               : CUDA_LAUNCH(kernel, dim3(a->n_rows, plan->n_tiles, team_strides(plan, a->n_rows)),
                             TEAM_BLOCK, n_bytes, stream, *a);
}
