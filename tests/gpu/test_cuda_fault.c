/* Tests of a device whose kernel fails, and of requests for more memory than there is. The emulated
 * GPU can let a kernel fail with any error (SIMT_FAIL). On a real GPU a kernel reads an unmapped
 * address. Each case has its own process, because the context does not survive. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/device.h"
#include "kernels/device_fault.h"
#include "kernels/ops.h"
#include "tests/gpu/support/support_seed.h"
#include "tests/unit/kernels/support/support_kernels.h"

enum { N = 64, CHILD_S = 60, ILLEGAL_ADDRESS = 700 };

/* In the child: a failed check is printed and ends the process with exit status 1. */
#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void fail_and_go_on(int code, const char *reason)
{
    struct backend_module module;
    struct device *device = NULL;
    struct stream *stream = NULL, *second = NULL;
    struct event *event = NULL;
    struct error err = {0};
    void *data = NULL, *more = NULL;
    float ones[N];
    for (int i = 0; i < N; i++)
        ones[i] = 1.0f;
    MUST(backend_cuda(&module, &err) == 0);
    const struct device_ops *ops = module.device_ops;
    MUST(ops->open(0, &device, &err) == 0);
    MUST(ops->stream_create(device, 0, &stream, &err) == 0);
    MUST(ops->stream_create(device, 0, &second, &err) == 0);
    MUST(ops->event_create(device, &event, &err) == 0);
    MUST(ops->alloc(device, sizeof(ones), &data, &err) == 0);
    MUST(ops->upload(stream, data, ones, sizeof(ones)) == 0);
    MUST(ops->stream_sync(stream, &err) == 0);

    struct tensor x = tensor_view(data, DTYPE_F32, 1, N);
    const float *weights = test_is_emulated() ? data : (const float *)((uintptr_t)1 << 44);
    (void)op_rms_norm(stream, &x, &x, weights, 1e-5f); /* the launch fails, or the wait for it */
    MUST(ops->stream_sync(stream, &err) != 0);
    MUST(strcmp(error_reason_name(&err), reason) == 0);
    MUST(device_fault_of_error(&err) == device_fault_of_cuda(code));
    uint32_t index = 9;
    MUST(device_fault_device(&err, &index) && index == 0);

    /* No stream works any more, and all streams report the same error. */
    MUST(ops->upload(second, data, ones, sizeof(ones)) != 0);
    MUST(ops->stream_sync(second, &err) != 0 && strcmp(error_reason_name(&err), reason) == 0);
    MUST(ops->stream_sync(stream, &err) != 0 && strcmp(error_reason_name(&err), reason) == 0);
    MUST(ops->alloc(device, sizeof(ones), &more, &err) != 0 && more == NULL);
    MUST(op_rms_norm(second, &x, &x, data, 1e-5f) != 0);

    /* No call waits for the device. */
    ops->event_destroy(event);
    ops->free(device, data, sizeof(ones));
    ops->stream_destroy(stream);
    ops->stream_destroy(second);
    ops->close(device);
    _exit(device_fault_exit_status(device_fault_of_cuda(code)));
}

static void check_fault(int code, const char *reason)
{
    char fail[32];
    snprintf(fail, sizeof(fail), "1:%d", code);
    setenv("SIMT_FAIL", fail, 1);
    setenv("SLUICE_CUDA_OVERLAP", "off", 1); /* else the checks when the device opens */
    setenv("SLUICE_CUDA_PROMPTS", "own", 1); /* would be the first launches */
    setenv("SLUICE_CUDA_ATTENTION", "mma", 1);
    setenv("SLUICE_CUDA_FP8", "own", 1);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(CHILD_S);
        fail_and_go_on(code, reason);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) ||
        WEXITSTATUS(status) != device_fault_exit_status(device_fault_of_cuda(code)))
        fail_msg("error %d: the process ended with status 0x%x", code, (unsigned)status);
}

