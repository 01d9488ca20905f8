/* Tests of words that describe groups of devices: counts and figures. Errors name the bad part and
 * what is allowed. */
#include <string.h>

#include "base/error.h"
#include "base/settings/device_spec.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

static struct device_spec parse(const char *word)
{
    struct device_spec spec;
    struct error err;
    if (device_spec_parse(word, strlen(word), &spec, &err) != 0)
        fail_msg("%s: %s", word, err.message);
    return spec;
}

static void test_counts_are_machines_and_devices(void **state)
{
    static const struct {
        const char *word, *name, *kind;
        uint32_t n_machines, n_devices;
        bool is_gpu;
    } cases[] = {
        {"h100", "h100", "h100", 1, 1, true},          {"8xh100", "8xh100", "h100", 1, 8, true},
        {"2x8xh200", "2x8xh200", "h200", 2, 8, true},  {"cpu", "cpu", "cpu", 1, 0, false},
        {"4xcpu:name=box", "box", "cpu", 1, 4, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct device_spec spec = parse(cases[i].word);
        assert_string_equal(spec.name, cases[i].name);
        assert_string_equal(spec.kind, cases[i].kind);
        assert_int_equal(spec.n_machines, cases[i].n_machines);
        assert_int_equal(spec.n_devices, cases[i].n_devices);
        assert_int_equal(spec.is_gpu, cases[i].is_gpu);
    }
}

static bool is_near(double a, double b)
{
    return a > b * 0.999999 && a < b * 1.000001;
}

static void test_figures_replace_those_of_the_kind(void **state)
{
    struct device_spec own = parse("8xh100");
    struct device_spec spec = parse("8xh100:memory=80G:read=3.35T:latency=4.5:link=450000M");
    (void)state;
    assert_true(is_near(spec.memory_bytes, 80e9) && is_near(spec.read_bytes_s, 3.35e12));
    assert_true(is_near(spec.latency_s, 4.5e-6) && is_near(spec.link_bytes_s, 450e9));
    assert_true(is_near(spec.ops_s, own.ops_s) && own.ops_s > 1e14);
}

/* Only as much text as the list says belongs to the word. */
static void test_a_word_ends_where_the_list_says(void **state)
{
    struct device_spec spec;
    struct error err;
    (void)state;
    assert_int_equal(device_spec_parse("8xh100,4xcpu", 6, &spec, &err), 0);
    assert_string_equal(spec.kind, "h100");
}

static void test_bad_words_are_named(void **state)
{
    static const struct {
        const char *word, *message;
    } cases[] = {
        {"", "kind|h100|cpu"},
        {"8xh1000", "8xh1000|h1000|h200"},
        {"8x", "8x|kind"},
        {"0xh100", "0xh100|1..1024"},
        {"1025xh100", "1025xh100|1..1024"},
        {"1025x1xh100", "1025x1xh100|1..1024"},
        {"2x4xcpu", "2x4xcpu|share a machine"},
        {"8xh100:speed=3", "speed|memory|latency"},
        {"8xh100:memory", "memory|80G"},
        {"8xh100:memory=", "memory=|80G"},
        {"8xh100:memory=80X", "memory=80X|80G"},
        {"8xh100:memory=-80G", "memory=-80G|80G"},
        {"8xh100:memory=nan", "memory=nan|80G"},
        {"8xh100:memory=1", "memory=1|1e+06"},
        {"8xh100:shared=1G", "shared=1G|CPU"},
        {"2xgpu:memory=48G:read=1T", "2xgpu|compute="},
        {"4xcpu:name=", "name=|1 to 63"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct device_spec spec;
        struct error err;
        int rc = device_spec_parse(cases[i].word, strlen(cases[i].word), &spec, &err);
        assert_int_equal(rc, STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, "groups");
        assert_true(names_all(err.message, cases[i].message));
    }
}

static void test_descriptions_and_names_are_told_apart(void **state)
{
    static const char *const descriptions[] = {"cpu", "8xh100", "8xmade-up", "h100:read=1T"};
    static const char *const others[] = {"gpus", "left", "x8", "", "h100s"};
    (void)state;
    for (size_t i = 0; i < 4; i++)
        assert_true(device_spec_is_description(descriptions[i], strlen(descriptions[i])));
    for (size_t i = 0; i < 5; i++)
        assert_false(device_spec_is_description(others[i], strlen(others[i])));
}

static void test_kinds_of_products(void **state)
{
    (void)state;
    assert_string_equal(device_spec_kind_of("NVIDIA H100 80GB HBM3"), "h100");
    assert_null(device_spec_kind_of("NVIDIA L4"));
    assert_null(device_spec_kind_of(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts_are_machines_and_devices),
        cmocka_unit_test(test_figures_replace_those_of_the_kind),
        cmocka_unit_test(test_a_word_ends_where_the_list_says),
        cmocka_unit_test(test_bad_words_are_named),
        cmocka_unit_test(test_descriptions_and_names_are_told_apart),
        cmocka_unit_test(test_kinds_of_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
