/* Folders of models with experts where a tensor has another name or type. Each is refused by the
 * tensor's name. The folders are copies of golden ones with a few bytes changed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "tests/unit/engine/support/support_folder.h"

static int open_model(const struct test_folder *folder, struct error *err)
{
    struct checkpoint *ckpt = NULL;
    struct model model = {0};
    int rc = checkpoint_open(folder->path, &ckpt, err);
    if (!rc) {
        rc = model_init(&model, ckpt, NULL, err);
        model_fini(&model);
    }
    checkpoint_close(ckpt);
    return rc;
}

static const struct change {
    const char *folder, *old, *now;
    int status;
    const char *named;
} changes[] = {
    {"qwen3moe", "layers.1.mlp.experts.3.up_proj", "layers.1.mlp.experts.9.up_proj",
     STATUS_INVALID_ARGUMENT, "model.layers.1.mlp.experts.3.up_proj.weight"},
    {"qwen3moe", "layers.0.mlp.gate.weight", "layers.0.mlp.gone.weight", STATUS_INVALID_ARGUMENT,
     "model.layers.0.mlp.gate.weight"},
    {"qwen3moe_fused", "layers.2.mlp.experts.gate_up_proj", "layers.2.mlp.experts.gate_up_prox",
     STATUS_INVALID_ARGUMENT, "model.layers.2.mlp.experts.0.gate_proj.weight"},
    /* The width says that there are shared experts. */
    {"qwen2moe", "layers.1.mlp.shared_expert.up_proj", "layers.1.mlp.shared_expert.xx_proj",
     STATUS_INVALID_ARGUMENT, "model.layers.1.mlp.shared_expert.up_proj.weight"},
    {"granitemoe_shared", "layers.0.shared_mlp.output_linear", "layers.0.shared_mlp.0utput_linear",
     STATUS_INVALID_ARGUMENT, "model.layers.0.shared_mlp.output_linear.weight"},
    /* A layer behind the model's own is skipped, one behind those is not. */
    {"glm4moe", "layers.2.eh_proj", "layers.3.eh_proj", STATUS_UNIMPLEMENTED,
     "model.layers.3.eh_proj.weight"},
    /* Experts of two types: the op would read activations that were prepared for the first. */
    {"qwen3moe", "layers.0.mlp.experts.1.gate_proj.weight\":{\"dtype\":\"BF16\"",
     "layers.0.mlp.experts.1.gate_proj.weight\":{\"dtype\": \"F16\"", STATUS_UNIMPLEMENTED,
     "model.layers.0.mlp.experts.1.gate_proj.weight"},
    {"gpt_oss_mxfp4", "layers.1.mlp.experts.down_proj_scales",
     "layers.1.mlp.experts.down_proj_scalez", STATUS_INVALID_ARGUMENT,
     "model.layers.1.mlp.experts.down_proj_scales"},
};

static void test_folder_without_a_tensor_is_refused_by_its_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        const struct change *c = &changes[i];
        struct test_folder folder;
        struct error err = {0};
        folder_create(&folder);
        folder_copy_golden(&folder, c->folder, "config.json", "", "");
        folder_copy_golden(&folder, c->folder, "model.safetensors", "", "");
        if (open_model(&folder, &err) != 0)
            fail_msg("%s: the copy is refused: %s", c->folder, err.message);
        folder_copy_golden(&folder, c->folder, "model.safetensors", c->old, c->now);
        int rc = open_model(&folder, &err);
        if (rc != c->status || !strstr(err.message, c->named))
            fail_msg("%s without %s: %d \"%s\"", c->folder, c->old, rc, err.message);
        folder_remove(&folder);
    }
}

/* The keys of MXFP4 are known to the table of gpt-oss only. */
static void test_mxfp4_of_another_architecture_is_refused(void **state)
{
    struct test_folder folder;
    struct error err = {0};
    (void)state;
    folder_create(&folder);
    folder_copy_golden(&folder, "qwen3moe", "model.safetensors", "", "");
    size_t n = 0;
    char *config = folder_read_golden("qwen3moe", "config.json", &n);
    char text[4096];
    snprintf(text, sizeof(text), "{\"quantization_config\": {\"quant_method\": \"mxfp4\"}, %.*s",
             (int)n - 1, config + 1);
    free(config);
    folder_write_text(&folder, "config.json", text);
    assert_int_equal(open_model(&folder, &err), STATUS_UNIMPLEMENTED);
    assert_non_null(strstr(err.message, "quantization_config.quant_method"));
    folder_remove(&folder);
}

/* Numbers of config.json that the ops refuse in the first step, or that would not fit their memory.
 */
static const struct {
    const char *folder, *old, *now, *named;
} numbers[] = {
    {"glm4moe", "\"n_group\": 2", "\"n_group\": 4", "4 groups"},
    {"glm4moe", "\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5", "1 of 2 groups"},
    {"falcon", "\"hidden_size\": 48", "\"hidden_size\": 3600", "head dimension 1200"},
};

static void test_numbers_that_no_op_takes_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        struct test_folder folder;
        struct error err = {0};
        folder_create(&folder);
        folder_copy_golden(&folder, numbers[i].folder, "model.safetensors", "", "");
        folder_copy_golden(&folder, numbers[i].folder, "config.json", numbers[i].old,
                           numbers[i].now);
        int rc = open_model(&folder, &err);
        if (rc != STATUS_INVALID_ARGUMENT || !strstr(err.message, numbers[i].named))
            fail_msg("%s with %s: %d \"%s\"", numbers[i].folder, numbers[i].now, rc, err.message);
        folder_remove(&folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder_without_a_tensor_is_refused_by_its_name),
        cmocka_unit_test(test_mxfp4_of_another_architecture_is_refused),
        cmocka_unit_test(test_numbers_that_no_op_takes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
