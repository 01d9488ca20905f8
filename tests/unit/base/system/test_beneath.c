#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/beneath.h"
#include "base/system/source.h"
#include "tests/unit/base/support_cmocka.h"

/* TREE/root/{a, dir/b, out -> ../secret, in -> a, up -> .., dir/fifo}, TREE/secret. */
static char tree[32], root[48];

static void touch(const char *path)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs("x", file);
    fclose(file);
}

static int make_tree(void **state)
{
    char old[PATH_MAX], target[128];
    (void)state;
    snprintf(tree, sizeof(tree), "/tmp/test_beneath_XXXXXX");
    assert_non_null(mkdtemp(tree));
    snprintf(root, sizeof(root), "%s/root", tree);
    assert_non_null(getcwd(old, sizeof(old)));
    assert_int_equal(mkdir(root, 0700), 0);
    assert_int_equal(chdir(root), 0);
    assert_int_equal(mkdir("dir", 0700), 0);
    touch("a");
    touch("dir/b");
    touch("../secret");
    assert_int_equal(symlink("../secret", "out"), 0);
    assert_int_equal(symlink("a", "in"), 0);
    assert_int_equal(symlink("..", "up"), 0);
    assert_int_equal(symlink("loop", "loop"), 0);
    snprintf(target, sizeof(target), "%s/a", root);
    assert_int_equal(symlink(target, "absolute"), 0);
    assert_int_equal(mkfifo("dir/fifo", 0600), 0);
    assert_int_equal(chdir(old), 0);
    return 0;
}

static int remove_tree(void **state)
{
    static const char *const names[] = {"root/a",    "root/dir/b",    "root/dir/fifo",
                                        "root/out",  "root/in",       "root/up",
                                        "root/loop", "root/absolute", "secret"};
    char path[128];
    (void)state;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", tree, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof(path), "%s/dir", root);
    rmdir(path);
    rmdir(root);
    rmdir(tree);
    return 0;
}

static void test_what_lies_below_is_opened_and_nothing_else(void **state)
{
    static const struct {
        const char *relative;
        int status;
        const char *reason;
    } cases[] = {
        {"a", 0, ""},
        {"dir/b", 0, ""},
        {"./dir/.././a", 0, ""},
        {"none", STATUS_NOT_FOUND, ""},
        {"../secret", STATUS_PERMISSION_DENIED, "OUTSIDE_MODEL_ROOT"},
        {"../none", STATUS_PERMISSION_DENIED,
         "OUTSIDE_MODEL_ROOT"}, /* the answer does not depend on whether the file exists */
        {"dir/../../secret", STATUS_PERMISSION_DENIED, "OUTSIDE_MODEL_ROOT"},
        {"/etc/hostname", STATUS_PERMISSION_DENIED, "OUTSIDE_MODEL_ROOT"},
        {"out", STATUS_PERMISSION_DENIED, "OUTSIDE_MODEL_ROOT"},
        {"in", 0, ""}, /* a link that stays below the root */
        {"absolute", STATUS_PERMISSION_DENIED, "OUTSIDE_MODEL_ROOT"},
        {"loop", STATUS_PERMISSION_DENIED, "OUTSIDE_MODEL_ROOT"},
        {"up/secret", STATUS_PERMISSION_DENIED, "OUTSIDE_MODEL_ROOT"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err = {0};
        int fd = -1;
        int rc = beneath_open(root, cases[i].relative, O_RDONLY, "path: x", &fd, &err);
        if (rc != cases[i].status || strcmp(error_reason_name(&err), cases[i].reason) != 0)
            fail_msg("%s: %d %s %s", cases[i].relative, rc, error_reason_name(&err), err.message);
        if (rc == 0)
            close(fd);
        else
            assert_null(
                strstr(err.message, tree)); /* the error names only the path that the caller gave */
    }
}

static void test_a_marked_path_is_held_below_its_root(void **state)
{
    struct error err;
    struct source *source;
    char path[256];
    (void)state;
    snprintf(path, sizeof(path), "%s/./dir/b", root);
    assert_int_equal(source_open(path, &source, &err), 0);
    assert_string_equal(source_name(source), "b");
    source_close(source);
    snprintf(path, sizeof(path), "%s/./out", root);
    assert_int_equal(source_open(path, &source, &err), STATUS_PERMISSION_DENIED);
    assert_int_equal(err.reason, REASON_OUTSIDE_MODEL_ROOT);
    snprintf(path, sizeof(path), "%s/./dir/fifo",
             root); /* a FIFO is refused at once, without waiting for a writer */
    assert_int_equal(source_open(path, &source, &err), STATUS_INVALID_ARGUMENT);
    snprintf(path, sizeof(path), "%s/out",
             root); /* without "/./" in the path, links are followed */
    assert_int_equal(source_open(path, &source, &err), 0);
    source_close(source);
}

static void test_the_kernel_can_do_it(void **state)
{
    struct error err;
    (void)state;
    assert_int_equal(beneath_check(root, &err), 0);
    assert_int_equal(beneath_check("/nowhere/at/all", &err), STATUS_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_lies_below_is_opened_and_nothing_else),
        cmocka_unit_test(test_a_marked_path_is_held_below_its_root),
        cmocka_unit_test(test_the_kernel_can_do_it),
    };
    return cmocka_run_group_tests_name("beneath", tests, make_tree, remove_tree);
}
