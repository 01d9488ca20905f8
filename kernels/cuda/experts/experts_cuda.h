/* experts_cuda.h: a layer of experts and linears of heads on the GPU, as slots of the op table.
 * Private to kernels/cuda. */
#pragma once

#include "kernels/ops.h"

struct experts_strides;
struct experts_tiles;
struct quant_linear;
struct quant_plan;
struct stream_cuda;

int router_topk_cuda(struct stream *s, struct expert_routes *routes, const struct tensor *logits,
                     const struct router_params *params);
int experts_cuda(struct stream *s, struct tensor *y, const struct tensor *x,
                 const struct expert_routes *routes, const struct experts *experts,
                 const struct expert_work *work, struct comm *comm);
/* Sets the distances between the weights. INTERNAL if these are not equally far apart. */
int experts_bind_cuda(struct experts *experts, struct error *err);

/* In heads_cuda.c. A single product computes all heads, and all rows take path D. This needs
 * weights in their source type at equal distances, and for 16-bit weights adjacent rows of x. Else
 * each head is a linear of its own, whose rows go by their roles. */
int heads_linear_cuda(struct stream *s, struct act *act, struct tensor *y, const struct tensor *x,
                      const struct weight *const *heads, uint32_t n_heads, uint32_t y_head);
/* Sets the distance between the data of n weights. Returns false if they are not equally far
 * apart. */
bool experts_stride_cuda(const struct weight *const *w, uint32_t n, size_t *out);
/* Queues a product of quantized weights, by the kernel of their form; `op` is for errors. */
int experts_quant_cuda(struct stream_cuda *s, const char *op, const struct experts_tiles *tiles,
                       const struct quant_linear *args, const struct experts_strides *by,
                       const struct quant_plan *plan);
