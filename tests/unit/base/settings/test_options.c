#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/settings/options.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

struct settings {
    const char *name, *form;
    bool quick;
    uint64_t size, wait_ms, memory, any, age_ms;
    double ratio;
};

static const struct option_spec specs[] = {
    {"test-name", 'n', OPTION_STRING, offsetof(struct settings, name), "nobody", "NAME", "a name",
     0, 0},
    {"test-quick", 'q', OPTION_BOOL, offsetof(struct settings, quick), "false", NULL, "be quick", 0,
     0},
    {"test-size", 0, OPTION_U64, offsetof(struct settings, size), "4M", "N", "a size", 1, 1 << 30},
    {"test-wait", 0, OPTION_MS, offsetof(struct settings, wait_ms), "10s", "TIME", "a time", 10,
     3600000},
    {"test-ratio", 0, OPTION_F64, offsetof(struct settings, ratio), "0.5", "X", "a ratio", 0, 0},
    {"test-memory", 0, OPTION_U64, offsetof(struct settings, memory), "0", "BYTES", "memory", 0,
     1ULL << 50},
    {"test-any", 0, OPTION_U64, offsetof(struct settings, any), "0", "N", "any number", 0, 0},
    {"test-form", 0, OPTION_WORD, offsetof(struct settings, form), "kv", "kv|json|text", "a form",
     0, 0},
    {"test-age", 0, OPTION_MS, offsetof(struct settings, age_ms), "0", "TIME", "any time", 0, 0},
};
enum { N_SPECS = sizeof(specs) / sizeof(specs[0]) };

static int parse(struct settings *s, struct options **o, struct error *err, int argc,
                 const char *const *argv)
{
    *s = (struct settings){0};
    *o = NULL;
    return options_parse("unit", specs, N_SPECS, argc, (char *const *)(uintptr_t)argv, s, o, err);
}

static void test_defaults_then_environment_then_flags(void **state)
{
    (void)state;
    struct settings s;
    struct options *o;
    struct error err;
    const char *none[] = {"x", NULL};
    assert_int_equal(parse(&s, &o, &err, 1, none), 0);
    assert_string_equal(s.name, "nobody");
    assert_int_equal(s.size, 4 << 20);
    assert_string_equal(s.form, "kv");
    assert_int_equal(s.wait_ms, 10000);
    assert_string_equal(options_origin(o, 0), "default");
    options_destroy(o);
    setenv("SLUICE_TEST_NAME", "env", 1);
    setenv("SLUICE_TEST_WAIT", "250ms", 1);
    const char *flags[] = {
        "x",  "-n",           "flag", "word", "-q", "--test-size=1G", "--test-form=text",
        "--", "--not-a-flag", NULL};
    assert_int_equal(parse(&s, &o, &err, 9, flags), 0);
    assert_string_equal(s.form, "text");
    assert_string_equal(s.name, "flag");
    assert_int_equal(s.wait_ms, 250);
    assert_int_equal(s.size, 1 << 30);
    assert_true(s.quick);
    assert_int_equal(options_n_positionals(o), 2);
    assert_string_equal(options_positional(o, 1), "--not-a-flag");
    assert_string_equal(options_origin(o, 0), "flag");
    assert_string_equal(options_origin(o, 3), "environment");
    options_destroy(o);
    unsetenv("SLUICE_TEST_NAME");
    unsetenv("SLUICE_TEST_WAIT");
}

