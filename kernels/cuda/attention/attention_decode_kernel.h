/* attention_decode_kernel.h: path D of attention for caches of 16-bit and 8-bit types. A block
 * computes the heads of one KV head for one row and walks over groups of 512 positions. Each of its
 * four warps computes one whole partition of 128; then the block folds the four.
 * attention_plain_kernel.h combines the groups.
 *
 * Shapes: head_dim and v_dim up to DIM (loads beyond them are skipped). Up to 8 heads per KV head:
 * tiles of 8 heads, each in two rows of the mma. The rows hold the high and low halves of queries
 * and weights: nearly f32. With more heads: tiles of 16 heads, rounded to the operands' type.
 * Further tiles read K and V again, from L2. Bytes: (head_dim + v_dim) · elem_bytes per position
 * and KV head, once; the groups' results, 4 · (v_dim + 2) per head and 512 positions, twice.
 * Operations: mma of 4 · 16 · DIM per position, of which 2 · heads_per_kv · (head_dim + v_dim) are
 * useful. Bound: memory.
 *
 * K and V pass through a ring in shared memory, in which each lane has its own places. A lane
 * copies exactly the bytes that it multiplies later (cp.async, 16 bytes, some 24 in flight). So a
 * lane waits for its own copies alone. The order of the mma's k (for K) and n (for V) is chosen so
 * that 16 consecutive bytes of a vector belong to one lane.
 *
 * Registers and shared memory: the table in attention_decode.cu. Sources: FlashAttention-2 (arXiv
 * 2307.08691), Flash-Decoding (PyTorch blog, 2023), PagedAttention (arXiv 2309.06180). */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: attention_decode.cu (bf16|halvesE)Lj64ELb0 registers 112 shared 1024
 *    ptxas: attention_decode.cu (bf16|halvesE)Lj64ELb1 registers 104 shared 1024
 *    ptxas: attention_decode.cu (bf16|halvesE)Lj128ELb0 registers 160 shared 1024
 *    ptxas: attention_decode.cu (bf16|halvesE)Lj128ELb1 registers 160 shared 1024
 *    ptxas: attention_decode.cu (bf16|halvesE)Lj192ELb0 registers 192 shared 1024
 *    ptxas: attention_decode.cu (bf16|halvesE)Lj192ELb1 registers 184 shared 1024
 *    ptxas: attention_decode.cu (bf16|halvesE)Lj256ELb0 registers 216 shared 1024
 *    ptxas: attention_decode.cu (bf16|halvesE)Lj256ELb1 registers 208 shared 1024
 *    ptxas: attention_decode.cu codes.*Lj128ELb0 registers 168 shared 1024
 *    ptxas: attention_decode.cu codes.*Lj128ELb1 registers 144 shared 1024
 *    ptxas: attention_decode.cu codes.*Lj256ELb0 registers 255 shared 1024
 *    ptxas: attention_decode.cu codes.*Lj256ELb1 registers 208 shared 1024
 *    ptxas: attention_decode_alibi.cu attention_decode registers 255 shared 1024
 *    ptx: attention_decode.cu kv_bf16 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
 *    ptx: attention_decode.cu kv_as_f16 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
 *    ptx: attention_decode.cu attention_decode cp.async.cg.shared.global
 */
#pragma once

#include "kernels/cuda/attention/attention_types.h"

