/* sample_cut.h: finds the end of a cut, by one block. Candidates are taken in order until their
 * number or mass reaches a limit; the end is the last one taken. A radix search. Each round takes
 * the ten bits below the bits that all remaining candidates share. The round adds up the candidates
 * by bin. The bin in which the f64 sum from the top reaches the limit is searched next. Bins are
 * summed as whole numbers, so the order of additions does not matter. Bins are added to each other
 * in f64 by a fixed tree. So a cut differs from the CPU's, whose f64 sum runs token by token, only
 * if the two sums round differently. While the n taken weights are within 2^29/n of each other,
 * neither sum rounds. */
#pragma once

#include <float.h>

#include "kernels/cuda/block.h"
#include "kernels/cuda/sample/sample_state.h"

enum { SAMPLE_TILE = 2048, SAMPLE_WARP = 32 };

/* A bin of a round. `words` counts mass (in limbs) and candidates; then sample_sum_bins() replaces
 * the limbs by f64 sums from the top. The count of candidates stays. */
union sample_bin {
    uint32_t words[SAMPLE_BIN_WORDS];
    double mass[2];
};

/* Shared memory of a block. */
struct sample_shared {
    union {
        union sample_bin bins[SAMPLE_BINS];
        uint64_t reduced[2][SAMPLE_THREADS];
    };
    union {
        struct { /* a whole list */
            float values[SAMPLE_LIST];
            uint32_t ids[SAMPLE_LIST];
        };
        float stage[2][SAMPLE_TILE]; /* two stages of a segment, used alternately */
    };
    double pieces[CUDA_SEGMENTS * CUDA_LANES];
    float lanes[CUDA_SEGMENTS * CUDA_LANES];
    float sums[CUDA_SEGMENTS];
    uint32_t word;
};

/* The state of a row in one block. Pointers are device addresses. */
struct sample_row {
    struct block block;
    struct sample_shared *shared;
    const struct sample_params *params;
    struct sample_state *state;
    struct sample_result *out;
    const float *logits; /* [vocab] */
    const float *x;      /* [vocab] adjusted logits; the logits themselves if nothing is adjusted */
    uint8_t *scratch;
    struct sample_scratch at;
    uint32_t vocab, part, n_parts;
};

BLOCK_FN void *sample_at(const struct sample_row *r, size_t offset)
{
    return r->scratch + offset;
}

/* Returns the maximum of each of two numbers over all threads, in all threads. */
BLOCK_FN void sample_reduce(const struct sample_row *r, uint64_t *x, uint64_t *y)
{
    const struct block *b = &r->block;
    uint64_t *xs = r->shared->reduced[0], *ys = r->shared->reduced[1];
    uint32_t n = b->n_threads < SAMPLE_WARP ? b->n_threads : (uint32_t)SAMPLE_WARP;
    block_sync(b);
    xs[b->tid] = *x;
    ys[b->tid] = *y;
    block_sync(b);
    if (b->tid < n) {
        for (uint32_t t = b->tid + n; t < b->n_threads; t += n) {
            *x = xs[t] > *x ? xs[t] : *x;
            *y = ys[t] > *y ? ys[t] : *y;
        }
        xs[b->tid] = *x;
        ys[b->tid] = *y;
    }
    block_sync(b);
    for (uint32_t t = 0; t < n; t++) {
        *x = xs[t] > *x ? xs[t] : *x;
        *y = ys[t] > *y ? ys[t] : *y;
    }
    block_sync(b);
}

BLOCK_FN struct sample_frame sample_frame_of(const struct sample_row *r, bool raw)
{
    struct sample_frame f = {raw ? r->state->raw_max : r->state->max, r->state->log_sum,
                             r->state->entropy};
    return f;
}

