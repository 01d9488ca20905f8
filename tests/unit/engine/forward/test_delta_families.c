/* Logits of small random checkpoints of the families with a gated delta net against transformers
 * (tests/golden/family_groups/delta.py, tests/golden/expert_groups/delta.py). Pieces, ranks and
 * other rows do not change a bit. The folder of a text model and that of the wrapper for images
 * give the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/strbuf.h"
#include "engine/forward/executor.h"
#include "tests/unit/engine/support/support_family.h"
#include "tests/unit/engine/support/support_folder.h"
#include "tests/unit/engine/support/support_match.h"
#include "tests/unit/engine/support/support_model.h"

static const struct family families[] = {
    {"qwen35", true, 4},
    {"qwen35moe", true, 2},
    {"qwen3next", true, 2},
};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

static void test_families_equal_transformers(void **state)
{
    (void)state;
    family_check_logits(families, N_FAMILIES);
}

static void test_families_contract_kernels_near_transformers(void **state)
{
    (void)state;
    family_check_contract(families, N_FAMILIES);
}

static void test_families_give_the_same_bits_over_ranks_and_chunks(void **state)
{
    (void)state;
    family_check_bits(families, N_FAMILIES);
}

/* In GGUF, the heads of a rank read other key heads than those of a folder. */
static void test_gguf_gives_the_same_bits_over_ranks_and_chunks(void **state)
{
    static const char *const sets[] = {"f32", "auto"};
    (void)state;
    for (size_t i = 0; i < 2 * (size_t)N_FAMILIES; i++) {
        const struct family *f = &families[i / 2];
        struct executor_config cfg = model_run_config(sets[i % 2]);
        uint64_t whole = match_golden(f->name, ".gguf", &cfg, 1000).hash;
        for (uint32_t piece = 1; piece <= 7; piece += 6)
            if (match_golden(f->name, ".gguf", &cfg, piece).hash != whole)
                fail_msg("%s, kernels %s: pieces of %u differ", f->name, cfg.kernels, piece);
        for (cfg.tp = 2; cfg.tp <= f->max_tp; cfg.tp *= 2)
            if (match_golden(f->name, ".gguf", &cfg, 16).hash != whole)
                fail_msg("%s, kernels %s: %u ranks differ", f->name, cfg.kernels, cfg.tp);
    }
}

static void test_rows_do_not_depend_on_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FAMILIES; i++)
        family_check_batches(families[i].name);
}

/* --- folders of the other class --- */

static void replace(struct strbuf *out, const char *text, size_t n, const char *old,
                    const char *now)
{
    size_t n_old = strlen(old);
    for (size_t i = 0; i < n;) {
        bool is_old = i + n_old <= n && memcmp(text + i, old, n_old) == 0;
        strbuf_add(out, is_old ? now : text + i, is_old ? strlen(now) : 1);
        i += is_old ? n_old : 1;
    }
}

/* Copies the golden's tensors; those whose names begin with `old` begin with `now` there. */
static void copy_tensors(const struct test_folder *to, const char *golden, const char *old,
                         const char *now)
{
    size_t n = 0;
    uint64_t n_header = 0;
    char *bytes = folder_read_golden(golden, "model.safetensors", &n);
    struct strbuf header = {0}, file = {0};
    memcpy(&n_header, bytes, sizeof(n_header));
    assert_true(n_header < n);
    replace(&header, bytes + 8, n_header, old, now);
    uint64_t n_new = header.n_bytes;
    strbuf_add(&file, &n_new, sizeof(n_new));
    strbuf_add(&file, header.data, header.n_bytes);
    strbuf_add(&file, bytes + 8 + n_header, n - 8 - n_header);
    folder_write(to, "model.safetensors", file.data, file.n_bytes);
    strbuf_fini(&header);
    strbuf_fini(&file);
    free(bytes);
}

static void expect_same(const struct test_folder *folder, const char *golden)
{
    struct executor_config cfg = model_run_config("f32");
    uint64_t hash = match_golden(golden, "", &cfg, 16).hash;
    if (match_path(folder->path, golden, &cfg, 16).hash != hash)
        fail_msg("%s: the folder of the other class gives other bits", golden);
}

static void test_text_model_in_the_wrapper_for_images_gives_the_same_bits(void **state)
{
    struct test_folder folder;
    struct strbuf config = {0};
    size_t n = 0;
    char *text = folder_read_golden("qwen35", "config.json", &n);
    (void)state;
    strbuf_add_str(&config,
                   "{\"architectures\": [\"Qwen3_5ForConditionalGeneration\"], \"model_type\": "
                   "\"qwen3_5\", \"tie_word_embeddings\": true, \"image_token_id\": 248056, "
                   "\"video_token_id\": 248057, \"vision_start_token_id\": 248053, "
                   "\"vision_end_token_id\": 248054, \"vision_config\": {\"depth\": 27}, "
                   "\"text_config\": ");
    strbuf_add(&config, text, n);
    strbuf_add_str(&config, "}");
    folder_create(&folder);
    folder_write(&folder, "config.json", config.data, config.n_bytes);
    copy_tensors(&folder, "qwen35", "\"model.", "\"model.language_model.");
    expect_same(&folder, "qwen35");
    folder_remove(&folder);
    strbuf_fini(&config);
    free(text);
}

/* The object of "text_config" in the wrapper's config.json, and the class of the text model. */
static void write_text_config(const struct test_folder *folder, const char *golden,
                              const char *class_name)
{
    struct strbuf config = {0};
    size_t n = 0, depth = 0;
    char *bytes = folder_read_golden(golden, "config.json", &n);
    const char *at = strstr(bytes, "\"text_config\": {");
    assert_non_null(at);
    at = strchr(at, '{');
    const char *end = at;
    do {
        depth += (*end == '{') - (*end == '}');
        end++;
    } while (depth);
    strbuf_add_str(&config, "{\"architectures\": [\"");
    strbuf_add_str(&config, class_name);
    strbuf_add_str(&config, "\"], ");
    strbuf_add(&config, at + 1, (size_t)(end - at) - 1);
    folder_write(folder, "config.json", config.data, config.n_bytes);
    strbuf_fini(&config);
    free(bytes);
}

static void test_text_model_without_its_wrapper_gives_the_same_bits(void **state)
{
    struct test_folder folder;
    (void)state;
    folder_create(&folder);
    write_text_config(&folder, "qwen35moe", "Qwen3_5MoeForCausalLM");
    copy_tensors(&folder, "qwen35moe", "\"model.language_model.", "\"model.");
    expect_same(&folder, "qwen35moe");
    folder_remove(&folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_equal_transformers),
        cmocka_unit_test(test_families_contract_kernels_near_transformers),
        cmocka_unit_test(test_families_give_the_same_bits_over_ranks_and_chunks),
        cmocka_unit_test(test_gguf_gives_the_same_bits_over_ranks_and_chunks),
        cmocka_unit_test(test_rows_do_not_depend_on_others),
        cmocka_unit_test(test_text_model_in_the_wrapper_for_images_gives_the_same_bits),
        cmocka_unit_test(test_text_model_without_its_wrapper_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
