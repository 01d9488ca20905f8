/* Tests of GPU threads as fibers: thread ids, exchanges of a warp, barriers and shared memory.
 * Errors of a GPU must be errors here too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/block.h"
#include "kernels/cuda/thread.h"
#include "tests/simt/test/test_support.h"

static int launched(int code)
{
    return code != 0 ? code : (int)cudaDeviceSynchronize();
}

/* --- thread ids --- */

static __global__ void name_threads(uint32_t *names)
{
    uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    uint32_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    uint32_t n = blockDim.x * blockDim.y * blockDim.z;
    names[block * n + thread] += block * n + thread + 1;
}

static void test_every_thread_of_a_grid_runs_once_and_knows_its_place(void **)
{
    static const dim3 shapes[][2] = {{dim3(1), dim3(1)},
                                     {dim3(7), dim3(96)},
                                     {dim3(3, 2, 4), dim3(5, 3, 2)},
                                     {dim3(2), dim3(1024)},
                                     {dim3(301), dim3(33)}};
    for (const auto &s : shapes) {
        size_t n = s[0].x * s[0].y * s[0].z * s[1].x * s[1].y * s[1].z;
        on_device<uint32_t> names{std::vector<uint32_t>(n, 0)};
        assert_int_equal(launched(CUDA_LAUNCH(name_threads, s[0], s[1], 0, NULL, names.data)), 0);
        std::vector<uint32_t> found = names.fetch();
        for (size_t i = 0; i < n; i++)
            assert_int_equal(found[i], i + 1);
    }
}

/* --- exchanges --- */

struct exchanged {
    int up, down, exclusive, from_three, in_eights;
    float wide;
    unsigned ballot;
    int any, all;
    unsigned long long sum;
};

static __global__ void exchange_words(struct exchanged *out)
{
    unsigned t = threadIdx.x;
    int own = (int)(t * t);
    struct exchanged x;
    x.up = __shfl_up_sync(0xFFFFFFFFu, own, 3);
    x.down = __shfl_down_sync(0xFFFFFFFFu, own, 5);
    x.exclusive = __shfl_xor_sync(0xFFFFFFFFu, own, 9);
    x.from_three = __shfl_sync(0xFFFFFFFFu, own, 3);
    x.in_eights = __shfl_sync(0xFFFFFFFFu, own, 2, 8);
    x.wide = __shfl_sync(0xFFFFFFFFu, (float)own + 0.5f, (int)(31 - t % 32));
    x.ballot = __ballot_sync(0xFFFFFFFFu, t % 3 == 0);
    x.any = __any_sync(0xFFFFFFFFu, t == 40);
    x.all = __all_sync(0xFFFFFFFFu, t != 40);
    x.sum = 1ull << t % 32;
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2)
        x.sum += __shfl_xor_sync(0xFFFFFFFFu, x.sum, lane_mask);
    out[t] = x;
}

static void test_exchanges_move_words_between_lanes(void **)
{
    enum { N = 96 };
    on_device<struct exchanged> out(N);
    assert_int_equal(launched(CUDA_LAUNCH(exchange_words, 1, N, 0, NULL, out.data)), 0);
    std::vector<struct exchanged> found = out.fetch();
    for (unsigned t = 0; t < N; t++) {
        auto square = [](unsigned x) { return (int)(x * x); };
        unsigned lane = t % 32, base = t - lane, ballot = 0;
        for (unsigned i = 0; i < 32; i++)
            ballot |= (unsigned)((base + i) % 3 == 0) << i;
        assert_int_equal(found[t].up, square(lane >= 3 ? t - 3 : t));
        assert_int_equal(found[t].down, square(lane + 5 < 32 ? t + 5 : t));
        assert_int_equal(found[t].exclusive, square(base + (lane ^ 9)));
        assert_int_equal(found[t].from_three, square(base + 3));
        assert_int_equal(found[t].in_eights, square(t / 8 * 8 + 2));
        assert_true(found[t].wide == (float)square(base + 31 - lane) + 0.5f);
        assert_int_equal(found[t].ballot, ballot);
        assert_int_equal(found[t].any, t / 32 == 1);
        assert_int_equal(found[t].all, t / 32 != 1);
        assert_true(found[t].sum == 0xFFFFFFFFull);
    }
}

