/* linear_int_amx_planes.h: a panel's weights as planes of unsigned bytes, which tiles multiply
 * (linear_int_amx_impl.h). With V = W + 2^bias, and V ≥ 0,
 *
 *     V = Σ 2^from·(w0 + 2^step·w1)       over one or two parts, each of one or two planes.
 *
 * Forms Q4 and Q8: V = W + 2^15 is one part of 16 bits. Form S (super_form.h): W has up to 26 bits.
 * Its planes are those of V = S·q + O, per output and sub-block. There S = isd·scale and
 * O = 2^bias − zero·S + ism·min. S and O are cut into digits of k bits. Digits times q give parts
 * of V without a carry if (2^k − 1)·(largest q + 1) fits the part. A part of one plane holds 2^8 −
 * 1, and one 16-bit multiplication computes two columns. A part of two planes holds 2^16 − 1. The
 * last digits keep the remaining bits with their sign; S_last·q + O_last is never negative:
 *
 *            |W| ≤        bias  parts (bits of the digits: planes)           last part is at most
 *     Q5_0   8191·16       17   3: 1, rest: 2                                32,766
 *     Q5_1   8191·32       18   3: 1, rest: 2                                65,504, at least 0
 *     Q2_K   8191·60       19   6 and 6: 2, rest: 1                          244, at least 8
 *     Q3_K   8191·128      20   5: 1, rest: 2                                65,532
 *     Q6_K   8191·4096     25   10: 2, rest: 2                               65,532
 *     Q5_K   8191·2016     24   11: 2, rest: 2                               16,224
 *            no isd < 0,   19   V < 2^24: V mod 2^16: 2, V / 2^16: 1         252
 *            no ism > 0
 *
 *     IQ4_XS 2047·4064     23   as the line above: 8 and 8 bits in V / 2^16    254
 *     IQ4_NL, MXFP4        15   one part of 16 bits, as forms Q4 and Q8
 *
 * The lines of two for Q5_K: Q5_K in files has no such signs, so it takes three planes, with
 * carries. V mod 2^16 is one multiplication that wraps. V / 2^16 = (V / 2^11) / 2^5 comes from the
 * carry-free digits.
 *
 * Vector instructions per four columns × 16 outputs and part, without scales and stores: 2 for a
 * plane of bytes, 10 for two planes, 18 for V / 2^16. Extracting the codes takes 2 to 5 more. */
#pragma once

#include <immintrin.h>
#include <stdbool.h>

#include "kernels/cpu/linear/tiles_amx.h"
#include "kernels/cpu/super_form.h"
#include "kernels/cpu/weight_cpu.h"

typedef __m512i vi;
#define VI(op)    _mm512_##op
#define VI_SI(op) _mm512_##op##_si512

ALWAYS_INLINE vi vi_broadcast128(__m128i x)
{
    return _mm512_broadcast_i32x4(x);
}

/* clang-format off */
#include "kernels/cpu/linear/super_codes_impl.h"
/* clang-format on */

enum {
    CHUNK_K = 64,                  /* columns of one tile */
    PLANES_BYTES = 2 * TILE_BYTES, /* per chunk: [plane 2][4 columns: 16][output 16][4] */
    AMX_MAX_PARTS = 2,
    AMX_REST = 16, /* `bits` of a part that has all bits from `from` on */
};

/* The way to compute a part's planes. */
enum amx_part_kind {
    PART_WORD,  /* two planes, digits of `bits` bits */
    PART_BYTE,  /* a single plane */
    PART_BYTES, /* two planes of two digits, each of `bits` bits */
    PART_TOP,   /* a single plane: V / 2^16 of V < 2^24, from a digit of `bits` bits and the rest */
};

struct amx_part {
    enum amx_part_kind kind;
    uint8_t from, bits;
};

struct amx_cut {
    uint8_t bias, n_parts;
    struct amx_part parts[AMX_MAX_PARTS];
};

static const struct amx_cut amx_cut_16_bits = {15, 1, {{PART_WORD, 0, AMX_REST}}};

