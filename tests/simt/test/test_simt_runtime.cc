/* Tests of the emulated CUDA runtime: asynchronous streams, events, graphs, memory accounts,
 * injected errors, and misplaced pointers. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/cuda/thread.h"
#include "tests/simt/test/test_support.h"

static __global__ void add_to(uint32_t *x, uint32_t n, uint32_t amount)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        x[i] += amount;
}

static cudaStream_t new_stream(void)
{
    cudaStream_t s = NULL;
    assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), 0);
    return s;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t e = NULL;
    assert_int_equal(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), 0);
    return e;
}

/* A host function that holds a stream until the gate opens. */
struct gate {
    std::atomic<bool> open{false};
    static void pass(void *self)
    {
        while (!((gate *)self)->open.load())
            std::this_thread::yield();
    }
};

/* --- order --- */

static void test_a_stream_runs_in_order_and_by_itself(void **)
{
    enum { N = 1000 };
    gate gate;
    cudaStream_t s = new_stream();
    on_device<uint32_t> x(N);
    std::vector<uint32_t> back(N, 7);
    assert_int_equal(cudaLaunchHostFunc(s, gate::pass, &gate), 0);
    assert_int_equal(cudaMemsetAsync(x.data, 0, N * 4, s), 0);
    for (uint32_t i = 1; i <= 20; i++)
        assert_int_equal(CUDA_LAUNCH(add_to, 3, 64, 0, s, x.data, (uint32_t)N, i), 0);
    assert_int_equal(cudaMemcpyAsync(back.data(), x.data, N * 4, cudaMemcpyDeviceToHost, s), 0);
    assert_int_equal(cudaStreamQuery(s), cudaErrorNotReady);
    assert_int_equal(back[5], 7); /* only an explicit wait waits for the stream */
    gate.open = true;
    assert_int_equal(cudaStreamSynchronize(s), 0);
    assert_int_equal(cudaStreamQuery(s), 0);
    for (uint32_t v : back)
        assert_int_equal(v, 210);
    assert_int_equal(cudaStreamDestroy(s), 0);
}

static void test_an_upload_reads_its_source_when_its_turn_comes(void **)
{
    gate gate;
    cudaStream_t s = new_stream();
    on_device<uint32_t> x(1);
    uint32_t source = 1;
    cudaLaunchHostFunc(s, gate::pass, &gate);
    assert_int_equal(cudaMemcpyAsync(x.data, &source, 4, cudaMemcpyHostToDevice, s), 0);
    source = 2; /* too early: the copy has not run yet */
    gate.open = true;
    assert_int_equal(cudaStreamSynchronize(s), 0);
    assert_int_equal(x.fetch()[0], 2);
    cudaStreamDestroy(s);
}

static void test_streams_wait_for_each_others_events_alone(void **)
{
    gate gate;
    cudaStream_t first = new_stream(), second = new_stream(), third = new_stream();
    cudaEvent_t done = new_event();
    on_device<uint32_t> x{std::vector<uint32_t>{0}};
    uint32_t early = 9, late = 9;
    cudaLaunchHostFunc(first, gate::pass, &gate);
    CUDA_LAUNCH(add_to, 1, 32, 0, first, x.data, 1u, 5u);
    assert_int_equal(cudaEventRecord(done, first), 0);
    assert_int_equal(cudaEventQuery(done), cudaErrorNotReady);
    assert_int_equal(cudaStreamWaitEvent(second, done, 0), 0);
    cudaMemcpyAsync(&late, x.data, 4, cudaMemcpyDeviceToHost, second);
    cudaMemcpyAsync(&early, x.data, 4, cudaMemcpyDeviceToHost, third);
    assert_int_equal(cudaStreamSynchronize(third), 0); /* returns although the gate is closed */
    assert_int_equal(early, 0);
    assert_int_equal(cudaStreamQuery(second), cudaErrorNotReady);
    gate.open = true;
    assert_int_equal(cudaStreamSynchronize(second), 0);
    assert_int_equal(late, 5);
    assert_int_equal(cudaEventSynchronize(done), 0);
    assert_int_equal(cudaEventQuery(done), 0);
    assert_int_equal(cudaEventDestroy(done), 0);
    for (cudaStream_t s : {first, second, third})
        cudaStreamDestroy(s);
}

static void test_events_measure_time(void **)
{
    cudaEvent_t from, to;
    float ms = -1.0f;
    cudaStream_t s = new_stream();
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    cudaEventRecord(from, s);
    cudaLaunchHostFunc(
        s, [](void *) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }, NULL);
    cudaEventRecord(to, s);
    cudaStreamSynchronize(s);
    assert_int_equal(cudaEventElapsedTime(&ms, from, to), 0);
    assert_true(ms >= 2.0f && ms < 2000.0f);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    cudaStreamDestroy(s);
}

