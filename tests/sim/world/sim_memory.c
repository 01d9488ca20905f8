/* sim_memory.c: allocations of the manager's own objects, one of which fails on request. The linker
 * redirects them here (--wrap). Allocations of the libraries below are not redirected. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t n_bytes);
void *__real_realloc(void *at, size_t n);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t n_bytes);
void *__wrap_realloc(void *at, size_t n);
char *__wrap_strdup(const char *text);

static bool fails(void)
{
    if (!sim.in_manager || sim.dead || !sim.memory_in || --sim.memory_in)
        return false;
    if (sim.n_more_memory) {
        sim.n_more_memory--;
        sim.memory_in = 1 + (uint32_t)sim_below(20);
    }
    sim.stats.n_no_memory++;
    sim.memory_failed = true;
    return true;
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t n_bytes)
{
    return fails() ? NULL : __real_calloc(n, n_bytes);
}

void *__wrap_realloc(void *at, size_t n)
{
    return fails() ? NULL : __real_realloc(at, n);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}
