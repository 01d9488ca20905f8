/* dense_impl.h: dense linear layers in 16-lane vectors, a lane per output of a panel; dense.h
 * defines the arithmetic. Per call, m rows × n outputs: 2·m·n·k operations, n·k·(2 or 4) bytes of
 * weights. Bound at m = 1: memory; from m ≈ 12 on: one FMA (or vdpbf16ps, two columns) per cycle.
 *
 * The includer has the vectors (vec_*.h) and defines the tile size that the registers hold:
 * DENSE_ROWS of one panel (DENSE_BF16_ROWS if pairs are split), DENSE_PAIR_ROWS of two panels. If
 * the set multiplies BF16 pairs at once, the includer also defines DENSE_DOT_BF16. */
#pragma once

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/linear/dense_put.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    DENSE_PANELS = 2,
    DENSE_TILE = DENSE_PANELS * DENSE_ROWS,
    DENSE_AHEAD_BYTES = 2048,
    DENSE_FEW_ROWS = 4,
};

/* The arguments that differ between the calls of a tile. */
struct dense_at {
    const uint8_t *panel; /* the first panel … */
    size_t apart_bytes;   /* … and the distance to the next */
    uint32_t n, apart_rows;
    const uint32_t *x; /* the first row of activations */
    uint32_t row, step;
};

enum dense_form { FORM_F32, FORM_F16, FORM_BF16, FORM_BF16_DOT };

/* Returns the bytes of a panel's column, or of a pair of columns. */
ALWAYS_INLINE size_t form_bytes(enum dense_form form)
{
    return form == FORM_F16 ? 32 : 64;
}

ALWAYS_INLINE uint32_t form_columns(enum dense_form form)
{
    return form == FORM_BF16 || form == FORM_BF16_DOT ? 2 : 1;
}

ALWAYS_INLINE v16 broadcast(const uint32_t *x)
{
    float value;
    __builtin_memcpy(&value, x, sizeof(value));
    return v_set1(value);
}

/* acc += w · x for one column (or pair, FORM_BF16_DOT) of np panels and nr rows. */
ALWAYS_INLINE void dense_step(v16 acc[DENSE_ROWS][DENSE_PANELS], const v16 w[DENSE_PANELS],
                              const uint32_t *x, enum dense_form form, int np, int nr)
{
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++) {
        v16 xr = broadcast(x + r);
#pragma GCC unroll 4
        for (int p = 0; p < np; p++)
#ifdef DENSE_DOT_BF16
            acc[r][p] = form == FORM_BF16_DOT ? DENSE_DOT_BF16(acc[r][p], w[p], xr)
                                              : v_fma(w[p], xr, acc[r][p]);
#else
            acc[r][p] = v_fma(w[p], xr, acc[r][p]);
#endif
    }
    (void)form;
}

/* Computes columns [begin, end) of K: a segment. */
ALWAYS_INLINE void dense_segment(const struct dense_at *at, uint32_t begin, uint32_t end,
                                 enum dense_form form, int np, int nr, v16 *out)
{
    v16 acc[DENSE_ROWS][DENSE_PANELS];
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 4
        for (int p = 0; p < np; p++)
            acc[r][p] = v_zero();
    uint32_t columns = form_columns(form), step = at->step;
    const uint8_t *w = at->panel + (size_t)(begin / columns) * form_bytes(form);
    const uint32_t *x = at->x + (size_t)(form == FORM_BF16_DOT ? begin / 2 : begin) * step;
    for (uint32_t left = (end - begin + columns - 1) / columns; left > 0; left--) {
        v16 wk[DENSE_PANELS], unused;
#pragma GCC unroll 4
        for (int p = 0; p < np; p++) {
            const uint8_t *here = w + (size_t)p * at->apart_bytes;
            if (nr <= DENSE_FEW_ROWS)
                __builtin_prefetch(here + DENSE_AHEAD_BYTES);
            if (form == FORM_F16)
                wk[p] = v_load_f16((const uint16_t *)(const void *)here);
            else
                wk[p] = v_load((const float *)(const void *)here);
            if (form == FORM_BF16)
                v_split_bf16(wk[p], &unused, &wk[p]);
        }
        dense_step(acc, wk, form == FORM_BF16 ? x + step : x, form, np, nr);
        if (form == FORM_BF16) {
            /* The pairs are loaded again, because keeping the other halves would take registers. */
            __asm__ volatile("" ::: "memory");
#pragma GCC unroll 4
            for (int p = 0; p < np; p++) {
                wk[p] = v_load((const float *)(const void *)(w + (size_t)p * at->apart_bytes));
                v_split_bf16(wk[p], &wk[p], &unused);
            }
            dense_step(acc, wk, x, form, np, nr);
        }
        w += form_bytes(form);
        x += form == FORM_BF16 ? 2 * (size_t)step : step;
    }
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 4
        for (int p = 0; p < np; p++)
            out[r * np + p] = acc[r][p];
}

/* dense_tree() for tile element i. */
static v16 dense_tree_of(v16 parts[N_SEGMENTS][DENSE_TILE], int i, uint32_t present, uint32_t count)
{
    v16 level[N_SEGMENTS];
    for (uint32_t s = 0; s < count; s++)
        level[s] = parts[s][i];
    return dense_tree(level, present, count);
}

