#include "base/system/heap.h"

#include <malloc.h>

#include "base/clock.h"

void heap_bound(uint64_t n_threads)
{
    mallopt(M_ARENA_MAX, (int)n_threads);
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
}

bool heap_watch(struct heap_watch *watch, uint64_t n_live, uint64_t n_accepted, int64_t now_ns)
{
    uint64_t n = n_live + n_accepted - watch->n_accepted;
    watch->n_accepted = n_accepted;
    if (n > watch->most)
        watch->most = n;
    if (n > watch->most / 4)
        watch->high_ns = now_ns;
    if (watch->most < HEAP_FLOOD || now_ns - watch->high_ns < HEAP_CALM_MS * NS_PER_MS)
        return false;
    watch->most = n;
    malloc_trim(0);
    return true;
}
