/* Tests of the CUDA backend's attention of latent caches on a GPU, real or emulated (tests/simt).
 * Vectors of K begin with those of V. Both paths are compared with f64 over types, shapes and
 * lengths. A row's bits depend on nothing but the row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/device.h"
#include "tests/gpu/support/support_gpu_attention.h"
#include "tests/gpu/support/support_seed.h"

static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8_E4M3};
enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

/* K and V of a model, and shapes that take few or unequal parts of the kernel. 572 and 30 elements
 * are not whole chunks of 16 bytes: the plain kernel computes them. */
static const struct {
    uint32_t k, v, heads;
} shapes[] = {{576, 512, 16}, {576, 512, 40}, {24, 16, 4},   {48, 32, 5},
              {320, 256, 33}, {64, 64, 1},    {572, 500, 3}, {30, 24, 6}};
enum { N_SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* The allowed error, relative to the largest |V|. Queries and weights are rounded to bf16 (2^-9) or
 * f16 (2^-12), and scores reach about 30. The plain kernel rounds neither. */
static double tolerance(const struct gpu_world *w)
{
    bool is_coded = w->s.dtype == DTYPE_I8 || w->s.dtype == DTYPE_F8_E4M3;
    if (w->s.dtype == DTYPE_F32 || w->s.head_dim % (is_coded ? 16 : 8) != 0)
        return 1e-5;
    return w->s.dtype == DTYPE_BF16 ? 1.5e-2 : 2e-3;
}

static void check_rows(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n)
{
    for (int generated = 0; generated < 2; generated++) {
        float *y = gpu_attend_path(w, rows, n, generated);
        double error = gpu_attention_error(w, rows, n, y);
        if (!(error < tolerance(w)))
            fail_msg("%s, K %u, V %u, %u heads, blocks of %u, window %u, path %c: error %g",
                     dtype_name(w->s.dtype), w->s.head_dim, w->v_dim, w->s.heads_per_kv,
                     w->s.block_size, w->s.window, generated ? 'D' : 'P', error);
        free(y);
    }
}

/* Lists the first row and the last n_last rows of each sequence. */
static uint32_t some_rows(const struct gpu_world *w, uint32_t n_last, struct gpu_row *rows)
{
    uint32_t n = 0;
    for (uint32_t seq = 0; seq < w->n_seqs; seq++)
        for (uint32_t p = 0; p < w->s.lengths[seq]; p++)
            if (p == 0 || p + n_last >= w->s.lengths[seq])
                rows[n++] = (struct gpu_row){seq, p};
    return n;
}

/* Blocks of 1 to 128 positions; lengths around the borders of stages and groups. */
static void test_all_shapes_are_near_f64(void **state)
{
    static const uint32_t blocks[] = {32, 16, 128, 1, 8, 64};
    static const uint32_t lengths[][3] = {{1, 31, 0},   {32, 33, 130}, {200, 513, 0},
                                          {65, 97, 64}, {512, 2, 0},   {160, 545, 0}};
    struct random r = test_random(41);
    size_t i_case = 0;
    (void)state;
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (size_t d = 0; d < N_SHAPES; d++, i_case++) {
            struct gpu_row rows[4 * 8];
            const uint32_t *n = lengths[(d + t) % 6];
            struct gpu_setup s = {types[t],
                                  shapes[d].k,
                                  1,
                                  shapes[d].heads,
                                  blocks[(d * 5 + t) % 6],
                                  d % 4 == 2 ? 70 : 0,
                                  t == 1 ? 20.0f : 0.0f,
                                  {n[0], n[1], n[2], 0}};
            if (!grid_is_whole() && i_case % 2 && d > 1)
                continue;
            struct gpu_world w = gpu_world_create_latent(&s, shapes[d].v, &r);
            if (d % 3 == 1)
                gpu_world_sink(&w);
            check_rows(&w, rows, some_rows(&w, 1 + (uint32_t)d % 3, rows));
            gpu_world_destroy(&w);
        }
}

/* The plain kernel computes latent caches with ALiBi slopes, and several KV heads are no special
 * case of either kernel. */
static void test_slopes_and_several_caches_are_near_f64(void **state)
{
    struct random r = test_random(43);
    (void)state;
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (int slopes = 0; slopes < 2; slopes++) {
            struct gpu_row rows[4 * 8];
            struct gpu_setup s = {types[t], 80, 3, 4, 16, 0, 0.0f, {140, 70, 0}};
            struct gpu_world w = gpu_world_create_latent(&s, 64, &r);
            if (slopes) {
                gpu_world_slope(&w);
                s.dtype = DTYPE_F32; /* the plain kernel's bound */
            }
            float *y = gpu_attend_path(&w, rows, some_rows(&w, 3, rows), true);
            double error = gpu_attention_error(&w, rows, some_rows(&w, 3, rows), y);
            assert_true(error < (slopes ? 1e-5 : tolerance(&w)));
            free(y);
            gpu_world_destroy(&w);
        }
}

/* The CPU's reference rounds no queries and no weights. */
static void test_the_cpus_reference_is_near(void **state)
{
    struct random r = test_random(47);
    (void)state;
    for (uint32_t t = 0; t < N_TYPES; t++) {
        struct gpu_setup s = {types[t], 576, 1, 16, 32, 0, 0.0f, {150, 40, 0}};
        struct gpu_row rows[4 * 8];
        if (types[t] == DTYPE_F8_E4M3)
            continue;
        struct gpu_world w = gpu_world_create_latent(&s, 512, &r);
        uint32_t n = some_rows(&w, 4, rows);
        float *cpu = cpu_attend(&w, rows, n), *found = gpu_attend_path(&w, rows, n, true);
        double limit = types[t] == DTYPE_F32 ? 3e-5 : 2 * tolerance(&w);
        for (uint32_t i = 0; i < n * w.n_heads * w.v_dim; i++)
            if (!(fabs((double)cpu[i] - (double)found[i]) <= limit))
                fail_msg("%s: %g, the CPU's is %g", dtype_name(types[t]), (double)found[i],
                         (double)cpu[i]);
        free(cpu);
        free(found);
        gpu_world_destroy(&w);
    }
}

static void assert_rows_equal(const struct gpu_world *w, const float *y, uint32_t i, const float *z,
                              uint32_t j, uint32_t n, const char *what)
{
    size_t cols = (size_t)w->rank_heads * w->v_dim;
    assert_same_bits(y + i * cols, z + j * cols, n * cols * sizeof(float), what);
}

static struct gpu_setup exact_setup(uint32_t t)
{
    return (struct gpu_setup){
        types[t],          96, 1, t % 2 ? 5 : 16, t % 2 ? 8 : 32, t == 3 ? 200 : 0, 0.0f,
        {700, 70, 1100, 0}};
}

/* Runs a row alone, in a batch, and with other capacities. Grids and splits differ. */
static void test_path_d_depends_on_the_row_alone(void **state)
{
    struct random r = test_random(53);
    (void)state;
    for (uint32_t t = 0; t < N_TYPES; t++) {
        struct gpu_setup s = exact_setup(t);
        struct gpu_world w = gpu_world_create_latent(&s, 64, &r);
        const struct gpu_row rows[] = {{0, 0},  {0, 511}, {0, 512},  {0, 699},
                                       {1, 69}, {2, 543}, {2, 1024}, {2, 1099}};
        enum { N = sizeof(rows) / sizeof(rows[0]) };
        float *all = gpu_attend(&w, rows, N, NULL, 0, 0);
        float *large = gpu_attend(&w, rows, N, NULL, 0, 40000);
        assert_rows_equal(&w, large, 0, all, 0, N, "a large capacity");
        for (uint32_t i = 0; i < N; i += 3) {
            float *one = gpu_attend(&w, rows + i, 1, NULL, 0, rows[i].position + 1);
            assert_rows_equal(&w, one, 0, all, i, 1, "one row or many");
            free(one);
        }
        free(all);
        free(large);
        gpu_world_destroy(&w);
    }
}

/* Runs a prompt whole and in chunks, with rows of other sequences before and after. Rows within 512
 * positions have the bits of path D. */
static void test_path_p_does_not_depend_on_the_chunks(void **state)
{
    static const uint32_t chunks[] = {1, 7, 61};
    struct random r = test_random(59);
    (void)state;
    for (uint32_t t = 0; t < N_TYPES; t++) {
        struct gpu_setup s = exact_setup(t);
        enum { FROM = 70, TO = 190, N = TO - FROM, BESIDE = 3 + 50 + 3 };
        struct gpu_row rows[N], mixed[BESIDE];
        s.lengths[0] = TO;
        s.lengths[2] = 0;
        struct gpu_world w = gpu_world_create_latent(&s, 64, &r);
        for (uint32_t i = 0; i < N; i++)
            rows[i] = (struct gpu_row){0, FROM + i};
        float *all = gpu_attend_path(&w, rows, N, false);
        for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++)
            for (uint32_t i = c == 0 ? 56 : 0; i < (c == 0 ? 60 : N); i += chunks[c]) {
                uint32_t n = N - i < chunks[c] ? N - i : chunks[c];
                float *part = gpu_attend_path(&w, rows + i, n, false);
                assert_rows_equal(&w, part, 0, all, i, n, "a chunk");
                free(part);
            }
        for (uint32_t i = 0; i < BESIDE; i++)
            mixed[i] = i < 3 || i >= 53 ? (struct gpu_row){1, i} : rows[50 + i - 3];
        const struct role_run roles[] = {{0, 2, true}, {2, 52, false}, {54, 2, true}};
        float *beside = gpu_attend(&w, mixed, BESIDE, roles, 3, 0);
        assert_rows_equal(&w, beside, 3, all, 50, 50, "a chunk beside other rows");
        float *generated = gpu_attend_path(&w, rows, N, true);
        assert_rows_equal(&w, generated, 0, all, 0, N, "path D");
        free(generated);
        free(beside);
        free(all);
        gpu_world_destroy(&w);
    }
}

