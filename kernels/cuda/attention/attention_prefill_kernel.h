/* attention_prefill_kernel.h: path P of attention for caches of 16-bit and 8-bit types. A block
 * computes 128 queries (rows × the heads of one KV head), 16 per warp. The block walks over the
 * partitions of 128 positions in index order. Each partition gives its scores, its maximum, then
 * the running sums. A partition without visible positions leaves a row's bits unchanged. So the
 * bits depend neither on the chunk nor on the other rows. If a tile has rows of several sequences,
 * the sequences are computed one after the other.
 *
 * Shapes: head_dim and v_dim up to DIM, heads_per_kv up to 128. Bytes: per tile (head_dim + v_dim)
 * · elem_bytes per position (from L2 except for the first tile), 4 · heads · (head_dim + v_dim) per
 * row. Operations: 2 · (head_dim + v_dim) per query and visible position. Bound: the tensor cores,
 * by mma.sync; with 128 queries per byte of K and V the loads need half of L2's rate. K and V pass
 * through shared memory in tiles of 64 (32) positions, in a ring that cp.async fills. The thread
 * that copied codes also widens them. Operands are bf16 or f16, sums f32.
 *
 * The block's work on one tile (score_tile, value_tile) is separate from the walk over partitions.
 * A variant with wgmma would replace these functions, a variant with TMA would replace copy_tile.
 * Registers and shared memory: the table in attention_prefill.cu. Sources: FlashAttention-2 (arXiv
 * 2307.08691), PagedAttention (arXiv 2309.06180). */
/* Limits that tests/lint/ptxas.sh checks:
 * ptxas: attention_prefill.cu bf16Lj64E registers 232 shared 1024
 * ptxas: attention_prefill.cu halvesELj64E registers 216 shared 1024
 * ptxas: attention_prefill.cu codesELj64E registers 240 shared 1024
 * ptxas: attention_prefill.cu (bf16|halvesE|codesE)Lj(128|192)E registers 255 shared 1024
 * ptxas: attention_prefill.cu (bf16|halvesE)Lj256E registers 255 shared 1024
 * ptxas: attention_prefill.cu codesELj256E registers 255 shared 1024 stack 40 spill 112
 * ptxas: attention_prefill.cu codesELj256E on sm_90a registers 255 shared 1024 stack 32 spill 80
 * (256 threads may have 255 registers each. Only caches of codes with heads of 256 spill.)
 * ptxas: attention_prefill_alibi.cu attention_prefill registers 255 shared 1024 stack 40 spill 112
 * ptxas: attention_prefill_alibi.cu prefill on sm_90a registers 255 shared 1024 stack 32 spill 80
 * ptx: attention_prefill.cu attention_prefill mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
 * ptx: attention_prefill.cu attention_prefill ldmatrix.sync.aligned.m8n8.x4.trans
 */
#pragma once

#include "kernels/cuda/attention/attention_types.h"

/* Arrays of registers belong to the functions, not to the struct. Operands of Q: q[KEPT][4]. Scores
 * and later weights of a partition: s[16][4]. The weights as operands: p[8][4]. Sums: d[DIM /
 * 8][4]. */
