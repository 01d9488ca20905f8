/* step_time.h: how long a step will take, learned from how long steps took:
 *
 *     ns = fixed + decode · n_decode + prefill · n_prefill + context · n_context
 *
 * Four costs, none below 0, fitted by least squares of the relative error over the last steps
 * (older ones fade): a step that the machine disturbed counts less the longer it took. What
 * recent steps do not tell apart stays as it was. No clock, no allocation; a zeroed struct knows
 * nothing. Whoever owns the struct. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { STEP_TIME_COSTS = 4 };

/* What a step computes. */
struct step_shape {
    uint32_t n_decode, n_prefill; /* rows */
    uint64_t n_context;           /* positions that its rows attend to, summed over them */
};

struct step_time {
    double normal[STEP_TIME_COSTS][STEP_TIME_COSTS], right[STEP_TIME_COSTS]; /* of the fit */
    double cost[STEP_TIME_COSTS];                                            /* ns */
    double error; /* mean of the last steps' relative errors */
    uint32_t n_seen;
    bool knows_prefill;
};

void step_time_saw(struct step_time *model, const struct step_shape *shape, int64_t ns);

/* 0 where nothing is known. */
int64_t step_time_predict(const struct step_time *model, const struct step_shape *shape);

/* How many rows of a prompt, of which `depth` positions are in the cache, may join the step for it
 * to stay within limit_ns nearly always: by the prediction, with room for its error. At most
 * `most`; `most` as well where prefill was never timed. */
uint32_t step_time_fit_rows(const struct step_time *model, const struct step_shape *shape,
                            uint32_t depth, int64_t limit_ns, uint32_t most);

/* Positions that n rows from `depth` on attend to. */
static inline uint64_t step_time_context(uint32_t depth, uint32_t n)
{
    return (uint64_t)n * depth + (uint64_t)n * (n + 1) / 2;
}
