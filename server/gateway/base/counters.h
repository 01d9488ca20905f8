/* counters.h: counts over all requests of the server: outcomes, events, and refusals by limit.
 * Any thread; lock inside, innermost of all. */
#pragma once

#include <pthread.h>
#include <stdint.h>

#include "server/gateway/base/limits.h"

struct error;

/* Totals since start. accepted = ok + failed + cancelled + live in every snapshot. */
struct gateway_counters {
    uint64_t accepted, ok, failed, cancelled, live;
    uint64_t tokens, resumes, pauses, slow_readers, stalls, reattaches, wakes;
};

enum counter_event {
    COUNTER_RESUME,
    COUNTER_PAUSE,
    COUNTER_SLOW_READER,
    COUNTER_STALL,
    COUNTER_REATTACH,
    COUNTER_WAKE
};

struct counters {
    pthread_mutex_t lock;
    struct gateway_counters totals;
    _Atomic uint64_t refusals[N_GATEWAY_LIMITS];
};

void counters_init(struct counters *counters);
void counters_fini(struct counters *counters);

/* A snapshot. */
void counters_get(struct counters *counters, struct gateway_counters *out_totals);

/* Count a request's begin and its end with a status, also for a request that is refused at once. */
void counters_begin(struct counters *counters);
void counters_end(struct counters *counters, int status, uint64_t n_tokens);
/* Counts an event. An event of a limit also counts as a refusal. */
void counters_event(struct counters *counters, enum counter_event event);

/* Counts a request that was refused, paused or ended because of a limit. Takes no lock. */
void counters_refusal(struct counters *counters, enum gateway_limit limit);
/* Counts a refusal by the error's reason, whether this server or a worker refused. Reasons
 * without a limit are not counted. */
void counters_refusal_reason(struct counters *counters, const struct error *err);
uint64_t counters_n_refusals(const struct counters *counters, enum gateway_limit limit);
