#include <string.h>

#include "base/system/device_name.h"
#include "tests/unit/base/support_cmocka.h"

static void test_what_was_meant_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *text, *meant; /* NULL: unknown */
    } cases[] = {
        {"cuda0", "cuda:0"},
        {"gpu:0", "cuda:0"},
        {"GPU1", "cuda:1"},
        {"nvidia=3", "cuda:3"},
        {"0", "cuda:0"},
        {"0,1", "cuda:0,1"},
        {"0-3", "cuda:0-3"},
        {"cuda:0,cuda:1", "cuda:0,1"},
        {"cuda:0,gpu1,2-3", "cuda:0,1,2-3"},
        {"cpu0", "cpu:0"},
        {"cpu:0,cpu:1", "cpu:0,1"},
        {"cuda:0,cpu:0", NULL},
        {"cuda", NULL},
        {"cuda:", NULL},
        {"cuda:x", NULL},
        {"cuda:0,", NULL},
        {"cuda:0 1", NULL},
        {"tpu:0", NULL},
        {"", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char meant[32] = "as it was";
        bool known = device_name_meant(cases[i].text, meant, sizeof(meant));
        assert_string_equal(meant, cases[i].meant ? cases[i].meant : "as it was");
        assert_int_equal(known, cases[i].meant != NULL);
    }
}

static void test_a_list_that_is_too_long_is_left_out(void **state)
{
    (void)state;
    char meant[10] = "";
    assert_true(device_name_meant("0,1", meant, sizeof(meant)));
    assert_string_equal(meant, "cuda:0,1");
    assert_false(device_name_meant("0,1,2,3", meant, sizeof(meant)));
    assert_false(device_name_meant("0", meant, 0));
}

static void test_gpus_are_told_from_cpus(void **state)
{
    (void)state;
    assert_true(device_name_is_gpu("cuda:0,1"));
    assert_false(device_name_is_gpu("cpu:0-1"));
    assert_false(device_name_is_gpu(""));
    assert_false(device_name_is_gpu(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_was_meant_is_told),
        cmocka_unit_test(test_a_list_that_is_too_long_is_left_out),
        cmocka_unit_test(test_gpus_are_told_from_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
