/* Compares the warpgroup's multiplication (ptx_wgmma.h) with a plain loop, on shared memory in the
 * test's own layout. Also tests the errors that end the process. */
#include <string.h>

#include "kernels/cuda/dense/ptx_wgmma.h"
#include "kernels/cuda/ptx.h"
#include "tests/simt/test/test_support.h"

enum { M = 64, N = 256, K = 64, GROUP = 128, SHARED = (M + N) * K * 2 + 1024 };

enum mistake {
    NONE,
    NO_FENCE,      /* without wgmma_fence */
    NOT_SEEN,      /* copies without wgmma_fence_shared */
    NOT_SEEN_ONE,  /* the same in thread 120 only */
    OVERWRITTEN,   /* operands changed before the wait */
    NOT_COMMITTED, /* waits for a group that was not committed */
    NOT_WAITED,    /* no wait at the end of the block */
    LAYOUT,        /* rows without the swizzle */
    READ_EARLY,    /* reads sums before the wait, which gives NaN */
};

/* Returns the byte of element (row, k) in rows of 64 elements. Bits 4 to 6 are XORed with bits 7 to
 * 9. */
static uint32_t turned(uint32_t row, uint32_t k)
{
    uint32_t at = row * 128 + k * 2;
    return at ^ (at >> 3 & 0x70);
}

/* x has the rows of A, then those of B. Writes y[thread][128]. */
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
    bool is_one = mistake == NOT_SEEN_ONE && threadIdx.x == 120;
    if (mistake != NOT_SEEN && !is_one)
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

/* Copies to the same shared memory, and never calls wgmma_fence_shared. */
static __global__ void copy_rows(const uint16_t *x)
{
    CUDA_SHARED(memory);
    for (uint32_t i = threadIdx.x; i < (M + N) * K / 8; i += blockDim.x)
        cp_async_16(memory + i * 16, x + i * 8, true);
    cp_async_commit();
    cp_async_wait<0>();
}

/* --- the forms of attention: A in shared memory or in registers, B with rows along k or n --- */

enum { N2 = 128, K2 = 64 };

enum attention_mistake {
    RIGHT,
    REGISTERS_CHANGED, /* changes A's registers before the wait */
    SUMS_CHANGED,      /* changes the sums before the wait */
    SUMS_EARLY,        /* calls wgmma_settle() on sums under way */
    SUMS_OVERLAP,      /* two products on overlapping sums */
    NO_COMMIT,
};

/* s = A · Bᵀ for A [64][64] and B [128][64], rows along k; then d = A · C for C [64][128], rows
 * along n, A in registers. Both are under way at once. */
