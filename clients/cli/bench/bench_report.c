#include "clients/cli/bench/bench_report.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/clock.h"
#include "base/strbuf.h"
#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "clients/cli/term/printable.h"

const struct manual_exit bench_exits[BENCH_N_EXITS] = {
    {CLI_EXIT_INTERRUPTED, "interrupted; partial results were printed"}};

/* --- serving: figures --- */

static double seconds_of(const struct bench_results *r)
{
    return r->end_ns > r->start_ns ? (double)(r->end_ns - r->start_ns) / 1e9 : 0;
}

static double per_second(const struct bench_results *r, uint64_t n)
{
    double seconds = seconds_of(r);
    return seconds > 0 ? (double)n / seconds : 0;
}

static bool has_slo(const struct bench_load_config *c)
{
    return c->slo_ttft_ms > 0 || c->slo_itl_ms > 0 || c->slo_e2e_ms > 0;
}

/* --- serving: JSON --- */

static void add_text(struct strbuf *out, const char *name, const char *value)
{
    json_t *text = json_string(value);
    char *dumped = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    strbuf_printf(out, "\"%s\": %s", name, dumped ? dumped : "null");
    free(dumped);
    json_decref(text);
}

static void add_range(struct strbuf *out, const char *name, const uint64_t range[2])
{
    strbuf_printf(out, ", \"%s\": [%" PRIu64 ", %" PRIu64 "]", name, range[0], range[1]);
}

static void add_setup(const struct bench_setup *setup, struct strbuf *out)
{
    const struct bench_load_config *c = setup->load;
    strbuf_add_str(out, "\"setup\": {");
    add_text(out, "model", setup->model);
    strbuf_add_str(out, ", ");
    add_text(out, "server", setup->server);
    if (c->version[0]) {
        strbuf_add_str(out, ", ");
        add_text(out, "version", c->version);
    }
    strbuf_printf(out, ", \"arrivals\": \"%s\", \"clients\": %" PRIu32,
                  c->rate > 0 ? "poisson" : "closed", c->n_clients);
    if (c->rate > 0)
        strbuf_printf(out, ", \"rate\": %g", c->rate);
    strbuf_printf(out, ", \"requests\": %" PRIu64 ", \"duration_s\": %g, \"warmup\": %" PRIu64,
                  c->n_requests, (double)c->duration_ns / 1e9, c->n_warmup);
    if (setup->prompts_file[0]) {
        strbuf_add_str(out, ", ");
        add_text(out, "prompts", setup->prompts_file);
        strbuf_printf(out, ", \"prompts_in_file\": %" PRIu64 ", \"chat\": %s", setup->n_lines,
                      c->chat ? "true" : "false");
    } else {
        add_range(out, "prompt_tokens", setup->prompt_tokens);
        strbuf_printf(out, ", \"shared_prefix\": %" PRIu64, setup->shared_prefix);
    }
    add_range(out, "max_tokens", setup->max_tokens);
    if (c->n_drafts >= 0)
        strbuf_printf(out, ", \"speculate\": %" PRId32, c->n_drafts);
    if (c->has_priority)
        strbuf_printf(out, ", \"priority\": %" PRId32, c->priority);
    strbuf_printf(out, ", \"temperature\": %g, \"ignore_eos\": %s, \"seed\": %" PRIu64 "}",
                  c->temperature, c->ignore_eos ? "true" : "false", c->seed);
}

