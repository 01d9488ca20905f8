/* super_form.h: PACK_SUPER, the packed form of Q5_0, Q5_1, Q2_K, Q3_K, Q5_K, Q6_K and of formats
 * with a table (IQ4_NL, IQ4_XS, MXFP4). The integers of the file stay unchanged. Only the scales
 * of a block (f16, or E8M0) become multiples of the row's unit. A weight is
 *
 *   W = isd·scale·(q − zero) + ism·min        |isd|, |ism| ≤ scale_max, |W| ≤ 8191·128·32 < 2^25.01
 *
 * With a table, packed codes are the file's 4 bits, and q = table[code] + zero is a byte.
 *
 * There is an isd and an ism per super-block (a block of the file: 8 runs, or 1). There is a scale
 * and a min per sub-block: a run of 32 columns or half a run. Formats without sub-blocks have
 * scale 1. A super-block of a panel:
 *
 *   [row 16] i16 isd, [row 16] i16 ism      ism only for formats with offsets
 *   [sub / 4][row 16][4] u8 min             bytes 0, 2, 1, 3: subs 4j, 4j+1, 4j+2, 4j+3
 *   [sub][row 16] i8 scale
 *   [run]{ planes of q, 64 bytes = [row 16][4 columns] each }
 *
 * Planes of a run (column group g is columns 4g..4g+3). The low bits of q are 4 bits in four
 * vectors (low nibbles are groups v, high nibbles 4 + v). Or they are 2 bits in two vectors (bits
 * 2j, 2j+1 of vector h: group 4h + j). The bits above follow: 2 bits in the same way, or 1 bit in
 * one vector (bit g: group g). If a rank's columns begin inside a block of the file, super-blocks
 * are shorter; W is unchanged. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/dtype.h"

enum { SUPER_MAX_K = 131072, SUPER_SCALE_MAX = 8191 };

/* With a table, smaller scales keep W within what kernels multiply at once:
 * - IQ4_NL as Q8_0: 255·127 < 2^15
 * - MXFP4: 2048·12 < 2^15. Scales and the unit are powers of two. Scales from the largest down to
 * its 2^-11 are exact.
 * - IQ4_XS: 2047·32·127 < 2^23 − 2^16 */
enum { SUPER_IQ4_NL_MAX = 255, SUPER_IQ4_XS_MAX = 2047, SUPER_MXFP4_MAX = 2048 };

enum super_table { SUPER_NO_TABLE, SUPER_IQ4, SUPER_FP4 };

/* Bound of T = Σ W·a: |T| ≤ 8191·4096·29.5·SUPER_MAX_K < 2^47, so T >> 16 fits 32 bits. */

struct super_form {
    uint8_t bits; /* bits of q; 8: the codes of PACK_INT8, whose i16 scales are stored apart */
    uint8_t zero;
    uint8_t subs; /* scales per run: 2, 1, or 0: none */
    bool offsets;
    uint8_t runs;             /* runs per super-block */
    uint8_t table;            /* enum super_table: values of 4-bit codes */
    uint16_t table_scale_max; /* largest scale of formats with a table; others: SUPER_SCALE_MAX */
};

static const struct super_form super_forms[N_DTYPES] = {
    [DTYPE_Q8_0] = {8, 128, 1, false, 8},
    [DTYPE_Q5_0] = {5, 16, 0, false, 1},
    [DTYPE_Q5_1] = {5, 0, 0, true, 1},
    [DTYPE_Q2_K] = {2, 0, 2, true, 8},
    [DTYPE_Q3_K] = {3, 4, 2, false, 8},
    [DTYPE_Q5_K] = {5, 0, 1, true, 8},
    [DTYPE_Q6_K] = {6, 32, 2, false, 8},
    [DTYPE_IQ4_NL] = {4, 128, 0, false, 1, SUPER_IQ4, SUPER_IQ4_NL_MAX},
    [DTYPE_IQ4_XS] = {4, 128, 1, false, 8, SUPER_IQ4, SUPER_IQ4_XS_MAX},
    [DTYPE_MXFP4] = {4, 12, 0, false, 1, SUPER_FP4, SUPER_MXFP4_MAX},
};

static inline uint32_t super_scale_max(struct super_form f)
{
    return f.table != SUPER_NO_TABLE ? f.table_scale_max : SUPER_SCALE_MAX;
}

/* The forms with fewer than 8 bits, by type of the file: X(type) for each. */
#define SUPER_FORMS(X)                                                                             \
    X(DTYPE_Q5_0)                                                                                  \
    X(DTYPE_Q5_1)                                                                                  \
    X(DTYPE_Q2_K)                                                                                  \
    X(DTYPE_Q3_K)                                                                                  \
    X(DTYPE_Q5_K)                                                                                  \
    X(DTYPE_Q6_K)                                                                                  \
    X(DTYPE_IQ4_NL)                                                                                \
    X(DTYPE_IQ4_XS)                                                                                \
    X(DTYPE_MXFP4)

/* Offsets of the parts of a super-block. */
struct super_layout {
    uint32_t mins, scales, codes, run_bytes, bytes;
};

static inline struct super_layout super_layout(struct super_form f, uint32_t runs)
{
    struct super_layout l = {.run_bytes = 64U * f.bits};
    uint32_t subs = runs * f.subs;
    l.mins = f.offsets ? 64 : 32;
    l.scales = l.mins + (f.offsets ? (subs + 3) / 4 * 64 : 0);
    l.codes = l.scales + 16 * subs;
    l.bytes = l.codes + runs * l.run_bytes;
    return l;
}

/* Returns the byte of a dword of mins that holds sub-block `sub`. */
static inline uint32_t super_min_byte(uint32_t sub)
{
    return sub % 4 == 1 ? 2 : sub % 4 == 2 ? 1 : sub % 4;
}
