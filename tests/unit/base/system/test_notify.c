/* The service manager's readiness protocol, with a socket of the test's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/system/notify.h"

static void expect_arrival(const char *name, const struct sockaddr_un *address, socklen_t n)
{
    char got[64] = "";
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)address, n), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    notify_send("READY=1");
    assert_int_equal(recv(fd, got, sizeof(got) - 1, 0), 7);
    assert_string_equal(got, "READY=1");
    close(fd);
}

static void test_send_when_a_path_or_an_abstract_name_then_it_arrives(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[64];
    (void)state;
    snprintf(name, sizeof(name), "/tmp/sluice-notify-%d", (int)getpid());
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", name);
    expect_arrival(name, &address, sizeof(address));
    unlink(name);
    memset(address.sun_path, 0, sizeof(address.sun_path));
    snprintf(name, sizeof(name), "@sluice-notify-%d", (int)getpid());
    snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "%s", name + 1);
    expect_arrival(name, &address,
                   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name)));
}

static void test_send_when_there_is_no_socket_then_nothing_happens(void **state)
{
    (void)state;
    unsetenv("NOTIFY_SOCKET");
    notify_send("READY=1");
    setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
    notify_send("READY=1");
    setenv("NOTIFY_SOCKET", "relative", 1);
    notify_send("READY=1");
}

/* Symptom: a hanging service manager blocked the server's ticker and the manager's loop at their
 * next message. */
static void test_send_when_nobody_reads_then_it_gives_up(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[64];
    (void)state;
    snprintf(name, sizeof(name), "@sluice-notify-full-%d", (int)getpid());
    snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "%s", name + 1);
    socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, n), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    alarm(60);
    int64_t began_ns = clock_now_ns();
    for (int i = 0; i < 5000; i++) /* more messages than a socket queue holds */
        notify_watchdog();
    assert_true(clock_now_ns() - began_ns < 10 * NS_PER_S);
    began_ns = clock_now_ns();
    notify_send("STOPPING=1");
    int64_t took_ns = clock_now_ns() - began_ns;
    assert_true(took_ns > NS_PER_S / 2 && took_ns < 10 * NS_PER_S);
    alarm(0);
    close(fd);
}

static void test_watchdog_when_asked_of_this_process_then_in_milliseconds(void **state)
{
    char pid[32];
    (void)state;
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    assert_int_equal(notify_watchdog_ms(), 0);
    setenv("WATCHDOG_USEC", "10000000", 1);
    assert_int_equal(notify_watchdog_ms(), 10000);
    setenv("WATCHDOG_PID", "1", 1); /* the variable names another process */
    assert_int_equal(notify_watchdog_ms(), 0);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(notify_watchdog_ms(), 10000);
    setenv("WATCHDOG_USEC", "soon", 1);
    assert_int_equal(notify_watchdog_ms(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_send_when_a_path_or_an_abstract_name_then_it_arrives),
        cmocka_unit_test(test_send_when_there_is_no_socket_then_nothing_happens),
        cmocka_unit_test(test_send_when_nobody_reads_then_it_gives_up),
        cmocka_unit_test(test_watchdog_when_asked_of_this_process_then_in_milliseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
