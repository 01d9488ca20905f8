/* test_settings_record.c: each field of a launch record becomes the setting of its name, with the
 * checks of the flag. The tests walk the descriptor, so a new field is covered. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "proto/config/model_config.h"
#include "proto/launch/launch_record.h"
#include "server/worker/base/settings.h"
#include "tests/support/names.h"

enum { MAX_WORDS = 12, FIRST_FD = 60 };

static const ProtobufCMessageDescriptor *const descriptor = &sluice__worker__v1__launch__descriptor;

static char *text(const char *literal)
{
    return (char *)(uintptr_t)literal;
}

/* Returns the smallest record that `serve` accepts. */
static launch_record least(void)
{
    launch_record record = SLUICE__WORKER__V1__LAUNCH__INIT;
    record.replica = text("r1");
    record.epoch = 3;
    record.model = text("/m.gguf");
    record.socket = text("/s");
    return record;
}

struct parsed {
    struct settings settings;
    struct options *options;
    struct error err;
    int rc;
};

/* `words` follow the mode and --launch-fd; NULL: none. */
static void parse(enum settings_mode mode, const launch_record *record, const char *const words[],
                  struct parsed *out)
{
    char number[16];
    char *argv[MAX_WORDS + 3] = {text(settings_mode_info(mode)->name), text("--launch-fd"), number};
    int argc = 3, fd = -1;
    *out = (struct parsed){.rc = 0};
    assert_int_equal(launch_record_seal(record, FIRST_FD, &fd, &out->err), 0);
    snprintf(number, sizeof(number), "%d", fd);
    for (; words && words[argc - 3]; argc++)
        argv[argc] = text(words[argc - 3]);
    argv[argc] = NULL;
    out->rc = settings_parse(mode, argc, argv, &out->settings, &out->options, &out->err);
    assert_true(fcntl(fd, F_GETFD) >= 0); /* stays open, so that others can read the record */
    close(fd);
}

static void let_go(struct parsed *parsed)
{
    if (!parsed->rc)
        settings_free(&parsed->settings, parsed->options);
}

enum { N_RANKS = 7 * 3 }; /* tp and pp of value_of() */

/* Returns a value that the field's flag accepts and that is not the default. */
static const char *value_of(const ProtobufCFieldDescriptor *field)
{
    static char value[64];
    if (strcmp(field->name, "log_level") == 0)
        return "debug";
    if (strcmp(field->name, "log_format") == 0)
        return "json";
    if (field->type == PROTOBUF_C_TYPE_BOOL)
        return "true";
    if (strcmp(field->name, "pp") == 0)
        return "3"; /* times tp is a number of ranks */
    if (field->type == PROTOBUF_C_TYPE_UINT64)
        return "7";
    snprintf(value, sizeof(value), "a %s", field->name);
    return value;
}

static void set_field(launch_record *record, const ProtobufCFieldDescriptor *field)
{
    const char *value = value_of(field);
    const uint64_t number = strtoull(value, NULL, 10);
    const protobuf_c_boolean truth = 1;
    char *member = (char *)record + field->offset;
    if (field->type == PROTOBUF_C_TYPE_BOOL) {
        memcpy(member, &truth, sizeof(truth));
    } else if (field->type == PROTOBUF_C_TYPE_UINT64) {
        memcpy(member, &number, sizeof(number));
    } else {
        assert_int_equal(field->type, PROTOBUF_C_TYPE_STRING);
        char *copy = strdup(value);
        memcpy(member, &copy, sizeof(copy));
    }
}

static bool is_scalar(const ProtobufCFieldDescriptor *field)
{
    return field->label != PROTOBUF_C_LABEL_REPEATED && field->type != PROTOBUF_C_TYPE_MESSAGE;
}