template <typename Kv, uint32_t DIM, bool ALIBI> struct prefill_block {
    static constexpr uint32_t TILES =
        prefill_n_tiles(DIM); /* per partition, for K and for V each */
    static constexpr uint32_t PAIRS = prefill_tile_pairs(DIM);
    static constexpr uint32_t SLOTS = prefill_slots(DIM, Kv::elem_bytes);
    static constexpr uint32_t AHEAD = SLOTS - 1; /* tiles in flight */
    static constexpr uint32_t COPIES = prefill_copies(DIM, Kv::elem_bytes);
    static constexpr uint32_t STEPS = prefill_steps(DIM); /* number of mma along DIM */
    static constexpr uint32_t SUMS = prefill_chunks(DIM); /* number of mma across DIM */
    static constexpr uint32_t KEPT = prefill_kept(DIM);   /* operands of Q kept in registers */
    static constexpr struct prefill_memory AT = prefill_memory_of(DIM, Kv::elem_bytes);

    const struct attention_cuda *a;
    unsigned char *shared;
    uint32_t i_warp, lane, t, i_kv, seq;
    struct attention_span first, last,
        seen[2]; /* spans of the sequence's first and last row, and of this lane's rows */
    uint32_t first_partition, n_tiles;
    float max[2], sum[2], unit[2];
    struct attention_bias<ALIBI> bias[2];
    float scale; /* this thread's scale of K or V at a position of the next partition */

    /* --- memory --- */

    ATTENTION_METHOD const uint8_t *page(const void *pool, struct attention_plane plane,
                                         uint32_t position, bool *valid) const
    {
        uint32_t block = a->kv.n_blocks;
        if (position >= first.begin && position < last.end)
            block = __ldg(a->block_tables + attention_table_at(a, seq, position));
        *valid = block < a->kv.n_blocks;
        return (const uint8_t *)pool + (*valid ? attention_page_at(a, plane, block, i_kv) : 0);
    }

    ATTENTION_METHOD uint32_t slot_base(uint32_t tile) const
    {
        return prefill_slot_at(AT, DIM, Kv::elem_bytes, tile);
    }

    /* Returns the address of a chunk in a row of operands: of Q, or of the tile in a slot. */
    ATTENTION_METHOD unsigned char *chunk_at(uint32_t base, uint32_t row, uint32_t chunk) const
    {
        return shared + prefill_operand_at(base, DIM, row, chunk);
    }

    /* Returns the destination of this thread's copy i; codes keep the order of the copy. */
    ATTENTION_METHOD unsigned char *copy_at(uint32_t tile, uint32_t i) const
    {
        if constexpr (Kv::is_coded)
            return shared + prefill_codes_at(slot_base(tile), threadIdx.x, i);
        return chunk_at(slot_base(tile), prefill_copy_row(DIM, threadIdx.x),
                        prefill_copy_chunk(DIM, threadIdx.x, i));
    }

    /* Copies tiles of K, then of V, partition by partition. After the last tile an empty group. */
    ATTENTION_METHOD void copy_tile(uint32_t tile)
    {
        struct prefill_copy copy = prefill_copy_of(DIM, first_partition, tile, threadIdx.x);
        const void *pool = copy.is_value ? a->kv.v : a->kv.k;
        const struct attention_plane *plane = copy.is_value ? &a->v : &a->k;
        if (tile < n_tiles) {
            bool valid;
            const uint8_t *from = page(pool, *plane, copy.position, &valid);
            from += attention_vector_in_page(a, *plane, copy.position);
#pragma unroll
            for (uint32_t i = 0; i < COPIES; i++) {
                uint32_t at = prefill_copy_byte(DIM, threadIdx.x, i);
                bool exists = valid && at < plane->vector_bytes;
                cp_async_16(copy_at(tile, i), exists ? from + at : (const uint8_t *)pool, exists);
            }
        }
        cp_async_commit();
    }

    /* Loads this thread's scale. */
    ATTENTION_METHOD void fetch_scale(uint32_t partition)
    {
        bool valid;
        uint32_t position = prefill_position(partition, prefill_scale_of(threadIdx.x));
        bool keys = prefill_brings_keys(threadIdx.x);
        const struct attention_plane *plane = keys ? &a->k : &a->v;
        const uint8_t *from = page(keys ? a->kv.k : a->kv.v, *plane, position, &valid);
        scale =
            valid ? *(const float *)(from + attention_scale_in_page(a, *plane, position)) : 0.0f;
    }

    ATTENTION_METHOD const float *scales(uint32_t base, uint32_t partition) const
    {
        return (const float *)(shared + prefill_scales_at(base, partition));
    }

    ATTENTION_METHOD uint8_t *broken(uint32_t partition) const
    {
        return shared + prefill_broken_at(AT, partition);
    }

    /* Call before the first barrier of a partition. */
    ATTENTION_METHOD void begin_partition(uint32_t partition)
    {
        if constexpr (Kv::is_coded) {
            uint32_t base = prefill_brings_keys(threadIdx.x) ? AT.k_scales : AT.v_scales;
            ((float *)scales(base, partition))[prefill_scale_of(threadIdx.x)] = scale;
            fetch_scale(partition + 1);
        } else if (threadIdx.x < CUDA_PARTITION) {
            broken(partition)[threadIdx.x] = 0;
        }
    }

    /* Widens the tile's codes to operands; each thread widens the codes that it copied. */
    template <typename Wide> ATTENTION_METHOD void widen_tile(uint32_t tile) const
    {
        uint32_t row = prefill_copy_row(DIM, threadIdx.x);
#pragma unroll
        for (uint32_t i = 0; i < COPIES; i++) {
            uint32_t chunk = prefill_copy_chunk(DIM, threadIdx.x, i);
            uint4 codes = *(const uint4 *)copy_at(tile, i), wide[2];
            Wide::widen(&wide[0].x, codes.x);
            Wide::widen(&wide[0].z, codes.y);
            Wide::widen(&wide[1].x, codes.z);
            Wide::widen(&wide[1].z, codes.w);
            *(uint4 *)chunk_at(AT.wide, row, prefill_wide_chunk(chunk, 0)) = wide[0];
            *(uint4 *)chunk_at(AT.wide, row, prefill_wide_chunk(chunk, 1)) = wide[1];
        }
    }

    /* Replaces values of V that are not finite by 0 and flags them for the rows that attend to
     * them. Otherwise 0 · NaN would reach rows that do not attend to them. */
    ATTENTION_METHOD void mend_values(uint32_t tile, uint32_t partition)
    {
        uint32_t found = 0;
#pragma unroll
        for (uint32_t i = 0; i < COPIES; i++) {
            uint4 *at = (uint4 *)copy_at(tile, i), x = *at;
            uint32_t words[4] = {x.x, x.y, x.z, x.w};
            for (uint32_t w = 0; w < 4; w++) {
                uint32_t bits = attention_broken(words[w], Kv::exponent);
                words[w] = attention_without(words[w], bits);
                found |= bits;
            }
            *at = make_uint4(words[0], words[1], words[2], words[3]);
        }
        if (found != 0)
            broken(partition)[prefill_copy_offset(DIM, tile, threadIdx.x)] = 1;
    }

    /* Waits until tile `tile` is visible to all warps, and starts the next copies. Returns the
     * place of the tile's operands. */
    ATTENTION_METHOD uint32_t await_tile(uint32_t tile, uint32_t partition, bool is_mended)
    {
        cp_async_wait<SLOTS - 2>();
        if constexpr (!Kv::is_coded)
            if (is_mended)
                mend_values(tile, partition);
        __syncthreads(); /* also frees the last tile's slot */
        copy_tile(tile + AHEAD);
        if constexpr (Kv::is_coded) {
            if (a->kv.dtype == DTYPE_I8)
                widen_tile<kv_wide_i8>(tile);
            else
                widen_tile<kv_wide_f8>(tile);
            __syncthreads();
            return AT.wide;
        }
        return slot_base(tile);
    }

    /* --- a warp's mma on a tile --- */

    ATTENTION_METHOD void load_query(uint32_t to[4], uint32_t step) const
    {
        ldmatrix_x4(to, shared + prefill_query_at(AT.queries, DIM, i_warp, step, lane));
    }

    /* Computes the scores of tile i of the partition: s[position / 8]. */
    ATTENTION_METHOD void score_tile(float s[][4], uint32_t q[][4], uint32_t base, uint32_t i) const
    {
#pragma unroll
        for (uint32_t step = 0; step < STEPS; step++) {
            if (!prefill_has_step(step, a->kv.head_dim))
                continue;
            if constexpr (KEPT == 1)
                load_query(q[0], step);
#pragma unroll
            for (uint32_t n = 0; n < PAIRS; n++) {
                float(*pair)[4] = s + prefill_score_of(DIM, i, n);
                uint32_t b[4];
                ldmatrix_x4(b, shared + prefill_key_at(base, DIM, n, step, lane));
                Kv::mma(pair[0], q[KEPT == 1 ? 0 : step], b);
                Kv::mma(pair[1], q[KEPT == 1 ? 0 : step], b + 2);
            }
        }
    }

    /* Adds the weights of tile i times its V. */
    ATTENTION_METHOD void value_tile(float d[][4], const uint32_t p[][4], uint32_t base,
                                     uint32_t i) const
    {
#pragma unroll
        for (uint32_t k = 0; k < PAIRS; k++)
#pragma unroll
            for (uint32_t n = 0; n < STEPS; n++) {
                if (!prefill_has_step(n, a->kv.v_dim))
                    continue;
                float(*pair)[4] = d + prefill_sum_of(n);
                uint32_t b[4];
                ldmatrix_x4_trans(b, shared + prefill_value_at(base, DIM, k, n, lane));
                Kv::mma(pair[0], p[prefill_weight_of(DIM, i, k)], b);
                Kv::mma(pair[1], p[prefill_weight_of(DIM, i, k)], b + 2);
            }
    }

    /* --- the softmax of a partition --- */

    ATTENTION_METHOD float code_unit(void) const
    {
        return a->kv.dtype == DTYPE_I8 ? kv_wide_i8::unit : kv_wide_f8::unit;
    }

    /* Returns the position within the partition, or the element, of column c of this lane's mma
     * n. */
    ATTENTION_METHOD uint32_t column(uint32_t n, uint32_t c) const
    {
        return prefill_column(n, t, c);
    }

    /* Turns sums into scores; returns the largest of row r. */
    ATTENTION_METHOD float finish_scores(float s[][4], uint32_t r, uint32_t partition,
                                         bool is_masked) const
    {
        float most = -INFINITY;
#pragma unroll
        for (uint32_t n = 0; n < PREFILL_SCORES; n++)
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                uint32_t position = prefill_position(partition, column(n, c));
                float *x = &s[n][prefill_register(r, c)], factor = a->factor;
                if constexpr (Kv::is_coded)
                    factor = attention_key_factor(
                        factor, scales(AT.k_scales, partition)[column(n, c)], code_unit());
                *x = bias[r].of(attention_score(*x, factor, a->softcap), position);
                if (is_masked && !attention_sees(seen[r], position))
                    *x = -INFINITY;
                most = *x > most ? *x : most;
            }
        return attention_quad_max(most);
    }

    /* Turns scores into weights; returns the factor for the running sums. */
    ATTENTION_METHOD float finish_weights(float s[][4], uint32_t r, float most)
    {
        float next = most > max[r] ? most : max[r], reference = attention_reference(next);
        float keep = attention_exp2(max[r] - reference), total = 0.0f;
#pragma unroll
        for (uint32_t n = 0; n < PREFILL_SCORES; n++)
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                float *x = &s[n][prefill_register(r, c)];
                *x = attention_exp2(*x - reference);
                total += *x;
            }
        max[r] = next;
        sum[r] = fmaf(sum[r], keep, total);
        return keep;
    }

    /* Multiplies weights by the scales of V, in units of the largest so far. Returns the factor for
     * the running sums in that unit. */
    ATTENTION_METHOD float apply_scales(float s[][4], uint32_t r, uint32_t partition, float keep)
    {
        const float *v_scales = scales(AT.v_scales, partition);
        float most = 0.0f;
#pragma unroll
        for (uint32_t n = 0; n < PREFILL_SCORES; n++)
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                float *x = &s[n][prefill_register(r, c)];
                *x = attention_coded_weight(*x, v_scales[column(n, c)]);
                most = *x > most ? *x : most;
            }
        most = attention_quad_max(most);
        float kept = attention_scaled(unit[r], keep), next = most > kept ? most : kept;
        float inv = attention_inverse(next);
