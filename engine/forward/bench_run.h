/* bench_run.h: the timed steps of engine_bench (engine_stats.h) on an open executor.
 * Single-threaded. */
#pragma once

#include <stdint.h>

#include "engine/engine_stats.h"

struct bench_run;
struct error;
struct executor;

/* Same as engine_bench_kv_tokens(). */
uint64_t bench_run_kv_tokens(const struct engine_bench_config *config);

/* `executor` is borrowed until destroy; its KV pool is used by this run alone. *out_run is
 * owned. */
int bench_run_create(struct executor *executor, const struct engine_bench_config *config,
                     struct bench_run **out_run, struct error *err);
void bench_run_destroy(struct bench_run *run);

/* Same as engine_bench_deepen(), engine_bench_prefill() and engine_bench_decode(). */
int bench_run_deepen(struct bench_run *run, uint32_t depth, struct error *err);
int bench_run_prefill(struct bench_run *run, uint32_t n_seqs, uint32_t n_tokens, int64_t *out_ns,
                      struct error *err);
int bench_run_decode(struct bench_run *run, uint32_t n_seqs, uint32_t n_tokens,
                     int64_t *out_step_ns, struct error *err);
