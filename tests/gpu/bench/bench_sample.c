/* bench_sample.c: the sampler by its time and by the bytes of logits it must read once. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/bench/bench_gpu.h"

enum { MAX_ROWS = 128 };

static const struct kind {
    const char *name;
    float temperature, top_p, min_p, typical_p;
    uint32_t top_k, n_top;
} kinds[] = {
    {"greedy", 0.0F, 1.0F, 0.0F, 1.0F, 0, 0},
    {"greedy, 5 log-probabilities", 0.0F, 1.0F, 0.0F, 1.0F, 0, 5},
    {"temperature 1", 1.0F, 1.0F, 0.0F, 1.0F, 0, 0},
    {"top-k 50", 0.8F, 1.0F, 0.0F, 1.0F, 50, 0},
    {"top-p 0.9", 0.8F, 0.9F, 0.0F, 1.0F, 0, 0},
    {"top-p 0.9, flat", 100.0F, 0.9F, 0.0F, 1.0F, 0, 0},
    {"top-k 50, top-p 0.9, min-p 0.05", 0.8F, 0.9F, 0.05F, 1.0F, 50, 0},
    {"typical 0.9", 1.0F, 1.0F, 0.0F, 0.9F, 0, 0},
};

struct sample_job {
    struct tensor logits;
    struct sample_params params[MAX_ROWS];
    struct sample_result results[MAX_ROWS];
};

static int call_sample(struct bench *b, void *ctx, uint32_t i)
{
    struct sample_job *job = ctx;
    (void)i;
    return op_sample(b->stream, &job->logits, job->params, job->results);
}

static struct bench_time time_kind(struct bench *b, struct sample_job *job, const struct kind *kind)
{
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        job->params[r] = (struct sample_params){.temperature = kind->temperature,
                                                .top_k = kind->top_k,
                                                .top_p = kind->top_p,
                                                .min_p = kind->min_p,
                                                .typical_p = kind->typical_p,
                                                .repetition_penalty = 1.0F,
                                                .n_top = kind->n_top,
                                                .seed = 1,
                                                .position = r};
    return bench_time_queued(b, call_sample, job, 1);
}

void bench_sampler(struct bench *b)
{
    static const uint32_t batches[] = {1, 32, 128};
    uint32_t vocab = b->small ? 3000 : 128256, max_rows = b->small ? 4 : MAX_ROWS;
    const struct op_needs needs = {.max_rows = 1,
                                   .max_logits = max_rows,
                                   .max_n = 1,
                                   .max_k = 1,
                                   .vocab_size = vocab,
                                   .n_heads = 1,
                                   .n_kv_heads = 1,
                                   .head_dim = 64,
                                   .max_positions = 1};
    struct random random = {17};
    size_t n = (size_t)max_rows * vocab;
    float *logits = random_floats(&random, n, 0.001F), *data = bench_allocate(b, n * 4);
    char key[96];
    struct sample_job *job = calloc(1, sizeof(*job));
    for (size_t i = 0; i < n; i++)
        logits[i] *= 3.0F;
    bench_upload(b, data, logits, n * 4);
    bench_reserve(b, &needs);
    printf(
        "Sampler, vocabulary %u: time of a call, queued one behind the other, with its copies of "
        "parameters and results; %% of the read rate by the logits' bytes, once.\n\n"
        "| rows | batch 1 | batch 32 | batch 128 |\n| --- | --- | --- | --- |\n",
        vocab);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        printf("| %s |", kinds[k].name);
        for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
            uint32_t n_rows = batches[i] < max_rows ? batches[i] : max_rows;
            job->logits = tensor_view(data, DTYPE_F32, n_rows, vocab);
            struct bench_time time = time_kind(b, job, &kinds[k]);
            double rate = 4.0 * n_rows * vocab / time.median;
            snprintf(key, sizeof(key), "sample %s, batch %u", kinds[k].name, batches[i]);
            bench_cell(b, key, time, bench_share(rate, b->read_bytes_per_s));
        }
        printf("\n");
    }
    printf("\n");
    free(job);
    bench_drop(b, data, n * 4);
    free(logits);
}