#pragma unroll
        for (uint32_t n = 0; n < PREFILL_SCORES; n++)
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                float *x = &s[n][prefill_register(r, c)];
                *x = attention_scaled(*x, inv);
            }
        unit[r] = next;
        return attention_worth(kept, next);
    }

    ATTENTION_METHOD void softmax(float s[][4], uint32_t p[][4], float d[][4], uint32_t partition,
                                  bool is_masked)
    {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            float keep = finish_weights(s, r, finish_scores(s, r, partition, is_masked));
            if constexpr (Kv::is_coded)
                keep = apply_scales(s, r, partition, keep);
#pragma unroll
            for (uint32_t n = 0; n < SUMS; n++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    float *x = &d[n][prefill_register(r, c)];
                    *x = attention_scaled(*x, keep);
                }
        }
#pragma unroll
        for (uint32_t k = 0; k < PREFILL_WEIGHTS; k++)
#pragma unroll
            for (uint32_t r = 0; r < 4; r++) {
                const float *two = &s[prefill_weight_tile(k, r)][prefill_weight_register(r)];
                p[k][r] = Kv::pack(two[0], two[1]);
            }
    }

    /* Makes rows NaN that attend to a value of V that is not finite. */
    ATTENTION_METHOD void spoil_rows(uint32_t partition, uint32_t i)
    {
        for (uint32_t n = prefill_score_of(DIM, i, 0); n < prefill_score_of(DIM, i + 1, 0); n++)
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t r = 0; r < 2; r++)
                    if (broken(partition)[column(n, c)] != 0 &&
                        attention_sees(seen[r], prefill_position(partition, column(n, c))))
                        sum[r] = NAN;
    }

    /* --- the walk --- */

    ATTENTION_METHOD void run_partition(float d[][4], uint32_t q[][4], uint32_t partition)
    {
        uint32_t base = prefill_position(partition, 0);
        uint32_t tile = prefill_tiles_of(DIM, partition - first_partition), values = tile + TILES;
        bool is_masked = !prefill_is_whole(first, last, base), is_live = true;
        if (is_masked) {
            bool sees = false;
            for (uint32_t r = 0; r < 2; r++)
                sees = sees || (seen[r].begin < base + CUDA_PARTITION && seen[r].end > base);
            is_live = __any_sync(0xFFFFFFFFu, sees);
        }
        float s[PREFILL_SCORES][4] = {};
        uint32_t p[PREFILL_WEIGHTS][4] = {};
        begin_partition(partition);
#pragma unroll
        for (uint32_t i = 0; i < TILES; i++) {
            uint32_t at = await_tile(tile + i, partition, false);
            if (is_live)
                score_tile(s, q, at, i);
        }
        if (is_live)
            softmax(s, p, d, partition, is_masked);
#pragma unroll
        for (uint32_t i = 0; i < TILES; i++) {
            uint32_t at = await_tile(values + i, partition, is_masked);
            if (is_live)
                value_tile(d, p, at, i);
            if constexpr (!Kv::is_coded)
                if (is_masked)
                    spoil_rows(partition, i);
        }
    }

    /* Computes the partitions that rows of one sequence attend to; `first`, `last` and `seen` must
     * be set. */
    ATTENTION_METHOD void run(float d[][4], uint32_t q[][4])
    {
        uint32_t end = prefill_partitions(first, last, &first_partition);
        n_tiles = prefill_tiles_of(DIM, end - first_partition);
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            max[r] = -INFINITY;
            sum[r] = unit[r] = 0.0f;
        }
