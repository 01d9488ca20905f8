/* cmd_bench_engine.c: `bench engine`: tokens per second of prefill and decode, by threads, depth
 * and batch. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/numbers.h"
#include "base/strbuf.h"
#include "clients/cli/bench/bench_report.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/worker_tool.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"
#include "proto/rpc/message/message.h"

/* Checks the settings before the worker starts; the worker makes the same checks later. */
static int check(const struct cli_settings *s, struct error *err)
{
    const struct {
        const char *name, *text;
        uint64_t min, max;
    } lists[] = {{"threads", s->bench_threads, 0, 1024},
                 {"prompt", s->bench_prompt, 0, 1 << 20},
                 {"generate", s->bench_generate, 0, 1 << 20},
                 {"batch", s->bench_batch, 1, 256},
                 {"depth", s->bench_depth, 0, 1 << 24}};
    struct numbers numbers[CLI_N(lists)];
    int rc = 0;
    for (size_t i = 0; i < CLI_N(lists) && !rc; i++)
        rc = numbers_parse(lists[i].name, lists[i].text, lists[i].min, lists[i].max, &numbers[i],
                           err);
    if (!rc && !numbers_max(&numbers[1]) && !numbers_max(&numbers[2]))
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "--prompt, --generate: both are 0, so there is nothing to time");
    if (!rc && s->draft_always && !s->draft[0])
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "--draft-always: give --draft too");
    return rc;
}

static int bench(struct cli *cli, Sluice__Worker__V1__ToolReport **out_report, struct error *err)
{
    const struct cli_settings *s = &cli->settings;
    char repetitions[24], tp[24], pp[24], speculate[24];
    bool progress = !s->json && isatty(STDERR_FILENO);
    snprintf(repetitions, sizeof(repetitions), "%" PRIu64, s->repetitions);
    snprintf(tp, sizeof(tp), "%" PRIu64, s->tp);
    snprintf(pp, sizeof(pp), "%" PRIu64, s->pp);
    snprintf(speculate, sizeof(speculate), "%" PRIu64, s->speculate);
    const char *argv[WORKER_TOOL_MAX_ARGS] = {NULL,
                                              "bench",
                                              "--model",
                                              cli_word(cli, 0),
                                              "--threads",
                                              s->bench_threads,
                                              "--prompt",
                                              s->bench_prompt,
                                              "--generate",
                                              s->bench_generate,
                                              "--batch",
                                              s->bench_batch,
                                              "--depth",
                                              s->bench_depth,
                                              "--repetitions",
                                              repetitions,
                                              "--tp",
                                              tp,
                                              "--pp",
                                              pp,
                                              "--devices",
                                              s->devices[0] ? s->devices : "cpu",
                                              "--speculate",
                                              speculate,
                                              "--draft",
                                              s->draft,
                                              s->draft_always ? "--draft-always=true"
                                                              : "--draft-always=false",
                                              "--text=false",
                                              progress ? "--progress=true" : "--progress=false",
                                              "--log-level",
                                              "warn"};
    char *flags[LOAD_SETTINGS_MAX] = {NULL};
    int rc = worker_tool_add_flags(cli, LOAD_CLI_BENCH, flags, argv, err);
    if (!rc)
        rc = worker_tool_run(argv, SLUICE__WORKER__V1__TOOL_REPORT__RESULT_BENCH, 0, out_report,
                             err);
    worker_tool_free_flags(flags);
    return rc;
}

static int run_engine(struct cli *cli)
{
    Sluice__Worker__V1__ToolReport *report = NULL;
    struct error err;
    if (check(&cli->settings, &err) != 0) {
        cli_usage(&err);
        return cli_fail(cli, &err);
    }
    if (bench(cli, &report, &err) != 0)
        return cli_fail(cli, &err);
    bool interrupted = report->bench->interrupted;
    if (cli->settings.json) {
        output_json(&report->bench->base);
    } else {
        printable_message(&report->base); /* texts come from a model file */
        bench_report_print_engine(report->bench);
    }
    rpc_message_free(&report->base);
    return interrupted ? CLI_EXIT_INTERRUPTED : 0;
}

