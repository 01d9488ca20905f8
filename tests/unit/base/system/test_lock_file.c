#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/lock_file.h"
#include "tests/support/names.h"
#include "tests/unit/base/support_cmocka.h"

static char folder[32], path[48];

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/test_lock_XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/lock", folder);
    return 0;
}

static int end(void **state)
{
    (void)state;
    unlink(path);
    assert_int_equal(rmdir(folder), 0);
    return 0;
}

static void read_text(char *out, size_t n_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, out, n_bytes - 1);
    out[n > 0 ? n : 0] = '\0';
    close(fd);
}

static void test_take_when_free_then_the_file_names_this_process(void **state)
{
    (void)state;
    struct error err;
    struct stat st;
    char text[32], wanted[32];
    int fd, other;
    assert_int_equal(lock_file_holder(path), 0); /* the query does not create the file */
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(lock_file_take(path, &fd, &err), 0);
    snprintf(wanted, sizeof(wanted), "%ld\n", (long)getpid());
    read_text(text, sizeof(text));
    assert_string_equal(text, wanted);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC); /* close on exec: no child may keep the lock */
    assert_int_equal(lock_file_holder(path), getpid());
    assert_true(lock_file_is_at(path, fd));
    assert_int_equal(unlink(path), 0);
    assert_false(lock_file_is_at(path, fd)); /* false also for a new file of this name (below) */
    assert_int_equal(lock_file_take(path, &other, &err), 0);
    assert_false(lock_file_is_at(path, fd));
    assert_true(lock_file_is_at(path, other));
    close(other);
    close(fd);
    assert_int_equal(lock_file_holder(path), 0);
}

/* State after a manager was killed while it started a worker. */
static void test_take_when_a_child_of_the_dead_holds_on_then_it_is_waited_for(void **state)
{
    (void)state;
    struct error err;
    int fd, told[2];
    char byte;
    assert_int_equal(pipe(told), 0);
    pid_t holder = fork();
    if (holder == 0) {
        bool taken = lock_file_take(path, &fd, &err) == 0;
        if (taken && fork() == 0) {
            usleep(150 * 1000); /* the child holds the inherited lock for this time */
            _exit(0);
        }
        (void)!write(told[1], "", 1);
        _exit(taken ? 0 : 1);
    }
    int status;
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(waitpid(holder, &status, 0), holder);
    assert_int_equal(status, 0);
    assert_int_equal(lock_file_take(path, &fd, &err), 0);
    close(fd);
    close(told[0]);
    close(told[1]);
}

