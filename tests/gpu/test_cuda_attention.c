/* Tests of the CUDA backend's attention on a GPU, real or emulated (tests/simt). Both paths are
 * compared with f64 over types, shapes, windows and lengths, with caches and outputs that held NaN.
 * The numerics contract holds bit for bit: a row's result depends on nothing but the row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tests/gpu/support/support_gpu_attention.h"
#include "tests/gpu/support/support_seed.h"

static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8_E4M3};
enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

static uint32_t pick(struct random *r, const uint32_t *from, uint32_t n)
{
    return from[random_u32(r) % n];
}
#define PICK(r, ...)                                                                               \
    pick(r, (const uint32_t[]){__VA_ARGS__},                                                       \
         sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* Returns the allowed error of a path, relative to the largest |V|. With up to 8 heads per KV head,
 * path D multiplies queries and weights in two halves. Otherwise they are rounded to the operands'
 * type, bf16 (2^-9) or f16 (2^-12), and scores reach about 30. The bounds are three to ten times
 * the error of the emulated GPU, whose sums are f64. */
static double tolerance(const struct gpu_world *w, bool generated)
{
    const struct gpu_setup *s = &w->s;
    bool is_coded = s->dtype == DTYPE_I8 || s->dtype == DTYPE_F8_E4M3;
    bool is_tiled = s->dtype != DTYPE_F32 && s->head_dim <= 256 && w->v_dim <= 256 &&
                    s->head_dim % (is_coded ? 16 : 8) == 0 && w->v_dim % (is_coded ? 16 : 8) == 0 &&
                    (!is_coded || s->block_size >= 4);
    if (!is_tiled)
        return 1e-5;
    if (generated && s->heads_per_kv <= 8)
        return s->dtype == DTYPE_BF16 ? 5e-5 : 2e-5;
    return s->dtype == DTYPE_BF16 ? 1.5e-2 : 2e-3;
}

static void check_rows(const struct gpu_world *w, const struct gpu_row *rows, uint32_t n,
                       bool generated)
{
    float *y = gpu_attend_path(w, rows, n, generated);
    double error = gpu_attention_error(w, rows, n, y);
    if (!(error < tolerance(w, generated)))
        fail_msg("%s, head_dim %u, v_dim %u, %u heads per KV head, blocks of %u, window %u, "
                 "softcap %g, path %c: error %g",
                 dtype_name(w->s.dtype), w->s.head_dim, w->v_dim, w->s.heads_per_kv,
                 w->s.block_size, w->s.window, (double)w->s.softcap, generated ? 'D' : 'P', error);
    free(y);
}

/* Lists the first row and the last n_last rows of each sequence. */
static uint32_t some_rows(const struct gpu_world *w, uint32_t n_last, struct gpu_row *rows)
{
    uint32_t n = 0;
    for (uint32_t seq = 0; seq < w->n_seqs; seq++) {
        uint32_t length = w->s.lengths[seq];
        for (uint32_t p = 0; p < length; p++)
            if (p == 0 || p + n_last >= length)
                rows[n++] = (struct gpu_row){seq, p};
    }
    return n;
}

static void test_all_shapes_are_near_f64(void **state)
{
    (void)state;
    static const uint32_t dims[] = {8, 20, 40, 64, 72, 80, 96, 112, 128, 192, 256, 258, 320, 512};
    struct random r = test_random(101);
    size_t i_case = 0;
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
            for (uint32_t round = 0; round < 3; round++) {
                struct gpu_row rows[4 * 8];
                struct gpu_setup s = {types[t],
                                      dims[d],
                                      1 + random_u32(&r) % 2,
                                      round == 0   ? PICK(&r, 1, 2, 3, 4)
                                      : round == 1 ? PICK(&r, 5, 7, 8)
                                                   : PICK(&r, 9, 12, 16, 17, 31, 32),
                                      PICK(&r, 1, 8, 16, 32, 64, 128),
                                      PICK(&r, 0, 0, 1, 100, 128, 300),
                                      random_u32(&r) % 4 == 0 ? 20.0f : 0.0f,
                                      {PICK(&r, 1, 2, 63, 127, 128, 129),
                                       PICK(&r, 255, 256, 257, 300, 511, 512),
                                       PICK(&r, 513, 600, 640), 0}};
                if (!grid_takes(i_case++))
                    continue;
                s.lengths[2] = round == 1 ? s.lengths[2] : 0;
                struct gpu_world w = gpu_world_create(&s, &r);
                uint32_t n = some_rows(&w, 1 + random_u32(&r) % 5, rows);
                check_rows(&w, rows, n, true);
                check_rows(&w, rows, n, false);
                gpu_world_destroy(&w);
            }
}

