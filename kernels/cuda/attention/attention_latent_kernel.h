/* attention_latent_kernel.h: attention of a latent cache (arXiv 2405.04434) of a 16-bit or 8-bit
 * type. Vectors of V are the first elements of those of K. Both paths have this kernel. On path D
 * a block computes heads of one row, and walks over groups of 512 positions as in
 * attention_decode_kernel.h; attention_plain_kernel.h combines the groups. On path P a block
 * computes heads of as many rows as have room in 32 queries, over all their positions.
 *
 * A block walks over stages of 32 positions aligned to 0, in index order. A stage takes the place
 * that a partition has in the other kernels: its scores, its maximum, then the running sums. So a
 * stage's vectors are in shared memory once, for its scores and for its values. A partition of 128
 * would not fit there. A stage without visible positions leaves a row's bits unchanged. So the bits
 * depend neither on the other rows nor on the tile.
 *
 * Shapes: head_dim up to 576, v_dim up to 512, any number of heads. Scores: a warp keeps a quarter
 * of the elements of 32 queries in registers, and multiplies these with 16 positions. Shared memory
 * adds the quarters. Values: a warp has 64 of the elements of V. Operands are bf16 or f16, sums
 * f32. Bytes: head_dim · elem_bytes per position and tile of 32 heads, from L2 but for the first
 * tile; 4 · heads · (head_dim + v_dim) per row. Operations: 2 · heads · (head_dim + v_dim) per
 * position. Bound: memory for up to 32 heads on path D, else mma.sync. A thread's copies are 16
 * bytes, and eight threads copy 128 adjacent bytes. A stage is in flight while the one before it is
 * computed: 36 KiB an SM. Shared memory: 96 KiB. */
/* Limits that tests/lint/ptxas.sh checks:
 *    ptxas: attention_latent.cu attention_latent registers 240 shared 1024
 *    ptx: attention_latent.cu kv_bf16 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
 *    ptx: attention_latent.cu kv_as_f16 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
 *    ptx: attention_latent.cu attention_latent ldmatrix.sync.aligned.m8n8.x4.trans
 *    ptx: attention_latent.cu attention_latent cp.async.cg.shared.global
 */
#pragma once

#include "kernels/cuda/attention/attention_latent_index.h"
#include "kernels/cuda/attention/attention_types.h"

/* The rows of a block's tile, [begin, end) of the stream's rows, and its heads. */
struct latent_tile {
    const struct attention_cuda *a;
    uint32_t begin, end, i_kv, first_slot;

    /* Gets row and head of a query; false if there is none. */
    ATTENTION_METHOD bool query(uint32_t i, uint32_t *out_row, uint32_t *out_head) const
    {
        *out_row = begin + latent_query_row(i, a->heads_per_kv);
        *out_head = attention_head_at(a, i_kv, latent_query_slot(i, a->heads_per_kv, first_slot));
        return *out_row < end && *out_head < a->n_heads;
    }

    /* Returns the end of the rows from `row` on with the same sequence. */
    ATTENTION_METHOD uint32_t sequence_end(uint32_t row) const
    {
        uint32_t seq = a->seq_of_row[row], next = row + 1;
        while (next < end && a->seq_of_row[next] == seq)
            next++;
        return next;
    }
};

/* Arrays of registers belong to the functions, not to the struct. Operands of Q:
 * q[ROW_TILES][STEPS][4]. Sums: d[ROW_TILES][2 * SETS][4]. */
