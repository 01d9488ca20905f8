/* Tests of a step whose inputs were queued while the step before ran. The bits are those of a step
 * without, for batches as announced and for others. Needs a GPU, or tests/simt. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/device.h"
#include "tests/unit/engine/support/support_model.h"
#include "tests/unit/engine/support/support_tiny.h"

enum { N_SEQS = 6, N_TOKENS = 40, VOCAB = 300 };

static uint32_t ids[N_SEQS][N_TOKENS];

static void open_run(struct model_run *run)
{
    struct tiny_spec spec = tiny_spec_default();
    struct executor_config cfg = model_run_config("ref");
    spec.matrix_type = GGML_Q8_0;
    cfg.device = "cuda:0";
    cfg.kv_block_size = 4; /* tables change every fourth step */
    model_run_open_ckpt(run, tiny_open(&spec), &cfg);
    for (uint32_t s = 0; s < N_SEQS; s++)
        model_run_add(run, ids[s], N_TOKENS);
    run->generated = true;
}

/* Returns true if sequence s takes part in the step at `t`. Every seventh step leaves out half of
 * the sequences. */
static bool takes_part(uint32_t s, uint32_t t)
{
    return t % 7 != 6 || s % 2;
}

static void push(struct model_run *run, uint32_t t)
{
    for (uint32_t s = 0; s < N_SEQS; s++)
        if (takes_part(s, t) && run->seqs[s].n_done < N_TOKENS)
            model_run_push(run, s, 1, 1);
}

/* Queues the inputs of step `t` without its tokens, as a scheduler does before the tokens are
 * known. */
static void queue_ahead(struct model_run *run, uint32_t t)
{
    struct error err = {0};
    uint32_t known[N_SEQS];
    push(run, t);
    memcpy(known, run->batch->token_ids, run->batch->n_rows * sizeof(*known));
    memset(run->batch->token_ids, 0, run->batch->n_rows * sizeof(*known));
    if (executor_step_ahead(run->ex, run->batch, &err) != 0)
        fail_msg("%s", err.message);
    memcpy(run->batch->token_ids, known, run->batch->n_rows * sizeof(*known));
}

/* Undoes the queued step, because another step runs instead. */
static void take_back(struct model_run *run, const struct model_run_seq *seqs, uint32_t n_taken)
{
    for (uint32_t s = 0; s < N_SEQS; s++) {
        run->seqs[s].n_done = seqs[s].n_done;
        run->seqs[s].n_blocks = seqs[s].n_blocks;
    }
    run->n_taken = n_taken;
    step_batch_clear(run->batch);
}

static void run_step(struct model_run *run, uint32_t n_rows, float *out)
{
    struct error err = {0};
    if (executor_step(run->ex, run->batch, &err) != 0)
        fail_msg("%s", err.message);
    for (uint32_t i = 0; i < n_rows; i++) {
        const float *logits = executor_logits(run->ex, i);
        assert_non_null(logits);
        memcpy(out + (size_t)i * VOCAB, logits, VOCAB * sizeof(float));
    }
}

/* Takes all but a little of the GPU's free memory. Drivers give memory in pieces of 2 MiB and keep
 * the last free bytes. So the pieces get ever smaller. */
struct rest {
    struct device *device;
    const struct device_ops *ops;
    struct {
        void *data;
        size_t n_bytes;
    } pieces[64];
    uint32_t n_pieces;
};

static bool take_piece(struct rest *rest, size_t n_bytes)
{
    struct error err = {0};
    if (rest->n_pieces == sizeof(rest->pieces) / sizeof(rest->pieces[0]) ||
        rest->ops->alloc(rest->device, n_bytes, &rest->pieces[rest->n_pieces].data, &err) != 0)
        return false;
    rest->pieces[rest->n_pieces++].n_bytes = n_bytes;
    return true;
}

static void take_rest(struct rest *rest)
{
    enum { LEAST = 64 << 10, FIRST_PIECE = 32 << 20 };
    struct backend_module module;
    struct device_memory memory;
    struct error err = {0};
    if (backend_cuda(&module, &err) != 0 || module.device_ops->open(0, &rest->device, &err) != 0 ||
        module.device_ops->memory(rest->device, &memory, &err) != 0)
        fail_msg("%s", err.message);
    rest->ops = module.device_ops;
    size_t most = memory.free_bytes - LEAST;
    while (most > FIRST_PIECE && !take_piece(rest, most))
        most -= 2 << 20;
    assert_true(rest->n_pieces == 1);
    for (size_t n = FIRST_PIECE; n >= LEAST; n /= 2)
        while (take_piece(rest, n))
            ;
}

static void give_rest_back(struct rest *rest)
{
    for (uint32_t i = 0; i < rest->n_pieces; i++)
        rest->ops->free(rest->device, rest->pieces[i].data, rest->pieces[i].n_bytes);
    rest->ops->close(rest->device);
}

enum how { AS_IT_COMES, AHEAD, NO_ROOM };

/* Returns the logits of all steps. AHEAD: each step's inputs are queued before the step. At every
 * fifth step, a step without the first sequence was queued instead. NO_ROOM: the GPU's memory is
 * used up. */
