/* linear_quant_args.h: the arguments of a quantized linear's kernels, and the treatment of a sum
 * T. */
#pragma once

#include "kernels/cuda/act_quant.h"
#include "kernels/maths.h"

/* The treatment of T = Σ W·a. If blocks share the columns, it follows the sum over blocks. */
enum quant_put {
    QUANT_PUT_Y,       /* y = float(T)·(unit·s) + bias; sum += y */
    QUANT_PUT_GATED,   /* y of both parts with their biases, then y of the first = act(y0)·y1 */
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
    uint32_t n_rows, first_panel; /* first_panel: index among the panels of all parts in sequence */
};

/* Parts of the same form and layout. Gated: panels 2i and 2i + 1 are panel i of the two parts. */
struct quant_linear {
    struct quant_part parts[QUANT_MAX_PARTS];
    struct quant_layout layout;
    uint32_t n_parts, n_panels; /* gated: panels of both */
    uint32_t m;                 /* rows of activations */
    struct quant_planes act;
    enum quant_put put;   /* for whole sums */
    enum activation kind; /* gated */
    int32_t *low, *high;  /* QUANT_PUT_PARTIAL; high NULL if sums have 32 bits */
    size_t low_stride, high_stride;
    void *split; /* [split][m][16·n_panels] of i32, wide forms i64 */
};
