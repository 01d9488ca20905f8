/* Tests of the CUDA backend on a GPU: memory, streams, events, a captured step, and the built ops.
 * RMS norm and the sampler equal the plain reference bit for bit; linears are compared with f64.
 * Without a GPU the group fails with the reason. The GPU may be emulated (tests/simt), with
 * SLUICE_TEST_EMULATED_GPU set. Checks that need a real GPU are then left out with a message. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/cpu/ref/ref.h"
#include "kernels/cpu/sample/sample_cpu.h"
#include "tests/gpu/support/support_seed.h"
#include "tests/unit/kernels/support/support_kernels.h"

static struct backend_module module;
static struct device *device;
static struct stream *stream;

static int open_gpu(void **state)
{
    (void)state;
    struct error err = {0};
    int rc = backend_cuda(&module, &err);
    if (rc == 0)
        rc = module.device_ops->open(0, &device, &err);
    if (rc == 0)
        rc = module.device_ops->stream_create(device, 0, &stream, &err);
    if (rc != 0)
        print_error("%s\n", err.message);
    return rc;
}

static int close_gpu(void **state)
{
    (void)state;
    if (!module.device_ops)
        return 0;
    module.device_ops->stream_destroy(stream);
    module.device_ops->close(device);
    return 0;
}

static void sync_stream(void)
{
    struct error err = {0};
    if (module.device_ops->stream_sync(stream, &err) != 0)
        fail_msg("%s", err.message);
}

static void *on_device(const void *host, size_t n_bytes)
{
    struct error err = {0};
    void *data = NULL;
    if (module.device_ops->alloc(device, n_bytes, &data, &err) != 0)
        fail_msg("%s", err.message);
    if (host)
        assert_int_equal(module.device_ops->upload(stream, data, host, n_bytes), 0);
    sync_stream();
    return data;
}

static void fetch(void *host, const void *data, size_t n_bytes)
{
    assert_int_equal(module.device_ops->download(stream, host, data, n_bytes), 0);
    sync_stream();
}

static void drop(void *data, size_t n_bytes)
{
    module.device_ops->free(device, data, n_bytes);
}

static void test_memory_is_counted_and_copied(void **state)
{
    (void)state;
    struct device_memory memory = {0};
    struct error err = {0};
    struct random random = test_random(3);
    enum { N = 100003 };
    float *x = random_floats(&random, N, 0.0f), *back = poisoned(N);
    assert_int_equal(module.device_ops->memory(device, &memory, &err), 0);
    assert_true(memory.total_bytes > memory.free_bytes && memory.free_bytes > 0);
    void *a = on_device(x, N * sizeof(float)), *b = on_device(NULL, N * sizeof(float));
    assert_int_equal(module.device_ops->copy(stream, b, a, N * sizeof(float)), 0);
    fetch(back, b, N * sizeof(float));
    assert_same_bits(back, x, N * sizeof(float), "copy");
    void *huge = NULL;
    assert_int_equal(module.device_ops->alloc(device, (size_t)1 << 46, &huge, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "bytes free"));
    drop(a, N * sizeof(float));
    drop(b, N * sizeof(float));
    free(x);
    free(back);
}

static void test_events_mark_the_stream(void **state)
{
    (void)state;
    struct event *event = NULL;
    struct error err = {0};
    assert_int_equal(module.device_ops->event_create(device, &event, &err), 0);
    assert_int_equal(module.device_ops->event_record(stream, event), 0);
    assert_int_equal(module.device_ops->event_wait(event, &err), 0);
    module.device_ops->event_destroy(event);
}

static void test_rms_norm_has_the_references_bits(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 576}, {3, 17}, {300, 4096}, {2, 1}};
    struct random random = test_random(5);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        uint32_t m = shapes[i][0], n = shapes[i][1];
        size_t n_bytes = (size_t)m * n * sizeof(float);
        float *x = random_floats(&random, (size_t)m * n, 0.01f);
        float *w = random_floats(&random, n, 0.0f), *wanted = poisoned((size_t)m * n);
        float *got = poisoned((size_t)m * n);
        for (uint32_t r = 0; r < m; r++)
            ref_rms_norm(wanted + (size_t)r * n, x + (size_t)r * n, w, n, 1e-5f);
        void *device_x = on_device(x, n_bytes), *device_w = on_device(w, n * sizeof(float));
        struct tensor t = tensor_view(device_x, DTYPE_F32, m, n);
        assert_int_equal(op_rms_norm(stream, &t, &t, device_w, 1e-5f), 0);
        fetch(got, device_x, n_bytes);
        assert_same_bits(got, wanted, n_bytes, "rms_norm");
        drop(device_x, n_bytes);
        drop(device_w, n * sizeof(float));
        free(x);
        free(w);
        free(wanted);
        free(got);
    }
}

/* Packed slice by slice on the device; *out_data is to be dropped, desc's bytes. */
static struct weight *upload_weight(const struct weight_desc *desc, const void *raw,
                                    void **out_data)
{
    struct error err = {0};
    struct weight *weight = NULL;
    size_t n_bytes = weight_bytes(module.op_table, desc, &err);
    assert_true(n_bytes > 0);
    uint8_t *data = on_device(NULL, n_bytes);
    for (uint32_t row = 0; row < desc->n_rows; row += WEIGHT_PACK_ROWS) {
        struct weight_copy copies[WEIGHT_MAX_COPIES];
        uint32_t n_copies = 0, left = desc->n_rows - row;
        uint32_t n_rows = left < WEIGHT_PACK_ROWS ? left : WEIGHT_PACK_ROWS;
        size_t slice_bytes = weight_slice_bytes(module.op_table, desc, n_rows);
        uint8_t *slice = aligned_alloc(64, (slice_bytes + 63) / 64 * 64);
        const uint8_t *from =
            (const uint8_t *)raw + row * dtype_row_bytes(desc->source, desc->k_total);
        if (weight_pack_slice(module.op_table, desc, row, n_rows, from, slice, copies, &n_copies,
                              &err) != 0)
            fail_msg("%s", err.message);
        for (uint32_t i = 0; i < n_copies; i++) {
            assert_true(copies[i].from + copies[i].n_bytes <= slice_bytes);
            assert_true(copies[i].to + copies[i].n_bytes <= n_bytes);
            assert_int_equal(module.device_ops->upload(stream, data + copies[i].to,
                                                       slice + copies[i].from, copies[i].n_bytes),
                             0);
        }
        sync_stream();
        free(slice);
    }
    if (weight_bind(module.op_table, desc, data, &weight, &err) != 0)
        fail_msg("%s", err.message);
    *out_data = data;
    return weight;
}

