/* sample_row.h: the sampler's chain (kernels/sample.h) for one row, by one block. Sums over the
 * vocabulary, exponentials and the random number are the contract's to the bit. Where the CPU sorts
 * candidates, this searches for the cut: the largest key whose candidates suffice, then the lowest
 * ids among equals. Running f64 sums are by 128 fixed lanes or pieces instead of one chain, so a
 * cut or draw can differ from the CPU's only where two f64 sums of the same numbers round apart. */
#pragma once

#include <float.h>
#include <math.h>

#include "base/status.h"
#include "kernels/cpu/sample_math.h"
#include "kernels/cuda/block.h"
#include "kernels/sample.h"

#define SAMPLE_ROW_LARGEST 1e30f
enum { SAMPLE_ROW_PIECES = 128 }; /* also the lanes of block_fold_f64 */

/* One row under way. The arrays that params points to are the device's; ids in counts are
 * distinct. */
struct sample_row {
    struct block block;
    const struct sample_params *params;
    const float *logits; /* [vocab] */
    float *x;            /* [vocab] adjusted logits, then weights */
    uint32_t vocab;
};

/* Largest of x; *out_sound is false where a value is NaN or +∞. */
BLOCK_FN float sample_row_max(const struct sample_row *r, const float *x, int *out_sound)
{
    float max = -FLT_MAX;
    uint32_t bad = 0;
    for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads) {
        bad |= x[i] <= FLT_MAX ? 0u : 1u;
        max = x[i] > max ? x[i] : max;
    }
    *out_sound = block_reduce_word(&r->block, bad, BLOCK_WORD_MAX) == 0;
    return block_max(&r->block, max);
}

BLOCK_FN float sample_row_bounded(float x)
{
    return x > SAMPLE_ROW_LARGEST                     ? SAMPLE_ROW_LARGEST
           : x < -SAMPLE_ROW_LARGEST && x > -INFINITY ? -SAMPLE_ROW_LARGEST
                                                      : x;
}

/* Philox4x32-10 [Salmon et al., SC 2011] of counter (c0, c1, 0, c3): output word `word`. */
CUDA_HD uint32_t sample_row_philox(uint32_t c0, uint32_t c1, uint32_t c3, uint32_t k0, uint32_t k1,
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

BLOCK_FN void sample_row_watermark(const struct sample_row *r, uint32_t previous_id)
{
    for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads)
        if (sample_row_philox(i / 4, 0, SAMPLE_WATERMARK_TAG, previous_id, SAMPLE_WATERMARK_KEY,
                              i % 4) < 1u << 31)
            r->x[i] += SAMPLE_WATERMARK_DELTA;
    block_sync(&r->block);
}

BLOCK_FN void sample_row_penalties(const struct sample_row *r)
{
    const struct sample_params *p = r->params;
    for (uint32_t i = r->block.tid; i < p->n_counts; i += r->block.n_threads) {
        uint32_t id = p->counts[i].id, n_generated = p->counts[i].n_generated;
        if (id >= r->vocab)
            continue;
        float x = r->x[id];
        x = sample_row_bounded(x > 0.0f ? x / p->repetition_penalty : x * p->repetition_penalty);
        x -= p->frequency_penalty * (float)n_generated;
        if (n_generated)
            x -= p->presence_penalty;
        r->x[id] = sample_row_bounded(x);
    }
    block_sync(&r->block);
    if (r->block.tid == 0) /* in list order: an id may be listed twice */
        for (uint32_t i = 0; i < p->n_biases; i++)
            if (p->biases[i].id < r->vocab)
                r->x[p->biases[i].id] += p->biases[i].value;
    block_sync(&r->block);
    if (p->watermark)
        sample_row_watermark(r, p->previous_id);
    if (p->allowed_mask)
        for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads)
            if (!(p->allowed_mask[i / 32] >> (i % 32) & 1))
                r->x[i] = -INFINITY;
    block_sync(&r->block);
}

/* Copies and adjusts the logits. Returns the row's status; *out_max is the largest afterwards. */
BLOCK_FN int sample_row_adjust(const struct sample_row *r, float *out_max)
{
    int sound;
    sample_row_max(r, r->logits, &sound);
    if (!sound)
        return STATUS_DATA_LOSS;
    for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads)
        r->x[i] = r->logits[i];
    block_sync(&r->block);
    sample_row_penalties(r);
    *out_max = sample_row_max(r, r->x, &sound);
    if (!sound)
        return STATUS_DATA_LOSS;
    return *out_max <= -FLT_MAX ? STATUS_FAILED_PRECONDITION : 0;
}

