/* Tests of the CUDA backend's row ops on the CPU, from the lines that nvcc compiles. A single
 * thread runs them, or several with a barrier. Results equal the plain kernel set bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/attention/kv_layout.h"
#include "kernels/cpu/ref/ref.h"
#include "kernels/cpu/vec/rope_impl.h"
#include "kernels/cuda/rows/row_ops.h"
#include "tests/unit/kernels/support/support_block.h"
#include "tests/unit/kernels/support/support_kernels.h"

static const uint32_t dims[] = {1, 15, 16, 17, 31, 80, 100, 576, 4097};

enum { N_DIMS = sizeof(dims) / sizeof(dims[0]) };

/* --- raw rows --- */

static void test_every_element_of_every_format_is_the_expanded_one(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q8_0,
                                       DTYPE_Q4_0, DTYPE_Q4_1,   DTYPE_Q5_0,   DTYPE_Q5_1,
                                       DTYPE_Q2_K, DTYPE_Q3_K,   DTYPE_Q4_K,   DTYPE_Q5_K,
                                       DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
    enum { K = 1024 };
    struct random random = {3};
    float wanted[K], found[K];
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (int repeat = 0; repeat < 8; repeat++) {
            size_t n_bytes = dtype_row_bytes(types[t], K);
            uint8_t *row = random_rows(&random, types[t], 1, K);
            if (repeat & 1) /* random bytes give scales of any kind */
                for (size_t i = 0; i < n_bytes; i++)
                    row[i] = (uint8_t)random_u32(&random);
            assert_true(dtype_to_f32(types[t], row, K, wanted));
            for (uint32_t k = 0; k < K; k++)
                found[k] = dequant_at(types[t], row, k);
            for (uint32_t k = 0; k < K; k++) /* the sign of a NaN depends on the processor */
                if (isnan(wanted[k]) && isnan(found[k]))
                    found[k] = wanted[k];
            assert_same_bits(found, wanted, sizeof(wanted), dtype_name(types[t]));
            free(row);
        }
}

static void test_all_halves_go_there_and_back(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 1u << 16; bits++) {
        uint16_t half = (uint16_t)bits;
        float f16 = maths_f16_to_f32(half), bf16 = maths_bf16_to_f32(half);
        if (!isnan(f16))
            assert_int_equal(maths_f32_to_f16(f16), half);
        if (!isnan(bf16))
            assert_int_equal(maths_f32_to_bf16(bf16), half);
    }
}

struct embed_job {
    float *y;
    const uint8_t *row;
    enum dtype type;
    uint32_t n;
};

static void embed_work(const struct block *b, void *arg)
{
    const struct embed_job *job = arg;
    embed_row(b, job->y, job->type, job->row, job->n);
}

static void test_an_embedding_is_the_cpus(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q6_K};
    enum { N = 512, ROWS = 5 };
    struct rig rig = rig_open("ref", 1);
    struct random random = {5};
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        struct weight_desc desc = {
            .role = WEIGHT_EMBEDDING, .source = types[t], .n_rows = ROWS, .k_total = N};
        uint8_t *raw = random_rows(&random, types[t], ROWS, N);
        if (types[t] == DTYPE_BF16)
            ((uint16_t *)(void *)raw)[7] = maths_f32_to_bf16(1e-20f); /* counts as 0 */
        struct weight *w = pack_weight(rig.ops, &desc, raw);
        for (uint32_t id = 0; id < ROWS; id++) {
            float *wanted = poisoned(N), *found = poisoned(N);
            struct tensor y = tensor_view(wanted, DTYPE_F32, 1, N);
            assert_int_equal(op_embed(rig.stream, &y, &id, w), 0);
            struct embed_cuda table = {raw,  types[t], ROWS, N, dtype_row_bytes(types[t], N),
                                       NULL, false};
            assert_null(embed_raw_row(&table, ROWS + id));
            struct embed_job job = {found, embed_raw_row(&table, id), types[t], N};
            run_block(4, embed_work, &job);
            assert_same_bits(found, wanted, N * sizeof(float), dtype_name(types[t]));
            job.row = NULL;
            run_block(1, embed_work, &job);
            assert_true(isnan(found[0]) && isnan(found[N - 1]));
            free(wanted);
            free(found);
        }
        free(w);
        free(raw);
    }
    rig_close(&rig);
}

