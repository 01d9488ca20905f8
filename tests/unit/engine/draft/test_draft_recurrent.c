/* Tests a draft model with recurrent layers, for a target with attention and for a recurrent one.
 * Answers are the same with and without drafts. After rejected tokens the draft model continues
 * from the state of the last accepted one. Its states are part of plans and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/draft/draft_model.h"
#include "engine/draft/draft_model_private.h"
#include "engine/format/checkpoint.h"
#include "engine/request/sequence.h"
#include "engine/text/tokenizer.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_engine.h"
#include "tests/unit/engine/support/support_same.h"

#define TINY SLUICE_SOURCE_DIR "/tests/golden/tiny/"

/* --- the same answers --- */

static const struct same_variant of_attention[] = {
    {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0, 0, 0, NULL, 0},
    {"delta net", 1, 2, 16, 4096, 32, 128, 16, false, false, 0, 0, 8, "qwen35", 0},
    {"delta net, small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0, 0, 16, "qwen35", 0},
    {"Mamba-2, small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0, 0, 16, "mamba2", 0},
    {"short convolution", 1, 2, 16, 4096, 32, 128, 16, false, false, 0, 0, 8, "lfm2", 0},
};

static void test_64_alone_equal_64_with_recurrent_drafts_for_attention(void **state)
{
    (void)state;
    same_check("qwen3", DTYPE_BF16, of_attention, sizeof(of_attention) / sizeof(of_attention[0]),
               44);
}

/* The model drafts for itself. Penalties make some drafts wrong. */
static const struct same_variant of_twin[] = {
    {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0, 0, 0, NULL, 0},
    {"three at a time", 1, 2, 16, 4096, 32, 128, 3, true, false, 0, 0, 16, "qwen35", 0.1},
    {"all at once", 1, 2, 16, 4096, 32, 512, 64, false, false, 0, 0, 4, "qwen35", 0.05},
    {"tp 2", 2, 2, 16, 4096, 32, 128, 16, false, false, 0, 0, 8, "qwen35", 0.1},
    {"small pool", 1, 2, 4, 320, 32, 64, 5, true, true, 0, 0, 16, "qwen35", 0.1},
    {"Mamba-2", 1, 2, 16, 4096, 32, 128, 16, false, false, 0, 0, 8, "mamba2", 0},
    {"short convolution", 1, 2, 4, 320, 32, 64, 5, true, true, 0, 0, 16, "lfm2", 0},
};

static void test_64_alone_equal_64_with_recurrent_drafts_for_a_delta_net(void **state)
{
    (void)state;
    same_check("qwen35", DTYPE_BF16, of_twin, sizeof(of_twin) / sizeof(of_twin[0]), 44);
}

static const struct same_variant of_mamba[] = {
    {"as it was", 1, 2, 16, 4096, 32, 128, 64, false, false, 0, 0, 0, NULL, 0},
    {"eight at a time", 1, 2, 16, 4096, 32, 128, 8, true, false, 0, 0, 8, "mamba2", 0.1},
    {"attention", 1, 2, 16, 4096, 32, 128, 8, true, false, 0, 0, 8, "qwen3", 0},
};

/* Both models have no attention, so no KV. */
static void test_64_alone_equal_64_with_recurrent_drafts_without_attention(void **state)
{
    (void)state;
    same_check("mamba2", DTYPE_BF16, of_mamba, sizeof(of_mamba) / sizeof(of_mamba[0]), 44);
}

/* --- drafts that must be right --- */

static uint32_t prompt[64];

static struct engine_request simple(uint32_t n_prompt, uint32_t max_tokens)
{
    for (uint32_t i = 0; i < 64; i++)
        prompt[i] = 40 + i * 7 % 90;
    struct engine_request req = run_request(prompt, n_prompt, max_tokens);
    req.stopping.ignore_eos = true;
    return req;
}

static struct engine_config draft_config(const char *target, const char *draft)
{
    struct engine_config cfg = run_config(target);
    cfg.draft_path = draft;
    cfg.draft_always = true;
    cfg.draft_tokens = 8;
    return cfg;
}

/* Greedy or sampled, every draft of the twin is right: its states are those of the target. */
static void test_its_own_twin_is_always_right(void **state)
{
    struct engine_config cfg = draft_config("qwen35", TINY "qwen35.gguf");
    struct engine *engine = run_open(&cfg);
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct engine_request req = simple(40, 100);
        struct run_result result, again;
        req.sampling.temperature = i ? 1.2f : 0;
        req.sampling.top_p = i == 2 ? 0.9f : 1;
        req.sampling.seed = 7;
        run_submit(engine, &req, &result);
        run_wait(engine, &result, 1);
        assert_int_equal(result.usage.n_accepted_tokens, result.usage.n_drafted_tokens);
        assert_true(result.usage.n_accepted_tokens > 60);
        req.speculate.drafter = ENGINE_DRAFTER_NONE;
        run_submit(engine, &req, &again);
        run_wait(engine, &again, 1);
        run_assert_same(&result, &again, "without drafts");
        run_result_fini(&result);
        run_result_fini(&again);
    }
    run_close(engine);
}

/* The end of a prompt has a snapshot. Only the same caller finds it, with the blocks before it. */
static void test_a_prompt_is_found_up_to_its_snapshot(void **state)
{
    static const struct {
        const char *salt;
        uint32_t n_prompt, n_found;
    } rows[] = {{"a", 64, 0},  {"b", 64, 0}, {"a", 64, 48},
                {"a", 50, 48}, {"a", 40, 0}, {"c", 64, 0}};
    struct engine_config cfg = draft_config("qwen35", TINY "qwen35.gguf");
    struct engine *engine = run_open(&cfg);
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct engine_request req = simple(rows[i].n_prompt, 20);
        struct run_result result;
        struct engine_stats before = run_stats(engine), after;
        req.cache_salt = rows[i].salt;
        run_submit(engine, &req, &result);
        run_wait(engine, &result, 1);
        after = run_stats(engine);
        assert_int_equal(after.n_draft_found - before.n_draft_found, rows[i].n_found);
        assert_int_equal(result.usage.n_accepted_tokens, result.usage.n_drafted_tokens);
        assert_true(result.usage.n_accepted_tokens > 5);
        run_result_fini(&result);
    }
    run_close(engine);
}

