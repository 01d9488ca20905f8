/* step_cost.h: what a row more costs in a step of decode, learned from the steps there are: a line
 * through (rows, time), old steps forgotten. The engine thread's; plain data, zero at first. */
#pragma once

#include <stdint.h>

struct step_cost {
    double n, rows, ns, rows_rows, rows_ns; /* decayed sums */
};

void step_cost_saw(struct step_cost *cost, uint32_t n_rows, int64_t ns);
/* How many rows cost as much as a step has besides them: large where memory is what a step waits
 * for, small where computing is. Within 1 and 256, and a cautious value before it is known. */
float step_cost_base_rows(const struct step_cost *cost);
