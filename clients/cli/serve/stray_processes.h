/* stray_processes.h: stray processes: programs of a state directory that run without a `sluice
 * serve`, because serve was killed or a person started them. The manager is found by its lock;
 * servers and workers by the manager's answers and by their command lines. Single-threaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cli;
struct error;

/* True if the process runs the program of that name. A pid from a message or a file may belong to
 * another process by now. */
bool stray_runs(pid_t pid, const char *name);

/* Finds the state directory of a running manager or server, from its command line. False if the
 * process is neither, or names no directory. */
bool stray_state_dir(pid_t pid, char *out, size_t n_out);

/* True if `sluice serve` started this manager: serve alone passes --stop-workers-on-exit. */
bool stray_was_served(pid_t manager);

/* Returns the manager that holds the lock of a state directory. 0: no process holds the lock. -1:
 * the holder is unknown, for instance because it has just taken the lock. */
pid_t stray_manager(const char *state_dir);

/* Returns the server that holds the lock file, or is about to take the lock from another server
 * (PATH.next). 0: none. -1: the holder is unknown. out_pidfd (or NULL) as in lock_file_owner. */
pid_t stray_server(const char *lock_path, int *out_pidfd);

/* Finds the holder of the open lock file `fd`, whose path is `path`. *out_pid 0: no process holds
 * the lock, and `fd` holds it shared from here on. *out_pidfd as in lock_file_owner.
 * FAILED_PRECONDITION, with advice, if the holder is unknown. Do not signal the pid in the file
 * then: the file alone is no proof. */
int stray_owner(const char *path, int fd, pid_t *out_pid, int *out_pidfd, struct error *err);

struct stray_ended {
    size_t n_servers, manager /* 0 or 1 */, n_workers;
};

/* Ends servers, manager and workers of the state directory, in this order. Servers and manager get
 * SIGTERM and up to grace_ms for each kind; workers are killed after seconds. A manager that does
 * not answer is ended too. *out_ended may be all zeros. DEADLINE_EXCEEDED if a process has not
 * ended. FAILED_PRECONDITION, and nothing is ended, if a process is a systemd unit's main process
 * or an unknown process holds a lock. */
int stray_stop(struct cli *cli, uint32_t grace_ms, struct stray_ended *out_ended,
               struct error *err);

/* Kills the workers of a state directory without a manager. No effect if a manager runs. Workers
 * with sockets elsewhere ([manager] run_dir of the file) are found too, unless a living manager
 * uses that folder. */
void stray_kill_workers(const struct cli *cli);
