/* Runs a block on an OS thread: turns of its threads, barriers, exchanges, shared memory. */
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simt/simt_early.h"
#include "tests/simt/simt_fiber.h"
#include "tests/simt/simt_processor.h"

__thread struct simt_tls simt_tls;

static const char *const exchange_names[SIMT_N_EXCHANGES] = {
    "__syncwarp",    "__shfl_sync",  "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync",
    "__ballot_sync", "__match_sync", "__reduce_sync",  "mma bf16",         "mma f16",
    "mma e4m3",      "mma s8",       "mma u8s8",       "ldmatrix_x4",      "ldmatrix_x4_trans",
    "wgmma",         "wgmma_wait"};

/* Dynamic shared memory lies between two of these. */
enum { CANARY_BYTES = 256, CANARY = 0xC5, POISON = 0xFF };

struct warp {
    uint32_t lanes;   /* the warp's existing lanes */
    uint32_t ready;   /* lanes that may have the next turn */
    uint32_t arrived; /* lanes that have arrived at the exchange */
    enum simt_exchange_kind kind;
    void *operands[SIMT_WARP];
};

struct simt_processor {
    simt_fiber native;
    simt_fiber *running, *idle;
    unsigned n_fibers;
    simt_thread threads[SIMT_MAX_THREADS];
    warp warps[SIMT_MAX_WARPS];
    uint32_t ready_warps; /* warps with a ready lane */
    unsigned n_threads, n_ended, n_at_barrier, n_held;
    simt_early *early; /* NULL: the op before has ended */
    simt_block block;
    const simt_grid *grid;
    unsigned char *shared;  /* canary, dynamic shared memory, canary */
    unsigned char *statics; /* this module's thread-local memory */
    size_t n_static_bytes;
    uint64_t random; /* state of the random order of turns; 0: turns in order */
    /* number of unfenced copies to each 16 bytes of dynamic shared memory, and in all */
    uint32_t unfenced[SIMT_MAX_SHARED / 16];
    uint32_t n_unfenced;
};

/* --- messages --- */

static void describe(const simt_thread *t, char *out, size_t n_bytes)
{
    snprintf(out, n_bytes, "thread (%u,%u,%u)", t->thread_idx.x, t->thread_idx.y, t->thread_idx.z);
}

static void say_where(void)
{
    const simt_processor *p = simt_tls.processor;
    if (p == NULL || p->grid == NULL)
        return;
    fprintf(stderr, "  kernel %s, block (%u,%u,%u) of (%u,%u,%u)", p->grid->name,
            p->block.block_idx.x, p->block.block_idx.y, p->block.block_idx.z, p->block.grid_dim.x,
            p->block.grid_dim.y, p->block.grid_dim.z);
    if (simt_tls.self != NULL) {
        char name[64];
        describe(simt_tls.self, name, sizeof(name));
        fprintf(stderr, ", %s of (%u,%u,%u)", name, p->block.block_dim.x, p->block.block_dim.y,
                p->block.block_dim.z);
    }
    fprintf(stderr, "\n");
}

void simt_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "simt: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    say_where();
    abort();
}

/* Ends the process when no thread of the block can continue: prints what each thread waits for. */
[[noreturn]] static void deadlock(const simt_processor *p)
{
    fflush(stdout);
    fprintf(stderr, "simt: deadlock: %u threads wait at __syncthreads, %u have ended, %u in all\n",
            p->n_at_barrier, p->n_ended, p->n_threads);
    unsigned n_said = 0;
    for (unsigned i = 0; i < p->n_threads && n_said < 8; i++) {
        const simt_thread *t = &p->threads[i];
        char name[64];
        describe(t, name, sizeof(name));
        bool in_exchange = t->state == SIMT_IN_EXCHANGE;
        bool first = i == 0 || p->threads[i - 1].state != t->state;
        if (!in_exchange && !first)
            continue;
        fprintf(stderr, "  from %s: %s\n", name,
                in_exchange                   ? exchange_names[p->warps[t->warp].kind]
                : t->state == SIMT_AT_BARRIER ? "__syncthreads"
                : t->state == SIMT_SLEEPS     ? t->sleeps_for
                                              : "ended");
        n_said++;
    }
    for (unsigned w = 0; w * SIMT_WARP < p->n_threads; w++)
        if (p->warps[w].arrived != 0)
            fprintf(stderr, "  warp %u: lanes %08x of %08x are in %s\n", w, p->warps[w].arrived,
                    p->warps[w].lanes, exchange_names[p->warps[w].kind]);
    say_where();
    abort();
}

