#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers.h"
#include "base/system/cpu.h"
#include "engine/engine_config.h"
#include "engine/engine_stats.h"
#include "kernels/ops.h"
#include "server/worker/base/facts.h"
#include "server/worker/base/message.h"
#include "server/worker/base/process.h"
#include "server/worker/base/settings.h"
#include "server/worker/place/place.h"
#include "server/worker/tools/bench_speculate.h"
#include "server/worker/tools/tool.h"

enum { MAX_BATCH = 256, MAX_LENGTH = 1 << 20, MAX_DEPTH = 1 << 24, WARM_STEPS = 2 };
/* Upper bound for the prompt tokens and the last drafts of an answer. */
enum { SPECULATE_PROMPT_TOKENS = 256 };

static volatile sig_atomic_t stop_requested;

struct bench {
    const struct settings *settings;
    struct numbers threads, prompts, lengths, batches, depths; /* values of the flags; depths
                                                                * ascend */
    struct engine_config config;
    struct engine_bench_config run_config;
    struct checkpoint *ckpt;
    struct engine_bench *timed; /* the bench of the current number of threads */
    uint32_t n_threads, depth, batch;
    struct arena *arena;
    Sluice__Worker__V1__BenchReport *report;
    int64_t *steps; /* owned; [repetitions · longest decode] */
    double *sorted; /* owned; [repetitions] */
};

/* --- flags --- */

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int parse(struct bench *b, struct error *err)
{
    const struct settings *s = b->settings;
    int rc = numbers_parse("threads", s->bench_threads, 0, 1024, &b->threads, err);
    if (!rc)
        rc = numbers_parse("prompt", s->bench_prompt, 0, MAX_LENGTH, &b->prompts, err);
    if (!rc)
        rc = numbers_parse("generate", s->bench_generate, 0, MAX_LENGTH, &b->lengths, err);
    if (!rc)
        rc = numbers_parse("batch", s->bench_batch, 1, MAX_BATCH, &b->batches, err);
    if (!rc)
        rc = numbers_parse("depth", s->bench_depth, 0, MAX_DEPTH, &b->depths, err);
    if (rc)
        return rc;
    if (!numbers_max(&b->prompts) && !numbers_max(&b->lengths))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--prompt, --generate: both are 0; give at least one");
    qsort(b->depths.values, b->depths.n, sizeof(b->depths.values[0]), by_value);
    return 0;
}

/* Sets the sizes of the executor: steps as in an engine, and KV for the measurements. */
static int set_sizes(struct bench *b, uint32_t context_tokens, struct error *err)
{
    struct engine_config *cfg = &b->config;
    uint64_t longest = numbers_max(&b->prompts), depth = numbers_max(&b->depths);
    const char *which = "prompt";
    if (numbers_max(&b->lengths) > longest) {
        longest = numbers_max(&b->lengths);
        which = "generate";
    }
    if (longest > context_tokens)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--%s: %" PRIu64 " is more than the model's context of %" PRIu32 " tokens",
                         which, longest, context_tokens);
    if (depth + longest > context_tokens)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--depth: %" PRIu64 " and --%s %" PRIu64
                         " are more than the model's context of %" PRIu32 " tokens",
                         depth, which, longest, context_tokens);
    uint32_t n_seqs = (uint32_t)numbers_max(&b->batches);
    if (cfg->max_batch_tokens < n_seqs)
        cfg->max_batch_tokens = n_seqs;
    if (cfg->prefill_chunk_tokens > cfg->max_batch_tokens)
        cfg->prefill_chunk_tokens = cfg->max_batch_tokens;
    b->run_config = (struct engine_bench_config){.block_size = cfg->executor.kv_block_size,
                                                 .max_rows = cfg->max_batch_tokens,
                                                 .chunk = cfg->prefill_chunk_tokens,
                                                 .max_seqs = n_seqs,
                                                 .max_positions = (uint32_t)(depth + longest),
                                                 .stop = &stop_requested};
    cfg->executor.max_rows = cfg->max_batch_tokens;
    cfg->executor.max_seqs = n_seqs;
    cfg->executor.max_context_tokens = b->run_config.max_positions;
    cfg->executor.kv_tokens = engine_bench_kv_tokens(&b->run_config);
    return 0;
}

/* --- rows --- */