/* Masked values may be anything. Here they are NaN or infinite in a later token, in another
 * sequence, and before the window. Rows that see such a value are not finite. */
static void test_what_is_masked_does_not_leak(void **state)
{
    struct random r = test_random(61);
    (void)state;
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (uint32_t window = 0; window <= 40; window += 40) {
            struct gpu_setup s = {types[t], 64, 1, 4, 16, window, 0.0f, {180, 0}};
            struct gpu_world w = gpu_world_create_latent(&s, 48, &r);
            enum { FROM = 100, SEEN = 140, N = 180 - FROM, COLS = 4 * 48 };
            struct gpu_row rows[N];
            for (uint32_t i = 0; i < N; i++)
                rows[i] = (struct gpu_row){0, FROM + i};
            float *clean[2] = {gpu_attend_path(&w, rows, N, false),
                               gpu_attend_path(&w, rows, N, true)};
            for (uint32_t p = 0; p < 180; p++)
                if (p == SEEN + 1 || p == 170 || (window > 0 && p == 55))
                    for (uint32_t i = p % 3; i < 64; i += 13)
                        w.k[p * 64 + i] = p % 2 ? NAN : INFINITY;
            gpu_world_fill(&w);
            for (int generated = 0; generated < 2; generated++) {
                float *y = gpu_attend_path(&w, rows, N, generated);
                for (uint32_t c = 0; c < (SEEN - FROM + 1) * COLS; c++)
                    assert_true(isfinite(clean[generated][c]));
                assert_rows_equal(&w, y, 0, clean[generated], 0, SEEN - FROM + 1,
                                  generated ? "path D" : "path P");
                for (uint32_t i = SEEN + 1; i < SEEN + 10; i++)
                    for (uint32_t c = 0; c < COLS; c++)
                        assert_false(isfinite(y[(i - FROM) * COLS + c]));
                free(y);
                free(clean[generated]);
            }
            gpu_world_destroy(&w);
        }
}