#pragma unroll
        for (uint32_t n = 0; n < SUMS; n++)
            d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
        if constexpr (Kv::is_coded)
            fetch_scale(first_partition);
        for (uint32_t tile = 0; tile < AHEAD; tile++)
            copy_tile(tile);
#pragma unroll 1
        for (uint32_t partition = first_partition; partition < end; partition++)
            run_partition(d, q, partition);
        cp_async_wait<0>();
        __syncthreads(); /* all warps have finished with the ring */
    }

    /* Stores row r of this lane, a head's, to y; y NULL: no such row. */
    ATTENTION_METHOD void store_row(const float d[][4], uint32_t r, uint32_t head, float *y) const
    {
        float total = attention_quad_sum(sum[r]);
        if (y == nullptr)
            return;
        struct attention_sunk sunk = attention_sunk_of(a->sinks, head, max[r]);
#pragma unroll
        for (uint32_t n = 0; n < SUMS; n++)
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                float x = d[n][prefill_register(r, c)];
                if constexpr (Kv::is_coded)
                    x = attention_scaled(x, attention_scaled(unit[r], code_unit()));
                if (column(n, c) < a->kv.v_dim)
                    y[column(n, c)] = attention_sunk_result(sunk, x, total);
            }
    }
};

/* The rows of a block's tile, [begin, end) of the stream's rows. */
struct prefill_tile {
    const struct attention_cuda *a;
    uint32_t begin, end, i_kv;