/* --- whose turn it is --- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* Returns the first set bit from `from` on, then from bit 0 on. `bits` must not be 0. */
static unsigned bit_after(uint32_t bits, unsigned from)
{
    uint32_t later = bits & ~((1u << (from & 31)) - 1);
    return (unsigned)__builtin_ctz(later != 0 ? later : bits);
}

static unsigned random_bit(uint64_t *state, uint32_t bits)
{
    return bit_after(bits, (unsigned)(next_random(state) >> 20) & 31);
}

static void release_held(simt_processor *p);

static simt_thread *pick(simt_processor *p, const simt_thread *after)
{
    if (p->ready_warps == 0 && p->n_held > 0)
        release_held(p);
    if (p->ready_warps == 0)
        return NULL;
    unsigned w = after->warp, lane;
    if (p->random != 0) {
        w = random_bit(&p->random, p->ready_warps);
        lane = random_bit(&p->random, p->warps[w].ready);
    } else {
        bool same = p->warps[w].ready != 0;
        if (!same)
            w = bit_after(p->ready_warps, w + 1);
        lane = bit_after(p->warps[w].ready, same ? after->lane + 1 : 0);
    }
    return &p->threads[w * SIMT_WARP + lane];
}

static void set_ready(simt_processor *p, unsigned w, uint32_t lanes)
{
    p->warps[w].ready |= lanes;
    p->ready_warps |= 1u << w;
}

/* Called when no thread can continue before the previous op has ended. */
static void release_held(simt_processor *p)
{
    simt_early_hold(p->early);
    p->early = NULL;
    p->n_held = 0;
    for (unsigned i = 0; i < p->n_threads; i++) {
        simt_thread *t = &p->threads[i];
        if (t->state != SIMT_HELD)
            continue;
        t->state = SIMT_RUNS;
        set_ready(p, t->warp, 1u << t->lane);
    }
}

static void set_waiting(simt_processor *p, const simt_thread *t)
{
    warp *w = &p->warps[t->warp];
    w->ready &= ~(1u << t->lane);
    if (w->ready == 0)
        p->ready_warps &= ~(1u << t->warp);
}

static void run_fiber(void);

static simt_fiber *take_fiber(simt_processor *p)
{
    simt_fiber *f = p->idle;
    if (f == NULL)
        return simt_fiber_create(run_fiber, p->n_fibers++);
    p->idle = f->next;
    return f;
}

/* Gives the turn to a thread. Returns when the calling fiber has its turn again. */
static void give_turn(simt_processor *p, simt_thread *to)
{
    simt_fiber *from = p->running;
    if (to->fiber == NULL)
        to->fiber = take_fiber(p);
    simt_tls.self = to;
    p->running = to->fiber;
    simt_fiber_switch(from, to->fiber);
}

/* Gives the turn away. The caller has set its state to the reason of its wait. */
static void wait_turn(simt_processor *p, simt_thread *self)
{
    simt_thread *next = pick(p, self);
    if (next == NULL)
        deadlock(p);
    if (next != self)
        give_turn(p, next);
}

void simt_yield(void)
{
    wait_turn(simt_tls.processor, simt_tls.self);
}

