/* attention_wgmma_kernel.h: path P of attention with the warpgroup multiplication of compute
 * capability 9.0. For caches of 16-bit and 8-bit types with heads up to 128. SLUICE_CUDA_ATTENTION
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
 * Codes of 8-bit types are widened to f16 by the threads that copied them. Their scales multiply
 * the products and the weights, as in attention_prefill_kernel.h.
 *
 * Operations: 4 · dim per query and visible position. An SM of an H100 takes 512 clocks for a
 * group's scores of a partition (dim 128), 512 for its values, so 2048 for both groups. The softmax
 * of a group has 64 scores a thread: a maximum, a fused multiply-add, 2^x, an addition, half a
 * conversion, and a factor for a sum. The code has 6.2 instructions each, 400 of the 1024 that a
 * scheduler issues meanwhile (10 and 650 for codes). The special function units take 8 clocks per
 * warp, so 512 of 1024. Shared memory: Q 32 KiB, rings 128 KiB, codes 32 KiB. Source:
 * FlashAttention-3 (arXiv 2407.08608).
 *
 * Registers: a launch has 168 per thread. Group 0 keeps 40 (56 to 72 for codes), the others share
 * what is left: 232 (216 to 224). */
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

/* Either coded type; the kernel distinguishes them at run time. */
struct wga_coded : kv_coded {
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
    static constexpr struct wga_memory AT = wga_memory_of(DIM, Kv::elem_bytes);

    const struct attention_cuda *a;
    unsigned char *shared; /* begins at a multiple of WGA_EIGHT */
    uint32_t address;      /* the same for descriptors */
    uint32_t begin, end, i_kv;
    uint32_t done;

    ATTENTION_METHOD uint64_t *barrier(uint32_t barriers, uint32_t i) const
    {
        return (uint64_t *)(shared + wga_barrier_at(barriers, i));
    }