/* The key by which candidates are ordered for a cut: what comes first has the larger key. */
enum sample_row_key { SAMPLE_KEY_VALUE, SAMPLE_KEY_TYPICAL };

struct sample_cut {
    enum sample_row_key kind;
    float log_sum, entropy; /* TYPICAL */
};

BLOCK_FN uint32_t sample_row_key_of(const struct sample_cut *cut, float x)
{
    if (cut->kind == SAMPLE_KEY_VALUE)
        return cuda_ordered_key(x);
    if (!(x > 0.0f))
        return 0;
    float distance = fabsf((cut->log_sum - sample_log(x)) - cut->entropy);
    /* nearer first; of two equally near the likelier: the last bit */
    uint32_t likelier = cut->log_sum - sample_log(x) < cut->entropy;
    return (~cuda_ordered_key(distance) << 1) | likelier;
}

/* Number of candidates with key ≥ bound; their f64 mass where by_mass. */
BLOCK_FN double sample_row_weigh_keys(const struct sample_row *r, const struct sample_cut *cut,
                                      uint32_t bound, int by_mass)
{
    for (uint32_t l = r->block.tid; l < SAMPLE_ROW_PIECES; l += r->block.n_threads) {
        double weight = 0.0;
        for (uint32_t i = l; i < r->vocab; i += SAMPLE_ROW_PIECES)
            if (sample_row_key_of(cut, r->x[i]) >= bound)
                weight += by_mass ? (double)r->x[i] : 1.0;
        r->block.shared->lanes_f64[l] = weight;
    }
    return block_fold_f64(&r->block);
}

/* Order among candidates of one key: the lower id first, but of typical's likelier side, which is
 * reached from its low end, the higher. */
BLOCK_FN uint32_t sample_row_rank(const struct sample_row *r, const struct sample_cut *cut,
                                  uint32_t key, uint32_t id)
{
    return cut->kind == SAMPLE_KEY_TYPICAL && (key & 1) ? r->vocab - 1 - id : id;
}

/* The same among candidates with exactly this key and rank ≤ last. */
BLOCK_FN double sample_row_weigh_ids(const struct sample_row *r, const struct sample_cut *cut,
                                     uint32_t key, uint32_t last, int by_mass)
{
    for (uint32_t l = r->block.tid; l < SAMPLE_ROW_PIECES; l += r->block.n_threads) {
        double weight = 0.0;
        for (uint32_t i = l; i < r->vocab; i += SAMPLE_ROW_PIECES)
            if (sample_row_rank(r, cut, key, i) <= last && sample_row_key_of(cut, r->x[i]) == key)
                weight += by_mass ? (double)r->x[i] : 1.0;
        r->block.shared->lanes_f64[l] = weight;
    }
    return block_fold_f64(&r->block);
}

/* Keeps the first candidates by (key descending, rank ascending) whose count or mass reaches
 * `wanted`; the others become `removed`. Keeps all where the whole does not reach it. */
BLOCK_FN void sample_row_keep(const struct sample_row *r, const struct sample_cut *cut,
                              double wanted, int by_mass, float removed)
{
    uint32_t key = 0, last = 0;
    wanted = wanted > 0.0 ? wanted : DBL_MIN; /* at least one stays */
    for (uint32_t bit = 0x80000000u; bit > 0; bit >>= 1)
        if (sample_row_weigh_keys(r, cut, key | bit, by_mass) >= wanted)
            key |= bit;
    if (key == 0)
        return;
    double before = key == 0xFFFFFFFFu ? 0.0 : sample_row_weigh_keys(r, cut, key + 1, by_mass);
    uint32_t top_bit = 1;
    while (top_bit < r->vocab)
        top_bit <<= 1;
    /* the smallest last id with which the equals suffice */
    for (uint32_t bit = top_bit; bit > 0; bit >>= 1)
        if (before + sample_row_weigh_ids(r, cut, key, (last | bit) - 1, by_mass) < wanted)
            last |= bit;
    for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads) {
        uint32_t own = sample_row_key_of(cut, r->x[i]);
        if (own < key || (own == key && sample_row_rank(r, cut, key, i) > last))
            r->x[i] = removed;
    }
    block_sync(&r->block);
}

