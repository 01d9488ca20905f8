/* lock_file.h: a file that says which process owns something. The kernel drops the lock with the
 * process, however it ends, so there is no stale lock. Any thread. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct error;

/* Opens (creating it, 0600) and locks the file, and writes this process's id into it. *out_fd is
 * owned: close() gives the lock up. FAILED_PRECONDITION, reason LOCKED, message "... locked by pid
 * N", where another process has it and is the one that the file names; one that it does not name
 * ("... by another process") is waited for, half a second at most: who looks has it for a moment,
 * and what a holder that is gone was starting still has its descriptors. The same status without
 * that reason where `path` is no regular file. Waits for nobody else. */
int lock_file_take(const char *path, int *out_fd, struct error *err);

/* Whether the file that `fd` locks is the one that others find at `path`. */
bool lock_file_is_at(const char *path, int fd);

/* Opens one that is there, to look at it or to wait for its holder's end (flock). *out_fd is owned.
 * NOT_FOUND where there is none, FAILED_PRECONDITION where it is no regular file. Waits for nobody.
 */
int lock_file_open(const char *path, int *out_fd, struct error *err);

/* The process that holds an open one now; 0: none did, and `fd` has a shared lock from here on, so
 * that none can; -1: one that cannot be told: the file names none, or one that the kernel does not
 * know as its holder, and which must not pay for it. *out_pidfd is owned, and means that process
 * and no later one of its number; -1 where there is none, or the kernel has no pidfds. */
pid_t lock_file_owner(int fd, int *out_pidfd);

/* The same of a path, to be told of: what is to be signalled wants a pidfd. 0 also where there is
 * no such file. For a moment it holds the lock itself where nobody does. */
pid_t lock_file_holder(const char *path);
