/* Tests of bad files with a gated delta net. The folders and GGUF files are golden ones with a
 * change. Each error names the key and the value. A layer that disagrees with its tensors is named
 * with the tensor, and with the key of its kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_dialect.h"
#include "tests/unit/engine/support/support_folder.h"
#include "tests/unit/engine/support/support_gguf.h"
#include "tests/unit/engine/support/support_observe.h"

enum { BAD = STATUS_INVALID_ARGUMENT, UNBUILT = STATUS_UNIMPLEMENTED };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int read_model(struct checkpoint *ckpt, struct error *err)
{
    struct model model = {0};
    int rc = model_init(&model, ckpt, NULL, err);
    model_fini(&model);
    return rc;
}

/* Returns 1 for an unexpected result, which the call prints. */
static uint32_t expect(const char *what, int rc, const struct error *err, int status,
                       const char *named)
{
    if (rc == status && (rc == 0 || names_all(err->message, named)))
        return 0;
    print_message("%s: %s \"%s\"\n", what, status_name(rc), err->message);
    return 1;
}

/* --- folders --- */

#define KINDS(a, b)      "\"layer_types\": [\n    \"" a "\",\n    \"" b "\"\n  ]"
#define TEXT_KINDS(a, b) "\"layer_types\": [\n      \"" a "\",\n      \"" b "\"\n    ]"
#define LINEAR           "linear_attention"
#define FULL             "full_attention"

