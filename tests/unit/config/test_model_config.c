/* A load's settings: rows of base/settings/load_settings.c against the fields of ModelConfig. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/settings/setting_names.h"
#include "base/strbuf.h"
#include "proto/config/model_config.h"
#include "tests/unit/base/support_cmocka.h"

static const ProtobufCMessageDescriptor *const descriptor =
    &sluice__manager__v1__model_config__descriptor;

static size_t row_of(const char *field)
{
    for (size_t i = 0; i < load_settings_count(); i++)
        if (strcmp(load_setting_at(i)->field, field) == 0)
            return i;
    fail_msg("no row for %s", field);
    return 0;
}

static char *text(const char *literal)
{
    return (char *)(uintptr_t)literal;
}

static void test_each_field_has_one_row_of_its_kind(void **state)
{
    (void)state;
    assert_int_equal(load_settings_count(), descriptor->n_fields);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        const struct load_setting *row = load_setting_at(row_of(field->name));
        bool is_text = row->kind == LOAD_WORD || row->kind == LOAD_TEXT || row->kind == LOAD_PATH;
        assert_int_equal(is_text, field->type == PROTOBUF_C_TYPE_STRING);
        assert_int_equal(row->kind == LOAD_BOOL, field->type == PROTOBUF_C_TYPE_BOOL);
        assert_true(is_text || field->quantifier_offset); /* numbers have a presence flag */
        if (field->type == PROTOBUF_C_TYPE_UINT32)
            assert_true(row->max <= UINT32_MAX);
        assert_int_equal(row->kind == LOAD_WORD, row->words != NULL);
        assert_int_equal(row->flag != NULL, row->users != 0);
        assert_int_equal(row->flag != NULL, row->help != NULL);
        if (row->needs)
            (void)row_of(row->needs);
    }
}

static void test_a_flag_is_a_key_of_the_programs_that_have_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        if (!row->flag)
            continue;
        assert_int_equal(setting_is_known(row->flag, "worker"),
                         (row->users & (LOAD_WORKER | LOAD_WORKER_BENCH)) != 0);
        assert_true(setting_is_known(row->flag, NULL));
    }
    assert_true(setting_is_known("kv_tokens", "cli"));
    assert_false(setting_is_known("kv-bytes", "cli"));
    assert_true(setting_is_known("placement", "manager")); /* also the manager's own */
    assert_string_equal(setting_nearest("gpu_memry", "cli"), "gpu-memory");
}

static void test_a_message_outside_the_rows_is_refused_by_its_field(void **state)
{
    static const struct {
        model_config config;
        const char *field; /* NULL: accepted */
        int status;
    } cases[] = {
        {.config = {.has_n_threads = 1}, "config.n_threads", STATUS_INVALID_ARGUMENT},
        {.config = {.has_n_threads = 1, .n_threads = 1}, NULL, 0},
        {.config = {.has_n_threads = 1, .n_threads = 1024}, NULL, 0},
        {.config = {.has_n_threads = 1, .n_threads = 1025},
         "config.n_threads",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_context_length = 1, .context_length = 1 << 24}, NULL, 0},
        {.config = {.has_context_length = 1, .context_length = (1 << 24) + 1},
         "config.context_length",
         STATUS_INVALID_ARGUMENT},
        /* Symptom: fewer tokens than a block holds failed in the worker, after its start. */
        {.config = {.has_kv_tokens = 1, .kv_tokens = 31},
         "config.kv_tokens",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_kv_tokens = 1, .kv_tokens = 32}, NULL, 0},
        {.config = {.has_kv_tokens = 1, .kv_tokens = UINT64_C(4294967264)}, NULL, 0},
        {.config = {.has_kv_tokens = 1, .kv_tokens = UINT64_C(4294967265)},
         "config.kv_tokens",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_max_batch_tokens = 1, .max_batch_tokens = 1},
         "config.max_batch_tokens",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_max_total_tokens = 1, .max_total_tokens = 1},
         "config.max_total_tokens",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_target_itl_ms = 1}, NULL, 0},
        {.config = {.has_target_itl_ms = 1, .target_itl_ms = 60001},
         "config.target_itl_ms",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_max_draft_tokens = 1}, NULL, 0},
        {.config = {.has_max_draft_tokens = 1, .max_draft_tokens = 17},
         "config.max_draft_tokens",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_idle_after_ms = 1, .idle_after_ms = 999},
         "config.idle_after_ms",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_kv_bytes = 1, .kv_bytes = 1, .has_kv_tokens = 1, .kv_tokens = 1},
         "config.kv_tokens",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_kv_bytes = 1, .kv_bytes = UINT64_C(1) << 63},
         "config.kv_bytes",
         STATUS_INVALID_ARGUMENT},
        {.config = {.has_default_top_k = 1}, "config.default_top_k", STATUS_UNIMPLEMENTED},
        {.config = {.has_default_temperature = 1},
         "config.default_temperature",
         STATUS_UNIMPLEMENTED},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err;
        error_clear(&err);
        assert_int_equal(model_config_check("config", &cases[i].config, &err), cases[i].status);
        if (cases[i].field)
            assert_string_equal(err.field, cases[i].field);
    }
}

