/* Tests of the choice of state slots by memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/engine_config.h"
#include "engine/engine_stats.h"
#include "engine/format/checkpoint.h"
#include "engine/forward/executor.h"
#include "engine/model/plan.h"
#include "tests/unit/engine/support/support_observe.h"

enum { SLOT = 1000 };

/* A plan on the CPU with n slots. */
static struct executor_plan plan_with(uint32_t n_slots)
{
    struct executor_plan plan = {.n_devices = 1,
                                 .n_state_slots = n_slots,
                                 .state_slot_bytes = SLOT,
                                 .state_bytes = (uint64_t)n_slots * SLOT};
    plan.devices[0].state_bytes = plan.state_bytes;
    return plan;
}

static void test_slots_take_at_most_half_of_the_memory(void **state)
{
    (void)state;
    static const struct {
        uint32_t max_concurrent, state_slots;
        uint64_t snapshot_bytes, host_bytes;
        uint32_t slots, running;
    } rows[] = {
        {8, 0, 0, 100 * SLOT, 10, 8},        /* a quarter more, for snapshots */
        {8, 0, 0, 10 * SLOT, 5, 4},          /* half of the memory holds 5 */
        {8, 0, 0, 2 * SLOT, 1, 1},           /**/
        {8, 0, 0, SLOT, 1, 1},               /* a single slot may take more than half */
        {8, 0, 6 * SLOT, 100 * SLOT, 14, 8}, /* snapshot_bytes in place of the quarter */
        {8, 0, SLOT - 1, 100 * SLOT, 8, 8},  /* less than a slot: none */
        {8, 0, 6 * SLOT, 10 * SLOT, 5, 1},   /* a sequence always runs */
        {8, 4, 0, 0, 4, 4},                  /* a given number is not bound by memory here */
        {8, 10, 0, 0, 10, 8},                /**/
        {2, 10, 0, 0, 10, 2},                /* more slots than sequences: snapshots */
        {8, 10, 3 * SLOT + 1, 0, 10, 7},     /**/
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct engine_config cfg;
        struct error err;
        engine_config_init(&cfg);
        cfg.max_concurrent = cfg.executor.max_seqs = rows[i].max_concurrent;
        cfg.executor.state_slots = rows[i].state_slots;
        cfg.executor.snapshot_bytes = rows[i].snapshot_bytes;
        struct executor_plan plan = plan_with(rows[i].state_slots ? rows[i].state_slots : 320);
        assert_int_equal(engine_choose_states(&cfg, &plan, rows[i].host_bytes, &err), 0);
        if (plan.n_state_slots != rows[i].slots || cfg.max_concurrent != rows[i].running)
            fail_msg("row %zu: %u slots for %u sequences", i, plan.n_state_slots,
                     cfg.max_concurrent);
        assert_int_equal(cfg.executor.state_slots, rows[i].slots);
        assert_int_equal(cfg.executor.max_seqs, rows[i].running);
        assert_int_equal(plan.state_bytes, (uint64_t)rows[i].slots * SLOT);
        assert_int_equal(plan.devices[0].state_bytes, plan.state_bytes);
        /* The chosen numbers give themselves again. */
        assert_int_equal(engine_choose_states(&cfg, &plan, rows[i].host_bytes, &err), 0);
        assert_int_equal(cfg.executor.state_slots, rows[i].slots);
        assert_int_equal(cfg.max_concurrent, rows[i].running);
    }
}

