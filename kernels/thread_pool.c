#include "kernels/thread_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/system/cpu.h"
#include "base/system/cpus.h"
#include "kernels/futex.h"

enum {
    /* Longer than the gaps between the ops of a step, shorter than the gaps between requests. */
    SPIN_NS = 50000,
    SPIN_NS_OVERCOMMITTED = 1000,
    SPINS_PER_CLOCK = 32,
    FETCH_BYTES = 256 * 1024, /* per member and forecast: a part of the smallest L2 */
    FETCH_ONCE = 512,
    MAX_THREADS = 1024,
    MAX_ITEMS = 0xFFFF, /* per round: begin and end of a run have 16 bits each */
    CACHE_LINE = 64,
};

/* The shared state of a member, in its own cache line. The caller and members that take items write
 * it. */
struct place {
    /* Epoch in the high half; then the first remaining item and the end of the run, 16 bits each. A
     * compare-and-swap of either end claims that item. The epoch keeps a late member from claiming
     * items of the next job. */
    _Alignas(CACHE_LINE) _Atomic uint64_t run;
    _Atomic uint32_t epoch;  /* counts jobs; a change wakes the member */
    _Atomic uint32_t sleeps; /* 1: the member is in the futex, or about to enter it */
};

struct member {
    struct thread_pool *pool;
    pthread_t thread;
    uint32_t index;
};

/* The memory that the next job will read. A torn read of the fields is harmless, because
 * prefetching never faults. */
struct forecast {
    _Alignas(CACHE_LINE) _Atomic uint32_t serial; /* counts forecasts */
    _Atomic uint32_t n_ranges;
    _Atomic uintptr_t data[THREAD_POOL_MAX_RANGES];
    _Atomic size_t n_bytes[THREAD_POOL_MAX_RANGES];
};

/* A member's progress in prefetching. */
struct fetching {
    uint32_t serial, n_ranges;
    size_t at, end; /* byte offsets in the concatenation of the ranges */
    uintptr_t data[THREAD_POOL_MAX_RANGES];
    size_t n_bytes[THREAD_POOL_MAX_RANGES];
};

struct thread_pool {
    uint32_t n_threads, spin_ns;
    atomic_bool stop;       /* atomic, because a late member may read it while it is set */
    struct place *places;   /* [n_threads] */
    struct member *members; /* [n_threads - 1] */
    _Alignas(CACHE_LINE) struct fetching caller_fetching;
    /* The current job. A member reads these fields only after it has claimed an item, and they
     * change only when all items are done. */
    _Alignas(CACHE_LINE) thread_pool_item_fn *fn;
    void *job;
    uint32_t first_item;                          /* first item of the current round */
    uint32_t epoch;                               /* the current epoch; caller only */
    _Alignas(CACHE_LINE) _Atomic uint32_t n_left; /* items not done */
    _Atomic uint32_t caller_sleeps;
    struct forecast forecast;
};

static uint64_t run_of(uint32_t epoch, uint32_t begin, uint32_t end)
{
    return (uint64_t)epoch << 32 | begin << 16 | end;
}

/* Claims the first item (or the last) of the run at `place`. Returns false if the run is empty or
 * belongs to another epoch. */
