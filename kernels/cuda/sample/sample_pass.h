/* sample_pass.h: the sampler's stages (kernels/sample.h) for rows that several blocks share, a
 * launch per phase (sample_state.h). A phase reads the row once, or twice if it sums and bins. The
 * row's last block reduces the results of all blocks, in a fixed order or as whole numbers. So a
 * result depends neither on the number of blocks nor on the order of blocks or threads. Sums over
 * the vocabulary, exponentials and the random number have the bits of the contract. So at most
 * eight blocks compute a row's sum, one segment each. Their chains of additions run through shared
 * memory while the other threads compute the next weights. Cuts: sample_cut.h.
 *
 * Bytes of logits read, for V tokens. Greedy: 4·V (with penalties or bias 8·V more for the copy). A
 * draw without cuts, or min-p: 8·V. top-k: 12·V. top-p: 16·V, or 20·V if more than 2,048 tokens
 * stay. Log-probabilities: 4·V more; a list of the likeliest tokens: 12·V more.
 *
 * On sm_80 a few words of sample_pass spill: two blocks of 512 threads leave 64 registers to each
 * thread.
 *
 *     ptxas: sample.cu sample_pass registers 64 shared 45056 stack 8 spill 112
 *     ptxas: sample.cu sample_pass on sm_90a registers 64 shared 45056
 *     ptxas: sample.cu sample_plain registers 64 shared 45056 */
#pragma once

#include "kernels/cuda/sample/sample_adjust.h"
#include "kernels/cuda/sample/sample_gather.h"
#include "kernels/cuda/sample/sample_sum.h"

/* --- draw --- */

/* Returns the last token of [from, to) with weight. */
BLOCK_FN uint32_t sample_last(const struct sample_row *r, const struct sample_frame *f,
                              uint32_t from, uint32_t to)
{
    uint64_t last = 0, unused = 0;
    for (uint32_t i = from + r->block.tid; i < to; i += r->block.n_threads)
        if (sample_addend(r, SAMPLE_DRAW, f, i) > 0.0f)
            last = i;
    sample_reduce(r, &last, &unused);
    return (uint32_t)last;
}

/* Returns the piece of segment s in which the sum exceeds the target, in all threads. The sum of
 * the pieces before is *sum. If there is no such piece the result is n_pieces. */
BLOCK_FN uint32_t sample_find_piece(const struct sample_row *r, uint32_t s, uint32_t n_pieces,
                                    double target, double *sum)
{
    enum { STAGED = CUDA_SEGMENTS * CUDA_LANES };
    const double *pieces =
        (const double *)sample_at(r, r->at.pieces) + s * (size_t)sample_n_pieces(r->vocab);
    for (uint32_t piece = 0; piece < n_pieces; piece++) {
        if (piece % STAGED == 0) {
            block_sync(&r->block);
            for (uint32_t i = r->block.tid; i < STAGED && piece + i < n_pieces;
                 i += r->block.n_threads)
                r->shared->pieces[i] = BLOCK_LOAD(&pieces[piece + i]);
            block_sync(&r->block);
        }
        double next = *sum + r->shared->pieces[piece % STAGED];
        if (next > target)
            return piece;
        *sum = next;
    }
    return n_pieces;
}

/* Draws by the inverse CDF in ascending id: segments, then pieces of the segment, then tokens of
 * the piece. */
BLOCK_FN void sample_draw_end(const struct sample_row *r)
{
    struct sample_shared *shared = r->shared;
    struct sample_frame f = sample_frame_of(r, false);
    double target, sum = 0.0;
    float total = sample_total(r);
    uint32_t s = sample_target(r->params, shared->sums, total, &target);
    if (s == CUDA_SEGMENTS) { /* rounding left the target past the end */
        sample_finish(r, sample_last(r, &f, 0, r->vocab));
        return;
    }
    uint32_t from = cuda_segment_bound(r->vocab, s), to = cuda_segment_bound(r->vocab, s + 1);
    uint32_t n_pieces = (to - from + SAMPLE_PIECE - 1) / SAMPLE_PIECE;
    uint32_t piece = sample_find_piece(r, s, n_pieces, target, &sum);
    if (piece == n_pieces) {
        sample_finish(r, sample_last(r, &f, from, to));
        return;
    }
    uint32_t begin = from + piece * SAMPLE_PIECE;
    uint32_t n = to - begin < SAMPLE_PIECE ? to - begin : (uint32_t)SAMPLE_PIECE;
    uint64_t unused = 0;
    sample_fill(r, SAMPLE_DRAW, &f, shared->stage[0], begin, n, &unused);
    block_sync(&r->block);
    uint32_t drawn = begin;
    for (uint32_t i = 0; i < n; i++) {
        if (!(shared->stage[0][i] > 0.0f))
            continue;
        drawn = begin + i;
        sum += (double)shared->stage[0][i];
        if (sum > target)
            break;
    }
    sample_finish(r, drawn);
}

