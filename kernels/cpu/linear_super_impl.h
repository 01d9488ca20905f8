/* linear_super_impl.h: the integer linear of PACK_SUPER (super_form.h), and of PACK_INT8 where
 * codes may be unsigned bytes, written once in the vectors of vec_int_*.h: VI_LANES outputs, a
 * dword each. Products of a sub-block (D), times its scale in int32, add up over a super-block (S;
 * below 4096·127·256, PACK_INT8: 255·128·127·256); isd·S + ism·M adds to T in 64 bits, M the same
 * for the offsets. Included once by linear_super_avx2.c and by linear_super_avx512.c. */
#pragma once

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear_int.h"
#include "kernels/cpu/super_form.h"
#include "kernels/cpu/weight_cpu.h"

enum { MAX_PANELS = 2, MAX_TILE_ROWS = 6 };

/* What a tile reads and where it puts: n panels (or halves of one) with their codes, as packed or
 * as bytes. */
struct super_source {
    int n;
    uint32_t lane; /* of the panel that is the first here: 0, or 8 */
    const uint8_t *packed[MAX_PANELS], *codes[MAX_PANELS]; /* codes: of that lane */
    uint32_t outputs[MAX_PANELS];
    uint32_t super_bytes; /* of packed */
    uint32_t code_super, code_run;
    struct super_layout at; /* in packed */
    /* Where codes are bytes of PACK_SUPER: [run][sub][2][row 16] pairs of 16 bits (scale, offset)
     * as multiples of the unit, split: their low SUPER_LOW_BITS, then what is above. */
    const uint8_t *pairs[MAX_PANELS];
};

enum { SUPER_LOW_BITS = 10 };

/* 64-bit totals of the even and of the odd lanes. */
struct super_total {
    vi even, odd;
};

ALWAYS_INLINE int32_t four_at(const void *p)
{
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return four;
}

/* −zero·A from −8·A. */
ALWAYS_INLINE vi super_start(int32_t minus_8, int zero)
{
    vi v = vi_set1(minus_8);
    switch (zero) {
    case 0:
        return vi_zero();
    case 4:
        return vi_srai32(v, 1);
    case 16:
        return vi_slli32(v, 1);
    case 32:
        return vi_slli32(v, 2);
    case 128:
        return vi_slli32(v, 4);
    default:
        return v;
    }
}

/* `width` bits of each byte from bit `from` on, put to bit `to`. */
ALWAYS_INLINE vi super_bits(vi v, unsigned from, unsigned to, unsigned width)
{
    v = from > to ? vi_srl16(v, from - to) : to > from ? vi_sll16(v, to - from) : v;
    return vi_and(v, vi_set1_8((char)(((1U << width) - 1) << to)));
}

/* The codes of column group g of a run. */
ALWAYS_INLINE vi super_codes(const uint8_t *run, unsigned bits, unsigned g)
{
    if (bits == 8)
        return vi_loadu(run + g * 64);
    const uint8_t *high = run + (bits <= 3 ? 128 : 256);
    vi q = bits <= 3 ? super_bits(vi_loadu(run + g / 4 * 64), g % 4 * 2, 0, 2)
                     : super_bits(vi_loadu(run + g % 4 * 64), g / 4 * 4, 0, 4);
    if (bits == 6)
        q = vi_or(q, super_bits(vi_loadu(high + g / 4 * 64), g % 4 * 2, 4, 2));
    else if (bits % 2 == 1)
        q = vi_or(q, super_bits(vi_loadu(high), g, bits - 1, 1));
    return q;
}

/* Scales of a sub-block as dwords; `run` counts from the panel's first. */
ALWAYS_INLINE vi super_scale(const struct super_source *src, const uint8_t *super,
                             struct super_form f, const int16_t *wide, uint32_t run, uint32_t sub)
{
    if (f.bits == 8)
        return vi_load_i16(wide + (size_t)run * PANEL_ROWS);
    return vi_load_i8(super + src->at.scales + 16 * sub + src->lane);
}

