#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/log.h"
#include "tests/unit/base/support_cmocka.h"

/* Captures the lines that log_write prints on stderr while `write_lines` runs. */
static void capture(void (*write_lines)(void), char *out, size_t n_out)
{
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    int saved = dup(STDERR_FILENO);
    dup2(pipe_fds[1], STDERR_FILENO);
    write_lines();
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipe_fds[1]);
    ssize_t n = read(pipe_fds[0], out, n_out - 1);
    out[n > 0 ? n : 0] = '\0';
    close(pipe_fds[0]);
}

static void hostile_line(void)
{
    log_info(LOG_EVENT("request"), LOG_STR("id", "a\nlevel=error event=forged \x1b[31m\"x\""),
             LOG_U64("n", 7));
    log_debug(LOG_EVENT("not shown"), LOG_U64("n", 8));
}

static void test_values_cannot_forge_lines(void **state)
{
    (void)state;
    char text[8192];
    log_init("unit", LOG_LEVEL_INFO, LOG_FORMAT_KV);
    capture(hostile_line, text, sizeof(text));
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    assert_null(strchr(text, 0x1b));
    assert_non_null(strstr(text, "event=request id=\"a\\u000alevel=error"));
    assert_non_null(strstr(text, " n=7"));
}

static void test_json_lines_parse(void **state)
{
    (void)state;
    char text[8192];
    json_error_t error;
    log_init("unit", LOG_LEVEL_INFO, LOG_FORMAT_JSON);
    capture(hostile_line, text, sizeof(text));
    json_t *object = json_loads(text, 0, &error);
    assert_non_null(object);
    assert_string_equal(json_string_value(json_object_get(object, "event")), "request");
    assert_int_equal(json_integer_value(json_object_get(object, "n")), 7);
    json_decref(object);
}

/* Strings that a client may send, and their form in the log. */
static const struct {
    const char *value, *escaped;
} hostile[] = {
    {"\n", "\\u000a"},
    {"\r\n\t", "\\u000d\\u000a\\u0009"},
    {"\x1b[2J", "\\u001b[2J"},
    {"\x7f", "\\u007f"},
    {"\xc2\x9b"
     "2J",
     "\\u009b2J"},                             /* the one-character form of ESC [ */
    {"\xe2\x80\xae", "\\u202e"},               /* right-to-left override */
    {"\xe2\x80\xa8", "\\u2028"},               /* line separator */
    {"\xff\xfe", "\\ufffd\\ufffd"},            /* no UTF-8 */
    {"\xc3", "\\ufffd"},                       /* cut */
    {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"}, /* a surrogate */
    {"\xc0\x8a", "\\ufffd\\ufffd"},            /* an overlong newline */
    {"a\"b\\c", "a\\\"b\\\\c"},
    {"\xc3\xa4\xf0\x9f\x98\x80", "\xc3\xa4\xf0\x9f\x98\x80"}, /* text stays text */
};
static const char *hostile_value;

static void hostile_pair(void)
{
    log_info(LOG_EVENT("x"), LOG_STR("v", hostile_value), LOG_F64("nan", strtod("nan", NULL)));
}

static void test_no_string_breaks_a_line_or_json(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        char text[8192], wanted[128];
        hostile_value = hostile[i].value;
        log_init("unit", LOG_LEVEL_INFO, LOG_FORMAT_KV);
        capture(hostile_pair, text, sizeof(text));
        snprintf(wanted, sizeof(wanted), " v=\"%s\"", hostile[i].escaped);
        assert_non_null(strstr(text, wanted));
        assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
        log_init("unit", LOG_LEVEL_INFO, LOG_FORMAT_JSON);
        capture(hostile_pair, text, sizeof(text));
        json_t *object = json_loads(text, 0, NULL); /* strict about UTF-8 and control characters */
        assert_non_null(object);
        assert_true(json_is_null(json_object_get(object, "nan")));
        json_decref(object);
    }
}

static void long_line(void)
{
    static char big[100000];
    memset(big, 'x', sizeof(big) - 1);
    log_info(LOG_EVENT("big"), LOG_STR("value", big));
}

static void test_long_lines_are_cut(void **state)
{
    (void)state;
    char text[8192];
    log_init("unit", LOG_LEVEL_INFO, LOG_FORMAT_KV);
    capture(long_line, text, sizeof(text));
    assert_true(strlen(text) <= 4096);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

static void long_pairs(void)
{
    static char big[4000];
    for (size_t n = 3700; n < sizeof(big); n++) {
        memset(big, '\n', n);
        memset(big, 'x', n / 2 + n / 4);
        big[n] = '\0';
        log_info(LOG_EVENT("big"), LOG_STR("first", big), LOG_U64("second", UINT64_MAX),
                 LOG_STR("third", big));
    }
}

/* Symptom: a line that was cut to the limit lost its last quote and brace, and was no JSON. */
static void test_lines_that_are_cut_are_whole_json(void **state)
{
    (void)state;
    enum { BYTES = 4 << 20 };
    char *text = calloc(1, BYTES);
    char path[] = "/tmp/sluice-log-XXXXXX";
    int fd = mkstemp(path), saved = dup(STDERR_FILENO);
    log_init("unit", LOG_LEVEL_INFO, LOG_FORMAT_JSON);
    dup2(fd, STDERR_FILENO);
    long_pairs();
    dup2(saved, STDERR_FILENO);
    close(saved);
    assert_true(pread(fd, text, BYTES - 1, 0) > 0);
    close(fd);
    unlink(path);
    size_t n_lines = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        assert_true(end - line < 4096);
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        assert_non_null(json_object_get(object, "first"));
        json_decref(object);
        n_lines++;
    }
    assert_int_equal(n_lines, 300);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_cannot_forge_lines),
        cmocka_unit_test(test_json_lines_parse),
        cmocka_unit_test(test_no_string_breaks_a_line_or_json),
        cmocka_unit_test(test_long_lines_are_cut),
        cmocka_unit_test(test_lines_that_are_cut_are_whole_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
