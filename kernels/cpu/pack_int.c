#include "kernels/cpu/pack_int.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/weight_cpu.h"
#include "kernels/dequant.h"

enum { MAX_BLOCK = 256 };

/* The largest |value| of a row in units; ranges of isw, ioff and q follow (weight_cpu.h). */
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
        dequant_run_4bit(source, raw, run, &d, &m, q);
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
    uint8_t *codes = panel_of(w, row) + row % PANEL_ROWS * 4;
    for (uint32_t i = 0; i < w->k_pad / RUN_K; i++, codes += INT4_RUN_BYTES) {
        dequant_run_4bit(source, raw, w->base.k_begin / RUN_K + i, &d, &m, q);
        int16_t pair[2] = {(int16_t)lrintf(d / unit), (int16_t)lrintf((m + 8.0f * d) / unit)};
        for (uint32_t j = 0; j < 16; j++)
            codes[j / 4 * 64 + j % 4] = (uint8_t)(q[j] | q[j + 16] << 4);
        memcpy(codes + 256, pair, sizeof(pair));
    }
    return true;
}

/* Run number i_run of a raw row as int8 codes and their scale: as stored where the format is that,
 * else requantized. False where a value is not finite. */
static bool run_int8(enum dtype source, const uint8_t *raw, uint32_t i_run, int8_t q[RUN_K],
                     float *out_d)
{
    uint32_t elems = dtype_block_elems(source), per_block = elems / RUN_K;
    const uint8_t *block = raw + (size_t)(i_run / per_block) * dtype_block_bytes(source);
    if (source == DTYPE_Q8_0 || source == DTYPE_Q5_0) {
        *out_d = f16_to_f32((uint16_t)(block[0] | block[1] << 8));
        for (uint32_t i = 0; i < RUN_K; i++) {
            unsigned low = i < 16 ? block[6 + i] & 15u : block[6 + i - 16] >> 4,
                     high = block[2 + i / 8] >> i % 8 & 1u;
            q[i] =
                source == DTYPE_Q8_0 ? (int8_t)block[2 + i] : (int8_t)((int)(low | high << 4) - 16);
        }
        return isfinite(*out_d);
    }
    float values[MAX_BLOCK], max = 0.0f;
    const float *x = values + i_run % per_block * RUN_K;
    dequant_block(source, block, values);
    bool finite = true;
    for (uint32_t i = 0; i < RUN_K; i++) {
        finite &= isfinite(x[i]) != 0;
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    }
    if (!finite)
        return false;
    float d = max / 127.0f;
    for (uint32_t i = 0; i < RUN_K; i++)
        q[i] = d > 0.0f ? (int8_t)lrintf(x[i] / d) : 0;
    *out_d = d;
    return true;
}

bool pack_int8_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw)
{
    enum dtype source = (enum dtype)w->base.source;
    int8_t q[RUN_K];
    float d, max = 0.0f;
    for (uint32_t run = 0; run < w->base.k_total / RUN_K; run++) {
        if (!run_int8(source, raw, run, q, &d))
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
        run_int8(source, raw, w->base.k_begin / RUN_K + i, q, &d);
        int16_t isw = (int16_t)lrintf(d / unit);
        for (uint32_t j = 0; j < RUN_K; j++)
            codes[j / 4 * 64 + j % 4] = (uint8_t)(q[j] + 128);
        memcpy(scales, &isw, sizeof(isw));
    }
    return true;
}
