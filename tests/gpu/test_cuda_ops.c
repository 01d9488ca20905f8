/* Ops on rows of the CUDA backend through the op table, against the kernel set "ref" to the bit:
 * norms, sums, activations, positions, picked rows; odd and models' widths, rows with gaps between
 * them, which stay as they were. On a GPU, or on the emulated one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/gpu/support/support_gpu.h"
#include "tests/gpu/support/support_seed.h"

static struct rig cpu;

static int open_both(void **state)
{
    cpu = rig_open("ref", 1);
    return gpu_open(state);
}

static int close_both(void **state)
{
    rig_close(&cpu);
    return gpu_close(state);
}

/* The same rows on CPU and GPU, `pad` floats apart. */
struct rows {
    struct tensor cpu, gpu;
    size_t n_bytes;
};

static struct rows rows_make(struct random *random, uint32_t m, uint32_t n, uint32_t pad)
{
    size_t stride = n + pad, n_floats = m * stride;
    float *host = random_floats(random, n_floats, 0.01f);
    struct rows rows = {.n_bytes = n_floats * sizeof(float)};
    rows.cpu = tensor_view(host, DTYPE_F32, m, n);
    rows.gpu = tensor_view(gpu_upload(host, rows.n_bytes), DTYPE_F32, m, n);
    rows.cpu.row_stride = rows.gpu.row_stride = stride;
    return rows;
}

static void rows_drop(struct rows *rows)
{
    gpu_drop(rows->gpu.data, rows->n_bytes);
    free(rows->cpu.data);
}

/* Compares all floats, including the gaps. */
static void assert_equal(const struct rows *rows, const char *what)
{
    float *found = malloc(rows->n_bytes);
    gpu_fetch(found, rows->gpu.data, rows->n_bytes);
    assert_same_bits(found, rows->cpu.data, rows->n_bytes, what);
    free(found);
}

static const uint32_t shapes[][3] = {{1, 1, 0},     {3, 17, 3},    {70, 31, 1},   {2, 576, 0},
                                     {5, 1024, 4},  {1, 4097, 0},  {2, 8200, 2}, /* wide rows too */
                                     {65, 4096, 0}, {2, 14336, 0}, {1, 128256, 0}};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]), N_SMALL = 7 };

static size_t n_shapes(void)
{
    return test_is_wide() ? N_SHAPES : N_SMALL;
}

/* how: 0 rms, 1 layer, 2 layer with bias. */
static void check_norm(const uint32_t shape[3], int how, bool in_place, struct random *random)
{
    uint32_t n = shape[1];
    struct rows x = rows_make(random, shape[0], n, shape[2]);
    struct rows y = rows_make(random, shape[0], n, shape[2]);
    struct rows to = in_place ? x : y, w = rows_make(random, 1, n, 0),
                b = rows_make(random, 1, n, 0);
    if (how == 0) {
        assert_int_equal(op_rms_norm(cpu.stream, &to.cpu, &x.cpu, w.cpu.data, 1e-5f), 0);
        assert_int_equal(op_rms_norm(gpu.stream, &to.gpu, &x.gpu, w.gpu.data, 1e-5f), 0);
    } else {
        const float *host_bias = how == 2 ? b.cpu.data : NULL, *bias = how == 2 ? b.gpu.data : NULL;
        assert_int_equal(op_layer_norm(cpu.stream, &to.cpu, &x.cpu, w.cpu.data, host_bias, 1e-5f),
                         0);
        assert_int_equal(op_layer_norm(gpu.stream, &to.gpu, &x.gpu, w.gpu.data, bias, 1e-5f), 0);
    }
    assert_equal(&x, "norm, x");
    assert_equal(&y, "norm, y");
    rows_drop(&x);
    rows_drop(&y);
    rows_drop(&w);
    rows_drop(&b);
}

static void test_norms_have_the_references_bits(void **state)
{
    (void)state;
    struct random random = test_random(71);
    for (size_t s = 0; s < n_shapes(); s++)
        for (int how = 0; how < 3; how++)
            for (int in_place = 0; in_place < 2; in_place++)
                check_norm(shapes[s], how, in_place, &random);
}