static __global__ void two_products(const uint16_t *a, const uint16_t *b, const uint16_t *c,
                                    float *s_out, float *d_out, int mistake)
{
    CUDA_SHARED(memory);
    cuda_op_begin();
    unsigned char *shared = memory + wgmma_skip(wgmma_address(memory));
    unsigned char *at_b = shared + M * 128, *at_c = at_b + N2 * 128;
    for (uint32_t i = threadIdx.x; i < M * K2 / 8; i += GROUP)
        cp_async_16(shared + turned(i / 8, i % 8 * 8), a + i * 8, true);
    for (uint32_t i = threadIdx.x; i < N2 * K2 / 8; i += GROUP)
        cp_async_16(at_b + turned(i / 8, i % 8 * 8), b + i * 8, true);
    for (uint32_t i = threadIdx.x; i < K2 * N2 / 8; i += GROUP) { /* two columns of 64 */
        uint32_t row = i / 16, chunk = i % 16;
        cp_async_16(at_c + chunk / 8 * K2 * 128 + turned(row, chunk % 8 * 8), c + i * 8, true);
    }
    cp_async_commit();
    cp_async_wait<0>();
    wgmma_fence_shared();
    __syncthreads();
    float s[N2 / 2], d[N2 / 2];
    uint32_t x[4][4];
    for (uint32_t i = 0; i < N2 / 2; i++)
        d[i] = s[i] = 1000.0f;
    uint32_t lane = threadIdx.x % 32, first = threadIdx.x / 32 * 16 + lane / 4;
    for (uint32_t step = 0; step < 4; step++)
        for (uint32_t r = 0; r < 4; r++)
            memcpy(&x[step][r], a + (first + r % 2 * 8) * K2 + step * 16 + lane % 4 * 2 + r / 2 * 8,
                   4);
    uint64_t turned_bits = (uint64_t)(K2 * 128 >> 4) << 16;
    wgmma_fence();
    for (uint32_t step = 0; step < 4; step++)
        wgmma_m64n128k16_bf16(s, wgmma_matrix(wgmma_address(shared) + step * 32),
                              wgmma_matrix(wgmma_address(at_b) + step * 32), step > 0);
    wgmma_commit();
    wgmma_fence();
    for (uint32_t step = 0; step < 4; step++) {
        uint64_t matrix = wgmma_matrix(wgmma_address(at_c) + step * 2048);
        matrix = (matrix & ~((uint64_t)0x3FFF << 16)) | turned_bits;
        wgmma_turned_m64n128k16_bf16(mistake == SUMS_OVERLAP ? s + 8 : d, x[step], matrix);
    }
    if (mistake != NO_COMMIT)
        wgmma_commit();
    if (mistake == SUMS_EARLY)
        wgmma_settle(d);
    if (mistake == REGISTERS_CHANGED)
        x[1][2] ^= 1;
    if (mistake == SUMS_CHANGED)
        d[5] = 0.0f;
    wgmma_wait_but_one();
    wgmma_settle(s);
    for (uint32_t i = 0; i < N2 / 2; i++)
        s_out[threadIdx.x * (N2 / 2) + i] = s[i];
    wgmma_wait_all();
    wgmma_settle(d);
    for (uint32_t i = 0; i < N2 / 2; i++)
        d_out[threadIdx.x * (N2 / 2) + i] = d[i];
}

/* Whole numbers from −2 to 2, which bf16 holds. */
static std::vector<uint16_t> small_numbers(std::vector<int> *out_x, size_t n, uint32_t seed)
{
    static const uint16_t halves[] = {0xC000, 0xBF80, 0, 0x3F80, 0x4000};
    random_numbers random = {seed};
    std::vector<uint16_t> x(n);
    out_x->resize(n);
    for (size_t i = 0; i < n; i++) {
        (*out_x)[i] = (int)(random.next() % 5) - 2;
        x[i] = halves[(*out_x)[i] + 2];
    }
    return x;
}

static int attention_forms(int mistake)
{
    std::vector<int> a, b, c;
    on_device<uint16_t> da(small_numbers(&a, M * K2, 3)), db(small_numbers(&b, N2 * K2, 5)),
        dc(small_numbers(&c, K2 * N2, 7));
    on_device<float> s((size_t)GROUP * N2 / 2), d((size_t)GROUP * N2 / 2);
    const size_t shared = (M + N2 + 2 * K2) * 128 + 1024;
    simt_allow_shared((const void *)two_products, shared);
    int code = CUDA_LAUNCH(two_products, 1, GROUP, shared, NULL, da.data, db.data, dc.data, s.data,
                           d.data, mistake);
    assert_int_equal(code, 0);
    assert_int_equal(cudaDeviceSynchronize(), 0);
    std::vector<float> scores = s.fetch(), values = d.fetch();
    for (unsigned m = 0; m < M; m++)
        for (unsigned n = 0; n < N2; n++) {
            unsigned thread = m / 16 * 32 + m % 8 * 4 + n % 8 / 2;
            unsigned i = thread * (N2 / 2) + n / 8 * 4 + m % 16 / 8 * 2 + n % 2;
            int score = 0, value = 1000;
            for (unsigned k = 0; k < K2; k++) {
                score += a[m * K2 + k] * b[n * K2 + k];
                value += a[m * K2 + k] * c[k * N2 + n];
            }
            assert_true(scores[i] == (float)score);
            assert_true(values[i] == (float)value);
        }
    return 0;
}

