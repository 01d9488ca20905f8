/* Files of Ollama: GGUF with other names. Each file is a golden checkpoint, written again with
 * Ollama's names. The model must be the same: its shape, and the tensor of every slot. */
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
#include "tests/unit/engine/support/support_dialect.h"
#include "tests/unit/engine/support/support_gguf.h"

/* --- comparison --- */

struct opened {
    struct checkpoint *ckpt;
    struct model model;
    uint64_t data;
};

static void open_model(const char *golden, const struct dialect *d, struct opened *out)
{
    struct error err = {0};
    out->ckpt = dialect_open(golden, d, &out->data);
    if (model_init(&out->model, out->ckpt, NULL, &err) != 0)
        fail_msg("%s as %s: %s", golden, d->to, err.message);
}

static void close_model(struct opened *o)
{
    model_fini(&o->model);
    checkpoint_close(o->ckpt);
}

static void compare_slot(const struct opened *a, const struct opened *b, enum arch_slot slot,
                         uint32_t layer)
{
    const struct checkpoint_tensor *x = model_tensor(&a->model, slot, layer, 0);
    const struct checkpoint_tensor *y = model_tensor(&b->model, slot, layer, 0);
    if (!x != !y)
        fail_msg("slot %d of layer %u is in one file alone", (int)slot, layer);
    if (!x)
        return;
    assert_int_equal(x->dtype, y->dtype);
    assert_int_equal(x->n_bytes, y->n_bytes);
    if (x->offset_bytes - a->data != y->offset_bytes - b->data)
        fail_msg("slot %d of layer %u: %s and %s", (int)slot, layer, x->name, y->name);
}

