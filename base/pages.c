#include "base/pages.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

void pages_touch(void *base, size_t n_bytes)
{
#ifdef MADV_POPULATE_WRITE
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)base + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)base + n_bytes) & ~(page - 1);
    if (end > begin)
        madvise((unsigned char *)base + (begin - (uintptr_t)base), end - begin,
                MADV_POPULATE_WRITE);
#else
    (void)base;
    (void)n_bytes;
#endif
}