/* Choices, cancels, pauses, shortened answers and preemptions. The drafts of sequences that were
 * paused are still right: a lost state is computed again. */
static void test_disturbed_drafts_lose_no_slot_and_no_token(void **state)
{
    static struct run_result results[24], alone;
    struct engine_config cfg = draft_config("qwen35", TINY "qwen35.gguf");
    (void)state;
    cfg.executor.kv_tokens = 1024;
    cfg.executor.kv_block_size = 4;
    struct engine *engine = run_open(&cfg);
    struct engine_request req = simple(64, 120);
    req.speculate.drafter = ENGINE_DRAFTER_NONE;
    run_submit(engine, &req, &alone);
    run_wait(engine, &alone, 1);
    run_slow_steps(NS_PER_MS / 4);
    for (uint32_t i = 0; i < 24; i++) {
        char salt[2] = {(char)('a' + i), 0};
        req = simple(64, 120);
        req.cache_salt = salt;
        req.sampling.n = 1 + i % 2;
        run_submit(engine, &req, &results[i]);
    }
    run_disturb(engine, results, 24);
    for (uint32_t i = 0; i < 24; i++) {
        if (i % 3 == 1)
            assert_int_equal(results[i].usage.n_accepted_tokens, results[i].usage.n_drafted_tokens);
        for (uint32_t c = 0; c < results[i].n_choices; c++)
            assert_memory_equal(results[i].choices[c].ids, alone.choices[0].ids,
                                results[i].choices[c].n_ids * sizeof(uint32_t));
        run_result_fini(&results[i]);
    }
    struct engine_stats s = run_stats(engine);
    assert_true(s.n_preemptions > 0 && s.n_accepted_tokens > 100);
    assert_int_equal(s.n_blocks_free, s.n_blocks);
    assert_int_equal(s.n_states_used, 0);
    run_result_fini(&alone);
    run_close(engine);
}

/* --- the state after rejected tokens --- */

enum { N_BLOCKS = 64, N_SEQS = 4 };