/* --- graphs --- */

static cudaGraphExec_t instantiate(cudaStream_t s)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    assert_int_equal(cudaStreamEndCapture(s, &graph), 0);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), 0);
    assert_int_equal(cudaGraphDestroy(graph), 0);
    return exec;
}

static void capture_sums(cudaStream_t s, uint32_t *x, uint32_t amount)
{
    assert_int_equal(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), 0);
    assert_int_equal(CUDA_LAUNCH(add_to, 1, 32, 0, s, x, 1u, amount), 0);
    assert_int_equal(cudaMemcpyAsync(x + 1, x, 4, cudaMemcpyDeviceToDevice, s), 0);
    assert_int_equal(CUDA_LAUNCH(add_to, 1, 32, 0, s, x, 1u, amount), 0);
}

static void test_a_captured_stream_runs_when_its_graph_is_launched(void **)
{
    cudaStream_t s = new_stream();
    on_device<uint32_t> x{std::vector<uint32_t>{0, 0}};
    uint32_t amount = 3;
    capture_sums(s, x.data, amount);
    amount = 100; /* the capture has already copied the arguments */
    cudaGraphExec_t exec = instantiate(s);
    assert_int_equal(cudaStreamSynchronize(s), 0);
    assert_int_equal(x.fetch()[0], 0); /* the ops were captured, not run */
    for (uint32_t i = 1; i <= 3; i++) {
        assert_int_equal(cudaGraphLaunch(exec, s), 0);
        cudaStreamSynchronize(s);
        assert_int_equal(x.fetch()[0], 6 * i);
        assert_int_equal(x.fetch()[1], 6 * i - 3);
    }
    capture_sums(s, x.data, 50);
    cudaGraph_t other = NULL;
    cudaGraphExecUpdateResultInfo info;
    assert_int_equal(cudaStreamEndCapture(s, &other), 0);
    assert_int_equal(cudaGraphExecUpdate(exec, other, &info), 0);
    cudaGraphLaunch(exec, s);
    cudaStreamSynchronize(s);
    assert_int_equal(x.fetch()[0], 118);
    cudaGraphDestroy(other);
    cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    CUDA_LAUNCH(add_to, 1, 32, 0, s, x.data, 1u, 1u);
    cudaStreamEndCapture(s, &other);
    assert_int_equal(cudaGraphExecUpdate(exec, other, &info), cudaErrorGraphExecUpdateFailure);
    cudaGraphDestroy(other);
    cudaGraphExecDestroy(exec);
    cudaStreamDestroy(s);
}

static void test_a_capture_goes_over_streams_that_join_it(void **)
{
    cudaStream_t s = new_stream(), side = new_stream();
    cudaEvent_t fork = new_event(), join = new_event();
    on_device<uint32_t> x{std::vector<uint32_t>{0, 0}};
    for (int joined = 1; joined >= 0; joined--) {
        cudaGraph_t graph = NULL;
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
        assert_int_equal(cudaEventRecord(fork, s), 0);
        assert_int_equal(cudaStreamWaitEvent(side, fork, 0), 0);
        CUDA_LAUNCH(add_to, 1, 32, 0, side, x.data, 1u, 7u);
        cudaEventRecord(join, side);
        if (joined)
            assert_int_equal(cudaStreamWaitEvent(s, join, 0), 0);
        CUDA_LAUNCH(add_to, 1, 32, 0, s, x.data + 1, 1u, 2u);
        assert_int_equal(cudaStreamEndCapture(s, &graph),
                         joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
        if (!joined)
            continue;
        cudaGraphExec_t exec = NULL;
        cudaGraphInstantiate(&exec, graph, 0);
        cudaGraphDestroy(graph);
        cudaGraphLaunch(exec, s);
        cudaStreamSynchronize(s);
        assert_int_equal(x.fetch()[0], 7);
        assert_int_equal(x.fetch()[1], 2);
        cudaGraphExecDestroy(exec);
    }
    cudaGetLastError();
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
    cudaStreamDestroy(s);
    cudaStreamDestroy(side);
}

static void test_what_may_not_be_captured_breaks_the_capture(void **)
{
    enum { N_WAYS = 4 };
    void *data = NULL;
    for (int way = 0; way < N_WAYS; way++) {
        cudaGraph_t graph = (cudaGraph_t)&data;
        cudaStream_t s = new_stream();
        cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
        cudaError_t code = way == 0   ? cudaMalloc(&data, 16)
                           : way == 1 ? cudaStreamSynchronize(s)
                           : way == 2 ? cudaMallocAsync(&data, 16, s)
                                      : cudaDeviceSynchronize();
        assert_int_equal(code, cudaErrorStreamCaptureUnsupported);
        assert_int_equal(cudaStreamEndCapture(s, &graph), cudaErrorStreamCaptureInvalidated);
        assert_null(graph);
        assert_int_equal(cudaStreamSynchronize(s), 0); /* the stream continues */
        cudaStreamDestroy(s);
    }
    assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaGetLastError(), 0);
}

