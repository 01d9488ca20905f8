/* Tests of the CUDA backend's norms on the CPU, from the lines that nvcc compiles. A single thread
 * runs them, or several with a barrier. Results equal the plain reference bit for bit. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/ref/ref.h"
#include "kernels/cuda/norm_row.h"
#include "tests/unit/kernels/support/support_block.h"
#include "tests/unit/kernels/support/support_kernels.h"

/* Short rows share a block. The last two rows do not fit the stage and are read in pieces. */
static const uint32_t dims[] = {1,   15,  16,  17,   31,   80,   100,  128,
                                256, 257, 576, 1024, 4097, 8192, 8200, 20001};
enum { N_DIMS = sizeof(dims) / sizeof(dims[0]) };

struct norm_work {
    struct norm_rows job;
    float *stage;
};

/* Runs all rows on one block. */
static void work(const struct block *b, void *arg)
{
    const struct norm_work *w = arg;
    uint32_t rows = norm_block_rows(w->job.n);
    for (uint32_t row = 0; row < w->job.n_rows; row += rows) {
        norm_run(b, w->stage, &w->job, row, norm_rows_left(w->job.n_rows, row, rows));
    }
}

static float *aligned_floats(size_t n)
{
    float *x = aligned_alloc(64, (n * sizeof(float) + 127) / 64 * 64);
    memset(x, 0xFF, n * sizeof(float));
    return x;
}

/* The weights are n_w rows. `shift` moves the rows to addresses that are no multiple of 16 bytes.
 */
static void check_norm(uint32_t n, uint32_t n_w, bool centred, bool with_bias, uint32_t shift,
                       bool in_place, uint32_t n_threads, struct random *random)
{
    uint32_t m = 2 * norm_block_rows(n) + 1;
    size_t stride = (n + 3) / 4 * 4 + shift, n_floats = m * stride + shift;
    float *values = random_floats(random, n_floats, 0.01f),
          *w = random_floats(random, (size_t)n * n_w, 0.0f);
    float *bias = random_floats(random, (size_t)n * n_w, 0.0f), *wanted = poisoned(n);
    float *x = aligned_floats(n_floats), *y = in_place ? x : aligned_floats(n_floats);
    float *stage = aligned_floats(norm_stage_bytes(n) / sizeof(float));
    memcpy(x, values, n_floats * sizeof(float));
    struct norm_work all = {.job = {y + shift, x + shift, w, with_bias ? bias : NULL, stride,
                                    stride, m, n, 1e-5f, centred, n_w},
                            .stage = stage};
    run_block(n_threads, work, &all);
    for (uint32_t r = 0; r < m; r++) {
        const float *from = values + shift + r * stride;
        size_t at = (size_t)(r % n_w) * n;
        if (centred)
            ref_layer_norm(wanted, from, w + at, with_bias ? bias + at : NULL, n, 1e-5f);
        else
            ref_rms_norm(wanted, from, w + at, n, 1e-5f);
        assert_same_bits(y + shift + r * stride, wanted, n * sizeof(float),
                         centred ? "layer_norm" : "rms_norm");
    }
    if (!in_place)
        free(y);
    free(x);
    free(values);
    free(w);
    free(bias);
    free(wanted);
    free(stage);
}

static void test_norms_have_the_references_bits(void **state)
{
    (void)state;
    struct random random = {7};
    for (size_t i = 0; i < N_DIMS; i++)
        for (uint32_t n_threads = 1; n_threads <= 8; n_threads *= 2)
            for (uint32_t shift = 0; shift < 3; shift += 2)
                for (int how = 0; how < 3; how++)
                    for (uint32_t n_w = 1; n_w <= 3; n_w += 2)
                        check_norm(dims[i], n_w, how > 0, how > 1, shift, n_threads == 4, n_threads,
                                   &random);
}

static void test_blocks_hold_what_they_stage(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 3 * NORM_CHUNK; n++) {
        uint32_t rows = norm_block_rows(n);
        assert_true(rows >= 1 && rows <= NORM_MAX_ROWS);
        assert_true(rows * CUDA_LANES <= CUDA_SEGMENTS * CUDA_LANES);
        assert_true(norm_pitch(n) >= (n < NORM_CHUNK ? n : NORM_CHUNK));
        assert_int_equal(norm_pitch(n) % 4, 0);
        assert_true(norm_stage_bytes(n) + sizeof(struct block_shared) <= 48 << 10);
    }
    assert_int_equal(norm_pitch(3 * NORM_CHUNK), NORM_STAGED);
    assert_int_equal(NORM_CHUNK % CUDA_LANES, 0);
}

static void test_blocks_share_the_rows(void **state)
{
    (void)state;
    enum { MAX_ROWS = 50 };
    for (uint32_t rows = 1; rows <= NORM_MAX_ROWS; rows *= 2)
        for (uint32_t n_rows = 1; n_rows <= MAX_ROWS; n_rows++)
            for (uint32_t n_blocks = 1; n_blocks <= 7; n_blocks += 3) {
                uint8_t taken[MAX_ROWS + 1] = {0};
                for (uint32_t block = 0; block < n_blocks; block++)
                    for (uint32_t row = norm_block_first(block, rows); row < n_rows;
                         row += norm_block_first(n_blocks, rows)) {
                        uint32_t n = norm_rows_left(n_rows, row, rows);
                        assert_true(n >= 1 && n <= rows && row + n <= n_rows);
                        for (uint32_t i = row; i < row + n; i++)
                            assert_int_equal(taken[i]++, 0);
                    }
                assert_ptr_equal(memchr(taken, 0, sizeof(taken)), taken + n_rows);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms_have_the_references_bits),
        cmocka_unit_test(test_blocks_hold_what_they_stage),
        cmocka_unit_test(test_blocks_share_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
