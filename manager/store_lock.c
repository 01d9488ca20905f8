#include "manager/store_lock.h"

#include "base/lock_file.h"

int store_lock(const char *path, int *out_fd, struct error *err)
{
    return lock_file_take(path, out_fd, err);
}
