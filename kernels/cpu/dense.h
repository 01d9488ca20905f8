/* dense.h: linear layers with F32, F16 and BF16 weights: their arithmetic, and the kernels.
 *
 * F32, F16: activations are f32. In each segment of K an output is a chain of FMAs in ascending k,
 * starting at 0. The segments are added by the tree of 8 (inner.h). Every weight has 8 segments
 * (segments.h, granule 1); a LINEAR_ROW has those of its split.
 *
 * BF16: activations are rounded to bf16 (nearest, ties to even). Weights and activations nearer to
 * 0 than DENSE_TINY count as 0. The chain takes the odd column of each pair first: k = 1, 0, 3, 2
 * and so on. Columns count from the weight's first; columns beyond the last are 0. The instruction
 * vdpbf16ps computes the same, which a test on the processor checks. The only difference: vdpbf16ps
 * treats subnormal numbers as 0. With DENSE_TINY no subnormal number can occur: every product and
 * every sum is a multiple of 2^-124. So FMA and vdpbf16ps give the same bits. In the kernel set
 * "f32" the same chain reads activations that are not rounded.
 *
 * TDPBF16PS adds in another order: per 32 columns a chain over the even k and a chain over the odd
 * k, both from 0. Their sum is added to the total. A kernel set with TDPBF16PS has another
 * `numerics` name. Layout and rounding fit it too: a run of 32 columns of a BF16 panel is a tile.
 */
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
/* Multiplies BF16 by vdpbf16ps; other types as dense_linear_avx512. */
void dense_linear_bf16_avx512(const struct linear_job *job, const struct linear_share *share);
/* Returns true if this processor's vdpbf16ps computes as described above. Only for processors that
 * have vdpbf16ps. Any thread; tested once. */
bool dense_dot_bf16_checks(void);

/* Expands one row of a dense weight to f32, because rows of a tied head are looked up like an
 * embedding's. */
void dense_row(const struct weight_cpu *w, uint32_t row, float *y);
/* Sets every x with |x| < DENSE_TINY to 0. Packed BF16 weights have 0 in place of such values. So a
 * BF16 embedding must give 0 too when the rows are read raw. */
void dense_flush(float *x, uint32_t n);

/* Packs raw rows of a dense weight into their panels; row_begin is a multiple of PANEL_ROWS. */
int dense_pack_rows(struct weight_cpu *w, uint32_t row_begin, uint32_t n_rows, const uint8_t *raw,
                    struct error *err);