/* Tests ALiBi on every kernel and instance. */
static void test_slopes_are_near_f64(void **state)
{
    (void)state;
    static const uint32_t dims[] = {20, 64, 80, 128, 192, 256};
    struct random r = {103};
    size_t i_case = 0;
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
            for (uint32_t heads_per_kv = 1; heads_per_kv <= 12; heads_per_kv += 11) {
                struct gpu_row rows[4 * 8];
                struct gpu_setup s = {types[t],
                                      dims[d],
                                      2,
                                      heads_per_kv,
                                      16,
                                      d % 3 == 2 ? 100 : 0,
                                      d == 1 ? 20.0f : 0.0f,
                                      {129, 300, 0}};
                if (!grid_takes(i_case++))
                    continue;
                s.lengths[2] = d == 3 ? 640 : 0;
                struct gpu_world w = gpu_world_create(&s, &r);
                gpu_world_slope(&w);
                uint32_t n = some_rows(&w, 3, rows);
                check_rows(&w, rows, n, true);
                check_rows(&w, rows, n, false);
                gpu_world_destroy(&w);
            }
}

/* Vectors of V narrower and wider than those of K, on every kernel: DeepSeek's 192 and 128, padded
 * instances, and untiled vectors. */
static void test_widths_that_differ_are_near_f64(void **state)
{
    (void)state;
    static const uint32_t dims[][2] = {{192, 128}, {128, 192}, {64, 128}, {256, 80},
                                       {80, 24},   {20, 33},   {320, 96}, {96, 512}};
    struct random r = {105};
    size_t i_case = 0;
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
            for (uint32_t heads_per_kv = 4; heads_per_kv <= 12; heads_per_kv += 8) {
                struct gpu_row rows[4 * 8];
                struct gpu_setup s = {types[t],
                                      dims[d][0],
                                      2,
                                      heads_per_kv,
                                      16,
                                      d % 3 == 2 ? 100 : 0,
                                      d == 1 ? 20.0f : 0.0f,
                                      {129, 300, d % 4 == 0 ? 640 : 0}};
                if (!grid_takes(i_case++))
                    continue;
                struct gpu_world w = gpu_world_create_widths(&s, dims[d][1], &r);
                if (d % 2)
                    gpu_world_sink(&w);
                uint32_t n = some_rows(&w, 3, rows);
                check_rows(&w, rows, n, true);
                check_rows(&w, rows, n, false);
                gpu_world_destroy(&w);
            }
}

/* Tests sinks and chunks on every kernel and instance. */
static void test_sinks_and_chunks_are_near_f64(void **state)
{
    (void)state;
    static const uint32_t dims[] = {20, 64, 80, 128, 192, 256};
    struct random r = {104};
    size_t i_case = 0;
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
            for (uint32_t heads_per_kv = 1; heads_per_kv <= 12; heads_per_kv += 11) {
                struct gpu_row rows[4 * 8];
                struct gpu_setup s = {types[t],
                                      dims[d],
                                      2,
                                      heads_per_kv,
                                      16,
                                      d % 3 == 2 ? 100 : 0,
                                      d == 1 ? 20.0f : 0.0f,
                                      {129, 300, 0}};
                if (!grid_takes(i_case++))
                    continue;
                s.lengths[2] = d == 3 ? 640 : 0;
                struct gpu_world w = gpu_world_create(&s, &r);
                gpu_world_sink(&w);
                w.chunk = d % 2 ? 96 : 0;
                uint32_t n = some_rows(&w, 3, rows);
                check_rows(&w, rows, n, true);
                check_rows(&w, rows, n, false);
                gpu_world_destroy(&w);
            }
}