    /* Gets row and head of a query; false if there is none. */
    ATTENTION_METHOD bool query(uint32_t i, uint32_t *out_row, uint32_t *out_head) const
    {
        *out_row = begin + prefill_query_row(a, i);
        *out_head = attention_head_at(a, i_kv, prefill_query_slot(a, i));
        return *out_row < end && *out_head < a->n_heads;
    }

    /* Returns the end of the rows from `row` on with the same sequence; most tiles have a single
     * sequence. */
    ATTENTION_METHOD uint32_t sequence_end(uint32_t row) const
    {
        uint32_t seq = a->seq_of_row[row], last = end - 1;
        if (a->seq_of_row[last] == seq)
            return end;
        for (last = row + 1; a->seq_of_row[last] == seq;)
            last++;
        return last;
    }
};

template <typename Kv, uint32_t DIM, bool ALIBI>
CUDA_DEVICE void prefill_load_queries(const prefill_block<Kv, DIM, ALIBI> *block,
                                      const struct prefill_tile *tile)
{
    const struct attention_cuda *a = tile->a;
    for (uint32_t i = threadIdx.x; i < prefill_n_chunks(DIM); i += PREFILL_THREADS) {
        uint32_t row, head, query = prefill_chunk_query(DIM, i), chunk = prefill_chunk_of(DIM, i);
        uint32_t elem = prefill_chunk_elem(chunk);
        float x[8] = {};
        if (tile->query(query, &row, &head) && elem < a->kv.head_dim)
            for (uint32_t k = 0; k < 8; k++)
                x[k] = __ldg(a->q + attention_input_of(a, row, head, elem + k));
        *(uint4 *)block->chunk_at(block->AT.queries, query, chunk) = make_uint4(
            Kv::pack(x[0], x[1]), Kv::pack(x[2], x[3]), Kv::pack(x[4], x[5]), Kv::pack(x[6], x[7]));
    }
    __syncthreads();
}