ALWAYS_INLINE void super_add(struct super_total *t, vi a, vi b)
{
    t->even = vi_add64(t->even, vi_mul64(a, b));
    t->odd = vi_add64(t->odd, vi_mul64(vi_srl64_32(a), vi_srl64_32(b)));
}

/* isd·S + ism·M. */
ALWAYS_INLINE void super_flush(struct super_total *t, const uint8_t *super, uint32_t lane,
                               struct super_form f, vi s, vi m)
{
    const int16_t *isd = (const int16_t *)(const void *)super + lane;
    super_add(t, s, f.bits == 8 ? vi_set1(1) : vi_load_i16(isd));
    if (f.offsets)
        super_add(t, m, vi_load_i16(isd + PANEL_ROWS));
}

/* Σ min·A over the sub-blocks of a super-block; shorts: their A. */
ALWAYS_INLINE vi super_mins(const uint8_t *mins, uint32_t n_subs, const int16_t *shorts)
{
    vi m = vi_zero(), low = vi_set1(0x00FF00FF);
    for (uint32_t j = 0; j < n_subs; j += 4, mins += 64, shorts += 4) {
        vi v = vi_loadu(mins);
        m = vi_madd16(m, vi_and(v, low), vi_set1(four_at(shorts)));
        m = vi_madd16(m, vi_and(vi_srl16(v, 8), low), vi_set1(four_at(shorts + 2)));
    }
    return m;
}

/* Adds 255 times the outlier plane of a row. */
ALWAYS_INLINE void super_outliers(const struct linear_job *job, uint32_t row,
                                  const struct super_source *src, struct super_form f,
                                  unsigned code_bits, const int16_t *const wide[],
                                  struct super_total total[])
{
    const struct act_outlier *o = act_outliers(job->act, row), *end = o + job->act->n_outliers[row];
    uint32_t runs = f.bits == 8 ? 8 : job->w->super_runs;
    struct super_total plane[MAX_PANELS];
    vi s[MAX_PANELS], m[MAX_PANELS];
#pragma GCC unroll 2
    for (int p = 0; p < src->n; p++)
        plane[p] = (struct super_total){vi_zero(), vi_zero()};
    while (o < end) {
        uint32_t i_super = o->group / 8 / runs;
        /* PACK_INT8: Σ isw·D stays below 7,600·K, so one flush is enough. */
        uint32_t until = f.bits == 8 ? UINT32_MAX : (i_super + 1) * runs * 8;
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++)
            s[p] = m[p] = vi_zero();
        for (; o < end && o->group < until; o++) {
            uint32_t run = o->group / 8, g = o->group % 8, in_super = run % runs,
                     sub = in_super * f.subs + (f.subs == 2 ? g / 4 : 0);
            vi start = super_start(o->minus_8, f.zero), hi = vi_set1(o->hi);
#pragma GCC unroll 2
            for (int p = 0; p < src->n; p++) {
                const uint8_t *super = src->packed[p] + (size_t)i_super * src->super_bytes,
                              *codes = src->codes[p] + (size_t)(run / runs) * src->code_super +
                                       in_super * src->code_run;
                vi d = vi_dot(start, super_codes(codes, code_bits, g), hi);
                if (f.subs > 0)
                    d = vi_mul32(d, super_scale(src, super, f, wide[p], run, sub));
                s[p] = vi_add32(s[p], d);
                if (!f.offsets)
                    continue;
                vi a = vi_srai32(vi_set1(o->in_high_half), 16);
                if (f.subs > 0) {
                    vi mins = vi_loadu(super + src->at.mins + sub / 4 * 64 + src->lane * 4);
                    mins = vi_and(vi_srl32(mins, 8 * super_min_byte(sub)), vi_set1(255));
                    a = vi_mul32(a, mins);
                }
                m[p] = vi_add32(m[p], a);
            }
        }
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++)
            super_flush(&plane[p], src->packed[p] + (size_t)i_super * src->super_bytes, src->lane,
                        f, s[p], m[p]);
    }
