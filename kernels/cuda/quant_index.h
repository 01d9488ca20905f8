/* quant_index.h: layouts of quantized weights and integer activations of the CUDA backend.
 * Functions of plain numbers for the GPU (C++) and the CPU (C11);
 * tests/unit/kernels/cuda/test_cuda_quant_index.c checks them.
 *
 * A weight holds the integers of kernels/cpu/weight_cpu.h in the order in which tensor cores read
 * them. Panels of 16 rows; run = 32 columns; pair = 2 runs, which a kernel copies at once. Lane (g,
 * t) = (lane / 4, lane % 4) of a warp has rows g and g + 8 of a panel. In a run the lane has the
 * column groups t and 4 + t (4 columns each). Its four words of a run, the A fragment: a[0] row g
 * group t, a[1] row g+8 group t, a[2] row g group 4+t, a[3] row g+8 group 4+t. A panel:
 *
 *     [pair]{ codes, high codes, scales, mins }
 *       codes, 8 bits: [run][lane][a 4]                  signed bytes q
 *              4 bits: [lane][run][row g, row g+8]       low nibbles a[0|1], high nibbles a[2|3]
 *              2 bits: [lane][run]                       bits 2i, 2i+1 of a byte: a[i]
 *              table:  as 4 bits, but a half word has the four codes of a[0|1], then a[2|3]
 *       high codes, 1 bit:  [lane]                       bit 4·run + i of a byte: a[i]
 *                   2 bits: as codes
 *       scales, i16: [g][run][row g, row g+8]            of run
 *               i8:  [g][run][sub][row g, row g+8]       of sub-block
 *       mins, u8: as scales of i8
 *     [super]{ [g][row g, row g+8] i16 isd, the same of ism }       forms with scales of i8
 *     [4 runs]{ [g][row g, g+8 of high bytes, then low bytes][4 runs] }    forms with offsets, i16:
 *       the addend per unit of Σa of the run: ioff − 8·isw (INT4), ism (Q5_1)
 *
 * A weight is then scale·(q − zero) + offset with q as stored here. The bytes per weight are the
 * CPU's; runs are padded to 2, offsets to 4.
 *
 * Activations are the B fragments of m16n8k32: tiles of 8 rows, by pair:
 *     lo, hi [tile][pair][lane][run][b 2]                b[0] group t, b[1] group 4+t of row g
 *     sums   [tile][pair]{ [row 8] u8 bit r: run r of the row has outliers; 8 bytes unused;
 *                          [row / 2][run][row % 2] i16 Σlo of the run;
 *                          [row / 2][run][half][row % 2] i16 Σlo of 16 columns }
 *     hi_sums: the same of hi (the first 16 bytes unused)
 *     digits [tile][32 runs][digit 3][lane][b 2]         Σa = Σ digit_j·128^j of 4 runs in a word
 */
#pragma once

#include <stdbool.h>

#include "kernels/cuda/index.h"

#ifdef __cplusplus
#ifdef __CUDACC__
#define QUANT_FN __host__ __device__ constexpr static inline
#else
#define QUANT_FN constexpr static inline
#endif
#else
#define QUANT_FN static inline
#endif

enum quant_form {
    QUANT_INT4,       /* Q4_1, Q4_K */
    QUANT_INT4_PLAIN, /* Q4_0 */
    QUANT_INT8,       /* Q8_0 */
    QUANT_Q5_0,
    QUANT_Q5_1,
    QUANT_Q5_K,
    QUANT_Q2_K,
    QUANT_Q3_K,
    QUANT_Q6_K,
    QUANT_IQ4_NL, /* forms with a table of values for their 4-bit codes */
    QUANT_MXFP4,
    QUANT_IQ4_XS,
    N_QUANT_FORMS
};

enum {
    QUANT_ROWS = 16, /* rows per panel */
    QUANT_RUN = 32,
    QUANT_PAIR = 64,
    QUANT_TILE = 8, /* rows of activations per tile */
    QUANT_CHUNK_RUNS = 32,
    QUANT_DIGITS = 3,
    QUANT_FRAGMENT_BYTES = 512, /* bytes of lo or hi, for a tile's pair */
    QUANT_SUMS32_AT = 16,       /* offset in the sums of a tile's pair */
    QUANT_SUMS16_AT = 48,
    QUANT_SUMS_BYTES = 112,
    QUANT_GROUP_BYTES = 128,                   /* offsets of 4 runs */
    QUANT_CHUNK_BYTES = QUANT_DIGITS * 32 * 8, /* digits of a tile */
    QUANT_MAX_PARTS = 3,
};

