/* bench_rows.c: the ops on rows that stand between products, of an 8B Llama's widths, by the bytes
 * that each must move. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "tests/gpu/bench/bench_gpu.h"

enum { BLOCK = 32, MAX_ROWS = 2048, N_SETS = 2 };

/* Operands of the ops; two of each, so that many rows do not find theirs in the cache. */
struct rows_job {
    uint32_t m, hidden, ffn, head_dim, n_heads, n_kv_heads, vocab;
    float *x[N_SETS], *y[N_SETS], *z[N_SETS]; /* [most, ffn] */
    float *w;                                 /* [hidden] */
    /* 0, 1, 2...: used as ids, positions, slots and an index */
    uint32_t *numbers;
    float *inv_freq;
    struct kv_layer kv;
    size_t wide_bytes, pool_bytes, table_bytes;
    void *table;
    struct weight *embedding;
    struct act *act;
};

static struct tensor rows_of(const struct rows_job *job, float *data, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, job->m, n_cols);
}

static int call_embed(struct bench *b, void *ctx, uint32_t i)
{
    struct rows_job *job = ctx;
    struct tensor y = rows_of(job, job->y[i], job->hidden);
    return op_embed(b->stream, &y, job->numbers, job->embedding);
}

static int call_rms_norm(struct bench *b, void *ctx, uint32_t i)
{
    struct rows_job *job = ctx;
    struct tensor x = rows_of(job, job->x[i], job->hidden),
                  y = rows_of(job, job->y[i], job->hidden);
    return op_rms_norm(b->stream, &y, &x, job->w, 1e-5F);
}

static int call_layer_norm(struct bench *b, void *ctx, uint32_t i)
{
    struct rows_job *job = ctx;
    struct tensor x = rows_of(job, job->x[i], job->hidden),
                  y = rows_of(job, job->y[i], job->hidden);
    return op_layer_norm(b->stream, &y, &x, job->w, job->w, 1e-5F);
}

static int call_add(struct bench *b, void *ctx, uint32_t i)
{
    struct rows_job *job = ctx;
    struct tensor x = rows_of(job, job->x[i], job->hidden),
                  y = rows_of(job, job->y[i], job->hidden);
    return op_add(b->stream, &y, &x);
}

static int call_act_mul(struct bench *b, void *ctx, uint32_t i)
{
    struct rows_job *job = ctx;
    struct tensor gate = rows_of(job, job->x[i], job->ffn), up = rows_of(job, job->z[i], job->ffn);
    struct tensor y = rows_of(job, job->y[i], job->ffn);
    return op_act_mul(b->stream, &y, &gate, &up, ACTIVATION_SILU);
}

static int call_rope_kv(struct bench *b, void *ctx, uint32_t i)
{
    struct rows_job *job = ctx;
    const struct rope_params params = {ROPE_HALF,     job->head_dim, job->head_dim,
                                       job->inv_freq, 1.0F,          NULL};
    uint32_t kv_cols = job->n_kv_heads * job->head_dim;
    struct tensor q = rows_of(job, job->x[i], job->n_heads * job->head_dim);
    struct tensor k = rows_of(job, job->y[i], kv_cols), v = rows_of(job, job->z[i], kv_cols);
    return op_rope_kv(b->stream, &q, &k, &v, job->numbers, &params, &job->kv, job->numbers);
}

static int call_gather(struct bench *b, void *ctx, uint32_t i)
{
    struct rows_job *job = ctx;
    struct tensor x = rows_of(job, job->x[i], job->hidden),
                  y = rows_of(job, job->y[i], job->hidden);
    return op_gather_rows(b->stream, &y, &x, job->numbers);
}

static int call_integers(struct bench *b, void *ctx, uint32_t i)
{
    struct rows_job *job = ctx;
    struct tensor x = rows_of(job, job->x[i], job->hidden);
    return op_act_prepare(b->stream, job->act, &x, ACT_INT8, NULL, NULL);
}

/* A bf16 embedding of `vocab` rows, packed by slices. */
static void open_embedding(struct bench *b, struct rows_job *job)
{
    const struct op_table *ops = b->module.op_table;
    struct weight_desc desc = column_desc(DTYPE_BF16, job->vocab, job->hidden);
    struct weight_copy copies[WEIGHT_MAX_COPIES];
    uint32_t n_copies = 0;
    struct error err = {0};
    size_t slice_bytes = (weight_slice_bytes(ops, &desc, job->vocab) + 63) / 64 * 64;
    unsigned char *slice = aligned_alloc(64, slice_bytes);
    uint8_t *raw = bench_rows(DTYPE_BF16, job->vocab, job->hidden);
    job->table_bytes = weight_bytes(ops, &desc, &err);
    job->table = bench_allocate(b, job->table_bytes);
    if (weight_pack_slice(ops, &desc, 0, job->vocab, raw, slice, copies, &n_copies, &err) != 0)
        bench_die(&err);
    for (uint32_t c = 0; c < n_copies; c++)
        bench_upload(b, (unsigned char *)job->table + copies[c].to, slice + copies[c].from,
                     copies[c].n_bytes);
    if (weight_bind(ops, &desc, job->table, &job->embedding, &err) != 0)
        bench_die(&err);
    free(raw);
    free(slice);
}

