#include "engine/load/loader_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"

/* Most rows of a transposed weight that are read together. */
enum { TRANSPOSED_ROWS = 512 };

uint32_t loader_rows_chunk(const struct weight_place *place, uint64_t n_bytes, uint64_t most_bytes)
{
    uint64_t bytes = place->is_transposed ? most_bytes : n_bytes;
    uint64_t rows = bytes / place->row_bytes / WEIGHT_PACK_ROWS * WEIGHT_PACK_ROWS;
    if (place->is_transposed && rows > TRANSPOSED_ROWS)
        rows = TRANSPOSED_ROWS;
    return (uint32_t)(rows < WEIGHT_PACK_ROWS ? WEIGHT_PACK_ROWS : rows);
}

/* The row of the tensor, or element of a vector's part, that is the slot's row i. */
static uint64_t place_of(const struct weight_place *place, uint32_t i)
{
    return (uint64_t)place->map.begin + (uint64_t)(i / place->map.run) * place->map.stride +
           i % place->map.run;
}

/* The place's values lie in so many tensors, one after the other. */
static uint32_t n_tensors(const struct weight_place *place)
{
    return place->by_head ? place->n_by_head : 1;
}

static const struct checkpoint_tensor *tensor_at(const struct weight_place *place, uint32_t i)
{
    return place->by_head ? place->by_head[i] : place->tensor;
}

/* The tensor as a column of single elements. */
static struct checkpoint_tensor as_elements(const struct checkpoint_tensor *tensor)
{
    struct checkpoint_tensor elements = *tensor;
    elements.row_bytes = dtype_row_bytes(tensor->dtype, 1);
    elements.n_rows = tensor->n_elems;
    return elements;
}

/* --- rows that lie as rows --- */

/* Rows of the place from `i` on, at most n, that are adjacent in the file. */
static uint32_t run_at(const struct weight_place *place, uint32_t i, uint32_t n)
{
    uint32_t left = place->map.run - i % place->map.run;
    return place->map.run == place->map.stride || left > n ? n : left;
}

static uint64_t rows_before(const struct weight_place *place)
{
    return place->block ? (uint64_t)place->block * place->tensor->dims[1] : 0;
}

/* The memory for a stretch of rows; NULL with err set if there is none. */
static unsigned char *stretch_of(uint64_t n_bytes, struct error *err)
{
    unsigned char *all = malloc(n_bytes);
    if (!all)
        error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %zu bytes of rows",
                  (size_t)n_bytes);
    return all;
}

/* Copies every stride-th row of a stretch. */
static void take_rows(const struct weight_place *place, const unsigned char *first, uint32_t n,
                      unsigned char *dst)
{
    for (uint32_t r = 0; r < n; r++)
        memcpy(dst + (size_t)r * place->row_bytes,
               first + (uint64_t)r * place->map.stride * place->row_bytes, place->row_bytes);
}

static bool alternates(const struct weight_place *place)
{
    return place->desc.role != WEIGHT_VECTOR && place->map.run == 1 && place->map.stride > 1;
}

/* Rows that alternate with other slots' rows: reads all of a stretch, and keeps the own ones. */
static int read_alternate(const struct checkpoint *ckpt, const struct weight_place *place,
                          uint32_t begin, uint32_t n, unsigned char *dst, struct error *err)
{
    uint64_t from = place_of(place, place->first + begin);
    uint64_t width = (uint64_t)(n - 1) * place->map.stride + 1;
    unsigned char *all = stretch_of(width * place->row_bytes, err);
    if (!all)
        return STATUS_RESOURCE_EXHAUSTED;
    int rc = checkpoint_read_tensor_rows(ckpt, place->tensor, rows_before(place) + from, width, all,
                                         err);
    if (!rc)
        take_rows(place, all, n, dst);
    free(all);
    return rc;
}

static int read_both_rows(const struct checkpoint *ckpt, const struct weight_place *a,
                          const struct weight_place *b, uint32_t begin, uint32_t n,
                          unsigned char *dst_a, unsigned char *dst_b, struct error *err)
{
    uint64_t from_a = place_of(a, a->first + begin), from_b = place_of(b, b->first + begin);
    uint64_t from = from_a < from_b ? from_a : from_b;
    uint64_t width = (uint64_t)n * a->map.stride;
    unsigned char *all = stretch_of(width * a->row_bytes, err);
    if (!all)
        return STATUS_RESOURCE_EXHAUSTED;
    int rc = checkpoint_read_tensor_rows(ckpt, a->tensor, rows_before(a) + from, width, all, err);
    if (!rc) {
        take_rows(a, all + (from_a - from) * a->row_bytes, n, dst_a);
        take_rows(b, all + (from_b - from) * b->row_bytes, n, dst_b);
    }
    free(all);
    return rc;
}

