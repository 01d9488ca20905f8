#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/settings/config_file.h"
#include "base/strbuf.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

/* The files of a test: FOLDER/main.conf and FOLDER/conf.d/. */
struct files {
    char folder[40], main[64];
    struct strbuf
        seen; /* a line per key: "section.key=value at FILE:LINE", FILE relative to `folder` */
    const char *refused;
};

static void write_file(const struct files *f, const char *name, const char *text)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", f->folder, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static int begin(void **state)
{
    static struct files f;
    f = (struct files){.folder = "/tmp/test_config_XXXXXX"};
    char path[64];
    assert_non_null(mkdtemp(f.folder));
    snprintf(f.main, sizeof(f.main), "%s/main.conf", f.folder);
    snprintf(path, sizeof(path), "%s/conf.d", f.folder);
    assert_int_equal(mkdir(path, 0700), 0);
    strbuf_init(&f.seen, 0);
    *state = &f;
    return 0;
}

static int end(void **state)
{
    static const char *const names[] = {"main.conf",     "conf.d/10-a.conf", "conf.d/9-b.conf",
                                        "conf.d/B.conf", "conf.d/a.conf",    "conf.d/.hidden.conf",
                                        "conf.d/README", "conf.d/x.conf.old"};
    struct files *f = *state;
    char path[128];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", f->folder, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/conf.d", f->folder);
    if (rmdir(path) != 0)
        unlink(path); /* a test makes a file of this name */
    assert_int_equal(rmdir(f->folder), 0);
    strbuf_fini(&f->seen);
    return 0;
}

static int take(void *user, const char *section, const char *key, const char *value,
                const char *place, struct error *err)
{
    struct files *f = user;
    if (f->refused && strcmp(key, f->refused) == 0)
        return error_set(err, STATUS_INVALID_ARGUMENT, "%s: no such setting", key);
    strbuf_printf(&f->seen, "%s.%s=%s at %s\n", section, key, value, place + strlen(f->folder) + 1);
    return 0;
}

static int take_nothing(void *user, const char *section, const char *key, const char *value,
                        const char *place, struct error *err)
{
    const struct files *f = user;
    (void)section;
    (void)value;
    (void)place;
    return strcmp(key, f->refused) == 0
               ? error_set(err, STATUS_INVALID_ARGUMENT, "%s: no such setting", key)
               : 0;
}

static void test_read_when_there_are_parts_then_they_come_after_it_by_name(void **state)
{
    struct files *f = *state;
    struct error err;
    write_file(f, "main.conf", "a = 1\n\n; a comment\n# another\n[manager]\n  b= two words  \n");
    write_file(f, "conf.d/9-b.conf", "c = 3\n");
    write_file(f, "conf.d/10-a.conf", "[server]\nd = 4"); /* the last line has no newline */
    write_file(f, "conf.d/a.conf", "e = 5\n");
    write_file(f, "conf.d/B.conf", "");
    write_file(f, "conf.d/.hidden.conf", "nonsense\n");
    write_file(f, "conf.d/README", "nonsense\n");
    write_file(f, "conf.d/x.conf.old", "nonsense\n");
    assert_int_equal(config_file_read(f->main, take, f, &err), 0);
    assert_string_equal(strbuf_str(&f->seen), ".a=1 at main.conf:1\n"
                                              "manager.b=two words at main.conf:6\n"
                                              "server.d=4 at conf.d/10-a.conf:2\n"
                                              ".c=3 at conf.d/9-b.conf:1\n"
                                              ".e=5 at conf.d/a.conf:1\n");
}

static void test_read_when_named_without_a_folder_then_its_parts_are_beside_it(void **state)
{
    struct files *f = *state;
    struct error err;
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    write_file(f, "main.conf", "a = 1\n");
    write_file(f, "conf.d/a.conf", "b = 2\n");
    assert_int_equal(chdir(f->folder), 0);
    f->refused = "b";
    int rc = config_file_read("main.conf", take_nothing, f, &err);
    assert_int_equal(rc, STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "conf.d|a.conf:1|b"));
    assert_int_equal(fchdir(here), 0);
    close(here);
}

static void test_read_when_there_are_no_parts_then_the_file_alone_counts(void **state)
{
    struct files *f = *state;
    struct error err;
    char path[64];
    write_file(f, "main.conf", "a = 1\n");
    snprintf(path, sizeof(path), "%s/conf.d", f->folder);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(config_file_read(f->main, take, f, &err), 0);
    write_file(f, "conf.d", "nonsense\n"); /* a regular file named conf.d is ignored */
    assert_int_equal(config_file_read(f->main, take, f, &err), 0);
    assert_string_equal(strbuf_str(&f->seen), ".a=1 at main.conf:1\n.a=1 at main.conf:1\n");
}

static void test_read_when_it_cannot_be_read_then_not_found(void **state)
{
    struct files *f = *state;
    struct error err;
    assert_int_equal(config_file_read(f->main, take, f, &err), STATUS_NOT_FOUND);
    assert_true(names_all(err.message, "main.conf"));
}

/* A reload must not block on a FIFO, a folder or an endless device. */
static void test_read_when_it_is_no_regular_file_then_that_is_told_at_once(void **state)
{
    struct files *f = *state;
    struct error err;
    const char *const paths[] = {f->folder, f->main, "/dev/zero"};
    assert_int_equal(mkfifo(f->main, 0600), 0);
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        assert_int_equal(config_file_read(paths[i], take, f, &err), STATUS_INVALID_ARGUMENT);
        assert_true(names_all(err.message, paths[i]));
    }
}

