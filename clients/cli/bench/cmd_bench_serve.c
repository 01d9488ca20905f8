/* cmd_bench_serve.c: `bench serve`: puts load on a server over gRPC or HTTP and measures its
 * answers. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/numbers.h"
#include "clients/cli/bench/bench_grpc.h"
#include "clients/cli/bench/bench_http.h"
#include "clients/cli/bench/bench_load.h"
#include "clients/cli/bench/bench_prompts.h"
#include "clients/cli/bench/bench_report.h"
#include "clients/cli/bench/bench_transport.h"
#include "clients/cli/http/http_target.h"
#include "clients/cli/http/openai_models.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/shell/sampling.h"
#include "clients/cli/term/output.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/message/message.h"
#include "sluice/v1/inference.pb-c.h"

enum {
    OPEN_CLIENTS = 1024,
    BAR_WIDTH = 30,
    MAX_TOKENS = 1 << 24,
    MAX_RATE = 1000000,
    MAX_TEMPERATURE = 100,
    DEFAULT_VOCAB = 1000, /* every usual model has these token ids */
};

static volatile sig_atomic_t stop_requested;

struct serve_bench {
    struct cli *cli;
    struct bench_prompts_config prompts_config;
    struct bench_load_config load;
    struct bench_grpc_config grpc;
    struct bench_http_config http;
    struct http_target *target; /* NULL: over gRPC */
    struct openai_model model;
    struct bench_prompts *prompts;
    int64_t start_ns;
    bool bar; /* stderr is a terminal */
};

/* --- settings --- */

static int check_number(const char *name, double value, double max, struct error *err)
{
    if (value >= 0 && value <= max)
        return 0;
    return error_set(err, STATUS_INVALID_ARGUMENT, "--%s: %g must be between 0 and %g", name, value,
                     max);
}

static int check_numbers(const struct cli_settings *s, struct error *err)
{
    int rc = check_number("rate", s->rate, MAX_RATE, err);
    if (!rc)
        rc = check_number("slo-ttft-ms", s->slo_ttft_ms, 1e9, err);
    if (!rc)
        rc = check_number("slo-itl-ms", s->slo_itl_ms, 1e9, err);
    if (!rc)
        rc = check_number("slo-e2e-ms", s->slo_e2e_ms, 1e9, err);
    if (!rc) /* the server would refuse the first request too, but only after the load has begun */
        rc = check_number("temperature", s->temperature, MAX_TEMPERATURE, err);
    return rc;
}

static int check_prompts(const struct serve_bench *b, struct error *err)
{
    const struct cli_settings *s = &b->cli->settings;
    if (s->prompts[0] && (cli_given(b->cli, "prompt-tokens") || s->shared_prefix))
        return error_set(err, STATUS_INVALID_ARGUMENT, "--prompts: leave out --%s",
                         s->shared_prefix ? "shared-prefix" : "prompt-tokens");
    if (s->chat && !s->prompts[0])
        return error_set(err, STATUS_INVALID_ARGUMENT, "--chat: give --prompts too");
    if (s->shared_prefix && s->shared_prefix >= b->prompts_config.n_tokens.min)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--shared-prefix: %" PRIu64 " leaves nothing of a prompt of %" PRIu64
                         " tokens; give at most %" PRIu64,
                         s->shared_prefix, b->prompts_config.n_tokens.min,
                         b->prompts_config.n_tokens.min - 1);
    return 0;
}

/* Makes a new salt for each run: a second run would else measure the prefix cache. */
static int draw_salt(char out[BENCH_SALT_BYTES], struct error *err)
{
    uint64_t number;
    if (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number))
        return error_errno(err, errno, "cannot get a random number");
    snprintf(out, BENCH_SALT_BYTES, "bench-%016" PRIx64, number);
    return 0;
}

