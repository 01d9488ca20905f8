/* lock_file.h: a file that says which process owns something. The kernel drops the lock with the
 * process, however it ends, so there is no stale lock. Any thread. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct error;

/* Opens (creating it, 0600) and locks the file, and writes this process's id into it. *out_fd is
 * owned: close() gives the lock up. FAILED_PRECONDITION, reason LOCKED, message "... locked by pid
 * N", where another process has it; one that is named and is gone is waited for, half a second at
 * most: what it was starting still has its descriptors for a moment. The same status without that
 * reason where `path` is no regular file. Waits for nobody else. */
int lock_file_take(const char *path, int *out_fd, struct error *err);

/* Whether the file that `fd` locks is the one that others find at `path`. */
bool lock_file_is_at(const char *path, int fd);

/* The process that holds it now; 0: none, or there is no such file; -1: one that has not said which
 * it is. For a moment it holds the lock itself where nobody does. */
pid_t lock_file_holder(const char *path);
