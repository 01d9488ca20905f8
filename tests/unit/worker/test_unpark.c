/* test_unpark.c: the fields of a launch record that a wake may change, and those that need a new
 * process. The test walks the descriptor, so a new field must be put into one of the two lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "server/worker/base/settings.h"
#include "server/worker/park/unpark.h"

static const ProtobufCMessageDescriptor *const descriptor = &sluice__worker__v1__launch__descriptor;

static char *text(const char *literal)
{
    return (char *)(uintptr_t)literal;
}

static uint32_t packed[] = {3, 4};

static launch_record parked(void)
{
    launch_record record = SLUICE__WORKER__V1__LAUNCH__INIT;
    record.replica = text("r1");
    record.epoch = 3;
    record.model = text("/m.gguf");
    record.socket = text("/s");
    record.devices = text("cpu:0");
    record.tp = 1;
    record.packed_fds = packed;
    record.n_packed_fds = 1;
    return record;
}

/* The settings that settings.c makes of a record, as far as unpark_check() reads them. */
static struct settings settings_of(launch_record *record)
{
    struct settings settings = {.launch = record,
                                .devices = record->devices,
                                .epoch = record->epoch,
                                .parked = record->parked,
                                .config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT};
    if (record->config)
        settings.config = *record->config;
    return settings;
}

static int check(launch_record *now, launch_record *then, struct error *err)
{
    const struct settings a = settings_of(now), b = settings_of(then);
    *err = (struct error){0};
    return unpark_check(&a, &b, err);
}

static bool is_listed(const char *const *list, const char *name)
{
    while (*list && strcmp(*list, name) != 0)
        list++;
    return *list != NULL;
}

static void change(launch_record *record, const ProtobufCFieldDescriptor *field)
{
    static Sluice__Manager__V1__ModelConfig config = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT;
    char *member = (char *)record + field->offset, *other = text("other");
    Sluice__Manager__V1__ModelConfig *at = &config;
    const uint64_t number = 77;
    const protobuf_c_boolean truth = 1;
    config.has_kv_tokens = 1;
    config.kv_tokens = 4096;
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        record->n_packed_fds = 2;
    else if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        memcpy(member, &at, sizeof(at));
    else if (field->type == PROTOBUF_C_TYPE_BOOL)
        memcpy(member, &truth, sizeof(truth));
    else if (field->type == PROTOBUF_C_TYPE_UINT64)
        memcpy(member, &number, sizeof(number));
    else
        memcpy(member, &other, sizeof(other));
}

static void test_each_field_may_change_with_a_wake_or_needs_a_start(void **state)
{
    static const char *const fixed[] = {"replica",     "model",   "digest", "socket",
                                        "exit_report", "metrics", "tp",     "pp",
                                        "packed_fds",  "devices", "parked", NULL};
    static const char *const free_to_change[] = {"name",
                                                 "version_id",
                                                 "device_group",
                                                 "config",
                                                 "replicas",
                                                 "weights_shared",
                                                 "weights_held",
                                                 "log_level",
                                                 "log_format",
                                                 "memory_limit",
                                                 "memory_promised",
                                                 "gpu_promised",
                                                 "gpu_held",
                                                 NULL};
    (void)state;
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        launch_record now = parked(), then = parked();
        struct error err;
        assert_int_equal(check(&now, &then, &err), 0);
        change(&then, field);
        int rc = check(&now, &then, &err);
        if (strcmp(field->name, "epoch") == 0) {
            assert_int_equal(rc, STATUS_FAILED_PRECONDITION);
            assert_int_equal(err.reason, REASON_STALE_EPOCH);
        } else if (is_listed(fixed, field->name)) {
            assert_int_equal(rc, STATUS_FAILED_PRECONDITION);
            assert_int_equal(err.reason, REASON_NEEDS_A_START);
            assert_string_equal(err.field, field->name);
        } else if (!is_listed(free_to_change, field->name)) {
            fail_msg("may a wake change %s? Put the field into a list", field->name);
        } else if (rc) {
            fail_msg("%s: %s", field->name, err.message);
        }
    }
}

static void test_a_wake_may_name_another_gpu_and_the_first_cpus(void **state)
{
    launch_record now = parked(), then = parked();
    Sluice__Manager__V1__ModelConfig own = SLUICE__MANAGER__V1__MODEL_CONFIG__INIT, other = own;
    struct error err;
    (void)state;
    now.devices = text("cuda:0");
    then.devices = text("cuda:1");
    assert_int_equal(check(&now, &then, &err), 0);
    other.cpus = text("0-3");
    then.config = &other;
    assert_int_equal(check(&now, &then, &err), 0);
    own.cpus = text("4-7");
    now.config = &own;
    assert_int_equal(check(&now, &then, &err), STATUS_FAILED_PRECONDITION);
    assert_string_equal(err.field, "config.cpus");
    own.cpus = other.cpus;
    other.has_n_threads = 1;
    other.n_threads = 4;
    assert_int_equal(check(&now, &then, &err), STATUS_FAILED_PRECONDITION);
    assert_string_equal(err.field, "config.n_threads");
}

/* An older manager has started the process by flags. */
static void test_a_process_without_a_record_needs_a_start(void **state)
{
    launch_record record = parked();
    struct settings now = settings_of(&record);
    const struct settings then = now;
    struct error err = {0};
    (void)state;
    now.launch = NULL;
    assert_int_equal(unpark_check(&now, &then, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_NEEDS_A_START);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_field_may_change_with_a_wake_or_needs_a_start),
        cmocka_unit_test(test_a_wake_may_name_another_gpu_and_the_first_cpus),
        cmocka_unit_test(test_a_process_without_a_record_needs_a_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