static int read_settings(struct serve_bench *b, struct error *err)
{
    const struct cli_settings *s = &b->cli->settings;
    struct bench_prompts_config *p = &b->prompts_config;
    struct bench_load_config *c = &b->load;
    int rc =
        number_range_parse("prompt-tokens", s->prompt_tokens, 1, MAX_TOKENS, &p->n_tokens, err);
    if (!rc)
        rc = number_range_parse("max-tokens", s->bench_max_tokens, 1, INT32_MAX, &p->max_tokens,
                                err);
    if (!rc)
        rc = check_numbers(s, err);
    p->path = s->prompts;
    p->n_shared = s->shared_prefix;
    p->seed = s->seed;
    c->model = cli_word(b->cli, 0);
    c->version = s->version;
    c->max_prompt_ids = (uint32_t)p->n_tokens.max;
    c->rate = s->rate;
    c->n_clients = (uint32_t)s->clients;
    if (!c->n_clients)
        c->n_clients = c->rate > 0 ? OPEN_CLIENTS : 1;
    c->duration_ns = (int64_t)s->duration_ms * NS_PER_MS;
    /* --duration or --requests bounds the run; without both 100 requests */
    c->n_requests = s->requests ? s->requests : s->duration_ms ? 0 : 100;
    c->n_warmup = s->warmup;
    c->timeout_ms = s->timeout_ms;
    c->ignore_eos = s->ignore_eos;
    c->chat = s->chat;
    c->temperature = s->temperature;
    c->n_drafts = cli_given(b->cli, "speculate") ? (int32_t)s->speculate : -1;
    c->seed = s->seed;
    c->has_priority = sampling_priority(b->cli, &c->priority);
    if (!rc)
        rc = sampling_check(b->cli, err);
    if (!rc && !s->keep_cache)
        rc = draw_salt(c->cache_salt, err);
    c->slo_ttft_ms = s->slo_ttft_ms;
    c->slo_itl_ms = s->slo_itl_ms;
    c->slo_e2e_ms = s->slo_e2e_ms;
    c->stop = &stop_requested;
    return rc ? rc : check_prompts(b, err);
}

/* Options that have no field in the requests of OpenAI servers. */
static int check_url(const struct serve_bench *b, struct error *err)
{
    int rc = cli_dial_check_url(b->cli, "http", err);
    if (!rc && cli_given(b->cli, "speculate"))
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "--speculate: OpenAI's API has no such option; leave it out with --http");
    if (!rc && b->load.version[0])
        rc = error_set(err, STATUS_INVALID_ARGUMENT,
                       "--version: with --http a version is part of the model's name; write "
                       "MODEL:%.60s",
                       b->load.version);
    return rc ? cli_usage(err) : 0;
}

/* Opens an OpenAI server, and finds its model. */
static int ask_http(struct serve_bench *b, struct error *err)
{
    const struct cli_settings *s = &b->cli->settings;
    int rc = check_url(b, err);
    if (!rc)
        rc = cli_dial_http("http", s->url, &s->dial, &b->target, err);
    if (!rc && b->load.model)
        rc = openai_models_find(b->target, b->load.model, &b->model, err);
    else if (!rc)
        rc = openai_models_choose(b->target, &b->model, err);
    if (rc)
        return rc;
    b->load.model = b->model.id;
    b->prompts_config.vocab_size = s->vocab_size      ? (uint32_t)s->vocab_size
                                   : b->model.n_vocab ? (uint32_t)b->model.n_vocab
                                                      : DEFAULT_VOCAB;
    b->http =
        (struct bench_http_config){.load = &b->load,
                                   .target = b->target,
                                   .is_llama_cpp = strcmp(b->model.owned_by, "llamacpp") == 0};
    return bench_http_create(&b->http, &b->load.transport, err);
}

/* Checks that the model is served and reads its vocabulary size for random prompts. */
static int ask_model(struct serve_bench *b, struct error *err)
{
    Sluice__V1__GetModelRequest request = SLUICE__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *message;
    request.model = (char *)(uintptr_t)b->load.model;
    int rc = cli_call_server(b->cli, "GetModel", &request.base, &message, err);
    if (rc)
        return rc;
    const Sluice__V1__ServedModel *served = ((const Sluice__V1__GetModelResponse *)message)->model;
    bool is_served = !b->load.version[0];
    for (size_t i = 0; served && i < served->n_versions; i++) {
        const Sluice__V1__ServedVersion *v = served->versions[i];
        bool is_it = !b->load.version[0] || strcmp(v->version, b->load.version) == 0;
        is_served |= is_it;
        if (v->info && is_it)
            b->prompts_config.vocab_size = v->info->vocab_size;
    }
    rpc_message_free(message);
    if (!is_served)
        return error_set(err, STATUS_NOT_FOUND, "--version: %s has no served version %s",
                         b->load.model, b->load.version);
    if (!b->prompts_config.vocab_size && !b->prompts_config.path[0])
        return error_set(
            err, STATUS_FAILED_PRECONDITION,
            "the server does not know the vocabulary of %s%s%s yet; load the model first",
            b->load.model, b->load.version[0] ? ":" : "", b->load.version);
    return 0;
}

