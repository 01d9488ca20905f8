/* Barriers in shared memory and numbered barriers, for some warps of a block. */
#include "tests/simt/simt_barrier.h"

#include "tests/simt/simt_tma.h"

/* --- barriers in shared memory: a 64-bit word --- */

enum { MARK = 0xBA };

struct word {
    /* arrivals that a phase needs, and arrivals that are still missing */
    uint16_t expected, pending;
    uint8_t parity, mark; /* parity of the present phase; MARK: a barrier */
    int16_t pieces;       /* expected bytes that have not arrived, in units of 16 */
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
    simt_tls.self->new_barriers.push_back(barrier);
}

/* Counts arrivals and expected bytes of the phase under way. */
static void count(const char *what, uint64_t *barrier, uint32_t n_arrivals, int32_t n_bytes)
{
    word w = load_barrier(what, barrier);
    int32_t pieces = w.pieces + n_bytes / 16;
    if (n_bytes % 16 != 0 || pieces > INT16_MAX || pieces < INT16_MIN)
        simt_fail("%s: %d bytes", what, n_bytes);
    if (n_arrivals > w.pending)
        simt_fail("%s: more than the %u arrivals of a phase", what, w.expected);
    w.pending = (uint16_t)(w.pending - n_arrivals);
    w.pieces = (int16_t)pieces;
    bool ends = w.pending == 0 && w.pieces == 0;
    if (ends) {
        w.pending = w.expected;
        w.parity ^= 1;
    }
    memcpy(barrier, &w, sizeof(w));
    if (ends)
        simt_wake();
}

void barrier_arrive(uint64_t *barrier)
{
    count("barrier_arrive", barrier, 1, 0);
}

void tma_expect(uint64_t *barrier, uint32_t n_bytes)
{
    count("tma_expect", barrier, 1, (int32_t)n_bytes);
}

void simt_barrier_bytes(uint64_t *barrier, uint32_t n_bytes)
{
    count("tma_fetch", barrier, 0, -(int32_t)n_bytes);
}

void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    while (load_barrier("barrier_wait", barrier).parity == (parity & 1))
        if (!simt_tma_deliver(barrier))
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
