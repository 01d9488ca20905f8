/* dense.h: linear layers with F32, F16 and BF16 weights: what they compute, and the kernels.
 *
 * F32, F16: activations are f32. An output is, in each segment of K, one chain of FMAs in ascending
 * k from 0; the segments are added by the tree of 8 (inner.h). Every weight has 8 segments
 * (segments.h, granule 1), a LINEAR_ROW those that it was cut by.
 *
 * BF16: activations are rounded to bf16 (nearest, ties to even), and of weights and activations
 * what is nearer to 0 than DENSE_TINY is 0. The chain takes each pair of columns odd one first:
 * k = 1, 0, 3, 2, … (counted from the weight's first column; a column beyond the last is 0). That
 * is what vdpbf16ps computes (tried before its set is taken), except that it takes subnormal
 * numbers for 0. With DENSE_TINY none can occur: every product is a multiple of 2^-124, and so is
 * every sum. So FMA and vdpbf16ps agree. In the kernel set "f32" the same chain reads activations
 * that are not rounded.
 *
 * TDPBF16PS adds in another order: per 32 columns a chain over the even and one over the odd k,
 * both from 0, their sum added to the total. A kernel set built on it has another `numerics` name;
 * layout and rounding serve it as they are: a run of 32 columns of a BF16 panel is one tile. */
#pragma once

#include <stdbool.h>

#include "kernels/cpu/inner.h"

#define DENSE_TINY 0x1p-55f

static inline float dense_flushed(float x)
{
    return x > -DENSE_TINY && x < DENSE_TINY ? 0.0f : x;
}

void dense_ref_linear(const struct linear_job *job, const struct linear_share *share);
void dense_linear_avx2(const struct linear_job *job, const struct linear_share *share);
void dense_linear_avx512(const struct linear_job *job, const struct linear_share *share);
/* BF16 by vdpbf16ps, the others as dense_linear_avx512. */
void dense_linear_bf16_avx512(const struct linear_job *job, const struct linear_share *share);
/* Whether vdpbf16ps computes on this processor, which has it, what is said above. Any thread; tried
 * once. */
bool dense_dot_bf16_checks(void);

/* One row of a dense weight in f32: rows of a tied head are looked up like an embedding's. */
void dense_row(const struct weight_cpu *w, uint32_t row, float *y);
/* The value of |x| < DENSE_TINY in an embedding of BF16 is 0 too, whichever matrix it is read from.
 */
void dense_flush(float *x, uint32_t n);

/* Raw rows of a dense weight into their panels; row_begin is a multiple of PANEL_ROWS. */
int dense_pack_rows(struct weight_cpu *w, uint32_t row_begin, uint32_t n_rows, const uint8_t *raw,
                    struct error *err);