/* Runs one thread after another on a fiber, without end. */
static void run_fiber(void)
{
    simt_fiber_begin();
    simt_processor *p = simt_tls.processor;
    for (;;) {
        simt_thread *self = simt_tls.self;
        p->grid->run(p->grid->arguments);
        if (p->grid->waits && !self->op_begun)
            simt_fail("a thread ended that did not wait for the op before (cuda_op_begin)");
        simt_fiber *own = self->fiber;
        self->fiber = NULL;
        self->state = SIMT_ENDED;
        set_waiting(p, self);
        p->n_ended++;
        simt_thread *next = pick(p, self);
        if (next == NULL && p->n_ended < p->n_threads)
            deadlock(p);
        /* runs the next thread on this fiber, whose stack is in the cache */
        if (next != NULL && next->fiber == NULL) {
            next->fiber = own;
            simt_tls.self = next;
            continue;
        }
        own->next = p->idle;
        p->idle = own;
        if (next != NULL) {
            give_turn(p, next);
            continue; /* this fiber now runs another thread, simt_tls.self */
        }
        simt_tls.self = NULL;
        p->running = &p->native;
        simt_fiber_switch(own, &p->native);
    }
}

/* --- waiting for others --- */

void simt_barrier(void)
{
    simt_processor *p = simt_tls.processor;
    simt_thread *self = simt_tls.self;
    if (++p->n_at_barrier == p->n_threads) {
        p->n_at_barrier = 0;
        for (unsigned i = 0; i < p->n_threads; i++)
            p->threads[i].state = SIMT_RUNS;
        for (unsigned w = 0; w * SIMT_WARP < p->n_threads; w++)
            set_ready(p, w, p->warps[w].lanes);
        if (p->random != 0)
            wait_turn(p, self);
        return;
    }
    self->state = SIMT_AT_BARRIER;
    set_waiting(p, self);
    wait_turn(p, self);
}

void simt_sleep(const char *reason)
{
    simt_thread *self = simt_tls.self;
    self->state = SIMT_SLEEPS;
    self->sleeps_for = reason;
    set_waiting(simt_tls.processor, self);
    wait_turn(simt_tls.processor, self);
}

void simt_wake(void)
{
    simt_processor *p = simt_tls.processor;
    for (unsigned i = 0; i < p->n_threads; i++) {
        simt_thread *t = &p->threads[i];
        if (t->state != SIMT_SLEEPS)
            continue;
        t->state = SIMT_RUNS;
        set_ready(p, t->warp, 1u << t->lane);
    }
}

void simt_op_begin(void)
{
    simt_processor *p = simt_tls.processor;
    simt_thread *self = simt_tls.self;
    self->op_begun = true;
    if (p->early == NULL)
        return;
    self->state = SIMT_HELD;
    p->n_held++;
    set_waiting(p, self);
    wait_turn(p, self);
}

void simt_exchange(enum simt_exchange_kind kind, uint32_t mask, void *operand,
                   simt_complete *complete)
{
    simt_processor *p = simt_tls.processor;
    simt_thread *self = simt_tls.self;
    warp *w = &p->warps[self->warp];
    if ((mask & w->lanes) != w->lanes)
        simt_fail("%s with mask %08x: kernels keep to exchanges of the whole warp (%08x)",
                  exchange_names[kind], mask, w->lanes);
    if (w->arrived != 0 && w->kind != kind)
        simt_fail("divergence: lane %u is in %s while lanes %08x are in %s", self->lane,
                  exchange_names[kind], w->arrived, exchange_names[w->kind]);
    w->kind = kind;
    w->operands[self->lane] = operand;
    w->arrived |= 1u << self->lane;
    if (w->arrived == w->lanes) {
        if (complete != NULL)
            complete(w->operands, w->lanes);
        w->arrived = 0;
        for (uint32_t left = w->lanes; left != 0; left &= left - 1)
            p->threads[self->warp * SIMT_WARP + (unsigned)__builtin_ctz(left)].state = SIMT_RUNS;
        set_ready(p, self->warp, w->lanes);
        if (p->random != 0)
            wait_turn(p, self);
        return;
    }
    self->state = SIMT_IN_EXCHANGE;
    set_waiting(p, self);
    wait_turn(p, self);
}

/* --- shared memory --- */

