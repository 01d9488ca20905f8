/* sample_gather.h: the two phases of a cut. First all blocks bin the candidates, which gives the
 * cut's bin and the number of candidates before it. Then the candidates that may matter are
 * gathered. */
#pragma once

#include "kernels/cuda/sample/sample_list.h"

/* Zeroes this block's share of the row's bins in memory. */
BLOCK_FN void sample_clear_row_bins(const struct sample_row *r, uint32_t part, uint32_t n_parts)
{
    uint32_t *words = (uint32_t *)sample_at(r, r->at.bins), begin, end;
    cuda_piece(0, SAMPLE_BINS * SAMPLE_BIN_WORDS, part, n_parts, &begin, &end);
    for (uint32_t i = begin + r->block.tid; i < end; i += r->block.n_threads)
        words[i] = 0;
}

BLOCK_FN struct sample_source sample_row_source(const struct sample_row *r, uint32_t phase)
{
    bool raw = phase == SAMPLE_LOGSUM || phase == SAMPLE_GATHER_TOP;
    struct sample_source s = {sample_phase_order(phase), sample_frame_of(r, raw),
                              raw ? r->logits : r->x, r->vocab, SAMPLE_BINS};
    return s;
}

/* Returns the value below which candidates need no check. */
BLOCK_FN float sample_least(const struct sample_row *r, uint32_t phase)
{
    bool nucleus = phase == SAMPLE_SUM_P || phase == SAMPLE_GATHER_P;
    bool has_largest = !(r->state->cuts & SAMPLE_CUT_T); /* typical may remove the likeliest */
    return nucleus && has_largest ? sample_nucleus_floor(r->params->top_p, r->vocab) : -INFINITY;
}

BLOCK_FN void sample_bin_part(const struct sample_row *r, uint32_t phase)
{
    struct sample_source s = sample_row_source(r, phase);
    uint32_t *words = (uint32_t *)sample_at(r, r->at.bins);
    const uint32_t *own = r->shared->bins[0].words;
    uint32_t end = sample_part_bound(r->vocab, r->part + 1, r->n_parts);
    float least = sample_least(r, phase);
    sample_clear_bins(r);
    for (uint32_t i = sample_part_bound(r->vocab, r->part, r->n_parts) + r->block.tid; i < end;
         i += r->block.n_threads) {
        struct sample_entry entry;
        if (sample_candidate(r, &s, i, &entry) && entry.value >= least)
            sample_add(r, sample_bin_of(s.order, &s.frame, entry.value),
                       s.order == SAMPLE_BY_LOGIT ? 1.0f : entry.value);
    }
    block_sync(&r->block);
    for (uint32_t i = r->block.tid; i < SAMPLE_BINS * SAMPLE_BIN_WORDS; i += r->block.n_threads)
        if (own[i] > 0)
            block_atomic_add(&words[i], own[i]);
}

/* Finds the bin with the limit from the bins of all blocks, and zeroes these bins again. */
BLOCK_FN void sample_bin_end(const struct sample_row *r, double wanted)
{
    const uint32_t *words = (const uint32_t *)sample_at(r, r->at.bins);
    uint32_t *own = r->shared->bins[0].words;
    uint32_t above = 0;
    block_sync(&r->block);
    for (uint32_t i = r->block.tid; i < SAMPLE_BINS * SAMPLE_BIN_WORDS; i += r->block.n_threads)
        own[i] = BLOCK_LOAD(&words[i]);
    sample_sum_bins(r);
    sample_clear_row_bins(r, 0, 1);
    wanted = wanted > 0.0 ? wanted : DBL_MIN;
    uint32_t bin = sample_pick_bin(r, 0.0, wanted), n_in = r->shared->bins[bin].words[SAMPLE_COUNT];
    double base = sample_mass_above(r, bin);
    if (r->block.tid == 0)
        r->shared->word = 0;
    block_sync(&r->block);
    for (uint32_t i = r->block.tid; i < SAMPLE_BINS; i += r->block.n_threads)
        if (i > bin)
            above += r->shared->bins[i].words[SAMPLE_COUNT];
    block_atomic_add(&r->shared->word, above);
    block_sync(&r->block);
    uint32_t n_all = r->shared->word + n_in;
    if (r->block.tid > 0)
        return;
    struct sample_state *s = r->state;
    s->bin = bin;
    s->base = base;
    s->wanted = wanted;
    s->gather_all = n_all <= SAMPLE_LIST;
    s->n_gather = n_all <= SAMPLE_LIST ? n_all : n_in <= SAMPLE_LIST ? n_in : 0;
    s->n_listed = 0;
}