struct copy_job {
    float *y;
    const float *x;
    uint32_t n;
};

static void copy_work(const struct block *b, void *arg)
{
    const struct copy_job *job = arg;
    copy_row(b, job->y, job->x, job->n);
}

static void test_a_row_is_copied_and_nothing_beside_it(void **state)
{
    (void)state;
    struct random random = {19};
    for (size_t i = 0; i < N_DIMS; i++)
        for (uint32_t n_threads = 1; n_threads <= 8; n_threads *= 2) {
            uint32_t n = dims[i];
            float *x = random_floats(&random, n, 0.0f), *y = poisoned(n + 1);
            struct copy_job job = {y, x, n};
            run_block(n_threads, copy_work, &job);
            assert_same_bits(y, x, n * sizeof(float), "copied row");
            assert_true(isnan(y[n]));
            free(x);
            free(y);
        }
}

/* --- norms, sums, activations --- */

struct row_job {
    float *y;
    const float *x, *w, *bias;
    uint32_t n;
    enum activation kind;
};

static void add_work(const struct block *b, void *arg)
{
    const struct row_job *job = arg;
    add_row(b, job->y, job->x, job->n, 1.0f);
}

static void act_work(const struct block *b, void *arg)
{
    const struct row_job *job = arg;
    act_mul_row(b, job->y, job->x, job->w, job->n, job->kind);
}

static void test_sums_and_activations_have_the_references_bits(void **state)
{
    (void)state;
    static const float odd[] = {0.0f,   -0.0f,    88.5f,     -88.5f, 1e30f,
                                -1e30f, INFINITY, -INFINITY, NAN};
    struct random random = {11};
    for (size_t i = 0; i < N_DIMS; i++) {
        uint32_t n = dims[i];
        float *x = random_floats(&random, n, 0.1f), *up = random_floats(&random, n, 0.0f);
        float *wanted = poisoned(n), *y = poisoned(n);
        for (uint32_t k = 0; k < n && k < sizeof(odd) / sizeof(odd[0]); k++)
            x[k] = odd[k];
        for (int kind = ACTIVATION_SILU; kind < N_ACTIVATIONS; kind++)
            for (int gated = kind == ACTIVATION_GATED_OAI; gated < 2; gated++) {
                ref_act_mul(wanted, x, gated ? up : NULL, n, (enum activation)kind);
                struct row_job job = {y, x, gated ? up : NULL, NULL, n, (enum activation)kind};
                run_block(4, act_work, &job);
                assert_same_bits(y, wanted, n * sizeof(float), "act_mul");
            }
        memcpy(wanted, up, n * sizeof(float));
        memcpy(y, up, n * sizeof(float));
        ref_add(wanted, x, n);
        struct row_job job = {.y = y, .x = x, .n = n};
        run_block(4, add_work, &job);
        assert_same_bits(y, wanted, n * sizeof(float), "add");
        free(x);
        free(up);
        free(wanted);
        free(y);
    }
}

/* --- positions --- */

struct rope_job {
    float *x;
    uint32_t n_heads, position;
    const struct rope_cuda *params;
};

static void rope_work(const struct block *b, void *arg)
{
    const struct rope_job *job = arg;
    rope_row_cuda(b, job->x, job->n_heads, job->position, job->params);
}

static void test_rope_has_the_cpus_bits(void **state)
{
    (void)state;
    static const struct {
        uint32_t head_dim, n_rot, n_heads;
    } shapes[] = {{64, 64, 3}, {80, 80, 2}, {96, 32, 5}, {256, 256, 1}, {2, 2, 7}, {300, 298, 2}};
    struct random random = {13};
    float inv_freq[150];
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++)
        for (int style = ROPE_INTERLEAVED; style <= ROPE_HALF; style++)
            for (uint32_t position = 0; position < 200000; position = position * 7 + 3) {
                uint32_t n = shapes[s].head_dim * shapes[s].n_heads;
                for (uint32_t i = 0; i < shapes[s].n_rot / 2; i++)
                    inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)shapes[s].n_rot);
                struct rope_params cpu = {(enum rope_style)style,
                                          shapes[s].head_dim,
                                          shapes[s].n_rot,
                                          inv_freq,
                                          1.1f,
                                          NULL};
                struct rope_cuda gpu = {
                    style == ROPE_INTERLEAVED, cpu.head_dim, cpu.n_rot, inv_freq, 1.1f, NULL};
                float *x = random_floats(&random, n, 0.0f), *wanted = malloc(n * sizeof(float));
                memcpy(wanted, x, n * sizeof(float));
                rope_row(wanted, shapes[s].n_heads, position, &cpu);
                struct rope_job job = {x, shapes[s].n_heads, position, &gpu};
                run_block(4, rope_work, &job);
                assert_same_bits(x, wanted, n * sizeof(float), "rope");
                free(x);
                free(wanted);
            }
}

