#include "kernels/cpu/weight_cpu.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/pack_int.h"
#include "kernels/cpu/super_form.h"
#include "kernels/dequant.h"
#include "kernels/ops.h"

enum { ALIGN = 64, CHUNK = 256 };

static uint64_t round_up(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static enum pack_format format_of(const struct weight_desc *desc, bool expand)
{
    switch (desc->role) {
    case WEIGHT_EMBEDDING:
        return PACK_RAW;
    case WEIGHT_VECTOR:
        return PACK_VECTOR;
    default:
        break;
    }
    if (desc->source == DTYPE_F16)
        return PACK_F16;
    if (desc->source == DTYPE_BF16)
        return PACK_BF16;
    if (desc->source == DTYPE_F32 || expand)
        return PACK_F32;
    switch (desc->source) {
    case DTYPE_Q4_0:
        return PACK_INT4_PLAIN;
    case DTYPE_Q4_1:
    case DTYPE_Q4_K:
        return PACK_INT4;
    case DTYPE_Q8_0:
        return PACK_INT8;
    default:
        return PACK_SUPER;
    }
}

/* Sets the segments of a dense weight: those of its split, or its own 8. */
static int lay_out_parts(struct weight_cpu *w, const struct weight_desc *desc, struct error *err)
{
    struct segments own = {0};
    const struct segments *seg = &desc->k_segments;
    if (desc->role != WEIGHT_LINEAR_ROW) {
        int rc = segments_init(&own, w->base.k_local, 1, 1, 0, err);
        if (rc != 0)
            return rc;
        seg = &own;
    }
    w->n_parts = seg->count;
    for (uint32_t s = 0; s <= seg->count; s++)
        w->part_bounds[s] = seg->bounds[seg->first + s] - segments_begin(seg);
    return 0;
}

static int lay_out_integer(struct weight_cpu *w, struct error *err)
{
    bool is_int4 = w->format == PACK_INT4 || w->format == PACK_INT4_PLAIN;
    uint32_t limit = is_int4 ? INT4_MAX_K : w->format == PACK_SUPER ? SUPER_MAX_K : INT8_MAX_K;
    /* A row's scale belongs to all its columns, so the bound counts all columns even for a part of
     * them. */
    if (w->base.k_total > limit)
        return error_set(err, STATUS_INVALID_ARGUMENT, "weight: %u columns of %s, limit %u",
                         w->base.k_total, dtype_name((enum dtype)w->base.source), limit);
    w->base.act_kind = ACT_INT8;
    w->base.n_partial_planes = is_int4 ? 1 : 2;
    w->k_pad = (uint32_t)round_up(w->base.k_local, RUN_K);
    uint64_t n_runs = w->k_pad / RUN_K;
    if (is_int4) {
        w->panel_bytes = n_runs * int4_run_bytes(w);
    } else if (w->format == PACK_INT8) {
        w->panel_bytes = round_up(n_runs * (INT8_RUN_BYTES + INT8_SCALE_BYTES), ALIGN);
    } else {
        struct super_form f = super_forms[w->base.source];
        for (w->super_runs = f.runs; w->base.k_begin / RUN_K % w->super_runs != 0;)
            w->super_runs /= 2;
        w->panel_bytes =
            (n_runs + w->super_runs - 1) / w->super_runs * super_layout(f, w->super_runs).bytes;
    }
    return 0;
}

/* Fills the header, including all offsets and sizes. */
static int lay_out(const struct weight_desc *desc, bool expand, struct weight_cpu *w,
                   struct error *err)
{
    if (desc->source == DTYPE_I8 || desc->source == DTYPE_I32 || desc->source == DTYPE_U32)
        return error_set(err, STATUS_UNIMPLEMENTED, "weight: type %s is not supported on the CPU",
                         dtype_name(desc->source));
    bool is_row = desc->role == WEIGHT_LINEAR_ROW;
    if (desc->store != WEIGHT_STORE_SOURCE && (is_row || desc->role == WEIGHT_LINEAR_COLUMN) &&
        (desc->source == DTYPE_F32 || desc->source == DTYPE_F16 || desc->source == DTYPE_BF16))
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "weight: %s is kept in its own type on the CPU, not as int8 or f8",
                         dtype_name(desc->source));
    enum pack_format format = format_of(desc, expand);
    *w = (struct weight_cpu){
        .base = {.magic = WEIGHT_MAGIC,
                 .role = desc->role,
                 .source = desc->source,
                 .n_rows = desc->n_rows,
                 .k_total = desc->k_total,
                 .k_begin = is_row ? segments_begin(&desc->k_segments) : 0,
                 .k_local = is_row ? segments_len(&desc->k_segments) : desc->k_total},
        .format = format,
        .data_offset = round_up(sizeof(*w), ALIGN),
    };
    uint64_t data_bytes = 0;
    if (format == PACK_RAW) {
        w->row_bytes = dtype_row_bytes(desc->source, desc->k_total);
        data_bytes = w->row_bytes * desc->n_rows;
    } else if (format == PACK_VECTOR) {
        w->base.vector_offset = (int64_t)w->data_offset;
        data_bytes = (uint64_t)desc->k_total * sizeof(float);
    } else if (format == PACK_INT8 || format == PACK_INT4 || format == PACK_INT4_PLAIN ||
               format == PACK_SUPER) {
        int rc = lay_out_integer(w, err);
        if (rc != 0)
            return rc;
        data_bytes = w->panel_bytes * weight_n_panels(w);
    } else {
        bool round = format == PACK_BF16 && !expand;
        w->base.act_kind = round ? ACT_BF16 : ACT_F32;
        w->base.n_partial_planes = 1;
        w->k_pad =
            format == PACK_BF16 ? (uint32_t)round_up(w->base.k_local, RUN_K) : w->base.k_local;
        w->panel_bytes = dense_column_bytes(w) * w->k_pad;
        data_bytes = w->panel_bytes * weight_n_panels(w);
        int rc = lay_out_parts(w, desc, err);
        if (rc != 0)
            return rc;
    }
    w->units_offset = w->data_offset + round_up(data_bytes, ALIGN);
    uint64_t units_bytes =
        w->base.act_kind == ACT_INT8 ? (uint64_t)weight_n_panels(w) * PANEL_ROWS * 4 : 0;
    w->total_bytes = w->units_offset + round_up(units_bytes, ALIGN);
    return 0;
}