static void print_progress(const struct bench *b, const char *what, uint64_t done)
{
    if (!b->settings->progress)
        return;
    fprintf(stderr,
            "\r\033[Kbench: %" PRIu32 " thread%s, depth %" PRIu32 ", batch %" PRIu32 ": %s %" PRIu64
            "/%" PRIu64,
            b->n_threads, b->n_threads == 1 ? "" : "s", b->depth, b->batch, what, done,
            b->settings->repetitions);
}

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Computes median, mean, deviation and extremes of the samples. */
static void sum_up(struct bench *b, Sluice__Worker__V1__BenchRow *row)
{
    size_t n = row->n_samples;
    double sum = 0, squares = 0;
    memcpy(b->sorted, row->samples, n * sizeof(*b->sorted));
    qsort(b->sorted, n, sizeof(*b->sorted), by_double);
    for (size_t i = 0; i < n; i++)
        sum += b->sorted[i];
    row->mean_tokens_per_second = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += pow(b->sorted[i] - row->mean_tokens_per_second, 2);
    row->stddev_tokens_per_second = n > 1 ? sqrt(squares / (double)(n - 1)) : 0;
    row->tokens_per_second =
        n % 2 ? b->sorted[n / 2] : (b->sorted[n / 2 - 1] + b->sorted[n / 2]) / 2;
    row->min_tokens_per_second = b->sorted[0];
    row->max_tokens_per_second = b->sorted[n - 1];
}

static Sluice__Worker__V1__BenchRow *new_row(struct bench *b, const char *phase, uint64_t n_tokens,
                                             struct error *err)
{
    Sluice__Worker__V1__BenchRow *row = arena_alloc(b->arena, sizeof(*row));
    double *samples = arena_calloc(b->arena, b->settings->repetitions, sizeof(*samples));
    if (!row || !samples) {
        error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
        return NULL;
    }
    sluice__worker__v1__bench_row__init(row);
    row->phase = message_text(b->arena, phase);
    row->n_threads = b->n_threads;
    row->depth = b->depth;
    row->batch = b->batch;
    row->n_tokens = (uint32_t)(n_tokens * b->batch);
    row->samples = samples;
    return row;
}

/* Adds a row; a row that was stopped before its first repetition is left out. */
static void keep_row(struct bench *b, Sluice__Worker__V1__BenchRow *row)
{
    if (!row->n_samples)
        return;
    sum_up(b, row);
    b->report->rows[b->report->n_rows++] = row;
}

static void add_sample(Sluice__Worker__V1__BenchRow *row, int64_t ns)
{
    row->samples[row->n_samples++] = (double)row->n_tokens * 1e9 / (double)(ns > 0 ? ns : 1);
}

static int time_prefill(struct bench *b, uint64_t n_tokens, struct error *err)
{
    Sluice__Worker__V1__BenchRow *row = new_row(b, "prefill", n_tokens, err);
    uint64_t warm = n_tokens < b->run_config.chunk ? n_tokens : b->run_config.chunk;
    int64_t ns;
    if (!row)
        return STATUS_RESOURCE_EXHAUSTED;
    print_progress(b, "prefill", 0);
    int rc = engine_bench_prefill(b->timed, 1, (uint32_t)warm, &ns, err);
    for (uint64_t i = 0; !rc && i < b->settings->repetitions; i++) {
        rc = engine_bench_prefill(b->timed, b->batch, (uint32_t)n_tokens, &ns, err);
        if (!rc)
            add_sample(row, ns);
        print_progress(b, "prefill", i + 1);
    }
    keep_row(b, row);
    return rc;
}

static int time_decode(struct bench *b, uint64_t n_tokens, struct error *err)
{
    Sluice__Worker__V1__BenchRow *row = new_row(b, "decode", n_tokens, err);
    size_t n_steps = 0;
    if (!row)
        return STATUS_RESOURCE_EXHAUSTED;
    print_progress(b, "decode", 0);
    uint64_t warm = n_tokens < WARM_STEPS ? n_tokens : WARM_STEPS;
    int rc = engine_bench_decode(b->timed, b->batch, (uint32_t)warm, b->steps, err);
    for (uint64_t i = 0; !rc && i < b->settings->repetitions; i++) {
        int64_t ns = 0;
        rc = engine_bench_decode(b->timed, b->batch, (uint32_t)n_tokens, b->steps + n_steps, err);
        for (uint64_t k = 0; k < n_tokens && !rc; k++)
            ns += b->steps[n_steps++];
        if (!rc)
            add_sample(row, ns);
        print_progress(b, "decode", i + 1);
    }
    keep_row(b, row);
    if (!n_steps)
        return rc;
    qsort(b->steps, n_steps, sizeof(*b->steps), by_ns);
    int64_t p50_ns = b->steps[n_steps / 2], p99_ns = b->steps[n_steps * 99 / 100];
    row->step_p50_ns = (uint64_t)p50_ns;
    row->step_p99_ns = (uint64_t)p99_ns;
    row->weight_gb_per_second = (double)b->report->step_bytes / (double)p50_ns;
    return rc;
}

