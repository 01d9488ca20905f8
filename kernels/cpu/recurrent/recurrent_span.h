/* recurrent_span.h: the work of the recurrent ops' inner loops. recurrent_cpu.c cuts an op into
 * spans. All sets give equal bits: an element of a state, or of y, belongs to one lane. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    SPAN_COLUMNS = 128,  /* columns that a loop computes at once, at most */
    SPAN_ROWS = 64,      /* rows of a long run that a span computes */
    SPAN_GRAIN = 32,     /* threads share a head's columns in multiples of this */
    CONV_COLUMNS = 1024, /* the widest share of a convolution */
};

/* A row of a convolution, n columns: y = silu(bias + Σ_t taps[t] · x[t]). Then state[t] = x[t + 1].
 * y may be x[width − 1], and state[t] may be x[t]. */
struct conv_row {
    float *y;
    const float *const *x; /* [width][n], oldest first */
    const float *taps;     /* [width][taps_stride] */
    const float *bias;     /* NULL: 0 */
    float *state;          /* [width − 1][state_stride]; NULL: not kept */
    const float *ahead;    /* [n], an input of the next row, to prefetch; NULL: none */
    size_t taps_stride, state_stride;
    uint32_t n, width;
    bool silu;
};

/* The factors of a head's rows: decay = exp(a · t) with t = softplus(dt + bias), and gain =
 * σ(beta), or t without beta. Writes up to a multiple of 16. */
struct span_gates {
    float *decay, *gain;
    const float *dt, *beta; /* the first row's; beta NULL: gain = t */
    size_t dt_stride, beta_stride;
    uint32_t n_rows;
    float a, bias;
};

/* Columns of a head's state S[dim][n_cols] through rows of a run. Delta net, per row:
 *   d = gain · (x − decay · (kᵀS));  S = decay·S + k⊗d;  y = qᵀS
 * ssm:
 *   d = gain · x;                    S = decay·S + k⊗d;  y = skip·x + qᵀS
 * Long runs take several spans. Between the spans S stays in `work`. */
struct state_span {
    const float *k, *q, *x; /* the first row's: [dim], [dim], [n_cols] */
    float *y;
    size_t k_stride, x_stride, y_stride; /* k_stride: of k and q */
    const float *decay, *gain;           /* [n_rows] */
    const float *from;                   /* S before the first row; NULL: zeros */
    const float *ahead;                  /* a state that is read next, to prefetch; NULL: none */
    float *slots;                        /* the place of S in slot 0 */
    size_t slot_stride, s_stride;        /* s_stride: from one row of S to the next */
    const uint32_t *writes; /* [n_rows]: slot that gets S after the row, or RECURRENT_NONE */
    float *work;            /* dim · n_cols floats, n_cols padded to 16; 64-byte aligned */
    uint32_t n_rows, dim, n_cols;
    float skip;
    bool resumes, stays; /* S begins in `work`, not in `from`; S ends in `work` */
    bool is_spread;      /* rows of k, q and x are far apart: worth a prefetch */
};

void recurrent_taps_avx2(float *taps, size_t taps_stride, const float *w, uint32_t n,
                         uint32_t width);
void recurrent_conv_avx2(const struct conv_row *row);
void recurrent_norm_avx2(float *y, const float *x, uint32_t n, float eps, float scale);
void recurrent_gates_avx2(const struct span_gates *gates);
void recurrent_delta_avx2(const struct state_span *span);
void recurrent_ssm_avx2(const struct state_span *span);

void recurrent_taps_avx512(float *taps, size_t taps_stride, const float *w, uint32_t n,
                           uint32_t width);
void recurrent_conv_avx512(const struct conv_row *row);
void recurrent_norm_avx512(float *y, const float *x, uint32_t n, float eps, float scale);
void recurrent_gates_avx512(const struct span_gates *gates);
void recurrent_delta_avx512(const struct state_span *span);
void recurrent_ssm_avx512(const struct state_span *span);
