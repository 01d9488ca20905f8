/* linear_super_impl.h: the integer linear of PACK_SUPER (super_form.h), and of PACK_INT8 if codes
 * may be unsigned bytes. Written once in the names of vec_int.h: VI_LANES outputs, a dword each.
 * Included by linear_super_avx2.c and by linear_super_avx512.c, each with its own super_run().
 *
 * Scaled forms (super-blocks of several runs): the products of a sub-block (D), times its scale in
 * int32, are summed over a super-block (S, below 4096·127·256). M is the same sum for the offsets.
 * Then isd·S + ism·M is added to T in 64 bits.
 * Direct forms (a 16-bit scale per run: Q8_0, Q5_0, Q5_1): S is scale·D + offset·A over as many
 * runs as 32 bits hold. L = Σ S mod 2^32 and H = Σ (S >> 16) give T, because Σ (S & 0xffff) < 2^32.
 */
#pragma once

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/linear/linear_int.h"
#include "kernels/cpu/linear/super_codes_impl.h"
#include "kernels/cpu/super_form.h"
#include "kernels/cpu/vec/vec_int.h"
#include "kernels/cpu/weight_cpu.h"

enum {
    MAX_PANELS = 2,
    MAX_TILE_ROWS = 6,
    FAR_BYTES = 8192, /* prefetch distance of super_fetch() */
};

/* Prefetches the n_bytes that lie FAR_BYTES after p, into L2, because L1 supports too few
 * outstanding loads. Every line must be prefetched: the kernel waits for the first missing line.
 * (Q5_K without the lines of its scales was slower than without any prefetch.) */
ALWAYS_INLINE void super_fetch(const uint8_t *p, uint32_t n_bytes)
{
    for (uint32_t i = 0; i < n_bytes; i += 64)
        __builtin_prefetch(p + FAR_BYTES + i, 0, 2);
}

/* Prefetches the scales of a run of a direct form. The scales of Q8_0 are stored apart, 32 bytes
 * per run. They are prefetched as many runs ahead as its codes of 512 bytes. */
ALWAYS_INLINE void super_fetch_scales(const uint8_t *scales, struct super_form f)
{
    if (f.bits == 8)
        __builtin_prefetch(scales + FAR_BYTES / (INT8_RUN_BYTES / INT8_SCALE_BYTES), 0, 2);
    else
        super_fetch(scales, 64);
}

/* The source of a tile: panels (or halves of a panel) with their codes, packed or as bytes. Also
 * the outputs. */
struct super_source {
    uint32_t lane; /* first lane of the panel: 0, or 8 */
    uint32_t outputs[MAX_PANELS];
    const uint8_t *packed[MAX_PANELS]; /* the panel */
    const uint8_t *codes[MAX_PANELS];  /* codes from that lane on */
    const uint8_t *scales[MAX_PANELS]; /* packed scales from that lane on; direct: 16 bits each */
    uint8_t *keep[MAX_PANELS];         /* NULL, or the place for codes as bytes */
    uint32_t runs; /* runs per super-block; direct: runs that are added in 32 bits */
    uint32_t code_run, code_super, scale_run,
        scale_super;        /* distances from each item to the next */
    struct super_layout at; /* layout of `packed` */
    /* Scaled forms: NULL or [run][sub][2][row 16] pairs of 16 bits (scale, offset) as multiples of
     * the unit. They are split: first the low SUPER_LOW_BITS, then the bits above. */
    const uint8_t *pairs[MAX_PANELS];
};

enum { SUPER_LOW_BITS = 10 };

/* 64-bit totals of the even and odd lanes; direct forms: L and H. */
struct super_total {
    vi even, odd;
};

ALWAYS_INLINE bool super_is_direct(struct super_form f)
{
    return f.bits == 8 || f.subs == 0;
}

ALWAYS_INLINE bool super_halves_have_zero(struct super_form f)
{
    return f.subs == 2 && f.zero != 0;
}

