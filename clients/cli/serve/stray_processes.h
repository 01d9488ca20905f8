/* stray_processes.h: what of a state directory runs without a `sluice serve`, because that was
 * killed or because people started it themselves: the manager by its lock, servers and workers by
 * what the manager knows and by their own words. One thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct cli;
struct error;

/* Whether a process runs the program of that name: a pid from a message, or a file, may by now be
 * anybody's. */
bool stray_runs(pid_t pid, const char *name);

/* The manager that holds the lock of a state directory; 0: none does; -1: something that cannot be
 * told, as one that has just taken it. */
pid_t stray_manager(const char *state_dir);

/* The server that has that lock file, or is about to take it from another (PATH.next); 0: none;
 * -1: one that cannot be told. out_pidfd (or NULL) as lock_file_owner's. */
pid_t stray_server(const char *lock_path, int *out_pidfd);

/* Who has an open lock file of a state directory, of that path; *out_pid 0: nobody, and `fd` has it
 * shared from here on. *out_pidfd as lock_file_owner's. FAILED_PRECONDITION, with what to do, where
 * it cannot be told within moments: what has it must not be signalled by its word alone. */
int stray_owner(const char *path, int fd, pid_t *out_pid, int *out_pidfd, struct error *err);

struct stray_ended {
    size_t n_servers, manager /* 0 or 1 */, n_workers;
};

/* Ends servers, manager and workers of the state directory, in this order: the first two with
 * SIGTERM and up to grace_ms for each kind, workers within seconds, or they are killed. A manager
 * that does not answer is ended too. *out_ended may be all zeros. DEADLINE_EXCEEDED where one has
 * not ended, FAILED_PRECONDITION where the manager is a unit's main process, which would come back,
 * or where a lock of the state directory is held by what is neither, or cannot be told: then
 * nothing was ended. */
int stray_stop(struct cli *cli, uint32_t grace_ms, struct stray_ended *out_ended,
               struct error *err);

/* Kills the workers of a state directory whose manager is gone; leaves them alone where one runs.
 * They are found also where [manager] run_dir of the file has their sockets elsewhere, in a folder
 * that no living manager has. */
void stray_kill_workers(const struct cli *cli);