static void add_counts(const struct bench_results *r, struct strbuf *out)
{
    strbuf_printf(out,
                  ", \"requests\": {\"started\": %" PRIu64 ", \"ok\": %" PRIu64
                  ", \"failed\": %" PRIu64 ", \"cancelled\": %" PRIu64 ", \"ended_early\": %" PRIu64
                  ", \"delayed\": %" PRIu64 ", \"missed\": %" PRIu64 "}, \"errors\": {",
                  r->n_started, r->n_ok, r->n_failed, r->n_cancelled, r->n_short, r->n_late,
                  r->n_missed);
    const char *comma = "";
    for (int code = 0; code < BENCH_CODES; code++)
        if (r->by_code[code]) {
            strbuf_printf(out, "%s\"%s\": %" PRIu64, comma, status_name(status_from_grpc(code)),
                          r->by_code[code]);
            comma = ", ";
        }
    strbuf_add_str(out, "}");
    if (r->first_error.status) {
        strbuf_add_str(out, ", ");
        add_text(out, "first_error", r->first_error.message);
    }
    strbuf_printf(out,
                  ", \"input_tokens\": %" PRIu64 ", \"cached_tokens\": %" PRIu64
                  ", \"output_tokens\": %" PRIu64 ", \"messages\": %" PRIu64,
                  r->n_input_tokens, r->n_cached_tokens, r->n_output_tokens, r->n_messages);
    strbuf_printf(out, ", \"drafted_tokens\": %" PRIu64 ", \"accepted_tokens\": %" PRIu64,
                  r->n_drafted_tokens, r->n_accepted_tokens);
}

/* Returns the number of requests that arrived. */
static uint64_t n_arrived(const struct bench_results *r)
{
    return r->n_started + r->n_missed;
}

static void add_goodput(const struct bench_load_config *c, const struct bench_results *r,
                        struct strbuf *out)
{
    const struct {
        const char *name;
        double ms;
    } slos[] = {{"ttft_ms", c->slo_ttft_ms}, {"itl_ms", c->slo_itl_ms}, {"e2e_ms", c->slo_e2e_ms}};
    if (!has_slo(c))
        return;
    strbuf_add_str(out, ", \"slo\": {");
    const char *comma = "";
    for (size_t i = 0; i < CLI_N(slos); i++)
        if (slos[i].ms > 0) {
            strbuf_printf(out, "%s\"%s\": %g", comma, slos[i].name, slos[i].ms);
            comma = ", ";
        }
    strbuf_printf(out,
                  "}, \"goodput\": {\"requests\": %" PRIu64
                  ", \"requests_per_second\": %.3f, \"share\": %.4f}",
                  r->n_good, per_second(r, r->n_good),
                  n_arrived(r) ? (double)r->n_good / (double)n_arrived(r) : 0.0);
}

void bench_report_json(const struct bench_setup *setup, const struct bench_results *r,
                       struct strbuf *out)
{
    const struct {
        const char *name;
        const struct histogram *histogram;
    } times[] = {
        {"ttft_ms", &r->ttft}, {"itl_ms", &r->itl}, {"tpot_ms", &r->tpot}, {"e2e_ms", &r->e2e}};
    strbuf_add_str(out, "{");
    add_setup(setup, out);
    strbuf_printf(out, ", \"seconds\": %.3f, \"interrupted\": %s", seconds_of(r),
                  r->interrupted ? "true" : "false");
    add_counts(r, out);
    strbuf_printf(out,
                  ", \"requests_per_second\": %.3f, \"input_tokens_per_second\": %.2f, "
                  "\"output_tokens_per_second\": %.2f",
                  per_second(r, r->n_ok), per_second(r, r->n_input_tokens),
                  per_second(r, r->n_output_tokens));
    strbuf_printf(out, ", \"max_in_flight\": %" PRIu32 ", \"connections\": %" PRIu32 ", ",
                  r->max_in_flight, r->n_connections);
    add_text(out, "numerics_id", r->numerics_id);
    for (size_t i = 0; i < CLI_N(times); i++) {
        strbuf_printf(out, ", \"%s\": ", times[i].name);
        histogram_json(times[i].histogram, out);
    }
    add_goodput(setup->load, r, out);
    strbuf_add_str(out, "}\n");
}

/* --- serving: table --- */

static void range_text(const uint64_t range[2], char out[48])
{
    if (range[0] == range[1])
        snprintf(out, 48, "%" PRIu64, range[0]);
    else
        snprintf(out, 48, "%" PRIu64 "-%" PRIu64, range[0], range[1]);
}

