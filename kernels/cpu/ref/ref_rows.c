#include <string.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/linear/linear_int.h"
#include "kernels/cpu/ref/ref.h"
#include "kernels/cpu/vec/rope_impl.h"

void ref_abs_stats(const float *x, uint32_t n, float *out_sum, float *out_max)
{
    float lanes[LANES] = {0}, max = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        lanes[i % LANES] += fabsf(x[i]);
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    }
    *out_sum = ref_sum_lanes(lanes);
    *out_max = max;
}

void ref_quantize(struct act_cpu *act, uint32_t row, const float *x, uint32_t n, float inv)
{
    int8_t *lo_row = act->lo + (size_t)row * act->k_pad;
    struct act_outlier *outliers = act->outliers + (size_t)row * (act->k_pad / ACT_GROUP);
    uint32_t n_outliers = 0;
    for (uint32_t run = 0; run < act->k_pad / ACT_RUN; run++) {
        int32_t halves[2] = {0, 0};
        for (uint32_t group = run * 8; group < run * 8 + 8; group++) {
            int8_t hi[ACT_GROUP];
            int32_t any = 0;
            for (uint32_t j = 0; j < ACT_GROUP; j++) {
                uint32_t k = group * ACT_GROUP + j;
                float a = x != NULL && k < n ? rintf(x[k] * inv) : 0.0f;
                float high = rintf(a * (1.0f / 255.0f));
                hi[j] = (int8_t)high;
                lo_row[k] = (int8_t)(a - 255.0f * high);
                halves[group % 8 / 4] += lo_row[k];
                any |= hi[j];
            }
            if (any != 0)
                outliers[n_outliers++] = act_outlier_of(group, hi);
        }
        act_put_sums(act, row, run, halves[0], halves[1]);
    }
    act->n_outliers[row] = n_outliers;
}

void ref_rms_norm(float *y, const float *x, const float *w, uint32_t n, float eps)
{
    float lanes[LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lanes[i % LANES] = fmaf(x[i], x[i], lanes[i % LANES]);
    float scale = 1.0f / sqrtf(ref_sum_lanes(lanes) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

void ref_layer_norm(float *y, const float *x, const float *w, const float *b, uint32_t n, float eps)
{
    float sums[LANES] = {0}, squares[LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        sums[i % LANES] += x[i];
    float mean = ref_sum_lanes(sums) / (float)n;
    for (uint32_t i = 0; i < n; i++)
        squares[i % LANES] = fmaf(x[i] - mean, x[i] - mean, squares[i % LANES]);
    float scale = 1.0f / sqrtf(ref_sum_lanes(squares) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        y[i] = (x[i] - mean) * scale * w[i];
        if (b != NULL)
            y[i] += b[i];
    }
}

void ref_add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += x[i];
}

void ref_scale(float *x, uint32_t n, float factor, float softcap)
{
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= factor;
        if (softcap > 0.0f)
            x[i] = maths_softcap(x[i], softcap);
    }
}

void ref_act_mul(float *y, const float *gate, const float *up, uint32_t n, enum activation kind)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = up != NULL ? maths_gated(gate[i], up[i], kind) : maths_activate(gate[i], kind);
}

void ref_kv_store(void *dst, enum dtype type, const float *src, uint32_t n)
{
    uint16_t *halves = dst;
    if (type == DTYPE_F32)
        memcpy(dst, src, n * sizeof(*src));
    else
        for (uint32_t i = 0; i < n; i++)
            halves[i] = type == DTYPE_F16 ? dtype_f32_to_f16(src[i])
                                          : dtype_f32_to_bf16(dense_flushed(src[i]));
}

const struct cpu_inner cpu_inner_ref = {
    .name = "ref",
    .row_block_bytes = 384 * 1024,
    .abs_stats = ref_abs_stats,
    .quantize = ref_quantize,
    .linear_int = linear_exact,
    .bf16_columns = 1,
    .round_bf16 = ref_round_bf16,
    .linear_dense = dense_ref_linear,
    .rms_norm = ref_rms_norm,
    .layer_norm = ref_layer_norm,
    .add = ref_add,
    .act_mul = ref_act_mul,
    .scale = ref_scale,
    .router_scores = ref_router_scores,
    .add_weighted = ref_add_weighted,
    .rope = rope_row,
    .kv_store = ref_kv_store,
    .kv_quantize = ref_kv_quantize,
    .attention = ref_attention,
    .attention_fold = ref_attention_fold,
    .conv_taps = ref_conv_taps,
    .conv_row = ref_conv_row,
    .l2_norm = ref_l2_norm,
    .span_gates = ref_span_gates,
    .delta_span = ref_delta_span,
    .ssm_span = ref_ssm_span,
};