static void test_read_when_it_is_too_large_or_no_text_then_refused(void **state)
{
    struct files *f = *state;
    struct error err;
    write_file(f, "main.conf", "a = 1\n");
    assert_int_equal(truncate(f->main, CONFIG_FILE_MAX_BYTES + 1), 0);
    assert_int_equal(config_file_read(f->main, take, f, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "1048577|1048576"));
    assert_int_equal(truncate(f->main, 20), 0); /* longer than the text: the rest are NUL bytes */
    assert_int_equal(config_file_read(f->main, take, f, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "main.conf:2"));
}

/* The error names the first bad line, whatever follows. Symptom: a good line after a refused key
 * was reported as a bad line. */
static void test_read_when_a_line_is_wrong_then_the_first_is_told_with_its_place(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a = 1\nnonsense\nb = 2\n", ":2"},
        {"a = 1\n[open\n", ":2"},
        {"a = 1\nbad = 2\n", ":2|bad"},
        {"bad = 1\na = 2\n", ":1|bad"},
        {"a = 1\nbad = 2\nnonsense\nbad = 3\nb = 4\n", ":2|bad"},
        {"nonsense\nbad = 2\n", ":1"},
        {"[manager]\n  a = 1\n  b = 2\n", ":3|a"},
    };
    struct files *f = *state;
    f->refused = "bad";
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err;
        char wanted[160];
        write_file(f, "main.conf", cases[i].text);
        assert_int_equal(config_file_read(f->main, take, f, &err), STATUS_INVALID_ARGUMENT);
        snprintf(wanted, sizeof(wanted), "%s%s", f->main, cases[i].message);
        if (!names_all(err.message, wanted))
            fail_msg("case %zu: \"%s\" does not name %s", i, err.message, wanted);
    }
}

/* Writes `pattern` to out, with n times `fill` for each '%'. Returns out. */
static const char *long_text(char out[8192], const char *pattern, char fill, size_t n)
{
    char *to = out;
    for (; *pattern != '\0'; pattern++) {
        size_t n_here = *pattern == '%' ? n : 1;
        assert_true(to + n_here < out + 8192);
        memset(to, *pattern == '%' ? fill : *pattern, n_here);
        to += n_here;
    }
    *to = '\0';
    return out;
}

/* Symptoms: a path of 190 bytes was no valid setting. The text of a comment after byte 200 was read
 * as a setting. */
static void test_read_when_a_line_is_long_then_it_is_one_line(void **state)
{
    struct files *f = *state;
    struct error err;
    char text[8192], wanted[8192];
    static const size_t lengths[] = {150, 189, 190, 191, 192, 193, 194,
                                     195, 196, 197, 198, 199, 2000};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        write_file(f, "main.conf",
                   long_text(text,
                             "\xef\xbb\xbf# % log-level = debug\n[server]\n; % a = b\n"
                             "path =  /%#x y ; why\nafter = 1\n",
                             '.', lengths[i]));
        strbuf_clear(&f->seen);
        assert_int_equal(config_file_read(f->main, take, f, &err), 0);
        assert_string_equal(strbuf_str(&f->seen), long_text(wanted,
                                                            "server.path=/%#x y at main.conf:4\n"
                                                            "server.after=1 at main.conf:5\n",
                                                            '.', lengths[i]));
    }
    static const struct {
        const char *format, *told;
    } wrong[] = {
        {"[server]\na = 1\n%\nb\n", ":3"}, {"[server]\na = 1\n[%\n", ":3"},
        {"[server]\na = 1\n  %\n", ":3"},  {"[server]\na = 1\n  b = %\n", ":3"},
        {"[server]\nb\nno = %\n", ":2"},   {"[server]\na = 1\nno = %\nb\n", ":3|no"},
    };
    f->refused = "no";
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        write_file(f, "main.conf", long_text(text, wrong[i].format, 'x', 400));
        assert_int_equal(config_file_read(f->main, take, f, &err), STATUS_INVALID_ARGUMENT);
        assert_true(names_all(err.message, wrong[i].told));
    }
}

static void test_read_when_one_file_is_wrong_then_none_after_it_is_taken(void **state)
{
    struct files *f = *state;
    struct error err;
    f->refused = "bad";
    write_file(f, "main.conf", "a = 1\n");
    write_file(f, "conf.d/10-a.conf", "bad = 1\n");
    write_file(f, "conf.d/a.conf", "b = 2\n");
    assert_int_equal(config_file_read(f->main, take, f, &err), STATUS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "conf.d/10-a.conf:1: bad"));
    assert_string_equal(strbuf_str(&f->seen), ".a=1 at main.conf:1\n");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_read_when_there_are_parts_then_they_come_after_it_by_name),
        TEST(test_read_when_named_without_a_folder_then_its_parts_are_beside_it),
        TEST(test_read_when_there_are_no_parts_then_the_file_alone_counts),
        TEST(test_read_when_it_cannot_be_read_then_not_found),
        TEST(test_read_when_it_is_no_regular_file_then_that_is_told_at_once),
        TEST(test_read_when_it_is_too_large_or_no_text_then_refused),
        TEST(test_read_when_a_line_is_wrong_then_the_first_is_told_with_its_place),
        TEST(test_read_when_a_line_is_long_then_it_is_one_line),
        TEST(test_read_when_one_file_is_wrong_then_none_after_it_is_taken),
    };
#undef TEST
    return cmocka_run_group_tests_name("config_file", tests, NULL, NULL);
}
