/* attention_wgmma_kernel.h: path P of attention with the warpgroup multiplication of compute
 * capability 9.0, for caches of bf16 and f16 with heads up to 128. SLUICE_CUDA_ATTENTION
 * (table_cuda.h) chooses it; wga_takes() names the models that it takes.
 *
 * A block computes 128 queries (rows × the heads of one KV head) with three groups of four warps.
 * Group 0 copies partitions of K and V into two rings. Groups 1 and 2 compute 64 queries each:
 *
 *   scores    s[64, 128] = Q · Kᵀ, Q and K in shared memory
 *   softmax   in registers; the weights become pairs of halves
 *   values    d[64, dim] += weights · V, weights in registers
 *
 * The products of partition i + 1's scores and of partition i's values are queued together. While
 * the values are multiplied, the group computes the softmax of i + 1. The two groups queue their
 * products in turn, so one computes while the other multiplies.
 *
 * Partitions have 128 positions aligned to 0 and are added in index order. A masked position has
 * weight 0. For a partition without visible positions the factor for the sums is exactly 1, and the
 * terms are 0. So that partition leaves a row's bits unchanged. So a row's bits depend on nothing
 * but the row. They differ from attention_prefill_kernel.h's: 2^x comes from the special function
 * unit, and the scores are scaled within its argument.
 *
 * Operations: 4 · dim per query and visible position. An SM of an H100 takes 512 clocks for a
 * group's scores of a partition (dim 128), 512 for its values, so 2048 for both groups. The softmax
 * of a group has 64 scores a thread: a maximum, a fused multiply-add, 2^x, an addition, half a
 * conversion, and a factor for a sum. That is 5.5 instructions each, 352 of the 1024 that a
 * scheduler issues meanwhile. The special function units take 8 clocks per warp, so 512 of 1024.
 * Shared memory: Q 32 KiB, rings 128 KiB. Source: FlashAttention-3 (arXiv 2407.08608).
 *
 * Registers: a launch has 168 per thread. Group 0 keeps 40, the others take 232. */
/* Limits that tests/lint/ptxas.sh checks:
 * ptxas: attention_wgmma.cu attention_wgmma registers 168 shared 1024
 * ptx: attention_wgmma.cu attention_wgmma wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
 * ptx: attention_wgmma.cu attention_wgmma wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16
 * ptx: attention_wgmma.cu attention_wgmma setmaxnreg.inc.sync.aligned.u32
 * ptx: attention_wgmma.cu attention_wgmma ex2.approx.ftz.f32
 */
#pragma once

#include "kernels/cuda/attention/attention_types.h"
#include "kernels/cuda/attention/attention_wgmma_index.h"
#include "kernels/cuda/dense/ptx_wgmma.h"
#include "kernels/cuda/ptx_barrier.h"

struct wga_bf16 : kv_bf16 {
    CUDA_DEVICE uint32_t pack_weights(float x, float y)
    {
        return pack_bf16x2(x, y);
    }
    CUDA_DEVICE void scores(float d[WGA_SCORES], uint64_t a, uint64_t b, bool adds)
    {
        wgmma_m64n128k16_bf16(d, a, b, adds);
    }
    CUDA_DEVICE void values(float (&d)[64], const uint32_t a[4], uint64_t b)
    {
        wgmma_turned_m64n128k16_bf16(d, a, b);
    }
    CUDA_DEVICE void values(float (&d)[32], const uint32_t a[4], uint64_t b)
    {
        wgmma_turned_m64n64k16_bf16(d, a, b);
    }
};

struct wga_f16 : kv_f16 {
    CUDA_DEVICE uint32_t pack_weights(float x, float y)
    {
        return pack_f16x2(x, y);
    }
    CUDA_DEVICE void scores(float d[WGA_SCORES], uint64_t a, uint64_t b, bool adds)
    {
        wgmma_m64n128k16_f16(d, a, b, adds);
    }
    CUDA_DEVICE void values(float (&d)[64], const uint32_t a[4], uint64_t b)
    {
        wgmma_turned_m64n128k16_f16(d, a, b);
    }
    CUDA_DEVICE void values(float (&d)[32], const uint32_t a[4], uint64_t b)
    {
        wgmma_turned_m64n64k16_f16(d, a, b);
    }
};

