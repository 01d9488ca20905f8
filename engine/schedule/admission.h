/* admission.h: predicts how long a new request would wait. The prediction uses measured figures:
 * time per prefilled token, and how long a request holds its slots.
 *
 * These requests count as ahead of a new request: all of a higher priority, and those of the same
 * caller. Callers are served in fair shares (fair_share.h). So of each other caller, at most as
 * much work counts as the new request's caller has itself. So a flood of requests from one caller
 * refuses that caller alone. A submit that cannot meet its deadline is refused at once: the work
 * for it would be lost.
 *
 * The engine thread writes, submitters read: lock-free. A zeroed struct has no measurements and
 * refuses nothing. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

/* callers that are counted separately; further callers share an index */
enum { ADMISSION_CALLERS = 256 };

struct admission {
    _Atomic uint64_t ns_per_token;   /* time per prefilled token, smoothed; 0: not yet measured */
    _Atomic uint64_t ns_per_request; /* time from start to end, smoothed; 0: not yet measured */
    /* [hash of the caller] prompt tokens found in the cache: the best of the recent requests */
    _Atomic uint32_t n_cached[ADMISSION_CALLERS];
    _Atomic uint32_t n_places, n_used; /* sequence slots: all, and those in use */
    /* Lowest priority of the running requests that may be sent back, and the slots of these
     * requests. A request of a higher priority may take these slots. */
    _Atomic int32_t lowest;
    _Atomic uint32_t n_lowest;
    /* Running requests beyond the first of each caller. A caller with nothing running may take
     * their slots. */
    _Atomic uint32_t n_several;
    /* longest prompt that running requests are sent back for; 0: any. Set before other threads
     * start */
    uint32_t longest_prompt;
    _Atomic uint64_t *waiting; /* [max_waiting] packed admission_entry */
    uint32_t max_waiting;
    _Atomic uint32_t n_waiting;
};

/* A request that waits for a slot or has a slot. */
struct admission_entry {
    uint32_t caller; /* admission_caller() */
    int32_t priority;
    uint32_t n_tokens; /* tokens of its prompt that are still to be computed */
    bool queued;       /* waits for a slot */
};

/* Allocates the entries. Call before other threads use the struct. */
int admission_init(struct admission *admission, uint32_t max_waiting, struct error *err);
void admission_fini(struct admission *admission);

/* 32-bit hash of a caller's name; NULL counts as "". */
uint32_t admission_caller(const char *name);

/* Publish the present requests: set n entries, then n. A reader may see a mix of old and new
 * entries, which is accurate enough. */
void admission_set_entry(struct admission *admission, uint32_t i,
                         const struct admission_entry *entry);
void admission_set_n_waiting(struct admission *admission, uint32_t n);

/* Records a step of n_rows rows, n_prefill of them prompt tokens, that took step_ns. Steps with few
 * prompt tokens are ignored: their time does not show the cost of prefill. */
void admission_saw_step(struct admission *admission, uint32_t n_rows, uint32_t n_prefill,
                        int64_t step_ns);
/* Records that a prompt of the caller started and that the prefix cache had n_cached of its tokens.
 * The next prompt of the caller is assumed to find as many as its best recent prompt. The guess is
 * optimistic: to refuse a prompt that would have met its deadline is the worse error. */
void admission_saw_start(struct admission *admission, uint32_t caller, uint32_t n_cached);
void admission_saw_end(struct admission *admission, int64_t active_ns);

/* The request to predict for. */
struct admission_question {
    uint32_t caller;
    int32_t priority;
    uint32_t n_prompt, n_choices;
};

/* Expected time until the last prompt token is computed if the request were submitted now. Returns
 * 0 without measurements. */
int64_t admission_predict_ns(const struct admission *admission, const struct admission_question *q);
/* Delay before a retry after a refusal: the time until about one slot is free, from 50 ms to 30
 * s. */
uint32_t admission_retry_ms(const struct admission *admission);