static int on_connect(void *ctx, struct rpc_client **out_client, struct error *err)
{
    struct serve_bench *b = ctx;
    return cli_server_connect(b->cli, out_client, err);
}

static int ask_grpc(struct serve_bench *b, struct error *err)
{
    if (!b->load.model) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "usage: sluice bench serve MODEL [options]   (see sluice bench serve --help)");
        return cli_usage(err);
    }
    int rc = ask_model(b, err);
    if (!rc && b->cli->settings.vocab_size)
        b->prompts_config.vocab_size = (uint32_t)b->cli->settings.vocab_size;
    b->grpc = (struct bench_grpc_config){.load = &b->load, .connect = on_connect, .ctx = b};
    return rc ? rc : bench_grpc_create(&b->grpc, &b->load.transport, err);
}

/* --- the run --- */

static void on_progress(void *ctx, uint64_t n_ended, uint64_t n_in_flight, uint64_t n_tokens)
{
    const struct serve_bench *b = ctx;
    const struct bench_load_config *c = &b->load;
    char bar[BAR_WIDTH + 1], seconds[32];
    double ns = (double)(clock_now_ns() - b->start_ns);
    double part = c->n_requests ? (double)n_ended / (double)c->n_requests : 0;
    if (c->duration_ns && ns / (double)c->duration_ns > part)
        part = ns / (double)c->duration_ns;
    for (int i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < (int)(part * BAR_WIDTH) ? '#' : '.';
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr,
            "\r\033[K[%s] %" PRIu64 " requests done, %" PRIu64 " in flight, %" PRIu64 " tokens, %s",
            bar, n_ended, n_in_flight, n_tokens, format_ms((uint64_t)(ns / 1e6), seconds));
}

static void on_signal(int signal_number)
{
    (void)signal_number;
    stop_requested = 1;
}

/* Handles Ctrl-C: the first ends the run with partial results, the second ends the program. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void report(const struct serve_bench *b, const struct bench_results *results)
{
    const struct bench_prompts_config *p = &b->prompts_config;
    const char *server;
    struct error err;
    if (b->target)
        server = b->cli->settings.url;
    else /* cannot fail: the target was found before */
        (void)cli_server_target(b->cli, &server, &err);
    struct bench_setup setup = {.model = b->load.model,
                                .server = server,
                                .prompts_file = p->path,
                                .load = &b->load,
                                .prompt_tokens = {p->n_tokens.min, p->n_tokens.max},
                                .max_tokens = {p->max_tokens.min, p->max_tokens.max},
                                .shared_prefix = p->n_shared,
                                .n_lines = bench_prompts_n_lines(b->prompts)};
    struct strbuf text;
    strbuf_init(&text, 0);
    if (b->cli->settings.json) {
        bench_report_json(&setup, results, &text);
        fputs(strbuf_str(&text), stdout);
    } else {
        bench_report_print(&setup, results);
    }
    strbuf_fini(&text);
}

static int run_bench(struct serve_bench *b, struct bench_results *results, struct error *err)
{
    int rc = cli_uses_url(b->cli) ? ask_http(b, err) : ask_grpc(b, err);
    if (!rc)
        rc = bench_prompts_create(&b->prompts_config, &b->prompts, err);
    if (rc)
        return rc;
    b->load.prompts = b->prompts;
    b->load.ctx = b;
    b->bar = !b->cli->settings.json && isatty(STDERR_FILENO);
    b->load.progress = b->bar ? on_progress : NULL;
    b->start_ns = clock_now_ns();
    catch_signals();
    rc = bench_load_run(&b->load, results, err);
    if (b->bar)
        fputs("\r\033[K", stderr);
    if (!rc)
        report(b, results);
    return rc;
}