static float *run_all(enum how how, uint32_t *out_n_rows)
{
    bool ahead = how == AHEAD;
    struct rest rest = {0};
    struct model_run run;
    float *out = calloc((size_t)N_SEQS * N_TOKENS, VOCAB * sizeof(float));
    uint32_t n_rows = 0;
    assert_non_null(out);
    open_run(&run);
    for (uint32_t t = 0; t < N_TOKENS; t++) {
        if (how == NO_ROOM && t == 1) /* after the first step, libraries and kernels are loaded */
            take_rest(&rest);
        struct model_run_seq seqs[N_SEQS];
        memcpy(seqs, run.seqs, sizeof(seqs));
        uint32_t n_taken = run.n_taken;
        if (ahead && t % 5 == 4) {
            run.seqs[0].n_done = N_TOKENS;
            queue_ahead(&run, t);
            take_back(&run, seqs, n_taken);
            push(&run, t);
        } else if (ahead) {
            queue_ahead(&run, t);
            run.batch->is_ahead = true;
        } else {
            push(&run, t);
        }
        run_step(&run, run.batch->n_rows, out + (size_t)n_rows * VOCAB);
        n_rows += run.batch->n_rows;
        step_batch_clear(run.batch);
    }
    if (how == NO_ROOM) {
        /* A real driver may have free memory for captured steps; the emulated one has none. */
        const char *module = getenv("SLUICE_CUDA_MODULE");
        print_message("%" PRIu64 " bytes of captured steps\n", executor_graphs_taken(run.ex));
        if (module && strstr(module, "simt"))
            assert_int_equal(executor_graphs_taken(run.ex), 0);
        give_rest_back(&rest);
    }
    model_run_close(&run);
    *out_n_rows = n_rows;
    return out;
}

static void check_bits(enum how how)
{
    uint32_t n_expected, n_got;
    float *expected = run_all(AS_IT_COMES, &n_expected), *got = run_all(how, &n_got);
    assert_int_equal(n_got, n_expected);
    for (size_t i = 0; i < (size_t)n_got * VOCAB; i++)
        if (memcmp(&got[i], &expected[i], sizeof(float)) != 0)
            fail_msg("row %zu: logit %zu is %.9g, expected %.9g", i / VOCAB, i % VOCAB,
                     (double)got[i], (double)expected[i]);
    free(expected);
    free(got);
}

static void test_bits_are_those_of_a_step_that_was_not_told(void **state)
{
    (void)state;
    check_bits(AHEAD);
}

/* Symptom: a step that could not be captured ended the engine, and said nothing of memory. */
static void test_steps_go_on_where_there_is_no_room_to_capture_them(void **state)
{
    (void)state;
    check_bits(NO_ROOM);
}

/* A batch that was not checked when it was announced is checked when it comes. */
static void test_a_token_out_of_range_is_refused(void **state)
{
    struct model_run run;
    struct error err = {0};
    (void)state;
    open_run(&run);
    queue_ahead(&run, 0);
    run.batch->is_ahead = true;
    run.batch->token_ids[1] = VOCAB;
    assert_int_equal(executor_step(run.ex, run.batch, &err), STATUS_INTERNAL);
    assert_non_null(strstr(err.message, "row 1: token 300"));
    model_run_close(&run);
}

static void test_a_bad_step_is_refused_when_it_is_told(void **state)
{
    struct model_run run;
    struct error err = {0};
    (void)state;
    open_run(&run);
    push(&run, 0);
    run.batch->kv_slots[2] = UINT32_MAX - 1;
    assert_int_equal(executor_step_ahead(run.ex, run.batch, &err), STATUS_INTERNAL);
    model_run_close(&run);
}

/* Results must be ready when the test waits for them, whatever work was queued later. */
static void test_results_are_there_before_what_was_queued_behind(void **state)
{
    struct model_run run;
    struct error err = {0};
    struct sample_result *results[2];
    struct sample_params params[N_SEQS];
    uint32_t drawn[N_SEQS];
    (void)state;
    open_run(&run);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(executor_alloc_results(run.ex, N_SEQS, &results[i], &err), 0);
    for (uint32_t i = 0; i < N_SEQS; i++)
        params[i] = (struct sample_params){.top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    for (uint32_t t = 0; t < 6; t++) {
        push(&run, t);
        assert_int_equal(executor_step(run.ex, run.batch, &err), 0);
        for (uint32_t i = 0; i < N_SEQS; i++)
            results[t % 2][i].id = UINT32_MAX;
        assert_int_equal(executor_queue_sample(run.ex, 0, N_SEQS, params, results[t % 2], &err), 0);
        step_batch_clear(run.batch);
        struct model_run_seq seqs[N_SEQS];
        memcpy(seqs, run.seqs, sizeof(seqs));
        uint32_t n_taken = run.n_taken;
        queue_ahead(&run, t + 1);
        take_back(&run, seqs, n_taken);
        assert_int_equal(executor_wait(run.ex, &err), 0);
        for (uint32_t i = 0; i < N_SEQS; i++) /* before anything else waits */
            drawn[i] = results[t % 2][i].id;
        for (uint32_t i = 0; i < N_SEQS; i++) {
            const float *logits = executor_logits(run.ex, i);
            uint32_t best = 0;
            for (uint32_t k = 1; k < VOCAB; k++)
                best = logits[k] > logits[best] ? k : best;
            assert_int_equal(drawn[i], best);
        }
    }
    for (uint32_t i = 0; i < 2; i++)
        executor_free_results(run.ex, results[i], N_SEQS);
    model_run_close(&run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits_are_those_of_a_step_that_was_not_told),
        cmocka_unit_test(test_steps_go_on_where_there_is_no_room_to_capture_them),
        cmocka_unit_test(test_a_token_out_of_range_is_refused),
        cmocka_unit_test(test_a_bad_step_is_refused_when_it_is_told),
        cmocka_unit_test(test_results_are_there_before_what_was_queued_behind),
    };
    for (uint32_t s = 0; s < N_SEQS; s++)
        for (uint32_t i = 0; i < N_TOKENS; i++)
            ids[s][i] = (s * 7919 + i * 104729 + 13) % VOCAB;
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
