/* Tests of the AMX linears over a model of the tile instructions (support_amx_model.h). The model
 * is compared with answers worked out by hand. The kernels are compared with the reference in cases
 * that test_linear.c lacks. These are few and many outliers, rows split anywhere, several blocks of
 * rows, and the scratch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/cpu.h"
#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/dense.h"
#include "kernels/cpu/inner.h"
#include "kernels/cpu/linear/linear_amx.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/cpu/weight_cpu.h"
#include "tests/unit/kernels/support/support_amx_model.h"
#include "tests/unit/kernels/support/support_kernels.h"
#include "tests/unit/kernels/support/support_tiles_model.h"

static void test_signed_by_unsigned_bytes_add_up_and_wrap(void **state)
{
    (void)state;
    static uint8_t a[TILE_ROWS][64], b[TILE_ROWS][64];
    static uint32_t c[TILE_ROWS][16];
    struct tile_config config = tile_config_whole();
    a[2][4] = 0x80;          /* row 2, k 4 = −128 */
    a[2][63] = 0x7F;         /* row 2, k 63 = 127 */
    b[1][5 * 4] = 0xFF;      /* k 4, column 5 = 255 */
    b[15][5 * 4 + 3] = 0x90; /* k 63, column 5 = 144 */
    b[1][6 * 4] = 1;
    c[2][5] = 0x80000000u;
    c[0][0] = 7;
    tile_configure(&config);
    tile_load(0, c, 64);
    tile_load(1, a, 64);
    tile_load(2, b, 64);
    tile_dot_s8_u8(0, 1, 2);
    tile_store(0, c, 64);
    tile_release();
    assert_int_equal(c[2][5], 0x80000000u - 128 * 255 + 127 * 144);
    assert_int_equal(c[2][6], (uint32_t)-128);
    assert_int_equal(c[0][0], 7);
    assert_int_equal(c[3][5], 0);
}

static void put_bf16(uint8_t *at, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    at[0] = (uint8_t)(bits >> 16);
    at[1] = (uint8_t)(bits >> 24);
}

/* A dot product: pairs (x[i], w[i]) at consecutive k, added to c. */
static float dot_bf16(const float *x, const float *w, uint32_t n, float c)
{
    static uint8_t a[TILE_ROWS][64], b[TILE_ROWS][64];
    static float sums[TILE_ROWS][16];
    struct tile_config config = tile_config_whole();
    memset(a, 0, sizeof(a));
    memset(b, 0, sizeof(b));
    memset(sums, 0, sizeof(sums));
    for (uint32_t k = 0; k < n; k++) {
        put_bf16(&a[3][k * 2], x[k]);
        put_bf16(&b[k / 2][9 * 4 + k % 2 * 2], w[k]);
    }
    sums[3][9] = c;
    tile_configure(&config);
    tile_load(0, sums, 64);
    tile_load(1, a, 64);
    tile_load(2, b, 64);
    tile_dot_bf16(0, 1, 2);
    tile_store(0, sums, 64);
    tile_release();
    return sums[3][9];
}

static void test_bf16_pairs_are_two_chains_that_flush_subnormals(void **state)
{
    (void)state;
    /* Even k: 2^24 + 1 = 2^24 (to even), − 2^24 = 0. In any order over both: 1 or 2. */
    const float x[6] = {0x1p24f, 1.0f, 1.0f, 1.0f, -0x1p24f, 1.0f};
    const float one[6] = {1, 1, 1, 1, 1, 1};
    assert_true(dot_bf16(x, one, 6, 0.0f) == 3.0f);
    /* Chains start at 0 and not at c: 2^24 + (1 + 1) and not (2^24 + 1) + 1. */
    const float two[3] = {1.0f, 0.0f, 1.0f};
    assert_true(dot_bf16(two, one, 3, 0x1p24f) == 0x1p24f + 2.0f);
    /* A product is not rounded before it is added: (1 + 2^-7)² − 1 has 15 bits. */
    const float near[3] = {-1.0f, 0.0f, 1.0078125f}, with[3] = {1.0f, 0.0f, 1.0078125f};
    assert_true(dot_bf16(near, with, 3, 0.0f) == 0x1p-6f + 0x1p-14f);
    /* Subnormal operands, results and sums are zeros. */
    const float tiny[1] = {0x1p-127f}, large[1] = {0x1p100f};
    assert_true(dot_bf16(tiny, large, 1, 0.0f) == 0.0f);
    const float small[1] = {0x1p-80f}, smaller[1] = {0x1p-50f};
    assert_true(dot_bf16(small, smaller, 1, 0.0f) == 0.0f);
    assert_true(dot_bf16(tiny, one, 1, 0x1p-130f) == 0.0f);
    const float inf[1] = {INFINITY}, zero[1] = {0.0f};
    assert_true(isnan(dot_bf16(inf, zero, 1, 1.0f)));
}

