/* Compares quantized linears of the CUDA backend bit for bit with the contract's plain expression
 * (kernel set "ref"). Covers all formats, shapes that fit no tile, and numbers of rows around every
 * change of kernel. Activations have no outliers, some, or outliers everywhere; some rows are not
 * finite. Runs on a GPU, or on the emulated GPU. */
#include <stdio.h>

#include "tests/gpu/support/support_quant.h"
#include "tests/gpu/support/support_seed.h"

enum { MAX_M = 130 };
static const uint32_t row_counts[] = {1, 2, 3, 7, 8, 9, 16, 33, 64, 65, MAX_M};

static void test_linears_have_the_references_bits(void **state)
{
    (void)state;
    static const struct {
        /* blocks of a row; formats with blocks of 32 take 7 times as many, but for the first
         * shape */
        uint32_t n, blocks;
    } shapes[] = {{1, 1}, {17, 2}, {40, 3}, {70, 5}};
    struct random random = test_random(41);
    size_t i_case = 0;
    for (size_t f = 0; f < N_FORMATS; f++)
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
            for (int pattern = 0; pattern < N_PATTERNS; pattern++) {
                uint32_t block = dtype_block_elems(formats[f]), n = shapes[s].n;
                uint32_t k = shapes[s].blocks * block * (block == 32 && s > 0 ? 7 : 1);
                struct both w = random_both(&random, column_desc(formats[f], n, k));
                float *x = activations(&random, (enum pattern)pattern, MAX_M, k);
                float *wanted = poisoned((size_t)MAX_M * n);
                break_rows(x, MAX_M, k);
                run_linear_op(&cpu, w.cpu, x, MAX_M, k, wanted);
                for (size_t i = 0; i < sizeof(row_counts) / sizeof(row_counts[0]); i++) {
                    char what[80];
                    snprintf(what, sizeof(what), "%s %u x %u, %u rows, pattern %d",
                             dtype_name(formats[f]), n, k, row_counts[i], pattern);
                    if (grid_takes(i_case++))
                        check_rows(&w, x, row_counts[i], wanted, what);
                }
                both_free(&w);
                free(x);
                free(wanted);
            }
}

/* So many columns that several blocks share them, and weight rows for more than one slice. */
static void test_shared_columns_and_many_panels(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        uint32_t n, k, m;
    } cases[] = {{DTYPE_Q4_1, 20, 8192 + 96, 40}, {DTYPE_Q6_K, 33, 8192 + 256, 20},
                 {DTYPE_Q4_K, 150, 2048, 70},     {DTYPE_Q8_0, 90, 2048 + 32, 140},
                 {DTYPE_Q2_K, 130, 1024, 1},      {DTYPE_Q5_1, 16, 32768, 3},
                 {DTYPE_Q4_0, 33, 32768, 1}};
    struct random random = test_random(43);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t n = cases[i].n, k = cases[i].k, m = cases[i].m;
        struct both w = random_both(&random, column_desc(cases[i].type, n, k));
        float *x = activations(&random, SOME_OUTLIERS, m, k), *wanted = poisoned((size_t)m * n);
        run_linear_op(&cpu, w.cpu, x, m, k, wanted);
        check_rows(&w, x, m, wanted, dtype_name(cases[i].type));
        both_free(&w);
        free(x);
        free(wanted);
    }
}

/* Shapes of real models, which take too long on the emulated GPU. */
static void test_models_shapes_have_the_references_bits(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, k, m;
    } cases[] = {{14336, 4096, 3}, {4096, 14336, 3}, {520, 14336, MAX_M}, {128256, 2048, 1}};
    struct random random = test_random(47);
    if (!test_is_wide()) {
        print_message("left out: models' shapes are for a real GPU\n");
        return;
    }
    for (size_t f = 0; f < N_FORMATS; f++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            uint32_t n = cases[i].n, k = cases[i].k, m = cases[i].m;
            struct both w = random_both(&random, column_desc(formats[f], n, k));
            float *x = activations(&random, SOME_OUTLIERS, m, k), *wanted = poisoned((size_t)m * n);
            run_linear_op(&cpu, w.cpu, x, m, k, wanted);
            check_rows(&w, x, m, wanted, dtype_name(formats[f]));
            both_free(&w);
            free(x);
            free(wanted);
        }
}

