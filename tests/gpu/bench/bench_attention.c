/* bench_attention.c: attention by the bytes of the cache and by the bf16 product's rate. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/bench/bench_gpu.h"

enum { MAX_SETS = 24, BLOCK = 32 };

struct attention_shape {
    const char *name; /* in the keys of results */
    uint32_t n_heads, n_kv, k_dim, v_dim;
    bool latent; /* V lies in K */
};

static const struct attention_shape plain = {"attention", 32, 8, 128, 128, false};
static const struct attention_shape latent[] = {
    {"latent attention, 16 heads", 16, 1, 576, 512, true},
    {"latent attention, 128 heads", 128, 1, 576, 512, true}};

struct attention_job {
    struct kv_layer kv; /* the first of the n_sets sets */
    size_t pool_bytes;  /* bytes of a set's K; the same for its V, if K does not hold V */
    /* sets of keys and values; calls use them in turn, so that none is in the GPU's cache */
    uint32_t n_sets;
    struct attention_rows rows;
    struct attention_params params;
    uint32_t *numbers; /* positions, sequences, slots, tables: one allocation */
    size_t numbers_bytes;
    float *q, *y;
    size_t row_bytes; /* bytes of q; y has no more */
};

static struct kv_layer set_of(const struct attention_job *job, uint32_t set)
{
    struct kv_layer kv = job->kv;
    kv.k = (unsigned char *)kv.k + set * job->pool_bytes;
    if (kv.v)
        kv.v = (unsigned char *)kv.v + set * job->pool_bytes;
    return kv;
}

/* Opens n_seqs sequences of `context` positions. The last `rows_each` positions of each are
 * queries. */
static void open_attention(struct bench *b, struct attention_job *job,
                           const struct attention_shape *shape, enum dtype dtype, uint32_t n_seqs,
                           uint32_t context, uint32_t rows_each)
{
    uint32_t per_seq = (context + BLOCK - 1) / BLOCK, n_rows = n_seqs * rows_each;
    struct random random = {3};
    *job = (struct attention_job){
        .kv = {.dtype = dtype,
               .n_blocks = per_seq * n_seqs,
               .block_size = BLOCK,
               .n_kv_heads = shape->n_kv,
               .head_dim = shape->k_dim,
               .v_dim = shape->v_dim},
        .params = {.n_heads = shape->n_heads,
                   .heads_per_kv = shape->n_heads / shape->n_kv,
                   .scale = 0.088388F},
    };
    job->pool_bytes =
        (size_t)job->kv.n_blocks * shape->n_kv * BLOCK * ops_kv_vector_bytes(dtype, shape->k_dim);
    size_t set_bytes = (shape->latent ? 1 : 2) * job->pool_bytes;
    job->n_sets = b->small ? 1 : (uint32_t)(((size_t)200 << 20) / set_bytes + 1);
    job->n_sets = job->n_sets > MAX_SETS ? MAX_SETS : job->n_sets;
    job->kv.k = bench_allocate(b, job->pool_bytes * job->n_sets);
    job->kv.v = shape->latent ? NULL : bench_allocate(b, job->pool_bytes * job->n_sets);
    job->row_bytes = (size_t)n_rows * shape->n_heads * shape->k_dim * 4;
    job->q = bench_allocate(b, job->row_bytes);
    job->y = bench_allocate(b, job->row_bytes);
    float *q = random_floats(&random, (size_t)n_rows * shape->n_heads * shape->k_dim, 0);
    bench_upload(b, job->q, q, job->row_bytes);
    free(q);
    size_t n = 3 * (size_t)n_rows + (size_t)per_seq * n_seqs;
    uint32_t *host = malloc(n * 4), *positions = host, *seqs = host + n_rows;
    uint32_t *slots = seqs + n_rows, *tables = slots + n_rows;
    for (uint32_t r = 0; r < n_rows; r++) {
        seqs[r] = r / rows_each;
        positions[r] = context - rows_each + r % rows_each;
        slots[r] = seqs[r] * per_seq * BLOCK + positions[r];
    }
    for (uint32_t i = 0; i < per_seq * n_seqs; i++)
        tables[i] = i;
    job->numbers_bytes = n * 4;
    job->numbers = bench_allocate(b, job->numbers_bytes);
    bench_upload(b, job->numbers, host, job->numbers_bytes);
    free(host);
    job->rows = (struct attention_rows){.positions = job->numbers,
                                        .seq_of_row = job->numbers + n_rows,
                                        .kv_slots = job->numbers + 2 * (size_t)n_rows,
                                        .block_tables = job->numbers + 3 * (size_t)n_rows,
                                        .table_stride = per_seq,
                                        .n_rows = n_rows,
                                        .n_seqs = n_seqs,
                                        .max_positions = context};
    /* Random keys and values: written through the op, a step's worth at a time. */
    uint32_t kv_cols = shape->n_kv * shape->k_dim, total = per_seq * n_seqs * BLOCK, step = 4096;
    step = step < total ? step : total;
    float *values = random_floats(&random, (size_t)step * kv_cols, 0);
    float *device_values = bench_allocate(b, (size_t)step * kv_cols * 4);
    uint32_t *device_slots = bench_allocate(b, (size_t)step * 4), *some = malloc((size_t)step * 4);
    bench_upload(b, device_values, values, (size_t)step * kv_cols * 4);
    for (uint32_t at = 0; at < total; at += step) {
        uint32_t m = total - at < step ? total - at : step;
        for (uint32_t i = 0; i < m; i++)
            some[i] = at + i;
        bench_upload(b, device_slots, some, (size_t)m * 4);
        struct tensor t = tensor_view(device_values, DTYPE_F32, m, kv_cols);
        for (uint32_t set = 0; set < job->n_sets; set++) {
            struct kv_layer kv = set_of(job, set);
            op_kv_write(b->stream, &kv, &t, kv.v ? &t : NULL, device_slots);
        }
        bench_sync(b);
    }
    bench_drop(b, device_slots, (size_t)step * 4);
    bench_drop(b, device_values, (size_t)step * kv_cols * 4);
    free(some);
    free(values);
}

