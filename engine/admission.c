#include "engine/admission.h"

#include "base/clock.h"

#define LARGEST_TOKENS  1000000000ULL
#define LARGEST_QUEUE   1000000ULL
#define LARGEST_HOLD_NS (3600 * 1000000000ULL)

enum { MIN_PREFILL_ROWS = 16, RETRY_MIN_MS = 50, RETRY_MAX_MS = 30000 };

/* A quarter of the way to the new value. */
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

void admission_saw_end(struct admission *a, int64_t active_ns)
{
    if (active_ns > 0)
        smooth(&a->ns_per_request, (uint64_t)active_ns);
}

static uint64_t at_most(uint64_t value, uint64_t limit)
{
    return value < limit ? value : limit;
}

int64_t admission_predict_ns(const struct admission *a, uint32_t n_prompt, uint32_t n_choices)
{
    uint64_t per_token = atomic_load_explicit(&a->ns_per_token, memory_order_relaxed);
    uint64_t per_request = atomic_load_explicit(&a->ns_per_request, memory_order_relaxed);
    uint64_t tokens = atomic_load_explicit(&a->tokens_ahead, memory_order_relaxed);
    uint64_t ahead = atomic_load_explicit(&a->requests_ahead, memory_order_relaxed);
    uint64_t places = atomic_load_explicit(&a->n_places, memory_order_relaxed);
    uint64_t used = atomic_load_explicit(&a->n_used, memory_order_relaxed);
    /* Cut so that no product overflows. */
    uint64_t ns = (at_most(tokens, LARGEST_TOKENS) + n_prompt) * at_most(per_token, NS_PER_S);
    /* All places taken: they come free evenly over the time a request holds one. */
    uint64_t wanted = used + ahead + n_choices;
    if (places && wanted > places)
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
