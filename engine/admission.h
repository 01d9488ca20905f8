/* admission.h: how long a new request would wait, from what was measured: time per prefilled token,
 * tokens and requests ahead, and how long requests hold their places. A submit that cannot meet its
 * deadline is refused at once, so that no work is done for the dead. Written by the engine thread,
 * read by submitters: lock-free. A zeroed struct knows nothing and refuses nothing. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

struct admission {
    _Atomic uint64_t ns_per_token;   /* of prefill, smoothed; 0: not yet measured */
    _Atomic uint64_t ns_per_request; /* from its start to its end, smoothed; 0: not yet measured */
    _Atomic uint64_t tokens_ahead;   /* prompt tokens that wait for prefill */
    _Atomic uint32_t requests_ahead; /* waiting for a place */
    _Atomic uint32_t n_places, n_used; /* sequences that may run, and do */
};

/* A step of n_rows of which n_prefill were prompt tokens took step_ns. Steps with few prompt tokens
 * say nothing of prefill and are passed over. */
void admission_saw_step(struct admission *admission, uint32_t n_rows, uint32_t n_prefill,
                        int64_t step_ns);
void admission_saw_end(struct admission *admission, int64_t active_ns);

/* Expected time until the last of n_prompt tokens of a request submitted now is computed; 0 where
 * nothing was measured. */
int64_t admission_predict_ns(const struct admission *admission, uint32_t n_prompt,
                             uint32_t n_choices);
/* When to try again after a refusal: until about one place is free; 50 ms to 30 s. */
uint32_t admission_retry_ms(const struct admission *admission);