static void close_attention(struct bench *b, struct attention_job *job)
{
    bench_drop(b, job->kv.k, job->pool_bytes * job->n_sets);
    if (job->kv.v)
        bench_drop(b, job->kv.v, job->pool_bytes * job->n_sets);
    bench_drop(b, job->q, job->row_bytes);
    bench_drop(b, job->y, job->row_bytes);
    bench_drop(b, job->numbers, job->numbers_bytes);
}

static int call_attention(struct bench *b, void *ctx, uint32_t i)
{
    struct attention_job *job = ctx;
    uint32_t n_heads = job->params.n_heads, n_rows = job->rows.n_rows;
    struct tensor q = tensor_view(job->q, DTYPE_F32, n_rows, n_heads * job->kv.head_dim);
    struct tensor y = tensor_view(job->y, DTYPE_F32, n_rows, n_heads * job->kv.v_dim);
    struct kv_layer kv = set_of(job, i);
    return op_attention(b->stream, &y, &q, &kv, &job->rows, &job->params);
}

static void reserve_for(struct bench *b, const struct attention_job *job)
{
    const struct op_needs needs = {.max_rows = job->rows.n_rows,
                                   .max_logits = 1,
                                   .max_n = 4096,
                                   .max_k = 4096,
                                   .vocab_size = 1,
                                   .n_heads = job->params.n_heads,
                                   .n_kv_heads = job->kv.n_kv_heads,
                                   .head_dim = job->kv.head_dim,
                                   .max_positions = job->rows.max_positions};
    bench_reserve(b, &needs);
}

