/* The decoder of chunked bodies: strict framing, and the same result at any split of the bytes. */
#include <string.h>

#include "base/strbuf.h"
#include "proto/http/http_chunks.h"
#include "tests/unit/base/support_cmocka.h"

enum { LIMIT = 64 };

/* Decodes text in parts of n_part bytes. Returns the status; 0 if the body has not ended. */
static unsigned decode(const char *text, size_t n_part, struct strbuf *body, size_t *out_used)
{
    struct http_chunks chunks = {0};
    size_t n = strlen(text), at = 0;
    unsigned status = 0;
    strbuf_clear(body);
    while (!status && at < n) {
        size_t n_now = n - at < n_part ? n - at : n_part, used = 0;
        status = http_chunks_decode(&chunks, text + at, n_now, &used, body);
        at += used;
        if (!status && used != n_now)
            fail_msg("%zu of %zu bytes used", used, n_now);
    }
    *out_used = at;
    return status;
}

static void test_bodies_are_decoded_at_any_split(void **state)
{
    static const struct {
        const char *text;
        unsigned status;
        const char *body;
    } rows[] = {
        {"0\r\n\r\n", 200, ""},
        {"3\r\nabc\r\n0\r\n\r\n", 200, "abc"},
        {"00000003\r\nabc\r\n0a\r\n0123456789\r\n0\r\n\r\nGET /", 200, "abc0123456789"},
        {"3;name=\"a b\"\r\nabc\r\n0;x\r\nTrailer: 1\r\nOther: 2\r\n\r\n", 200, "abc"},
        {"3\r\nabc\r\n", 0, "abc"},
        {"", 0, ""},
        {"\r\n", 400, ""},
        {"x\r\n", 400, ""},
        {"-1\r\n", 400, ""},
        {"0x3\r\nabc\r\n", 400, ""},
        {" 3\r\nabc\r\n", 400, ""},
        {"3 \r\nabc\r\n", 400, ""},
        {"3\nabc\n", 400, ""},
        {"3\r\nabcd\r\n", 400, "abc"},
        {"3\r\nabc\n0\r\n\r\n", 400, "abc"},
        {"000000003\r\nabc\r\n", 400, ""},
        {"3;a\x01\r\nabc\r\n", 400, ""},
        {"0\r\n folded\r\n\r\n", 400, ""},
        {"0\r\nX: a\nY: b\r\n\r\n", 400, ""},
        {"41\r\n0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdefg\r\n", 413, NULL},
    };
    struct strbuf body;
    (void)state;
    strbuf_init(&body, LIMIT);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (size_t n_part = 1; n_part <= strlen(rows[i].text) + 1; n_part++) {
            size_t used;
            unsigned status = decode(rows[i].text, n_part, &body, &used);
            if (status != rows[i].status ||
                (rows[i].body && strcmp(strbuf_str(&body), rows[i].body) != 0))
                fail_msg("%s\n  in parts of %zu: status %u, body \"%s\"", rows[i].text, n_part,
                         status, strbuf_str(&body));
            if (strstr(rows[i].text, "GET /"))
                assert_int_equal(used, strlen(rows[i].text) - strlen("GET /"));
        }
    strbuf_fini(&body);
}

static void test_extensions_and_trailers_are_bounded(void **state)
{
    enum { BYTES = 8192 };
    char text[BYTES + 64];
    struct strbuf body;
    size_t used;
    (void)state;
    strbuf_init(&body, LIMIT);
    strcpy(text, "3;");
    memset(text + 2, 'a', BYTES);
    strcpy(text + 2 + BYTES, "\r\nabc\r\n0\r\n\r\n");
    assert_int_equal(decode(text, sizeof(text), &body, &used), 400);
    strcpy(text, "0\r\nX: ");
    memset(text + 6, 'a', BYTES);
    strcpy(text + 6 + BYTES, "\r\n\r\n");
    assert_int_equal(decode(text, sizeof(text), &body, &used), 400);
    strbuf_fini(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bodies_are_decoded_at_any_split),
        cmocka_unit_test(test_extensions_and_trailers_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