static int read_rows(const struct checkpoint *ckpt, const struct weight_place *place,
                     uint32_t begin, uint32_t n, unsigned char *dst, struct error *err)
{
    if (alternates(place) && n)
        return read_alternate(ckpt, place, begin, n, dst, err);
    for (uint32_t done = 0; done < n;) {
        uint32_t i = place->first + begin + done, run = run_at(place, i, n - done);
        int rc = checkpoint_read_tensor_rows(ckpt, place->tensor,
                                             rows_before(place) + place_of(place, i), run,
                                             dst + (size_t)done * place->row_bytes, err);
        if (rc)
            return rc;
        done += run;
    }
    return 0;
}

/* Drops the rows of the file that hold the place's matrix. */
static void drop_matrix(const struct checkpoint *ckpt, const struct weight_place *place)
{
    uint64_t n = place->tensor->n_dims > 2 ? place->tensor->dims[1] : place->tensor->n_rows;
    if (arch_slot_facts(place->slot)->by_head)
        n = place->desc.k_total;
    checkpoint_drop_tensor_rows(ckpt, place->tensor, rows_before(place) + place->first_column, n);
}

void loader_rows_drop(const struct checkpoint *ckpt, const struct weight_place *place,
                      uint32_t begin, uint32_t n)
{
    bool ends = begin + n == place->desc.n_rows;
    if (place->desc.role == WEIGHT_VECTOR) {
        for (uint32_t i = 0; i < n_tensors(place); i++)
            checkpoint_drop_tensor_rows(ckpt, tensor_at(place, i), 0, tensor_at(place, i)->n_rows);
        return;
    }
    if (place->is_transposed) { /* every chunk reads all pages, and the last one drops them */
        if (ends)
            drop_matrix(ckpt, place);
        return;
    }
    if (alternates(place) && n) {
        uint64_t from = place_of(place, place->first + begin) / place->map.stride;
        checkpoint_drop_tensor_rows(ckpt, place->tensor,
                                    rows_before(place) + from * place->map.stride,
                                    (uint64_t)n * place->map.stride);
        return;
    }
    for (uint32_t done = 0; done < n;) {
        uint32_t i = place->first + begin + done, run = run_at(place, i, n - done);
        checkpoint_drop_tensor_rows(ckpt, place->tensor, rows_before(place) + place_of(place, i),
                                    run);
        done += run;
    }
}

/* --- rows that lie as columns --- */

/* The columns [from, from + width) of the file, of which places take some. */
struct columns {
    uint64_t from, width;
    size_t size;         /* bytes of an element */
    unsigned char *span; /* a row of them */
};

/* Copies element c of rows [begin, begin + n) of a place. */
static void take_column(const struct columns *columns, const struct weight_place *place,
                        uint32_t begin, uint32_t n, uint32_t c, unsigned char *dst)
{
    size_t size = columns->size;
    for (uint32_t r = 0; r < n; r++)
        memcpy(dst + (size_t)r * place->row_bytes + c * size,
               columns->span + (place_of(place, place->first + begin + r) - columns->from) * size,
               size);
}

/* Reads rows of a place whose columns are quantized rows of the file: each becomes f32 first. */
static int read_quantized_columns(const struct checkpoint *ckpt, const struct weight_place *place,
                                  uint32_t begin, uint32_t n, unsigned char *dst, struct error *err)
{
    const struct checkpoint_tensor *tensor = place->tensor;
    uint64_t width = tensor->dims[0];
    struct columns columns = {.width = width, .size = sizeof(float)};
    columns.span = stretch_of(width * sizeof(float) + tensor->row_bytes, err);
    if (!columns.span)
        return STATUS_RESOURCE_EXHAUSTED;
    unsigned char *row = columns.span + width * sizeof(float);
    int rc = 0;
    for (uint32_t c = 0; !rc && c < place->desc.k_total; c++) {
        rc = checkpoint_read_tensor_rows(ckpt, tensor, (uint64_t)place->first_column + c, 1, row,
                                         err);
        if (!rc && !dtype_to_f32(tensor->dtype, row, width, (float *)(void *)columns.span))
            rc = error_set(err, STATUS_INTERNAL, "%s: type %s has no values in f32", tensor->name,
                           dtype_name(tensor->dtype));
        if (!rc)
            take_column(&columns, place, begin, n, c, dst);
    }
    free(columns.span);
    return rc;
}

