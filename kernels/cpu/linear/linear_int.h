/* linear_int.h: the integer linear (weight_cpu.h, act_cpu.h) in each kernel set; same bits. */
#pragma once

#include <stdint.h>

#include "kernels/cpu/inner.h"

void linear_exact(const struct linear_job *job, const struct linear_share *share);
void linear_int_avx2(const struct linear_job *job, const struct linear_share *share);
void linear_int_avx512(const struct linear_job *job, const struct linear_share *share);

/* Weights in PACK_SUPER; linear_super_avx512 also computes PACK_INT8. */
void linear_super_avx2(const struct linear_job *job, const struct linear_share *share);
void linear_super_avx512(const struct linear_job *job, const struct linear_share *share);

/* Stores one finished sum T at (row of act, row of w): into y, or into the planes of a partial
 * result. */
void linear_int_put(const struct linear_job *job, uint32_t row, uint32_t n, int64_t total);
