/* sample.h: turns a row of logits into a token. The stages, in this order: penalties → bias and
 * masks → temperature → top-k → typical → top-p → min-p → draw. The logprobs are the log-softmax of
 * the unmodified f32 logits. Sums and maxima over the vocabulary use 8 segments and the fixed tree.
 * The draw is the inverse CDF over the remaining candidates in ascending token id. Its random
 * number is a Philox4x32-10 number [Salmon et al., SC 2011], keyed by the seed and indexed by
 * (choice, position). Nothing else affects the draw. temperature 0 = argmax (lowest id among
 * equals), after penalties, bias and masks.
 *
 * In full, for one row x of the vocabulary's V logits (f32 unless said otherwise):
 *  - penalties, per listed token: x = x > 0 ? x / r : x · r; then x −= frequency · n_generated;
 * then, if n_generated > 0, x −= presence;
 *  - x += bias, in list order; with a watermark x += SAMPLE_WATERMARK_DELTA for green tokens (see
 * below); x = −∞ if the token's mask bit is 0;
 *  - w = exp((x − max x) / temperature), by the polynomial of sample_math.h; exactly 0 below −87;
 *  - top-k keeps the k largest x (ties: lower id);
 *  - typical keeps the tokens whose −log p lies nearest the entropy, until their p reach typical_p
 * [arXiv 2202.00666];
 *  - top-p keeps the largest w (ties: lower id) until they reach top_p of the sum;
 *  - min-p keeps w ≥ min_p of the largest. Each stage sees only the tokens that the stage before
 * kept, and keeps at least one;
 *  - sums over the vocabulary (Σw, typical's entropy Σ w/Σw · (log Σw − log w)): 8 segments of
 * 32-token units (segments.h). Within a segment: 16 lanes by (id − begin) mod 16 in ascending id;
 * lanes are added as a tree 8 4 2 1. Segments are added as
 *    ((s0+s1)+(s2+s3))+((s4+s5)+(s6+s7));
 *  - u = (first word of Philox4x32-10(counter = position, choice, 0, 0; key = low and high word of
 *    the seed) + 1/2) / 2^32, in f64; t = u · Σw. While t ≥ a segment's sum, the segment is skipped
 *    and its sum is subtracted from t. Then the token is drawn at which the running f64 sum of w
 *    first exceeds t.
 *
 * The watermark is the soft one of Kirchenbauer et al., arXiv 2301.10226, algorithm 2, with context
 * width 1, gamma = 1/2 and delta = 2. The previous token decides which tokens are green. Token t is
 * green if word t mod 4 of Philox4x32-10(counter = t div 4, 0, 0, SAMPLE_WATERMARK_TAG; key =
 * previous token, SAMPLE_WATERMARK_KEY) is below 2^31. Each token is drawn on its own, so half of
 * the vocabulary is green on average, not exactly.
 *
 * A row with `score` draws no token: its result is score_id with its log-probability. */
#pragma once

#include <stdint.h>

struct sample_bias {
    uint32_t id;
    float value; /* added to the logit; -INFINITY bans the token */
};

struct sample_count {
    uint32_t id;
    uint32_t
        n_generated; /* occurrences among the generated tokens: presence and frequency penalty */
    /* A token in the list (prompt or generated) takes the repetition penalty. */
};

/* Parameters of a row. Arrays are borrowed for the call. */
struct sample_params {
    float temperature;        /* 0 = greedy */
    uint32_t top_k;           /* 0 = off */
    float top_p;              /* 1 = off */
    float min_p;              /* 0 = off */
    float typical_p;          /* 1 = off */
    float repetition_penalty; /* 1 = off */
    float presence_penalty, frequency_penalty;
    uint64_t seed;
    uint32_t choice, position; /* position = index of the token among the generated tokens */
    const struct sample_count *counts;
    uint32_t n_counts;
    const struct sample_bias *biases;
    uint32_t n_biases;
    const uint32_t *allowed_mask; /* a bit per token id, 1 = allowed; NULL = all */
    uint32_t n_top;               /* number of top_ids/top_logprobs to return, 0..20 */
    uint8_t want_logprob;
    uint8_t watermark;
    uint8_t score;
    uint32_t previous_id; /* watermark: the previous token */
    uint32_t score_id;
};

#define SAMPLE_WATERMARK_KEY 0x0EC6AA8Du /* an arbitrary number; detectors must know it */
#define SAMPLE_WATERMARK_TAG                                                                       \
    0x67726565u /* gives the watermark other random numbers than the draw */
#define SAMPLE_WATERMARK_DELTA 2.0f

enum { SAMPLE_MAX_TOP = 20 };

struct sample_result {
    uint32_t id;
    uint32_t n_top;
    float
        logprob; /* log-probability of `id` under the unmodified logits; NaN unless want_logprob */
    uint32_t top_ids[SAMPLE_MAX_TOP];
    float top_logprobs[SAMPLE_MAX_TOP]; /* descending, ties by id */
    /* Status of this row alone: 0; STATUS_DATA_LOSS if a logit is NaN or +∞ (a broken step);
     * STATUS_FAILED_PRECONDITION if bias and masks ban every token. On an error `id` is 0. Other
     * rows are not affected. */
    int status;
};