static void test_bad_flags_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *word, *value, *says;
    } cases[] = {
        {"--nothing", NULL, "--nothing"},
        {"--test-size", NULL, "--test-size"},
        {"--test-size", "0", "0|1"},
        {"--test-size", "2G", "1|1073741824"},
        {"--test-size", "-1", "--test-size"},
        {"--test-size", "99999999999999999999", "99999999999999999999|1|1073741824"},
        {"--test-size", "17179869185G", "17179869185G|1|1073741824"},
        {"--test-size", "99999999999999999999x", "--test-size"},
        {"--test-any", "18446744073709551616", "0|18446744073709551615"},
        {"--test-wait", "1e300h", "1e300h|10|3600000"},
        {"--test-wait", "1e999", "1e999|10|3600000"},
        {"--test-age", "1e999", "1e999|0|1000000000000000"},
        {"--test-wait", "5 parsecs", "--test-wait"},
        {"--test-wait", "2h", "10|3600000"},
        {"--test-ratio", "nan", "--test-ratio"},
        {"--test-form", "yaml", "--test-form|yaml|kv|json|text"},
        {"--test-form", "k", "--test-form"},
        {"--test-form", "", "--test-form"},
        {"--test-form", "kv|json", "--test-form"},
        {"--test-wait",
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
         "xxxx"
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
         "xxxx"
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
         "xxxx"
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
         "xxxx"
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
         "xxxx",
         "--test-wait"},
        {"--test-quick=maybe", NULL, "--test-quick"},
        {"-z", NULL, "-z"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct settings s;
        struct options *o;
        struct error err;
        const char *argv[] = {"x", cases[i].word, cases[i].value, NULL};
        assert_int_equal(parse(&s, &o, &err, cases[i].value ? 3 : 2, argv),
                         STATUS_INVALID_ARGUMENT);
        assert_null(o);
        if (!names_all(err.message, cases[i].says))
            fail_msg("\"%s\" does not name %s", err.message, cases[i].says);
    }
}

static void test_config_file_names_its_bad_line(void **state)
{
    (void)state;
    char path[] = "/tmp/sluice-options-XXXXXX";
    int fd = mkstemp(path);
    static const char good[] = "test_size = 2M\n[unit]\ntest_name = file\n[worker]\nanything = 1\n";
    assert_int_equal(write(fd, good, sizeof(good) - 1), (ssize_t)sizeof(good) - 1);
    struct settings s;
    struct options *o;
    struct error err;
    const char *argv[] = {"x", "--config", path, NULL};
    assert_int_equal(parse(&s, &o, &err, 3, argv), 0);
    assert_string_equal(s.name, "file");
    assert_int_equal(s.size, 2 << 20);
    assert_string_equal(options_origin(o, 2), "file");
    options_destroy(o);
    static const char word[] = "[unit]\ntest_name = x\ntest_form = loud\n";
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, word, sizeof(word) - 1, 0), (ssize_t)sizeof(word) - 1);
    assert_int_equal(parse(&s, &o, &err, 3, argv), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, ":3|--test-form|loud"));
    static const char bad[] = "[unit]\ntest_name = x\ntest_sise = 3\n";
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, bad, sizeof(bad) - 1, 0), (ssize_t)sizeof(bad) - 1);
    assert_int_equal(parse(&s, &o, &err, 3, argv), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, ":3:"));
    assert_non_null(strstr(err.message, "test_sise"));
    static const char stray[] = "[unit]\ntest_name = x\n[servr]\nx = 3\n";
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, stray, sizeof(stray) - 1, 0), (ssize_t)sizeof(stray) - 1);
    assert_int_equal(parse(&s, &o, &err, 3, argv), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, ":4"));
    close(fd);
    unlink(path);
    assert_int_equal(parse(&s, &o, &err, 3, argv), STATUS_NOT_FOUND);
}

/* Symptom: a misspelt key before any section was taken for another program's key and silently
 * ignored. */
