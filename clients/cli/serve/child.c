#include "clients/cli/serve/child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

/* Exit statuses of manager and server: wrong usage, full disk, state locked by another process, bad
 * settings. */
enum { EXIT_USAGE = 2, EXIT_DISK = 74, EXIT_LOCKED = 75, EXIT_BAD_SETTINGS = 78 };
enum { BACKOFF_MIN_MS = 100, BACKOFF_MAX_MS = 5000, STEADY_MS = 10000, MAX_EARLY_ENDS = 5 };

extern char **environ;

int child_start(struct child *child, struct error *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    struct stat log;
    pid_t pid;
    child->log_from = stat(child->log_path, &log) == 0 ? log.st_size : 0;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, child->log_path, O_WRONLY | O_CREAT | O_APPEND,
                                     0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    int rc = posix_spawn(&pid, child->argv[0], &actions, &attributes,
                         (char *const *)(uintptr_t)child->argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (rc)
        return error_errno(err, rc, "cannot start %s (%s)", child->name, child->argv[0]);
    child->pid = pid;
    child->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    child->started_ns = clock_now_ns();
    return 0;
}

void child_add_word(struct child *child, const char *word)
{
    size_t n = 0;
    while (child->argv[n])
        n++;
    assert(n + 1 < CHILD_MAX_ARGS);
    child->argv[n] = word;
}

void child_add_arg(struct child *child, const char *flag, const char *value)
{
    if (!value[0])
        return;
    child_add_word(child, flag);
    child_add_word(child, value);
}

void child_adopt(struct child *child, pid_t pid, int pidfd)
{
    child->pid = pid;
    child->pidfd = pidfd;
    child->adopted = true;
    child->started_ns = clock_now_ns();
}

static bool has_ended(struct child *child)
{
    struct pollfd end = {.fd = child->pidfd, .events = POLLIN};
    if (child->pid <= 0)
        return false;
    if (child->adopted)
        return poll(&end, 1, 0) > 0;
    return waitpid(child->pid, &child->last_status, WNOHANG) == child->pid;
}

bool child_reap(struct child *child, int64_t now_ns)
{
    if (!has_ended(child))
        return false;
    child->adopted = false;
    if (child->pidfd >= 0)
        close(child->pidfd);
    child->last_pid = child->pid;
    child->pid = 0;
    child->pidfd = -1;
    bool steady = now_ns - child->started_ns > STEADY_MS * NS_PER_MS;
    child->n_early_ends = steady ? 0 : child->n_early_ends + 1;
    child->proven |= steady;
    if (steady || !child->backoff_ms)
        child->backoff_ms = BACKOFF_MIN_MS;
    else
        child->backoff_ms =
            child->backoff_ms * 2 > BACKOFF_MAX_MS ? BACKOFF_MAX_MS : child->backoff_ms * 2;
    child->restart_at_ns = now_ns + (int64_t)child->backoff_ms * NS_PER_MS;
    return true;
}

int child_adopt_orphans(struct error *err)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return error_errno(err, errno, "cannot take over the processes of an ended manager");
    return 0;
}

static bool is_started_here(const struct child *children, size_t n_children, pid_t pid)
{
    for (size_t i = 0; i < n_children; i++)
        if (children[i].pid == pid && !children[i].adopted)
            return true;
    return false;
}

void child_reap_orphans(const struct child *children, size_t n_children)
{
    for (;;) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 ||
            is_started_here(children, n_children, info.si_pid))
            return; /* leave the child itself to child_reap() */
        waitpid(info.si_pid, NULL, WNOHANG);
    }
}

bool child_is_hopeless(const struct child *child)
{
    return !child->proven && child->n_early_ends >= MAX_EARLY_ENDS;
}

bool child_refused(const struct child *child)
{
    if (child->pid > 0 || child->n_restarts || child->proven || !child->n_early_ends ||
        !WIFEXITED(child->last_status))
        return false;
    int code = WEXITSTATUS(child->last_status);
    return code == EXIT_USAGE || code == EXIT_DISK || code == EXIT_LOCKED ||
           code == EXIT_BAD_SETTINGS;
}

/* Copies a quoted value up to its closing quote, or a bare value up to the blank. Removes
 * backslashes. */
static void copy_value(const char *value, char *out, size_t n_out)
{
    bool quoted = *value == '"';
    size_t n = 0;
    for (const char *p = value + (quoted ? 1 : 0); *p && n + 1 < n_out; p++) {
        if (quoted ? *p == '"' : *p == ' ')
            break;
        if (quoted && *p == '\\' && p[1])
            p++;
        out[n++] = *p;
    }
    out[n] = '\0';
}

/* Extracts the message of a log line: the message field of a record, else the text after "program:
 * ". */
static void line_message(const char *line, char *out, size_t n_out)
{
    static const char *const keys[] = {" message=", "\"message\":", " why=", "\"why\":"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const char *at = strstr(line, keys[i]);
        if (at) {
            copy_value(at + strlen(keys[i]), out, n_out);
            return;
        }
    }
    const char *colon = strncmp(line, "sluice-", 7) == 0 ? strstr(line, ": ") : NULL;
    snprintf(out, n_out, "%s", colon ? colon + 2 : line);
}

/* Returns the last line that reports a fault, because other threads may have logged after it.
 * Without a fault the last line of all. Cuts off the lines before. */
static const char *last_line(char *text)
{
    static const char *const calm[] = {" level=info ", " level=debug ", "\"level\":\"info\"",
                                       "\"level\":\"debug\""};
    char *of_all = strrchr(text, '\n');
    of_all = of_all ? of_all + 1 : text;
    for (char *line = of_all;;) {
        bool is_calm = false;
        for (size_t i = 0; i < sizeof(calm) / sizeof(calm[0]); i++)
            is_calm |= strstr(line, calm[i]) != NULL;
        if (!is_calm)
            return line;
        if (line == text)
            return of_all;
        line[-1] = '\0';
        char *before = strrchr(text, '\n');
        line = before ? before + 1 : text;
    }
}