/* The rows of a block's tile that belong to one sequence. */
struct wga_rows {
    uint32_t seq;
    struct attention_span first, last; /* spans of the first and last row */
    uint32_t begin, end;               /* rows, of the stream's */
    uint32_t first_partition, n_partitions;
    struct wga_whole whole;
};

/* State of both kinds of groups. `done`: partitions of the sequences before. */
template <typename Kv, uint32_t DIM> struct wga_block {
    static constexpr struct wga_memory AT = wga_memory_of(DIM);

    const struct attention_cuda *a;
    unsigned char *shared; /* begins at a multiple of WGA_EIGHT */
    uint32_t address;      /* the same for descriptors */
    uint32_t begin, end, i_kv;
    uint32_t done;

    ATTENTION_METHOD uint64_t *barrier(uint32_t barriers, uint32_t i) const
    {
        return (uint64_t *)(shared + wga_barrier_at(barriers, i));
    }

    ATTENTION_METHOD size_t *inputs(void) const
    {
        return (size_t *)(shared + AT.inputs);
    }

    ATTENTION_METHOD size_t *outputs(void) const
    {
        return (size_t *)(shared + AT.outputs);
    }

    ATTENTION_METHOD uint32_t *rows(void) const
    {
        return (uint32_t *)(shared + AT.rows);
    }

    /* Gets row and head of a query; false if there is none. */
    ATTENTION_METHOD bool query(uint32_t i, uint32_t *out_row, uint32_t *out_head) const
    {
        *out_row = begin + prefill_query_row(a, i);
        *out_head = attention_head_at(a, i_kv, prefill_query_slot(a, i));
        return *out_row < end && *out_head < a->n_heads;
    }

    /* Returns the rows from `row` on that belong to one sequence. A sequence that the batch lacks
     * has no partitions. */
    ATTENTION_METHOD struct wga_rows rows_from(uint32_t row) const
    {
        struct wga_rows r;
        uint32_t last = end - 1;
        r.seq = a->seq_of_row[row];
        r.begin = row;
        r.end = end;
        if (a->seq_of_row[last] != r.seq) {
            r.end = row + 1;
            while (a->seq_of_row[r.end] == r.seq)
                r.end++;
            last = r.end - 1;
        }
        r.first = attention_span_of(a->positions[row], a->window);
        r.last = attention_span_of(a->positions[last], a->window);
        uint32_t stop = prefill_partitions(r.first, r.last, &r.first_partition);
        r.n_partitions = r.seq < a->n_seqs ? stop - r.first_partition : 0;
        r.whole = wga_whole_of(r.first, r.last, r.first_partition);
        return r;
    }
};

/* --- group 0 --- */

