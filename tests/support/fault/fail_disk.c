/* fail_disk.c: for LD_PRELOAD: reads, writes and syncs of the manager's database end in EIO. SQLite
 * makes these calls. Workers inherit the library and are left alone.
 *
 * SLUICE_TEST_DISK names a file in memory shared with the test, with three int64. The first is the
 * countdown: the call at which it reaches 0 fails; negative: none. The second is the number of
 * calls after it that fail too. The third is the number of calls that failed. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct control {
    _Atomic int64_t countdown, more, n_failed;
};

static struct control *control;
static ssize_t (*real_pread)(int, void *, size_t, off64_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static int (*real_fdatasync)(int);

/* Stores a function's address as POSIX allows: through a void pointer. */
static void find(void *out_function, const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    memcpy(out_function, &symbol, sizeof(symbol));
}

__attribute__((constructor)) static void begin(void)
{
    char program[4096];
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);
    const char *path = getenv("SLUICE_TEST_DISK");
    find(&real_pread, "pread64");
    find(&real_pwrite, "pwrite64");
    find(&real_fdatasync, "fdatasync");
    program[n > 0 ? n : 0] = '\0';
    int fd = path && strstr(program, "/sluice-manager") ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *memory = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED)
        control = memory;
}

static bool fails(void)
{
    if (!control || atomic_load(&control->countdown) < 0)
        return false;
    int64_t left = atomic_fetch_sub(&control->countdown, 1);
    if (left > 0)
        return false;
    if (left == 0)
        atomic_store(&control->countdown, atomic_fetch_sub(&control->more, 1) > 0 ? 0 : -1);
    atomic_fetch_add(&control->n_failed, 1);
    errno = EIO;
    return true;
}

ssize_t pread64(int fd, void *out, size_t n, off64_t offset)
{
    return fails() ? -1 : real_pread(fd, out, n, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t offset)
{
    return fails() ? -1 : real_pwrite(fd, bytes, n, offset);
}

int fdatasync(int fd)
{
    return fails() ? -1 : real_fdatasync(fd);
}
