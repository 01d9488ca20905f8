/* Refusals of loads that exceed the memory. The target has attention alone, the draft model a delta
 * net. So the states belong to the draft model, whose slots follow from max_concurrent. */
#include <string.h>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/engine_stats.h"
#include "engine/format/checkpoint.h"
#include "server/worker/base/settings.h"
#include "server/worker/place/kv_size.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

#define TINY SLUICE_SOURCE_DIR "/tests/golden/tiny/"

/* Plans the target with the draft model, and checks the plan against `memory_limit`. */
static int check(const char *target, const char *draft, uint64_t memory_limit,
                 struct executor_plan *out_plan, struct error *err)
{
    static char none[] = "";
    struct settings settings = {.memory_limit = memory_limit,
                                .config = {.kv_tokens = 256, .default_sampling = none}};
    struct engine_config cfg;
    struct checkpoint *ckpt;
    engine_config_init(&cfg);
    cfg.executor.kernels = "ref";
    cfg.executor.n_threads = 1;
    cfg.executor.kv_tokens = 256;
    cfg.max_concurrent = cfg.executor.max_seqs = 64;
    cfg.executor.max_rows = cfg.max_batch_tokens;
    cfg.draft_path = draft;
    assert_int_equal(checkpoint_open(target, &ckpt, err), 0);
    int rc = kv_size_check(ckpt, &settings, &cfg, out_plan, err);
    checkpoint_close(ckpt);
    return rc;
}

/* Symptom: the refusal did not say that the draft model needed the memory. */
static void test_a_refusal_names_the_states_of_the_draft_model(void **state)
{
    struct executor_plan plan, alone;
    struct error err;
    (void)state;
    assert_int_equal(check(TINY "qwen3.gguf", NULL, 0, &alone, &err), 0);
    assert_int_equal(check(TINY "qwen3.gguf", TINY "qwen35.gguf", 0, &plan, &err), 0);
    assert_int_equal(alone.state_bytes, 0);
    assert_true(plan.draft_state_bytes > 0 && plan.state_bytes == plan.draft_state_bytes);
    /* everything but the states has room */
    uint64_t others = plan.weights_bytes + plan.kv_bytes + plan.workspace_bytes;
    assert_int_equal(
        check(TINY "qwen3.gguf", TINY "qwen35.gguf", others + plan.state_bytes, &plan, &err), 0);
    assert_int_equal(check(TINY "qwen3.gguf", TINY "qwen35.gguf", others, &plan, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, REASON_DEVICE_MEMORY);
    assert_true(names_all(err.message, "states|draft model|memory_budget|max_concurrent"));
    assert_null(strstr(err.message, "state_slots"));
}

/* The target's own states have slots that can be lowered; the draft model's part is named, too. */
static void test_a_refusal_names_both_parts_of_the_states(void **state)
{
    struct executor_plan plan;
    struct error err;
    (void)state;
    assert_int_equal(check(TINY "qwen35.gguf", TINY "mamba2.gguf", 0, &plan, &err), 0);
    assert_true(plan.draft_state_bytes > 0 && plan.state_bytes > plan.draft_state_bytes);
    assert_int_equal(check(TINY "qwen35.gguf", TINY "mamba2.gguf", 1000, &plan, &err),
                     STATUS_RESOURCE_EXHAUSTED);
    assert_true(names_all(err.message, "states|draft model|state_slots"));
    assert_int_equal(check(TINY "qwen35.gguf", NULL, 1000, &plan, &err), STATUS_RESOURCE_EXHAUSTED);
    assert_true(names_all(err.message, "states|state_slots"));
    assert_null(strstr(err.message, "draft"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refusal_names_the_states_of_the_draft_model),
        cmocka_unit_test(test_a_refusal_names_both_parts_of_the_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