/* Each head has weights of its own. */
static void test_norms_of_heads_have_the_references_bits(void **state)
{
    enum { HEADS = 3, ROWS = 5 };
    static const uint32_t dims[] = {16, 33, 128};
    struct random random = test_random(72);
    (void)state;
    for (size_t i = 0; i < 2 * sizeof(dims) / sizeof(dims[0]); i++) {
        uint32_t n = HEADS * dims[i / 2];
        struct rows x = rows_make(&random, ROWS, n, 0), w = rows_make(&random, 1, n, 0),
                    b = rows_make(&random, 1, n, 0);
        struct norm_params p = {.is_centred = i % 2, .eps = 1e-5f};
        p.w = w.cpu.data, p.bias = i % 2 ? b.cpu.data : NULL;
        assert_int_equal(op_norm_heads(cpu.stream, &x.cpu, HEADS, &p), 0);
        p.w = w.gpu.data, p.bias = i % 2 ? b.gpu.data : NULL;
        assert_int_equal(op_norm_heads(gpu.stream, &x.gpu, HEADS, &p), 0);
        assert_equal(&x, "norm of heads");
        rows_drop(&x);
        rows_drop(&w);
        rows_drop(&b);
    }
}

static void test_scaled_sums_have_the_references_bits(void **state)
{
    struct random random = test_random(74);
    (void)state;
    for (size_t s = 0; s < n_shapes(); s++) {
        struct rows x = rows_make(&random, shapes[s][0], shapes[s][1], shapes[s][2]),
                    y = rows_make(&random, shapes[s][0], shapes[s][1], 0);
        assert_int_equal(op_add_scaled(cpu.stream, &y.cpu, &x.cpu, 0.22f), 0);
        assert_int_equal(op_add_scaled(gpu.stream, &y.gpu, &x.gpu, 0.22f), 0);
        assert_equal(&y, "scaled sum");
        rows_drop(&x);
        rows_drop(&y);
    }
}

static void test_sums_and_activations_have_the_references_bits(void **state)
{
    (void)state;
    struct random random = test_random(73);
    for (size_t s = 0; s < n_shapes(); s++) {
        uint32_t m = shapes[s][0], n = shapes[s][1], pad = shapes[s][2];
        struct rows x = rows_make(&random, m, n, pad), y = rows_make(&random, m, n, pad);
        struct rows bias = rows_make(&random, 1, n, 0);
        assert_int_equal(op_add(cpu.stream, &y.cpu, &x.cpu), 0);
        assert_int_equal(op_add(gpu.stream, &y.gpu, &x.gpu), 0);
        assert_equal(&y, "add");
        assert_int_equal(op_add_bias(cpu.stream, &y.cpu, bias.cpu.data), 0);
        assert_int_equal(op_add_bias(gpu.stream, &y.gpu, bias.gpu.data), 0);
        assert_equal(&y, "add_bias");
        for (int kind = ACTIVATION_SILU; kind < N_ACTIVATIONS; kind++)
            for (int gated = kind == ACTIVATION_GATED_OAI; gated < 2; gated++) {
                struct tensor *host_up = gated ? &x.cpu : NULL, *up = gated ? &x.gpu : NULL;
                assert_int_equal(
                    op_act_mul(cpu.stream, &y.cpu, &y.cpu, host_up, (enum activation)kind), 0);
                assert_int_equal(op_act_mul(gpu.stream, &y.gpu, &y.gpu, up, (enum activation)kind),
                                 0);
                assert_equal(&y, "act_mul");
            }
        rows_drop(&x);
        rows_drop(&y);
        rows_drop(&bias);
    }
}

static void check_scale(const uint32_t shape[3], float softcap, bool by_row, struct random *random)
{
    enum { MOST = 80, PERIOD = 3 };
    uint32_t m = shape[0], n = shape[1], positions[MOST];
    struct rows x = rows_make(random, m, n, shape[2]), gate = rows_make(random, m, 1, 0);
    struct rows table = rows_make(random, 1, MOST, 0);
    assert_true(m <= MOST);
    for (uint32_t r = 0; r < m; r++)
        positions[r] = random_u32(random) % (MOST * PERIOD);
    void *on_device = gpu_upload(positions, sizeof(positions));
    struct scale_params host = {.factor = 0.375f, .softcap = softcap}, device = host;
    if (by_row) {
        host.by_position = table.cpu.data;
        device.by_position = table.gpu.data;
        host.period = device.period = PERIOD;
        host.gate = &gate.cpu;
        device.gate = &gate.gpu;
    }
    assert_int_equal(op_scale(cpu.stream, &x.cpu, positions, &host), 0);
    assert_int_equal(op_scale(gpu.stream, &x.gpu, on_device, &device), 0);
    assert_equal(&x, "scale");
    gpu_drop(on_device, sizeof(positions));
    rows_drop(&x);
    rows_drop(&gate);
    rows_drop(&table);
}

static void test_scales_have_the_references_bits(void **state)
{
    (void)state;
    struct random random = test_random(74);
    for (size_t s = 0; s < n_shapes(); s++)
        for (int how = 0; how < 4; how++)
            check_scale(shapes[s], how % 2 ? 20.0f : 0.0f, how / 2, &random);
}

