/* linear_quant_cuda.h: the host side of quantized linears, as the slots of ops.h. Private to
 * kernels/cuda. */
#pragma once

#include "kernels/ops.h"

/* Parts of weights that are the same (linear_quant_same): one launch. */
int linear_quant(struct stream *s, const struct act *act, const struct linear_part *parts,
                 uint32_t n_parts);
bool linear_quant_same(const struct weight *a, const struct weight *b);
/* Whether gate and up can be one launch with the activation in it, and that launch. */
bool linear_quant_gates(const struct act *act, const struct linear_part *gate,
                        const struct linear_part *up);
int linear_quant_gated(struct stream *s, const struct act *act, const struct linear_part *gate,
                       const struct linear_part *up, enum activation kind);
int linear_quant_partial_cuda(struct stream *s, struct tensor *partial, struct tensor *high,
                              const struct act *act, const struct weight *w);
int linear_quant_finish_cuda(struct stream *s, struct tensor *y, const struct tensor *partial,
                             const struct act *act, const struct weight *w);
int embed_quant_cuda(struct stream *s, struct tensor *y, const uint32_t *ids,
                     const struct weight *w);
