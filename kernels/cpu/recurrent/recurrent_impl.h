/* recurrent_impl.h: the loops of recurrent_span.h in the 16-lane vectors of vec_*.h.
 * recurrent_avx2.c and recurrent_avx512.c each include this file once. They define the vectors of
 * S's rows that a loop computes: SPAN_NV, and SPAN_NV_ROW in runs of one row. They also define
 * conv_taps_wide(), v_exponent() and v_mantissa(). */
#pragma once

#include <string.h>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/recurrent/recurrent_span.h"
#include "kernels/cpu/vec/exp_impl.h"

static inline v16 v_sigmoid(v16 x)
{
    v16 one = v_set1(1.0f);
    return v_div(one, v_add(one, v_exp(v_sub(v_zero(), x))));
}

/* maths_softplus() */
static inline v16 v_softplus(v16 x)
{
    v16 one = v_set1(1.0f), root = v_set1(1.41421356f), u = v_exp(x), y = v_add(one, u);
    v16 n = v_exponent(y), m = v_mantissa(y);
    v16 half = v_select_lt(m, root, v_zero(), one);
    n = v_add(n, half);
    m = v_select_lt(m, root, m, v_mul(m, v_set1(0.5f)));
    v16 f = v_select_lt(y, root, u, v_sub(m, one));
    n = v_select_lt(y, root, v_zero(), n);
    v16 s = v_div(f, v_add(v_set1(2.0f), f)), s2 = v_mul(s, s);
    v16 p = v_fma(s2, v_set1(1.0f / 9.0f), v_set1(1.0f / 7.0f));
    p = v_fma(p, s2, v_set1(0.2f));
    p = v_fma(p, s2, v_set1(1.0f / 3.0f));
    p = v_fma(v_mul(s, s2), p, s);
    p = v_fma(n, v_set1(0.693147181f), v_mul(v_set1(2.0f), p));
    return v_select_lt(x, v_set1(20.0f), p, x);
}

static void span_gates(const struct span_gates *g)
{
    for (uint32_t begin = 0; begin < g->n_rows; begin += 16) {
        float dt[16] = {0}, beta[16] = {0};
        uint32_t n = g->n_rows - begin < 16 ? g->n_rows - begin : 16;
        for (uint32_t i = 0; i < n; i++)
            dt[i] = g->dt[(begin + i) * g->dt_stride];
        for (uint32_t i = 0; g->beta != NULL && i < n; i++)
            beta[i] = g->beta[(begin + i) * g->beta_stride];
        v16 t = v_softplus(v_add(v_load(dt), v_set1(g->bias)));
        v_store(g->decay + begin, v_exp(v_mul(t, v_set1(g->a))));
        v_store(g->gain + begin, g->beta != NULL ? v_sigmoid(v_load(beta)) : t);
    }
}

static void l2_norm(float *y, const float *x, uint32_t n, float eps, float scale)
{
    v16 squares = v_zero();
    uint32_t whole = n & ~15u, rest = n & 15u;
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 v = v_load(x + i);
        squares = v_fma(v, v, squares);
    }
    v16 tail = v_load_n(x + whole, rest);
    squares = v_fma(tail, tail, squares);
    v16 factor = v_set1(1.0f / sqrtf(v_sum(squares) + eps)), by = v_set1(scale);
    for (uint32_t i = 0; i < whole; i += 16)
        v_store(y + i, v_mul(v_mul(v_load(x + i), factor), by));
    if (rest > 0)
        v_store_n(y + whole, v_mul(v_mul(tail, factor), by), rest);
}

static void conv_taps(float *taps, size_t taps_stride, const float *w, uint32_t n, uint32_t width)
{
    uint32_t i = 0;
    for (; i + 16 <= n && conv_taps_wide(taps + i, taps_stride, w + (size_t)i * width, width);)
        i += 16;
    for (; i < n; i++)
        for (uint32_t t = 0; t < width; t++)
            taps[t * taps_stride + i] = w[(size_t)i * width + t];
}

/* n ≤ 16 columns from column i on. */
ALWAYS_INLINE void conv_vector(const struct conv_row *row, uint32_t i, uint32_t n, bool is_tail,
                               uint32_t width)
{
    v16 kept[RECURRENT_MAX_WIDTH - 1], sum = v_zero();
    if (row->ahead != NULL)
        _mm_prefetch(row->ahead + i, _MM_HINT_T0);
    if (row->bias != NULL)
        sum = is_tail ? v_load_n(row->bias + i, n) : v_load(row->bias + i);
#pragma GCC unroll 4
    for (uint32_t t = 0; t < width; t++) {
        const float *x = row->x[t] + i, *w = row->taps + t * row->taps_stride + i;
        v16 v = is_tail ? v_load_n(x, n) : v_load(x);
        sum = v_fma(is_tail ? v_load_n(w, n) : v_load(w), v, sum);
        if (t > 0)
            kept[t - 1] = v;
    }
    if (row->state != NULL) {
#pragma GCC unroll 4
        for (uint32_t t = 0; t + 1 < width; t++) {
            float *to = row->state + t * row->state_stride + i;
            if (is_tail)
                v_store_n(to, kept[t], n);
            else
                v_store(to, kept[t]);
        }
    }
    if (row->silu)
        sum = v_div(sum, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), sum))));
    if (is_tail)
        v_store_n(row->y + i, sum, n);
    else
        v_store(row->y + i, sum);
}

