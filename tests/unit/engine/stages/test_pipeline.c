/* Tests of the parts that a step is cut into, and of the gate between stages. A simulation of the
 * stages' times checks the throughput that the parts give. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/forward/pipeline.h"

enum { MAX_ROWS = 512, MAX_SEQS = 16 };

static struct step_batch *batch;

static int create_batch(void **state)
{
    struct error err;
    const struct step_limits limits = {MAX_ROWS, MAX_SEQS, 1, 0, false};
    (void)state;
    return step_batch_create(&limits, &batch, &err);
}

static int destroy_batch(void **state)
{
    (void)state;
    step_batch_destroy(batch);
    return 0;
}

/* A batch of n_seqs sequences with n_rows rows each. */
static void fill(uint32_t n_seqs, uint32_t n_rows)
{
    step_batch_clear(batch);
    for (uint32_t s = 0; s < n_seqs; s++) {
        batch->seq_start[s] = batch->n_rows;
        for (uint32_t i = 0; i < n_rows; i++)
            batch->seq_of_row[batch->n_rows++] = s;
    }
    batch->n_seqs = n_seqs;
    batch->seq_start[n_seqs] = batch->n_rows;
}

static uint32_t check_cut(const struct pipeline_cut *cut,
                          struct step_part parts[PIPELINE_MAX_PARTS])
{
    uint32_t n = pipeline_cut_step(cut, batch, parts), end = 0;
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(parts[i].row_begin, end);
        assert_true(parts[i].n_rows > 0);
        end += parts[i].n_rows;
    }
    assert_int_equal(end, batch->n_rows);
    return n;
}

static void test_parts_cover_the_step_once(void **state)
{
    struct step_part parts[PIPELINE_MAX_PARTS];
    (void)state;
    for (uint32_t n_stages = 1; n_stages <= 8; n_stages++)
        for (uint32_t n_rows = 1; n_rows <= 60; n_rows++)
            for (uint32_t whole = 0; whole < 2; whole++)
                for (uint32_t base = 0; base < 20; base += 4) {
                    const struct pipeline_cut cut = {n_stages, (float)base, whole};
                    fill(1 + n_rows % 7, n_rows);
                    uint32_t n = check_cut(&cut, parts);
                    assert_true(n_stages > 1 || n == 1);
                    for (uint32_t i = 0; whole && i < n; i++)
                        assert_int_equal(parts[i].row_begin % n_rows, 0);
                }
}

/* Parts that cost much beside their rows are not worth it for a few rows. */
static void test_few_rows_are_not_cut_where_parts_are_dear(void **state)
{
    const struct pipeline_cut cut = {.n_stages = 2, .base_rows = 8};
    struct step_part parts[PIPELINE_MAX_PARTS];
    (void)state;
    fill(8, 1);
    assert_int_equal(check_cut(&cut, parts), 1);
    fill(1, 256);
    assert_true(check_cut(&cut, parts) >= 4);
}

/* The end of the last part on the last stage. A part takes base + rows on each stage. A stage
 * begins a part once the stage before has finished it and its own part before is done. `overlaps`
 * false: one part is in flight. */
static double simulate(const struct pipeline_cut *cut, const struct step_part *parts, uint32_t n,
                       bool overlaps)
{
    double free_at[8] = {0};
    for (uint32_t i = 0; i < n; i++) {
        double at = overlaps ? 0 : free_at[cut->n_stages - 1];
        for (uint32_t s = 0; s < cut->n_stages; s++) {
            at = at > free_at[s] ? at : free_at[s];
            at += (double)cut->base_rows + parts[i].n_rows;
            free_at[s] = at;
        }
    }
    return free_at[cut->n_stages - 1];
}

static double speed_up(uint32_t n_stages, float base_rows, uint32_t n_seqs, uint32_t n_rows)
{
    const struct pipeline_cut cut = {.n_stages = n_stages, .base_rows = base_rows};
    struct step_part parts[PIPELINE_MAX_PARTS];
    fill(n_seqs, n_rows);
    uint32_t n = check_cut(&cut, parts);
    return simulate(&cut, parts, n, false) / simulate(&cut, parts, n, true);
}

/* Where a stage's time grows with its rows. */
static void test_stages_work_at_once_in_a_simulation(void **state)
{
    (void)state;
    assert_true(speed_up(2, 0, 8, 1) >= 1.6);
    assert_true(speed_up(2, 0.1F, 8, 1) >= 1.6);
    assert_true(speed_up(4, 0, 16, 1) >= 3.2);
    assert_true(speed_up(2, 8, 1, 256) >= 1.6); /* a piece of a prompt */
    assert_true(speed_up(4, 8, 2, 256) >= 3.0);
}

/* --- the gate --- */

enum { N_STAGES = 4, N_PARTS = 16, N_ROUNDS = 200 };

struct stage {
    pthread_t thread;
    struct pipeline_gate *gate;
    uint32_t rank;
    uint32_t (*seen)[N_PARTS]; /* [N_STAGES] what each stage wrote for a part */
};

static void *stage_main(void *ctx)
{
    struct stage *stage = ctx;
    for (uint32_t i = 0; i < N_PARTS; i++) {
        if (stage->rank)
            pipeline_gate_wait(stage->gate, stage->rank - 1, i + 1);
        stage->seen[stage->rank][i] = stage->rank ? stage->seen[stage->rank - 1][i] + 1 : i * 100;
        pipeline_gate_pass(stage->gate, stage->rank);
    }
    return NULL;
}

/* Each stage finds what the stage before wrote for the part. */
static void test_gate_orders_stages(void **state)
{
    static struct pipeline_gate gate;
    (void)state;
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        uint32_t seen[N_STAGES][N_PARTS] = {{0}};
        struct stage stages[N_STAGES];
        pipeline_gate_reset(&gate);
        for (uint32_t s = N_STAGES; s-- > 0;) {
            stages[s] = (struct stage){.gate = &gate, .rank = s, .seen = seen};
            assert_int_equal(pthread_create(&stages[s].thread, NULL, stage_main, &stages[s]), 0);
        }
        for (uint32_t s = 0; s < N_STAGES; s++)
            assert_int_equal(pthread_join(stages[s].thread, NULL), 0);
        for (uint32_t s = 0; s < N_STAGES; s++)
            for (uint32_t i = 0; i < N_PARTS; i++)
                assert_int_equal(seen[s][i], i * 100 + s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_cover_the_step_once),
        cmocka_unit_test(test_few_rows_are_not_cut_where_parts_are_dear),
        cmocka_unit_test(test_stages_work_at_once_in_a_simulation),
        cmocka_unit_test(test_gate_orders_stages),
    };
    return cmocka_run_group_tests(tests, create_batch, destroy_batch);
}
