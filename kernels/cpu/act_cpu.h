/* act_cpu.h: prepared activations on the CPU. ACT_F32 borrows x. ACT_INT8 (block integers,
 * docs/performance.md): a = rint(x / s) = lo + 255·hi with one scale s per token; hi is a sparse
 * plane, listed in groups of four columns. Written by act_prepare, read by linears; one stream at a
 * time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/act_header.h"

enum { ACT_RUN = 32, ACT_GROUP = 4 };

/* Sums A of one run (or of one group of outliers) in the three forms that kernels start from. */
struct act_sums {
    int32_t times_minus_8;   /* −8·A: PACK_INT4 codes are q, not q − 8 */
    int32_t times_minus_128; /* −128·A: PACK_INT8 codes are q + 128 */
    int32_t in_high_half;    /* A << 16 */
};

struct act_outlier {
    uint32_t group; /* columns 4·group .. 4·group + 3 */
    int32_t hi;     /* four int8, first column in the low byte */
    struct act_sums sums;
};

struct act_cpu {
    struct act base;
    const float *x; /* [n_rows][x_stride], borrowed */
    size_t x_stride;
    uint32_t k_pad;               /* k rounded up to 32; the padding is zero */
    int8_t *lo;                   /* [n_rows][k_pad], |lo| ≤ 127 */
    struct act_sums *sums;        /* [n_rows][k_pad/32] of lo */
    float *scale;                 /* [n_rows] s; NaN where x was not finite */
    struct act_outlier *outliers; /* [n_rows][k_pad/4], ascending by group */
    uint32_t *n_outliers;         /* [n_rows] */
    float *stats;                 /* [n_rows][2] Σ|x| and max|x| of this rank */
    float *all_stats;             /* [8 ranks][n_rows][2] */
};

static inline const struct act_cpu *act_cpu(const struct act *act)
{
    return (const struct act_cpu *)act;
}

static inline const int8_t *act_lo(const struct act_cpu *act, uint32_t row)
{
    return act->lo + (size_t)row * act->k_pad;
}

static inline const struct act_sums *act_run_sums(const struct act_cpu *act, uint32_t row)
{
    return act->sums + (size_t)row * (act->k_pad / ACT_RUN);
}

static inline const struct act_outlier *act_outliers(const struct act_cpu *act, uint32_t row)
{
    return act->outliers + (size_t)row * (act->k_pad / ACT_GROUP);
}

static inline struct act_sums act_sums_of(int32_t a)
{
    return (struct act_sums){-8 * a, -128 * a, (int32_t)((uint32_t)a << 16)};
}
