/* Barriers in shared memory and numbered barriers, for some warps of a block. */
#include "tests/simt/simt_barrier.h"

/* --- barriers in shared memory: a 64-bit word --- */

enum { MARK = 0xBA };

struct word {
    uint16_t expected, pending; /* arrivals of a phase; those that are missing */
    uint8_t parity, mark;       /* parity of the present phase; MARK: a barrier */
    uint16_t unused;
};
static_assert(sizeof(word) == sizeof(uint64_t), "a barrier has 64 bits");

static word load(const char *what, const uint64_t *barrier)
{
    word w;
    if ((uintptr_t)barrier % 8 != 0 || !simt_is_shared(barrier, 8))
        simt_fail("%s: %p is no 64-bit word of the block's shared memory", what,
                  (const void *)barrier);
    memcpy(&w, barrier, sizeof(w));
    return w;
}

static word load_barrier(const char *what, const uint64_t *barrier)
{
    word w = load(what, barrier);
    if (w.mark != MARK)
        simt_fail("%s before barrier_init", what);
    return w;
}

void barrier_init(uint64_t *barrier, uint32_t n_arrivals)
{
    word w = load("barrier_init", barrier);
    if (n_arrivals == 0 || n_arrivals > SIMT_MAX_THREADS)
        simt_fail("barrier_init: %u arrivals", n_arrivals);
    w = {(uint16_t)n_arrivals, (uint16_t)n_arrivals, 0, MARK, 0};
    memcpy(barrier, &w, sizeof(w));
}

void barrier_arrive(uint64_t *barrier)
{
    word w = load_barrier("barrier_arrive", barrier);
    bool ends = --w.pending == 0;
    if (ends) {
        w.pending = w.expected;
        w.parity ^= 1;
    }
    memcpy(barrier, &w, sizeof(w));
    if (ends)
        simt_wake();
}

void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    while (load_barrier("barrier_wait", barrier).parity == (parity & 1))
        simt_sleep("barrier_wait");
}

/* --- numbered barriers --- */

/* Counts a thread of a round; returns true if the thread is the round's last. */
static bool arrive(const char *what, uint32_t number, uint32_t n_threads)
{
    if (number >= 16 || n_threads == 0 || n_threads % SIMT_WARP != 0)
        simt_fail("%s: barrier %u of %u threads", what, number, n_threads);
    simt_named_barrier *b = &simt_tls.block->named[number];
    if (b->n_threads != 0 && b->n_threads != n_threads)
        simt_fail("%s: barrier %u of %u threads, but others gave %u", what, number, n_threads,
                  b->n_threads);
    b->n_threads = n_threads;
    if (++b->n_arrived < n_threads)
        return false;
    b->n_threads = b->n_arrived = 0;
    b->round++;
    simt_wake();
    return true;
}

void warps_sync(uint32_t number, uint32_t n_threads)
{
    const simt_named_barrier *b = &simt_tls.block->named[number % 16];
    uint64_t round = b->round;
    if (arrive("warps_sync", number, n_threads))
        return;
    while (b->round == round)
        simt_sleep("warps_sync");
}

void warps_arrive(uint32_t number, uint32_t n_threads)
{
    arrive("warps_arrive", number, n_threads);
}