/* Warps take different numbers of exchanges between two barriers. */
static __global__ void diverge_by_warp(uint32_t *out)
{
    uint32_t x = threadIdx.x;
    for (uint32_t i = 0; i <= threadIdx.x / 32; i++) {
        x = __shfl_down_sync(0xFFFFFFFFu, x, 1);
        if (threadIdx.x % 2) /* lanes may diverge between exchanges, too */
            x += 100;
        __syncwarp();
    }
    __syncthreads();
    out[threadIdx.x] = x;
}

static void test_warps_may_diverge_and_lanes_between_exchanges(void **)
{
    enum { N = 128 };
    on_device<uint32_t> out(N);
    assert_int_equal(launched(CUDA_LAUNCH(diverge_by_warp, 1, N, 0, NULL, out.data)), 0);
    std::vector<uint32_t> found = out.fetch(), x(N);
    for (uint32_t t = 0; t < N; t++)
        x[t] = t;
    for (uint32_t warp = 0; warp < N / 32; warp++)
        for (uint32_t i = 0; i <= warp; i++) {
            for (uint32_t t = warp * 32; t < warp * 32 + 31; t++)
                x[t] = x[t + 1];
            for (uint32_t t = warp * 32 + 1; t < warp * 32 + 32; t += 2)
                x[t] += 100;
        }
    assert_memory_equal(found.data(), x.data(), N * sizeof(uint32_t));
}

/* --- barriers --- */

/* Adds words by a tree. The barriers between its steps may be left out. */
template <bool synchronised> static __global__ void fold_words(const uint32_t *x, uint32_t *sum)
{
    __shared__ uint32_t words[256];
    words[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (uint32_t half = blockDim.x / 2; half > 0; half /= 2) {
        if (synchronised)
            __syncthreads();
        if (threadIdx.x < half)
            words[threadIdx.x] += words[threadIdx.x + half];
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1)
        sum[blockIdx.x] = words[0];
}

/* Returns the number of blocks with the right sum. */
template <bool synchronised> static int count_sound_sums()
{
    enum { N_BLOCKS = 50, N = 256 };
    random_numbers random = {99};
    std::vector<uint32_t> x(N_BLOCKS * N);
    for (uint32_t &word : x)
        word = random.next();
    on_device<uint32_t> words(x), sums(N_BLOCKS);
    if (launched(CUDA_LAUNCH(fold_words<synchronised>, N_BLOCKS, N, 0, NULL, words.data,
                             sums.data)) != 0)
        return -1;
    std::vector<uint32_t> found = sums.fetch();
    int n_sound = 0;
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        uint32_t wanted = 0;
        for (uint32_t i = 0; i < N; i++)
            wanted += x[b * N + i];
        n_sound += found[b] == wanted;
    }
    return n_sound;
}

static int all_sums_sound(void)
{
    return count_sound_sums<true>() == 50 ? 0 : 1;
}

static int no_sum_without_barriers(void)
{
    return count_sound_sums<false>() < 50 ? 0 : 1;
}

static void test_barriers_hold_in_any_order_of_turns(void **)
{
    assert_int_equal(all_sums_sound(), 0);
    assert_int_equal(no_sum_without_barriers(), 0);
    for (int seed = 1; seed <= 5; seed++) {
        std::string setting = "SIMT_SHUFFLE=" + std::to_string(seed);
        assert_int_equal(in_child("sums", {setting}).exit_code, 0);
        assert_int_equal(in_child("sums without barriers", {setting}).exit_code, 0);
    }
}

