/* A grid's blocks over OS threads: the caller's, and helpers that all grids share. */
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "tests/simt/simt_processor.h"

struct work {
    const simt_grid *grid;
    uint64_t n_blocks, seed, step, first; /* block i of the order is number (first + i·step) */
    const uint64_t *begun;                /* this one has begun elsewhere; NULL: none */
    std::atomic<uint64_t> next{0};
    unsigned n_helpers = 0;
    work *after = NULL;
};

/* Never destroyed: threads may still wait here as the process ends. */
struct pool {
    std::mutex lock;
    std::condition_variable offered, left;
    work *list = NULL;
    bool begun = false;
};

static pool *the_pool(void)
{
    static pool *p = new pool;
    return p;
}

static uint64_t shuffle_seed(void)
{
    static const uint64_t seed = [] {
        const char *text = getenv("SIMT_SHUFFLE");
        return text != NULL ? strtoull(text, NULL, 10) : 0;
    }();
    return seed;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint64_t simt_block_seed(uint64_t number)
{
    return shuffle_seed() != 0 ? mix(shuffle_seed() + number) | 1 : 0;
}

static void run_blocks(work *w)
{
    simt_processor *p = simt_tls.processor;
    if (w->next.load(std::memory_order_relaxed) >= w->n_blocks)
        return;
    simt_processor_begin(p, w->grid);
    for (uint64_t i; (i = w->next.fetch_add(1)) < w->n_blocks;) {
        uint64_t number = (w->first + i * w->step) % w->n_blocks;
        if (w->begun != NULL && number == *w->begun)
            continue;
        simt_processor_run(p, number, w->seed != 0 ? mix(w->seed + number) | 1 : 0);
    }
    simt_processor_end(p);
}

static void help(void)
{
    pool *all = the_pool();
    simt_processor_create();
    std::unique_lock<std::mutex> hold(all->lock);
    for (;;) {
        work *w = all->list;
        while (w != NULL && w->next.load() >= w->n_blocks)
            w = w->after;
        if (w == NULL) {
            all->offered.wait(hold);
            continue;
        }
        w->n_helpers++;
        hold.unlock();
        run_blocks(w);
        hold.lock();
        w->n_helpers--;
        all->left.notify_all();
    }
}

static unsigned n_threads_wanted(void)
{
    const char *text = getenv("SIMT_THREADS");
    long n = text != NULL ? strtol(text, NULL, 10) : sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > 16 ? 16 : (unsigned)n;
}

static void offer(pool *all, work *w)
{
    std::lock_guard<std::mutex> hold(all->lock);
    if (!all->begun)
        for (unsigned i = 1, n = n_threads_wanted(); i < n; i++)
            std::thread(help).detach();
    all->begun = true;
    w->after = all->list;
    all->list = w;
    all->offered.notify_all();
}

static void withdraw(pool *all, work *w)
{
    std::unique_lock<std::mutex> hold(all->lock);
    work **at = &all->list;
    while (*at != w)
        at = &(*at)->after;
    *at = w->after;
    all->left.wait(hold, [w] { return w->n_helpers == 0; });
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    return b == 0 ? a : common_divisor(b, a % b);
}

void simt_run_grid(const simt_grid *grid, const uint64_t *begun)
{
    if (simt_tls.processor == NULL)
        simt_processor_create();
    static std::atomic<uint64_t> n_grids{0};
    work w;
    w.grid = grid;
    w.begun = begun;
    w.n_blocks = (uint64_t)grid->grid_dim.x * grid->grid_dim.y * grid->grid_dim.z;
    w.seed = shuffle_seed() != 0 ? mix(shuffle_seed() + (n_grids++ << 32)) | 1 : 0;
    w.first = w.seed % w.n_blocks;
    w.step = 1;
    if (w.seed != 0 && w.n_blocks > 2)
        for (w.step = (w.seed >> 32) % w.n_blocks; common_divisor(w.step, w.n_blocks) != 1;)
            w.step++;
    pool *all = the_pool();
    if (w.n_blocks > 1)
        offer(all, &w);
    run_blocks(&w);
    if (w.n_blocks > 1)
        withdraw(all, &w);
}
