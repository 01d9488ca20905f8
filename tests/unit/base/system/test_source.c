#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/sha256.h"
#include "base/system/source.h"
#include "tests/unit/base/support_cmocka.h"

static char folder[] = "/tmp/sluice-source-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    int fd = open(path_of(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "fifo", "link"};
    for (size_t i = 0; i < 3; i++)
        unlink(path_of(names[i]));
    return rmdir(folder);
}

static void test_source_reads_ranges_and_refuses_what_leaves_the_file(void **state)
{
    (void)state;
    struct error err;
    struct source *source;
    char bytes[16] = "untouched";
    write_file("a", "0123456789");
    assert_int_equal(source_open(path_of("a"), &source, &err), 0);
    assert_int_equal(source_size(source), 10);
    assert_string_equal(source_name(source), "a");
    assert_int_equal(source_read(source, 3, bytes, 4, &err), 0);
    assert_memory_equal(bytes, "3456", 4);
    assert_int_equal(source_read(source, 8, bytes, 3, &err), STATUS_OUT_OF_RANGE);
    assert_non_null(strstr(err.message, "offset 8"));
    assert_int_equal(source_read(source, UINT64_MAX, bytes, 2, &err), STATUS_OUT_OF_RANGE);
    assert_int_equal(source_read(source, 10, bytes, 0, &err), 0);
    assert_memory_equal(bytes, "3456", 4);
    source_close(source);
}

static void test_source_notices_a_file_that_changes_under_it(void **state)
{
    (void)state;
    struct error err;
    struct source *source;
    char bytes[10];
    write_file("a", "0123456789");
    assert_int_equal(source_open(path_of("a"), &source, &err), 0);
    assert_int_equal(source_check(source, &err), 0);
    assert_int_equal(truncate(path_of("a"), 4), 0);
    assert_int_equal(source_read(source, 0, bytes, 10, &err), STATUS_DATA_LOSS);
    assert_int_equal(source_check(source, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_MODEL_FILE_CHANGED);
    source_close(source);
}

static void test_source_opens_regular_files_only(void **state)
{
    (void)state;
    struct error err;
    struct source *source = NULL;
    assert_int_equal(mkfifo(path_of("fifo"), 0600), 0);
    assert_int_equal(source_open(path_of("fifo"), &source, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(source_open(folder, &source, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(source_open("/dev/zero", &source, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(source_open(path_of("nothing"), &source, &err), STATUS_NOT_FOUND);
    assert_null(source);
    source_close(NULL);
}

static void test_sha256_of_a_known_text(void **state)
{
    (void)state;
    struct error err;
    struct sha256 *ctx;
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX_BYTES];
    assert_int_equal(sha256_create(&ctx, &err), 0);
    sha256_update(ctx, "a", 1);
    sha256_update(ctx, "bc", 2);
    sha256_final(ctx, digest);
    sha256_hex(digest, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_source_reads_ranges_and_refuses_what_leaves_the_file),
        cmocka_unit_test(test_source_notices_a_file_that_changes_under_it),
        cmocka_unit_test(test_source_opens_regular_files_only),
        cmocka_unit_test(test_sha256_of_a_known_text),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