struct drafter {
    struct checkpoint *ckpt;
    struct executor *target;
    struct tokenizer *tokenizer;
    struct draft_model *model;
    struct request *requests[2];
    uint32_t tables[2][N_BLOCKS / 2];
};

static void open_drafter(struct drafter *d, const struct engine_request *req)
{
    struct engine_config cfg = run_config("qwen3");
    struct executor_config ex = cfg.executor;
    struct request_limits limits = {.vocab_size = 283,
                                    .context_tokens = 512,
                                    .max_concurrent = N_SEQS,
                                    .draft_tokens = 4,
                                    .has_draft_model = true};
    struct error err;
    ex.kv_tokens = N_BLOCKS * 16;
    ex.max_rows = 128;
    ex.max_seqs = N_SEQS;
    assert_int_equal(checkpoint_open(cfg.model_path, &d->ckpt, &err), 0);
    assert_int_equal(tokenizer_open(d->ckpt, &d->tokenizer, &err), 0);
    assert_int_equal(executor_open(d->ckpt, &ex, NULL, NULL, NULL, &d->target, &err), 0);
    assert_int_equal(draft_model_open(TINY "qwen35.gguf", &ex, d->target, d->tokenizer, "target",
                                      &d->model, &err),
                     0);
    draft_model_set_always(d->model);
    for (uint32_t k = 0; k < 2; k++) {
        assert_int_equal(request_create(req, &limits, &d->requests[k], &err), 0);
        d->requests[k]->choices[0].slot = k;
        for (uint32_t i = 0; i < N_BLOCKS / 2; i++)
            d->tables[k][i] = 2 * i + k;
    }
}

static void close_drafter(struct drafter *d)
{
    for (uint32_t k = 0; k < 2; k++)
        request_release(d->requests[k]);
    draft_model_close(d->model);
    executor_close(d->target);
    tokenizer_close(d->tokenizer);
    checkpoint_close(d->ckpt);
}

static const struct draft *propose(struct drafter *d, uint32_t k, uint32_t n_most)
{
    struct sequence *seq = &d->requests[k]->choices[0];
    struct draft_job job = {.seq = seq, .table = d->tables[k], .n_most = n_most};
    struct draft_bounds bounds = {.n_rows = 1,
                                  .base_rows = 30,
                                  .row_ns = 1e9f,
                                  .margin = 1.1f,
                                  .room_ns = INT64_MAX,
                                  .catch_ns = INT64_MAX};
    draft_model_propose(d->model, &job, 1, &bounds);
    return seq->draft;
}

/* Plays a target model that accepts all drafts, none, or some, and then draws another token. A
 * second sequence with the same tokens computes all of them anew before each step. Both must draft
 * the same tokens. */
static void test_drafts_after_a_rejection_are_those_of_a_fresh_state(void **state)
{
    (void)state;
    for (uint32_t kind = 0; kind < 3; kind++) {
        struct drafter d;
        struct engine_request req = simple(3, 400);
        uint32_t n_rejected = 0, n_steps = 0;
        req.sampling.temperature = kind == 1 ? 0 : 1;
        open_drafter(&d, &req);
        struct sequence *seq = &d.requests[0]->choices[0], *fresh = &d.requests[1]->choices[0];
        sequence_append(seq, 50);
        for (; sequence_n_tokens(seq) + 8 < draft_model_context(d.model); n_steps++) {
            const struct draft *a = propose(&d, 0, 4);
            draft_cut(fresh->draft, 0);
            while (sequence_n_tokens(fresh) + 1 < sequence_n_tokens(seq))
                sequence_append(fresh, sequence_token(seq, sequence_n_tokens(fresh)));
            for (uint32_t i = 0; i < 5; i++) /* the pieces of all tokens but the last */
                propose(&d, 1, 4);
            sequence_append(fresh, sequence_token(seq, sequence_n_tokens(fresh)));
            const struct draft *b = propose(&d, 1, 4);
            assert_int_equal(a->n_ids, 4);
            assert_int_equal(b->n_ids, 4);
            assert_memory_equal(a->ids, b->ids, sizeof(uint32_t[4]));
            uint32_t n = kind == 0 ? 4 : kind == 1 ? 0 : n_steps * 7 % 5;
            for (uint32_t i = 0; i < n; i++)
                sequence_append(seq, a->ids[i]);
            sequence_append(seq, n < 4 && a->ids[n] == 60 ? 61 : 60);
            n_rejected += n < 4;
        }
        assert_true(kind == 0 ? !n_rejected : n_rejected > n_steps / 2);
        close_drafter(&d);
    }
}

