#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "clients/cli/http/sse.h"
#include "tests/unit/base/support_cmocka.h"

#define N(rows) (sizeof(rows) / sizeof((rows)[0]))

/* Writes each event as "name|data;". */
static int record(void *ctx, const char *name, const char *data, size_t n_bytes, struct error *err)
{
    struct strbuf *out = ctx;
    (void)err;
    strbuf_printf(out, "%s|", name);
    strbuf_add(out, data, n_bytes);
    strbuf_add_char(out, ';');
    return 0;
}

static void test_events_are_the_same_at_every_split(void **state)
{
    static const char *const rows[][2] = {
        {"data: {\"a\":1}\n\ndata: [DONE]\n\n", "|{\"a\":1};|[DONE];"},
        {"data:x\r\n\r\ndata: y\r\n\r\n", "|x;|y;"},
        {"data: x\r\rdata:  y\r\r", "|x;| y;"},
        {": ping\n\ndata: x\n: comment within\ndata: y\n\n", "|x\ny;"},
        {"event: error\ndata: {}\n\ndata: z\n\n", "error|{};|z;"},
        {"id: 7\nretry: 100\nunknown: q\ndata\n\n", "|;"},
        {"\xEF\xBB\xBF"
         "data: x\n\n",
         "|x;"},
        {"\n\n\ndata: a\ndata:\ndata: b\n\n\n", "|a\n\nb;"},
        {"data: \xF0\x9F\x98\x80\n\n", "|\xF0\x9F\x98\x80;"},
        {"data: no empty line\n", "|no empty line;"},
        {"data: no line end", "|no line end;"},
        {"dataset: x\n\n:data: y\n\n", ""},
    };
    (void)state;
    for (size_t i = 0; i < N(rows); i++) {
        size_t n = strlen(rows[i][0]);
        for (size_t cut = 0; cut <= n; cut++) {
            struct strbuf out = {0};
            struct sse sse;
            struct error err;
            sse_init(&sse, record, &out);
            assert_int_equal(sse_feed(&sse, rows[i][0], cut, &err), 0);
            assert_int_equal(sse_feed(&sse, rows[i][0] + cut, n - cut, &err), 0);
            assert_int_equal(sse_end(&sse, &err), 0);
            assert_string_equal(strbuf_str(&out), rows[i][1]);
            strbuf_fini(&out);
            sse_fini(&sse);
        }
    }
}

static void test_lines_and_events_are_bounded(void **state)
{
    static char block[1 << 16];
    (void)state;
    memset(block, 'x', sizeof(block));
    for (int with_lines = 0; with_lines < 2; with_lines++) {
        struct strbuf out = {0};
        struct sse sse;
        struct error err;
        int rc = 0;
        size_t n_fed = 0;
        sse_init(&sse, record, &out);
        for (; !rc && n_fed < 3u * SSE_EVENT_BYTES; n_fed += sizeof(block)) {
            if (with_lines || n_fed == 0)
                rc = sse_feed(&sse, "data: ", 6, &err);
            if (!rc)
                rc = sse_feed(&sse, block, sizeof(block), &err);
            if (!rc && with_lines)
                rc = sse_feed(&sse, "\n", 1, &err);
        }
        assert_int_equal(rc, STATUS_RESOURCE_EXHAUSTED);
        assert_true(n_fed <= SSE_EVENT_BYTES + 2 * sizeof(block));
        strbuf_fini(&out);
        sse_fini(&sse);
    }
}

static int refuse(void *ctx, const char *name, const char *data, size_t n_bytes, struct error *err)
{
    (void)name;
    (void)data;
    (void)n_bytes;
    ++*(int *)ctx;
    return error_set(err, STATUS_ABORTED, "enough");
}

static void test_an_error_of_the_reader_ends_the_stream(void **state)
{
    static const char text[] = "data: 1\n\ndata: 2\n\n";
    int n_events = 0;
    struct sse sse;
    struct error err;
    (void)state;
    sse_init(&sse, refuse, &n_events);
    assert_int_equal(sse_feed(&sse, text, strlen(text), &err), STATUS_ABORTED);
    assert_int_equal(n_events, 1);
    sse_fini(&sse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_events_are_the_same_at_every_split),
        cmocka_unit_test(test_lines_and_events_are_bounded),
        cmocka_unit_test(test_an_error_of_the_reader_ends_the_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