/* The error names the bytes of a state and those that are left. */
static void test_a_load_without_room_for_a_state_is_refused(void **state)
{
    (void)state;
    struct engine_config cfg;
    struct error err;
    struct executor_plan plan = plan_with(320);
    engine_config_init(&cfg);
    assert_int_equal(engine_choose_states(&cfg, &plan, SLOT - 1, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_DEVICE_MEMORY);
    assert_non_null(strstr(err.message, "1000"));
    assert_non_null(strstr(err.message, "999"));
    assert_int_equal(cfg.executor.state_slots, 0);
}

/* Symptom: states that wait in host memory were in no plan. */
static void test_a_plan_counts_states_in_host_memory(void **state)
{
    (void)state;
    for (uint32_t n_seqs = 1; n_seqs <= 4; n_seqs++) {
        struct checkpoint *ckpt = observe_open("qwen35");
        struct engine_config cfg;
        struct executor_plan whole, alone;
        struct error err;
        engine_config_init(&cfg);
        cfg.executor.max_rows = cfg.max_batch_tokens;
        cfg.executor.max_seqs = cfg.max_concurrent = n_seqs;
        cfg.executor.kv_tokens = 256;
        assert_int_equal(engine_plan(&cfg, ckpt, &whole, &err), 0);
        assert_int_equal(executor_plan(ckpt, &cfg.executor, &alone, &err), 0);
        assert_int_equal(whole.workspace_bytes - alone.workspace_bytes,
                         (n_seqs < ENGINE_HOST_STATES ? n_seqs : ENGINE_HOST_STATES) *
                             alone.state_slot_bytes);
        checkpoint_close(ckpt);
    }
}

/* Symptom: 256 contexts of 2^20 tokens took gigabytes of tables, and a size by bytes of KV divided
 * by zero. */
static void test_tokens_without_attention_are_bound_by_their_tables(void **state)
{
    (void)state;
    struct checkpoint *ckpt = observe_open("mamba2");
    struct engine_config cfg;
    struct executor_plan plan;
    struct error err = {0};
    engine_config_init(&cfg);
    cfg.max_concurrent = cfg.executor.max_seqs = 256;
    cfg.executor.max_rows = 512;
    assert_int_equal(engine_choose_sizes(&cfg, ckpt, &err), 0);
    assert_int_equal(cfg.executor.kv_tokens, 1 << 22);
    assert_int_equal(engine_plan(&cfg, ckpt, &plan, &err), 0);
    assert_int_equal(plan.kv_bytes, 0);
    assert_true(plan.state_bytes > 0);
    checkpoint_close(ckpt);
}

/* Given KV tokens left the slots unbounded, and the sequences those of the config. */
static void test_sizes_of_a_load_have_slots_for_their_sequences(void **state)
{
    (void)state;
    for (uint32_t given = 0; given < 4; given++) {
        struct checkpoint *ckpt = observe_open("qwen35");
        struct engine_config cfg;
        struct executor_plan plan;
        struct error err;
        engine_config_init(&cfg);
        cfg.executor.max_rows = cfg.max_batch_tokens;
        cfg.executor.max_seqs = cfg.max_concurrent = 16;
        cfg.executor.kv_tokens = given & 1 ? 1024 : 0;
        cfg.executor.state_slots = given & 2 ? 10 : 0;
        assert_int_equal(engine_choose_sizes(&cfg, ckpt, &err), 0);
        assert_int_equal(cfg.executor.state_slots, given & 2 ? 10 : 20);
        assert_int_equal(cfg.max_concurrent, given & 2 ? 8 : 16);
        assert_int_equal(cfg.executor.max_seqs, cfg.max_concurrent);
        assert_int_equal(engine_plan(&cfg, ckpt, &plan, &err), 0);
        assert_int_equal(plan.n_state_slots, cfg.executor.state_slots);
        checkpoint_close(ckpt);
    }
}

static void test_models_without_states_are_left_alone(void **state)
{
    (void)state;
    struct engine_config cfg;
    struct error err;
    struct executor_plan plan = {.n_devices = 1};
    engine_config_init(&cfg);
    uint32_t n = cfg.max_concurrent;
    assert_int_equal(engine_choose_states(&cfg, &plan, 0, &err), 0);
    assert_int_equal(cfg.max_concurrent, n);
    assert_int_equal(cfg.executor.state_slots, 0);
}

/* Qwen3-Next 80B: 36 recurrent layers of 16 key heads, 32 value heads of 128, 4 taps. */
static void test_a_state_of_qwen3_next_80b_has_75_mib(void **state)
{
    (void)state;
    struct model_layer layers[48] = {0};
    static const struct arch_mixer delta = {.mixing = ARCH_MIXING_DELTA};
    static const struct arch_mixer attention = {.mixing = ARCH_MIXING_ATTENTION};
    struct model_shape shape = {
        .layers = layers,
        .n_layers = 48,
        .state = {.n_key_heads = 16, .n_heads = 32, .key_dim = 128, .head_dim = 128, .width = 4}};
    uint64_t n_bytes = 0;
    for (uint32_t i = 0; i < shape.n_layers; i++) {
        layers[i].mixer = i % 4 == 3 ? &attention : &delta;
        n_bytes += shape_state_floats(&shape, i) * sizeof(float);
    }
    /* 36 · 4 · (3 · (2·16·128 + 32·128) + 32·128·128) */
    assert_int_equal(n_bytes, 79036416);
    assert_int_equal(plan_state_slots(256, n_bytes, 0), 320);
    assert_int_equal(plan_state_slots(256, n_bytes, 10 * n_bytes), 266);
    assert_int_equal(plan_running_states(320, n_bytes, 0), 256);
    assert_int_equal(plan_running_states(10, n_bytes, 100 * n_bytes), 1);
    assert_int_equal(plan_running_states(0, n_bytes, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_take_at_most_half_of_the_memory),
        cmocka_unit_test(test_a_load_without_room_for_a_state_is_refused),
        cmocka_unit_test(test_a_plan_counts_states_in_host_memory),
        cmocka_unit_test(test_tokens_without_attention_are_bound_by_their_tables),
        cmocka_unit_test(test_sizes_of_a_load_have_slots_for_their_sequences),
        cmocka_unit_test(test_models_without_states_are_left_alone),
        cmocka_unit_test(test_a_state_of_qwen3_next_80b_has_75_mib),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