static const struct {
    const char *golden, *old, *now;
    int status;
    const char *named; /* by the error */
} changes[] = {
    /* lists of layers that disagree with the tensors */
    {"qwen35", KINDS(LINEAR, FULL), KINDS(FULL, LINEAR), BAD,
     "layer_types|0|full_attention|model.layers.0.self_attn.q_proj.weight"},
    {"qwen35", KINDS(LINEAR, FULL), KINDS(LINEAR, LINEAR), BAD,
     "layer_types|1|linear_attention|model.layers.1.linear_attn.in_proj_qkv.weight"},
    {"qwen35moe", TEXT_KINDS(LINEAR, FULL), TEXT_KINDS(LINEAR, LINEAR), BAD,
     "layer_types|1|linear_attention"},
    {"qwen3next", KINDS(LINEAR, FULL), KINDS(FULL, FULL), BAD,
     "layer_types|0|full_attention|model.layers.0.self_attn.q_proj.weight"},
    {"qwen35", KINDS(LINEAR, FULL), KINDS(LINEAR, "full"), UNBUILT, "layer_types|full"},
    {"qwen35", KINDS(LINEAR, FULL), "\"layer_types\": [\"linear_attention\"]", BAD,
     "layer_types|1|2"},
    {"qwen35", KINDS(LINEAR, FULL), KINDS(LINEAR, FULL "\", \"" FULL), BAD, "layer_types|3|2"},
    {"qwen35", KINDS(LINEAR, FULL), "\"layer_types\": \"linear_attention\"", BAD, "layer_types"},
    {"qwen35", KINDS(LINEAR, FULL), "\"full_attention_interval\": 1", BAD,
     "full_attention_interval|0|full_attention|model.layers.0.self_attn.q_proj.weight"},
    /* taps of the convolution */
    {"qwen35", "\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 0", BAD,
     "linear_conv_kernel_dim|0|2|16"},
    {"qwen35", "\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 1000", BAD,
     "linear_conv_kernel_dim|1000|16"},
    {"qwen35", "\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": -1", BAD,
     "linear_conv_kernel_dim|-1"},
    {"qwen35", "\"linear_conv_kernel_dim\": 4", "\"linear_conv_kernel_dim\": 5", BAD,
     "model.layers.0.linear_attn.conv1d.weight"},
    /* heads */
    {"qwen35", "\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 4", BAD,
     "linear_num_key_heads|4|6|linear_num_value_heads"},
    {"qwen35", "\"linear_num_key_heads\": 2", "\"linear_num_key_heads\": 0", BAD,
     "linear_num_key_heads|0"},
    {"qwen35", "\"linear_num_value_heads\": 6", "\"linear_num_value_heads\": 0", BAD,
     "linear_num_value_heads|0"},
    {"qwen35", "\"linear_num_value_heads\": 6", "\"linear_num_value_heads\": 4", BAD,
     "model.layers.0.linear_attn.in_proj_qkv.weight"},
    {"qwen3next", "\"linear_num_value_heads\": 4", "\"linear_num_value_heads\": 6", BAD,
     "model.layers.0.linear_attn.in_proj_qkvz.weight"},
    /* sizes that would overflow */
    {"qwen35", "\"linear_num_value_heads\": 6", "\"linear_num_value_heads\": 4294967294", BAD,
     "linear_num_value_heads|4294967294|1024"},
    {"qwen35", "\"linear_key_head_dim\": 8", "\"linear_key_head_dim\": 2147483648", BAD,
     "linear_key_head_dim|2147483648|1024"},
    {"qwen35", "\"linear_value_head_dim\": 18", "\"linear_value_head_dim\": 4294967296", BAD,
     "linear_value_head_dim|4294967296|1024"},
    {"qwen35", "\"linear_value_head_dim\": 18", "\"linear_value_head_dim\": 0", BAD,
     "linear_value_head_dim|0"},
    {"qwen35", "\"linear_key_head_dim\": 8", "\"linear_key_head_dim\": 1024", BAD,
     "model.layers.0.linear_attn.in_proj_qkv.weight"},
    /* values that are not built */
    {"qwen35", "\"attention_bias\": false", "\"attention_bias\": true", UNBUILT,
     "attention_bias|1|0"},
    {"qwen35", "\"silu\"", "\"gelu\"", UNBUILT, "hidden_act|silu"},
    {"qwen35", "\"hidden_act\"", "\"attn_output_gate\": false, \"hidden_act\"", UNBUILT,
     "attn_output_gate|0"},
    {"qwen35", "\"hidden_act\"", "\"output_gate_type\": \"sigmoid\", \"hidden_act\"", UNBUILT,
     "output_gate_type|sigmoid|swish"},
    {"qwen35moe", "\"hidden_act\": \"silu\",\n    \"hidden_size\"",
     "\"norm_topk_prob\": false, \"hidden_act\": \"silu\",\n    \"hidden_size\"", UNBUILT,
     "norm_topk_prob|0"},
    {"qwen3next", "\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]", UNBUILT,
     "mlp_only_layers|0"},
    {"qwen3next", "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 2", UNBUILT,
     "decoder_sparse_step|2"},
    /* keys of published files */
    {"qwen35moe", "\"image_token_id\"", "\"language_model_only\": false, \"image_token_id\"", 0,
     ""},
    {"qwen35moe", "\"hidden_act\": \"silu\",\n    \"hidden_size\"",
     "\"mamba_ssm_dtype\": \"float32\", \"attn_output_gate\": true, \"mlp_only_layers\": [], "
     "\"mtp_use_dedicated_embeddings\": false, \"norm_topk_prob\": true, \"hidden_act\": \"silu\", "
     "\"hidden_size\"",
     0, ""},
    {"qwen3next", "\"hidden_act\"",
     "\"use_sliding_window\": false, \"full_attention_interval\": 4, \"partial_rotary_factor\": "
     "0.25, \"rope_theta\": 700.0, \"rope_scaling\": null, \"hidden_act\"",
     0, ""},
    {"qwen35", "\"hidden_act\"",
     "\"mamba_ssm_dtype\": \"float32\", \"attn_output_gate\": true, \"mtp_num_hidden_layers\": 1, "
     "\"output_gate_type\": \"swish\", \"full_attention_interval\": 4, \"hidden_act\"",
     0, ""},
};

static void test_bad_folders_are_refused_by_key_layer_and_tensor(void **state)
{
    uint32_t n_bad = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(changes); i++) {
        struct test_folder folder;
        struct checkpoint *ckpt = NULL;
        struct error err = {0};
        folder_create(&folder);
        folder_copy_golden(&folder, changes[i].golden, "model.safetensors", "", "");
        folder_copy_golden(&folder, changes[i].golden, "config.json", changes[i].old,
                           changes[i].now);
        int rc = checkpoint_open(folder.path, &ckpt, &err);
        rc = rc ? rc : read_model(ckpt, &err);
        n_bad += expect(changes[i].now, rc, &err, changes[i].status, changes[i].named);
        checkpoint_close(ckpt);
        folder_remove(&folder);
    }
    assert_int_equal(n_bad, 0);
}

