/* lock_file.h: a lock file that names the process that owns something. The kernel drops the lock
 * when the process ends, in whatever way, so no lock becomes stale. Any thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct error;

/* Opens the file (created with mode 0600), locks it and writes this process's id into it. *out_fd
 * is owned: close() gives the lock up. FAILED_PRECONDITION, reason LOCKED, if another process holds
 * the lock. The message is "... locked by pid N" if the file names the holder, else "... by another
 * process". For a holder that the file does not name the call waits half a second at most. Unnamed
 * holders are short-lived: a process in lock_file_owner(), or a child that inherited the descriptor
 * of an ended holder. FAILED_PRECONDITION without that reason if `path` is no regular file. Never
 * waits otherwise. */
int lock_file_take(const char *path, int *out_fd, struct error *err);

/* Returns true if `path` still names the file that `fd` locks. */
bool lock_file_is_at(const char *path, int fd);

/* Opens an existing lock file to find its holder or to wait for the holder's end (flock). *out_fd
 * is owned. NOT_FOUND if there is no file, FAILED_PRECONDITION if it is no regular file. Never
 * waits. */
int lock_file_open(const char *path, int *out_fd, struct error *err);

/* Returns the process that holds the lock of an open lock file.
 * 0: no process held the lock. From here on `fd` holds a shared lock, so no process can take the
 * lock.
 * -1: the holder is unknown, because the file names no process or a process that does not hold the
 * lock. The caller must not signal such a process.
 * *out_pidfd is owned and refers to the returned process, never to a later process with the same
 * pid. -1 if there is no holder, or the kernel has no pidfds. */
pid_t lock_file_owner(int fd, int *out_pidfd);

/* Does the same, and waits at most wait_ms for an unknown holder. A new holder writes its pid a
 * moment after it locks; other unknown holders close the file soon. */
pid_t lock_file_await_owner(int fd, uint32_t wait_ms, int *out_pidfd);

/* Does the same without a wait for a path, for messages only: to send a signal use the pidfd of
 * lock_file_owner(). 0 also if there is no such file. Holds the lock for a moment if no other
 * process does. */
pid_t lock_file_holder(const char *path);