static void test_lengths_around_partitions_and_groups(void **state)
{
    (void)state;
    struct random r = test_random(7);
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (uint32_t end = 128; end <= 1024; end *= 2) {
            struct gpu_setup s = {types[t], 64, 1, 2, 16, 0, 0.0f, {end - 1, end, end + 1, 0}};
            struct gpu_row rows[4 * 8];
            struct gpu_world w = gpu_world_create(&s, &r);
            uint32_t n = some_rows(&w, 3, rows);
            check_rows(&w, rows, n, true);
            check_rows(&w, rows, n, false);
            gpu_world_destroy(&w);
        }
}

/* Tests contexts of real models, which take too long on the emulated GPU. The reference runs on one
 * thread, so there are few rows. Only one type of cache has many heads. */
static void test_long_contexts_are_near_f64(void **state)
{
    (void)state;
    struct random r = test_random(29);
    if (!test_is_wide()) {
        print_message("left out: long contexts are for a real GPU\n");
        return;
    }
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (uint32_t heads_per_kv = 4; heads_per_kv <= (t ? 4U : 16U); heads_per_kv *= 4) {
            struct gpu_setup s = {types[t], 128, 2,    heads_per_kv,
                                  32,       0,   0.0f, {8191, 16385, 40000, 0}};
            struct gpu_row rows[4 * 8];
            struct gpu_world w = gpu_world_create(&s, &r);
            uint32_t n = some_rows(&w, 1, rows);
            check_rows(&w, rows, n, true);
            check_rows(&w, rows, n, false);
            gpu_world_destroy(&w);
        }
}

/* Plain attention of an F32 cache is the CPU's, except for the order of sums and the softmax's 2^x.
 * Other types also differ by their rounding. */
