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

/* Returns the text that output_json() writes, without the end of the line. */
static void printed(const ProtobufCMessage *message, char *out_text, size_t n_bytes)
{
    FILE *file = tmpfile();
    int kept = dup(STDOUT_FILENO);
    assert_non_null(file);
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    output_json(message);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    rewind(file);
    assert_non_null(fgets(out_text, (int)n_bytes, file));
    out_text[strcspn(out_text, "\n")] = '\0';
    fclose(file);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