/* Returns a token's weight after the cuts so far; 0 if a cut removed it. x: its adjusted logit. */
BLOCK_FN float sample_weight(const struct sample_row *r, const struct sample_frame *f, float x,
                             uint32_t id)
{
    const struct sample_state *s = r->state;
    struct sample_key key;
    if (s->cuts & SAMPLE_CUT_K) {
        key = sample_key_of(SAMPLE_BY_LOGIT, f, x, id);
        if (sample_is_after(&key, &s->after_k))
            return 0.0f;
    }
    float w = sample_exp((x - s->max) / r->params->temperature);
    if (!(w > 0.0f) || !(s->cuts & ~SAMPLE_CUT_K))
        return w;
    if (s->cuts & SAMPLE_CUT_T) {
        key = sample_key_of(SAMPLE_BY_TYPICAL, f, w, id);
        if (sample_is_after(&key, &s->after_t))
            return 0.0f;
    }
    if (s->cuts & SAMPLE_CUT_P) {
        key = sample_key_of(SAMPLE_BY_WEIGHT, f, w, id);
        if (sample_is_after(&key, &s->after_p))
            return 0.0f;
    }
    return s->cuts & SAMPLE_CUT_MIN && w < s->min_weight ? 0.0f : w;
}

/* --- candidates --- */

/* The source of candidates: the list in shared memory, or the whole row. */
struct sample_source {
    enum sample_order order;
    struct sample_frame frame;
    const float *x; /* the row's logits; NULL: the list */
    uint32_t n;
    uint32_t bin; /* candidates of this bin alone; SAMPLE_BINS: of all bins */
};

/* Gets candidate i; false if there is none. */
BLOCK_FN bool sample_candidate(const struct sample_row *r, const struct sample_source *s,
                               uint32_t i, struct sample_entry *out)
{
    out->id = s->x ? i : r->shared->ids[i];
    out->value = !s->x                         ? r->shared->values[i]
                 : s->order == SAMPLE_BY_LOGIT ? s->x[i]
                                               : sample_weight(r, &s->frame, s->x[i], i);
    if (s->order != SAMPLE_BY_LOGIT && !(out->value > 0.0f))
        return false;
    return s->bin == SAMPLE_BINS || sample_bin_of(s->order, &s->frame, out->value) == s->bin;
}

/* Gets word i_word of candidate i's key, if the words before equal those of `cut`. */
BLOCK_FN bool sample_word(const struct sample_row *r, const struct sample_source *s, uint32_t i,
                          const struct sample_key *cut, uint32_t i_word, uint32_t *out_word,
                          float *out_value)
{
    struct sample_entry entry;
    if (!sample_candidate(r, s, i, &entry))
        return false;
    struct sample_key key = sample_key_of(s->order, &s->frame, entry.value, entry.id);
    if (!sample_starts_alike(&key, cut, i_word))
        return false;
    *out_word = sample_key_word(&key, i_word);
    *out_value = s->order == SAMPLE_BY_LOGIT ? 1.0f : entry.value; /* top-k counts candidates */
    return true;
}

/* --- bins --- */

BLOCK_FN void sample_clear_bins(const struct sample_row *r)
{
    uint32_t *words = r->shared->bins[0].words;
    block_sync(&r->block);
    for (uint32_t i = r->block.tid; i < SAMPLE_BINS * SAMPLE_BIN_WORDS; i += r->block.n_threads)
        words[i] = 0;
    block_sync(&r->block);
}

BLOCK_FN void sample_add(const struct sample_row *r, uint32_t bin, float weight)
{
    uint32_t *words = r->shared->bins[bin].words;
    uint64_t fixed = sample_fixed(weight);
    for (uint32_t i = 0; i < SAMPLE_LIMBS; i++)
        if (sample_limb(fixed, i) > 0)
            block_atomic_add(&words[i], sample_limb(fixed, i));
    block_atomic_add(&words[SAMPLE_COUNT], 1);
}

/* Sets bins[b].mass[0] to the mass of bins b and above; counts stay. */
BLOCK_FN void sample_sum_bins(const struct sample_row *r)
{
    const struct block *b = &r->block;
    union sample_bin *bins = r->shared->bins;
    uint32_t from = 0;
    block_sync(b);
    for (uint32_t i = b->tid; i < SAMPLE_BINS; i += b->n_threads)
        bins[i].mass[0] = sample_mass(bins[i].words);
    for (uint32_t step = 1; step < SAMPLE_BINS;
         step *= 2, from ^= 1) { /* ten steps: the result is in mass[0] */
        block_sync(b);
        for (uint32_t i = b->tid; i < SAMPLE_BINS; i += b->n_threads)
            bins[i].mass[from ^ 1] =
                bins[i].mass[from] + (i + step < SAMPLE_BINS ? bins[i + step].mass[from] : 0.0);
    }
    block_sync(b);
}

