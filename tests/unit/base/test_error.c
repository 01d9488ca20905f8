#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

static void test_status_names_and_wire_codes_agree(void **state)
{
    (void)state;
    for (int code = 0; code <= 16; code++) {
        assert_int_equal(status_to_grpc(status_from_grpc(code)), code);
        assert_non_null(status_name(-code));
    }
    assert_string_equal(status_name(STATUS_UNAUTHENTICATED), "UNAUTHENTICATED");
    assert_int_equal(status_from_grpc(99), STATUS_UNKNOWN);
    assert_int_equal(status_to_grpc(5), 2);
    assert_int_equal(status_from_errno(ENOSPC), STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(status_from_errno(EIO), STATUS_INTERNAL);
}

static void test_error_field_names_the_field_in_text_and_detail(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(error_field(&err, "sampling.top_p", "%g is not in (0, 1]", 2.0),
                     STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "sampling.top_p");
    assert_string_equal(err.message, "sampling.top_p: 2 is not in (0, 1]");
    error_reason(&err, REASON_TOTAL_TOO_LONG);
    error_prefix(&err, "line %d", 7);
    assert_string_equal(err.message, "line 7: sampling.top_p: 2 is not in (0, 1]");
    assert_int_equal(err.reason, REASON_TOTAL_TOO_LONG);
}

static void test_error_message_that_is_cut_stays_utf8(void **state)
{
    (void)state;
    char text[4 * ERROR_MESSAGE_BYTES] = {0};
    for (size_t shift = 0; shift < 4; shift++) {
        memset(text, 'x', shift);
        for (size_t i = shift; i + 4 < sizeof(text); i += 4)
            memcpy(text + i, "\xF0\x9F\x98\x80", 4);
        struct error err;
        error_set(&err, STATUS_INTERNAL, "%s", text);
        assert_true(utf8_valid(err.message, strlen(err.message), NULL));
        assert_true(strlen(err.message) > ERROR_MESSAGE_BYTES - 8);
        error_prefix(&err, "p");
        assert_true(utf8_valid(err.message, strlen(err.message), NULL));
    }
}

static void test_error_message_with_cut_arguments_stays_utf8(void **state)
{
    (void)state;
    struct error err;
    error_set(&err, STATUS_NOT_FOUND, "no \"%.3s\" here", "x\xC3\xA9\xC3\xA9");
    assert_string_equal(err.message, "no \"x\xC3\xA9\" here");
    error_set(&err, STATUS_NOT_FOUND, "no \"%.2s\" here", "x\xC3\xA9");
    assert_string_equal(err.message, "no \"x?\" here");
    error_field(&err, "f", "%.5s|%s|", "\xF0\x9F\x98\x80\xF0", "\xFF\x80");
    assert_string_equal(err.message, "f: \xF0\x9F\x98\x80?|\?\?|");
    error_prefix(&err, "%.1s:", "\xC3\xA9");
    assert_true(utf8_valid(err.message, strlen(err.message), NULL));
}

static void test_error_errno_says_why(void **state)
{
    (void)state;
    struct error err;
    assert_int_equal(error_errno(&err, ENOENT, "model %s", "a"), STATUS_NOT_FOUND);
    assert_true(names_all(err.message, "model a"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_names_and_wire_codes_agree),
        cmocka_unit_test(test_error_field_names_the_field_in_text_and_detail),
        cmocka_unit_test(test_error_message_that_is_cut_stays_utf8),
        cmocka_unit_test(test_error_message_with_cut_arguments_stays_utf8),
        cmocka_unit_test(test_error_errno_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
