/* bench_engine: tokens per second of the executor on the sample model (or argv[1]), at 1 and 2
 * threads. Measures prefill of 512 tokens in chunks of 256, and decode of 1, 8 and 32 sequences for
 * 64 tokens. Also prints load time and resident memory. Medians of 5 runs. docs/log/performance.md
 * has the predictions. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "engine/model/step.h"

enum {
    BLOCK = 16,
    N_RUNS = 5,
    PREFILL = 512,
    CHUNK = 256,
    DECODE = 64,
    MAX_SEQS = 32,
    PROMPT = 64, /* before decode */
    SEQ_TOKENS = PREFILL + DECODE,
};

struct bench {
    struct checkpoint *ckpt;
    struct executor *ex;
    struct step_batch *batch;
    uint32_t stride, vocab;
};

static void die(const char *what, const struct error *err)
{
    fprintf(stderr, "bench_engine: %s: %s\n", what, err->message);
    exit(1);
}

static const char *sample_path(void)
{
    static char path[4096];
    const char *given = getenv("SLUICE_MODEL"), *home = getenv("HOME");
    if (given && given[0])
        return given;
    snprintf(path, sizeof(path), "%s/.cache/sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf",
             home ? home : "");
    return path;
}

static double seconds_since(int64_t start_ns)
{
    return (double)(clock_now_ns() - start_ns) / 1e9;
}

static long status_kib(const char *key)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    long value = 0;
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, key, strlen(key)) == 0)
            value = strtol(line + strlen(key) + 1, NULL, 10);
    if (file)
        fclose(file);
    return value;
}

static void push(struct bench *b, uint32_t seq, uint32_t position, uint32_t n, int sample)
{
    struct step_batch *batch = b->batch;
    uint32_t s = batch->n_seqs++, first = seq * (SEQ_TOKENS / BLOCK);
    batch->seq_start[s] = batch->n_rows;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = batch->n_rows++;
        batch->token_ids[row] = (seq * 7919 + (position + i) * 104729 + 1) % b->vocab;
        batch->positions[row] = position + i;
        batch->kv_slots[row] = first * BLOCK + position + i;
        batch->seq_of_row[row] = s;
    }
    for (uint32_t i = 0; i < SEQ_TOKENS / BLOCK && i < b->stride; i++)
        batch->block_tables[(size_t)s * b->stride + i] = first + i;
    batch->seq_start[s + 1] = batch->n_rows;
    step_batch_use_slot(batch, s, seq, position == 0);
    if (sample)
        batch->sample_rows[batch->n_sample_rows++] = batch->n_rows - 1;
}

static void step(struct bench *b)
{
    struct error err = {0};
    struct sample_params params[MAX_SEQS];
    struct sample_result results[MAX_SEQS];
    uint32_t n = b->batch->n_sample_rows;
    for (uint32_t i = 0; i < n; i++)
        params[i] = (struct sample_params){.top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    if (executor_step(b->ex, b->batch, &err) != 0 ||
        executor_sample(b->ex, 0, n, params, results, &err) != 0)
        die("step", &err);
    step_batch_clear(b->batch);
}

static double run_prefill(struct bench *b)
{
    int64_t start = clock_now_ns();
    for (uint32_t done = 0; done < PREFILL; done += CHUNK) {
        push(b, 0, done, CHUNK, done + CHUNK == PREFILL);
        step(b);
    }
    return PREFILL / seconds_since(start);
}

static double run_decode(struct bench *b, uint32_t n_seqs)
{
    for (uint32_t s = 0; s < n_seqs; s++) {
        push(b, s, 0, PROMPT, 0);
        step(b);
    }
    int64_t start = clock_now_ns();
    for (uint32_t i = 0; i < DECODE; i++) {
        for (uint32_t s = 0; s < n_seqs; s++)
            push(b, s, PROMPT + i, 1, 1);
        step(b);
    }
    return n_seqs * DECODE / seconds_since(start);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values)
{
    qsort(values, N_RUNS, sizeof(*values), by_size);
    return values[N_RUNS / 2];
}

static void bench_open(struct bench *b, const char *path, const char *kernels, uint32_t n_threads)
{
    struct error err = {0};
    struct executor_config cfg = {
        .kernels = kernels,
        .n_threads = n_threads,
        .tp = 1,
        .kv_dtype = DTYPE_BF16,
        .kv_block_size = BLOCK,
        .kv_tokens = (uint64_t)MAX_SEQS * SEQ_TOKENS,
        .max_rows = CHUNK,
        .max_seqs = MAX_SEQS,
    };
    long anon = status_kib("RssAnon:"), shmem = status_kib("RssShmem:");
    int64_t start = clock_now_ns();
    if (checkpoint_open(path, &b->ckpt, &err) != 0 ||
        executor_open(b->ckpt, &cfg, NULL, NULL, NULL, &b->ex, &err) != 0)
        die(path, &err);
    double load = seconds_since(start);
    const struct executor_plan *plan = executor_actual(b->ex);
    b->vocab = executor_model_info(b->ex)->vocab_size;
    b->stride = (plan->context_tokens + BLOCK - 1) / BLOCK;
    struct step_limits limits = {CHUNK, MAX_SEQS, b->stride, 0, false};
    if (step_batch_create(&limits, &b->batch, &err) != 0)
        die("step", &err);
    printf("%s, %u thread%s: load %.3f s; weights %.1f MB (%.0f %% in huge pages), KV %.1f MB, "
           "workspace %.1f MB; resident after load: anon +%.1f MB, shared +%.1f MB\n",
           executor_numerics_id(b->ex), n_threads, n_threads == 1 ? "" : "s", load,
           (double)plan->weights_bytes / 1e6,
           100.0 * (double)plan->huge_page_bytes / (double)plan->weights_bytes,
           (double)plan->kv_bytes / 1e6, (double)plan->workspace_bytes / 1e6,
           (double)(status_kib("RssAnon:") - anon) * 1.024e-3,
           (double)(status_kib("RssShmem:") - shmem) * 1.024e-3);
}

static void bench_close(struct bench *b)
{
    step_batch_destroy(b->batch);
    executor_close(b->ex);
    checkpoint_close(b->ckpt);
}

int main(int argc, char **argv)
{
    static const uint32_t seqs[] = {1, 8, 32};
    const char *path = argc > 1 ? argv[1] : sample_path();
    const char *kernels = argc > 2 ? argv[2] : "auto";
    for (uint32_t n_threads = 1; n_threads <= 2; n_threads++) {
        struct bench b = {0};
        double prefill[N_RUNS], decode[3][N_RUNS];
        bench_open(&b, path, kernels, n_threads);
        run_prefill(&b);
        for (int run = 0; run < N_RUNS; run++) {
            prefill[run] = run_prefill(&b);
            for (int i = 0; i < 3; i++)
                decode[i][run] = run_decode(&b, seqs[i]);
        }
        printf("  tokens/s: prefill %.0f; decode %.1f at 1 sequence, %.1f at 8, %.1f at 32\n",
               median(prefill), median(decode[0]), median(decode[1]), median(decode[2]));
        bench_close(&b);
    }
    return 0;
}
