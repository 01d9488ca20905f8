/* bench_time.c: how bench_cuda times calls, and where the times go: 3 warm-ups, then 20 repeats or
 * 0.3 s of them (--repeat), the median and the least. Cells of tables, and lines of the record. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/gpu/bench/bench_gpu.h"

enum {
    WARM_UPS = 3,
    FEWEST_REPEATS = 3, /* even if a single call takes longer than the whole time */
    MOST_CALLS = 1000,  /* in one captured graph */
};

/* A replay takes at least this long, so that its launch does not count. */
static const double LEAST_REPLAY = 2e-3;

int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench_time bench_time_of(double *seconds, uint32_t n)
{
    qsort(seconds, n, sizeof(*seconds), bench_by_value);
    return (struct bench_time){.median = seconds[n / 2], .least = seconds[0]};
}

bool bench_more_repeats(const struct bench *b, uint32_t n_done, double seconds)
{
    if (b->once || b->small)
        return n_done < 1;
    return n_done < BENCH_REPEATS && (n_done < FEWEST_REPEATS || seconds < b->repeat_s);
}

struct repeat {
    bench_call *call;
    void *job;
    struct graph *graph; /* NULL: the n calls are queued one after the other */
    uint32_t n, rotate;
};

static double run_once(struct bench *b, const struct repeat *r)
{
    int64_t begin = clock_now_ns();
    if (r->graph)
        b->module.device_ops->graph_launch(b->stream, r->graph);
    else
        for (uint32_t i = 0; i < r->n; i++)
            r->call(b, r->job, i % r->rotate);
    bench_sync(b);
    return (double)(clock_now_ns() - begin) * 1e-9;
}

static struct bench_time run_repeats(struct bench *b, const struct repeat *r)
{
    double seconds[BENCH_REPEATS], total = 0.0;
    uint32_t n_done = 0;
    for (int i = 0; i < WARM_UPS && !b->once && !b->small; i++)
        run_once(b, r);
    while (bench_more_repeats(b, n_done, total)) {
        double s = run_once(b, r);
        total += s;
        seconds[n_done++] = s / r->n;
    }
    return bench_time_of(seconds, n_done);
}

static struct graph *capture(struct bench *b, const struct repeat *r)
{
    const struct device_ops *ops = b->module.device_ops;
    struct error err = {0};
    struct graph *graph = NULL;
    if (ops->capture_begin(b->stream, &err) != 0)
        bench_die(&err);
    for (uint32_t i = 0; i < r->n; i++)
        r->call(b, r->job, i % r->rotate);
    if (ops->capture_end(b->stream, &graph, &err) != 0)
        bench_die(&err);
    return graph;
}

static void call_all(struct bench *b, bench_call *call, void *job, uint32_t rotate)
{
    for (uint32_t i = 0; i < rotate; i++)
        if (call(b, job, i) != 0)
            bench_sync(b);
    bench_sync(b);
}

struct bench_time bench_time_captured(struct bench *b, bench_call *call, void *job, uint32_t rotate)
{
    struct repeat r = {call, job, NULL, b->small || b->once ? 1 : rotate * 4, rotate};
    call_all(b, call, job, rotate);
    r.graph = capture(b, &r);
    if (!b->small && !b->once) {
        run_once(b, &r);
        double more = LEAST_REPLAY / run_once(b, &r);
        if (more > 1.0) {
            b->module.device_ops->graph_destroy(r.graph);
            r.n = (uint32_t)(more * r.n + rotate) / rotate * rotate;
            r.n = r.n > MOST_CALLS ? MOST_CALLS / rotate * rotate : r.n;
            r.graph = capture(b, &r);
        }
    }
    struct bench_time time = run_repeats(b, &r);
    b->module.device_ops->graph_destroy(r.graph);
    return time;
}

struct bench_time bench_time_queued(struct bench *b, bench_call *call, void *job, uint32_t rotate)
{
    struct repeat r = {call, job, NULL, b->small || b->once ? 1 : rotate * 50, rotate};
    call_all(b, call, job, rotate);
    return run_repeats(b, &r);
}

double bench_share(double rate, double ceiling)
{
    return ceiling > 0.0 ? rate / ceiling : -1.0;
}

void bench_record(struct bench *b, const char *key, struct bench_time time)
{
    if (b->record == NULL)
        return;
    fprintf(b->record, "%s\t%.9g\t%.9g\n", key, time.median, time.least);
    fflush(b->record);
}

void bench_cell(struct bench *b, const char *key, struct bench_time time, double share)
{
    printf(" %.1f us (%.1f)", time.median * 1e6, time.least * 1e6);
    if (share >= 0.0)
        printf(", %.0f %%", share * 100);
    printf(" |");
    fflush(stdout);
    bench_record(b, key, time);
}
