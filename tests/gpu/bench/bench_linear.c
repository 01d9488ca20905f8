/* bench_linear.c: products of every weight format, as a share of the bandwidth or of the bf16
 * product's rate. Measures both paths side by side, and packing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/cuda/linear_quant/act_quant_index.h"
#include "tests/gpu/bench/bench_gpu.h"

enum { MAX_ROTATE = 12, PACK_REPEATS = 7 };

struct linear_job {
    struct weight *weights[MAX_ROTATE];
    void *data[MAX_ROTATE];
    uint32_t rotate, m, max_m, n, k;
    size_t weight_bytes;
    struct act *act;
    float *x, *y;
    /* shares of x's chunks with outliers, counted by row and by 8 rows */
    double flagged_chunks, flagged_tiles;
};

/* --- activations --- */

/* Gives a share of the 64-column chunks an outlier, in the same column of all rows, as models have
 * them. */
static void plant_outliers(struct random *random, float *x, uint32_t n_rows, uint32_t k,
                           double share)
{
    for (uint32_t at = 0; at + QUANT_PAIR <= k; at += QUANT_PAIR) {
        if ((double)random_uniform(random, 0.0F, 1.0F) >= share)
            continue;
        uint32_t column = at + random_u32(random) % QUANT_PAIR;
        for (uint32_t r = 0; r < n_rows; r++)
            x[(size_t)r * k + column] =
                random_uniform(random, 8.0F, 40.0F) * (random_u32(random) % 2 ? 1.0F : -1.0F);
    }
}

/* Sets flags[c] where chunk c of a row needs the plane of outliers. */
static void flag_chunks(const float *x, uint32_t k, bool *flags)
{
    float sum = 0.0F, largest = 0.0F;
    for (uint32_t i = 0; i < k; i++) {
        sum += fabsf(x[i]);
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    }
    float inv = act_quant_inverse(act_quant_scale(sum, largest, k));
    for (uint32_t i = 0; i < k; i += 4)
        if (act_quant_four(x, i, k, inv).hi != 0)
            flags[i / QUANT_PAIR] = true;
}

static void count_flagged(struct linear_job *job, const float *x, uint32_t n_rows)
{
    const uint32_t n_chunks = (job->k + QUANT_PAIR - 1) / QUANT_PAIR;
    const uint32_t n_tiles = (n_rows + QUANT_TILE - 1) / QUANT_TILE;
    uint64_t n_rows_flagged = 0, n_tiles_flagged = 0;
    bool *tile = calloc(2 * (size_t)n_chunks, sizeof(*tile)), *row = tile + n_chunks;
    for (uint32_t r = 0; r < n_rows; r++) {
        memset(row, 0, n_chunks * sizeof(*row));
        flag_chunks(x + (size_t)r * job->k, job->k, row);
        for (uint32_t c = 0; c < n_chunks; c++) {
            n_rows_flagged += row[c];
            n_tiles_flagged += row[c] && !tile[c];
            tile[c] = tile[c] || row[c];
        }
        if (r % QUANT_TILE == QUANT_TILE - 1)
            memset(tile, 0, n_chunks * sizeof(*tile));
    }
    job->flagged_chunks = (double)n_rows_flagged / n_rows / n_chunks;
    job->flagged_tiles = (double)n_tiles_flagged / n_tiles / n_chunks;
    free(tile);
}

/* A normal distribution with few outliers, or with those of --outliers. */
static float *make_rows(struct bench *b, struct linear_job *job, uint32_t n_rows)
{
    struct random random = {5};
    float *x = random_floats(&random, (size_t)n_rows * job->k, b->outliers < 0 ? 0.0005F : 0.0F);
    if (b->outliers > 0)
        plant_outliers(&random, x, n_rows, job->k, b->outliers);
    count_flagged(job, x, n_rows);
    return x;
}

/* --- products --- */

