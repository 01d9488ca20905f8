/* Hugging Face folders: what a good folder gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/format/checkpoint_files.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_folder.h"

static struct test_folder folder;

static int make_folder(void **state)
{
    (void)state;
    folder_create(&folder);
    folder_write_model(&folder);
    return 0;
}

static int drop_folder(void **state)
{
    (void)state;
    folder_remove(&folder);
    return 0;
}

static struct checkpoint *open_good(void)
{
    struct checkpoint *c = NULL;
    struct error err;
    if (checkpoint_open(folder.path, &c, &err) != 0)
        fail_msg("%s", err.message);
    return c;
}

static void test_tensors_are_found_with_the_last_dimension_first(void **state)
{
    (void)state;
    struct checkpoint *c = open_good();
    struct error err;
    unsigned char row[16];
    assert_string_equal(checkpoint_format(c), "hf");
    assert_string_equal(checkpoint_name(c), strrchr(folder.path, '/') + 1);
    assert_string_equal(checkpoint_architecture(c), "LlamaForCausalLM");
    assert_int_equal(checkpoint_n_tensors(c), 3);
    const struct checkpoint_tensor *t = checkpoint_tensor_find(c, "a");
    assert_int_equal(t->dtype, DTYPE_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 4);
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->dims[2], 1);
    assert_int_equal(t->n_rows, 2);
    assert_int_equal(t->row_bytes, 16);
    assert_int_equal(checkpoint_read_tensor_rows(c, t, 1, 1, row, &err), 0);
    assert_int_equal(row[0], 16);
    t = checkpoint_tensor_find(c, "b");
    assert_int_equal(t->dtype, DTYPE_F16);
    assert_int_equal(t->row_bytes, 4);
    assert_int_equal(checkpoint_read_tensor_rows(c, t, 2, 1, row, &err), 0);
    assert_int_equal(row[0], 32 + 8);
    assert_int_equal(checkpoint_read_tensor_rows(c, t, 3, 1, row, &err), STATUS_OUT_OF_RANGE);
    t = checkpoint_tensor_find(c, "c");
    assert_int_equal(t->dtype, DTYPE_BF16);
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->n_rows, 1);
    assert_int_equal(checkpoint_check(c, &err), 0);
    checkpoint_close(c);
}

static void test_values_have_dotted_paths(void **state)
{
    (void)state;
    struct error err;
    uint64_t u = 0;
    double f = 0;
    bool b = false;
    const char *text = NULL;
    size_t n = 0;
    struct checkpoint_array array;
    folder_write_text(
        &folder, "config.json",
        "{\"model_type\": \"x\", \"rope_parameters\": {\"rope_theta\": 1e6, \"factor\": 8},\n"
        " \"layer_types\": [\"full_attention\", \"sliding\\u005fattention\"], \"window\": null,\n"
        " \"numbers\": [1, -2, 3], \"floats\": [1, 2.5], \"flags\": [true, false], \"none\": [],\n"
        " \"nested\": [[1], {\"y\": 7}], \"flag\": true, \"big\": "
        "1000000000000000019884624838656,\n"
        " \"limit\": [0.0, Infinity], \"u64\": 18446744073709551615, \"empty\": {}}\n");
    struct checkpoint *c = open_good();
    assert_string_equal(checkpoint_architecture(c), "x");
    assert_int_equal(checkpoint_get_f64(c, "rope_parameters.rope_theta", &f, &err), 0);
    assert_true(f == 1e6);
    assert_int_equal(checkpoint_get_u64(c, "rope_parameters.factor", &u, &err), 0);
    assert_int_equal(u, 8);
    assert_int_equal(checkpoint_get_f64(c, "rope_parameters.factor", &f, &err), 0);
    assert_true(f == 8);
    assert_int_equal(checkpoint_get_array(c, "layer_types", CHECKPOINT_STRING, &array, &err), 0);
    assert_int_equal(array.n, 2);
    text = checkpoint_array_string(&array, 1, &n);
    assert_int_equal(n, 17);
    assert_memory_equal(text, "sliding_attention", 17);
    assert_false(checkpoint_has(c, "window"));
    assert_false(checkpoint_has(c, "empty"));
    assert_int_equal(checkpoint_get_array(c, "numbers", CHECKPOINT_INT, &array, &err), 0);
    assert_int_equal(checkpoint_array_int(&array, 1), -2);
    assert_int_equal(checkpoint_get_array(c, "floats", CHECKPOINT_FLOAT, &array, &err), 0);
    assert_true(checkpoint_array_float(&array, 0) == 1.0);
    assert_true(checkpoint_array_float(&array, 1) == 2.5);
    assert_int_equal(checkpoint_get_array(c, "flags", CHECKPOINT_BOOL, &array, &err), 0);
    assert_int_equal(checkpoint_array_int(&array, 0), 1);
    assert_int_equal(checkpoint_array_int(&array, 1), 0);
    assert_int_equal(checkpoint_get_array(c, "none", CHECKPOINT_STRING, &array, &err), 0);
    assert_int_equal(array.n, 0);
    assert_int_equal(checkpoint_get_array(c, "nested.0", CHECKPOINT_INT, &array, &err), 0);
    assert_int_equal(checkpoint_get_u64(c, "nested.1.y", &u, &err), 0);
    assert_int_equal(u, 7);
    assert_int_equal(checkpoint_get_bool(c, "flag", &b, &err), 0);
    assert_true(b);
    assert_int_equal(checkpoint_get_f64(c, "big", &f, &err), 0);
    assert_true(f == 1e30);
    assert_int_equal(checkpoint_get_u64(c, "big", &u, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(checkpoint_get_u64(c, "u64", &u, &err), 0);
    assert_true(u == UINT64_MAX);
    assert_int_equal(checkpoint_get_array(c, "limit", CHECKPOINT_FLOAT, &array, &err), 0);
    assert_int_equal(checkpoint_get_string(c, "flag", &text, NULL, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
    assert_true(names_all(err.message, "config.json|flag"));
    assert_int_equal(checkpoint_get_u64(c, "hidden_size", &u, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "config.json|hidden_size"));
    for (uint64_t i = 0; i < checkpoint_n_keys(c); i++) {
        struct strbuf value = {0};
        checkpoint_key_type(c, i, &value);
        checkpoint_key_value(c, i, 100, &value);
        assert_false(strbuf_failed(&value));
        strbuf_fini(&value);
    }
    checkpoint_close(c);
}

static void test_the_text_models_keys_lose_their_prefix(void **state)
{
    (void)state;
    static const char *const wrappers[] = {"text_config", "llm_config"};
    for (int i = 0; i < 2; i++) {
        struct error err;
        char config[1024];
        uint64_t u = 0;
        double f = 0;
        bool b = false;
        const char *text = NULL;
        snprintf(config, sizeof(config),
                 "{\"architectures\": [\"XForConditionalGeneration\"], \"model_type\": \"x\",\n"
                 " \"hidden_size\": 1, \"rope_scaling\": {\"factor\": 3, \"type\": \"yarn\"},\n"
                 " \"sliding_window\": 9, \"tie_word_embeddings\": true, \"eos_token_id\": 4,\n"
                 " \"vision_config\": {\"hidden_size\": 77},\n"
                 " \"%s\": {\"model_type\": \"x_text\", \"hidden_size\": 16, \"eos_token_id\": 5,\n"
                 "  \"rope_scaling\": {\"factor\": 2}, \"tie_word_embeddings\": false,\n"
                 "  \"sliding_window\": null, \"bos_token_id\": 6}}",
                 wrappers[i]);
        folder_write_text(&folder, "config.json", config);
        struct checkpoint *c = open_good();
        assert_int_equal(checkpoint_get_u64(c, "hidden_size", &u, &err), 0);
        assert_int_equal(u, 16);
        assert_int_equal(checkpoint_get_f64(c, "rope_scaling.factor", &f, &err), 0);
        assert_true(f == 2);
        assert_false(checkpoint_has(c, "rope_scaling.type"));
        assert_int_equal(checkpoint_get_u64(c, "sliding_window", &u, &err), 0);
        assert_int_equal(u, 9);
        assert_int_equal(checkpoint_get_bool(c, "tie_word_embeddings", &b, &err), 0);
        assert_true(b);
        assert_int_equal(checkpoint_get_string(c, "model_type", &text, NULL, &err), 0);
        assert_string_equal(text, "x");
        assert_int_equal(checkpoint_get_u64(c, "bos_token_id", &u, &err), 0);
        assert_int_equal(u, 6);
        assert_int_equal(checkpoint_get_u64(c, "vision_config.hidden_size", &u, &err), 0);
        assert_int_equal(checkpoint_get_string(c, "hidden_size", &text, NULL, &err),
                         STATUS_INVALID_ARGUMENT);
        snprintf(config, sizeof(config), "%s.hidden_size", wrappers[i]);
        assert_true(names_all(err.message, config));
        const uint32_t *ids;
        assert_int_equal(checkpoint_end_ids(c, &ids), 1);
        assert_int_equal(ids[0], 4);
        checkpoint_close(c);
    }
}

/* Symptom: of two keys "a.b", that of the top level was not hidden. The folder was refused, because
 * the key occurred twice. */
