/* sample_order.h: the arithmetic of the CUDA sampler, as functions of plain numbers (C11 and C++):
 * the order of candidates, their bins, and the random number. Sums of weights do not depend on the
 * order of additions. The whole is described in sample_pass.h. */
#pragma once

#include <math.h>
#include <stdbool.h>

#include "kernels/cpu/sample/sample_math.h"
#include "kernels/cuda/index.h"
#include "kernels/sample.h"

#define SAMPLE_LARGEST_LOGIT 1e30f

enum {
    SAMPLE_DIGIT_BITS = 10,
    SAMPLE_BINS = 1 << SAMPLE_DIGIT_BITS,
    SAMPLE_LIMBS = 5, /* limbs of a weight in fixed point: 60 bits, the lowest 2^-59 */
    SAMPLE_LIMB_BITS = 12,
    SAMPLE_COUNT = SAMPLE_LIMBS, /* a bin's last word: the number of candidates */
    SAMPLE_BIN_WORDS,
    SAMPLE_CUDA_MAX_VOCAB = 1 << 20, /* so that a limb's sum over all tokens fits 32 bits */
};

/* The orders of candidates for a cut: of top-k, top-p and typical. */
enum sample_order { SAMPLE_BY_LOGIT, SAMPLE_BY_WEIGHT, SAMPLE_BY_TYPICAL };

/* The values of a row on which an order depends. */
struct sample_frame {
    float max;              /* BY_LOGIT: the largest logit */
    float log_sum, entropy; /* BY_TYPICAL */
};

/* A candidate's place in an order. Earlier candidates have larger keys; the first different word
 * decides. Keys are unique. */
struct sample_key {
    uint32_t words[3];
};

CUDA_HD uint32_t sample_bits(float x)
{
    union {
        float f;
        uint32_t u;
    } bits;
    bits.f = x;
    return bits.u;
}

CUDA_HD float sample_bounded(float x)
{
    return x > SAMPLE_LARGEST_LOGIT                     ? SAMPLE_LARGEST_LOGIT
           : x < -SAMPLE_LARGEST_LOGIT && x > -INFINITY ? -SAMPLE_LARGEST_LOGIT
                                                        : x;
}

/* Returns a listed token's logit with its penalties. */
CUDA_HD float sample_penalized(const struct sample_params *p, uint32_t n_generated, float x)
{
    x = sample_bounded(x > 0.0f ? x / p->repetition_penalty : x * p->repetition_penalty);
    x -= p->frequency_penalty * (float)n_generated;
    if (n_generated)
        x -= p->presence_penalty;
    return sample_bounded(x);
}

/* Philox4x32-10 [Salmon et al., SC 2011] of counter (c0, c1, 0, c3): output word `word`. */
CUDA_HD uint32_t sample_philox(uint32_t c0, uint32_t c1, uint32_t c3, uint32_t k0, uint32_t k1,
                               uint32_t word)
{
    uint32_t c2 = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3;
}

CUDA_HD bool sample_is_green(uint32_t id, uint32_t previous_id)
{
    return sample_philox(id / 4, 0, SAMPLE_WATERMARK_TAG, previous_id, SAMPLE_WATERMARK_KEY,
                         id % 4) < 1u << 31;
}

/* Returns the segment to draw from, and *out_target within it; CUDA_SEGMENTS if rounding left the
 * target past the end. `total` is the tree over sums. */
CUDA_HD uint32_t sample_target(const struct sample_params *p, const float sums[CUDA_SEGMENTS],
                               float total, double *out_target)
{
    uint32_t random =
        sample_philox(p->position, p->choice, 0, (uint32_t)p->seed, (uint32_t)(p->seed >> 32), 0);
    double target = ((double)random + 0.5) * 0x1p-32 * (double)total;
    uint32_t s = 0;
    while (s < CUDA_SEGMENTS && target >= (double)sums[s])
        target -= (double)sums[s++];
    *out_target = target;
    return s;
}

CUDA_HD float sample_tree_of(const float sums[CUDA_SEGMENTS])
{
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) +
           ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/* Returns a token's term of the entropy. */
CUDA_HD float sample_entropy_term(float w, float sum, float log_sum)
{
    return w > 0.0f ? (w / sum) * (log_sum - sample_log(w)) : 0.0f;
}

/* --- orders --- */

/* Returns the distance of a token's −log p from the entropy; *out_likelier: it is on the likelier
 * side. */
CUDA_HD float sample_typical_distance(const struct sample_frame *f, float w, bool *out_likelier)
{
    float surprise = f->log_sum - sample_log(w);
    *out_likelier = surprise < f->entropy;
    return fabsf(surprise - f->entropy);
}

/* value: the logit, or a weight > 0. Typical walks from the entropy outwards along (w descending,
 * id ascending). So among equally near candidates the likelier side comes first, from its low
 * end. */
CUDA_HD struct sample_key sample_key_of(enum sample_order order, const struct sample_frame *f,
                                        float value, uint32_t id)
{
    struct sample_key key = {{cuda_ordered_key(value), 0, ~id}};
    if (order != SAMPLE_BY_TYPICAL)
        return key;
    bool likelier;
    float distance = sample_typical_distance(f, value, &likelier);
    key.words[0] = (~cuda_ordered_key(distance) << 1) | (likelier ? 1u : 0u);
    key.words[1] = likelier ? ~sample_bits(value) : sample_bits(value);
    key.words[2] = likelier ? id : ~id;
    return key;
}