#pragma GCC unroll 2
    for (int p = 0; p < src->n; p++) {
        vi even = vi_sub64(vi_slli64(plane[p].even, 8), plane[p].even),
           odd = vi_sub64(vi_slli64(plane[p].odd, 8), plane[p].odd);
        total[p] = (struct super_total){vi_add64(total[p].even, even), vi_add64(total[p].odd, odd)};
    }
}

/* The same from src->pairs. Products of a group are below 2^15. Σ|hi| ≤ Σ|a|/127.5 keeps either
 * half below 0.232·K·33·1025 = 7,850·K, one int32. */
ALWAYS_INLINE void super_outliers_split(const struct linear_job *job, uint32_t row,
                                        const struct super_source *src, struct super_form f,
                                        struct super_total total[])
{
    const struct act_outlier *o = act_outliers(job->act, row), *end = o + job->act->n_outliers[row];
    const uint32_t n_halves = f.subs == 2 ? 2 : 1;
    vi low[MAX_PANELS], high[MAX_PANELS];
#pragma GCC unroll 2
    for (int p = 0; p < src->n; p++)
        low[p] = high[p] = vi_zero();
    for (; o < end; o++) {
        uint32_t sub = o->group / 8 * n_halves + (f.subs == 2 ? o->group % 8 / 4 : 0);
        vi start = super_start(o->minus_8, f.zero), hi = vi_set1(o->hi),
           sum = vi_set1(o->in_high_half);
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++) {
            const uint8_t *pairs = src->pairs[p] + (size_t)sub * 128;
            vi d = vi_dot(start, vi_loadu(src->codes[p] + (size_t)o->group * 64), hi);
            if (f.offsets) /* else the offsets are 0 */
                d = vi_or(vi_and(d, vi_set1(0xFFFF)), sum);
            low[p] = vi_madd16(low[p], d, vi_loadu(pairs));
            high[p] = vi_madd16(high[p], d, vi_loadu(pairs + 64));
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < src->n; p++) {
        super_add(&total[p], low[p], vi_set1(255));
        super_add(&total[p], high[p], vi_set1(255 << SUPER_LOW_BITS));
    }
}