void child_last_words(const struct child *child, char *out, size_t n_out)
{
    char text[4096];
    struct stat log;
    out[0] = '\0';
    int fd = open(child->log_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &log) != 0) {
        if (fd >= 0)
            close(fd);
        return;
    }
    off_t from = child->log_from;
    if (log.st_size - from > (off_t)sizeof(text) - 1)
        from = log.st_size - (off_t)sizeof(text) + 1;
    ssize_t n = pread(fd, text, sizeof(text) - 1, from);
    close(fd);
    while (n > 0 && text[n - 1] == '\n')
        n--;
    text[n > 0 ? n : 0] = '\0';
    line_message(last_line(text), out, n_out);
}

static int start_check(const struct child *child, const char *word, int stderr_fd, pid_t *out_pid)
{
    const char *argv[CHILD_MAX_ARGS + 1];
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    size_t n = 0;
    for (; child->argv[n]; n++)
        argv[n] = child->argv[n];
    argv[n++] = word;
    argv[n] = NULL;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, stderr_fd, 2);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    int rc = posix_spawn(out_pid, argv[0], &actions, &attributes, (char *const *)(uintptr_t)argv,
                         environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return rc;
}

/* Reads a pipe to its end. Drops bytes that do not fit. False if the end did not come in time. */
static bool read_to_end(int fd, uint32_t timeout_ms, char *out, size_t n_out)
{
    char rest[512];
    size_t n_bytes = 0;
    int64_t until_ns = clock_now_ns() + (int64_t)timeout_ms * NS_PER_MS;
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    ssize_t n = 1;
    while (n != 0) {
        int64_t left_ns = until_ns - clock_now_ns();
        if (left_ns <= 0)
            break;
        bool room = n_bytes + 1 < n_out;
        if (poll(&ready, 1, (int)(left_ns / NS_PER_MS) + 1) <= 0)
            continue;
        n = read(fd, room ? out + n_bytes : rest, room ? n_out - 1 - n_bytes : sizeof(rest));
        if (n > 0 && room)
            n_bytes += (size_t)n;
    }
    while (n_bytes && out[n_bytes - 1] == '\n')
        n_bytes--;
    out[n_bytes] = '\0';
    return n == 0;
}

/* Reaps the process. A killed process that hangs in disk I/O gets a second, then serve continues.
 */
static void reap(pid_t pid, bool ended, int *out_status)
{
    const struct timespec pause = {.tv_nsec = 10 * NS_PER_MS};
    for (int n_tries = 0; n_tries < 100; n_tries += !ended) {
        pid_t got = waitpid(pid, out_status, ended ? 0 : WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR))
            return;
        if (!ended)
            nanosleep(&pause, NULL);
    }
}

int child_check(const struct child *child, const char *word, uint32_t timeout_ms, struct error *err)
{
    char text[2048], words[ERROR_MESSAGE_BYTES - 64];
    int fds[2], status = 0;
    pid_t pid;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return error_errno(err, errno, "cannot make a pipe");
    int rc = start_check(child, word, fds[1], &pid);
    close(fds[1]);
    if (rc) {
        close(fds[0]);
        return error_errno(err, rc, "cannot start %s (%s)", child->name, child->argv[0]);
    }
    bool ended = read_to_end(fds[0], timeout_ms, text, sizeof(text));
    close(fds[0]);
    if (!ended)
        kill(pid, SIGKILL);
    reap(pid, ended, &status);
    if (!ended)
        return error_set(err, STATUS_DEADLINE_EXCEEDED,
                         "the %s did not finish checking its settings within %u ms", child->name,
                         timeout_ms);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    line_message(last_line(text), words, sizeof(words));
    return error_set(err, STATUS_INVALID_ARGUMENT, "the %s: %s", child->name,
                     words[0] ? words : "the settings check failed without a message");
}

void child_signal(const struct child *child, int signal_number)
{
    /* only a pidfd is safe here: the pid of an adopted process can be reused */
    if (child->pid > 0 && child->adopted)
        syscall(SYS_pidfd_send_signal, child->pidfd, signal_number, NULL, 0);
    else if (child->pid > 0)
        kill(child->pid, signal_number);
}

bool child_wait(struct child *child, uint32_t timeout_ms, int hurry_fd)
{
    int64_t until = clock_now_ns() + (int64_t)timeout_ms * NS_PER_MS;
    for (;;) {
        int64_t now = clock_now_ns();
        if (child_reap(child, now) || child->pid <= 0)
            return true;
        if (now >= until)
            return false;
        struct pollfd fds[2] = {{.fd = hurry_fd, .events = POLLIN},
                                {.fd = child->pidfd, .events = POLLIN}};
        int left_ms = (int)((until - now) / NS_PER_MS) + 1;
        /* without a pidfd (an old kernel) poll for the end every 20 ms */
        poll(fds, 2, child->pidfd >= 0 || left_ms < 20 ? left_ms : 20);
        if (fds[0].revents)
            return child_reap(child, clock_now_ns());
    }
}

const char *child_end_text(const struct child *child, char out[64])
{
    if (WIFSIGNALED(child->last_status))
        snprintf(out, 64, "signal %d (%s)", WTERMSIG(child->last_status),
                 strsignal(WTERMSIG(child->last_status)));
    else
        snprintf(out, 64, "exit status %d", WEXITSTATUS(child->last_status));
    return out;
}
