/* sample_passes_impl.h: the source of all tables of passes. Each sample_passes*.c defines PASSES
 * (the name of its table) and includes this file. Plain loops of 16 lanes, which the compiler
 * vectorises. */
#include <float.h>
#include <math.h>

#include "kernels/cpu/sample/sample_math.h"
#include "kernels/cpu/sample/sample_passes.h"
#include "kernels/sample.h"

static bool max_checked(const float *x, uint32_t n, float *out_max)
{
    float lanes[SAMPLE_LANES];
    uint32_t bad[SAMPLE_LANES] = {0};
    uint32_t whole = n - n % SAMPLE_LANES, any = 0;
    for (int j = 0; j < SAMPLE_LANES; j++)
        lanes[j] = -FLT_MAX;
    for (uint32_t i = 0; i < whole; i += SAMPLE_LANES)
        for (int j = 0; j < SAMPLE_LANES; j++) {
            float v = x[i + (uint32_t)j];
            bad[j] |= v <= FLT_MAX ? 0u : 1u;
            lanes[j] = v > lanes[j] ? v : lanes[j];
        }
    for (uint32_t i = whole; i < n; i++) {
        bad[0] |= x[i] <= FLT_MAX ? 0u : 1u;
        lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    }
    float max = lanes[0];
    for (int j = 0; j < SAMPLE_LANES; j++) {
        any |= bad[j];
        max = lanes[j] > max ? lanes[j] : max;
    }
    *out_max = max;
    return !any;
}

static void exp_row(float *w, const float *x, uint32_t n, float max, float divisor)
{
    uint32_t whole = n - n % SAMPLE_LANES;
    for (uint32_t i = 0; i < whole; i += SAMPLE_LANES)
        for (uint32_t j = 0; j < SAMPLE_LANES; j++)
            w[i + j] = sample_exp((x[i + j] - max) / divisor);
    for (uint32_t i = whole; i < n; i++)
        w[i] = sample_exp((x[i] - max) / divisor);
}

