/* child.h: a child program that the supervisor keeps running: start, restart with backoff (100 ms →
 * 5 s), stop. Single-threaded. Each child gets its own session, so Ctrl-C reaches only the
 * supervisor, which stops its children in order. If the supervisor ignores SIGHUP, a child ignores
 * SIGHUP until it sets its own handler. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct error;

enum { CHILD_MAX_ARGS = 48 };

struct child {
    const char *name; /* "manager" */
    const char *log_path;
    const char *argv[CHILD_MAX_ARGS]; /* NULL-terminated; argv[0] is the program's path */
    /* state; written by the supervisor only */
    pid_t pid, last_pid; /* last_pid: the process that ended last */
    int64_t log_from;    /* log offset of this start */
    int pidfd;
    bool adopted; /* started by another process, so its exit status stays unknown */
    int64_t started_ns, restart_at_ns;
    uint32_t backoff_ms, n_restarts, n_early_ends;
    bool proven;     /* has run for a while or answered: the command line is right */
    int last_status; /* wait status of waitpid() */
};

/* Add to argv before the start. A flag with an empty value is left out, so the program's own
 * default applies. */
void child_add_word(struct child *child, const char *word);
void child_add_arg(struct child *child, const char *flag, const char *value);
/* Starts the program with stdout and stderr appended to its log. */
int child_start(struct child *child, struct error *err);
/* Takes over a process that another process started, with its pidfd. */
void child_adopt(struct child *child, pid_t pid, int pidfd);
/* True if the child has ended: then the child is reaped and its restart time is set. */
bool child_reap(struct child *child, int64_t now_ns);
/* From now on this process reaps the orphans of its descendants. */
int child_adopt_orphans(struct error *err);
/* Reaps the orphans that have ended: workers of a killed manager. The first process of a container
 * gets all orphans of the container. The ends of `children` [n_children] are left to child_reap().
 * No other thread may have children. */
void child_reap_orphans(const struct child *children, size_t n_children);
/* True if the child has ended early several times in a row and has never run for a while. */
bool child_is_hopeless(const struct child *child);
/* True if another start cannot help: wrong settings (exit status 2 or 78), a lock that another
 * process holds (75), or a full disk (74). Concerns the first start only. */
bool child_refused(const struct child *child);
/* Copies the message of the last log line of the last start. Empty if there is none. */
void child_last_words(const struct child *child, char *out, size_t n_out);
/* Runs the child's program with its arguments and `word`, so that the program checks its settings
 * and ends. INVALID_ARGUMENT, "the NAME: ...", with the program's message, if the exit status is
 * not 0. DEADLINE_EXCEEDED if the check takes longer than timeout_ms; the program is killed. */
int child_check(const struct child *child, const char *word, uint32_t timeout_ms,
                struct error *err);
/* Sends the signal. No effect if the child does not run. */
void child_signal(const struct child *child, int signal_number);
/* Waits for the child's end; true if the child ended in time. Returns early once hurry_fd is
 * readable (-1: never). */
bool child_wait(struct child *child, uint32_t timeout_ms, int hurry_fd);
/* Formats how the child ended last: "exit status 75", "signal 9 (Killed)". */
const char *child_end_text(const struct child *child, char out[64]);
