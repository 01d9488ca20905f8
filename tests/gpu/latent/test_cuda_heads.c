/* Tests of heads_linear and copy_heads on the CUDA backend. Quantized weights have the bits of the
 * kernel set "ref". Dense weights have those of the backend's own linears, head by head. All heads
 * are one product, for any room in the activations. Runs on a GPU, or on the emulated GPU. */
#include <stdio.h>

#include "kernels/device.h"
#include "tests/gpu/support/support_quant.h"

enum { MAX_HEADS = 9 };

struct shape {
    uint32_t m, n_heads, k, n, gap; /* gap: columns of y between two heads */
};

/* Weights of heads on the device, one after the other, and on the CPU. */
struct packed {
    struct weight_desc desc;
    struct weight *gpu[MAX_HEADS], *cpu[MAX_HEADS];
    void *data; /* memory of all, on the GPU */
    uint8_t *raw[MAX_HEADS];
    uint32_t n;
};

/* Uploads the rows of a weight to `data`. */
static void upload_rows(const struct weight_desc *desc, const uint8_t *raw, uint8_t *data)
{
    struct error err = {0};
    size_t row_bytes = dtype_row_bytes(desc->source, desc->k_total);
    for (uint32_t row = 0; row < desc->n_rows; row += WEIGHT_PACK_ROWS) {
        struct weight_copy copies[WEIGHT_MAX_COPIES];
        uint32_t n_copies = 0, left = desc->n_rows - row;
        uint32_t n_rows = left < WEIGHT_PACK_ROWS ? left : WEIGHT_PACK_ROWS;
        size_t slice_bytes = weight_slice_bytes(module.op_table, desc, n_rows);
        uint8_t *slice = aligned_alloc(64, (slice_bytes + 63) / 64 * 64);
        assert_int_equal(weight_pack_slice(module.op_table, desc, row, n_rows,
                                           raw + row * row_bytes, slice, copies, &n_copies, &err),
                         0);
        for (uint32_t i = 0; i < n_copies; i++)
            assert_int_equal(module.device_ops->upload(stream, data + copies[i].to,
                                                       slice + copies[i].from, copies[i].n_bytes),
                             0);
        sync_stream();
        free(slice);
    }
}

/* `adjacent` false: the heads lie at unequal distances. */
static struct packed pack(struct random *r, enum dtype type, const struct shape *s, bool adjacent,
                          bool on_cpu)
{
    struct packed p = {.desc = column_desc(type, s->n, s->k), .n = s->n_heads};
    struct error err = {0};
    size_t n_bytes = weight_bytes(module.op_table, &p.desc, &err);
    assert_true(n_bytes > 0);
    uint8_t *all = on_device(NULL, n_bytes * (s->n_heads + 1));
    for (uint32_t h = 0; h < s->n_heads; h++) {
        uint8_t *data = all + n_bytes * (adjacent || h == 0 ? h : h + 1);
        p.raw[h] = random_rows(r, type, s->n, s->k);
        upload_rows(&p.desc, p.raw[h], data);
        assert_int_equal(weight_bind(module.op_table, &p.desc, data, &p.gpu[h], &err), 0);
        if (on_cpu)
            p.cpu[h] = pack_weight(cpu.ops, &p.desc, p.raw[h]);
    }
    p.data = all;
    return p;
}

static void unpack(struct packed *p)
{
    for (uint32_t h = 0; h < p->n; h++) {
        weight_unbind(module.op_table, p->gpu[h]);
        free(p->cpu[h]);
        free(p->raw[h]);
    }
    drop(p->data, 0);
}

static uint32_t y_columns(const struct shape *s)
{
    return s->n_heads * (s->n + s->gap);
}

/* y[m][y_columns] of all heads, with activations of so much room. Columns that no head has, and a
 * row behind the last, must stay. Returns the launches. */
