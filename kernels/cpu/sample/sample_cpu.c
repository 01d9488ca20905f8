#include "kernels/cpu/sample/sample_cpu.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/status.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/sample/sample_math.h"
#include "kernels/cpu/sample/sample_nucleus.h"
#include "kernels/cpu/sample/sample_passes.h"
#include "kernels/cpu/sample/sample_philox.h"
#include "kernels/cpu/sample/sample_select.h"
#include "kernels/cpu/sample/sample_typical.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/tensor.h"

/* Up to this k, top-k is one pass with a heap on the stack. */
enum { SMALL_K = 256 };

#define LARGEST_LOGIT 1e30f

/* The state of a row that is being sampled. */
struct row {
    const struct sample_passes *passes;
    const struct sample_params *params;
    const float *logits;
    uint32_t vocab;
    struct sample_segments segments;
    const float *adjusted; /* [vocab] logits after penalties, bias and masks: the logits themselves
                              if there are none, else x */
    float *x;      /* [vocab] adjusted logits, later weights; a removed token is −∞, later 0 */
    uint32_t *ids; /* [vocab] */
};

static float sum_weights(const struct row *row)
{
    float sums[SAMPLE_SEGMENTS];
    row->passes->sum_segments(row->x, &row->segments, sums);
    return sample_tree(sums);
}

/* Clamps a penalised logit, because an infinite logit would mean a broken step. */
static float bounded(float x)
{
    return x > LARGEST_LOGIT                     ? LARGEST_LOGIT
           : x < -LARGEST_LOGIT && x > -INFINITY ? -LARGEST_LOGIT
                                                 : x;
}

static void apply_penalties(const struct row *row)
{
    const struct sample_params *p = row->params;
    for (uint32_t i = 0; i < p->n_counts; i++) {
        const struct sample_count *count = &p->counts[i];
        if (count->id >= row->vocab)
            continue;
        float *x = &row->x[count->id];
        *x = bounded(*x > 0.0f ? *x / p->repetition_penalty : *x * p->repetition_penalty);
        *x -= p->frequency_penalty * (float)count->n_generated;
        if (count->n_generated)
            *x -= p->presence_penalty;
        *x = bounded(*x);
    }
    for (uint32_t i = 0; i < p->n_biases; i++)
        if (p->biases[i].id < row->vocab)
            row->x[p->biases[i].id] += p->biases[i].value;
    if (p->watermark)
        row->passes->add_watermark(row->x, row->vocab, p->previous_id);
    if (!p->allowed_mask)
        return;
    for (uint32_t i = 0; i < row->vocab; i++)
        if (!(p->allowed_mask[i / 32] >> (i % 32) & 1))
            row->x[i] = -INFINITY;
}

/* Keeps the k largest; the others become −∞. */
static void keep_top_k(struct row *row, uint32_t k)
{
    uint32_t small[SMALL_K];
    const float *x = row->adjusted;
    uint32_t *kept = small, last;
    if (k <= SMALL_K) {
        sample_top(x, row->vocab, k, kept);
        last = kept[k - 1];
    } else {
        kept = row->ids;
        for (uint32_t i = 0; i < row->vocab; i++)
            kept[i] = i;
        sample_select(x, kept, row->vocab, k);
        last = kept[0];
        for (uint32_t i = 1; i < k; i++)
            if (x[kept[i]] < x[last] || (x[kept[i]] == x[last] && kept[i] > last))
                last = kept[i];
    }
    row->passes->keep_to(row->x, x, row->vocab, x[last], last);
    row->adjusted = row->x;
}

static void keep_typical(const struct row *row, float typical_p)
{
    float sums[SAMPLE_SEGMENTS];
    float sum = sum_weights(row), log_sum = sample_log(sum);
    row->passes->entropy_segments(row->x, &row->segments, sum, log_sum, sums);
    sample_keep_typical(row->x, row->vocab, row->ids, log_sum, sample_tree(sums),
                        (double)typical_p * (double)sum);
}