/* --- memory --- */

static void test_memory_is_poisoned_counted_and_comes_back(void **)
{
    size_t before, after, total;
    // sizes of malloc memory, and of memory mapped in several pieces
    enum { SMALL = 1000, LARGE = 80 << 20 };
    assert_int_equal(cudaMemGetInfo(&before, &total), 0);
    assert_int_equal(total, (size_t)8 << 30);
    assert_true(before < total);
    for (size_t n : {(size_t)SMALL, (size_t)LARGE}) {
        void *data = NULL, *async = NULL;
        std::vector<unsigned char> found(n);
        assert_int_equal(cudaMalloc(&data, n), 0);
        assert_int_equal((uintptr_t)data % 256, 0);
        assert_int_equal(cudaMallocAsync(&async, n, NULL), 0);
        cudaMemcpy(found.data(), data, n, cudaMemcpyDeviceToHost);
        for (unsigned char c : found)
            if (c != 0xFF)
                fail_msg("no poison");
        cudaMemset(data, 0, n);
        cudaMemGetInfo(&after, &total);
        assert_true(before - after >= 2 * n && before - after < 2 * n + 4096);
        cudaFreeAsync(async, NULL);
        cudaDeviceSynchronize();
        assert_int_equal(cudaFree(data), 0);
        cudaMemGetInfo(&after, &total);
        assert_int_equal(after, before);
    }
}

static void test_memory_ends_where_the_device_does(void **)
{
    void *some = NULL, *more = NULL, *last = NULL;
    size_t n_free, total;
    cudaMemGetInfo(&n_free, &total);
    assert_int_equal(cudaMalloc(&more, n_free + 1), cudaErrorMemoryAllocation);
    assert_null(more);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc(&some, n_free - 512), 0);
    assert_int_equal(cudaMalloc(&more, 512), 0);
    assert_int_equal(cudaMalloc(&last, 1), cudaErrorMemoryAllocation);
    cudaFree(more);
    assert_int_equal(cudaMalloc(&last, 1), 0);
    cudaFree(last);
    cudaFree(some);
    cudaGetLastError();
}

static void test_pinned_memory_is_known(void **)
{
    void *data = NULL;
    struct cudaPointerAttributes of;
    std::vector<char> own(4096);
    assert_int_equal(cudaMallocHost(&data, 100), 0);
    cudaPointerGetAttributes(&of, data);
    assert_int_equal(of.type, cudaMemoryTypeHost);
    assert_int_equal(cudaFree(data), cudaErrorInvalidValue);
    assert_int_equal(cudaFreeHost(data), 0);
    assert_int_equal(cudaHostRegister(own.data(), own.size(), 0), 0);
    cudaPointerGetAttributes(&of, own.data() + 50);
    assert_int_equal(of.type, cudaMemoryTypeHost);
    assert_int_equal(cudaHostUnregister(own.data()), 0);
    cudaPointerGetAttributes(&of, own.data());
    assert_int_equal(of.type, cudaMemoryTypeUnregistered);
    cudaGetLastError();
}

static void test_a_launch_that_no_gpu_takes_fails(void **)
{
    on_device<uint32_t> x(1);
    int value = 0;
    assert_int_equal(CUDA_LAUNCH(add_to, 0, 32, 0, NULL, x.data, 1u, 1u),
                     cudaErrorInvalidConfiguration);
    assert_int_equal(CUDA_LAUNCH(add_to, 1, 1025, 0, NULL, x.data, 1u, 1u),
                     cudaErrorInvalidConfiguration);
    assert_int_equal(CUDA_LAUNCH(add_to, dim3(1, 65536), 32, 0, NULL, x.data, 1u, 1u),
                     cudaErrorInvalidConfiguration);
    assert_int_equal(cudaSetDevice(1), cudaErrorInvalidDevice);
    assert_int_equal(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0), 0);
    assert_int_equal(value, 9);
    cudaGetLastError();
}

/* --- settings, and what ends the process --- */

static int fail_third_launch(void)
{
    uint32_t back = 0;
    cudaStream_t s = new_stream();
    on_device<uint32_t> x{std::vector<uint32_t>{0}};
    for (int i = 1; i <= 3; i++) {
        CUDA_LAUNCH(add_to, 1, 32, 0, s, x.data, 1u, 1u);
        if (cudaStreamSynchronize(s) != (i < 3 ? 0 : cudaErrorIllegalAddress))
            return i;
    }
    void *data = NULL;
    if (CUDA_LAUNCH(add_to, 1, 32, 0, s, x.data, 1u, 1u) != cudaErrorIllegalAddress ||
        cudaMemcpyAsync(&back, x.data, 4, cudaMemcpyDeviceToHost, s) != cudaErrorIllegalAddress ||
        cudaMalloc(&data, 16) != cudaErrorIllegalAddress ||
        cudaGetLastError() != cudaErrorIllegalAddress)
        return 4;
    if (cudaSetDevice(1) != 0 || cudaMalloc(&data, 16) != 0) /* another device continues */
        return 5;
    cudaFree(data);
    return 0;
}

