/* count_allocations.h: counts the allocations of a test program. The header defines malloc and the
 * other allocators; under sanitizers a hook counts. Include it in one file of the program, and call
 * start_counting() first. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

static atomic_uint n_allocations;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));

static void on_malloc(const volatile void *p, size_t n)
{
    (void)p;
    (void)n;
    atomic_fetch_add(&n_allocations, 1);
}

static void on_free(const volatile void *p)
{
    (void)p;
}

static void start_counting(void)
{
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
}
#else
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

void *malloc(size_t n)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_memalign(align, n);
}

static void start_counting(void)
{
}
#endif
