/* Tests of the search for the path component that denies access to an account. No mode stops root,
 * so as root the tests check the access of another account. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <grp.h>

#include "base/error.h"
#include "base/system/beneath.h"
#include "base/system/path_access.h"
#include "base/system/source.h"
#include "tests/unit/base/support_cmocka.h"

enum { NOBODY = 65534 };

/* TREE/home/sub/{file, a b}, TREE/link -> home/sub; all of this account. */
static char tree[32];

static const char *at(const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s%s%s", tree, *name ? "/" : "", name);
    return out;
}

static void set_mode(const char *name, mode_t mode)
{
    char path[PATH_MAX];
    assert_int_equal(chmod(at(name, path), mode), 0);
}

static int make_tree(void **state)
{
    static const char *const files[] = {"home/sub/file", "home/sub/a b"};
    char path[PATH_MAX];
    (void)state;
    if (getuid() == 0)
        assert_int_equal(setgroups(0, NULL), 0);
    snprintf(tree, sizeof(tree), "/tmp/test_access_XXXXXX");
    assert_non_null(mkdtemp(tree));
    assert_int_equal(mkdir(at("home", path), 0755), 0);
    assert_int_equal(mkdir(at("home/sub", path), 0755), 0);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        FILE *file = fopen(at(files[i], path), "we");
        assert_non_null(file);
        fclose(file);
        set_mode(files[i], 0644);
    }
    assert_int_equal(symlink("home/sub", at("link", path)), 0);
    set_mode("", 0755);
    return 0;
}

static int remove_tree(void **state)
{
    static const char *const files[] = {"home/sub/file", "home/sub/a b", "link"};
    static const char *const folders[] = {"home/sub", "home", ""};
    char path[PATH_MAX];
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        unlink(at(files[i], path));
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
        rmdir(at(folders[i], path));
    return 0;
}

static void be_another(bool another)
{
    if (getuid() != 0)
        return;
    assert_int_equal(another ? setegid(NOBODY) : seteuid(0), 0);
    assert_int_equal(another ? seteuid(NOBODY) : setegid(0), 0);
}

static bool find(const char *name, struct path_access *out)
{
    char path[PATH_MAX];
    be_another(true);
    bool found = path_access_find(AT_FDCWD, at(name, path), out);
    be_another(false);
    return found;
}

/* Asserts that the advice is a chmod of `name` that gives the right `letter` to the account. */
static void assert_command(const struct path_access *access, char letter, const char *name)
{
    char command[PATH_MAX + 16], path[PATH_MAX];
    char class = getuid() == 0 ? 'o' : 'u';
    at(name, path);
    snprintf(command, sizeof(command), strchr(path, ' ') ? "chmod %c+%c '%s'" : "chmod %c+%c %s",
             class, letter, path);
    assert_string_equal(access->command, command);
    assert_true(access->mends);
    assert_non_null(strstr(access->text, path));
}

/* Symptom: a service of another account reported only "Permission denied". */
static void test_the_component_that_bars_is_named(void **state)
{
    struct path_access access;
    (void)state;
    assert_false(find("home/sub/file", &access));
    assert_false(find("home/none", &access));
    set_mode("home/sub/file", 0);
    assert_true(find("home/sub/file", &access));
    assert_command(&access, 'r', "home/sub/file");
    set_mode("home/sub/a b", 0);
    assert_true(find("home/sub/a b", &access));
    assert_command(&access, 'r', "home/sub/a b");
    set_mode("home/sub", 0);
    assert_true(find("home/sub/file", &access));
    assert_command(&access, 'x', "home/sub");
    set_mode("home", 0); /* the first component that denies access is named */
    assert_true(find("home/sub/file", &access));
    assert_command(&access, 'x', "home");
    assert_true(find("home/none", &access)); /* also for a file that does not exist */
    set_mode("home", 0755);
    set_mode("home/sub", 0755);
    set_mode("home/sub/file", 0644);
    set_mode("home/sub/a b", 0644);
}

/* A model may be a folder, whose files are listed first. */
static void test_a_folder_that_cannot_be_listed_is_named(void **state)
{
    struct path_access access;
    (void)state;
    assert_false(find("home/sub", &access));
    set_mode("home/sub", 0711);
    assert_true(find("home/sub", &access));
    assert_command(&access, 'r', "home/sub");
    assert_false(find("home/sub/file", &access));
    set_mode("home/sub", 0755);
}

static void test_where_a_link_leads_is_not_told(void **state)
{
    struct path_access access;
    char link[PATH_MAX], command[PATH_MAX + 16];
    (void)state;
    assert_false(find("link/file", &access));
    set_mode("home", 0);
    assert_true(find("link/file", &access));
    set_mode("home", 0755);
    assert_false(access.mends);
    snprintf(command, sizeof(command), "namei -l %s", at("link", link));
    assert_string_equal(access.command, command);
    assert_null(strstr(access.text, "home"));
}

static void test_a_mode_that_is_not_the_cause_is_not_changed(void **state)
{
    struct path_access access;
    (void)state;
    assert_false(find("home/sub", &access)); /* a folder is no file to be read */
    assert_false(find("", &access));
    assert_false(path_access_find(AT_FDCWD, "", &access));
    assert_false(path_access_find(-2, "a", &access));
}

static void assert_refused(int rc, const struct error *err)
{
    be_another(false);
    assert_int_equal(rc, STATUS_PERMISSION_DENIED);
    assert_int_equal(err->reason, REASON_NO_FILE_ACCESS);
}

static void test_files_that_are_opened_say_so(void **state)
{
    struct source *source = NULL;
    struct error err;
    char path[PATH_MAX], root[PATH_MAX], home[PATH_MAX];
    int fd;
    (void)state;
    at("home", home);
    set_mode("home/sub", 0);
    be_another(true);
    assert_refused(source_open(at("home/sub/file", path), &source, &err), &err);
    be_another(true);
    assert_refused(beneath_open(home, "sub/file", O_PATH, "path: sub/file", &fd, &err), &err);
    assert_null(strstr(err.message, tree)); /* the error names only the path that the caller gave */
    assert_non_null(strstr(err.message, "chmod"));
    snprintf(root, sizeof(root), "%s/home/sub", tree);
    be_another(true);
    assert_refused(beneath_check(root, &err), &err);
    assert_non_null(strstr(err.message, root));
    set_mode("home", 0);
    be_another(true);
    assert_refused(beneath_check(root, &err), &err);
    assert_non_null(strstr(err.message, home));
    set_mode("home", 0755);
    set_mode("home/sub", 0755);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_component_that_bars_is_named),
        cmocka_unit_test(test_a_folder_that_cannot_be_listed_is_named),
        cmocka_unit_test(test_where_a_link_leads_is_not_told),
        cmocka_unit_test(test_a_mode_that_is_not_the_cause_is_not_changed),
        cmocka_unit_test(test_files_that_are_opened_say_so),
    };
    return cmocka_run_group_tests_name("path_access", tests, make_tree, remove_tree);
}
