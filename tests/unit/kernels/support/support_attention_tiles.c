#include "tests/unit/kernels/support/support_attention_tiles.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/dense.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/ref/ref.h"

enum { RUN = 32 };

struct part {
    float max, sum, out[ATTENTION_MAX_HEAD_DIM];
};

static float rounded(float x)
{
    return dtype_bf16_to_f32(dtype_f32_to_bf16(dense_flushed(x)));
}

/* Returns a·b of n elements, added in the order of tiles. */
static float run_of(const float *a, const float *b, size_t b_stride, uint32_t n)
{
    float even = 0.0f, odd = 0.0f;
    for (uint32_t i = 0; i < n; i += 2) {
        even = fmaf(a[i], b[i * b_stride], even);
        odd = i + 1 < n ? fmaf(a[i + 1], b[(i + 1) * b_stride], odd) : odd;
    }
    return even + odd;
}

/* Returns the score of a query and a key. bias: two factors of slope · (position of the key − of
 * the query). */
static float score_of(const float *q, const float *k, const struct setup *s, const float bias[2])
{
    float sum = 0.0f;
    for (uint32_t d = 0; d < s->head_dim; d += RUN)
        sum += run_of(q + d, k + d, 1, s->head_dim - d < RUN ? s->head_dim - d : RUN);
    sum *= 1.0f / sqrtf((float)s->head_dim);
    if (s->softcap > 0.0f)
        sum = maths_softcap(sum, s->softcap);
    return bias[0] != 0.0f ? fmaf(bias[0], bias[1], sum) : sum;
}

/* Positions [begin, end) of a partition, whose K and V begin at k and v, rows `stride` and
 * `v_stride` apart. */
static void attend(const struct setup *s, const float *q, const float *k, size_t stride,
                   const float *v, size_t v_stride, uint32_t v_dim, float slope, uint32_t to_query,
                   uint32_t begin, uint32_t end, struct part *out)
{
    float p[ATTENTION_PARTITION] = {0}, lanes[16] = {0};
    out->sum = 0.0f;
    out->max = -INFINITY;
    if (begin >= end)
        return;
    for (uint32_t i = begin; i < end; i++) {
        p[i] = score_of(q, k + i * stride, s, (float[2]){slope, (float)i - (float)to_query});
        out->max = p[i] > out->max ? p[i] : out->max;
    }
    for (uint32_t i = begin; i < end; i++) {
        p[i] = maths_exp(p[i] - out->max);
        lanes[i % 16] += p[i];
    }
    out->sum = ref_sum_lanes(lanes);
    for (uint32_t i = begin; i < end; i++)
        p[i] = rounded(p[i]);
    for (uint32_t d = 0; d < v_dim; d++) {
        out->out[d] = 0.0f;
        for (uint32_t i = 0; i < end; i += RUN)
            out->out[d] +=
                run_of(p + i, v + i * v_stride + d, v_stride, end - i < RUN ? end - i : RUN);
    }
}

static void fold(struct part *all, const struct part *part, uint32_t n)
{
    if (part->sum == 0.0f)
        return;
    if (all->sum == 0.0f) {
        *all = *part;
        return;
    }
    float max = part->max > all->max ? part->max : all->max;
    float keep = maths_exp(all->max - max), take = maths_exp(part->max - max);
    for (uint32_t d = 0; d < n; d++)
        all->out[d] = all->out[d] * keep + part->out[d] * take;
    all->sum = all->sum * keep + part->sum * take;
    all->max = max;
}

static float *rounded_all(const float *x, size_t n)
{
    float *out = malloc(n * sizeof(*out));
    for (size_t i = 0; i < n; i++)
        out[i] = rounded(x[i]);
    return out;
}

float *attend_in_tile_order(const struct world *w)
{
    const struct setup *s = w->s;
    size_t kv_cols = (size_t)s->n_kv * s->head_dim, cols = (size_t)s->n_heads * s->head_dim;
    size_t v_cols = (size_t)s->n_kv * w->v_dim, y_cols = (size_t)s->n_heads * w->v_dim;
    float *k = rounded_all(w->k, w->n_tokens * kv_cols),
          *v = rounded_all(w->v, w->n_tokens * v_cols), *q = rounded_all(w->q, w->n_tokens * cols),
          *y = malloc(w->n_tokens * y_cols * sizeof(*y));
    for (uint32_t t = 0; t < w->n_tokens; t++)
        for (uint32_t h = 0; h < s->n_heads; h++) {
            struct part all = {.sum = 0.0f}, part = {.sum = 0.0f};
            uint32_t n = w->positions[t] + 1;
            uint32_t begin = attention_first(w->positions[t], s->window, w->chunk);
            size_t head = h / (s->n_heads / s->n_kv), at = t * cols + (size_t)h * s->head_dim;
            for (uint32_t base = 0; base < n; base += ATTENTION_PARTITION) {
                uint32_t end = n - base < ATTENTION_PARTITION ? n - base : ATTENTION_PARTITION;
                size_t first = t - w->positions[t] + base;
                attend(s, q + at, k + first * kv_cols + head * s->head_dim, kv_cols,
                       v + first * v_cols + head * w->v_dim, v_cols, w->v_dim,
                       w->slopes ? w->slopes[h] : 0.0f, w->positions[t] - base,
                       begin > base ? begin - base : 0, end, &part);
                fold(&all, &part, w->v_dim);
            }
            const struct attention_tile tile = {.n_heads = s->n_heads, .sinks = w->sinks};
            float factor = attention_factor(&tile, h, all.max, all.sum);
            for (uint32_t d = 0; d < w->v_dim; d++)
                y[t * y_cols + (size_t)h * w->v_dim + d] = all.out[d] * factor;
        }
    free(k);
    free(v);
    free(q);
    return y;
}
