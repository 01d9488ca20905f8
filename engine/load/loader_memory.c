#include "engine/load/loader_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#define HUGE_PAGE_BYTES (2ULL << 20)
#define SEALS           (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

/* Maps fd at an address that huge pages can back: aligned to 2 MiB like the file's offset 0. */
static void *map_aligned(int fd, uint64_t n_bytes, int prot, int flags)
{
    uint64_t span = n_bytes + HUGE_PAGE_BYTES;
    unsigned char *room =
        mmap(NULL, span, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    uint64_t skip = (HUGE_PAGE_BYTES - (uintptr_t)room % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
    void *at = mmap(room + skip, n_bytes, prot, flags | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED) {
        int saved = errno;
        munmap(room, span);
        errno = saved;
        return MAP_FAILED;
    }
    if (skip)
        munmap(room, skip);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t end = (n_bytes + page - 1) / page * page;
    if (span > skip + end)
        munmap(room + skip + end, span - skip - end);
    madvise(at, n_bytes, MADV_HUGEPAGE); /* a request; huge_bytes shows the result */
    return at;
}

/* Since Linux 6.1. Unlike MADV_HUGEPAGE, it needs no system setting, which for shared memory is
 * "never" by default. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

void loader_memory_make_huge(const struct loader_memory *memory, uint64_t begin, uint64_t n_bytes)
{
    uint64_t whole = memory->n_bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    uint64_t end = begin + n_bytes < whole ? begin + n_bytes : whole;
    /* An empty range is not collapsed, so a byte is written first. The kernel copies one small page
     * and zeroes the rest. */
    for (uint64_t at = begin; at < end; at += HUGE_PAGE_BYTES)
        *(volatile unsigned char *)(memory->base + at) = 0;
    if (begin < end)
        madvise(memory->base + begin, end - begin,
                MADV_COLLAPSE); /* a request: the kernel may refuse */
}

uint64_t loader_memory_bytes(const struct rank_plan *plan)
{
    return plan->weights_bytes + (plan->header_bytes ? 0 : PLAN_HEADER_BYTES);
}

int loader_memory_init(struct loader_memory *memory, const struct rank_plan *plan, int fd,
                       struct error *err)
{
    *memory = (struct loader_memory){.fd = -1, .n_bytes = loader_memory_bytes(plan)};
    memory->fd = fd < 0 ? memfd_create("sluice-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                        : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (memory->fd < 0)
        return error_errno(err, errno, "creating memory for packed weights");
    if (ftruncate(memory->fd, (off_t)memory->n_bytes) != 0)
        return error_errno(err, errno, "allocating %" PRIu64 " bytes for packed weights",
                           memory->n_bytes);
    void *base = map_aligned(memory->fd, memory->n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED);
    if (base == MAP_FAILED)
        return error_errno(err, errno, "mapping %" PRIu64 " bytes of packed weights",
                           memory->n_bytes);
    memory->base = base;
    return 0;
}

void loader_memory_fini(struct loader_memory *memory)
{
    if (memory->base)
        munmap(memory->base, memory->n_bytes);
    if (memory->fd >= 0)
        close(memory->fd);
    *memory = (struct loader_memory){.fd = -1};
}

/* Bytes of the mapping at `base` in huge pages, according to /proc/self/smaps; 0 if that file
 * cannot be read. Reading costs the pages of all mappings before it. So a mapping too small for a
 * huge page is not looked up. */
static uint64_t huge_bytes_at(const void *base, uint64_t n_bytes)
{
    FILE *file = n_bytes < HUGE_PAGE_BYTES ? NULL : fopen("/proc/self/smaps", "re");
    char line[256];
    uint64_t total_kib = 0;
    bool inside = false;
    if (!file)
        return 0;
    while (fgets(line, sizeof(line), file)) {
        char *rest;
        unsigned long long number = strtoull(line, &rest, 16);
        if (*rest == '-' && rest != line) {
            if (inside)
                break;
            inside = number == (uintptr_t)base;
        } else if (inside && (strncmp(line, "ShmemPmdMapped:", 15) == 0 ||
                              strncmp(line, "FilePmdMapped:", 14) == 0)) {
            total_kib += strtoull(strchr(line, ':') + 1, NULL, 10);
        }
    }
    fclose(file);
    return total_kib * 1024;
}

static int map_readonly(int fd, uint64_t n_bytes, struct packed_weights *out_weights,
                        struct error *err)
{
    /* Kernels before 6.7 refuse a shared mapping of a write-sealed file even for reading. A private
     * mapping that is never written shows the same pages. */
    void *base = map_aligned(fd, n_bytes, PROT_READ, MAP_SHARED);
    if (base == MAP_FAILED)
        base = map_aligned(fd, n_bytes, PROT_READ, MAP_PRIVATE);
    if (base == MAP_FAILED)
        return error_errno(err, errno, "mapping %" PRIu64 " bytes of packed weights", n_bytes);
#ifdef MADV_POPULATE_READ
    madvise(base, n_bytes, MADV_POPULATE_READ); /* no faults in the first steps */
#endif
    *out_weights = (struct packed_weights){
        .fd = fd, .base = base, .n_bytes = n_bytes, .huge_bytes = huge_bytes_at(base, n_bytes)};
    return 0;
}

int loader_memory_seal(struct loader_memory *memory, const struct rank_plan *plan,
                       struct error *err)
{
    struct packed_header *header = (struct packed_header *)(void *)memory->base;
    memcpy(header->magic, LOADER_MAGIC, LOADER_MAGIC_BYTES);
    header->version = LOADER_VERSION;
    header->n_weights = plan->n_places;
    header->total_bytes = memory->n_bytes;
    memcpy(header->digest, plan->digest, SHA256_BYTES);
    /* The write seal is refused while a writable mapping exists. */
    munmap(memory->base, memory->n_bytes);
    memory->base = NULL;
    if (fcntl(memory->fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) != 0)
        return error_errno(err, errno, "sealing the packed weights");
    return 0;
}

int loader_memory_map(struct loader_memory *memory, struct packed_weights *out_weights,
                      struct error *err)
{
    int rc = map_readonly(memory->fd, memory->n_bytes, out_weights, err);
    if (rc == 0)
        memory->fd = -1;
    return rc;
}

static int mismatch(struct error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static int mismatch(struct error *err, const char *format, ...)
{
    char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    error_set(err, STATUS_FAILED_PRECONDITION, "packed weights: %s", text);
    return error_reason(err, REASON_PACKED_MISMATCH);
}

int loader_memory_check(int fd, const struct rank_plan *plan, struct error *err)
{
    struct packed_header header;
    struct stat st;
    uint64_t n_bytes = loader_memory_bytes(plan);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0)
        return mismatch(err, "not a memfd");
    if ((seals & SEALS) != SEALS)
        return mismatch(err, "not sealed: seals 0x%x, expected 0x%x", seals, SEALS);
    if (fstat(fd, &st) != 0)
        return error_errno(err, errno, "packed weights");
    if (st.st_size < 0 || (uint64_t)st.st_size != n_bytes)
        return mismatch(err, "%lld bytes, expected %" PRIu64, (long long)st.st_size, n_bytes);
    if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
        return mismatch(err, "header cannot be read");
    if (memcmp(header.magic, LOADER_MAGIC, LOADER_MAGIC_BYTES) != 0)
        return mismatch(err, "offset 0: no packed header");
    if (header.version != LOADER_VERSION)
        return mismatch(err, "version %u, expected %d", header.version, LOADER_VERSION);
    if (header.total_bytes != n_bytes || header.n_weights != plan->n_places)
        return mismatch(err, "%u weights in %" PRIu64 " bytes, expected %u in %" PRIu64,
                        header.n_weights, header.total_bytes, plan->n_places, n_bytes);
    if (memcmp(header.digest, plan->digest, SHA256_BYTES) != 0)
        return mismatch(err, "the weights belong to another checkpoint, kernel set or rank");
    return 0;
}

int loader_map_sealed(int fd, const struct rank_plan *plan, struct packed_weights *out_weights,
                      struct error *err)
{
    int rc = loader_memory_check(fd, plan, err);
    return rc ? rc : map_readonly(fd, loader_memory_bytes(plan), out_weights, err);
}

void loader_unmap(struct packed_weights *weights)
{
    if (!weights->base)
        return;
    /* munmap() takes a pointer to non-const, but does not write. */
    munmap((void *)(uintptr_t)weights->base, weights->n_bytes);
    close(weights->fd);
    *weights = (struct packed_weights){.fd = -1};
}

const struct weight *loader_weight(const struct packed_weights *weights,
                                   const struct weight_place *place)
{
    const unsigned char *at = (const unsigned char *)weights->base + place->offset_bytes;
    return (const struct weight *)(const void *)at;
}
