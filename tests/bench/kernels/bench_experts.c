/* bench_experts: speed of a layer of experts beside a dense layer of the same bytes.
 *
 *   bench_experts [--kernels auto] [--threads 2] [--ms 300] [--only Q4_K] [--rows 1,4,64]
 *
 * The shape is that of Qwen3-30B-A3B: 2048 inputs, 768 wide experts, 8 per row. The dense layer is
 * 8 times as wide, so one row reads the same bytes from both. A pass walks through all experts (and
 * as many dense layers), so caches hold no weight that is read again. The goal is a ratio of 85 %
 * at one row (issue 25).
 * Steps of the two layers alternate, so other load meets both alike. Wall time; the table has the
 * medians. The last column is the ratio in the fastest tenth of the steps, which other load hardly
 * reaches. */
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

enum { HIDDEN = 2048, FF = 768, USED = 8, EXPERTS = 96, GROUPS = EXPERTS / USED, MAX_M = 512 };

static const enum dtype types[] = {DTYPE_Q4_K, DTYPE_Q8_0,   DTYPE_MXFP4,
                                   DTYPE_Q6_K, DTYPE_IQ4_XS, DTYPE_BF16};

struct bench {
    struct device *device;
    struct stream *stream;
    const struct op_table *ops;
    double budget_s;
    uint32_t rows[16];
    const char *only;
};

static void die(const struct error *err)
{
    fprintf(stderr, "bench_experts: %s\n", err->message);
    exit(1);
}

static void check(int rc)
{
    if (rc != 0) {
        fprintf(stderr, "bench_experts: an op failed\n");
        exit(1);
    }
}

static void *take(size_t n_bytes)
{
    void *data = NULL;
    if (posix_memalign(&data, n_bytes < 2 << 20 ? 4096 : 2 << 20, n_bytes) != 0)
        exit(1);
    madvise(data, n_bytes, MADV_HUGEPAGE);
    memset(data, 0, n_bytes);
    return data;
}

static uint64_t noise_state = 1;
static uint32_t noise(void)
{
    noise_state = noise_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(noise_state >> 33);
}

/* Packs n weights into one piece of memory, all from the same 64 raw rows. */
static void make_weights(const struct bench *b, struct weight_desc desc, uint32_t n,
                         struct weight *out[])
{
    struct error err = {0};
    size_t n_bytes = weight_bytes(b->ops, &desc, &err),
           row_bytes = dtype_row_bytes(desc.source, desc.k_total),
           block = dtype_block_bytes(desc.source);
    if (n_bytes == 0)
        die(&err);
    uint8_t *raw = take(row_bytes * 64), *memory = take(n_bytes * n);
    for (size_t i = 0; i < row_bytes * 64; i++)
        raw[i] = (uint8_t)noise();
    uint16_t d = desc.source == DTYPE_BF16 ? dtype_f32_to_bf16(0.01f) : dtype_f32_to_f16(0.01f);
    for (size_t at = 0; at < row_bytes * 64; at += block) {
        memcpy(raw + at + (desc.source == DTYPE_Q6_K ? 208 : 0), &d, sizeof(d));
        if (desc.source == DTYPE_Q4_K)
            memcpy(raw + at + 2, &d, sizeof(d));
        if (desc.source == DTYPE_MXFP4)
            raw[at] = (uint8_t)(118 + noise() % 5);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (weight_init(b->ops, &desc, memory + i * n_bytes, &out[i], &err) != 0)
            die(&err);
        for (uint32_t row = 0; row < desc.n_rows; row += 64) {
            uint32_t left = desc.n_rows - row;
            if (weight_pack_rows(b->ops, out[i], row, left < 64 ? left : 64, raw, &err) != 0)
                die(&err);
        }
    }
    free(raw);
}

static struct weight_desc down_desc(enum dtype type, uint32_t ff)
{
    struct error err = {0};
    struct weight_desc desc = {
        .role = WEIGHT_LINEAR_ROW, .source = type, .n_rows = HIDDEN, .k_total = ff};
    if (segments_init(&desc.k_segments, ff, 1, 1, 0, &err) != 0)
        die(&err);
    return desc;
}

static struct tensor floats(uint32_t rows, uint32_t columns)
{
    float *data = take((size_t)rows * columns * sizeof(*data));
    for (size_t i = 0; i < (size_t)rows * columns; i++)
        data[i] = (float)((int)(noise() % 2001) - 1000) * 1e-3f;
    return tensor_view(data, DTYPE_F32, rows, columns);
}

static struct act *act_of(const struct bench *b, uint32_t rows, uint32_t k)
{
    struct act *act = NULL;
    struct error err = {0};
    if (b->ops->act_create(b->device, rows, k, &act, &err) != 0)
        die(&err);
    return act;
}