template <typename Kv> struct latent_block {
    static constexpr struct latent_memory AT = latent_memory_of(Kv::elem_bytes);
    static constexpr uint32_t COPIES = latent_copies(Kv::elem_bytes);
    static constexpr uint32_t SUMS = latent_value_sum(LATENT_SETS, 0);

    const struct attention_cuda *a;
    const struct latent_tile *tile;
    unsigned char *shared;
    uint32_t i_warp, lane, seq;
    struct attention_span first, last; /* spans of the sequence's first and last row */
    struct attention_span seen;        /* span of the query whose softmax this thread computes */
    float max, sum, unit;              /* that query's; sum: this thread's share */
    float scale;                       /* the next stage's, at this thread's position */

    /* --- memory --- */

    ATTENTION_METHOD const uint8_t *page(uint32_t position, bool *valid) const
    {
        uint32_t block = a->kv.n_blocks;
        if (position >= first.begin && position < last.end)
            block = __ldg(a->block_tables + attention_table_at(a, seq, position));
        *valid = block < a->kv.n_blocks;
        return (const uint8_t *)a->kv.k +
               (*valid ? attention_page_at(a, a->k, block, tile->i_kv) : 0);
    }

    ATTENTION_METHOD uint32_t slot_base(uint32_t stage) const
    {
        return latent_slot_at(AT, Kv::elem_bytes, stage);
    }

    /* Returns the destination of this thread's copy of a chunk. */
    ATTENTION_METHOD unsigned char *copy_at(uint32_t stage, uint32_t chunk) const
    {
        uint32_t row = latent_copy_row(threadIdx.x), base = slot_base(stage);
        return shared + (Kv::is_coded ? latent_codes_at(base, row, chunk)
                                      : latent_chunk_at(base, row, chunk));
    }

    ATTENTION_METHOD bool is_used(uint32_t chunk) const
    {
        return latent_chunk_byte(chunk) < latent_used_bytes(a->k.vector_bytes, Kv::elem_bytes);
    }

    ATTENTION_METHOD void copy_stage(uint32_t stage) const
    {
        bool valid;
        uint32_t position = latent_position(stage, latent_copy_row(threadIdx.x));
        const uint8_t *from = page(position, &valid);
        from += attention_vector_in_page(a, a->k, position);
#pragma unroll
        for (uint32_t i = 0; i < COPIES; i++) {
            uint32_t chunk = latent_copy_chunk(threadIdx.x, i), at = latent_chunk_byte(chunk);
            bool exists = valid && at < a->k.vector_bytes;
            if (is_used(chunk))
                cp_async_16(copy_at(stage, chunk), exists ? from + at : (const uint8_t *)a->kv.k,
                            exists);
        }
        cp_async_commit();
    }

    /* Loads the scale of this thread's position. */
    ATTENTION_METHOD void fetch_scale(uint32_t stage)
    {
        bool valid;
        uint32_t position = latent_position(stage, threadIdx.x);
        if (threadIdx.x >= LATENT_STAGE)
            return;
        const uint8_t *from = page(position, &valid);
        scale = valid ? *(const float *)(from + attention_scale_in_page(a, a->k, position)) : 0.0f;
    }

    ATTENTION_METHOD float *floats(uint32_t at) const
    {
        return (float *)(shared + at);
    }

    /* Widens the stage's codes to operands; each thread widens the codes that it copied. */
    template <typename Wide> ATTENTION_METHOD void widen_stage(uint32_t stage) const
    {
        uint32_t row = latent_copy_row(threadIdx.x);
#pragma unroll
        for (uint32_t i = 0; i < COPIES; i++) {
            uint32_t chunk = latent_copy_chunk(threadIdx.x, i);
            if (!is_used(chunk))
                continue;
            uint4 codes = *(const uint4 *)copy_at(stage, chunk), wide[2];
            Wide::widen(&wide[0].x, codes.x);
            Wide::widen(&wide[0].z, codes.y);
            Wide::widen(&wide[1].x, codes.z);
            Wide::widen(&wide[1].z, codes.w);
            *(uint4 *)(shared + latent_chunk_at(AT.wide, row, prefill_wide_chunk(chunk, 0))) =
                wide[0];
            *(uint4 *)(shared + latent_chunk_at(AT.wide, row, prefill_wide_chunk(chunk, 1))) =
                wide[1];
        }
    }

    /* Replaces values that are not finite by 0, and flags their positions for the rows that attend
     * to them. Otherwise 0 · NaN would reach rows that do not attend to them. */
    ATTENTION_METHOD void mend_stage(uint32_t stage) const
    {
        uint32_t found = 0;
#pragma unroll
        for (uint32_t i = 0; i < COPIES; i++) {
            uint32_t chunk = latent_copy_chunk(threadIdx.x, i);
            if (!is_used(chunk))
                continue;
            uint4 *at = (uint4 *)copy_at(stage, chunk), x = *at;
            uint32_t words[4] = {x.x, x.y, x.z, x.w};
            for (uint32_t w = 0; w < 4; w++) {
                uint32_t bits = attention_broken(words[w], Kv::exponent);
                words[w] = attention_without(words[w], bits);
                found |= bits;
            }
            *at = make_uint4(words[0], words[1], words[2], words[3]);
        }
        for (uint32_t lanes = 1; lanes < LATENT_LANES; lanes += lanes)
            found |= __shfl_xor_sync(0xFFFFFFFFu, found, lanes);
        if (latent_is_first(threadIdx.x))
            (shared + AT.broken)[latent_copy_row(threadIdx.x)] = found != 0;
    }

    /* Waits until the stage is visible to all warps, and starts the next copy. Returns the place of
     * the operands. */
    ATTENTION_METHOD uint32_t await_stage(uint32_t stage, uint32_t end, bool is_masked)
    {
        cp_async_wait<0>();
        if constexpr (Kv::is_coded) {
            if (threadIdx.x < LATENT_STAGE)
                floats(AT.scales)[threadIdx.x] = scale;
            fetch_scale(stage + 1);
        } else if (is_masked) {
            mend_stage(stage);
        }
        __syncthreads(); /* also frees the last stage's slot and operands */
        if (stage + 1 < end)
            copy_stage(stage + 1);
        if constexpr (Kv::is_coded) {
            if (a->kv.dtype == DTYPE_I8)
                widen_stage<kv_wide_i8>(stage);
            else
                widen_stage<kv_wide_f8>(stage);
            __syncthreads();
            return AT.wide;
        }
        return slot_base(stage);
    }

    /* --- products --- */

    /* Computes this warp's quarter of the scores of 16 positions. */
    ATTENTION_METHOD void score(const uint32_t q[][LATENT_STEPS][4], uint32_t base) const
    {
        uint32_t quarter = latent_quarter_of(i_warp), half = latent_half_of(i_warp);
        float d[LATENT_ROW_TILES][2][4] = {};
#pragma unroll
        for (uint32_t i = 0; i < LATENT_STEPS; i++) {
            uint32_t step = latent_step(quarter, i), b[4];
            if (!latent_has_step(step, a->kv.head_dim))
                continue;
            ldmatrix_x4(b, shared + latent_key_at(base, half, step, lane));
#pragma unroll
            for (uint32_t m = 0; m < LATENT_ROW_TILES; m++) {
                Kv::mma(d[m][0], q[m][i], b);
                Kv::mma(d[m][1], q[m][i], b + 2);
            }
        }
#pragma unroll
        for (uint32_t m = 0; m < LATENT_ROW_TILES; m++)
#pragma unroll
            for (uint32_t n = 0; n < 2; n++)
#pragma unroll
                for (uint32_t r = 0; r < 2; r++)
#pragma unroll
                    for (uint32_t c = 0; c < 2; c++)
                        floats(AT.dots)[latent_dot_at(quarter, latent_query_of(m, lane, r),
                                                      latent_score_position(half, n, lane, c))] =
                            d[m][n][latent_register(r, c)];
    }

    ATTENTION_METHOD float keep_of(uint32_t m, uint32_t r) const
    {
        return floats(AT.keep)[latent_query_of(m, lane, r)];
    }

    /* Multiplies the running sums by their factors. Factors of 1 change no bits. */
    ATTENTION_METHOD void rescale(float d[][SUMS][4]) const
    {
        bool changes = false;
        for (uint32_t m = 0; m < LATENT_ROW_TILES; m++)
            for (uint32_t r = 0; r < 2; r++)
                changes = changes || keep_of(m, r) != 1.0f;
        if (!__any_sync(0xFFFFFFFFu, changes))
            return;
#pragma unroll
        for (uint32_t m = 0; m < LATENT_ROW_TILES; m++)
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                float keep = keep_of(m, r);
#pragma unroll
                for (uint32_t n = 0; n < SUMS; n++)
#pragma unroll
                    for (uint32_t c = 0; c < 2; c++) {
                        float *x = &d[m][n][latent_register(r, c)];
                        *x = attention_scaled(*x, keep);
                    }
            }
    }

    /* Adds the weights of the stage times this warp's elements of V. */
    ATTENTION_METHOD void add_values(float d[][SUMS][4], uint32_t base) const
    {
        rescale(d);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t p[LATENT_ROW_TILES][4];
#pragma unroll
            for (uint32_t m = 0; m < LATENT_ROW_TILES; m++)
                ldmatrix_x4(p[m], shared + latent_weight_at(AT.weights, m, k, lane));
#pragma unroll
            for (uint32_t i = 0; i < LATENT_SETS; i++) {
                uint32_t set = latent_set_of(i_warp, i), b[4];
                if (!latent_has_step(set, a->kv.v_dim))
                    continue;
                ldmatrix_x4_trans(b, shared + latent_value_at(base, k, set, lane));
#pragma unroll
                for (uint32_t m = 0; m < LATENT_ROW_TILES; m++) {
                    Kv::mma(d[m][latent_value_sum(i, 0)], p[m], b);
                    Kv::mma(d[m][latent_value_sum(i, 1)], p[m], b + 2);
                }
            }
        }
    }

    /* --- the softmax of a stage --- */

    ATTENTION_METHOD float code_unit(void) const
    {
        return a->kv.dtype == DTYPE_I8 ? kv_wide_i8::unit : kv_wide_f8::unit;
    }

    /* Returns the largest of a query's threads. */
    ATTENTION_METHOD float largest(float x) const
    {
        for (uint32_t lanes = 1; lanes < LATENT_LANES; lanes += lanes) {
            float other = __shfl_xor_sync(0xFFFFFFFFu, x, lanes);
            x = other > x ? other : x;
        }
        return x;
    }

    ATTENTION_METHOD float total(float x) const
    {
        for (uint32_t lanes = 1; lanes < LATENT_LANES; lanes += lanes)
            x += __shfl_xor_sync(0xFFFFFFFFu, x, lanes);
        return x;
    }

    ATTENTION_METHOD float scale_of(uint32_t i) const
    {
        return floats(AT.scales)[latent_own_position(threadIdx.x, i)];
    }

    /* Returns this thread's score i. */
    ATTENTION_METHOD float own_score(uint32_t i, uint32_t stage, bool is_masked) const
    {
        uint32_t in = latent_own_position(threadIdx.x, i);
        float quarters[LATENT_QUARTERS], factor = a->factor;
#pragma unroll
        for (uint32_t k = 0; k < LATENT_QUARTERS; k++)
            quarters[k] = floats(AT.dots)[latent_dot_at(k, latent_own_query(threadIdx.x), in)];
        if constexpr (Kv::is_coded)
            factor = attention_key_factor(factor, scale_of(i), code_unit());
        float x = attention_score(latent_dot(quarters), factor, a->softcap);
        return is_masked && !attention_sees(seen, latent_position(stage, in)) ? -INFINITY : x;
    }

    /* Multiplies weights by the scales of V, in units of the largest so far. Returns the factor for
     * the running sums in that unit. */
    ATTENTION_METHOD float apply_scales(float p[LATENT_OWN], float keep)
    {
        float most = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < LATENT_OWN; i++) {
            p[i] = attention_coded_weight(p[i], scale_of(i));
            most = p[i] > most ? p[i] : most;
        }
        most = largest(most);
        float kept = attention_scaled(unit, keep), next = most > kept ? most : kept;
        float inv = attention_inverse(next);