/* The same for 8 present segments: all weights of 256 columns or more on one rank. */
ALWAYS_INLINE v16 dense_tree_of_8(v16 parts[N_SEGMENTS][DENSE_TILE], int i)
{
    v16 a = v_add(v_add(parts[0][i], parts[1][i]), v_add(parts[2][i], parts[3][i])),
        b = v_add(v_add(parts[4][i], parts[5][i]), v_add(parts[6][i], parts[7][i]));
    return v_add(a, b);
}

/* Adds the segments and stores the results. */
static void dense_put(const struct linear_job *job, const struct dense_at *at,
                      v16 parts[N_SEGMENTS][DENSE_TILE], uint32_t present, int np, int nr)
{
    for (int r = 0; r < nr; r++)
        for (int p = 0; p < np; p++) {
            int i = r * np + p;
            v16 sum = present == (1u << N_SEGMENTS) - 1
                          ? dense_tree_of_8(parts, i)
                          : dense_tree_of(parts, i, present, job->w->n_parts);
            dense_store(job, at->row + (uint32_t)r, at->n + (uint32_t)p * at->apart_rows, sum);
        }
}

ALWAYS_INLINE void dense_tile(const struct linear_job *job, const struct dense_at *at,
                              enum dense_form form, int np, int nr)
{
    const uint32_t *bounds = job->w->part_bounds;
    v16 parts[N_SEGMENTS][DENSE_TILE];
    uint32_t present = 0;
    for (uint32_t s = 0; s < job->w->n_parts; s++) {
        if (bounds[s] == bounds[s + 1])
            continue;
        present |= 1u << s;
        dense_segment(at, bounds[s], bounds[s + 1], form, np, nr, parts[s]);
    }
    dense_put(job, at, parts, present, np, nr);
}

/* Computes some rows of one group: at most DENSE_ROWS of one panel, or DENSE_PAIR_ROWS of two. */
ALWAYS_INLINE void dense_rows(const struct linear_job *job, const struct dense_at *at, int n_rows,
                              enum dense_form form, int np)
{
#define DENSE_CASE(nr)                                                                             \
    case nr:                                                                                       \
        if ((nr) <= DENSE_ROWS && (np == 1 || (nr) <= DENSE_PAIR_ROWS))                            \
            dense_tile(job, at, form, np, nr);                                                     \
        break;
    switch (n_rows) {
        DENSE_CASE(1)
        DENSE_CASE(2)
        DENSE_CASE(3)
        DENSE_CASE(4)
        DENSE_CASE(5)
        DENSE_CASE(6)
        DENSE_CASE(7)
        DENSE_CASE(8)
        DENSE_CASE(9)
        DENSE_CASE(10)
        DENSE_CASE(11)
        DENSE_CASE(12)
    default:
        break;
    }
#undef DENSE_CASE
}

ALWAYS_INLINE void dense_panels(const struct linear_job *job, const struct linear_share *share,
                                struct dense_at at, enum dense_form form, int np)
{
    const struct act_cpu *act = job->act;
    const uint32_t *dense = job->w->base.act_kind == ACT_BF16 ? act->bf16 : act->f32;
    uint32_t n_dwords = act->k_pad / (form == FORM_BF16_DOT ? 2 : 1);
    uint32_t limit = form == FORM_BF16 ? DENSE_BF16_ROWS : DENSE_ROWS;
    at.panel = weight_panel(job->w, at.n / PANEL_ROWS);
    for (at.row = share->row_begin; at.row < share->row_end;) {
        uint32_t n_rows = ACT_GROUP_ROWS - at.row % ACT_GROUP_ROWS;
        n_rows = n_rows < limit ? n_rows : limit;
        n_rows = n_rows < share->row_end - at.row ? n_rows : share->row_end - at.row;
        at.x = act_dense_row(dense, at.row, n_dwords);
        at.step = act_group_rows(act, at.row);
        dense_rows(job, &at, (int)n_rows, form, np);
        at.row += n_rows;
    }
}

/* Takes a panel from each half of the share at a time: two long streams of memory reads. */
ALWAYS_INLINE void dense_share(const struct linear_job *job, const struct linear_share *share,
                               enum dense_form form)
{
    uint32_t n = share->n_begin;
    bool few =
        share->row_end - share->row_begin <= DENSE_PAIR_ROWS || DENSE_PAIR_ROWS == DENSE_ROWS;
    uint32_t n_pairs = few ? (share->n_end - n) / (2 * PANEL_ROWS) : 0;
    struct dense_at pair = {.apart_rows = n_pairs * PANEL_ROWS,
                            .apart_bytes = n_pairs * job->w->panel_bytes};
    for (uint32_t i = 0; i < n_pairs; i++, n += PANEL_ROWS) {
        pair.n = n;
        dense_panels(job, share, pair, form, 2);
    }
    n += n_pairs * PANEL_ROWS;
    for (; n < share->n_end; n += PANEL_ROWS)
        dense_panels(job, share, (struct dense_at){.n = n}, form, 1);
}

#ifndef DENSE_DOT_BF16
ALWAYS_INLINE void dense_all(const struct linear_job *job, const struct linear_share *share)
{
    switch ((enum pack_format)job->w->format) {
    case PACK_F16:
        dense_share(job, share, FORM_F16);
        break;
    case PACK_BF16:
        dense_share(job, share, FORM_BF16);
        break;
    default:
        dense_share(job, share, FORM_F32);
        break;
    }
}
#endif
