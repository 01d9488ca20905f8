/* bench_attention: speed of the attention of one layer, for each type of KV cache, at
 * several depths. Measures decode of 1 and 8 sequences, and a chunk of 256 rows of a prompt.
 *
 *   bench_attention [--kernels auto] [--threads 2] [--ms 100] [--head-dim 64] [--heads 9]
 *                   [--kv-heads 3] [--layers 30] [--depth 0] [--between 3072] [--dtype all]
 *                   [--latent 0]
 *
 * --latent: V is the first so many elements of K, as with latent attention; 0: V has its own cache.
 * --depth: a single depth; 0: 128, 512 and 4096. A pass goes through all layers, each with its own
 * cache. Before each layer, a pass reads --between KiB of other memory, as a step reads weights. So
 * the layer's cache has left the processor's cache. The columns are µs of one layer, bytes of K and
 * V of the sequences (counted once), and operations. Operations are 4 · head_dim per query head and
 * visible position. The last column is the share of the time that the bytes need at
 * the read bandwidth. The bandwidth of the same threads is measured and printed first. Times are
 * medians of wall time; with one thread of its CPU time, which other load disturbs less. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/device.h"
#include "kernels/ops.h"

enum {
    BLOCK = 16,
    MAX_LAYERS = 64,
    MAX_PASSES = 200,
    CHUNK = 256,
    MAX_MEMBERS = 256,
    HUGE_BYTES = 2 << 20,
    OTHER_BYTES = 256 << 20,
};

struct setup {
    const char *kernels;
    uint32_t threads, ms, head_dim, n_heads, n_kv, n_layers, depth, between;
    const char *dtype;
    uint32_t latent;
};

/* Memory that is read between layers. */
struct other {
    const uint64_t *words;
    size_t n, at, take;
    uint64_t sums[MAX_MEMBERS];
};

struct bench {
    struct setup s;
    struct stream *stream;
    struct kv_layer layers[MAX_LAYERS];
    uint32_t *positions, *seqs, *slots, *tables;
    float *q, *y, *kv;
    uint32_t stride, max_rows;
    struct other other;
    double read_rate; /* bytes a second */
};

static void *take(size_t n_bytes)
{
    void *data = NULL;
    if (posix_memalign(&data, n_bytes >= HUGE_BYTES ? HUGE_BYTES : 4096, n_bytes) != 0)
        exit(1);
    if (n_bytes >= HUGE_BYTES)
        madvise(data, n_bytes, MADV_HUGEPAGE); /* as the engine's pool */
    memset(data, 0, n_bytes);
    return data;
}

static float noise(void)
{
    static uint64_t state = 1;
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* n_seqs sequences of `rows` rows each that end at `depth` tokens. */
static struct attention_rows place_rows(struct bench *b, uint32_t n_seqs, uint32_t rows,
                                        uint32_t depth)
{
    uint32_t n = 0, blocks = (depth + BLOCK - 1) / BLOCK;
    for (uint32_t s = 0; s < n_seqs; s++) {
        for (uint32_t i = 0; i < blocks; i++)
            b->tables[(size_t)s * b->stride + i] = s * blocks + i;
        for (uint32_t i = 0; i < rows; i++, n++) {
            b->positions[n] = depth - rows + i;
            b->seqs[n] = s;
        }
    }
    return (struct attention_rows){b->positions, b->seqs,       NULL,   b->tables,
                                   b->stride,    n_seqs * rows, n_seqs, 0};
}

/* Caches with noise in every position that is read. */
static void make_caches(struct bench *b, enum dtype type, uint32_t n_seqs, uint32_t depth)
{
    const struct setup *s = &b->s;
    uint32_t n_blocks = n_seqs * ((depth + BLOCK - 1) / BLOCK), cols = s->n_kv * s->head_dim;
    size_t bytes = (size_t)n_blocks * BLOCK * s->n_kv * ops_kv_vector_bytes(type, s->head_dim);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        b->layers[l] = (struct kv_layer){
            take(bytes), s->latent ? NULL : take(bytes),     type, n_blocks, BLOCK, s->n_kv,
            s->head_dim, s->latent ? s->latent : s->head_dim};
        for (uint32_t at = 0; at < n_blocks * BLOCK; at += CHUNK) {
            uint32_t n = n_blocks * BLOCK - at < CHUNK ? n_blocks * BLOCK - at : CHUNK;
            struct tensor kv = tensor_view(b->kv, DTYPE_F32, n, cols);
            for (uint32_t i = 0; i < n; i++)
                b->slots[i] = at + i;
            if (op_kv_write(b->stream, &b->layers[l], &kv, s->latent ? NULL : &kv, b->slots) != 0)
                exit(1);
        }
    }
}

