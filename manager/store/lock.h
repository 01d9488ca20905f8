/* lock.h: sluice.lock, which says who owns a state directory. The kernel drops the lock with
 * the process, however it ends, so there is no stale lock. */
#pragma once

struct error;

/* Opens (creating it, 0600) and locks the file, and writes this process's id into it. *out_fd is
 * owned: close() gives the lock up. FAILED_PRECONDITION, reason LOCKED, message "... locked by pid
 * N", where another process has it, or has the database open all the same: somebody removed the
 * file, and what is changed or put in the database's place now would be that one's loss. Before
 * this process opens the database. */
int store_lock(const char *path, const char *database, int *out_fd, struct error *err);