/* --- GGUF --- */

/* Bytes of an array of bools, for up to four layers, with one that only drafts tokens. */
#define BOOLS(n, ...)                                                                              \
    (const unsigned char[]){GGUF_BOOL, 0, 0, 0, (n), 0, 0, 0, 0, 0, 0, 0, __VA_ARGS__}, 12 + (n)
#define U32(value) &(const uint32_t){value}, 4

static const struct {
    struct dialect_edit edit;
    int status;
    const char *named;
} edits[] = {
    {{"attention.recurrent_layers", "attention.recurrent_layers", BOOLS(3, 0, 0, 0)},
     BAD,
     "qwen35.attention.recurrent_layers|0|full_attention|blk.0.attn_q.weight"},
    {{"attention.recurrent_layers", "attention.recurrent_layers", BOOLS(3, 1, 1, 0)},
     BAD,
     "qwen35.attention.recurrent_layers|1|linear_attention|blk.1.attn_qkv.weight"},
    {{"attention.recurrent_layers", "attention.recurrent_layers", BOOLS(2, 1, 0)}, 0, ""},
    {{"attention.recurrent_layers", "attention.recurrent_layers", BOOLS(1, 1)},
     BAD,
     "qwen35.attention.recurrent_layers|1|2"},
    {{"attention.recurrent_layers", "attention.recurrent_layers", BOOLS(4, 1, 0, 0, 0)},
     BAD,
     "qwen35.attention.recurrent_layers|4|2"},
    /* without the list, the interval counts: two layers of four have no attention */
    {{"attention.recurrent_layers", NULL, NULL, 0},
     BAD,
     "qwen35.full_attention_interval|1|linear_attention|blk.1.attn_qkv.weight"},
    {{"ssm.conv_kernel", "ssm.conv_kernel", U32(0)}, BAD, "qwen35.ssm.conv_kernel|0|2|16"},
    {{"ssm.conv_kernel", "ssm.conv_kernel", U32(1000)}, BAD, "qwen35.ssm.conv_kernel|1000|16"},
    {{"ssm.conv_kernel", "ssm.conv_kernel", U32(3)}, BAD, "blk.0.ssm_conv1d.weight"},
    {{"ssm.conv_kernel", NULL, NULL, 0}, BAD, "qwen35.ssm.conv_kernel"},
    {{"ssm.group_count", "ssm.group_count", U32(4)},
     BAD,
     "qwen35.ssm.group_count|4|6|qwen35.ssm.time_step_rank"},
    {{"ssm.inner_size", "ssm.inner_size", U32(109)},
     BAD,
     "qwen35.ssm.inner_size|109|6|qwen35.ssm.time_step_rank"},
    {{"ssm.inner_size", "ssm.inner_size", U32(5)}, BAD, "qwen35.ssm.inner_size|5|6"},
    {{"ssm.inner_size", "ssm.inner_size", U32(UINT32_MAX)},
     BAD,
     "qwen35.ssm.inner_size|4294967295"},
    {{"ssm.time_step_rank", "ssm.time_step_rank", U32(UINT32_MAX)},
     BAD,
     "qwen35.ssm.time_step_rank|4294967295|1024"},
    {{"ssm.time_step_rank", "ssm.time_step_rank", U32(0)}, BAD, "qwen35.ssm.time_step_rank|0"},
    {{"ssm.state_size", "ssm.state_size", U32(UINT32_MAX)},
     BAD,
     "qwen35.ssm.state_size|4294967295|1024"},
    {{"ssm.state_size", "ssm.state_size", U32(9)}, BAD, "blk.0.attn_qkv.weight"},
    {{"nextn_predict_layers", "nextn_predict_layers", U32(3)},
     BAD,
     "qwen35.nextn_predict_layers|3"},
    {{"nextn_predict_layers", "nextn_predict_layers", U32(0)}, BAD, "blk.2.attn_norm.weight"},
};