static bool claim(struct place *place, uint32_t epoch, bool first, uint32_t *out_item)
{
    uint64_t run = atomic_load_explicit(&place->run, memory_order_relaxed);
    for (;;) {
        uint32_t begin = (uint32_t)run >> 16, end = (uint32_t)run & MAX_ITEMS;
        if (run >> 32 != epoch || begin >= end)
            return false;
        *out_item = first ? begin : end - 1;
        if (atomic_compare_exchange_weak_explicit(&place->run, &run,
                                                  first ? run_of(epoch, begin + 1, end)
                                                        : run_of(epoch, begin, end - 1),
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    }
}

/* Runs items of the epoch's job until no item is left to claim. */
static void run_items(struct thread_pool *pool, uint32_t index, uint32_t epoch)
{
    uint32_t n_done = 0, item;
    for (uint32_t i = 0; i < pool->n_threads; i++) {
        uint32_t victim = index + i < pool->n_threads ? index + i : index + i - pool->n_threads;
        for (; claim(&pool->places[victim], epoch, i == 0, &item); n_done++)
            pool->fn(pool->job, pool->first_item + item, index);
    }
    if (n_done == 0)
        return;
    if (atomic_fetch_sub(&pool->n_left, n_done) == n_done && atomic_load(&pool->caller_sleeps))
        futex_wake_all(&pool->n_left);
}

/* Loads the newest forecast and starts at this member's share. */
static void start_fetching(struct thread_pool *pool, struct fetching *f, uint32_t index)
{
    struct forecast *forecast = &pool->forecast;
    size_t total = 0;
    f->n_ranges = atomic_load_explicit(&forecast->n_ranges, memory_order_relaxed);
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        f->data[i] = atomic_load_explicit(&forecast->data[i], memory_order_relaxed);
        f->n_bytes[i] = atomic_load_explicit(&forecast->n_bytes[i], memory_order_relaxed);
        total += f->n_bytes[i];
    }
    f->at = total / pool->n_threads * index;
    f->end = f->at + total / pool->n_threads;
    f->end = f->end - f->at < FETCH_BYTES ? f->end : f->at + FETCH_BYTES;
}

/* Prefetches the next FETCH_ONCE bytes for the next job, or pauses. */
static void prefetch_or_pause(struct thread_pool *pool, struct fetching *f, uint32_t index)
{
    uint32_t serial = atomic_load_explicit(&pool->forecast.serial, memory_order_acquire);
    if (serial != f->serial) {
        f->serial = serial;
        start_fetching(pool, f, index);
    }
    if (f->at >= f->end) {
        __builtin_ia32_pause();
        return;
    }
    size_t at = f->at;
    f->at += FETCH_ONCE;
    for (uint32_t i = 0; i < f->n_ranges; i++) {
        if (at >= f->n_bytes[i]) {
            at -= f->n_bytes[i];
            continue;
        }
        for (uint32_t line = 0; line < FETCH_ONCE; line += CACHE_LINE)
            __builtin_prefetch((const void *)(f->data[i] + at + line), 0, 2);
        return;
    }
}

/* Waits until *word is not `old`, or with `until_zero` until it is 0, and prefetches meanwhile.
 * Returns false when spin_ns have passed. */
static bool spin(struct thread_pool *pool, _Atomic uint32_t *word, uint32_t old, bool until_zero,
                 struct fetching *fetching, uint32_t index)
{
    int64_t end = 0;
    for (uint32_t i = 1;; i++) {
        uint32_t now = atomic_load_explicit(word, memory_order_acquire);
        if (until_zero ? now == 0 : now != old)
            return true;
        prefetch_or_pause(pool, fetching, index);
        if (i % SPINS_PER_CLOCK != 0)
            continue;
        int64_t time = clock_now_ns();
        if (end == 0)
            end = time + pool->spin_ns;
        else if (time >= end)
            return false;
    }
}

static uint32_t wait_for_epoch(struct thread_pool *pool, struct place *place, uint32_t old,
                               struct fetching *fetching, uint32_t index)
{
    if (!spin(pool, &place->epoch, old, false, fetching, index)) {
        for (;;) {
            atomic_store(&place->sleeps, 1);
            if (atomic_load(&place->epoch) != old)
                break;
            futex_wait(&place->sleeps, 1);
        }
    }
    return atomic_load_explicit(&place->epoch, memory_order_acquire);
}

static void *member_main(void *arg)
{
    struct member *member = arg;
    struct thread_pool *pool = member->pool;
    struct place *place = &pool->places[member->index];
    struct fetching fetching = {0};
    uint32_t epoch = 0;
    pthread_setname_np(pthread_self(), "sluice-compute");
    for (;;) {
        epoch = wait_for_epoch(pool, place, epoch, &fetching, member->index);
        if (pool->stop)
            return NULL;
        run_items(pool, member->index, epoch);
    }
}

static void post_epoch(struct place *place, uint32_t epoch)
{
    atomic_store(&place->epoch,
                 epoch); /* sequentially consistent: ordered with the load of `sleeps` */
    if (atomic_load(&place->sleeps) && atomic_exchange(&place->sleeps, 0))
        futex_wake_all(&place->sleeps); /* a single wake is enough, however late the member runs */
}

static void wait_for_items(struct thread_pool *pool)
{
    if (atomic_load_explicit(&pool->n_left, memory_order_acquire) == 0 ||
        spin(pool, &pool->n_left, 0, true, &pool->caller_fetching, 0))
        return;
    atomic_store(&pool->caller_sleeps, 1);
    for (uint32_t left; (left = atomic_load(&pool->n_left)) != 0;)
        futex_wait(&pool->n_left, left);
    atomic_store(&pool->caller_sleeps, 0);
}

int thread_pool_create(uint32_t n_threads, struct thread_pool **out_pool, struct error *err)
{
    if (n_threads == 0 || n_threads > MAX_THREADS)
        return error_set(err, STATUS_INVALID_ARGUMENT, "thread pool: %u threads, limit 1..%d",
                         n_threads, MAX_THREADS);
    struct thread_pool *pool = aligned_alloc(CACHE_LINE, sizeof(*pool));
    struct place *places = aligned_alloc(CACHE_LINE, n_threads * sizeof(*places));
    struct member *members = calloc(n_threads, sizeof(*members));
    if (pool == NULL || places == NULL || members == NULL) {
        free(pool);
        free(places);
        free(members);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "thread pool: out of memory");
    }
    *pool = (struct thread_pool){
        .n_threads = 1,
        .spin_ns = n_threads <= (uint32_t)cpu_count() ? SPIN_NS : SPIN_NS_OVERCOMMITTED,
        .places = places,
        .members = members,
    };
    for (uint32_t i = 0; i < n_threads; i++)
        places[i] = (struct place){0};
    uint32_t n_started = 1;
    for (int rc = 0; n_started < n_threads; n_started++) {
        struct member *member = &members[n_started - 1];
        *member = (struct member){.pool = pool, .index = n_started};
        rc = pthread_create(&member->thread, NULL, member_main, member);
        if (rc != 0) {
            pool->n_threads = n_started;
            thread_pool_destroy(pool);
            return error_errno(err, rc, "thread pool: thread %u of %u", n_started, n_threads);
        }
    }
    pool->n_threads = n_threads;
    *out_pool = pool;
    return 0;
}