ALWAYS_INLINE void conv_row_as(const struct conv_row *row, uint32_t width)
{
    const struct conv_row local = *row; /* stores to floats cannot change it */
    uint32_t i = 0;
    for (; i + 16 <= local.n; i += 16)
        conv_vector(&local, i, 16, false, width);
    if (i < local.n)
        conv_vector(&local, i, local.n - i, true, width);
}

static void conv_row(const struct conv_row *row)
{
    if (row->width == 4)
        conv_row_as(row, 4);
    else if (row->width == 3)
        conv_row_as(row, 3);
    else
        conv_row_as(row, row->width);
}

/* A pass over nv vectors of S's rows, from one place to another. */
struct span_pass {
    const float *from;
    float *to;
    size_t from_stride, to_stride;
    const float *k, *q, *k_next;
    const float *ahead; /* [dim][from_stride]; NULL: nothing to prefetch */
    uint32_t dim;
    float decay;
};

/* S = decay·S + k⊗d and o = qᵀS. If has_next, then p = k_nextᵀS for the row after. */
ALWAYS_INLINE void span_pass(const struct span_pass *pass, const v16 *d_in, v16 *o_out, v16 *p_out,
                             uint32_t nv, bool has_next, bool fetches)
{
    v16 d[SPAN_COLUMNS / 16], o[SPAN_COLUMNS / 16], p[SPAN_COLUMNS / 16];
    const v16 decay = v_set1(pass->decay);
    const float *from = pass->from, *k = pass->k, *q = pass->q, *k_next = pass->k_next,
                *ahead = pass->ahead;
    float *to = pass->to;
    const size_t from_stride = pass->from_stride, to_stride = pass->to_stride;
#pragma GCC unroll 8
    for (uint32_t j = 0; j < nv; j++) {
        d[j] = d_in[j];
        o[j] = p[j] = v_zero();
    }
    for (uint32_t i = 0, dim = pass->dim; i < dim; i++) {
        const v16 ki = v_set1(k[i]), qi = v_set1(q[i]);
        const v16 ni = has_next ? v_set1(k_next[i]) : v_zero();
#pragma GCC unroll 8
        for (uint32_t j = 0; j < nv; j++) {
            v16 s = v_fma(ki, d[j], v_mul(decay, v_load(from + 16 * j)));
            v_store(to + 16 * j, s);
            o[j] = v_fma(qi, s, o[j]);
            if (has_next)
                p[j] = v_fma(ni, s, p[j]);
            if (fetches)
                _mm_prefetch(ahead + 16 * j, _MM_HINT_T1);
        }
        from += from_stride;
        to += to_stride;
        if (fetches)
            ahead += from_stride;
    }
#pragma GCC unroll 8
    for (uint32_t j = 0; j < nv; j++) {
        o_out[j] = o[j];
        if (has_next)
            p_out[j] = p[j];
    }
}

/* p = kᵀS */
ALWAYS_INLINE void span_read(const struct span_pass *pass, v16 *p_out, uint32_t nv)
{
    v16 p[SPAN_COLUMNS / 16];
    const float *from = pass->from, *k = pass->k;
    const size_t stride = pass->from_stride;
#pragma GCC unroll 8
    for (uint32_t j = 0; j < nv; j++)
        p[j] = v_zero();
    for (uint32_t i = 0, dim = pass->dim; i < dim; i++) {
        const v16 ki = v_set1(k[i]);
#pragma GCC unroll 8
        for (uint32_t j = 0; j < nv; j++)
            p[j] = v_fma(ki, v_load(from + 16 * j), p[j]);
        from += stride;
    }
#pragma GCC unroll 8
    for (uint32_t j = 0; j < nv; j++)
        p_out[j] = p[j];
}

/* Prefetches n floats. */
static inline void span_fetch(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        _mm_prefetch(x + i, _MM_HINT_T0);
}

/* Copies S of some columns to the place of another stride. */
static void span_copy(float *to, size_t to_stride, const float *from, size_t from_stride,
                      uint32_t dim, uint32_t n)
{
    for (uint32_t i = 0; i < dim; i++)
        memcpy(to + i * to_stride, from + i * from_stride, n * sizeof(float));
}

