/* bench_speculate.h: what drafts gain: the same answers of an engine without and with them, in
 * turns. Unlike engine_bench it goes through the whole engine, on real text, because how often a
 * draft is right depends on what is said. One thread. */
#pragma once

#include <signal.h>
#include <stdint.h>

#include "sluice/worker/v1/report.pb-c.h"

struct arena;
struct engine_config;
struct error;

struct bench_speculate_config {
    uint32_t n_seqs, n_tokens, repetitions;
    const volatile sig_atomic_t *stop; /* not 0: what is under way is left; or NULL */
};

/* Opens an engine by `engine_cfg` (with draft_tokens or a draft model; the prefix cache is turned
 * off, or later repetitions would find the prompts) and runs both ways once unseen, then as often
 * as asked for. Fills *out, its strings in `arena`. CANCELLED where it was told to stop,
 * INVALID_ARGUMENT where prompt and answer are longer than the context, INTERNAL where the answers
 * differ. */
int bench_speculate_run(const struct engine_config *engine_cfg,
                        const struct bench_speculate_config *cfg, struct arena *arena,
                        Sluice__Worker__V1__BenchSpeculation *out, struct error *err);