/* Heads of a rank of a tensor-parallel group have the bits they have among all. */
static void test_a_ranks_heads_are_those_of_the_whole(void **state)
{
    struct random r = test_random(67);
    (void)state;
    for (uint32_t t = 0; t < N_TYPES; t++) {
        struct gpu_setup s = {types[t], 48, 1, 40, 16, 0, 0.0f, {100, 0}};
        struct gpu_world w = gpu_world_create_latent(&s, 32, &r);
        struct gpu_row rows[12];
        for (uint32_t i = 0; i < 12; i++)
            rows[i] = (struct gpu_row){0, 88 + i};
        float *all[2] = {gpu_attend_path(&w, rows, 12, false), gpu_attend_path(&w, rows, 12, true)};
        w.head_begin = 21;
        w.rank_heads = 17; /* in both tiles of 32 heads */
        for (int generated = 0; generated < 2; generated++) {
            float *part = gpu_attend_path(&w, rows, 12, generated);
            for (uint32_t i = 0; i < 12; i++)
                assert_same_bits(part + (size_t)i * 17 * 32,
                                 all[generated] + ((size_t)i * 40 + 21) * 32,
                                 17 * 32 * sizeof(float), "a rank's heads");
            free(part);
            free(all[generated]);
        }
        gpu_world_destroy(&w);
    }
}

