/* Windows and chunks of 0 positions. transformers masks every position of such a layer, so the
 * model is refused by the key. In GGUF files, 0 says that there is no window where the key may be
 * absent. Symptom: a 0 was taken for "all positions" in either format. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "tests/unit/engine/support/support_bad.h"
#include "tests/unit/engine/support/support_folder.h"

enum { BAD = STATUS_INVALID_ARGUMENT, UNBUILT = STATUS_UNIMPLEMENTED };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define SIXTEEN      "\"sliding_window\": 16"
#define ABSENT       "\"sliding_window\": null"
#define ZERO         "\"sliding_window\": 0"

static const struct bad_folder folders[] = {
    {"mistral", SIXTEEN, ZERO, BAD, "sliding_window|layer 0|0 positions"},
    {"phi3", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"qwen2_window", SIXTEEN, ZERO, BAD, "sliding_window|layer 1"},
    {"starcoder2_window", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"gemma2", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"gemma3", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"gemma3_images", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"gemma4", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"cohere2", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"olmo3", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"exaone4", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"gpt_oss", SIXTEEN, ZERO, BAD, "sliding_window|layer 0"},
    {"mimo2", SIXTEEN, ZERO, BAD, "sliding_window|layer 1"},
    {"llama4", "\"attention_chunk_size\": 16", "\"attention_chunk_size\": 0", BAD,
     "attention_chunk_size|layer 0|0 positions"},
    /* families whose windows are not built */
    {"mixtral", ABSENT, ZERO, UNBUILT, "sliding_window"},
    {"mixtral", ABSENT, SIXTEEN, UNBUILT, "sliding_window"},
    {"ministral3", ABSENT, ZERO, UNBUILT, "sliding_window"},
    {"mistral3_images", ABSENT, ZERO, UNBUILT, "sliding_window"},
};

static void test_folders_whose_layers_see_nothing_are_refused(void **state)
{
    (void)state;
    bad_folders_check(folders, COUNT(folders));
}

/* Folders where no layer has the window. */
static const struct {
    const char *golden, *old, *now;
} unread[] = {
    {"qwen2", ABSENT, ZERO}, /* use_sliding_window is false */
    {"qwen3", ABSENT, ZERO},
    {"smollm3", ABSENT, ZERO},
    {"nemotron_h", ABSENT, ZERO},
};

/* Reads a copy of the golden folder where `old` in config.json is `now`. The caller ends the model
 * and closes *out_ckpt. */
static void open_folder(const char *golden, const char *old, const char *now,
                        struct checkpoint **out_ckpt, struct model *out_model)
{
    struct test_folder folder;
    struct error err = {0};
    *out_model = (struct model){0};
    folder_create(&folder);
    folder_copy_golden(&folder, golden, "model.safetensors", "", "");
    folder_copy_golden(&folder, golden, "config.json", old, now);
    if (checkpoint_open(folder.path, out_ckpt, &err) != 0 ||
        model_init(out_model, *out_ckpt, NULL, &err) != 0)
        fail_msg("%s with %s: %s", golden, now, err.message);
    folder_remove(&folder);
}

static void test_a_window_that_no_layer_reads_may_be_0(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(unread); i++) {
        struct checkpoint *ckpt = NULL;
        struct model model;
        open_folder(unread[i].golden, unread[i].old, unread[i].now, &ckpt, &model);
        model_fini(&model);
        checkpoint_close(ckpt);
    }
}

/* Gemma 4 without per-layer inputs has 0 or null. Symptom: null was taken for the default of 256,
 * and the load failed for lack of tensors. */
static void test_null_per_layer_inputs_are_none(void **state)
{
    struct checkpoint *ckpt = NULL;
    struct model model;
    (void)state;
    open_folder("gemma4_moe", "\"hidden_size_per_layer_input\": 0",
                "\"hidden_size_per_layer_input\": null", &ckpt, &model);
    assert_int_equal(model.shape.layer_embd_dim, 0);
    model_fini(&model);
    checkpoint_close(ckpt);
}

/* --- GGUF --- */

#define WINDOW(golden, arch)                                                                       \
    {                                                                                              \
        golden, arch,                                                                              \
            {"attention.sliding_window", "attention.sliding_window", &(const uint32_t){0}, 4},     \
            BAD, arch ".attention.sliding_window|0"                                                \
    }

static const struct bad_gguf refused[] = {
    WINDOW("gemma2", "gemma2"), WINDOW("gemma4", "gemma4"),   WINDOW("cohere2", "cohere2"),
    WINDOW("mimo2", "mimo2"),   WINDOW("gpt_oss", "gpt-oss"),
};

static void test_files_whose_layers_see_nothing_are_refused(void **state)
{
    (void)state;
    bad_ggufs_check(refused, COUNT(refused));
}

static void test_files_say_by_0_that_there_is_no_window(void **state)
{
    static const char *const names[] = {"phi3", "gemma3", "exaone4"};
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const struct dialect_edit edit = {"attention.sliding_window", "attention.sliding_window",
                                          &(const uint32_t){0}, 4};
        const struct dialect d = {.from = names[i], .to = names[i], .edits = &edit, .n_edits = 1};
        struct model model = {0};
        struct error err = {0};
        uint64_t data = 0;
        struct checkpoint *ckpt = dialect_open(names[i], &d, &data);
        if (model_init(&model, ckpt, NULL, &err) != 0)
            fail_msg("%s: %s", names[i], err.message);
        for (uint32_t k = 0; k < model.shape.n_layers; k++)
            assert_int_equal(model.shape.layers[k].window, 0);
        model_fini(&model);
        checkpoint_close(ckpt);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folders_whose_layers_see_nothing_are_refused),
        cmocka_unit_test(test_a_window_that_no_layer_reads_may_be_0),
        cmocka_unit_test(test_null_per_layer_inputs_are_none),
        cmocka_unit_test(test_files_whose_layers_see_nothing_are_refused),
        cmocka_unit_test(test_files_say_by_0_that_there_is_no_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
