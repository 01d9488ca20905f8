/* simt_fiber.h: fibers, whose stacks alternate on one OS thread. Each switch is reported to the
 * sanitizers. */
#pragma once

#include <stddef.h>

struct simt_fiber {
    void *context; /* saved registers while another fiber runs */
    void *stack;   /* lowest address */
    size_t n_bytes;
    void *sanitizer;         /* the sanitizer's data of this stack */
    struct simt_fiber *next; /* for the owner's use */
};

/* Makes a fiber of the OS thread's own stack. Call before the first switch away from that stack. */
void simt_fiber_init_native(struct simt_fiber *fiber);
void simt_fiber_fini_native(struct simt_fiber *fiber);
/* Creates a fiber whose first turn calls entry(), which never returns. `color` spreads the used
 * ends of the stacks over the cache's sets. Aborts without memory. */
struct simt_fiber *simt_fiber_create(void (*entry)(void), unsigned color);
void simt_fiber_destroy(struct simt_fiber *fiber);
/* Gives `to` its turn. Returns at the next turn of `from`. */
void simt_fiber_switch(struct simt_fiber *from, struct simt_fiber *to);
/* Call first in a fiber's entry. */
void simt_fiber_begin(void);
