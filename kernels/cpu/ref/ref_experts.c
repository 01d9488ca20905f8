#include "kernels/cpu/ref/ref.h"
#include "kernels/router_maths.h"

void ref_router_scores(float *scores, const float *logits, uint32_t n, enum router_score score)
{
    float lanes[LANES] = {0}, max = ROUTER_LOWEST;
    for (uint32_t i = 0; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < n; i++) {
        scores[i] = router_score_of(logits[i], max, score);
        lanes[i % LANES] += scores[i];
    }
    if (score != ROUTER_SOFTMAX)
        return;
    float sum = ref_sum_lanes(lanes);
    for (uint32_t i = 0; i < n; i++)
        scores[i] = scores[i] / sum;
}

void ref_add_weighted(float *y, const float *x, const float *bias, float w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = fmaf(w, bias != NULL ? x[i] + bias[i] : x[i], y[i]);
}
