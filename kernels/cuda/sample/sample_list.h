/* sample_list.h: the last stages for a row whose candidates fit the list in shared memory; one
 * block does them. Entries are in ascending id. Removed entries have weight 0, which does not
 * change sums, so the bits equal those of sums over the whole row. */
#pragma once

#include "kernels/cuda/sample/sample_cut.h"

enum { SAMPLE_LIST_PIECE = 32 }; /* entries per f64 sum of a draw's first search */

/* Stores the row's result. `id` is the same in all threads. */
BLOCK_FN void sample_finish(const struct sample_row *r, uint32_t id)
{
    const struct sample_state *s = r->state;
    block_sync(&r->block);
    if (r->block.tid > 0)
        return;
    r->out->id = id;
    r->out->status = 0;
    if (r->params->want_logprob && s->raw_max > -FLT_MAX)
        r->out->logprob = (r->logits[id] - s->raw_max) - s->raw_log_sum;
    r->state->phase = SAMPLE_DONE;
}

/* Sorts by id: a bitonic network over the next power of two. */
BLOCK_FN void sample_sort_list(const struct sample_row *r, uint32_t n)
{
    const struct block *b = &r->block;
    float *values = r->shared->values;
    uint32_t *ids = r->shared->ids, size = 1;
    while (size < n)
        size *= 2;
    for (uint32_t i = n + b->tid; i < size; i += b->n_threads)
        ids[i] = 0xFFFFFFFFu;
    for (uint32_t run = 2; run <= size; run *= 2)
        for (uint32_t step = run / 2; step > 0; step /= 2) {
            block_sync(b);
            for (uint32_t i = b->tid; i < size / 2; i += b->n_threads) {
                uint32_t low = 2 * i - i % step, high = low + step;
                if ((ids[low] > ids[high]) != ((low & run) != 0)) {
                    uint32_t id = ids[low];
                    float value = values[low];
                    ids[low] = ids[high];
                    values[low] = values[high];
                    ids[high] = id;
                    values[high] = value;
                }
            }
        }
    block_sync(b);
}

/* Returns the contract's sum over the list; the segments' sums stay in shared->sums. */
BLOCK_FN float sample_list_sum(const struct sample_row *r, uint32_t n, bool entropy, float sum)
{
    struct sample_shared *shared = r->shared;
    const struct sample_state *state = r->state;
    block_sync(&r->block);
    for (uint32_t l = r->block.tid; l < CUDA_SEGMENTS * CUDA_LANES; l += r->block.n_threads) {
        uint32_t begin = cuda_segment_bound(r->vocab, l / CUDA_LANES);
        uint32_t end = cuda_segment_bound(r->vocab, l / CUDA_LANES + 1);
        float lane = 0.0f;
        for (uint32_t i = sample_lower_bound(shared->ids, n, begin); i < n && shared->ids[i] < end;
             i++)
            if ((shared->ids[i] - begin) % CUDA_LANES == l % CUDA_LANES)
                lane += entropy ? sample_entropy_term(shared->values[i], sum, state->log_sum)
                                : shared->values[i];
        shared->lanes[l] = lane;
    }
    block_fold_lanes(&r->block, shared->lanes, CUDA_SEGMENTS);
    for (uint32_t s = r->block.tid; s < CUDA_SEGMENTS; s += r->block.n_threads)
        shared->sums[s] = shared->lanes[s * CUDA_LANES];
    block_sync(&r->block);
    return sample_tree_of(shared->sums);
}

/* Removes the entries after the cut. */
BLOCK_FN void sample_list_cut(const struct sample_row *r, const struct sample_source *s,
                              const struct sample_key *cut, float removed)
{
    block_sync(&r->block);
    for (uint32_t i = r->block.tid; i < s->n; i += r->block.n_threads) {
        float *value = &r->shared->values[i];
        if (s->order != SAMPLE_BY_LOGIT && !(*value > 0.0f))
            continue;
        struct sample_key key = sample_key_of(s->order, &s->frame, *value, r->shared->ids[i]);
        if (sample_is_after(&key, cut))
            *value = removed;
    }
    block_sync(&r->block);
}

/* Keeps the first entries of the list in `order`, until their weights reach `share` · `sum`.
 * Removes the others. */
BLOCK_FN void sample_list_keep(const struct sample_row *r, uint32_t n, enum sample_order order,
                               float share, float sum)
{
    struct sample_source s = {order, sample_frame_of(r, false), NULL, n, SAMPLE_BINS};
    struct sample_key cut = sample_find_cut(r, &s, 0.0, (double)share * (double)sum);
    sample_list_cut(r, &s, &cut, 0.0f);
}

BLOCK_FN void sample_list_typical(const struct sample_row *r, uint32_t n)
{
    float sum = sample_list_sum(r, n, false, 0.0f);
    if (r->block.tid == 0)
        r->state->log_sum = sample_log(sum);
    float entropy = sample_list_sum(r, n, true, sum);
    if (r->block.tid == 0)
        r->state->entropy = entropy;
    block_sync(&r->block);
    sample_list_keep(r, n, SAMPLE_BY_TYPICAL, r->params->typical_p, sum);
}