#pragma unroll
        for (uint32_t i = 0; i < LATENT_OWN; i++)
            p[i] = attention_scaled(p[i], inv);
        unit = next;
        return attention_worth(kept, next);
    }

    /* Makes the query NaN if it attends to a position that is not finite. */
    ATTENTION_METHOD void spoil(uint32_t stage)
    {
        for (uint32_t i = 0; i < LATENT_OWN; i++) {
            uint32_t in = latent_own_position(threadIdx.x, i);
            if ((shared + AT.broken)[in] != 0 && attention_sees(seen, latent_position(stage, in)))
                sum = NAN;
        }
    }

    /* Turns this thread's scores into weights, and stores them as operands. */
    ATTENTION_METHOD void weigh(uint32_t stage, bool is_masked)
    {
        float p[LATENT_OWN], most = -INFINITY, added = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < LATENT_OWN; i++) {
            p[i] = own_score(i, stage, is_masked);
            most = p[i] > most ? p[i] : most;
        }
        most = largest(most);
        float next = most > max ? most : max, reference = attention_reference(next);
        float keep = attention_exp2(max - reference);
#pragma unroll
        for (uint32_t i = 0; i < LATENT_OWN; i++) {
            p[i] = attention_exp2(p[i] - reference);
            added += p[i];
        }
        max = next;
        sum = fmaf(sum, keep, added);
        if constexpr (Kv::is_coded)
            keep = apply_scales(p, keep);
        else if (is_masked)
            spoil(stage);
        uint32_t *to = (uint32_t *)(shared + latent_weights_at(AT.weights, threadIdx.x));
        to[0] = Kv::pack(p[0], p[1]);
        to[1] = Kv::pack(p[2], p[3]);
        if (latent_is_first(threadIdx.x))
            floats(AT.keep)[latent_own_query(threadIdx.x)] = keep;
    }

    /* --- the walk --- */

    /* Loads this warp's quarter of the queries. */
    ATTENTION_METHOD void load_queries(uint32_t q[][LATENT_STEPS][4]) const
    {
#pragma unroll
        for (uint32_t m = 0; m < LATENT_ROW_TILES; m++)
#pragma unroll
            for (uint32_t r = 0; r < 4; r++) {
                uint32_t row, head;
                bool exists = tile->query(latent_query_of(m, lane, r), &row, &head);
#pragma unroll
                for (uint32_t i = 0; i < LATENT_STEPS; i++) {
                    uint32_t elem =
                        latent_query_elem(latent_step(latent_quarter_of(i_warp), i), lane, r);
                    const float *x = a->q + (exists ? attention_input_of(a, row, head, elem) : 0);
                    bool has = exists && elem < a->kv.head_dim;
                    q[m][i][r] = has ? Kv::pack(__ldg(x), __ldg(x + 1)) : 0;
                }
            }
    }

    /* Computes the sums of the stages [begin, end); `first`, `last`, `seen` must be set. */
    ATTENTION_METHOD void run(float d[][SUMS][4], const uint32_t q[][LATENT_STEPS][4],
                              uint32_t begin, uint32_t end)
    {
        max = -INFINITY;
        sum = unit = 0.0f;
#pragma unroll
        for (uint32_t m = 0; m < LATENT_ROW_TILES; m++)
#pragma unroll
            for (uint32_t n = 0; n < SUMS; n++)
                d[m][n][0] = d[m][n][1] = d[m][n][2] = d[m][n][3] = 0.0f;
        if constexpr (Kv::is_coded)
            fetch_scale(begin);
        copy_stage(begin);
#pragma unroll 1
        for (uint32_t stage = begin; stage < end; stage++) {
            bool is_masked = !latent_is_whole(first, last, stage);
            uint32_t base = await_stage(stage, end, is_masked);
            score(q, base);
            __syncthreads();
            weigh(stage, is_masked);
            __syncthreads();
            add_values(d, base);
        }
        cp_async_wait<0>();
        share_sums();
        __syncthreads(); /* all warps have finished with the ring */
    }

    /* Stores the numbers of a query that all warps need. */
    ATTENTION_METHOD void share_sums(void) const
    {
        uint32_t query = latent_own_query(threadIdx.x);
        float weights = total(sum);
        if (!latent_is_first(threadIdx.x))
            return;
        float *sums = floats(AT.sums);
        sums[latent_sum_at(query, 0)] = max;
        sums[latent_sum_at(query, 1)] = weights;
        sums[latent_sum_at(query, 2)] = Kv::is_coded ? attention_scaled(unit, code_unit()) : 1.0f;
    }

    /* Stores a query's sums of row r of operand m, of `row` and `head`: to y, or to the results of
     * the group. */
    ATTENTION_METHOD void store_row(const float d[][SUMS][4], uint32_t m, uint32_t r, uint32_t row,
                                    uint32_t head, uint32_t group) const
    {
        const float *sums = floats(AT.sums);
        uint32_t query = latent_query_of(m, lane, r), n = a->kv.v_dim;
        float most = sums[latent_sum_at(query, 0)], weights = sums[latent_sum_at(query, 1)];
        float worth = sums[latent_sum_at(query, 2)];
        bool is_part = a->parts != nullptr;
        struct attention_sunk sunk = attention_sunk_of(a->sinks, head, most);
        float *to = is_part ? a->parts + decode_part_at(a, row - a->row_begin, head, group)
                            : a->y + attention_y_at(a, row, head);
#pragma unroll
        for (uint32_t i = 0; i < LATENT_SETS; i++)
#pragma unroll
            for (uint32_t k = 0; k < 2; k++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    uint32_t elem = latent_value_elem(latent_set_of(i_warp, i), k, lane, c);
                    float x = d[m][latent_value_sum(i, k)][latent_register(r, c)];
                    x = Kv::is_coded ? attention_scaled(x, worth) : x;
                    if (elem < n)
                        to[elem] = is_part ? x : attention_sunk_result(sunk, x, weights);
                }
        if (is_part && latent_value_elem(i_warp, 0, lane, 0) == 0) {
            float *of_all = to + n;
            of_all[0] = most;
            of_all[1] = weights;
        }
    }

    /* Stores the rows [begin, end). A barrier must precede the next run(). */
    ATTENTION_METHOD void store(const float d[][SUMS][4], uint32_t begin, uint32_t end,
                                uint32_t group) const
    {
#pragma unroll
        for (uint32_t m = 0; m < LATENT_ROW_TILES; m++)
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                uint32_t row, head;
                if (tile->query(latent_query_of(m, lane, r), &row, &head) && row >= begin &&
                    row < end)
                    store_row(d, m, r, row, head, group);
            }
    }

    /* Computes the rows [begin, end), all of one sequence. */
    ATTENTION_METHOD void sequence(const uint32_t q[][LATENT_STEPS][4], uint32_t begin,
                                   uint32_t end)
    {
        float d[LATENT_ROW_TILES][SUMS][4];
        uint32_t row, head, stage, group, last_row = end - 1;
        seq = a->seq_of_row[begin];
        first = attention_span_of(a->positions[begin], a->window, a->chunk);
        last = attention_span_of(a->positions[last_row], a->window, a->chunk);
        seen = {0, 0};
        if (tile->query(latent_own_query(threadIdx.x), &row, &head) && row >= begin && row < end)
            seen = attention_span_of(a->positions[row], a->window, a->chunk);
        if (seq >= a->n_seqs)
            return;
        struct attention_span all = {first.begin, last.end};
        if (a->parts == nullptr) {
            uint32_t stages = latent_stages(all, &stage);
            run(d, q, stage, stages);
            store(d, begin, end, 0);
            return;
        }
        uint32_t groups = decode_groups(all, a->n_groups, &group);
        for (group = attention_group_of(group, blockIdx.z); group < groups; group += gridDim.z) {
            uint32_t stages = latent_group_stages(all, group, &stage);
            run(d, q, stage, stages);
            store(d, begin, end, group);
        }
    }
};