static const enum dtype super_types[] = {DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q2_K,
                                         DTYPE_Q3_K,   DTYPE_Q5_K,   DTYPE_Q6_K,
                                         DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
enum { N_SUPER_TYPES = sizeof(super_types) / sizeof(super_types[0]) };

/* A linear in the model and in the reference, from the same activations. */
struct pair_of_sets {
    struct rig ref, amx;
    struct weight *w;
    struct act *act_ref, *act_amx;
    uint32_t m, n;
    char what[96];
};

/* x[m][k_local of desc]. */
static struct pair_of_sets open_pair(const struct weight_desc *desc, const void *raw,
                                     const float *x, uint32_t m)
{
    struct pair_of_sets p = {
        .ref = rig_open("ref", 1), .amx = rig_open(AMX_MODEL, 1), .m = m, .n = desc->n_rows};
    p.w = pack_weight(p.ref.ops, desc, raw);
    uint32_t k = p.w->k_local;
    struct tensor tx = tensor_view((void *)(uintptr_t)x, DTYPE_F32, m, k);
    p.act_ref = make_act(&p.ref, m, k);
    p.act_amx = make_act(&p.amx, m, k);
    assert_int_equal(op_act_prepare(p.ref.stream, p.act_ref, &tx, ACT_INT8, NULL, NULL), 0);
    assert_int_equal(op_act_prepare(p.amx.stream, p.act_amx, &tx, ACT_INT8, NULL, NULL), 0);
    snprintf(p.what, sizeof(p.what), "%s m=%u n=%u k=%u from %u", dtype_name(desc->source), m, p.n,
             k, p.w->k_begin);
    return p;
}

static void close_pair(struct pair_of_sets *p)
{
    p->ref.ops->act_destroy(p->act_ref);
    p->amx.ops->act_destroy(p->act_amx);
    free(p->w);
    rig_close(&p->amx);
    rig_close(&p->ref);
}

/* Shares of rows and outputs of any size, in any order of sizes. */
static void run_shares(const struct pair_of_sets *p, const struct linear_job *job, struct random *r)
{
    const struct cpu_inner *inner = inner_of(p->amx.ops);
    for (uint32_t row = 0; row < p->m;) {
        uint32_t rows = 1 + random_u32(r) % 41, end = row + rows < p->m ? row + rows : p->m;
        for (uint32_t out = 0; out < p->n;) {
            uint32_t outs = PANEL_ROWS * (1 + random_u32(r) % 3),
                     out_end = out + outs < p->n ? out + outs : p->n;
            struct linear_share share = {row, end, out, out_end,
                                         stream_scratch(stream_cpu(p->amx.stream), 0)};
            inner->linear_int(job, &share);
            out = out_end;
        }
        row = end;
    }
}

/* Compares the results of all shares together with the reference on the whole: y, and T in planes.
 */
static void check_pair(const struct pair_of_sets *p, struct random *r)
{
    const size_t n_all = (size_t)p->m * p->n, n_bytes = n_all * sizeof(float);
    const struct linear_share whole = {0, p->m, 0, p->n, NULL};
    float *want = poisoned(n_all), *y = poisoned(n_all);
    struct linear_job job_ref = {act_cpu(p->act_ref), weight_cpu(p->w), want, NULL, NULL, p->n, 0},
                      job = {act_cpu(p->act_amx), weight_cpu(p->w), y, NULL, NULL, p->n, 0};
    inner_of(p->ref.ops)->linear_int(&job_ref, &whole);
    run_shares(p, &job, r);
    assert_same_bits(want, y, n_bytes, p->what);
    int32_t *sums[2] = {calloc(2, n_bytes), calloc(2, n_bytes)};
    for (int i = 0; i < 2; i++) {
        struct linear_job *j = i == 0 ? &job_ref : &job;
        j->y = NULL;
        j->sums = sums[i];
        j->sums_stride = p->n;
        j->high = p->w->n_partial_planes == 2 ? sums[i] + n_all : NULL;
    }
    inner_of(p->ref.ops)->linear_int(&job_ref, &whole);
    run_shares(p, &job, r);
    assert_same_bits(sums[0], sums[1], 2 * n_bytes, p->what);
    free(sums[0]);
    free(sums[1]);
    free(y);
    free(want);
}

static void check_splits(enum dtype type, uint32_t m, uint32_t n, uint32_t k, float outliers,
                         struct random *r)
{
    float *x = random_floats(r, (size_t)m * k, outliers);
    uint8_t *raw = random_rows(r, type, n, k);
    struct weight_desc desc = column_desc(type, n, k);
    struct pair_of_sets p = open_pair(&desc, raw, x, m);
    check_pair(&p, r);
    close_pair(&p);
    free(raw);
    free(x);
}

static void test_any_split_and_any_share_of_outliers_gives_the_reference_bits(void **state)
{
    (void)state;
    static const enum dtype types[] = {
        DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q4_K, DTYPE_Q8_0,   DTYPE_Q5_0,   DTYPE_Q5_1, DTYPE_Q2_K,
        DTYPE_Q3_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
    static const float shares[] = {0.0f, 0.005f, 0.02f, 0.05f, 0.5f};
    struct random r = {41};
    if (!cpu_features()->avx512_vnni)
        skip();
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (size_t i = 0; i < 5; i++) {
            if (!grid_takes(t + i))
                continue;
            check_splits(types[t], 71, 53, 512, shares[i], &r);
            check_splits(types[t], 35, 18, 2304, shares[i], &r); /* three pieces of K */
            if (dtype_block_elems(types[t]) == 32)
                check_splits(types[t], 33, 37, 32 * (1 + random_u32(&r) % 23), shares[i], &r);
        }
}

/* Returns the offsets of the f16 scales in a block. */
static void scales_of(enum dtype type, uint32_t at[2], uint32_t *out_n)
{
    at[0] = type == DTYPE_Q2_K ? 80 : type == DTYPE_Q3_K ? 108 : type == DTYPE_Q6_K ? 208 : 0;
    at[1] = at[0] + 2;
    *out_n = type == DTYPE_Q5_1 || type == DTYPE_Q2_K || type == DTYPE_Q5_K ? 2 : 1;
}

/* Allowed signs of the scales of a block. */
enum signs { SIGNS_ANY, SIGNS_PLUS, SIGNS_MINUS };

/* Rows at the bounds of W. Blocks have the largest scale of their row, half of it or none. Codes,
 * scales and minima are all 0, all ones, a sign alone, all but the sign, or random. */
static uint8_t *extreme_rows(struct random *r, enum dtype type, enum signs signs, uint32_t n,
                             uint32_t k)
{
    static const uint8_t fills[] = {0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0};
    static const float sizes[] = {1.0f, 1.0f, 1.0f, 0.5f, 0.0f};
    uint8_t *raw = random_rows(r, type, n, k);
    uint32_t block = dtype_block_bytes(type), at[2], n_scales;
    scales_of(type, at, &n_scales);
    for (size_t i = 0; i < dtype_row_bytes(type, k) * n; i += block) {
        uint32_t parts[2] = {random_u32(r) % 8, random_u32(r) % 8}, cut = random_u32(r) % block;
        for (uint32_t j = 0; j < block; j++) {
            uint32_t fill = parts[j < cut ? 0 : 1];
            if (fill < sizeof(fills))
                raw[i + j] = fills[fill];
        }
        for (uint32_t j = 0; j < n_scales; j++) {
            float size = sizes[random_u32(r) % 5];
            bool minus = signs == SIGNS_ANY ? random_u32(r) % 2 == 0 : signs == SIGNS_MINUS;
            uint16_t half = dtype_f32_to_f16(minus ? -size : size);
            memcpy(raw + i + at[j], &half, sizeof(half));
        }
        if (type == DTYPE_MXFP4) /* down to scales of which W keeps nothing */
            raw[i] = (uint8_t)(120 - random_u32(r) % 14);
    }
    return raw;
}

/* Returns rows of positive values, of negative values, of both, and with outliers. */
static float *extreme_floats(struct random *r, uint32_t m, uint32_t k)
{
    float *x = random_floats(r, (size_t)m * k, 0.0f);
    for (uint32_t row = 0; row < m; row++)
        for (uint32_t i = 0; i < k; i++) {
            float *at = &x[(size_t)row * k + i];
            if (row % 4 < 2)
                *at = row % 4 == 0 ? 1.0f : -1.0f;
            if (row % 8 >= 4 && random_u32(r) % 16 == 0)
                *at = random_u32(r) % 2 == 0 ? 250.0f : -250.0f;
        }
    return x;
}

static void check_extremes(enum dtype type, enum signs signs, uint32_t m, uint32_t n, uint32_t k,
                           struct random *r)
{
    float *x = extreme_floats(r, m, k);
    uint8_t *raw = extreme_rows(r, type, signs, n, k);
    struct weight_desc desc = column_desc(type, n, k);
    struct pair_of_sets p = open_pair(&desc, raw, x, m);
    check_pair(&p, r);
    close_pair(&p);
    free(raw);
    free(x);
}

static void test_super_blocks_at_their_bounds_give_the_reference_bits(void **state)
{
    (void)state;
    struct random r = {47};
    if (!cpu_features()->avx512_vnni)
        skip();
    for (int t = 0; t < N_SUPER_TYPES; t++)
        for (enum signs signs = SIGNS_ANY; signs <= SIGNS_MINUS; signs++) {
            if (!grid_takes((size_t)t + signs))
                continue;
            check_extremes(super_types[t], signs, 35, 49, 1280, &r);
            check_extremes(super_types[t], signs, 5, 3, AMX_MAX_K, &r);
        }
}

/* Runs the first m rows of the same 70 rows, for every m. */
static void test_super_blocks_of_any_number_of_rows_give_the_reference_bits(void **state)
{
    (void)state;
    enum { M = 70, N = 35, K = 768 };
    static float want[M * N], y[M * N];
    struct random r = {48};
    if (!cpu_features()->avx512_vnni)
        skip();
    struct rig ref = rig_open("ref", 1), amx = rig_open(AMX_MODEL, 2);
    for (int t = 0; t < N_SUPER_TYPES; t++) {
        float *x = random_floats(&r, (size_t)M * K, 0.03f);
        uint8_t *raw = random_rows(&r, super_types[t], N, K);
        struct weight_desc desc = column_desc(super_types[t], N, K);
        struct weight *w = pack_weight(ref.ops, &desc, raw);
        run_linear_op(&ref, w, x, M, K, want);
        for (uint32_t m = 1; m <= M; m++) {
            if (!grid_takes(m + (size_t)t))
                continue;
            run_linear_op(&amx, w, x, m, K, y);
            assert_same_bits(want, y, (size_t)m * N * sizeof(float), dtype_name(super_types[t]));
        }
        free(w);
        free(raw);
        free(x);
    }
    rig_close(&amx);
    rig_close(&ref);
}

/* Ranks whose columns begin inside a block of the file: super-blocks of 4, 2 and 1 runs. */
static void test_super_blocks_cut_by_ranks_give_the_reference_bits(void **state)
{
    (void)state;
    static const struct {
        uint32_t k, tp, index;
    } cuts[] = {{1280, 2, 1}, {768, 4, 1}, {768, 8, 5}, {768, 1, 0}, {512, 8, 7}};
    struct random r = {49};
    if (!cpu_features()->avx512_vnni)
        skip();
    for (int t = 0; t < N_SUPER_TYPES; t++)
        for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
            float *x = random_floats(&r, (size_t)39 * cuts[i].k, 0.02f);
            uint8_t *raw = random_rows(&r, super_types[t], 20, cuts[i].k);
            struct weight_desc desc =
                row_desc(super_types[t], 20, cuts[i].k, cuts[i].tp, cuts[i].index);
            struct pair_of_sets p = open_pair(&desc, raw, x, 39);
            check_pair(&p, &r);
            close_pair(&p);
            free(raw);
            free(x);
        }
}

static void test_tiles_are_taken_by_rows_planes_and_columns(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        uint32_t min_rows;
    } forms[] = {
        {DTYPE_Q4_0, AMX_MIN_ROWS},       {DTYPE_Q4_K, AMX_MIN_ROWS},
        {DTYPE_Q8_0, AMX_MIN_ROWS},       {DTYPE_Q5_0, AMX_MIN_ROWS_THREE},
        {DTYPE_Q5_1, AMX_MIN_ROWS_THREE}, {DTYPE_Q2_K, AMX_MIN_ROWS_THREE},
        {DTYPE_Q3_K, AMX_MIN_ROWS_THREE}, {DTYPE_Q5_K, AMX_MIN_ROWS_FOUR},
        {DTYPE_Q6_K, AMX_MIN_ROWS_FOUR},
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        for (uint32_t k = AMX_MAX_K; k <= AMX_MAX_K + 256; k += 256) {
            struct weight_desc desc = column_desc(forms[i].type, 1, k);
            struct error err = {0};
            if (weight_bytes_cpu(&desc, &err) == 0)
                continue; /* form Q4 has no more columns */
            struct weight_cpu w;
            assert_int_equal(weight_init_cpu(&desc, &w, &err), 0);
            assert_false(amx_model_takes(&w, forms[i].min_rows - 1));
            assert_int_equal(amx_model_takes(&w, forms[i].min_rows), k <= AMX_MAX_K);
            w.base.k_total = AMX_MAX_K_TOTAL + 1; /* the sum of a plane would overflow 32 bits */
            assert_false(amx_model_takes(&w, forms[i].min_rows));
        }
}

/* Adds BF16 products in the order that linear_dense_amx_impl.h describes, one operation at a time.
 */
static float sum_as_tiles(const float *x, const uint16_t *w, uint32_t begin, uint32_t end)
{
    float total = 0.0f;
    for (uint32_t run = begin; run < end; run += 32) {
        float chain[2] = {0.0f, 0.0f};
        for (uint32_t k = run; k < run + 32 && k < end; k++) {
            float a = fabsf(x[k]) < DENSE_TINY ? 0.0f : dtype_bf16_to_f32(dtype_f32_to_bf16(x[k]));
            float b = dtype_bf16_to_f32(w[k]);
            chain[k % 2] = fmaf(a, fabsf(b) < DENSE_TINY ? 0.0f : b, chain[k % 2]);
        }
        total += chain[0] + chain[1];
    }
    return total;
}

typedef void dense_fn(const struct linear_job *job, const struct linear_share *share);

static void check_dense(dense_fn *fn, const struct weight_desc *desc, uint32_t m, struct random *r)
{
    struct rig rig = rig_open(AMX_MODEL, 1);
    uint32_t n = desc->n_rows, k = desc->k_total;
    float *x = random_floats(r, (size_t)m * k, 0.02f);
    uint8_t *raw = random_rows(r, DTYPE_BF16, n, k);
    for (uint32_t i = 0; i < m * k; i += 7)
        x[i] *= i % 2 == 0 ? 0x1p-56f : 0x1p-140f; /* around DENSE_TINY and subnormal */
    struct weight *w = pack_weight(rig.ops, desc, raw);
    struct act *act = make_act(&rig, m, k);
    struct tensor tx = tensor_view(x, DTYPE_F32, m, k);
    assert_int_equal(op_act_prepare(rig.stream, act, &tx, ACT_BF16, NULL, NULL), 0);
    float *y = poisoned((size_t)m * n);
    struct linear_job job = {act_cpu(act), weight_cpu(w), y, NULL, NULL, n, 0};
    for (uint32_t row = 0; row < m;) {
        uint32_t rows = 1 + random_u32(r) % 301, end = row + rows < m ? row + rows : m;
        for (uint32_t out = 0; out < n;) {
            uint32_t outs = PANEL_ROWS * (1 + random_u32(r) % 3),
                     out_end = out + outs < n ? out + outs : n;
            struct linear_share share = {row, end, out, out_end,
                                         stream_scratch(stream_cpu(rig.stream), 0)};
            fn(&job, &share);
            out = out_end;
        }
        row = end;
    }
    const struct segments *seg = &desc->k_segments;
    for (uint32_t i = 0; i < m * n; i++) {
        const float *xs = x + (size_t)(i / n) * k;
        const uint16_t *ws = (const uint16_t *)(const void *)raw + (size_t)(i % n) * k;
        float parts[N_SEGMENTS] = {0}, want;
        for (uint32_t s = 0; s < seg->count; s++)
            parts[s] = sum_as_tiles(xs, ws, seg->bounds[s], seg->bounds[s + 1]);
        want =
            seg->count > 0 ? tree_sum(parts, seg->bounds, seg->count) : sum_as_tiles(xs, ws, 0, k);
        assert_same_bits(&want, &y[i], sizeof(want), "BF16 in the order of tiles");
    }
    rig.ops->act_destroy(act);
    free(y);
    free(w);
    free(raw);
    free(x);
    rig_close(&rig);
}

static void test_bf16_adds_in_the_order_of_tiles_by_either_unit(void **state)
{
    (void)state;
    static const struct {
        uint32_t m, n, k;
    } cases[] = {{1, 1, 1},    {5, 17, 31},   {16, 16, 32},
                 {33, 50, 96}, {71, 83, 576}, {307, 35, 1344}};
    dense_fn *const units[] = {amx_model_dense_by_fma, amx_model_dense_by_tiles};
    struct random r = {43};
    if (!cpu_features()->avx512_vnni)
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int u = 0; u < 2; u++) {
            struct weight_desc column = column_desc(DTYPE_BF16, cases[i].n, cases[i].k),
                               row = row_desc(DTYPE_BF16, cases[i].n, cases[i].k, 1, 0);
            check_dense(units[u], &column, cases[i].m, &r);
            check_dense(units[u], &row, cases[i].m, &r);
        }
}