/* --- memory --- */

static struct executor_plan plan_of(struct engine_config *cfg)
{
    struct executor_plan plan;
    struct checkpoint *ckpt;
    struct error err;
    cfg->executor.max_rows = cfg->max_batch_tokens;
    cfg->executor.max_seqs = cfg->max_concurrent;
    assert_int_equal(checkpoint_open(cfg->model_path, &ckpt, &err), 0);
    int rc = engine_plan(cfg, ckpt, &plan, &err);
    if (rc)
        fail_msg("%s", err.message);
    checkpoint_close(ckpt);
    return plan;
}

static void test_its_states_are_part_of_the_plan(void **state)
{
    static const struct {
        const char *target;
        uint32_t max_concurrent, n_slots;
    } rows[] = {{"qwen3", 1, 17}, {"qwen3", 8, 24}, {"qwen35", 8, 24}, {"qwen35", 100, 48}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct engine_config twin = run_config("qwen35"), alone;
        uint64_t slot = plan_of(&twin).state_slot_bytes;
        struct engine_config cfg = draft_config(rows[i].target, TINY "qwen35.gguf");
        cfg.max_concurrent = rows[i].max_concurrent;
        alone = cfg;
        alone.draft_path = NULL;
        struct executor_plan plan = plan_of(&cfg), without = plan_of(&alone);
        assert_true(slot > 0);
        assert_int_equal(plan.n_draft_slots, rows[i].n_slots);
        assert_int_equal(plan.draft_state_bytes, rows[i].n_slots * slot);
        assert_int_equal(plan.state_bytes, without.state_bytes + plan.draft_state_bytes);
        assert_int_equal(plan.devices[0].state_bytes, plan.state_bytes);
        assert_int_equal(plan.n_state_slots, without.n_state_slots);
        struct engine *engine = run_open(&cfg);
        const struct executor_plan *taken = engine_memory(engine);
        assert_int_equal(taken->state_bytes, plan.state_bytes);
        assert_int_equal(taken->draft_state_bytes, plan.draft_state_bytes);
        run_close(engine);
    }
}

/* The slots of the target are chosen beside the draft model's states. */
static void test_chosen_slots_leave_its_states_room(void **state)
{
    struct engine_config cfg = draft_config("qwen35", TINY "qwen35.gguf");
    struct error err;
    (void)state;
    cfg.max_concurrent = 1000;
    cfg.executor.state_slots = 1;
    struct executor_plan plan = plan_of(&cfg);
    cfg.executor.state_slots = 0;
    uint64_t room = plan.draft_state_bytes + 20 * plan.state_slot_bytes;
    assert_int_equal(engine_choose_states(&cfg, &plan, room, &err), 0);
    assert_int_equal(cfg.executor.state_slots, 10); /* half of the room */
    assert_int_equal(plan.state_bytes, 10 * plan.state_slot_bytes + plan.draft_state_bytes);
    cfg.executor.state_slots = 0;
    assert_int_equal(engine_choose_states(&cfg, &plan, plan.draft_state_bytes, &err),
                     STATUS_RESOURCE_EXHAUSTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_64_alone_equal_64_with_recurrent_drafts_for_attention),
        cmocka_unit_test(test_64_alone_equal_64_with_recurrent_drafts_for_a_delta_net),
        cmocka_unit_test(test_64_alone_equal_64_with_recurrent_drafts_without_attention),
        cmocka_unit_test(test_its_own_twin_is_always_right),
        cmocka_unit_test(test_a_prompt_is_found_up_to_its_snapshot),
        cmocka_unit_test(test_disturbed_drafts_lose_no_slot_and_no_token),
        cmocka_unit_test(test_drafts_after_a_rejection_are_those_of_a_fresh_state),
        cmocka_unit_test(test_its_states_are_part_of_the_plan),
        cmocka_unit_test(test_chosen_slots_leave_its_states_room),
    };
    if (getenv("SLUICE_TEST_FILTER")) /* tests/gpu */
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
