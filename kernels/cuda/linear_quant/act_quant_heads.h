/* act_quant_heads.h: integer activations of linears of heads (ops.h, heads_linear). Each head of a
 * row is quantized by itself. The rows of the planes are [head][row], and a head's rows begin with
 * a tile. Plain functions of numbers, which tests/unit/kernels/cuda/test_cuda_act_quant.c checks,
 * and the launcher. */
#pragma once

#include "kernels/cuda/act_quant.h"

/* Rows of x that consist of heads of rows.k columns. rows.n_rows counts the rows of the planes. */
struct quant_head_rows {
    struct quant_rows rows;
    uint32_t n_rows; /* of x */
};

/* Returns the rows of the planes that a head has. */
CUDA_HD uint32_t quant_padded_rows(uint32_t n_rows)
{
    return quant_n_tiles(n_rows) * QUANT_TILE;
}

/* Returns the source of a row of the planes; NULL: a row of zeros, behind a head's last. */
CUDA_HD const float *quant_head_row(const struct quant_head_rows *q, uint32_t row)
{
    uint32_t padded = quant_padded_rows(q->n_rows), in_head = row % padded;
    return in_head < q->n_rows
               ? q->rows.x + in_head * q->rows.x_stride + (size_t)(row / padded) * q->rows.k
               : NULL;
}

/* Advances the planes of activations by n_tiles tiles. */
CUDA_HD void quant_skip_tiles(struct quant_planes *p, const struct quant_layout *l, size_t n_tiles)
{
    size_t pairs = n_tiles * l->n_pairs;
    p->lo += pairs * QUANT_FRAGMENT_BYTES;
    p->hi += pairs * QUANT_FRAGMENT_BYTES;
    p->sums += pairs * QUANT_SUMS_BYTES;
    p->hi_sums += pairs * QUANT_SUMS_BYTES;
    p->digits += n_tiles * l->n_chunks * QUANT_CHUNK_BYTES;
    p->scale += n_tiles * QUANT_TILE;
}

/* In act_quant.cu: a block per row of the planes. Bytes: as cuda_launch_act_quant(). */
#ifdef __cplusplus
extern "C"
#endif
    int
    cuda_launch_act_quant_heads(void *stream, const struct quant_head_rows *heads);