/* y[m, n] by the device. */
static void run_linear(const struct weight *w, const float *x, uint32_t m, uint32_t n, uint32_t k,
                       float *y)
{
    struct error err = {0};
    struct act *act = NULL;
    size_t x_bytes = (size_t)m * k * sizeof(float), y_bytes = (size_t)m * n * sizeof(float);
    void *device_x = on_device(x, x_bytes), *device_y = on_device(NULL, y_bytes);
    assert_int_equal(module.op_table->act_create(device, m, k, &act, &err), 0);
    struct tensor tx = tensor_view(device_x, DTYPE_F32, m, k);
    struct tensor ty = tensor_view(device_y, DTYPE_F32, m, n);
    assert_int_equal(op_act_prepare(stream, act, &tx, weight_act_kind(w), NULL, NULL), 0);
    assert_int_equal(op_linear(stream, &ty, act, w), 0);
    fetch(y, device_y, y_bytes);
    module.op_table->act_destroy(act);
    drop(device_x, x_bytes);
    drop(device_y, y_bytes);
}

/* Dense linears are cuBLASLt's, which needs a real GPU. Tried on a stream of its own, whose failure
 * stays with it. */
static void need_linears(void)
{
    enum { N = 32 };
    struct error err = {0};
    struct random random = test_random(1);
    struct act *act = NULL;
    struct stream *own = NULL;
    void *data;
    float *raw = random_floats(&random, N * N, 0.0f);
    struct weight_desc desc = column_desc(DTYPE_F32, N, N);
    struct weight *weight = upload_weight(&desc, raw, &data);
    void *x = on_device(raw, N * sizeof(float)), *y = on_device(NULL, N * sizeof(float));
    struct tensor tx = tensor_view(x, DTYPE_F32, 1, N), ty = tensor_view(y, DTYPE_F32, 1, N);
    assert_int_equal(module.device_ops->stream_create(device, 0, &own, &err), 0);
    assert_int_equal(module.op_table->act_create(device, 1, N, &act, &err), 0);
    op_act_prepare(own, act, &tx, weight_act_kind(weight), NULL, NULL);
    op_linear(own, &ty, act, weight);
    int rc = module.device_ops->stream_sync(own, &err);
    module.op_table->act_destroy(act);
    module.device_ops->stream_destroy(own);
    weight_unbind(module.op_table, weight);
    drop(data, 0);
    drop(x, 0);
    drop(y, 0);
    free(raw);
    bool missing =
        rc == STATUS_UNIMPLEMENTED || rc == STATUS_NOT_FOUND || rc == STATUS_FAILED_PRECONDITION;
    if (missing && test_is_emulated()) {
        print_message("not run on an emulated GPU: %s\n", err.message);
        skip();
    }
    assert_int_equal(rc, 0);
}