/* Prints the request settings, so that the report is complete. */
static void print_asked(const struct bench_load_config *c)
{
    const char *comma = "settings   ";
    if (c->temperature > 0) {
        printf("%stemperature %g", comma, c->temperature);
        comma = ", ";
    }
    if (c->n_drafts >= 0) {
        printf("%sspeculate %" PRId32, comma, c->n_drafts);
        comma = ", ";
    }
    if (c->has_priority) {
        printf("%spriority %" PRId32, comma, c->priority);
        comma = ", ";
    }
    if (comma[0] == ',')
        putchar('\n');
}

static void print_setup(const struct bench_setup *setup)
{
    const struct bench_load_config *c = setup->load;
    char in[48], out[48];
    range_text(setup->prompt_tokens, in);
    range_text(setup->max_tokens, out);
    printf("model      %s%s%s at %s\n", setup->model, c->version[0] ? ":" : "", c->version,
           setup->server);
    if (c->rate > 0)
        printf("load       %g requests/s, Poisson arrivals, at most %" PRIu32 " in flight\n",
               c->rate, c->n_clients);
    else
        printf("load       %" PRIu32 " client%s, closed loop\n", c->n_clients,
               c->n_clients == 1 ? "" : "s");
    if (setup->prompts_file[0])
        printf("work       prompts of %s (%" PRIu64 "), ", setup->prompts_file, setup->n_lines);
    else
        printf("work       %s tokens in (%" PRIu64 " of them shared), ", in, setup->shared_prefix);
    printf("%s out%s\n", out, c->ignore_eos ? "" : " at most");
    print_asked(c);
}

static void print_counts(const struct bench_setup *setup, const struct bench_results *r)
{
    printf("time       %.2f s%s\n", seconds_of(r), r->interrupted ? ", interrupted" : "");
    printf("requests   %" PRIu64 " ok, %" PRIu64 " failed, %" PRIu64 " cancelled; %" PRIu32
           " in flight at most, %" PRIu32 " connection%s\n",
           r->n_ok, r->n_failed, r->n_cancelled, r->max_in_flight, r->n_connections,
           r->n_connections == 1 ? "" : "s");
    if (r->n_short && setup->load->ignore_eos)
        printf("           %" PRIu64 " of the ok ones ended before their last token\n", r->n_short);
    if (r->n_late)
        printf("           %" PRIu64 " arrivals waited because too many requests were in flight\n",
               r->n_late);
    if (r->n_missed)
        printf("           %" PRIu64 " arrivals still waited at the end of the time\n",
               r->n_missed);
    for (int code = 0; code < BENCH_CODES; code++)
        if (r->by_code[code])
            printf("errors     %" PRIu64 " %s\n", r->by_code[code],
                   status_name(status_from_grpc(code)));
    if (r->first_error.status) {
        printf("           first error: ");
        printable_write(stdout, r->first_error.message);
        putchar('\n');
    }
    printf("tokens     %" PRIu64 " in (%" PRIu64 " cached), %" PRIu64 " out in %" PRIu64
           " messages\n",
           r->n_input_tokens, r->n_cached_tokens, r->n_output_tokens, r->n_messages);
    if (r->n_drafted_tokens)
        printf("drafted    %" PRIu64 " tokens, %" PRIu64 " (%.0f %%) accepted\n",
               r->n_drafted_tokens, r->n_accepted_tokens,
               100.0 * (double)r->n_accepted_tokens / (double)r->n_drafted_tokens);
    printf("per second %.2f requests, %.1f tokens in, %.1f tokens out\n", per_second(r, r->n_ok),
           per_second(r, r->n_input_tokens), per_second(r, r->n_output_tokens));
}