/* Both layers, and the memory of a step. */
struct layers {
    struct weight *gate[EXPERTS], *up[EXPERTS], *down[EXPERTS];
    struct weight *wide[3][GROUPS];
    struct segments segments, wide_segments;
    struct experts experts;
    struct expert_routes routes;
    struct expert_work work;
    struct act *act;
    struct tensor x, y, logits, wide_gate, wide_up;
};

static void make_layers(const struct bench *b, struct layers *l, enum dtype type)
{
    uint32_t n_pairs = experts_max_pairs(MAX_M);
    struct weight_desc up = {
        .role = WEIGHT_LINEAR_COLUMN, .source = type, .n_rows = FF, .k_total = HIDDEN};
    struct weight_desc wide = up, down = down_desc(type, FF),
                       wide_down = down_desc(type, USED * FF);
    wide.n_rows = USED * FF;
    make_weights(b, up, EXPERTS, l->gate);
    make_weights(b, up, EXPERTS, l->up);
    make_weights(b, down, EXPERTS, l->down);
    make_weights(b, wide, GROUPS, l->wide[0]);
    make_weights(b, wide, GROUPS, l->wide[1]);
    make_weights(b, wide_down, GROUPS, l->wide[2]);
    l->segments = down.k_segments;
    l->wide_segments = wide_down.k_segments;
    l->experts = (struct experts){.n = EXPERTS,
                                  .gate = (const struct weight *const *)l->gate,
                                  .up = (const struct weight *const *)l->up,
                                  .down = (const struct weight *const *)l->down,
                                  .activation = ACTIVATION_SILU,
                                  .segments = &l->segments};
    struct error err = {0};
    if (op_experts_bind(b->ops, &l->experts, &err) != 0)
        die(&err);
    experts_routes_init(&l->routes, take(experts_routes_bytes(MAX_M, USED, EXPERTS)), MAX_M, USED,
                        EXPERTS);
    l->work = (struct expert_work){.act = act_of(b, n_pairs, HIDDEN),
                                   .rows = floats(n_pairs, HIDDEN),
                                   .gate = floats(n_pairs, FF),
                                   .up = floats(n_pairs, FF)};
    l->act = act_of(b, MAX_M, USED * FF);
    l->x = floats(MAX_M, HIDDEN);
    l->y = floats(MAX_M, HIDDEN);
    l->logits = floats(MAX_M, EXPERTS);
    l->wide_gate = floats(MAX_M, USED * FF);
    l->wide_up = floats(MAX_M, USED * FF);
}

static void free_layers(const struct bench *b, struct layers *l)
{
    struct weight *first[] = {l->gate[0],    l->up[0],      l->down[0],
                              l->wide[0][0], l->wide[1][0], l->wide[2][0]};
    void *others[] = {l->routes.ids,   l->work.rows.data, l->work.gate.data,
                      l->work.up.data, l->x.data,         l->y.data,
                      l->logits.data,  l->wide_gate.data, l->wide_up.data};
    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        free(first[i]);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        free(others[i]);
    b->ops->act_destroy(l->work.act);
    b->ops->act_destroy(l->act);
}

/* Makes row r choose the experts of group `group` + r. */
static void choose(struct layers *l, uint32_t m, uint32_t group)
{
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t e = 0; e < EXPERTS; e++)
            tensor_row_f32(&l->logits, r)[e] =
                (e / USED == (group + r) % GROUPS ? 5.0f : 0.0f) + (float)(noise() % 100) * 0.01f;
}

/* Returns the seconds of a step. */
static double run_experts(const struct bench *b, struct layers *l, uint32_t m, uint32_t group)
{
    const struct router_params router = {
        .n_experts = EXPERTS, .n_used = USED, .renormalise = true, .scale = 1.0f};
    struct tensor x = tensor_rows(&l->x, 0, m), y = tensor_rows(&l->y, 0, m),
                  logits = tensor_rows(&l->logits, 0, m);
    choose(l, m, group);
    int64_t begin = clock_now_ns();
    check(op_router_topk(b->stream, &l->routes, &logits, &router));
    check(op_experts(b->stream, &y, &x, &l->routes, &l->experts, &l->work, NULL));
    return (double)(clock_now_ns() - begin) * 1e-9;
}