template <typename Kv, uint32_t DIM> struct wga_copier : wga_block<Kv, DIM> {
    using base = wga_block<Kv, DIM>;
    using base::a;
    using base::AT;
    using base::shared;

    uint32_t warp, lane;
    uint64_t *unseen; /* `full` barrier of the copies that were queued last; NULL: none */
    unsigned char *unseen_tile;
    uint32_t *unseen_broken; /* where the broken rows of these are noted; NULL: K */
    bool is_mended;          /* these are V of a masked partition */

    /* Returns the offset of a position's vector in the pools, SIZE_MAX if it has none. */
    ATTENTION_METHOD size_t vector_of(const struct wga_rows &rows, uint32_t position) const
    {
        uint32_t block = a->kv.n_blocks;
        if (position >= rows.first.begin && position < rows.last.end)
            block = __ldg(a->block_tables + attention_table_at(a, rows.seq, position));
        if (block >= a->kv.n_blocks)
            return SIZE_MAX;
        size_t page = attention_page_at(a, block, this->i_kv);
        return page + attention_vector_in_page(a, position);
    }

    ATTENTION_METHOD unsigned char *chunk(unsigned char *tile, uint32_t i) const
    {
        uint32_t row = wga_warp_row(warp, wga_copy_row(DIM, lane, i));
        return tile + wga_chunk_at(CUDA_PARTITION, row, wga_copy_chunk(DIM, lane));
    }

    /* Queues the copies of this warp's 32 rows. `vector`: of row `lane`. */
    ATTENTION_METHOD void copy(const void *pool, unsigned char *tile, size_t vector) const
    {
        uint32_t byte = wga_chunk_byte(wga_copy_chunk(DIM, lane));
        bool in_head = byte < a->vector_bytes;
#pragma unroll 4
        for (uint32_t i = 0; i < wga_copies(DIM); i++) {
            size_t from = __shfl_sync(0xFFFFFFFFu, vector, wga_copy_row(DIM, lane, i));
            bool exists = in_head && from != SIZE_MAX;
            const uint8_t *at = (const uint8_t *)pool + (exists ? from + byte : 0);
            cp_async_16(chunk(tile, i), at, exists);
        }
        cp_async_commit();
    }

    /* Replaces values of V that are not finite by 0 and returns a bit for each such row of the
     * warp. Otherwise 0 · NaN would reach rows that do not attend to them. */
    ATTENTION_METHOD uint32_t mend(unsigned char *tile) const
    {
        uint32_t rows = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < wga_copies(DIM); i++) {
            uint4 *at = (uint4 *)chunk(tile, i), x = *at;
            uint32_t words[4] = {x.x, x.y, x.z, x.w}, found = 0;
#pragma unroll
            for (uint32_t w = 0; w < 4; w++) {
                uint32_t bits = attention_broken(words[w], Kv::exponent);
                words[w] = attention_without(words[w], bits);
                found |= bits;
            }
            *at = make_uint4(words[0], words[1], words[2], words[3]);
            rows = wga_broken_rows(DIM, rows, __ballot_sync(0xFFFFFFFFu, found != 0), i);
        }
        return rows;
    }

    /* Makes the copies that were queued last but N visible to the other groups. */
    template <int N> ATTENTION_METHOD void publish(void) const
    {
        if (unseen == nullptr)
            return;
        cp_async_wait<N>();
        if (unseen_broken != nullptr) {
            uint32_t rows = is_mended ? mend(unseen_tile) : 0;
            if (lane == 0)
                unseen_broken[warp] = rows;
        }
        wgmma_fence_shared();
        __syncwarp();
        if (lane == 0)
            barrier_arrive(unseen);
    }

    /* Copies partition i of K, or of V. */
    ATTENTION_METHOD void put(const struct wga_rows &rows, uint32_t i, size_t vector, bool is_value)
    {
        uint32_t n = this->done + i;
        unsigned char *tile = shared + wga_stage_at(is_value ? AT.values : AT.keys, DIM, n);
        barrier_wait(this->barrier(is_value ? AT.free_values : AT.free_keys, n),
                     wga_free_parity(n));
        copy(is_value ? a->kv.v : a->kv.k, tile, vector);
        publish<1>();
        unseen = this->barrier(is_value ? AT.full_values : AT.full_keys, n);
        unseen_tile = tile;
        unseen_broken = is_value ? (uint32_t *)(shared + wga_broken_at(AT.broken, n)) : nullptr;
        is_mended = is_value && wga_is_masked(rows.whole, i);
    }

    ATTENTION_METHOD size_t vector_in(const struct wga_rows &rows, uint32_t i) const
    {
        uint32_t partition = rows.first_partition + i;
        return vector_of(rows, prefill_position(partition, wga_warp_row(warp, lane)));
    }

    /* Copies K one partition ahead of V, as the other groups use them. */
    ATTENTION_METHOD void copy_sequence(const struct wga_rows &rows)
    {
        size_t before = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < rows.n_partitions; i++) {
            size_t vector = vector_in(rows, i);
            put(rows, i, vector, false);
            if (i > 0)
                put(rows, i - 1, before, true);
            before = vector;
        }
        if (rows.n_partitions > 0)
            put(rows, rows.n_partitions - 1, before, true);
        this->done += rows.n_partitions;
    }

    ATTENTION_METHOD void run(void)
    {
        warp = wga_warp_of(threadIdx.x);
        lane = cuda_lane_of(threadIdx.x);
        unseen = nullptr;
        for (uint32_t row = this->begin; row < this->end;) {
            struct wga_rows rows = this->rows_from(row);
            copy_sequence(rows);
            row = rows.end;
        }
        publish<0>();
    }
};

