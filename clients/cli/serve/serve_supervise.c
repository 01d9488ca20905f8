/* The supervisor of `sluice serve`: restarts manager and server, follows a server that takes over,
 * and handles signals. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strbuf.h"
#include "clients/cli/serve/announce.h"
#include "clients/cli/serve/child.h"
#include "clients/cli/serve/serve.h"
#include "clients/cli/serve/stray_processes.h"
#include "clients/cli/shell/cli.h"

/* Builds the error for a child that cannot run, with the child's own message. */
static int give_up(const struct child *child, struct error *err)
{
    enum { AROUND = 64 }; /* bytes of the text around the message */
    char end[64], words[ERROR_MESSAGE_BYTES];
    size_t n_log = strlen(child->log_path), n_room = sizeof(words) - AROUND;
    child_last_words(child, words, n_log < n_room / 2 ? n_room - n_log : n_room / 2);
    if (!words[0])
        snprintf(words, sizeof(words), "ended with %s", child_end_text(child, end));
    /* The manager's --metrics is --manager-metrics here. */
    bool renamed = strcmp(child->name, "manager") == 0 && strncmp(words, "--metrics", 9) == 0;
    return error_set(err, STATUS_FAILED_PRECONDITION, "the %s cannot run: %s%s (log: %s)",
                     child->name, renamed ? "--manager-metrics" : "", renamed ? words + 9 : words,
                     child->log_path);
}

/* Adopts the server that took over the lock (sluice-server --takeover), if there is one. Only one
 * server can hold the lock, so a restart would fail. */
static bool follow_successor(const struct serve *s, struct child *server, pid_t before)
{
    int pidfd;
    pid_t pid = stray_server(s->server_lock, &pidfd);
    if (pidfd < 0 || pid == before) {
        if (pidfd >= 0)
            close(pidfd);
        return false;
    }
    child_adopt(server, pid, pidfd);
    server->proven = true;
    announce(s->cli, "server_taken_over",
             json_pack("{s:i,s:i}", "pid", (int)pid, "before", (int)before),
             "server pid %d has taken over from pid %d; serve now supervises the new server; its "
             "log is where it was started",
             (int)pid, (int)before);
    return true;
}

/* Announces a child's end. A child with an error status has logged a message before, for example a
 * mistake in an edited file, with the line. The child is restarted until the file is mended. */
static void announce_end(const struct cli *cli, const struct child *child)
{
    char end[64], words[ERROR_MESSAGE_BYTES] = "";
    if (WIFEXITED(child->last_status) && WEXITSTATUS(child->last_status))
        child_last_words(child, words, sizeof(words));
    child_end_text(child, end);
    announce(cli, "ended",
             json_pack("{s:s,s:i,s:i,s:s,s:s}", "program", child->name, "exit_status",
                       WIFEXITED(child->last_status) ? WEXITSTATUS(child->last_status) : -1,
                       "signal", WIFSIGNALED(child->last_status) ? WTERMSIG(child->last_status) : 0,
                       "message", words, "log", child->log_path),
             "%s ended: %s%s%s; see %s", child->name, end, words[0] ? ": " : "", words,
             child->log_path);
}

/* Handles a child's end. Fails if a restart cannot help. */
static int handle_end(struct serve *s, struct child *child, pid_t pid, bool adopted,
                      struct error *err)
{
    if (!adopted && child_refused(child))
        return give_up(child, err);
    if (child == &s->children[1] && follow_successor(s, child, pid))
        return 0;
    if (adopted) {
        child->restart_at_ns = clock_now_ns();
        announce(s->cli, "successor_ended", json_pack("{s:i}", "pid", (int)pid),
                 "the server that had taken over, pid %d, has ended", (int)pid);
        return 0;
    }
    announce_end(s->cli, child);
    return child_is_hopeless(child) ? give_up(child, err) : 0;
}

/* Restarts a child that has ended. Fails if a restart cannot help. */
static int watch_child(struct serve *s, struct child *child, int64_t now_ns, struct error *err)
{
    pid_t pid = child->pid;
    bool adopted = child->adopted;
    if (child_reap(child, now_ns) && handle_end(s, child, pid, adopted, err) != 0)
        return err->status;
    if (child->pid <= 0 && now_ns >= child->restart_at_ns) {
        /* A successor may have taken over since the child ended. */
        if (child == &s->children[1] && follow_successor(s, child, child->last_pid))
            return 0;
        child->n_restarts++;
        if (child_start(child, err) != 0) {
            announce(s->cli, "not_restarted",
                     json_pack("{s:s,s:s}", "program", child->name, "message", err->message), "%s",
                     err->message);
            child->restart_at_ns = now_ns + NS_PER_S;
        } else {
            announce(s->cli, "restarted",
                     json_pack("{s:s,s:i}", "program", child->name, "pid", (int)child->pid),
                     "%s started again: pid %d", child->name, (int)child->pid);
        }
    }
    return 0;
}