static double relative_error(const float *y, const float *x, const float *w, uint32_t m, uint32_t n,
                             uint32_t k)
{
    double worst = 0.0, largest = 0.0;
    for (uint32_t r = 0; r < m; r++)
        for (uint32_t c = 0; c < n; c++) {
            double sum = 0.0;
            for (uint32_t i = 0; i < k; i++)
                sum += (double)x[(size_t)r * k + i] * (double)w[(size_t)c * k + i];
            worst = fmax(worst, fabs(sum - (double)y[(size_t)r * n + c]));
            largest = fmax(largest, fabs(sum));
        }
    return worst / largest;
}

static void test_linears_are_near_f64_and_do_not_depend_on_the_rows(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        double tolerance; /* activations round to the weight's type: 2^-9 and 2^-12 */
    } types[] = {{DTYPE_F32, 1e-5}, {DTYPE_BF16, 6e-3}, {DTYPE_F16, 8e-4}};
    enum { M = 65, N = 192, K = 576 };
    struct random random = test_random(9);
    need_linears();
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++)
        for (int by_row = 0; by_row < 2; by_row++) {
            enum dtype type = types[t].type;
            uint8_t *raw = random_rows(&random, type, N, K);
            float *x = random_floats(&random, (size_t)M * K, 0.0f);
            float *w = poisoned((size_t)N * K), *all = poisoned((size_t)M * N);
            float *one = poisoned(N);
            dtype_to_f32(type, raw, (size_t)N * K, w);
            struct weight_desc desc = by_row ? row_desc(type, N, K, 1, 0) : column_desc(type, N, K);
            void *data;
            struct weight *weight = upload_weight(&desc, raw, &data);
            run_linear(weight, x, M, N, K, all);
            assert_true(relative_error(all, x, w, M, N, K) < types[t].tolerance);
            for (uint32_t r = 0; r < M; r += 16) {
                run_linear(weight, x + (size_t)r * K, 1, N, K, one);
                assert_same_bits(one, all + (size_t)r * N, N * sizeof(float), "one row or many");
            }
            weight_unbind(module.op_table, weight);
            drop(data, 0);
            free(raw);
            free(x);
            free(w);
            free(all);
            free(one);
        }
}

static void test_sampler_draws_what_the_cpu_draws(void **state)
{
    (void)state;
    enum { ROWS = 64, VOCAB = 49152 };
    struct random random = test_random(21);
    float *logits = random_floats(&random, (size_t)ROWS * VOCAB, 0.01f);
    struct sample_params params[ROWS];
    struct sample_result results[ROWS], wanted;
    void *scratch = aligned_alloc(64, SAMPLE_SCRATCH_BYTES(VOCAB));
    for (uint32_t r = 0; r < ROWS; r++)
        params[r] = (struct sample_params){.temperature = r % 4 ? 0.8f : 0.0f,
                                           .top_k = r % 3 ? 0 : 50,
                                           .top_p = r % 2 ? 0.9f : 1.0f,
                                           .min_p = r % 5 ? 0.0f : 0.05f,
                                           .typical_p = r % 7 ? 1.0f : 0.5f,
                                           .repetition_penalty = 1.0f,
                                           .seed = r * 77,
                                           .position = r,
                                           .want_logprob = 1,
                                           .n_top = r % 6};
    void *device_logits = on_device(logits, (size_t)ROWS * VOCAB * sizeof(float));
    struct tensor t = tensor_view(device_logits, DTYPE_F32, ROWS, VOCAB);
    assert_int_equal(op_sample(stream, &t, params, results), 0);
    sync_stream();
    for (uint32_t r = 0; r < ROWS; r++) {
        sample_row_cpu(logits + (size_t)r * VOCAB, VOCAB, &params[r], scratch, &wanted);
        assert_int_equal(results[r].status, wanted.status);
        assert_int_equal(results[r].id, wanted.id);
        assert_memory_equal(&results[r].logprob, &wanted.logprob, sizeof(float));
        assert_int_equal(results[r].n_top, wanted.n_top);
        assert_memory_equal(results[r].top_ids, wanted.top_ids, wanted.n_top * sizeof(uint32_t));
    }
    drop(device_logits, (size_t)ROWS * VOCAB * sizeof(float));
    free(logits);
    free(scratch);
}