static void test_words_and_texts_are_checked(void **state)
{
    static char longest[4200];
    struct error err;
    model_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    (void)state;
    for (size_t i = 0; i < load_settings_count();
         i++) { /* a row takes each of its words, and no other word */
        const struct load_setting *row = load_setting_at(i);
        if (row->kind != LOAD_WORD || row->needs)
            continue;
        union load_value value = {.text = "nonsense"};
        config = (model_config)SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
        model_config_set(&config, i, &value);
        assert_int_equal(model_config_check("c", &config, &err), STATUS_INVALID_ARGUMENT);
        char *words = strdup(row->words), *rest = words;
        for (char *word; (word = strsep(&rest, "|"));) {
            value.text = word;
            model_config_set(&config, i, &value);
            assert_int_equal(model_config_check("c", &config, &err), 0);
        }
        free(words);
    }
    config = (model_config)SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    config.idle_action = text("park");
    assert_int_equal(model_config_check("c", &config, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "c.idle_action");
    config.has_idle_after_ms = 1;
    config.idle_after_ms = 1000;
    assert_int_equal(model_config_check("c", &config, &err), 0);
    memset(longest, 'x', 4096);
    config.draft_model = longest;
    assert_int_equal(model_config_check("c", &config, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "c.draft_model");
    longest[4095] = '\0';
    assert_int_equal(model_config_check("c", &config, &err), 0);
}

static void test_what_a_gpu_alone_has_is_found(void **state)
{
    static const struct {
        model_config config;
        const char *field; /* NULL: none */
    } cases[] = {
        {.config = {.has_gpu_layers = 1, .gpu_layers = 1}, "gpu_layers"},
        {.config = {.has_gpu_memory_bytes = 1, .gpu_memory_bytes = 1}, "gpu_memory_bytes"},
        {.config = {.has_deterministic = 1}, "deterministic"},
        {.config = {.has_deterministic = 1, .deterministic = 1}, NULL},
        {.config = {.has_n_threads = 1, .n_threads = 1}, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct load_setting *row = model_config_gpu_row(&cases[i].config);
        assert_int_equal(row != NULL, cases[i].field != NULL);
        if (row)
            assert_string_equal(row->field, cases[i].field);
    }
    model_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    config.kv_dtype = text("int8");
    assert_null(model_config_gpu_row(&config));
    config.kv_dtype = text("fp8");
    assert_string_equal(model_config_gpu_row(&config)->field, "kv_dtype");
    config.kv_dtype = text("");
    config.weight_format = text("int8");
    assert_string_equal(model_config_gpu_row(&config)->field, "weight_format");
}

static void test_a_merge_takes_what_is_set_and_one_of_a_group(void **state)
{
    model_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    model_config over = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    (void)state;
    config.has_kv_bytes = config.has_n_threads = config.has_evictable = config.evictable = 1;
    config.kv_bytes = 7;
    config.n_threads = 3;
    config.kernels = text("avx2");
    config.placement = text("pack");
    over.has_kv_tokens = over.has_evictable = over.has_target_itl_ms = 1;
    over.kv_tokens = 64;
    over.kernels = text("ref");
    model_config_lay(&config, &over);
    assert_false(config.has_kv_bytes);
    assert_true(config.has_kv_tokens);
    assert_int_equal(config.kv_tokens, 64);
    assert_int_equal(config.n_threads, 3);
    assert_true(config.has_evictable);
    assert_false(config.evictable);
    assert_true(config.has_target_itl_ms);
    assert_string_equal(config.kernels, "ref");
    assert_string_equal(config.placement, "pack");
    assert_false(model_config_equal(&config, &over));
    assert_true(model_config_equal(&config, &config));
    model_config none = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    assert_true(model_config_equal(&none, NULL));
}

static void test_a_flag_sets_its_field(void **state)
{
    static struct option_spec specs[LOAD_SETTINGS_MAX];
    size_t n_specs = load_settings_specs(LOAD_WORKER, 0, specs, LOAD_SETTINGS_MAX);
    (void)state;
    for (size_t i = 0; i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        union load_value values[LOAD_SETTINGS_MAX] = {{0}};
        model_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
        struct options *options;
        struct error err;
        char flag[128];
        if (!(row->users & LOAD_WORKER))
            continue;
        bool by_default = row->default_text && strcmp(row->default_text, "true") == 0;
        const char *value = row->kind == LOAD_BOOL ? by_default ? "false" : "true" : "5";
        snprintf(flag, sizeof(flag), "--%s=%s", row->flag, value);
        char *const argv[] = {text("test"), flag, NULL};
        assert_int_equal(
            options_parse_some("worker", specs, n_specs, 2, argv, values, &options, &err), 0);
        if (row->traits & LOAD_ZERO)
            assert_string_equal(values[i].text, "5"); /* or "auto" */
        else
            model_config_set(&config, i, &values[i]);
        assert_true((row->traits & LOAD_ZERO) || model_config_has(&config, i));
        options_destroy(options);
    }
}

/* A stored message may hold a number above the range of today. A worker must refuse the number, as
 * it refuses the flag. */
static void test_a_number_above_its_range_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        union load_value value = {.number = row->max};
        model_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
        struct error err = {0};
        char name[64];
        if (row->max == 0 || row->max >= UINT32_MAX ||
            (row->kind != LOAD_NUMBER && row->kind != LOAD_BYTES && row->kind != LOAD_DURATION))
            continue;
        model_config_set(&config, i, &value);
        assert_int_equal(model_config_check_max("config", &config, &err), 0);
        value.number = row->max + 1;
        model_config_set(&config, i, &value);
        snprintf(name, sizeof(name), "config.%s", row->field);
        assert_int_equal(model_config_check_max("config", &config, &err), STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, name);
    }
}

static void test_a_default_leaves_the_field_absent(void **state)
{
    static struct option_spec specs[LOAD_SETTINGS_MAX];
    size_t n_specs = load_settings_specs(LOAD_WORKER, 0, specs, LOAD_SETTINGS_MAX);
    union load_value values[LOAD_SETTINGS_MAX] = {{0}};
    model_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    struct error err;
    (void)state;
    assert_int_equal(options_defaults(specs, n_specs, values, &err), 0);
    for (size_t i = 0; i < load_settings_count(); i++)
        if ((load_setting_at(i)->users & LOAD_WORKER) && !(load_setting_at(i)->traits & LOAD_ZERO))
            model_config_set(&config, i, &values[i]);
    assert_true(model_config_equal(&config, NULL));
    assert_string_equal(values[row_of("target_itl_ms")].text, "auto");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_field_has_one_row_of_its_kind),
        cmocka_unit_test(test_a_flag_is_a_key_of_the_programs_that_have_it),
        cmocka_unit_test(test_a_message_outside_the_rows_is_refused_by_its_field),
        cmocka_unit_test(test_words_and_texts_are_checked),
        cmocka_unit_test(test_what_a_gpu_alone_has_is_found),
        cmocka_unit_test(test_a_merge_takes_what_is_set_and_one_of_a_group),
        cmocka_unit_test(test_a_flag_sets_its_field),
        cmocka_unit_test(test_a_number_above_its_range_is_refused),
        cmocka_unit_test(test_a_default_leaves_the_field_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
