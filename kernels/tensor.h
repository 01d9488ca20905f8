/* tensor.h: a view of a two-dimensional array in some device's memory. Plain data, owns nothing. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct tensor {
    void *data;       /* [n_rows][row_stride] */
    enum dtype dtype; /* plain types only; weights have struct weight */
    uint32_t n_rows, n_cols;
    size_t row_stride; /* elements from one row to the next, ≥ n_cols */
};

static inline struct tensor tensor_view(void *data, enum dtype dtype, uint32_t n_rows,
                                        uint32_t n_cols)
{
    return (struct tensor){data, dtype, n_rows, n_cols, n_cols};
}

/* Returns a view of rows [begin, begin + n_rows) of an f32 tensor. */
static inline struct tensor tensor_rows(const struct tensor *t, uint32_t begin, uint32_t n_rows)
{
    struct tensor rows = *t;
    rows.data = (float *)t->data + (size_t)begin * t->row_stride;
    rows.n_rows = n_rows;
    return rows;
}

static inline float *tensor_row_f32(const struct tensor *t, uint32_t row)
{
    return (float *)t->data + (size_t)row * t->row_stride;
}
