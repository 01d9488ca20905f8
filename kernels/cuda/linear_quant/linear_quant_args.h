/* linear_quant_args.h: what a quantized linear's kernels are given, and what becomes of a sum T. */
#pragma once

#include "kernels/cuda/act_quant.h"
#include "kernels/maths.h"

/* What is done with T = Σ W·a; where blocks share the columns, only after their sums are added. */
enum quant_put {
    QUANT_PUT_Y,       /* y = float(T)·(unit·s) + bias; sum += y */
    QUANT_PUT_GATED,   /* both parts' y with their biases, then y of the first = act(y0)·y1 */
    QUANT_PUT_PARTIAL, /* T, or T & 0xffff to `low` and T >> 16 to `high` */
};

struct quant_part {
    const uint8_t *data; /* panels */
    const float *units;
    float *y;
    size_t y_stride;
    const float *bias; /* NULL: none */
    float *sum;        /* NULL: none */
    size_t sum_stride;
    uint32_t n_rows, first_panel; /* of the panels of all parts put end to end */
};

/* Parts of one form and one layout. Gated: panels 2i and 2i + 1 are panel i of the two parts. */
struct quant_linear {
    struct quant_part parts[QUANT_MAX_PARTS];
    struct quant_layout layout;
    uint32_t n_parts, n_panels; /* gated: panels of both */
    uint32_t m;                 /* rows of activations */
    struct quant_planes act;
    enum quant_put put;   /* of whole sums */
    enum activation kind; /* gated */
    int32_t *low, *high;  /* QUANT_PUT_PARTIAL; high NULL where sums have 32 bits */
    size_t low_stride, high_stride;
    void *split; /* [split][m][16·n_panels] of i32, wide forms i64 */
};