static size_t bytes_of(const struct weight_desc *desc, bool expand, struct error *err)
{
    struct weight_cpu w = {0};
    return lay_out(desc, expand, &w, err) == 0 ? w.total_bytes : 0;
}

size_t weight_bytes_cpu(const struct weight_desc *desc, struct error *err)
{
    return bytes_of(desc, false, err);
}

size_t weight_bytes_f32(const struct weight_desc *desc, struct error *err)
{
    return bytes_of(desc, true, err);
}

static int init(const struct weight_desc *desc, bool expand, void *memory, struct error *err)
{
    struct weight_cpu w;
    int rc = lay_out(desc, expand, &w, err);
    if (rc == 0)
        memcpy(memory, &w, sizeof(w));
    return rc;
}

int weight_init_cpu(const struct weight_desc *desc, void *memory, struct error *err)
{
    return init(desc, false, memory, err);
}

int weight_init_f32(const struct weight_desc *desc, void *memory, struct error *err)
{
    return init(desc, true, memory, err);
}

int weight_at(const struct weight_cpu *w, uint32_t row, uint32_t k)
{
    const uint8_t *panel = weight_panel(w, row / PANEL_ROWS);
    uint32_t run = k / RUN_K, in_run = k % RUN_K, lane = row % PANEL_ROWS;
    if (w->format == PACK_SUPER)
        return pack_super_weight_at(w, row, k);
    if (w->format == PACK_INT8) {
        const uint8_t *codes = panel + (size_t)run * INT8_RUN_BYTES;
        int q = codes[in_run / 4 * 64 + lane * 4 + in_run % 4] - 128;
        return q * panel_scales(w, panel)[run * PANEL_ROWS + lane];
    }
    bool plain = w->format == PACK_INT4_PLAIN;
    const uint8_t *codes = panel + (size_t)run * int4_run_bytes(w);
    int q = codes[in_run % 16 / 4 * 64 + lane * 4 + in_run % 4] >> in_run / 16 * 4 & 15;
    int16_t pair[2] = {0};
    memcpy(pair, codes + 256 + lane * (plain ? 2 : 4), plain ? sizeof(pair[0]) : sizeof(pair));
    return (q - 8) * pair[0] + pair[1];
}

