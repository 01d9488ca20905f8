/* Compares the warpgroup's multiplication (ptx_wgmma.h) with a plain loop, on shared memory in the
 * test's own layout. Also tests the errors that end the process. */
#include <string.h>

#include "kernels/cuda/dense/ptx_wgmma.h"
#include "kernels/cuda/ptx.h"
#include "tests/simt/test/test_support.h"

enum { M = 64, N = 256, K = 64, GROUP = 128, SHARED = (M + N) * K * 2 + 1024 };

enum mistake {
    NONE,
    NO_FENCE,      /* wgmma_fence */
    NOT_SEEN,      /* copies without wgmma_fence_shared */
    OVERWRITTEN,   /* operands, before they were waited for */
    NOT_COMMITTED, /* the awaited group */
    NOT_WAITED,    /* at the end of the block */
    LAYOUT,        /* rows not turned */
    READ_EARLY,    /* sums: not refused, but NaN */
};

/* Byte of element (row, k) of rows of 64: bits 4 to 6 are turned by bits 7 to 9. */
static uint32_t turned(uint32_t row, uint32_t k)
{
    uint32_t at = row * 128 + k * 2;
    return at ^ (at >> 3 & 0x70);
}

/* x: rows of A, then of B. y[thread][128]. */
static __global__ void multiply_rows(const uint16_t *x, float *y, int is_f16, int steps,
                                     int mistake)
{
    CUDA_SHARED(memory);
    unsigned char *shared = memory + wgmma_skip(wgmma_address(memory));
    float d[GROUP], early = 0.0f;
    for (uint32_t i = 0; i < GROUP; i++)
        d[i] = (float)i;
    for (uint32_t i = threadIdx.x; i < (M + N) * K / 8; i += GROUP) {
        uint32_t row = i / 8, k = i % 8 * 8;
        cp_async_16(shared + turned(row, k), x + row * K + k, true);
    }
    cp_async_commit();
    cp_async_wait<0>();
    if (mistake != NOT_SEEN)
        wgmma_fence_shared();
    __syncthreads();
    if (mistake != NO_FENCE)
        wgmma_fence();
    uint32_t at = wgmma_address(shared);
    for (int c = 0; c < steps; c++) {
        uint64_t a = wgmma_matrix(at + c * 32), b = wgmma_matrix(at + M * 128 + c * 32);
        if (mistake == LAYOUT)
            a &= ~((uint64_t)3 << 62);
        if (is_f16)
            wgmma_m64n256k16_f16(d, a, b);
        else
            wgmma_m64n256k16_bf16(d, a, b);
    }
    early = d[1];
    if (mistake != NOT_COMMITTED)
        wgmma_commit();
    if (mistake == NOT_WAITED)
        return;
    if (mistake == OVERWRITTEN && threadIdx.x == 0)
        shared[turned(3, 5)] ^= 1;
    wgmma_wait(d);
    for (uint32_t i = 0; i < GROUP; i++)
        y[threadIdx.x * GROUP + i] = mistake == READ_EARLY && i == 1 ? early : d[i];
}

static std::vector<float> run(const std::vector<uint16_t> &x, bool is_f16, int steps, int mistake)
{
    on_device<uint16_t> rows(x);
    on_device<float> sums((size_t)GROUP * GROUP);
    simt_allow_shared((const void *)multiply_rows, SHARED);
    int code = CUDA_LAUNCH(multiply_rows, 1, GROUP, SHARED, NULL, rows.data, sums.data, is_f16,
                           steps, mistake);
    assert_int_equal(code, 0);
    assert_int_equal(cudaDeviceSynchronize(), 0);
    return sums.fetch();
}

/* Halves whose sums f32 holds exactly: whole numbers up to 15. */
static std::vector<uint16_t> whole_numbers(std::vector<int> *out_x, bool is_f16)
{
    random_numbers random = {is_f16 ? 11u : 7u};
    std::vector<uint16_t> halves((size_t)(M + N) * K);
    out_x->resize(halves.size());
    for (size_t i = 0; i < halves.size(); i++) {
        int n = (int)(random.next() % 31) - 15, magnitude = n < 0 ? -n : n, exponent = 0;
        (*out_x)[i] = n;
        while (magnitude >> (exponent + 1) != 0)
            exponent++;
        int fraction = magnitude == 0 ? 0 : magnitude - (1 << exponent);
        uint32_t bits = is_f16 ? (uint32_t)((exponent + 15) << 10 | fraction << (10 - exponent))
                               : (uint32_t)((exponent + 127) << 7 | fraction << (7 - exponent));
        halves[i] = (uint16_t)(magnitude == 0 ? 0 : bits | (n < 0 ? 0x8000u : 0));
    }
    return halves;
}

static void test_products_are_the_plain_loops(void **)
{
    for (int is_f16 = 0; is_f16 < 2; is_f16++)
        for (int steps = 1; steps <= 4; steps++) {
            std::vector<int> x;
            std::vector<uint16_t> halves = whole_numbers(&x, is_f16);
            std::vector<float> y = run(halves, is_f16, steps, NONE);
            for (unsigned m = 0; m < M; m++)
                for (unsigned n = 0; n < N; n++) {
                    unsigned thread = m / 16 * 32 + m % 8 * 4 + n % 8 / 2;
                    unsigned i = n / 8 * 4 + m % 16 / 8 * 2 + n % 2;
                    int sum = (int)i;
                    for (int k = 0; k < 16 * steps; k++)
                        sum += x[m * K + (unsigned)k] * x[(M + n) * K + (unsigned)k];
                    assert_true(y[thread * GROUP + i] == (float)sum);
                }
        }
}

static void test_sums_are_not_there_before_they_are_waited_for(void **)
{
    std::vector<int> x;
    std::vector<float> y = run(whole_numbers(&x, false), false, 2, READ_EARLY);
    assert_true(y[1] != y[1]);
    assert_true(y[0] == y[0]);
}

static int mistaken(int mistake)
{
    std::vector<int> x;
    run(whole_numbers(&x, false), false, 2, mistake);
    on_device<float> next(GROUP * GROUP);
    run(whole_numbers(&x, false), false, 1, NONE); /* the next block reports an unfinished block */
    return 0;
}

static const child_case cases[] = {
    {"no fence", [] { return mistaken(NO_FENCE); }},
    {"not seen", [] { return mistaken(NOT_SEEN); }},
    {"overwritten", [] { return mistaken(OVERWRITTEN); }},
    {"not committed", [] { return mistaken(NOT_COMMITTED); }},
    {"not waited", [] { return mistaken(NOT_WAITED); }},
    {"layout", [] { return mistaken(LAYOUT); }},
};

static void test_what_the_order_forbids_ends_the_process(void **)
{
    expect_abort("no fence", "no wgmma_fence since the last wgmma_commit");
    expect_abort("not seen", "has copied to A without wgmma_fence_shared");
    expect_abort("overwritten", "were written before it was waited for");
    expect_abort("not committed", "multiplications without wgmma_commit");
    expect_abort("not waited", "ended within a multiplication");
    expect_abort("layout", "is of another layout");
}

int main(int argc, char **argv)
{
    run_child_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_the_plain_loops),
        cmocka_unit_test(test_sums_are_not_there_before_they_are_waited_for),
        cmocka_unit_test(test_what_the_order_forbids_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
