#include "engine/load/loader_rows.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"

/* Least rows of a transposed weight that are read together: each row of the file gives only one
 * element of a row. */
enum { TRANSPOSED_ROWS = 512 };

uint32_t loader_rows_chunk(const struct weight_place *place, uint64_t n_bytes)
{
    uint64_t rows = n_bytes / place->row_bytes / WEIGHT_PACK_ROWS * WEIGHT_PACK_ROWS;
    uint64_t least = place->is_transposed ? TRANSPOSED_ROWS : WEIGHT_PACK_ROWS;
    return (uint32_t)(rows < least ? least : rows);
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

/* Rows that alternate with other slots' rows: reads all of a stretch, and keeps the own ones. */
static int read_alternate(const struct checkpoint *ckpt, const struct weight_place *place,
                          uint32_t begin, uint32_t n, unsigned char *dst, struct error *err)
{
    uint64_t from = place_of(place, place->first + begin);
    uint64_t width = (uint64_t)(n - 1) * place->map.stride + 1;
    unsigned char *all = malloc(width * place->row_bytes);
    if (!all)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %zu bytes of rows",
                         (size_t)(width * place->row_bytes));
    int rc = checkpoint_read_tensor_rows(ckpt, place->tensor, rows_before(place) + from, width, all,
                                         err);
    for (uint32_t r = 0; !rc && r < n; r++)
        memcpy(dst + (size_t)r * place->row_bytes,
               all + (uint64_t)r * place->map.stride * place->row_bytes, place->row_bytes);
    free(all);
    return rc;
}

static int read_rows(const struct checkpoint *ckpt, const struct weight_place *place,
                     uint32_t begin, uint32_t n, unsigned char *dst, struct error *err)
{
    if (place->map.run == 1 && place->map.stride > 1 && n)
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

void loader_rows_drop(const struct checkpoint *ckpt, const struct weight_place *place,
                      uint32_t begin, uint32_t n)
{
    if (place->desc.role == WEIGHT_VECTOR || place->is_transposed) {
        /* every chunk of columns reads all pages: the last one drops them */
        for (uint32_t i = 0; begin + n == place->desc.n_rows && i < n_tensors(place); i++)
            checkpoint_drop_tensor_rows(ckpt, tensor_at(place, i), 0, tensor_at(place, i)->n_rows);
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

static int read_columns(const struct checkpoint *ckpt, const struct weight_place *place,
                        uint32_t begin, uint32_t n, unsigned char *dst, struct error *err)
{
    struct checkpoint_tensor elements = as_elements(place->tensor);
    size_t size = elements.row_bytes;
    uint32_t k = place->desc.k_total, i = place->first + begin;
    uint64_t from = place_of(place, i), width = place_of(place, i + n - 1) - from + 1;
    unsigned char *span = malloc(width * size);
    int rc = 0;
    if (!span)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %zu bytes of columns",
                         (size_t)(width * size));
    for (uint32_t c = 0; !rc && c < k; c++) {
        uint64_t row = (uint64_t)place->block * k + c;
        rc = checkpoint_read_tensor_rows(ckpt, &elements, row * place->tensor->dims[0] + from,
                                         width, span, err);
        for (uint32_t r = 0; !rc && r < n; r++)
            memcpy(dst + (size_t)r * place->row_bytes + c * size,
                   span + (place_of(place, i + r) - from) * size, size);
    }
    free(span);
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
            if (!place->plus_one) {
                memcpy(dst, at, size);
                dst += size;
                continue;
            }
            float value = element(place->tensor->dtype, at) + 1;
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
    return place->is_transposed ? read_columns(ckpt, place, begin, n, dst, err)
                                : read_rows(ckpt, place, begin, n, dst, err);
}
