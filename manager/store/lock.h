/* lock.h: sluice.lock, the lock of a state directory. The kernel drops the lock when the process
 * ends in any way, so there is no stale lock. */
#pragma once

struct error;

/* Opens or creates (0600) the file, locks it, and writes the process id into it. *out_fd is
 * owned: close() releases the lock. FAILED_PRECONDITION, reason LOCKED, message "... locked by
 * pid N", where another process holds the lock. The same where another process has the database
 * open, since the lock file may have been removed. Call this before the process opens the
 * database. */
int store_lock(const char *path, const char *database, int *out_fd, struct error *err);
