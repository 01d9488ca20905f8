/* test_launch_record.c: a launch record goes through a sealed memfd; every other descriptor is
 * refused by its fault. */
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "proto/launch/launch_record.h"
#include "proto/rpc/message/message.h"
#include "tests/unit/base/support_cmocka.h"

enum { SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, MIN_FD = 40 };

static char *text(const char *literal)
{
    return (char *)(uintptr_t)literal;
}

static launch_record a_record(void)
{
    launch_record record = SLUICE__WORKER__V1__LAUNCH__INIT;
    record.replica = text("r1");
    record.epoch = UINT64_MAX;
    record.model = text("/models/a.gguf");
    return record;
}

static int memfd_of(const void *bytes, size_t n_bytes, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, n_bytes), (ssize_t)n_bytes);
    if (seals)
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void test_a_sealed_record_is_read_as_it_was_and_no_one_changes_it(void **state)
{
    launch_record record = a_record(), *read_back = NULL;
    struct error err;
    int fd = -1;
    (void)state;
    assert_int_equal(launch_record_seal(&record, MIN_FD, &fd, &err), 0);
    assert_true(fd >= MIN_FD);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(write(fd, "x", 1), -1);
    assert_int_equal(ftruncate(fd, 1), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    for (int i = 0; i < 2; i++) { /* reading leaves the descriptor as it was */
        assert_int_equal(launch_record_read(fd, &read_back, &err), 0);
        assert_string_equal(read_back->replica, "r1");
        assert_true(read_back->epoch == UINT64_MAX);
        assert_string_equal(read_back->model, "/models/a.gguf");
        launch_record *copy = launch_record_copy(read_back);
        assert_non_null(copy);
        assert_string_equal(copy->model, "/models/a.gguf");
        launch_record_free(copy);
        launch_record_free(read_back);
    }
    launch_record_free(NULL);
    close(fd);
}

/* A newer manager may send fields that this worker does not know. */
static void test_unknown_fields_are_kept(void **state)
{
    static const uint8_t later[] = {0xFA, 0x3E, 3, 'n', 'e', 'w'}; /* field 1007, a string */
    launch_record record = a_record(), *read_back = NULL;
    struct error err;
    void *bytes;
    size_t n_bytes;
    (void)state;
    assert_int_equal(rpc_message_pack(&record.base, &bytes, &n_bytes, &err), 0);
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(write(fd, bytes, n_bytes), (ssize_t)n_bytes);
    assert_int_equal(write(fd, later, sizeof(later)), (ssize_t)sizeof(later));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, SEALS), 0);
    assert_int_equal(launch_record_read(fd, &read_back, &err), 0);
    assert_string_equal(read_back->replica, "r1");
    assert_int_equal(read_back->base.n_unknown_fields, 1);
    launch_record *copy = launch_record_copy(read_back);
    assert_int_equal(copy->base.n_unknown_fields, 1);
    launch_record_free(copy);
    launch_record_free(read_back);
    close(fd);
    free(bytes);
}

static void refused(int fd, enum reason reason, const char *field)
{
    launch_record *record = NULL;
    struct error err = {0};
    assert_int_equal(launch_record_read(fd, &record, &err), STATUS_INVALID_ARGUMENT);
    assert_int_equal(err.reason, reason);
    assert_string_equal(err.field, field);
    assert_null(record);
    if (fd >= 0)
        close(fd);
}

static void test_a_descriptor_that_holds_no_record_is_refused_by_its_fault(void **state)
{
    static const uint8_t good[] = {0x0A, 2, 'r', '1'}, cut[] = {0x0A, 9, 'r', '1'},
                         no_text[] = {0x0A, 2, 0xFF, 'a'}, nul[] = {0x0A, 2, 'r', 0};
    int pipe_fds[2];
    (void)state;
    refused(-1, REASON_NONE, "descriptor");
    refused(1 << 20, REASON_NONE, "descriptor");
    refused(open("/dev/null", O_RDONLY | O_CLOEXEC), REASON_NONE, "memfd");
    refused(open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), REASON_NONE, "memfd");
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    refused(pipe_fds[0], REASON_NONE, "memfd");
    close(pipe_fds[1]);
    for (int seal = 1; seal < SEALS; seal <<= 1) /* each seal is missing once */
        if ((SEALS & seal) && seal != F_SEAL_SEAL)
            refused(memfd_of(good, sizeof(good), SEALS & ~seal), REASON_NONE, "seals");
    refused(memfd_of(good, sizeof(good), SEALS & ~F_SEAL_SEAL), REASON_NONE, "seals");
    refused(memfd_of(good, sizeof(good), 0), REASON_NONE, "seals");
    refused(memfd_of("", 0, SEALS), REASON_NONE, "size");
    refused(memfd_of(cut, sizeof(cut), SEALS), REASON_MESSAGE_MALFORMED, "");
    refused(memfd_of(good, 3, SEALS), REASON_MESSAGE_MALFORMED, "");
    refused(memfd_of(no_text, sizeof(no_text), SEALS), REASON_NONE, "replica");
    refused(memfd_of(nul, sizeof(nul), SEALS), REASON_NONE, "replica");
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, LAUNCH_RECORD_MAX_BYTES + 1), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, SEALS), 0);
    refused(fd, REASON_NONE, "size");
}

static void test_a_record_over_the_limit_is_not_written(void **state)
{
    launch_record record = a_record();
    struct error err = {0};
    int fd = -1;
    (void)state;
    record.model = malloc(LAUNCH_RECORD_MAX_BYTES + 1);
    assert_non_null(record.model);
    memset(record.model, 'a', LAUNCH_RECORD_MAX_BYTES);
    record.model[LAUNCH_RECORD_MAX_BYTES] = '\0';
    assert_int_equal(launch_record_seal(&record, 3, &fd, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "size");
    assert_int_equal(fd, -1);
    free(record.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_sealed_record_is_read_as_it_was_and_no_one_changes_it),
        cmocka_unit_test(test_unknown_fields_are_kept),
        cmocka_unit_test(test_a_descriptor_that_holds_no_record_is_refused_by_its_fault),
        cmocka_unit_test(test_a_record_over_the_limit_is_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
