/* The table of reasons: each name is found again, and each row is complete. The lint
 * tests/lint/reasons.sh compares the table with the sources and the docs. */
#include <ctype.h>
#include <string.h>

#include "base/error.h"
#include "base/reason.h"
#include "base/utf8.h"
#include "tests/unit/base/support_cmocka.h"

static void test_each_name_is_found_again(void **state)
{
    (void)state;
    for (int i = REASON_UNKNOWN + 1; i < N_REASONS; i++) {
        const char *name = reason_name((enum reason)i);
        if (reason_parse(name) != (enum reason)i || !reason_is(name, (enum reason)i))
            fail_msg("%s is read as %d", name, (int)reason_parse(name));
        assert_true(strlen(name) < ERROR_REASON_BYTES);
        assert_int_equal(strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"), strlen(name));
    }
}

static void test_a_name_that_is_not_in_the_table_is_unknown(void **state)
{
    static const char *const unknown[] = {"QUEUE_FUL", "QUEUE_FULL_", "queue_full", "UNKNOWN",
                                          "NONE",      "XID_79",      " "};
    (void)state;
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        if (reason_parse(unknown[i]) != REASON_UNKNOWN)
            fail_msg("%s is known", unknown[i]);
    assert_int_equal(reason_parse(""), REASON_NONE);
    assert_int_equal(reason_parse(NULL), REASON_NONE);
    assert_string_equal(reason_name(REASON_NONE), "");
    assert_string_equal(reason_name(REASON_UNKNOWN), "");
    assert_string_equal(reason_name((enum reason)9999), "");
}

static void test_each_row_says_what_to_do_next(void **state)
{
    (void)state;
    for (int i = REASON_UNKNOWN + 1; i < N_REASONS; i++) {
        const struct reason_facts *facts = reason_facts((enum reason)i);
        const char *next = facts->next;
        size_t n = strlen(next);
        if (n < 10 || isupper((unsigned char)next[0]) || next[n - 1] == '.')
            fail_msg("%s: \"%s\" is no sentence without capital and full stop", facts->name, next);
        for (const char *at = next; (at = strchr(at, '%')) != NULL; at++)
            if (!at[1] || !strchr("MVGF", at[1]))
                fail_msg("%s: \"%s\" has an unknown place", facts->name, next);
        if (facts->status == STATUS_OK ? facts->other_status != STATUS_OK
                                       : facts->other_status == facts->status)
            fail_msg("%s has odd statuses", facts->name);
        assert_true(facts->retry < N_REASON_RETRIES && facts->area < N_REASON_AREAS);
    }
}

/* A newer peer's reason passes on as the peer wrote it. */
static void test_an_unknown_reason_passes_on_unchanged(void **state)
{
    struct error err, other;
    (void)state;
    error_set(&err, STATUS_INTERNAL, "odd");
    assert_int_equal(err.reason, REASON_NONE);
    assert_int_equal(error_reason_parse(&err, "FROM_A_NEWER_PEER"), STATUS_INTERNAL);
    assert_int_equal(err.reason, REASON_UNKNOWN);
    assert_string_equal(error_reason_name(&err), "FROM_A_NEWER_PEER");
    error_set(&other, STATUS_UNAVAILABLE, "lost");
    assert_int_equal(error_reason_of(&other, &err), STATUS_UNAVAILABLE);
    assert_string_equal(error_reason_name(&other), "FROM_A_NEWER_PEER");
    error_reason(&other, REASON_DRAINING);
    assert_string_equal(error_reason_name(&other), "DRAINING");
    error_reason_parse(&other, "");
    assert_int_equal(other.reason, REASON_NONE);
    assert_string_equal(error_reason_name(&other), "");
    char name[2 * ERROR_REASON_BYTES]; /* a name that is cut stays UTF-8 */
    for (size_t i = 0; i + 2 < sizeof(name); i += 2)
        memcpy(name + i, "\xC3\xA9", 3);
    error_reason_parse(&other, name);
    assert_true(utf8_valid(error_reason_name(&other), strlen(error_reason_name(&other)), NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_name_is_found_again),
        cmocka_unit_test(test_a_name_that_is_not_in_the_table_is_unknown),
        cmocka_unit_test(test_each_row_says_what_to_do_next),
        cmocka_unit_test(test_an_unknown_reason_passes_on_unchanged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
