/* step_time.h: predicts how long a step takes, learned from measured steps:
 *
 *     ns = fixed + decode · n_decode + prefill · n_prefill + context · n_context
 *
 * The four costs are at least 0. They are fitted by least squares of the relative error over the
 * recent steps; old steps fade. So a step that the machine disturbed counts less the longer it
 * took. Costs that the recent steps cannot separate keep their values. No clock, no allocation. A
 * zeroed struct has no measurements. Called by the thread that owns the struct. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { STEP_TIME_COSTS = 4 };

/* The amount of work in a step. */
struct step_shape {
    uint32_t n_decode, n_prefill; /* numbers of rows */
    uint64_t n_context;           /* sum over the rows of the positions that each attends to */
};

struct step_time {
    /* normal equations of the fit */
    double normal[STEP_TIME_COSTS][STEP_TIME_COSTS], right[STEP_TIME_COSTS];
    double cost[STEP_TIME_COSTS]; /* ns */
    double error;                 /* mean relative error of the recent steps */
    uint32_t n_seen;
    bool knows_prefill;
};

/* Records a measured step. */
void step_time_saw(struct step_time *model, const struct step_shape *shape, int64_t ns);

/* Predicted time; 0 without measurements. */
int64_t step_time_predict(const struct step_time *model, const struct step_shape *shape);

/* How many prompt rows may join the step so that it nearly always stays within limit_ns. `depth`:
 * positions of the prompt in the cache. The limit leaves room for the prediction's error. Returns
 * at most `most`, and `most` if prefill was never measured. */
uint32_t step_time_fit_rows(const struct step_time *model, const struct step_shape *shape,
                            uint32_t depth, int64_t limit_ns, uint32_t most);

/* Sum of the positions that n rows from `depth` on attend to. */
static inline uint64_t step_time_context(uint32_t depth, uint32_t n)
{
    return (uint64_t)n * depth + (uint64_t)n * (n + 1) / 2;
}
