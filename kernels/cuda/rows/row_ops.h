/* row_ops.h: the plain ops of a step, each for one row (or a piece of it) by one block, with the
 * bits of kernels/cpu/ref. All but embed read and write each element once, so memory is the bound;
 * bytes are given.
 *
 *     ptxas: row_ops.cu embed_rows registers 48 shared 4096 stack 32
 *     ptxas: row_ops.cu (add|act_mul|rope|kv_write|gather|scale)_rows registers 48 shared 4096
 *     ptxas: row_ops.cu copy_heads_rows registers 48 shared 4096
 *     ptxas: row_ops.cu rope_kv_rows registers 56 shared 4096
 *     ptxas: row_ops.cu rope_kv_rows on sm_90a registers 48 shared 4096 */
#pragma once

#include <stdbool.h>

#include "kernels/cuda/block.h"
#include "kernels/cuda/kv_index.h"
#include "kernels/dequant_at.h"
#include "kernels/maths.h"

/* A smaller |x| becomes 0 in bf16 (reason: kernels/cpu/dense.h). */
#define ROW_BF16_TINY 2.775557561562891351e-17f /* 2^-55 */

enum { ROPE_ROW_PAIRS = 64 }; /* pairs of a head whose sines and cosines are computed at once */

/* Ops on separate elements split a row over blocks; otherwise a row of a wide model would wait for
 * memory again and again. A thread loads ROW_BATCH elements before it uses the first. */
enum { ROW_BATCH = 4, ROW_PIECE = ROW_BATCH * BLOCK_MAX_THREADS };

/* Returns the number of pieces of a row of n columns. Each block computes one piece. */
CUDA_HD uint32_t row_n_pieces(uint32_t n)
{
    return n / ROW_PIECE + (n % ROW_PIECE > 0);
}

/* Returns the first column of a piece. */
CUDA_HD uint32_t row_piece_begin(uint32_t piece)
{
    return piece * ROW_PIECE;
}

/* Returns the number of columns of a piece. */
CUDA_HD uint32_t row_piece_columns(uint32_t n, uint32_t piece)
{
    uint32_t left = n - row_piece_begin(piece);
    return left < ROW_PIECE ? left : (uint32_t)ROW_PIECE;
}

/* An embedding: raw rows in the checkpoint's type. */
struct embed_cuda {
    const void *data; /* on the device */
    enum dtype type;
    uint32_t n_rows, n_cols;
    size_t row_bytes;
    const float *scales; /* NULL, or scales of rows stored as int8 or E4M3 (a linear's) */
    bool is_f8;
};

/* Returns a token's raw row; NULL if there is none. */
CUDA_HD const uint8_t *embed_raw_row(const struct embed_cuda *w, uint32_t id)
{
    return id < w->n_rows ? (const uint8_t *)w->data + id * w->row_bytes : NULL;
}

/* y[n] = row of an embedding; `row` NULL (an id without a row): NaN. Bytes: those of the raw row +
 * 4·n. */
BLOCK_FN void embed_row(const struct block *b, float *y, enum dtype type, const uint8_t *row,
                        uint32_t n)
{
    for (uint32_t i = b->tid; i < n; i += b->n_threads) {
        float x = row ? dequant_at(type, row, i) : NAN;
        bool tiny = type == DTYPE_BF16 && x > -ROW_BF16_TINY && x < ROW_BF16_TINY;
        y[i] = tiny ? 0.0f : x;
    }
}

/* y[n] = row of an embedding that is stored as codes with a scale. Bytes: 5·n. */
BLOCK_FN void embed_codes_row(const struct block *b, float *y, const uint8_t *codes, float scale,
                              bool is_f8, uint32_t n)
{
    for (uint32_t i = b->tid; i < n; i += b->n_threads)
        y[i] = scale * (is_f8 ? maths_f8_to_f32(codes[i]) : (float)(int8_t)codes[i]);
}

/* y[n] += factor · x[n], where the product is rounded first; also a bias. Bytes: 12·n. */
BLOCK_FN void add_row(const struct block *b, float *y, const float *x, uint32_t n, float factor)
{
    for (uint32_t i = b->tid; i < n; i += ROW_BATCH * b->n_threads) {
        float sums[ROW_BATCH] = {0};
        BLOCK_UNROLL_FEW
        for (uint32_t j = 0; j < ROW_BATCH; j++) {
            uint32_t at = i + j * b->n_threads;
            if (at < n)
                sums[j] = y[at] + factor * x[at];
        }
        BLOCK_UNROLL_FEW
        for (uint32_t j = 0; j < ROW_BATCH; j++)
            if (i + j * b->n_threads < n)
                y[i + j * b->n_threads] = sums[j];
    }
}

/* struct scale_params (ops.h) for kernels: pointers are device addresses. */
struct scale_cuda {
    float factor, softcap;
    const float *by_position; /* NULL: off */
    uint32_t period, offset;
    const float *gate; /* NULL: off */
    size_t gate_stride;
};