/* Bits of a code. */
QUANT_FN uint32_t quant_bits(uint32_t form)
{
    switch (form) {
    case QUANT_INT8:
        return 8;
    case QUANT_Q6_K:
        return 6;
    case QUANT_Q5_0:
    case QUANT_Q5_1:
    case QUANT_Q5_K:
        return 5;
    case QUANT_Q3_K:
        return 3;
    case QUANT_Q2_K:
        return 2;
    default:
        return 4;
    }
}

/* Returns the code that stands for 0. */
QUANT_FN int32_t quant_zero(uint32_t form)
{
    return form == QUANT_INT4_PLAIN ? 8
           : form == QUANT_Q5_0     ? 16
           : form == QUANT_Q3_K     ? 4
           : form == QUANT_Q6_K     ? 32
                                    : 0;
}

/* Returns true for 8-bit scales per sub-block, multiplied by those of a super-block; false for a
 * 16-bit scale per run. */
QUANT_FN bool quant_is_super(uint32_t form)
{
    return (form >= QUANT_Q5_K && form <= QUANT_Q6_K) || form == QUANT_IQ4_XS;
}

/* Returns true if codes are indices of a table of signed bytes. */
QUANT_FN bool quant_has_table(uint32_t form)
{
    return form >= QUANT_IQ4_NL;
}

/* Returns four values of the form's table, from value 4·i on, as a word. */
QUANT_FN uint32_t quant_table_word(uint32_t form, uint32_t i)
{
    return form == QUANT_MXFP4 ? (i == 0   ? 0x03020100u
                                  : i == 1 ? 0x0C080604u
                                  : i == 2 ? 0xFDFEFF00u
                                           : 0xF4F8FAFCu)
                               : (i == 0   ? 0xBFAD9881u
                                  : i == 1 ? 0xF6EADDCFu
                                  : i == 2 ? 0x26190D01u
                                           : 0x71594535u);
}

/* Returns the value of a code. */
QUANT_FN int32_t quant_table_at(uint32_t form, uint32_t code)
{
    return (int32_t)((quant_table_word(form, code / 4) >> code % 4 * 8 & 0xFF) ^ 128) - 128;
}

/* Returns true if codes in a fragment are signed bytes. */
QUANT_FN bool quant_is_signed(uint32_t form)
{
    return form == QUANT_INT8 || quant_has_table(form);
}

/* Returns the sub-blocks of a run. */
QUANT_FN uint32_t quant_subs(uint32_t form)
{
    return form >= QUANT_Q2_K && form <= QUANT_Q6_K ? 2 : 1;
}

QUANT_FN bool quant_has_mins(uint32_t form)
{
    return form == QUANT_Q5_K || form == QUANT_Q2_K;
}

QUANT_FN bool quant_has_offsets(uint32_t form)
{
    return form == QUANT_INT4 || form == QUANT_Q5_1;
}

/* Returns true if sums T need 64 bits. */
QUANT_FN bool quant_is_wide(uint32_t form)
{
    return form != QUANT_INT4 && form != QUANT_INT4_PLAIN;
}

/* Returns the runs whose Σ scale·Σ(q − zero)·lo fits 32 bits, for wide forms with 16-bit scales
 * (Σ|lo| ≤ 127·32 per run): 8·4064·128·255, 8·4064·12·2048, 4·4064·16·8191 and 2·4064·31·8191 are
 * below 2^31. */
QUANT_FN uint32_t quant_flush_runs(uint32_t form)
{
    return quant_is_signed(form) ? 8 : form == QUANT_Q5_0 ? 4 : 2;
}

QUANT_FN uint32_t quant_code_bytes(uint32_t form)
{
    return quant_bits(form) == 8 ? 1024 : quant_bits(form) >= 4 ? 512 : 256;
}

QUANT_FN uint32_t quant_high_bytes(uint32_t form)
{
    return quant_bits(form) == 6 ? 256 : quant_bits(form) % 2 == 1 ? 128 : 0;
}

