/* bench_states.c: the ops of recurrent layers, with the heads of Qwen3-Next and of Mamba-2.
 * Generated rows have a sequence each, and update their slots in place. A prompt is a single
 * sequence. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "tests/gpu/bench/bench_gpu.h"

enum { WIDTH = 4, MAX_ROWS = 2048, N_SETS = 2, N_SLOTS = 64 };

struct states_job {
    uint32_t m, n_keys, n_heads, dim, head_dim, n_cols;
    float *x, *y, *gates, *params, *pool[N_SETS];
    uint32_t *alone, *one_run; /* reads and writes of generated rows, and of a prompt */
    bool is_prompt;
    size_t x_bytes, y_bytes, gates_bytes, params_bytes, pool_bytes, ids_bytes;
    uint64_t slot_floats;
};

static struct state_view view_of(const struct states_job *job, uint32_t i)
{
    return (struct state_view){job->pool[i], job->slot_floats, N_SLOTS};
}

/* `reads` lie before `writes`. */
static struct state_rows rows_of(const struct states_job *job)
{
    const uint32_t *ids = job->is_prompt ? job->one_run : job->alone;
    return (struct state_rows){ids, ids + MAX_ROWS, job->m};
}

static struct tensor tensor_of(const struct states_job *job, float *data, uint32_t n_cols)
{
    return tensor_view(data, DTYPE_F32, job->m, n_cols);
}

static int call_conv(struct bench *b, void *ctx, uint32_t i)
{
    struct states_job *job = ctx;
    const struct state_view view = view_of(job, i);
    const struct state_rows rows = rows_of(job);
    const struct conv_params p = {job->n_cols, WIDTH, job->params, NULL, true};
    struct tensor x = tensor_of(job, job->x, job->n_cols), y = tensor_of(job, job->y, job->n_cols);
    return op_conv(b->stream, &y, &x, &view, &rows, &p);
}

static int call_delta(struct bench *b, void *ctx, uint32_t i)
{
    struct states_job *job = ctx;
    const struct state_view view = view_of(job, i);
    const struct state_rows rows = rows_of(job);
    const struct delta_params p = {.n_key_heads = job->n_keys,
                                   .n_heads = job->n_heads,
                                   .key_dim = job->dim,
                                   .head_dim = job->head_dim,
                                   .n_all_key_heads = job->n_keys,
                                   .n_all_heads = job->n_heads,
                                   .a = job->params,
                                   .dt_bias = job->params,
                                   .norm_eps = 1e-6F,
                                   .scale = 0.1F};
    struct tensor x = tensor_of(job, job->x, job->n_cols),
                  y = tensor_of(job, job->y, job->n_heads * job->head_dim),
                  gates = tensor_of(job, job->gates, job->n_heads);
    return op_delta_net(b->stream, &y, &x, &gates, &gates, &view, &rows, &p);
}

static int call_ssm(struct bench *b, void *ctx, uint32_t i)
{
    struct states_job *job = ctx;
    const struct state_view view = view_of(job, i);
    const struct state_rows rows = rows_of(job);
    const struct ssm_params p = {job->n_keys, job->n_heads, job->dim,   job->head_dim,
                                 job->params, job->params,  job->params};
    struct tensor x = tensor_of(job, job->x, job->n_cols),
                  y = tensor_of(job, job->y, job->n_heads * job->head_dim),
                  gates = tensor_of(job, job->gates, job->n_heads);
    return op_ssm(b->stream, &y, &x, &gates, &view, &rows, &p);
}

static float *upload_floats(struct bench *b, size_t n, float low, float high, size_t *out_bytes)
{
    struct random random = {31};
    float *host = malloc(n * sizeof(*host));
    for (size_t i = 0; i < n; i++)
        host[i] = random_uniform(&random, low, high);
    *out_bytes = n * sizeof(*host);
    float *data = bench_allocate(b, *out_bytes);
    bench_upload(b, data, host, *out_bytes);
    free(host);
    return data;
}

