/* Tests of the indices of the kernels of recurrent layers: shared memory, columns, keys and runs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/recurrent/recurrent_index.h"

enum { SHARED_FLOATS = RECURRENT_SHARED / 4, HEAD_DIM = 200 };

static const uint32_t dims[] = {1, 7, 8, 63, 64, 65, 128, 256, 257, 300, 512, 1000, 1024};
enum { N_DIMS = sizeof(dims) / sizeof(dims[0]) };

static uint8_t taken[SHARED_FLOATS];

static void take(uint32_t begin, uint32_t n)
{
    for (uint32_t i = begin; i < begin + n; i++) {
        assert_true(i < SHARED_FLOATS);
        assert_false(taken[i]);
        taken[i] = 1;
    }
}

/* Every row of the ring, its words and the tile have places of their own in the block's memory. */
static void test_shared_memory_holds_ring_and_tile(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_DIMS; i++)
        for (uint32_t n_rows = 1; n_rows <= 1000; n_rows += 999) {
            struct recurrent_span job = {.dim = dims[i], .head_dim = HEAD_DIM, .n_heads = 2};
            job.n_columns = recurrent_columns(dims[i], HEAD_DIM, n_rows, job.n_heads);
            struct recurrent_ring ring = recurrent_ring_of(&job);
            uint32_t last = job.n_columns - 1, n_bytes;
            memset(taken, 0, sizeof(taken));
            assert_int_equal(ring.n, RECURRENT_RING * recurrent_batch(dims[i]));
            for (uint32_t r = 0; r < ring.n; r++) {
                uint32_t key = recurrent_ring_key(&ring, ring.n + r);
                assert_int_equal(key % 4, 0); /* read as four floats */
                take(key, 2 * dims[i]);
                take(key + recurrent_ring_value(dims[i], 0), job.n_columns);
                assert_int_equal(recurrent_ring_value(dims[i], last),
                                 2 * dims[i] + job.n_columns - 1);
                assert_int_equal(recurrent_place(&ring, 2 * ring.n + r), r);
                for (uint32_t v = 0; v < 2; v++)
                    assert_int_equal(recurrent_ring_vector(&ring, dims[i], r, v),
                                     key + v * dims[i]);
            }
            take(ring.decay, ring.n);
            take(ring.gain, ring.n);
            take(ring.writes, ring.n);
            if (!recurrent_in_registers(dims[i]))
                take(ring.tile, dims[i] * job.n_columns);
            n_bytes = recurrent_shared_bytes(dims[i], job.n_columns);
            assert_true(n_bytes <= RECURRENT_SHARED);
            for (uint32_t f = n_bytes / 4; f < SHARED_FLOATS; f++)
                assert_false(taken[f]);
        }
}

static void test_blocks_cover_the_columns(void **state)
{
    (void)state;
    static const struct {
        uint32_t dim, head_dim, n_rows, n_heads, columns;
    } rows[] = {
        {128, 128, 1, 32, 32},   {128, 128, 4, 32, 128}, {128, 64, 4, 32, 64},
        {128, 65, 4, 32, 128},   {64, 8, 2048, 32, 32},  {128, 1024, 2048, 1, 128},
        {256, 64, 2048, 24, 32}, {512, 64, 1, 8, 16},    {1024, 64, 1, 8, 4},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t n =
            recurrent_columns(rows[i].dim, rows[i].head_dim, rows[i].n_rows, rows[i].n_heads);
        assert_int_equal(n, rows[i].columns);
        assert_int_equal(recurrent_threads(n) % CUDA_WARP, 0);
        assert_true(recurrent_threads(n) >= n && recurrent_threads(n) <= RECURRENT_MAX_COLUMNS);
        assert_int_equal(recurrent_column(3, n, n - 1) + 1, recurrent_column(4, n, 0));
    }
}

static void test_heads_read_the_keys_of_the_contract(void **state)
{
    (void)state;
    for (uint32_t tiled = 0; tiled < 2; tiled++)
        for (uint32_t first = 0; first < 12; first += 3) {
            const struct delta_params p = {.n_all_key_heads = 4,
                                           .n_all_heads = 12,
                                           .first_head = first,
                                           .first_key = tiled ? 0 : first / 3,
                                           .tiled = tiled};
            const struct recurrent_span job = {.n_all_keys = 4,
                                               .heads_per_key = 3,
                                               .first_head = first,
                                               .first_key = p.first_key,
                                               .tiled = tiled};
            for (uint32_t h = 0; h < 3; h++)
                assert_int_equal(recurrent_span_key(&job, h), recurrent_key_head(&p, h));
        }
}

static void test_rows_of_a_batch_end_with_the_run(void **state)
{
    (void)state;
    assert_int_equal(recurrent_rows_of(1, 0, 8), 1);
    assert_int_equal(recurrent_rows_of(1, 8, 8), 0);
    assert_int_equal(recurrent_rows_of(19, 8, 8), 8);
    assert_int_equal(recurrent_rows_of(19, 16, 8), 3);
    for (uint32_t bit = 0; bit < 32; bit++)
        assert_int_equal(recurrent_first_bit(0x80000000u | 1u << bit), bit);
}

/* RECURRENT_NONE, RECURRENT_PREVIOUS and slots beyond the pool have no memory. */
static void test_only_slots_of_the_pool_have_a_state(void **state)
{
    (void)state;
    float pool[6];
    const struct recurrent_slots slots = {.base = pool, .stride = 2, .n_slots = 3};
    assert_ptr_equal(recurrent_slot(&slots, 0), pool);
    assert_ptr_equal(recurrent_slot(&slots, 2), pool + 4);
    assert_null(recurrent_slot(&slots, 3));
    assert_null(recurrent_slot(&slots, RECURRENT_NONE));
    assert_null(recurrent_slot(&slots, RECURRENT_PREVIOUS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_memory_holds_ring_and_tile),
        cmocka_unit_test(test_blocks_cover_the_columns),
        cmocka_unit_test(test_heads_read_the_keys_of_the_contract),
        cmocka_unit_test(test_rows_of_a_batch_end_with_the_run),
        cmocka_unit_test(test_only_slots_of_the_pool_have_a_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
