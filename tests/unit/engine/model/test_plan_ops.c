/* Tests that a plan names the op that a kernel set lacks for the layers of a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/plan.h"
#include "tests/unit/engine/support/support_observe.h"

/* Symptom: a Qwen3.5 model on a GPU loaded all its weights, and the decoder then named no op. */
static void test_a_missing_op_is_named_before_weights_are_read(void **state)
{
    (void)state;
    struct checkpoint *ckpt = observe_open("qwen35");
    struct model model;
    struct error err;
    const struct op_table *cpu = NULL;
    const struct rank rank = {.tp = 1, .n_stages = 1};
    const struct step_sizes steps = {.max_rows = 8, .max_seqs = 2, .n_blocks = 4, .block_size = 32};
    assert_int_equal(model_init(&model, ckpt, NULL, &err), 0);
    assert_int_equal(op_table_cpu("ref", &cpu, &err), 0);
    for (int i = 0; i < 3; i++) {
        struct op_table ops = *cpu;
        struct rank_plan plan;
        ops.name = "none";
        if (i == 1)
            ops.conv = NULL;
        if (i == 2)
            ops.delta_net = NULL;
        int rc = plan_rank_init(&plan, &model, &ops, &rank, WEIGHT_STORE_SOURCE, &steps, &err);
        assert_int_equal(rc, i > 0 ? STATUS_UNIMPLEMENTED : 0);
        if (i > 0) {
            assert_non_null(strstr(err.message, "none"));
            assert_non_null(strstr(err.message, i == 1 ? "conv" : "delta_net"));
        }
        plan_rank_fini(&plan);
    }
    model_fini(&model);
    checkpoint_close(ckpt);
}

/* Layers without a state need none of the ops. */
static void test_only_the_layers_of_the_rank_count(void **state)
{
    (void)state;
    struct checkpoint *ckpt = observe_open("qwen35");
    struct model model;
    struct error err;
    const struct op_table none = {.name = "none"};
    assert_int_equal(model_init(&model, ckpt, NULL, &err), 0);
    for (uint32_t i = 0; i < model.shape.n_layers; i++)
        assert_int_equal(plan_ops_check(&none, &model.shape, i, 1, &err),
                         shape_state_floats(&model.shape, i) ? STATUS_UNIMPLEMENTED : 0);
    model_fini(&model);
    checkpoint_close(ckpt);
}

static void test_latent_attention_needs_its_ops(void **state)
{
    (void)state;
    struct checkpoint *ckpt = observe_open("deepseek_v3");
    struct model model;
    struct error err;
    const struct op_table *cpu = NULL;
    assert_int_equal(model_init(&model, ckpt, NULL, &err), 0);
    assert_int_equal(op_table_cpu("ref", &cpu, &err), 0);
    for (int i = 0; i < 3; i++) {
        struct op_table ops = *cpu;
        ops.kv_v_in_k = i != 1;
        ops.copy_heads = i == 2 ? NULL : cpu->copy_heads;
        int rc = plan_ops_check(&ops, &model.shape, 0, 2, &err);
        assert_int_equal(rc, i > 0 ? STATUS_UNIMPLEMENTED : 0);
        if (i > 0)
            assert_non_null(strstr(err.message, i == 1 ? "V in K" : "copy_heads"));
    }
    model_fini(&model);
    checkpoint_close(ckpt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_missing_op_is_named_before_weights_are_read),
        cmocka_unit_test(test_only_the_layers_of_the_rank_count),
        cmocka_unit_test(test_latent_attention_needs_its_ops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