static void compare(const char *golden, const struct dialect *plain, const struct dialect *ollama)
{
    struct opened a, b;
    open_model(golden, plain, &a);
    open_model(golden, ollama, &b);
    struct model_shape x = a.model.shape, y = b.model.shape;
    assert_ptr_equal(a.model.arch, b.model.arch);
    assert_memory_equal(x.layers, y.layers, x.n_layers * sizeof(*x.layers));
    for (uint32_t i = 0; i < ARCH_MAX_ROPES; i++) {
        assert_int_equal(x.ropes[i].scaling, y.ropes[i].scaling);
        assert_memory_equal(&x.ropes[i], &y.ropes[i], sizeof(x.ropes[i]));
    }
    x.layers = y.layers = NULL;
    assert_memory_equal(&x, &y, sizeof(x));
    for (int slot = 0; slot < N_ARCH_SLOTS; slot++)
        for (uint32_t layer = 0; layer < (slot < ARCH_FIRST_LAYER_SLOT ? 1 : x.n_layers); layer++)
            compare_slot(&a, &b, (enum arch_slot)slot, layer);
    close_model(&a);
    close_model(&b);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define EDITS(rows)  .edits = rows, .n_edits = COUNT(rows)

/* --- gpt-oss --- */

static void test_gptoss_when_written_by_ollama_then_the_same_model(void **state)
{
    (void)state;
    static const struct dialect_edit edits[] = {{"expert_feed_forward_length", NULL, NULL, 0},
                                                {"rope.scaling.type", NULL, NULL, 0}};
    static const char *const tensors[][2] = {
        {".attn_sinks.weight", ".attn_sinks"},
        {".attn_output.weight", ".attn_out.weight"},
        {".attn_output.bias", ".attn_out.bias"},
        {".post_attention_norm.weight", ".ffn_norm.weight"},
    };
    const struct dialect plain = {.from = "gpt-oss", .to = "gpt-oss"};
    const struct dialect ollama = {.from = "gpt-oss",
                                   .to = "gptoss",
                                   EDITS(edits),
                                   .tensors = tensors,
                                   .n_tensors = COUNT(tensors)};
    compare("gpt_oss", &plain, &ollama);
}

/* --- Gemma 3 --- */

static const uint32_t long_context = 131072;
static const float eight = 8, epsilon = 1e-6f;

static void image_keys(struct gguf_writer *w)
{
    gguf_kv_u32(w, "gemma3.vision.block_count", 27);
    gguf_kv_u32(w, "gemma3.mm.tokens_per_image", 256);
}

static const struct dialect_edit gemma3_plain[] = {
    {"context_length", "context_length", &long_context, sizeof(long_context)},
    {"attention.layer_norm_rms_epsilon", "attention.layer_norm_rms_epsilon", &epsilon,
     sizeof(epsilon)},
    {"rope.scaling.factor", "rope.scaling.factor", &eight, sizeof(eight)},
};

/* Symptom: a 4B model was served without the linear scaling of its global layers. */
static void test_gemma3_when_written_by_ollama_then_scaled_by_8(void **state)
{
    (void)state;
    static const struct dialect_edit edits[] = {
        {"context_length", "context_length", &long_context, sizeof(long_context)},
        {"attention.layer_norm_rms_epsilon", NULL, NULL, 0},
        {"rope.freq_base", "rope.global.freq_base", NULL, 0},
        {"rope.scaling.type", NULL, NULL, 0},
        {"rope.scaling.factor", NULL, NULL, 0},
    };
    const struct dialect plain = {.from = "gemma3", .to = "gemma3", EDITS(gemma3_plain)};
    struct dialect ollama = {.from = "gemma3", .to = "gemma3", EDITS(edits)};
    compare("gemma3", &plain, &ollama);
    ollama.more = image_keys;
    ollama.images = true;
    compare("gemma3", &plain, &ollama);
}

/* The 1B model has a context of 32,768 and no scaling, and so has a plain file without a factor. */
static void test_gemma3_when_the_context_is_short_or_the_file_plain_then_not_scaled(void **state)
{
    (void)state;
    static const struct dialect_edit edits[] = {
        {"rope.freq_base", "rope.global.freq_base", NULL, 0},
        {"rope.scaling.type", NULL, NULL, 0},
        {"rope.scaling.factor", NULL, NULL, 0},
    };
    static const struct dialect_edit plain[] = {
        {"context_length", "context_length", &long_context, sizeof(long_context)},
        {"rope.scaling.type", NULL, NULL, 0},
        {"rope.scaling.factor", NULL, NULL, 0},
    };
    const struct dialect files[] = {{.from = "gemma3", .to = "gemma3", EDITS(edits)},
                                    {.from = "gemma3", .to = "gemma3", EDITS(plain)}};
    for (size_t i = 0; i < COUNT(files); i++) {
        struct opened o;
        open_model("gemma3", &files[i], &o);
        assert_int_equal(o.model.shape.ropes[0].scaling, ROPE_SCALING_NONE);
        close_model(&o);
    }
}

/* --- Mistral 3 --- */

static void mistral_images(struct gguf_writer *w)
{
    gguf_kv_u32(w, "mistral3.vision.block_count", 24);
    gguf_kv_u32(w, "mistral3.image_token_index", 10);
    gguf_kv_u32(w, "mistral3.spatial_merge_size", 2);
    gguf_kv_bool(w, "mistral3.mm.projector_bias", 0);
}

static void test_mistral3_when_written_by_ollama_then_the_same_model(void **state)
{
    (void)state;
    static const struct dialect_edit edits[] = {
        {"rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast", NULL, 0},
        {"rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow", NULL, 0},
        {"rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim", NULL, 0},
        {"attention.temperature_scale", "rope.scaling_beta", NULL, 0},
    };
    const struct dialect plain = {.from = "mistral3", .to = "mistral3"};
    const struct dialect ollama = {
        .from = "mistral3", .to = "mistral3", EDITS(edits), .more = mistral_images, .images = true};
    compare("ministral3", &plain, &ollama);
}

/* --- Gemma 4 --- */

/* The text model has the names of other files. Keys of the parts for images and sound are beside.
 */
static void gemma4_parts(struct gguf_writer *w)
{
    gguf_kv_u32(w, "gemma4.vision.block_count", 16);
    gguf_kv_u32(w, "gemma4.vision.num_channels", 3);
    gguf_kv_u32(w, "gemma4.vision.projector.scale_factor", 3);
    gguf_kv_u32(w, "gemma4.audio.block_count", 12);
    gguf_kv_u32(w, "gemma4.audio.conv_kernel_size", 5);
}

static void test_gemma4_when_written_by_ollama_then_the_same_model(void **state)
{
    static const char *const goldens[] = {"gemma4", "gemma4_moe"};
    const struct dialect plain = {.from = "gemma4", .to = "gemma4"};
    const struct dialect ollama = {
        .from = "gemma4", .to = "gemma4", .more = gemma4_parts, .images = true};
    (void)state;
    for (size_t i = 0; i < COUNT(goldens); i++)
        compare(goldens[i], &plain, &ollama);
}

/* --- Qwen3.5 and Qwen3-Next --- */

/* Arrays as they stand in a file: the elements' type, their number, the elements. */
static const unsigned char two_kinds[] = {GGUF_BOOL, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0};
static const unsigned char three_sections[] = {GGUF_I32, 0, 0, 0, 3,  0, 0, 0, 0,  0, 0, 0,
                                               11,       0, 0, 0, 11, 0, 0, 0, 10, 0, 0, 0};
static const uint32_t two_layers = 2;

/* Ollama leaves out the layers that only draft tokens. */
static const struct dialect_edit delta_plain[] = {
    {"block_count", "block_count", &two_layers, sizeof(two_layers)},
    {"nextn_predict_layers", NULL, NULL, 0},
    {"attention.recurrent_layers", "attention.recurrent_layers", two_kinds, sizeof(two_kinds)},
};
static const char *const delta_plain_tensors[][2] = {
    {"blk.2.nextn.enorm.weight", "mtp.norm.weight"},
};
static const struct dialect_edit delta_ollama[] = {
    {"block_count", "block_count", &two_layers, sizeof(two_layers)},
    {"nextn_predict_layers", NULL, NULL, 0},
    {"attention.recurrent_layers", NULL, NULL, 0},
    {"attention.head_count_kv", NULL, NULL, 0},
    {"rope.dimension_sections", "rope.dimension_sections", three_sections, sizeof(three_sections)},
};
static const char *const delta_ollama_tensors[][2] = {
    {"blk.2.nextn.enorm.weight", "mtp.norm.weight"},
    {".ssm_dt.bias", ".ssm_dt"},
};

/* The architecture's key; valid until the next call. */
static const char *key_of(const char *arch, const char *name)
{
    static char key[64];
    snprintf(key, sizeof(key), "%s.%s", arch, name);
    return key;
}

static void delta_keys(struct gguf_writer *w, const char *arch)
{
    static const int32_t heads[] = {0, 1}, sections[] = {11, 11, 10};
    gguf_kv_i32s(w, key_of(arch, "attention.head_count_kv"), heads, 2);
    gguf_kv_i32s(w, key_of(arch, "mrope_sections"), sections, 3);
    gguf_kv_i32s(w, key_of(arch, "rope.mrope_section"), sections, 3);
    gguf_kv_bool(w, key_of(arch, "rope.mrope_interleaved"), 1);
    gguf_kv_u32(w, key_of(arch, "vision.block_count"), 27);
    gguf_kv_u32(w, key_of(arch, "image_token_id"), 248056);
    gguf_kv_u32(w, key_of(arch, "vision_start_token_id"), 248053);
    gguf_kv_u32(w, key_of(arch, "vision_end_token_id"), 248054);
}

static void qwen35_ollama(struct gguf_writer *w)
{
    delta_keys(w, "qwen35");
    gguf_kv_bool(w, "qwen35.ssm.v_head_reordered", 1);
}

static void qwen35moe_ollama(struct gguf_writer *w)
{
    delta_keys(w, "qwen35moe");
    gguf_kv_bool(w, "qwen35moe.ssm.v_head_reordered", 1);
    gguf_kv_bool(w, "qwen35moe.norm_top_k_prob", 1);
}

static void qwen3next_ollama(struct gguf_writer *w)
{
    delta_keys(w, "qwen35moe");
    gguf_kv_bool(w, "qwen35moe.norm_top_k_prob", 1);
}

/* The file marks layers with attention by the number of their KV heads. Symptom: such a file was
 * refused for its keys, and its layers were those of the interval. */
static void test_qwen35_when_written_by_ollama_then_the_same_model(void **state)
{
    (void)state;
    static const struct {
        const char *golden, *to;
        void (*more)(struct gguf_writer *);
    } rows[] = {
        {"qwen35", "qwen35", qwen35_ollama},
        {"qwen35moe", "qwen35moe", qwen35moe_ollama},
        {"qwen3next", "qwen35moe", qwen3next_ollama}, /* Ollama has one name for both */
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct dialect plain = {.from = rows[i].golden,
                                      .to = rows[i].golden,
                                      EDITS(delta_plain),
                                      .tensors = delta_plain_tensors,
                                      .n_tensors = COUNT(delta_plain_tensors)};
        const struct dialect ollama = {.from = rows[i].golden,
                                       .to = rows[i].to,
                                       EDITS(delta_ollama),
                                       .tensors = delta_ollama_tensors,
                                       .n_tensors = COUNT(delta_ollama_tensors),
                                       .more = rows[i].more,
                                       .images = true};
        compare(rows[i].golden, &plain, &ollama);
    }
}

static void grouped(struct gguf_writer *w)
{
    gguf_kv_bool(w, "qwen35.ssm.v_head_reordered", 0);
}

/* The order of the value heads is the file's. */
static void test_qwen35_when_heads_are_not_reordered_then_grouped(void **state)
{
    (void)state;
    const struct dialect files[] = {{.from = "qwen35", .to = "qwen35"},
                                    {.from = "qwen35", .to = "qwen35", .more = grouped}};
    for (size_t i = 0; i < COUNT(files); i++) {
        struct opened o;
        open_model("qwen35", &files[i], &o);
        assert_int_equal(o.model.shape.state.tiled, i == 0);
        close_model(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gptoss_when_written_by_ollama_then_the_same_model),
        cmocka_unit_test(test_gemma3_when_written_by_ollama_then_scaled_by_8),
        cmocka_unit_test(test_gemma3_when_the_context_is_short_or_the_file_plain_then_not_scaled),
        cmocka_unit_test(test_mistral3_when_written_by_ollama_then_the_same_model),
        cmocka_unit_test(test_gemma4_when_written_by_ollama_then_the_same_model),
        cmocka_unit_test(test_qwen35_when_written_by_ollama_then_the_same_model),
        cmocka_unit_test(test_qwen35_when_heads_are_not_reordered_then_grouped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
