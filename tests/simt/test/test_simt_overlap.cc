/* Tests of launches that overlap, as on the worst possible GPU (simt_early.h). */
#include "tests/simt/simt_thread.h"
#include "tests/simt/test/test_support.h"

enum { N_BLOCKS = 5, N_THREADS = 64, N = N_BLOCKS * N_THREADS };

/* Records x before and after the wait, then writes to x. */
static __global__ void look_twice(uint32_t *x, uint32_t *before, uint32_t *after, uint32_t add)
{
    uint32_t i = blockIdx.x * N_THREADS + threadIdx.x;
    before[i] = x[i];
    simt_op_begin();
    after[i] = x[i];
    x[i] += add;
}

/* Writes before the wait for the previous op. */
static __global__ void write_early(uint32_t *x)
{
    x[blockIdx.x * N_THREADS + threadIdx.x] = 1000;
    simt_op_begin();
}

static __global__ void never_wait(uint32_t *x)
{
    if (threadIdx.x != 3)
        simt_op_begin();
    x[threadIdx.x] = 1;
}

static __global__ void wait_behind_a_barrier(uint32_t *out)
{
    __shared__ uint32_t words[N_THREADS];
    words[threadIdx.x] = threadIdx.x;
    __syncthreads();
    uint32_t sum = words[(threadIdx.x + 1) % N_THREADS];
    simt_op_begin();
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    __syncthreads();
    out[blockIdx.x * N_THREADS + threadIdx.x] += sum;
}

static cudaStream_t new_stream(void)
{
    cudaStream_t s = NULL;
    assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), 0);
    return s;
}

/* Captures the ops that `queue` queues as one step, so that the stream knows the next op of each
 * op. */
template <typename Queue> static void run_captured(Queue queue, unsigned n_times)
{
    cudaStream_t s = new_stream();
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    assert_int_equal(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), 0);
    queue(s);
    assert_int_equal(cudaStreamEndCapture(s, &graph), 0);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), 0);
    for (unsigned i = 0; i < n_times; i++)
        assert_int_equal(cudaGraphLaunch(exec, s), 0);
    assert_int_equal(cudaStreamSynchronize(s), 0);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(s);
}

/* Returns the number of elements that differ in `before` and `after`; these belong to early blocks.
 */
static size_t n_early(enum simt_order order)
{
    on_device<uint32_t> x(std::vector<uint32_t>(N, 0)), before(N), after(N);
    run_captured(
        [&](cudaStream_t s) {
            assert_int_equal(SIMT_LAUNCH(look_twice, order, N_BLOCKS, N_THREADS, 0, s, x.data,
                                         before.data, after.data, 7u),
                             0);
            assert_int_equal(SIMT_LAUNCH(look_twice, order, N_BLOCKS, N_THREADS, 0, s, x.data,
                                         before.data, after.data, 5u),
                             0);
        },
        1);
    std::vector<uint32_t> first = before.fetch(), second = after.fetch(), now = x.fetch();
    size_t n = 0;
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(second[i], 7);
        assert_int_equal(now[i], 12);
        assert_true(first[i] == 0 || first[i] == 7);
        n += first[i] == 0;
    }
    return n;
}

static void test_a_block_begins_before_the_op_before_has_run(void **)
{
    assert_int_equal(n_early(SIMT_OVERLAPS), N_THREADS);
    assert_int_equal(n_early(SIMT_WAITS), 0);
}

static void test_what_is_written_too_early_is_found_by_the_op_before(void **)
{
    on_device<uint32_t> x(std::vector<uint32_t>(N, 0)), before(N), after(N);
    run_captured(
        [&](cudaStream_t s) {
            SIMT_LAUNCH(look_twice, SIMT_OVERLAPS, N_BLOCKS, N_THREADS, 0, s, x.data, before.data,
                        after.data, 7u);
            SIMT_LAUNCH(write_early, SIMT_OVERLAPS, N_BLOCKS, N_THREADS, 0, s, x.data);
        },
        1);
    std::vector<uint32_t> found = after.fetch();
    size_t n = 0;
    for (uint32_t v : found)
        n += v == 1000;
    assert_int_equal(n, N_THREADS);
}

static void test_a_held_block_keeps_its_shared_memory_and_its_turns(void **)
{
    on_device<uint32_t> out(std::vector<uint32_t>(N, 0));
    run_captured(
        [&](cudaStream_t s) {
            for (unsigned i = 0; i < 6; i++)
                SIMT_LAUNCH(wait_behind_a_barrier, SIMT_OVERLAPS, N_BLOCKS, N_THREADS, 0, s,
                            out.data);
        },
        3);
    std::vector<uint32_t> found = out.fetch();
    for (uint32_t i = 0; i < N; i++) {
        uint32_t at = i % N_THREADS;
        uint32_t sum = (at + 1) % N_THREADS + ((at ^ 1) + 1) % N_THREADS;
        assert_int_equal(found[i], 18 * sum);
    }
}

static int shuffled(void)
{
    test_a_held_block_keeps_its_shared_memory_and_its_turns(NULL);
    return n_early(SIMT_OVERLAPS) == N_THREADS ? 0 : 1;
}

static int never_waits(void)
{
    cudaStream_t s = new_stream();
    on_device<uint32_t> x(32);
    SIMT_LAUNCH(never_wait, SIMT_WAITS, 1, 32, 0, s, x.data);
    return cudaStreamSynchronize(s);
}

static int is_refused(void)
{
    on_device<uint32_t> x(N);
    cudaStream_t s = new_stream();
    int code = SIMT_LAUNCH(write_early, SIMT_OVERLAPS, N_BLOCKS, N_THREADS, 0, s, x.data);
    int plain = SIMT_LAUNCH(write_early, SIMT_WAITS, N_BLOCKS, N_THREADS, 0, s, x.data);
    return code == cudaErrorNotSupported && plain == 0 ? 0 : 1;
}

static const child_case cases[] = {
    {"shuffled", shuffled}, {"never waits", never_waits}, {"refused", is_refused}};

static void test_turns_in_any_order_hold_too(void **)
{
    assert_int_equal(in_child("shuffled", {"SIMT_SHUFFLE=9"}).exit_code, 0);
}

static void test_who_does_not_wait_is_named(void **)
{
    expect_abort("never waits", "did not wait for the op before");
    expect_abort("never waits", "kernel never_wait, block (0,0,0) of (1,1,1), thread (3,0,0)");
}

static void test_a_driver_may_refuse(void **)
{
    child_end end = in_child("refused", {"SIMT_OVERLAP=refuse"});
    assert_int_equal(end.exit_code, 0);
    assert_int_equal(end.signal, 0);
}

int main(int argc, char **argv)
{
    run_child_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_block_begins_before_the_op_before_has_run),
        cmocka_unit_test(test_what_is_written_too_early_is_found_by_the_op_before),
        cmocka_unit_test(test_a_held_block_keeps_its_shared_memory_and_its_turns),
        cmocka_unit_test(test_turns_in_any_order_hold_too),
        cmocka_unit_test(test_who_does_not_wait_is_named),
        cmocka_unit_test(test_a_driver_may_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
