/* Models with latent attention whose numbers contradict each other or the tensors, and files
 * without the router's score. The folders and files are copies of golden ones with one change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_folder.h"

static int read_shape(const char *path, const struct arch *arch, struct model_shape *out,
                      struct error *err)
{
    struct checkpoint *ckpt = NULL;
    struct model model = {0};
    int rc = checkpoint_open(path, &ckpt, err);
    if (!rc)
        rc = model_init(&model, ckpt, arch, err);
    if (!rc)
        *out = model.shape;
    model_fini(&model);
    checkpoint_close(ckpt);
    return rc;
}

/* Copies a golden folder with a changed file, and reads it. out->layers is not valid. */
static int read_changed(const char *golden, const char *file, const char *old, const char *now,
                        struct model_shape *out, struct error *err)
{
    static const char *const files[] = {"config.json", "model.safetensors"};
    struct test_folder folder;
    folder_create(&folder);
    for (size_t i = 0; i < 2; i++) {
        bool changes = strcmp(files[i], file) == 0;
        folder_copy_golden(&folder, golden, files[i], changes ? old : "", changes ? now : "");
    }
    int rc = read_shape(folder.path, NULL, out, err);
    folder_remove(&folder);
    return rc;
}

static const struct change {
    const char *golden, *file, *old, *now;
    int status;
    const char *named;
} changes[] = {
    {"deepseek_v3", "config.json", "\"kv_lora_rank\": 14", "\"kv_lora_rank\": 0",
     STATUS_INVALID_ARGUMENT, "kv_lora_rank"},
    {"deepseek_v3", "config.json", "\"kv_lora_rank\": 14", "\"kv_lora_rank\": 574",
     STATUS_INVALID_ARGUMENT, "qk_rope_head_dim|574|576"},
    {"deepseek_v3", "config.json", "\"kv_lora_rank\": 14", "\"kv_lora_rank\": 4294967295",
     STATUS_INVALID_ARGUMENT, "kv_lora_rank|4294967295"},
    {"deepseek_v3", "config.json", "\"kv_lora_rank\": 14", "\"kv_lora_rank\": 16",
     STATUS_INVALID_ARGUMENT, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"},
    {"deepseek_v3", "config.json", "\"kv_lora_rank\": 14", "\"kv_lora_rank\": -1",
     STATUS_INVALID_ARGUMENT, "kv_lora_rank"},
    {"deepseek_v3", "config.json", "\"q_lora_rank\": 10", "\"q_lora_rank\": 12",
     STATUS_INVALID_ARGUMENT, "model.layers.0.self_attn.q_a_proj.weight"},
    {"deepseek_v3", "config.json", "\"q_lora_rank\": 10", "\"q_lora_rank\": null",
     STATUS_INVALID_ARGUMENT, "model.layers.0.self_attn.q_a_proj.weight"},
    {"deepseek_v3", "config.json", "\"qk_rope_head_dim\": 4", "\"qk_rope_head_dim\": 3",
     STATUS_INVALID_ARGUMENT, "qk_rope_head_dim|3"},
    {"deepseek_v3", "config.json", "\"qk_nope_head_dim\": 6", "\"qk_nope_head_dim\": 7",
     STATUS_INVALID_ARGUMENT, "7|4|10"},
    {"deepseek_v3", "config.json", "\"qk_head_dim\": 10", "\"qk_head_dim\": 4",
     STATUS_INVALID_ARGUMENT, "qk_head_dim|4"},
    {"deepseek_v3", "config.json", "\"v_head_dim\": 8", "\"v_head_dim\": 0",
     STATUS_INVALID_ARGUMENT, "v_head_dim"},
    {"deepseek_v3", "config.json", "\"v_head_dim\": 8", "\"v_head_dim\": 6",
     STATUS_INVALID_ARGUMENT, "model.layers.0.self_attn.o_proj.weight"},
    {"deepseek_v3", "config.json", "\"num_key_value_heads\": 3", "\"num_key_value_heads\": 2",
     STATUS_INVALID_ARGUMENT, "num_key_value_heads|2|3"},
    {"deepseek_v3", "config.json", "\"n_group\": 3", "\"n_group\": 4", STATUS_INVALID_ARGUMENT,
     "n_group|4|6"},
    {"deepseek_v3", "config.json", "\"topk_group\": 2", "\"topk_group\": 1",
     STATUS_INVALID_ARGUMENT, "topk_group"},
    {"deepseek_v3", "config.json", "\"rope_interleave\": true", "\"rope_interleave\": false",
     STATUS_UNIMPLEMENTED, "rope_interleave"},
    {"deepseek_v3", "config.json", "\"attention_bias\": false", "\"attention_bias\": true",
     STATUS_UNIMPLEMENTED, "attention_bias"},
    {"deepseek_v3", "config.json", "\"v_head_dim\": 8", "\"v_head_dim\": 8, \"moe_layer_freq\": 2",
     STATUS_UNIMPLEMENTED, "moe_layer_freq"},
    {"deepseek_v3", "config.json", "\"v_head_dim\": 8",
     "\"v_head_dim\": 8, \"scoring_func\": \"softmax\"", STATUS_UNIMPLEMENTED, "scoring_func"},
    {"deepseek_v2_lite", "config.json", "\"group_limited_greedy\"", "\"greediest\"",
     STATUS_UNIMPLEMENTED, "topk_method|greediest"},
    {"glm4_moe_lite", "config.json", "    \"dense\",\n", "", STATUS_INVALID_ARGUMENT,
     "mlp_layer_types"},
    {"glm4_moe_lite", "config.json", "    \"dense\",\n", "    \"odd\",\n", STATUS_UNIMPLEMENTED,
     "mlp_layer_types|odd"},
    {"deepseek_v3", "model.safetensors", "layers.1.self_attn.kv_b_proj",
     "layers.1.self_attn.kv_x_proj", STATUS_INVALID_ARGUMENT,
     "model.layers.1.self_attn.kv_b_proj.weight"},
    {"deepseek_v3", "model.safetensors", "layers.1.mlp.gate.e_score", "layers.1.mlp.gate.x_score",
     STATUS_INVALID_ARGUMENT, "model.layers.1.mlp.gate.e_score_correction_bias"},
    {"deepseek_v3", "model.safetensors", "layers.0.self_attn.q_a_layernorm",
     "layers.0.self_attn.q_x_layernorm", STATUS_INVALID_ARGUMENT,
     "model.layers.0.self_attn.q_a_layernorm.weight"},
};

static void test_folder_that_contradicts_itself_is_refused_by_the_key_or_tensor(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        const struct change *c = &changes[i];
        struct model_shape shape = {0};
        struct error err = {0};
        int rc = read_changed(c->golden, c->file, c->old, c->now, &shape, &err);
        if (rc != c->status || !names_all(err.message, c->named))
            fail_msg("%s with %s: %d, want %d and \"%s\": %s", c->golden, c->now, rc, c->status,
                     c->named, err.message);
    }
}

