/* shift_clock.c: for LD_PRELOAD: shifts the wall clock by an offset that the test may change while
 * the program runs. The monotonic clock is unchanged. SLUICE_TEST_CLOCK names a file in memory
 * shared with the test, with one int64: nanoseconds.
 *
 * gRPC often waits until a wall time. The wait ends when the shifted clock reaches
 * the time, also after a change of the offset. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { NS = 1000000000, SLICE = NS / 50 };

static const _Atomic int64_t *shift;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("SLUICE_TEST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *memory = mmap(NULL, sizeof(*shift), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED)
        shift = memory;
}

static struct timespec moved(struct timespec t, int64_t by_ns)
{
    int64_t ns = (int64_t)t.tv_sec * NS + t.tv_nsec + by_ns;
    t.tv_sec = ns / NS;
    t.tv_nsec = ns % NS;
    return t;
}

static int64_t offset(void)
{
    return shift ? atomic_load_explicit(shift, memory_order_relaxed) : 0;
}

/* Enters the kernel directly, as this file overrides libc's syscall(). */
static long ask_kernel(long number, const long args[6])
{
    register long r10 __asm__("r10") = args[3];
    register long r8 __asm__("r8") = args[4];
    register long r9 __asm__("r9") = args[5];
    long rc;
    __asm__ volatile("syscall"
                     : "=a"(rc)
                     : "a"(number), "D"(args[0]), "S"(args[1]), "d"(args[2]), "r"(r10), "r"(r8),
                       "r"(r9)
                     : "rcx", "r11", "memory");
    return rc;
}

static long answer(long rc)
{
    if (rc >= 0)
        return rc;
    errno = (int)-rc;
    return -1;
}

static int64_t kernel_ns(void)
{
    struct timespec now;
    (void)ask_kernel(SYS_clock_gettime, (const long[6]){CLOCK_REALTIME, (long)&now});
    return (int64_t)now.tv_sec * NS + now.tv_nsec;
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    long rc = ask_kernel(SYS_clock_gettime, (const long[6]){id, (long)out});
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        *out = moved(*out, offset());
    return (int)answer(rc);
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    int64_t ns = kernel_ns() + offset();
    (void)zone;
    out->tv_sec = ns / NS;
    out->tv_usec = ns % NS / 1000;
    return 0;
}

time_t time(time_t *out)
{
    time_t now = (kernel_ns() + offset()) / NS;
    if (out)
        *out = now;
    return now;
}

/* Waits in slices, because a test may change the offset meanwhile. */
static long wait_until(const long args[6])
{
    const struct timespec *given = (const struct timespec *)args[3];
    int64_t until = (int64_t)given->tv_sec * NS + given->tv_nsec;
    while (true) {
        int64_t now = kernel_ns(), left = until - (now + offset());
        if (left <= 0)
            return -ETIMEDOUT;
        struct timespec slice = moved((struct timespec){0}, now + (left < SLICE ? left : SLICE));
        long rc = ask_kernel(
            SYS_futex, (const long[6]){args[0], args[1], args[2], (long)&slice, args[4], args[5]});
        if (rc != -ETIMEDOUT)
            return rc;
    }
}

long syscall(long number, ...)
{
    long args[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++)
        args[i] = va_arg(list, long);
    va_end(list);
    bool until = number == SYS_futex && args[3] && (args[1] & FUTEX_CLOCK_REALTIME) &&
                 (args[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
    return answer(until ? wait_until(args) : ask_kernel(number, args));
}