/* grid: (tiles of rows, KV heads × tiles of heads, strides). The last rows have the longest
 * contexts, so their blocks start first. */
template <typename Kv>
static __global__ void __launch_bounds__(LATENT_THREADS, 1)
    attention_latent(const __grid_constant__ struct attention_cuda a, uint32_t tile_rows)
{
    CUDA_SHARED(shared);
    cuda_op_begin();
    struct attention_tile heads =
        attention_tile_of(blockIdx.y, gridDim.y, a.kv.n_kv_heads, LATENT_QUERIES);
    uint32_t first = prefill_first_row(blockIdx.x, gridDim.x, tile_rows);
    uint32_t q[LATENT_ROW_TILES][LATENT_STEPS][4];
    struct latent_tile tile = {&a, a.row_begin + first, a.row_begin + a.n_rows, heads.i_kv,
                               heads.first_slot};
    if (a.n_rows - first > tile_rows)
        tile.end = tile.begin + tile_rows;
    if (!attention_has_heads(&a, heads.i_kv, heads.first_slot, LATENT_QUERIES))
        return;
    latent_block<Kv> block;
    block.a = &a;
    block.tile = &tile;
    block.shared = shared;
    block.i_warp = cuda_warp_of(threadIdx.x);
    block.lane = cuda_lane_of(threadIdx.x);
    block.load_queries(q);
    for (uint32_t row = tile.begin; row < tile.end;) {
        uint32_t end = tile.sequence_end(row);
        block.sequence(q, row, end);
        row = end;
    }
}
