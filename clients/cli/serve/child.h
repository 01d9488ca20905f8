/* child.h: keeps a few child programs running: starts them, restarts what ends (backoff 100 ms
 * → 5 s), stops them in order. One thread. Children run in sessions of their own, so that a Ctrl-C
 * reaches only the supervisor, which then stops them properly. SIGHUP is theirs to take up: they
 * are started with it ignored where the supervisor has it so, until they have set out to. */
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
    /* state, the supervisor's own */
    pid_t pid, last_pid; /* last_pid: of the process that ended last */
    int64_t log_from;    /* where the log of this start begins */
    int pidfd;
    bool adopted; /* not started here: its end is seen, not its status */
    int64_t started_ns, restart_at_ns;
    uint32_t backoff_ms, n_restarts, n_early_ends;
    bool proven;     /* it ran for a while, or answered, once: what ends it is no mistake of its
                        command line */
    int last_status; /* as waitpid gives it */
};

/* Adds to argv before the start; a flag with an empty value is left out, and stays the program's
 * own default. */
void child_add_word(struct child *child, const char *word);
void child_add_arg(struct child *child, const char *flag, const char *value);
/* Starts the program with stdout and stderr appended to its log. */
int child_start(struct child *child, struct error *err);
/* Takes a process that others started in its place, which was let go or has ended, with its pidfd.
 */
void child_adopt(struct child *child, pid_t pid, int pidfd);
/* Reaps it if it has ended: true then, with the restart time set. */
bool child_reap(struct child *child, int64_t now_ns);
/* The kernel hands the orphans of this process's descendants to this process from now on. */
int child_adopt_orphans(struct error *err);
/* Reaps the orphans that have ended: workers of a killed manager, and, for the first process of a
 * container, all that lost their parents. The ends of `children` [n_children] are left to
 * child_reap(). No other thread may have children. */
void child_reap_orphans(const struct child *children, size_t n_children);
/* It ended at once, again and again, and never ran for a while: it never will. */
bool child_is_hopeless(const struct child *child);
/* Its very first start ended because of its settings (exit status 2 or 78), because what it needs
 * is held by another (75) or finds no room on the disk (74): nothing gets better by trying again.
 */
bool child_refused(const struct child *child);
/* The message of the last line its last start wrote to its log; empty where there is none. */
void child_last_words(const struct child *child, char *out, size_t n_out);
/* Runs its program once more, with its words and one that has it look at its settings and end.
 * INVALID_ARGUMENT, "the NAME: ...", with what that one says where it ends otherwise than with 0.
 * Waits for its end; DEADLINE_EXCEEDED, and it is killed, where that takes longer. */
int child_check(const struct child *child, const char *word, uint32_t timeout_ms,
                struct error *err);
/* No-op where it does not run. */
void child_signal(const struct child *child, int signal_number);
/* Whether it has ended within the time, which is cut short once hurry_fd is readable (-1: never).
 */
bool child_wait(struct child *child, uint32_t timeout_ms, int hurry_fd);
/* What the last end was: "exit status 75", "signal 9 (Killed)". */
const char *child_end_text(const struct child *child, char out[64]);