/* --- groups 1 and 2 --- */

/* Arrays of registers belong to the functions, not to the struct. Scores and then weights of a
 * partition: s[WGA_SCORES]. The weights as operands: p[WGA_WEIGHTS]. Sums: d[DIM / 2]. */
template <typename Kv, uint32_t DIM> struct wga_consumer : wga_block<Kv, DIM> {
    using base = wga_block<Kv, DIM>;
    using base::a;
    using base::AT;
    using base::shared;
    static constexpr uint32_t SUMS = wga_sums(DIM);

    uint32_t consumer, lane;
    uint32_t queries;              /* address of this group's */
    struct attention_span seen[2]; /* spans of this thread's rows, from the first partition on */
    float max[2], sum[2];          /* max: of the products, unscaled */

    ATTENTION_METHOD void release(uint32_t barriers, uint32_t i) const
    {
        if (lane == 0)
            barrier_arrive(this->barrier(barriers, this->done + i));
    }

    ATTENTION_METHOD void await(uint32_t barriers, uint32_t i) const
    {
        uint32_t n = this->done + i;
        barrier_wait(this->barrier(barriers, n), wga_full_parity(n));
    }

    /* Waits until it is this group's turn to queue products. */
    ATTENTION_METHOD void begin_turn(void) const
    {
        warps_sync(wga_turn_of(consumer), WGA_TURN_THREADS);
    }

    ATTENTION_METHOD void end_turn(void) const
    {
        warps_arrive(wga_turn_of(wga_other(consumer)), WGA_TURN_THREADS);
    }

    ATTENTION_METHOD void queue_scores(float (&s)[WGA_SCORES], uint32_t i) const
    {
        uint32_t keys = wga_matrix_low(this->address + wga_stage_at(AT.keys, DIM, this->done + i));
        uint32_t q = wga_matrix_low(queries);
        wgmma_fence();
#pragma unroll
        for (uint32_t step = 0; step < wga_key_steps(DIM); step++)
            Kv::scores(s, wga_matrix(q, wga_step_at(PREFILL_QUERIES, step)),
                       wga_matrix(keys, wga_step_at(CUDA_PARTITION, step)), step > 0);
        wgmma_commit();
    }

    ATTENTION_METHOD void queue_values(float (&d)[SUMS], const uint32_t (&p)[WGA_WEIGHTS],
                                       uint32_t i) const
    {
        uint32_t values =
            wga_turned_low(this->address + wga_stage_at(AT.values, DIM, this->done + i));
        wgmma_fence();
#pragma unroll
        for (uint32_t step = 0; step < WGA_STEPS; step++)
            Kv::values(d, p + wga_pairs_at(step), wga_matrix(values, wga_value_at(step)));
        wgmma_commit();
    }

    ATTENTION_METHOD void mask(float (&s)[WGA_SCORES], uint32_t i) const
    {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            struct attention_span part = wga_span_in(seen[r], i);
#pragma unroll
            for (uint32_t n = 0; n < wga_column_tiles(WGA_SCORES); n++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++)
                    if (!attention_sees(part, wga_column(n, lane, c)))
                        s[wga_register(n, r, c)] = -INFINITY;
        }
    }

    /* Turns products into weights; gets the factors for the sums so far. */
    ATTENTION_METHOD void softmax(float (&s)[WGA_SCORES], float keep[2])
    {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            float most = max[r], total = 0.0f;
#pragma unroll
            for (uint32_t n = 0; n < wga_column_tiles(WGA_SCORES); n++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++)
                    most = fmaxf(most, s[wga_register(n, r, c)]);
            most = attention_quad_max(most);
            float reference = attention_reference(most),
                  shift = attention_scaled(-reference, a->factor);
            keep[r] = exp2_near(wga_keep_exponent(max[r], reference, a->factor));
#pragma unroll
            for (uint32_t n = 0; n < wga_column_tiles(WGA_SCORES); n++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    float *x = &s[wga_register(n, r, c)];
                    *x = exp2_near(fmaf(*x, a->factor, shift));
                    total += *x;
                }
            max[r] = most;
            sum[r] = fmaf(sum[r], keep[r], total);
        }
    }

    ATTENTION_METHOD void pack(uint32_t (&p)[WGA_WEIGHTS], const float (&s)[WGA_SCORES]) const
    {
#pragma unroll
        for (uint32_t i = 0; i < WGA_WEIGHTS; i++) {
            const float *two = s + wga_pair(i);
            p[i] = Kv::pack_weights(two[0], two[1]);
        }
    }

    ATTENTION_METHOD void scale_sums(float (&d)[SUMS], const float keep[2]) const
    {
#pragma unroll
        for (uint32_t n = 0; n < wga_column_tiles(SUMS); n++)
#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    float *x = &d[wga_register(n, r, c)];
                    *x = attention_scaled(*x, keep[r]);
                }
    }

    /* Makes rows NaN that attend to a value of V that is not finite. Call before V is released. */
    ATTENTION_METHOD void spoil_rows(uint32_t i)
    {
        const uint32_t *words =
            (const uint32_t *)(shared + wga_broken_at(AT.broken, this->done + i));
        if (wga_is_sound(words))
            return;
#pragma unroll 1
        for (uint32_t n = 0; n < wga_column_tiles(WGA_SCORES); n++)
            for (uint32_t c = 0; c < 2; c++)
                for (uint32_t r = 0; r < 2; r++) {
                    uint32_t column = wga_column(n, lane, c);
                    if (wga_is_broken(words, column) &&
                        attention_sees(wga_span_in(seen[r], i), column))
                        sum[r] = NAN;
                }
    }

    /* Waits for V of partition i, once it is this group's turn or no turn matters. */
    ATTENTION_METHOD void await_values(const struct wga_rows &rows, uint32_t i)
    {
        await(AT.full_values, i);
        if (wga_is_masked(rows.whole, i))
            spoil_rows(i);
    }

    ATTENTION_METHOD void run_sequence(float (&d)[SUMS], const struct wga_rows &rows)
    {
        float s[WGA_SCORES], keep[2];
        uint32_t p[WGA_WEIGHTS], last = rows.n_partitions - 1;
        await(AT.full_keys, 0);
        begin_turn();
        queue_scores(s, 0);
        end_turn();
        wgmma_wait_all();
        wgmma_settle(s);
        release(AT.free_keys, 0);
        if (wga_is_masked(rows.whole, 0))
            mask(s, 0);
        softmax(s, keep);
        pack(p, s);
#pragma unroll 1
        for (uint32_t i = 1; i <= last; i++) {
            await(AT.full_keys, i);
            await_values(rows, i - 1);
            begin_turn();
            queue_scores(s, i);
            queue_values(d, p, i - 1);
            end_turn();
            wgmma_wait_but_one();
            wgmma_settle(s);
            release(AT.free_keys, i);
            if (wga_is_masked(rows.whole, i))
                mask(s, i);
            softmax(s, keep);
            wgmma_wait_all();
            wgmma_settle(d);
            wgmma_keep(p);
            release(AT.free_values, i - 1);
            scale_sums(d, keep);
            pack(p, s);
        }
        await_values(rows, last);
        queue_values(d, p, last);
        wgmma_wait_all();
        wgmma_settle(d);
        release(AT.free_values, last);
    }

    /* Stores row r of this thread; `y` NULL: no such row. */
    ATTENTION_METHOD void store_row(const float (&d)[SUMS], uint32_t r, float *y) const
    {
        float total = attention_quad_sum(sum[r]);
        if (y == nullptr)
            return;
        bool in_pairs = cuda_is_multiple(y, sizeof(float2));
#pragma unroll
        for (uint32_t n = 0; n < wga_column_tiles(SUMS); n++) {
            float *at = y + wga_column(n, lane, 0);
            const float *two = d + wga_register(n, r, 0);
            float2 both = {attention_result(two[0], total), attention_result(two[1], total)};
            if (wga_column(n, lane, 0) >= a->kv.head_dim)
                continue;
            if (in_pairs) {
                *(float2 *)at = both;
            } else {
                at[0] = both.x;
                at[1] = both.y;
            }
        }
    }

    /* Sets the spans of this thread's rows; rows of other sequences see nothing. */
    ATTENTION_METHOD void see(const struct wga_rows &rows)
    {
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t row = this->rows()[wga_query_of(threadIdx.x, r)];
            seen[r] = {0, 0};
            if (row >= rows.begin && row < rows.end)
                seen[r] = wga_span_from(attention_span_of(a->positions[row], a->window),
                                        rows.first_partition);
        }
    }

    ATTENTION_METHOD void compute(const struct wga_rows &rows)
    {
        float d[SUMS];
#pragma unroll
        for (uint32_t i = 0; i < SUMS; i++)
            d[i] = 0.0f;
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
        see(rows);
        run_sequence(d, rows);
        this->done += rows.n_partitions;
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            size_t at = this->outputs()[wga_query_of(threadIdx.x, r)];
            store_row(d, r, seen[r].end > 0 ? a->y + at : nullptr);
        }
    }

    /* Notes the rows and the places of this group's queries. */
    ATTENTION_METHOD void note_queries(void) const
    {
        uint32_t row, head, in_group = wga_in_group(threadIdx.x);
        if (in_group >= WGA_QUERIES)
            return;
        uint32_t i = wga_query_in(consumer, in_group);
        bool exists = this->query(i, &row, &head);
        this->rows()[i] = exists ? row : UINT32_MAX;
        this->inputs()[i] = exists ? attention_q_at(a, a->q_stride, row, head) : SIZE_MAX;
        this->outputs()[i] = exists ? attention_q_at(a, a->y_stride, row, head) : SIZE_MAX;
    }

    /* Returns eight elements of a query, 0 if `from` is SIZE_MAX. */
    ATTENTION_METHOD void load_chunk(float4 (&x)[2], size_t from, uint32_t elem,
                                     bool in_fours) const
    {
        const float *at = a->q + wga_elem_at(from, elem);
        x[0] = x[1] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (from == SIZE_MAX)
            return;
        if (in_fours) {
            x[0] = __ldg((const float4 *)at);
            x[1] = __ldg((const float4 *)at + 1);
        } else {
            x[0] = {__ldg(at), __ldg(at + 1), __ldg(at + 2), __ldg(at + 3)};
            x[1] = {__ldg(at + 4), __ldg(at + 5), __ldg(at + 6), __ldg(at + 7)};
        }
    }

    /* Loads this group's queries as operands. All loads of a thread are in flight at once. */
    ATTENTION_METHOD void load_queries(void) const
    {
        float4 x[wga_query_copies(DIM)][2];
        uint32_t chunk = wga_query_chunk(DIM, threadIdx.x), elem = prefill_chunk_elem(chunk);
        bool in_fours = cuda_is_multiple(a->q, sizeof(float4)) && wga_is_in_fours(a->q_stride);
#pragma unroll
        for (uint32_t k = 0; k < wga_query_copies(DIM); k++) {
            uint32_t i = wga_query_in(consumer, wga_copied_query(DIM, threadIdx.x, k));
            size_t from = elem < a->kv.head_dim ? this->inputs()[i] : SIZE_MAX;
            load_chunk(x[k], from, elem, in_fours);
        }
#pragma unroll
        for (uint32_t k = 0; k < wga_query_copies(DIM); k++) {
            uint32_t i = wga_query_in(consumer, wga_copied_query(DIM, threadIdx.x, k));
            *(uint4 *)(shared + wga_query_chunk_at(AT.queries, i, chunk)) =
                make_uint4(Kv::pack(x[k][0].x, x[k][0].y), Kv::pack(x[k][0].z, x[k][0].w),
                           Kv::pack(x[k][1].x, x[k][1].y), Kv::pack(x[k][1].z, x[k][1].w));
        }
    }

    ATTENTION_METHOD void run(void)
    {
        consumer = wga_consumer_of(threadIdx.x);
        lane = cuda_lane_of(threadIdx.x);
        queries = this->address + wga_queries_at(AT.queries, consumer);
        note_queries();
        warps_sync(wga_own_barrier(consumer), WGA_GROUP);
        load_queries();
        wgmma_fence_shared();
        warps_sync(wga_own_barrier(consumer), WGA_GROUP);
        if (consumer != 0)
            end_turn(); /* the first turn is consumer 0's */
        for (uint32_t row = this->begin; row < this->end;) {
            struct wga_rows rows = this->rows_from(row);
            if (rows.n_partitions > 0)
                compute(rows);
            row = rows.end;
        }
        if (consumer == 0)
            begin_turn(); /* ends the other's last turn */
    }
};