/* --- phases --- */

BLOCK_FN void sample_sum_end(const struct sample_row *r, uint32_t phase)
{
    struct sample_state *s = r->state;
    const struct sample_params *p = r->params;
    uint32_t n_top = p->n_top < SAMPLE_MAX_TOP ? p->n_top : (uint32_t)SAMPLE_MAX_TOP;
    if (phase == SAMPLE_DRAW) {
        sample_draw_end(r);
        return;
    }
    float total = sample_total(r), largest = sample_largest(r);
    if (r->block.tid == 0 && phase == SAMPLE_LOGSUM)
        s->raw_log_sum = sample_log(total);
    if (r->block.tid == 0 && phase == SAMPLE_SUM_T) {
        s->sum = total;
        s->log_sum = sample_log(total);
    }
    if (r->block.tid == 0 && phase == SAMPLE_ENTROPY)
        s->entropy = total;
    if (r->block.tid == 0 && (phase == SAMPLE_SUM_P || phase == SAMPLE_LARGEST))
        s->largest = largest;
    if (phase == SAMPLE_LOGSUM && n_top > 0)
        sample_bin_end(r, n_top < r->vocab ? (double)n_top : (double)r->vocab);
    if (phase == SAMPLE_SUM_P)
        sample_bin_end(r, (double)p->top_p * (double)total);
    sample_go_on(r, phase);
}

BLOCK_FN void sample_phase_part(const struct sample_row *r, uint32_t phase)
{
    if (phase == SAMPLE_ADJUST && (r->params->n_top || sample_is_drawn(r->params)))
        sample_clear_row_bins(r, r->part, r->n_parts);
    if (phase == SAMPLE_ADJUST)
        sample_adjust_part(r);
    if (sample_sums(phase))
        sample_sum_part(r, phase);
    if (sample_bins(phase, r->params))
        sample_bin_part(r, phase);
    if (sample_gathers(phase))
        sample_gather_part(r, phase);
}

BLOCK_FN void sample_phase_end(const struct sample_row *r, uint32_t phase)
{
    if (phase == SAMPLE_ADJUST)
        sample_adjust_end(r);
    else if (sample_sums(phase))
        sample_sum_end(r, phase);
    else if (sample_gathers(phase))
        sample_gather_end(r, phase);
    if (phase == SAMPLE_BINS_K || phase == SAMPLE_BINS_T) {
        sample_bin_end(r, phase == SAMPLE_BINS_K
                              ? (double)r->params->top_k
                              : (double)r->params->typical_p * (double)r->state->sum);
        sample_go_on(r, phase);
    }
    block_sync(&r->block);
    sample_set_min(r, r->state->phase);
}

/* Returns true in the row's last block, which sees the results of all blocks. */
BLOCK_FN bool sample_arrive(const struct sample_row *r, uint32_t *ticket)
{
    block_fence();
    block_sync(&r->block);
    if (r->block.tid == 0)
        r->shared->word = block_atomic_add(ticket, 1);
    block_sync(&r->block);
    bool last = r->shared->word + 1 == r->n_parts;
    block_fence();
    block_sync(&r->block);
    if (last && r->block.tid == 0)
        *ticket = 0;
    return last;
}

/* Does one block's work on its row in one launch; all threads call it. */
BLOCK_FN void sample_run(const struct sample_row *r)
{
    uint32_t phase = r->state->phase;
    if (phase >= SAMPLE_DONE)
        return;
    sample_phase_part(r, phase);
    if (sample_arrive(r, &r->state->ticket))
        sample_phase_end(r, phase);
}

/* Does one block's work on a row for which sample_is_plain(). The block's own state is zero. The
 * row's ticket is zero before and after the launch. */
BLOCK_FN void sample_run_plain(const struct sample_row *r, uint32_t *ticket)
{
    sample_phase_part(r, SAMPLE_ADJUST);
    if (sample_arrive(r, ticket))
        sample_phase_end(r, SAMPLE_ADJUST);
}
