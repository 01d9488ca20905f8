/* bench_run.h: what `sluice-worker bench` times: prefill and greedy decode of a loaded model at a
 * given context depth, step by step as the engine makes them (pieces of prompts, rows of a step),
 * but without queue and events. Every sequence has KV blocks of its own, filled with real keys and
 * values. One thread. */
#pragma once

#include <signal.h>
#include <stdint.h>

struct bench_run;
struct error;
struct executor;

struct bench_run_config {
    uint32_t block_size;    /* tokens, as the executor was opened with */
    uint32_t max_rows;      /* of a step */
    uint32_t chunk;         /* longest piece of a prompt in a step */
    uint32_t max_seqs;      /* sequences at once */
    uint32_t max_positions; /* of a sequence: the largest depth and what comes after it */
    const volatile sig_atomic_t *stop; /* not 0: the next step is not made; or NULL */
};

/* Blocks that bench_run_create's executor must have, in tokens. */
uint64_t bench_run_kv_tokens(const struct bench_run_config *config);

/* On `executor` (borrowed until destroy), whose KV pool is then this run's alone. *out_run is
 * owned. */
int bench_run_create(struct executor *executor, const struct bench_run_config *config,
                     struct bench_run **out_run, struct error *err);
void bench_run_destroy(struct bench_run *run);

/* Gives every sequence `depth` positions, at least as many as it has: one is computed, the others
 * get copies. These three end with CANCELLED where they were told to stop. */
int bench_run_deepen(struct bench_run *run, uint32_t depth, struct error *err);
/* A prompt of n_tokens for each of n_seqs behind the depth, to their first tokens. *out_ns: how
 * long that took. The depth stays what it was. */
int bench_run_prefill(struct bench_run *run, uint32_t n_seqs, uint32_t n_tokens, int64_t *out_ns,
                      struct error *err);
/* n_tokens steps of n_seqs sequences, each with its token behind the one before. out_step_ns has
 * room for n_tokens. */
int bench_run_decode(struct bench_run *run, uint32_t n_seqs, uint32_t n_tokens,
                     int64_t *out_step_ns, struct error *err);