static void upload_numbers(struct bench *b, struct rows_job *job, uint32_t most)
{
    uint32_t *numbers = malloc(most * sizeof(*numbers)), n_freq = job->head_dim / 2;
    float *freq = malloc(n_freq * sizeof(*freq));
    for (uint32_t i = 0; i < most; i++)
        numbers[i] = i;
    for (uint32_t i = 0; i < n_freq; i++)
        freq[i] = powf(500000.0F, -2.0F * (float)i / (float)job->head_dim);
    job->numbers = bench_allocate(b, most * sizeof(*numbers));
    job->inv_freq = bench_allocate(b, n_freq * sizeof(*freq));
    bench_upload(b, job->numbers, numbers, most * sizeof(*numbers));
    bench_upload(b, job->inv_freq, freq, n_freq * sizeof(*freq));
    free(numbers);
    free(freq);
}

static void upload_rows(struct bench *b, struct rows_job *job, uint32_t most)
{
    struct random random = {23};
    float *values = random_floats(&random, (size_t)most * job->ffn, 0.001F);
    float **all[] = {job->x, job->y, job->z};
    job->wide_bytes = (size_t)most * job->ffn * sizeof(float);
    for (size_t a = 0; a < sizeof(all) / sizeof(all[0]); a++)
        for (uint32_t i = 0; i < N_SETS; i++) {
            all[a][i] = bench_allocate(b, job->wide_bytes);
            bench_upload(b, all[a][i], values, job->wide_bytes);
        }
    job->w = bench_allocate(b, job->hidden * sizeof(float));
    bench_upload(b, job->w, values, job->hidden * sizeof(float));
    free(values);
}

static void open_rows(struct bench *b, struct rows_job *job, uint32_t most)
{
    struct error err = {0};
    static const struct rows_job small = {.hidden = 128,
                                          .ffn = 256,
                                          .head_dim = 32,
                                          .n_heads = 4,
                                          .n_kv_heads = 2,
                                          .vocab = 64},
                                 large = {.hidden = 4096,
                                          .ffn = 14336,
                                          .head_dim = 128,
                                          .n_heads = 32,
                                          .n_kv_heads = 8,
                                          .vocab = 16384};
    *job = b->small ? small : large;
    upload_rows(b, job, most);
    upload_numbers(b, job, most);
    open_embedding(b, job);
    job->kv = (struct kv_layer){.dtype = DTYPE_BF16,
                                .n_blocks = most / BLOCK,
                                .block_size = BLOCK,
                                .n_kv_heads = job->n_kv_heads,
                                .head_dim = job->head_dim,
                                .v_dim = job->head_dim};
    job->pool_bytes =
        (size_t)most * job->n_kv_heads * ops_kv_vector_bytes(DTYPE_BF16, job->head_dim);
    job->kv.k = bench_allocate(b, job->pool_bytes);
    job->kv.v = bench_allocate(b, job->pool_bytes);
    if (b->module.op_table->act_create(b->device, most, job->hidden, &job->act, &err) != 0)
        bench_die(&err);
}

static void close_rows(struct bench *b, struct rows_job *job, uint32_t most)
{
    b->module.op_table->act_destroy(job->act);
    weight_unbind(b->module.op_table, job->embedding);
    bench_drop(b, job->table, job->table_bytes);
    bench_drop(b, job->kv.k, job->pool_bytes);
    bench_drop(b, job->kv.v, job->pool_bytes);
    bench_drop(b, job->numbers, most * sizeof(*job->numbers));
    bench_drop(b, job->inv_freq, job->head_dim / 2 * sizeof(float));
    bench_drop(b, job->w, job->hidden * sizeof(float));
    for (uint32_t i = 0; i < N_SETS; i++) {
        bench_drop(b, job->x[i], job->wide_bytes);
        bench_drop(b, job->y[i], job->wide_bytes);
        bench_drop(b, job->z[i], job->wide_bytes);
    }
}

void bench_row_ops(struct bench *b)
{
    static const uint32_t rows[] = {1, 32, MAX_ROWS};
    uint32_t most = b->small ? 64 : MAX_ROWS;
    struct rows_job job;
    char key[64];
    open_rows(b, &job, most);
    double n = job.hidden, q = (double)job.n_heads * job.head_dim,
           kv = (double)job.n_kv_heads * job.head_dim;
    const struct {
        const char *name;
        bench_call *call;
        double row_bytes, bytes; /* bytes that a row moves, and that a call moves */
    } ops[] = {{"embedding, bf16", call_embed, 6 * n, 0},
               {"RMS norm", call_rms_norm, 8 * n, 4 * n},
               {"layer norm", call_layer_norm, 8 * n, 8 * n},
               {"add", call_add, 12 * n, 0},
               {"silu, product", call_act_mul, 12.0 * job.ffn, 0},
               {"rope and KV write, bf16", call_rope_kv, 8 * q + 16 * kv, 0},
               {"picked rows", call_gather, 8 * n, 0},
               {"activations as integers", call_integers, 6.5 * n, 0}};
    printf("Ops on rows, width %u (silu: %u), one after the other in a captured step: %% of copy "
           "bandwidth by what must be moved. Few rows are a launch and a round trip to memory.\n\n"
           "| op | 1 row | 32 | %u |\n| --- | --- | --- | --- |\n",
           job.hidden, job.ffn, most);
    for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
        printf("| %s |", ops[o].name);
        for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
            job.m = rows[r] < most ? rows[r] : most;
            struct bench_time time = bench_time_captured(b, ops[o].call, &job, N_SETS);
            double rate = (ops[o].row_bytes * job.m + ops[o].bytes) / time.median;
            snprintf(key, sizeof(key), "%s, %u rows", ops[o].name, rows[r]);
            bench_cell(b, key, time, bench_share(rate, b->copy_bytes_per_s));
        }
        printf("\n");
    }
    printf("\n");
    close_rows(b, &job, most);
}
