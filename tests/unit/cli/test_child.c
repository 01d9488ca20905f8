#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "clients/cli/serve/child.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

/* Runs the child once. The given time of its end is `after_ms` after its start. */
static void run_once(struct child *child, int64_t after_ms)
{
    struct error err;
    assert_int_equal(child_start(child, &err), 0);
    int64_t until = clock_now_ns() + 10 * NS_PER_S;
    while (!child_reap(child, child->started_ns + after_ms * NS_PER_MS))
        assert_true(clock_now_ns() < until);
}

static void test_a_child_that_never_runs_is_given_up(void **state)
{
    (void)state;
    struct child child = {
        .name = "test", .log_path = "/dev/null", .argv = {"/bin/false"}, .pidfd = -1};
    char text[64];
    for (int i = 0; i < 5; i++) {
        assert_false(child_is_hopeless(&child));
        run_once(&child, 10);
    }
    assert_true(child_is_hopeless(&child));
    assert_string_equal(child_end_text(&child, text), "exit status 1");
    assert_int_equal(child.backoff_ms, 1600);
}

/* A manager that is killed again and again must not take the data plane with it. */
static void test_a_child_that_ran_is_restarted_for_ever(void **state)
{
    (void)state;
    struct child child = {
        .name = "test", .log_path = "/dev/null", .argv = {"/bin/false"}, .pidfd = -1};
    run_once(&child, 60000);
    assert_int_equal(child.backoff_ms, 100);
    for (int i = 0; i < 20; i++) {
        run_once(&child, 10);
        assert_false(child_is_hopeless(&child));
    }
    assert_int_equal(child.backoff_ms, 5000);
}

/* A shell that writes `line` to the log and ends with `code`. */
static struct child shell(const char *log_path, char *script, size_t n_script, const char *line,
                          int code)
{
    snprintf(script, n_script, "printf '%%s\\n' '%s'; exit %d", line, code);
    return (struct child){
        .name = "test", .log_path = log_path, .argv = {"/bin/sh", "-c", script}, .pidfd = -1};
}

static void test_a_first_start_that_cannot_work_is_told_in_its_own_words(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        int code;
        bool refused;
        const char *words;
    } cases[] = {
        {"ts=1 level=error event=\"cannot start\" message=\"address \\\"a\\\" is in use\"", 78,
         true, "address \"a\" is in use"},
        {"{\"level\":\"error\",\"message\":\"no\"}", 78, true, "no"},
        {"sluice-manager: locked by pid 1", 75, true, "locked by pid 1"},
        {"sluice-manager: no room", 74, true, "no room"},
        {"sluice-server: --x: no such option", 2, true, "--x: no such option"},
        {"plain words", 1, false, "plain words"},
        {"sluice-manager: key.pem: mode 0644\nts=1 level=info event=\"no figures\" why=\"none\"",
         78, true, "key.pem: mode 0644"},
        {"ts=1 level=error message=\"no\"\n{\"level\":\"info\",\"message\":\"yes\"}", 78, true,
         "no"},
        {"ts=1 level=info message=\"one\"\nts=1 level=info message=\"two\"", 1, false, "two"},
        {"", 0, false, ""},
    };
    char path[] = "/tmp/test_child.XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char script[256], words[128];
        struct child child = shell(path, script, sizeof(script), cases[i].line, cases[i].code);
        run_once(&child, 10);
        child_last_words(&child, words, sizeof(words));
        assert_int_equal(child_refused(&child), cases[i].refused);
        assert_string_equal(words, cases[i].words);
        child.n_restarts = 1; /* a child that ran before is started again */
        assert_false(child_refused(&child));
    }
    close(fd);
    unlink(path);
}

static void test_check_when_the_program_refuses_then_its_words_are_told(void **state)
{
    (void)state;
    static const struct {
        const char *script, *says;
        int status;
    } cases[] = {
        {"exit 0", NULL, 0},
        {"test \"$0\" = show-config", NULL, 0},
        {"echo calm >&2", NULL, 0},
        {"echo out; echo 'sluice-test: a.conf:3: no' >&2; exit 2", "test|a.conf:3: no",
         STATUS_INVALID_ARGUMENT},
        {"exit 3", "test", STATUS_INVALID_ARGUMENT},
        {"exec sleep 60", "test", STATUS_DEADLINE_EXCEEDED},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct child child = {.name = "test", .argv = {"/bin/sh", "-c", cases[i].script}};
        struct error err;
        uint32_t ms = cases[i].status == STATUS_DEADLINE_EXCEEDED ? 200 : 20000;
        int status = child_check(&child, "show-config", ms, &err);
        if (status != cases[i].status || (status && !names_all(err.message, cases[i].says)))
            fail_msg("%zu: %d %s", i, status, status ? err.message : "");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_that_never_runs_is_given_up),
        cmocka_unit_test(test_a_child_that_ran_is_restarted_for_ever),
        cmocka_unit_test(test_a_first_start_that_cannot_work_is_told_in_its_own_words),
        cmocka_unit_test(test_check_when_the_program_refuses_then_its_words_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
