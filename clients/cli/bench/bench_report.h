/* bench_report.h: what benchmarks have found, as tables on stdout and as JSON. One thread. */
#pragma once

#include "base/settings/manual.h"
#include "clients/cli/bench/bench_load.h"
#include "sluice/worker/v1/report.pb-c.h"

struct strbuf;

/* Exit codes of both commands besides the usual ones. */
enum { BENCH_N_EXITS = 1 };
extern const struct manual_exit bench_exits[BENCH_N_EXITS];

/* How the load was made, for those who read the figures later. */
struct bench_setup {
    const char *model, *server, *prompts_file; /* empty: drawn prompts */
    const struct bench_load_config *load;
    uint64_t prompt_tokens[2], max_tokens[2], shared_prefix, n_lines;
};

/* One object on one line. Times are in ms, rates per second of the time from the first start to the
 * last end. */
void bench_report_json(const struct bench_setup *setup, const struct bench_results *results,
                       struct strbuf *out);
void bench_report_print(const struct bench_setup *setup, const struct bench_results *results);

/* The engine's; its JSON is the message's own (output_json). */
void bench_report_print_engine(const Sluice__Worker__V1__BenchReport *report);