/* Bytes per pair. */
QUANT_FN uint32_t quant_scale_bytes(uint32_t form)
{
    return quant_is_super(form) ? 32 * quant_subs(form) : 64;
}

QUANT_FN uint32_t quant_scales_at(uint32_t form)
{
    return quant_code_bytes(form) + quant_high_bytes(form);
}

QUANT_FN uint32_t quant_mins_at(uint32_t form)
{
    return quant_scales_at(form) + quant_scale_bytes(form);
}

QUANT_FN uint32_t quant_pair_bytes(uint32_t form)
{
    return quant_mins_at(form) + (quant_has_mins(form) ? quant_scale_bytes(form) : 0);
}

/* Returns the bytes of isd and ism of a super-block. */
QUANT_FN uint32_t quant_super_bytes(uint32_t form)
{
    return !quant_is_super(form) ? 0 : quant_has_mins(form) ? 64 : 32;
}

/* Returns the bytes of a tile's sums that a kernel reads: flags, and Σlo if the form needs it. */
QUANT_FN uint32_t quant_sums_bytes(uint32_t form)
{
    return quant_zero(form) == 0 && !quant_has_mins(form) ? 16
           : quant_subs(form) == 1                        ? QUANT_SUMS16_AT
                                                          : QUANT_SUMS_BYTES;
}

/* The same for Σhi, without flags. */
QUANT_FN uint32_t quant_hi_sums_bytes(uint32_t form)
{
    return quant_sums_bytes(form) - QUANT_SUMS32_AT;
}

/* The layout of a weight's panel. */
struct quant_layout {
    uint32_t form, n_runs, n_pairs;
    uint32_t super_shift; /* log2 of the runs per super-block: 1, 2, 4 or 8 */
    uint32_t n_chunks;    /* chunks of 32 runs */
    uint32_t n_groups;    /* groups of offsets */
    uint32_t supers_at, offsets_at;
    size_t panel_bytes;
};

/* super_runs: for forms with super-blocks, else 1. */
CUDA_HD struct quant_layout quant_layout_of(uint32_t form, uint32_t k, uint32_t super_runs)
{
    struct quant_layout l;
    l.form = form;
    l.n_runs = (k + QUANT_RUN - 1) / QUANT_RUN;
    l.n_pairs = (l.n_runs + 1) / 2;
    l.super_shift = 0;
    while (1u << l.super_shift < super_runs)
        l.super_shift++;
    l.n_chunks = (l.n_runs + QUANT_CHUNK_RUNS - 1) / QUANT_CHUNK_RUNS;
    l.n_groups = quant_has_offsets(form) ? (l.n_runs + 3) / 4 : 0;
    l.supers_at = l.n_pairs * quant_pair_bytes(form);
    l.offsets_at =
        l.supers_at + (2 * l.n_pairs + super_runs - 1) / super_runs * quant_super_bytes(form);
    l.panel_bytes = l.offsets_at + (size_t)l.n_groups * QUANT_GROUP_BYTES;
    return l;
}

/* Returns the lane whose A fragment of a run holds a row and column group (0..7). */
CUDA_HD uint32_t quant_lane(uint32_t row, uint32_t group)
{
    return row % 8 * 4 + group % 4;
}

/* Returns the word of that fragment. */
CUDA_HD uint32_t quant_word(uint32_t row, uint32_t group)
{
    return row / 8 + group / 4 * 2;
}

/* Place within a pair: the byte of column j (0..3) of a word, and the bits in it. */
struct quant_place {
    uint32_t byte, shift;
};

CUDA_HD struct quant_place quant_code_place(uint32_t form, uint32_t run, uint32_t row,
                                            uint32_t column)
{
    uint32_t lane = quant_lane(row, column / 4), word = quant_word(row, column / 4);
    uint32_t j = column % 4, bits = quant_bits(form);
    struct quant_place p;
    if (bits == 8) {
        p.byte = run * 512 + lane * 16 + word * 4 + j;
        p.shift = 0;
    } else if (quant_has_table(form)) {
        p.byte = lane * 16 + run * 8 + word % 2 * 4 + word / 2 * 2 + j / 2;
        p.shift = j % 2 * 4;
    } else if (bits >= 4) {
        p.byte = lane * 16 + run * 8 + word % 2 * 4 + j;
        p.shift = word / 2 * 4;
    } else {
        p.byte = lane * 8 + run * 4 + j;
        p.shift = word * 2;
    }
    return p;
}

