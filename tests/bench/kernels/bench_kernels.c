/* bench_kernels: speed of the linear layers, attention and recurrent layers, per kernel set and
 * number of rows. The same run measures the limits: read bandwidth and the integer dot rate.
 *
 *   bench_kernels [--kernels auto] [--threads 2] [--ms 200] [--only BF16] [--outliers 1]
 *                 [--rows 1,4,32]
 *
 * --only: a text that the titles of the results must contain.
 * --outliers: how many of a hundred
 * activations are 20 times as large as the others.
 *
 * A set of weights is as large as the model's, so that caches hold no more than in a real step.
 * Wall time, or CPU time with one thread; medians. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/thread_pool.h"

struct layer {
    const char *name;
    enum dtype type;
    uint32_t n, k, copies; /* copies: number of such matrices that a pass reads */
};

static const struct layer sample_layers[] = {
    {"q", DTYPE_Q4_1, 576, 576, 30},     {"k", DTYPE_Q4_1, 192, 576, 30},
    {"v", DTYPE_Q4_1, 192, 576, 30},     {"o", DTYPE_Q4_1, 576, 576, 30},
    {"gate", DTYPE_Q4_1, 1536, 576, 30}, {"up", DTYPE_Q4_1, 1536, 576, 30},
    {"down", DTYPE_Q4_1, 576, 1536, 30}, {NULL, 0, 0, 0, 0},
};
static const struct layer head_layers[] = {
    {"lm head Q8_0", DTYPE_Q8_0, 49152, 576, 1},
    {NULL, 0, 0, 0, 0},
};
static const enum dtype integer_types[] = {
    DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q4_K, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q5_K,  DTYPE_Q6_K,
    DTYPE_Q8_0, DTYPE_Q3_K, DTYPE_Q2_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4,
};
enum { N_INTEGER_TYPES = sizeof(integer_types) / sizeof(integer_types[0]) };
/* A weight that stays in an L2 cache. */
static const struct layer cached_layer[] = {
    {"cached", 0, 256, 2048, 1},
    {NULL, 0, 0, 0, 0},
};

/* The layers of both models in any format; the type is filled in. */
static const struct layer sample_dense[] = {
    {"q, k, v", 0, 960, 576, 30}, {"o", 0, 576, 576, 30}, {"gate, up", 0, 3072, 576, 30},
    {"down", 0, 576, 1536, 30},   {NULL, 0, 0, 0, 0},
};
/* Two of the model's 22 layers, which are already larger than any CPU cache. */
static const struct layer tiny_llama[] = {
    {"q, k, v", 0, 2560, 2048, 2}, {"o", 0, 2048, 2048, 2}, {"gate, up", 0, 11264, 2048, 2},
    {"down", 0, 2048, 5632, 2},    {NULL, 0, 0, 0, 0},
};

struct bench {
    struct device *device;
    struct stream *stream;
    const struct op_table *ops;
    uint32_t n_threads;
    double budget_s, read_gbs, update_gbs, dot_gops; /* dot_gops: 0 if unknown */
    double outlier_share;
    uint32_t rows[16]; /* row counts of --rows; rows[0] = 0: the row counts of each set of layers */
    const char *only;
};

static bool cpu_time;

/* Wall time; with one thread its CPU time, which other load on the machine disturbs less. */
static double seconds(void)
{
    return (double)(cpu_time ? clock_thread_cpu_ns() : clock_now_ns()) * 1e-9;
}

static void die(const struct error *err)
{
    fprintf(stderr, "bench_kernels: %s\n", err->message);
    exit(1);
}

static void *take(size_t n_bytes)
{
    void *data = NULL;
    if (posix_memalign(&data, n_bytes < 2 << 20 ? 4096 : 2 << 20, n_bytes) != 0)
        exit(1);
    madvise(data, n_bytes, MADV_HUGEPAGE); /* as engines keep weights; refusal costs speed only */
    memset(data, 0, n_bytes);
    return data;
}

static uint64_t noise_state = 1;
static uint32_t noise(void)
{
    noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(noise_state >> 33);
}

struct read_job {
    const uint64_t *data;
    uint32_t n; /* in units of 4 KiB */
    uint64_t sum[64];
};

