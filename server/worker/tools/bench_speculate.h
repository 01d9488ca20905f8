/* bench_speculate.h: measures the gain of drafts. An engine generates the same answers without
 * and with drafts, in alternation. Unlike engine_bench, this runs the whole engine on real text,
 * because the share of right drafts depends on the text. Single-threaded. */
#pragma once

#include <signal.h>
#include <stdint.h>

#include "sluice/worker/v1/report.pb-c.h"

struct arena;
struct engine_config;
struct error;

struct bench_speculate_config {
    uint32_t n_seqs, n_tokens, repetitions;
    const volatile sig_atomic_t *stop; /* not 0: stop now; or NULL */
};

/* Opens an engine by `engine_cfg`, with draft_tokens or a draft model. The prefix cache is
 * turned off, because later repetitions would find the prompts. Runs both ways once without
 * counting, then `repetitions` times. Fills *out, its strings in `arena`. CANCELLED after
 * `stop`, INVALID_ARGUMENT if prompt and answer exceed the context, INTERNAL if the answers
 * differ. */
int bench_speculate_run(const struct engine_config *engine_cfg,
                        const struct bench_speculate_config *cfg, struct arena *arena,
                        Sluice__Worker__V1__BenchSpeculation *out, struct error *err);