/* The place of the bits above; only for forms with quant_high_bytes(). */
CUDA_HD struct quant_place quant_high_place(uint32_t form, uint32_t run, uint32_t row,
                                            uint32_t column)
{
    uint32_t lane = quant_lane(row, column / 4), word = quant_word(row, column / 4);
    struct quant_place p;
    bool two = quant_bits(form) == 6;
    p.byte = quant_code_bytes(form) + (two ? lane * 8 + run * 4 : lane * 4) + column % 4;
    p.shift = two ? word * 2 : run * 4 + word;
    return p;
}

/* Returns the byte of a scale within a pair (for a min use quant_mins_at() instead of
 * quant_scales_at()). */
CUDA_HD uint32_t quant_scale_place(uint32_t form, uint32_t run, uint32_t row, uint32_t sub)
{
    uint32_t subs = quant_subs(form);
    if (!quant_is_super(form))
        return (row % 8 * 2 + run) * 4 + row / 8 * 2;
    return (row % 8 * 2 + run) * subs * 2 + sub * 2 + row / 8;
}

/* Returns the byte of isd within a panel; ism is 32 further. */
CUDA_HD size_t quant_super_place(const struct quant_layout *l, uint32_t run, uint32_t row)
{
    return l->supers_at + (size_t)(run >> l->super_shift) * quant_super_bytes(l->form) +
           row % 8 * 4 + row / 8 * 2;
}

/* Returns the byte of an offset's high byte within a panel; the low byte is 8 further. */
CUDA_HD size_t quant_offset_place(const struct quant_layout *l, uint32_t run, uint32_t row)
{
    return l->offsets_at + (size_t)(run / 4) * QUANT_GROUP_BYTES + row % 8 * 16 + row / 8 * 4 +
           run % 4;
}

/* Returns the integer W of a panel at a row and column. */
CUDA_HD int32_t quant_weight_at(const struct quant_layout *l, const uint8_t *panel, uint32_t row,
                                uint32_t k)
{
    uint32_t run = k / QUANT_RUN, in_run = k % QUANT_RUN, form = l->form, bits = quant_bits(form);
    const uint8_t *pair = panel + (size_t)(run / 2) * quant_pair_bytes(form);
    const uint8_t *scales = pair + quant_scales_at(form);
    struct quant_place p = quant_code_place(form, run % 2, row, in_run);
    uint32_t low = bits == 8 ? 8 : bits >= 4 ? 4 : 2;
    int32_t q = pair[p.byte] >> p.shift & ((1 << low) - 1);
    if (bits == 8)
        q = (q ^ 128) - 128;
    if (quant_high_bytes(form) != 0) {
        p = quant_high_place(form, run % 2, row, in_run);
        q |= (pair[p.byte] >> p.shift & ((1 << (bits - low)) - 1)) << low;
    }
    q = quant_has_table(form) ? quant_table_at(form, (uint32_t)q) : q - quant_zero(form);
    uint32_t at = quant_scale_place(form, run % 2, row, quant_subs(form) == 2 ? in_run / 16 : 0);
    if (!quant_is_super(form)) {
        int32_t w = q * (int16_t)(scales[at] | scales[at + 1] << 8);
        const uint8_t *offset = panel + quant_offset_place(l, run, row);
        return quant_has_offsets(form) ? w + (int16_t)(offset[0] << 8 | offset[8]) : w;
    }
    const uint8_t *super = panel + quant_super_place(l, run, row);
    int32_t w = (int16_t)(super[0] | super[1] << 8) * (int8_t)scales[at] * q;
    if (quant_has_mins(form))
        w += (int16_t)(super[32] | super[33] << 8) * pair[quant_mins_at(form) + at];
    return w;
}

/* Offsets of the planes of activations of rows × k; the total is a multiple of 256 bytes. */
struct quant_act_layout {
    size_t lo, hi, sums, hi_sums, digits, scale, stats, all_stats, split, total;
};

