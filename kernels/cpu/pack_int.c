#include "kernels/cpu/pack_int.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/weight_cpu.h"
#include "kernels/dequant.h"

/* The largest |value| of a row in units, per format. The ranges of isw, ioff and q follow from it
 * (weight_cpu.h). */
static const float INT4_MAX = 2032.0f, INT8_SCALE_MAX = 255.0f;

static void set_unit(struct weight_cpu *w, uint32_t row, float unit)
{
    memcpy((uint8_t *)w + w->units_offset + (size_t)row * sizeof(unit), &unit, sizeof(unit));
}

static uint8_t *panel_of(struct weight_cpu *w, uint32_t row)
{
    return (uint8_t *)w + w->data_offset + w->panel_bytes * (row / PANEL_ROWS);
}

bool pack_int4_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw)
{
    enum dtype source = (enum dtype)w->base.source;
    float d, m, max = 0.0f;
    uint8_t q[RUN_K];
    for (uint32_t run = 0; run < w->base.k_total / RUN_K; run++) {
        dequant_scales_4bit(source, raw, run, &d, &m);
        float low = fabsf(m), high = fabsf(m + 15.0f * d);
        if (!isfinite(low) || !isfinite(high))
            return false;
        max = low > max ? low : max;
        max = high > max ? high : max;
    }
    float unit = max / INT4_MAX;
    if (unit == 0.0f)
        unit = 1.0f;
    set_unit(w, row, unit);
    bool plain = w->format == PACK_INT4_PLAIN;
    uint32_t lane = row % PANEL_ROWS, run_bytes = int4_run_bytes(w);
    uint8_t *codes = panel_of(w, row) + (size_t)lane * 4;
    for (uint32_t i = 0; i < w->k_pad / RUN_K; i++, codes += run_bytes) {
        dequant_run_4bit(source, raw, w->base.k_begin / RUN_K + i, &d, &m, q);
        int16_t pair[2] = {(int16_t)lrintf(d / unit), (int16_t)lrintf((m + 8.0f * d) / unit)};
        for (uint32_t j = 0; j < 4; j++)
            pack_store32(codes + j * 64, pack_load32(q + 4 * j) | pack_load32(q + 16 + 4 * j) << 4);
        memcpy(codes + 256 - (plain ? lane * 2 : 0), pair, plain ? sizeof(pair[0]) : sizeof(pair));
    }
    return true;
}

static float scale_of(const uint8_t *block)
{
    return dtype_f16_to_f32((uint16_t)(block[0] | block[1] << 8));
}

bool pack_int8_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw)
{
    const uint32_t block_bytes = dtype_block_bytes(DTYPE_Q8_0);
    float max = 0.0f;
    for (uint32_t run = 0; run < w->base.k_total / RUN_K; run++) {
        float d = scale_of(raw + (size_t)run * block_bytes);
        if (!isfinite(d))
            return false;
        max = fabsf(d) > max ? fabsf(d) : max;
    }
    float unit = max / INT8_SCALE_MAX;
    if (unit == 0.0f)
        unit = 1.0f;
    set_unit(w, row, unit);
    uint8_t *panel = panel_of(w, row), *codes = panel + row % PANEL_ROWS * 4;
    uint32_t n_runs = w->k_pad / RUN_K;
    uint8_t *scales = panel + (size_t)n_runs * INT8_RUN_BYTES + row % PANEL_ROWS * 2;
    for (uint32_t i = 0; i < n_runs; i++, codes += INT8_RUN_BYTES, scales += INT8_SCALE_BYTES) {
        const uint8_t *block = raw + (size_t)(w->base.k_begin / RUN_K + i) * block_bytes;
        int16_t isw = (int16_t)lrintf(scale_of(block) / unit);
        for (uint32_t j = 0; j < RUN_K / 4; j++) /* x ^ 128 = x + 128 for each byte */
            pack_store32(codes + j * 64, pack_load32(block + 2 + 4 * j) ^ 0x80808080u);
        memcpy(scales, &isw, sizeof(isw));
    }
    return true;
}