static int wait_ms(const struct serve *s, int64_t now_ns)
{
    int64_t next = now_ns + 10 * NS_PER_S;
    for (int i = 0; i < 2; i++)
        if (s->children[i].pid <= 0 && s->children[i].restart_at_ns < next)
            next = s->children[i].restart_at_ns;
    return next <= now_ns ? 0 : (int)((next - now_ns) / NS_PER_MS) + 1;
}

static bool terminal_is_there(void)
{
    int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

/* Signals a successor that is not yet adopted. serve adopts a successor only after the old server
 * has drained and ended. */
static void signal_successor(const struct serve *s, int signal_number)
{
    struct child successor = {.pidfd = -1};
    int pidfd;
    pid_t pid = stray_server(s->server_lock, &pidfd);
    if (pidfd < 0)
        return;
    child_adopt(&successor, pid, pidfd);
    if (pid != s->children[1].pid)
        child_signal(&successor, signal_number);
    close(pidfd);
}

/* Handles SIGHUP: manager and server read their settings again, unless serve or either of them
 * refuses the new settings. */
static void forward_hangup(struct serve *s)
{
    struct error err;
    struct strbuf waiting;
    strbuf_init(&waiting, 0);
    if (serve_settings_reload(s->cli, &s->settings, &s->children[0], &s->children[1], &waiting,
                              &err) != 0) {
        announce(s->cli, "settings_refused", json_pack("{s:s}", "message", err.message),
                 "settings not changed: %s; serve, manager and server keep the old settings",
                 err.message);
    } else {
        for (int i = 0; i < 2; i++)
            child_signal(&s->children[i], SIGHUP);
        signal_successor(s, SIGHUP);
        announce(s->cli, "settings_passed_on", NULL,
                 "passed SIGHUP on to manager and server; see %s/log for the result",
                 s->cli->state_dir);
        if (waiting.n_bytes)
            announce(s->cli, "settings_wait", json_pack("{s:s}", "settings", strbuf_str(&waiting)),
                     "these settings take effect after a restart of `sluice serve`: %s",
                     strbuf_str(&waiting));
    }
    strbuf_fini(&waiting);
}

/* Handles a signal. True if serve must stop. */
static bool handle_signal(struct serve *s)
{
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return false;
    if (info.ssi_signo != SIGHUP || (s->has_terminal && !terminal_is_there()))
        return true;
    forward_hangup(s);
    return false;
}

/* Reaps workers that a killed manager left behind and the next manager will adopt. */
static void reap_orphans(struct serve *s)
{
    struct signalfd_siginfo info;
    while (read(s->ends, &info, sizeof(info)) > 0)
        ;
    child_reap_orphans(s->children, 2);
}

int serve_supervise(struct serve *s)
{
    bool loading = true;
    struct error err;
    for (;;) {
        int64_t now = clock_now_ns();
        for (int i = 0; i < 2; i++) {
            s->children[i].proven |= s->answered[i];
            if (watch_child(s, &s->children[i], now, &err) != 0) {
                s->cli->ending = true; /* the loader then fails quietly */
                return cli_fail(s->cli, &err);
            }
        }
        s->server_pid = s->children[1].pid;
        reap_orphans(s);
        struct pollfd fds[5] = {
            {.fd = s->signals, .events = POLLIN},
            {.fd = loading ? s->loaded : -1, .events = POLLIN},
            {.fd = s->children[0].pidfd, .events = POLLIN},
            {.fd = s->children[1].pidfd, .events = POLLIN},
            {.fd = s->ends, .events = POLLIN},
        };
        poll(fds, 5, wait_ms(s, now));
        if (fds[0].revents && handle_signal(s))
            return 0;
        if (loading && fds[1].revents) {
            loading = false;
            if (s->load_status)
                return 1;
        }
    }
}

int serve_open_signals(struct serve *s, struct error *err)
{
    struct sigaction hangup;
    sigset_t set, ends;
    bool nohup = sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    s->has_terminal = !nohup && terminal_is_there();
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    /* A signalfd sees a blocked SIGHUP even if SIGHUP is ignored. Children inherit "ignored", so no
     * child dies before it sets a handler. */
    signal(SIGHUP, SIG_IGN);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    s->loaded = eventfd(0, EFD_CLOEXEC);
    signal(SIGCHLD, SIG_DFL); /* with an inherited SIG_IGN the kernel would reap the children */
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    s->ends = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s->signals < 0 || s->loaded < 0 || s->ends < 0)
        return error_errno(err, errno, "cannot watch signals");
    return child_adopt_orphans(err);
}