enum { QUANT_SPLIT_BYTES = 16 << 20 }; /* sums of linears whose columns several blocks share */

CUDA_HD uint32_t quant_n_tiles(uint32_t rows)
{
    return (rows + QUANT_TILE - 1) / QUANT_TILE;
}

CUDA_HD uint32_t quant_n_pairs(uint32_t k)
{
    return (k + QUANT_PAIR - 1) / QUANT_PAIR;
}

CUDA_HD uint32_t quant_n_chunks(uint32_t k)
{
    return (k + QUANT_CHUNK_RUNS * QUANT_RUN - 1) / (QUANT_CHUNK_RUNS * QUANT_RUN);
}

CUDA_HD struct quant_act_layout quant_act_layout_of(uint32_t rows, uint32_t k)
{
    struct quant_act_layout l;
    size_t tiles = quant_n_tiles(rows), pairs = tiles * quant_n_pairs(k);
    l.lo = 0;
    l.hi = l.lo + pairs * QUANT_FRAGMENT_BYTES;
    l.sums = l.hi + pairs * QUANT_FRAGMENT_BYTES;
    l.hi_sums = cuda_round_up(l.sums + pairs * QUANT_SUMS_BYTES, 256);
    l.digits = cuda_round_up(l.hi_sums + pairs * QUANT_SUMS_BYTES, 256);
    l.scale = cuda_round_up(l.digits + tiles * quant_n_chunks(k) * QUANT_CHUNK_BYTES, 256);
    l.stats = cuda_round_up(l.scale + tiles * QUANT_TILE * 4, 256);
    l.all_stats = cuda_round_up(l.stats + (size_t)rows * 8, 256);
    l.split = cuda_round_up(l.all_stats + (size_t)rows * 8 * CUDA_SEGMENTS, 256);
    l.total = l.split + QUANT_SPLIT_BYTES;
    return l;
}

/* Σa = d[0] + 128·d[1] + 16384·d[2], |Σa| ≤ 32·32001; d[2] is 0 where |Σa| ≤ 4064. */
CUDA_HD void quant_digits(int32_t a, int8_t d[QUANT_DIGITS])
{
    int32_t low = ((a + 64) & 127) - 64;
    int32_t rest = (a - low) / 128, middle = ((rest + 64) & 127) - 64;
    d[0] = (int8_t)low;
    d[1] = (int8_t)middle;
    d[2] = (int8_t)((rest - middle) / 128);
}

/* --- linears (linear_quant.h) --- */

/* Returns the row of a part for row `row` of its panel. */
CUDA_HD uint32_t quant_row_of(uint32_t panel, uint32_t row)
{
    return panel * QUANT_ROWS + row;
}

/* Gated linears interleave two parts: panel 2i + p is panel i of part p. Returns i. */
CUDA_HD uint32_t quant_gated_panel(uint32_t panel)
{
    return panel / 2;
}

/* Returns the part of such a panel. */
CUDA_HD uint32_t quant_gated_part(uint32_t panel)
{
    return panel % 2;
}

/* The sizes of the kernel. Each warp has panels × tiles (16 × 8 results each). Warps of a group
 * share copies, and groups share the columns. A group has quant_row_warps() × quant_tile_warps()
 * warps. */
enum quant_kernel {
    QUANT_ROWS_8,  /* up to 8 rows of activations: 32 × 8 results, a warp per group */
    QUANT_ROWS_16, /* 32 × 16 */
    QUANT_ROWS_32, /* 32 × 32 */
    QUANT_LARGE,   /* 128 × 128 (wide forms: 64 × 128), one group */
    N_QUANT_KERNELS
};

enum {
    QUANT_RING_BYTES = 9216, /* approximate ring of a one-warp group: 3 blocks of 8 in 228 KiB */
    QUANT_GROUP_WARPS = 8,   /* warps of QUANT_LARGE; maximum of the other sizes, except: */
    QUANT_MAX_WARPS = 16,    /* maximum of QUANT_ROWS_8 */
    QUANT_ROWS_32_MAX = 64,  /* with more rows of activations QUANT_LARGE is used */
    QUANT_MIN_SPLIT_PAIRS = 8,
    QUANT_MAX_SPLITS = 16,
};