static int run_serve_bench(struct cli *cli)
{
    struct serve_bench b = {.cli = cli};
    struct error err;
    if (read_settings(&b, &err) != 0) {
        cli_usage(&err);
        return cli_fail(cli, &err);
    }
    struct bench_results *results = calloc(1, sizeof(*results));
    int rc = results ? run_bench(&b, results, &err)
                     : error_set(&err, STATUS_RESOURCE_EXHAUSTED, "out of memory for the figures");
    if (b.load.transport)
        b.load.transport->ops->destroy(b.load.transport);
    http_target_destroy(b.target);
    bench_prompts_destroy(b.prompts);
    int code = rc                                    ? cli_fail(cli, &err)
               : results->interrupted                ? CLI_EXIT_INTERRUPTED
               : results->n_ok && !results->n_failed ? 0
                                                     : 1;
    free(results);
    return code;
}

static const struct option_spec serve_specs[] = {
    {"clients", 'c', OPTION_U64, CLI_OPTION(clients), "0", "N",
     "requests in flight; each end starts the next (0: 1); with --rate the maximum (0: 1024)", 0,
     BENCH_MAX_CLIENTS},
    {"rate", 0, OPTION_F64, CLI_OPTION(rate), "0", "R",
     "requests per second, arriving at random times (Poisson), however slow the server is; 0: "
     "closed loop",
     0, 0},
    {"requests", 'r', OPTION_U64, CLI_OPTION(requests), "0", "N",
     "total requests; 0: 100, or as many as --duration allows", 0, 1000000000},
    {"duration", 0, OPTION_MS, CLI_OPTION(duration_ms), "0", "TIME",
     "start no requests after this time and wait for the started ones; 0: only --requests counts",
     0, 86400000},
    {"warmup", 'w', OPTION_U64, CLI_OPTION(warmup), "0", "N",
     "unmeasured requests before the load, in a closed loop (with --rate at most 32 in flight)", 0,
     1000000},
    {"prompt-tokens", 'p', OPTION_STRING, CLI_OPTION(prompt_tokens), "128", "N|N-M",
     "length of random prompts, or a range of lengths", 0, 0},
    {"max-tokens", 'n', OPTION_STRING, CLI_OPTION(bench_max_tokens), "128", "N|N-M",
     "tokens to generate, or a range", 0, 0},
    {"shared-prefix", 0, OPTION_U64, CLI_OPTION(shared_prefix), "0", "N",
     "tokens that all random prompts begin with", 0, MAX_TOKENS},
    {"prompts", 0, OPTION_STRING, CLI_OPTION(prompts), "", "FILE",
     "file of prompts instead of random ones: one per line, or (*.jsonl) {\"prompt\": ..., "
     "\"max_tokens\": ...}",
     0, 0},
    {"chat", 0, OPTION_BOOL, CLI_OPTION(chat), "false", NULL,
     "treat the file's prompts as user messages and apply the chat template", 0, 0},
    {"ignore-eos", 0, OPTION_BOOL, CLI_OPTION(ignore_eos), "true", NULL,
     "continue after end-of-sequence tokens to the last token; =false lets the model end", 0, 0},
    {"temperature", 0, OPTION_F64, CLI_OPTION(temperature), "0", "X",
     "sampling temperature up to 100; 0: greedy", 0, 0},
    {"speculate", 0, OPTION_U64, CLI_OPTION(speculate), NULL, "N",
     "tokens to draft per step; 0: none; default: as the model was loaded", 0, 16},
    {"priority", 0, OPTION_STRING, CLI_OPTION(priority), "", "N",
     "priority of all requests, -100 to 100; default: 0", 0, 0},
    {"keep-cache", 0, OPTION_BOOL, CLI_OPTION(keep_cache), "false", NULL,
     "allow hits in prefix cache entries of earlier runs", 0, 0},
    {"http", 0, OPTION_STRING, CLI_OPTION(url), "", "URL",
     "measure the OpenAI server at http(s)://HOST:PORT[/v1] over HTTP, a Sluice or another one", 0,
     0},
    {"vocab-size", 0, OPTION_U64, CLI_OPTION(vocab_size), "0", "N",
     "random prompts use the token ids below N; 0: the model's whole vocabulary, or 1000 if an "
     "OpenAI server does not report its size",
     0, INT32_MAX},
    {"seed", 's', OPTION_U64, CLI_OPTION(seed), "1", "N",
     "random seed for prompts, lengths and arrivals; the same seed repeats the load", 0, 0},
    {"slo-ttft-ms", 0, OPTION_F64, CLI_OPTION(slo_ttft_ms), "0", "MS",
     "goodput: longest time to first token; 0: no limit", 0, 0},
    {"slo-itl-ms", 0, OPTION_F64, CLI_OPTION(slo_itl_ms), "0", "MS",
     "goodput: longest mean time between a request's tokens; 0: no limit", 0, 0},
    {"slo-e2e-ms", 0, OPTION_F64, CLI_OPTION(slo_e2e_ms), "0", "MS",
     "goodput: longest time of a request; 0: no limit", 0, 0},
    {"timeout", 0, OPTION_MS, CLI_OPTION(timeout_ms), "0", "TIME", "deadline of a request; 0: none",
     0, 86400000},
    {"version", 'v', OPTION_STRING, CLI_OPTION(version), "", "VERSION",
     "version to use; empty: by the model's traffic, else the ready version registered last", 0, 0},
};
static const struct manual_example serve_examples[] = {
    {"sluice bench serve smol --clients 32 --requests 256 --warmup 32", NULL},
    {"sluice bench serve smol --rate 4 --duration 60s --slo-ttft-ms 500 --slo-itl-ms 50", NULL},
    {"sluice bench serve smol --prompts questions.jsonl --chat --ignore-eos=false", NULL},
    {"sluice bench serve smol --clients 8 --json | jq .output_tokens_per_second", NULL},
    {"sluice bench serve --http http://127.0.0.1:8080 --clients 32 --warmup 32",
     "llama-server, vLLM or another OpenAI server"},
};

