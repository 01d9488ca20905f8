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

/* Turns the scores w[n_used] of the chosen experts, in ascending id, into weights. */
MATHS_FN void router_weigh(float *w, uint32_t n_used, const struct router_params *p)
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
}

/* Returns an element of an expert's input that the pair's weight multiplies. */
MATHS_FN float router_weighed(float x, float weight)
{
    return weight * x;
}