BLOCK_FN void sample_row_exp(const struct sample_row *r, const float *from, float max,
                             float divisor)
{
    for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads)
        r->x[i] = sample_exp((from[i] - max) / divisor);
    block_sync(&r->block);
}

BLOCK_FN void sample_row_typical(const struct sample_row *r, float typical_p)
{
    struct sample_cut cut;
    float sum = block_sum(&r->block, r->x, r->vocab);
    cut.kind = SAMPLE_KEY_TYPICAL;
    cut.log_sum = sample_log(sum);
    for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads)
        if (!(r->x[i] >= FLT_MIN))
            r->x[i] = 0.0f;
    block_sync(&r->block);
    for (uint32_t l = r->block.tid; l < SAMPLE_ROW_PIECES; l += r->block.n_threads) {
        double entropy = 0.0;
        for (uint32_t i = l; i < r->vocab; i += SAMPLE_ROW_PIECES)
            if (r->x[i] > 0.0f)
                entropy += (double)((r->x[i] / sum) * (cut.log_sum - sample_log(r->x[i])));
        r->block.shared->lanes_f64[l] = entropy;
    }
    cut.entropy = (float)block_fold_f64(&r->block);
    sample_row_keep(r, &cut, (double)typical_p * (double)sum, 1, 0.0f);
}

/* Everything between the adjusted logits and the draw. */
BLOCK_FN void sample_row_weigh(const struct sample_row *r, float max)
{
    const struct sample_params *p = r->params;
    struct sample_cut by_value;
    by_value.kind = SAMPLE_KEY_VALUE;
    by_value.log_sum = by_value.entropy = 0.0f;
    if (p->top_k && p->top_k < r->vocab)
        sample_row_keep(r, &by_value, (double)p->top_k, 0, -INFINITY);
    sample_row_exp(r, r->x, max, p->temperature);
    if (p->typical_p < 1.0f)
        sample_row_typical(r, p->typical_p);
    if (p->top_p < 1.0f) {
        double wanted = (double)p->top_p * (double)block_sum(&r->block, r->x, r->vocab);
        sample_row_keep(r, &by_value, wanted, 1, 0.0f);
    }
    if (p->min_p > 0.0f) {
        int sound;
        float bound = p->min_p * sample_row_max(r, r->x, &sound);
        for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads)
            if (r->x[i] < bound)
                r->x[i] = 0.0f;
        block_sync(&r->block);
    }
}

/* The last token with weight. */
BLOCK_FN uint32_t sample_row_last(const struct sample_row *r, uint32_t end)
{
    uint32_t last = 0;
    for (uint32_t i = r->block.tid; i < end; i += r->block.n_threads)
        if (r->x[i] > 0.0f)
            last = i;
    return block_reduce_word(&r->block, last, BLOCK_WORD_MAX);
}

/* Inverse CDF in ascending id: segments, then pieces of the segment, then tokens of the piece. */
BLOCK_FN uint32_t sample_row_draw(const struct sample_row *r)
{
    const struct sample_params *p = r->params;
    float total = block_sum(&r->block, r->x, r->vocab);
    const float *sums = r->block.shared->segments;
    uint32_t random = sample_row_philox(p->position, p->choice, 0, (uint32_t)p->seed,
                                        (uint32_t)(p->seed >> 32), 0);
    double target = ((double)random + 0.5) * 0x1p-32 * (double)total;
    uint32_t s = 0;
    while (s < CUDA_SEGMENTS && target >= (double)sums[s])
        target -= (double)sums[s++];
    if (s == CUDA_SEGMENTS) /* rounding left the target past the end */
        return sample_row_last(r, r->vocab);
    uint32_t from = cuda_segment_bound(r->vocab, s), to = cuda_segment_bound(r->vocab, s + 1);
    for (uint32_t l = r->block.tid; l < SAMPLE_ROW_PIECES; l += r->block.n_threads) {
        uint32_t begin, end;
        double mass = 0.0;
        cuda_piece(from, to, l, SAMPLE_ROW_PIECES, &begin, &end);
        for (uint32_t i = begin; i < end; i++)
            mass += (double)r->x[i];
        r->block.shared->lanes_f64[l] = mass;
    }
    block_sync(&r->block);
    /* every thread walks the same few hundred numbers: no broadcast needed */
    const double *pieces = r->block.shared->lanes_f64;
    double sum = 0.0;
    uint32_t piece = 0, begin, end;
    while (piece < SAMPLE_ROW_PIECES && !(sum + pieces[piece] > target))
        sum += pieces[piece++];
    block_sync(&r->block);
    if (piece == SAMPLE_ROW_PIECES)
        return sample_row_last(r, to);
    cuda_piece(from, to, piece, SAMPLE_ROW_PIECES, &begin, &end);
    uint32_t drawn = begin;
    for (uint32_t i = begin; i < end; i++) {
        if (!(r->x[i] > 0.0f))
            continue;
        drawn = i;
        sum += (double)r->x[i];
        if (sum > target)
            break;
    }
    return drawn;
}