/* Runs the op with more rows than a block has. */
static void test_rows_of_several_blocks_give_the_reference_bits(void **state)
{
    (void)state;
    enum { M = 83, N = 19, K = 32768 };
    struct random r = {42};
    if (!cpu_features()->avx512_vnni)
        skip();
    float *x = random_floats(&r, (size_t)M * K, 0.01f), want[M * N], y[M * N];
    static const enum dtype types[] = {DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q6_K};
    for (int t = 0; t < 3; t++) {
        uint8_t *raw = random_rows(&r, types[t], N, K);
        struct rig avx512 = rig_open("avx512", 2), amx = rig_open(AMX_MODEL, 2);
        struct weight_desc desc = column_desc(types[t], N, K);
        struct weight *w = pack_weight(avx512.ops, &desc, raw);
        run_linear_op(&avx512, w, x, M, K, want);
        run_linear_op(&amx, w, x, M, K, y);
        assert_same_bits(want, y, sizeof(y), dtype_name(types[t]));
        free(w);
        free(raw);
        rig_close(&amx);
        rig_close(&avx512);
    }
    free(x);
}

static void test_the_check_of_the_tiles_passes_on_the_model(void **state)
{
    (void)state;
    if (!cpu_features()->avx512_vnni)
        skip();
    assert_true(amx_model_checks());
}