static void test_every_field_arrives_in_the_setting_of_its_name(void **state)
{
    launch_record record = SLUICE__WORKER__V1__LAUNCH__INIT;
    struct parsed serve, plan;
    struct strbuf shown = {0};
    uint32_t fds[N_RANKS];
    (void)state;
    for (unsigned i = 0; i < descriptor->n_fields; i++)
        if (is_scalar(&descriptor->fields[i]))
            set_field(&record, &descriptor->fields[i]);
    for (uint32_t i = 0; i < N_RANKS; i++) { /* as many as ranks */
        int fd = dup(0);
        assert_true(fd >= 3);
        fds[i] = (uint32_t)fd;
    }
    record.packed_fds = fds;
    record.n_packed_fds = N_RANKS;
    record.weights_held = 0; /* only a plan has this field */
    parse(MODE_SERVE, &record, NULL, &serve);
    if (serve.rc)
        fail_msg("%s", serve.err.message);
    options_show(serve.options, false, &shown);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        char line[128];
        bool of_plan = strcmp(field->name, "weights_held") == 0;
        snprintf(line, sizeof(line), "\n%s = %s\n", field->name, value_of(field));
        if (is_scalar(field) && !of_plan && !strstr(strbuf_str(&shown), line))
            fail_msg("%s is not among the settings:\n%s", line, strbuf_str(&shown));
    }
    assert_int_equal(serve.settings.packed_fds, N_RANKS);
    for (uint32_t i = 0; i < N_RANKS; i++) {
        assert_int_equal(serve.settings.packed_fd[i], fds[i]);
        close((int)fds[i]);
    }
    let_go(&serve);
    strbuf_fini(&shown);

    launch_record of_plan = SLUICE__WORKER__V1__LAUNCH__INIT;
    of_plan.model = text("/m");
    of_plan.weights_held = 1;
    parse(MODE_PLAN, &of_plan, NULL, &plan);
    assert_int_equal(plan.rc, 0);
    assert_true(plan.settings.weights_held);
    assert_string_equal(plan.settings.model, "/m");
    let_go(&plan);
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        char *value;
        memcpy(&value, (char *)&record + descriptor->fields[i].offset, sizeof(value));
        if (is_scalar(&descriptor->fields[i]) &&
            descriptor->fields[i].type == PROTOBUF_C_TYPE_STRING)
            free(value);
    }
}

/* The settings of a load go as a message, so no field can get lost between names. */
static void test_every_setting_of_a_load_arrives(void **state)
{
    model_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    launch_record record = least();
    struct parsed parsed;
    (void)state;
    for (size_t i = 0; i < load_settings_count(); i++) {
        const struct load_setting *row = load_setting_at(i);
        union load_value value = {.number = row->min ? row->min : 1};
        if (row->traits & LOAD_NOT_BUILT)
            continue;
        if (row->kind == LOAD_BOOL)
            value.truth = !(row->default_text && strcmp(row->default_text, "true") == 0);
        else if (row->kind == LOAD_WORD || row->kind == LOAD_TEXT || row->kind == LOAD_PATH)
            value.text = row->field;
        if (strcmp(row->field, "kv_bytes") != 0) /* excludes kv_tokens */
            model_config_set(&config, i, &value);
    }
    record.config = &config;
    parse(MODE_SERVE, &record, NULL, &parsed);
    assert_int_equal(parsed.rc, 0);
    assert_true(model_config_equal(&parsed.settings.config, &config));
    let_go(&parsed);
}

/* Symptom: an environment variable of the manager, such as SLUICE_MODEL, decided what the record
 * left at its default. */