/* Computes rows [begin, end), all of one sequence. */
template <typename Kv, uint32_t DIM, bool ALIBI>
CUDA_DEVICE void prefill_sequence(prefill_block<Kv, DIM, ALIBI> *block, uint32_t q[][4],
                                  const struct prefill_tile *tile, uint32_t begin, uint32_t end)
{
    const struct attention_cuda *a = tile->a;
    float d[block->SUMS][4];
    uint32_t last_row = end - 1;
    block->seq = a->seq_of_row[begin];
    block->first = attention_span_of(a->positions[begin], a->window, a->chunk);
    block->last = attention_span_of(a->positions[last_row], a->window, a->chunk);
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t row, head;
        bool exists = tile->query(prefill_query_of(block->i_warp, block->lane, r), &row, &head);
        block->seen[r] = {0, 0};
        if (exists && row >= begin && row < end)
            block->seen[r] = attention_span_of(a->positions[row], a->window, a->chunk);
        block->bias[r].begin(a, exists ? head : a->n_heads, exists ? a->positions[row] : 0);
    }
    if (block->seq >= a->n_seqs)
        return;
    block->run(d, q);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        uint32_t row, head;
        bool exists = tile->query(prefill_query_of(block->i_warp, block->lane, r), &row, &head);
        exists = exists && row >= begin && row < end;
        block->store_row(d, r, head, exists ? a->y + attention_y_at(a, row, head) : nullptr);
    }
}

/* grid: (tiles of rows, KV heads). The last rows have the longest contexts, so their blocks start
 * first. */
template <typename Kv, uint32_t DIM, bool ALIBI>
static __global__ void __launch_bounds__(PREFILL_THREADS, 1)
    attention_prefill(const __grid_constant__ struct attention_cuda a)
{
    CUDA_SHARED(shared);
    cuda_op_begin();
    uint32_t n_rows = prefill_tile_rows(a.heads_per_kv);
    uint32_t first = prefill_first_row(blockIdx.x, gridDim.x, n_rows);
    struct prefill_tile tile = {&a, a.row_begin + first, a.row_begin + a.n_rows, blockIdx.y};
    if (a.n_rows - first > n_rows)
        tile.end = tile.begin + n_rows;
    if (!attention_has_heads(&a, blockIdx.y, 0, a.heads_per_kv))
        return;
    prefill_block<Kv, DIM, ALIBI> block;
    uint32_t q[block.KEPT][4];
    block.a = &a;
    block.shared = shared;
    block.i_warp = cuda_warp_of(threadIdx.x);
    block.lane = cuda_lane_of(threadIdx.x);
    block.t = fragment_member(block.lane);
    block.i_kv = blockIdx.y;
    prefill_load_queries(&block, &tile);
    if constexpr (block.KEPT > 1)
#pragma unroll
        for (uint32_t step = 0; step < block.STEPS; step++)
            block.load_query(q[step], step);
    for (uint32_t row = tile.begin; row < tile.end;) {
        uint32_t end = tile.sequence_end(row);
        prefill_sequence(&block, q, &tile, row, end);
        row = end;
    }
}

template <typename Kv, uint32_t DIM, bool ALIBI>
static int prefill_launch(void *stream, const struct attention_cuda *a)
{
    constexpr uint32_t n_bytes = prefill_memory_of(DIM, Kv::elem_bytes).n_bytes;
    static_assert(n_bytes <= SHARED_PER_BLOCK, "fits every GPU");
    auto *kernel = attention_prefill<Kv, DIM, ALIBI>;
    uint32_t rows = prefill_tile_rows(a->heads_per_kv);
    int code = CUDA_ALLOW_SHARED(kernel, n_bytes);
    return code != 0
               ? code
               : CUDA_LAUNCH(kernel, dim3(prefill_n_blocks(a->n_rows, rows), a->kv.n_kv_heads),
                             PREFILL_THREADS, n_bytes, stream, *a);
}