QUANT_FN uint32_t quant_panels(uint32_t form, uint32_t kernel)
{
    return kernel == QUANT_LARGE && quant_is_wide(form) ? 1 : 2;
}

QUANT_FN uint32_t quant_tiles(uint32_t kernel)
{
    return kernel == QUANT_LARGE     ? 8
           : kernel == QUANT_ROWS_32 ? 4
           : kernel == QUANT_ROWS_16 ? 2
                                     : 1;
}

QUANT_FN uint32_t quant_row_warps(uint32_t kernel)
{
    return kernel == QUANT_LARGE ? 4 : 1;
}

QUANT_FN uint32_t quant_tile_warps(uint32_t kernel)
{
    return kernel == QUANT_LARGE ? 2 : 1;
}

QUANT_FN uint32_t quant_group_warps(uint32_t kernel)
{
    return quant_row_warps(kernel) * quant_tile_warps(kernel);
}

/* Forms with mins need more registers than a thread has with QUANT_MAX_WARPS. */
QUANT_FN uint32_t quant_max_warps(uint32_t form, uint32_t kernel)
{
    return kernel == QUANT_ROWS_8 && !quant_has_mins(form) ? QUANT_MAX_WARPS : QUANT_GROUP_WARPS;
}

/* Returns the bytes that a group reads of a pair for one panel: codes, scales, and the super-blocks
 * of both runs. */
QUANT_FN uint32_t quant_stage_panel_bytes(uint32_t form)
{
    return quant_pair_bytes(form) + 2 * quant_super_bytes(form);
}

/* Returns the bytes of a pair that a group of warps reads: a stage of its ring. */
QUANT_FN uint32_t quant_stage_bytes(uint32_t form, uint32_t kernel)
{
    return quant_row_warps(kernel) * quant_panels(form, kernel) * quant_stage_panel_bytes(form) +
           quant_tile_warps(kernel) * quant_tiles(kernel) *
               (2 * QUANT_FRAGMENT_BYTES + quant_sums_bytes(form) + quant_hi_sums_bytes(form));
}

/* Returns the number of stages in a group's ring. */
QUANT_FN uint32_t quant_n_stages(uint32_t form, uint32_t kernel)
{
    uint32_t n = kernel == QUANT_LARGE ? 4 : QUANT_RING_BYTES / quant_stage_bytes(form, kernel);
    return n < 3 ? 3 : n > 8 ? 8 : n;
}

/* Returns the floats between tokens in a warp's results in shared memory, where groups add
 * theirs. */
QUANT_FN uint32_t quant_sum_stride(uint32_t form, uint32_t kernel)
{
    return quant_panels(form, kernel) * QUANT_ROWS + (quant_is_wide(form) ? 2 : 4);
}

QUANT_FN uint32_t quant_group_bytes(uint32_t form, uint32_t kernel)
{
    uint32_t ring = quant_stage_bytes(form, kernel) * quant_n_stages(form, kernel);
    uint32_t sums = quant_tiles(kernel) * QUANT_TILE * quant_sum_stride(form, kernel) *
                    (quant_is_wide(form) ? 8 : 4);
    return kernel == QUANT_LARGE || ring > sums ? ring : sums;
}

/* --- sums that several blocks share: [split][m][16·n_panels], as in struct quant_linear --- */

/* Returns the elements of one split. */
CUDA_HD size_t quant_split_elements(uint32_t n_panels, uint32_t m)
{
    return (size_t)n_panels * QUANT_ROWS * m;
}

CUDA_HD size_t quant_split_at(uint32_t n_panels, uint32_t m, uint32_t split, uint32_t token,
                              uint32_t panel, uint32_t row)
{
    return ((size_t)split * m + token) * ((size_t)n_panels * QUANT_ROWS) + panel * QUANT_ROWS + row;
}

/* Returns the place of an element in a split. `at` is its place in split 0. */
CUDA_HD size_t quant_split_part(size_t at, size_t n_elements, uint32_t split)
{
    return split * n_elements + at;
}

/* Returns the place of the same row of the next panel. */
CUDA_HD size_t quant_split_behind(size_t at)
{
    return at + QUANT_ROWS;
}

/* Returns the number of results of all panels and tokens. Rows of a panel are adjacent, then
 * panels. Gated: two panels give one panel of results. */