static void test_take_when_held_then_refused_with_the_holders_pid(void **state)
{
    (void)state;
    struct error err;
    char wanted[96];
    int fd, other = 4711;
    assert_int_equal(lock_file_take(path, &fd, &err), 0);
    assert_int_equal(lock_file_take(path, &other, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(err.reason, REASON_LOCKED);
    snprintf(wanted, sizeof(wanted), "%s: locked by pid %ld", path, (long)getpid());
    assert_string_equal(err.message, wanted);
    assert_int_equal(other, 4711);
    assert_int_equal(lock_file_holder(path),
                     getpid()); /* the refused attempt has changed nothing */
    close(fd);
    assert_int_equal(lock_file_take(path, &other, &err), 0);
    close(other);
}

static void test_take_when_the_holder_says_no_pid_then_it_is_another_process(void **state)
{
    (void)state;
    struct error err;
    int fd, other;
    assert_int_equal(lock_file_take(path, &fd, &err), 0);
    assert_int_equal(ftruncate(fd, 0), 0); /* the file is empty, as after a write on a full disk */
    assert_int_equal(lock_file_take(path, &other, &err), STATUS_FAILED_PRECONDITION);
    assert_true(names_all(err.message, path));
    assert_int_equal(lock_file_holder(path), -1);
    close(fd);
}

/* Taking the lock replaces the whole old text, also if the new pid is shorter. */
static void test_take_when_a_text_is_left_then_it_is_replaced(void **state)
{
    (void)state;
    struct error err;
    char text[32], wanted[32];
    int fd;
    FILE *file = fopen(path, "we");
    fputs("123456789012345678\n", file);
    fclose(file);
    /* the contents count only while the file is locked */
    assert_int_equal(lock_file_holder(path), 0);
    assert_int_equal(lock_file_take(path, &fd, &err), 0);
    snprintf(wanted, sizeof(wanted), "%ld\n", (long)getpid());
    read_text(text, sizeof(text));
    assert_string_equal(text, wanted);
    close(fd);
}

static void test_take_when_the_holder_was_killed_then_it_is_free(void **state)
{
    (void)state;
    struct error err;
    int ready[2], fd;
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        int held;
        byte = lock_file_take(path, &held, &err) == 0 ? 'y' : 'n';
        if (write(ready[1], &byte, 1) != 1)
            _exit(1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    assert_int_equal(lock_file_holder(path), child);
    assert_int_equal(lock_file_take(path, &fd, &err), STATUS_FAILED_PRECONDITION);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(lock_file_holder(path), 0);
    assert_int_equal(lock_file_take(path, &fd, &err), 0);
    close(fd);
    close(ready[0]);
    close(ready[1]);
}

static void test_take_when_it_cannot_be_opened_then_that_is_told(void **state)
{
    (void)state;
    struct error err;
    char target[64], nowhere[64];
    int fd = 4711;
    snprintf(target, sizeof(target), "%s/target", folder);
    assert_int_equal(
        symlink(target, path),
        0); /* the lock file must not be a link, which may lead to another user's file */
    assert_true(lock_file_take(path, &fd, &err) < 0);
    assert_int_equal(access(target, F_OK), -1);
    assert_int_equal(lock_file_holder(path), 0);
    snprintf(nowhere, sizeof(nowhere), "%s/none/lock", folder);
    assert_int_equal(lock_file_take(nowhere, &fd, &err), STATUS_NOT_FOUND);
    assert_int_not_equal(err.reason, REASON_LOCKED);
    assert_int_equal(fd, 4711);
}

/* Symptom: a FIFO in place of the file made a reader wait for a writer, for example a server that
 * got SIGUSR2. */
static void test_take_when_it_is_no_regular_file_then_that_is_told_at_once(void **state)
{
    (void)state;
    struct error err;
    int fd = 4711;
    char wanted[80];
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(20);
    assert_int_equal(lock_file_holder(path), 0);
    assert_int_equal(lock_file_take(path, &fd, &err), STATUS_FAILED_PRECONDITION);
    alarm(0);
    snprintf(wanted, sizeof(wanted), "%s: not a regular file", path);
    assert_string_equal(err.message, wanted);
    assert_int_not_equal(err.reason, REASON_LOCKED);
    assert_int_equal(lock_file_take("/dev/null", &fd, &err), STATUS_FAILED_PRECONDITION);
    assert_int_equal(fd, 4711);
}

/* Symptom: the holder was root, with an offline command. The kernel answered EPERM to the check for
 * life, and the error was reported as that of the lock. */
static void test_take_when_another_users_process_holds_it_then_it_is_locked_by_that(void **state)
{
    (void)state;
    enum { NOBODY = 65534 };
    struct error err;
    char wanted[96];
    int fd, status;
    if (geteuid() != 0)
        skip();
    assert_int_equal(lock_file_take(path, &fd, &err), 0);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    snprintf(wanted, sizeof(wanted), "%s: locked by pid %ld", path, (long)getpid());
    pid_t child = fork();
    if (child == 0) {
        int other;
        bool told = setuid(NOBODY) == 0 && lock_file_take(path, &other, &err) != 0 &&
                    err.reason == REASON_LOCKED && strcmp(err.message, wanted) == 0;
        _exit(told ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(fd);
}

/* Starts a child that does not take the lock; `open_it`: the child opens the file. */
static pid_t start_bystander(bool open_it, int told[2])
{
    char byte;
    assert_int_equal(pipe(told), 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = open_it ? open(path, O_RDWR | O_CREAT, 0600) : 0;
        (void)!write(told[1], "", 1);
        pause();
        _exit(fd < 0);
    }
    assert_int_equal(read(told[0], &byte, 1), 1);
    return child;
}

static void say(int fd, pid_t pid)
{
    char text[32];
    int n = snprintf(text, sizeof(text), "%d\n", (int)pid);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, text, (size_t)n, 0), n);
}

/* Symptom: at its end, `sluice serve` ended the process that the file named, without a check of the
 * lock. */
static void test_owner_when_the_file_names_a_bystander_then_it_is_nobody_to_signal(void **state)
{
    (void)state;
    struct error err;
    int fd, other, pidfd, told[2];
    for (int open_it = 0; open_it < 2; open_it++) {
        pid_t bystander = start_bystander(open_it, told);
        assert_int_equal(lock_file_take(path, &fd, &err), 0);
        say(fd, bystander);
        assert_int_equal(lock_file_holder(path), -1);
        assert_int_equal(lock_file_open(path, &other, &err), 0);
        assert_int_equal(lock_file_owner(other, &pidfd), -1);
        assert_int_equal(pidfd, -1);
        close(other);
        assert_int_equal(lock_file_take(path, &other, &err), STATUS_FAILED_PRECONDITION);
        assert_int_equal(err.reason, REASON_LOCKED);
        assert_true(names_all(err.message, path));
        say(fd, getpid());
        assert_int_equal(lock_file_holder(path), getpid());
        close(fd);
        kill(bystander, SIGKILL);
        assert_int_equal(waitpid(bystander, NULL, 0), bystander);
        close(told[0]);
        close(told[1]);
    }
}

static void test_owner_when_it_is_told_then_its_pidfd_sees_its_end(void **state)
{
    (void)state;
    struct error err;
    int fd, pidfd, told[2];
    char byte;
    assert_int_equal(lock_file_open(path, &fd, &err), STATUS_NOT_FOUND);
    assert_int_equal(pipe(told), 0);
    pid_t child = fork();
    if (child == 0) {
        bool taken = lock_file_take(path, &fd, &err) == 0;
        (void)!write(told[1], "", 1);
        pause();
        _exit(taken ? 0 : 1);
    }
    assert_int_equal(read(told[0], &byte, 1), 1);
    assert_int_equal(lock_file_open(path, &fd, &err), 0);
    assert_int_equal(lock_file_owner(fd, &pidfd), child);
    struct pollfd end = {.fd = pidfd, .events = POLLIN};
    assert_true(pidfd >= 0);
    assert_int_equal(poll(&end, 1, 0), 0);
    kill(child, SIGKILL);
    assert_int_equal(poll(&end, 1, 20000), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(pidfd);
    assert_int_equal(lock_file_owner(fd, &pidfd), 0);
    assert_int_equal(pidfd, -1);
    int other;
    assert_int_equal(lock_file_take(path, &other, &err), STATUS_FAILED_PRECONDITION); /* shared */
    close(fd);
    close(told[0]);
    close(told[1]);
}

/* Starts a process that locks the file without its pid. 300 ms later the process writes its pid
 * (`writes`) or ends. Returns once the process has the lock. */
static pid_t start_unknown_holder(bool writes)
{
    int locked[2];
    char byte;
    assert_int_equal(pipe(locked), 0);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || write(locked[1], "", 1) != 1)
            _exit(1);
        poll(NULL, 0, 300); /* longer than the wait of the symptom */
        if (writes && dprintf(fd, "%ld\n", (long)getpid()) > 0)
            pause();
        _exit(0);
    }
    assert_int_equal(read(locked[0], &byte, 1), 1);
    close(locked[0]);
    close(locked[1]);
    return child;
}

/* Symptom: on a busy machine 200 ms of tries ended before a new server had written its pid. An
 * unknown process seemed to hold the lock. */
static void test_await_owner_when_the_pid_comes_late_then_it_is_seen_at_once(void **state)
{
    static const struct {
        bool writes;
        uint32_t wait_ms;
    } cases[] = {{true, 60000}, {false, 60000}, {true, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err;
        int fd, pidfd;
        pid_t child = start_unknown_holder(cases[i].writes);
        int64_t began_ns = clock_now_ns();
        assert_int_equal(lock_file_open(path, &fd, &err), 0);
        pid_t pid = lock_file_await_owner(fd, cases[i].wait_ms, &pidfd);
        assert_int_equal(pid, !cases[i].wait_ms ? -1 : cases[i].writes ? child : 0);
        assert_int_equal(pidfd >= 0, pid > 0);
        assert_true(clock_now_ns() - began_ns < 30 * NS_PER_S); /* a change ends the wait */
        if (pidfd >= 0)
            close(pidfd);
        close(fd);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_take_when_free_then_the_file_names_this_process),
        TEST(test_take_when_a_child_of_the_dead_holds_on_then_it_is_waited_for),
        TEST(test_take_when_held_then_refused_with_the_holders_pid),
        TEST(test_take_when_the_holder_says_no_pid_then_it_is_another_process),
        TEST(test_take_when_a_text_is_left_then_it_is_replaced),
        TEST(test_take_when_the_holder_was_killed_then_it_is_free),
        TEST(test_take_when_it_cannot_be_opened_then_that_is_told),
        TEST(test_take_when_it_is_no_regular_file_then_that_is_told_at_once),
        TEST(test_take_when_another_users_process_holds_it_then_it_is_locked_by_that),
        TEST(test_owner_when_the_file_names_a_bystander_then_it_is_nobody_to_signal),
        TEST(test_owner_when_it_is_told_then_its_pidfd_sees_its_end),
        TEST(test_await_owner_when_the_pid_comes_late_then_it_is_seen_at_once),
    };
#undef TEST
    return cmocka_run_group_tests_name("lock_file", tests, NULL, NULL);
}