static int look_at_settings(void)
{
    int n = 0, minor = 0;
    size_t n_free, total;
    cudaGetDeviceCount(&n);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    cudaMemGetInfo(&n_free, &total);
    return n == 3 && minor == 6 && total == 1 << 20 ? 0 : 1;
}

static int copy_wrongly(int how)
{
    on_device<uint32_t> x(4);
    std::vector<uint32_t> host(4);
    if (how == 0)
        cudaMemcpyAsync(host.data(), x.data, 16, cudaMemcpyHostToDevice, NULL);
    else if (how == 1)
        cudaMemcpyAsync(x.data, x.data, 16, cudaMemcpyDeviceToHost, NULL);
    else if (how == 2)
        cudaMemcpyAsync(x.data, host.data(), 17, cudaMemcpyHostToDevice, NULL);
    else
        CUDA_LAUNCH(add_to, 1, 32, 0, NULL, host.data(), 1u, 1u);
    return 0;
}

static int write_past(size_t n)
{
    void *data = NULL;
    cudaMalloc(&data, n);
    CUDA_LAUNCH(add_to, 1, 1, 0, NULL, (uint32_t *)data + n / 4, 1u, 1u);
    cudaFree(data);
    return 0;
}

static const child_case cases[] = {
    {"third launch", fail_third_launch},
    {"settings", look_at_settings},
    {"host to device", [] { return copy_wrongly(0); }},
    {"device to host", [] { return copy_wrongly(1); }},
    {"too long", [] { return copy_wrongly(2); }},
    {"host argument", [] { return copy_wrongly(3); }},
    {"write past small", [] { return write_past(1000); }},
    {"write past large", [] { return write_past(16 << 20); }},
};

static void test_a_launch_fails_on_demand_and_its_device_with_it(void **)
{
    assert_int_equal(in_child("third launch", {"SIMT_FAIL=3:700", "SIMT_DEVICES=2"}).exit_code, 0);
    assert_int_equal(in_child("third launch", {"SIMT_FAIL=2:700"}).exit_code, 2);
}

static void test_settings_are_heard(void **)
{
    const std::vector<std::string> three = {"SIMT_DEVICES=3", "SIMT_COMPUTE=86",
                                            "SIMT_DEVICE_BYTES=1048576"};
    assert_int_equal(in_child("settings", three).exit_code, 0);
    assert_int_equal(in_child("settings").exit_code, 1);
}

static void test_pointers_in_the_wrong_place_are_named(void **)
{
    expect_abort("host to device", "is no device memory");
    expect_abort("device to host", "is device memory where the host's belongs");
    expect_abort("too long", "17 bytes at");
    expect_abort("host argument", "launch of add_to: pointer 1 of its arguments");
}

static void test_a_write_past_device_memory_ends_the_process(void **)
{
    child_end large = in_child("write past large");
#ifdef __SANITIZE_ADDRESS__
    assert_true(in_child("write past small").said.find("heap-buffer-overflow") !=
                std::string::npos);
    assert_true(large.exit_code != 0);
#else
    expect_abort("write past small", "written past the end of 1000 bytes");
    assert_true(large.signal == SIGSEGV || large.exit_code != 0); /* the thread sanitizer exits */
#endif
}

int main(int argc, char **argv)
{
    run_child_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stream_runs_in_order_and_by_itself),
        cmocka_unit_test(test_an_upload_reads_its_source_when_its_turn_comes),
        cmocka_unit_test(test_streams_wait_for_each_others_events_alone),
        cmocka_unit_test(test_events_measure_time),
        cmocka_unit_test(test_a_captured_stream_runs_when_its_graph_is_launched),
        cmocka_unit_test(test_a_capture_goes_over_streams_that_join_it),
        cmocka_unit_test(test_what_may_not_be_captured_breaks_the_capture),
        cmocka_unit_test(test_memory_is_poisoned_counted_and_comes_back),
        cmocka_unit_test(test_memory_ends_where_the_device_does),
        cmocka_unit_test(test_pinned_memory_is_known),
        cmocka_unit_test(test_a_launch_that_no_gpu_takes_fails),
        cmocka_unit_test(test_a_launch_fails_on_demand_and_its_device_with_it),
        cmocka_unit_test(test_settings_are_heard),
        cmocka_unit_test(test_pointers_in_the_wrong_place_are_named),
        cmocka_unit_test(test_a_write_past_device_memory_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