/* transformers ignores the groups of V2 models with this method. */
static void test_greedy_choice_of_experts_has_no_groups(void **state)
{
    (void)state;
    struct model_shape shape = {0};
    struct error err = {0};
    assert_int_equal(read_changed("deepseek_v2_lite", "config.json", "", "", &shape, &err), 0);
    assert_int_equal(shape.experts.n_groups, 2);
    assert_int_equal(shape.experts.group_score, ROUTER_GROUP_MAX);
    assert_int_equal(read_changed("deepseek_v2_lite", "config.json", "\"group_limited_greedy\"",
                                  "\"greedy\"", &shape, &err),
                     0);
    assert_int_equal(shape.experts.n_groups, 1);
    assert_int_equal(shape.experts.n_groups_used, 1);
}

/* Kimi K2 has the class of DeepSeek V3, and a model type of its own. */
static void test_kimi_k2_is_read_as_deepseek_v3(void **state)
{
    (void)state;
    struct model_shape shape = {0};
    struct error err = {0};
    if (read_changed("deepseek_v3", "config.json", "\"deepseek_v3\"", "\"kimi_k2\"", &shape,
                     &err) != 0)
        fail_msg("%s", err.message);
    assert_int_equal(shape.experts.score, ROUTER_SIGMOID);
}

