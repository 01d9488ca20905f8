#include "engine/schedule/admission.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash_map.h"

#define LARGEST_TOKENS  1000000000ULL
#define LARGEST_QUEUE   1000000ULL
#define LARGEST_HOLD_NS (3600 * 1000000000ULL)

enum { MIN_PREFILL_ROWS = 16, RETRY_MIN_MS = 50, RETRY_MAX_MS = 30000 };
enum { CACHED_FADES = 16 }; /* a prompt with a worse find lowers the best find by 1/16 */
enum { N_BUCKETS = ADMISSION_CALLERS }; /* callers in one bucket count as one caller */

/* An entry packed into 64 bits: caller 32, priority 8, queued 1, tokens 23. */
enum { TOKEN_BITS = 23, QUEUED_BIT = 23, PRIORITY_BIT = 24, CALLER_BIT = 32, PRIORITY_ZERO = 128 };

int admission_init(struct admission *a, uint32_t max_waiting, struct error *err)
{
    a->waiting = calloc(max_waiting ? max_waiting : 1, sizeof(*a->waiting));
    if (!a->waiting)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for %u requests", max_waiting);
    a->max_waiting = max_waiting;
    return 0;
}

void admission_fini(struct admission *a)
{
    free(a->waiting);
    a->waiting = NULL;
    a->max_waiting = 0;
}

uint32_t admission_caller(const char *name)
{
    name = name ? name : "";
    return (uint32_t)hash_bytes(name, strlen(name), 0);
}

void admission_set_entry(struct admission *a, uint32_t i, const struct admission_entry *entry)
{
    uint32_t most = (1u << TOKEN_BITS) - 1;
    uint64_t word = entry->n_tokens < most ? entry->n_tokens : most;
    if (i >= a->max_waiting)
        return;
    word |= (uint64_t)entry->queued << QUEUED_BIT;
    word |= (uint64_t)(entry->priority + PRIORITY_ZERO) << PRIORITY_BIT;
    word |= (uint64_t)entry->caller << CALLER_BIT;
    atomic_store_explicit(&a->waiting[i], word, memory_order_relaxed);
}

void admission_set_n_waiting(struct admission *a, uint32_t n)
{
    atomic_store_explicit(&a->n_waiting, n < a->max_waiting ? n : a->max_waiting,
                          memory_order_relaxed);
}

/* Moves the value a quarter of the way to the new measurement. */
static void smooth(_Atomic uint64_t *value, uint64_t seen)
{
    uint64_t old = atomic_load_explicit(value, memory_order_relaxed);
    uint64_t next = old ? old - old / 4 + seen / 4 : seen;
    atomic_store_explicit(value, next ? next : 1, memory_order_relaxed);
}

void admission_saw_step(struct admission *a, uint32_t n_rows, uint32_t n_prefill, int64_t step_ns)
{
    if (n_prefill < MIN_PREFILL_ROWS || 2 * n_prefill < n_rows || step_ns <= 0)
        return;
    smooth(&a->ns_per_token, (uint64_t)step_ns / n_prefill);
}

void admission_saw_start(struct admission *a, uint32_t caller, uint32_t n_cached)
{
    _Atomic uint32_t *of = &a->n_cached[caller % ADMISSION_CALLERS];
    uint32_t best = atomic_load_explicit(of, memory_order_relaxed);
    best -= (best + CACHED_FADES - 1) / CACHED_FADES;
    atomic_store_explicit(of, n_cached > best ? n_cached : best, memory_order_relaxed);
}

void admission_saw_end(struct admission *a, int64_t active_ns)
{
    if (active_ns > 0)
        smooth(&a->ns_per_request, (uint64_t)active_ns);
}

static uint64_t at_most(uint64_t value, uint64_t limit)
{
    return value < limit ? value : limit;
}

/* Work ahead of a new request. */
struct ahead {
    uint64_t tokens, requests; /* tokens to compute; requests that wait for slots */
    uint64_t further;          /* those of the requests whose caller holds a slot already */
    bool runs;                 /* the caller holds a slot already */
};

/* How many of n tokens of a queued prompt are probably not cached. */
static uint64_t not_cached(const struct admission *a, uint32_t caller, uint64_t n)
{
    uint64_t cached =
        atomic_load_explicit(&a->n_cached[caller % ADMISSION_CALLERS], memory_order_relaxed);
    return n > cached ? n - cached : 0;
}