/* Returns the number of runs whose S fits 32 bits: 16·32·127·128·255, 16·32·127·127·255,
 * 16·32·127·12·2048, 4·32·127·16·8191, 2·32·127·(31 + 1)·8191 < 2^31. */
ALWAYS_INLINE uint32_t super_direct_runs(struct super_form f)
{
    return f.bits == 8 || f.table != SUPER_NO_TABLE ? 16 : f.offsets ? 2 : 4;
}

/* Returns −zero·A, from −8·A. */
ALWAYS_INLINE vi super_start(int32_t minus_8, int zero)
{
    vi v = vi_set1(minus_8);
    switch (zero) {
    case 0:
        return vi_zero();
    case 4:
        return vi_srai32(v, 1);
    case 12:
        return vi_add32(v, vi_srai32(v, 1));
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

ALWAYS_INLINE void super_add(struct super_total *t, vi a, vi b)
{
    t->even = vi_add64(t->even, vi_mul64(a, b));
    t->odd = vi_add64(t->odd, vi_mul64(vi_srl64_32(a), vi_srl64_32(b)));
}

ALWAYS_INLINE void super_add_direct(struct super_total *t, vi s)
{
    t->even = vi_add32(t->even, s);
    t->odd = vi_add32(t->odd, vi_srai32(s, 16));
}

/* Computes the totals of both lanes from L and H. */
ALWAYS_INLINE struct super_total super_join(struct super_total t)
{
    vi rest = vi_sub32(t.even, vi_slli32(t.odd, 16)), high = vi_set1(1 << 16);
    return (struct super_total){
        vi_add64(vi_mul64(t.odd, high), vi_srl64_32(vi_slli64(rest, 32))),
        vi_add64(vi_mul64(vi_srl64_32(t.odd), high), vi_srl64_32(rest)),
    };
}

/* Adds isd·S + ism·M to the totals. */
ALWAYS_INLINE void super_flush(struct super_total *t, const uint8_t *super, uint32_t lane,
                               struct super_form f, vi s, vi m)
{
    const int16_t *isd = (const int16_t *)(const void *)super + lane;
    super_add(t, s, vi_load_i16(isd));
    if (f.offsets)
        super_add(t, m, vi_load_i16(isd + PANEL_ROWS));
}

/* Returns acc + the products of four codes and four signed bytes. */
ALWAYS_INLINE vi super_dot(struct super_form f, vi acc, vi codes, vi a)
{
    return f.table == SUPER_IQ4 ? vi_dot_bytes(acc, codes, a) : vi_dot(acc, codes, a);
}

#include "kernels/cpu/linear/super_outliers_impl.h"

/* The pointers of a tile's rows, advanced by runs along K. Rows 3 to 5 have their own base: two
 * bases and a stride take fewer registers than six pointers. */
struct super_place {
    const int8_t *lo, *lo_third;
    const struct act_sums *sums, *sums_third;
    const int16_t *shorts; /* direct forms with offsets: act_sums32(); forms whose halves have a
                              zero: act_sums16() */
    size_t k_pad, n_runs, short_stride;
};

ALWAYS_INLINE const int8_t *super_lo(const struct super_place *a, int m)
{
    return m < 3 ? a->lo + (size_t)m * a->k_pad : a->lo_third + (size_t)(m - 3) * a->k_pad;
}

ALWAYS_INLINE const struct act_sums *super_sums(const struct super_place *a, int m)
{
    return m < 3 ? a->sums + (size_t)m * a->n_runs : a->sums_third + (size_t)(m - 3) * a->n_runs;
}

ALWAYS_INLINE struct super_place super_place_of(const struct act_cpu *act, uint32_t row,
                                                struct super_form f)
{
    struct super_place a = {.k_pad = act->k_pad,
                            .n_runs = act->k_pad / ACT_RUN,
                            .short_stride = act_short_stride(act->k_pad),
                            .lo = act_lo(act, row),
                            .sums = act_run_sums(act, row)};
    a.lo_third = a.lo + 3 * a.k_pad;
    a.sums_third = a.sums + 3 * a.n_runs;
    __asm__(""
            : "+r"(a.lo_third),
              "+r"(a.sums_third)); /* stops gcc from deriving them from the other pointers */
    if (f.offsets && f.subs == 0)
        a.shorts = act_sums32(act, row);
    else if (super_halves_have_zero(f))
        a.shorts = act_sums16(act, row);
    return a;
}

/* Adds Σ scale·(q − zero)·a of a run to s. `codes`, `scales` and `keep` belong to the run; keep:
 * NULL, or the place for the codes as bytes. */
ALWAYS_INLINE void super_run(const struct super_place *a, const uint8_t *const codes[],
                             const uint8_t *const scales[], uint8_t *const keep[],
                             struct super_form f, unsigned code_bits, int n_rows, int n_panels,
                             vi s[][MAX_PANELS]);

/* Computes m = Σ min·A over the n_runs runs of super-block i, for each row. */
ALWAYS_INLINE void super_mins(const struct act_cpu *act, uint32_t row, const uint8_t *super,
                              const struct super_source *src, struct super_form f, uint32_t i,
                              uint32_t n_runs, int n_rows, vi m[])
{
    const size_t stride = act_short_stride(act->k_pad);
    const int16_t *shorts = (f.subs == 2 ? act_sums16(act, row) : act_sums32(act, row)) +
                            (size_t)i * src->runs * f.subs;
    const uint8_t *mins = super + src->at.mins + src->lane * 4;
    const vi low = vi_set1(0x00FF00FF);
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; r++)
        m[r] = vi_zero();
    for (uint32_t j = 0; j < n_runs * f.subs; j += 4, mins += 64, shorts += 4) {
        vi v = vi_loadu(mins), first = vi_and(v, low), second = vi_and(vi_srl16(v, 8), low);
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; r++) {
            m[r] = vi_madd16(m[r], first, vi_set1(four_at(shorts + (size_t)r * stride)));
            m[r] = vi_madd16(m[r], second, vi_set1(four_at(shorts + (size_t)r * stride + 2)));
        }
    }
}