/* n_rows rows against src->n panels. code_bits: of src->codes, f.bits or 8. */
ALWAYS_INLINE void super_tile(const struct linear_job *job, uint32_t row,
                              const struct super_source *src, struct super_form f,
                              unsigned code_bits, int n_rows)
{
    const struct act_cpu *act = job->act;
    const uint32_t n_runs = act->k_pad / RUN_K, n_halves = f.subs == 2 ? 2 : 1,
                   runs = f.bits == 8 ? 8 : job->w->super_runs, step = 8 / n_halves;
    const int8_t *lo[MAX_TILE_ROWS];
    const struct act_sums *sums[MAX_TILE_ROWS];
    const int16_t *wide[MAX_PANELS] = {NULL, NULL};
    struct super_total total[MAX_TILE_ROWS][MAX_PANELS];
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++) {
        lo[m] = act_lo(act, row + (uint32_t)m);
        sums[m] = act_run_sums(act, row + (uint32_t)m);
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++)
            total[m][p] = (struct super_total){vi_zero(), vi_zero()};
    }
    if (f.bits == 8)
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++)
            wide[p] = panel_scales(job->w, src->packed[p]) + src->lane;
    for (uint32_t run = 0, i_super = 0; run < n_runs; i_super++) {
        vi s[MAX_TILE_ROWS][MAX_PANELS];
        uint32_t end = n_runs - run < runs ? n_runs : run + runs;
        const uint8_t *super[MAX_PANELS];
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++)
            super[p] = src->packed[p] + (size_t)i_super * src->super_bytes;
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++)
#pragma GCC unroll 2
            for (int p = 0; p < src->n; p++)
                s[m][p] = vi_zero();
        for (uint32_t r = 0; run < end; r++, run++) {
#pragma GCC unroll 2
            for (uint32_t h = 0; h < n_halves; h++) {
                vi d[MAX_TILE_ROWS][MAX_PANELS];
#pragma GCC unroll 8
                for (int m = 0; m < n_rows; m++)
#pragma GCC unroll 2
                    for (int p = 0; p < src->n; p++)
                        d[m][p] = super_start(f.subs == 2 ? sums[m][run].halves_minus_8[h]
                                                          : sums[m][run].minus_8,
                                              f.zero);
#pragma GCC unroll 8
                for (uint32_t g = h * step; g < (h + 1) * step; g++) {
                    vi w[MAX_PANELS];
#pragma GCC unroll 2
                    for (int p = 0; p < src->n; p++)
                        w[p] = super_codes(src->codes[p] + (size_t)i_super * src->code_super +
                                               r * src->code_run,
                                           code_bits, g);
#pragma GCC unroll 8
                    for (int m = 0; m < n_rows; m++) {
                        vi a = vi_set1(four_at(lo[m] + (size_t)run * RUN_K + g * 4));
#pragma GCC unroll 2
                        for (int p = 0; p < src->n; p++)
                            d[m][p] = vi_dot(d[m][p], w[p], a);
                    }
                }
#pragma GCC unroll 2
                for (int p = 0; p < src->n; p++) {
                    vi scale = f.subs == 0
                                   ? vi_zero()
                                   : super_scale(src, super[p], f, wide[p], run, r * f.subs + h);
#pragma GCC unroll 8
                    for (int m = 0; m < n_rows; m++)
                        s[m][p] =
                            vi_add32(s[m][p], f.subs == 0 ? d[m][p] : vi_mul32(d[m][p], scale));
                }
            }
        }
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++) {
            uint32_t first = i_super * runs; /* run */
#pragma GCC unroll 2
            for (int p = 0; p < src->n; p++) {
                vi offset = vi_zero();
                if (f.offsets && f.subs == 0)
                    offset = vi_srai32(vi_set1(sums[m][first].in_high_half), 16);
                else if (f.offsets && f.subs == 1)
                    offset = super_mins(super[p] + src->at.mins + src->lane * 4, run - first,
                                        act_sums32(act, row + (uint32_t)m) + first);
                else if (f.offsets)
                    offset = super_mins(super[p] + src->at.mins + src->lane * 4, 2 * (run - first),
                                        act_sums16(act, row + (uint32_t)m) + 2 * (size_t)first);
                super_flush(&total[m][p], super[p], src->lane, f, s[m][p], offset);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < n_rows; m++) {
        if (act->n_outliers[row + (uint32_t)m] > 0 && code_bits != f.bits)
            super_outliers_split(job, row + (uint32_t)m, src, f, total[m]);
        else if (act->n_outliers[row + (uint32_t)m] > 0)
            super_outliers(job, row + (uint32_t)m, src, f, code_bits, wide, total[m]);
#pragma GCC unroll 2
        for (int p = 0; p < src->n; p++)
            super_put(job, row + (uint32_t)m, src->outputs[p], total[m][p].even, total[m][p].odd);
    }
}

/* A panel (or the half of one that begins at output n) as it is packed. */
ALWAYS_INLINE struct super_source super_packed(const struct weight_cpu *w, struct super_form f,
                                               uint32_t n)
{
    const uint8_t *panel = weight_panel(w, n / PANEL_ROWS);
    uint32_t runs = f.bits == 8 ? 8 : w->super_runs;
    struct super_source src = {
        .n = 1, .lane = n % PANEL_ROWS, .outputs = {n}, .at = super_layout(f, runs)};
    src.packed[0] = src.packed[1] = panel;
    src.super_bytes = f.bits == 8 ? 0 : src.at.bytes;
    src.codes[0] = panel + (f.bits == 8 ? 0 : src.at.codes) + (size_t)src.lane * 4;
    src.code_super = f.bits == 8 ? runs * INT8_RUN_BYTES : src.at.bytes;
    src.code_run = src.at.run_bytes;
    return src;
}
