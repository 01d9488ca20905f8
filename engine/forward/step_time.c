#include "engine/forward/step_time.h"

#include <math.h>

enum { N = STEP_TIME_COSTS, COLD_STEPS = 8, SWEEPS = 16 };

static const double keep = 0.97;        /* weight of the old sums after each step */
static const double keep_error = 0.95;  /* weight of the old error after each step */
static const double least_error = 0.02; /* floor of the error: clock and caches vary as much */
static const double margin = 2;         /* a limit leaves this multiple of the error free, */
static const double most_margin = 0.25; /* but at most this part of the limit */

static void terms_of(const struct step_shape *shape, double out[N])
{
    out[0] = 1;
    out[1] = shape->n_decode;
    out[2] = shape->n_prefill;
    out[3] = (double)shape->n_context;
}

static double predict(const struct step_time *m, const double terms[N])
{
    double ns = 0;
    for (int i = 0; i < N; i++)
        ns += m->cost[i] * terms[i];
    return ns;
}

/* Coordinate descent, starting from the present costs. Costs do not move in directions in which the
 * fit is flat, and stop at 0. The costs of rows are fitted first, so that a first step raises them
 * and not the fixed cost. */
static void solve(struct step_time *m)
{
    static const int order[N] = {2, 1, 0, 3};
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int k = 0; k < N; k++) {
            int i = order[k];
            double rest = m->right[i];
            for (int j = 0; j < N; j++)
                rest -= j == i ? 0 : m->normal[i][j] * m->cost[j];
            if (m->normal[i][i] > 1e-300)
                m->cost[i] = rest > 0 ? rest / m->normal[i][i] : 0;
        }
}

void step_time_saw(struct step_time *m, const struct step_shape *shape, int64_t ns)
{
    double terms[N];
    if (ns <= 0)
        return;
    terms_of(shape, terms);
    double error = fabs(predict(m, terms) / (double)ns - 1);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++)
            m->normal[i][j] =
                keep * m->normal[i][j] + (terms[i] / (double)ns) * (terms[j] / (double)ns);
        m->right[i] = keep * m->right[i] + terms[i] / (double)ns;
    }
    solve(m);
    if (m->n_seen >= COLD_STEPS) {
        double most = 4 * (m->error > least_error ? m->error : least_error);
        m->error = keep_error * m->error + (1 - keep_error) * (error < most ? error : most);
    }
    m->n_seen += m->n_seen < UINT32_MAX;
    m->knows_prefill = m->knows_prefill || shape->n_prefill;
}

int64_t step_time_predict(const struct step_time *m, const struct step_shape *shape)
{
    double terms[N];
    terms_of(shape, terms);
    double ns = predict(m, terms);
    return ns < 9e18 ? (int64_t)ns : INT64_MAX;
}

uint32_t step_time_fit_rows(const struct step_time *m, const struct step_shape *shape,
                            uint32_t depth, int64_t limit_ns, uint32_t most)
{
    double free_part = margin * m->error < most_margin ? margin * m->error : most_margin;
    double limit = (double)limit_ns * (1 - free_part), terms[N];
    uint32_t fits = 0, too_many = most + 1;
    if (!m->knows_prefill)
        return most;
    while (too_many - fits > 1) {
        uint32_t n = fits + (too_many - fits) / 2;
        struct step_shape with = *shape;
        with.n_prefill += n;
        with.n_context += step_time_context(depth, n);
        terms_of(&with, terms);
        *(predict(m, terms) <= limit ? &fits : &too_many) = n;
    }
    return fits;
}