/* Gathers the tokens above a bound. The bound is the highest of a few that covers `wanted` for
 * certain. So the nucleus ends among these tokens, and smaller weights need no check. */
static uint32_t gather_nucleus(const struct row *row, double wanted)
{
    static const float bounds[] = {0x1p-5f, 0x1p-9f, 0x1p-14f, 0.0f};
    uint32_t n = 0;
    for (size_t b = 0; b < sizeof(bounds) / sizeof(bounds[0]); b++) {
        double mass;
        n = row->passes->gather_above(row->x, row->vocab, bounds[b], row->ids, &mass);
        if (mass > wanted * 1.0001)
            break;
    }
    return n;
}

static void keep_top_p(const struct row *row, float top_p)
{
    double wanted = (double)top_p * (double)sum_weights(row);
    uint32_t n = gather_nucleus(row, wanted);
    uint32_t last = sample_nucleus_last(row->x, row->ids, n, wanted);
    if (last == SAMPLE_NO_TOKEN)
        return;
    float bound = row->x[last];
    row->passes->cut_below(row->x, row->vocab, bound);
    for (uint32_t i = last + 1; i < row->vocab; i++)
        if (row->x[i] == bound)
            row->x[i] = 0.0f;
}

static uint32_t draw(const struct row *row)
{
    const struct sample_params *p = row->params;
    uint32_t counter[4] = {p->position, p->choice, 0, 0}, random[4];
    uint32_t key[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
    float sums[SAMPLE_SEGMENTS];
    sample_philox4x32_10(counter, key, random);
    row->passes->sum_segments(row->x, &row->segments, sums);
    double target = ((double)random[0] + 0.5) * 0x1p-32 * (double)sample_tree(sums);
    uint32_t s = 0, last = 0;
    while (s < SAMPLE_SEGMENTS && target >= (double)sums[s])
        target -= (double)sums[s++];
    /* Rounding may leave the target just past the end. The last token with weight is then drawn. */
    uint32_t begin = s < SAMPLE_SEGMENTS ? row->segments.bounds[s] : 0;
    uint32_t end = s < SAMPLE_SEGMENTS ? row->segments.bounds[s + 1] : row->vocab;
    double sum = 0.0;
    for (uint32_t i = begin; i < end; i++) {
        if (row->x[i] <= 0.0f)
            continue;
        last = i;
        sum += (double)row->x[i];
        if (sum > target && s < SAMPLE_SEGMENTS)
            break;
    }
    return last;
}

/* Returns the first token with the largest adjusted logit. */
static uint32_t first_of_largest(const struct row *row, float max)
{
    uint32_t i = row->passes->next_above(row->adjusted, 0, row->vocab, nextafterf(max, -INFINITY));
    return i < row->vocab ? i : 0;
}

/* Computes the logprobs; for valid logits. */
static int fill_logprobs(struct row *row, struct sample_result *out)
{
    const struct sample_params *p = row->params;
    float max;
    if (!row->passes->max_checked(row->logits, row->vocab, &max) || max <= -FLT_MAX)
        return STATUS_DATA_LOSS;
    row->passes->exp_row(row->x, row->logits, row->vocab, max, 1.0f);
    float log_sum = sample_log(sum_weights(row));
    if (p->want_logprob)
        out->logprob = (row->logits[out->id] - max) - log_sum;
    uint32_t n_top = p->n_top < SAMPLE_MAX_TOP ? p->n_top : SAMPLE_MAX_TOP;
    out->n_top = sample_top(row->logits, row->vocab, n_top, out->top_ids);
    for (uint32_t i = 0; i < out->n_top; i++)
        out->top_logprobs[i] = (row->logits[out->top_ids[i]] - max) - log_sum;
    return 0;
}

static struct row start_row(const float *logits, uint32_t vocab, const struct sample_params *params,
                            void *scratch)
{
    struct row row = {.passes = sample_passes(),
                      .params = params,
                      .logits = logits,
                      .adjusted = logits,
                      .vocab = vocab,
                      .x = scratch,
                      .ids = (uint32_t *)scratch + vocab};
    sample_segments_init(&row.segments, vocab);
    return row;
}

/* Applies penalties, bias and masks; *out_max is the largest adjusted logit. */
static int adjust(struct row *row, float *out_max)
{
    if (!row->passes->max_checked(row->logits, row->vocab, out_max))
        return STATUS_DATA_LOSS;
    const struct sample_params *p = row->params;
    if (p->n_counts > 0 || p->n_biases > 0 || p->watermark || p->allowed_mask != NULL) {
        memcpy(row->x, row->logits, row->vocab * sizeof(*row->x));
        apply_penalties(row);
        row->adjusted = row->x;
        if (!row->passes->max_checked(row->x, row->vocab, out_max))
            return STATUS_DATA_LOSS;
    }
    return *out_max <= -FLT_MAX ? STATUS_FAILED_PRECONDITION : 0;
}

/* Applies the remaining stages before the draw. */
static void weigh(struct row *row, float max)
{
    const struct sample_params *p = row->params;
    if (p->top_k && p->top_k < row->vocab)
        keep_top_k(row, p->top_k);
    row->passes->exp_row(row->x, row->adjusted, row->vocab, max, p->temperature);
    if (p->typical_p < 1.0f)
        keep_typical(row, p->typical_p);
    if (p->top_p < 1.0f)
        keep_top_p(row, p->top_p);
    if (p->min_p > 0.0f) {
        float largest;
        row->passes->max_checked(row->x, row->vocab, &largest);
        row->passes->cut_below(row->x, row->vocab, p->min_p * largest);
    }
}

int sample_weights_cpu(const float *logits, uint32_t vocab, const struct sample_params *params,
                       void *scratch, const float **out_weights)
{
    struct row row = start_row(logits, vocab, params, scratch);
    float max;
    int rc = adjust(&row, &max);
    if (rc)
        return rc;
    weigh(&row, max);
    *out_weights = row.x;
    return 0;
}

void sample_row_cpu(const float *logits, uint32_t vocab, const struct sample_params *params,
                    void *scratch, struct sample_result *out_result)
{
    struct row row = start_row(logits, vocab, params, scratch);
    float max;
    out_result->id = 0;
    out_result->n_top = 0;
    out_result->logprob = NAN;
    if (params->score) {
        out_result->id = params->score_id;
        out_result->status =
            params->score_id < vocab ? fill_logprobs(&row, out_result) : STATUS_INTERNAL;
        return;
    }
    out_result->status = adjust(&row, &max);
    if (out_result->status)
        return;
    if (params->temperature <= 0.0f || params->top_k == 1) {
        out_result->id = first_of_largest(&row, max);
    } else {
        weigh(&row, max);
        out_result->id = draw(&row);
    }
    if (params->want_logprob || params->n_top)
        (void)fill_logprobs(&row, out_result); /* cannot fail: adjust() has checked the logits */
}

struct sample_job {
    struct stream_cpu *stream;
    const struct tensor *logits;
    const struct sample_params *params;
    struct sample_result *results;
};

static void sample_share(void *ctx, uint32_t index, uint32_t n_threads)
{
    const struct sample_job *job = ctx;
    void *scratch = stream_scratch(job->stream, index);
    for (uint32_t r = index; r < job->logits->n_rows; r += n_threads)
        sample_row_cpu(tensor_row_f32(job->logits, r), job->logits->n_cols, &job->params[r],
                       scratch, &job->results[r]);
}

_Static_assert(SAMPLE_SCRATCH_BYTES(SAMPLE_MAX_VOCAB) <= STREAM_SCRATCH_BYTES,
               "a stream's scratch holds one row of the largest vocabulary");

int sample_rows_cpu(struct stream *s, const struct tensor *logits,
                    const struct sample_params *params, struct sample_result *results)
{
    if (logits->dtype != DTYPE_F32 || !logits->n_cols || logits->n_cols > SAMPLE_MAX_VOCAB)
        return STATUS_INTERNAL;
    struct sample_job job = {stream_cpu(s), logits, params, results};
    ops_run_job(s, sample_share, &job, logits->n_rows > 1);
    return 0;
}
