/* Tests of json_write.h: numbers that JSON cannot have. */
#include <math.h>

#include "base/strbuf.h"
#include "base/text/json_write.h"
#include "tests/unit/base/support_cmocka.h"

static void test_a_float_is_a_number_of_json(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } rows[] = {
        {-0.5, "-0.5"},
        {0, "0"},
        {(double)0.1f, "0.100000001"},
        {(double)NAN, "null"},
        {(double)-INFINITY, "-3.4028234e+38"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strbuf out = {0};
        json_write_float(&out, rows[i].value);
        assert_string_equal(strbuf_str(&out), rows[i].text);
        strbuf_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_float_is_a_number_of_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
