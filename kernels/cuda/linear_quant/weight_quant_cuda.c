/* The CPU's functions pack rows into a CPU weight of the slice's rows. Its integers are then
 * rearranged for the GPU's kernels. So only the CPU's code defines W. */
#include "kernels/cuda/linear_quant/weight_quant_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cpu/super_form.h"
#include "kernels/cpu/weight_cpu.h"
#include "kernels/ops.h"

enum { SLICE_ALIGN = 64 };

bool weight_desc_is_quant(const struct weight_desc *desc)
{
    return dtype_is_quantized(desc->source) &&
           (desc->role == WEIGHT_LINEAR_COLUMN || desc->role == WEIGHT_LINEAR_ROW);
}

bool weight_is_quant(const struct weight *w)
{
    return w->act_kind == ACT_INT8;
}

static uint32_t form_of(enum dtype source)
{
    switch (source) {
    case DTYPE_Q4_0:
        return QUANT_INT4_PLAIN;
    case DTYPE_Q8_0:
        return QUANT_INT8;
    case DTYPE_Q5_0:
        return QUANT_Q5_0;
    case DTYPE_Q5_1:
        return QUANT_Q5_1;
    case DTYPE_Q5_K:
        return QUANT_Q5_K;
    case DTYPE_Q2_K:
        return QUANT_Q2_K;
    case DTYPE_Q3_K:
        return QUANT_Q3_K;
    case DTYPE_Q6_K:
        return QUANT_Q6_K;
    case DTYPE_IQ4_NL:
        return QUANT_IQ4_NL;
    case DTYPE_IQ4_XS:
        return QUANT_IQ4_XS;
    case DTYPE_MXFP4:
        return QUANT_MXFP4;
    default: /* Q4_1, Q4_K */
        return QUANT_INT4;
    }
}

/* Makes a CPU weight of n_rows rows. *out_cpu is owned (free). */
static int cpu_weight(const struct weight_desc *desc, uint32_t n_rows, struct weight_cpu **out_cpu,
                      struct error *err)
{
    struct weight_desc slice = *desc;
    slice.n_rows = n_rows;
    size_t n_bytes = weight_bytes_cpu(&slice, err);
    if (n_bytes == 0)
        return err->status;
    void *memory = NULL;
    if (posix_memalign(&memory, SLICE_ALIGN, n_bytes) != 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "weight: %zu bytes needed to pack",
                         n_bytes);
    memset(memory, 0, n_bytes);
    int rc = weight_init_cpu(&slice, memory, err);
    if (rc != 0) {
        free(memory);
        memory = NULL;
    }
    *out_cpu = memory;
    return rc;
}

/* Fills the header, including all sizes. */
static int lay_out(const struct weight_desc *desc, struct weight_quant *w, struct error *err)
{
    struct weight_cpu *cpu = NULL;
    int rc = cpu_weight(desc, 1, &cpu, err);
    if (rc != 0 || cpu == NULL)
        return rc != 0 ? rc : STATUS_INTERNAL;
    uint32_t form = form_of(desc->source);
    *w = (struct weight_quant){.base = cpu->base};
    w->base.n_rows = desc->n_rows;
    w->layout = quant_layout_of(form, w->base.k_local,
                                quant_is_super(form) && cpu->super_runs > 0 ? cpu->super_runs : 1);
    free(cpu);
    w->n_parts = 1;
    w->part_bounds[1] = w->base.k_local;
    if (desc->role == WEIGHT_LINEAR_ROW) {
        const struct segments *seg = &desc->k_segments;
        w->n_parts = seg->count;
        for (uint32_t s = 0; s <= seg->count; s++)
            w->part_bounds[s] = seg->bounds[seg->first + s] - segments_begin(seg);
    }
    uint64_t n_panels = ((uint64_t)desc->n_rows + QUANT_ROWS - 1) / QUANT_ROWS;
    w->units_at = w->layout.panel_bytes * n_panels;
    w->n_bytes = w->units_at + n_panels * QUANT_ROWS * sizeof(float);
    if (w->layout.panel_bytes > UINT32_MAX || w->n_bytes > SIZE_MAX / 2)
        return error_set(err, STATUS_INVALID_ARGUMENT, "weight: %u x %u elements are too many",
                         desc->n_rows, desc->k_total);
    return 0;
}

size_t weight_device_bytes_quant(const struct weight_desc *desc, struct error *err)
{
    struct weight_quant w;
    return lay_out(desc, &w, err) == 0 ? cuda_round_up((size_t)w.n_bytes, 256) : 0;
}

static size_t n_panels_of(uint32_t n_rows)
{
    return ((size_t)n_rows + QUANT_ROWS - 1) / QUANT_ROWS;
}