static void test_captured_step_replays_with_new_inputs(void **state)
{
    (void)state;
    enum { M = 4, N = 128, K = 256 };
    struct random random = test_random(33);
    struct error err = {0};
    struct graph *graph = NULL;
    struct act *act = NULL;
    const struct device_ops *ops = module.device_ops;
    size_t x_bytes = (size_t)M * K * sizeof(float), y_bytes = (size_t)M * N * sizeof(float);
    need_linears();
    uint8_t *raw = random_rows(&random, DTYPE_BF16, N, K);
    float *norm = random_floats(&random, K, 0.0f), *eager = poisoned((size_t)M * N);
    float *replayed = poisoned((size_t)M * N);
    struct weight_desc desc = column_desc(DTYPE_BF16, N, K);
    void *data;
    struct weight *weight = upload_weight(&desc, raw, &data);
    void *device_x = on_device(NULL, x_bytes), *device_h = on_device(NULL, x_bytes);
    void *device_y = on_device(NULL, y_bytes), *device_norm = on_device(norm, K * sizeof(float));
    struct tensor x = tensor_view(device_x, DTYPE_F32, M, K);
    struct tensor h = tensor_view(device_h, DTYPE_F32, M, K);
    struct tensor y = tensor_view(device_y, DTYPE_F32, M, N);
    assert_int_equal(module.op_table->act_create(device, M, K, &act, &err), 0);
    for (int round = 0; round < 4; round++) { /* 0: eager, 1: captured, 2 and 3: replayed */
        float *input = random_floats(&random, (size_t)M * K, 0.01f);
        ops->upload(stream, device_x, input, x_bytes);
        sync_stream();
        if (round == 1)
            assert_int_equal(ops->capture_begin(stream, &err), 0);
        if (round < 2) {
            assert_int_equal(op_rms_norm(stream, &h, &x, device_norm, 1e-5f), 0);
            assert_int_equal(op_act_prepare(stream, act, &h, weight_act_kind(weight), NULL, NULL),
                             0);
            assert_int_equal(op_linear(stream, &y, act, weight), 0);
        }
        if (round == 1)
            assert_int_equal(ops->capture_end(stream, &graph, &err), 0);
        if (round >= 2) {
            assert_int_equal(ops->graph_launch(stream, graph), 0);
            fetch(replayed, device_y, y_bytes);
            op_rms_norm(stream, &h, &x, device_norm, 1e-5f);
            op_act_prepare(stream, act, &h, weight_act_kind(weight), NULL, NULL);
            op_linear(stream, &y, act, weight);
            fetch(eager, device_y, y_bytes);
            assert_same_bits(replayed, eager, y_bytes, "graph");
        }
        sync_stream();
        free(input);
    }
    ops->graph_destroy(graph);
    module.op_table->act_destroy(act);
    weight_unbind(module.op_table, weight);
    drop(data, 0);
    drop(device_x, x_bytes);
    drop(device_h, x_bytes);
    drop(device_y, y_bytes);
    drop(device_norm, K * sizeof(float));
    free(raw);
    free(norm);
    free(eager);
    free(replayed);
}

/* Last: the failure stays with the stream. */
static void test_a_failure_is_told_by_the_sync(void **state)
{
    (void)state;
    struct error err = {0};
    struct graph *graph = NULL;
    struct sample_params params = {.temperature = 0.0f};
    struct sample_result result;
    float logits[4] = {0};
    void *data = on_device(logits, sizeof(logits));
    struct tensor t = tensor_view(data, DTYPE_F32, 1, 4);
    assert_int_equal(module.device_ops->capture_begin(stream, &err), 0);
    assert_int_equal(op_sample(stream, &t, &params, &result), STATUS_FAILED_PRECONDITION);
    assert_int_equal(module.device_ops->capture_end(stream, &graph, &err), 0);
    module.device_ops->graph_destroy(graph);
    assert_int_equal(module.device_ops->stream_sync(stream, &err), STATUS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "captured step"));
    drop(data, sizeof(logits));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_counted_and_copied),
        cmocka_unit_test(test_events_mark_the_stream),
        cmocka_unit_test(test_rms_norm_has_the_references_bits),
        cmocka_unit_test(test_linears_are_near_f64_and_do_not_depend_on_the_rows),
        cmocka_unit_test(test_sampler_draws_what_the_cpu_draws),
        cmocka_unit_test(test_captured_step_replays_with_new_inputs),
        cmocka_unit_test(test_a_failure_is_told_by_the_sync),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
