#include <math.h>

#include "engine/model/shape.h"

void shape_alibi_slopes(double bias, uint32_t n_heads, float *slopes)
{
    uint32_t n = 1;
    while (n <= n_heads / 2)
        n *= 2;
    for (uint32_t h = 0; h < n_heads; h++) {
        double turns = h < n ? h + 1.0 : (2.0 * (h - n) + 1.0) / 2;
        slopes[h] = (float)exp2(-bias * turns / n);
    }
}

/* GGUF gives pairs that do not turn a divisor of 1e30. */
#define NEVER_TURNS 1e29
#define TWO_PI      6.283185307179586

/* The dimension (of n_rot) with `turns` wavelengths in the original context. */
static double yarn_dim(const struct rope_set *s, double turns)
{
    return s->n_rot * log(s->original_context / (turns * TWO_PI)) / (2 * log(s->base));
}

/* The ends of YaRN's ramp, in pairs of dimensions. */
static void yarn_ends(const struct rope_set *s, double *out_low, double *out_high)
{
    double low = yarn_dim(s, s->beta_fast), high = yarn_dim(s, s->beta_slow);
    *out_low = fmax(0, s->truncate ? floor(low) : low);
    *out_high = fmin(s->n_rot - 1, s->truncate ? ceil(high) : high);
}

static double mscale_of(const struct rope_set *s, double k)
{
    return s->factor > 1 ? 1 + 0.1 * k * log(s->factor) : 1;
}

double shape_rope_score_factor(const struct rope_set *s)
{
    double m = s->scaling == ROPE_SCALING_YARN ? mscale_of(s, s->mscale_all) : 1;
    return m * m;
}

/* The scaling's own factor of cos and sin. */
static double own_factor(const struct rope_set *s)
{
    if (s->scaling == ROPE_SCALING_LONGROPE)
        return s->factor > 1 ? sqrt(1 + log(s->factor) / log(s->original_context)) : 1;
    /* YaRN without its ramp is linear scaling. */
    if (s->scaling != ROPE_SCALING_YARN || s->ext_factor == 0)
        return 1;
    if (s->mscale > 0 && s->mscale_all > 0)
        return mscale_of(s, s->mscale) / mscale_of(s, s->mscale_all);
    return mscale_of(s, 1);
}

/* The factor of cos and sin. `attn_factor` counts in every scaling, as in llama.cpp. `attention` is
 * a key of YaRN and longrope in transformers. */
static double attention_factor(const struct rope_set *s)
{
    bool has_own = s->scaling == ROPE_SCALING_YARN || s->scaling == ROPE_SCALING_LONGROPE;
    return has_own && s->attention > 0 ? s->attention : s->attn_factor * own_factor(s);
}

/* Llama 3: long waves are slowed down by the factor, short waves stay, with a ramp between. */
static double llama3_share(const struct rope_set *s, double f)
{
    double turns = s->original_context * f / TWO_PI;
    double keep = (turns - s->low_freq) / (s->high_freq - s->low_freq);
    return fmin(1, fmax(0, keep));
}

static double stretched_base(const struct rope_set *s)
{
    double n = s->n_rot;
    return s->alpha > 0 && n > 2 ? s->base * pow(s->alpha, n / (n - 2)) : s->base;
}

float shape_rope_freqs(const struct rope_set *s, const float *divisors, float *inv_freq)
{
    bool yarn = s->scaling == ROPE_SCALING_YARN;
    bool unscaled = s->scaling == ROPE_SCALING_NONE || s->scaling == ROPE_SCALING_DYNAMIC ||
                    s->scaling == ROPE_SCALING_LONGROPE;
    bool proportional = s->scaling == ROPE_SCALING_PROPORTIONAL;
    double scale = unscaled ? 1 : 1 / s->factor, base = stretched_base(s);
    double low = 0, high = 0;
    if (yarn)
        yarn_ends(s, &low, &high);
    for (uint32_t i = 0; i < s->n_rot / 2; i++) {
        double f = pow(base, -2.0 * i / s->n_rot);
        if (divisors)
            f /= (double)divisors[i];
        double ramp = (i - low) / fmax(0.001, high - low);
        double keep = yarn ? (1 - fmin(1, fmax(0, ramp))) * s->ext_factor : 0;
        if (s->scaling == ROPE_SCALING_LLAMA3)
            keep = llama3_share(s, f);
        bool stays =
            (proportional && i >= s->n_turning) || (divisors && (double)divisors[i] >= NEVER_TURNS);
        inv_freq[i] = stays ? 0 : (float)(f * (scale * (1 - keep) + keep));
    }
    return (float)attention_factor(s);
}