/* Returns the factor of a row; `positions` is unused without by_position. */
BLOCK_FN float scale_of_row(const struct scale_cuda *p, const uint32_t *positions, uint32_t row)
{
    float factor = p->factor;
    if (p->by_position)
        factor *= p->by_position[(positions[row] + p->offset) / p->period];
    if (p->gate)
        factor *= maths_sigmoid(p->gate[row * p->gate_stride]);
    return factor;
}

/* x[n] = softcap(x · factor); softcap 0: none. Bytes: 8·n. */
BLOCK_FN void scale_row(const struct block *b, float *x, uint32_t n, float factor, float softcap)
{
    for (uint32_t i = b->tid; i < n; i += b->n_threads) {
        float scaled = x[i] * factor;
        x[i] = softcap > 0.0f ? maths_softcap(scaled, softcap) : scaled;
    }
}

/* y[n] = activation(gate) · up (NULL: activation alone); y may be gate. Bytes: 12·n. */
BLOCK_FN void act_mul_row(const struct block *b, float *y, const float *gate, const float *up,
                          uint32_t n, enum activation kind)
{
    for (uint32_t i = b->tid; i < n; i += ROW_BATCH * b->n_threads) {
        float gates[ROW_BATCH], ups[ROW_BATCH];
        BLOCK_UNROLL_FEW
        for (uint32_t j = 0; j < ROW_BATCH; j++) {
            uint32_t at = i + j * b->n_threads;
            gates[j] = at < n ? gate[at] : 0.0f;
            ups[j] = up && at < n ? up[at] : 0.0f;
        }
        BLOCK_UNROLL_FEW
        for (uint32_t j = 0; j < ROW_BATCH; j++) {
            if (i + j * b->n_threads < n)
                y[i + j * b->n_threads] =
                    up ? maths_gated(gates[j], ups[j], kind) : maths_activate(gates[j], kind);
        }
    }
}

/* y[n] = x[n]. Bytes: 8·n. */
BLOCK_FN void copy_row(const struct block *b, float *y, const float *x, uint32_t n)
{
    for (uint32_t i = b->tid; i < n; i += b->n_threads)
        y[i] = x[i];
}

/* Head h of a row: y columns [h · y_head, … + width) = x columns [h · width, … + width), in the
 * manner of launch.h. Bytes: 8 · n_rows · n_heads · width. */
#ifdef __cplusplus
extern "C"
#endif
    int
    cuda_launch_copy_heads(void *stream, float *y, size_t y_stride, const float *x, size_t x_stride,
                           uint32_t n_rows, uint32_t n_heads, uint32_t width, uint32_t y_head);

/* Returns the columns of x. */
CUDA_HD uint32_t copy_heads_columns(uint32_t n_heads, uint32_t width)
{
    return n_heads * width;
}

/* Returns the column in y of column i of x, which has heads of `width` columns. In y the heads are
 * y_head columns apart. */
CUDA_HD uint32_t copy_heads_to(uint32_t i, uint32_t width, uint32_t y_head)
{
    return i / width * y_head + i % width;
}

/* y[copy_heads_to(i)] = x[i] of n columns. Bytes: 8·n. */
BLOCK_FN void copy_heads_row(const struct block *b, float *y, const float *x, uint32_t n,
                             uint32_t width, uint32_t y_head)
{
    for (uint32_t i = b->tid; i < n; i += b->n_threads)
        y[copy_heads_to(i, width, y_head)] = x[i];
}

/* struct rope_params (ops.h) for kernels: inv_freq and row_tables are on the device. */
struct rope_cuda {
    bool interleaved; /* false: halves */
    uint32_t head_dim, n_rot;
    const float *inv_freq;
    float attention_factor;
    const uint32_t *row_tables;
};

/* The same with the frequencies of row r as its only table. */
CUDA_HD struct rope_cuda rope_of_row(struct rope_cuda p, uint32_t r)
{
    if (p.row_tables)
        p.inv_freq += (size_t)p.row_tables[r] * (p.n_rot / 2);
    return p;
}

/* Returns the first element of pair i of a head; the second is *out_step further. */
CUDA_HD uint32_t rope_pair_at(const struct rope_cuda *p, uint32_t i, uint32_t *out_step)
{
    *out_step = p->interleaved ? 1 : p->n_rot / 2;
    return p->interleaved ? 2 * i : i;
}

/* In place on x[n_heads · head_dim], by the first table. A chunk's sines and cosines are computed
 * once for all heads, in shared->floats. Bytes: 8·n_heads·n_rot. arXiv 2104.09864. */
