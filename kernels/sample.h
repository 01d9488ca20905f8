/* sample.h: from a row of logits to a token. The chain, in this order: penalties → bias and masks →
 * temperature → top-k → typical → top-p → min-p → draw. logprobs are the log-softmax of the
 * unmodified f32 logits. Σexp and maxima use 8 vocabulary segments and the fixed tree. The draw is
 * the inverse CDF in ascending token id over the surviving candidates, by one Philox4x32-10 number
 * keyed by the seed and indexed by (choice, position) [Salmon et al., SC 2011], so it depends on
 * nothing else. temperature 0 = argmax (lowest id among equals), after penalties, bias and masks.
 */
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
    /* A token listed at all (prompt or generated) takes the repetition penalty. */
};

/* What one row asks. Arrays are borrowed for the call. */
struct sample_params {
    float temperature;        /* 0 = greedy */
    uint32_t top_k;           /* 0 = off */
    float top_p;              /* 1 = off */
    float min_p;              /* 0 = off */
    float typical_p;          /* 1 = off */
    float repetition_penalty; /* 1 = off */
    float presence_penalty, frequency_penalty;
    uint64_t seed;
    uint32_t choice, position; /* position = index of the token among the generated */
    const struct sample_count *counts;
    uint32_t n_counts;
    const struct sample_bias *biases;
    uint32_t n_biases;
    const uint32_t *allowed_mask; /* bit per token id, 1 = allowed; NULL = all */
    uint32_t n_top;               /* top_ids/top_logprobs wanted, 0..20 */
    uint8_t want_logprob;
};

enum { SAMPLE_MAX_TOP = 20 };

struct sample_result {
    uint32_t id;
    uint32_t n_top;
    float logprob; /* of id, under the unmodified logits; NaN unless wanted */
    uint32_t top_ids[SAMPLE_MAX_TOP];
    float top_logprobs[SAMPLE_MAX_TOP]; /* descending, ties by id */
};
