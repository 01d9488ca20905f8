/* Tests of the CPU device and of the choice of a kernel set. No op may allocate. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <malloc.h>

#include "base/error.h"
#include "base/system/cpu.h"
#include "kernels/backend.h"
#include "kernels/sample.h"
#include "tests/unit/kernels/support/support_kernels.h"

/* Counts allocations of the whole program while armed. */
static _Atomic int armed;
static _Atomic uint32_t n_allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern void *__libc_malloc(size_t n_bytes);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *old, size_t n_bytes);
extern void *__libc_memalign(size_t align, size_t n_bytes);

static void note(void)
{
    if (atomic_load_explicit(&armed, memory_order_relaxed))
        atomic_fetch_add(&n_allocations, 1);
}

void *malloc(size_t n_bytes)
{
    note();
    return __libc_malloc(n_bytes);
}

void *calloc(size_t n, size_t size)
{
    note();
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t n_bytes)
{
    note();
    return __libc_realloc(old, n_bytes);
}

void *aligned_alloc(size_t align, size_t n_bytes)
{
    note();
    return __libc_memalign(align, n_bytes);
}

int posix_memalign(void **out, size_t align, size_t n_bytes)
{
    note();
    *out = __libc_memalign(align, n_bytes);
    return *out != NULL ? 0 : 12;
}
#endif

/* Runs each op once, at m rows. */
static void run_everything(const struct rig *rig, struct act *act, const struct weight *quantized,
                           const struct weight *dense, float *x, float *y, struct kv_layer *kv,
                           uint32_t m)
{
    enum { K = 128 };
    uint32_t ids[40], zero[40] = {0}, table[4] = {0, 1, 2, 3};
    float inv_freq[32] = {1.0f};
    for (uint32_t i = 0; i < m; i++)
        ids[i] = i;
    struct tensor tx = tensor_view(x, DTYPE_F32, m, K), ty = tensor_view(y, DTYPE_F32, m, K);
    struct rope_params rope = {ROPE_HALF, 64, 64, inv_freq, 1.0f, NULL};
    struct attention_rows rows = {ids, zero, ids, table, 4, m, 1, 0};
    struct attention_params attention = {.n_heads = 2, .heads_per_kv = 1, .scale = 0.1f};
    struct sample_params sampling[40];
    static struct sample_result results[40];
    for (uint32_t i = 0; i < m; i++)
        sampling[i] = (struct sample_params){.temperature = 0.7f,
                                             .top_k = 5,
                                             .top_p = 0.9f,
                                             .typical_p = 1.0f,
                                             .repetition_penalty = 1.0f,
                                             .position = i,
                                             .n_top = 3,
                                             .want_logprob = 1};
    struct stream *s = rig->stream;
    int rc = op_embed(s, &tx, ids, quantized);
    rc |= op_rms_norm(s, &ty, &tx, x, 1e-5f);
    rc |= op_layer_norm(s, &ty, &tx, x, NULL, 1e-5f);
    rc |= op_act_prepare(s, act, &tx, ACT_INT8 | ACT_F32 | ACT_BF16, NULL, NULL);
    rc |= op_linear(s, &ty, act, quantized);
    rc |= op_linear(s, &ty, act, dense);
    rc |= op_rope(s, &ty, ids, &rope);
    rc |= op_kv_write(s, kv, &tx, &ty, ids);
    rc |= op_attention(s, &ty, &tx, kv, &rows, &attention);
    rc |= op_act_mul(s, &ty, &ty, &tx, ACTIVATION_SILU);
    rc |= op_add(s, &ty, &tx);
    rc |= op_add_bias(s, &ty, x);
    rc |= op_gather_rows(s, &ty, &tx, zero);
    rc |= op_sample(s, &ty, sampling, results);
    assert_int_equal(rc, 0);
}

static void test_no_op_allocates(void **state)
{
    (void)state;
    enum { K = 128, N = 128, M = 40 };
    struct random r = {31};
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        struct rig rig = rig_open(*set, 2);
        uint8_t *raw = random_rows(&r, DTYPE_Q4_1, N, K),
                *plain = random_rows(&r, DTYPE_BF16, N, K);
        struct weight_desc q = column_desc(DTYPE_Q4_1, N, K), d = column_desc(DTYPE_BF16, N, K);
        struct weight *quantized = pack_weight(rig.ops, &q, raw),
                      *dense = pack_weight(rig.ops, &d, plain);
        struct act *act = make_act(&rig, M, K);
        float *x = calloc(M * K, sizeof(float)), *y = calloc(M * K, sizeof(float));
        struct kv_layer kv = {
            calloc(4 * 2 * 16 * 64, 2), calloc(4 * 2 * 16 * 64, 2), DTYPE_BF16, 4, 16, 2, 64, 64};
        run_everything(&rig, act, quantized, dense, x, y, &kv, 1);
        atomic_store(&n_allocations, 0);
        atomic_store(&armed, 1);
        run_everything(&rig, act, quantized, dense, x, y, &kv, 1);
        run_everything(&rig, act, quantized, dense, x, y, &kv, M);
        atomic_store(&armed, 0);
        assert_int_equal(n_allocations, 0);
        free(kv.k);
        free(kv.v);
        free(x);
        free(y);
        rig.ops->act_destroy(act);
        free(quantized);
        free(dense);
        free(raw);
        free(plain);
        rig_close(&rig);
    }
}

