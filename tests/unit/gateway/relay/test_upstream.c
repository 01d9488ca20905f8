/* Tests that the server asks another replica exactly for the reasons that the table of reasons
 * marks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "server/gateway/relay/upstream.h"

static void test_refusal_when_another_replica_is_asked_then_the_table_says_so(void **state)
{
    (void)state;
    for (int r = 0; r < N_REASONS; r++) {
        const enum reason reason = (enum reason)r;
        struct error refusal;
        error_set(&refusal, STATUS_UNAVAILABLE, "refused");
        error_reason(&refusal, reason);
        bool asks = upstream_is_ending(&refusal) || upstream_is_queue_refusal(reason);
        if (asks != (reason_facts(reason)->retry == RETRY_ELSEWHERE))
            fail_msg("%s", reason_name(reason));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusal_when_another_replica_is_asked_then_the_table_says_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