/* Reads rows of one place, or of two that alternate (b not NULL). */
static int read_columns(const struct checkpoint *ckpt, const struct weight_place *a,
                        const struct weight_place *b, uint32_t begin, uint32_t n,
                        unsigned char *dst_a, unsigned char *dst_b, struct error *err)
{
    struct checkpoint_tensor elements = as_elements(a->tensor);
    uint32_t k = a->desc.k_total, i = a->first + begin;
    uint64_t from_b = b ? place_of(b, i) : UINT64_MAX;
    struct columns columns = {.from = place_of(a, i), .size = elements.row_bytes};
    uint64_t end = place_of(a, i + n - 1) + 1;
    if (b && place_of(b, i + n - 1) >= end)
        end = place_of(b, i + n - 1) + 1;
    columns.from = from_b < columns.from ? from_b : columns.from;
    columns.width = end - columns.from;
    columns.span = stretch_of(columns.width * elements.row_bytes, err);
    int rc = columns.span ? 0 : STATUS_RESOURCE_EXHAUSTED;
    for (uint32_t c = 0; !rc && c < k; c++) {
        uint64_t row = (uint64_t)a->block * k + a->first_column + c;
        rc = checkpoint_read_tensor_rows(ckpt, &elements, row * a->tensor->dims[0] + columns.from,
                                         columns.width, columns.span, err);
        if (!rc)
            take_column(&columns, a, begin, n, c, dst_a);
        if (!rc && b)
            take_column(&columns, b, begin, n, c, dst_b);
    }
    free(columns.span);
    return rc;
}

/* --- vectors --- */

static float element(enum dtype type, const unsigned char *at)
{
    float value;
    uint16_t half;
    if (type == DTYPE_F32) {
        memcpy(&value, at, sizeof(value));
        return value;
    }
    memcpy(&half, at, sizeof(half));
    return type == DTYPE_F16 ? dtype_f16_to_f32(half) : dtype_bf16_to_f32(half);
}

/* Copies elements of the whole tensor to dst, in the weight's order and type. */
static void gather(const struct weight_place *place, const unsigned char *all, unsigned char *dst)
{
    size_t size = dtype_row_bytes(place->tensor->dtype, 1);
    uint32_t n = place->desc.k_total / place->blocks;
    uint64_t n_file = n_tensors(place) * place->tensor->n_elems / place->blocks;
    for (uint32_t b = 0; b < place->blocks; b++) {
        for (uint32_t i = 0; i < n; i++) {
            const unsigned char *at = all + (b * n_file + place_of(place, place->first + i)) * size;
            if (!place->plus_one && !place->minus_exp) {
                memcpy(dst, at, size);
                dst += size;
                continue;
            }
            float value = element(place->tensor->dtype, at);
            value = place->plus_one ? value + 1 : (float)-exp((double)value);
            memcpy(dst, &value, sizeof(value));
            dst += sizeof(value);
        }
    }
}

static int read_vector(const struct checkpoint *ckpt, const struct weight_place *place,
                       unsigned char *dst, struct error *err)
{
    size_t n_bytes = place->tensor->n_bytes;
    unsigned char *all = malloc(n_tensors(place) * n_bytes);
    int rc = 0;
    if (!all)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for a vector of %zu bytes",
                         n_tensors(place) * n_bytes);
    for (uint32_t i = 0; !rc && i < n_tensors(place); i++)
        rc = checkpoint_read_tensor_rows(ckpt, tensor_at(place, i), 0, tensor_at(place, i)->n_rows,
                                         all + i * n_bytes, err);
    if (!rc)
        gather(place, all, dst);
    free(all);
    return rc;
}

int loader_rows_read(const struct checkpoint *ckpt, const struct weight_place *place,
                     uint32_t begin, uint32_t n, unsigned char *dst, struct error *err)
{
    if (place->desc.role == WEIGHT_VECTOR)
        return read_vector(ckpt, place, dst, err);
    if (!place->is_transposed)
        return read_rows(ckpt, place, begin, n, dst, err);
    if (dtype_is_quantized(place->tensor->dtype))
        return read_quantized_columns(ckpt, place, begin, n, dst, err);
    return read_columns(ckpt, place, NULL, begin, n, dst, NULL, err);
}

/* --- two places at once --- */

bool loader_rows_alternate(const struct weight_place *a, const struct weight_place *b)
{
    return alternates(a) && alternates(b) && a->tensor == b->tensor && a->block == b->block &&
           a->is_transposed == b->is_transposed && a->map.stride == 2 && b->map.stride == 2 &&
           a->map.begin != b->map.begin && a->first == b->first &&
           a->desc.n_rows == b->desc.n_rows && a->row_bytes == b->row_bytes;
}

int loader_rows_read_both(const struct checkpoint *ckpt, const struct weight_place *a,
                          const struct weight_place *b, uint32_t begin, uint32_t n,
                          unsigned char *dst_a, unsigned char *dst_b, struct error *err)
{
    return a->is_transposed ? read_columns(ckpt, a, b, begin, n, dst_a, dst_b, err)
                            : read_both_rows(ckpt, a, b, begin, n, dst_a, dst_b, err);
}
