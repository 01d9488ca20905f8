/* bench_kernels: speed of the linear layers, attention and recurrent layers, per kernel set and
 * number of rows. The same run measures the limits: read bandwidth and the integer dot rate.
 *
 *   bench_kernels [--kernels auto] [--threads 2] [--ms 200] [--only BF16] [--outliers 1]
 *                 [--rows 1,4,32]
 *
 * --only: a text that the titles of the results must contain.
 * --outliers: how many of a hundred activations are 20 times as large as the others.
 *
 * A set of weights is as large as the model's, so that caches hold no more than in a real step.
 * Wall time, or CPU time with one thread; medians. */
#include "tests/bench/kernels/bench_kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/device.h"
#include "kernels/ops.h"

static const struct bench_layer sample_layers[] = {
    {"q", DTYPE_Q4_1, 576, 576, 30},     {"k", DTYPE_Q4_1, 192, 576, 30},
    {"v", DTYPE_Q4_1, 192, 576, 30},     {"o", DTYPE_Q4_1, 576, 576, 30},
    {"gate", DTYPE_Q4_1, 1536, 576, 30}, {"up", DTYPE_Q4_1, 1536, 576, 30},
    {"down", DTYPE_Q4_1, 576, 1536, 30}, {NULL, 0, 0, 0, 0},
};
static const struct bench_layer head_layers[] = {
    {"lm head Q8_0", DTYPE_Q8_0, 49152, 576, 1},
    {NULL, 0, 0, 0, 0},
};
static const enum dtype integer_types[] = {
    DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q4_K, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q5_K,  DTYPE_Q6_K,
    DTYPE_Q8_0, DTYPE_Q3_K, DTYPE_Q2_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4,
};
enum { N_INTEGER_TYPES = sizeof(integer_types) / sizeof(integer_types[0]) };
/* A weight that stays in an L2 cache. */
static const struct bench_layer cached_layer[] = {
    {"cached", 0, 256, 2048, 1},
    {NULL, 0, 0, 0, 0},
};

/* The layers of both models in any format; the type is filled in. */
static const struct bench_layer sample_dense[] = {
    {"q, k, v", 0, 960, 576, 30}, {"o", 0, 576, 576, 30}, {"gate, up", 0, 3072, 576, 30},
    {"down", 0, 576, 1536, 30},   {NULL, 0, 0, 0, 0},
};
/* Two of the model's 22 layers, which are already larger than any CPU cache. */
static const struct bench_layer tiny_llama[] = {
    {"q, k, v", 0, 2560, 2048, 2}, {"o", 0, 2048, 2048, 2}, {"gate, up", 0, 11264, 2048, 2},
    {"down", 0, 2048, 5632, 2},    {NULL, 0, 0, 0, 0},
};

double bench_seconds(const struct bench *b)
{
    return (double)(b->n_threads == 1 ? clock_thread_cpu_ns() : clock_now_ns()) * 1e-9;
}

void bench_die(const struct error *err)
{
    fprintf(stderr, "bench_kernels: %s\n", err->message);
    exit(1);
}

void *bench_alloc(size_t n_bytes)
{
    void *data = NULL;
    if (posix_memalign(&data, n_bytes < 2 << 20 ? 4096 : 2 << 20, n_bytes) != 0)
        exit(1);
    madvise(data, n_bytes, MADV_HUGEPAGE); /* as engines keep weights; refusal costs speed only */
    memset(data, 0, n_bytes);
    return data;
}