/* --- refusals --- */

static void test_vectors_when_too_wide_then_the_part_is_named(void **state)
{
    static const struct {
        uint32_t k, v;
        bool latent;
        const char *part;
    } cases[] = {{580, 512, true, "K has more than 576"},
                 {576, 520, true, "V has more than 512"},
                 {640, 128, false, "K has more than 576"},
                 {64, 520, false, "V has more than 512"}};
    static char memory[1];
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err = {0};
        struct stream *s = NULL;
        const struct device_ops *ops = gpu.module.device_ops;
        assert_int_equal(ops->stream_create(gpu.stream->device, 0, &s, &err), 0);
        s->ops = gpu.stream->ops;
        struct kv_layer kv = {
            memory, cases[i].latent ? NULL : memory, DTYPE_BF16, 1, 32, 1, cases[i].k, cases[i].v};
        struct tensor q = tensor_view(memory, DTYPE_F32, 1, cases[i].k),
                      y = tensor_view(memory, DTYPE_F32, 1, cases[i].v);
        struct attention_rows rows = {.n_rows = 1, .n_seqs = 1, .table_stride = 1};
        struct attention_params params = {.n_heads = 1, .heads_per_kv = 1, .scale = 1};
        assert_int_equal(op_attention(s, &y, &q, &kv, &rows, &params), STATUS_UNIMPLEMENTED);
        assert_int_equal(ops->stream_sync(s, &err), STATUS_UNIMPLEMENTED);
        assert_non_null(strstr(err.message, cases[i].part));
        ops->stream_destroy(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_shapes_are_near_f64),
        cmocka_unit_test(test_slopes_and_several_caches_are_near_f64),
        cmocka_unit_test(test_the_cpus_reference_is_near),
        cmocka_unit_test(test_path_d_depends_on_the_row_alone),
        cmocka_unit_test(test_path_p_does_not_depend_on_the_chunks),
        cmocka_unit_test(test_what_is_masked_does_not_leak),
        cmocka_unit_test(test_a_ranks_heads_are_those_of_the_whole),
        cmocka_unit_test(test_vectors_when_too_wide_then_the_part_is_named),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
