/* child.h: a child program that the supervisor keeps running: start, restart with backoff (100 ms →
 * 5 s), stop. One thread. A child runs in a session of its own, so that Ctrl-C reaches only the
 * supervisor, which then stops its children in order. Where the supervisor ignores SIGHUP, a child
 * starts with SIGHUP ignored until it has set its own handler. */
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
    /* state; the supervisor's only */
    pid_t pid, last_pid; /* last_pid: of the process that ended last */
    int64_t log_from;    /* where the log of this start begins */
    int pidfd;
    bool adopted; /* another process started it: its end is seen, but not its exit status */
    int64_t started_ns, restart_at_ns;
    uint32_t backoff_ms, n_restarts, n_early_ends;
    bool proven;     /* it has run for a while or answered: its command line is right */
    int last_status; /* as waitpid gives it */
};

/* Add to argv before the start. A flag with an empty value is left out, so the program's own
 * default applies. */
void child_add_word(struct child *child, const char *word);
void child_add_arg(struct child *child, const char *flag, const char *value);
/* Starts the program with stdout and stderr appended to its log. */
int child_start(struct child *child, struct error *err);
/* Takes over a process that another process started in the child's place, with its pidfd. */
void child_adopt(struct child *child, pid_t pid, int pidfd);
/* True where the child has ended: the child is reaped and its restart time is set. */
bool child_reap(struct child *child, int64_t now_ns);
/* The kernel hands the orphans of this process's descendants to this process from now on. */
int child_adopt_orphans(struct error *err);
/* Reaps the orphans that have ended: workers of a killed manager. The first process of a container
 * gets all orphans of the container. The ends of `children` [n_children] are left to child_reap().
 * No other thread may have children. */
void child_reap_orphans(const struct child *children, size_t n_children);
/* The child has ended at once several times and has never run for a while. */
bool child_is_hopeless(const struct child *child);
/* The child's first start failed in a way that another start cannot mend: wrong settings (exit
 * status 2 or 78), a lock that another process holds (75), or no room on the disk (74). */
bool child_refused(const struct child *child);
/* The message of the last line that the last start wrote to the log; empty where there is none. */
void child_last_words(const struct child *child, char *out, size_t n_out);
/* Runs the child's program with its words and `word`, which makes the program check its settings
 * and end. INVALID_ARGUMENT, "the NAME: ...", with the program's message, where its exit status is
 * not 0. DEADLINE_EXCEEDED, and the program is killed, where the check takes longer than
 * timeout_ms. */
int child_check(const struct child *child, const char *word, uint32_t timeout_ms,
                struct error *err);
/* Does nothing where the child does not run. */
void child_signal(const struct child *child, int signal_number);
/* Waits for the child's end; true where it has ended in time. The wait stops early once hurry_fd is
 * readable (-1: never). */
bool child_wait(struct child *child, uint32_t timeout_ms, int hurry_fd);
/* How the child ended last: "exit status 75", "signal 9 (Killed)". */
const char *child_end_text(const struct child *child, char out[64]);