static void test_the_record_decides_its_fields_and_the_environment_the_others(void **state)
{
    model_config config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    launch_record record = least();
    struct parsed parsed;
    (void)state;
    setenv("SLUICE_METRICS", "unix:/elsewhere", 1);
    setenv("SLUICE_TP", "4", 1);
    setenv("SLUICE_PARKED", "true", 1);
    setenv("SLUICE_REQUEST_THREADS", "5", 1);
    setenv("SLUICE_MAX_CONCURRENT", "9", 1);
    setenv("SLUICE_MAX_QUEUED", "10", 1);
    config.has_max_queued_requests = 1;
    config.max_queued_requests = 11;
    record.config = &config;
    parse(MODE_SERVE, &record, NULL, &parsed);
    assert_int_equal(parsed.rc, 0);
    assert_string_equal(parsed.settings.metrics, "");
    assert_int_equal(parsed.settings.tp, 1);
    assert_false(parsed.settings.parked);
    assert_int_equal(parsed.settings.request_threads, 5);
    assert_int_equal(parsed.settings.config.max_concurrent_requests, 9);
    assert_int_equal(parsed.settings.config.max_queued_requests, 11);
    let_go(&parsed);
    static const char *const names[] = {"METRICS",        "TP",        "PARKED", "REQUEST_THREADS",
                                        "MAX_CONCURRENT", "MAX_QUEUED"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "SLUICE_%s", names[i]);
        unsetenv(name);
    }
}

static void test_a_record_out_of_range_is_refused_by_its_field(void **state)
{
    static uint32_t closed[] = {900}, twice[] = {0, 0}, standard[] = {1}, nine[9];
    model_config threads = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    threads.has_n_threads = 1;
    threads.n_threads = 5000;
    struct {
        enum settings_mode mode;
        launch_record record;
        const char *words[MAX_WORDS];
        const char *field;
    } cases[] = {
        {MODE_SERVE, least(), {NULL}, "tp"},
        {MODE_SERVE, least(), {NULL}, "log_level"},
        {MODE_SERVE, least(), {NULL}, "weights_held"},
        {MODE_SERVE, least(), {NULL}, "packed_fds"},
        {MODE_SERVE, least(), {NULL}, "packed_fds"},
        {MODE_SERVE, least(), {NULL}, "packed_fds"},
        {MODE_SERVE, least(), {NULL}, "packed_fds"},
        {MODE_SERVE, least(), {NULL}, "config.n_threads"},
        {MODE_SERVE, least(), {"--tp", "2"}, "tp"},
        {MODE_SERVE, least(), {"--replica", "r2"}, "replica"},
        {MODE_SERVE, least(), {"--threads", "2"}, "config"},
        {MODE_PLAN, least(), {NULL}, "replica"},
    };
    int fd = dup(0);
    (void)state;
    twice[0] = twice[1] = (uint32_t)fd;
    cases[0].record.tp = 9;
    cases[1].record.log_level = text("loud");
    cases[2].record.weights_held = 1;
    cases[3].record.packed_fds = closed;
    cases[3].record.n_packed_fds = 1;
    cases[4].record.packed_fds = twice;
    cases[4].record.n_packed_fds = 2;
    cases[5].record.packed_fds = standard;
    cases[5].record.n_packed_fds = 1;
    cases[6].record.packed_fds = nine;
    cases[6].record.n_packed_fds = 9;
    cases[7].record.config = &threads;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct parsed parsed;
        parse(cases[i].mode, &cases[i].record, cases[i].words, &parsed);
        assert_int_equal(parsed.rc, STATUS_INVALID_ARGUMENT);
        if (strcmp(parsed.err.field, cases[i].field) != 0)
            fail_msg("%zu: %s: %s", i, parsed.err.field, parsed.err.message);
    }
    close(fd);
}

/* Symptom: a record with the single descriptor 0 was refused as naming a descriptor twice. */
static void test_a_descriptor_that_no_worker_inherits_is_refused_with_the_first_one(void **state)
{
    static uint32_t low[] = {0};
    (void)state;
    for (low[0] = 0; low[0] < 3; low[0]++) {
        launch_record record = least();
        struct parsed parsed = {.rc = 0};
        record.packed_fds = low;
        record.n_packed_fds = 1;
        parsed.rc = settings_parse_record(&record, &parsed.settings, &parsed.options, &parsed.err);
        assert_int_equal(parsed.rc, STATUS_INVALID_ARGUMENT);
        assert_string_equal(parsed.err.field, "packed_fds");
        assert_true(names_all(parsed.err.message, "3"));
    }
}