/* Files of GLM-4.7-Flash from before the key had another score than those of DeepSeek V2. Their
 * number of tokens tells them apart. */
static void test_file_without_a_score_has_that_of_its_vocabulary(void **state)
{
    static const struct {
        uint32_t vocab;
        enum router_score score;
        enum router_group_score group_score;
    } rows[] = {{154880, ROUTER_SOFTMAX, ROUTER_GROUP_MAX},
                {283, ROUTER_SIGMOID, ROUTER_GROUP_TOP_TWO}};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct arch arch = arch_deepseek2;
        struct arch_source sources[2] = {arch.sources[0], arch.sources[1]};
        struct arch_param params[32];
        struct test_folder folder;
        struct model_shape shape = {0};
        struct error err = {0};
        assert_in_range(sources[0].n_params, 1, 32);
        memcpy(params, sources[0].params, sources[0].n_params * sizeof(*params));
        for (uint32_t p = 0; p < sources[0].n_params; p++)
            if (params[p].id == ARCH_PARAM_EXPERT_SIGMOID_VOCAB)
                params[p].fallback = rows[i].vocab;
        sources[0].params = params;
        sources[1].base = &sources[0];
        arch.sources = sources;
        arch.n_sources = 2;
        folder_create(&folder);
        folder_copy_golden(&folder, ".", "deepseek_v3.gguf", "deepseek2.expert_gating_func",
                           "general.expert_gating_func.x");
        if (read_shape(folder_at(&folder, "deepseek_v3.gguf"), &arch, &shape, &err) != 0)
            fail_msg("vocabulary %u: %s", rows[i].vocab, err.message);
        assert_int_equal(shape.experts.score, rows[i].score);
        assert_int_equal(shape.experts.group_score, rows[i].group_score);
        folder_remove(&folder);
    }
}

static void test_gguf_without_a_rank_or_matrix_is_refused_by_its_name(void **state)
{
    static const struct {
        const char *file, *old, *now, *named;
    } rows[] = {
        {"deepseek_v3.gguf", "deepseek2.attention.kv_lora_rank", "general.attention.kv_lora_rank.x",
         "attention.kv_lora_rank"},
        {"deepseek_v3.gguf", "deepseek2.attention.value_length_mla",
         "general.attention.value_length_mla.x", "attention.value_length_mla"},
        {"deepseek_v3.gguf", "blk.1.attn_k_b", "blk.1.attn_k_x", "blk.1.attn_k_b.weight"},
        {"deepseek_v2_lite.gguf", "blk.1.attn_kv_b", "blk.1.attn_kv_x", "blk.1.attn_kv_b.weight"},
        /* Without this key the file counts as an old one. */
        {"deepseek_v3.gguf", "deepseek2.attention.key_length_mla",
         "general.attention.key_length_mla.x", "value_length_mla"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct test_folder folder;
        struct model_shape shape = {0};
        struct error err = {0};
        folder_create(&folder);
        folder_copy_golden(&folder, ".", rows[i].file, rows[i].old, rows[i].now);
        int rc = read_shape(folder_at(&folder, rows[i].file), NULL, &shape, &err);
        if (rc == 0 || !strstr(err.message, rows[i].named))
            fail_msg("%s without %s: %d \"%s\"", rows[i].file, rows[i].old, rc, err.message);
        folder_remove(&folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder_that_contradicts_itself_is_refused_by_the_key_or_tensor),
        cmocka_unit_test(test_greedy_choice_of_experts_has_no_groups),
        cmocka_unit_test(test_kimi_k2_is_read_as_deepseek_v3),
        cmocka_unit_test(test_file_without_a_score_has_that_of_its_vocabulary),
        cmocka_unit_test(test_gguf_without_a_rank_or_matrix_is_refused_by_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
