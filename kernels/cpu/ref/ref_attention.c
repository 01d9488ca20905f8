#include <string.h>

#include "kernels/cpu/attention/kv_code.h"
#include "kernels/cpu/attention/kv_layout.h"
#include "kernels/cpu/ref/ref.h"

/* A query's result over a partition, or over all partitions so far. sum 0: no positions. */
struct result {
    float max, sum, out[ATTENTION_MAX_HEAD_DIM];
};

/* A vector as codes (kv_code.h). */
struct codes {
    int32_t a[ATTENTION_MAX_HEAD_DIM];
    float scale;
};

/* ALiBi of a query in a partition. */
struct bias {
    float slope;
    int32_t to_first; /* distance from the query to the partition's first position */
};

static float code_of(float x, float inv, float limit)
{
    float a = x * inv;
    a = a > -limit ? a : -limit; /* NaN becomes −limit */
    return rintf(a < limit ? a : limit);
}

static float code_scale(const float *x, uint32_t n, float limit, float *out_inv)
{
    float max = 0.0f, poison = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
        poison = fmaf(x[i], 0.0f, poison);
    }
    return kv_code_scale(max, poison, limit, out_inv);
}

float ref_kv_quantize(uint8_t *codes, const float *x, uint32_t n)
{
    float inv, scale = code_scale(x, n, KV_CODE_MAX, &inv);
    for (uint32_t i = 0; i < n; i++)
        codes[i] = (uint8_t)(int32_t)(code_of(x[i], inv, KV_CODE_MAX) + KV_CODE_BIAS);
    return scale;
}

static void widen(const float *x, uint32_t n, struct codes *out)
{
    float inv;
    out->scale = code_scale(x, n, WIDE_CODE_MAX, &inv);
    for (uint32_t i = 0; i < n; i++)
        out->a[i] = (int32_t)code_of(x[i], inv, WIDE_CODE_MAX);
}

static float element(const struct kv_layer *kv, const void *pool, size_t at)
{
    if (kv->dtype == DTYPE_F32)
        return ((const float *)pool)[at];
    uint16_t half = ((const uint16_t *)pool)[at];
    return kv->dtype == DTYPE_F16 ? dtype_f16_to_f32(half) : dtype_bf16_to_f32(half);
}

static int32_t code_at(const struct kv_layer *kv, bool is_key, size_t item, uint32_t d)
{
    uint32_t dim = kv->head_dim;
    const uint8_t *pool = is_key ? kv->k : kv_values_of(kv, &dim);
    const uint8_t *codes = pool + kv_codes_at(kv, dim, item);
    uint32_t lane = item % KV_TILE;
    size_t at = !kv_is_tiled(kv) ? d
                : is_key         ? kv_key_code(lane, d)
                                 : kv_value_code(kv->v_dim, lane, d);
    return codes[at] - KV_CODE_BIAS;
}

static float scale_at(const struct kv_layer *kv, bool is_key, size_t item)
{
    uint32_t dim = kv->head_dim;
    const uint8_t *pool = is_key ? kv->k : kv_values_of(kv, &dim);
    float scale;
    memcpy(&scale, pool + kv_scale_at(kv, dim, item), sizeof(scale));
    return scale;
}

/* q·K of one position, times the softmax scale, plus slope · (the key's position − the query's). */
static float score(const struct attention_tile *t, const float *q, const struct codes *codes,
                   const struct bias *bias, uint32_t i, size_t item)
{
    const struct kv_layer *kv = t->kv;
    float sum = 0.0f;
    if (kv->dtype == DTYPE_I8) {
        int32_t dot = 0;
        for (uint32_t d = 0; d < kv->head_dim; d++)
            dot += codes->a[d] * code_at(kv, true, item, d);
        sum = (float)dot * (codes->scale * t->scale) * scale_at(kv, true, item);
    } else {
        for (uint32_t d = 0; d < kv->head_dim; d++)
            sum = fmaf(q[d], element(kv, kv->k, kv_key_at(kv, item, d)), sum);
        sum *= t->scale;
    }
    if (t->softcap > 0.0f)
        sum = maths_softcap(sum, t->softcap);
    if (bias->slope != 0.0f)
        sum = fmaf(bias->slope, (float)(bias->to_first + (int32_t)i), sum);
    return sum;
}

/* out = Σ p[i]·V[i], i in [begin, end) of the positions at `items`. */
static void weigh(const struct kv_layer *kv, const float *p, const size_t *items, uint32_t begin,
                  uint32_t end, float *out)
{
    if (kv->dtype != DTYPE_I8) {
        uint32_t stride;
        const void *values = kv_values_of(kv, &stride);
        for (uint32_t d = 0; d < kv->v_dim; d++) {
            out[d] = 0.0f;
            for (uint32_t i = begin; i < end; i++)
                out[d] = fmaf(p[i], element(kv, values, items[i] * stride + d), out[d]);
        }
        return;
    }
    float scaled[ATTENTION_PARTITION] = {0};
    struct codes w;
    for (uint32_t i = begin; i < end; i++)
        scaled[i] = p[i] > 0.0f ? p[i] * scale_at(kv, false, items[i]) : 0.0f;
    widen(scaled, ATTENTION_PARTITION, &w);
    for (uint32_t d = 0; d < kv->v_dim; d++) {
        int32_t dot = 0;
        for (uint32_t i = begin; i < end; i++)
            dot += w.a[i] * code_at(kv, false, items[i], d);
        out[d] = (float)dot * w.scale;
    }
}