static void test_prepared_activations_take_what_they_say(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 1}, {3, 33}, {64, 576}, {512, 1536}};
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        struct rig rig = rig_open(*set, 1);
        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            size_t said = rig.ops->act_bytes(shapes[i][0], shapes[i][1]);
            struct act *act = make_act(&rig, shapes[i][0], shapes[i][1]);
            size_t taken = malloc_usable_size(act);
            /* the allocation rounds up to whole pages */
            assert_true(said <= taken && taken < said + 8192);
            rig.ops->act_destroy(act);
        }
        rig_close(&rig);
    }
}

static void test_sets_are_found_by_name_and_auto_takes_the_best(void **state)
{
    (void)state;
    const struct op_table *ops = NULL;
    struct error err = {0};
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        assert_int_equal(op_table_cpu(*set, &ops, &err), 0);
        assert_string_equal(ops->name, *set);
        const struct op_table *best = NULL;
        assert_int_equal(op_table_cpu("auto", &best, &err), 0);
        if (set[1] == NULL)
            assert_ptr_equal(best, ops);
    }
    assert_int_equal(op_table_cpu("f32", &ops, &err), 0);
    assert_string_equal(ops->name, "f32");
    assert_int_equal(op_table_cpu("fast", &ops, &err), STATUS_NOT_FOUND);
    assert_non_null(strstr(err.message, "fast"));
    if (!cpu_features()->avx512_vnni)
        assert_int_equal(op_table_cpu("avx512", &ops, &err), STATUS_FAILED_PRECONDITION);
    if (ops_why_no_amx()[0] != '\0') {
        assert_int_equal(op_table_cpu("amx", &ops, &err), STATUS_FAILED_PRECONDITION);
        assert_non_null(strstr(err.message, ops_why_no_amx()));
    }
    assert_int_equal(ops_why_no_amx()[0] == '\0', cpu_features()->amx_int8);
}

static void test_cpu_device_reports_memory_and_refuses_what_does_not_fit(void **state)
{
    (void)state;
    const struct device_ops *ops = backend_cpu();
    struct device *device = NULL;
    struct device_memory memory;
    struct error err = {0};
    assert_int_equal(ops->open(1, &device, &err), STATUS_NOT_FOUND);
    assert_int_equal(ops->open(0, &device, &err), 0);
    assert_int_equal(ops->memory(device, &memory, &err), 0);
    assert_true(memory.total_bytes > 0 && memory.free_bytes <= memory.total_bytes);
    static const size_t sizes[] = {1, 4096, 5 << 20};
    for (int i = 0; i < 3; i++) {
        void *data = NULL;
        assert_int_equal(ops->alloc(device, sizes[i], &data, &err), 0);
        assert_int_equal((uintptr_t)data % 256, 0);
        memset(data, 1, sizes[i]);
        ops->free(device, data, sizes[i]);
    }
    void *data = NULL;
    assert_int_equal(ops->alloc(device, SIZE_MAX / 4, &data, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_null(data);
    struct stream *stream = NULL;
    assert_int_equal(ops->stream_create(device, 0, &stream, &err), 0);
    float a[3] = {1, 2, 3}, b[3] = {0};
    assert_int_equal(ops->upload(stream, b, a, sizeof(a)), 0);
    assert_int_equal(ops->stream_sync(stream, &err), 0);
    assert_memory_equal(a, b, sizeof(a));
    ops->stream_destroy(stream);
    ops->stream_destroy(NULL);
    ops->close(device);
}

static void test_cuda_module_that_is_not_there_is_said_so(void **state)
{
    (void)state;
    setenv("SLUICE_CUDA_MODULE", "/nonexistent/libsluice_cuda.so", 1);
    struct backend_module module;
    struct error err = {0}, again = {0};
    assert_int_equal(backend_cuda(&module, &err), STATUS_NOT_FOUND);
    assert_true(strlen(err.message) > 0);
    assert_int_equal(backend_cuda(&module, &again), STATUS_NOT_FOUND);
    assert_string_equal(err.message, again.message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_op_allocates),
        cmocka_unit_test(test_prepared_activations_take_what_they_say),
        cmocka_unit_test(test_sets_are_found_by_name_and_auto_takes_the_best),
        cmocka_unit_test(test_cpu_device_reports_memory_and_refuses_what_does_not_fit),
        cmocka_unit_test(test_cuda_module_that_is_not_there_is_said_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