/* Opens the job for up to `m` rows. */
static void open_linear(struct bench *b, struct linear_job *job, enum dtype type,
                        enum weight_store store, uint32_t m, uint32_t n, uint32_t k)
{
    const struct op_table *ops = b->module.op_table;
    struct error err = {0};
    struct weight_desc desc = column_desc(type, n, k);
    desc.store = store;
    *job = (struct linear_job){.m = m, .max_m = m, .n = n, .k = k};
    job->weight_bytes = weight_bytes(ops, &desc, &err);
    if (!job->weight_bytes)
        bench_die(&err);
    /* Far beyond the second-level cache of 50 MiB. */
    job->rotate = b->small ? 1 : (uint32_t)((200u << 20) / job->weight_bytes + 1);
    job->rotate = job->rotate > MAX_ROTATE ? MAX_ROTATE : job->rotate;
    uint8_t *raw = bench_rows(type, n, k);
    size_t slice_bytes = (weight_slice_bytes(ops, &desc, n) + 63) / 64 * 64;
    unsigned char *slice = aligned_alloc(64, slice_bytes);
    struct weight_copy copies[WEIGHT_MAX_COPIES];
    uint32_t n_copies = 0;
    if (weight_pack_slice(ops, &desc, 0, n, raw, slice, copies, &n_copies, &err) != 0)
        bench_die(&err);
    for (uint32_t i = 0; i < job->rotate; i++) {
        job->data[i] = bench_allocate(b, job->weight_bytes);
        for (uint32_t c = 0; c < n_copies; c++)
            bench_upload(b, (unsigned char *)job->data[i] + copies[c].to, slice + copies[c].from,
                         copies[c].n_bytes);
        if (weight_bind(ops, &desc, job->data[i], &job->weights[i], &err) != 0)
            bench_die(&err);
    }
    uint32_t n_random = m < 256 ? m : 256; /* further rows repeat these */
    float *x = make_rows(b, job, n_random);
    job->x = bench_allocate(b, (size_t)m * k * 4);
    job->y = bench_allocate(b, (size_t)m * n * 4);
    for (uint32_t at = 0; at < m; at += n_random)
        bench_upload(b, job->x + (size_t)at * k, x,
                     (size_t)(m - at < n_random ? m - at : n_random) * k * 4);
    if (ops->act_create(b->device, m, k, &job->act, &err) != 0)
        bench_die(&err);
    free(x);
    free(slice);
    free(raw);
}

static void close_linear(struct bench *b, struct linear_job *job)
{
    b->module.op_table->act_destroy(job->act);
    bench_drop(b, job->x, (size_t)job->max_m * job->k * 4);
    bench_drop(b, job->y, (size_t)job->max_m * job->n * 4);
    for (uint32_t i = 0; i < job->rotate; i++) {
        weight_unbind(b->module.op_table, job->weights[i]);
        bench_drop(b, job->data[i], job->weight_bytes);
    }
}

static int call_prepare(struct bench *b, void *ctx, uint32_t i)
{
    struct linear_job *job = ctx;
    struct tensor x = tensor_view(job->x, DTYPE_F32, job->m, job->k);
    (void)i;
    return op_act_prepare(b->stream, job->act, &x, weight_act_kind(job->weights[0]), NULL, NULL);
}

static int call_linear(struct bench *b, void *ctx, uint32_t i)
{
    struct linear_job *job = ctx;
    struct tensor y = tensor_view(job->y, DTYPE_F32, job->m, job->n);
    return op_linear(b->stream, &y, job->act, job->weights[i]);
}

static struct bench_time time_linear(struct bench *b, struct linear_job *job, uint32_t m,
                                     bool prompt)
{
    const struct role_run run = {.begin = 0, .n_rows = m};
    job->m = m;
    b->stream->roles = &run;
    b->stream->n_roles = prompt ? 1 : 0;
    if (prompt && b->prompts_f16) /* the workspace must not grow while calls are captured */
        bench_reserve(b, &(struct op_needs){.widened_n = job->n, .widened_k = job->k});
    call_prepare(b, job, 0);
    /* Queues cuBLASLt's products as the engine does, because a captured step never contains them.
     */
    bool queued = prompt && strstr(b->module.op_table->numerics, "-lt") != NULL;
    struct bench_time time =
        (queued ? bench_time_queued : bench_time_captured)(b, call_linear, job, job->rotate);
    b->stream->n_roles = 0;
    return time;
}

/* Multiplies until the card has the clock that it keeps. */
static void warm(struct bench *b, struct linear_job *job)
{
    const struct role_run run = {.begin = 0, .n_rows = job->m};
    b->stream->roles = &run;
    b->stream->n_roles = 1;
    call_prepare(b, job, 0);
    int64_t begin = clock_now_ns();
    while (!b->small && !b->once && clock_now_ns() - begin < (int64_t)b->warm_ms * 1000000) {
        for (uint32_t i = 0; i < 8; i++)
            call_linear(b, job, i % job->rotate);
        bench_sync(b);
    }
    b->stream->n_roles = 0;
}