/* The first id whose value equals `value`. */
BLOCK_FN uint32_t sample_row_first(const struct sample_row *r, const float *x, float value,
                                   uint32_t after, int has_after)
{
    uint32_t first = 0xFFFFFFFFu;
    for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads)
        if (x[i] == value && !(has_after && i <= after)) {
            first = i;
            break;
        }
    return block_reduce_word(&r->block, first, BLOCK_WORD_MIN);
}

/* The entry after (value, id) in the order (value descending, id ascending). */
BLOCK_FN uint32_t sample_row_next(const struct sample_row *r, float value, uint32_t id, int first)
{
    if (!first) {
        uint32_t equal = sample_row_first(r, r->logits, value, id, 1);
        if (equal != 0xFFFFFFFFu)
            return equal;
    }
    float max = -INFINITY;
    for (uint32_t i = r->block.tid; i < r->vocab; i += r->block.n_threads)
        if ((first || r->logits[i] < value) && r->logits[i] > max)
            max = r->logits[i];
    max = block_max(&r->block, max);
    return sample_row_first(r, r->logits, max, 0, 0);
}

BLOCK_FN void sample_row_logprobs(const struct sample_row *r, struct sample_result *out)
{
    const struct sample_params *p = r->params;
    int sound;
    float max = sample_row_max(r, r->logits, &sound);
    sample_row_exp(r, r->logits, max, 1.0f);
    float log_sum = sample_log(block_sum(&r->block, r->x, r->vocab));
    if (p->want_logprob && r->block.tid == 0)
        out->logprob = (r->logits[out->id] - max) - log_sum;
    uint32_t n_top = p->n_top < SAMPLE_MAX_TOP ? p->n_top : SAMPLE_MAX_TOP, id = 0;
    n_top = n_top < r->vocab ? n_top : r->vocab;
    for (uint32_t i = 0; i < n_top; i++) {
        id = sample_row_next(r, i ? r->logits[id] : 0.0f, id, i == 0);
        if (r->block.tid == 0) {
            out->top_ids[i] = id;
            out->top_logprobs[i] = (r->logits[id] - max) - log_sum;
        }
    }
    if (r->block.tid == 0)
        out->n_top = n_top;
}

/* A row that is scored, not drawn from: only the logits must be sound. */
BLOCK_FN int sample_row_score(const struct sample_row *r)
{
    int sound;
    float max = sample_row_max(r, r->logits, &sound);
    if (!sound || max <= -FLT_MAX)
        return STATUS_DATA_LOSS;
    return r->params->score_id < r->vocab ? 0 : STATUS_INTERNAL;
}

/* The whole row. All threads call it; thread 0 writes *out. */
BLOCK_FN void sample_row_run(const struct sample_row *r, struct sample_result *out)
{
    float max = 0.0f;
    int score = r->params->score;
    int status = score ? sample_row_score(r) : sample_row_adjust(r, &max);
    uint32_t id = 0;
    if (score) {
        id = r->params->score_id;
    } else if (status == 0 && (r->params->temperature <= 0.0f || r->params->top_k == 1)) {
        id = sample_row_first(r, r->x, max, 0, 0);
    } else if (status == 0) {
        sample_row_weigh(r, max);
        id = sample_row_draw(r);
    }
    if (r->block.tid == 0) {
        out->id = id;
        out->n_top = 0;
        out->logprob = NAN;
        out->status = status;
    }
    block_sync(&r->block);
    if (status == 0 && (r->params->want_logprob || r->params->n_top))
        sample_row_logprobs(r, out);
}