/* The manager names these beside the record, because process_scan() finds workers by them. */
static void test_flags_that_agree_with_the_record_are_taken(void **state)
{
    static const char *const words[] = {"--socket",      "/s", "--replica",    "r1", "--epoch", "3",
                                        "--drain-grace", "5s", "--no-sandbox", NULL};
    const launch_record record = least();
    struct parsed parsed;
    (void)state;
    parse(MODE_SERVE, &record, words, &parsed);
    assert_int_equal(parsed.rc, 0);
    assert_int_equal(parsed.settings.drain_grace_ms, 5000);
    assert_true(parsed.settings.no_sandbox);
    let_go(&parsed);
}

/* Symptom: a record without a value refused the flag that gives the default of that value. */
static void test_flags_that_agree_with_a_default_of_the_record_are_taken(void **state)
{
    static const char *const words[] = {"--epoch",        "0",         "--tp", "1",
                                        "--parked=false", "--devices", "cpu",  NULL};
    static const char *const others[] = {"--tp", "2", NULL};
    launch_record record = least();
    struct parsed parsed;
    (void)state;
    record.epoch = 0;
    parse(MODE_SERVE, &record, words, &parsed);
    assert_int_equal(parsed.rc, 0);
    let_go(&parsed);
    parse(MODE_SERVE, &record, others, &parsed);
    assert_int_equal(parsed.rc, STATUS_INVALID_ARGUMENT);
    assert_string_equal(parsed.err.field, "tp");
    assert_true(names_all(parsed.err.message, "1|2|--tp"));
}

static void test_a_record_needs_what_the_flags_need(void **state)
{
    static const char *const positional[] = {"m.gguf", NULL};
    launch_record record = least();
    struct parsed parsed;
    (void)state;
    record.model = text("");
    parse(MODE_SERVE, &record, NULL, &parsed);
    assert_int_equal(parsed.rc, STATUS_INVALID_ARGUMENT);
    assert_true(names_all(parsed.err.message, "--model"));
    record = least();
    record.parked = 1;
    parse(MODE_SERVE, &record, NULL, &parsed);
    assert_int_equal(parsed.rc, STATUS_INVALID_ARGUMENT);
    assert_true(names_all(parsed.err.message, "--packed-fds"));
    record = least();
    parse(MODE_SERVE, &record, positional, &parsed);
    assert_int_equal(parsed.rc, STATUS_INVALID_ARGUMENT);
    assert_true(names_all(parsed.err.message, "m.gguf"));
}

static void test_a_descriptor_without_a_record_is_refused(void **state)
{
    struct settings settings;
    struct options *options = NULL;
    struct error err = {0};
    char *const argv[] = {text("serve"), text("--launch-fd"), text("901"), NULL};
    (void)state;
    assert_int_equal(settings_parse(MODE_SERVE, 3, argv, &settings, &options, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "descriptor");
    assert_true(names_all(err.message, "--launch-fd|901"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_arrives_in_the_setting_of_its_name),
        cmocka_unit_test(test_every_setting_of_a_load_arrives),
        cmocka_unit_test(test_the_record_decides_its_fields_and_the_environment_the_others),
        cmocka_unit_test(test_a_record_out_of_range_is_refused_by_its_field),
        cmocka_unit_test(test_a_descriptor_that_no_worker_inherits_is_refused_with_the_first_one),
        cmocka_unit_test(test_flags_that_agree_with_the_record_are_taken),
        cmocka_unit_test(test_flags_that_agree_with_a_default_of_the_record_are_taken),
        cmocka_unit_test(test_a_record_needs_what_the_flags_need),
        cmocka_unit_test(test_a_descriptor_without_a_record_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