BLOCK_FN void sample_gather_part(const struct sample_row *r, uint32_t phase)
{
    struct sample_source s = sample_row_source(r, phase);
    struct sample_state *state = r->state;
    struct sample_entry *list = (struct sample_entry *)sample_at(r, r->at.list);
    uint32_t end = sample_part_bound(r->vocab, r->part + 1, r->n_parts);
    float least = sample_least(r, phase);
    if (state->n_gather == 0)
        return;
    for (uint32_t i = sample_part_bound(r->vocab, r->part, r->n_parts) + r->block.tid; i < end;
         i += r->block.n_threads) {
        struct sample_entry entry;
        if (!sample_candidate(r, &s, i, &entry) || !(entry.value >= least))
            continue;
        uint32_t bin = sample_bin_of(s.order, &s.frame, entry.value);
        if (bin == state->bin || (bin > state->bin && state->gather_all)) {
            uint32_t at = block_atomic_add(&state->n_listed, 1);
            if (at < SAMPLE_LIST)
                list[at] = entry;
        }
    }
}

/* Loads the gathered list into shared memory; returns its length. */
BLOCK_FN uint32_t sample_fetch_list(const struct sample_row *r)
{
    const struct sample_entry *list = (const struct sample_entry *)sample_at(r, r->at.list);
    uint32_t n = r->state->n_gather;
    for (uint32_t i = r->block.tid; i < n; i += r->block.n_threads) {
        r->shared->values[i] = BLOCK_LOAD(&list[i].value);
        r->shared->ids[i] = BLOCK_LOAD(&list[i].id);
    }
    block_sync(&r->block);
    return n;
}

/* Collects into the list all candidates of the row that the cut keeps; the list has room for them.
 * Reads the whole row, so this is for rows with very many candidates in one bin. */
BLOCK_FN uint32_t sample_collect(const struct sample_row *r, uint32_t phase,
                                 const struct sample_key *cut)
{
    struct sample_source s = sample_row_source(r, phase);
    struct sample_shared *shared = r->shared;
    block_sync(&r->block);
    if (r->block.tid == 0)
        shared->word = 0;
    block_sync(&r->block);
    for (uint32_t i = r->block.tid; i < s.n; i += r->block.n_threads) {
        struct sample_key key = sample_key_of(s.order, &s.frame, s.x[i], i);
        if (sample_is_after(&key, cut))
            continue;
        uint32_t at = block_atomic_add(&shared->word, 1);
        if (at < SAMPLE_LIST) {
            shared->values[at] = s.x[i];
            shared->ids[at] = i;
        }
    }
    block_sync(&r->block);
    uint32_t n = shared->word;
    return n < SAMPLE_LIST ? n : (uint32_t)SAMPLE_LIST;
}

BLOCK_FN void sample_go_on(const struct sample_row *r, uint32_t phase)
{
    uint32_t next = sample_next_phase(phase, r->params, r->vocab);
    if (next == SAMPLE_DONE)
        sample_finish(r, r->state->id);
    else if (r->block.tid == 0)
        r->state->phase = next;
}

/* Stores the cut of a phase whose candidates are too many for the list. */
BLOCK_FN void sample_keep_cut(const struct sample_row *r, uint32_t phase,
                              const struct sample_key *cut)
{
    struct sample_state *s = r->state;
    block_sync(&r->block);
    if (r->block.tid == 0 && phase == SAMPLE_GATHER_K)
        s->after_k = *cut;
    else if (r->block.tid == 0 && phase == SAMPLE_GATHER_T)
        s->after_t = *cut;
    else if (r->block.tid == 0)
        s->after_p = *cut;
    if (r->block.tid == 0)
        s->cuts |= phase == SAMPLE_GATHER_K   ? SAMPLE_CUT_K
                   : phase == SAMPLE_GATHER_T ? SAMPLE_CUT_T
                                              : SAMPLE_CUT_P;
    block_sync(&r->block);
}

/* Sets min-p's bound, which applies from the draw on. */
BLOCK_FN void sample_set_min(const struct sample_row *r, uint32_t next)
{
    struct sample_state *s = r->state;
    block_sync(&r->block);
    if (r->block.tid == 0 && next == SAMPLE_DRAW && r->params->min_p > 0.0f) {
        s->min_weight = r->params->min_p * s->largest;
        s->cuts |= SAMPLE_CUT_MIN;
    }
    block_sync(&r->block);
}

BLOCK_FN void sample_gather_end(const struct sample_row *r, uint32_t phase)
{
    const struct sample_state *state = r->state;
    struct sample_source s = sample_row_source(r, phase);
    bool all = state->gather_all != 0, top = phase == SAMPLE_GATHER_TOP;
    bool fits = top || (phase == SAMPLE_GATHER_K && r->params->top_k <= SAMPLE_LIST);
    s.bin = state->bin;
    if (state->n_gather > 0) {
        s.n = sample_fetch_list(r);
        s.x = NULL;
    }
    struct sample_key cut = sample_find_cut(r, &s, state->base, state->wanted);
    if (!all && !fits) {
        sample_keep_cut(r, phase, &cut);
        sample_go_on(r, phase);
        return;
    }
    if (!all)
        s.n = sample_collect(r, phase, &cut);
    if (top) {
        sample_list_top(r, &s, &cut);
        if (r->block.tid == 0)
            r->out->n_top = (uint32_t)state->wanted;
        sample_go_on(r, phase);
        return;
    }
    if (all)
        sample_list_cut(r, &s, &cut, s.order == SAMPLE_BY_LOGIT ? -INFINITY : 0.0f);
    sample_list_finish(r, s.n, s.order);
}