static int not_finite(struct error *err, uint32_t row, enum dtype source)
{
    return error_set(err, STATUS_FAILED_PRECONDITION,
                     "weight: row %u (%s) holds a value that is not finite", row,
                     dtype_name(source));
}

bool weight_expand_columns(const struct weight_cpu *w, const uint8_t *raw, uint32_t begin,
                           uint32_t n, float *dst)
{
    enum dtype source = (enum dtype)w->base.source;
    uint32_t elems = dtype_block_elems(source), bytes = dtype_block_bytes(source);
    bool finite = true;
    for (uint32_t k = begin; k < begin + n;) {
        uint32_t skip = k % elems, take = elems - skip;
        if (elems == 1)
            take = CHUNK;
        if (take > begin + n - k)
            take = begin + n - k;
        float block[CHUNK];
        dtype_to_f32(source, raw + (size_t)(k / elems) * bytes, elems == 1 ? take : elems, block);
        for (uint32_t i = 0; i < take; i++) {
            dst[k - begin + i] = block[skip + i];
            finite &= isfinite(block[skip + i]) != 0;
        }
        k += take;
    }
    return finite;
}

static int pack_row(struct weight_cpu *w, uint32_t row, const uint8_t *raw, struct error *err)
{
    uint8_t *data = (uint8_t *)w + w->data_offset;
    switch ((enum pack_format)w->format) {
    case PACK_RAW:
        memcpy(data + w->row_bytes * row, raw, w->row_bytes);
        return 0;
    case PACK_VECTOR:
        if (!weight_expand_columns(w, raw, 0, w->base.k_total, (float *)(void *)data))
            return not_finite(err, row, (enum dtype)w->base.source);
        return 0;
    case PACK_INT4:
    case PACK_INT4_PLAIN:
        return pack_int4_row(w, row, raw) ? 0 : not_finite(err, row, (enum dtype)w->base.source);
    case PACK_INT8:
        return pack_int8_row(w, row, raw) ? 0 : not_finite(err, row, (enum dtype)w->base.source);
    case PACK_SUPER:
        return pack_super_row(w, row, raw) ? 0 : not_finite(err, row, (enum dtype)w->base.source);
    default:
        return error_set(err, STATUS_INTERNAL, "weight: format %u is packed in panels, not in rows",
                         w->format);
    }
}

int weight_pack_rows_cpu(struct weight *weight, uint32_t row_begin, uint32_t n_rows,
                         const void *raw, struct error *err)
{
    struct weight_cpu *w = (struct weight_cpu *)weight;
    if (w->base.act_kind == ACT_F32 || w->base.act_kind == ACT_BF16)
        return dense_pack_rows(w, row_begin, n_rows, raw, err);
    size_t raw_bytes = dtype_row_bytes((enum dtype)w->base.source, w->base.k_total);
    for (uint32_t i = 0; i < n_rows; i++) {
        int rc = pack_row(w, row_begin + i, (const uint8_t *)raw + i * raw_bytes, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}