/* Returns the highest non-empty bin b for which `base` and the mass of bins b and above reach
 * `wanted`. If there is none, returns the lowest non-empty bin. Call after sample_sum_bins(). */
BLOCK_FN uint32_t sample_pick_bin(const struct sample_row *r, double base, double wanted)
{
    const struct block *b = &r->block;
    const union sample_bin *bins = r->shared->bins;
    uint32_t *word = &r->shared->word;
    block_sync(b);
    if (b->tid == 0)
        *word = 0;
    block_sync(b);
    for (uint32_t i = b->tid; i < SAMPLE_BINS; i += b->n_threads)
        if (bins[i].words[SAMPLE_COUNT] > 0)
            block_atomic_max(word, base + bins[i].mass[0] >= wanted ? SAMPLE_BINS + 1 + i
                                                                    : SAMPLE_BINS - i);
    block_sync(b);
    uint32_t found = *word;
    block_sync(b);
    return found > SAMPLE_BINS ? found - SAMPLE_BINS - 1 : SAMPLE_BINS - found;
}

/* Returns the mass of the bins above `bin`. */
BLOCK_FN double sample_mass_above(const struct sample_row *r, uint32_t bin)
{
    return bin + 1 < SAMPLE_BINS ? r->shared->bins[bin + 1].mass[0] : 0.0;
}

/* --- the search --- */

/* Narrows [low, high] to the words of the remaining candidates. */
BLOCK_FN void sample_narrow(const struct sample_row *r, const struct sample_source *s,
                            const struct sample_key *cut, uint32_t i_word, uint32_t *low,
                            uint32_t *high)
{
    uint64_t not_least = 0, most = 0;
    for (uint32_t i = r->block.tid; i < s->n; i += r->block.n_threads) {
        uint32_t word;
        float weight;
        if (!sample_word(r, s, i, cut, i_word, &word, &weight) || word < *low || word > *high)
            continue;
        not_least = ~word > not_least ? ~word : not_least;
        most = word > most ? word : most;
    }
    sample_reduce(r, &not_least, &most);
    *low = ~(uint32_t)not_least;
    *high = (uint32_t)most;
}

/* Does one round: [low, high] becomes the bin with the limit, *base the mass before it. */
BLOCK_FN void sample_round(const struct sample_row *r, const struct sample_source *s,
                           const struct sample_key *cut, uint32_t i_word, uint32_t *low,
                           uint32_t *high, double *base, double wanted)
{
    uint32_t width = 32, shift, same;
    while (!((*low ^ *high) >> (width - 1)))
        width--;
    shift = width > SAMPLE_DIGIT_BITS ? width - SAMPLE_DIGIT_BITS : 0;
    same = width < 32 ? *low >> width << width : 0;
    sample_clear_bins(r);
    for (uint32_t i = r->block.tid; i < s->n; i += r->block.n_threads) {
        uint32_t word;
        float weight;
        if (sample_word(r, s, i, cut, i_word, &word, &weight) && word >= *low && word <= *high)
            sample_add(r, (word >> shift) % SAMPLE_BINS, weight);
    }
    sample_sum_bins(r);
    uint32_t bin = sample_pick_bin(r, *base, wanted);
    *base += sample_mass_above(r, bin);
    *low = same | bin << shift;
    *high = *low | ((1u << shift) - 1);
}

/* Returns the last candidate that is taken; at least one is. base: the mass before all of them. */
BLOCK_FN struct sample_key sample_find_cut(const struct sample_row *r,
                                           const struct sample_source *s, double base,
                                           double wanted)
{
    struct sample_key cut = {{0, 0, 0}};
    wanted = wanted > 0.0 ? wanted : DBL_MIN;
    for (uint32_t i_word = 0; i_word < 3; i_word++) {
        uint32_t low = 0, high = 0xFFFFFFFFu;
        sample_narrow(r, s, &cut, i_word, &low, &high);
        while (low < high) {
            sample_round(r, s, &cut, i_word, &low, &high, &base, wanted);
            if (low < high)
                sample_narrow(r, s, &cut, i_word, &low, &high);
        }
        sample_set_word(&cut, i_word, low);
    }
    return cut;
}