static size_t run_gpu(const struct packed *p, const struct shape *s, uint32_t max_rows,
                      uint32_t max_k, const float *x, float *y)
{
    struct error err = {0};
    struct act *act = NULL;
    struct graph *graph = NULL;
    uint32_t cols = y_columns(s), x_cols = s->n_heads * s->k;
    const struct device_ops *ops = module.device_ops;
    assert_int_equal(module.op_table->act_create(device, max_rows, max_k, &act, &err), 0);
    float *all = poisoned((size_t)(s->m + 1) * cols);
    struct tensor tx =
        tensor_view(on_device(x, (size_t)s->m * x_cols * sizeof(float)), DTYPE_F32, s->m, x_cols);
    struct tensor ty =
        tensor_view(poison_on_device((size_t)(s->m + 1) * cols), DTYPE_F32, s->m, cols);
    for (int captured = 0; captured < 2; captured++) { /* kernels are loaded before a capture */
        if (captured)
            assert_int_equal(ops->capture_begin(stream, &err), 0);
        assert_int_equal(op_heads_linear(stream, act, &ty, &tx,
                                         (const struct weight *const *)p->gpu, s->n_heads,
                                         s->n + s->gap),
                         0);
        if (captured)
            assert_int_equal(ops->capture_end(stream, &graph, &err), 0);
    }
    size_t n_ops = ops->graph_n_ops(graph);
    fetch(all, ty.data, (size_t)(s->m + 1) * cols * sizeof(float));
    for (uint32_t i = 0; i < (s->m + 1) * cols; i++)
        if (i / cols == s->m || i % cols % (s->n + s->gap) >= s->n)
            assert_true(isnan(all[i]));
    for (uint32_t i = 0; i < s->m * cols; i++)
        if (i % cols % (s->n + s->gap) < s->n)
            y[i] = all[i];
    ops->graph_destroy(graph);
    module.op_table->act_destroy(act);
    drop(tx.data, 0);
    drop(ty.data, 0);
    free(all);
    return n_ops;
}

static void run_cpu(const struct packed *p, const struct shape *s, const float *x, float *y)
{
    struct act *act = make_act(&cpu, s->m, s->k);
    struct tensor tx = tensor_view((void *)(uintptr_t)x, DTYPE_F32, s->m, s->n_heads * s->k),
                  ty = tensor_view(y, DTYPE_F32, s->m, y_columns(s));
    assert_int_equal(op_heads_linear(cpu.stream, act, &ty, &tx,
                                     (const struct weight *const *)p->cpu, s->n_heads,
                                     s->n + s->gap),
                     0);
    cpu.ops->act_destroy(act);
}

/* The same by linears of the device, head by head, each row alone. */
static void run_plain(const struct packed *p, const struct shape *s, const float *x, float *y)
{
    struct error err = {0};
    struct act *act = NULL;
    assert_int_equal(module.op_table->act_create(device, 1, s->k, &act, &err), 0);
    for (uint32_t row = 0; row < s->m; row++)
        for (uint32_t h = 0; h < s->n_heads; h++) {
            const float *from = x + ((size_t)row * s->n_heads + h) * s->k;
            float *to = y + (size_t)row * y_columns(s) + h * (s->n + s->gap);
            struct tensor tx = tensor_view(on_device(from, s->k * sizeof(float)), DTYPE_F32, 1,
                                           s->k),
                          ty = tensor_view(poison_on_device(s->n), DTYPE_F32, 1, s->n);
            assert_int_equal(
                op_act_prepare(stream, act, &tx, weight_act_kind(p->gpu[h]), NULL, NULL), 0);
            assert_int_equal(op_linear(stream, &ty, act, p->gpu[h]), 0);
            fetch(to, ty.data, s->n * sizeof(float));
            drop(tx.data, 0);
            drop(ty.data, 0);
        }
    module.op_table->act_destroy(act);
}

/* Rows fill one tile, or end within the second; K ends within a run of 32. */
static const struct shape shapes[] = {
    {1, 9, 192, 64, 0}, {9, 3, 64, 48, 5}, {41, 2, 256, 33, 3}, {8, 5, 512, 128, 64}};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

static void check(const struct packed *p, const struct shape *s, const float *x, const float *want,
                  size_t n_ops, const char *what)
{
    size_t n = (size_t)s->m * y_columns(s);
    float *y = poisoned(n);
    size_t found = run_gpu(p, s, s->n_heads * (s->m + 8), s->k, x, y);
    assert_same_bits(want, y, n * sizeof(float), what);
    if (found != n_ops)
        fail_msg("%s: %zu launches in place of %zu", what, found, n_ops);
    free(y);
}

static void test_quantized_heads_have_the_references_bits(void **state)
{
    struct random random = test_random(71);
    size_t i = 0;
    (void)state;
    for (size_t c = 0; c < N_SHAPES; c++)
        for (size_t f = 0; f < N_FORMATS; f++, i++) {
            const struct shape *s = &shapes[c];
            char what[80];
            if (s->k % dtype_block_elems(formats[f]) != 0 || !grid_takes(i / 2))
                continue;
            struct packed p = pack(&random, formats[f], s, true, true);
            float *x =
                      activations(&random, (enum pattern)(i % N_PATTERNS), s->m, s->n_heads * s->k),
                  *want = poisoned((size_t)s->m * y_columns(s));
            break_rows(x, s->m * s->n_heads, s->k);
            snprintf(what, sizeof(what), "%s, shape %zu", dtype_name(formats[f]), c);
            run_cpu(&p, s, x, want);
            check(&p, s, x, want, 2, what);
            unpack(&p);
            free(x);
            free(want);
        }
}