/* --- the cache --- */

struct kv_job {
    struct kv_cuda kv;
    const float *k, *v;
    uint32_t slot, head;
};

static void kv_work(const struct block *b, void *arg)
{
    const struct kv_job *job = arg;
    kv_write_row(b, &job->kv, job->k, job->v, job->slot, job->head);
}

/* Every slot and head has its own bytes within the pool. */
static void test_places_in_the_cache_are_apart_and_fill_it(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8_E4M3};
    for (size_t t = 0; t < 5; t++)
        for (uint32_t head_dim = 7; head_dim <= 80; head_dim += 73) {
            struct kv_cuda kv = {NULL, NULL, types[t], 3, 16, 2, head_dim, 33};
            size_t vector = kv_cuda_vector_bytes(&kv, head_dim), used = 0;
            size_t item = vector + (kv_cuda_is_coded(&kv) ? sizeof(float) : 0);
            uint8_t *pool = calloc(1, 3 * 16 * 2 * item);
            for (uint32_t slot = 0; slot < 3 * 16; slot++)
                for (uint32_t head = 0; head < 2; head++) {
                    uint8_t *at = pool + kv_cuda_vector_at(&kv, head_dim, slot, head);
                    for (size_t i = 0; i < vector; i++)
                        assert_int_equal(at[i]++, 0);
                    used += vector;
                    if (!kv_cuda_is_coded(&kv))
                        continue;
                    at = pool + kv_cuda_scale_at(&kv, head_dim, slot, head);
                    assert_int_equal((size_t)(at - pool) % sizeof(float), 0);
                    for (size_t i = 0; i < sizeof(float); i++)
                        assert_int_equal(at[i]++, 0);
                    used += sizeof(float);
                }
            assert_int_equal(used, 3 * 16 * 2 * item);
            assert_int_equal(item, ops_kv_vector_bytes(types[t], head_dim));
            free(pool);
        }
}

/* Items of a write: each row and head occurs once, in the order of the rows. Each item covers one
 * head's part of a row. */
static void test_items_of_a_write_are_rows_and_heads(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{1, 1, 7}, {3, 2, 64}, {5, 3, 80}, {2, 8, 128}};
    for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
        uint32_t n_rows = shapes[s][0], n_heads = shapes[s][1], dim = shapes[s][2], i = 0;
        struct kv_cuda kv = {NULL, NULL, DTYPE_F32, 3, 16, n_heads, dim, dim};
        for (uint32_t row = 0; row < n_rows; row++)
            for (uint32_t head = 0; head < n_heads; head++, i++) {
                assert_int_equal(kv_cuda_item_row(&kv, i), row);
                assert_int_equal(kv_cuda_item_head(&kv, i), head);
                assert_int_equal(kv_cuda_column(head, dim), head * dim);
            }
        assert_int_equal(kv_cuda_n_items(&kv, n_rows), i);
        assert_true(kv_cuda_has_slot(&kv, 0) && kv_cuda_has_slot(&kv, 3 * 16 - 1));
        assert_false(kv_cuda_has_slot(&kv, 3 * 16) || kv_cuda_has_slot(&kv, UINT32_MAX));
    }
}

/* Quantizes x / scale to E4M3, with the scale max|x| / 448. */
static float quantize_f8(uint8_t *codes, const float *x, uint32_t n)
{
    float max = 0.0f;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return NAN;
        max = fmaxf(max, fabsf(x[i]));
    }
    for (uint32_t i = 0; i < n; i++) {
        float scaled = x[i] * (448.0f / fmaxf(max, 1e-30f));
        codes[i] = maths_f32_to_f8(scaled);
        assert_true(fabsf(maths_f8_to_f32(codes[i]) - scaled) <= fabsf(scaled) / 16.0f + 0x1p-10f);
    }
    return max * (1.0f / 448.0f);
}