CUDA_HD size_t quant_n_items(uint32_t n_panels, uint32_t m, bool gated)
{
    return quant_split_elements(gated ? n_panels / 2 : n_panels, m);
}

struct quant_item {
    uint32_t panel, row, token;
};

/* Returns panel (gated: the even panel of the pair), row and token of result i. */
CUDA_HD struct quant_item quant_item_of(size_t i, uint32_t n_panels, bool gated)
{
    struct quant_item item;
    uint32_t n = gated ? n_panels / 2 : n_panels;
    item.row = (uint32_t)(i % QUANT_ROWS);
    item.panel = (uint32_t)(i / QUANT_ROWS % n) * (gated ? 2 : 1);
    item.token = (uint32_t)(i / QUANT_ROWS / n);
    return item;
}

/* Ranks exchange 64-bit sums as two planes of 32 bits; the planes, added over up to 8 ranks, are
 * then joined. */
CUDA_HD int32_t quant_low_plane(int64_t sum)
{
    return (int32_t)(sum & 0xFFFF);
}

CUDA_HD int32_t quant_high_plane(int64_t sum)
{
    return (int32_t)(sum >> 16);
}

CUDA_HD int64_t quant_of_planes(int32_t low, int32_t high)
{
    return low + (int64_t)high * 65536;
}

/* The launch for m rows of activations on a machine. */
struct quant_plan {
    uint32_t kernel;
    uint32_t n_warps;
    uint32_t row_blocks, token_blocks;
    uint32_t n_splits; /* splits of the columns among blocks; a second kernel adds their sums */
    uint32_t shared_bytes;
};

/* n_panels: of all parts; m > 0. The plan aims at as many blocks as the machine has SMs. With few
 * rows, more warps share a block's columns. With more rows, more blocks share the columns, if the
 * sums' planes have room. */
CUDA_HD struct quant_plan quant_plan_of(uint32_t form, uint32_t n_panels, uint32_t n_pairs,
                                        uint32_t m, uint32_t n_sms, uint32_t max_shared)
{
    struct quant_plan plan;
    plan.kernel = m <= 8                   ? (uint32_t)QUANT_ROWS_8
                  : m <= 16                ? (uint32_t)QUANT_ROWS_16
                  : m <= QUANT_ROWS_32_MAX ? (uint32_t)QUANT_ROWS_32
                                           : (uint32_t)QUANT_LARGE;
    uint32_t group = quant_group_warps(plan.kernel), bytes = quant_group_bytes(form, plan.kernel);
    uint32_t tokens = quant_tile_warps(plan.kernel) * quant_tiles(plan.kernel) * QUANT_TILE;
    uint32_t panels = quant_row_warps(plan.kernel) * quant_panels(form, plan.kernel);
    plan.row_blocks = (n_panels + panels - 1) / panels;
    plan.token_blocks = (m + tokens - 1) / tokens;
    uint64_t blocks = (uint64_t)plan.row_blocks * plan.token_blocks;
    plan.n_warps = QUANT_GROUP_WARPS;
    if (plan.kernel == QUANT_ROWS_8 && blocks <= n_sms)
        plan.n_warps = quant_max_warps(form, plan.kernel);
    while (plan.n_warps > group && plan.n_warps / group * bytes > max_shared)
        plan.n_warps /= 2;
    plan.shared_bytes = plan.n_warps / group * bytes;
    uint64_t plane = (uint64_t)m * n_panels * QUANT_ROWS * (quant_is_wide(form) ? 8 : 4);
    plan.n_splits = 1;
    if (plan.kernel == QUANT_ROWS_8 || !blocks || !plane)
        return plan;
    uint64_t splits = n_sms / blocks;
    uint64_t room = QUANT_SPLIT_BYTES / plane;
    uint64_t longest = n_pairs / (QUANT_MIN_SPLIT_PAIRS * (plan.n_warps / group));
    splits = splits < room ? splits : room;
    splits = splits < longest ? splits : longest;
    splits = splits < QUANT_MAX_SPLITS ? splits : (uint64_t)QUANT_MAX_SPLITS;
    plan.n_splits = splits < 1 ? 1 : (uint32_t)splits;
    return plan;
}
