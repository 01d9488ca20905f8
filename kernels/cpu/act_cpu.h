/* act_cpu.h: prepared activations on the CPU. act_prepare writes them, linears read them; used by
 * one stream at a time.
 *
 * ACT_INT8 (block integers, docs/house/numerics.md): a = rint(x / s) = lo + 255·hi with a scale s
 * per token; hi is a sparse plane, stored as a list of groups of four columns.
 *
 * ACT_F32, ACT_BF16 (dense.h): groups of ACT_GROUP_ROWS rows (the last group has the remaining
 * rows). Each group is stored column by column as [k][rows of the group] dwords, so that a tile
 * reads a single stream. A dword is an f32, or, if the kernel set multiplies pairs, bf16 of the
 * columns 2k (low half) and 2k + 1. For kernel sets with tiles (inner.h), ACT_BF16 is
 * [n_rows/16][k_pad/32][row 16][16 pairs]. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/act_header.h"

struct device;
struct error;

enum { ACT_RUN = 32, ACT_GROUP = 4, ACT_GROUP_ROWS = 12, ACT_TILE_ROWS = 16, ACT_PAIR_ROWS = 32 };

/* Sums A of one run, in the forms from which kernels start. Codes are stored unsigned, as q + z, so
 * products start at −z·A. */
struct act_sums {
    int32_t minus_8;           /* −8·A */
    int32_t halves_minus_8[2]; /* −8·A of columns 0..15 and 16..31 */
    int32_t in_high_half;      /* A << 16 */
    int32_t pair;              /* −8·A in the low half, A in the high one */
};

struct act_outlier {
    uint32_t group;                /* columns 4·group .. 4·group + 3 */
    int32_t hi;                    /* four int8, first column in the low byte */
    int32_t minus_8, in_high_half; /* for the sum of hi, as in act_sums */
};

struct act_cpu {
    struct act base;
    uint32_t *f32, *bf16;         /* [n_rows/12 groups][k_pad or k_pad/2][rows of the group] */
    uint32_t k_pad;               /* k rounded up to 32; the padding is zero */
    int8_t *lo;                   /* [n_rows][k_pad], |lo| ≤ 127 */
    struct act_sums *sums;        /* [n_rows][k_pad/32], of lo */
    int16_t *sums32, *sums16;     /* [n_rows][act_short_stride()]: A of 32 and of 16 columns */
    float *scale;                 /* [n_rows] s; NaN if a value of x is not finite */
    struct act_outlier *outliers; /* [n_rows][k_pad/4], ascending by group */
    uint32_t *n_outliers;         /* [n_rows] */
    uint8_t *tiles;   /* lo and outliers in the layout that the kernel set's linears read (inner.h);
                         may be NULL */
    float *stats;     /* [n_rows][2] Σ|x| and max|x| over this rank's columns */
    float *all_stats; /* [8 ranks][n_rows][2] */
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

/* Returns the number of rows in the group of `row`. */
static inline uint32_t act_group_rows(const struct act_cpu *act, uint32_t row)
{
    uint32_t left = act->base.n_rows - row / ACT_GROUP_ROWS * ACT_GROUP_ROWS;
    return left < ACT_GROUP_ROWS ? left : ACT_GROUP_ROWS;
}

/* Returns the first dword of a row in `dense` (act->f32 or act->bf16, with n_dwords dwords per
 * row). The next dword of the row is act_group_rows() further. */
static inline const uint32_t *act_dense_row(const uint32_t *dense, uint32_t row, uint32_t n_dwords)
{
    return dense + (size_t)(row / ACT_GROUP_ROWS * ACT_GROUP_ROWS) * n_dwords +
           row % ACT_GROUP_ROWS;
}

/* Returns the bytes of act.tiles for AMX. Per 32 rows and 64 columns: two tiles each of lo and of
 * hi, 40 groups of outliers, two indices. Per 32 rows: 32 sums and two counts. Each part is rounded
 * up to whole cache lines. */
static inline size_t act_tiles_bytes(uint32_t n_rows, uint32_t k_pad)
{
    size_t chunks = (k_pad + 63) / 64, indices = (chunks * 4 + 63) / 64 * 64;
    return ((size_t)n_rows + ACT_PAIR_ROWS - 1) / ACT_PAIR_ROWS *
           (chunks * (4096 + 320) + 2 * indices + 256 + 64);
}

/* Returns the 16 pairs of a run in a row of ACT_BF16 stored as tiles. */
static inline uint32_t *act_tile_row(const struct act_cpu *act, uint32_t row, uint32_t run)
{
    size_t tile = (size_t)(row / ACT_TILE_ROWS) * (act->k_pad / ACT_RUN) + run;
    return act->bf16 + (tile * ACT_TILE_ROWS + row % ACT_TILE_ROWS) * (ACT_RUN / 2);
}

/* Returns the row stride of sums32 and sums16 in elements. Kernels read up to 3 elements beyond a
 * row's last. */
static inline size_t act_short_stride(uint32_t k_pad)
{
    return k_pad / 16 + 4;
}

static inline const int16_t *act_sums32(const struct act_cpu *act, uint32_t row)
{
    return act->sums32 + row * act_short_stride(act->k_pad);
}

static inline const int16_t *act_sums16(const struct act_cpu *act, uint32_t row)
{
    return act->sums16 + row * act_short_stride(act->k_pad);
}

/* Stores the sums of run `run` of lo; first and second are the sums of its halves. */
static inline void act_put_sums(struct act_cpu *act, uint32_t row, uint32_t run, int32_t first,
                                int32_t second)
{
    int32_t a = first + second;
    size_t begin = row * act_short_stride(act->k_pad);
    act->sums[(size_t)row * (act->k_pad / ACT_RUN) + run] =
        (struct act_sums){-8 * a,
                          {-8 * first, -8 * second},
                          (int32_t)((uint32_t)a << 16),
                          (int32_t)((uint32_t)a << 16 | ((uint32_t)(-8 * a) & 0xFFFF))};
    act->sums32[begin + run] = (int16_t)a;
    act->sums16[begin + 2 * (size_t)run] = (int16_t)first;
    act->sums16[begin + 2 * (size_t)run + 1] = (int16_t)second;
}

static inline struct act_outlier act_outlier_of(uint32_t group, const int8_t hi[ACT_GROUP])
{
    int32_t a = hi[0] + hi[1] + hi[2] + hi[3];
    struct act_outlier o = {group, 0, -8 * a, (int32_t)((uint32_t)a << 16)};
    __builtin_memcpy(&o.hi, hi, sizeof(o.hi));
    return o;
}

/* act_bytes and act_create of the AMX set: they include room for the tiles of its linears. */
size_t act_bytes_amx(uint32_t max_rows, uint32_t max_k);
int act_create_amx(struct device *device, uint32_t max_rows, uint32_t max_k, struct act **out_act,
                   struct error *err);
