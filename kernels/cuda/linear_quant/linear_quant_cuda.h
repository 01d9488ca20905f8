/* linear_quant_cuda.h: the host side of quantized linears, as the slots of ops.h. Private to
 * kernels/cuda. */
#pragma once

#include "kernels/ops.h"

/* Computes parts whose weights are alike (linear_quant_same) in one launch, for the rows whose
 * integers are prepared (struct act_quant). */
int linear_quant(struct stream *s, const struct act *act, const struct linear_part *parts,
                 uint32_t n_parts);
bool linear_quant_same(const struct weight *a, const struct weight *b);
/* linear_quant_gates() returns true if gate, up and the activation can be one launch;
 * linear_quant_gated() does that launch. */
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