/* Adds S of super-block i, of n runs, to the totals. */
ALWAYS_INLINE void super_add_super(const struct act_cpu *act, uint32_t row,
                                   const struct super_source *src, struct super_form f, uint32_t i,
                                   uint32_t n, int n_rows, int n_panels, vi s[][MAX_PANELS],
                                   struct super_total total[][MAX_PANELS])
{
#pragma GCC unroll 2
    for (int p = 0; p < n_panels; p++) {
        vi mins[MAX_TILE_ROWS];
        const uint8_t *super = src->packed[p] + (size_t)i * src->scale_super;
        if (f.offsets && !super_is_direct(f))
            super_mins(act, row, super, src, f, i, n, n_rows, mins);
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++)
            if (super_is_direct(f))
                super_add_direct(&total[m][p], s[m][p]);
            else
                super_flush(&total[m][p], super, src->lane, f, s[m][p],
                            f.offsets ? mins[m] : vi_zero());
    }
}

/* Multiplies n_rows rows with n_panels panels. */
ALWAYS_INLINE void super_products(const struct linear_job *job, uint32_t row,
                                  const struct super_source *src, struct super_form f,
                                  unsigned code_bits, bool keeps, int n_rows, int n_panels,
                                  struct super_total total[][MAX_PANELS])
{
    const uint32_t n_runs = job->act->k_pad / RUN_K;
    struct super_place a = super_place_of(job->act, row, f);
    const uint8_t *codes[MAX_PANELS] = {src->codes[0], src->codes[1]},
                  *scales[MAX_PANELS] = {src->scales[0], src->scales[1]};
    uint8_t *keep[MAX_PANELS] = {src->keep[0], src->keep[1]};
    for (uint32_t run = 0, i = 0; run < n_runs; run += src->runs, i++) {
        uint32_t n = n_runs - run < src->runs ? n_runs - run : src->runs;
        vi s[MAX_TILE_ROWS][MAX_PANELS];
#pragma GCC unroll 8
        for (int m = 0; m < n_rows; m++)
#pragma GCC unroll 2
            for (int p = 0; p < n_panels; p++)
                s[m][p] = vi_zero();
        const bool is_packed = code_bits == f.bits; /* packed codes may come from memory */
        if (is_packed && !super_is_direct(f))
            for (int p = 0; p < n_panels; p++)
                super_fetch(codes[p] - src->at.codes, src->at.codes);
        for (uint32_t r = 0; r < n; r++) {
            if (is_packed && super_is_direct(f))
                for (int p = 0; p < n_panels; p++)
                    super_fetch_scales(scales[p], f);
            super_run(&a, codes, scales, keeps ? keep : NULL, f, code_bits, n_rows, n_panels, s);
#pragma GCC unroll 2
            for (int p = 0; p < n_panels; p++) {
                if (f.offsets && f.subs == 0) { /* (offset, 0) times (A, the next A) */
                    vi offset = vi_load_u16((const int16_t *)(const void *)(scales[p] + 32));
#pragma GCC unroll 8
                    for (int m = 0; m < n_rows; m++)
                        s[m][p] =
                            vi_madd16(s[m][p], offset,
                                      vi_set1(four_at(a.shorts + (size_t)m * a.short_stride)));
                }
                codes[p] += src->code_run;
                scales[p] += src->scale_run;
                if (keeps)
                    keep[p] += INT8_RUN_BYTES;
            }
            a.lo += RUN_K, a.lo_third += RUN_K;
            a.sums++, a.sums_third++;
            a.shorts += super_halves_have_zero(f) ? 2 : f.offsets && f.subs == 0 ? 1 : 0;
        }
#pragma GCC unroll 2
        for (int p = 0; p < n_panels; p++) {
            codes[p] += src->code_super - src->runs * src->code_run;
            scales[p] += src->scale_super - src->runs * src->scale_run;
        }
        super_add_super(job->act, row, src, f, i, n, n_rows, n_panels, s, total);
    }
}