/* The largest weights times runs of the integer 126, or one integer of 32000. The sums come close
 * to the limit of 32 bits. */
static void test_largest_sums_do_not_overflow(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        uint32_t k, scale_at; /* columns; place of the f16 1.0 in a block */
        uint8_t fill;
    } cases[] = {{DTYPE_Q5_0, 1152, 0, 0},      {DTYPE_Q5_1, 1152, 0, 0xFF},
                 {DTYPE_Q8_0, 1152, 0, 0x80},   {DTYPE_Q4_0, 1152, 0, 0},
                 {DTYPE_Q4_1, 1152, 0, 0xFF},   {DTYPE_Q6_K, 1280, 208, 0},
                 {DTYPE_Q5_K, 1280, 0, 0xFF},   {DTYPE_Q2_K, 1280, 80, 0xFF},
                 {DTYPE_Q3_K, 1280, 108, 0xFF}, {DTYPE_Q4_K, 1280, 0, 0xFF}};
    enum { N = 17, M = 66 }; /* more than 64 rows, so that one warp has all columns */
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum dtype type = cases[i].type;
        uint32_t k = cases[i].k, bytes = dtype_block_bytes(type);
        size_t n_blocks = (size_t)N * k / dtype_block_elems(type);
        uint8_t *raw = malloc(n_blocks * bytes);
        memset(raw, cases[i].fill, n_blocks * bytes);
        for (size_t b = 0; b < n_blocks; b++) {
            uint8_t *scale = raw + b * bytes + cases[i].scale_at;
            scale[0] = 0, scale[1] = 0x3C;
            if (type == DTYPE_Q5_1 || type == DTYPE_Q4_1 || type == DTYPE_Q5_K ||
                type == DTYPE_Q2_K || type == DTYPE_Q4_K) /* the offset's */
                scale[2] = 0, scale[3] = 0x3C;
            if (type == DTYPE_Q6_K)
                memset(scale - 16, 0x80, 16);
        }
        struct both w = both_of(column_desc(type, N, k), raw);
        float *x = calloc((size_t)M * k, sizeof(float)), wanted[M * N];
        for (uint32_t c = 0; c < k * 229 / 1000; c++) /* 126.4 in integers */
            for (uint32_t r = 0; r < M; r += 2) {
                x[r * k + c] = r % 4 ? -1.0f : 1.0f;
                x[(r + 1) * k + c] = c % 2 ? -1.0f : 1.0f;
            }
        x[2 * k + 300] = 700.0f; /* 32000 */
        run_linear_op(&cpu, w.cpu, x, M, k, wanted);
        check_rows(&w, x, 3, wanted, dtype_name(type));
        check_rows(&w, x, M, wanted, dtype_name(type));
        both_free(&w);
        free(raw);
        free(x);
    }
}

/* With one rank, the figures of a row come from the tree over 8 segments. */
static void test_row_split_weights_at_one_rank(void **state)
{
    (void)state;
    struct random random = test_random(47);
    for (size_t f = 0; f < N_FORMATS; f++) {
        enum { N = 37, M = 9, K = 3 * 256 };
        struct both w = random_both(&random, row_desc(formats[f], N, K, 1, 0));
        float *x = activations(&random, SOME_OUTLIERS, M, K), wanted[M * N];
        struct act *act = make_act(&cpu, M, K);
        struct tensor tx = tensor_view(x, DTYPE_F32, M, K);
        struct tensor ty = tensor_view(wanted, DTYPE_F32, M, N);
        const struct segments *seg = &w.desc.k_segments;
        assert_int_equal(op_act_prepare(cpu.stream, act, &tx, ACT_INT8, seg, NULL), 0);
        assert_int_equal(op_linear(cpu.stream, &ty, act, w.cpu), 0);
        check_segments(&w, x, M, seg, wanted, dtype_name(formats[f]));
        cpu.ops->act_destroy(act);
        both_free(&w);
        free(x);
    }
}

