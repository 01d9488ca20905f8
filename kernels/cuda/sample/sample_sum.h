/* sample_sum.h: the phases that add up a row's weights by the contract. A block computes a segment:
 * 16 chains of additions run through shared memory while the other threads compute the next
 * weights. For the draw also f64 sums of pieces, in which the draw searches its token. */
#pragma once

#include "kernels/cuda/sample/sample_cut.h"

/* Returns token id's term in the sum of phase `phase`. */
BLOCK_FN float sample_addend(const struct sample_row *r, uint32_t phase,
                             const struct sample_frame *f, uint32_t id)
{
    const struct sample_state *s = r->state;
    if (phase == SAMPLE_LOGSUM)
        return sample_exp((r->logits[id] - s->raw_max) / 1.0f);
    float w = sample_weight(r, f, r->x[id], id);
    return phase == SAMPLE_ENTROPY ? sample_entropy_term(w, s->sum, s->log_sum) : w;
}

/* Fills a stage with tokens [begin, begin + n); updates the largest weight, as bits. */
BLOCK_FN void sample_fill(const struct sample_row *r, uint32_t phase, const struct sample_frame *f,
                          float *stage, uint32_t begin, uint32_t n, uint64_t *largest)
{
    BLOCK_UNROLL_FEW
    for (uint32_t i = r->block.tid; i < n; i += r->block.n_threads) {
        float x = sample_addend(r, phase, f, begin + i);
        stage[i] = x;
        *largest = sample_bits(x) > *largest ? sample_bits(x) : *largest;
    }
}

/* Sums the staged pieces from piece `first` of segment s on, with threads that are not lanes. Each
 * thread starts at a different place in its piece, so that threads read different banks. */
BLOCK_FN void sample_piece_sums(const struct sample_row *r, const float *stage, uint32_t n,
                                uint32_t s, uint32_t first)
{
    double *pieces = (double *)sample_at(r, r->at.pieces) + s * (size_t)sample_n_pieces(r->vocab);
    uint32_t n_pieces = (n + SAMPLE_PIECE - 1) / SAMPLE_PIECE;
    uint32_t thread = (r->block.tid + r->block.n_threads / 2) % r->block.n_threads;
    for (uint32_t p = thread; p < n_pieces; p += r->block.n_threads) {
        uint32_t from = p * SAMPLE_PIECE, left = n - from;
        uint32_t size = left < SAMPLE_PIECE ? left : (uint32_t)SAMPLE_PIECE;
        double sum = 0.0;
        for (uint32_t i = 0, j = p % size; i < size; i++, j = j + 1 < size ? j + 1 : 0)
            sum += (double)stage[from + j];
        pieces[first + p] = sum;
    }
}

/* Sums segment s by tiles, with two stages used alternately: one barrier per tile. */
BLOCK_FN void sample_sum_segment(const struct sample_row *r, uint32_t phase, uint32_t s,
                                 const struct sample_frame *f, uint64_t *largest)
{
    uint32_t from = cuda_segment_bound(r->vocab, s), to = cuda_segment_bound(r->vocab, s + 1);
    float *lanes = r->shared->lanes;
    for (uint32_t l = r->block.tid; l < CUDA_LANES; l += r->block.n_threads)
        lanes[l] = 0.0f;
    block_sync(&r->block);
    for (uint32_t begin = from, turn = 0; begin < to; begin += SAMPLE_TILE, turn ^= 1) {
        uint32_t n = to - begin < SAMPLE_TILE ? to - begin : (uint32_t)SAMPLE_TILE;
        float *stage = r->shared->stage[turn];
        sample_fill(r, phase, f, stage, begin, n, largest);
        block_sync(&r->block);
        for (uint32_t l = r->block.tid; l < CUDA_LANES && l < n; l += r->block.n_threads)
            lanes[l] = block_chain(stage + l, n - l, BLOCK_TERM_SELF, 0.0f, lanes[l]);
        if (phase == SAMPLE_DRAW)
            sample_piece_sums(r, stage, n, s, (begin - from) / SAMPLE_PIECE);
    }
    block_fold_lanes(&r->block, lanes, 1);
    if (r->block.tid == 0)
        ((float *)sample_at(r, r->at.sums))[s] = lanes[0];
    block_sync(&r->block);
}

BLOCK_FN void sample_sum_part(const struct sample_row *r, uint32_t phase)
{
    uint32_t n_parts = r->n_parts < CUDA_SEGMENTS ? r->n_parts : (uint32_t)CUDA_SEGMENTS;
    struct sample_frame f = sample_frame_of(r, false);
    uint64_t largest = 0, unused = 0;
    if (r->part < n_parts)
        for (uint32_t s = CUDA_SEGMENTS * r->part / n_parts;
             s < CUDA_SEGMENTS * (r->part + 1) / n_parts; s++)
            sample_sum_segment(r, phase, s, &f, &largest);
    sample_reduce(r, &largest, &unused);
    if (r->block.tid == 0)
        ((struct sample_partial *)sample_at(r, r->at.partials))[r->part].largest =
            cuda_from_bits((uint32_t)largest);
}

/* Collects the sums of all blocks in shared->sums and returns their tree. */
BLOCK_FN float sample_total(const struct sample_row *r)
{
    const float *sums = (const float *)sample_at(r, r->at.sums);
    for (uint32_t s = r->block.tid; s < CUDA_SEGMENTS; s += r->block.n_threads)
        r->shared->sums[s] = BLOCK_LOAD(&sums[s]);
    block_sync(&r->block);
    return sample_tree_of(r->shared->sums);
}

BLOCK_FN float sample_largest(const struct sample_row *r)
{
    const struct sample_partial *parts =
        (const struct sample_partial *)sample_at(r, r->at.partials);
    uint64_t largest = 0, unused = 0;
    for (uint32_t i = r->block.tid; i < r->n_parts; i += r->block.n_threads) {
        uint32_t bits = sample_bits(BLOCK_LOAD(&parts[i].largest));
        largest = bits > largest ? bits : largest;
    }
    sample_reduce(r, &largest, &unused);
    return cuda_from_bits((uint32_t)largest);
}
