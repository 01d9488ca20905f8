/* router_impl.h: the loops of a layer of experts (inner.h) in the 16-lane vectors of vec_*.h.
 * inner_avx2.c and inner_avx512.c each include this file once, after vector_impl.h. */
#pragma once

#include "kernels/router_maths.h"

static inline v16 router_score(v16 x, v16 max, enum router_score score)
{
    if (score == ROUTER_SOFTMAX)
        return v_exp(v_sub(x, max));
    v16 one = v_set1(1.0f);
    return v_div(one, v_add(one, v_exp(v_sub(v_zero(), x))));
}

/* Writes scores up to a multiple of 16. */
static void router_scores(float *scores, const float *logits, uint32_t n, enum router_score score)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    float max = ROUTER_LOWEST;
    if (score != ROUTER_SOFTMAX && score != ROUTER_SIGMOID) {
        for (uint32_t i = 0; i < n; i++)
            scores[i] = router_score_of(logits[i], max, score);
        return;
    }
    if (score == ROUTER_SOFTMAX) {
        v16 most = v_set1(max);
        for (uint32_t i = 0; i < whole; i += 16)
            most = v_max(v_load(logits + i), most);
        max = v_max_lanes(most);
        for (uint32_t i = whole; i < n; i++)
            max = logits[i] > max ? logits[i] : max;
    }
    v16 sum = v_zero(), most = v_set1(max);
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 s = router_score(v_load(logits + i), most, score);
        sum = v_add(sum, s);
        v_store(scores + i, s);
    }
    if (rest > 0) {
        v_store_n(scores + whole, router_score(v_load_n(logits + whole, rest), most, score), rest);
        sum = v_add(sum, v_load_n(scores + whole, rest));
    }
    if (score != ROUTER_SOFTMAX)
        return;
    v16 total = v_set1(v_sum(sum));
    for (uint32_t i = 0; i < whole; i += 16)
        v_store(scores + i, v_div(v_load(scores + i), total));
    if (rest > 0)
        v_store_n(scores + whole, v_div(v_load_n(scores + whole, rest), total), rest);
}

static void add_weighted(float *y, const float *x, const float *bias, float w, uint32_t n)
{
    uint32_t whole = n & ~15u, rest = n & 15u;
    v16 weight = v_set1(w);
    for (uint32_t i = 0; i < whole; i += 16) {
        v16 v = v_load(x + i);
        if (bias != NULL)
            v = v_add(v, v_load(bias + i));
        v_store(y + i, v_fma(weight, v, v_load(y + i)));
    }
    if (rest > 0) {
        v16 v = v_load_n(x + whole, rest);
        if (bias != NULL)
            v = v_add(v, v_load_n(bias + whole, rest));
        v_store_n(y + whole, v_fma(weight, v, v_load_n(y + whole, rest)), rest);
    }
}
