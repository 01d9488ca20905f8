#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "clients/cli/shell/cli.h"
#include "clients/cli/term/output.h"
#include "sluice/manager/v1/manager.pb-c.h"
#include "sluice/manager/v1/types.pb-c.h"
#include "tests/unit/base/support_cmocka.h"

static void test_model_names_follow_the_pattern(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"/models/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct.q4_1"},
        {"a b.gguf", "a-b"},
        {"._x.gguf", "x"},
        {"", "model"},
        {"\xC3\xA9", "model"},
        {"dir.gguf/x", "x"},
        {"/models/Qwen3-0.6B/", "qwen3-0.6b"},
        {"big-00001-of-00003.gguf", "big"},
        {"hub/models--Qwen--Qwen3-0.6B/snapshots/c1899de2", "qwen3-0.6b"},
        {"hub/models--gpt2/snapshots/c1899de2//", "gpt2"},
        {"/tmp/.", "tmp"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char name[64];
        cli_model_name(cases[i][0], name);
        assert_string_equal(name, cases[i][1]);
    }
    char long_path[300], name[64];
    memset(long_path, 'a', sizeof(long_path) - 1);
    long_path[sizeof(long_path) - 1] = '\0';
    cli_model_name(long_path, name);
    assert_int_equal(strlen(name), 63);
}

static void test_units_and_enums_read_well(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(format_bytes(0, out), "0 B");
    assert_string_equal(format_bytes(1536, out), "1.5 KiB");
    assert_string_equal(format_bytes(98701312, out), "94.1 MiB");
    assert_string_equal(format_ms(999, out), "999 ms");
    assert_string_equal(format_ms(1500, out), "1.5 s");
    assert_string_equal(format_latency(0, out), "0.00 ms");
    assert_string_equal(format_latency(9.994, out), "9.99 ms");
    assert_string_equal(format_latency(9.996, out), "10.0 ms");
    assert_string_equal(format_latency(99.96, out), "100 ms");
    assert_string_equal(format_latency(999.4, out), "999 ms");
    assert_string_equal(format_latency(999.9, out), "1.00 s");
    assert_string_equal(format_latency(1989.8, out), "1.99 s"); /* was "1.99e+03 ms" */
    assert_string_equal(format_latency(123456, out), "123 s");
    assert_string_equal(output_enum(&sluice__manager__v1__replica_state__descriptor, 4, out),
                        "ready");
    assert_string_equal(output_enum(&sluice__manager__v1__model_version_state__descriptor, 1, out),
                        "registered");
    assert_string_equal(output_enum(&sluice__manager__v1__replica_state__descriptor, 99, out),
                        "99");
}

/* Takes what stdout gets between capture_begin() and capture_end(). */
struct capture {
    FILE *file;
    int kept;
};

static struct capture capture_begin(void)
{
    struct capture capture = {tmpfile(), dup(STDOUT_FILENO)};
    assert_non_null(capture.file);
    fflush(stdout);
    dup2(fileno(capture.file), STDOUT_FILENO);
    return capture;
}

static void capture_end(struct capture *capture, char *out_text, size_t n_bytes)
{
    fflush(stdout);
    dup2(capture->kept, STDOUT_FILENO);
    close(capture->kept);
    rewind(capture->file);
    size_t n = fread(out_text, 1, n_bytes - 1, capture->file);
    out_text[n] = '\0';
    fclose(capture->file);
}

/* Returns the text that output_json() writes. */
static void printed(const ProtobufCMessage *message, char *out_text, size_t n_bytes)
{
    struct capture capture = capture_begin();
    output_json(message);
    capture_end(&capture, out_text, n_bytes);
}

static void print_table(uint32_t optional, const char *second, char *out_text, size_t n_bytes)
{
    static const char *const headers[] = {"A", "B", "C"};
    const char *const rows[][3] = {{"1", "", "3"}, {"4", second, "6"}};
    struct output_table table;
    output_table_init(&table, 3, headers);
    table.optional = optional;
    output_table_add(&table, rows[0]);
    output_table_add(&table, rows[1]);
    struct capture capture = capture_begin();
    output_table_print(&table);
    capture_end(&capture, out_text, n_bytes);
    output_table_fini(&table);
}

static void test_an_optional_column_appears_with_its_first_text(void **state)
{
    (void)state;
    char text[256];
    print_table(1u << 1, "", text, sizeof(text));
    assert_string_equal(text, "A  C\n1  3\n4  6\n");
    print_table(1u << 1, "5", text, sizeof(text));
    assert_string_equal(text, "A  B  C\n1  -  3\n4  5  6\n");
    print_table(0, "", text, sizeof(text));
    assert_string_equal(text, "A  B  C\n1  -  3\n4  -  6\n");
}

static void test_states_are_used_slots_and_all(void **state)
{
    (void)state;
    char text[24];
    Sluice__Manager__V1__Replica replica = SLUICE__MANAGER__V1__REPLICA__INIT;
    assert_string_equal(output_states_text(&replica, text), "");
    replica.n_state_slots = 16;
    replica.n_states_used = 3;
    assert_string_equal(output_states_text(&replica, text), "3/16");
}

static void test_snapshots_are_those_in_use_and_evicted(void **state)
{
    (void)state;
    char text[48];
    Sluice__Manager__V1__Replica replica = SLUICE__MANAGER__V1__REPLICA__INIT;
    assert_string_equal(output_snapshots_text(&replica, text), "");
    replica.n_state_slots = 16;
    assert_string_equal(output_snapshots_text(&replica, text), "0 (0 evicted)");
    replica.n_snapshots = UINT32_MAX;
    replica.n_snapshot_evictions = UINT64_MAX;
    assert_string_equal(output_snapshots_text(&replica, text),
                        "4294967295 (18446744073709551615 evicted)");
}

/* An answer without groups has an empty list, so that `jq '.groups[]'` works. */
static void test_a_list_of_nothing_is_a_list(void **state)
{
    (void)state;
    char text[1024], name[] = "left";
    Sluice__Manager__V1__ListDeviceGroupsResponse list =
        SLUICE__MANAGER__V1__LIST_DEVICE_GROUPS_RESPONSE__INIT;
    Sluice__Manager__V1__DeviceGroup group = SLUICE__MANAGER__V1__DEVICE_GROUP__INIT;
    Sluice__Manager__V1__DeviceGroup *groups[] = {&group};
    printed(&list.base, text, sizeof(text));
    assert_non_null(strstr(text, "\"groups\":[]"));
    list.n_groups = 1;
    list.groups = groups;
    group.name = name;
    printed(&list.base, text, sizeof(text));
    assert_non_null(strstr(text, "\"groups\":[{\"name\":\"left\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_names_follow_the_pattern),
        cmocka_unit_test(test_units_and_enums_read_well),
        cmocka_unit_test(test_a_list_of_nothing_is_a_list),
        cmocka_unit_test(test_an_optional_column_appears_with_its_first_text),
        cmocka_unit_test(test_snapshots_are_those_in_use_and_evicted),
        cmocka_unit_test(test_states_are_used_slots_and_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