/* --- the block --- */

template <typename Kv, uint32_t DIM>
CUDA_DEVICE void wga_open_barriers(const wga_block<Kv, DIM> &block)
{
    if (threadIdx.x != 0)
        return;
    for (uint32_t i = 0; i < WGA_STAGES; i++) {
        barrier_init(block.barrier(block.AT.full_keys, i), WGA_FULL_ARRIVALS);
        barrier_init(block.barrier(block.AT.full_values, i), WGA_FULL_ARRIVALS);
        barrier_init(block.barrier(block.AT.free_keys, i), WGA_FREE_ARRIVALS);
        barrier_init(block.barrier(block.AT.free_values, i), WGA_FREE_ARRIVALS);
    }
}

/* grid: KV heads × tiles of rows. The last rows have the longest contexts, so their blocks start
 * first. */
template <typename Kv, uint32_t DIM>
static __global__ void __launch_bounds__(WGA_THREADS, 1)
    attention_wgmma(const __grid_constant__ struct attention_cuda a)
{
#if WGMMA_BUILT
    CUDA_SHARED(memory);
    cuda_op_begin();
    uint32_t n_rows = prefill_tile_rows(a.heads_per_kv);
    uint32_t n_tiles = prefill_n_blocks(a.n_rows, n_rows);
    uint32_t first =
        prefill_first_row(wga_block_tile(blockIdx.x, a.kv.n_kv_heads), n_tiles, n_rows);
    wga_block<Kv, DIM> block;
    block.a = &a;
    block.shared = memory + wgmma_skip(wgmma_address(memory));
    block.address = wgmma_address(block.shared);
    block.begin = a.row_begin + first;
    block.end = a.row_begin + a.n_rows;
    if (a.n_rows - first > n_rows)
        block.end = block.begin + n_rows;
    block.i_kv = wga_block_head(blockIdx.x, a.kv.n_kv_heads);
    block.done = 0;
    if (!attention_has_heads(&a, block.i_kv, 0, a.heads_per_kv))
        return;
    wga_open_barriers(block);
    __syncthreads();
    if (wga_group_of(threadIdx.x) == 0) {
        registers_lower<WGA_COPIER_REGISTERS>();
        wga_copier<Kv, DIM> copier;
        (wga_block<Kv, DIM> &)copier = block;
        copier.run();
    } else {
        registers_raise<WGA_CONSUMER_REGISTERS>();
        wga_consumer<Kv, DIM> consumer;
        (wga_block<Kv, DIM> &)consumer = block;
        consumer.run();
    }
#endif
}

template <typename Kv, uint32_t DIM>
static int wga_launch(void *stream, const struct attention_cuda *a)
{
    constexpr uint32_t n_bytes = wga_shared_bytes(DIM);
    auto *kernel = attention_wgmma<Kv, DIM>;
    uint32_t n_tiles = prefill_n_blocks(a->n_rows, prefill_tile_rows(a->heads_per_kv));
    int code = CUDA_ALLOW_SHARED(kernel, n_bytes);
    return code != 0 ? code
                     : CUDA_LAUNCH(kernel, wga_n_blocks(n_tiles, a->kv.n_kv_heads), WGA_THREADS,
                                   n_bytes, stream, *a);
}