void thread_pool_destroy(struct thread_pool *pool)
{
    if (pool == NULL)
        return;
    pool->stop = true;
    pool->epoch++;
    for (uint32_t i = 1; i < pool->n_threads; i++)
        post_epoch(&pool->places[i], pool->epoch);
    for (uint32_t i = 1; i < pool->n_threads; i++)
        pthread_join(pool->members[i - 1].thread, NULL);
    free(pool->places);
    free(pool->members);
    free(pool);
}

uint32_t thread_pool_size(const struct thread_pool *pool)
{
    return pool->n_threads;
}

int thread_pool_confine(struct thread_pool *pool, const struct cpus *cpus, struct error *err)
{
    int rc = 0;
    for (uint32_t i = 1; i < pool->n_threads && rc == 0; i++)
        rc = cpus_confine_thread(pool->members[i - 1].thread, &cpus[i], err);
    return rc;
}

/* Runs items [first, first + n), n ≤ MAX_ITEMS. */
static void run_round(struct thread_pool *pool, uint32_t first, uint32_t n)
{
    uint32_t n_active = n < pool->n_threads ? n : pool->n_threads;
    uint32_t epoch = ++pool->epoch;
    pool->first_item = first;
    atomic_store_explicit(&pool->n_left, n, memory_order_relaxed);
    for (uint32_t i = 0; i < n_active; i++) {
        uint32_t begin, end;
        thread_pool_share(n, 1, i, n_active, &begin, &end);
        atomic_store_explicit(&pool->places[i].run, run_of(epoch, begin, end),
                              memory_order_release);
    }
    for (uint32_t i = 1; i < n_active; i++)
        post_epoch(&pool->places[i], epoch);
    run_items(pool, 0, epoch);
    wait_for_items(pool);
}

void thread_pool_run_items(struct thread_pool *pool, uint32_t n_items, thread_pool_item_fn *fn,
                           void *job)
{
    if (pool->n_threads == 1 || n_items == 1) {
        for (uint32_t i = 0; i < n_items; i++)
            fn(job, i, 0);
        return;
    }
    pool->fn = fn;
    pool->job = job;
    for (uint32_t first = 0; first < n_items;) {
        uint32_t n = n_items - first < MAX_ITEMS ? n_items - first : MAX_ITEMS;
        run_round(pool, first, n);
        first += n;
    }
}

struct share_job {
    thread_pool_fn *fn;
    void *job;
    uint32_t n_threads;
};

static void run_share(void *arg, uint32_t item, uint32_t member)
{
    const struct share_job *share = arg;
    (void)member;
    share->fn(share->job, item, share->n_threads);
}

void thread_pool_run(struct thread_pool *pool, thread_pool_fn *fn, void *job)
{
    struct share_job share = {fn, job, pool->n_threads};
    thread_pool_run_items(pool, pool->n_threads, run_share, &share);
}

void thread_pool_will_read(struct thread_pool *pool, const struct thread_pool_range *ranges,
                           uint32_t n)
{
    struct forecast *forecast = &pool->forecast;
    if (pool->n_threads == 1)
        return;
    n = n < THREAD_POOL_MAX_RANGES ? n : THREAD_POOL_MAX_RANGES;
    for (uint32_t i = 0; i < n; i++) {
        atomic_store_explicit(&forecast->data[i], (uintptr_t)ranges[i].data, memory_order_relaxed);
        atomic_store_explicit(&forecast->n_bytes[i], ranges[i].n_bytes, memory_order_relaxed);
    }
    atomic_store_explicit(&forecast->n_ranges, n, memory_order_relaxed);
    atomic_fetch_add_explicit(&forecast->serial, 1, memory_order_release);
}

void thread_pool_share(uint32_t n, uint32_t grain, uint32_t index, uint32_t n_threads,
                       uint32_t *out_begin, uint32_t *out_end)
{
    uint64_t n_grains = n / grain;
    uint64_t begin = n_grains * index / n_threads * grain,
             end = n_grains * (index + 1) / n_threads * grain;
    *out_begin = (uint32_t)begin;
    *out_end = index + 1 == n_threads ? n : (uint32_t)end;
}