static int time_batch(struct bench *b, struct error *err)
{
    int rc = 0;
    for (size_t i = 0; i < b->prompts.n && !rc; i++)
        if (b->prompts.values[i])
            rc = time_prefill(b, b->prompts.values[i], err);
    for (size_t i = 0; i < b->lengths.n && !rc; i++)
        if (b->lengths.values[i])
            rc = time_decode(b, b->lengths.values[i], err);
    return rc;
}

static int open_timed(struct bench *b, struct error *err)
{
    int64_t start_ns = clock_now_ns();
    if (b->settings->progress)
        fprintf(stderr, "\r\033[Kbench: loading for %" PRIu32 " thread%s", b->n_threads,
                b->n_threads == 1 ? "" : "s");
    int rc = engine_bench_open(b->ckpt, &b->config.executor, &b->run_config, &b->timed, err);
    if (!rc && !b->report->load_ms)
        b->report->load_ms = (uint64_t)((clock_now_ns() - start_ns) / NS_PER_MS);
    return rc;
}

static void fill_memory(struct bench *b)
{
    const struct executor_plan *plan = engine_bench_memory(b->timed);
    Sluice__Worker__V1__BenchReport *out = b->report;
    out->numerics_id = message_text(b->arena, engine_bench_numerics_id(b->timed));
    out->packed_bytes = plan->weights_bytes;
    out->kv_bytes = plan->kv_bytes;
    out->kv_token_bytes = plan->kv_tokens ? plan->kv_bytes / plan->kv_tokens : 0;
    if (b->n_threads > out->n_threads)
        out->n_threads = b->n_threads;
    out->resident_bytes = process_memory_bytes();
}

/* Measures all rows of one number of threads. */
static int time_threads(struct bench *b, struct error *err)
{
    int rc = open_timed(b, err);
    for (size_t d = 0; d < b->depths.n && !rc; d++) {
        b->depth = (uint32_t)b->depths.values[d];
        b->batch = 1;
        print_progress(b, "filling the context", 0);
        rc = engine_bench_deepen(b->timed, b->depth, err);
        for (size_t i = 0; i < b->batches.n && !rc; i++) {
            b->batch = (uint32_t)b->batches.values[i];
            rc = time_batch(b, err);
        }
    }
    if (b->timed)
        fill_memory(b);
    engine_bench_close(b->timed);
    b->timed = NULL;
    return rc;
}

/* --- speculation --- */

static bool has_drafts(const struct bench *b)
{
    return b->config.draft_tokens || b->config.draft_path;
}

static int time_drafts(struct bench *b, uint32_t batch, uint32_t n_tokens, struct error *err)
{
    struct bench_speculate_config cfg = {.n_seqs = batch,
                                         .n_tokens = n_tokens,
                                         .repetitions = (uint32_t)b->settings->repetitions,
                                         .stop = &stop_requested};
    struct engine_config engine = b->config;
    Sluice__Worker__V1__BenchSpeculation *row = arena_alloc(b->arena, sizeof(*row));
    if (!row)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    sluice__worker__v1__bench_speculation__init(row);
    engine.model_path = b->settings->model;
    engine.executor.n_threads = b->n_threads;
    engine.executor.max_context_tokens = 0;
    engine.executor.kv_tokens = (uint64_t)batch * (n_tokens + SPECULATE_PROMPT_TOKENS);
    engine.max_concurrent = batch;
    b->batch = batch;
    print_progress(b, "without and with drafts", 0);
    int rc = bench_speculate_run(&engine, &cfg, b->arena, row, err);
    if (rc)
        return rc;
    row->n_threads = b->n_threads;
    b->report->speculation[b->report->n_speculation++] = row;
    return 0;
}

static int place(struct bench *b, struct error *err)
{
    int rc = place_threads(b->settings->place, b->n_threads, err);
    if (!rc)
        place_apply(b->settings->place, &b->config.executor);
    return rc;
}

static int time_speculation(struct bench *b, struct error *err)
{
    int rc = 0;
    for (size_t i = 0; i < b->batches.n && !rc; i++)
        for (size_t k = 0; k < b->lengths.n && !rc; k++)
            if (b->lengths.values[k] > 1)
                rc = time_drafts(b, (uint32_t)b->batches.values[i], (uint32_t)b->lengths.values[k],
                                 err);
    return rc;
}

/* --- the report --- */

/* Returns the bytes that a decode step reads. With a separate output matrix, a step reads single
 * rows of the token embedding only, so the embedding does not count. */