static double run_dense(const struct bench *b, struct layers *l, uint32_t m, uint32_t group)
{
    struct tensor x = tensor_rows(&l->x, 0, m), y = tensor_rows(&l->y, 0, m),
                  gate_y = tensor_rows(&l->wide_gate, 0, m), up_y = tensor_rows(&l->wide_up, 0, m);
    struct linear_part gate = {.y = &gate_y, .w = l->wide[0][group]},
                       up = {.y = &up_y, .w = l->wide[1][group]};
    const struct weight *down = l->wide[2][group];
    int64_t begin = clock_now_ns();
    check(op_act_prepare(b->stream, l->act, &x, weight_act_kind(gate.w), NULL, NULL));
    op_will_read(b->stream, &down, 1); /* as the decoder does */
    check(op_linear_gated(b->stream, l->act, &gate, &up, ACTIVATION_SILU));
    check(
        op_act_prepare(b->stream, l->act, &gate_y, weight_act_kind(down), &l->wide_segments, NULL));
    check(op_linear(b->stream, &y, l->act, down));
    return (double)(clock_now_ns() - begin) * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Seconds of a step. */
struct timing {
    double median, fastest; /* fastest: of the fastest tenth, the slowest */
};

static struct timing timing_of(double *times, int n)
{
    qsort(times, (size_t)n, sizeof(times[0]), by_value);
    return (struct timing){times[n / 2], times[n / 10]};
}

/* Times steps of both layers alternately. */
static void time_both(const struct bench *b, struct layers *l, uint32_t m,
                      struct timing *out_experts, struct timing *out_dense)
{
    enum { MAX_STEPS = 4096 };
    static double experts[MAX_STEPS], dense[MAX_STEPS];
    double spent = 0;
    int n = 0;
    while (n < MAX_STEPS && (n < 3 * GROUPS || spent < b->budget_s)) {
        uint32_t group = (uint32_t)n % GROUPS;
        experts[n] = run_experts(b, l, m, group);
        dense[n] = run_dense(b, l, m, group);
        spent += experts[n] + dense[n];
        n++;
    }
    *out_experts = timing_of(experts, n);
    *out_dense = timing_of(dense, n);
}

static void bench_type(const struct bench *b, enum dtype type)
{
    static const uint32_t usual[] = {1, 2, 4, 8, 64, 512, 0};
    struct layers *l = take(sizeof(*l));
    if (strstr(dtype_name(type), b->only) == NULL)
        return;
    make_layers(b, l, type);
    double bytes = 3.0 * USED * (double)dtype_row_bytes(type, HIDDEN) * FF;
    printf("%s: %.1f MB per row\n", dtype_name(type), bytes * 1e-6);
    printf("  %6s %12s %12s %12s %8s %8s\n", "rows", "experts ms", "dense ms", "GB/s", "ratio",
           "fastest");
    for (const uint32_t *m = b->rows[0] != 0 ? b->rows : usual; *m != 0; m++) {
        struct timing experts, dense;
        double n_groups = *m < GROUPS ? *m : GROUPS;
        time_both(b, l, *m, &experts, &dense);
        printf("  %6u %12.3f %12.3f %12.1f %7.0f%% %7.0f%%\n", *m, experts.median * 1e3,
               dense.median * 1e3, bytes * n_groups / experts.median * 1e-9,
               100 * dense.median / experts.median, 100 * dense.fastest / experts.fastest);
        fflush(stdout);
    }
    free_layers(b, l);
    free(l);
}

static void read_rows(struct bench *b, char *text)
{
    uint32_t n = 0;
    for (char *at = text; *at != '\0' && n + 1 < sizeof(b->rows) / sizeof(b->rows[0]);) {
        unsigned long m = strtoul(at, &at, 10);
        b->rows[n++] = m > 0 && m <= MAX_M ? (uint32_t)m : 1;
        at += *at == ',';
    }
}

int main(int argc, char **argv)
{
    struct error err = {0};
    struct bench b = {.budget_s = 0.3, .only = ""};
    const char *kernels = "auto";
    uint32_t n_threads = 2;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--kernels") == 0)
            kernels = argv[i + 1];
        else if (strcmp(argv[i], "--threads") == 0)
            n_threads = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--ms") == 0)
            b.budget_s = strtod(argv[i + 1], NULL) * 1e-3;
        else if (strcmp(argv[i], "--only") == 0)
            b.only = argv[i + 1];
        else if (strcmp(argv[i], "--rows") == 0)
            read_rows(&b, argv[i + 1]);
    }
    if (backend_cpu()->open(0, &b.device, &err) != 0 ||
        backend_cpu()->stream_create(b.device, n_threads, &b.stream, &err) != 0 ||
        op_table_cpu(kernels, &b.ops, &err) != 0)
        die(&err);
    b.stream->ops = b.ops;
    printf("kernels %s, %u threads, %u experts of %u x %u, %u per row\n", b.ops->name, n_threads,
           EXPERTS, FF, HIDDEN, USED);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        bench_type(&b, types[t]);
    backend_cpu()->stream_destroy(b.stream);
    backend_cpu()->close(b.device);
    return 0;
}