static void free_caches(struct bench *b)
{
    for (uint32_t l = 0; l < b->s.n_layers; l++) {
        free(b->layers[l].k);
        free(b->layers[l].v);
    }
}

static int64_t now(const struct bench *b)
{
    return b->s.threads == 1 ? clock_thread_cpu_ns() : clock_now_ns();
}

static void read_share(void *arg, uint32_t index, uint32_t n_threads)
{
    struct other *o = arg;
    uint32_t begin, end;
    uint64_t sum = 0;
    thread_pool_share((uint32_t)o->take, 8, index, n_threads, &begin, &end);
    for (uint32_t i = begin; i < end; i += 8)
        sum += o->words[o->at + i];
    o->sums[index % MAX_MEMBERS] += sum;
}

/* Reads the next n words of other memory. Returns the seconds that took. */
static double read_other(struct bench *b, size_t n)
{
    struct other *o = &b->other;
    o->at = o->at + n > o->n ? 0 : o->at;
    o->take = n;
    int64_t begin = now(b);
    thread_pool_run(stream_cpu(b->stream)->pool, read_share, o);
    o->at += n;
    return (double)(now(b) - begin) * 1e-9;
}

static void measure_reading(struct bench *b)
{
    double best = 1e9;
    b->other.n = OTHER_BYTES / 8;
    uint64_t *words = take(OTHER_BYTES);
    for (size_t i = 0; i < b->other.n; i++)
        words[i] = i;
    b->other.words = words;
    for (int i = 0; i < 5; i++) {
        double t = read_other(b, b->other.n);
        best = t < best ? t : best;
    }
    b->read_rate = OTHER_BYTES / best;
}

static void time_case(struct bench *b, enum dtype type, uint32_t n_seqs, uint32_t rows,
                      uint32_t depth)
{
    const struct setup *s = &b->s;
    make_caches(b, type, n_seqs, depth);
    struct attention_rows at = place_rows(b, n_seqs, rows, depth);
    uint32_t v_dim = b->layers[0].v_dim, cols = s->n_heads * s->head_dim;
    struct tensor q = tensor_view(b->q, DTYPE_F32, at.n_rows, cols),
                  y = tensor_view(b->y, DTYPE_F32, at.n_rows, s->n_heads * v_dim);
    struct attention_params params = {
        .n_heads = s->n_heads, .heads_per_kv = s->n_heads / s->n_kv, .scale = 0.125f};
    double times[MAX_PASSES], spent = 0, seen = 0;
    int n = 0;
    for (; n < MAX_PASSES && (n < 3 || spent < s->ms * 1e-3); n++) {
        times[n] = 0;
        for (uint32_t l = 0; l < s->n_layers; l++) {
            spent += read_other(b, (size_t)s->between * 128);
            int64_t begin = now(b);
            if (op_attention(b->stream, &y, &q, &b->layers[l], &at, &params) != 0)
                exit(1);
            times[n] += (double)(now(b) - begin) * 1e-9;
        }
        spent += times[n];
    }
    qsort(times, (size_t)n, sizeof(times[0]), by_value);
    for (uint32_t r = 0; r < at.n_rows; r++)
        seen += at.positions[r] + 1;
    double t = times[n / 2] / s->n_layers, ops = 2 * seen * s->n_heads * (s->head_dim + v_dim),
           bytes = (s->latent ? 1.0 : 2.0) * n_seqs * depth * s->n_kv *
                   (double)ops_kv_vector_bytes(type, s->head_dim);
    printf("  %-5s %4u x %3u rows, depth %5u %10.1f us %8.1f GB/s %8.1f Gop/s %6.0f %%\n",
           dtype_name(type), n_seqs, rows, depth, t * 1e6, bytes / t * 1e-9, ops / t * 1e-9,
           100 * bytes / b->read_rate / t);
    fflush(stdout);
    free_caches(b);
}

