/* vector_impl.h: the inner loops (inner.h) over one row, in the 16-lane vectors of vec_*.h.
 * inner_avx2.c and inner_avx512.c each include this file once. */
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/vec/exp_impl.h"

/* Returns erfc(z) for any z. */
static inline v16 v_erfc(v16 z)
{
    static const float coefficients[ERFC_N] = ERFC_COEFFICIENTS;
    v16 a = v_abs(z), one = v_set1(1.0f);
    v16 t = v_div(one, v_fma(a, v_set1(0.5f), one)), p = v_set1(coefficients[ERFC_N - 1]);
    for (int i = ERFC_N - 2; i >= 0; i--)
        p = v_fma(p, t, v_set1(coefficients[i]));
    v16 e = v_mul(t, v_exp(v_sub(p, v_mul(a, a))));
    return v_select_lt(z, v_zero(), v_sub(v_set1(2.0f), e), e);
}

static void abs_stats(const float *x, uint32_t n, float *out_sum, float *out_max)
{
    v16 sum = v_zero(), max = v_zero();
    uint32_t whole = n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 a = v_abs(v_load(x + i));
        sum = v_add(sum, a);
        max = v_max(a, max);
    }
    if (whole < n) {
        v16 a = v_abs(v_load_n(x + whole, n - whole));
        sum = v_add(sum, a);
        max = v_max(a, max);
    }
    *out_sum = v_sum(sum);
    *out_max = v_max_lanes(max);
}

/* Appends the groups of these 16 columns that have a high part. */
static void list_outliers(struct act_cpu *act, uint32_t row, uint32_t column, v16 hi)
{
    int8_t bytes[16];
    v_store_i8(bytes, hi);
    struct act_outlier *list =
        act->outliers + (size_t)row * (act->k_pad / ACT_GROUP) + act->n_outliers[row];
    for (uint32_t g = 0; g < 16 / ACT_GROUP; g++) {
        const int8_t *b = bytes + g * ACT_GROUP;
        if ((b[0] | b[1] | b[2] | b[3]) == 0)
            continue;
        *list++ = act_outlier_of(column / ACT_GROUP + g, b);
        act->n_outliers[row]++;
    }
}

static void quantize(struct act_cpu *act, uint32_t row, const float *x, uint32_t n, float inv)
{
    int8_t *lo_row = act->lo + (size_t)row * act->k_pad;
    v16 scale = v_set1(inv), by_255 = v_set1(1.0f / 255.0f), limit = v_set1(127.0f);
    act->n_outliers[row] = 0;
    for (uint32_t i = 0; i < act->k_pad; i += ACT_RUN) {
        v16 halves[2];
        for (uint32_t h = 0; h < 2; h++) {
            uint32_t j = i + 16 * h;
            v16 v = x == NULL || j >= n ? v_zero()
                    : n - j >= 16       ? v_load(x + j)
                                        : v_load_n(x + j, n - j);
            v16 a = v_rint(v_mul(v, scale)), lo = a;
            if (v_any_gt(v_abs(a), limit)) {
                v16 hi = v_rint(v_mul(a, by_255));
                lo = v_sub(a, v_mul(hi, v_set1(255.0f))); /* exact: integers below 2^24 */
                list_outliers(act, row, j, hi);
            }
            v_store_i8(lo_row + j, lo);
            halves[h] = lo;
        }
        act_put_sums(act, row, i / ACT_RUN, (int32_t)v_sum(halves[0]), (int32_t)v_sum(halves[1]));
    }
}

/* Loads 16 columns and sets values nearer to 0 than DENSE_TINY to 0. */
static inline v16 without_tiny(const float *x)
{
    v16 a = v_load(x);
    return v_select_lt(v_abs(a), v_set1(DENSE_TINY), v_zero(), a);
}

/* Rounds ACT_RUN columns to bf16, stored as f32. */
static void round_bf16_f32(uint32_t *dst, const float *x)
{
    for (int i = 0; i < ACT_RUN; i += 16)
        v_store((float *)(void *)(dst + i), v_round_bf16(without_tiny(x + i)));
}