static void test_the_cpus_reference_is_near(void **state)
{
    (void)state;
    struct random r = test_random(9);
    for (uint32_t t = 0; t < N_TYPES; t++) {
        struct gpu_setup s = {types[t], 64, 2, 3, 16, 150, 25.0f, {300, 40, 0}};
        struct gpu_row rows[4 * 8];
        if (types[t] == DTYPE_F8_E4M3)
            continue;
        struct gpu_world w = gpu_world_create(&s, &r);
        uint32_t n = some_rows(&w, 4, rows);
        gpu_world_slope(&w);
        float *cpu = cpu_attend(&w, rows, n), *found = gpu_attend_path(&w, rows, n, true);
        double limit = types[t] == DTYPE_I8 ? 2e-3 : 3e-5; /* int8 on the CPU: weights of 15 bits */
        for (uint32_t i = 0; i < n * w.n_heads * 64; i++)
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

/* Setups whose bits are compared: every type, both kinds of tiles, a window that ends in a group.
 */
static struct gpu_setup exact_setup(uint32_t t, uint32_t variant)
{
    return (struct gpu_setup){types[t],
                              variant % 2 ? 80 : 128,
                              2,
                              variant == 1   ? 12
                              : variant == 2 ? 7
                                             : 3,
                              variant == 2 ? 8 : 32,
                              variant == 2 ? 200 : 0,
                              variant == 1 ? 15.0f : 0.0f,
                              {700, 70, 1100, 0}};
}

/* A shortened grid has each type and each variant, but not every pair. */
static bool takes_pair(uint32_t t, uint32_t variant)
{
    return grid_is_whole() || t % 3 == variant;
}

/* Runs a row alone, in a batch, in another order and with other capacities. Grids and splits
 * differ. */
static void test_path_d_depends_on_the_row_alone(void **state)
{
    (void)state;
    struct random r = test_random(11);
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (uint32_t variant = 0; variant < 3; variant++) {
            if (!takes_pair(t, variant))
                continue;
            struct gpu_setup s = exact_setup(t, variant);
            struct gpu_world w = gpu_world_create(&s, &r);
            if (variant > 0)
                gpu_world_slope(&w);
            const struct gpu_row rows[] = {{0, 0},  {0, 511},  {0, 512},  {0, 699},  {1, 68},
                                           {1, 69}, {2, 1023}, {2, 1024}, {2, 1025}, {2, 1099}};
            enum { N = sizeof(rows) / sizeof(rows[0]) };
            float *all = gpu_attend(&w, rows, N, NULL, 0, 0);
            float *capacity = gpu_attend(&w, rows, N, NULL, 0, 1100);
            float *large = gpu_attend(&w, rows, N, NULL, 0, 40000);
            assert_rows_equal(&w, capacity, 0, all, 0, N, "a capacity that is met");
            assert_rows_equal(&w, large, 0, all, 0, N, "a large capacity");
            for (uint32_t i = 0; i < N; i += 3) {
                float *one = gpu_attend(&w, rows + i, 1, NULL, 0, rows[i].position + 1);
                assert_rows_equal(&w, one, 0, all, i, 1, "one row or many");
                free(one);
            }
            free(all);
            free(capacity);
            free(large);
            gpu_world_destroy(&w);
        }
}

/* Runs a prompt whole and in chunks, with rows of other sequences before and after. */
static void test_path_p_does_not_depend_on_the_chunks(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7, 61, 130};
    struct random r = test_random(13);
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (uint32_t variant = 0; variant < 3; variant++) {
            if (!takes_pair(t, variant))
                continue;
            struct gpu_setup s = exact_setup(t, variant);
            enum { FROM = 70, TO = 330, N = TO - FROM }; /* chunks of 7 begin at 126 */
            struct gpu_row rows[N + 12];
            s.lengths[0] = TO;
            s.lengths[2] = 0;
            struct gpu_world w = gpu_world_create(&s, &r);
            if (variant > 0)
                gpu_world_slope(&w);
            for (uint32_t i = 0; i < N; i++)
                rows[i] = (struct gpu_row){0, FROM + i};
            float *all = gpu_attend_path(&w, rows, N, false);
            for (size_t c = 0; c < sizeof(chunks) / sizeof(chunks[0]); c++)
                for (uint32_t i = c == 0 ? 182 : 0; i < (c == 0 ? 188 : N); i += chunks[c]) {
                    uint32_t n = N - i < chunks[c] ? N - i : chunks[c];
                    float *part = gpu_attend_path(&w, rows + i, n, false);
                    assert_rows_equal(&w, part, 0, all, i, n, "a chunk");
                    free(part);
                }
            struct gpu_row mixed[3 + 50 + 3];
            for (uint32_t i = 0; i < 3 + 50 + 3; i++)
                mixed[i] = i < 3 || i >= 53 ? (struct gpu_row){1, i} : rows[100 + i - 3];
            const struct role_run roles[] = {{0, 2, true}, {2, 52, false}, {54, 2, true}};
            float *beside = gpu_attend(&w, mixed, 56, roles, 3, 0);
            assert_rows_equal(&w, beside, 3, all, 100, 50, "a chunk beside other rows");
            free(beside);
            free(all);
            gpu_world_destroy(&w);
        }
}

/* Models whose prompts SLUICE_CUDA_ATTENTION=wgmma takes. All types of caches but F32, heads in
 * both sizes of the kernel, windows, and tiles that end within a token's heads. */
static const struct gpu_setup plain_setups[] = {
    {DTYPE_BF16, 128, 2, 4, 32, 0, 0.0f, {330, 70, 0}},
    {DTYPE_F16, 128, 1, 1, 16, 100, 0.0f, {330, 70, 0}},
    {DTYPE_BF16, 64, 1, 3, 64, 300, 0.0f, {500, 129, 0}},
    {DTYPE_F16, 64, 2, 7, 8, 0, 0.0f, {290, 70, 0}},
    {DTYPE_BF16, 80, 1, 32, 128, 130, 0.0f, {300, 70, 0}},
    {DTYPE_F16, 40, 1, 12, 1, 0, 0.0f, {260, 140, 0}},
    {DTYPE_F8_E4M3, 128, 1, 4, 32, 0, 0.0f, {330, 70, 0}},
    {DTYPE_I8, 64, 2, 3, 16, 120, 0.0f, {400, 70, 0}},
    {DTYPE_I8, 112, 1, 8, 8, 0, 0.0f, {270, 70, 0}},
};

/* A row's bits are the same in a whole prompt and in chunks that end within partitions. They are
 * the same behind other sequences of the same tile, and a second time. */
static void test_path_p_when_plain_then_bits_depend_on_the_row_alone(void **state)
{
    static const uint32_t chunks[] = {1, 45, 133};
    struct random r = test_random(31);
    (void)state;
    for (size_t i = 0; i < sizeof(plain_setups) / sizeof(plain_setups[0]); i++) {
        struct gpu_setup s = plain_setups[i];
        struct gpu_world w = gpu_world_create(&s, &r);
        enum { FROM = 97, N = 160 };
        struct gpu_row rows[N], mixed[2 * 20 + N];
        for (uint32_t k = 0; k < N; k++)
            rows[k] = (struct gpu_row){0, FROM + k};
        float *all = gpu_attend_path(&w, rows, N, false);
        float *again = gpu_attend_path(&w, rows, N, false);
        assert_rows_equal(&w, again, 0, all, 0, N, "a second time");
        for (uint32_t c = 0; c < 3; c++) /* single rows: around the borders of partitions */
            for (uint32_t at = c == 0 ? 29 : 0; at < (c == 0 ? 33 : N); at += chunks[c]) {
                uint32_t n = N - at < chunks[c] ? N - at : chunks[c];
                float *part = gpu_attend_path(&w, rows + at, n, false);
                assert_rows_equal(&w, part, 0, all, at, n, "a chunk");
                free(part);
            }
        for (uint32_t k = 0; k < 20 + N + 20; k++)
            mixed[k] = k < 20       ? (struct gpu_row){1, 30 + k}
                       : k < 20 + N ? rows[k - 20]
                                    : (struct gpu_row){1, k - 20 - N};
        float *beside = gpu_attend_path(&w, mixed, 20 + N + 20, false);
        assert_rows_equal(&w, beside, 20, all, 0, N, "beside another sequence");
        float *other = gpu_attend_path(&w, mixed, 20, false);
        assert_rows_equal(&w, beside, 0, other, 0, 20, "before another sequence");
        free(other);
        free(beside);
        free(again);
        free(all);
        gpu_world_destroy(&w);
    }
}

static void test_path_p_when_plain_then_it_is_near_f64(void **state)
{
    struct random r = test_random(37);
    (void)state;
    for (size_t i = 0; i < sizeof(plain_setups) / sizeof(plain_setups[0]); i++) {
        struct gpu_row rows[4 * 24];
        struct gpu_world w = gpu_world_create(&plain_setups[i], &r);
        uint32_t n = some_rows(&w, 17, rows);
        check_rows(&w, rows, n, false);
        gpu_world_destroy(&w);
    }
}

/* Masked values may be anything. Here K and V are NaN or infinite in a later token of the row's
 * sequence, in another sequence, and before the window. Rows that see such a value are not
 * finite. */
static void test_what_is_masked_does_not_leak(void **state)
{
    (void)state;
    struct random r = test_random(17);
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (uint32_t window = 0; window <= 40; window += 40) {
            struct gpu_setup s = {types[t], 64, 1, 4, 16, window, 0.0f, {180, 0}};
            struct gpu_world w = gpu_world_create(&s, &r);
            enum { FROM = 100, SEEN = 140, N = 180 - FROM };
            struct gpu_row rows[N];
            for (uint32_t i = 0; i < N; i++)
                rows[i] = (struct gpu_row){0, FROM + i};
            float *clean_d = gpu_attend_path(&w, rows, N, true);
            float *clean_p = gpu_attend_path(&w, rows, N, false);
            for (uint32_t c = 0; c < (SEEN - FROM + 1) * 4 * 64; c++)
                assert_true(isfinite(clean_d[c]) && isfinite(clean_p[c]));
            for (uint32_t p = 0; p < 180; p++)
                if (p == SEEN + 1 || p == 170 || (window > 0 && p == 55))
                    for (uint32_t i = p % 3; i < 64; i += 13) {
                        w.k[p * 64 + i] = p == SEEN + 1 ? 0.0f : p % 2 ? NAN : INFINITY;
                        w.v[p * 64 + i] = p % 2 ? NAN : INFINITY;
                    }
            gpu_world_fill(&w);
            float *d = gpu_attend_path(&w, rows, N, true), *p = gpu_attend_path(&w, rows, N, false);
            assert_rows_equal(&w, d, 0, clean_d, 0, SEEN - FROM + 1, "path D");
            assert_rows_equal(&w, p, 0, clean_p, 0, SEEN - FROM + 1, "path P");
            for (uint32_t i = SEEN + 1; i < SEEN + 10; i++)
                for (uint32_t c = 0; c < 4 * 64; c++) {
                    assert_false(isfinite(d[(i - FROM) * 4 * 64 + c]) && types[t] > DTYPE_BF16);
                    if (types[t] != DTYPE_F32)
                        assert_false(isfinite(p[(i - FROM) * 4 * 64 + c]));
                }
            free(clean_d);
            free(clean_p);
            free(d);
            free(p);
            gpu_world_destroy(&w);
        }
}

/* Heads of a rank of a tensor-parallel group, beginning within a KV head's, have the bits they have
 * among all. */
static void test_a_ranks_heads_are_those_of_the_whole(void **state)
{
    (void)state;
    struct random r = test_random(19);
    for (uint32_t t = 0; t < N_TYPES; t++)
        for (uint32_t heads_per_kv = 5; heads_per_kv <= 10; heads_per_kv += 5) {
            struct gpu_setup s = {types[t], 96, 4, heads_per_kv, 16, 0, 0.0f, {150, 0}};
            struct gpu_world w = gpu_world_create(&s, &r);
            struct gpu_row rows[20];
            if (heads_per_kv > 5)
                gpu_world_slope(&w);
            for (uint32_t i = 0; i < 20; i++)
                rows[i] = (struct gpu_row){0, 130 + i};
            float *all[2] = {gpu_attend_path(&w, rows, 20, false),
                             gpu_attend_path(&w, rows, 20, true)};
            w.head_begin = heads_per_kv + 2;
            w.rank_heads = heads_per_kv + 1;
            w.kv_begin = 1;
            w.rank_kv = 2;
            gpu_world_fill(&w);
            for (int generated = 0; generated < 2; generated++) {
                float *part = gpu_attend_path(&w, rows, 20, generated);
                for (uint32_t i = 0; i < 20; i++)
                    assert_same_bits(part + (size_t)i * w.rank_heads * 96,
                                     all[generated] + ((size_t)i * w.n_heads + w.head_begin) * 96,
                                     w.rank_heads * 96 * sizeof(float), "a rank's heads");
                free(part);
                free(all[generated]);
            }
            gpu_world_destroy(&w);
        }
}

/* A captured step serves other lengths: the launches depend on capacities alone. */
static void test_a_captured_step_serves_other_lengths(void **state)
{
    (void)state;
    struct random r = test_random(23);
    struct error err = {0};
    struct graph *graph = NULL;
    const struct device_ops *ops = gpu.module.device_ops;
    struct gpu_setup s = {DTYPE_BF16, 64, 2, 4, 16, 0, 0.0f, {1300, 1300, 0}};
    struct gpu_world w = gpu_world_create(&s, &r);
    enum { COLS = 8 * 64 };
    uint32_t seqs[2] = {0, 1};
    void *q = gpu_upload(NULL, 2 * COLS * 4), *y = gpu_upload(NULL, 2 * COLS * 4);
    void *positions = gpu_upload(NULL, 8), *device_seqs = gpu_upload(seqs, 8);
    struct tensor tq = tensor_view(q, DTYPE_F32, 2, COLS), ty = tensor_view(y, DTYPE_F32, 2, COLS);
    struct attention_rows batch = {.positions = positions,
                                   .seq_of_row = device_seqs,
                                   .block_tables = w.device_tables,
                                   .table_stride = w.stride,
                                   .n_rows = 2,
                                   .n_seqs = 2};
    struct attention_params params = {.n_heads = 8, .heads_per_kv = 4, .scale = 0.125f};
    struct kv_layer kv = {w.pool_k, w.pool_v, DTYPE_BF16, w.n_blocks, 16, 2, 64, 64};
    for (uint32_t round = 0; round < 5; round++) { /* 0: eager, 1: captured, then replayed */
        struct gpu_row rows[2] = {{0, random_u32(&r) % 1300}, {1, round == 3 ? 0 : 1299}};
        uint32_t at[2] = {rows[0].position, rows[1].position};
        float found[2 * COLS];
        gpu_write(positions, at, sizeof(at));
        for (uint32_t i = 0; i < 2; i++)
            gpu_write((float *)q + i * COLS, w.q + (size_t)(w.first[i] + rows[i].position) * COLS,
                      COLS * 4);
        if (round == 1)
            assert_int_equal(ops->capture_begin(gpu.stream, &err), 0);
        if (round < 2)
            assert_int_equal(op_attention(gpu.stream, &ty, &tq, &kv, &batch, &params), 0);
        if (round == 1)
            assert_int_equal(ops->capture_end(gpu.stream, &graph, &err), 0);
        if (round == 1)
            continue;
        if (round > 1)
            assert_int_equal(ops->graph_launch(gpu.stream, graph), 0);
        gpu_fetch(found, y, sizeof(found));
        float *wanted = gpu_attend(&w, rows, 2, NULL, 0, 0);
        assert_same_bits(found, wanted, sizeof(found), "replayed");
        free(wanted);
    }
    ops->graph_destroy(graph);
    gpu_drop(q, 2 * COLS * 4);
    gpu_drop(y, 2 * COLS * 4);
    gpu_drop(positions, 8);
    gpu_drop(device_seqs, 8);
    gpu_world_destroy(&w);
}

/* The stream of a second device object, whose kernels are chosen by SLUICE_CUDA_DECODE. */
struct other {
    struct device *device;
    struct stream *stream;
};

static struct other other_open(const char *decode)
{
    struct error err = {0};
    struct other other = {NULL, NULL};
    setenv("SLUICE_CUDA_DECODE", decode, 1);
    int rc = gpu.module.device_ops->open(0, &other.device, &err);
    unsetenv("SLUICE_CUDA_DECODE");
    if (rc == 0)
        rc = gpu.module.device_ops->stream_create(other.device, 0, &other.stream, &err);
    if (rc != 0)
        fail_msg("%s", err.message);
    other.stream->ops = gpu.stream->ops;
    return other;
}

static void other_close(struct other *other)
{
    gpu.module.device_ops->stream_destroy(other->stream);
    gpu.module.device_ops->close(other->device);
}

static float *attend_on(struct stream *stream, const struct gpu_world *w,
                        const struct gpu_row *rows, uint32_t n, uint32_t max_positions)
{
    struct stream *own = gpu.stream;
    gpu.stream = stream;
    float *y = gpu_attend(w, rows, n, NULL, 0, max_positions);
    gpu.stream = own;
    return y;
}

static uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* Compares the bits of a world's rows: those by warps and those by teams. */
static void check_teams(struct other by[2], const struct gpu_world *w, const struct gpu_row *rows,
                        uint32_t n, uint32_t max_positions)
{
    float *warps = attend_on(by[0].stream, w, rows, n, max_positions);
    float *teams = attend_on(by[1].stream, w, rows, n, max_positions);
    size_t cols = (size_t)w->rank_heads * w->v_dim;
    for (size_t i = 0; i < n * cols; i++)
        if (float_bits(warps[i]) != float_bits(teams[i]))
            fail_msg("%s, head_dim %u, %u heads per KV head, blocks of %u, window %u, softcap %g, "
                     "position %u, element %zu: by warps %a, by teams %a",
                     dtype_name(w->s.dtype), w->s.head_dim, w->s.heads_per_kv, w->s.block_size,
                     w->s.window, (double)w->s.softcap, rows[i / cols].position, i % cols,
                     (double)warps[i], (double)teams[i]);
    free(warps);
    free(teams);
}

/* The kernels of SLUICE_CUDA_DECODE give the same bits: every coded type, and every kind of head,
 * block, window and length. */
static void test_teams_have_the_bits_of_warps(void **state)
{
    (void)state;
    static const enum dtype coded[] = {DTYPE_I8, DTYPE_F8_E4M3};
    static const uint32_t dims[] = {128, 64, 80, 16, 112};
    struct other by[2] = {other_open("warps"), other_open("teams")};
    struct random r = test_random(31);
    size_t i_case = 0;
    for (uint32_t t = 0; t < 2; t++)
        for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
            for (uint32_t round = 0; round < 4; round++) {
                struct gpu_row rows[4 * 8];
                struct gpu_setup s = {coded[t],
                                      dims[d],
                                      1 + random_u32(&r) % 3,
                                      round == 0 ? 4 : PICK(&r, 1, 2, 3, 5, 7, 8),
                                      round == 0 ? 32 : PICK(&r, 4, 8, 16, 32, 64, 128),
                                      round < 2 ? 0 : PICK(&r, 1, 100, 128, 300),
                                      round == 3 ? 20.0f : 0.0f,
                                      {PICK(&r, 1, 2, 63, 127, 128, 129),
                                       PICK(&r, 255, 256, 257, 511, 512, 513),
                                       PICK(&r, 640, 1023, 1025, 1100), 0}};
                if (!grid_takes(i_case++))
                    continue;
                struct gpu_world w = gpu_world_create(&s, &r);
                uint32_t n = some_rows(&w, 1 + random_u32(&r) % 4, rows);
                if (round % 2 == 1)
                    gpu_world_slope(&w);
                check_teams(by, &w, rows, n, round == 1 ? 9000 : 0);
                check_teams(by, &w, rows, 1, rows[0].position + 1);
                gpu_world_destroy(&w);
            }
    other_close(&by[0]);
    other_close(&by[1]);
}

/* The same for heads of a rank that begin within a KV head's, and for long contexts on a real
 * GPU. */
static void test_teams_have_the_bits_of_warps_for_a_ranks_heads_and_long_contexts(void **state)
{
    (void)state;
    struct other by[2] = {other_open("warps"), other_open("teams")};
    struct random r = test_random(37);
    struct gpu_row rows[4 * 8];
    for (uint32_t t = 0; t < 2; t++) {
        uint32_t long_context = test_is_wide() ? 9000 : 300;
        struct gpu_setup s = {t ? DTYPE_F8_E4M3 : DTYPE_I8,       128, 4, 5, 16, 0, 0.0f,
                              {long_context, long_context / 2, 0}};
        struct gpu_world w = gpu_world_create(&s, &r);
        check_teams(by, &w, rows, some_rows(&w, 3, rows), 0);
        w.head_begin = 7;
        w.rank_heads = 6;
        w.kv_begin = 1;
        w.rank_kv = 2;
        gpu_world_fill(&w);
        check_teams(by, &w, rows, some_rows(&w, 3, rows), 0);
        gpu_world_destroy(&w);
    }
    other_close(&by[0]);
    other_close(&by[1]);
}

static void test_device_when_opened_with_another_word_then_refuses(void **state)
{
    (void)state;
    struct error err = {0};
    struct device *device = NULL;
    setenv("SLUICE_CUDA_DECODE", "team", 1);
    assert_int_equal(gpu.module.device_ops->open(0, &device, &err), STATUS_INVALID_ARGUMENT);
    unsetenv("SLUICE_CUDA_DECODE");
    assert_null(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_shapes_are_near_f64),
        cmocka_unit_test(test_slopes_are_near_f64),
        cmocka_unit_test(test_widths_that_differ_are_near_f64),
        cmocka_unit_test(test_sinks_and_chunks_are_near_f64),
        cmocka_unit_test(test_lengths_around_partitions_and_groups),
        cmocka_unit_test(test_long_contexts_are_near_f64),
        cmocka_unit_test(test_the_cpus_reference_is_near),
        cmocka_unit_test(test_path_d_depends_on_the_row_alone),
        cmocka_unit_test(test_path_p_does_not_depend_on_the_chunks),
        cmocka_unit_test(test_path_p_when_plain_then_bits_depend_on_the_row_alone),
        cmocka_unit_test(test_path_p_when_plain_then_it_is_near_f64),
        cmocka_unit_test(test_what_is_masked_does_not_leak),
        cmocka_unit_test(test_a_ranks_heads_are_those_of_the_whole),
        cmocka_unit_test(test_a_captured_step_serves_other_lengths),
        cmocka_unit_test(test_teams_have_the_bits_of_warps),
        cmocka_unit_test(test_teams_have_the_bits_of_warps_for_a_ranks_heads_and_long_contexts),
        cmocka_unit_test(test_device_when_opened_with_another_word_then_refuses),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