    ATTENTION_METHOD float code_unit(void) const
    {
        return a->kv.dtype == DTYPE_I8 ? kv_wide_i8::unit : kv_wide_f8::unit;
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
        r.first = attention_span_of(a->positions[row], a->window, a->chunk);
        r.last = attention_span_of(a->positions[last], a->window, a->chunk);
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

    static constexpr uint32_t CHUNKS = wga_chunks(DIM, Kv::elem_bytes);

    uint32_t warp, lane, turn; /* turn: number of tiles queued so far */
    /* The tile that was queued last: its partition, from the block's first. */
    uint32_t unseen;
    bool is_value, is_mended; /* V; V of a masked partition */
    float k_scale, v_scale;   /* scales of this lane's row; set if a K was queued last */

    /* Returns the offset of a position's vector in the pools, SIZE_MAX if it has none. */
    ATTENTION_METHOD size_t vector_of(const struct wga_rows &rows, uint32_t position) const
    {
        uint32_t block = a->kv.n_blocks;
        if (position >= rows.first.begin && position < rows.last.end)
            block = __ldg(a->block_tables + attention_table_at(a, rows.seq, position));
        if (block >= a->kv.n_blocks)
            return SIZE_MAX;
        size_t page = attention_page_at(a, a->k, block, this->i_kv);
        return page + attention_vector_in_page(a, a->k, position);
    }

    ATTENTION_METHOD unsigned char *tile(void) const
    {
        return shared + wga_stage_at(is_value ? AT.values : AT.keys, DIM, unseen);
    }

    ATTENTION_METHOD unsigned char *chunk_of(unsigned char *tile, uint32_t i, uint32_t chunk) const
    {
        uint32_t row = wga_warp_row(warp, wga_copy_row(CHUNKS, lane, i));
        return tile + wga_chunk_at(CUDA_PARTITION, row, chunk);
    }

    /* Returns the destination of copy i for the tile that is queued next. */
    ATTENTION_METHOD unsigned char *copy_at(unsigned char *tile, uint32_t i) const
    {
        if constexpr (Kv::is_coded)
            return shared + wga_code_at(AT.codes, DIM, turn, threadIdx.x, i);
        return chunk_of(tile, i, wga_copy_chunk(CHUNKS, lane));
    }

    /* Queues the copies of this warp's 32 rows. `vector`: of row `lane`. */
    ATTENTION_METHOD void copy(const void *pool, unsigned char *tile, size_t vector) const
    {
        uint32_t byte = wga_chunk_byte(wga_copy_chunk(CHUNKS, lane));
        bool in_head = byte < a->k.vector_bytes;
#pragma unroll 4
        for (uint32_t i = 0; i < CHUNKS; i++) {
            size_t from = __shfl_sync(0xFFFFFFFFu, vector, wga_copy_row(CHUNKS, lane, i));
            bool exists = in_head && from != SIZE_MAX;
            const uint8_t *at = (const uint8_t *)pool + (exists ? from + byte : 0);
            cp_async_16(copy_at(tile, i), at, exists);
        }
        cp_async_commit();
    }

    /* Replaces values of V that are not finite by 0 and returns a bit for each such row of the
     * warp. Otherwise 0 · NaN would reach rows that do not attend to them. */
    ATTENTION_METHOD uint32_t mend(void) const
    {
        uint32_t rows = 0;
#pragma unroll 1
        for (uint32_t i = 0; i < CHUNKS; i++) {
            uint4 *at = (uint4 *)chunk_of(tile(), i, wga_copy_chunk(CHUNKS, lane)), x = *at;
            uint32_t words[4] = {x.x, x.y, x.z, x.w}, found = 0;
#pragma unroll
            for (uint32_t w = 0; w < 4; w++) {
                uint32_t bits = attention_broken(words[w], Kv::exponent);
                words[w] = attention_without(words[w], bits);
                found |= bits;
            }
            *at = make_uint4(words[0], words[1], words[2], words[3]);
            rows = wga_broken_rows(CHUNKS, rows, __ballot_sync(0xFFFFFFFFu, found != 0), i);
        }
        return rows;
    }

    /* Widens the codes that this thread copied. `before`: the number of tiles queued since. */
    template <typename Wide> ATTENTION_METHOD void widen(uint32_t before) const
    {
        uint32_t chunk = wga_copy_chunk(CHUNKS, lane), number = turn - before;
#pragma unroll 1
        for (uint32_t i = 0; i < CHUNKS; i++) {
            uint4 wide[2],
                codes =
                    *(const uint4 *)(shared + wga_code_at(AT.codes, DIM, number, threadIdx.x, i));
            Wide::widen(&wide[0].x, codes.x);
            Wide::widen(&wide[0].z, codes.y);
            Wide::widen(&wide[1].x, codes.z);
            Wide::widen(&wide[1].z, codes.w);
            *(uint4 *)chunk_of(tile(), i, wga_wide_chunk(chunk, 0)) = wide[0];
            *(uint4 *)chunk_of(tile(), i, wga_wide_chunk(chunk, 1)) = wide[1];
        }
    }

    ATTENTION_METHOD void await_free(void) const
    {
        barrier_wait(this->barrier(is_value ? AT.free_values : AT.free_keys, unseen),
                     wga_free_parity(unseen));
    }

    /* Stores the factors of this warp's keys and the scales of its values. */
    ATTENTION_METHOD void put_scales(void) const
    {
        uint32_t position = wga_warp_row(warp, lane);
        float factor = attention_key_factor(a->factor, k_scale, this->code_unit());
        ((float *)(shared + wga_scales_at(AT.k_scales, unseen)))[position] = factor;
        ((float *)(shared + wga_scales_at(AT.v_scales, unseen)))[position] = v_scale;
    }

    /* Makes the tile that was queued last visible to the other groups. N tiles were queued since.
     */
    template <int N> ATTENTION_METHOD void publish(void) const
    {
        if (turn == N)
            return;
        cp_async_wait<N>();
        if constexpr (Kv::is_coded) {
            await_free();
            if (a->kv.dtype == DTYPE_I8)
                widen<kv_wide_i8>(1 + N);
            else
                widen<kv_wide_f8>(1 + N);
            if (!is_value)
                put_scales();
        } else if (is_value) {
            uint32_t rows = is_mended ? mend() : 0;
            if (lane == 0)
                ((uint32_t *)(shared + wga_broken_at(AT.broken, unseen)))[warp] = rows;
        }
        wgmma_fence_shared();
        __syncwarp();
        if (lane == 0)
            barrier_arrive(this->barrier(is_value ? AT.full_values : AT.full_keys, unseen));
    }

    /* Returns the scale of this lane's row of partition i. */
    ATTENTION_METHOD float scale_in(const void *pool, const struct wga_rows &rows, uint32_t i,
                                    size_t vector) const
    {
        uint32_t partition = rows.first_partition + i;
        uint32_t position = prefill_position(partition, wga_warp_row(warp, lane));
        if (vector == SIZE_MAX)
            return 0.0f;
        return *(const float *)((const uint8_t *)pool + wga_scale_of(a, vector, position));
    }

    /* Copies partition i of K, or of V. */
    ATTENTION_METHOD void put(const struct wga_rows &rows, uint32_t i, size_t vector, bool values)
    {
        uint32_t n = this->done + i;
        unsigned char *to = shared + wga_stage_at(values ? AT.values : AT.keys, DIM, n);
        float scales[2] = {0.0f, 0.0f};
        if constexpr (!Kv::is_coded)
            barrier_wait(this->barrier(values ? AT.free_values : AT.free_keys, n),
                         wga_free_parity(n));
        copy(values ? a->kv.v : a->kv.k, to, vector);
        if (Kv::is_coded && !values) {
            scales[0] = scale_in(a->kv.k, rows, i, vector);
            scales[1] = scale_in(a->kv.v, rows, i, vector);
        }
        turn++;
        publish<1>();
        unseen = n;
        is_value = values;
        is_mended = values && wga_is_masked(rows.whole, i);
        k_scale = scales[0];
        v_scale = scales[1];
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
        turn = unseen = 0;
        is_value = is_mended = false;
        k_scale = v_scale = 0.0f;
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
    uint32_t queries;              /* address of this group's queries in shared memory */
    struct attention_span seen[2]; /* spans of this thread's rows, from the first partition on */
    float max[2], sum[2];          /* max: of the products; of the scores for coded types */
    float unit[2];                 /* unit of the sums, for coded types */

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
        uint32_t q = wga_matrix_low(wgmma_again(queries));
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

    /* Returns the two scales of this lane's columns of tile n of partition i. */
    ATTENTION_METHOD float2 scales(uint32_t of, uint32_t i, uint32_t n) const
    {
        const float *at = (const float *)(shared + wga_scales_at(of, this->done + i));
        return *(const float2 *)(at + wga_column(n, lane, 0));
    }

    /* Turns products with codes into scores. */
    ATTENTION_METHOD void scale_scores(float (&s)[WGA_SCORES], uint32_t i) const
    {
#pragma unroll
        for (uint32_t n = 0; n < wga_column_tiles(WGA_SCORES); n++) {
            float2 two = scales(AT.k_scales, i, n);
            const float factors[2] = {two.x, two.y};
#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    float *x = &s[wga_register(n, r, c)];
                    *x = attention_scaled(*x, factors[c]);
                }
        }
    }

    /* Turns products, or scores of coded types, into weights. Gets the factors for the sums so
     * far. */
    ATTENTION_METHOD void weigh(float (&s)[WGA_SCORES], float keep[2])
    {
        const float factor = Kv::is_coded ? 1.0f : a->factor;
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
                  shift = attention_scaled(-reference, factor);
            keep[r] = exp2_near(wga_keep_exponent(max[r], reference, factor));
#pragma unroll
            for (uint32_t n = 0; n < wga_column_tiles(WGA_SCORES); n++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    float *x = &s[wga_register(n, r, c)];
                    *x = exp2_near(fmaf(*x, factor, shift));
                    total += *x;
                }
            max[r] = most;
            sum[r] = fmaf(sum[r], keep[r], total);
        }
    }