/* Rounds ACT_RUN columns to bf16, stored as pairs. */
static inline void round_bf16_pairs(uint32_t *dst, const float *x)
{
    for (int i = 0; i < ACT_RUN; i += 16)
        v_store_bf16((uint16_t *)(void *)(dst + i / 2), without_tiny(x + i));
}

static inline v16 v_scaled(v16 x, float factor, float softcap)
{
    x = v_mul(x, v_set1(factor));
    if (!(softcap > 0.0f))
        return x;
    return v_softcap(x, softcap);
}

static void scale(float *x, uint32_t n, float factor, float softcap)
{
    uint32_t whole = n & ~15u;
    for (uint32_t i = 0; i < whole; i += 16)
        v_store(x + i, v_scaled(v_load(x + i), factor, softcap));
    if (whole < n)
        v_store_n(x + whole, v_scaled(v_load_n(x + whole, n - whole), factor, softcap), n - whole);
}

static void rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    v16 squares = v_zero();
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 v = v_load(x + i);
        squares = v_fma(v, v, squares);
    }
    v16 tail = v_load_n(x + whole, rest);
    squares = v_fma(tail, tail, squares);
    v16 scale = v_set1(1.0f / sqrtf(v_sum(squares) / (float)n + eps));
    for (uint32_t i = 0; i < whole; i += 16)
        v_store(y + i, v_mul(v_mul(v_load(x + i), scale), v_load(w + i)));
    if (rest > 0)
        v_store_n(y + whole, v_mul(v_mul(tail, scale), v_load_n(w + whole, rest)), rest);
}

/* Returns x − mean in the first `rest` lanes, 0 in the others. */
static inline v16 centred_tail(const float *x, float mean, uint32_t rest)
{
    float ones[16] = {0};
    for (uint32_t i = 0; i < rest; i++)
        ones[i] = 1.0f;
    return v_mul(v_sub(v_load_n(x, rest), v_set1(mean)), v_load(ones));
}

static void layer_norm(float *y, const float *x, const float *w, const float *b, uint32_t n,
                       float eps)
{
    v16 sum = v_zero(), squares = v_zero();
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        sum = v_add(sum, v_load(x + i));
    sum = v_add(sum, v_load_n(x + whole, rest));
    float mean = v_sum(sum) / (float)n;
    v16 m = v_set1(mean), tail = centred_tail(x + whole, mean, rest);
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 d = v_sub(v_load(x + i), m);
        squares = v_fma(d, d, squares);
    }
    squares = v_fma(tail, tail, squares);
    v16 scale = v_set1(1.0f / sqrtf(v_sum(squares) / (float)n + eps));
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 v = v_mul(v_mul(v_sub(v_load(x + i), m), scale), v_load(w + i));
        v_store(y + i, b != NULL ? v_add(v, v_load(b + i)) : v);
    }
    if (rest > 0) {
        v16 v = v_mul(v_mul(tail, scale), v_load_n(w + whole, rest));
        v_store_n(y + whole, b != NULL ? v_add(v, v_load_n(b + whole, rest)) : v, rest);
    }
}

static void add(float *y, const float *x, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16)
        v_store(y + i, v_add(v_load(y + i), v_load(x + i)));
    if (rest > 0)
        v_store_n(y + whole, v_add(v_load_n(y + whole, rest), v_load_n(x + whole, rest)), rest);
}

