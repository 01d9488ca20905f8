#include "server/worker/serve/exit_report.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "server/worker/base/settings.h"

enum { REPORT_BYTES = 4096, PATH_BYTES = 4096 };

/* Memory for the signal handler, which may not allocate. */
static Sluice__Worker__V1__ExitReport crash_report;
static char crash_path[PATH_BYTES], crash_temporary[PATH_BYTES];

void exit_report_init(Sluice__Worker__V1__ExitReport *report, const struct settings *settings,
                      uint64_t start_ticks)
{
    sluice__worker__v1__exit_report__init(report);
    report->replica_id = (char *)(uintptr_t)settings->replica;
    report->pid = (uint32_t)getpid();
    report->start_ticks = start_ticks;
    report->epoch = settings->epoch;
}

/* Async-signal-safe. 0 or an errno value. */
static int write_file(const char *path, const char *temporary, const void *bytes, size_t n_bytes)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    int rc = 0;
    if (write(fd, bytes, n_bytes) != (ssize_t)n_bytes)
        rc = errno ? errno : EIO;
    close(fd);
    if (!rc && rename(temporary, path) != 0)
        rc = errno;
    if (rc)
        unlink(temporary);
    return rc;
}

int exit_report_write(const struct settings *settings, Sluice__Worker__V1__ExitReport *report,
                      struct error *err)
{
    uint8_t bytes[REPORT_BYTES];
    char temporary[PATH_BYTES];
    if (!settings->exit_report[0])
        return 0;
    report->ended_unix_ns = clock_wall_ns();
    snprintf(temporary, sizeof(temporary), "%s.tmp", settings->exit_report);
    size_t n = sluice__worker__v1__exit_report__get_packed_size(report);
    if (n > sizeof(bytes))
        return error_set(err, STATUS_INTERNAL, "exit report: %zu bytes exceed the limit of %d", n,
                         REPORT_BYTES);
    sluice__worker__v1__exit_report__pack(report, bytes);
    int rc = write_file(settings->exit_report, temporary, bytes, n);
    return rc ? error_errno(err, rc, "exit report") : 0;
}

static void on_fatal_signal(int number)
{
    uint8_t bytes[REPORT_BYTES];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    crash_report.signal_number = number;
    crash_report.ended_unix_ns = now.tv_sec * NS_PER_S + now.tv_nsec;
    size_t n = sluice__worker__v1__exit_report__get_packed_size(&crash_report);
    if (n <= sizeof(bytes)) {
        sluice__worker__v1__exit_report__pack(&crash_report, bytes);
        write_file(crash_path, crash_temporary, bytes, n);
    }
    raise(number); /* SA_RESETHAND restored the default action: the signal now kills the process */
}

void exit_report_arm(const struct settings *settings, uint64_t start_ticks)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)settings;
    (void)start_ticks;
    (void)on_fatal_signal;
#else
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
    if (!settings->exit_report[0])
        return;
    exit_report_init(&crash_report, settings, start_ticks);
    crash_report.cause = SLUICE__WORKER__V1__EXIT_CAUSE__EXIT_CAUSE_CRASH;
    snprintf(crash_path, sizeof(crash_path), "%s", settings->exit_report);
    snprintf(crash_temporary, sizeof(crash_temporary), "%s.tmp", settings->exit_report);
    struct sigaction action = {.sa_handler = on_fatal_signal};
    action.sa_flags = (int)SA_RESETHAND;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaction(numbers[i], &action, NULL);
#endif
}
