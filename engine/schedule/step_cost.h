/* step_cost.h: learns what one more row costs in a decode step. Fits a line through (rows, time) of
 * the measured steps; old steps fade. Plain data, zeroed at first. Engine thread only. */
#pragma once

#include <stdint.h>

struct step_cost {
    double n, rows, ns, rows_rows, rows_ns; /* sums over steps, old steps fade */
};

/* Records a step of n_rows rows that took ns. */
void step_cost_saw(struct step_cost *cost, uint32_t n_rows, int64_t ns);
/* How many rows cost as much as the fixed part of a step. Large where steps wait for memory, small
 * where they wait for arithmetic. Within 1 and 256; a cautious default until enough steps were
 * measured. */
float step_cost_base_rows(const struct step_cost *cost);
