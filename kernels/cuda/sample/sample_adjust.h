/* sample_adjust.h: the sampler's first phase. The phase applies penalties, bias, watermark and
 * mask, if the row has any. The phase also finds the largest logits before and after. Greedy rows
 * end with this phase. */
#pragma once

#include "base/status.h"
#include "kernels/cuda/sample/sample_cut.h"

BLOCK_FN uint64_t sample_best_of(float x, uint32_t id)
{
    return (uint64_t)cuda_ordered_key(x) << 32 | (uint32_t)~id;
}

/* Applies the penalties and biases of [begin, end): penalties in any order, biases in list order
 * for each token. */
BLOCK_FN void sample_adjust_lists(const struct sample_row *r, float *x, uint32_t begin,
                                  uint32_t end)
{
    const struct sample_params *p = r->params;
    block_sync(&r->block);
    for (uint32_t i = r->block.tid; i < p->n_counts; i += r->block.n_threads) {
        uint32_t id = p->counts[i].id;
        if (id >= begin && id < end)
            x[id] = sample_penalized(p, p->counts[i].n_generated, x[id]);
    }
    block_sync(&r->block);
    for (uint32_t i = 0; i < p->n_biases; i++) {
        uint32_t id = p->biases[i].id;
        if (id >= begin && id < end && id % r->block.n_threads == r->block.tid)
            x[id] += p->biases[i].value;
    }
    block_sync(&r->block);
}

BLOCK_FN float sample_adjusted(const struct sample_params *p, float x, uint32_t id)
{
    if (p->watermark && sample_is_green(id, p->previous_id))
        x += SAMPLE_WATERMARK_DELTA;
    return p->allowed_mask && !(p->allowed_mask[id / 32] >> (id % 32) & 1) ? -INFINITY : x;
}

BLOCK_FN void sample_adjust_part(const struct sample_row *r)
{
    const struct sample_params *p = r->params;
    uint32_t begin = sample_part_bound(r->vocab, r->part, r->n_parts);
    uint32_t end = sample_part_bound(r->vocab, r->part + 1, r->n_parts);
    bool adjusted = sample_is_adjusted(p), lists = adjusted && (p->n_counts || p->n_biases);
    float *x = (float *)sample_at(r, r->at.x);
    uint64_t best = 0, raw_best = 0, raw_bad = 0, bad = 0;
    if (lists) {
        for (uint32_t i = begin + r->block.tid; i < end; i += r->block.n_threads)
            x[i] = r->logits[i];
        sample_adjust_lists(r, x, begin, end);
    }
    for (uint32_t i = begin + r->block.tid; i < end; i += r->block.n_threads) {
        float raw = r->logits[i];
        float value = adjusted ? sample_adjusted(p, lists ? x[i] : raw, i) : raw;
        uint64_t own = sample_best_of(value, i), raw_own = sample_best_of(raw, i);
        raw_bad |= raw <= FLT_MAX ? 0 : 1;
        bad |= value <= FLT_MAX ? 0 : 2;
        best = own > best ? own : best;
        raw_best = raw_own > raw_best ? raw_own : raw_best;
        if (adjusted)
            x[i] = value;
    }
    sample_reduce(r, &best, &raw_best);
    sample_reduce(r, &raw_bad, &bad);
    if (r->block.tid == 0) {
        struct sample_partial *out = (struct sample_partial *)sample_at(r, r->at.partials);
        out[r->part].best = best;
        out[r->part].raw_best = raw_best;
        out[r->part].bad = (uint32_t)(raw_bad | bad);
    }
}

BLOCK_FN int sample_status(const struct sample_params *p, uint32_t vocab, uint32_t bad, float max,
                           float raw_max)
{
    if (p->score && p->score_id >= vocab)
        return STATUS_INTERNAL;
    if (p->score)
        return (bad & 1) || raw_max <= -FLT_MAX ? STATUS_DATA_LOSS : 0;
    if (bad)
        return STATUS_DATA_LOSS;
    return max <= -FLT_MAX ? STATUS_FAILED_PRECONDITION : 0;
}

BLOCK_FN void sample_adjust_end(const struct sample_row *r)
{
    const struct sample_partial *parts =
        (const struct sample_partial *)sample_at(r, r->at.partials);
    const struct sample_params *p = r->params;
    uint64_t best = 0, raw_best = 0, raw_bad = 0, bad = 0;
    for (uint32_t i = r->block.tid; i < r->n_parts; i += r->block.n_threads) {
        uint64_t own = BLOCK_LOAD(&parts[i].best), raw_own = BLOCK_LOAD(&parts[i].raw_best);
        uint32_t own_bad = BLOCK_LOAD(&parts[i].bad);
        best = own > best ? own : best;
        raw_best = raw_own > raw_best ? raw_own : raw_best;
        raw_bad |= own_bad & 1;
        bad |= own_bad & 2;
    }
    sample_reduce(r, &best, &raw_best);
    sample_reduce(r, &raw_bad, &bad);
    if (r->block.tid > 0)
        return;
    struct sample_state *s = r->state;
    uint32_t id = ~(uint32_t)best;
    s->max = BLOCK_LOAD(&r->x[id]);
    s->raw_max = r->logits[~(uint32_t)raw_best];
    s->largest = 1.0f; /* exp(0) */
    s->id = p->score ? p->score_id : id;
    int status = sample_status(p, r->vocab, (uint32_t)(raw_bad | bad), s->max, s->raw_max);
    r->out->id = p->score || (status == 0 && !sample_is_drawn(p)) ? s->id : 0;
    r->out->n_top = 0;
    r->out->logprob = NAN;
    r->out->status = status;
    s->phase = sample_next_phase(SAMPLE_ADJUST, p, r->vocab);
    if (!(s->raw_max > -FLT_MAX) &&
        s->phase <= SAMPLE_GATHER_TOP) /* there is no log-softmax to report */
        s->phase = sample_next_phase(SAMPLE_GATHER_TOP, p, r->vocab);
    if (status != 0)
        s->phase = SAMPLE_DONE;
}
