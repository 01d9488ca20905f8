/* metrics.h: a registry of counters, gauges and histograms, rendered as text for Prometheus
 * (exposition format 0.0.4). Any thread may update: updates are relaxed atomics, without locks or
 * allocation. Collectors supply values that are not counted as they happen; each scrape calls them.
 *
 * Label values are checked names (models, versions, replicas) or constants of the program, never
 * text of a client's request. So the number of series is bounded by what is loaded. */
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

/* A metric family. Strings and bounds are borrowed for the registry's life. */
struct metric_spec {
    const char *name; /* counters end in _total */
    const char *help; /* a single sentence */
    enum metric_type type;
    const char *labels[METRIC_MAX_LABELS]; /* ends with NULL where there are fewer */
    /* Histograms: upper bounds in units, ascending; a bucket without an upper bound follows. */
    const uint64_t *bounds;
    uint32_t n_bounds;
    double unit; /* factor from units to the text: 1e-9 shows ns as seconds; 0 means 1 */
    /* Name of another family. This family repeats the samples of that family under its own name and
     * labels, label for label. Collectors and series belong to the original. */
    const char *alias_of;
};

/* *out_metrics is owned. */
int metrics_create(struct metrics **out_metrics, struct error *err);
void metrics_destroy(struct metrics *metrics); /* all series must be released; NULL is accepted */

/* Adds n_specs families; the text keeps their order. out_families (n_specs pointers, may be NULL)
 * are borrowed for the registry's life. INVALID_ARGUMENT names the family whose name is malformed
 * or already there, or whose alias_of names no family. Call before the first scrape. */
int metrics_add(struct metrics *metrics, const struct metric_spec *specs, size_t n_specs,
                struct metrics_family **out_families, struct error *err);

/* Puts samples into the sink. Each scrape calls the collectors in turn on the scraping thread.
 * `arg` is borrowed for the registry's life. */
typedef void metrics_collect_fn(void *arg, struct metrics_sink *sink);
int metrics_add_collector(struct metrics *metrics, metrics_collect_fn *collect, void *arg,
                          struct error *err);

/* Returns the series of a family with these label values, and makes the series if it is missing.
 * `values` has an entry per label (NULL if there are none). The caller holds a reference; the last
 * release removes the series from the text. NULL beyond METRIC_MAX_SERIES per family or without
 * memory: updates of NULL do nothing. */
struct metric *metrics_series(struct metrics *metrics, struct metrics_family *family,
                              const char *const *values);
void metric_release(struct metric *metric); /* NULL is accepted */

void metric_add(struct metric *metric, uint64_t n);         /* counter */
void metric_set(struct metric *metric, double value);       /* gauge */
void metric_observe(struct metric *metric, uint64_t units); /* histogram */
/* Observes the same value n times. */
void metric_observe_n(struct metric *metric, uint64_t units, uint64_t n);

/* Adds a sample to the scrape; for collectors only. */
void metrics_sample(struct metrics_sink *sink, struct metrics_family *family,
                    const char *const *values, double value);
/* Adds a histogram; for collectors only. counts[n_bounds + 1] are per bucket, not cumulative.
 * Bounds and sum are in the unit of the text. */
void metrics_sample_histogram(struct metrics_sink *sink, struct metrics_family *family,
                              const char *const *values, const double *bounds, uint32_t n_bounds,
                              const uint64_t *counts, double sum);

/* Appends the whole text. A lock inside lets scrapes run one after the other. */
void metrics_render(struct metrics *metrics, struct strbuf *out);

/* A histogram outside the registry, for counts sent to another process. Atomics as above, without a
 * name. */
struct metric_histogram {
    const uint64_t *bounds;
    uint32_t n_bounds;
    _Atomic uint64_t *counts; /* [n_bounds + 1], borrowed */
    _Atomic uint64_t sum;
};
void metric_histogram_observe(struct metric_histogram *histogram, uint64_t units, uint64_t n);

#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