uint32_t bench_noise(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The same layers in several formats. */
static void bench_types(const struct bench *b, const char *model, const struct bench_layer *layers,
                        const enum dtype *types, size_t n_types, const uint32_t *rows)
{
    for (size_t t = 0; t < n_types; t++) {
        struct bench_layer typed[8];
        char title[64];
        uint32_t n = 0;
        do {
            typed[n] = layers[n];
            typed[n].type = types[t];
        } while (layers[n++].name != NULL);
        snprintf(title, sizeof(title), "%s %s layers", model, dtype_name(types[t]));
        bench_layers(b, title, typed, rows);
    }
}

/* Times the sample model's attention for n_rows queries at the end of a context. */
static void bench_attention(const struct bench *b, uint32_t context, uint32_t n_rows)
{
    enum { HEADS = 9, KV = 3, D = 64, BLOCK = 16, LAYERS = 30 };
    uint32_t n_blocks = (context + BLOCK - 1) / BLOCK, *table = bench_alloc(n_blocks * 4),
             *positions = bench_alloc(n_rows * 4), *seqs = bench_alloc(n_rows * 4);
    size_t kv_bytes = (size_t)n_blocks * KV * BLOCK * D * 2;
    struct kv_layer layers[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        layers[l] = (struct kv_layer){
            bench_alloc(kv_bytes), bench_alloc(kv_bytes), DTYPE_BF16, n_blocks, BLOCK, KV, D, D};
    for (uint32_t i = 0; i < n_blocks; i++)
        table[i] = i;
    for (uint32_t i = 0; i < n_rows; i++)
        positions[i] = context - n_rows + i;
    float *q = bench_alloc((size_t)n_rows * HEADS * D * 4),
          *y = bench_alloc((size_t)n_rows * HEADS * D * 4);
    struct tensor tq = {q, DTYPE_F32, n_rows, HEADS * D, HEADS * D},
                  ty = {y, DTYPE_F32, n_rows, HEADS * D, HEADS * D};
    struct attention_rows rows = {positions, seqs, NULL, table, n_blocks, n_rows, 1, 0};
    struct attention_params params = {.n_heads = HEADS, .heads_per_kv = 3, .scale = 0.125f};
    double times[50];
    int n = 0;
    for (double spent = 0; n < 50 && (n < 5 || spent < b->budget_s); n++) {
        double begin = bench_seconds(b);
        for (int l = 0; l < LAYERS; l++)
            if (op_attention(b->stream, &ty, &tq, &layers[l], &rows, &params) != 0)
                exit(1);
        spent += times[n] = bench_seconds(b) - begin;
    }
    qsort(times, (size_t)n, sizeof(times[0]), bench_by_value);
    double ops = 0;
    for (uint32_t i = 0; i < n_rows; i++)
        ops += 4.0 * (positions[i] + 1) * D * HEADS * LAYERS;
    printf("  attention, %u rows at context %u, 30 layers: %.3f ms, %.1f Gop/s\n", n_rows, context,
           times[n / 2] * 1e3, ops / times[n / 2] * 1e-9);
    for (int l = 0; l < LAYERS; l++) {
        free(layers[l].k);
        free(layers[l].v);
    }
    free(table);
    free(positions);
    free(seqs);
    free(q);
    free(y);
}

/* Time per row of choosing a token. */
static void bench_sampling(const struct bench *b, uint32_t vocab, const char *name,
                           struct sample_params params)
{
    enum { ROWS = 8, MAX_RUNS = 200 };
    float *logits = bench_alloc((size_t)ROWS * vocab * sizeof(*logits));
    for (size_t i = 0; i < (size_t)ROWS * vocab; i++) { /* nearly normal, deviation 2.4 */
        float sum = 0.0f;
        for (int j = 0; j < 8; j++)
            sum += (float)(bench_noise() % 3001) * 1e-3f - 1.5f;
        logits[i] = sum;
    }
    struct sample_params of_row[ROWS];
    struct sample_result results[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        of_row[r] = params;
        of_row[r].repetition_penalty = 1.0f;
        of_row[r].typical_p = params.typical_p > 0.0f ? params.typical_p : 1.0f;
        of_row[r].position = r;
        logits[(size_t)r * vocab + bench_noise() % vocab] = 14.0f; /* a likely token */
    }
    struct tensor view = {logits, DTYPE_F32, ROWS, vocab, vocab};
    double times[MAX_RUNS], spent = 0;
    int n = 0;
    while (n < MAX_RUNS && (n < 5 || spent < b->budget_s)) {
        double begin = bench_seconds(b);
        if (op_sample(b->stream, &view, of_row, results) != 0)
            exit(1);
        spent += times[n++] = bench_seconds(b) - begin;
    }
    qsort(times, (size_t)n, sizeof(times[0]), bench_by_value);
    printf("  sampling, vocabulary %u, %s: %.1f us a row\n", vocab, name,
           times[n / 2] / ROWS * 1e6);
    free(logits);
}

/* "1,4,32": up to 15 numbers of at most 512, then 0. */
static void read_rows(const char *list, uint32_t rows[16])
{
    for (int n = 0; n < 15; n++) {
        char *end;
        unsigned long value = strtoul(list, &end, 10);
        if (value == 0 || value > 512)
            return;
        rows[n] = (uint32_t)value;
        list = *end == ',' ? end + 1 : end;
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.n_threads = 2, .budget_s = 0.2, .outlier_share = 0.01, .only = ""};
    const char *set = "auto";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--kernels") == 0)
            set = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            b.n_threads = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--ms") == 0)
            b.budget_s = (double)strtoul(argv[i + 1], NULL, 10) * 1e-3;
        else if (strcmp(argv[i], "--outliers") == 0)
            b.outlier_share = strtod(argv[i + 1], NULL) * 1e-2;
        else if (strcmp(argv[i], "--rows") == 0)
            read_rows(argv[i + 1], b.rows);
        else if (strcmp(argv[i], "--only") == 0)
            b.only = argv[i + 1];
        else {
            fprintf(stderr,
                    "usage: bench_kernels [--kernels SET] [--threads N] [--ms MS] [--only TITLE] "
                    "[--outliers PERCENT] [--rows LIST]\n");
            return 2;
        }
    }
    struct error err = {0};
    if (backend_cpu()->open(0, &b.device, &err) != 0 ||
        backend_cpu()->stream_create(b.device, b.n_threads, &b.stream, &err) != 0 ||
        op_table_cpu(set, &b.ops, &err) != 0)
        bench_die(&err);
    b.stream->ops = b.ops;
    b.read_gbs = bench_read_bandwidth(&b, 96u << 20);
    b.dot_gops = bench_dot_rate(&b);
    printf("kernels %s, %u threads, read bandwidth %.1f GB/s (96 MiB), %s %.0f Gop/s\n",
           b.ops->name, b.n_threads, b.read_gbs, bench_dot_name(), b.dot_gops);
    static const uint32_t rows[] = {1, 2, 3, 4, 8, 32, 128, 512, 0}, few[] = {1, 2, 3, 4, 8, 32, 0},
                          powers[] = {1, 2, 4, 8, 16, 32, 64, 126, 512, 0};
    static const enum dtype dense_types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
    bench_layers(&b, "sample model, Q4_1 layers", sample_layers, rows);
    bench_layers(&b, "sample model, head", head_layers, few);
    bench_types(&b, "in cache,", cached_layer, integer_types, N_INTEGER_TYPES, powers);
    bench_types(&b, "1.1B shape, two", tiny_llama, integer_types, N_INTEGER_TYPES, powers);
    bench_types(&b, "sample model,", sample_dense, dense_types, 3, powers);
    bench_types(&b, "1.1B shape, two", tiny_llama, dense_types, 3, powers);
    if (strstr("attention", b.only) != NULL) {
        bench_attention(&b, 128, 1);
        bench_attention(&b, 1024, 1);
        bench_attention(&b, 512, 512);
    }
    if (strstr("recurrent", b.only) != NULL) {
        b.update_gbs = bench_update_bandwidth(&b, 96u << 20);
        printf("  updates in place %.1f GB/s (96 MiB)\n", b.update_gbs);
        for (enum bench_recurrent_op op = BENCH_OP_CONV; op <= BENCH_OP_SSM; op++) {
            bench_recurrent(&b, op, 1, 512);
            bench_recurrent(&b, op, 1, 1);
            bench_recurrent(&b, op, 8, 1);
        }
    }
    static const uint32_t vocabs[] = {49152, 128256};
    for (int i = 0; i < 2 && strstr("sampling", b.only) != NULL; i++) {
        bench_sampling(&b, vocabs[i], "greedy", (struct sample_params){.top_p = 1.0f});
        bench_sampling(&b, vocabs[i], "temperature 1",
                       (struct sample_params){.temperature = 1.0f, .top_p = 1.0f});
        bench_sampling(&b, vocabs[i], "top-p 0.95",
                       (struct sample_params){.temperature = 1.0f, .top_p = 0.95f});
        bench_sampling(
            &b, vocabs[i], "typical 0.9",
            (struct sample_params){.temperature = 1.0f, .top_p = 1.0f, .typical_p = 0.9f});
        bench_sampling(&b, vocabs[i], "top-k 50, top-p 0.95",
                       (struct sample_params){.temperature = 0.8f, .top_k = 50, .top_p = 0.95f});
    }
    backend_cpu()->stream_destroy(b.stream);
    backend_cpu()->close(b.device);
    return 0;
}