static void test_a_key_that_nobody_has_is_refused_with_what_was_meant(void **state)
{
    (void)state;
    static const struct {
        const char *section, *text, *says;
    } cases[] = {
        {"server", "log_level = warn\nlisten = 127.0.0.1:1\n", NULL},
        /* keys of other programs */
        {"server", "crash-limit = 3\nreplicas = 2\nkv_bytes = 1\n", NULL},
        {"server", "\nlog_levle = warn\n", ":2|log_levle|log_level"},
        {"server", "drain-graze = 1s\n", ":1|drain_grace"},
        {"server", "listenn = x\n[server]\n", ":1|listenn|listen"},
        {"server", "nonsense = x\n", ":1|nonsense"},
        {"server", "tq = x\n", ":1|tq"},
        {"server", "nmae = x\n", ":1|nmae|name"},
        {"server", "[server]\nmax_callz = 1\n", ":2|max_callz|max_calls"},
        {"server", "[server]\ncrash_limit = 1\n", ":2|crash_limit"},
        {"server", "[manager]\ncrash_limitt = 1\n", NULL}, /* the manager itself reports this key */
        {"cli", "[cli]\nreplicas = 2\n", NULL},            /* key of another command */
        {"cli", "[cli]\nreplica_s = 2\n", ":2|replica_s|replicas"},
        {"cli", "[cli]\ncrash_limit = 1\n", ":2|crash_limit"},
    };
    char path[] = "/tmp/sluice-options-XXXXXX";
    int fd = mkstemp(path);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct settings s = {0};
        struct options *o = NULL;
        struct error err;
        const char *argv[] = {"x", "--config", path, NULL};
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, cases[i].text, strlen(cases[i].text), 0),
                         strlen(cases[i].text));
        int status = options_parse(cases[i].section, specs, N_SPECS, 3,
                                   (char *const *)(uintptr_t)argv, &s, &o, &err);
        if (status != (cases[i].says ? STATUS_INVALID_ARGUMENT : 0))
            fail_msg("%zu: %s", i, status ? err.message : "it is taken");
        const char *says = cases[i].says;
        if (says && !names_all(err.message, says))
            fail_msg("%s", err.message);
        options_destroy(o);
    }
    close(fd);
    unlink(path);
}

/* options_parse_some() reads a part of the rows, as `sluice serve` does for its programs. */
static void test_some_rows_of_a_program_are_read_as_it_reads_them(void **state)
{
    (void)state;
    static const struct {
        const char *text, *flag, *value, *own;
        bool is_own;
    } cases[] = {
        {"", NULL, "nobody", NULL, false},
        {"[unit]\nother = 1\ntest_name = a\n", NULL, "a", "a", true},
        {"test_name = a\n[unit]\nother = 1\n", NULL, "a", NULL, false},
        {"test_name = a\n[unit]\ntest_name = b\n", NULL, "b", "b", true},
        {"test_name = a\n[unit]\ntest_name = b\n", "--test-name=c", "c", "b", true},
    };
    char path[] = "/tmp/sluice-options-XXXXXX";
    int fd = mkstemp(path);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct settings s = {0};
        struct options *o = NULL;
        struct error err;
        const char *argv[] = {"x", "--config", path, cases[i].flag, NULL};
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, cases[i].text, strlen(cases[i].text), 0),
                         strlen(cases[i].text));
        assert_int_equal(options_parse_some("unit", specs, N_SPECS, cases[i].flag ? 4 : 3,
                                            (char *const *)(uintptr_t)argv, &s, &o, &err),
                         0);
        assert_string_equal(s.name, cases[i].value);
        assert_string_equal(options_text(o, 0), cases[i].value);
        assert_int_equal(options_is_own(o, 0), cases[i].is_own);
        if (cases[i].own)
            assert_string_equal(options_own_text(o, 0), cases[i].own);
        else
            assert_null(options_own_text(o, 0));
        options_destroy(o);
    }
    close(fd);
    unlink(path);
}

