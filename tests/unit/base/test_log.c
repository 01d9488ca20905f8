#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/log.h"
#include "tests/unit/base/support_cmocka.h"

/* What log_write puts on stderr while `write_lines` runs. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_cannot_forge_lines),
        cmocka_unit_test(test_json_lines_parse),
        cmocka_unit_test(test_long_lines_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
