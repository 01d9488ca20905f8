/* admission.h: how long a new request would wait, from what was measured: time per prefilled token,
 * how long requests hold their places, and who waits: all of a higher priority, what its caller has
 * waiting already, and of each other caller no more than that, for they take turns
 * (fair_share.h). So a flood of one caller's requests refuses that caller, and nobody else. A
 * submit that cannot meet its deadline is refused at once, so that no work is done for the dead.
 * Written by the engine thread, read by submitters: lock-free. A zeroed struct knows nothing and
 * refuses nothing. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

enum { ADMISSION_CALLERS = 256 }; /* that are told apart; others share a number */

struct admission {
    _Atomic uint64_t ns_per_token;   /* of prefill, smoothed; 0: not yet measured */
    _Atomic uint64_t ns_per_request; /* from its start to its end, smoothed; 0: not yet measured */
    _Atomic uint32_t n_cached[ADMISSION_CALLERS]; /* of a prompt, found in the cache, at best */
    _Atomic uint32_t n_places, n_used;            /* sequences that may run, and do */
    /* Places that a higher priority may have: those of the lowest priority that has such. */
    _Atomic int32_t lowest;
    _Atomic uint32_t n_lowest;
    /* And requests that callers with several running have beyond one: a caller with none running
     * may have their places. */
    _Atomic uint32_t n_several;
    uint32_t longest_prompt; /* for which places are made; 0: any. Set before other threads come */
    _Atomic uint64_t *waiting; /* [max_waiting] packed admission_entry */
    uint32_t max_waiting;
    _Atomic uint32_t n_waiting;
};

/* A request that waits for a place or has one. */
struct admission_entry {
    uint32_t caller; /* admission_caller() */
    int32_t priority;
    uint32_t n_tokens; /* of its prompt, to be computed */
    bool queued;       /* has no place */
};

/* Room for entries, before any other thread is there. */
int admission_init(struct admission *admission, uint32_t max_waiting, struct error *err);
void admission_fini(struct admission *admission);

/* A caller's name in short; NULL: "". */
uint32_t admission_caller(const char *name);

/* Who is there now: n entries, each set before. A reader between two sets sees some of both, which
 * is as good. */
void admission_set_entry(struct admission *admission, uint32_t i,
                         const struct admission_entry *entry);
void admission_set_n_waiting(struct admission *admission, uint32_t n);

/* A step of n_rows of which n_prefill were prompt tokens took step_ns. Steps with few prompt tokens
 * say nothing of prefill and are passed over. */
void admission_saw_step(struct admission *admission, uint32_t n_rows, uint32_t n_prefill,
                        int64_t step_ns);
/* A caller's prompt began, with so many tokens that the prefix cache had. Who asks next is taken to
 * find as many as the best of its late ones: a prompt that misses its deadline costs less than one
 * that is refused and would have met it. */
void admission_saw_start(struct admission *admission, uint32_t caller, uint32_t n_cached);
void admission_saw_end(struct admission *admission, int64_t active_ns);

/* What is asked for. */
struct admission_question {
    uint32_t caller;
    int32_t priority;
    uint32_t n_prompt, n_choices;
};

/* Expected time until the last of the prompt's tokens is computed, were it submitted now; 0 where
 * nothing was measured. */
int64_t admission_predict_ns(const struct admission *admission, const struct admission_question *q);
/* When to try again after a refusal: until about one place is free; 50 ms to 30 s. */
uint32_t admission_retry_ms(const struct admission *admission);
