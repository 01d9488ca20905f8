/* bench_report.h: prints the results of benchmarks as tables on stdout and as JSON.
 * Single-threaded. */
#pragma once

#include "base/settings/manual.h"
#include "clients/cli/bench/bench_load.h"
#include "sluice/worker/v1/report.pb-c.h"

struct strbuf;

/* Exit codes of both bench commands, beside 0, 1 and 2. */
enum { BENCH_N_EXITS = 1 };
extern const struct manual_exit bench_exits[BENCH_N_EXITS];

/* The setup of a load, for the report. */
struct bench_setup {
    const char *model, *server, *prompts_file; /* prompts_file empty: random prompts */
    const struct bench_load_config *load;
    uint64_t prompt_tokens[2], max_tokens[2], shared_prefix, n_lines;
};

/* Appends one JSON object on one line. Times are in ms; rates are per second between the first
 * start and the last end. */
void bench_report_json(const struct bench_setup *setup, const struct bench_results *results,
                       struct strbuf *out);
void bench_report_print(const struct bench_setup *setup, const struct bench_results *results);

/* Prints the engine's results as tables. For JSON use output_json. */
void bench_report_print_engine(const Sluice__Worker__V1__BenchReport *report);