static const struct option_spec engine_specs[] = {
    {"threads", 't', OPTION_STRING, CLI_OPTION(bench_threads), "0", "LIST",
     "compute threads, separated by commas; 0: one per core, fewer if a cgroup limits the CPU time",
     0, 0},
    {"prompt", 'p', OPTION_STRING, CLI_OPTION(bench_prompt), "512", "LIST",
     "prompt lengths to time prefill with, separated by commas; 0: no prefill", 0, 0},
    {"generate", 'n', OPTION_STRING, CLI_OPTION(bench_generate), "128", "LIST",
     "tokens per sequence to time decode with, separated by commas; 0: no decode", 0, 0},
    {"batch", 'b', OPTION_STRING, CLI_OPTION(bench_batch), "1", "LIST",
     "sequences at the same time, separated by commas", 0, 0},
    {"depth", 'd', OPTION_STRING, CLI_OPTION(bench_depth), "0", "LIST",
     "tokens in each sequence's context before the timed part, separated by commas", 0, 0},
    {"repetitions", 'r', OPTION_U64, CLI_OPTION(repetitions), "5", "N", "repetitions of each row",
     1, 1000},
    {"devices", 0, OPTION_STRING, CLI_OPTION(devices), "", "LIST",
     "a GPU, like cuda:0, or NUMA nodes, like cpu:0,cpu:1; empty: all NUMA nodes", 0, 0},
    {"tp", 0, OPTION_U64, CLI_OPTION(tp), "1", "N", "ranks that split every layer: 1, 2, 4 or 8", 1,
     8},
    {"pp", 0, OPTION_U64, CLI_OPTION(pp), "1", "N",
     "stages that divide the layers, of --tp ranks each, on the CPU", 1, 8},
    {"speculate", 0, OPTION_U64, CLI_OPTION(speculate), "0", "N",
     "also time answers with up to N drafted tokens per step, against no drafts; 0: 4 with "
     "--draft, else off",
     0, 16},
    {"draft", 0, OPTION_STRING, CLI_OPTION(draft), "", "FILE",
     "draft model with the same vocabulary; empty: draft by prompt lookup", 0, 0},
    {"draft-always", 0, OPTION_BOOL, CLI_OPTION(draft_always), "false", NULL,
     "draft in every step, even if slower, to measure how many drafts are accepted", 0, 0},
};
static const struct manual_example engine_examples[] = {
    {"sluice bench engine ./SmolLM2-135M-Instruct.Q4_1.gguf", NULL},
    {"sluice bench engine ./model.gguf --threads 1,2 --batch 1,8,32 --depth 0,512,4096", NULL},
    {"sluice bench engine ./model.gguf --devices cuda:0 --batch 1,8,64", "on a GPU"},
    {"sluice bench engine ./large.gguf --prompt 0 --draft ./small.gguf --speculate 4", NULL},
    {"sluice bench engine ./model.gguf --prompt 0 --json | jq '.rows[].tokens_per_second'",
     "decode only"},
};

const struct cli_command cmd_bench_engine = {
    .name = "bench engine",
    .arguments = "MODEL",
    .summary = "time prefill and decode of a model",
    .description =
        "MODEL is the path of a GGUF file or a model's folder. Every combination of threads, "
        "depth, batch and "
        "length is a row. Prefill is timed until the first token of each sequence. Decode makes a "
        "token per sequence and step, greedily. Every sequence has its own keys and values. Queue "
        "and network are left out; `sluice bench serve` includes them.\n\nTOKENS/S is the median "
        "of the repetitions, over all sequences. WEIGHTS GB/S is the size of a step's weights in "
        "the file, divided by the time of the median step. Compare it with the machine's read "
        "bandwidth. Keys and values are read in addition: depth times batch times the bytes per "
        "token in the table's head.\n\nWith --speculate or --draft a second table compares greedy "
        "answers to a few real texts without and with drafts. The times are from the first token "
        "to the last. The command fails if the answers differ.\n\nCtrl-C ends the command and "
        "prints the finished rows.",
    .examples = engine_examples,
    .n_examples = CLI_N(engine_examples),
    .specs = engine_specs,
    .n_specs = CLI_N(engine_specs),
    .groups = CLI_ARITHMETIC,
    .exits = bench_exits,
    .n_exits = BENCH_N_EXITS,
    .run = run_engine,
};