static void test_the_text_models_key_hides_a_key_with_a_dot(void **state)
{
    (void)state;
    static const struct {
        const char *config, *key;
    } rows[] = {
        {"{\"text_config\": {\"a.b\": 1}, \"a.b\": 2}", "a\\.b"},
        {"{\"a.b\": 2, \"text_config\": {\"a.b\": 1}}", "a\\.b"},
        {"{\"text_config\": {\"a.b\": {\"c\": 1}}, \"a.b\": {\"c\": 2}}", "a\\.b.c"},
        {"{\"text_config\": {\"a\\\\\": {\"b\": 1}}, \"a\\\\\": {\"b\": 2}}", "a\\\\.b"},
        {"{\"text_config\": {\"a.b\": 1}, \"a\": {\"b\": 2}}", "a\\.b"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct checkpoint *c = NULL;
        struct error err;
        uint64_t n = 0;
        folder_write_text(&folder, "config.json", rows[i].config);
        if (checkpoint_open(folder.path, &c, &err) != 0)
            fail_msg("row %zu: %s", i, err.message);
        assert_int_equal(checkpoint_get_u64(c, rows[i].key, &n, &err), 0);
        assert_int_equal(n, 1);
        checkpoint_close(c);
    }
}

static void test_end_ids_of_both_configs_are_united(void **state)
{
    (void)state;
    struct error err;
    double f = 0;
    const uint32_t *ids;
    folder_write_text(&folder, "config.json", "{\"eos_token_id\": [7, 3]}");
    folder_write_text(&folder, "generation_config.json",
                      "{\"eos_token_id\": [3, 9], \"temperature\": 0.6}");
    struct checkpoint *c = open_good();
    assert_int_equal(checkpoint_end_ids(c, &ids), 3);
    assert_int_equal(ids[0], 7);
    assert_int_equal(ids[1], 3);
    assert_int_equal(ids[2], 9);
    assert_int_equal(checkpoint_get_f64(c, "generation_config.temperature", &f, &err), 0);
    assert_true(f == 0.6);
    checkpoint_close(c);
    folder_write_text(&folder, "generation_config.json", "{\"eos_token_id\": 8}");
    c = open_good();
    assert_int_equal(checkpoint_end_ids(c, &ids), 3);
    assert_int_equal(ids[2], 8);
    checkpoint_close(c);
}

/* Symptom: a key with a dot at the top level counted as a key of an object. */
static void test_a_dot_in_a_key_is_no_path(void **state)
{
    (void)state;
    struct error err;
    uint64_t n = 0;
    folder_write_text(&folder, "config.json",
                      "{\"rope.theta\": 1, \"rope\": {\"theta\": 2, \"a\\\\.b\": 3}, "
                      "\"transformers.js_config\": {\"dtype\": 4}}");
    struct checkpoint *c = open_good();
    assert_int_equal(checkpoint_get_u64(c, "rope.theta", &n, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(checkpoint_get_u64(c, "rope\\.theta", &n, &err), 0);
    assert_int_equal(n, 1);
    assert_int_equal(checkpoint_get_u64(c, "rope.a\\\\\\.b", &n, &err), 0);
    assert_int_equal(n, 3);
    assert_int_equal(checkpoint_get_u64(c, "transformers\\.js_config.dtype", &n, &err), 0);
    assert_int_equal(n, 4);
    checkpoint_close(c);
}

static void test_sidecars_are_read_by_name(void **state)
{
    (void)state;
    struct error err;
    char *bytes = NULL;
    size_t n = 0;
    folder_write_text(&folder, "chat_template.jinja", "{{ messages }}");
    folder_write_text(&folder, "tokenizer.json", "{}");
    folder_write_text(&folder, "additional_chat_templates/tool_use.jinja", "{{ tools }}");
    folder_write_text(&folder, "additional_chat_templates/README", "no template");
    struct checkpoint *c = open_good();
    assert_int_equal(checkpoint_read_sidecar(c, "chat_template.jinja", &bytes, &n, &err), 0);
    assert_int_equal(n, 14);
    assert_string_equal(bytes, "{{ messages }}");
    free(bytes);
    assert_int_equal(
        checkpoint_read_sidecar(c, "additional_chat_templates/tool_use.jinja", &bytes, &n, &err),
        0);
    assert_string_equal(bytes, "{{ tools }}");
    free(bytes);
    assert_int_equal(checkpoint_read_sidecar(c, "tokenizer.model", &bytes, &n, &err),
                     STATUS_NOT_FOUND);
    assert_int_equal(checkpoint_find_sidecar(c, "config.json"), UINT32_MAX);
    assert_string_equal(checkpoint_file_name(c, checkpoint_sidecar_at(c, 0)), "tokenizer.json");
    assert_string_equal(checkpoint_file_name(c, checkpoint_sidecar_at(c, 1)),
                        "chat_template.jinja");
    assert_string_equal(checkpoint_file_name(c, checkpoint_sidecar_at(c, 2)),
                        "additional_chat_templates/tool_use.jinja");
    assert_int_equal(checkpoint_sidecar_at(c, 3), UINT32_MAX);
    assert_int_equal(checkpoint_bad_sidecar(c, "tokenizer.json", 17, &err, "no"),
                     STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "tokenizer.json|offset 17"));
    folder_write_text(&folder, "tokenizer.json", "{\"changed\": 1}");
    assert_int_equal(checkpoint_read_sidecar(c, "tokenizer.json", &bytes, &n, &err),
                     STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_MODEL_FILE_CHANGED);
    checkpoint_close(c);
}

static void digest_of(uint8_t out[SHA256_BYTES])
{
    struct checkpoint *c = open_good();
    checkpoint_digest(c, out);
    checkpoint_close(c);
}

static void test_the_digest_covers_every_file(void **state)
{
    (void)state;
    uint8_t first[SHA256_BYTES], other[SHA256_BYTES];
    digest_of(first);
    digest_of(other);
    assert_memory_equal(first, other, SHA256_BYTES);
    folder_write_text(&folder, "README.md", "of no interest");
    digest_of(other);
    assert_memory_equal(first, other, SHA256_BYTES);
    static const char *const names[] = {"generation_config.json", "tokenizer.json",
                                        "chat_template.jinja",
                                        "additional_chat_templates/rag.jinja"};
    for (int i = 0; i < 4; i++) {
        folder_write_text(&folder, names[i], "{}");
        digest_of(other);
        assert_memory_not_equal(first, other, SHA256_BYTES);
        memcpy(first, other, SHA256_BYTES);
        if (i) { /* the same size, another byte */
            folder_write_text(&folder, names[i], "[]");
            digest_of(other);
            assert_memory_not_equal(first, other, SHA256_BYTES);
            memcpy(first, other, SHA256_BYTES);
        }
    }
    char header[1024];
    snprintf(header, sizeof(header), "%s ", folder_header); /* the format's padding */
    folder_write_safetensors(&folder, "model.safetensors", header, FOLDER_DATA_BYTES);
    digest_of(other);
    assert_memory_not_equal(first, other, SHA256_BYTES);
}

static void write_shards(void)
{
    unlink(folder_at(&folder, "model.safetensors"));
    folder_write_safetensors(&folder, "one.safetensors",
                             "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    folder_write_safetensors(&folder, "two.safetensors",
                             "{\"b\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[0,12]}}",
                             12);
    folder_write_text(&folder, "model.safetensors.index.json",
                      "{\"metadata\": {\"total_size\": 20}, \"weight_map\": {\"b\": "
                      "\"two.safetensors\", \"a\": \"one.safetensors\"}}");
}

static void test_shards_make_one_model(void **state)
{
    (void)state;
    struct error err;
    unsigned char row[4];
    write_shards();
    struct checkpoint *c = open_good();
    assert_int_equal(checkpoint_n_tensors(c), 2);
    const struct checkpoint_tensor *t = checkpoint_tensor_find(c, "b");
    assert_string_equal(checkpoint_file_name(c, t->file), "two.safetensors");
    assert_int_equal(checkpoint_read_tensor_rows(c, t, 2, 1, row, &err), 0);
    assert_int_equal(row[0], 8);
    assert_int_equal(checkpoint_check(c, &err), 0);
    folder_write_text(&folder, "two.safetensors", "short");
    assert_int_equal(checkpoint_check(c, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_MODEL_FILE_CHANGED);
    checkpoint_close(c);
}

static void test_other_types_are_listed_and_not_read(void **state)
{
    (void)state;
    struct error err;
    unsigned char row[8];
    folder_write_safetensors(
        &folder, "model.safetensors",
        "{\"a\":{\"dtype\":\"F8_E5M2\",\"shape\":[2,4],\"data_offsets\":[0,8]},"
        "\"b\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[8,11]},"
        "\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[11,19]},"
        "\"d\":{\"dtype\":\"BOOL\",\"shape\":[1,1,1,1,1],\"data_offsets\":[19,20]}}",
        20);
    struct checkpoint *c = open_good();
    const struct checkpoint_tensor *t = checkpoint_tensor_find(c, "a");
    assert_int_equal(t->dtype, DTYPE_OTHER);
    assert_string_equal(t->type_name, "F8_E5M2");
    assert_int_equal(checkpoint_check_type(c, t, &err), STATUS_UNIMPLEMENTED);
    assert_int_equal(err.reason, REASON_TENSOR_TYPE_UNSUPPORTED);
    assert_true(names_all(err.message, "model.safetensors|tensor \"a\"|F8_E5M2"));
    assert_int_equal(checkpoint_read_tensor_rows(c, t, 0, 1, row, &err), STATUS_UNIMPLEMENTED);
    t = checkpoint_tensor_find(c, "c");
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->n_elems, 1);
    assert_int_equal(checkpoint_tensor_find(c, "d")->n_dims, 5);
    checkpoint_close(c);
}

static void test_a_model_without_tensors_opens(void **state)
{
    (void)state;
    folder_write_safetensors(&folder, "model.safetensors", "{}", 0);
    folder_write_text(&folder, "config.json", "{}");
    struct checkpoint *c = open_good();
    assert_int_equal(checkpoint_n_tensors(c), 0);
    assert_int_equal(checkpoint_n_keys(c), 0);
    assert_string_equal(checkpoint_architecture(c), "");
    assert_null(checkpoint_tensor_find(c, "a"));
    assert_false(checkpoint_has(c, "a"));
    checkpoint_close(c);
}

static void test_a_hub_cache_is_read_through_its_links(void **state)
{
    (void)state;
    struct checkpoint *c = NULL;
    struct error err;
    char marked[128];
    folder_write_text(&folder, "models--Org--My-Model/blobs/x", "");
    folder_write_text(&folder, "models--Org--My-Model/snapshots/y", "");
    assert_int_equal(mkdir(folder_at(&folder, "models--Org--My-Model/snapshots/abc"), 0700), 0);
    assert_int_equal(rename(folder_at(&folder, "config.json"),
                            folder_at(&folder, "models--Org--My-Model/blobs/c1")),
                     0);
    assert_int_equal(rename(folder_at(&folder, "model.safetensors"),
                            folder_at(&folder, "models--Org--My-Model/blobs/m1")),
                     0);
    assert_int_equal(symlink("../../blobs/c1",
                             folder_at(&folder, "models--Org--My-Model/snapshots/abc/config.json")),
                     0);
    assert_int_equal(
        symlink("../../blobs/m1",
                folder_at(&folder, "models--Org--My-Model/snapshots/abc/model.safetensors")),
        0);
    const char *snapshot = folder_at(&folder, "models--Org--My-Model/snapshots/abc/");
    assert_int_equal(checkpoint_open(snapshot, &c, &err), 0);
    assert_string_equal(checkpoint_name(c), "Org/My-Model");
    assert_int_equal(checkpoint_n_tensors(c), 3);
    checkpoint_close(c);
    snprintf(marked, sizeof(marked), "%s/./models--Org--My-Model/snapshots/abc", folder.path);
    if (checkpoint_open(marked, &c, &err) != 0)
        fail_msg("%s", err.message);
    checkpoint_close(c);
    /* the model alone as the root: the links lead out of it */
    snprintf(marked, sizeof(marked), "%s/models--Org--My-Model/snapshots/./abc", folder.path);
    assert_int_equal(checkpoint_open(marked, &c, &err), STATUS_PERMISSION_DENIED);
    assert_int_equal(err.reason, REASON_OUTSIDE_MODEL_ROOT);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, drop_folder)
    const struct CMUnitTest tests[] = {
        TEST(test_tensors_are_found_with_the_last_dimension_first),
        TEST(test_values_have_dotted_paths),
        TEST(test_the_text_models_keys_lose_their_prefix),
        TEST(test_the_text_models_key_hides_a_key_with_a_dot),
        TEST(test_end_ids_of_both_configs_are_united),
        TEST(test_a_dot_in_a_key_is_no_path),
        TEST(test_sidecars_are_read_by_name),
        TEST(test_the_digest_covers_every_file),
        TEST(test_shards_make_one_model),
        TEST(test_other_types_are_listed_and_not_read),
        TEST(test_a_model_without_tensors_opens),
        TEST(test_a_hub_cache_is_read_through_its_links),
    };
    return cmocka_run_group_tests_name("hf", tests, NULL, NULL);
}