/* Returns true if a comes after b. */
CUDA_HD bool sample_is_after(const struct sample_key *a, const struct sample_key *b)
{
    if (a->words[0] != b->words[0])
        return a->words[0] < b->words[0];
    if (a->words[1] != b->words[1])
        return a->words[1] < b->words[1];
    return a->words[2] < b->words[2];
}

/* Returns true if the first i words are equal. */
CUDA_HD bool sample_starts_alike(const struct sample_key *a, const struct sample_key *b, uint32_t i)
{
    return (i < 1 || a->words[0] == b->words[0]) && (i < 2 || a->words[1] == b->words[1]);
}

/* Returns word i without indexing, so that a key stays in registers. */
CUDA_HD uint32_t sample_key_word(const struct sample_key *key, uint32_t i)
{
    return i == 0 ? key->words[0] : i == 1 ? key->words[1] : key->words[2];
}

CUDA_HD void sample_set_word(struct sample_key *key, uint32_t i, uint32_t word)
{
    key->words[0] = i == 0 ? word : key->words[0];
    key->words[1] = i == 1 ? word : key->words[1];
    key->words[2] = i == 2 ? word : key->words[2];
}

/* Maps d ≥ 0 to 0..1023 by steps that grow with 1 + d, 64 per octave. Monotonic. */
CUDA_HD uint32_t sample_octaves(float d)
{
    uint32_t steps = (sample_bits(1.0f + d) - sample_bits(1.0f)) >> 17;
    return steps < SAMPLE_BINS ? steps : SAMPLE_BINS - 1;
}

/* Returns the bin of a candidate, never smaller than that of a later candidate. Weights have 32
 * bins per octave; all below 2^-32 are in bin 0. */
CUDA_HD uint32_t sample_bin_of(enum sample_order order, const struct sample_frame *f, float value)
{
    const uint32_t lowest = (127 - 32) << 5;
    bool likelier;
    if (order == SAMPLE_BY_LOGIT)
        return SAMPLE_BINS - 1 - sample_octaves(f->max - value);
    if (order == SAMPLE_BY_TYPICAL)
        return SAMPLE_BINS - 1 - sample_octaves(sample_typical_distance(f, value, &likelier));
    uint32_t step = sample_bits(value) >> 18;
    step = step > lowest ? step - lowest : 0;
    return step < SAMPLE_BINS ? step : SAMPLE_BINS - 1;
}

/* Returns a bound below which weights are never in a nucleus of top_p. All weights below it
 * together are less than half of the mass that the nucleus leaves out. The sum is at least 1, the
 * weight of the likeliest token. 0 if rounding of the sum could matter. */
CUDA_HD float sample_nucleus_floor(float top_p, uint32_t vocab)
{
    float left_out = 1.0f - top_p;
    return left_out > 1e-3f ? left_out * 0.5f / (float)vocab : 0.0f;
}

/* --- weights as whole numbers --- */

/* Returns a weight in (0, 1] in units of 2^-59; exact from 2^-36 on. */
CUDA_HD uint64_t sample_fixed(float w)
{
    uint32_t bits = sample_bits(w);
    uint64_t significand = (bits & 0x007FFFFFu) | 0x00800000u;
    int32_t shift = (int32_t)(bits >> 23) - 127 + 36;
    return shift >= 0 ? significand << shift : shift > -24 ? significand >> -shift : 0;
}

/* Returns limb i; limb 0 is the highest. */
CUDA_HD uint32_t sample_limb(uint64_t fixed, uint32_t i)
{
    return (uint32_t)(fixed >> (SAMPLE_LIMB_BITS * (SAMPLE_LIMBS - 1 - i))) &
           ((1u << SAMPLE_LIMB_BITS) - 1);
}

/* Returns the value of limbs that were summed separately. */
CUDA_HD double sample_mass(const uint32_t limbs[SAMPLE_LIMBS])
{
    double unit = 0x1p-11, mass = 0.0;
    for (uint32_t i = 0; i < SAMPLE_LIMBS; i++) {
        mass += (double)limbs[i] * unit;
        unit *= 0x1p-12;
    }
    return mass;
}

/* --- index arithmetic --- */

/* Returns the beginning of part i of n_parts of a row, in whole units of 32 tokens. */
CUDA_HD uint32_t sample_part_bound(uint32_t vocab, uint32_t i, uint32_t n_parts)
{
    uint64_t units = ((uint64_t)vocab + CUDA_UNIT - 1) / CUDA_UNIT;
    uint64_t bound = units * i / n_parts * CUDA_UNIT;
    return bound < vocab ? (uint32_t)bound : vocab;
}

/* Returns the index of the first of n ascending ids that is not below `bound`; n if all are
 * below. */
CUDA_HD uint32_t sample_lower_bound(const uint32_t *ids, uint32_t n, uint32_t bound)
{
    uint32_t low = 0;
    while (low < n) {
        uint32_t middle = low + (n - low) / 2;
        if (ids[middle] < bound)
            low = middle + 1;
        else
            n = middle;
    }
    return low;
}
