/* Compares tiles of the copy engine (ptx_tma.h) and the multiplication of E4M3 (ptx_wgmma_f8.h)
 * with plain loops. Also tests the errors that end the process. */
#include <string.h>

#include "kernels/cuda/dense/ptx_wgmma_f8.h"
#include "kernels/cuda/ptx_tma.h"
#include "kernels/maths.h"
#include "tests/simt/test/test_support.h"

enum {
    M = 64,
    N = 128,
    LINE = 128,
    GROUP = 128,
    SUMS = 64,
    X_BYTES = M * LINE,
    TILES = (M + N) * LINE,
    SHARED = TILES + 16 + 1024
};

enum mistake {
    NONE,
    NOT_VISIBLE,  /* barriers without tma_fence_barriers */
    TOO_MANY,     /* expected bytes: the phase never ends */
    NOT_AWAITED,  /* tiles at the block's end */
    OVERWRITTEN,  /* a tile that a multiplication reads */
    NOT_ALIGNED,  /* a tile's place */
    NO_MAP,       /* a description that the driver has not made */
    READ_EARLY,   /* bytes before the wait: not refused, but 0xFF */
    WRONG_PARITY, /* returns at once, so bytes are 0xFF too */
    TWICE,        /* more arrivals than expected */
};

/* Copies the tiles at (column, row) of x and (column, 0) of w. Writes the tiles' bytes in their
 * layout to bytes[TILES]. Writes x · wᵀ after `steps` multiplications to y[thread][64]. */
static __global__ void fetch_and_multiply(const __grid_constant__ struct tensor_map x,
                                          const __grid_constant__ struct tensor_map w,
                                          uint32_t column, uint32_t row, unsigned char *bytes,
                                          float *y, uint32_t steps, int mistake)
{
    CUDA_SHARED(memory);
    unsigned char *shared = memory + (1024 - wgmma_address(memory) % 1024) % 1024;
    uint64_t *barrier = (uint64_t *)(shared + TILES);
    if (threadIdx.x == 0) {
        barrier_init(barrier, 1);
        if (mistake != NOT_VISIBLE)
            tma_fence_barriers();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        struct tensor_map none = {};
        tma_expect(barrier, mistake == TOO_MANY ? TILES + 16 : TILES);
        if (mistake == TWICE)
            barrier_arrive(barrier);
        tma_fetch(shared + (mistake == NOT_ALIGNED ? 128 : 0), mistake == NO_MAP ? &none : &x,
                  column, row, barrier);
        tma_fetch(shared + X_BYTES, &w, column, 0, barrier);
    }
    __syncthreads();
    if (mistake == NOT_AWAITED)
        return;
    if (mistake != READ_EARLY)
        barrier_wait(barrier, mistake == WRONG_PARITY ? 1 : 0);
    for (uint32_t i = threadIdx.x; i < TILES; i += GROUP)
        bytes[i] = shared[i];
    __syncthreads(); /* all threads have read, which is too early with READ_EARLY */
    barrier_wait(barrier, 0);
    float d[SUMS];
    uint32_t at = wgmma_address(shared);
    wgmma_fence();
    for (uint32_t c = 0; c < steps; c++) {
        uint64_t a = wgmma_matrix(at + c * 32), b = wgmma_matrix(at + X_BYTES + c * 32);
        if (c == 0)
            wgmma_m64n128k32_e4m3_first(d, a, b);
        else
            wgmma_m64n128k32_e4m3(d, a, b);
    }
    wgmma_commit();
    __syncthreads();
    if (mistake == OVERWRITTEN && threadIdx.x == 0)
        tma_fetch(shared, &x, column, row, barrier);
    wgmma_wait_64(d);
    for (uint32_t i = 0; i < SUMS; i++)
        y[threadIdx.x * SUMS + i] = d[i];
}

/* Rows of `width` E4M3 bytes, `stride` bytes apart. */
struct rows {
    uint32_t n, width, stride;
    std::vector<uint8_t> bytes;
    uint8_t at(uint32_t row, uint32_t column) const
    {
        return row < n && column < width ? bytes[row * stride + column] : 0;
    }
};

/* Makes rows of whole numbers from −7 to 7; with `code`, of that code only. */
static struct rows make_rows(uint32_t n, uint32_t width, uint32_t stride, int code, uint64_t seed)
{
    random_numbers random = {seed};
    struct rows rows = {n, width, stride, std::vector<uint8_t>((size_t)n * stride)};
    for (uint8_t &byte : rows.bytes)
        byte = code != 0 ? (uint8_t)code : maths_f32_to_f8((float)((int)(random.next() % 15) - 7));
    return rows;
}

struct result {
    std::vector<unsigned char> bytes;
    std::vector<float> y;
};

static struct result run(const struct rows &x, const struct rows &w, uint32_t column, uint32_t row,
                         uint32_t steps, int mistake)
{
    on_device<uint8_t> x_rows(x.bytes), w_rows(w.bytes);
    on_device<unsigned char> bytes((size_t)TILES);
    on_device<float> sums((size_t)GROUP * SUMS);
    struct tensor_map x_map, w_map;
    assert_int_equal(tensor_map_rows(&x_map, x_rows.data, x.n, x.width, x.stride, M), 0);
    assert_int_equal(tensor_map_rows(&w_map, w_rows.data, w.n, w.width, w.stride, N), 0);
    simt_allow_shared((const void *)fetch_and_multiply, SHARED);
    int code = CUDA_LAUNCH(fetch_and_multiply, 1, GROUP, SHARED, NULL, x_map, w_map, column, row,
                           bytes.data, sums.data, steps, mistake);
    assert_int_equal(code, 0);
    assert_int_equal(cudaDeviceSynchronize(), 0);
    return {bytes.fetch(), sums.fetch()};
}

