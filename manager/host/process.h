/* process.h: child processes by posix_spawn, and processes that are nobody's children any more. A
 * process is a pid plus the time it started: pids are used again, the pair is not. Any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct error;

struct process {
    pid_t pid;
    uint64_t start_ticks; /* field 22 of /proc/PID/stat */
    int pidfd;            /* readable once the process has ended; owned, -1: none */
};

/* Everything that a child is handed; all else is closed or reset: descriptors over 2, signal mask
 * and handlers, working directory (/), session (its own, so a Ctrl-C here does not reach it). */
struct process_launch {
    const char *program;  /* absolute path */
    char *const *argv;    /* NULL-terminated, argv[0] included */
    char *const *env;     /* NULL-terminated */
    const char *log_path; /* stdout and stderr are appended here; or NULL: */
    int stdout_fd;        /* stdout, with stderr to /dev/null */
    const int *fds;       /* [n_fds] become 3, 4, ...; each is above what they become */
    size_t n_fds;
};

/* On 0 *out_process is owned (process_fini). NOT_FOUND, PERMISSION_DENIED and so on name the
 * program's last path component. */
int process_spawn(const struct process_launch *launch, struct process *out_process,
                  struct error *err);

/* A process found again by pid and start time. NOT_FOUND where it has ended or is another. */
int process_open(pid_t pid, uint64_t start_ticks, struct process *out_process, struct error *err);
/* Closes the descriptor; the process goes on. */
void process_fini(struct process *process);

/* Whether it runs the program that is at `path` now, and not one that was there before. */
bool process_runs(const struct process *process, const char *path);

/* Sends a signal through the pidfd: never to another process. False where it has ended. */
bool process_signal(const struct process *process, int signal_number);

struct process_end {
    bool known;      /* false: not our child, only its exit report can tell */
    int exit_status; /* with signal_number 0 */
    int signal_number;
};

/* True where it has ended; reaps a child. */
bool process_ended(const struct process *process, struct process_end *out_end);

/* 0: no such process. */
uint64_t process_start_ticks(pid_t pid);
/* Memory that only this process holds: anonymous and shared-memory pages that are resident. */
uint64_t process_resident_bytes(pid_t pid);

/* Memory of files without a name (memfd_create) that some process of this user still has open, this
 * one counted: that of the `n_inodes` files, each once. *out_holder is one that does; 0: none. A
 * process that only maps such a file and has closed it is not seen. Looks at every descriptor of
 * every process of the user. */
uint64_t process_memory_held(const uint64_t *inodes, size_t n_inodes, pid_t *out_holder);

/* How many processes the kernel has ended for want of memory, the machine's or a cgroup's, since
 * boot; 0 also where it does not say. */
uint64_t process_oom_kills(void);

/* Workers started by a manager of this run directory that live now, found by their arguments. */
struct process_found {
    pid_t pid;
    uint64_t start_ticks;
    uint64_t epoch;
    char replica_id[64];
};
/* Calls `found` for each process of this user whose arguments have --socket below `run_dir`. */
void process_scan(const char *run_dir,
                  void (*found)(void *arg, const struct process_found *process), void *arg);
