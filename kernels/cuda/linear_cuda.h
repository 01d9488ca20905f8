/* linear_cuda.h: dense linears on cuBLASLt, opened lazily. Private to kernels/cuda. */
#pragma once

#include <stdint.h>

#include "kernels/ops.h"

struct cublaslt;
struct error;

/* The library itself is opened by the first linear. *out_lt is owned. */
int cublaslt_create(struct cublaslt **out_lt, struct error *err);
void cublaslt_destroy(struct cublaslt *lt);

size_t act_bytes_cuda(uint32_t max_rows, uint32_t max_k);
int act_create_cuda(struct device *device, uint32_t max_rows, uint32_t max_k, struct act **out_act,
                    struct error *err);
void act_destroy_cuda(struct act *act);
int act_prepare_cuda(struct stream *s, struct act *act, const struct tensor *x, uint32_t kinds,
                     const struct segments *segments, struct comm *comm);
int linear_cuda(struct stream *s, struct tensor *y, const struct act *act, const struct weight *w);
int linear_partial_cuda(struct stream *s, struct tensor *partial, struct tensor *high,
                        const struct act *act, const struct weight *w);
int linear_finish_cuda(struct stream *s, struct tensor *y, const struct tensor *partial,
                       const struct act *act, const struct weight *w);
