/* Tests of ops that overlap (kernels/cuda/overlap.h): where ops overlap and which cases refuse.
 * Also tests the probes before a device is used (prompts_cuda.c too). In a long chain, each op
 * reads the output of the op before, and writes where that op read. The chain must give the bits of
 * ops that run alone. Needs a GPU, which may be emulated (tests/simt). There a block of each op
 * begins before the previous op has run. */
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
#include "kernels/ops.h"
#include "tests/gpu/support/support_seed.h"
#include "tests/unit/kernels/support/support_kernels.h"

enum { M = 37, K = 416, N_LINKS = 12, N_REPLAYS = 3, CHILD_S = 120 };
#define X_BYTES ((size_t)M * K * sizeof(float))

static struct backend_module module;

/* Opens the device and writes its description to out, or the error's message where the device is
 * refused. With looked, describes the device at once, else after it has a stream. */
static int open_and_tell(bool looked, char *out, size_t n_bytes)
{
    struct device *device = NULL;
    struct stream *stream = NULL;
    struct error err = {0};
    int rc = module.device_ops->open(0, &device, &err);
    if (rc == 0 && !looked)
        rc = module.device_ops->stream_create(device, 0, &stream, &err);
    if (rc == 0)
        module.describe(device, out, n_bytes);
    else
        snprintf(out, n_bytes, "%s", err.message);
    if (stream != NULL)
        module.device_ops->stream_destroy(stream);
    if (device != NULL)
        module.device_ops->close(device);
    return rc;
}

static void
test_device_when_opened_then_says_whether_its_ops_overlap_and_refuses_other_words(void **state)
{
    char said[ERROR_MESSAGE_BYTES];
    (void)state;
    setenv("SLUICE_CUDA_OVERLAP", "off", 1);
    assert_int_equal(open_and_tell(false, said, sizeof(said)), 0);
    assert_non_null(strstr(said, ", no ops overlap: SLUICE_CUDA_OVERLAP=off"));
    setenv("SLUICE_CUDA_OVERLAP", "of", 1);
    assert_int_equal(open_and_tell(true, said, sizeof(said)), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(said, "SLUICE_CUDA_OVERLAP: \"of\""));
    unsetenv("SLUICE_CUDA_OVERLAP");
    assert_int_equal(open_and_tell(false, said, sizeof(said)), 0);
    if (test_is_emulated())
        assert_string_equal(said,
                            "prompts by wgmma, of fp8 by wgmma, attention by wgmma, ops overlap");
    print_message("%s\n", said);
}

/* Queues x += norm(x), x = norm(x) · bias and so on. Each op must see only the x of the op before.
 */
static int queue_links(struct stream *s, struct tensor *x, struct tensor *h, const float *w)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < N_LINKS; i++) {
        rc = op_rms_norm(s, h, x, w, 1e-5f);
        if (rc == 0)
            rc = op_add(s, x, h);
        if (rc == 0)
            rc = op_act_mul(s, h, x, h, ACTIVATION_SILU);
        if (rc == 0)
            rc = op_layer_norm(s, x, h, w, w, 1e-5f);
    }
    return rc;
}

/* Captures and replays the chain, and writes out[M, K]. Returns 0, or the line that failed. */
static int run_chain(const float *input, const float *weights, float *out)
{
#define STEP(call)                                                                                 \
    if ((call) != 0)                                                                               \
        return __LINE__;
    const struct device_ops *ops = module.device_ops;
    struct device *device = NULL;
    struct stream *s = NULL;
    struct graph *graph = NULL;
    struct error err = {0};
    void *data[3] = {NULL};
    STEP(ops->open(0, &device, &err));
    STEP(ops->stream_create(device, 0, &s, &err));
    for (uint32_t i = 0; i < 3; i++)
        STEP(ops->alloc(device, X_BYTES, &data[i], &err));
    struct tensor x = tensor_view(data[0], DTYPE_F32, M, K);
    struct tensor h = tensor_view(data[1], DTYPE_F32, M, K);
    s->ops = module.op_table;
    STEP(ops->upload(s, data[0], input, X_BYTES));
    STEP(ops->upload(s, data[2], weights, K * sizeof(float)));
    STEP(queue_links(s, &x, &h, data[2]));
    STEP(ops->capture_begin(s, &err));
    STEP(queue_links(s, &x, &h, data[2]));
    STEP(ops->capture_end(s, &graph, &err));
    for (uint32_t i = 0; i < N_REPLAYS; i++)
        STEP(ops->graph_launch(s, graph));
    STEP(ops->download(s, out, data[0], X_BYTES));
    STEP(ops->stream_sync(s, &err));
    ops->graph_destroy(graph);
    for (uint32_t i = 0; i < 3; i++)
        ops->free(device, data[i], X_BYTES);
    ops->stream_destroy(s);
    ops->close(device);
    return 0;
#undef STEP
}