void bench_product(struct bench *b)
{
    uint32_t n = b->small ? 256 : b->no_ceilings ? 4096 : 8192;
    const char *numerics = b->module.op_table->numerics;
    struct linear_job job;
    struct error err = {0};
    double flops = 2.0 * n * n * n;
    open_linear(b, &job, DTYPE_BF16, WEIGHT_STORE_SOURCE, n, n, n);
    warm(b, &job);
    if (b->no_ceilings) {
        close_linear(b, &job);
        return;
    }
    struct bench_time time = time_linear(b, &job, n, true);
    close_linear(b, &job);
    double own = flops / time.median, peak = bench_peak(b, n, &err);
    bench_record(b, "bf16 product 8192", time);
    b->bf16_flops = peak > own ? peak : own;
    if (peak > 0.0)
        printf("bf16 product %u³: cuBLASLt %.0f Tflop/s; path P (%s) %.0f Tflop/s, %.0f %% of it. "
               "The larger is what shares are of.\n",
               n, peak * 1e-12, numerics, own * 1e-12, own / peak * 100);
    else
        printf("bf16 product %u³: no peak (%s); path P (%s) %.0f Tflop/s. Shares are of this, and "
               "say little.\n",
               n, err.message, numerics, own * 1e-12);
}

static const struct bench_format formats[] = {
    {"bf16", DTYPE_BF16, WEIGHT_STORE_SOURCE}, {"f16", DTYPE_F16, WEIGHT_STORE_SOURCE},
    {"int8", DTYPE_BF16, WEIGHT_STORE_INT8},   {"fp8", DTYPE_BF16, WEIGHT_STORE_F8},
    {"q8_0", DTYPE_Q8_0, WEIGHT_STORE_SOURCE}, {"q4_0", DTYPE_Q4_0, WEIGHT_STORE_SOURCE},
    {"q4_1", DTYPE_Q4_1, WEIGHT_STORE_SOURCE}, {"q4_k", DTYPE_Q4_K, WEIGHT_STORE_SOURCE},
    {"q5_0", DTYPE_Q5_0, WEIGHT_STORE_SOURCE}, {"q5_1", DTYPE_Q5_1, WEIGHT_STORE_SOURCE},
    {"q5_k", DTYPE_Q5_K, WEIGHT_STORE_SOURCE}, {"q6_k", DTYPE_Q6_K, WEIGHT_STORE_SOURCE},
    {"q2_k", DTYPE_Q2_K, WEIGHT_STORE_SOURCE}, {"q3_k", DTYPE_Q3_K, WEIGHT_STORE_SOURCE}};
enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };

/* fp8 is for compute capability 8.9 and up. */
static bool format_runs(struct bench *b, const struct bench_format *format)
{
    struct error err = {0};
    struct weight_desc desc = column_desc(format->type, 64, 256);
    desc.store = format->store;
    return weight_bytes(b->module.op_table, &desc, &err) > 0;
}

/* Returns the row counts of --rows, or all of them. */
static uint32_t row_counts(const struct bench *b, uint32_t out[BENCH_MAX_ROW_COUNTS])
{
    static const uint32_t all[] = {1, 8, 32, 64, 128, 2048};
    uint32_t n = 0;
    const char *at = b->row_counts;
    while (*at && n < BENCH_MAX_ROW_COUNTS) {
        char *end = NULL;
        unsigned long value = strtoul(at, &end, 10);
        if (end == at)
            break;
        out[n++] = value < 1 ? 1 : value > 8192 ? 8192 : (uint32_t)value;
        at = *end == ',' ? end + 1 : end;
    }
    if (n > 0)
        return n;
    memcpy(out, all, sizeof(all));
    return sizeof(all) / sizeof(all[0]);
}

static void print_linears_head(const struct bench *b, uint32_t n, uint32_t k, const uint32_t *rows,
                               uint32_t n_row_counts)
{
    char planted[64] = "normal activations";
    if (b->outliers >= 0)
        snprintf(planted, sizeof(planted), "outliers in %.0f %% of the chunks of 64 columns",
                 b->outliers * 100);
    printf("Linears [%u, %u], %s: %% of the read rate by the weight's bytes (rows up to 64: path "
           "D; beyond: path P, %% of the bf16 product's rate). Flagged: chunks of 64 columns of a "
           "row that have outliers, and of 8 rows, which a kernel multiplies twice.\n\n"
           "| format | bytes/weight | flagged |",
           n, k, planted);
    for (uint32_t r = 0; r < n_row_counts; r++)
        printf(" %u rows |", rows[r]);
    printf("\n| --- | --- | --- |");
    for (uint32_t r = 0; r < n_row_counts; r++)
        printf(" --- |");
    printf("\n");
}

