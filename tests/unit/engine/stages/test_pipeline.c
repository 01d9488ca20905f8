/* Tests of the parts that a step is cut into, and of the gate between stages. Simulations of the
 * stages' times check the throughput that parts and steps in flight give. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/forward/pipeline.h"
#include "engine/request/sequence.h"
#include "tests/unit/engine/support/support_scheduler.h"

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

/* --- steps in flight --- */

/* Times of the stages in a step. A part takes base + rows on each stage. */
struct times {
    struct step_part parts[PIPELINE_MAX_PARTS];
    uint32_t n_parts;
    double starts[8][PIPELINE_MAX_PARTS], ends[8]; /* by stage */
};

struct simulation {
    struct pipeline_cut cut;
    double base;
    double host;             /* time to sample and to schedule a step, in rows */
    double now, released_at; /* the last step was sampled */
    struct times before;
    double submitted_at[8]; /* steps in flight, the oldest first */
    double serial;          /* time of the same steps, each part alone */
    uint32_t n_tokens, n_computed;
};

/* When the next stage has taken the rows of the step before that lie where the part will lie. */
static double place_free_at(const struct simulation *sim, uint32_t s, const struct step_part *part)
{
    const struct times *b = &sim->before;
    double at = 0;
    for (uint32_t i = 0; s + 1 < sim->cut.n_stages && i < b->n_parts; i++)
        if (b->parts[i].row_begin < part->row_begin + part->n_rows)
            at = b->starts[s + 1][i];
    return at;
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

/* Runs the oldest step as executor_run.c does. The last stage waits until the step before is
 * sampled; any other waits until its rows are taken. */
static void pass_stages(struct simulation *sim, const struct step_batch *step)
{
    struct times t = {.n_parts = pipeline_cut_step(&sim->cut, step, t.parts)};
    double ends[PIPELINE_MAX_PARTS] = {0};
    for (uint32_t s = 0; s < sim->cut.n_stages; s++) {
        double at = later(sim->before.ends[s], sim->submitted_at[0]);
        if (s + 1 == sim->cut.n_stages)
            at = later(at, sim->released_at);
        for (uint32_t i = 0; i < t.n_parts; i++) {
            double takes = sim->base + t.parts[i].n_rows;
            t.starts[s][i] = later(later(at, ends[i]), place_free_at(sim, s, &t.parts[i]));
            ends[i] = at = t.starts[s][i] + takes;
            sim->serial += takes;
        }
        t.ends[s] = at;
    }
    sim->before = t;
    sim->now = later(sim->now, t.ends[sim->cut.n_stages - 1]) + sim->host;
    sim->serial += sim->host;
    sim->released_at = sim->now;
}

static void land(struct simulation *sim, struct bench *b)
{
    const struct bench_flight *f = &b->flights[b->first_flight];
    pass_stages(sim, f->batch);
    sim->n_computed += f->plan.n_prefill_rows;
    for (uint32_t i = 0; i < f->plan.n_samples; i++)
        scheduler_take(b->sched, i, &(struct sample_result){.id = 5});
    sim->n_tokens += f->plan.n_samples;
    scheduler_commit(b->sched);
    for (uint32_t i = 0; i < f->plan.n_samples; i++)
        if (f->plan.samples[i]->n_ids == f->plan.samples[i]->max_ids)
            scheduler_end_sequence(b->sched, f->plan.samples[i]);
    b->first_flight = (b->first_flight + 1) % b->cfg.max_flights;
    b->n_flights--;
    for (uint32_t i = 0; i < b->n_flights; i++)
        sim->submitted_at[i] = sim->submitted_at[i + 1];
}

/* Serves n requests by the scheduler. */
static struct simulation serve(uint32_t n_stages, double base, uint32_t max_flights, uint32_t n,
                               uint32_t n_prompt, uint32_t max_tokens)
{
    const struct scheduler_config cfg = {.max_rows = 256,
                                         .max_seqs = 64,
                                         .n_blocks = 4000,
                                         .prefill_chunk_tokens = 128,
                                         .max_flights = max_flights};
    struct simulation sim = {.cut = {n_stages, 8, false}, .base = base, .host = 0.25};
    struct bench *b = &bench;
    struct request *all[64];
    bench_open(b, &cfg);
    for (uint32_t i = 0; i < n; i++)
        scheduler_add(b->sched, all[i] = bench_make(b, i, n_prompt, max_tokens, 1, 0, ""));
    while (scheduler_any(b->sched)) {
        struct bench_flight *f;
        while (b->n_flights < max_flights &&
               (f = &b->flights[(b->first_flight + b->n_flights) % max_flights],
                scheduler_schedule(b->sched, f->batch, (int64_t)sim.now, &f->plan)))
            sim.submitted_at[b->n_flights++] = sim.now;
        assert_true(b->n_flights > 0);
        land(&sim, b);
    }
    for (uint32_t i = 0; i < n; i++)
        request_release(all[i]);
    bench_close(b);
    return sim;
}

/* P stages have at least 0.8 P times the throughput of the same steps one at a time. There are 2P
 * requests or more, and steps cost anything besides their rows. */
static void test_steps_in_flight_keep_stages_busy(void **state)
{
    (void)state;
    for (uint32_t n_stages = 2; n_stages <= 8; n_stages *= 2)
        for (uint32_t base = 0; base <= 64; base = base ? base * 4 : 4)
            for (uint32_t n = 2 * n_stages; n <= 64; n *= 2) {
                struct simulation sim = serve(n_stages, base, n_stages, n, 4, 400);
                assert_int_equal(sim.n_tokens, n * 400);
                if (sim.serial < 0.8 * n_stages * sim.now)
                    fail_msg("%u stages, base %u, %u requests: %.2f times", n_stages, base, n,
                             sim.serial / sim.now);
            }
}

/* Against one step at a time that has the rows of all requests. There the cost beside the rows is
 * paid once, and not once for each step in flight. */
static void test_two_stages_with_eight_requests(void **state)
{
    (void)state;
    for (uint32_t base = 0; base <= 8; base++) {
        double one = serve(2, base, 1, 8, 4, 400).now, two = serve(2, base, 2, 8, 4, 400).now;
        print_message("8 requests, a step costs %u rows and its own: %.2f times\n", base,
                      one / two);
        assert_true(one / two >= (base <= 2 ? 1.6 : 1.25));
    }
}

/* Prompts keep the stages busy, by their parts and by the steps of other prompts. */
static void test_prompts_keep_stages_busy(void **state)
{
    (void)state;
    for (uint32_t n_stages = 2; n_stages <= 4; n_stages *= 2) {
        struct simulation sim = serve(n_stages, 8, n_stages, 16, 400, 2);
        assert_int_equal(sim.n_computed, 16 * 400);
        if (sim.serial < 0.8 * n_stages * sim.now)
            fail_msg("%u stages: prompts %.2f times", n_stages, sim.serial / sim.now);
    }
}

/* A lone request has one step in flight, and no stage waits for others. */
static void test_a_lone_request_is_not_delayed(void **state)
{
    (void)state;
    double one = serve(4, 8, 1, 1, 4, 100).now, four = serve(4, 8, 4, 1, 4, 100).now;
    assert_true(four <= one * 1.0001);
}

/* --- the gate --- */

enum { N_STAGES = 4, N_PARTS = 16, N_ROUNDS = 200 };

struct stage {
    pthread_t thread;
    struct pipeline_gate *gate;
    uint32_t rank;
    uint32_t before;           /* parts of all steps before this one */
    uint32_t (*seen)[N_PARTS]; /* [N_STAGES] what each stage wrote for a part */
};

static void *stage_main(void *ctx)
{
    struct stage *stage = ctx;
    for (uint32_t i = 0; i < N_PARTS; i++) {
        if (stage->rank)
            pipeline_gate_wait(stage->gate, stage->rank - 1, stage->before + i + 1);
        stage->seen[stage->rank][i] = stage->rank ? stage->seen[stage->rank - 1][i] + 1 : i * 100;
        pipeline_gate_pass(stage->gate, stage->rank);
    }
    return NULL;
}

/* Each stage finds what the stage before wrote for the part. Counts wrap around. */
static void test_gate_orders_stages(void **state)
{
    static struct pipeline_gate gate;
    uint32_t before = UINT32_MAX - N_ROUNDS * N_PARTS / 2;
    (void)state;
    for (uint32_t s = 0; s < N_STAGES; s++)
        atomic_store(&gate.n_done[s], before);
    for (uint32_t round = 0; round < N_ROUNDS; round++, before += N_PARTS) {
        uint32_t seen[N_STAGES][N_PARTS] = {{0}};
        struct stage stages[N_STAGES];
        for (uint32_t s = N_STAGES; s-- > 0;) {
            stages[s] = (struct stage){.gate = &gate, .rank = s, .before = before, .seen = seen};
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
        cmocka_unit_test(test_steps_in_flight_keep_stages_busy),
        cmocka_unit_test(test_two_stages_with_eight_requests),
        cmocka_unit_test(test_prompts_keep_stages_busy),
        cmocka_unit_test(test_a_lone_request_is_not_delayed),
        cmocka_unit_test(test_gate_orders_stages),
    };
    return cmocka_run_group_tests(tests, create_batch, destroy_batch);
}
