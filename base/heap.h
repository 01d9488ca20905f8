/* heap.h: what a flood of calls or connections needed for a moment goes back to the system.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* As many heaps as threads that serve: with glibc's default of eight a core, what a flood needed
 * for a moment stays in each of gRPC's threads' (35 MiB instead of 7 after 50,000 resets). And what
 * is large goes back when it is freed: glibc would raise the threshold with each large message.
 * Before any other thread. */
void heap_bound(uint64_t n_threads);

/* Zero at first. One thread. */
struct heap_watch {
    uint64_t n_accepted, most; /* at the last look; at one look since memory was given back */
    int64_t high_ns;
};

enum { HEAP_FLOOD = 64, HEAP_CALM_MS = 2000 };

/* Now and then, with the calls that are live and those accepted since the start, or, for a watch of
 * their own, with the connections that are open and 0: once two seconds have passed in which a look
 * saw at most a quarter of the calls, live or new, that one had seen before (HEAP_FLOOD at least),
 * free pages are given back (malloc_trim: each heap's lock is held for the time of a walk over what
 * is free). Returns whether they were. */
bool heap_watch(struct heap_watch *watch, uint64_t n_live, uint64_t n_accepted, int64_t now_ns);