/* Sums the work ahead of the request. */
static struct ahead count_ahead(const struct admission *a, const struct admission_question *q)
{
    struct ahead sum = {0}, of[N_BUCKETS] = {{0}}, own;
    uint32_t n = atomic_load_explicit(&a->n_waiting, memory_order_relaxed);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t word = atomic_load_explicit(&a->waiting[i], memory_order_relaxed);
        int32_t priority = (int32_t)(word >> PRIORITY_BIT & 0xFF) - PRIORITY_ZERO;
        if (!(word >> QUEUED_BIT & 1))
            of[(word >> CALLER_BIT) % N_BUCKETS].runs = true;
        struct ahead *to = priority > q->priority ? &sum : &of[(word >> CALLER_BIT) % N_BUCKETS];
        if (priority < q->priority)
            continue;
        bool queued = word >> QUEUED_BIT & 1;
        uint64_t n_tokens = word & ((1u << TOKEN_BITS) - 1);
        to->tokens += queued ? not_cached(a, (uint32_t)(word >> CALLER_BIT), n_tokens) : n_tokens;
        to->requests += queued;
    }
    own = of[q->caller % N_BUCKETS];
    sum.tokens += own.tokens;
    sum.requests += own.requests;
    sum.runs = own.runs;
    for (uint32_t i = 0; i < N_BUCKETS; i++) {
        if (i == q->caller % N_BUCKETS)
            continue;
        sum.tokens += at_most(of[i].tokens, own.tokens + not_cached(a, q->caller, q->n_prompt));
        uint64_t requests = at_most(of[i].requests, own.requests + 1);
        sum.requests += requests;
        sum.further += of[i].runs ? requests : 0;
    }
    return sum;
}

/* True if lower priorities, or callers with several running requests, give up n slots for the
 * request and those before it. */
static bool gets_places(const struct admission *a, const struct admission_question *q,
                        const struct ahead *ahead, uint64_t n)
{
    bool by_priority = q->priority > atomic_load_explicit(&a->lowest, memory_order_relaxed) &&
                       n <= atomic_load_explicit(&a->n_lowest, memory_order_relaxed);
    uint64_t several = ahead->further + atomic_load_explicit(&a->n_several, memory_order_relaxed);
    bool by_share = !ahead->runs && n <= several;
    return (by_priority || by_share) && (!a->longest_prompt || q->n_prompt <= a->longest_prompt);
}

int64_t admission_predict_ns(const struct admission *a, const struct admission_question *q)
{
    uint64_t per_token = atomic_load_explicit(&a->ns_per_token, memory_order_relaxed);
    uint64_t per_request = atomic_load_explicit(&a->ns_per_request, memory_order_relaxed);
    uint64_t places = atomic_load_explicit(&a->n_places, memory_order_relaxed);
    uint64_t used = atomic_load_explicit(&a->n_used, memory_order_relaxed);
    struct ahead ahead = count_ahead(a, q);
    /* Bounded so that no product overflows. */
    uint64_t ns = (at_most(ahead.tokens, LARGEST_TOKENS) + not_cached(a, q->caller, q->n_prompt)) *
                  at_most(per_token, NS_PER_S);
    /* All slots are taken: slots come free evenly over the time that a request holds a slot. */
    uint64_t wanted = used + ahead.requests + q->n_choices;
    if (places && wanted > places && !gets_places(a, q, &ahead, wanted - places))
        ns += at_most(wanted - places, LARGEST_QUEUE) *
              at_most(per_request / places, LARGEST_HOLD_NS);
    return (int64_t)at_most(ns, INT64_MAX / 2);
}

uint32_t admission_retry_ms(const struct admission *a)
{
    uint64_t per_request = atomic_load_explicit(&a->ns_per_request, memory_order_relaxed);
    uint64_t places = atomic_load_explicit(&a->n_places, memory_order_relaxed);
    uint64_t ms = places ? per_request / places / NS_PER_MS : 0;
    ms = ms < RETRY_MIN_MS ? RETRY_MIN_MS : ms;
    return (uint32_t)(ms < RETRY_MAX_MS ? ms : RETRY_MAX_MS);
}