BLOCK_FN void sample_list_min_p(const struct sample_row *r, uint32_t n)
{
    uint64_t largest = 0, unused = 0;
    for (uint32_t i = r->block.tid; i < n; i += r->block.n_threads) {
        uint32_t bits = sample_bits(
            r->shared->values[i]); /* bits of weights, which have the order of the weights */
        largest = bits > largest ? bits : largest;
    }
    sample_reduce(r, &largest, &unused);
    for (uint32_t i = r->block.tid; i < n; i += r->block.n_threads) {
        float *w = &r->shared->values[i], max = cuda_from_bits((uint32_t)largest);
        *w = *w < r->params->min_p * max ? 0.0f : *w;
    }
}

/* Draws an entry from [from, to), by one thread: first by the sums of pieces, then entry by entry.
 * If rounding left the target past the end, the last entry with weight. */
BLOCK_FN uint32_t sample_list_walk(const struct sample_row *r, uint32_t from, uint32_t to,
                                   double target)
{
    const float *values = r->shared->values;
    double sum = 0.0;
    uint32_t i = from, drawn = from;
    for (uint32_t p = 0; i + SAMPLE_LIST_PIECE <= to && !(sum + r->shared->pieces[p] > target);
         p++, i += SAMPLE_LIST_PIECE)
        sum += r->shared->pieces[p];
    for (uint32_t back = i; back-- > from;) /* skipped pieces contain the last entry so far */
        if (values[back] > 0.0f) {
            drawn = back;
            break;
        }
    for (; i < to; i++) {
        if (!(values[i] > 0.0f))
            continue;
        drawn = i;
        sum += (double)values[i];
        if (sum > target)
            break;
    }
    return r->shared->ids[drawn];
}

/* Draws by the inverse CDF in ascending id. */
BLOCK_FN uint32_t sample_list_draw(const struct sample_row *r, uint32_t n)
{
    struct sample_shared *shared = r->shared;
    const struct block *b = &r->block;
    double target;
    float total = sample_list_sum(r, n, false, 0.0f);
    uint32_t s = sample_target(r->params, shared->sums, total, &target), from = 0, to = n;
    if (s < CUDA_SEGMENTS) {
        from = sample_lower_bound(shared->ids, n, cuda_segment_bound(r->vocab, s));
        to = sample_lower_bound(shared->ids, n, cuda_segment_bound(r->vocab, s + 1));
    } else {
        target = INFINITY; /* draws the last of all */
    }
    for (uint32_t p = b->tid; from + (p + 1) * SAMPLE_LIST_PIECE <= to; p += b->n_threads) {
        double sum = 0.0;
        for (uint32_t i = 0; i < SAMPLE_LIST_PIECE; i++)
            sum += (double)shared->values[from + p * SAMPLE_LIST_PIECE + i];
        shared->pieces[p] = sum;
    }
    block_sync(b);
    if (b->tid == 0)
        shared->word = sample_list_walk(r, from, to, target);
    block_sync(b);
    return shared->word;
}

/* Does the stages after the cut of `order`. */
BLOCK_FN void sample_list_finish(const struct sample_row *r, uint32_t n, enum sample_order order)
{
    const struct sample_params *p = r->params;
    float *values = r->shared->values;
    sample_sort_list(r, n);
    if (order == SAMPLE_BY_LOGIT)
        for (uint32_t i = r->block.tid; i < n; i += r->block.n_threads)
            values[i] = sample_exp((values[i] - r->state->max) / p->temperature);
    block_sync(&r->block);
    if (order == SAMPLE_BY_LOGIT && p->typical_p < 1.0f)
        sample_list_typical(r, n);
    if (order != SAMPLE_BY_WEIGHT && p->top_p < 1.0f)
        sample_list_keep(r, n, SAMPLE_BY_WEIGHT, p->top_p, sample_list_sum(r, n, false, 0.0f));
    if (p->min_p > 0.0f)
        sample_list_min_p(r, n);
    sample_finish(r, sample_list_draw(r, n));
}

/* Writes the list's first n_top entries by logit to the result, in that order. */
BLOCK_FN void sample_list_top(const struct sample_row *r, const struct sample_source *s,
                              const struct sample_key *cut)
{
    const struct sample_state *state = r->state;
    const uint32_t *ids = r->shared->ids;
    for (uint32_t i = r->block.tid; i < s->n; i += r->block.n_threads) {
        float value = r->shared->values[i];
        struct sample_key key = sample_key_of(s->order, &s->frame, value, ids[i]);
        uint32_t rank = 0;
        if (sample_is_after(&key, cut))
            continue;
        for (uint32_t j = 0; j < s->n; j++) {
            struct sample_key other =
                sample_key_of(s->order, &s->frame, r->shared->values[j], ids[j]);
            rank += sample_is_after(&key, &other);
        }
        if (rank < SAMPLE_MAX_TOP) {
            r->out->top_ids[rank] = ids[i];
            r->out->top_logprobs[rank] = (value - state->raw_max) - state->raw_log_sum;
        }
    }
}