static void add_times(struct output_table *table, const char *name, const struct histogram *h)
{
    enum { N = 7 };
    const double values[N] = {
        histogram_mean_ms(h), histogram_stddev_ms(h), (double)h->min_ns / 1e6, histogram_ms(h, 0.5),
        histogram_ms(h, 0.9), histogram_ms(h, 0.99),  (double)h->max_ns / 1e6};
    char cells[N][32], n[32];
    const char *row[N + 2] = {name};
    for (size_t i = 0; i < N; i++) {
        snprintf(cells[i], sizeof(cells[i]), h->n ? "%.2f" : "", values[i]);
        row[i + 1] = cells[i];
    }
    snprintf(n, sizeof(n), "%" PRIu64, h->n);
    row[N + 1] = n;
    output_table_add(table, row);
}

void bench_report_print(const struct bench_setup *setup, const struct bench_results *r)
{
    static const char *const headers[] = {"MS",  "MEAN", "STDDEV", "MIN", "P50",
                                          "P90", "P99",  "MAX",    "N"};
    const struct bench_load_config *c = setup->load;
    struct output_table table;
    print_setup(setup);
    print_counts(setup, r);
    if (has_slo(c)) {
        printf("goodput    %.2f requests/s, %" PRIu64 " of %" PRIu64 " within",
               per_second(r, r->n_good), r->n_good, n_arrived(r));
        if (c->slo_ttft_ms > 0)
            printf(" TTFT %g ms", c->slo_ttft_ms);
        if (c->slo_itl_ms > 0)
            printf(" ITL %g ms", c->slo_itl_ms);
        if (c->slo_e2e_ms > 0)
            printf(" E2E %g ms", c->slo_e2e_ms);
        putchar('\n');
    }
    putchar('\n');
    output_table_init(&table, CLI_N(headers), headers);
    add_times(&table, "TTFT", &r->ttft);
    add_times(&table, "ITL", &r->itl);
    add_times(&table, "TPOT", &r->tpot);
    add_times(&table, "E2E", &r->e2e);
    output_table_print(&table);
    output_table_fini(&table);
}

/* --- the engine --- */

static void print_model(const Sluice__Worker__V1__BenchReport *r)
{
    char file[32], packed[32], kv[32], dtype[16] = "", load[32];
    const Sluice__V1__ModelInfo *info = r->info;
    for (size_t i = 0; r->kv_dtype[i] && i + 1 < sizeof(dtype); i++)
        dtype[i] = (char)tolower((unsigned char)r->kv_dtype[i]);
    if (info) {
        printf("model      %s: %s, %" PRIu32 " layers, hidden %" PRIu32 ", %" PRIu32
               " heads (%" PRIu32 " KV heads of %" PRIu32 "), MLP %" PRIu32 ", %" PRIu32
               " tokens, %.1f M weights\n",
               info->display_name[0] ? info->display_name : r->file_name, info->architecture,
               info->n_layers, info->hidden_dim, info->n_heads, info->n_kv_heads, info->head_dim,
               r->ffn_dim, info->vocab_size, (double)info->n_parameters / 1e6);
        printf("file       %s: %s, %s, packed %s, loaded in %s\n", r->file_name, info->quantization,
               format_bytes(r->file_bytes, file), format_bytes(r->packed_bytes, packed),
               format_ms(r->load_ms, load));
    }
    printf("machine    %s, %" PRIu32 " CPU%s, kernels %s, KV %s (%s a token)\n",
           r->cpu[0] ? r->cpu : "?", r->n_cpus, r->n_cpus == 1 ? "" : "s", r->kernels, dtype,
           format_bytes(r->kv_token_bytes, kv));
    printf("sluice     %s, numerics %s, %" PRIu32 " rows per step, prompts in chunks of %" PRIu32
           "\n\n",
           r->software_version, r->numerics_id, r->max_batch_tokens, r->prefill_chunk_tokens);
}

