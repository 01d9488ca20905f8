#include "engine/schedule/step_cost.h"

#define KEEP          0.99 /* weight of the old sums after each step */
#define MIN_WEIGHT    8.0  /* (decayed) steps before an estimate is given */
#define MIN_DEVIATION 0.5  /* standard deviation of rows: a line needs steps of different sizes */
#define FIRST_ROWS    8.0f /* cautious default: right for weights that stay in the CPU's cache */
#define LEAST_ROWS    1.0
#define MOST_ROWS     256.0

/* A step that took over 4 times the mean was delayed by something else. */
static int is_outlier(const struct step_cost *c, int64_t ns)
{
    return c->n >= MIN_WEIGHT && (double)ns > 4 * c->ns / c->n;
}

void step_cost_saw(struct step_cost *c, uint32_t n_rows, int64_t ns)
{
    double x = n_rows, y = (double)ns;
    if (!n_rows || ns <= 0)
        return;
    if (is_outlier(c, ns))
        y = 4 * c->ns / c->n;
    c->n = KEEP * c->n + 1;
    c->rows = KEEP * c->rows + x;
    c->ns = KEEP * c->ns + y;
    c->rows_rows = KEEP * c->rows_rows + x * x;
    c->rows_ns = KEEP * c->rows_ns + x * y;
}

float step_cost_base_rows(const struct step_cost *c)
{
    if (c->n < MIN_WEIGHT)
        return FIRST_ROWS;
    double mean = c->rows / c->n, mean_ns = c->ns / c->n;
    double variance = c->rows_rows / c->n - mean * mean;
    if (variance < MIN_DEVIATION * MIN_DEVIATION)
        return FIRST_ROWS;
    double slope = (c->rows_ns / c->n - mean * mean_ns) / variance;
    double base = mean_ns - slope * mean;
    if (slope <= 0 || base >= MOST_ROWS * slope)
        return (float)MOST_ROWS;
    return (float)(base <= LEAST_ROWS * slope ? LEAST_ROWS : base / slope);
}
