#include <string.h>

#include "kernels/cpu/kv_layout.h"
#include "kernels/cpu/ref.h"

static float element(const struct kv_layer *kv, const void *pool, size_t at)
{
    if (kv->dtype == DTYPE_F32)
        return ((const float *)pool)[at];
    uint16_t half = ((const uint16_t *)pool)[at];
    return kv->dtype == DTYPE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

static float key(const struct attention_tile *t, uint32_t position, uint32_t d)
{
    size_t item = kv_item_of(t->kv, t->table, t->i_kv, position);
    return element(t->kv, t->kv->k, kv_key_at(t->kv, item, d));
}

static float value(const struct attention_tile *t, uint32_t position, uint32_t d)
{
    size_t item = kv_item_of(t->kv, t->table, t->i_kv, position);
    return element(t->kv, t->kv->v, item * t->kv->head_dim + d);
}

static float score(const struct attention_tile *t, const float *q, uint32_t position)
{
    float sum = 0.0f;
    for (uint32_t d = 0; d < t->kv->head_dim; d++)
        sum = fmaf(q[d], key(t, position, d), sum);
    sum *= t->scale;
    if (t->softcap > 0.0f)
        sum = t->softcap * (1.0f - 2.0f / (1.0f + ref_exp(sum * (2.0f / t->softcap))));
    return sum;
}

/* One partition, positions [begin, end) of it: weights p, their sum by lanes, and the maximum. */
static float weigh(const struct attention_tile *t, const float *q, uint32_t base, uint32_t begin,
                   uint32_t end, float p[ATTENTION_PARTITION], float *out_max)
{
    float max = -INFINITY, lanes[LANES] = {0};
    for (uint32_t i = begin; i < end; i++) {
        p[i] = score(t, q, base + i);
        max = p[i] > max ? p[i] : max;
    }
    for (uint32_t i = begin; i < end; i++) {
        p[i] = ref_exp(p[i] - max);
        lanes[i % LANES] += p[i];
    }
    *out_max = max;
    return ref_sum_lanes(lanes);
}

/* Attention of one query: partition by partition, folded in index order. */
static void attend(const struct attention_tile *t, const float *q, uint32_t position, float *y)
{
    uint32_t end = position + 1, begin = t->window > 0 && end > t->window ? end - t->window : 0;
    uint32_t n = t->kv->head_dim;
    float max = 0.0f, sum = 0.0f, out[ATTENTION_MAX_HEAD_DIM] = {0};
    for (uint32_t base = begin / ATTENTION_PARTITION * ATTENTION_PARTITION; base < end;
         base += ATTENTION_PARTITION) {
        float p[ATTENTION_PARTITION], part_max;
        uint32_t first = begin > base ? begin - base : 0,
                 last = end - base < ATTENTION_PARTITION ? end - base : ATTENTION_PARTITION;
        float part_sum = weigh(t, q, base, first, last, p, &part_max);
        float new_max = sum == 0.0f || part_max > max ? part_max : max;
        float keep = sum == 0.0f ? 0.0f : ref_exp(max - new_max),
              take = ref_exp(part_max - new_max);
        for (uint32_t d = 0; d < n; d++) {
            float part = 0.0f;
            for (uint32_t i = first; i < last; i++)
                part = fmaf(p[i], value(t, base + i, d), part);
            out[d] = sum == 0.0f ? part : out[d] * keep + part * take;
        }
        sum = sum == 0.0f ? part_sum : sum * keep + part_sum * take;
        max = new_max;
    }
    for (uint32_t d = 0; d < n; d++)
        y[d] = out[d] * (1.0f / sum);
}

void ref_attention(const struct attention_tile *t, void *scratch)
{
    (void)scratch;
    for (uint32_t r = 0; r < t->n_rows; r++)
        for (uint32_t h = 0; h < t->n_heads; h++) {
            size_t column = (size_t)h * t->kv->head_dim;
            attend(t, t->q + r * t->q_stride + column, t->positions[r],
                   t->y + r * t->y_stride + column);
        }
}
