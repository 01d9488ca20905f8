/* linear_widen_cuda.h: linears of quantized weights whose rows of prompts are computed in 16 bit
 * (stream.prompts_f16; docs/house/numerics.md, "Prompts on a GPU"). Rows of generated tokens keep
 * the integers of linear_quant_cuda.h. A row's role alone decides, never the number of rows.
 * Private to kernels/cuda. */
#pragma once

#include "kernels/cuda/linear_cuda.h"

/* Returns true if these functions compute the stream's next linears of quantized weights. */
bool linear_widens(const struct stream *s);
/* Returns the adjacent rows whose integers act_prepare should make. Without linear_widens() these
 * are all n_rows rows, else the run of generated rows. Empty if there are several such runs;
 * linear_widen() then makes their integers itself. */
struct role_run linear_widen_generated(const struct stream *s, uint32_t n_rows);
/* Computes parts whose weights are alike (linear_quant_same). With `gated` the two parts are gate
 * and up, as in op linear_gated. */
int linear_widen(struct stream *s, const struct act *act, const struct linear_part *parts,
                 uint32_t n_parts, bool gated, enum activation kind);

/* Returns the scratch for widened weights (struct stream_cuda.widened) of matrices of at most n·k
 * elements and max_n rows. A larger matrix than WIDEN_MOST_BYTES is widened and multiplied by
 * shares of its rows. */
enum { WIDEN_MOST_BYTES = 128 << 20 };
size_t linear_widen_scratch_bytes(uint32_t n, uint32_t k, uint32_t max_n);