    /* Multiplies weights by the scales of V, in units of the largest so far. Changes the factors
     * for the sums to that unit. MASKED: a weight may be 0 for a scale that is not finite. */
    template <bool MASKED>
    ATTENTION_METHOD void scale_weights(float (&s)[WGA_SCORES], float keep[2], uint32_t i)
    {
        float most[2] = {0.0f, 0.0f};
#pragma unroll
        for (uint32_t n = 0; n < wga_column_tiles(WGA_SCORES); n++) {
            float2 two = scales(AT.v_scales, i, n);
            const float by[2] = {two.x, two.y};
#pragma unroll
            for (uint32_t r = 0; r < 2; r++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    float *x = &s[wga_register(n, r, c)];
                    *x = MASKED ? attention_coded_weight(*x, by[c]) : attention_scaled(*x, by[c]);
                    most[r] = fmaxf(most[r], *x);
                }
        }
#pragma unroll
        for (uint32_t r = 0; r < 2; r++) {
            float kept = attention_scaled(unit[r], keep[r]);
            float next = fmaxf(attention_quad_max(most[r]), kept), inv = attention_inverse(next);
#pragma unroll
            for (uint32_t n = 0; n < wga_column_tiles(WGA_SCORES); n++)
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    float *x = &s[wga_register(n, r, c)];
                    *x = attention_scaled(*x, inv);
                }
            unit[r] = next;
            keep[r] = attention_worth(kept, next);
        }
    }

    /* Turns products of partition i into weights. Gets the factors for the sums so far. In both
     * cases the last code is there twice, in blocks of its own. So it stays before the wait that
     * follows, and the softmax runs beside the products. */
    ATTENTION_METHOD void softmax(float (&s)[WGA_SCORES], float keep[2],
                                  const struct wga_rows &rows, uint32_t i)
    {
        bool is_masked = wga_is_masked(rows.whole, i);
        if constexpr (Kv::is_coded) {
            scale_scores(s, i);
            if (is_masked)
                mask(s, i);
            weigh(s, keep);
            if (is_masked)
                scale_weights<true>(s, keep, i);
            else
                scale_weights<false>(s, keep, i);
        } else if (is_masked) {
            mask(s, i);
            weigh(s, keep);
        } else {
            weigh(s, keep);
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
        if constexpr (!Kv::is_coded)
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
        softmax(s, keep, rows, 0);
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
            softmax(s, keep, rows, i);
            wgmma_settle(s); /* the softmax is done before the wait */
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

    ATTENTION_METHOD float scaled_back(float x, uint32_t r) const
    {
        if constexpr (Kv::is_coded)
            return attention_scaled(x, attention_scaled(unit[r], this->code_unit()));
        return x;
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
            float2 both = {attention_result(scaled_back(two[0], r), total),
                           attention_result(scaled_back(two[1], r), total)};
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
                seen[r] = wga_span_from(attention_span_of(a->positions[row], a->window, a->chunk),
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
        sum[0] = sum[1] = unit[0] = unit[1] = 0.0f;
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
        this->inputs()[i] = exists ? attention_q_at(a, row, head) : SIZE_MAX;
        this->outputs()[i] = exists ? attention_y_at(a, row, head) : SIZE_MAX;
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
            begin_turn(); /* pairs with the other group's last end_turn() */
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
        registers_lower<wga_copier_registers(DIM, Kv::elem_bytes)>();
        wga_copier<Kv, DIM> copier;
        (wga_block<Kv, DIM> &)copier = block;
        copier.run();
    } else {
        registers_raise<wga_consumer_registers(DIM, Kv::elem_bytes)>();
        wga_consumer<Kv, DIM> consumer;
        (wga_block<Kv, DIM> &)consumer = block;
        consumer.run();
    }
#endif
}

template <typename Kv, uint32_t DIM>
static int wga_launch(void *stream, const struct attention_cuda *a)
{
    constexpr uint32_t n_bytes = wga_shared_bytes(DIM, Kv::elem_bytes);
    auto *kernel = attention_wgmma<Kv, DIM>;
    uint32_t n_tiles = prefill_n_blocks(a->n_rows, prefill_tile_rows(a->heads_per_kv));
    int code = CUDA_ALLOW_SHARED(kernel, n_bytes);
    return code != 0 ? code
                     : CUDA_LAUNCH(kernel, wga_n_blocks(n_tiles, a->kv.n_kv_heads), WGA_THREADS,
                                   n_bytes, stream, *a);
}
