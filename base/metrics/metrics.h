/* metrics.h: a registry of counters, gauges and histograms, and their text for Prometheus
 * (exposition format 0.0.4). Updates come from any thread and are relaxed atomics: no lock, no
 * allocation. What is not counted where it happens is asked for at each scrape (collectors).
 *
 * Label values come from names that were checked (models, versions, replicas) or from tables of the
 * program, never from a client's request: the number of series is bounded by what is loaded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct metric;
struct metrics;
struct metrics_family;
struct metrics_sink;
struct strbuf;

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };
enum { METRIC_MAX_LABELS = 6, METRIC_MAX_SERIES = 4096 };

/* One name. Strings and bounds are borrowed for the registry's life. */
struct metric_spec {
    const char *name; /* counters end in _total */
    const char *help; /* one sentence */
    enum metric_type type;
    const char *labels[METRIC_MAX_LABELS]; /* ends with NULL where there are fewer */
    /* Histograms: upper bounds in units, ascending; a bucket without a bound follows. */
    const uint64_t *bounds;
    uint32_t n_bounds;
    double unit; /* what one unit is worth in the text: 1e-9 shows ns as seconds; 0: 1 */
    /* Another family of the registry, by name: its samples are shown under this name and these
     * labels too (label for label). Collectors and series belong to the original. */
    const char *alias_of;
};

/* *out_metrics is owned. */
int metrics_create(struct metrics **out_metrics, struct error *err);
void metrics_destroy(struct metrics *metrics); /* every series released; NULL is accepted */

/* Adds n_specs names, in the order of the text. out_families (n_specs places, may be NULL) are
 * borrowed for the registry's life. INVALID_ARGUMENT, naming it, for a name that is malformed, not
 * new, or an alias of nothing. Before the first scrape. */
int metrics_add(struct metrics *metrics, const struct metric_spec *specs, size_t n_specs,
                struct metrics_family **out_families, struct error *err);

/* Called at each scrape, one after the other, on the thread that scrapes: puts samples into the
 * sink. `arg` is borrowed for the registry's life. */
typedef void metrics_collect_fn(void *arg, struct metrics_sink *sink);
int metrics_add_collector(struct metrics *metrics, metrics_collect_fn *collect, void *arg,
                          struct error *err);

/* The series of a family with these label values (as many as it has labels; NULL where none),
 * made where there is none. Retained for the caller; it leaves the text with the last release. NULL
 * beyond METRIC_MAX_SERIES of a family or without memory: updates of NULL do nothing. */
struct metric *metrics_series(struct metrics *metrics, struct metrics_family *family,
                              const char *const *values);
void metric_release(struct metric *metric); /* NULL is accepted */

void metric_add(struct metric *metric, uint64_t n);         /* counter */
void metric_set(struct metric *metric, double value);       /* gauge */
void metric_observe(struct metric *metric, uint64_t units); /* histogram */
/* The same n times. */
void metric_observe_n(struct metric *metric, uint64_t units, uint64_t n);

/* Collectors only. */
void metrics_sample(struct metrics_sink *sink, struct metrics_family *family,
                    const char *const *values, double value);
/* counts[n_bounds + 1]: of each bucket alone. Bounds and sum as they are shown. */
void metrics_sample_histogram(struct metrics_sink *sink, struct metrics_family *family,
                              const char *const *values, const double *bounds, uint32_t n_bounds,
                              const uint64_t *counts, double sum);

/* Appends the whole text. One scrape at a time (lock inside). */
void metrics_render(struct metrics *metrics, struct strbuf *out);

/* A histogram of one's own, for what is told to another process: the same atomics without a name.
 */
struct metric_histogram {
    const uint64_t *bounds;
    uint32_t n_bounds;
    _Atomic uint64_t *counts; /* [n_bounds + 1], borrowed */
    _Atomic uint64_t sum;
};
void metric_histogram_observe(struct metric_histogram *histogram, uint64_t units, uint64_t n);

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