static float sum_lanes(const float *w, uint32_t n)
{
    float lanes[SAMPLE_LANES] = {0};
    uint32_t whole = n - n % SAMPLE_LANES;
    for (uint32_t i = 0; i < whole; i += SAMPLE_LANES)
        for (uint32_t j = 0; j < SAMPLE_LANES; j++)
            lanes[j] += w[i + j];
    for (uint32_t i = whole; i < n; i++)
        lanes[i - whole] += w[i];
    for (int half = SAMPLE_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    return lanes[0];
}

static void sum_segments(const float *w, const struct sample_segments *seg,
                         float out_sums[SAMPLE_SEGMENTS])
{
    for (int s = 0; s < SAMPLE_SEGMENTS; s++)
        out_sums[s] = sum_lanes(w + seg->bounds[s], seg->bounds[s + 1] - seg->bounds[s]);
}

/* A removed token adds 0 times a finite number. */
static float entropy_lanes(const float *w, uint32_t n, float sum, float log_sum)
{
    float lanes[SAMPLE_LANES] = {0};
    uint32_t whole = n - n % SAMPLE_LANES;
    for (uint32_t i = 0; i < whole; i += SAMPLE_LANES)
        for (uint32_t j = 0; j < SAMPLE_LANES; j++)
            lanes[j] += (w[i + j] / sum) * (log_sum - sample_log(w[i + j]));
    for (uint32_t i = whole; i < n; i++)
        lanes[i - whole] += (w[i] / sum) * (log_sum - sample_log(w[i]));
    for (int half = SAMPLE_LANES / 2; half; half /= 2)
        for (int j = 0; j < half; j++)
            lanes[j] += lanes[j + half];
    return lanes[0];
}

static void entropy_segments(const float *w, const struct sample_segments *seg, float sum,
                             float log_sum, float out_sums[SAMPLE_SEGMENTS])
{
    for (int s = 0; s < SAMPLE_SEGMENTS; s++)
        out_sums[s] =
            entropy_lanes(w + seg->bounds[s], seg->bounds[s + 1] - seg->bounds[s], sum, log_sum);
}

static void cut_below(float *w, uint32_t n, float threshold)
{
    for (uint32_t i = 0; i < n; i++)
        w[i] = w[i] < threshold ? 0.0f : w[i];
}

static void keep_to(float *y, const float *x, uint32_t n, float bound, uint32_t last)
{
    uint32_t end = last < n ? last + 1 : n;
    for (uint32_t i = 0; i < end; i++)
        y[i] = x[i] < bound ? -INFINITY : x[i];
    for (uint32_t i = end; i < n; i++)
        y[i] = x[i] <= bound ? -INFINITY : x[i];
}

/* Elements per test. */
enum { SAMPLE_BLOCK = 64 };

static uint32_t any_above(const float *x, float bound)
{
    uint32_t any = 0;
    for (int j = 0; j < SAMPLE_BLOCK; j++)
        any |= x[j] > bound ? 1u : 0u;
    return any;
}

static uint32_t next_above(const float *x, uint32_t begin, uint32_t n, float bound)
{
    while (n - begin >= SAMPLE_BLOCK && !any_above(x + begin, bound))
        begin += SAMPLE_BLOCK;
    while (begin < n && !(x[begin] > bound))
        begin++;
    return begin;
}

static uint32_t gather_above(const float *x, uint32_t n, float bound, uint32_t *ids,
                             double *out_sum)
{
    uint32_t n_found = 0;
    double sum = 0.0;
    for (uint32_t i = next_above(x, 0, n, bound); i < n;) {
        uint32_t end = n - i < SAMPLE_BLOCK ? n : i + SAMPLE_BLOCK;
        for (; i < end; i++)
            if (x[i] > bound) {
                sum += (double)x[i];
                ids[n_found++] = i;
            }
        i = next_above(x, i, n, bound);
    }
    *out_sum = sum;
    return n_found;
}

/* Computes SAMPLE_LANES counters at once, with the numbers of sample_philox4x32_10() but without
 * function calls. */
static void watermark_block(uint32_t block, uint32_t previous_id, uint32_t out[4][SAMPLE_LANES])
{
    uint32_t key0 = previous_id, key1 = SAMPLE_WATERMARK_KEY;
    for (uint32_t j = 0; j < SAMPLE_LANES; j++) {
        out[0][j] = block + j;
        out[1][j] = out[2][j] = 0;
        out[3][j] = SAMPLE_WATERMARK_TAG;
    }
    for (int round = 0; round < 10; round++) {
        for (int j = 0; j < SAMPLE_LANES; j++) {
            uint64_t a = (uint64_t)0xD2511F53u * out[0][j];
            uint64_t b = (uint64_t)0xCD9E8D57u * out[2][j];
            out[0][j] = (uint32_t)(b >> 32) ^ out[1][j] ^ key0;
            out[1][j] = (uint32_t)b;
            out[2][j] = (uint32_t)(a >> 32) ^ out[3][j] ^ key1;
            out[3][j] = (uint32_t)a;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

static void add_watermark(float *x, uint32_t n, uint32_t previous_id)
{
    uint32_t words[4][SAMPLE_LANES];
    for (uint32_t begin = 0; begin < n; begin += 4 * SAMPLE_LANES) {
        watermark_block(begin / 4, previous_id, words);
        uint32_t end = n - begin < 4 * SAMPLE_LANES ? n - begin : 4 * SAMPLE_LANES;
        for (uint32_t i = 0; i < end; i++)
            if (words[i % 4][i / 4] < 1u << 31)
                x[begin + i] += SAMPLE_WATERMARK_DELTA;
    }
}

const struct sample_passes PASSES = {
    .max_checked = max_checked,
    .exp_row = exp_row,
    .sum_segments = sum_segments,
    .entropy_segments = entropy_segments,
    .cut_below = cut_below,
    .keep_to = keep_to,
    .next_above = next_above,
    .gather_above = gather_above,
    .add_watermark = add_watermark,
};