const struct cli_command cmd_bench_serve = {
    .name = "bench serve",
    .arguments = "[MODEL]",
    .summary = "put load on a served model and time its answers",
    .description =
        "Without --prompts, prompts are random token ids from the seed, different for each "
        "request. Each run uses a new cache salt, so prefix cache entries of earlier runs are not "
        "used. Only --shared-prefix and --keep-cache make prefix hits possible. A prompts file is "
        "used in order and starts again at its end.\n\nTTFT is the time to a request's first "
        "tokens, E2E the time to its end. With --rate both count from the time the request was "
        "due. ITL is a sample per token: the time since the last message, divided by the number of "
        "tokens in this message. Tokens of the first message have no ITL. TPOT is a request's mean "
        "time per token after its first message. An answer in a single message has no TPOT and "
        "meets any --slo-itl-ms. TTFT, TPOT and E2E cover successful requests only. Tokens per "
        "second count all received tokens, over the time from the first start to the last end. "
        "Goodput counts requests within every --slo, as a share of all arrivals.\n\nWith --http "
        "the "
        "same load goes to /completions, or with --chat to /chat/completions. MODEL may be left "
        "out where the server lists a single model. A message is then a chunk. The usage of each "
        "chunk counts the tokens if the server sends it. Else each chunk with text is a token. The "
        "usage at the end has to agree. The fields ignore_eos, cache_salt and priority are those "
        "of vLLM and Sluice. --ignore-eos=false and --keep-cache leave two of them out.\n\nCtrl-C "
        "cancels "
        "running requests and prints partial results; a second Ctrl-C ends at once. The exit "
        "status is 1 if a request failed.",
    .examples = serve_examples,
    .n_examples = CLI_N(serve_examples),
    .specs = serve_specs,
    .n_specs = CLI_N(serve_specs),
    .groups = CLI_DIAL,
    .exits = bench_exits,
    .n_exits = BENCH_N_EXITS,
    .run = run_serve_bench,
};