/* Returns a source for packed panels (or for the halves that begin at outputs n and next). */
ALWAYS_INLINE struct super_source super_packed(const struct weight_cpu *w, struct super_form f,
                                               uint32_t n, uint32_t next)
{
    const bool direct = super_is_direct(f), is_int8 = f.bits == 8;
    struct super_source src = {.lane = n % PANEL_ROWS,
                               .outputs = {n, next},
                               .at = super_layout(f, direct ? 1 : w->super_runs),
                               .runs = direct ? super_direct_runs(f) : w->super_runs};
    src.code_run = direct && !is_int8 ? src.at.bytes : src.at.run_bytes;
    src.scale_run = is_int8 ? INT8_SCALE_BYTES : direct ? src.at.bytes : 16U * f.subs;
    src.code_super = direct ? src.runs * src.code_run : src.at.bytes;
    src.scale_super = direct ? src.runs * src.scale_run : src.at.bytes;
    for (int p = 0; p < MAX_PANELS; p++) {
        const uint8_t *panel = weight_panel(w, src.outputs[p] / PANEL_ROWS);
        src.packed[p] = panel;
        src.codes[p] = panel + (is_int8 ? 0 : src.at.codes) + (size_t)src.lane * 4;
        src.scales[p] = is_int8  ? (const uint8_t *)(panel_scales(w, panel) + src.lane)
                        : direct ? panel + (size_t)src.lane * 2
                                 : panel + src.at.scales + src.lane;
    }
    return src;
}

/* Returns the number of rows of the next tile. */
ALWAYS_INLINE int super_tile_rows(uint32_t left)
{
    static const int8_t rows_of[] = {0, 1, 2, 3, 4, 3, 6, 4, 4};
    return left < sizeof(rows_of) ? rows_of[left] : MAX_TILE_ROWS;
}

