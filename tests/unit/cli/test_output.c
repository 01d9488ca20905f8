#include <string.h>

#include "clients/cli/model_name.h"
#include "clients/cli/output.h"
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
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char name[64];
        model_name_from_path(cases[i][0], name);
        assert_string_equal(name, cases[i][1]);
    }
    char long_path[300], name[64];
    memset(long_path, 'a', sizeof(long_path) - 1);
    long_path[sizeof(long_path) - 1] = '\0';
    model_name_from_path(long_path, name);
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
    assert_string_equal(enum_short(&sluice__manager__v1__replica_state__descriptor, 4, out),
                        "ready");
    assert_string_equal(enum_short(&sluice__manager__v1__model_version_state__descriptor, 1, out),
                        "registered");
    assert_string_equal(enum_short(&sluice__manager__v1__replica_state__descriptor, 99, out), "99");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_names_follow_the_pattern),
        cmocka_unit_test(test_units_and_enums_read_well),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