static void read_share(void *arg, uint32_t index, uint32_t n_threads)
{
    struct read_job *job = arg;
    uint32_t begin, end;
    uint64_t s[8] = {0};
    thread_pool_share(job->n, 1, index, n_threads, &begin, &end);
    for (const uint64_t *p = job->data + (size_t)begin * 512, *e = job->data + (size_t)end * 512;
         p < e; p += 8)
        for (int i = 0; i < 8; i++)
            s[i] += p[i];
    for (int i = 1; i < 8; i++)
        s[0] += s[i];
    job->sum[index % 64] += s[0];
}

static void update_share(void *arg, uint32_t index, uint32_t n_threads)
{
    const struct read_job *job = arg;
    uint32_t begin, end;
    thread_pool_share(job->n, 1, index, n_threads, &begin, &end);
    uint64_t *p = (uint64_t *)(uintptr_t)job->data;
    for (size_t i = (size_t)begin * 512; i < (size_t)end * 512; i++)
        p[i] += index + 1;
}

/* Returns the bandwidth in GB/s, reads and writes together, of changing a buffer in place. */
static double update_bandwidth(const struct bench *b, size_t n_bytes)
{
    struct read_job job = {.data = take(n_bytes), .n = (uint32_t)(n_bytes / 4096)};
    struct thread_pool *pool = NULL;
    struct error err = {0};
    if (thread_pool_create(b->n_threads, &pool, &err) != 0)
        die(&err);
    double best = 0;
    for (int i = 0; i < 9; i++) {
        double begin = seconds();
        thread_pool_run(pool, update_share, &job);
        double rate = 2.0 * (double)n_bytes / (seconds() - begin) * 1e-9;
        best = rate > best ? rate : best;
    }
    thread_pool_destroy(pool);
    free((void *)(uintptr_t)job.data);
    return best;
}

/* Returns the read bandwidth in GB/s over a buffer as large as a model's weights. */
static double read_bandwidth(const struct bench *b, size_t n_bytes)
{
    struct error err = {0};
    struct thread_pool *pool = NULL;
    if (thread_pool_create(b->n_threads, &pool, &err) != 0)
        die(&err);
    struct read_job job = {.data = take(n_bytes), .n = (uint32_t)(n_bytes / 4096)};
    memset((void *)(uintptr_t)job.data, 1, n_bytes);
    double best = 0;
    for (int i = 0; i < 9; i++) {
        double begin = seconds();
        thread_pool_run(pool, read_share, &job);
        double rate = (double)n_bytes / (seconds() - begin) * 1e-9;
        best = rate > best ? rate : best;
    }
    volatile uint64_t keep = job.sum[0]; /* the sums are used */
    (void)keep;
    free((void *)(uintptr_t)job.data);
    thread_pool_destroy(pool);
    return best;
}

/* The dot rate: Gop/s of vpdpbusd on 512 bits, as many as the threads can start. Without AVX-512
 * VNNI: of pairs of vpmaddubsw and vpaddw on 256 bits; 0 without AVX2. */
#ifdef __x86_64__
enum { DOT_TURNS = 4000000, DOT_CHAINS = 12 };

static const char *dot_name(void)
{
    return __builtin_cpu_supports("avx512vnni") ? "vpdpbusd"
           : __builtin_cpu_supports("avx2")     ? "vpmaddubsw + vpaddw"
                                                : "no dot";
}

