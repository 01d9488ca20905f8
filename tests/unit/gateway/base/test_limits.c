/* Tests that the table of limits is complete, has no duplicates, and has the expected
 * defaults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "server/gateway/base/limits.h"
#include "tests/support/names.h"

static void test_table_when_read_then_each_limit_has_one_name_and_one_option(void **state)
{
    (void)state;
    for (size_t i = LIMIT_NONE + 1; i < N_GATEWAY_LIMITS; i++) {
        const struct gateway_limit_row *row = &gateway_limit_rows[i];
        if (!row->name)
            fail_msg("limit %zu has no row", i);
        assert_true(row->option.name || i == LIMIT_KEEPALIVE || i == LIMIT_DRAIN ||
                    i == LIMIT_DRAINING || i == LIMIT_DEADLINE || i == LIMIT_INPUT_TOKENS ||
                    i == LIMIT_TOTAL_TOKENS || i == LIMIT_TEMPLATE);
        for (size_t k = LIMIT_NONE + 1; k < i; k++) {
            const struct gateway_limit_row *other = &gateway_limit_rows[k];
            assert_string_not_equal(row->name, other->name);
            if (!row->option.name || !other->option.name)
                continue;
            assert_string_not_equal(row->option.name, other->option.name);
            assert_int_not_equal(row->option.offset, other->option.offset);
        }
    }
}

/* Checks that each field has an option. A field without one would stay 0. */
static void test_table_when_defaults_are_set_then_no_field_is_left_out(void **state)
{
    struct option_spec specs[N_GATEWAY_LIMITS];
    (void)state;
    assert_int_equal(gateway_limits_options(specs, 8) * sizeof(uint64_t),
                     sizeof(struct gateway_limits));
    assert_int_equal(specs[0].offset, gateway_limit_rows[LIMIT_MESSAGE_BYTES].option.offset + 8);
}

static void test_defaults_when_set_then_they_are_those_of_the_design(void **state)
{
    struct gateway_limits limits;
    (void)state;
    memset(&limits, 0, sizeof(limits));
    gateway_limits_init(&limits);
    assert_int_equal(limits.max_message_bytes, 4 << 20);
    assert_int_equal(limits.max_metadata_bytes, 16 << 10);
    assert_int_equal(limits.max_streams, 100);
    assert_int_equal(limits.max_pending_bytes, 64 << 10);
    assert_int_equal(limits.max_pending_tokens, 1024);
    assert_int_equal(limits.slow_reader_ms, 30000);
    assert_int_equal(limits.max_pause_ms, 300000);
    assert_int_equal(limits.max_queued, 512);
    assert_int_equal(limits.max_concurrent, 256);
    assert_int_equal(limits.max_choices, 8);
    assert_int_equal(limits.max_stop_strings, 4);
    assert_int_equal(limits.max_stop_bytes, 256);
    assert_int_equal(limits.max_top_n, 20);
    assert_int_equal(limits.stall_ms, 10000);
    assert_int_equal(limits.max_reattach_ms, 30000);
}

/* Where open files were short by little, gRPC lost connections that HTTP had no use for. */
static void test_grpc_room_when_files_are_short_then_http_takes_what_it_wants_at_most(void **state)
{
    static const struct {
        uint64_t wanted, room;
        uint32_t n_http;
        uint64_t grpc;
    } rows[] = {{1024, 4096, 1, 1024}, {1024, 2048, 1, 1024}, {1024, 1856, 1, 832},
                {1024, 1200, 1, 300},  {1024, 832, 1, 208},   {1024, 832, 0, 832},
                {100, 250, 2, 62},     {100, 290, 2, 90}};
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_int_equal(gateway_limits_grpc_room(rows[i].wanted, rows[i].room, rows[i].n_http),
                         rows[i].grpc);
}

static void
test_options_when_a_value_is_out_of_range_then_the_flag_and_the_range_are_named(void **state)
{
    struct option_spec specs[N_GATEWAY_LIMITS];
    struct gateway_limits limits;
    struct options *options = NULL;
    struct error err;
    char program[] = "x", flag[] = "--max-choices", value[] = "9";
    char *argv[] = {program, flag, value};
    (void)state;
    size_t n = gateway_limits_options(specs, 0);
    assert_int_equal(options_parse("server", specs, n, 3, argv, &limits, &options, &err),
                     STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "--max-choices|9|1|8"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table_when_read_then_each_limit_has_one_name_and_one_option),
        cmocka_unit_test(test_table_when_defaults_are_set_then_no_field_is_left_out),
        cmocka_unit_test(test_grpc_room_when_files_are_short_then_http_takes_what_it_wants_at_most),
        cmocka_unit_test(test_defaults_when_set_then_they_are_those_of_the_design),
        cmocka_unit_test(
            test_options_when_a_value_is_out_of_range_then_the_flag_and_the_range_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