static void test_chain_when_ops_overlap_then_its_bits_are_those_of_ops_one_by_one(void **state)
{
    (void)state;
    struct random random = test_random(71);
    float *input = random_floats(&random, (size_t)M * K, 0.0f);
    float *weights = random_floats(&random, K, 0.0f);
    float *apart = poisoned((size_t)M * K), *overlapped = poisoned((size_t)M * K);
    setenv("SLUICE_CUDA_OVERLAP", "off", 1);
    assert_int_equal(run_chain(input, weights, apart), 0);
    unsetenv("SLUICE_CUDA_OVERLAP");
    assert_int_equal(run_chain(input, weights, overlapped), 0);
    assert_same_bits(overlapped, apart, X_BYTES, "overlapped");
    free(input);
    free(weights);
    free(apart);
    free(overlapped);
}

/* Runs in a child process, because the emulated GPU reads its settings once. */
static void expect_said(const char *name, const char *value, const char *prompts, bool overlap)
{
    char prefix[64];
    snprintf(prefix, sizeof(prefix), "prompts by %s", prompts);
    pid_t pid = fork();
    if (pid == 0) {
        char said[ERROR_MESSAGE_BYTES] = "";
        alarm(CHILD_S);
        setenv(name, value, 1);
        struct error err = {0};
        if (backend_cuda(&module, &err) != 0 || open_and_tell(false, said, sizeof(said)) != 0)
            _exit(2);
        fprintf(stderr, "%s=%s: %s\n", name, value, said);
        bool right = strncmp(said, prefix, strlen(prefix)) == 0 &&
                     (strstr(said, ", no ops overlap: ") == NULL) == overlap &&
                     (strstr(said, ", ops overlap") != NULL) == overlap;
        _exit(right ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_device_when_overlaps_are_refused_or_unknown_then_ops_run_one_by_one(void **state)
{
    (void)state;
    if (!test_is_emulated()) {
        print_message("left out: a driver that refuses is the emulated GPU's\n");
        return;
    }
    expect_said("SIMT_OVERLAP", "refuse", "wgmma", false);
    expect_said("SIMT_COMPUTE", "89", "own (wgmma needs compute capability 9.0), of fp8 by own, ",
                false);
}

/* A caller that only describes devices, as `sluice devices` does, runs no kernel. A device whose
 * first kernel ends in an illegal access is opened and described all the same. */
static void test_device_when_only_looked_at_then_no_kernel_runs(void **state)
{
    (void)state;
    if (!test_is_emulated()) {
        print_message("left out: a device that fails at its first kernel is the emulated GPU's\n");
        return;
    }
    for (int looked = 1; looked >= 0; looked--) {
        pid_t pid = fork();
        if (pid == 0) {
            char said[ERROR_MESSAGE_BYTES] = "";
            struct error err = {0};
            alarm(CHILD_S);
            setenv("SIMT_FAIL", "1:700", 1);
            int rc = backend_cuda(&module, &err);
            rc = rc != 0 ? rc : open_and_tell(looked != 0, said, sizeof(said));
            fprintf(stderr, "%s: %s\n", looked ? "looked at" : "used", said);
            bool as_wanted =
                rc == 0 && strstr(said, "if a check passes as a model is loaded") != NULL;
            _exit(looked ? !as_wanted : rc == 0);
        }
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

static void
test_prompts_when_wgmma_is_not_as_it_should_be_then_they_are_our_tiled_kernels(void **state)
{
    (void)state;
    if (!test_is_emulated()) {
        print_message("left out: a device that multiplies wrongly is the emulated GPU's\n");
        return;
    }
    static const char attention[] = "SLUICE_CUDA_ATTENTION", fp8[] = "SLUICE_CUDA_FP8";
    static const char prompts[] = "SLUICE_CUDA_PROMPTS", fetch[] = "SLUICE_CUDA_FETCH";
    static const char wgmma[] = "SIMT_WGMMA";
    static const char all[] = "wgmma, of fp8 by wgmma, attention by wgmma, ops";
    setenv(attention, "mma", 1);
    setenv(fp8, "own", 1);
    expect_said(wgmma, "wrong", "own (wgmma", true);
    expect_said(wgmma, "askew", "own (wgmma", true);
    expect_said(prompts, "own", "own, ops", true);
    expect_said(prompts, "wgmma", "wgmma, ops", true);
    expect_said(fetch, "threads", "wgmma, ops", true);
    expect_said(fetch, "engine", "wgmma with the copy engine, ops", true);
    setenv(prompts, "own", 1);
    expect_said(attention, "wgmma", "own, attention by wgmma, ops", true);
    setenv(attention, "auto", 1);
    expect_said(wgmma, "wrong", "own, attention by mma (wgmma's", true);
    expect_said(wgmma, "askew", "own, attention by mma (the bits", true);
    setenv(attention, "mma", 1);
    expect_said(fp8, "wgmma", "own, of fp8 by wgmma, ops", true);
    setenv(fp8, "auto", 1);
    expect_said(wgmma, "wrong", "own, of fp8 by own (results", true);
    expect_said(wgmma, "askew", "own, of fp8 by own (the bits", true);
    expect_said("SIMT_TMA", "0", "own, of fp8 by own (wgmma of fp8 needs a driver", true);
    unsetenv(prompts);
    unsetenv(attention);
    unsetenv(fp8);
    expect_said(attention, "auto", all, true);
    expect_said(fp8, "auto", all, true);
}

/* Runs in a child process. `choice` gets `value`, and the emulated GPU gets a setting. */
static void expect_refused(const char *choice, const char *value, const char *name,
                           const char *setting, int rc, const char *reason)
{
    pid_t pid = fork();
    if (pid == 0) {
        char said[ERROR_MESSAGE_BYTES] = "";
        struct error err = {0};
        alarm(CHILD_S);
        setenv(choice, value, 1);
        setenv(name, setting, 1);
        int found = backend_cuda(&module, &err);
        found = found != 0 ? found : open_and_tell(false, said, sizeof(said));
        const char *message = err.status != 0 ? err.message : said;
        fprintf(stderr, "%s=%s: %d %s\n", name, setting, found, message);
        _exit(found == rc && strstr(message, reason) != NULL ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_wgmma_with_copy_engine_when_device_or_driver_lacks_it_then_refused(void **state)
{
    (void)state;
    if (!test_is_emulated()) {
        print_message("left out: devices and drivers without wgmma are the emulated GPU's\n");
        return;
    }
    static const char fp8[] = "SLUICE_CUDA_FP8", fetch[] = "SLUICE_CUDA_FETCH";
    static const char decode[] = "SLUICE_CUDA_DECODE";
    expect_refused(fp8, "wgm", "SIMT_COMPUTE", "90", STATUS_INVALID_ARGUMENT, fp8);
    expect_refused(fp8, "wgmma", "SIMT_COMPUTE", "89", STATUS_FAILED_PRECONDITION, "8.9");
    expect_refused(fp8, "wgmma", "SIMT_TMA", "0", STATUS_FAILED_PRECONDITION, "driver");
    expect_refused(decode, "teams", "SIMT_COMPUTE", "89", STATUS_FAILED_PRECONDITION, decode);
    expect_refused(fetch, "thread", "SIMT_COMPUTE", "90", STATUS_INVALID_ARGUMENT, fetch);
    expect_refused(fetch, "engine", "SIMT_TMA", "0", STATUS_FAILED_PRECONDITION, "driver");
}

static int open_module(void **state)
{
    struct error err = {0};
    (void)state;
    int rc = backend_cuda(&module, &err);
    if (rc != 0)
        print_error("%s\n", err.message);
    return rc;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_when_overlaps_are_refused_or_unknown_then_ops_run_one_by_one),
        cmocka_unit_test(test_device_when_only_looked_at_then_no_kernel_runs),
        cmocka_unit_test(
            test_prompts_when_wgmma_is_not_as_it_should_be_then_they_are_our_tiled_kernels),
        cmocka_unit_test(test_wgmma_with_copy_engine_when_device_or_driver_lacks_it_then_refused),
        cmocka_unit_test_setup(
            test_device_when_opened_then_says_whether_its_ops_overlap_and_refuses_other_words,
            open_module),
        cmocka_unit_test_setup(
            test_chain_when_ops_overlap_then_its_bits_are_those_of_ops_one_by_one, open_module),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
