#include "tests/simt/simt_fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT
#endif
#ifdef SIMT_UCONTEXT
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

/* Sanitized frames are several times as large. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
enum { STACK_BYTES = 256 << 10 };
#else
enum { STACK_BYTES = 64 << 10 };
#endif
enum { GUARD_BYTES = 4096, COLORS = 32, COLOR_BYTES = 128 };

#ifndef SIMT_UCONTEXT
/* Registers that a callee keeps; the others are dead across a call. MXCSR and the x87 control word
 * are never changed. */
extern "C" void simt_switch_stacks(void **save, void *load);
asm(R"(
.text
.type simt_switch_stacks, @function
.hidden simt_switch_stacks
.globl simt_switch_stacks
simt_switch_stacks:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size simt_switch_stacks, . - simt_switch_stacks
)");
#endif

void simt_fiber_init_native(struct simt_fiber *fiber)
{
    *fiber = {};
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &fiber->stack, &fiber->n_bytes);
        pthread_attr_destroy(&attributes);
    }
#ifdef SIMT_UCONTEXT
    fiber->context = calloc(1, sizeof(ucontext_t));
#endif
#ifdef __SANITIZE_THREAD__
    fiber->sanitizer = __tsan_get_current_fiber();
#endif
}

struct simt_fiber *simt_fiber_create(void (*entry)(void), unsigned color)
{
    struct simt_fiber *fiber = (struct simt_fiber *)calloc(1, sizeof(*fiber));
    void *mapped = mmap(NULL, STACK_BYTES + GUARD_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fiber == NULL || mapped == MAP_FAILED || mprotect(mapped, GUARD_BYTES, PROT_NONE) != 0) {
        perror("simt: no memory for a thread's stack");
        abort();
    }
    fiber->stack = (unsigned char *)mapped + GUARD_BYTES;
    fiber->n_bytes = STACK_BYTES;
    size_t usable = STACK_BYTES - (size_t)(color % COLORS) * COLOR_BYTES;
#ifdef SIMT_UCONTEXT
    ucontext_t *context = (ucontext_t *)calloc(1, sizeof(*context));
    getcontext(context);
    context->uc_stack.ss_sp = fiber->stack;
    context->uc_stack.ss_size = usable;
    makecontext(context, entry, 0);
    fiber->context = context;
#else
    void **top = (void **)((unsigned char *)fiber->stack + usable);
    top[-1] = NULL; /* a return address, for the alignment and for stack walkers */
    top[-2] = (void *)entry;
    for (int i = 3; i <= 8; i++)
        top[-i] = NULL;
    fiber->context = top - 8;
#endif
#ifdef __SANITIZE_THREAD__
    fiber->sanitizer = __tsan_create_fiber(0);
#endif
    return fiber;
}

void simt_fiber_fini_native(struct simt_fiber *fiber)
{
#ifdef SIMT_UCONTEXT
    free(fiber->context);
#endif
    fiber->context = NULL;
}

void simt_fiber_destroy(struct simt_fiber *fiber)
{
#ifdef __SANITIZE_THREAD__
    __tsan_destroy_fiber(fiber->sanitizer);
#endif
#ifdef SIMT_UCONTEXT
    free(fiber->context);
#endif
    munmap((unsigned char *)fiber->stack - GUARD_BYTES, STACK_BYTES + GUARD_BYTES);
    free(fiber);
}

void simt_fiber_switch(struct simt_fiber *from, struct simt_fiber *to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&from->sanitizer, to->stack, to->n_bytes);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(to->sanitizer, 0);
#endif
#ifdef SIMT_UCONTEXT
    swapcontext((ucontext_t *)from->context, (ucontext_t *)to->context);
#else
    simt_switch_stacks(&from->context, to->context);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(from->sanitizer, NULL, NULL);
#endif
}

void simt_fiber_begin(void)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
}