size_t weight_slice_bytes_quant(const struct weight_desc *desc, uint32_t n_rows)
{
    struct weight_quant w;
    struct error ignored;
    if (lay_out(desc, &w, &ignored) != 0)
        return 0;
    return n_panels_of(n_rows) * (w.layout.panel_bytes + QUANT_ROWS * sizeof(float));
}

/* The integers of one run of a row of a CPU weight. */
struct run {
    uint8_t q[RUN_K];
    int16_t scale, offset; /* scale: of the run, or isd; offset: ioff, or ism */
    uint8_t scales[2], mins[2];
};

/* Returns a dword's codes for column group g, `bits` wide, from the plane at `lines`
 * (super_form.h). */
static uint32_t plane_bits(const uint8_t *lines, uint32_t g, uint32_t bits)
{
    uint32_t x,
        line = bits == 4   ? g % 4
               : bits == 2 ? g / 4
                           : 0,
        shift = bits == 4   ? g / 4 * 4
                : bits == 2 ? g % 4 * 2
                            : g;
    memcpy(&x, lines + (size_t)line * 64, sizeof(x));
    return x >> shift & ((1u << bits) - 1) * 0x01010101u;
}

static void read_codes(const uint8_t *lane, uint32_t bits, uint8_t q[RUN_K])
{
    for (uint32_t g = 0; g < RUN_K / 4; g++) {
        uint32_t x;
        if (bits == 8)
            memcpy(&x, lane + (size_t)g * 64, sizeof(x));
        else if (bits >= 4)
            x = plane_bits(lane, g, 4);
        else
            x = plane_bits(lane, g, 2);
        if (bits == 6)
            x |= plane_bits(lane + 256, g, 2) << 4;
        else if (bits % 2 == 1)
            x |= plane_bits(lane + (bits == 5 ? 256 : 128), g, 1) << (bits - 1);
        memcpy(q + (size_t)g * 4, &x, sizeof(x));
    }
}

static void read_super(const struct weight_cpu *w, const uint8_t *panel, uint32_t lane, uint32_t i,
                       struct run *out)
{
    struct super_form f = super_forms[w->base.source];
    struct super_layout l = super_layout(f, w->super_runs);
    const uint8_t *super = panel + (size_t)(i / w->super_runs) * l.bytes;
    uint32_t r = i % w->super_runs;
    memcpy(&out->scale, super + (size_t)lane * 2, sizeof(out->scale));
    if (f.offsets)
        memcpy(&out->offset, super + 32 + (size_t)lane * 2, sizeof(out->offset));
    for (uint32_t h = 0; h < f.subs; h++) {
        uint32_t sub = r * f.subs + h;
        out->scales[h] = super[l.scales + 16 * sub + lane];
        if (f.offsets)
            out->mins[h] = super[l.mins + sub / 4 * 64 + lane * 4 + super_min_byte(sub)];
    }
    read_codes(super + l.codes + (size_t)r * l.run_bytes + (size_t)lane * 4, f.bits, out->q);
}

static void read_run(const struct weight_cpu *w, uint32_t row, uint32_t i, struct run *out)
{
    const uint8_t *panel = weight_panel(w, row / PANEL_ROWS);
    uint32_t lane = row % PANEL_ROWS;
    *out = (struct run){0};
    if (w->format == PACK_SUPER) {
        read_super(w, panel, lane, i, out);
    } else if (w->format == PACK_INT8) {
        read_codes(panel + (size_t)i * INT8_RUN_BYTES + (size_t)lane * 4, 8, out->q);
        for (uint32_t k = 0; k < RUN_K; k++)
            out->q[k] ^= 128; /* codes are signed here */
        out->scale = panel_scales(w, panel)[i * PANEL_ROWS + lane];
    } else {
        bool plain = w->format == PACK_INT4_PLAIN;
        const uint8_t *codes = panel + (size_t)i * int4_run_bytes(w);
        read_codes(codes + (size_t)lane * 4, 4, out->q);
        memcpy(&out->scale, codes + 256 + (size_t)lane * (plain ? 2 : 4), sizeof(out->scale));
        if (plain)
            return;
        memcpy(&out->offset, codes + 256 + (size_t)lane * 4 + 2, sizeof(out->offset));
        out->offset = (int16_t)(out->offset - 8 * out->scale);
    }
}

static void or_word(uint8_t *at, uint32_t bits)
{
    uint32_t x;
    memcpy(&x, at, sizeof(x));
    x |= bits;
    memcpy(at, &x, sizeof(x));
}