/* Two tables of frequencies, the second a third as fast. */
static void two_tables(float inv_freq[512], uint32_t n_rot)
{
    for (uint32_t i = 0; i < n_rot; i++)
        inv_freq[i] = powf(10000.0f, -2.0f * (float)(i % (n_rot / 2)) / (float)n_rot) /
                      (i < n_rot / 2 ? 1.0f : 3.0f);
}

static void check_rope(enum rope_style style, uint32_t head_dim, uint32_t n_rot, uint32_t n_heads,
                       bool two, struct random *random)
{
    enum { M = 9 };
    uint32_t positions[M] = {0, 1, 2, 127, 128, 4095, 8191, 131071, 1000003};
    static const uint32_t tables[M] = {1, 0, 1, 1, 0, 0, 1, 0, 1};
    float inv_freq[512];
    two_tables(inv_freq, n_rot);
    struct rows x = rows_make(random, M, head_dim * n_heads, 4);
    void *at = gpu_upload(positions, sizeof(positions));
    void *freq = gpu_upload(inv_freq, sizeof(inv_freq));
    void *of_rows = gpu_upload(tables, sizeof(tables));
    struct rope_params params = {style, head_dim, n_rot, inv_freq, 1.1f, two ? tables : NULL};
    struct rope_params on_gpu = params;
    on_gpu.inv_freq = freq;
    on_gpu.row_tables = two ? of_rows : NULL;
    assert_int_equal(op_rope(cpu.stream, &x.cpu, positions, &params), 0);
    assert_int_equal(op_rope(gpu.stream, &x.gpu, at, &on_gpu), 0);
    assert_equal(&x, "rope");
    gpu_drop(at, sizeof(positions));
    gpu_drop(of_rows, sizeof(tables));
    gpu_drop(freq, sizeof(inv_freq));
    rows_drop(&x);
}

static void test_positions_have_the_references_bits(void **state)
{
    (void)state;
    static const uint32_t heads[][3] = {{64, 64, 3}, {80, 80, 2},    {96, 32, 5},  {256, 256, 1},
                                        {2, 2, 7},   {128, 128, 32}, {300, 298, 2}};
    struct random random = test_random(79);
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        check_rope(ROPE_INTERLEAVED, heads[i][0], heads[i][1], heads[i][2], i % 2, &random);
        check_rope(ROPE_HALF, heads[i][0], heads[i][1], heads[i][2], i % 2 == 0, &random);
    }
}

/* --- rope and KV write as one --- */

struct rope_kv_case {
    uint32_t head_dim, n_rot, n_heads, n_kv_heads; /* heads may not be shared out evenly */
    enum dtype kv_dtype;
    enum rope_style style;
};

enum { KV_BLOCKS = 3, KV_BLOCK_SIZE = 16 };

static size_t pool_bytes(const struct rope_kv_case *c)
{
    return (size_t)KV_BLOCKS * KV_BLOCK_SIZE * c->n_kv_heads *
           ops_kv_vector_bytes(c->kv_dtype, c->head_dim);
}

static struct kv_layer pool_make(const struct rope_kv_case *c)
{
    return (struct kv_layer){.k = gpu_upload(NULL, pool_bytes(c)),
                             .v = gpu_upload(NULL, pool_bytes(c)),
                             .dtype = c->kv_dtype,
                             .n_blocks = KV_BLOCKS,
                             .block_size = KV_BLOCK_SIZE,
                             .n_kv_heads = c->n_kv_heads,
                             .head_dim = c->head_dim,
                             .v_dim = c->head_dim};
}

static void assert_same_pool(const struct rope_kv_case *c, const void *found, const void *wanted)
{
    uint8_t *a = malloc(pool_bytes(c)), *b = malloc(pool_bytes(c));
    gpu_fetch(a, found, pool_bytes(c));
    gpu_fetch(b, wanted, pool_bytes(c));
    assert_same_bits(a, b, pool_bytes(c), "the pool");
    free(a);
    free(b);
}