static void run_format(struct bench *b, const struct bench_format *format, uint32_t n, uint32_t k,
                       const uint32_t *rows, uint32_t n_row_counts)
{
    struct linear_job job;
    uint32_t most = 1;
    char key[64];
    for (uint32_t r = 0; r < n_row_counts; r++)
        most = rows[r] > most ? rows[r] : most;
    open_linear(b, &job, format->type, format->store, b->small ? 65 : most, n, k);
    printf("| %s | %.3f | %.0f %%, %.0f %% |", format->name, (double)job.weight_bytes / n / k,
           job.flagged_chunks * 100, job.flagged_tiles * 100);
    for (uint32_t r = 0; r < n_row_counts; r++) {
        uint32_t m = b->small && rows[r] > 64 ? 65 : rows[r];
        struct bench_time time = time_linear(b, &job, m, m > 64);
        double share =
            m > 64 ? bench_share(2.0 * m * n * k / time.median, b->bf16_flops)
                   : bench_share((double)job.weight_bytes / time.median, b->read_bytes_per_s);
        snprintf(key, sizeof(key), "linear %s, %u rows", format->name, rows[r]);
        bench_cell(b, key, time, share);
    }
    close_linear(b, &job);
    printf("\n");
}

void bench_linears(struct bench *b)
{
    uint32_t rows[BENCH_MAX_ROW_COUNTS], n_row_counts = row_counts(b, rows);
    uint32_t n = b->small ? 128 : 14336, k = b->small ? 256 : 4096;
    print_linears_head(b, n, k, rows, n_row_counts);
    for (uint32_t f = 0; f < N_FORMATS; f++)
        if (bench_lists(b->formats, formats[f].name) && format_runs(b, &formats[f]))
            run_format(b, &formats[f], n, k, rows, n_row_counts);
    printf("\n");
}

void bench_paths(struct bench *b)
{
    static const uint32_t rows[] = {8, 32, 64, 128, 512, 2048, 8192};
    uint32_t n = b->small ? 128 : 14336, k = b->small ? 256 : 4096, most = b->small ? 64 : 8192;
    printf(
        "Paths at equal rows, bf16 [%u, %u]: D (generated tokens), P (prompts, %s), what D takes "
        "of P's time, P's share of the bf16 product's rate.\n\n| rows | D | P | D / P |\n"
        "| --- | --- | --- | --- |\n",
        n, k, b->module.op_table->numerics);
    struct linear_job job;
    char key[64];
    open_linear(b, &job, DTYPE_BF16, WEIGHT_STORE_SOURCE, most, n, k);
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]) && rows[r] <= most; r++) {
        struct bench_time d = time_linear(b, &job, rows[r], false);
        struct bench_time p = time_linear(b, &job, rows[r], true);
        printf("| %u |", rows[r]);
        snprintf(key, sizeof(key), "path D, %u rows", rows[r]);
        bench_cell(b, key, d, -1.0);
        snprintf(key, sizeof(key), "path P, %u rows", rows[r]);
        bench_cell(b, key, p, bench_share(2.0 * rows[r] * n * k / p.median, b->bf16_flops));
        printf(" %.2f |\n", d.median / p.median);
    }
    close_linear(b, &job);
    printf("\n");
}

/* Bytes of source a second and thread, in the loader's slices. */
static double pack_rate(struct bench *b, const struct bench_format *format, uint32_t k)
{
    const struct op_table *ops = b->module.op_table;
    struct error err = {0};
    size_t row_bytes = dtype_row_bytes(format->type, k);
    uint32_t n = (uint32_t)((b->small ? 1u << 16 : 2u << 20) / row_bytes / 64 * 64 + 64);
    struct weight_desc desc = column_desc(format->type, n, k);
    desc.store = format->store;
    uint8_t *raw = bench_rows(format->type, n, k);
    unsigned char *slice = aligned_alloc(64, (weight_slice_bytes(ops, &desc, n) + 63) / 64 * 64);
    struct weight_copy copies[WEIGHT_MAX_COPIES];
    uint32_t n_copies = 0;
    double times[PACK_REPEATS];
    for (int r = 0; r < PACK_REPEATS; r++) {
        int64_t begin = clock_now_ns();
        if (weight_pack_slice(ops, &desc, 0, n, raw, slice, copies, &n_copies, &err) != 0)
            bench_die(&err);
        times[r] = (double)(clock_now_ns() - begin) * 1e-9;
    }
    free(raw);
    free(slice);
    return (double)row_bytes * n / bench_time_of(times, PACK_REPEATS).median;
}

void bench_pack(struct bench *b)
{
    printf("Packing by the host, GB/s of the file's bytes a thread:");
    for (uint32_t f = 0; f < N_FORMATS; f++)
        if (format_runs(b, &formats[f]))
            printf("%s %s %.2f", f == 0 ? "" : ",", formats[f].name,
                   pack_rate(b, &formats[f], b->small ? 256 : 4096) * 1e-9);
    printf(".\n\n");
}
