/* Tests of status.h: every kind of detail is written and read back. A peer may also send nonsense.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "proto/rpc/message/status.h"

static void test_status_when_packed_then_unpacks_the_same(void **state)
{
    static const struct error cases[] = {
        {.status = STATUS_NOT_FOUND, .message = "no such model"},
        {.status = STATUS_INVALID_ARGUMENT, .field = "model", .message = "model: empty"},
        {.status = STATUS_UNAVAILABLE, .reason = REASON_REPLICA_LOST, .message = "gone"},
        /* a newer peer's reason passes on as the peer wrote it */
        {.status = STATUS_INTERNAL,
         .reason = REASON_UNKNOWN,
         .reason_text = "FROM_A_NEWER_PEER",
         .message = "odd"},
        {.status = STATUS_FAILED_PRECONDITION,
         .reason = REASON_ALREADY_LOADED,
         .version = "7",
         .has_tokens_sent = true,
         .n_tokens_sent = 3,
         .message = "m/7 is loaded"},
        {.status = STATUS_RESOURCE_EXHAUSTED, .retry_after_ms = 1, .message = "full"},
        {.status = STATUS_ABORTED,
         .retry_after_ms = 61001,
         .field = "expected_generation",
         .reason = REASON_STALE_GENERATION,
         .message = "expected_generation: 3, is 4 ☃"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct error *in = &cases[i];
        struct error out;
        void *bytes = NULL;
        size_t n_bytes = 0;
        rpc_status_pack(in, &bytes, &n_bytes);
        const char *reason = in->reason ? error_reason_name(in) : status_name(in->status);
        assert_non_null(memmem(bytes, n_bytes, reason, strlen(reason))); /* there always is one */
        rpc_status_unpack(status_to_grpc(in->status), in->message, strlen(in->message), bytes,
                          n_bytes, &out);
        assert_int_equal(out.status, in->status);
        assert_int_equal(out.retry_after_ms, in->retry_after_ms);
        assert_string_equal(out.field, in->field);
        assert_int_equal(out.reason, in->reason);
        assert_string_equal(error_reason_name(&out), error_reason_name(in));
        assert_string_equal(out.version, in->version);
        assert_int_equal(out.n_tokens_sent, in->n_tokens_sent);
        assert_string_equal(out.message, in->message);
        free(bytes);
    }
}

static void test_status_when_details_are_nonsense_then_code_and_message_stay(void **state)
{
    static const uint8_t nonsense[] = {0x1A, 0xFF, 0x01, 0x02};
    struct error out;
    (void)state;
    rpc_status_unpack(14, "down", 4, nonsense, sizeof(nonsense), &out);
    assert_int_equal(out.status, STATUS_UNAVAILABLE);
    assert_string_equal(out.message, "down");
    assert_int_equal(out.reason, REASON_NONE);
    rpc_status_unpack(99, "a\xFF z", 4, NULL, 0, &out);
    assert_int_equal(out.status, STATUS_UNKNOWN);
    assert_string_equal(out.message, "a");
    rpc_status_unpack(2, NULL, 0, NULL, 0, &out);
    assert_string_equal(out.message, "");
}

static void test_status_when_message_is_long_then_it_is_cut_to_fit(void **state)
{
    static char text[5000];
    struct error out;
    (void)state;
    memset(text, 'a', sizeof(text));
    rpc_status_unpack(13, text, sizeof(text), NULL, 0, &out);
    assert_int_equal(strlen(out.message), ERROR_MESSAGE_BYTES - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_when_packed_then_unpacks_the_same),
        cmocka_unit_test(test_status_when_details_are_nonsense_then_code_and_message_stay),
        cmocka_unit_test(test_status_when_message_is_long_then_it_is_cut_to_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