static void test_bad_gguf_files_are_refused_by_key_layer_and_tensor(void **state)
{
    uint32_t n_bad = 0;
    (void)state;
    for (size_t i = 0; i < COUNT(edits); i++) {
        const struct dialect d = {
            .from = "qwen35", .to = "qwen35", .edits = &edits[i].edit, .n_edits = 1};
        struct error err = {0};
        uint64_t data = 0;
        struct checkpoint *ckpt = dialect_open("qwen35", &d, &data);
        int rc = read_model(ckpt, &err);
        n_bad += expect(edits[i].edit.key, rc, &err, edits[i].status, edits[i].named);
        checkpoint_close(ckpt);
    }
    assert_int_equal(n_bad, 0);
}

/* The file lacks a tensor of a layer. */
static void test_layer_without_its_tensor_is_refused_by_list_and_tensor(void **state)
{
    (void)state;
    static const char *const tensors[][2] = {{"blk.0.ssm_a", "mtp.other"},
                                             {"blk.1.attn_k.weight", "mtp.other"},
                                             {"blk.1.ffn_gate.weight", "mtp.other"}};
    static const char *const named[] = {
        "qwen35.attention.recurrent_layers|0|linear_attention|blk.0.ssm_a",
        "qwen35.attention.recurrent_layers|1|full_attention|blk.1.attn_k.weight",
        "blk.1.ffn_gate.weight",
    };
    for (size_t i = 0; i < COUNT(tensors); i++) {
        const struct dialect d = {
            .from = "qwen35", .to = "qwen35", .tensors = &tensors[i], .n_tensors = 1};
        struct error err = {0};
        uint64_t data = 0;
        struct checkpoint *ckpt = dialect_open("qwen35", &d, &data);
        assert_int_equal(read_model(ckpt, &err), BAD);
        if (!names_all(err.message, named[i]))
            fail_msg("%s", err.message);
        checkpoint_close(ckpt);
    }
}

/* --- old files of Qwen3-Next --- */

/* An old converter wrote the four projections of a delta net as the folder has them. */
static void test_old_file_with_joined_projections_gives_the_same_logits(void **state)
{
    static const char *const tensors[][2] = {{"blk.0.attn_qkv.weight", "mtp.a"},
                                             {"blk.0.attn_gate.weight", "mtp.b"}};
    struct checkpoint *folder = observe_open("qwen3next"), *plain = observe_open("qwen3next.gguf");
    const struct checkpoint_tensor *joined =
        checkpoint_tensor_find(folder, "model.layers.0.linear_attn.in_proj_qkvz.weight");
    struct observation expected, now;
    struct model model = {0};
    struct error err = {0};
    uint64_t data = 0;
    size_t n = 0;
    char *bytes = folder_read_golden("qwen3next", "model.safetensors", &n);
    (void)state;
    assert_non_null(joined);
    assert_in_range(joined->offset_bytes + joined->n_bytes, 1, n);
    const struct dialect_tensor added = {.name = "blk.0.ssm_in.weight",
                                         .type = GGML_BF16,
                                         .dims = {joined->dims[0], joined->dims[1]},
                                         .data = bytes + joined->offset_bytes,
                                         .n_bytes = joined->n_bytes};
    const struct dialect d = {.from = "qwen3next",
                              .to = "qwen3next",
                              .tensors = tensors,
                              .n_tensors = COUNT(tensors),
                              .added = &added};
    struct checkpoint *old = dialect_open("qwen3next", &d, &data);
    if (model_init(&model, old, NULL, &err) != 0)
        fail_msg("%s", err.message);
    assert_ptr_equal(model.arch, &arch_qwen3next_joined);
    observe(model.arch, old, &now);
    observe(&arch_qwen3next, plain, &expected);
    assert_string_equal(now.error, "");
    assert_memory_equal(now.logits, expected.logits, now.vocab * sizeof(float));
    model_fini(&model);
    checkpoint_close(old);
    checkpoint_close(plain);
    checkpoint_close(folder);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_folders_are_refused_by_key_layer_and_tensor),
        cmocka_unit_test(test_bad_gguf_files_are_refused_by_key_layer_and_tensor),
        cmocka_unit_test(test_layer_without_its_tensor_is_refused_by_list_and_tensor),
        cmocka_unit_test(test_old_file_with_joined_projections_gives_the_same_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