/* The work of one warp on one partition. Head r of a lane is row g + 8·r of the mma. */
template <typename Kv, uint32_t DIM, bool SPLIT, bool ALIBI> struct decode_warp {
    static constexpr uint32_t LOADS = decode_stage_loads(DIM, Kv::elem_bytes);
    static constexpr uint32_t RING = decode_ring_stages(DIM, Kv::elem_bytes);
    static constexpr uint32_t KEY_LOADS = decode_key_loads(DIM, Kv::elem_bytes);
    static constexpr uint32_t KEY_STEPS = decode_key_steps(Kv::elem_bytes);
    static constexpr uint32_t STEPS = decode_n_steps(DIM, Kv::elem_bytes);
    static constexpr uint32_t SETS = decode_value_sets(DIM, Kv::elem_bytes);
    static constexpr uint32_t WORD = decode_word_elems(Kv::elem_bytes);
    static constexpr uint32_t VALUES = decode_n_values(DIM, Kv::elem_bytes);
    static constexpr uint32_t AHEAD = RING - 1;     /* stages in flight */
    static constexpr uint32_t ROWS = SPLIT ? 1 : 2; /* heads per lane */
    static constexpr uint32_t HEADS = SPLIT ? DECODE_SPLIT_HEADS : DECODE_HEADS;
    static constexpr uint32_t WORDS = decode_score_words(ROWS); /* per lane and mma */
    static constexpr struct decode_memory AT = decode_memory_of(DIM, Kv::elem_bytes, SPLIT);

    const struct attention_cuda *a;
    unsigned char *memory; /* this warp's part of shared memory */
    uint32_t lane, g, t, i_kv, first_slot;
    struct attention_span seen; /* visible positions of the partition */
    uint32_t fill, drain;       /* slots of the ring: to fill next, to read next */
    float max[ROWS], sum[ROWS], unit[ROWS];
    struct attention_bias<ALIBI> bias[ROWS]; /* positions are relative to the partition */

    ATTENTION_METHOD const uint8_t *page(const void *pool, struct attention_plane plane,
                                         uint32_t position, bool *valid) const
    {
        uint32_t block = ((const uint32_t *)(memory + AT.blocks))[attention_entry_of(a, position)];
        *valid = attention_sees(seen, position) && block < a->kv.n_blocks;
        return (const uint8_t *)pool + (*valid ? attention_page_at(a, plane, block, i_kv) : 0);
    }

    ATTENTION_METHOD float scale_at(const void *pool, struct attention_plane plane,
                                    uint32_t position) const
    {
        bool valid;
        const uint8_t *from = page(pool, plane, position, &valid);
        return valid ? *(const float *)(from + attention_scale_in_page(a, plane, position)) : 0.0f;
    }

    /* Reads the partition's block numbers and scales. */
    ATTENTION_METHOD void look_up(uint32_t seq, uint32_t base)
    {
        uint32_t *numbers = (uint32_t *)(memory + AT.blocks);
        for (uint32_t i = lane; i < attention_partition_blocks(a); i += 32) {
            uint32_t position = attention_entry_begin(a, i);
            bool used = position < seen.end && position + a->kv.block_size > seen.begin;
            numbers[i] = used ? __ldg(a->block_tables + attention_table_at(a, seq, base + position))
                              : a->kv.n_blocks;
        }
        __syncwarp();
        if constexpr (Kv::is_coded) {
            for (uint32_t p = lane; p < CUDA_PARTITION; p += 32) {
                ((float *)(memory + AT.k_scales))[p] = scale_at(a->kv.k, a->k, p);
                ((float *)(memory + AT.v_scales))[p] = scale_at(a->kv.v, a->v, p);
            }
            __syncwarp();
        }
    }

    ATTENTION_METHOD unsigned char *ring_at(uint32_t slot, uint32_t load) const
    {
        return memory + decode_ring_at(AT, LOADS, slot, load, lane);
    }

    ATTENTION_METHOD void take(uint32_t words[4], uint32_t load) const
    {
        uint4 x = *(const uint4 *)ring_at(drain, load);
        words[0] = x.x;
        words[1] = x.y;
        words[2] = x.z;
        words[3] = x.w;
    }

    ATTENTION_METHOD void copy_keys(uint32_t stage)
    {
        for (uint32_t i = 0; i < 2; i++) {
            bool valid;
            uint32_t position = decode_stage_begin(stage) + decode_key_position(i, g);
            const uint8_t *from = page(a->kv.k, a->k, position, &valid);
            from += attention_vector_in_page(a, a->k, position);
#pragma unroll
            for (uint32_t j = 0; j < KEY_LOADS; j++) {
                uint32_t elem = decode_key_elem(j, t, Kv::elem_bytes);
                bool exists = valid && elem < a->kv.head_dim;
                if (decode_key_elem(j, 0, Kv::elem_bytes) < a->kv.head_dim)
                    cp_async_16(ring_at(fill, decode_key_load(DIM, Kv::elem_bytes, i, j)),
                                exists ? from + attention_elem_at(elem, Kv::elem_bytes)
                                       : (const uint8_t *)a->kv.k,
                                exists);
            }
        }
    }

    ATTENTION_METHOD void copy_values(uint32_t stage)
    {
        for (uint32_t i = 0; i < 4; i++) {
            bool valid;
            uint32_t position = decode_stage_begin(stage) + decode_value_position(i, t);
            const uint8_t *from = page(a->kv.v, a->v, position, &valid);
            from += attention_vector_in_page(a, a->v, position);
#pragma unroll
            for (uint32_t set = 0; set < SETS; set++) {
                uint32_t elem = decode_value_elem(set, g, Kv::elem_bytes);
                bool exists = valid && elem < a->kv.v_dim;
                cp_async_16(ring_at(fill, decode_value_load(set, i)),
                            exists ? from + attention_elem_at(elem, Kv::elem_bytes)
                                   : (const uint8_t *)a->kv.v,
                            exists);
            }
        }
    }

    /* Copies stages of K, then of V. After the last stage an empty group keeps the count of
     * groups. */
    ATTENTION_METHOD void copy_stage(uint32_t stage)
    {
        if (stage < DECODE_STAGES)
            copy_keys(stage);
        else if (stage - DECODE_STAGES < DECODE_STAGES)
            copy_values(stage - DECODE_STAGES);
        cp_async_commit();
        fill = fill + 1 == RING ? 0 : fill + 1;
    }

    ATTENTION_METHOD void begin_copies(void)
    {
        fill = drain = 0;
#pragma unroll 1
        for (uint32_t stage = 0; stage < AHEAD; stage++)
            copy_stage(stage);
    }

    ATTENTION_METHOD void await_stage(uint32_t stage)
    {
        copy_stage(stage + AHEAD);
        cp_async_wait<AHEAD>();
    }

    ATTENTION_METHOD void stage_done(void)
    {
        drain = drain + 1 == RING ? 0 : drain + 1;
    }

    /* Loads operand A of the scores: a row's four elements from `elem` on, as two registers
     * each. */
    ATTENTION_METHOD void load_query(uint32_t q[4], uint32_t row, uint32_t elem) const
    {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            uint32_t head = attention_head_at(a, i_kv, first_slot + decode_slot(lane, r));
            if (r < ROWS && head < a->n_heads && elem < a->kv.head_dim)
                for (uint32_t i = 0; i < 4; i++)
                    x[i] = __ldg(a->q + attention_input_of(a, row, head, elem + i));
            if (r < ROWS) {
                q[decode_query_register(r, 0)] = Kv::pack(x[0], x[1]);
                q[decode_query_register(r, 1)] = Kv::pack(x[2], x[3]);
            }
            if (SPLIT && r == 0) {
                q[1] = attention_rest<Kv>(x[0], x[1], q[0]);
                q[3] = attention_rest<Kv>(x[2], x[3], q[2]);
            }
        }
    }

    /* Returns this lane's words for mma i (of 16 in the partition): scores, later weights. */
    ATTENTION_METHOD uint32_t *score_at(uint32_t i) const
    {
        return (uint32_t *)(memory + decode_score_at(AT, ROWS, i, lane));
    }

    ATTENTION_METHOD void keep_scores(uint32_t i, const float d[4])
    {
        uint32_t *scores = score_at(i);
#pragma unroll
        for (uint32_t c = 0; c < 2; c++) {
            uint32_t position = decode_score_position(i, t, c);
            float factor = a->factor;
            if constexpr (Kv::is_coded)
                factor = attention_key_factor(
                    factor, ((const float *)(memory + AT.k_scales))[position], Kv::unit);
#pragma unroll
            for (uint32_t r = 0; r < ROWS; r++) {
                float dot = decode_sum_of(d, SPLIT, r, c);
                float x = -INFINITY;
                if (attention_sees(seen, position))
                    x = bias[r].of(attention_score(dot, factor, a->softcap), position);
                scores[decode_score_word(r, c)] = __float_as_uint(x);
                max[r] = x > max[r] ? x : max[r];
            }
        }
    }

    ATTENTION_METHOD void multiply_keys(uint32_t row)
    {
        uint32_t q[STEPS][4];
#pragma unroll
        for (uint32_t k = 0; k < STEPS; k++)
            load_query(q[k], row, decode_step_elem(k, t, Kv::elem_bytes));
        for (uint32_t r = 0; r < ROWS; r++)
            max[r] = -INFINITY;
#pragma unroll 1
        for (uint32_t stage = 0; stage < DECODE_STAGES; stage++) {
            float d[2][4] = {};
            await_stage(stage);
#pragma unroll
            for (uint32_t j = 0; j < KEY_LOADS; j++) {
                if (decode_key_elem(j, 0, Kv::elem_bytes) >= a->kv.head_dim)
                    continue;
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    uint32_t words[4];
                    take(words, decode_key_load(DIM, Kv::elem_bytes, i, j));
#pragma unroll
                    for (uint32_t e = 0; e < KEY_STEPS; e++) {
                        uint32_t b[2];
                        Kv::keys(b, words, e);
                        Kv::mma(d[i], q[decode_step(j, e, Kv::elem_bytes)], b);
                    }
                }
            }
            keep_scores(decode_score_tile(stage, 0), d[0]);
            keep_scores(decode_score_tile(stage, 1), d[1]);
            stage_done();
        }
        for (uint32_t r = 0; r < ROWS; r++)
            max[r] = attention_reference(attention_quad_max(max[r]));
    }

    /* Packs the weights of row r of one mma into operand A of the values. */
    ATTENTION_METHOD void pack_weights(uint32_t i, uint32_t r, float x, float y)
    {
        uint32_t *pairs = score_at(i), pair = Kv::pack(x, y);
        pairs[r] = pair;
        if (SPLIT)
            pairs[1] = attention_rest<Kv>(x, y, pair);
    }

    /* Stores weights times the scales of V, for pack_coded_weights(). */
    ATTENTION_METHOD void keep_coded_weights(uint32_t i, uint32_t r, const float p[2])
    {
        for (uint32_t c = 0; c < 2; c++) {
            const float *scales = (const float *)(memory + AT.v_scales);
            float w = attention_coded_weight(p[c], scales[decode_score_position(i, t, c)]);
            score_at(i)[decode_score_word(r, c)] = __float_as_uint(w);
            unit[r] = w > unit[r] ? w : unit[r];
        }
    }

    /* Packs weights times their scales, in units of the largest, so that f16 can hold them. */
    ATTENTION_METHOD void pack_coded_weights(void)
    {
        float inv[ROWS];
        for (uint32_t r = 0; r < ROWS; r++) {
            float most = attention_quad_max(unit[r]);
            inv[r] = attention_inverse(most);
            unit[r] = attention_scaled(most, Kv::unit);
        }
#pragma unroll 2
        for (uint32_t i = 0; i < DECODE_SCORES; i++) {
            float w[WORDS];
            for (uint32_t k = 0; k < WORDS; k++)
                w[k] = attention_scaled(__uint_as_float(score_at(i)[k]), inv[decode_word_row(k)]);
            for (uint32_t r = 0; r < ROWS; r++)
                pack_weights(i, r, w[decode_score_word(r, 0)], w[decode_score_word(r, 1)]);
        }
    }

    /* Turns scores into weights, in place. */
    ATTENTION_METHOD void weigh(void)
    {
        for (uint32_t r = 0; r < ROWS; r++)
            sum[r] = unit[r] = 0.0f;
#pragma unroll 2
        for (uint32_t i = 0; i < DECODE_SCORES; i++) {
            float p[WORDS];
            for (uint32_t k = 0; k < WORDS; k++) {
                uint32_t r = decode_word_row(k);
                p[k] = attention_exp2(__uint_as_float(score_at(i)[k]) - max[r]);
                sum[r] += p[k];
            }
            for (uint32_t r = 0; r < ROWS; r++)
                if constexpr (Kv::is_coded)
                    keep_coded_weights(i, r, p + decode_score_word(r, 0));
                else
                    pack_weights(i, r, p[decode_score_word(r, 0)], p[decode_score_word(r, 1)]);
        }
        if constexpr (Kv::is_coded)
            pack_coded_weights();
        for (uint32_t r = 0; r < ROWS; r++)
            sum[r] = attention_quad_sum(sum[r]);
    }

    ATTENTION_METHOD void multiply_set(float d[][4], const uint32_t p[4], uint32_t set) const
    {
        uint32_t v[4][4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            take(v[i], decode_value_load(set, i));
#pragma unroll
        for (uint32_t w = 0; w < 4; w++) {
            uint32_t low[WORD], high[WORD];
            Kv::values(low, v[0][w], v[1][w]);
            Kv::values(high, v[2][w], v[3][w]);
#pragma unroll
            for (uint32_t e = 0; e < WORD; e++) {
                const uint32_t b[2] = {low[e], high[e]};
                Kv::mma(d[decode_value_tile(set, w, e, Kv::elem_bytes)], p, b);
            }
        }
    }

    /* Stores the partition's sums, [HEADS][DIM] floats, over the ring. */
    ATTENTION_METHOD void store_sums(const float d[][4])
    {
        float *out = (float *)memory;
        __syncwarp(); /* all lanes have finished with ring and scores */
#pragma unroll
        for (uint32_t n = 0; n < VALUES; n++)
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                uint32_t elem = decode_sum_elem(n, t, c, Kv::elem_bytes);
#pragma unroll
                for (uint32_t r = 0; r < ROWS; r++) {
                    float x = decode_sum_of(d[n], SPLIT, r, c);
                    out[decode_result_at(DIM, decode_slot(lane, r), elem)] =
                        Kv::is_coded ? attention_scaled(x, unit[r]) : x;
                }
            }
    }

    ATTENTION_METHOD void multiply_values(void)
    {
        float d[VALUES][4] = {};
#pragma unroll 1
        for (uint32_t stage = 0; stage < DECODE_STAGES; stage++) {
            const uint32_t *low = score_at(decode_score_tile(stage, 0));
            const uint32_t *high = score_at(decode_score_tile(stage, 1));
            const uint32_t p[4] = {low[0], low[1], high[0], high[1]};
            await_stage(DECODE_STAGES + stage);
#pragma unroll
            for (uint32_t set = 0; set < SETS; set++)
                multiply_set(d, p, set);
            stage_done();
        }
        cp_async_wait<0>();
        store_sums(d);
    }

    ATTENTION_METHOD void run(uint32_t row, uint32_t seq, uint32_t base)
    {
        for (uint32_t r = 0; r < ROWS; r++)
            bias[r].begin(a, attention_head_at(a, i_kv, first_slot + decode_slot(lane, r)),
                          a->positions[row] - base);
        look_up(seq, base);
        begin_copies();
        multiply_keys(row);
        weigh();
        multiply_values();
        __syncwarp(); /* sums are stored before the next partition is copied over them */
    }
};