/* Computes a tile of n_rows rows × n_panels panels. code_bits: bits of src->codes, f.bits or 8. */
ALWAYS_INLINE void super_tile(const struct linear_job *job, uint32_t row,
                              const struct super_source *src, struct super_form f,
                              unsigned code_bits, bool keeps, int n_rows, int n_panels)
{
    struct super_total total[MAX_TILE_ROWS][MAX_PANELS];
    for (int m = 0; m < n_rows; m++)
        for (int p = 0; p < n_panels; p++)
            total[m][p] = (struct super_total){vi_zero(), vi_zero()};
    switch (n_rows) {
    case 1:
        super_products(job, row, src, f, code_bits, keeps, 1, n_panels, total);
        break;
    case 2:
        super_products(job, row, src, f, code_bits, keeps, 2, n_panels, total);
        break;
    case 3:
        super_products(job, row, src, f, code_bits, keeps, 3, n_panels, total);
        break;
    case 4:
        super_products(job, row, src, f, code_bits, keeps, 4, n_panels, total);
        break;
    default:
        super_products(job, row, src, f, code_bits, keeps, MAX_TILE_ROWS, n_panels, total);
        break;
    }
    struct super_source kept = *src;
    if (keeps)
        super_use_kept(&kept);
#pragma GCC unroll 1
    for (int m = 0; m < n_rows; m++) {
        uint32_t r = row + (uint32_t)m;
        for (int p = 0; p < n_panels && super_is_direct(f); p++)
            total[m][p] = super_join(total[m][p]);
        if (job->act->n_outliers[r] > 0)
            super_outliers(job, r, &kept, f, keeps ? 8 : code_bits, n_panels, total[m]);
        for (int p = 0; p < n_panels; p++)
            super_put(job, r, src->outputs[p], total[m][p].even, total[m][p].odd);
    }
}

/* Computes the only row of a share × one panel. */
ALWAYS_INLINE void super_row(const struct linear_job *job, const struct linear_share *share,
                             const struct super_source *src, struct super_form f)
{
    super_tile(job, share->row_begin, src, f, f.bits, false, 1, 1);
}

/* Computes a share with few rows: each tile unpacks its codes. */
ALWAYS_INLINE void super_few_rows(const struct linear_job *job, const struct linear_share *share,
                                  const struct super_source *src, struct super_form f, int n_panels)
{
    int n_rows;
    for (uint32_t row = share->row_begin; row < share->row_end; row += (uint32_t)n_rows) {
        n_rows = super_tile_rows(share->row_end - row);
        super_tile(job, row, src, f, f.bits, false, n_rows, n_panels);
    }
}

/* Computes a share with more rows than a tile: the first tile stores the codes as bytes for the
 * others. */
ALWAYS_INLINE void super_rows(const struct linear_job *job, const struct linear_share *share,
                              struct super_source *src, struct super_form f, int n_panels)
{
    uint32_t row = share->row_begin + MAX_TILE_ROWS;
    src->keep[0] = share->scratch;
    src->keep[1] = src->keep[0] + (size_t)(job->w->k_pad / RUN_K) * INT8_RUN_BYTES;
    super_tile(job, share->row_begin, src, f, f.bits, true, MAX_TILE_ROWS, n_panels);
    super_use_kept(src);
    for (int n_rows; row < share->row_end; row += (uint32_t)n_rows) {
        n_rows = super_tile_rows(share->row_end - row);
        super_tile(job, row, src, f, 8, false, n_rows, n_panels);
    }
}

/* Each form has its own function: with all forms in one function the compiler takes minutes. */
#define SUPER_FUNCTION(type)                                                                       \
    static __attribute__((noinline)) void linear_##type(const struct linear_job *job,              \
                                                        const struct linear_share *share)          \
    {                                                                                              \
        linear_form(job, share, super_forms[type]);                                                \
    }
#define SUPER_CASE(type)                                                                           \
    case type:                                                                                     \
        linear_##type(job, share);                                                                 \
        break;