static uint64_t step_bytes(const struct checkpoint *ckpt)
{
    uint64_t all = 0, embedding = 0;
    bool has_output = false;
    for (uint64_t i = 0; i < checkpoint_n_tensors(ckpt); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(ckpt, i);
        all += t->n_bytes;
        has_output |= strcmp(t->name, "output.weight") == 0;
        if (strcmp(t->name, "token_embd.weight") == 0)
            embedding = t->n_bytes;
    }
    return has_output ? all - embedding : all;
}

static int fill_facts(struct bench *b, const struct model_info *model, struct error *err)
{
    static const struct facts_limits no_limits;
    Sluice__Worker__V1__BenchReport *out = b->report;
    const struct op_table *ops;
    int rc = op_table_cpu(b->config.executor.kernels, &ops, err);
    if (rc)
        return rc;
    out->kernels = message_text(b->arena, ops->name);
    rc = facts_model_info(b->arena, b->ckpt, NULL, model, &no_limits, &out->info, err);
    out->file_name = message_text(b->arena, checkpoint_name(b->ckpt));
    out->file_bytes = checkpoint_file_bytes(b->ckpt);
    out->ffn_dim = model->ffn_dim;
    enum dtype kv = b->config.executor.kv_dtype;
    out->kv_dtype = message_text(b->arena, kv == DTYPE_I8 ? "INT8" : dtype_name(kv));
    out->cpu = message_text(b->arena, cpu_features()->brand);
    out->n_cpus = cpus_count(&b->settings->place->cpus);
    out->software_version = message_text(b->arena, SLUICE_VERSION);
    out->max_batch_tokens = b->config.max_batch_tokens;
    out->prefill_chunk_tokens = b->config.prefill_chunk_tokens;
    out->step_bytes = step_bytes(b->ckpt);
    return rc;
}

static int prepare(struct bench *b, struct error *err)
{
    struct model_info model;
    int rc = parse(b, err);
    if (!rc)
        rc = place_engine_config(b->settings, &b->config, err);
    if (!rc)
        rc = checkpoint_open(b->settings->model, &b->ckpt, err);
    if (!rc)
        rc = facts_check_digest(b->ckpt, b->settings->digest, err);
    if (!rc)
        rc = engine_read_model_info(b->ckpt, &model, err);
    if (!rc)
        rc = set_sizes(b, model.context_tokens, err);
    if (!rc)
        rc = fill_facts(b, &model, err);
    if (rc)
        return rc;
    uint64_t n = b->settings->repetitions, longest = numbers_max(&b->lengths);
    size_t n_rows = b->threads.n * b->depths.n * b->batches.n * (b->prompts.n + b->lengths.n);
    b->steps = calloc(n * longest + WARM_STEPS, sizeof(*b->steps));
    b->sorted = calloc(n, sizeof(*b->sorted));
    b->report->rows = arena_calloc(b->arena, n_rows, sizeof(*b->report->rows));
    b->report->speculation = arena_calloc(b->arena, b->threads.n * b->batches.n * b->lengths.n,
                                          sizeof(*b->report->speculation));
    if (!b->steps || !b->sorted || !b->report->rows || !b->report->speculation)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    return 0;
}

static void on_signal(int signal_number)
{
    (void)signal_number;
    stop_requested = 1;
}

/* A first signal stops the bench and reports the results so far; a second one kills the process. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int tool_bench(const struct settings *settings, struct arena *arena,
               Sluice__Worker__V1__ToolReport *report, struct error *err)
{
    struct bench b = {.settings = settings, .arena = arena};
    b.report = arena_alloc(arena, sizeof(*b.report));
    if (!b.report)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "bench: out of memory");
    sluice__worker__v1__bench_report__init(b.report);
    catch_signals();
    int rc = prepare(&b, err);
    for (size_t i = 0; i < b.threads.n && !rc; i++) {
        b.n_threads = (uint32_t)b.threads.values[i];
        if (!b.n_threads)
            b.n_threads = settings->place->placement.n_threads;
        /* first, because this finds errors of the draft model and its lengths */
        rc = place(&b, err);
        if (!rc && has_drafts(&b))
            rc = time_speculation(&b, err);
        if (!rc)
            rc = time_threads(&b, err);
    }
    if (settings->progress)
        fprintf(stderr, "\r\033[K");
    checkpoint_close(b.ckpt);
    free(b.steps);
    free(b.sorted);
    b.report->interrupted = rc == STATUS_CANCELLED && stop_requested;
    if (rc && !(b.report->interrupted && (b.report->n_rows || b.report->n_speculation)))
        return rc;
    report->result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_BENCH;
    report->bench = b.report;
    return 0;
}
