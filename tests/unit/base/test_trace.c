#include <string.h>

#include "base/trace.h"
#include "tests/unit/base/support_cmocka.h"

#define TRACE_ID "0af7651916cd43dd8448eb211c80319c"
#define PARENT   "b7ad6b7169203331"

static void test_parse_takes_what_the_recommendation_allows_and_nothing_else(void **state)
{
    static const struct {
        const char *text;
        bool valid, sampled;
    } rows[] = {
        {"00-" TRACE_ID "-" PARENT "-01", true, true},
        {"00-" TRACE_ID "-" PARENT "-00", true, false},
        {"00-" TRACE_ID "-" PARENT "-ff", true, true},
        {"00-" TRACE_ID "-" PARENT "-fe", true, false},
        {"01-" TRACE_ID "-" PARENT "-01", true, true},
        {"cc-" TRACE_ID "-" PARENT "-01-what-comes-later", true, true},
        {"cc-" TRACE_ID "-" PARENT "-01-", true, true},
        {"cc-" TRACE_ID "-" PARENT "-01.later", false, false},
        {"00-" TRACE_ID "-" PARENT "-01-more", false, false},
        {"00-" TRACE_ID "-" PARENT "-01 ", false, false},
        {" 00-" TRACE_ID "-" PARENT "-01", false, false},
        {"ff-" TRACE_ID "-" PARENT "-01", false, false},
        {"0-" TRACE_ID "-" PARENT "-01", false, false},
        {"0x-" TRACE_ID "-" PARENT "-01", false, false},
        {"00-" TRACE_ID "-" PARENT "-0", false, false},
        {"00-" TRACE_ID "-" PARENT "-0x", false, false},
        {"00-" TRACE_ID "-" PARENT, false, false},
        {"00-" TRACE_ID "_" PARENT "-01", false, false},
        {"00-0AF7651916CD43DD8448EB211C80319C-" PARENT "-01", false, false},
        {"00-00000000000000000000000000000000-" PARENT "-01", false, false},
        {"00-" TRACE_ID "-0000000000000000-01", false, false},
        {"00-" TRACE_ID "-b7ad6b716920333\n-01", false, false},
        {"", false, false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct trace_context context = {.trace_id = "untouched"};
        bool valid = trace_parse(rows[i].text, strlen(rows[i].text), &context);
        if (valid != rows[i].valid)
            fail_msg("\"%s\"", rows[i].text);
        assert_string_equal(context.trace_id, valid ? TRACE_ID : "untouched");
        assert_true(!valid || context.sampled == rows[i].sampled);
        assert_true(!valid || strcmp(context.parent_span, PARENT) == 0);
    }
    assert_false(trace_parse(NULL, 0, &(struct trace_context){.sampled = false}));
}

static void test_accept_goes_on_with_a_trace_or_begins_one(void **state)
{
    static const char came[] = "00-" TRACE_ID "-" PARENT "-01";
    struct trace_context context, next;
    char text[TRACE_PARENT_CHARS + 1];
    (void)state;
    trace_accept(came, strlen(came), &context);
    trace_format(&context, text);
    assert_true(trace_parse(text, strlen(text), &next));
    assert_string_equal(next.trace_id, TRACE_ID);
    assert_string_equal(next.parent_span, context.span);
    assert_string_not_equal(next.parent_span, PARENT);
    assert_true(next.sampled);
    trace_accept("00-nonsense", 11, &context);
    assert_string_equal(context.parent_span, "");
    assert_false(context.sampled);
    trace_format(&context, text);
    assert_true(trace_parse(text, strlen(text), &next));
    assert_string_not_equal(next.trace_id, TRACE_ID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_takes_what_the_recommendation_allows_and_nothing_else),
        cmocka_unit_test(test_accept_goes_on_with_a_trace_or_begins_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
