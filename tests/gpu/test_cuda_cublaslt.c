/* Tests which algorithms of cuBLASLt are refused. Needs the emulated GPU, whose stand-in
 * (tests/simt/simt_cublaslt.c) offers whatever the real library might. The accepted algorithms are
 * tested in test_cuda_dense.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "tests/gpu/support/support_dense.h"

static void test_cublaslt_that_splits_all_sums_is_refused(void **state)
{
    enum { M = 8, N = 16, K = 72 };
    struct random random = {211};
    struct error err = {0};
    (void)state;
    if (strstr(gpu.module.op_table->numerics, "-lt") == NULL ||
        getenv("SLUICE_TEST_EMULATED_GPU") == NULL) {
        print_message("skipped: needs the emulator's stand-in for cuBLASLt\n");
        skip();
    }
    struct weight_desc desc = column_desc(DTYPE_BF16, N, K);
    struct dense_weight weight =
        dense_weight_make(&dense_kinds[2], &desc, random_rows(&random, DTYPE_BF16, N, K));
    struct stream *stream = NULL, *usual = gpu.stream; /* the stream is at its end afterwards */
    assert_int_equal(gpu.module.device_ops->stream_create(gpu.device, 0, &stream, &err), 0);
    float *x = random_floats(&random, M * K, 0.0f);
    float *device_x = gpu_upload(x, M * K * sizeof(float));
    float *device_y = gpu_upload(NULL, M * N * sizeof(float));
    struct tensor tx = tensor_view(device_x, DTYPE_F32, M, K);
    struct tensor ty = tensor_view(device_y, DTYPE_F32, M, N);
    struct role_run role = {0, M, false};
    struct act *act = NULL;
    setenv("SIMT_CUBLASLT", "split", 1);
    gpu.stream = stream;
    stream->roles = &role;
    stream->n_roles = 1;
    assert_int_equal(gpu.module.op_table->act_create(gpu.device, M, K, &act, &err), 0);
    assert_int_equal(op_act_prepare(stream, act, &tx, weight_act_kind(weight.w), NULL, NULL), 0);
    assert_int_equal(op_linear(stream, &ty, act, weight.w), STATUS_UNIMPLEMENTED);
    assert_int_equal(gpu.module.device_ops->stream_sync(stream, &err), STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(err.message, "does not split sums"));
    unsetenv("SIMT_CUBLASLT");
    gpu.stream = usual;
    gpu.module.op_table->act_destroy(act);
    gpu.module.device_ops->stream_destroy(stream);
    gpu_drop(device_x, 0);
    gpu_drop(device_y, 0);
    free(x);
    dense_weight_drop(&weight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cublaslt_that_splits_all_sums_is_refused),
    };
    return cmocka_run_group_tests(tests, gpu_open, gpu_close);
}
