/* experts_cuda.h: a layer of experts on the GPU, as slots of the op table. Private to
 * kernels/cuda. */
#pragma once

#include "kernels/ops.h"

int router_topk_cuda(struct stream *s, struct expert_routes *routes, const struct tensor *logits,
                     const struct router_params *params);
int experts_cuda(struct stream *s, struct tensor *y, const struct tensor *x,
                 const struct expert_routes *routes, const struct experts *experts,
                 const struct expert_work *work, struct comm *comm);
/* Sets the distances between the weights. INTERNAL if these are not equally far apart. */
int experts_bind_cuda(struct experts *experts, struct error *err);