/* Finds this module's thread-local memory of the calling thread. */
static int find_statics(struct dl_phdr_info *info, size_t, void *context)
{
    simt_processor *p = (simt_processor *)context;
    const unsigned char *tls = (const unsigned char *)info->dlpi_tls_data;
    const unsigned char *own = (const unsigned char *)&simt_tls;
    for (int i = 0; tls != NULL && i < info->dlpi_phnum; i++) {
        size_t n_bytes = info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type != PT_TLS || own < tls || own >= tls + n_bytes)
            continue;
        p->statics = (unsigned char *)info->dlpi_tls_data;
        p->n_static_bytes = n_bytes;
        return 1;
    }
    return 0;
}

static void poison_shared(simt_processor *p)
{
    size_t n_bytes = p->grid->shared_bytes;
    struct simt_tls keep;
    memcpy(&keep, &simt_tls, sizeof(keep));
    memset(p->statics, POISON, p->n_static_bytes);
    memcpy(&simt_tls, &keep, sizeof(keep));
    memset(p->shared + CANARY_BYTES, POISON, n_bytes);
    memset(p->shared + CANARY_BYTES + n_bytes, CANARY, CANARY_BYTES);
}

static void check_canaries(const simt_processor *p)
{
    const unsigned char *end = p->shared + CANARY_BYTES + p->grid->shared_bytes;
    for (int i = 0; i < CANARY_BYTES; i++)
        if (p->shared[i] != CANARY || end[i] != CANARY)
            simt_fail("a thread wrote outside the %zu bytes of dynamic shared memory",
                      p->grid->shared_bytes);
}

static void check_named_barriers(const simt_processor *p)
{
    for (unsigned i = 0; i < 16; i++)
        if (p->block.named[i].n_arrived != 0)
            simt_fail("the block ended while %u of %u threads had arrived at barrier %u",
                      p->block.named[i].n_arrived, p->block.named[i].n_threads, i);
}

bool simt_is_shared(const void *address, size_t n)
{
    const simt_processor *p = simt_tls.processor;
    const unsigned char *at = (const unsigned char *)address;
    const unsigned char *dynamic = p->block.dynamic_shared;
    return (at >= dynamic && at + n <= dynamic + p->block.dynamic_shared_bytes) ||
           (at >= p->statics && at + n <= p->statics + p->n_static_bytes);
}

void simt_note_copy(const void *to)
{
    simt_processor *p = simt_tls.processor;
    size_t at = (size_t)((const unsigned char *)to - p->block.dynamic_shared);
    if (at >= p->block.dynamic_shared_bytes) /* static: wgmma reads dynamic shared memory only */
        return;
    simt_tls.self->unfenced.push_back((uint32_t)(at / 16));
    p->unfenced[at / 16]++;
    p->n_unfenced++;
}

static void forget_copies(simt_processor *p, simt_thread *t)
{
    for (uint32_t at : t->unfenced)
        p->unfenced[at]--;
    p->n_unfenced -= (uint32_t)t->unfenced.size();
    t->unfenced.clear();
}

void simt_fence_copies(void)
{
    forget_copies(simt_tls.processor, simt_tls.self);
}

const simt_thread *simt_unfenced(const unsigned char *piece)
{
    const simt_processor *p = simt_tls.processor;
    size_t at = (size_t)(piece - p->block.dynamic_shared) / 16;
    if (p->unfenced[at] == 0)
        return NULL;
    for (unsigned i = 0; i < p->n_threads; i++)
        for (uint32_t copied : p->threads[i].unfenced)
            if (copied == at)
                return &p->threads[i];
    simt_fail("an unfenced copy that no thread has made");
}

bool simt_any_unfenced(void)
{
    return simt_tls.processor->n_unfenced != 0;
}

bool simt_is_new_barrier(const uint64_t *barrier)
{
    const simt_processor *p = simt_tls.processor;
    for (unsigned i = 0; i < p->n_threads; i++)
        for (const uint64_t *made : p->threads[i].new_barriers)
            if (made == barrier)
                return true;
    return false;
}

/* --- blocks --- */