static void test_scratch_of_every_width_fits_what_is_said(void **state)
{
    (void)state;
    if (!cpu_features()->avx512_vnni)
        skip(); /* the model needs AVX-512 VNNI */
    size_t most = 0;
    for (uint32_t k = 32; k <= AMX_MAX_K; k += 32) {
        size_t n_bytes = amx_model_scratch_bytes(k);
        most = n_bytes > most ? n_bytes : most;
        assert_int_equal(amx_model_pair_bytes(k), act_tiles_bytes(1, k));
        assert_int_equal(2 * amx_model_pair_bytes(k), act_tiles_bytes(33, k));
    }
    assert_true(most <= AMX_SCRATCH_BYTES);
    assert_true((size_t)AMX_SCRATCH_BYTES <= (size_t)STREAM_SCRATCH_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signed_by_unsigned_bytes_add_up_and_wrap),
        cmocka_unit_test(test_bf16_pairs_are_two_chains_that_flush_subnormals),
        cmocka_unit_test(test_any_split_and_any_share_of_outliers_gives_the_reference_bits),
        cmocka_unit_test(test_super_blocks_at_their_bounds_give_the_reference_bits),
        cmocka_unit_test(test_super_blocks_of_any_number_of_rows_give_the_reference_bits),
        cmocka_unit_test(test_super_blocks_cut_by_ranks_give_the_reference_bits),
        cmocka_unit_test(test_tiles_are_taken_by_rows_planes_and_columns),
        cmocka_unit_test(test_bf16_adds_in_the_order_of_tiles_by_either_unit),
        cmocka_unit_test(test_rows_of_several_blocks_give_the_reference_bits),
        cmocka_unit_test(test_the_check_of_the_tiles_passes_on_the_model),
        cmocka_unit_test(test_scratch_of_every_width_fits_what_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