__attribute__((target("avx2"))) static void dot_share_avx2(void *arg, uint32_t index,
                                                           uint32_t n_threads)
{
    (void)arg, (void)index, (void)n_threads;
    __asm__ volatile("vpxor %%ymm14, %%ymm14, %%ymm14\n"
                     "1:\n"
                     ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"
                     "vpmaddubsw %%ymm14, %%ymm14, %%ymm15\n"
                     "vpaddw %%ymm15, %%ymm\\i, %%ymm\\i\n"
                     ".endr\n"
                     "dec %0\n"
                     "jnz 1b\n"
                     :
                     : "r"(DOT_TURNS)
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");
}

__attribute__((target("avx512f,avx512vnni"))) static void dot_share(void *arg, uint32_t index,
                                                                    uint32_t n_threads)
{
    (void)arg, (void)index, (void)n_threads;
    __asm__ volatile("vpternlogd $0xff, %%zmm30, %%zmm30, %%zmm30\n"
                     "1:\n"
                     ".irp i, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"
                     "vpdpbusd %%zmm30, %%zmm30, %%zmm\\i\n"
                     ".endr\n"
                     "dec %0\n"
                     "jnz 1b\n"
                     :
                     : "r"(DOT_TURNS)
                     : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm30");
}

static double dot_rate(const struct bench *b)
{
    struct error err = {0};
    struct thread_pool *pool = NULL;
    const bool avx512 = __builtin_cpu_supports("avx512vnni") != 0;
    if (!avx512 && !__builtin_cpu_supports("avx2"))
        return 0;
    if (thread_pool_create(b->n_threads, &pool, &err) != 0)
        die(&err);
    double best = 0;
    for (int i = 0; i < 5; i++) {
        double begin = seconds();
        thread_pool_run(pool, avx512 ? dot_share : dot_share_avx2, NULL);
        double rate =
            (avx512 ? 128e-9 : 64e-9) * DOT_CHAINS * DOT_TURNS * b->n_threads / (seconds() - begin);
        best = rate > best ? rate : best;
    }
    thread_pool_destroy(pool);
    return best;
}
#else
static const char *dot_name(void)
{
    return "no dot";
}

static double dot_rate(const struct bench *b)
{
    (void)b;
    return 0;
}
#endif

static struct weight *make_weight(const struct bench *b, const struct layer *layer)
{
    struct error err = {0};
    struct weight_desc desc = {.role = WEIGHT_LINEAR_COLUMN,
                               .source = layer->type,
                               .n_rows = layer->n,
                               .k_total = layer->k};
    size_t n_bytes = weight_bytes(b->ops, &desc, &err);
    if (n_bytes == 0)
        die(&err);
    struct weight *w = NULL;
    if (weight_init(b->ops, &desc, take(n_bytes), &w, &err) != 0)
        die(&err);
    size_t row_bytes = dtype_row_bytes(layer->type, layer->k),
           block = dtype_block_bytes(layer->type);
    uint8_t *raw = take(row_bytes * 64);
    for (uint32_t row = 0; row < layer->n; row += 64) {
        uint32_t n = layer->n - row < 64 ? layer->n - row : 64;
        bool again =
            row > 0 &&
            !dtype_is_quantized(
                layer->type); /* repeat the first rows: the time does not depend on the values */
        for (size_t i = 0; i < row_bytes * n && !again; i++)
            raw[i] = (uint8_t)noise();
        for (size_t at = 0; at < row_bytes * n && !again; at += block) {
            float value = (float)((int)(noise() % 2001) - 1000) * 1e-4f;
            uint16_t d = dtype_f32_to_f16(0.01f), half = dtype_f32_to_bf16(value);
            if (layer->type == DTYPE_F32 || layer->type == DTYPE_F16) {
                uint16_t f16 = dtype_f32_to_f16(value);
                memcpy(raw + at, layer->type == DTYPE_F32 ? (void *)&value : (void *)&f16, block);
                continue;
            }
            size_t scale = layer->type == DTYPE_Q2_K   ? 80
                           : layer->type == DTYPE_Q3_K ? 108
                           : layer->type == DTYPE_Q6_K ? 208
                                                       : 0;
            memcpy(raw + at + scale, layer->type == DTYPE_BF16 ? &half : &d, 2);
            if (layer->type == DTYPE_MXFP4)
                raw[at] = 120;
            if (layer->type == DTYPE_Q4_1 || layer->type == DTYPE_Q5_1 ||
                layer->type == DTYPE_Q4_K || layer->type == DTYPE_Q5_K || layer->type == DTYPE_Q2_K)
                memcpy(raw + at + scale + 2, &d, 2);
        }
        if (weight_pack_rows(b->ops, w, row, n, raw, &err) != 0)
            die(&err);
    }
    free(raw);
    return w;
}

/* Runs all copies of all layers in the order of a step. Returns the seconds of the pass. */
static double time_pass(const struct bench *b, const struct layer *layers, struct weight ***weights,
                        struct act **acts, float *x, float *y, uint32_t m)
{
    uint32_t n_copies = layers[0].copies;
    double begin = seconds();
    for (uint32_t copy = 0; copy < n_copies; copy++)
        for (uint32_t i = 0; layers[i].name != NULL; i++) {
            struct tensor ty = {y, DTYPE_F32, m, layers[i].n, layers[i].n};
            if (op_linear(b->stream, &ty, acts[i], weights[i][copy]) != 0)
                exit(1);
        }
    (void)x;
    return seconds() - begin;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void bench_layers(const struct bench *b, const char *title, const struct layer *layers,
                         const uint32_t *rows)
{
    enum { MAX_LAYERS = 8, MAX_M = 512, MAX_RUNS = 50 };
    if (strstr(title, b->only) == NULL)
        return;
    struct weight **weights[MAX_LAYERS];
    struct act *acts[MAX_LAYERS];
    uint64_t n_macs = 0, n_bytes = 0;
    uint32_t widest = 0, deepest = 0, kinds = 0;
    struct error err = {0};
    for (uint32_t i = 0; layers[i].name != NULL; i++) {
        weights[i] = take(layers[i].copies * sizeof(struct weight *));
        for (uint32_t c = 0; c < layers[i].copies; c++) {
            weights[i][c] = make_weight(b, &layers[i]);
            kinds |= weight_act_kind(weights[i][c]);
        }
        n_macs += (uint64_t)layers[i].n * layers[i].k * layers[i].copies;
        n_bytes += dtype_row_bytes(layers[i].type, layers[i].k) * layers[i].n * layers[i].copies;
        widest = layers[i].n > widest ? layers[i].n : widest;
        deepest = layers[i].k > deepest ? layers[i].k : deepest;
        if (b->ops->act_create(b->device, MAX_M, layers[i].k, &acts[i], &err) != 0)
            die(&err);
    }
    float *x = take((size_t)MAX_M * deepest * 4), *y = take((size_t)MAX_M * widest * 4);
    for (size_t i = 0; i < (size_t)MAX_M * deepest; i++) {
        x[i] = (float)((int)(noise() % 2001) - 1000) * 1e-3f;
        if (noise() % 10000 < b->outlier_share * 10000)
            x[i] *= 20.0f; /* outliers, as real activations have */
    }
    printf("%s: %.1f M weights, %.1f MB as stored, limit at 1 row %.0f passes/s\n", title,
           (double)n_macs * 1e-6, (double)n_bytes * 1e-6, b->read_gbs * 1e9 / (double)n_bytes);
    printf("  %6s %12s %12s %10s %12s %10s %12s\n", "rows", "ms", "rows/s", "Gop/s", "of dots",
           "GB/s", "of read rate");
    for (rows = b->rows[0] != 0 ? b->rows : rows; *rows != 0; rows++) {
        double times[MAX_RUNS], spent = 0;
        int n = 0;
        for (uint32_t i = 0; layers[i].name != NULL; i++) {
            struct tensor tx = {x, DTYPE_F32, *rows, layers[i].k, layers[i].k};
            if (op_act_prepare(b->stream, acts[i], &tx, kinds, NULL, NULL) != 0)
                exit(1);
        }
        time_pass(b, layers, weights, acts, x, y, *rows);
        while (n < MAX_RUNS && (n < 5 || spent < b->budget_s))
            spent += times[n++] = time_pass(b, layers, weights, acts, x, y, *rows);
        qsort(times, (size_t)n, sizeof(times[0]), by_value);
        double t = times[n / 2], gbs = (double)n_bytes / t * 1e-9;
        double gops = 2.0 * (double)n_macs * *rows / t * 1e-9;
        printf("  %6u %12.3f %12.0f %10.1f %11.0f%% %10.1f %11.0f%%\n", *rows, t * 1e3, *rows / t,
               gops, b->dot_gops > 0 ? 100 * gops / b->dot_gops : 0, gbs, 100 * gbs / b->read_gbs);
    }
    for (uint32_t i = 0; layers[i].name != NULL; i++) {
        for (uint32_t c = 0; c < layers[i].copies; c++)
            free(weights[i][c]);
        free(weights[i]);
        b->ops->act_destroy(acts[i]);
    }
    free(x);
    free(y);
}

/* The same layers in several formats. */
static void bench_types(const struct bench *b, const char *model, const struct layer *layers,
                        const enum dtype *types, size_t n_types, const uint32_t *rows)
{
    for (size_t t = 0; t < n_types; t++) {
        struct layer typed[8];
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
    uint32_t n_blocks = (context + BLOCK - 1) / BLOCK, *table = take(n_blocks * 4),
             *positions = take(n_rows * 4), *seqs = take(n_rows * 4);
    size_t kv_bytes = (size_t)n_blocks * KV * BLOCK * D * 2;
    struct kv_layer layers[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        layers[l] = (struct kv_layer){
            take(kv_bytes), take(kv_bytes), DTYPE_BF16, n_blocks, BLOCK, KV, D, D};
    for (uint32_t i = 0; i < n_blocks; i++)
        table[i] = i;
    for (uint32_t i = 0; i < n_rows; i++)
        positions[i] = context - n_rows + i;
    float *q = take((size_t)n_rows * HEADS * D * 4), *y = take((size_t)n_rows * HEADS * D * 4);
    struct tensor tq = {q, DTYPE_F32, n_rows, HEADS * D, HEADS * D},
                  ty = {y, DTYPE_F32, n_rows, HEADS * D, HEADS * D};
    struct attention_rows rows = {positions, seqs, NULL, table, n_blocks, n_rows, 1, 0};
    struct attention_params params = {.n_heads = HEADS, .heads_per_kv = 3, .scale = 0.125f};
    double times[50];
    int n = 0;
    for (double spent = 0; n < 50 && (n < 5 || spent < b->budget_s); n++) {
        double begin = seconds();
        for (int l = 0; l < LAYERS; l++)
            if (op_attention(b->stream, &ty, &tq, &layers[l], &rows, &params) != 0)
                exit(1);
        spent += times[n] = seconds() - begin;
    }
    qsort(times, (size_t)n, sizeof(times[0]), by_value);
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

static float *random_values(size_t n)
{
    float *x = take(n * sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(noise() % 2001) - 1000) * 1e-3f;
    return x;
}

enum recurrent_op { OP_CONV, OP_DELTA, OP_SSM };

/* The recurrent ops of a model, with states of all layers, in which n_rows rows of each of n_seqs
 * sequences pass. Qwen3.5-0.8B: 16 heads of 128 x 128. Mamba-2: 64 heads of 128 x 64. */
static void bench_recurrent(const struct bench *b, enum recurrent_op op, uint32_t n_seqs,
                            uint32_t n_rows)
{
    enum { LAYERS = 18, WIDTH = 4, D = 128, HEADS = 16, SSM_HEADS = 64, SSM_DIM = 64, MOST = 6144 };
    static const char *const names[] = {"convolution", "delta net", "Mamba-2"};
    uint32_t m = n_seqs * n_rows, x_cols = op == OP_SSM ? SSM_HEADS * SSM_DIM + 2 * D : MOST,
             y_cols = op == OP_CONV    ? MOST
                      : op == OP_DELTA ? HEADS * D
                                       : SSM_HEADS * SSM_DIM;
    uint64_t state_floats = op == OP_CONV ? (WIDTH - 1) * MOST : (uint64_t)y_cols * D;
    float *pool = take(LAYERS * n_seqs * state_floats * sizeof(float)),
          *w = random_values(WIDTH * MOST), *dt = random_values((size_t)m * SSM_HEADS),
          *first = random_values((size_t)m * x_cols), *x = random_values((size_t)m * x_cols),
          *y = take((size_t)m * y_cols * sizeof(float)), *a = random_values(SSM_HEADS);
    uint32_t *reads = take(2 * m * sizeof(*reads)), *writes = reads + m;
    for (uint32_t i = 0; i < SSM_HEADS; i++)
        a[i] = -0.1f - a[i] * a[i];
    for (uint32_t r = 0; r < m; r++) {
        reads[r] = r % n_rows == 0 ? r / n_rows : RECURRENT_PREVIOUS;
        writes[r] = (r + 1) % n_rows == 0 ? r / n_rows : RECURRENT_NONE;
    }
    const struct conv_params conv = {MOST, WIDTH, w, NULL, true};
    const struct delta_params delta = {HEADS, HEADS, D, D, 0,     HEADS, HEADS,
                                       0,     false, a, w, 1e-6f, 0.088f};
    const struct ssm_params ssm = {1, SSM_HEADS, D, SSM_DIM, a, w, w};
    const struct state_rows rows = {reads, writes, m};
    struct tensor tx = tensor_view(x, DTYPE_F32, m, x_cols),
                  ty = tensor_view(y, DTYPE_F32, m, y_cols),
                  tdt = {dt, DTYPE_F32, m, op == OP_DELTA ? HEADS : SSM_HEADS, SSM_HEADS};
    double times[200], total = 0;
    int n = 0, rc = 0;
    while (n < 200 && (n < 5 || total < b->budget_s)) {
        double spent = 0;
        for (int l = 0; l < LAYERS && rc == 0; l++) {
            const struct state_view state = {pool + l * n_seqs * state_floats, state_floats,
                                             n_seqs};
            memcpy(x, first, (size_t)m * x_cols * sizeof(float)); /* the delta net norms x */
            double begin = seconds();
            rc = op == OP_CONV ? op_conv(b->stream, &tx, &tx, &state, &rows, &conv)
                 : op == OP_DELTA
                     ? op_delta_net(b->stream, &ty, &tx, &tdt, &tdt, &state, &rows, &delta)
                     : op_ssm(b->stream, &ty, &tx, &tdt, &state, &rows, &ssm);
            spent += seconds() - begin;
        }
        if (rc != 0)
            exit(1);
        total += times[n++] = spent;
    }
    qsort(times, (size_t)n, sizeof(times[0]), by_value);
    double t = times[n / 2], gbs = 8.0 * LAYERS * n_seqs * (double)state_floats / t * 1e-9;
    printf("  %s, 18 layers, %u sequences of %u rows: %.3f ms, %.0f tokens/s, %.0f a thread; "
           "states %.1f GB/s, %.0f%% of updates\n",
           names[op], n_seqs, n_rows, t * 1e3, m / t, m / t / b->n_threads, gbs,
           100 * gbs / b->update_gbs);
    free(pool);
    free(w);
    free(dt);
    free(first);
    free(x);
    free(y);
    free(a);
    free(reads);
}

/* Time per row of choosing a token. */
static void bench_sampling(const struct bench *b, uint32_t vocab, const char *name,
                           struct sample_params params)
{
    enum { ROWS = 8, MAX_RUNS = 200 };
    float *logits = take((size_t)ROWS * vocab * sizeof(*logits));
    for (size_t i = 0; i < (size_t)ROWS * vocab; i++) { /* nearly normal, deviation 2.4 */
        float sum = 0.0f;
        for (int j = 0; j < 8; j++)
            sum += (float)(noise() % 3001) * 1e-3f - 1.5f;
        logits[i] = sum;
    }
    struct sample_params of_row[ROWS];
    struct sample_result results[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        of_row[r] = params;
        of_row[r].repetition_penalty = 1.0f;
        of_row[r].typical_p = params.typical_p > 0.0f ? params.typical_p : 1.0f;
        of_row[r].position = r;
        logits[(size_t)r * vocab + noise() % vocab] = 14.0f; /* a likely token */
    }
    struct tensor view = {logits, DTYPE_F32, ROWS, vocab, vocab};
    double times[MAX_RUNS], spent = 0;
    int n = 0;
    while (n < MAX_RUNS && (n < 5 || spent < b->budget_s)) {
        double begin = seconds();
        if (op_sample(b->stream, &view, of_row, results) != 0)
            exit(1);
        spent += times[n++] = seconds() - begin;
    }
    qsort(times, (size_t)n, sizeof(times[0]), by_value);
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
    cpu_time = b.n_threads == 1;
    struct error err = {0};
    if (backend_cpu()->open(0, &b.device, &err) != 0 ||
        backend_cpu()->stream_create(b.device, b.n_threads, &b.stream, &err) != 0 ||
        op_table_cpu(set, &b.ops, &err) != 0)
        die(&err);
    b.stream->ops = b.ops;
    b.read_gbs = read_bandwidth(&b, 96u << 20);
    b.dot_gops = dot_rate(&b);
    printf("kernels %s, %u threads, read bandwidth %.1f GB/s (96 MiB), %s %.0f Gop/s\n",
           b.ops->name, b.n_threads, b.read_gbs, dot_name(), b.dot_gops);
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
        b.update_gbs = update_bandwidth(&b, 96u << 20);
        printf("  updates in place %.1f GB/s (96 MiB)\n", b.update_gbs);
        for (enum recurrent_op op = OP_CONV; op <= OP_SSM; op++) {
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