/* Four columns are the four bytes of a word. */
static void put_codes(uint32_t form, uint8_t *pair, uint32_t row, uint32_t i, const struct run *run)
{
    uint32_t bits = quant_bits(form), low = bits == 8 ? 8 : bits >= 4 ? 4 : 2;
    const uint32_t each = 0x01010101u;
    for (uint32_t k = 0; k < RUN_K; k += 4) {
        uint32_t q;
        memcpy(&q, run->q + k, sizeof(q));
        struct quant_place p = quant_code_place(form, i % 2, row, k);
        or_word(pair + p.byte, (q & each * ((1u << low) - 1)) << p.shift);
        if (quant_high_bytes(form) == 0)
            continue;
        p = quant_high_place(form, i % 2, row, k);
        or_word(pair + p.byte, (q >> low & each * ((1u << (bits - low)) - 1)) << p.shift);
    }
}

static void put_run(const struct quant_layout *l, uint8_t *panel, uint32_t row, uint32_t i,
                    const struct run *run)
{
    uint32_t form = l->form;
    uint8_t *pair = panel + (size_t)(i / 2) * quant_pair_bytes(form);
    if (!quant_has_table(form))
        put_codes(form, pair, row, i, run);
    for (uint32_t k = 0; quant_has_table(form) && k < RUN_K; k++) {
        struct quant_place p = quant_code_place(form, i % 2, row, k);
        pair[p.byte] |= (uint8_t)(run->q[k] << p.shift);
    }
    uint8_t *scales = pair + quant_scales_at(form);
    if (quant_is_super(form)) {
        uint8_t *super = panel + quant_super_place(l, i, row);
        memcpy(super, &run->scale, sizeof(run->scale));
        if (quant_has_mins(form))
            memcpy(super + 32, &run->offset, sizeof(run->offset));
        for (uint32_t sub = 0; sub < quant_subs(form); sub++) {
            uint32_t at = quant_scale_place(form, i % 2, row, sub);
            scales[at] = run->scales[sub];
            if (quant_has_mins(form))
                pair[quant_mins_at(form) + at] = run->mins[sub];
        }
        return;
    }
    memcpy(scales + quant_scale_place(form, i % 2, row, 0), &run->scale, sizeof(run->scale));
    if (quant_has_offsets(form)) {
        uint8_t *offset = panel + quant_offset_place(l, i, row);
        offset[0] = (uint8_t)((uint16_t)run->offset >> 8);
        offset[8] = (uint8_t)((uint16_t)run->offset & 0xFF);
    }
}

int weight_pack_slice_quant(const struct weight_desc *desc, uint32_t row_begin, uint32_t n_rows,
                            const void *raw, void *slice,
                            struct weight_copy copies[WEIGHT_MAX_COPIES], uint32_t *out_n_copies,
                            struct error *err)
{
    struct weight_quant w;
    struct weight_cpu *cpu = NULL;
    int rc = lay_out(desc, &w, err);
    if (rc == 0)
        rc = cpu_weight(desc, n_rows, &cpu, err);
    size_t raw_bytes = dtype_row_bytes(desc->source, desc->k_total);
    for (uint32_t r = 0; rc == 0 && r < n_rows; r++) {
        rc = weight_pack_rows_cpu(&cpu->base, r, 1, (const uint8_t *)raw + r * raw_bytes, err);
        if (rc == STATUS_FAILED_PRECONDITION)
            error_set(err, rc, "weight: row %u (%s) holds a value that is not finite",
                      row_begin + r, dtype_name(desc->source));
    }
    if (rc != 0 || cpu == NULL) {
        free(cpu);
        return rc != 0 ? rc : STATUS_INTERNAL;
    }
    size_t panels = n_panels_of(n_rows), panel_bytes = w.layout.panel_bytes;
    size_t units_bytes = panels * QUANT_ROWS * sizeof(float);
    memset(slice, 0, panels * panel_bytes);
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t i = 0; i < w.layout.n_runs; i++) {
            struct run run;
            read_run(cpu, row, i, &run);
            put_run(&w.layout, (uint8_t *)slice + row / QUANT_ROWS * panel_bytes, row % QUANT_ROWS,
                    i, &run);
        }
    memcpy((uint8_t *)slice + panels * panel_bytes, weight_units(cpu), units_bytes);
    copies[0] = (struct weight_copy){0, row_begin / QUANT_ROWS * panel_bytes, panels * panel_bytes};
    copies[1] = (struct weight_copy){panels * panel_bytes, w.units_at + row_begin * sizeof(float),
                                     units_bytes};
    *out_n_copies = 2;
    free(cpu);
    return 0;
}

int weight_bind_quant(const struct weight_desc *desc, void *data, struct weight **out_weight,
                      struct error *err)
{
    struct weight_quant *w = malloc(sizeof(*w));
    if (w == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a weight's header");
    int rc = lay_out(desc, w, err);
    if (rc != 0) {
        free(w);
        return rc;
    }
    w->data = data;
    *out_weight = &w->base;
    return 0;
}