static const struct amx_cut amx_cuts[N_DTYPES] = {
    [DTYPE_Q5_0] = {17, 2, {{PART_BYTE, 0, 3}, {PART_WORD, 3, AMX_REST}}},
    [DTYPE_Q5_1] = {18, 2, {{PART_BYTE, 0, 3}, {PART_WORD, 3, AMX_REST}}},
    [DTYPE_Q2_K] = {19, 2, {{PART_BYTES, 0, 6}, {PART_BYTE, 12, AMX_REST}}},
    [DTYPE_Q3_K] = {20, 2, {{PART_BYTE, 0, 5}, {PART_WORD, 5, AMX_REST}}},
    [DTYPE_Q5_K] = {24, 2, {{PART_WORD, 0, 11}, {PART_WORD, 11, AMX_REST}}},
    [DTYPE_Q6_K] = {25, 2, {{PART_WORD, 0, 10}, {PART_WORD, 10, AMX_REST}}},
    [DTYPE_IQ4_NL] = {15, 1, {{PART_WORD, 0, AMX_REST}}},
    [DTYPE_IQ4_XS] = {23, 2, {{PART_WORD, 0, AMX_REST}, {PART_TOP, 16, 8}}},
    [DTYPE_MXFP4] = {15, 1, {{PART_WORD, 0, AMX_REST}}},
};

/* The cut for Q5_K without negative isd and positive ism. */
static const struct amx_cut amx_cut_24_bits = {
    19, 2, {{PART_WORD, 0, AMX_REST}, {PART_TOP, 16, 11}}};

ALWAYS_INLINE unsigned amx_part_planes(struct amx_part part)
{
    return part.kind == PART_WORD || part.kind == PART_BYTES ? 2 : 1;
}

/* Returns the step: a part's second plane counts 2^step times its first. */
ALWAYS_INLINE unsigned amx_part_step(struct amx_part part)
{
    return part.kind == PART_BYTES ? part.bits : 8;
}

/* Writes (code·scale + start) mod 2^16 of four columns × 16 outputs to the two planes. */
ALWAYS_INLINE void amx_put_planes(uint8_t *dst, __m512i codes, __m512i scale, __m512i start)
{
    const __m512i low = _mm512_set1_epi16(0xFF);
    __m512i even = _mm512_mullo_epi16(_mm512_and_si512(codes, low), scale),
            odd = _mm512_mullo_epi16(_mm512_srli_epi16(codes, 8), scale);
    even = _mm512_add_epi16(even, start);
    odd = _mm512_add_epi16(odd, start);
    /* low ? even : odd */
    __m512i w0 = _mm512_ternarylogic_epi32(low, even, _mm512_slli_epi16(odd, 8), 0xCA),
            w1 = _mm512_ternarylogic_epi32(low, _mm512_srli_epi16(even, 8), odd, 0xCA);
    _mm512_store_si512(dst, w0);
    _mm512_store_si512(dst + TILE_BYTES, w1);
}

/* Returns the place of a run's first group of columns in the planes. */
ALWAYS_INLINE uint8_t *amx_planes_of_run(uint8_t *planes, uint32_t run)
{
    return planes + (size_t)(run / 2) * PLANES_BYTES + run % 2 * (TILE_BYTES / 2);
}

/* Returns isw and ioff of a run of PACK_INT4, or of PACK_INT4_PLAIN if `plain`, in the halves of
 * each dword. */
ALWAYS_INLINE __m512i amx_int4_pairs(const uint8_t *run, bool plain)
{
    if (!plain)
        return _mm512_load_si512(run + 256);
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)(run + 256)));
}

/* Unpacks runs [run, end) of a panel. */
ALWAYS_INLINE void amx_unpack_int4(const uint8_t *panel, bool plain, uint8_t *planes, uint32_t run,
                                   uint32_t end)
{
    const __m512i nibble = _mm512_set1_epi8(15), low = _mm512_set1_epi32(0xFFFF);
    for (; run < end; run++) {
        const uint8_t *from = panel + (size_t)run * (plain ? INT4_PLAIN_RUN_BYTES : INT4_RUN_BYTES);
        __m512i pair = amx_int4_pairs(from, plain);
        __m512i isw = _mm512_ternarylogic_epi32(low, pair, _mm512_slli_epi32(pair, 16), 0xCA),
                ioff = _mm512_ternarylogic_epi32(low, _mm512_srli_epi32(pair, 16), pair, 0xCA);
        /* W = q·isw + (ioff − 8·isw) */
        __m512i start = _mm512_sub_epi16(ioff, _mm512_slli_epi16(isw, 3));
        start = _mm512_xor_si512(start, _mm512_set1_epi16((short)0x8000));
        uint8_t *dst = amx_planes_of_run(planes, run);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            __m512i codes = _mm512_loadu_si512(from + v * 64);
            amx_put_planes(dst + v * 64, _mm512_and_si512(codes, nibble), isw, start);
            codes = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
            amx_put_planes(dst + (4 + v) * 64, codes, isw, start);
        }
    }
}

