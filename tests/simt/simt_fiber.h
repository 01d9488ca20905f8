/* simt_fiber.h: fibers, whose stacks alternate on one OS thread. Each switch is reported to the
 * sanitizers. */
#pragma once

#include <stddef.h>

struct simt_fiber {
    void *context; /* saved registers while another runs */
    void *stack;   /* lowest address */
    size_t n_bytes;
    void *sanitizer;         /* its own of this stack */
    struct simt_fiber *next; /* free for the owner */
};

/* The OS thread's own stack as a fiber, before the first switch away from it. */
void simt_fiber_init_native(struct simt_fiber *fiber);
void simt_fiber_fini_native(struct simt_fiber *fiber);
/* A fiber whose first turn calls entry(), which never returns. `color` spreads the stacks' hot ends
 * over the cache's sets. Aborts where there is no memory. */
struct simt_fiber *simt_fiber_create(void (*entry)(void), unsigned color);
void simt_fiber_destroy(struct simt_fiber *fiber);
/* Gives `to` its turn; returns at from's next turn. */
void simt_fiber_switch(struct simt_fiber *from, struct simt_fiber *to);
/* To be called first in a fiber's entry. */
void simt_fiber_begin(void);
