/* Tests barriers between some warps of a block (ptx_barrier.h): a ring of stages and turns of two
 * warps. Also tests the errors that end the process. */
#include "kernels/cuda/ptx_barrier.h"
#include "tests/simt/test/test_support.h"

enum { WARPS = 3, THREADS = WARPS * 32, STAGES = 2, ITEMS = 9 };

enum mistake {
    NONE,
    NO_INIT,      /* a wait before barrier_init */
    NEVER_FULL,   /* no thread arrives */
    OTHER_COUNT,  /* two counts at one numbered barrier */
    LEFT_WAITING, /* the block ends within a round */
};

/* Warp 0 writes items into a ring, warps 1 and 2 add them up. */
static __global__ void sum_by_ring(uint32_t *out, int mistake)
{
    CUDA_SHARED(shared);
    cuda_op_begin();
    uint64_t *full = (uint64_t *)shared, *free = full + STAGES;
    uint32_t *ring = (uint32_t *)(free + STAGES), warp = threadIdx.x / 32, sum = 0;
    if (threadIdx.x == 0 && mistake != NO_INIT)
        for (uint32_t i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(free + i, WARPS - 1);
        }
    __syncthreads();
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t stage = i % STAGES, phase = i / STAGES % 2;
        if (warp == 0) {
            barrier_wait(free + stage, 1 - phase);
            ring[stage * 32 + threadIdx.x] = i * 100 + threadIdx.x;
            __syncwarp();
            if (threadIdx.x == 0 && mistake != NEVER_FULL)
                barrier_arrive(full + stage);
            continue;
        }
        barrier_wait(full + stage, phase);
        sum += ring[stage * 32 + threadIdx.x % 32];
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            barrier_arrive(free + stage);
    }
    out[threadIdx.x] = sum;
}

/* Two warps write in turns; each waits for its turn and gives the turn to the other. */
static __global__ void write_in_turns(uint32_t *out, int mistake)
{
    CUDA_SHARED(shared);
    cuda_op_begin();
    uint32_t *next = (uint32_t *)shared, warp = threadIdx.x / 32;
    if (threadIdx.x == 0)
        *next = 0;
    __syncthreads();
    if (warp == 1)
        warps_arrive(1, mistake == OTHER_COUNT ? 96 : 64);
    for (uint32_t i = 0; i < ITEMS; i++) {
        warps_sync(1 + warp, 64);
        if (threadIdx.x % 32 == 0)
            out[(*next)++] = warp;
        __syncwarp();
        warps_arrive(2 - warp, 64);
    }
    if (warp == 0 && mistake != LEFT_WAITING)
        warps_sync(1, 64);
}

static std::vector<uint32_t> run_ring(int mistake)
{
    on_device<uint32_t> sums(THREADS);
    int code = CUDA_LAUNCH(sum_by_ring, 1, THREADS, 1024, NULL, sums.data, mistake);
    assert_int_equal(code, 0);
    assert_int_equal(cudaDeviceSynchronize(), 0);
    return sums.fetch();
}

static std::vector<uint32_t> run_turns(int mistake)
{
    on_device<uint32_t> order(2 * ITEMS);
    int code = CUDA_LAUNCH(write_in_turns, 1, 64, 64, NULL, order.data, mistake);
    assert_int_equal(code, 0);
    assert_int_equal(cudaDeviceSynchronize(), 0);
    return order.fetch();
}

static void test_ring_when_filled_by_one_warp_then_the_others_read_each_item(void **)
{
    std::vector<uint32_t> sums = run_ring(NONE);
    for (uint32_t i = 32; i < THREADS; i++)
        assert_int_equal(sums[i], ITEMS * (ITEMS - 1) / 2 * 100 + ITEMS * (i % 32));
}

static void test_turns_when_two_warps_alternate_then_neither_runs_twice(void **)
{
    std::vector<uint32_t> order = run_turns(NONE);
    for (uint32_t i = 0; i < 2 * ITEMS; i++)
        assert_int_equal(order[i], i % 2);
}

static const child_case cases[] = {
    {"no init", [] { return (int)run_ring(NO_INIT)[0]; }},
    {"never full", [] { return (int)run_ring(NEVER_FULL)[0]; }},
    {"other count", [] { return (int)run_turns(OTHER_COUNT)[0]; }},
    {"left waiting", [] { return (int)run_turns(LEFT_WAITING)[0]; }},
};

static void test_misuse_of_barriers_ends_the_process(void **)
{
    expect_abort("no init", "before barrier_init");
    expect_abort("never full", "deadlock");
    expect_abort("other count", "but others gave");
    expect_abort("left waiting", "had arrived at barrier 1");
}

int main(int argc, char **argv)
{
    run_child_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_when_filled_by_one_warp_then_the_others_read_each_item),
        cmocka_unit_test(test_turns_when_two_warps_alternate_then_neither_runs_twice),
        cmocka_unit_test(test_misuse_of_barriers_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