static void test_dense_heads_equal_linears_head_by_head(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    struct random random = test_random(73);
    (void)state;
    for (size_t c = 0; c < N_SHAPES; c++)
        for (size_t t = 0; t < 3; t++) {
            const struct shape *s = &shapes[c];
            struct packed p = pack(&random, types[t], s, true, false);
            float *x = random_floats(&random, (size_t)s->m * s->n_heads * s->k, 0.02f),
                  *want = poisoned((size_t)s->m * y_columns(s));
            x[s->k] = NAN; /* a head's value that is not finite is no neighbour's */
            run_plain(&p, s, x, want);
            check(&p, s, x, want, types[t] == DTYPE_F32 ? 1 : 2, dtype_name(types[t]));
            unpack(&p);
            free(x);
            free(want);
        }
}

/* Activations with little room take several products; the bits stay. */
static void test_little_room_gives_the_same_bits(void **state)
{
    static const enum dtype types[] = {DTYPE_Q8_0, DTYPE_BF16};
    static const struct shape s = {40, 6, 256, 32, 0};
    struct random random = test_random(79);
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct packed p = pack(&random, types[t], &s, true, false);
        size_t n = (size_t)s.m * y_columns(&s);
        float *x = random_floats(&random, (size_t)s.m * s.n_heads * s.k, 0.02f);
        float *want = poisoned(n), *y = poisoned(n);
        size_t one = run_gpu(&p, &s, 300, s.k, x, want);
        for (uint32_t max_rows = s.m; max_rows <= 64; max_rows += 24) {
            size_t several = run_gpu(&p, &s, max_rows, s.k, x, y);
            assert_same_bits(want, y, n * sizeof(float), dtype_name(types[t]));
            assert_true(one == 2 && several % 2 == 0 && several > 2);
        }
        unpack(&p);
        free(x);
        free(want);
        free(y);
    }
}

/* Weights at unequal distances are multiplied head by head. */
static void test_heads_at_unequal_distances_have_the_same_bits(void **state)
{
    static const enum dtype types[] = {DTYPE_Q4_0, DTYPE_F16};
    static const struct shape s = {3, 4, 64, 32, 2};
    struct random random = test_random(83);
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        struct packed p = pack(&random, types[t], &s, false, false);
        size_t n = (size_t)s.m * y_columns(&s);
        float *x = random_floats(&random, (size_t)s.m * s.n_heads * s.k, 0.02f);
        float *want = poisoned(n), *y = poisoned(n);
        run_plain(&p, &s, x, want);
        assert_true(run_gpu(&p, &s, s.m, s.k, x, y) >= s.n_heads);
        assert_same_bits(want, y, n * sizeof(float), dtype_name(types[t]));
        unpack(&p);
        free(x);
        free(want);
        free(y);
    }
}

static void test_copied_heads_lie_at_their_columns(void **state)
{
    enum { M = 3, HEADS = 40, WIDTH = 17, Y_HEAD = 33, FIRST = 9 };
    static float x[M * HEADS * WIDTH], y[M * HEADS * Y_HEAD];
    (void)state;
    for (int i = 0; i < M * HEADS * WIDTH; i++)
        x[i] = (float)i;
    for (int i = 0; i < M * HEADS * Y_HEAD; i++)
        y[i] = -1.0f;
    struct tensor tx = tensor_view(on_device(x, sizeof(x)), DTYPE_F32, M, HEADS * WIDTH),
                  ty = tensor_view(on_device(y, sizeof(y)), DTYPE_F32, M, HEADS * Y_HEAD);
    assert_int_equal(op_copy_heads(stream, &ty, &tx, HEADS, WIDTH, Y_HEAD, FIRST), 0);
    fetch(y, ty.data, sizeof(y));
    for (int i = 0; i < M * HEADS * Y_HEAD; i++) {
        int j = i % Y_HEAD - FIRST, from = i / Y_HEAD * WIDTH + j;
        assert_true(y[i] == (j < 0 || j >= WIDTH ? -1.0f : (float)from));
    }
    drop(tx.data, 0);
    drop(ty.data, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantized_heads_have_the_references_bits),
        cmocka_unit_test(test_dense_heads_equal_linears_head_by_head),
        cmocka_unit_test(test_little_room_gives_the_same_bits),
        cmocka_unit_test(test_heads_at_unequal_distances_have_the_same_bits),
        cmocka_unit_test(test_copied_heads_lie_at_their_columns),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