/* A captured step reads its inputs where they lie, and allocates nothing. */
static void test_captured_linears_replay_with_new_inputs(void **state)
{
    (void)state;
    enum { M = 3, N = 40, K = 512 };
    struct random random = test_random(71);
    struct error err = {0};
    struct graph *graph = NULL;
    const struct device_ops *ops = module.device_ops;
    struct both w = random_both(&random, column_desc(DTYPE_Q4_K, N, K));
    float *x = activations(&random, SOME_OUTLIERS, M, K), wanted[M * N], y[M * N];
    struct prepared p = prepare(x, M, K, NULL, NULL);
    float *device_y = poison_on_device((size_t)M * N);
    struct tensor tx = tensor_view(p.x, DTYPE_F32, M, K);
    struct tensor ty = tensor_view(device_y, DTYPE_F32, M, N);
    assert_int_equal(op_linear(stream, &ty, p.act, w.gpu), 0);
    sync_stream();
    assert_int_equal(ops->capture_begin(stream, &err), 0);
    assert_int_equal(op_act_prepare(stream, p.act, &tx, ACT_INT8, NULL, NULL), 0);
    assert_int_equal(op_linear(stream, &ty, p.act, w.gpu), 0);
    assert_int_equal(ops->capture_end(stream, &graph, &err), 0);
    for (int round = 0; round < 3; round++) {
        free(x);
        x = activations(&random, (enum pattern)round, M, K);
        run_linear_op(&cpu, w.cpu, x, M, K, wanted);
        ops->upload(stream, p.x, x, p.n_bytes);
        assert_int_equal(ops->graph_launch(stream, graph), 0);
        fetch(y, device_y, sizeof(y));
        assert_same_bits(y, wanted, sizeof(y), "graph");
    }
    ops->graph_destroy(graph);
    prepared_free(&p);
    both_free(&w);
    drop(device_y, sizeof(y));
    free(x);
}

/* Packed bytes are those of the CPU, but for padding to pairs of runs and offsets to four. */
static void test_weights_take_no_more_than_the_cpus(void **state)
{
    (void)state;
    for (size_t f = 0; f < N_FORMATS; f++) {
        struct error err = {0};
        struct weight_desc desc = column_desc(formats[f], 64, 4096);
        size_t bytes = weight_bytes(module.op_table, &desc, &err);
        assert_true(bytes > 0 && bytes <= weight_bytes(cpu.ops, &desc, &err));
    }
}

static void test_row_that_is_not_finite_is_named(void **state)
{
    (void)state;
    struct random random = test_random(67);
    struct error err = {0};
    struct weight_copy copies[WEIGHT_MAX_COPIES];
    struct weight_desc desc = column_desc(DTYPE_Q8_0, 80, 64);
    uint32_t n_copies = 0, row_bytes = 2 * 34;
    uint8_t *raw = random_rows(&random, DTYPE_Q8_0, 80, 64);
    raw[70 * row_bytes] = 0, raw[70 * row_bytes + 1] = 0x7C; /* infinity */
    void *slice = aligned_alloc(64, weight_slice_bytes(module.op_table, &desc, 64));
    assert_int_equal(weight_pack_slice(module.op_table, &desc, 64, 16, raw + 64 * row_bytes, slice,
                                       copies, &n_copies, &err),
                     STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "row 70"));
    free(slice);
    free(raw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linears_have_the_references_bits),
        cmocka_unit_test(test_shared_columns_and_many_panels),
        cmocka_unit_test(test_models_shapes_have_the_references_bits),
        cmocka_unit_test(test_largest_sums_do_not_overflow),
        cmocka_unit_test(test_row_split_weights_at_one_rank),
        cmocka_unit_test(test_captured_linears_replay_with_new_inputs),
        cmocka_unit_test(test_weights_take_no_more_than_the_cpus),
        cmocka_unit_test(test_row_that_is_not_finite_is_named),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
