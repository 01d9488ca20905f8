/* sample_state.h: the state of a row of the CUDA sampler between launches: its phases, their
 * results, and the places of these. Plain data and index arithmetic, the same on host and
 * device. */
#pragma once

#include "kernels/cuda/sample/sample_order.h"

enum {
    SAMPLE_THREADS = 512, /* threads per block */
    SAMPLE_MAX_PARTS = 64,
    SAMPLE_LIST = 2048, /* candidates that one block can finish alone */
    SAMPLE_PIECE = 128, /* tokens per f64 sum of a draw's first search */
    SAMPLE_BLOCKS =
        512, /* blocks of a launch with few rows: four for each multiprocessor of an H100 */
    SAMPLE_PART_TOKENS = 1024,
    SAMPLE_TICKETS = 1024 /* most plain rows of a call for one launch; more rows take the phases */
};

/* A launch runs one phase of each row, with several blocks per row. The row's last block combines
 * the results and sets the next phase. */
enum sample_phase {
    SAMPLE_ADJUST,     /* penalties, bias, masks; the largest logit; greedy ends here */
    SAMPLE_LOGSUM,     /* Σ exp of the unmodified logits */
    SAMPLE_GATHER_TOP, /* the n_top largest of these logits */
    SAMPLE_BINS_K,     /* top-k: candidates per bin */
    SAMPLE_GATHER_K,   /* top-k's candidates; sampling ends here if k fits the list */
    SAMPLE_SUM_T,      /* typical: Σ w */
    SAMPLE_ENTROPY,
    SAMPLE_BINS_T,
    SAMPLE_GATHER_T,
    SAMPLE_SUM_P, /* top-p: Σ w, and the mass per bin */
    SAMPLE_GATHER_P,
    SAMPLE_LARGEST, /* min-p after typical alone: the largest remaining weight */
    SAMPLE_DRAW,    /* Σ w of the remaining tokens, and the token */
    SAMPLE_DONE
};

/* Bits of the cuts already made. */
enum { SAMPLE_CUT_K = 1, SAMPLE_CUT_T = 2, SAMPLE_CUT_P = 4, SAMPLE_CUT_MIN = 8 };

/* A row between launches; zeroed before the first. */
struct sample_state {
    uint32_t phase;
    uint32_t ticket, n_listed; /* atomics: finished blocks; entries of the list */
    uint32_t bin;              /* bin of the cut */
    uint32_t n_gather;         /* candidates to gather; 0: too many for the list */
    uint32_t gather_all; /* 1: gather all candidates from the bin on; 0: those of the bin alone */
    uint32_t cuts, id;   /* id: the greedy token, or the scored token */
    float max, raw_max;  /* largest adjusted and unmodified logit */
    float largest, min_weight; /* largest weight; min-p's bound */
    float log_sum, entropy;    /* typical's */
    float sum;
    float raw_log_sum;
    double base, wanted;                         /* mass before the bin; mass or count to reach */
    struct sample_key after_k, after_t, after_p; /* the last candidate that each cut keeps */
};

/* A block's results for its part of a row. */
struct sample_partial {
    uint64_t best, raw_best; /* ordered key of the largest, then ~id */
    uint32_t bad;            /* 1: an unmodified logit is NaN or +∞, 2: an adjusted one */
    float largest;           /* largest weight */
};

/* A candidate: its logit (top-k) or weight. */
struct sample_entry {
    float value;
    uint32_t id;
};

CUDA_HD bool sample_is_drawn(const struct sample_params *p)
{
    return !p->score && p->temperature > 0.0f && p->top_k != 1;
}

CUDA_HD bool sample_is_adjusted(const struct sample_params *p)
{
    return !p->score &&
           (p->n_counts > 0 || p->n_biases > 0 || p->watermark || p->allowed_mask != NULL);
}

/* Returns true if the row's result is the largest logit's token and no more. */
CUDA_HD bool sample_is_plain(const struct sample_params *p)
{
    return !p->score && !sample_is_drawn(p) && !sample_is_adjusted(p) && !p->want_logprob &&
           p->n_top == 0;
}

/* Returns true if a row has the phase, unless an earlier phase ends the row. */
CUDA_HD bool sample_has_phase(uint32_t phase, const struct sample_params *p, uint32_t vocab)
{
    bool top_k = sample_is_drawn(p) && p->top_k > 0 && p->top_k < vocab;
    bool rest = sample_is_drawn(p) && !(top_k && p->top_k <= SAMPLE_LIST);
    bool typical = p->typical_p < 1.0f, top_p = p->top_p < 1.0f;
    switch (phase) {
    case SAMPLE_ADJUST:
        return true;
    case SAMPLE_LOGSUM:
        return p->want_logprob || p->n_top;
    case SAMPLE_GATHER_TOP:
        return p->n_top > 0;
    case SAMPLE_BINS_K:
    case SAMPLE_GATHER_K:
        return top_k;
    case SAMPLE_SUM_T:
    case SAMPLE_ENTROPY:
    case SAMPLE_BINS_T:
    case SAMPLE_GATHER_T:
        return rest && typical;
    case SAMPLE_SUM_P:
    case SAMPLE_GATHER_P:
        return rest && top_p;
    case SAMPLE_LARGEST:
        return rest && typical && !top_p && p->min_p > 0.0f;
    default:
        return phase == SAMPLE_DRAW && rest;
    }
}