static void add_row(struct output_table *table, const Sluice__Worker__V1__BenchRow *row)
{
    enum { N = 12 };
    char cells[N][32];
    const char *at[N];
    bool decode = row->step_p50_ns > 0;
    for (size_t i = 0; i < N; i++) {
        cells[i][0] = '\0';
        at[i] = cells[i];
    }
    snprintf(cells[0], 32, "%.16s", row->phase);
    snprintf(cells[1], 32, "%" PRIu32, row->n_threads);
    snprintf(cells[2], 32, "%" PRIu32, row->depth);
    snprintf(cells[3], 32, "%" PRIu32, row->batch);
    snprintf(cells[4], 32, "%" PRIu32, row->batch ? row->n_tokens / row->batch : 0);
    snprintf(cells[5], 32, "%.1f", row->tokens_per_second);
    snprintf(cells[6], 32, "%.1f", row->stddev_tokens_per_second);
    snprintf(cells[7], 32, "%.1f", row->min_tokens_per_second);
    snprintf(cells[8], 32, "%.1f", row->max_tokens_per_second);
    if (decode) {
        snprintf(cells[9], 32, "%.2f", (double)row->step_p50_ns / 1e6);
        snprintf(cells[10], 32, "%.2f", (double)row->step_p99_ns / 1e6);
        snprintf(cells[11], 32, "%.1f", row->weight_gb_per_second);
    }
    output_table_add(table, at);
}

static void print_speculation(const Sluice__Worker__V1__BenchReport *report)
{
    static const char *const headers[] = {
        "DRAFTS BY",        "UP TO", "THREADS", "BATCH",   "TOKENS",
        "TOKENS/S WITHOUT", "WITH",  "GAIN",    "DRAFTED", "ACCEPTED"};
    enum { N = CLI_N(headers) };
    struct output_table table;
    output_table_init(&table, N, headers);
    for (size_t i = 0; i < report->n_speculation; i++) {
        const Sluice__Worker__V1__BenchSpeculation *s = report->speculation[i];
        char cells[N][64];
        const char *at[N];
        double without = s->tokens_per_second_without;
        for (size_t k = 0; k < N; k++)
            at[k] = cells[k];
        snprintf(cells[0], 64, "%.60s", s->draft_file[0] ? s->draft_file : s->drafter);
        snprintf(cells[1], 64, "%" PRIu32, s->max_draft_tokens);
        snprintf(cells[2], 64, "%" PRIu32, s->n_threads);
        snprintf(cells[3], 64, "%" PRIu32, s->batch);
        snprintf(cells[4], 64, "%" PRIu32, s->batch ? s->n_tokens / s->batch : 0);
        snprintf(cells[5], 64, "%.1f", without);
        snprintf(cells[6], 64, "%.1f", s->tokens_per_second);
        snprintf(cells[7], 64, "%.2f", without > 0 ? s->tokens_per_second / without : 0.0);
        snprintf(cells[8], 64, "%" PRIu64, s->n_drafted_tokens);
        snprintf(cells[9], 64, "%" PRIu64 " (%.0f %%)", s->n_accepted_tokens,
                 s->n_drafted_tokens
                     ? 100.0 * (double)s->n_accepted_tokens / (double)s->n_drafted_tokens
                     : 0.0);
        output_table_add(&table, at);
    }
    putchar('\n');
    output_table_print(&table);
    output_table_fini(&table);
}

void bench_report_print_engine(const Sluice__Worker__V1__BenchReport *report)
{
    static const char *const headers[] = {"PHASE",  "THREADS",     "DEPTH",       "BATCH",
                                          "TOKENS", "TOKENS/S",    "STDDEV",      "MIN",
                                          "MAX",    "STEP P50 MS", "STEP P99 MS", "WEIGHTS GB/S"};
    struct output_table table;
    print_model(report);
    output_table_init(&table, CLI_N(headers), headers);
    for (size_t i = 0; i < report->n_rows; i++)
        add_row(&table, report->rows[i]);
    output_table_print(&table);
    output_table_fini(&table);
    if (report->n_speculation)
        print_speculation(report);
    if (report->interrupted)
        puts("interrupted: rows are missing, and the last row may have fewer repetitions");
}
