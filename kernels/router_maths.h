/* router_maths.h: the scalar expressions of a router (experts.h), written once for every device.
 * Compiles as C11 and as CUDA C++, with the same bits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/experts.h"
#include "kernels/maths.h"

#define ROUTER_LOWEST (-INFINITY)

/* Returns e^(x − max), σ(x), x or √softplus(x). A softmax divides by the sum later. */
MATHS_FN float router_score_of(float x, float max, enum router_score score)
{
    switch (score) {
    case ROUTER_SOFTMAX:
        return maths_exp(x - max);
    case ROUTER_SIGMOID:
        return 1.0f / (1.0f + maths_exp(0.0f - x));
    case ROUTER_SQRT_SOFTPLUS:
        return sqrtf(maths_softplus(x));
    default:
        return x;
    }
}

/* Returns the value by which experts are chosen: NaN is the lowest. */
MATHS_FN float router_key(float score, float bias)
{
    float key = score + bias;
    return key != key ? ROUTER_LOWEST : key;
}

/* Returns the key of an expert. Large logits have equal sigmoids; without a bias and groups, the
 * logits themselves give the order. */
MATHS_FN float router_expert_key(float logit, float score, const struct router_params *p,
                                 uint32_t id)
{
    bool by_logit = p->score == ROUTER_SIGMOID && p->bias == 0 && p->n_groups <= 1;
    return router_key(by_logit ? logit : score, p->bias ? p->bias[id] : 0.0f);
}

/* Returns true if (key, id) is chosen before (than_key, than_id). */
MATHS_FN bool router_is_before(float key, uint32_t id, float than_key, uint32_t than_id)
{
    return key > than_key || (key == than_key && id < than_id);
}

/* Adds an expert to the best and second key of its group. */
MATHS_FN void router_add_to_group(float key, float best[2])
{
    if (key > best[0]) {
        best[1] = best[0];
        best[0] = key;
    } else if (key > best[1]) {
        best[1] = key;
    }
}

MATHS_FN float router_group_key(const float best[2], uint32_t group_size,
                                enum router_group_score score)
{
    return score == ROUTER_GROUP_TOP_TWO && group_size > 1 ? best[0] + best[1] : best[0];
}

/* Returns the part of a softmax: a score over the sum of all scores. */
MATHS_FN float router_part(float score, float sum)
{
    return score / sum;
}

/* Turns the scores w[n_used] of the chosen experts ids[n_used], which ascend, into weights. */
MATHS_FN void router_weigh(float *w, const uint32_t *ids, uint32_t n_used,
                           const struct router_params *p)
{
    float sum = 0.0f;
    if (p->score == ROUTER_TOPK_SOFTMAX) {
        float max = ROUTER_LOWEST;
        for (uint32_t j = 0; j < n_used; j++)
            max = w[j] > max ? w[j] : max;
        for (uint32_t j = 0; j < n_used; j++) {
            w[j] = maths_exp(w[j] - max);
            sum += w[j];
        }
        for (uint32_t j = 0; j < n_used; j++)
            w[j] = w[j] / sum;
    }
    if (p->renormalise) {
        sum = 0.0f;
        for (uint32_t j = 0; j < n_used; j++)
            sum += w[j];
        sum = (sum < p->min_sum ? p->min_sum : sum) + p->add_sum;
        for (uint32_t j = 0; j < n_used; j++)
            w[j] = w[j] / sum;
    }
    for (uint32_t j = 0; j < n_used; j++)
        w[j] = w[j] * p->scale;
    for (uint32_t j = 0; p->expert_scale && j < n_used; j++)
        w[j] = w[j] * p->expert_scale[ids[j]];
}

/* Returns an element of an expert's input that the pair's weight multiplies. */
MATHS_FN float router_weighed(float x, float weight)
{
    return weight * x;
}