CUDA_HD uint32_t sample_next_phase(uint32_t phase, const struct sample_params *p, uint32_t vocab)
{
    do
        phase++;
    while (phase < SAMPLE_DONE && !sample_has_phase(phase, p, vocab));
    return phase;
}

/* Returns a number of launches that finishes a row for certain. */
CUDA_HD uint32_t sample_n_launches(const struct sample_params *p, uint32_t vocab)
{
    uint32_t n = 0;
    for (uint32_t phase = SAMPLE_ADJUST; phase < SAMPLE_DONE;
         phase = sample_next_phase(phase, p, vocab))
        n++;
    return n;
}

/* Returns true if the phase adds up weights segment by segment. */
CUDA_HD bool sample_sums(uint32_t phase)
{
    return phase == SAMPLE_LOGSUM || phase == SAMPLE_SUM_T || phase == SAMPLE_ENTROPY ||
           phase == SAMPLE_SUM_P || phase == SAMPLE_LARGEST || phase == SAMPLE_DRAW;
}

/* Returns true if the phase bins candidates for the following gathering. */
CUDA_HD bool sample_bins(uint32_t phase, const struct sample_params *p)
{
    return (phase == SAMPLE_LOGSUM && p->n_top) || phase == SAMPLE_BINS_K ||
           phase == SAMPLE_BINS_T || phase == SAMPLE_SUM_P;
}

CUDA_HD bool sample_gathers(uint32_t phase)
{
    return phase == SAMPLE_GATHER_TOP || phase == SAMPLE_GATHER_K || phase == SAMPLE_GATHER_T ||
           phase == SAMPLE_GATHER_P;
}

/* Returns the order by which a phase bins or gathers. */
CUDA_HD enum sample_order sample_phase_order(uint32_t phase)
{
    return phase == SAMPLE_BINS_T || phase == SAMPLE_GATHER_T  ? SAMPLE_BY_TYPICAL
           : phase == SAMPLE_SUM_P || phase == SAMPLE_GATHER_P ? SAMPLE_BY_WEIGHT
                                                               : SAMPLE_BY_LOGIT;
}

/* Returns the blocks per row: a power of two, many for few rows. A block has at least a few
 * thousand bytes of logits. Results do not depend on it. */
CUDA_HD uint32_t sample_n_parts(uint32_t n_rows, uint32_t vocab)
{
    uint32_t n = 1;
    while (n < SAMPLE_MAX_PARTS && 2 * n * (uint64_t)n_rows <= SAMPLE_BLOCKS &&
           (uint64_t)n * SAMPLE_PART_TOKENS < vocab)
        n *= 2;
    return n;
}

/* --- a row's scratch: byte offsets, the row's own [n_bytes] --- */

struct sample_scratch {
    size_t x;        /* f32 [vocab] adjusted logits */
    size_t bins;     /* u32 [SAMPLE_BINS][SAMPLE_BIN_WORDS] */
    size_t list;     /* struct sample_entry [SAMPLE_LIST] */
    size_t partials; /* struct sample_partial [SAMPLE_MAX_PARTS] */
    size_t sums;     /* f32 [CUDA_SEGMENTS] */
    size_t pieces;   /* f64 [CUDA_SEGMENTS][sample_n_pieces] */
    size_t n_bytes;
};

/* Returns the pieces of the longest segment. */
CUDA_HD uint32_t sample_n_pieces(uint32_t vocab)
{
    uint32_t longest = cuda_segment_bound(vocab + CUDA_UNIT * CUDA_SEGMENTS, 1);
    return (longest + SAMPLE_PIECE - 1) / SAMPLE_PIECE;
}

CUDA_HD struct sample_scratch sample_scratch_of(uint32_t vocab)
{
    struct sample_scratch s;
    s.x = 0;
    s.bins = cuda_round_up((size_t)vocab * sizeof(float), 256);
    s.list = s.bins + (size_t)SAMPLE_BINS * SAMPLE_BIN_WORDS * sizeof(uint32_t);
    s.partials = s.list + SAMPLE_LIST * sizeof(struct sample_entry);
    s.sums = s.partials + SAMPLE_MAX_PARTS * sizeof(struct sample_partial);
    s.pieces = s.sums + 256;
    s.n_bytes = cuda_round_up(
        s.pieces + (size_t)CUDA_SEGMENTS * sample_n_pieces(vocab) * sizeof(double), 256);
    return s;
}