static void amx_unpack_int8(const uint8_t *panel, const int16_t *scales, uint8_t *planes,
                            uint32_t run, uint32_t end)
{
    for (; run < end; run++) {
        const uint8_t *from = panel + (size_t)run * INT8_RUN_BYTES;
        __m512i isw = _mm512_cvtepu16_epi32(
            _mm256_load_si256((const __m256i *)(const void *)(scales + (size_t)run * PANEL_ROWS)));
        isw = _mm512_or_si512(isw, _mm512_slli_epi32(isw, 16));
        /* W = (q + 128)·isw − 128·isw */
        __m512i start =
            _mm512_sub_epi16(_mm512_set1_epi16((short)0x8000), _mm512_slli_epi16(isw, 7));
        uint8_t *dst = amx_planes_of_run(planes, run);
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++)
            amx_put_planes(dst + v * 64, _mm512_load_si512(from + v * 64), isw, start);
    }
}

/* V = scale·q + start of the 16 outputs in a sub-block. */
struct amx_scale {
    vi scale, start;
};

ALWAYS_INLINE vi amx_load_i16(const uint8_t *p)
{
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

ALWAYS_INLINE struct amx_scale amx_super_scale(const uint8_t *super, const struct super_layout *at,
                                               struct super_form f, unsigned bias, uint32_t sub)
{
    struct amx_scale v = {amx_load_i16(super), vi_set1(1 << bias)};
    if (f.subs > 0) {
        const uint8_t *scales = super + at->scales + (size_t)16 * sub;
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)scales);
        v.scale = vi_mul32(v.scale, _mm512_cvtepi8_epi32(bytes));
    }
    if (f.zero > 0)
        v.start = vi_sub32(v.start, vi_mul32(v.scale, vi_set1(f.zero)));
    if (f.offsets) {
        vi offset = amx_load_i16(super + 32);
        if (f.subs > 0) {
            vi mins = vi_loadu(super + at->mins + (size_t)(sub / 4) * 64);
            mins = vi_and(vi_srl32(mins, 8 * super_min_byte(sub)), vi_set1(255));
            offset = vi_mul32(offset, mins);
        }
        v.start = vi_add32(v.start, offset);
    }
    return v;
}

/* Returns the digit of `bits` bits from bit `from` on, in both halves of each dword. */
ALWAYS_INLINE vi amx_digit(vi v, unsigned from, unsigned bits)
{
    const vi low = vi_set1(0xFFFF);
    v = _mm512_sra_epi32(v, _mm_cvtsi32_si128((int)from));
    if (bits < AMX_REST)
        v = vi_and(v, vi_set1((1 << bits) - 1));
    return _mm512_ternarylogic_epi32(low, v, vi_slli32(v, 16), 0xCA);
}

/* Computes digits of V that fit a byte, for two columns at a time. `start` is in both bytes. */
ALWAYS_INLINE vi amx_put_bytes(vi codes, vi scale, vi start)
{
    return _mm512_add_epi16(_mm512_mullo_epi16(codes, scale), start);
}

ALWAYS_INLINE vi amx_both_bytes(vi halves)
{
    return _mm512_add_epi16(halves, _mm512_slli_epi16(halves, 8));
}

/* Returns V / 2^16 of every second column; the first digit has `bits` bits. */
ALWAYS_INLINE vi amx_top_of(vi codes, const struct amx_scale digit[2], unsigned bits)
{
    vi low = _mm512_add_epi16(_mm512_mullo_epi16(codes, digit[0].scale), digit[0].start),
       high = _mm512_add_epi16(_mm512_mullo_epi16(codes, digit[1].scale), digit[1].start);
    return vi_srl16(_mm512_add_epi16(high, vi_srl16(low, bits)), 16 - bits);
}

