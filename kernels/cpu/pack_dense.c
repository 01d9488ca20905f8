#include <string.h>

#include "base/error.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/weight_cpu.h"

/* CHUNK is the number of columns packed at a time: that part of a panel stays in L1. */
enum { CHUNK = 256, BF16_MAGNITUDE = 0x7FFF, BF16_INF = 0x7F80, BF16_TINY = (127 - 55) << 7 };

/* Copies n local columns from `from` on of a raw row of 16-bit elements. Bf16 values too near to 0
 * become 0; the rest up to CHUNK is zero. Returns false if a value is not finite. */
static bool copy_halves(const struct weight_cpu *w, const uint8_t *raw, uint32_t from, uint32_t n,
                        uint16_t dst[CHUNK])
{
    bool is_bf16 = w->format == PACK_BF16;
    uint16_t inf = is_bf16 ? BF16_INF : 0x7C00, tiny = is_bf16 ? BF16_TINY : 0;
    uint32_t bad = 0;
    memcpy(dst, raw + ((size_t)w->base.k_begin + from) * 2, (size_t)n * 2);
    memset(dst + n, 0, (size_t)(CHUNK - n) * 2);
    for (uint32_t i = 0; i < CHUNK; i++) {
        uint16_t magnitude = dst[i] & BF16_MAGNITUDE;
        bad |= magnitude >= inf;
        dst[i] = magnitude < tiny ? 0 : dst[i];
    }
    return !bad;
}

/* Packs one chunk of one row; `column` is the place of the chunk's first column in the panel. */
static bool pack_chunk(const struct weight_cpu *w, const uint8_t *raw, uint32_t lane, uint32_t from,
                       uint32_t n, uint8_t *column)
{
    if (w->format == PACK_F32) {
        float values[CHUNK], *dst = (float *)(void *)column + lane;
        if (!weight_expand_columns(w, raw, w->base.k_begin + from, n, values))
            return false;
        for (uint32_t i = 0; i < n; i++)
            dst[(size_t)i * PANEL_ROWS] = values[i];
        return true;
    }
    uint16_t halves[CHUNK], *dst = (uint16_t *)(void *)column;
    bool finite = copy_halves(w, raw, from, n, halves);
    if (w->format == PACK_F16)
        for (uint32_t i = 0; i < n; i++)
            dst[(size_t)i * PANEL_ROWS + lane] = halves[i];
    else
        for (uint32_t i = 0; i < (n + 1) / 2; i++)
            memcpy(dst + ((size_t)i * PANEL_ROWS + lane) * 2, halves + (size_t)i * 2, 4);
    return finite;
}

int dense_pack_rows(struct weight_cpu *w, uint32_t row_begin, uint32_t n_rows, const uint8_t *raw,
                    struct error *err)
{
    size_t raw_bytes = dtype_row_bytes((enum dtype)w->base.source, w->base.k_total);
    uint32_t k_local = w->base.k_local;
    for (uint32_t first = 0; first < n_rows; first += PANEL_ROWS)
        for (uint32_t from = 0; from < k_local; from += CHUNK) {
            uint32_t n = k_local - from < CHUNK ? k_local - from : CHUNK;
            uint8_t *column = (uint8_t *)w + w->data_offset +
                              w->panel_bytes * ((row_begin + first) / PANEL_ROWS) +
                              dense_column_bytes(w) * from;
            for (uint32_t i = 0; i < PANEL_ROWS && first + i < n_rows; i++)
                if (!pack_chunk(w, raw + (first + i) * raw_bytes, i, from, n, column))
                    return error_set(err, STATUS_FAILED_PRECONDITION,
                                     "weight: row %u (%s) holds a value that is not finite",
                                     row_begin + first + i, dtype_name((enum dtype)w->base.source));
        }
    return 0;
}

void dense_row(const struct weight_cpu *w, uint32_t row, float *y)
{
    const uint8_t *panel = weight_panel(w, row / PANEL_ROWS);
    uint32_t lane = row % PANEL_ROWS;
    const float *floats = (const float *)(const void *)panel + lane;
    const uint16_t *halves = (const uint16_t *)(const void *)panel;
    for (uint32_t k = 0; k < w->base.k_local; k++)
        if (w->format == PACK_F32)
            y[k] = floats[(size_t)k * PANEL_ROWS];
        else if (w->format == PACK_F16)
            y[k] = dtype_f16_to_f32(halves[(size_t)k * PANEL_ROWS + lane]);
        else
            y[k] = dtype_bf16_to_f32(halves[((size_t)(k / 2) * PANEL_ROWS + lane) * 2 + k % 2]);
}

void dense_flush(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = dense_flushed(x[i]);
}
