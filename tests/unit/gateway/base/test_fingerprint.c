/* The name of weights and arithmetic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "server/gateway/base/fingerprint.h"

static void test_fingerprint_differs_where_weights_or_numerics_differ(void **state)
{
    static const char *const parts[][2] = {
        {"00ab", "cpu/amx/bf16/1"},
        {"00ac", "cpu/amx/bf16/1"},
        {"00ab", "cpu/amx/bf16/2"},
        {"00ab", ""},
        {"", "00ab"},
        {"00", "ab"}, /* not joined */
    };
    enum { N = sizeof(parts) / sizeof(parts[0]) };
    char names[N][FINGERPRINT_BYTES], again[FINGERPRINT_BYTES];
    (void)state;
    for (int i = 0; i < N; i++) {
        fingerprint_make(parts[i][0], parts[i][1], names[i]);
        fingerprint_make(parts[i][0], parts[i][1], again);
        assert_string_equal(names[i], again);
        assert_int_equal(strlen(names[i]), FINGERPRINT_BYTES - 1);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(names[i], names[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fingerprint_differs_where_weights_or_numerics_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