/* Sets each digit's factor for the codes, and its addend, for a part. */
ALWAYS_INLINE void amx_digits_of(struct amx_scale v, struct amx_part part,
                                 struct amx_scale digit[2])
{
    const struct amx_part top[2] = {{PART_WORD, 0, part.bits}, {PART_WORD, part.bits, AMX_REST}};
    int n = part.kind == PART_TOP || part.kind == PART_BYTES ? 2 : 1;
#pragma GCC unroll 2
    for (int i = 0; i < n; i++) {
        struct amx_part p = part.kind == PART_TOP ? top[i] : part;
        unsigned from = part.kind == PART_BYTES ? p.from + (unsigned)i * p.bits : p.from;
        digit[i].scale = amx_digit(v.scale, from, p.bits);
        digit[i].start = amx_digit(v.start, from, p.bits);
        if (part.kind == PART_BYTE || part.kind == PART_BYTES)
            digit[i].start = amx_both_bytes(digit[i].start);
    }
}

ALWAYS_INLINE void amx_put_part(uint8_t *dst, vi codes, const struct amx_scale digit[2],
                                struct amx_part part)
{
    switch (part.kind) {
    case PART_WORD:
        amx_put_planes(dst, codes, digit[0].scale, digit[0].start);
        break;
    case PART_BYTES:
        vi_store(dst + TILE_BYTES, amx_put_bytes(codes, digit[1].scale, digit[1].start));
        vi_store(dst, amx_put_bytes(codes, digit[0].scale, digit[0].start));
        break;
    case PART_BYTE:
        vi_store(dst, amx_put_bytes(codes, digit[0].scale, digit[0].start));
        break;
    case PART_TOP: {
        vi even = amx_top_of(vi_and(codes, _mm512_set1_epi16(0xFF)), digit, part.bits),
           odd = amx_top_of(_mm512_srli_epi16(codes, 8), digit, part.bits);
        vi_store(dst, vi_or(even, _mm512_slli_epi16(odd, 8)));
        break;
    }
    }
}

/* Unpacks a part of runs [run, end) of a panel of form S. */
ALWAYS_INLINE void amx_unpack_super(const struct weight_cpu *w, const uint8_t *panel,
                                    struct super_form f, unsigned bias, struct amx_part part,
                                    uint8_t *planes, uint32_t run, uint32_t end)
{
    const struct super_layout at = super_layout(f, w->super_runs);
    const uint32_t n_subs = f.subs == 2 ? 2 : 1, groups = 8 / n_subs;
    const uint8_t *super = panel + (size_t)(run / w->super_runs) * at.bytes;
    uint32_t r = run % w->super_runs;
    for (; run < end; run++) {
        const uint8_t *codes = super + at.codes + (size_t)r * at.run_bytes;
        uint8_t *dst = amx_planes_of_run(planes, run);
#pragma GCC unroll 2
        for (uint32_t h = 0; h < n_subs; h++) {
            struct amx_scale digit[2];
            amx_digits_of(amx_super_scale(super, &at, f, bias, r * f.subs + h), part, digit);
#pragma GCC unroll 8
            for (uint32_t g = h * groups; g < (h + 1) * groups; g++)
                amx_put_part(dst + (size_t)g * 64, super_codes(codes, f, f.bits, g), digit, part);
        }
        if (++r == w->super_runs) {
            r = 0;
            super += at.bytes;
        }
    }
}

/* Returns true if a panel of Q5_K has no isd < 0 and no ism > 0. */
static bool amx_fits_24_bits(const struct weight_cpu *w, const uint8_t *panel)
{
    const struct super_layout at = super_layout(super_forms[DTYPE_Q5_K], w->super_runs);
    const __m256i zero = _mm256_setzero_si256();
    __mmask16 wrong = 0;
    for (uint32_t run = 0; run < w->k_pad / RUN_K; run += w->super_runs, panel += at.bytes) {
        const __m256i *scales = (const __m256i *)(const void *)panel;
        wrong |= _mm256_cmplt_epi16_mask(_mm256_loadu_si256(scales), zero) |
                 _mm256_cmpgt_epi16_mask(_mm256_loadu_si256(scales + 1), zero);
    }
    return wrong == 0;
}