/* v NULL: a latent cache, which K alone is written to. */
static void check_written(enum dtype type, const float *k, const float *v, uint32_t head_dim,
                          uint32_t n_threads)
{
    uint32_t v_dim = head_dim > 8 ? head_dim - 5 : head_dim; /* V is narrower than K */
    struct kv_job job = {{NULL, NULL, type, 2, 16, 3, head_dim, v_dim}, k, v, 21, 2};
    size_t bytes = 2 * 16 * 3 * (kv_cuda_vector_bytes(&job.kv, head_dim) + sizeof(float));
    uint8_t *pools = calloc(2, bytes), wanted[4 * 256];
    job.kv.k = pools;
    job.kv.v = v ? pools + bytes : NULL;
    run_block(n_threads, kv_work, &job);
    for (size_t i = 0; i < bytes && !v; i++)
        assert_int_equal(pools[bytes + i], 0);
    for (int is_v = 0; is_v < (v ? 2 : 1); is_v++) {
        const uint8_t *pool = pools + (is_v ? bytes : 0);
        const float *x = is_v ? v : k;
        uint32_t dim = is_v ? v_dim : head_dim;
        if (kv_cuda_is_coded(&job.kv)) {
            float scale = type == DTYPE_I8 ? ref_kv_quantize(wanted, x, dim)
                                           : quantize_f8(wanted, x, dim),
                  found;
            memcpy(&found, pool + kv_cuda_scale_at(&job.kv, dim, 21, 2), sizeof(found));
            assert_true(isnan(scale) ? isnan(found) : memcmp(&scale, &found, sizeof(scale)) == 0);
            if (isnan(scale))
                continue;
        } else {
            ref_kv_store(wanted, type, x, dim);
        }
        size_t n = kv_cuda_is_coded(&job.kv) ? dim : kv_cuda_vector_bytes(&job.kv, dim);
        assert_same_bits(pool + kv_cuda_vector_at(&job.kv, dim, 21, 2), wanted, n,
                         dtype_name(type));
    }
    free(pools);
}

static void test_what_is_written_to_the_cache_is_the_cpus(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_I8, DTYPE_F8_E4M3};
    static const uint32_t head_dims[] = {1, 7, 64, 80, 96, 112, 128, 256};
    struct random random = {17};
    for (size_t t = 0; t < 5; t++)
        for (size_t h = 0; h < sizeof(head_dims) / sizeof(head_dims[0]); h++)
            for (uint32_t n_threads = 1; n_threads <= 16; n_threads *= 4) {
                float *k = random_floats(&random, head_dims[h], 0.1f),
                      *v = random_floats(&random, head_dims[h], 0.0f);
                k[0] = 1e-20f;
                check_written(types[t], k, v, head_dims[h], n_threads);
                check_written(types[t], k, NULL, head_dims[h], n_threads);
                v[head_dims[h] / 2] = n_threads == 4 ? INFINITY : NAN;
                check_written(types[t], k, v, head_dims[h], n_threads);
                memset(k, 0, head_dims[h] * sizeof(float));
                check_written(types[t], k, v, head_dims[h], n_threads);
                free(k);
                free(v);
            }
}

/* Each head's columns go to their place among those of y. */
static void test_columns_of_copied_heads_are_apart(void **state)
{
    (void)state;
    for (uint32_t width = 1; width <= 7; width += 3)
        for (uint32_t y_head = width; y_head <= 12; y_head += 5)
            for (uint32_t i = 0; i < 5 * width; i++) {
                uint32_t to = copy_heads_to(i, width, y_head);
                assert_int_equal(to / y_head, i / width);
                assert_int_equal(to % y_head, i % width);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns_of_copied_heads_are_apart),
        cmocka_unit_test(test_every_element_of_every_format_is_the_expanded_one),
        cmocka_unit_test(test_all_halves_go_there_and_back),
        cmocka_unit_test(test_an_embedding_is_the_cpus),
        cmocka_unit_test(test_a_row_is_copied_and_nothing_beside_it),
        cmocka_unit_test(test_sums_and_activations_have_the_references_bits),
        cmocka_unit_test(test_rope_has_the_cpus_bits),
        cmocka_unit_test(test_places_in_the_cache_are_apart_and_fill_it),
        cmocka_unit_test(test_items_of_a_write_are_rows_and_heads),
        cmocka_unit_test(test_what_is_written_to_the_cache_is_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
