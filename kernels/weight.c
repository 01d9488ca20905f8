#include "kernels/weight.h"

#include <assert.h>

#include "base/error.h"
#include "kernels/ops.h"
#include "kernels/weight_header.h"

/* Checks that every kernel set needs. */
static int check_desc(const struct weight_desc *desc, struct error *err)
{
    if ((unsigned)desc->source >= N_DTYPES)
        return error_set(err, STATUS_INVALID_ARGUMENT, "weight: unknown type %d", desc->source);
    if (desc->source == DTYPE_OTHER)
        return error_set(err, STATUS_UNIMPLEMENTED, "weight: no kernel reads the type");
    if (desc->n_rows == 0 || desc->k_total == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "weight: shape %u x %u is empty",
                         desc->n_rows, desc->k_total);
    if (dtype_row_bytes(desc->source, desc->k_total) == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "weight: rows of %u elements are no multiple of %s's block of %u",
                         desc->k_total, dtype_name(desc->source), dtype_block_elems(desc->source));
    if (desc->role == WEIGHT_VECTOR && desc->n_rows != 1)
        return error_set(err, STATUS_INVALID_ARGUMENT, "weight: a vector of %u rows", desc->n_rows);
    if (desc->role != WEIGHT_LINEAR_ROW)
        return 0;
    const struct segments *seg = &desc->k_segments;
    if (seg->bounds[N_SEGMENTS] != desc->k_total || seg->count == 0 ||
        seg->first + seg->count > N_SEGMENTS || segments_len(seg) == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "weight: segments cover %u of %u columns, segments %u..%u",
                         seg->bounds[N_SEGMENTS], desc->k_total, seg->first,
                         seg->first + seg->count);
    for (uint32_t s = 0; s < N_SEGMENTS; s++)
        if (seg->bounds[s] > seg->bounds[s + 1] || seg->bounds[s] % 32 != 0)
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "weight: segment %u begins at column %u, not a multiple of 32", s,
                             seg->bounds[s]);
    return 0;
}

size_t weight_bytes(const struct op_table *ops, const struct weight_desc *desc, struct error *err)
{
    if (check_desc(desc, err) != 0)
        return 0;
    return ops->weight_bytes ? ops->weight_bytes(desc, err) : ops->weight_device_bytes(desc, err);
}

int weight_init(const struct op_table *ops, const struct weight_desc *desc, void *memory,
                struct weight **out_weight, struct error *err)
{
    int rc = check_desc(desc, err);
    if (rc == 0)
        rc = ops->weight_init(desc, memory, err);
    if (rc == 0)
        *out_weight = memory;
    return rc;
}

static int check_chunk(uint32_t row_begin, uint32_t n_rows, uint32_t total, struct error *err)
{
    if (row_begin % WEIGHT_PACK_ROWS != 0 || row_begin > total || n_rows > total - row_begin ||
        (n_rows % WEIGHT_PACK_ROWS != 0 && row_begin + n_rows != total))
        return error_set(err, STATUS_INTERNAL, "weight: rows %u..%u of %u are not a valid chunk",
                         row_begin, row_begin + n_rows, total);
    return 0;
}

int weight_pack_rows(const struct op_table *ops, struct weight *weight, uint32_t row_begin,
                     uint32_t n_rows, const void *raw, struct error *err)
{
    int rc = check_chunk(row_begin, n_rows, weight_n_rows(weight), err);
    return rc ? rc : ops->weight_pack_rows(weight, row_begin, n_rows, raw, err);
}

size_t weight_slice_bytes(const struct op_table *ops, const struct weight_desc *desc,
                          uint32_t n_rows)
{
    return ops->weight_slice_bytes(desc, n_rows);
}

int weight_pack_slice(const struct op_table *ops, const struct weight_desc *desc,
                      uint32_t row_begin, uint32_t n_rows, const void *raw, void *slice,
                      struct weight_copy copies[WEIGHT_MAX_COPIES], uint32_t *out_n_copies,
                      struct error *err)
{
    int rc = check_chunk(row_begin, n_rows, desc->n_rows, err);
    return rc ? rc
              : ops->weight_pack_slice(desc, row_begin, n_rows, raw, slice, copies, out_n_copies,
                                       err);
}

int weight_bind(const struct op_table *ops, const struct weight_desc *desc, void *data,
                struct weight **out_weight, struct error *err)
{
    int rc = check_desc(desc, err);
    return rc ? rc : ops->weight_bind(desc, data, out_weight, err);
}

void weight_unbind(const struct op_table *ops, struct weight *weight)
{
    if (weight)
        ops->weight_unbind(weight);
}

bool weight_is_on_device(const struct op_table *ops)
{
    return ops->weight_bind != NULL;
}

uint32_t weight_n_rows(const struct weight *weight)
{
    assert(weight->magic == WEIGHT_MAGIC);
    return weight->n_rows;
}

uint32_t weight_k_local(const struct weight *weight)
{
    assert(weight->magic == WEIGHT_MAGIC);
    return weight->k_local;
}

const float *weight_vector(const struct weight *weight)
{
    assert(weight->magic == WEIGHT_MAGIC && weight->role == WEIGHT_VECTOR);
    return (const float *)(const void *)((const char *)weight + weight->vector_offset);
}

uint32_t weight_act_kind(const struct weight *weight)
{
    assert(weight->magic == WEIGHT_MAGIC);
    return weight->act_kind;
}
