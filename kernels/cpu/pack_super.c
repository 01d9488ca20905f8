#include <math.h>
#include <string.h>

#include "kernels/cpu/pack_int.h"
#include "kernels/cpu/super_form.h"
#include "kernels/cpu/weight_cpu.h"
#include "kernels/dequant.h"

/* Packs bits [from, from + 2) of the codes of four groups, q[16], into one dword. The bits of group
 * t lie two bits above those of group t − 1. */
static uint32_t two_bits(const uint8_t *q, unsigned from)
{
    uint32_t x = 0;
    for (unsigned t = 0; t < 4; t++)
        x |= (pack_load32(q + 4 * t) >> from & 0x03030303u) << 2 * t;
    return x;
}

/* Writes one row's codes of a run into the run's planes. `run` points to the row's dword in the
 * first 64-byte line; further lines follow every 64 bytes. The inverse is code_at(). */
static void write_codes(uint8_t *run, unsigned bits, const uint8_t q[RUN_K])
{
    uint8_t *high = run + (bits <= 3 ? 128 : 256);
    if (bits <= 3) {
        pack_store32(run, two_bits(q, 0));
        pack_store32(run + 64, two_bits(q + 16, 0));
    } else {
        for (unsigned j = 0; j < 4; j++)
            pack_store32(run + j * 64, (pack_load32(q + 4 * j) & 0x0F0F0F0Fu) |
                                           (pack_load32(q + 16 + 4 * j) & 0x0F0F0F0Fu) << 4);
    }
    if (bits == 6) {
        pack_store32(high, two_bits(q, 4));
        pack_store32(high + 64, two_bits(q + 16, 4));
    } else if (bits % 2 == 1) {
        uint32_t x = 0;
        for (unsigned g = 0; g < RUN_K / 4; g++)
            x |= (pack_load32(q + 4 * g) >> (bits - 1) & 0x01010101u) << g;
        pack_store32(high, x);
    }
}

static unsigned code_at(const uint8_t *run, unsigned bits, unsigned i)
{
    unsigned g = i / 4, b = i % 4;
    const uint8_t *low = run + b, *high = run + (bits <= 3 ? 128 : 256) + b;
    unsigned q = bits <= 3 ? low[g / 4 * 64] >> g % 4 * 2 & 3u : low[g % 4 * 64] >> g / 4 * 4 & 15u;
    if (bits == 6)
        q |= (high[g / 4 * 64] >> g % 4 * 2 & 3u) << 4;
    else if (bits % 2 == 1)
        q |= (*high >> g & 1u) << (bits - 1);
    return q;
}

bool pack_super_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw)
{
    enum dtype source = (enum dtype)w->base.source;
    struct super_form f = super_forms[source];
    struct super_layout l = super_layout(f, w->super_runs);
    struct dequant_run run;
    float max = 0.0f;
    for (uint32_t i = 0; i < w->base.k_total / RUN_K; i += f.runs) {
        dequant_run_exact(source, raw, i, &run);
        if (!isfinite(f.table == SUPER_FP4 ? run.d * 12.0f : run.d) || !isfinite(run.m))
            return false;
        max = fmaxf(max, fmaxf(fabsf(run.d), fabsf(run.m)));
    }
    float unit = max / (float)super_scale_max(f);
    if (unit == 0.0f)
        unit = 1.0f;
    memcpy((uint8_t *)w + w->units_offset + (size_t)row * sizeof(unit), &unit, sizeof(unit));
    uint32_t lane = row % PANEL_ROWS;
    uint8_t *super = (uint8_t *)w + w->data_offset + w->panel_bytes * (row / PANEL_ROWS);
    for (uint32_t i = 0; i < w->k_pad / RUN_K; i++) {
        uint32_t r = i % w->super_runs;
        if (i > 0 && r == 0)
            super += l.bytes;
        dequant_run_exact(source, raw, w->base.k_begin / RUN_K + i, &run);
        int16_t isd = (int16_t)lrintf(run.d / unit), ism = (int16_t)lrintf(run.m / unit);
        memcpy(super + (size_t)lane * 2, &isd, sizeof(isd));
        if (f.offsets)
            memcpy(super + 32 + (size_t)lane * 2, &ism, sizeof(ism));
        for (uint32_t h = 0; h < f.subs; h++) {
            uint32_t sub = r * f.subs + h;
            super[l.scales + 16 * sub + lane] = (uint8_t)run.scales[h];
            if (f.offsets)
                super[l.mins + sub / 4 * 64 + lane * 4 + super_min_byte(sub)] = run.mins[h];
        }
        write_codes(super + l.codes + r * l.run_bytes + (size_t)lane * 4, f.bits, run.q);
    }
    return true;
}

int pack_super_weight_at(const struct weight_cpu *w, uint32_t row, uint32_t k)
{
    struct super_form f = super_forms[w->base.source];
    struct super_layout l = super_layout(f, w->super_runs);
    uint32_t lane = row % PANEL_ROWS, r = k / RUN_K % w->super_runs;
    const uint8_t *super =
        weight_panel(w, row / PANEL_ROWS) + (size_t)(k / RUN_K / w->super_runs) * l.bytes;
    int16_t isd, ism = 0;
    memcpy(&isd, super + (size_t)lane * 2, sizeof(isd));
    if (f.offsets)
        memcpy(&ism, super + 32 + (size_t)lane * 2, sizeof(ism));
    int scale = 1, min = 1;
    if (f.subs > 0) {
        uint32_t sub = r * f.subs + (f.subs == 2 ? k % RUN_K / 16 : 0);
        scale = (super[l.scales + 16 * sub + lane] ^ 128) - 128; /* signed */
        if (f.offsets)
            min = super[l.mins + sub / 4 * 64 + lane * 4 + super_min_byte(sub)];
    }
    const uint8_t *run = super + l.codes + r * l.run_bytes + (size_t)lane * 4;
    int q = (int)code_at(run, f.bits, k % RUN_K);
    const int8_t *table = dequant_table((enum dtype)w->base.source);
    return isd * scale * (table != NULL ? table[q] : q - f.zero) + ism * min;
}