static void begin_block(simt_processor *p, uint64_t number)
{
    const simt_grid *g = p->grid;
    p->block.block_idx = {(unsigned)(number % g->grid_dim.x),
                          (unsigned)(number / g->grid_dim.x % g->grid_dim.y),
                          (unsigned)(number / g->grid_dim.x / g->grid_dim.y)};
    p->n_ended = p->n_at_barrier = p->n_held = 0;
    for (simt_named_barrier &barrier : p->block.named)
        barrier = {0, 0, 0};
    for (unsigned i = 0; i < p->n_threads; i++) {
        simt_thread *t = &p->threads[i];
        t->state = SIMT_RUNS;
        t->op_begun = false;
        t->copies.clear();
        t->copy_groups.clear();
        t->n_grouped = 0;
        t->new_barriers.clear();
        t->wgmma_fenced = false;
        if (!t->wgmma_calls.empty())
            simt_fail("thread %u of the block before ended within a multiplication (wgmma)", i);
    }
    for (unsigned w = 0; w * SIMT_WARP < p->n_threads; w++) {
        p->warps[w].arrived = 0;
        set_ready(p, w, p->warps[w].lanes);
    }
}

void simt_processor_begin(simt_processor *p, const simt_grid *g)
{
    p->grid = g;
    p->block.block_dim = g->block_dim;
    p->block.grid_dim = g->grid_dim;
    p->block.dynamic_shared = p->shared + CANARY_BYTES;
    p->block.dynamic_shared_bytes = g->shared_bytes;
    p->n_threads = g->block_dim.x * g->block_dim.y * g->block_dim.z;
    for (unsigned i = 0; i < p->n_threads; i++) {
        simt_thread *t = &p->threads[i];
        t->thread_idx = {i % g->block_dim.x, i / g->block_dim.x % g->block_dim.y,
                         i / g->block_dim.x / g->block_dim.y};
        t->warp = i / SIMT_WARP;
        t->lane = i % SIMT_WARP;
        unsigned left = p->n_threads - t->warp * SIMT_WARP;
        p->warps[t->warp].lanes = left >= SIMT_WARP ? 0xFFFFFFFFu : (1u << left) - 1;
    }
}

void simt_processor_run(simt_processor *p, uint64_t number, uint64_t seed)
{
    p->random = seed;
    begin_block(p, number);
    poison_shared(p);
    simt_thread *first = &p->threads[0];
    if (p->random != 0)
        first = pick(p, first);
    simt_tls.block = &p->block;
    p->running = &p->native;
    give_turn(p, first); /* returns when all have ended */
    simt_tls.block = NULL;
    for (unsigned i = 0; i < p->n_threads; i++)
        forget_copies(p, &p->threads[i]);
    if (!p->block.tiles.empty())
        simt_fail("the block ended while %zu tiles were under way (tma_fetch)",
                  p->block.tiles.size());
    check_named_barriers(p);
    check_canaries(p);
}

void simt_processor_end(simt_processor *p)
{
    p->grid = NULL;
    p->early = NULL;
}

void simt_processor_hold(simt_processor *p, simt_early *early)
{
    p->early = early;
}

simt_processor *simt_processor_create(void)
{
    simt_processor *p = new simt_processor();
    simt_fiber_init_native(&p->native);
    void *shared = NULL;
    if (posix_memalign(&shared, 256, SIMT_MAX_SHARED + 2 * CANARY_BYTES) != 0)
        abort();
    p->shared = (unsigned char *)shared;
    memset(p->shared, CANARY, CANARY_BYTES);
    for (simt_thread &t : p->threads)
        t.processor = p;
    simt_tls.processor = p; /* also makes this thread's thread-local memory */
    if (dl_iterate_phdr(find_statics, p) == 0)
        simt_fail("the module's thread-local memory was not found");
    return p;
}

void simt_processor_destroy(simt_processor *p)
{
    if (p == NULL)
        return;
    for (simt_fiber *f = p->idle; f != NULL;) {
        simt_fiber *next = f->next;
        simt_fiber_destroy(f);
        f = next;
    }
    simt_fiber_fini_native(&p->native);
    free(p->shared);
    delete p;
}
