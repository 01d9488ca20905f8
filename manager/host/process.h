/* process.h: child processes by posix_spawn, and processes of an earlier manager. A process is
 * identified by pid and start time, because the kernel uses pids again. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "manager/base/pb.h"

struct error;

enum { PROCESS_FIRST_FD = 3 }; /* first descriptor of a child after the standard ones */

struct process {
    pid_t pid;
    uint64_t start_ticks; /* field 22 of /proc/PID/stat */
    int pidfd;            /* readable once the process has ended; owned; -1: none */
};

/* Everything that a child gets. All else is closed or reset: descriptors above 2, signal mask
 * and handlers, working directory (/). The child has its own session, so that Ctrl-C does not
 * reach the child. */
struct process_launch {
    const char *program;  /* absolute path */
    char *const *argv;    /* NULL-terminated, argv[0] included; at most PROCESS_MAX_ARGUMENTS */
    char *const *env;     /* NULL-terminated */
    const char *log_path; /* stdout and stderr are appended to this file; NULL: no file */
    int stdout_fd;        /* without log_path: gets stdout, and /dev/null gets stderr */
    const int *fds;       /* [n_fds] become 3, 4, ... in the child; each must be above its number
                           * in the child */
    size_t n_fds;
    const pb_launch *record; /* handed down as a sealed memfd, which `--launch-fd N` names at the
                              * end of argv; NULL: none */
};

enum { PROCESS_MAX_ARGUMENTS = 64 };

/* After 0 *out_process is owned (process_fini). NOT_FOUND, PERMISSION_DENIED and so on name the
 * program's last path component. */
int process_spawn(const struct process_launch *launch, struct process *out_process,
                  struct error *err);

/* Opens a process by pid and start time. NOT_FOUND where the process has ended, or another
 * process has the pid. */
int process_open(pid_t pid, uint64_t start_ticks, struct process *out_process, struct error *err);
/* Closes the descriptor; the process runs on. */
void process_fini(struct process *process);

/* True where the process runs the program file that is now at `path`, not an earlier file of
 * that name. */
bool process_runs(const struct process *process, const char *path);

/* Sends a signal through the pidfd, and thus never to another process. False where the process
 * has ended. */
bool process_signal(const struct process *process, int signal_number);

struct process_end {
    bool known;      /* false: not our child; only its exit report has the result */
    int exit_status; /* valid if signal_number is 0 */
    int signal_number;
};

/* True where the process has ended; reaps a child. */
bool process_ended(const struct process *process, struct process_end *out_end);

/* 0: no such process. */
uint64_t process_start_ticks(pid_t pid);
/* Resident memory that only this process has: anonymous and shared-memory pages. */
uint64_t process_resident_bytes(pid_t pid);

/* Bytes of unnamed files (memfd_create) that any process of this user, this one included, has
 * open. Counts the `n_inodes` files once each. *out_holder is a process that has one open; 0:
 * none. A process that only maps such a file is not seen. Reads every descriptor of every
 * process of the user. */
uint64_t process_memory_held(const uint64_t *inodes, size_t n_inodes, pid_t *out_holder);

/* Number of processes killed since boot for lack of memory of the machine or a cgroup; 0 also
 * where unknown. */
uint64_t process_oom_kills(void);

/* A live worker of this run directory, found by its arguments. */
struct process_found {
    pid_t pid;
    uint64_t start_ticks;
    uint64_t epoch;
    char replica_id[64];
};
/* Calls `found` for each process of this user whose arguments have --socket below `run_dir`. */
void process_scan(const char *run_dir,
                  void (*found)(void *arg, const struct process_found *process), void *arg);