/* Compares with the plain ops: rope of the CPU's reference, and the device's own KV write. */
static void check_rope_kv(const struct rope_kv_case *c, struct random *random)
{
    enum { M = 7 };
    uint32_t positions[M] = {0, 5, 127, 128, 4095, 131071, 9};
    uint32_t slots[M] = {0, 17, 46, 1, 1000, 33, 15}; /* slot 1000 is beyond the pool: left out */
    static const uint32_t tables[M] = {0, 1, 1, 0, 1, 1, 0};
    float inv_freq[512];
    two_tables(inv_freq, c->n_rot);
    struct rows q = rows_make(random, M, c->head_dim * c->n_heads, 4);
    struct rows k = rows_make(random, M, c->head_dim * c->n_kv_heads, 3);
    struct rows v = rows_make(random, M, c->head_dim * c->n_kv_heads, 0);
    void *at = gpu_upload(positions, sizeof(positions)), *to = gpu_upload(slots, sizeof(slots));
    void *freq = gpu_upload(inv_freq, sizeof(inv_freq));
    void *of_rows = gpu_upload(tables, sizeof(tables));
    bool two = c->n_heads % 2 == 1;
    struct rope_params params = {c->style, c->head_dim, c->n_rot,
                                 inv_freq, 1.1f,        two ? tables : NULL};
    struct rope_params on_gpu = params;
    struct kv_layer one = pool_make(c), plain = pool_make(c);
    on_gpu.inv_freq = freq;
    on_gpu.row_tables = two ? of_rows : NULL;
    assert_int_equal(op_rope(cpu.stream, &q.cpu, positions, &params), 0);
    assert_int_equal(op_rope(cpu.stream, &k.cpu, positions, &params), 0);
    assert_int_equal(op_rope_kv(gpu.stream, &q.gpu, &k.gpu, &v.gpu, at, &on_gpu, &one, to), 0);
    assert_equal(&q, "rope of q");
    assert_equal(&k, "rope of k");
    assert_int_equal(op_kv_write(gpu.stream, &plain, &k.gpu, &v.gpu, to), 0);
    assert_same_pool(c, one.k, plain.k);
    assert_same_pool(c, one.v, plain.v);
    for (size_t i = 0; i < 2; i++) {
        gpu_drop(i ? plain.k : one.k, pool_bytes(c));
        gpu_drop(i ? plain.v : one.v, pool_bytes(c));
    }
    gpu_drop(at, sizeof(positions));
    gpu_drop(to, sizeof(slots));
    gpu_drop(of_rows, sizeof(tables));
    gpu_drop(freq, sizeof(inv_freq));
    rows_drop(&q);
    rows_drop(&k);
    rows_drop(&v);
}

static void test_rope_and_kv_write_as_one_have_the_plain_ops_bits(void **state)
{
    (void)state;
    static const struct rope_kv_case cases[] = {
        {64, 64, 9, 3, DTYPE_BF16, ROPE_HALF},         {80, 80, 2, 2, DTYPE_F16, ROPE_INTERLEAVED},
        {96, 32, 7, 3, DTYPE_I8, ROPE_HALF},           {128, 128, 32, 8, DTYPE_F8_E4M3, ROPE_HALF},
        {300, 298, 1, 2, DTYPE_F32, ROPE_INTERLEAVED}, {64, 0, 4, 2, DTYPE_BF16, ROPE_HALF},
        {64, 64, 4, 4, DTYPE_BF16, ROPE_NONE}};
    struct random random = test_random(89);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_rope_kv(&cases[i], &random);
}

static void test_picked_rows_are_copies(void **state)
{
    (void)state;
    struct random random = test_random(83);
    for (size_t s = 0; s < n_shapes(); s++) {
        uint32_t m = shapes[s][0], n = shapes[s][1], n_picked = m + 2;
        uint32_t *index = malloc(n_picked * sizeof(*index));
        for (uint32_t i = 0; i < n_picked; i++)
            index[i] = random_u32(&random) % m;
        struct rows x = rows_make(&random, m, n, shapes[s][2]);
        struct rows y = rows_make(&random, n_picked, n, 3);
        void *picked = gpu_upload(index, n_picked * sizeof(*index));
        assert_int_equal(op_gather_rows(cpu.stream, &y.cpu, &x.cpu, index), 0);
        assert_int_equal(op_gather_rows(gpu.stream, &y.gpu, &x.gpu, picked), 0);
        assert_equal(&y, "gather_rows");
        for (uint32_t i = 0; i < n_picked; i++)
            assert_same_bits((float *)y.cpu.data + i * y.cpu.row_stride,
                             (float *)x.cpu.data + index[i] * x.cpu.row_stride, n * sizeof(float),
                             "the reference");
        gpu_drop(picked, n_picked * sizeof(*index));
        rows_drop(&x);
        rows_drop(&y);
        free(index);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms_have_the_references_bits),
        cmocka_unit_test(test_norms_of_heads_have_the_references_bits),
        cmocka_unit_test(test_scaled_sums_have_the_references_bits),
        cmocka_unit_test(test_sums_and_activations_have_the_references_bits),
        cmocka_unit_test(test_scales_have_the_references_bits),
        cmocka_unit_test(test_positions_have_the_references_bits),
        cmocka_unit_test(test_rope_and_kv_write_as_one_have_the_plain_ops_bits),
        cmocka_unit_test(test_picked_rows_are_copies),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, open_both, close_both);
}
