/* stages.h: divides the layers of a model into the stages of a pipeline. Pure arithmetic; any
 * thread. */
#pragma once

#include <stdint.h>

struct error;
struct model;
struct rank_plan;

enum { STAGES_MAX = 8 };

/* Chooses the layers of each stage: stage s has [bounds[s], bounds[s + 1]). The costs of the most
 * expensive stage are as low as possible.
 *
 * The cost of a layer is the sum of two shares. The first is its share of the model's packed bytes.
 * The second is its share of the multiplications of a token, with the experts that a token uses.
 * The embedding belongs to the first stage and the output matrix to the last; a tied embedding
 * belongs to both. The KV cache does not count, so the stages do not depend on its size.
 *
 * `whole` is the plan of the model on a single rank. INVALID_ARGUMENT (field "pp"): more stages
 * than layers, or too few places where rank_may_cut() allows a cut. The error names the layers that
 * belong together and a tensor. */
int stages_split(const struct rank_plan *whole, const struct model *model, uint32_t n_stages,
                 uint32_t bounds[STAGES_MAX + 1], struct error *err);