static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F8_E4M3, DTYPE_I8};
enum { N_KV_TYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

static void time_decode(struct bench *b, const struct attention_shape *shape, enum dtype dtype,
                        uint32_t batch, uint32_t context)
{
    struct attention_job job;
    char key[96];
    open_attention(b, &job, shape, dtype, b->small ? 1 : batch, context, 1);
    reserve_for(b, &job);
    struct bench_time time = bench_time_captured(b, call_attention, &job, job.n_sets);
    snprintf(key, sizeof(key), "decode %s %s, batch %u", shape->name, dtype_name(dtype), batch);
    bench_cell(b, key, time,
               bench_share((shape->latent ? 1 : 2) * (double)job.pool_bytes / time.median,
                           b->read_bytes_per_s));
    close_attention(b, &job);
}

static void decode_table(struct bench *b, const struct attention_shape *shape, uint32_t context)
{
    static const uint32_t batches[] = {1, 8, 32};
    printf("| KV | batch 1 | batch 8 | batch 32 |\n| --- | --- | --- | --- |\n");
    for (size_t t = 0; t < N_KV_TYPES; t++) {
        if (!bench_lists(b->kv, dtype_name(dtypes[t])))
            continue;
        printf("| %s |", dtype_name(dtypes[t]));
        for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++)
            time_decode(b, shape, dtypes[t], batches[i], context);
        printf("\n");
    }
    printf("\n");
}

void bench_decode_attention(struct bench *b)
{
    uint32_t context = b->small ? 256 : 8192;
    printf("Decode attention, 32 heads over 8 of 128, context %u, caches of more than 200 MB in "
           "turn: %% of the read rate by the bytes of K and V.\n\n",
           context);
    decode_table(b, &plain, context);
}

static void time_prompt(struct bench *b, const struct attention_shape *shape, enum dtype dtype,
                        uint32_t chunk)
{
    struct attention_job job;
    uint32_t n = b->small ? 64 : chunk;
    const struct role_run run = {.begin = 0, .n_rows = n};
    char key[96];
    open_attention(b, &job, shape, dtype, 1, n, n);
    reserve_for(b, &job);
    b->stream->roles = &run;
    b->stream->n_roles = 1;
    struct bench_time time = bench_time_captured(b, call_attention, &job, 1); /* just written */
    b->stream->n_roles = 0;
    double flops = 2.0 * shape->n_heads * (shape->k_dim + shape->v_dim) * n * (n + 1.0) / 2;
    snprintf(key, sizeof(key), "prompt %s %s, %u", shape->name, dtype_name(dtype), chunk);
    bench_cell(b, key, time, bench_share(flops / time.median, b->bf16_flops));
    close_attention(b, &job);
}

static void prompt_table(struct bench *b, const struct attention_shape *shape)
{
    static const uint32_t chunks[] = {512, 2048, 8192};
    printf("| KV | 512 | 2048 | 8192 |\n| --- | --- | --- | --- |\n");
    for (size_t t = 0; t < N_KV_TYPES; t++) {
        if (!bench_lists(b->kv, dtype_name(dtypes[t])))
            continue;
        printf("| %s |", dtype_name(dtypes[t]));
        for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++)
            time_prompt(b, shape, dtypes[t], chunks[i]);
        printf("\n");
    }
    printf("\n");
}

void bench_prompt_attention(struct bench *b)
{
    printf("Prompt attention (path P), causal, one prompt: %% of the bf16 product's rate.\n\n");
    prompt_table(b, &plain);
}

void bench_latent_attention(struct bench *b)
{
    uint32_t context = b->small ? 256 : 8192;
    for (size_t i = 0; i < sizeof(latent) / sizeof(latent[0]); i++) {
        printf(
            "Latent attention, K of 576 with V of 512, %u heads, context %u: %% of the read rate "
            "by the bytes of K, then prompts: %% of the bf16 product's rate.\n\n",
            latent[i].n_heads, context);
        decode_table(b, &latent[i], context);
        prompt_table(b, &latent[i]);
    }
}
