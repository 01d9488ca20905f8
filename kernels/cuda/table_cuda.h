/* table_cuda.h: the kernel set of the CUDA backend. Private to kernels/cuda. */
#pragma once

#include "kernels/ops.h"

extern const struct op_table op_table_cuda_set;

/* sample_cuda.c */
int sample_cuda(struct stream *s, const struct tensor *logits, const struct sample_params *params,
                struct sample_result *results);