static void check_tile(const unsigned char *tile, uint32_t n_rows, const struct rows &rows,
                       uint32_t column, uint32_t row)
{
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t i = 0; i < LINE; i++) {
            uint32_t at = r * LINE + ((i / 16) ^ (r % 8)) * 16 + i % 16;
            assert_int_equal(tile[at], rows.at(row + r, column + i));
        }
}

/* Whole tiles, tiles that reach beyond rows and columns, columns that begin anywhere. */
static void test_tiles_are_the_matrix_and_zeros_around(void **)
{
    static const uint32_t cases[][2] = {{0, 0}, {32, 64}, {128, 3}, {160, 100}};
    struct rows x = make_rows(101, 192, 208, 0, 3), w = make_rows(130, 192, 192, 0, 5);
    for (const auto &at : cases) {
        struct result found = run(x, w, at[0], at[1], 1, NONE);
        check_tile(found.bytes.data(), M, x, at[0], at[1]);
        check_tile(found.bytes.data() + X_BYTES, N, w, at[0], 0);
    }
}

static void test_sums_are_the_plain_loops(void **)
{
    struct rows x = make_rows(M, LINE, LINE, 0, 7), w = make_rows(N, LINE, LINE, 0, 9);
    for (uint32_t steps = 1; steps <= 4; steps++) {
        struct result found = run(x, w, 0, 0, steps, NONE);
        for (uint32_t m = 0; m < M; m++)
            for (uint32_t n = 0; n < N; n++) {
                uint32_t thread = m / 16 * 32 + m % 8 * 4 + n % 8 / 2;
                uint32_t i = n / 8 * 4 + m % 16 / 8 * 2 + n % 2;
                float sum = 0; /* whole numbers below 2^13, so exact */
                for (uint32_t k = 0; k < 32 * steps; k++)
                    sum += maths_f8_to_f32(x.at(m, k)) * maths_f8_to_f32(w.at(n, k));
                assert_true(found.y[thread * SUMS + i] == sum);
            }
    }
}

/* A product of 448 · 448 needs 18 bits before the point, so the sum keeps units of 16. The other
 * 127 products, of 0.08 each, are lost. */
static void test_sums_keep_fourteen_bits(void **)
{
    uint8_t large = maths_f32_to_f8(448.0f), small = maths_f32_to_f8(0.28125f);
    struct rows x = make_rows(M, LINE, LINE, small, 1), w = make_rows(N, LINE, LINE, small, 1);
    for (uint32_t m = 0; m < M; m++)
        x.bytes[m * LINE] = large;
    for (uint32_t n = 0; n < N; n++)
        w.bytes[n * LINE] = large;
    struct result found = run(x, w, 0, 0, 4, NONE);
    for (float sum : found.y)
        assert_true(sum == 448.0f * 448.0f);
}

static void test_bytes_are_not_there_before_the_wait(void **)
{
    struct rows x = make_rows(M, LINE, LINE, 0, 7), w = make_rows(N, LINE, LINE, 0, 9);
    for (int mistake : {READ_EARLY, WRONG_PARITY}) {
        struct result found = run(x, w, 0, 0, 1, mistake);
        assert_int_equal(found.bytes[0], 0xFF);
        assert_int_equal(found.bytes[TILES - 1], 0xFF);
    }
}

static void test_driver_refuses_what_the_engine_cannot_copy(void **)
{
    struct tensor_map map;
    on_device<uint8_t> bytes((size_t)4096);
    assert_int_equal(tensor_map_rows(&map, bytes.data, 8, 64, 128, 8), 0);
    assert_int_not_equal(tensor_map_rows(&map, bytes.data + 8, 8, 64, 128, 8), 0);
    assert_int_not_equal(tensor_map_rows(&map, bytes.data, 8, 64, 120, 8), 0);
    assert_int_not_equal(tensor_map_rows(&map, bytes.data, 8, 64, 128, 257), 0);
}

static int mistaken(int mistake)
{
    struct rows x = make_rows(M, LINE, LINE, 0, 7), w = make_rows(N, LINE, LINE, 0, 9);
    run(x, w, 0, 0, 2, mistake);
    return 0;
}

static const child_case cases[] = {
    {"not visible", [] { return mistaken(NOT_VISIBLE); }},
    {"too many", [] { return mistaken(TOO_MANY); }},
    {"not awaited", [] { return mistaken(NOT_AWAITED); }},
    {"overwritten", [] { return mistaken(OVERWRITTEN); }},
    {"not aligned", [] { return mistaken(NOT_ALIGNED); }},
    {"no map", [] { return mistaken(NO_MAP); }},
    {"twice", [] { return mistaken(TWICE); }},
};

static void test_misuse_ends_the_process(void **)
{
    expect_abort("not visible", "not made visible by tma_fence_barriers");
    expect_abort("too many", "deadlock");
    expect_abort("not awaited", "ended while 2 tiles were under way");
    expect_abort("overwritten", "were written before it was waited for");
    expect_abort("not aligned", "is no multiple of 1024 bytes");
    expect_abort("no map", "is no description of a matrix");
    expect_abort("twice", "more than the 1 arrivals of a phase");
}

int main(int argc, char **argv)
{
    run_child_case(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_are_the_matrix_and_zeros_around),
        cmocka_unit_test(test_sums_are_the_plain_loops),
        cmocka_unit_test(test_sums_keep_fourteen_bits),
        cmocka_unit_test(test_bytes_are_not_there_before_the_wait),
        cmocka_unit_test(test_driver_refuses_what_the_engine_cannot_copy),
        cmocka_unit_test(test_misuse_ends_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