static void
test_context_when_a_kernel_fails_then_its_class_is_told_and_nothing_goes_on(void **state)
{
    static const struct {
        int code;
        const char *reason;
    } rows[] = {
        {700, "DEVICE_ILLEGAL_ACCESS"}, {719, "DEVICE_ILLEGAL_ACCESS"},
        {710, "DEVICE_ILLEGAL_ACCESS"}, {214, "DEVICE_ECC"},
        {220, "DEVICE_NVLINK"},         {226, "DEVICE_CONTAINED"},
        {702, "DEVICE_TIMEOUT"},        {46, "DEVICE_DRIVER"},
        {999, "DEVICE_UNKNOWN"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (test_is_emulated() || rows[i].code == ILLEGAL_ADDRESS)
            check_fault(rows[i].code, rows[i].reason);
}

/* An error of a released stream is reported to no caller, but the device keeps the error of its
 * last work. */
static void fail_and_give_back(void)
{
    struct backend_module module;
    struct device *device = NULL;
    struct stream *stream = NULL, *second = NULL;
    struct error err = {0};
    void *data = NULL;
    MUST(backend_cuda(&module, &err) == 0);
    const struct device_ops *ops = module.device_ops;
    MUST(ops->open(0, &device, &err) == 0);
    MUST(ops->stream_create(device, 0, &stream, &err) == 0);
    MUST(ops->stream_create(device, 0, &second, &err) == 0);
    MUST(ops->alloc(device, N * sizeof(float), &data, &err) == 0);
    struct tensor x = tensor_view(data, DTYPE_F32, 1, N);
    const float *weights = test_is_emulated() ? data : (const float *)((uintptr_t)1 << 44);
    (void)op_rms_norm(stream, &x, &x, weights, 1e-5f);
    ops->stream_destroy(stream);
    MUST(ops->stream_sync(second, &err) != 0);
    MUST(err.reason == REASON_DEVICE_ILLEGAL_ACCESS && strstr(err.message, "an earlier"));
    ops->free(device, data, N * sizeof(float));
    ops->stream_destroy(second);
    ops->close(device);
    _exit(0);
}

static void test_context_when_a_kernel_fails_as_its_stream_is_given_back_then_known(void **state)
{
    (void)state;
    setenv("SIMT_FAIL", "1:700", 1);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(CHILD_S);
        fail_and_give_back();
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Opens the backend in the child only. After a fork, a child has a single thread, so the test
 * itself must not open the backend. */
static void too_much(void)
{
    struct backend_module module;
    struct device *device = NULL;
    struct error err = {0};
    struct device_memory before, after;
    void *data = NULL, *more = NULL;
    char needed[32], free_bytes[48];
    MUST(backend_cuda(&module, &err) == 0);
    MUST(module.device_ops->open(0, &device, &err) == 0);
    MUST(module.device_ops->memory(device, &before, &err) == 0);
    MUST(module.device_ops->alloc(device, 1 << 20, &data, &err) == 0);
    MUST(module.device_ops->alloc(device, before.free_bytes, &more, &err) ==
         STATUS_RESOURCE_EXHAUSTED);
    MUST(more == NULL && err.reason == REASON_DEVICE_MEMORY);
    snprintf(needed, sizeof(needed), "%llu bytes needed", (unsigned long long)before.free_bytes);
    snprintf(free_bytes, sizeof(free_bytes), "%llu bytes free",
             (unsigned long long)before.free_bytes - (1 << 20));
    MUST(strstr(err.message, "cuda:0: ") && strstr(err.message, needed));
    MUST(strstr(err.message, test_is_emulated() ? free_bytes : "bytes free"));
    MUST(!device_fault_is_final(device_fault_of_error(&err)));
    module.device_ops->free(device, data, 1 << 20);
    MUST(module.device_ops->memory(device, &after, &err) == 0);
    MUST(test_memory_is_back(before.free_bytes, after.free_bytes));
    module.device_ops->close(device);
    _exit(0);
}

static void test_memory_when_too_little_then_told_with_figures_and_the_device_lives_on(void **state)
{
    (void)state;
    unsetenv("SIMT_FAIL");
    unsetenv("SLUICE_CUDA_OVERLAP");
    unsetenv("SLUICE_CUDA_PROMPTS");
    unsetenv("SLUICE_CUDA_ATTENTION");
    unsetenv("SLUICE_CUDA_FP8");
    setenv("SIMT_DEVICE_BYTES", "16777216", 1);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(CHILD_S);
        too_much();
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_context_when_a_kernel_fails_then_its_class_is_told_and_nothing_goes_on),
        cmocka_unit_test(test_context_when_a_kernel_fails_as_its_stream_is_given_back_then_known),
        cmocka_unit_test(
            test_memory_when_too_little_then_told_with_figures_and_the_device_lives_on),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