static void parse(int argc, char **argv, struct setup *s)
{
    struct {
        const char *name;
        uint32_t *at;
    } options[] = {
        {"--threads", &s->threads}, {"--ms", &s->ms},           {"--head-dim", &s->head_dim},
        {"--heads", &s->n_heads},   {"--kv-heads", &s->n_kv},   {"--layers", &s->n_layers},
        {"--depth", &s->depth},     {"--between", &s->between}, {"--latent", &s->latent}};
    for (int i = 1; i + 1 < argc; i += 2) {
        bool known = strcmp(argv[i], "--kernels") == 0;
        if (known)
            s->kernels = argv[i + 1];
        if (strcmp(argv[i], "--dtype") == 0) {
            s->dtype = argv[i + 1];
            known = true;
        }
        for (size_t j = 0; j < sizeof(options) / sizeof(options[0]); j++)
            if (strcmp(argv[i], options[j].name) == 0) {
                *options[j].at = (uint32_t)strtoul(argv[i + 1], NULL, 10);
                known = true;
            }
        if (!known)
            fprintf(stderr, "bench_attention: %s is not known\n", argv[i]);
        if (!known)
            exit(2);
    }
    if (s->n_layers == 0 || s->n_layers > MAX_LAYERS || s->n_kv == 0 || s->n_heads % s->n_kv != 0 ||
        s->head_dim == 0 || s->between > OTHER_BYTES / 1024 || s->threads == 0 ||
        s->latent > s->head_dim) {
        fprintf(stderr, "bench_attention: no such shape\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    static const uint32_t depths[] = {128, 512, 4096};
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8};
    struct bench b = {.s = {"auto", 2, 100, 64, 9, 3, 30, 0, 3072, "all", 0}};
    struct device *device;
    struct error err = {0};
    const struct op_table *ops;
    parse(argc, argv, &b.s);
    if (backend_cpu()->open(0, &device, &err) != 0 ||
        backend_cpu()->stream_create(device, b.s.threads, &b.stream, &err) != 0 ||
        op_table_cpu(b.s.kernels, &ops, &err) != 0) {
        fprintf(stderr, "bench_attention: %s\n", err.message);
        return 1;
    }
    b.stream->ops = ops;
    uint32_t most = b.s.depth > 4096 ? b.s.depth : 4096;
    b.stride = most / BLOCK + 1;
    b.max_rows = CHUNK;
    b.positions = take(b.max_rows * 4);
    b.seqs = take(b.max_rows * 4);
    b.slots = take(b.max_rows * 4);
    b.tables = take((size_t)8 * b.stride * 4);
    size_t n_q = (size_t)b.max_rows * b.s.n_heads * b.s.head_dim;
    b.q = take(n_q * 4);
    b.y = take(n_q * 4);
    b.kv = take(n_q * 4);
    for (size_t i = 0; i < n_q; i++) {
        b.q[i] = noise();
        b.kv[i] = noise();
    }
    measure_reading(&b);
    printf(
        "kernels %s, %u threads, head_dim %u, %u heads, %u KV heads, %u layers, memory %.1f GB/s\n",
        ops->name, b.s.threads, b.s.head_dim, b.s.n_heads, b.s.n_kv, b.s.n_layers,
        b.read_rate * 1e-9);
    for (size_t i = 0; i < sizeof(depths) / sizeof(depths[0]) && (i == 0 || !b.s.depth); i++)
        for (size_t j = 0; j < sizeof(types) / sizeof(types[0]); j++) {
            uint32_t depth = b.s.depth ? b.s.depth : depths[i];
            if (strcmp(b.s.dtype, "all") != 0 && strcasecmp(b.s.dtype, dtype_name(types[j])) != 0)
                continue;
            time_case(&b, types[j], 1, 1, depth);
            time_case(&b, types[j], 8, 1, depth);
            time_case(&b, types[j], 1, depth < CHUNK ? depth : CHUNK, depth);
        }
    return 0;
}