/* n columns of the span, which are 16·nv unless is_tail. Between the rows S is in `work`. */
ALWAYS_INLINE void span_block(const struct state_span *s, uint32_t column, uint32_t n, uint32_t nv,
                              bool is_tail, bool is_delta, bool is_row)
{
    v16 p[SPAN_COLUMNS / 16], d[SPAN_COLUMNS / 16], o[SPAN_COLUMNS / 16], x[SPAN_COLUMNS / 16];
    const size_t width = 16 * (size_t)nv;
    float *work = s->work + (size_t)column * s->dim;
    struct span_pass pass = {.from = work, .from_stride = width, .k = s->k, .dim = s->dim};
    if (s->resumes) {
        pass.from = work;
    } else if (s->from != NULL && !is_tail) {
        pass.from = s->from + column;
        pass.from_stride = s->s_stride;
    } else {
        memset(work, 0, s->dim * width * sizeof(float));
        if (s->from != NULL)
            span_copy(work, width, s->from + column, s->s_stride, s->dim, n);
    }
    if (is_delta)
        span_read(&pass, p, nv);
    const uint32_t n_rows = is_row ? 1 : s->n_rows;
    for (uint32_t r = 0; r < n_rows; r++) {
        const bool is_last = r + 1 == n_rows;
        const size_t at = r * s->k_stride;
        const uint32_t write = s->writes[r];
        float *slot = write != RECURRENT_NONE ? s->slots + write * s->slot_stride + column : NULL,
              *y = s->y + r * s->y_stride + column;
        const v16 gain = v_set1(s->gain[r]), decay = v_set1(s->decay[r]);
#pragma GCC unroll 8
        for (uint32_t j = 0; j < nv; j++) {
            const float *value = s->x + r * s->x_stride + column + 16 * j;
            x[j] = is_tail ? v_load_n(value, n) : v_load(value);
            d[j] = v_mul(gain, is_delta ? v_sub(x[j], v_mul(decay, p[j])) : x[j]);
        }
        pass.k = s->k + at;
        pass.q = s->q + at;
        pass.k_next = pass.k + s->k_stride;
        pass.decay = s->decay[r];
        bool in_slot = is_last && slot != NULL && !is_tail && !s->stays;
        pass.to = in_slot ? slot : work;
        pass.to_stride = in_slot ? s->s_stride : width;
        if (!is_last) /* a store that misses the caches holds up the stores of S behind it */
            span_fetch(y + s->y_stride, n);
        if (s->is_spread && !is_last) {
            span_fetch(pass.q + s->k_stride, s->dim);
            span_fetch(pass.k_next, s->dim);
            span_fetch(s->x + (r + 1) * s->x_stride + column, n);
        }
        if (is_row && s->ahead != NULL && pass.from != work) {
            pass.ahead = s->ahead + column;
            span_pass(&pass, d, o, p, nv, false, true);
        } else if (is_last || !is_delta) {
            span_pass(&pass, d, o, p, nv, false, false);
        } else {
            span_pass(&pass, d, o, p, nv, true, false);
        }
#pragma GCC unroll 8
        for (uint32_t j = 0; j < nv; j++) {
            if (!is_delta)
                o[j] = v_fma(v_set1(s->skip), x[j], o[j]);
            if (is_tail)
                v_store_n(y + 16 * j, o[j], n);
            else
                v_store(y + 16 * j, o[j]);
        }
        if (slot != NULL && !in_slot)
            span_copy(slot, s->s_stride, work, width, s->dim, n);
        pass.from = work;
        pass.from_stride = width;
    }
}

ALWAYS_INLINE void span_columns(const struct state_span *s, bool is_delta)
{
    uint32_t column = 0;
    if (s->n_rows == 1 && !s->resumes && !s->stays)
        for (; column + 16 * SPAN_NV_ROW <= s->n_cols; column += 16 * SPAN_NV_ROW)
            span_block(s, column, 16 * SPAN_NV_ROW, SPAN_NV_ROW, false, is_delta, true);
    for (; column + 16 * SPAN_NV <= s->n_cols; column += 16 * SPAN_NV)
        span_block(s, column, 16 * SPAN_NV, SPAN_NV, false, is_delta, false);
    for (; column + 16 <= s->n_cols; column += 16)
        span_block(s, column, 16, 1, false, is_delta, false);
    if (column < s->n_cols)
        span_block(s, column, s->n_cols - column, 1, true, is_delta, false);
}

static void delta_span(const struct state_span *span)
{
    span_columns(span, true);
}

static void ssm_span(const struct state_span *span)
{
    span_columns(span, false);
}
