/* weight_cpu.h: the packed weights of the CPU kernel sets; all sets use the same forms. Position
 * independent; read-only after packing; any thread.
 *
 * Dense (dense.h): panels of 16 rows, column by column.
 *   PACK_F32, PACK_F16: [panel][k][row 16], k_local columns
 *   PACK_BF16: [panel][k / 2][row 16][2: even k, odd k], columns up to a multiple of 32; 0 in the
 *     padding and for |w| < DENSE_TINY
 *
 * Integer (block integers, docs/house/numerics.md): panels of 16 rows, a row per dword lane, four
 * columns per dword. A run = 32 columns of a panel.
 *   PACK_INT4: W = (q − 8)·isw + ioff, q in 0..15, |W| ≤ 2037:
 *     [panel][run]{ [vector v: 4][row 16][4 bytes: low nibbles are columns 4v..4v+3 of the run,
 *     high nibbles 16+4v..16+4v+3], [row 16]{i16 isw, i16 ioff} }
 *   PACK_INT4_PLAIN: the same with every ioff 0 (Q4_0), [row 16] i16 isw.
 *   PACK_INT8: W = q·isw, |W| ≤ 32640:
 *     [panel]{ [run][vector v: 8][row 16][4 bytes q + 128, columns 4v..4v+3],
 *     [run][row 16] i16 isw }
 *   PACK_SUPER: super_form.h.
 * y = float(Σ W·a) · (unit·s); the sum is an exact integer; `units` has an f32 per row. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/weight.h"
#include "kernels/weight_header.h"

enum pack_format {
    PACK_F32,
    PACK_F16,
    PACK_BF16,
    PACK_INT8,
    PACK_INT4,
    PACK_INT4_PLAIN,
    PACK_SUPER,
    PACK_RAW,
    PACK_VECTOR,
};

enum {
    PANEL_ROWS = 16,
    RUN_K = 32,
    INT4_RUN_BYTES = 256 + 64,
    INT4_PLAIN_RUN_BYTES = 256 + 32,
    INT8_RUN_BYTES = 512,
    INT8_SCALE_BYTES = 32,
    INT4_MAX_K = 32768,  /* |Σ W·a| ≤ 60,100·K stays below 2^31 */
    INT8_MAX_K = 131072, /* T = low + 256·high, where high = Σ isw·(D >> 8) with D = Σ q·lo of a
                            run: |high| ≤ 16,200·K stays below 2^31 */
};

struct weight_cpu {
    struct weight base;
    uint32_t format; /* enum pack_format */
    uint32_t k_pad;
    uint32_t super_runs; /* PACK_SUPER: runs per super-block */
    uint32_t n_parts;    /* segments of k_local: 1, or those of a LINEAR_ROW's split */
    uint32_t part_bounds[N_SEGMENTS + 1]; /* from 0 to k_local */
    uint64_t row_bytes;                   /* raw: bytes from one row to the next */
    uint64_t data_offset, units_offset;   /* bytes from this struct */
    uint64_t panel_bytes;                 /* bytes from one panel to the next */
    uint64_t total_bytes;
};

static inline const struct weight_cpu *weight_cpu(const struct weight *w)
{
    return (const struct weight_cpu *)w;
}

static inline const uint8_t *weight_data(const struct weight_cpu *w)
{
    return (const uint8_t *)w + w->data_offset;
}

static inline const float *weight_units(const struct weight_cpu *w)
{
    return (const float *)(const void *)((const uint8_t *)w + w->units_offset);
}

static inline uint32_t weight_n_panels(const struct weight_cpu *w)
{
    return (w->base.n_rows + PANEL_ROWS - 1) / PANEL_ROWS;
}

/* Returns the first byte of a panel. */
static inline const uint8_t *weight_panel(const struct weight_cpu *w, uint32_t i_panel)
{
    return weight_data(w) + w->panel_bytes * i_panel;
}

/* Returns the bytes of a column of a dense panel. For PACK_BF16, which stores pairs of columns,
 * these are half the bytes of a pair. */
static inline size_t dense_column_bytes(const struct weight_cpu *w)
{
    return w->format == PACK_F32 ? PANEL_ROWS * 4 : PANEL_ROWS * 2;
}

/* Returns the block scales of a PACK_INT8 panel. */
static inline const int16_t *panel_scales(const struct weight_cpu *w, const uint8_t *panel)
{
    return (const int16_t *)(const void *)(panel + (size_t)(w->k_pad / RUN_K) * INT8_RUN_BYTES);
}

static inline uint32_t int4_run_bytes(const struct weight_cpu *w)
{
    return w->format == PACK_INT4 ? INT4_RUN_BYTES : INT4_PLAIN_RUN_BYTES;
}

/* Returns the integer W of an integer weight at a local row and column. */
int weight_at(const struct weight_cpu *w, uint32_t row, uint32_t k);

/* Expands columns [begin, begin + n) of a raw row; block formats may be cut at multiples of 32.
 * Returns false if a value is not finite. */
bool weight_expand_columns(const struct weight_cpu *w, const uint8_t *raw, uint32_t begin,
                           uint32_t n, float *dst);

/* Slots of the op tables. The _f32 pair expands quantized linears to dense f32. */
size_t weight_bytes_cpu(const struct weight_desc *desc, struct error *err);
int weight_init_cpu(const struct weight_desc *desc, void *memory, struct error *err);
size_t weight_bytes_f32(const struct weight_desc *desc, struct error *err);
int weight_init_f32(const struct weight_desc *desc, void *memory, struct error *err);
int weight_pack_rows_cpu(struct weight *weight, uint32_t row_begin, uint32_t n_rows,
                         const void *raw, struct error *err);