BLOCK_FN void rope_row_cuda(const struct block *b, float *x, uint32_t n_heads, uint32_t position,
                            const struct rope_cuda *p)
{
    float *sines = b->shared->floats, *cosines = sines + ROPE_ROW_PAIRS;
    uint32_t n_pairs = p->n_rot / 2;
    for (uint32_t begin = 0; begin < n_pairs; begin += ROPE_ROW_PAIRS) {
        uint32_t n = n_pairs - begin < ROPE_ROW_PAIRS ? n_pairs - begin : ROPE_ROW_PAIRS;
        for (uint32_t i = b->tid; i < n; i += b->n_threads)
            maths_sincos((float)position * p->inv_freq[begin + i], p->attention_factor, &sines[i],
                         &cosines[i]);
        block_sync(b);
        for (uint32_t i = b->tid; i < n_heads * n; i += b->n_threads) {
            uint32_t step, pair = i % n;
            float *at = x + (size_t)(i / n) * p->head_dim + rope_pair_at(p, begin + pair, &step);
            float first = at[0], second = at[step];
            at[0] = first * cosines[pair] - second * sines[pair];
            at[step] = first * sines[pair] + second * cosines[pair];
        }
        block_sync(b);
    }
}

/* Stores one vector of K or V in the cache's float type. Bytes: 4·n + those of the vector. */
BLOCK_FN void kv_store_row(const struct block *b, void *dst, enum dtype type, const float *x,
                           uint32_t n)
{
    uint16_t *halves = (uint16_t *)dst;
    for (uint32_t i = b->tid; i < n; i += b->n_threads) {
        bool tiny = x[i] > -ROW_BF16_TINY && x[i] < ROW_BF16_TINY;
        if (type == DTYPE_F32)
            ((float *)dst)[i] = x[i];
        else
            halves[i] =
                type == DTYPE_F16 ? maths_f32_to_f16(x[i]) : maths_f32_to_bf16(tiny ? 0.0f : x[i]);
    }
}

CUDA_HD uint8_t kv_code(enum dtype type, float wide, float limit)
{
    wide = wide > limit ? limit : wide < -limit ? -limit : wide;
    return type == DTYPE_F8_E4M3 ? maths_f32_to_f8(wide)
                                 : (uint8_t)((int32_t)rintf(wide) + CUDA_KV_CODE_BIAS);
}

/* Stores one vector of K or V as codes with a scale. The scale is NaN if an element is not
 * finite. */
BLOCK_FN void kv_quantize_row(const struct block *b, uint8_t *codes, float *scale, enum dtype type,
                              const float *x, uint32_t n)
{
    float max = 0.0f;
    uint32_t broken = 0;
    for (uint32_t i = b->tid; i < n; i += b->n_threads) {
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
        broken |= !(fabsf(x[i]) <= 3.4028234663852886e38f);
    }
    broken = block_reduce_word(b, broken, BLOCK_WORD_MAX);
    max = block_max(b, max);
    float limit = (float)(type == DTYPE_F8_E4M3 ? CUDA_KV_F8_MAX : CUDA_KV_CODE_MAX);
    float inv = limit / (max > 1e-30f ? max : 1e-30f);
    for (uint32_t i = b->tid; i < n; i += b->n_threads)
        codes[i] = kv_code(type, broken ? 0.0f : x[i] * inv, limit);
    if (b->tid == 0)
        *scale = broken ? NAN : max * (1.0f / limit);
}

/* Stores a vector of n elements of K or V, in the cache's type, into its place in `pool`. */
BLOCK_FN void kv_write_vector(const struct block *b, const struct kv_cuda *kv, uint8_t *pool,
                              const float *x, uint32_t n, uint32_t slot, uint32_t head)
{
    uint8_t *at = pool + kv_cuda_vector_at(kv, n, slot, head);
    if (!kv_cuda_is_coded(kv)) {
        kv_store_row(b, at, kv->dtype, x, n);
        return;
    }
    uint8_t *scale = pool + kv_cuda_scale_at(kv, n, slot, head);
    kv_quantize_row(b, at, (float *)(void *)scale, kv->dtype, x, n);
}

/* Stores K and V of one row and KV head into their slot; K alone if the cache has no V (kv->v is
 * NULL). Other threads of the block may have written K; a barrier must follow those writes. */
BLOCK_FN void kv_write_row(const struct block *b, const struct kv_cuda *kv, const float *k,
                           const float *v, uint32_t slot, uint32_t head)
{
    kv_write_vector(b, kv, (uint8_t *)kv->k, k, kv->head_dim, slot, head);
    if (kv->v)
        kv_write_vector(b, kv, (uint8_t *)kv->v, v, kv->v_dim, slot, head);
}

/* Rope and KV write of one row and KV head: the head's share of q[n_heads · head_dim], and the head
 * of k and v. Bytes: those of rope_row_cuda and kv_write_row, except that k is read once. */
BLOCK_FN void rope_kv_row(const struct block *b, const struct kv_cuda *kv,
                          const struct rope_cuda *p, float *q, uint32_t n_heads, float *k,
                          const float *v, uint32_t position, uint32_t slot, uint32_t head)
{
    uint32_t begin, end;
    float *k_head = k + kv_cuda_column(head, kv->head_dim);
    cuda_piece(0, n_heads, head, kv->n_kv_heads, &begin, &end);
    rope_row_cuda(b, q + (size_t)begin * p->head_dim, end - begin, position, p);
    rope_row_cuda(b, k_head, 1, position, p);
    if (kv_cuda_has_slot(kv, slot))
        kv_write_row(b, kv, k_head, v + kv_cuda_column(head, kv->v_dim), slot, head);
}
