/* fail_malloc.c: for LD_PRELOAD: lets one allocation of the program itself, or of protobuf-c, fail.
 * Allocations
 * of gRPC are left alone, because gRPC aborts where memory is exhausted. The caller's address
 * decides.
 *
 * SLUICE_TEST_MALLOC names a file in memory shared with the test, with two int64. The first is the
 * countdown: the allocation at which it reaches 0 fails; negative: none. The second is the number
 * of allocations that failed. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_RANGES = 8 };

struct control {
    _Atomic int64_t countdown, n_failed;
};

static struct control *control;
static struct {
    uintptr_t start, end;
} ranges[MAX_RANGES];
static int n_ranges;

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *memory, size_t n);

static int note_ranges(struct dl_phdr_info *info, size_t n_bytes, void *arg)
{
    (void)n_bytes;
    (void)arg;
    if (info->dlpi_name[0] && !strstr(info->dlpi_name, "libprotobuf-c"))
        return 0;
    for (int i = 0; i < info->dlpi_phnum && n_ranges < MAX_RANGES; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        if (segment->p_type != PT_LOAD || !(segment->p_flags & PF_X))
            continue;
        ranges[n_ranges].start = info->dlpi_addr + segment->p_vaddr;
        ranges[n_ranges].end = ranges[n_ranges].start + segment->p_memsz;
        n_ranges++;
    }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("SLUICE_TEST_MALLOC");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    dl_iterate_phdr(note_ranges, NULL);
    void *memory = mmap(NULL, sizeof(*control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED)
        control = memory;
}

static bool fails(const void *caller)
{
    if (!control || atomic_load_explicit(&control->countdown, memory_order_relaxed) < 0)
        return false;
    bool ours = false;
    for (int i = 0; i < n_ranges; i++)
        ours = ours || ((uintptr_t)caller >= ranges[i].start && (uintptr_t)caller < ranges[i].end);
    if (!ours || atomic_fetch_sub(&control->countdown, 1) != 0)
        return false;
    atomic_fetch_add(&control->n_failed, 1);
    errno = ENOMEM;
    return true;
}

__attribute__((visibility("default"))) void *malloc(size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(n);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

__attribute__((visibility("default"))) void *realloc(void *memory, size_t n)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(memory, n);
}

static char *copy_text(const char *text, size_t n, const void *caller)
{
    char *copy = fails(caller) ? NULL : __libc_malloc(n + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

/* Overrides strdup(): libc's own would call malloc() from inside libc, where no allocation fails.
 */
__attribute__((visibility("default"))) char *strdup(const char *text)
{
    return copy_text(text, strlen(text), __builtin_return_address(0));
}

__attribute__((visibility("default"))) char *strndup(const char *text, size_t n)
{
    return copy_text(text, strnlen(text, n), __builtin_return_address(0));
}