/* The data that a block folds: its warps' sums, their maxima and their sums of weights. */
template <typename Warp, uint32_t DIM> struct decode_block {
    const struct attention_cuda *a;
    unsigned char *shared;
    uint32_t row, i_kv, first_slot; /* row: index within the launch */

    ATTENTION_METHOD unsigned char *memory_of(uint32_t warp) const
    {
        return shared + decode_warp_at(Warp::AT, warp);
    }

    /* [warp][2][DECODE_HEADS]: maxima, sums. */
    ATTENTION_METHOD float *stats(uint32_t warp) const
    {
        return (float *)(shared + decode_stats_at(Warp::AT, warp));
    }

    ATTENTION_METHOD float *sums(uint32_t warp) const
    {
        return stats(warp) + DECODE_HEADS;
    }

    ATTENTION_METHOD void note(const Warp *warp, uint32_t i_warp) const
    {
        if (warp->t == 0)
            for (uint32_t r = 0; r < Warp::ROWS; r++) {
                stats(i_warp)[decode_slot(warp->lane, r)] = warp->max[r];
                sums(i_warp)[decode_slot(warp->lane, r)] = warp->sum[r];
            }
    }

    /* Folds one element of one head over the partitions [begin, end) of a group, in index order. */
    ATTENTION_METHOD void fold(uint32_t slot, uint32_t elem, uint32_t begin, uint32_t end,
                               float *out_x, float *out_max, float *out_sum) const
    {
        float max = stats(begin)[slot], x = 0.0f, sum = 0.0f;
        for (uint32_t w = begin + 1; w < end; w++)
            max = stats(w)[slot] > max ? stats(w)[slot] : max;
        for (uint32_t w = begin; w < end; w++) {
            float weight = attention_exp2(stats(w)[slot] - max);
            x = fmaf(((const float *)memory_of(w))[decode_result_at(DIM, slot, elem)], weight, x);
            sum = fmaf(sums(w)[slot], weight, sum);
        }
        *out_x = x;
        *out_max = max;
        *out_sum = sum;
    }

    ATTENTION_METHOD void store(uint32_t group, uint32_t begin, uint32_t end) const
    {
        uint32_t n = a->kv.v_dim;
        for (uint32_t i = threadIdx.x; i < decode_n_items(Warp::HEADS, n); i += DECODE_THREADS) {
            uint32_t slot = decode_item_slot(i, n), elem = decode_item_elem(i, n);
            uint32_t head = attention_head_at(a, i_kv, first_slot + slot);
            float x, max, sum;
            if (head >= a->n_heads)
                continue;
            fold(slot, elem, begin, end, &x, &max, &sum);
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
};

/* grid: (rows, KV heads × tiles, strides). */
template <typename Kv, uint32_t DIM, bool SPLIT, bool ALIBI>
static __global__ void __launch_bounds__(DECODE_THREADS, DIM > 128 ? 2 : 3)
    attention_decode(const __grid_constant__ struct attention_cuda a)
{
    typedef decode_warp<Kv, DIM, SPLIT, ALIBI> Warp;
    CUDA_SHARED(shared);
    cuda_op_begin();
    struct attention_tile tile =
        attention_tile_of(blockIdx.y, gridDim.y, a.kv.n_kv_heads, Warp::HEADS);
    uint32_t i_warp = cuda_warp_of(threadIdx.x), row = attention_row(&a, blockIdx.x), first;
    uint32_t seq = a.seq_of_row[row];
    struct decode_block<Warp, DIM> block = {
        &a, shared, blockIdx.x, tile.i_kv, tile.first_slot
    };
    Warp warp;
    warp.a = &a;
    warp.memory = block.memory_of(i_warp);
    warp.lane = cuda_lane_of(threadIdx.x);
    warp.g = fragment_group(warp.lane);
    warp.t = fragment_member(warp.lane);
    warp.i_kv = block.i_kv;
    warp.first_slot = block.first_slot;
    if (seq >= a.n_seqs || !attention_has_heads(&a, block.i_kv, block.first_slot, Warp::HEADS))
        return;
    struct attention_span span = attention_span_of(a.positions[row], a.window, a.chunk);
    uint32_t end = decode_groups(span, a.n_groups, &first);
    for (uint32_t group = attention_group_of(first, blockIdx.z); group < end; group += gridDim.z) {
        uint32_t base = attention_partition_begin(group, i_warp), from, to;
        warp.seen = attention_span_within(span, base, CUDA_PARTITION);
        if (warp.seen.begin < warp.seen.end) {
            warp.run(row, seq, base);
            block.note(&warp, i_warp);
        }
        __syncthreads();
        decode_partitions(span, group, &from, &to);
        block.store(group, from, to);
        __syncthreads();
    }
}

/* The launcher in attention_decode.cu must allow the shared memory first. */
template <typename Kv, uint32_t DIM, bool SPLIT, bool ALIBI>
static int decode_launch(void *stream, const struct attention_cuda *a,
                         const struct decode_plan *plan)
{
    constexpr uint32_t n_bytes = decode_shared_bytes(DIM, Kv::elem_bytes, SPLIT);
    static_assert(n_bytes <= SHARED_PER_BLOCK, "fits every GPU");
    auto *kernel = attention_decode<Kv, DIM, SPLIT, ALIBI>;
    int code = CUDA_ALLOW_SHARED(kernel, n_bytes);
    return code != 0 ? code
                     : CUDA_LAUNCH(kernel, dim3(a->n_rows, plan->n_tiles, plan->n_strides),
                                   DECODE_THREADS, n_bytes, stream, *a);
}
