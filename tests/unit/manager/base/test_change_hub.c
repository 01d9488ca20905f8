/* Tests which subscribers a hub calls on a notification, and in which order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "manager/base/change_hub.h"

static char calls[64];

static char name_a[] = "a", name_b[] = "b", name_c[] = "c";

static void note_call(void *arg, const char *replica_id)
{
    strncat(calls, arg, sizeof(calls) - strlen(calls) - 1);
    strncat(calls, replica_id ? replica_id : "-", sizeof(calls) - strlen(calls) - 1);
}

static void test_notify_when_there_are_subscribers_then_they_are_called_in_their_order(void **state)
{
    struct change_hub hub = {0};
    struct change_subscriber a, b, c;
    (void)state;
    calls[0] = '\0';
    change_hub_notify(&hub, NULL);
    assert_string_equal(calls, "");
    change_hub_subscribe(&hub, &b, note_call, name_b);
    change_hub_subscribe(&hub, &a, note_call, name_a);
    change_hub_subscribe(&hub, &c, note_call, name_c);
    change_hub_notify(&hub, NULL);
    change_hub_notify(&hub, "r1");
    assert_string_equal(calls, "b-a-c-br1ar1cr1");
}

static void test_notify_when_the_hub_is_closed_then_nobody_is_called(void **state)
{
    struct change_hub hub = {0};
    struct change_subscriber a;
    (void)state;
    calls[0] = '\0';
    change_hub_subscribe(&hub, &a, note_call, name_a);
    change_hub_close(&hub);
    change_hub_notify(&hub, NULL);
    assert_string_equal(calls, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_notify_when_there_are_subscribers_then_they_are_called_in_their_order),
        cmocka_unit_test(test_notify_when_the_hub_is_closed_then_nobody_is_called),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
