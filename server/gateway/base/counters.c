#include "server/gateway/base/counters.h"

#include <stdatomic.h>
#include <string.h>

#include "base/error.h"

void counters_init(struct counters *counters)
{
    memset(counters, 0, sizeof(*counters));
    pthread_mutex_init(&counters->lock, NULL);
}

void counters_fini(struct counters *counters)
{
    pthread_mutex_destroy(&counters->lock);
}

void counters_get(struct counters *counters, struct gateway_counters *out_totals)
{
    pthread_mutex_lock(&counters->lock);
    *out_totals = counters->totals;
    pthread_mutex_unlock(&counters->lock);
}

void counters_begin(struct counters *counters)
{
    pthread_mutex_lock(&counters->lock);
    counters->totals.accepted++;
    counters->totals.live++;
    pthread_mutex_unlock(&counters->lock);
}

void counters_end(struct counters *counters, int status, uint64_t n_tokens)
{
    struct gateway_counters *totals = &counters->totals;
    pthread_mutex_lock(&counters->lock);
    totals->live--;
    totals->tokens += n_tokens;
    if (status == STATUS_CANCELLED)
        totals->cancelled++;
    else if (status)
        totals->failed++;
    else
        totals->ok++;
    pthread_mutex_unlock(&counters->lock);
}

void counters_event(struct counters *counters, enum counter_event event)
{
    struct gateway_counters *t = &counters->totals;
    uint64_t *which[] = {&t->resumes, &t->pauses,     &t->slow_readers,
                         &t->stalls,  &t->reattaches, &t->wakes};
    static const enum gateway_limit limits[] = {LIMIT_NONE,  LIMIT_NONE, LIMIT_SLOW_READER,
                                                LIMIT_STALL, LIMIT_NONE, LIMIT_NONE};
    _Static_assert(sizeof(limits) / sizeof(limits[0]) == sizeof(which) / sizeof(which[0]),
                   "every event has a limit, or none");
    counters_refusal(counters, limits[event]);
    pthread_mutex_lock(&counters->lock);
    ++*which[event];
    pthread_mutex_unlock(&counters->lock);
}

void counters_refusal(struct counters *counters, enum gateway_limit limit)
{
    atomic_fetch_add_explicit(&counters->refusals[limit], 1, memory_order_relaxed);
}

void counters_refusal_reason(struct counters *counters, const struct error *err)
{
    static const enum gateway_limit limits[N_REASONS] = {
        [REASON_QUEUE_FULL] = LIMIT_QUEUED,
        [REASON_DEADLINE_UNREACHABLE] = LIMIT_DEADLINE,
        [REASON_INPUT_TOO_LONG] = LIMIT_INPUT_TOKENS,
        [REASON_CONTEXT_TOO_LONG] = LIMIT_INPUT_TOKENS,
        [REASON_TOTAL_TOO_LONG] = LIMIT_TOTAL_TOKENS,
        [REASON_TEMPLATE_LIMIT] = LIMIT_TEMPLATE,
    };
    if (limits[err->reason] != LIMIT_NONE)
        counters_refusal(counters, limits[err->reason]);
}

uint64_t counters_n_refusals(const struct counters *counters, enum gateway_limit limit)
{
    return atomic_load_explicit(&counters->refusals[limit], memory_order_relaxed);
}
