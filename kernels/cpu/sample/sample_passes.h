/* sample_passes.h: the sampler's passes over a whole vocabulary row, as a small table per ISA. The
 * same source (sample_passes_impl.h) is compiled with different flags. Multiplications are not
 * fused with additions, and every sum has a fixed order. So all tables give the same bits. Any
 * thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { SAMPLE_LANES = 16, SAMPLE_UNIT = 32, SAMPLE_SEGMENTS = 8 };

/* Bounds of the vocabulary's 8 segments. */
struct sample_segments {
    uint32_t bounds[SAMPLE_SEGMENTS + 1];
};
void sample_segments_init(struct sample_segments *seg, uint32_t vocab);

struct sample_passes {
    /* Finds the largest of x[0..n), n ≥ 1. Returns false if a value is NaN or +∞. */
    bool (*max_checked)(const float *x, uint32_t n, float *out_max);
    /* w[i] = exp((x[i] − max) / divisor); w may be x. */
    void (*exp_row)(float *w, const float *x, uint32_t n, float max, float divisor);
    /* Σ w per segment, by lanes. */
    void (*sum_segments)(const float *w, const struct sample_segments *seg,
                         float out_sums[SAMPLE_SEGMENTS]);
    /* Σ w/sum · (log_sum − log w) per segment, by lanes; w is 0 or a normal number. */
    void (*entropy_segments)(const float *w, const struct sample_segments *seg, float sum,
                             float log_sum, float out_sums[SAMPLE_SEGMENTS]);
    /* Zeroes w[i] < threshold. */
    void (*cut_below)(float *w, uint32_t n, float threshold);
    /* y[i] = x[i] for `last`, whose value is `bound`, and for all tokens before it in the order of
     * sample_select.h. The others become −∞. The row y may be x. */
    void (*keep_to)(float *y, const float *x, uint32_t n, float bound, uint32_t last);
    /* Returns the first i ≥ begin with x[i] > bound, or n. */
    uint32_t (*next_above)(const float *x, uint32_t begin, uint32_t n, float bound);
    /* Lists all i with x[i] > bound in ids, which has room for n. Returns their number and their
     * f64 sum. */
    uint32_t (*gather_above)(const float *x, uint32_t n, float bound, uint32_t *ids,
                             double *out_sum);
    /* Adds the watermark's delta to the green tokens that follow `previous_id`. */
    void (*add_watermark)(float *x, uint32_t n, uint32_t previous_id);
};

extern const struct sample_passes sample_passes_base, sample_passes_avx2, sample_passes_avx512;

/* Returns the fastest table that this CPU supports. */
const struct sample_passes *sample_passes(void);

/* Adds the segment sums by the contract's tree. */
float sample_tree(const float sums[SAMPLE_SEGMENTS]);
