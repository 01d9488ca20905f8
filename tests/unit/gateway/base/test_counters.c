/* Tests that the server counts a refusal under the label that the table of reasons names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "server/gateway/base/counters.h"

static void test_refusal_when_counted_then_under_the_label_of_its_reason(void **state)
{
    (void)state;
    uint32_t n_counted = 0;
    for (int r = 0; r < N_REASONS; r++) {
        struct counters counters;
        struct error err;
        counters_init(&counters);
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "refused");
        error_reason(&err, (enum reason)r);
        counters_refusal_reason(&counters, &err);
        for (int i = 0; i < N_GATEWAY_LIMITS; i++) {
            if (!counters_n_refusals(&counters, (enum gateway_limit)i))
                continue;
            n_counted++;
            const char *limit = reason_facts((enum reason)r)->limit;
            if (!limit || strcmp(limit, gateway_limit_rows[i].name) != 0)
                fail_msg("%s counts as %s", reason_name((enum reason)r),
                         gateway_limit_rows[i].name);
        }
        counters_fini(&counters);
    }
    assert_int_equal(n_counted, 6);
}

static void test_label_of_a_reason_when_looked_up_then_a_limit_has_it(void **state)
{
    (void)state;
    for (int r = 0; r < N_REASONS; r++) {
        const char *limit = reason_facts((enum reason)r)->limit;
        bool found = !limit;
        for (int i = LIMIT_NONE + 1; !found && i < N_GATEWAY_LIMITS; i++)
            found = strcmp(limit, gateway_limit_rows[i].name) == 0;
        if (!found)
            fail_msg("%s names the limit %s", reason_name((enum reason)r), limit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusal_when_counted_then_under_the_label_of_its_reason),
        cmocka_unit_test(test_label_of_a_reason_when_looked_up_then_a_limit_has_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