/* Right only if lower threads have their turn before higher threads, as without shuffling. */
static __global__ void lean_on_the_order(uint32_t *out)
{
    __shared__ uint32_t words[64];
    words[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = words[threadIdx.x == 0 ? 0 : threadIdx.x - 1];
}

static int leans_on_the_order(void)
{
    on_device<uint32_t> out(64);
    if (launched(CUDA_LAUNCH(lean_on_the_order, 1, 64, 0, NULL, out.data)) != 0)
        return 2;
    std::vector<uint32_t> found = out.fetch();
    for (uint32_t t = 1; t < 64; t++)
        if (found[t] != t - 1)
            return 1;
    return 0;
}

static void test_shuffled_turns_show_a_missing_barrier(void **)
{
    assert_int_equal(in_child("order", {"SIMT_SHUFFLE=0"}).exit_code, 0);
    assert_int_equal(in_child("order", {"SIMT_SHUFFLE=7"}).exit_code, 1);
}

static __global__ void sum_block(float *out)
{
    __shared__ struct block_shared shared;
    struct block b = {&shared, threadIdx.x, blockDim.x, nullptr, nullptr};
    float max = block_max(&b, (float)((threadIdx.x * 7) % blockDim.x));
    uint32_t sum = block_reduce_word(&b, threadIdx.x, BLOCK_WORD_SUM);
    out[threadIdx.x] = max * 100000.0f + (float)sum;
}

static void test_block_h_synchronises_by_the_barrier(void **)
{
    on_device<float> out(128);
    assert_int_equal(launched(CUDA_LAUNCH(sum_block, 1, 128, 0, NULL, out.data)), 0);
    for (float x : out.fetch())
        assert_true(x == 127.0f * 100000.0f + 127.0f * 64.0f);
}

/* --- shared memory --- */

static __global__ void look_at_shared(uint32_t *out)
{
    __shared__ uint32_t fixed[8];
    CUDA_SHARED(dynamic);
    uint32_t *words = (uint32_t *)(void *)dynamic;
    if (threadIdx.x == 0) {
        out[blockIdx.x * 3] = fixed[3] & words[0] & words[31];
        out[blockIdx.x * 3 + 1] = (uint32_t)((uintptr_t)dynamic % 128);
    }
    __syncthreads();
    fixed[threadIdx.x % 8] = words[threadIdx.x % 32] = 1;
    __syncthreads();
    if (threadIdx.x == 0)
        out[blockIdx.x * 3 + 2] = fixed[7] + words[31];
}

static void test_shared_memory_begins_as_poison_in_every_block(void **)
{
    on_device<uint32_t> out(3 * 40);
    assert_int_equal(
        launched(CUDA_LAUNCH(look_at_shared, 40, 64, 32 * sizeof(uint32_t), NULL, out.data)), 0);
    std::vector<uint32_t> found = out.fetch();
    for (int b = 0; b < 40; b++) {
        assert_int_equal(found[b * 3], 0xFFFFFFFFu);
        assert_int_equal(found[b * 3 + 1], 0);
        assert_int_equal(found[b * 3 + 2], 2);
    }
}

static __global__ void write_shared(uint32_t at)
{
    CUDA_SHARED(dynamic);
    if (threadIdx.x == 0)
        dynamic[at] = 1;
}

static int writes_past_shared(void)
{
    return launched(CUDA_LAUNCH(write_shared, 1, 32, 64, NULL, 64u));
}

static void test_more_shared_memory_must_be_allowed(void **)
{
    assert_int_equal(CUDA_LAUNCH(write_shared, 1, 32, 49153, NULL, 0u), cudaErrorInvalidValue);
    assert_int_equal(CUDA_ALLOW_SHARED(write_shared, 233473), cudaErrorInvalidValue);
    assert_int_equal(CUDA_ALLOW_SHARED(write_shared, 232448), 0);
    assert_int_equal(launched(CUDA_LAUNCH(write_shared, 1, 32, 232448, NULL, 232447u)), 0);
    cudaGetLastError();
}

/* --- atomics --- */

static __global__ void count_atomically(uint32_t *counts)
{
    atomicAdd(&counts[0], 1u);
    atomicMax(&counts[1], blockIdx.x * blockDim.x + threadIdx.x);
    for (uint32_t old = counts[2], seen; (seen = atomicCAS(&counts[2], old, old + 2)) != old;)
        old = seen;
    if (atomicExch(&counts[3], 5u) == 0)
        atomicAdd(&counts[4], 1u);
}

static void test_atomics_hold_between_blocks(void **)
{
    on_device<uint32_t> counts{std::vector<uint32_t>(5, 0)};
    assert_int_equal(launched(CUDA_LAUNCH(count_atomically, 200, 64, 0, NULL, counts.data)), 0);
    std::vector<uint32_t> found = counts.fetch();
    assert_int_equal(found[0], 200 * 64);
    assert_int_equal(found[1], 200 * 64 - 1);
    assert_int_equal(found[2], 2 * 200 * 64);
    assert_int_equal(found[4], 1);
}

static void test_bytes_and_bits_are_the_gpus(void **)
{
    assert_int_equal(__byte_perm(0x33221100u, 0x77665544u, 0x7310), 0x77331100u);
    assert_int_equal(__byte_perm(0x80FF017Fu, 0, 0xBA98), 0xFFFF0000u);
    assert_int_equal(__clz(0), 32);
    assert_int_equal(__clz(1), 31);
    assert_int_equal(__ffs(0x50), 5);
    assert_int_equal(__brev(1), 0x80000000u);
    assert_int_equal(__funnelshift_l(0x80000000u, 1u, 1), 3);
    assert_int_equal(__funnelshift_r(2u, 3u, 1), 0x80000001u);
    assert_int_equal(__float2int_rn(2.5f), 2);
    assert_int_equal(__float2int_rn(-1e20f), INT32_MIN);
    assert_int_equal(__float2int_rn(NAN), 0);
}

/* --- errors that must show --- */

static __global__ void leave_some_at_the_barrier(unsigned thread)
{
    if (threadIdx.x == thread)
        return;
    __syncthreads();
}

static __global__ void part_in_an_exchange(unsigned lane)
{
    if (threadIdx.x % 32 == lane)
        __syncthreads();
    else
        __syncwarp();
}

static __global__ void two_exchanges_at_once(unsigned n)
{
    if (threadIdx.x < n)
        __ballot_sync(0xFFFFFFFFu, 1);
    else
        __shfl_sync(0xFFFFFFFFu, 1, 0);
}

static __global__ void half_a_mask(unsigned mask)
{
    __shfl_sync(mask, 1, 0);
}

static __global__ void read_past(const uint32_t *x, uint32_t *out)
{
    *out = x[1000];
}

static const child_case cases[] = {
    {"sums", all_sums_sound},
    {"sums without barriers", no_sum_without_barriers},
    {"order", leans_on_the_order},
    {"past shared", writes_past_shared},
    {"barrier",
     [] { return launched(CUDA_LAUNCH(leave_some_at_the_barrier, dim3(1, 2), 64, 0, NULL, 37u)); }},
    {"exchange", [] { return launched(CUDA_LAUNCH(part_in_an_exchange, 1, 96, 0, NULL, 5u)); }},
    {"two exchanges",
     [] { return launched(CUDA_LAUNCH(two_exchanges_at_once, 1, 32, 0, NULL, 16u)); }},
    {"half a mask", [] { return launched(CUDA_LAUNCH(half_a_mask, 1, 32, 0, NULL, 0xFFFFu)); }},
    {"read past",
     [] {
         on_device<uint32_t> x(1000), out(1);
         return launched(CUDA_LAUNCH(read_past, 1, 1, 0, NULL, x.data, out.data));
     }},
};

static void test_who_waits_in_vain_is_named(void **)
{
    expect_abort("barrier", "deadlock: 63 threads wait at __syncthreads, 1 have ended, 64 in all");
    expect_abort("barrier", "from thread (37,0,0): ended");
    expect_abort("barrier", "kernel leave_some_at_the_barrier, block (0,");
    expect_abort("exchange", "warp 0: lanes ffffffdf of ffffffff are in __syncwarp");
    expect_abort("two exchanges", "lanes 0000ffff are in __ballot_sync");
    expect_abort("half a mask", "kernels keep to exchanges of the whole warp");
    expect_abort("past shared", "wrote outside the 64 bytes of dynamic shared memory");
}

static void test_the_sanitizer_sees_a_read_past_device_memory(void **)
{
#ifdef __SANITIZE_ADDRESS__
    child_end end = in_child("read past");
    assert_true(end.said.find("heap-buffer-overflow") != std::string::npos);
    assert_true(end.said.find("read_past") != std::string::npos);
#else
    print_message("needs the address sanitizer\n");
    assert_int_equal(in_child("read past").exit_code, 0);
#endif
}

int main(int argc, char **argv)
{
    run_child_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_thread_of_a_grid_runs_once_and_knows_its_place),
        cmocka_unit_test(test_exchanges_move_words_between_lanes),
        cmocka_unit_test(test_warps_may_diverge_and_lanes_between_exchanges),
        cmocka_unit_test(test_barriers_hold_in_any_order_of_turns),
        cmocka_unit_test(test_shuffled_turns_show_a_missing_barrier),
        cmocka_unit_test(test_block_h_synchronises_by_the_barrier),
        cmocka_unit_test(test_shared_memory_begins_as_poison_in_every_block),
        cmocka_unit_test(test_more_shared_memory_must_be_allowed),
        cmocka_unit_test(test_atomics_hold_between_blocks),
        cmocka_unit_test(test_bytes_and_bits_are_the_gpus),
        cmocka_unit_test(test_who_waits_in_vain_is_named),
        cmocka_unit_test(test_the_sanitizer_sees_a_read_past_device_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