/* Computes positions [begin, end) of one partition. */
static void attend(const struct attention_tile *t, const float *q, const struct codes *codes,
                   const struct bias *bias, uint32_t base, uint32_t begin, uint32_t end,
                   struct result *out)
{
    float p[ATTENTION_PARTITION], max = -INFINITY, lanes[LANES] = {0};
    size_t items[ATTENTION_PARTITION];
    out->sum = 0.0f;
    if (begin >= end)
        return;
    for (uint32_t i = begin; i < end; i++) {
        items[i] = kv_item_of(t->kv, t->table, t->i_kv, base + i);
        p[i] = score(t, q, codes, bias, i, items[i]);
        max = p[i] > max ? p[i] : max;
    }
    for (uint32_t i = begin; i < end; i++) {
        p[i] = maths_exp(p[i] - max);
        lanes[i % LANES] += p[i];
    }
    weigh(t->kv, p, items, begin, end, out->out);
    out->max = max;
    out->sum = ref_sum_lanes(lanes);
}

static void fold(struct result *out, const struct result *part, uint32_t n)
{
    if (part->sum == 0.0f)
        return;
    if (out->sum == 0.0f) {
        *out = *part;
        return;
    }
    float max = part->max > out->max ? part->max : out->max;
    float keep = maths_exp(out->max - max), take = maths_exp(part->max - max);
    for (uint32_t d = 0; d < n; d++)
        out->out[d] = out->out[d] * keep + part->out[d] * take;
    out->sum = out->sum * keep + part->sum * take;
    out->max = max;
}

/* Computes one query's part over partition `i`. */
static void attend_query(const struct attention_tile *t, uint32_t query, uint32_t i,
                         const struct codes *codes, struct result *out)
{
    uint32_t row = query / t->n_heads, base = i * ATTENTION_PARTITION, end = t->positions[row] + 1,
             begin = attention_first(t->positions[row], t->window, t->chunk);
    const float *q = t->q + row * t->q_stride + (size_t)(query % t->n_heads) * t->kv->head_dim;
    uint32_t first = begin > base ? begin - base : 0, last = end > base ? end - base : 0;
    struct bias bias = {t->slopes ? t->slopes[query % t->n_heads] : 0.0f,
                        (int32_t)base - (int32_t)t->positions[row]};
    attend(t, q, codes, &bias, base, first, last < ATTENTION_PARTITION ? last : ATTENTION_PARTITION,
           out);
}

static void finish(const struct attention_tile *t, uint32_t query, const struct result *r)
{
    uint32_t n = t->kv->v_dim;
    float *y = t->y + query / t->n_heads * t->y_stride + (size_t)(query % t->n_heads) * n;
    float factor = attention_factor(t, query, r->max, r->sum);
    for (uint32_t d = 0; d < n; d++)
        y[d] = r->out[d] * factor;
}

/* Computes one query of a group (`t` is that group alone), in the partitions whose unit `whole`
 * contains. */
static void query_units(const struct attention_tile *whole, const struct attention_tile *t,
                        uint32_t g, uint32_t query, uint32_t first_query)
{
    struct result all = {.sum = 0.0f}, part = {.sum = 0.0f};
    struct codes codes;
    uint32_t n = t->kv->head_dim, n_v = t->kv->v_dim;
    widen(t->q + query / t->n_heads * t->q_stride + (size_t)(query % t->n_heads) * n, n, &codes);
    for (uint32_t u = whole->unit_begin; u < whole->unit_end; u++) {
        if (u % whole->n_groups != g)
            continue;
        attend_query(t, query, u / whole->n_groups, &codes, &part);
        fold(&all, &part, n_v);
        if (whole->parts == NULL)
            continue;
        float *at = attention_result(whole, u / whole->n_groups, first_query + query);
        memcpy(at, part.out, n_v * sizeof(float));
        at[attention_dim(n_v)] = part.max;
        at[attention_dim(n_v) + 1] = part.sum;
    }
    if (whole->parts == NULL)
        finish(t, query, &all);
}

void ref_attention(const struct attention_tile *t, void *scratch)
{
    (void)scratch;
    for (uint32_t g = 0; g < t->n_groups; g++) {
        uint32_t first;
        struct attention_tile group = attention_group_tile(t, g, &first);
        for (uint32_t query = 0; query < t->n_rows * group.n_heads; query++)
            query_units(t, &group, g, query, first);
    }
}

static void fold_query(const struct attention_tile *whole, const struct attention_tile *t,
                       uint32_t query, uint32_t first_query)
{
    struct result all = {.sum = 0.0f}, part = {.sum = 0.0f};
    uint32_t n = t->kv->v_dim;
    for (uint32_t i = whole->unit_begin / whole->n_groups; i < whole->unit_end / whole->n_groups;
         i++) {
        const float *at = attention_result(whole, i, first_query + query);
        memcpy(part.out, at, n * sizeof(float));
        part.max = at[attention_dim(n)];
        part.sum = at[attention_dim(n) + 1];
        fold(&all, &part, n);
    }
    finish(t, query, &all);
}

void ref_attention_fold(const struct attention_tile *t)
{
    for (uint32_t g = 0; g < t->n_groups; g++) {
        uint32_t first;
        struct attention_tile group = attention_group_tile(t, g, &first);
        for (uint32_t query = 0; query < t->n_rows * group.n_heads; query++)
            fold_query(t, &group, query, first);
    }
}