/* Symptom: the last of two equal keys won silently. */
static void test_a_setting_twice_in_a_file_is_refused_with_both_lines(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"[unit]\ntest_name = a\n\ntest-name = b\n", ":4|line 2"},
        {"[unit]\ntest_size = 1\n[worker]\nx = 1\n[unit]\ntest_size = 1\n", ":6|line 2|1"},
        {"test_size = 1\ntest_size = 2\n", ":2|line 1|1"},
        {"test_size = 1\n[unit]\ntest_size = 2\n",
         NULL},                             /* once for all programs, once for this program */
        {"[worker]\nx = 1\nx = 2\n", NULL}, /* the other program reports this */
    };
    char path[] = "/tmp/sluice-options-XXXXXX";
    int fd = mkstemp(path);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct settings s;
        struct options *o;
        struct error err;
        const char *argv[] = {"x", "--config", path, NULL};
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, cases[i].text, strlen(cases[i].text), 0),
                         strlen(cases[i].text));
        int status = parse(&s, &o, &err, 3, argv);
        assert_int_equal(status, cases[i].says ? STATUS_INVALID_ARGUMENT : 0);
        if (cases[i].says && !names_all(err.message, cases[i].says))
            fail_msg("%s", err.message);
        if (!cases[i].says && i == 3)
            assert_int_equal(s.size, 2);
        options_destroy(o);
    }
    close(fd);
    unlink(path);
}

static void test_an_option_is_set_after_the_parse_as_a_flag_is(void **state)
{
    (void)state;
    struct settings s;
    struct options *o;
    struct error err;
    const char *argv[] = {"x", NULL};
    assert_int_equal(parse(&s, &o, &err, 1, argv), 0);
    assert_int_equal(options_set(o, &s, "test-size", "3M", &err), 0);
    assert_int_equal(s.size, 3 << 20);
    assert_string_equal(options_origin(o, 2), "flag");
    assert_int_equal(options_set(o, &s, "test-size", "much", &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "--test-size"));
    assert_int_equal(s.size, 3 << 20);
    assert_int_equal(options_set(o, &s, "test-sise", "1", &err), STATUS_INVALID_ARGUMENT);
    options_destroy(o);
}

/* Users of other servers may write these values, which are fractions of the memory there. */
static void test_a_fraction_for_bytes_is_told_what_to_write(void **state)
{
    (void)state;
    static const char *const bad[] = {"0.9", "20GB", "1.5G", "90%", ""};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct settings s;
        struct options *o;
        struct error err;
        char expected[160];
        const char *argv[] = {"x", "--test-memory", bad[i], NULL};
        assert_int_equal(parse(&s, &o, &err, 3, argv), STATUS_INVALID_ARGUMENT);
        snprintf(expected, sizeof(expected),
                 "--test-memory: \"%s\" is not a number of bytes such as 512M or 20G, at most "
                 "1048576G; no fraction",
                 bad[i]);
        assert_string_equal(err.message, expected);
    }
}

/* Symptom: a mistyped flag was refused without the flag that was meant. */
static void test_a_mistyped_flag_is_refused_with_the_nearest_one(void **state)
{
    (void)state;
    static const struct {
        const char *flag, *meant; /* NULL: none is near */
    } cases[] = {
        {"--test-nmae=x", "--test-name"},
        {"--test_size", "--test-size"},
        {"--tset-quik", "--test-quick"},
        {"--confg", "--config"},
        {"--nonsense", NULL},
        {"-Z", NULL},
        {"--x", NULL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct settings s;
        struct options *o;
        struct error err;
        const char *argv[] = {"x", cases[i].flag, NULL};
        assert_int_equal(parse(&s, &o, &err, 2, argv), STATUS_INVALID_ARGUMENT);
        if (cases[i].meant)
            assert_true(names_value(err.message, cases[i].meant, strlen(cases[i].meant)));
        else
            assert_null(strstr(err.message, "meant"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_then_environment_then_flags),
        cmocka_unit_test(test_bad_flags_are_named),
        cmocka_unit_test(test_a_fraction_for_bytes_is_told_what_to_write),
        cmocka_unit_test(test_config_file_names_its_bad_line),
        cmocka_unit_test(test_a_key_that_nobody_has_is_refused_with_what_was_meant),
        cmocka_unit_test(test_a_mistyped_flag_is_refused_with_the_nearest_one),
        cmocka_unit_test(test_some_rows_of_a_program_are_read_as_it_reads_them),
        cmocka_unit_test(test_a_setting_twice_in_a_file_is_refused_with_both_lines),
        cmocka_unit_test(test_an_option_is_set_after_the_parse_as_a_flag_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