static void test_forms_of_attention_are_the_plain_loops(void **)
{
    attention_forms(RIGHT);
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

/* A row of zeros adds nothing, but for a column with a NaN. */
static void test_rows_of_zeros_add_zero_or_nan(void **)
{
    enum { ROW = 5, THREAD = ROW * 4 + 3, FIRST = 0, SECOND = 1 }; /* columns 6 and 7 of the row */
    std::vector<int> x;
    std::vector<uint16_t> halves = whole_numbers(&x, false);
    for (unsigned k = 0; k < K; k++)
        halves[ROW * K + k] = 0;
    std::vector<float> y = run(halves, false, 4, NONE);
    for (unsigned i = 0; i < GROUP; i++)
        if (i % 4 < 2) /* the others are of row 13 */
            assert_true(y[THREAD * GROUP + i] == (float)i);
    halves[(M + 7) * K] = 0x7FC0;
    y = run(halves, false, 4, NONE);
    assert_true(y[THREAD * GROUP + FIRST] == 0.0f);
    assert_true(y[THREAD * GROUP + SECOND] != y[THREAD * GROUP + SECOND]);
}

static void test_sums_are_not_there_before_they_are_waited_for(void **)
{
    std::vector<int> x;
    std::vector<float> y = run(whole_numbers(&x, false), false, 2, READ_EARLY);
    assert_true(y[1] != y[1]);
    assert_true(y[0] == y[0]);
}

/* Copies that a kernel without wgmma made count for no later block, whatever its threads. */
static void test_copies_of_an_earlier_block_are_forgotten(void **)
{
    std::vector<int> x;
    std::vector<uint16_t> halves = whole_numbers(&x, false);
    std::vector<float> expected = run(halves, false, 2, NONE);
    on_device<uint16_t> rows(halves);
    simt_allow_shared((const void *)copy_rows, SHARED);
    assert_int_equal(CUDA_LAUNCH(copy_rows, 16, 4 * GROUP, SHARED, NULL, rows.data), 0);
    assert_int_equal(cudaDeviceSynchronize(), 0);
    assert_true(run(halves, false, 2, NONE) == expected);
}

static int mistaken(int mistake)
{
    std::vector<int> x;
    run(whole_numbers(&x, false), false, 2, mistake);
    on_device<float> next(GROUP * GROUP);
    /* the next block reports the unfinished multiplications */
    run(whole_numbers(&x, false), false, 1, NONE);
    return 0;
}

static const child_case cases[] = {
    {"no fence", [] { return mistaken(NO_FENCE); }},
    {"not seen", [] { return mistaken(NOT_SEEN); }},
    {"one not seen", [] { return mistaken(NOT_SEEN_ONE); }},
    {"overwritten", [] { return mistaken(OVERWRITTEN); }},
    {"not committed", [] { return mistaken(NOT_COMMITTED); }},
    {"not waited", [] { return mistaken(NOT_WAITED); }},
    {"layout", [] { return mistaken(LAYOUT); }},
    {"registers changed", [] { return attention_forms(REGISTERS_CHANGED); }},
    {"sums changed", [] { return attention_forms(SUMS_CHANGED); }},
    {"sums early", [] { return attention_forms(SUMS_EARLY); }},
    {"sums overlap", [] { return attention_forms(SUMS_OVERLAP); }},
    {"no commit", [] { return attention_forms(NO_COMMIT); }},
};

static void test_what_the_order_forbids_ends_the_process(void **)
{
    expect_abort("no fence", "no wgmma_fence since the last wgmma_commit");
    expect_abort("not seen", "has copied to A without wgmma_fence_shared");
    expect_abort("one not seen", "thread 120 has copied to A without wgmma_fence_shared");
    expect_abort("overwritten", "were written before it was waited for");
    expect_abort("not committed", "multiplications without wgmma_commit");
    expect_abort("not waited", "ended within a multiplication");
    expect_abort("layout", "is of another layout");
    expect_abort("registers changed", "its operand in registers was changed");
    expect_abort("sums changed", "its sums were changed before");
    expect_abort("sums early", "sums are used that were not waited for");
    expect_abort("sums overlap", "sums of two multiplications under way overlap");
    expect_abort("no commit", "multiplications without wgmma_commit");
}

int main(int argc, char **argv)
{
    run_child_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_are_the_plain_loops),
        cmocka_unit_test(test_forms_of_attention_are_the_plain_loops),
        cmocka_unit_test(test_sums_are_not_there_before_they_are_waited_for),
        cmocka_unit_test(test_rows_of_zeros_add_zero_or_nan),
        cmocka_unit_test(test_copies_of_an_earlier_block_are_forgotten),
        cmocka_unit_test(test_what_the_order_forbids_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
