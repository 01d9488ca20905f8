#include "manager/store/lock.h"

#include <fcntl.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/system/lock_file.h"

/* The process that has an SQLite lock on the file; 0: no lock, or no file; -1: a process without
 * a known pid. This process must not have the file open: close() would drop its own locks. */
static long lock_holder(const char *database)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd = open(database, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    bool held = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    close(fd);
    if (!held)
        return 0;
    return lock.l_pid > 0 ? lock.l_pid : -1; /* 0: in another PID namespace */
}

/* Waits a moment: a killed process may release the lock file shortly before the database. */
static int check_database(const char *database, struct error *err)
{
    enum { TRIES = 30, PAUSE_NS = 10 * 1000 * 1000 };
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    long pid = lock_holder(database);
    for (int i = 0; i < TRIES && pid != 0; i++) {
        nanosleep(&pause, NULL);
        pid = lock_holder(database);
    }
    if (pid == 0)
        return 0;
    if (pid > 0)
        error_set(err, STATUS_FAILED_PRECONDITION, "%s: locked by pid %ld", database, pid);
    else
        error_set(err, STATUS_FAILED_PRECONDITION, "%s: locked by another process", database);
    return error_reason(err, REASON_LOCKED);
}

int store_lock(const char *path, const char *database, int *out_fd, struct error *err)
{
    int fd = -1;
    if (lock_file_take(path, &fd, err) != 0)
        return err->status;
    if (check_database(database, err) != 0) {
        close(fd);
        return err->status;
    }
    *out_fd = fd;
    return 0;
}
