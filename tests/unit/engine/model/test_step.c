#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/model/step.h"

static void test_create_arrays_hold_their_capacity(void **state)
{
    struct step_limits limits = {.max_rows = 33, .max_seqs = 5, .max_blocks_per_seq = 7};
    struct step_batch *b = NULL;
    struct error err = {0};
    (void)state;
    assert_int_equal(step_batch_create(&limits, &b, &err), 0);
    /* Fills each array to its end with values of its own, so that overlapping arrays would show. */
    uint32_t *arrays[] = {b->token_ids,  b->positions,    b->kv_slots,
                          b->seq_of_row, b->state_reads,  b->state_writes,
                          b->seq_start,  b->block_tables, b->sample_rows};
    const uint32_t sizes[] = {33, 33, 33, 33, 33, 33, 6, 35, 5};
    for (uint32_t a = 0; a < 9; a++)
        for (uint32_t i = 0; i < sizes[a]; i++)
            arrays[a][i] = a * 1000 + i;
    for (uint32_t i = 0; i < 33; i++)
        b->is_generated[i] = 1;
    for (uint32_t a = 0; a < 9; a++)
        for (uint32_t i = 0; i < sizes[a]; i++)
            assert_int_equal(arrays[a][i], a * 1000 + i);
    assert_int_equal(b->limits.max_rows, 33);
    b->n_rows = 3;
    b->n_seqs = 2;
    b->n_sample_rows = 1;
    uint32_t *ids = b->token_ids;
    step_batch_clear(b);
    assert_int_equal(b->n_rows + b->n_seqs + b->n_sample_rows, 0);
    assert_int_equal(b->seq_start[0], 0);
    assert_ptr_equal(b->token_ids, ids);
    step_batch_destroy(b);
    step_batch_destroy(NULL);
}

static void test_create_zero_limit_refused(void **state)
{
    const struct step_limits bad[] = {
        {0, 1, 1, 0, false}, {1, 0, 1, 0, false}, {1, 1, 0, 0, false}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct step_batch *b = NULL;
        struct error err = {0};
        assert_int_equal(step_batch_create(&bad[i], &b, &err), STATUS_INVALID_ARGUMENT);
        assert_null(b);
    }
}

/* A sequence reads its slot, or nothing while it is new, and writes after its last row only. */
static void test_use_slot_chains_the_rows_of_a_sequence(void **state)
{
    struct step_limits limits = {.max_rows = 8, .max_seqs = 3, .max_blocks_per_seq = 1};
    const uint32_t none = STEP_STATE_NONE, before = STEP_STATE_PREVIOUS;
    const uint32_t reads[] = {none, before, before, 7, 2, before};
    const uint32_t writes[] = {none, none, 5, 7, none, 2};
    struct step_batch *b = NULL;
    struct error err = {0};
    (void)state;
    assert_int_equal(step_batch_create(&limits, &b, &err), 0);
    b->seq_start[0] = 0;
    b->seq_start[1] = 3;
    b->seq_start[2] = 4;
    b->seq_start[3] = 6;
    step_batch_use_slot(b, 0, 5, true);
    step_batch_use_slot(b, 1, 7, false);
    step_batch_use_slot(b, 2, 2, false);
    assert_memory_equal(b->state_reads, reads, sizeof(reads));
    assert_memory_equal(b->state_writes, writes, sizeof(writes));
    step_batch_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_arrays_hold_their_capacity),
        cmocka_unit_test(test_create_zero_limit_refused),
        cmocka_unit_test(test_use_slot_chains_the_rows_of_a_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