static void open_job(struct bench *b, struct states_job *job, uint32_t most)
{
    uint32_t n_values = job->n_heads * job->head_dim, *ids = calloc(4, MAX_ROWS * sizeof(*ids));
    job->n_cols = n_values + 2 * job->n_keys * job->dim;
    job->slot_floats = (uint64_t)n_values * job->dim;
    if (job->slot_floats < (uint64_t)(WIDTH - 1) * job->n_cols)
        job->slot_floats = (uint64_t)(WIDTH - 1) * job->n_cols;
    for (uint32_t r = 0; r < MAX_ROWS; r++) {
        ids[r] = ids[MAX_ROWS + r] = r % N_SLOTS;
        ids[2 * MAX_ROWS + r] = r > 0 ? RECURRENT_PREVIOUS : 0;
        ids[3 * MAX_ROWS + r] = RECURRENT_NONE;
    }
    ids[3 * MAX_ROWS + most - 1] = 0;
    job->ids_bytes = 2 * MAX_ROWS * sizeof(*ids);
    job->alone = bench_allocate(b, job->ids_bytes);
    job->one_run = bench_allocate(b, job->ids_bytes);
    bench_upload(b, job->alone, ids, job->ids_bytes);
    bench_upload(b, job->one_run, (const uint32_t *)ids + (size_t)2 * MAX_ROWS, job->ids_bytes);
    free(ids);
    job->x = upload_floats(b, (size_t)most * job->n_cols, -1, 1, &job->x_bytes);
    job->y = upload_floats(b, (size_t)most * job->n_cols, -1, 1, &job->y_bytes);
    job->gates = upload_floats(b, (size_t)most * job->n_heads, -1, 1, &job->gates_bytes);
    job->params = upload_floats(b, (size_t)WIDTH * job->n_cols, -1, -0.01F, &job->params_bytes);
    for (uint32_t i = 0; i < N_SETS; i++)
        job->pool[i] = upload_floats(b, N_SLOTS * job->slot_floats, -1, 1, &job->pool_bytes);
}

static void close_job(struct bench *b, struct states_job *job)
{
    bench_drop(b, job->x, job->x_bytes);
    bench_drop(b, job->y, job->y_bytes);
    bench_drop(b, job->gates, job->gates_bytes);
    bench_drop(b, job->params, job->params_bytes);
    bench_drop(b, job->alone, job->ids_bytes);
    bench_drop(b, job->one_run, job->ids_bytes);
    for (uint32_t i = 0; i < N_SETS; i++)
        bench_drop(b, job->pool[i], job->pool_bytes);
}

void bench_states(struct bench *b)
{
    static const uint32_t rows[] = {1, 8, 32, MAX_ROWS}; /* the last: a prompt */
    static const struct {
        const char *name;
        bench_call *call;
        bool has_state; /* false: the inputs of a convolution */
        uint32_t n_keys, n_heads, dim, head_dim;
    } ops[] = {{"conv", call_conv, false, 16, 32, 128, 128},
               {"delta net", call_delta, true, 16, 32, 128, 128},
               {"Mamba-2", call_ssm, true, 1, 80, 128, 64}};
    uint32_t most = b->small ? 40 : MAX_ROWS;
    printf(
        "Recurrent layers: %% of copy bandwidth by states and rows. A prompt of %u rows is bound "
        "by the chains of its sums.\n\n| op | 1 row | 8 | 32 | prompt |\n"
        "| --- | --- | --- | --- | --- |\n",
        most);
    for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
        struct states_job job = {.n_keys = b->small ? 1 : ops[o].n_keys,
                                 .n_heads = b->small ? 2 : ops[o].n_heads,
                                 .dim = ops[o].dim,
                                 .head_dim = ops[o].head_dim};
        open_job(b, &job, most);
        double state = ops[o].has_state ? 8.0 * job.n_heads * job.dim * job.head_dim
                                        : 8.0 * (WIDTH - 1) * job.n_cols,
               row = 4.0 * job.n_cols +
                     4.0 * (ops[o].has_state ? job.n_heads * job.head_dim : job.n_cols);
        printf("| %s |", ops[o].name);
        for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
            char key[64];
            job.is_prompt = rows[r] == MAX_ROWS;
            job.m = job.is_prompt ? most : rows[r];
            struct bench_time time = bench_time_captured(b, ops[o].call, &job, N_SETS);
            double rate = (row * job.m + state * (job.is_prompt ? 1 : job.m)) / time.median;
            snprintf(key, sizeof(key), "%s, %u rows", ops[o].name, rows[r]);
            bench_cell(b, key, time, bench_share(rate, b->copy_bytes_per_s));
        }
        printf("\n");
        close_job(b, &job);
    }
    printf("\n");
}
