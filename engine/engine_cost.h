/* engine_cost.h: predicts the speed of a model on a split, from bytes, operations and figures of
 * the devices. Pure arithmetic without I/O; any thread. docs/house/parallel-cost.md explains the
 * model, and how far measurements are from it.
 *
 * Units: bytes, seconds, operations (a multiplication with its addition is two). B: rows of a
 * step. R: bytes that a rank reads in a second, at most its share of a common memory. F: operations
 * in a second. W and L: bytes in a second, and latency, of a link. N: ranks of a stage.
 *
 *     stage(B)  = max over its ranks of (max(read(B) / R, 2 · multiplications · B / F) + sums(B))
 *
 *     read(B)   = dense + experts · (1 − (1 − used / all)^B) + B · (K and V of the context + state)
 *
 *     sums(B)   = collectives · min(L + (N − 1) · m / W, 2 L + 2 (N − 1) / N · m / W)
 *
 *     hop(B)    = L + hidden · 4 · B / W
 *
 *     decode(B) = step + max(sum of stages and hops at B / k, k · the slowest stage at B / k)
 *
 *     prompt(B) = step + sum of stages and hops at B / p + (p − 1) · the slowest of them
 *
 * Here m is bytes of a message, wire · B / collectives. The first term of the minimum is a push to
 * all ranks. The second is two halves: shares of rows, then all of them. The number k is steps in
 * flight; with 1 the stages work one after the other. The number p is parts of the step
 * (pipeline.h), and each part reads the weights again. Prompt rows read no K and V here, so long
 * contexts are slower than predicted.
 *
 * Sources: the roofline model (Williams 2009, doi 10.1145/1498765.1498785); costs of collectives
 * (Thakur 2005, doi 10.1177/1094342005051521); the bubble of a pipeline (arXiv 1811.06965). */
#pragma once

#include <stdint.h>

enum { ENGINE_COST_MAX_RANKS = 32 };

/* The work of a rank. */
struct engine_cost_rank {
    double dense_bytes;     /* weights that each step reads once, whatever its rows */
    double expert_bytes;    /* weights of all experts */
    double multiplications; /* for a row */
    double kv_bytes;        /* K and V that a decoding row reads for each position before it */
    double window_bytes;    /* the same in layers with a window */
    double state_bytes;     /* recurrent states that a decoding row reads and writes */
    double n_collectives;   /* messages in a step */
    double wire_bytes;      /* a row in all messages to another rank */
};

struct engine_cost_split {
    uint32_t tp, n_stages;
    /* [n_stages · tp], stage by stage */
    struct engine_cost_rank ranks[ENGINE_COST_MAX_RANKS];
    double experts_used;  /* share of the experts that a row uses; 0: no experts */
    double window_tokens; /* positions that layers with a window read */
    double hidden_bytes;  /* a row between two stages */
};

/* Figures of the devices; bytes per second and so on as in device_spec.h. */
struct engine_cost_device {
    double read_bytes_s, ops_s; /* a rank's */
    double shared_bytes_s;      /* all ranks that work at once read so much; 0: memory of its own */
    double link_bytes_s, latency_s;
    double hop_bytes_s, hop_latency_s; /* between stages */
    double step_s;
};

struct engine_cost_use {
    double n_seqs, depth_tokens; /* sequences that decode together, and the context of each */
    double prompt_rows;          /* rows of a step of prompts */
    uint32_t n_parts;            /* parts of such a step; at least 1 */
    uint32_t in_flight;          /* decode steps at once; at least 1 */
};

struct engine_cost {
    double alone_tokens_s;   /* a single sequence */
    double tokens_s;         /* n_seqs together */
    double prompt_tokens_s;  /* rows of prompts */
    double bubble;           /* share of the stages' time in prompts in which they wait */
    double sums_share;       /* share of one sequence's step in collectives and hops */
    double wire_token_bytes; /* bytes that the rank with the most sends for a generated token */
};

/* Bytes that a rank sends for a generated token: to all ranks of its stage, and to the next
 * stage. */
double engine_cost_wire(const struct engine_cost_split *split, uint32_t rank);

void engine_cost_predict(const struct engine_cost_split *split,
                         const struct engine_cost_device *device, const struct engine_cost_use *use,
                         struct engine_cost *out);