/* gelu_tanh is x·σ(2z) with z = √(2/π)·(x + 0.044715·x³). */
static inline v16 activate(v16 x, enum activation kind)
{
    v16 one = v_set1(1.0f);
    switch (kind) {
    case ACTIVATION_SIGMOID:
        return v_div(one, v_add(one, v_exp(v_sub(v_zero(), x))));
    case ACTIVATION_IDENTITY:
        return x;
    case ACTIVATION_SILU:
        return v_div(x, v_add(one, v_exp(v_sub(v_zero(), x))));
    case ACTIVATION_GELU_TANH: {
        v16 cube = v_mul(v_mul(v_mul(x, x), x), v_set1(0.044715f));
        v16 z2 = v_mul(v_add(x, cube), v_set1(-1.5957691216057308f));
        return v_div(x, v_add(one, v_exp(z2)));
    }
    case ACTIVATION_GELU_ERF:
        return v_mul(v_mul(x, v_set1(0.5f)), v_erfc(v_mul(x, v_set1(-0.70710678118654752f))));
    case ACTIVATION_RELU2:
        return v_select_lt(x, v_zero(), v_zero(), v_mul(x, x));
    case ACTIVATION_GATED_OAI: {
        v16 g = v_min(v_set1(ACTIVATION_OAI_LIMIT), x);
        return v_div(g, v_add(one, v_exp(v_mul(g, v_set1(-ACTIVATION_OAI_ALPHA)))));
    }
    default:
        return v_select_lt(x, v_zero(), v_zero(), x);
    }
}

/* maths_gated() in each lane. */
static inline v16 gated(v16 gate, v16 up, enum activation kind)
{
    if (kind == ACTIVATION_GATED_OAI)
        up = v_add(v_max(v_set1(-ACTIVATION_OAI_LIMIT), v_min(v_set1(ACTIVATION_OAI_LIMIT), up)),
                   v_set1(1.0f));
    return v_mul(activate(gate, kind), up);
}

static inline __attribute__((always_inline)) void
act_mul_as(float *y, const float *gate, const float *up, uint32_t n, enum activation kind)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 g = v_load(gate + i);
        v_store(y + i, up != NULL ? gated(g, v_load(up + i), kind) : activate(g, kind));
    }
    if (rest > 0) {
        v16 g = v_load_n(gate + whole, rest);
        v_store_n(y + whole,
                  up != NULL ? gated(g, v_load_n(up + whole, rest), kind) : activate(g, kind),
                  rest);
    }
}

static void act_mul(float *y, const float *gate, const float *up, uint32_t n, enum activation kind)
{
    switch (kind) {
    case ACTIVATION_SILU:
        act_mul_as(y, gate, up, n, ACTIVATION_SILU);
        break;
    case ACTIVATION_GELU_TANH:
        act_mul_as(y, gate, up, n, ACTIVATION_GELU_TANH);
        break;
    case ACTIVATION_GELU_ERF:
        act_mul_as(y, gate, up, n, ACTIVATION_GELU_ERF);
        break;
    case ACTIVATION_RELU2:
        act_mul_as(y, gate, up, n, ACTIVATION_RELU2);
        break;
    case ACTIVATION_GATED_OAI:
        act_mul_as(y, gate, up, n, ACTIVATION_GATED_OAI);
        break;
    case ACTIVATION_SIGMOID:
        act_mul_as(y, gate, up, n, ACTIVATION_SIGMOID);
        break;
    case ACTIVATION_IDENTITY:
        act_mul_as(y, gate, up, n, ACTIVATION_IDENTITY);
        break;
    default:
        act_mul_as(y, gate, up, n, ACTIVATION_RELU);
        break;
    }
}

static void kv_store(void *dst, enum dtype type, const float *src, uint32_t n)
{
    uint16_t *halves = dst;
    uint32_t i = 0;
    if (type == DTYPE_F32) {
        memcpy(dst, src, n * sizeof(*src));
        return;
    }
    for (; i + 16 <= n; i += 16) {
        if (type == DTYPE_F16)
            v_store_f16(halves + i, v_load(src + i));
        else
            v_store_bf16(halves + i, without_tiny(src + i));
    }
    for (; i < n; i++)
        halves[i] =
            type == DTYPE_F16 ? dtype_f32_to_f16(src[i]) : dtype_f32_to_bf16(dense_flushed(src[i]));
}
