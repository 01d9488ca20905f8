#include "base/metrics/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/utf8.h"

enum { MAX_COLLECTORS = 8, MAX_BOUNDS = 64, NUMBER_BYTES = 40 };

struct metrics_family {
    struct metrics *metrics;
    const struct metric_spec *spec;
    uint32_t n_labels, n_series;
    double unit;
    struct metrics_family *next;    /* next family of the registry, in order */
    struct metrics_family *aliases; /* aliases of this family, linked by next_alias */
    struct metrics_family *next_alias;
    struct metric *series; /* guarded by the registry's `lock` */
    struct strbuf samples; /* sample lines of the current scrape */
};

struct metric {
    struct metrics_family *family;
    struct metric *next; /* `next` and n_refs are guarded by the registry's `lock` */
    uint32_t n_refs;
    char *values[METRIC_MAX_LABELS];   /* owned */
    _Atomic uint64_t value;            /* counter; gauge: the bits of a double */
    struct metric_histogram histogram; /* histograms only */
    _Atomic uint64_t counts[];         /* histograms only: n_bounds + 1 counts */
};

struct metrics_sink {
    struct metrics *metrics;
};

struct metrics {
    pthread_mutex_t scrape_lock; /* taken before `lock` */
    pthread_mutex_t lock;        /* guards the lists of series */
    struct metrics_family *first, **last;
    struct {
        metrics_collect_fn *collect;
        void *arg;
    } collectors[MAX_COLLECTORS];
    size_t n_collectors;
};

/* -- the registry ---------------------------------------------------------------------------------
 */

int metrics_create(struct metrics **out_metrics, struct error *err)
{
    struct metrics *metrics = calloc(1, sizeof(*metrics));
    if (!metrics)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    pthread_mutex_init(&metrics->scrape_lock, NULL);
    pthread_mutex_init(&metrics->lock, NULL);
    metrics->last = &metrics->first;
    *out_metrics = metrics;
    return 0;
}

static void free_metric(struct metric *metric)
{
    for (uint32_t i = 0; i < METRIC_MAX_LABELS; i++)
        free(metric->values[i]);
    free(metric);
}

void metrics_destroy(struct metrics *metrics)
{
    if (!metrics)
        return;
    while (metrics->first) {
        struct metrics_family *family = metrics->first;
        metrics->first = family->next;
        while (family->series) {
            struct metric *metric = family->series;
            family->series = metric->next;
            free_metric(metric);
        }
        strbuf_fini(&family->samples);
        free(family);
    }
    pthread_mutex_destroy(&metrics->lock);
    pthread_mutex_destroy(&metrics->scrape_lock);
    free(metrics);
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Accepts [a-zA-Z_][a-zA-Z0-9_]*; names of metrics may have colons too. */
static bool is_name(const char *text, bool colons)
{
    if (!is_letter(*text) && !(colons && *text == ':'))
        return false;
    for (const char *p = text; *p; p++)
        if (!is_letter(*p) && !(*p >= '0' && *p <= '9') && !(colons && *p == ':'))
            return false;
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static struct metrics_family *find(const struct metrics *metrics, const char *name)
{
    for (struct metrics_family *family = metrics->first; family; family = family->next)
        if (strcmp(family->spec->name, name) == 0)
            return family;
    return NULL;
}

static uint32_t count_labels(const struct metric_spec *spec)
{
    uint32_t n = 0;
    while (n < METRIC_MAX_LABELS && spec->labels[n])
        n++;
    return n;
}

static int check(const struct metrics *metrics, const struct metric_spec *spec, struct error *err)
{
    const struct metrics_family *source = spec->alias_of ? find(metrics, spec->alias_of) : NULL;
    bool counter = spec->type == METRIC_COUNTER;
    if (!is_name(spec->name, true) || !spec->help || !*spec->help)
        return error_set(err, STATUS_INVALID_ARGUMENT, "metric %s: the name or the help is missing",
                         spec->name);
    if (ends_with(spec->name, "_total") != counter)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "metric %s: names of counters, and only these, end in _total", spec->name);
    if (find(metrics, spec->name))
        return error_set(err, STATUS_INVALID_ARGUMENT, "metric %s: already registered", spec->name);
    for (uint32_t i = 0; i < count_labels(spec); i++)
        if (!is_name(spec->labels[i], false) || strcmp(spec->labels[i], "le") == 0)
            return error_set(err, STATUS_INVALID_ARGUMENT, "metric %s: label %s", spec->name,
                             spec->labels[i]);
    if (spec->n_bounds > MAX_BOUNDS)
        return error_set(err, STATUS_INVALID_ARGUMENT, "metric %s: more than %d bounds", spec->name,
                         MAX_BOUNDS);
    for (uint32_t i = 1; i < spec->n_bounds; i++)
        if (spec->bounds[i] <= spec->bounds[i - 1])
            return error_set(err, STATUS_INVALID_ARGUMENT, "metric %s: bounds do not ascend",
                             spec->name);
    if (spec->alias_of && (!source || source->spec->alias_of || source->spec->type != spec->type ||
                           source->n_labels != count_labels(spec)))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "metric %s: no family %s with this type and this number of labels",
                         spec->name, spec->alias_of);
    return 0;
}

static int add_one(struct metrics *metrics, const struct metric_spec *spec,
                   struct metrics_family **out_family, struct error *err)
{
    if (check(metrics, spec, err) != 0)
        return err->status;
    struct metrics_family *family = calloc(1, sizeof(*family));
    if (!family)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: out of memory");
    family->metrics = metrics;
    family->spec = spec;
    family->n_labels = count_labels(spec);
    family->unit = spec->unit != 0.0 ? spec->unit : 1.0;
    if (spec->alias_of) {
        struct metrics_family *source = find(metrics, spec->alias_of);
        family->next_alias = source->aliases;
        source->aliases = family;
    }
    *metrics->last = family;
    metrics->last = &family->next;
    *out_family = family;
    return 0;
}

int metrics_add(struct metrics *metrics, const struct metric_spec *specs, size_t n_specs,
                struct metrics_family **out_families, struct error *err)
{
    int rc = 0;
    for (size_t i = 0; !rc && i < n_specs; i++) {
        struct metrics_family *family = NULL;
        rc = add_one(metrics, &specs[i], &family, err);
        if (!rc && out_families)
            out_families[i] = family;
    }
    return rc;
}

int metrics_add_collector(struct metrics *metrics, metrics_collect_fn *collect, void *arg,
                          struct error *err)
{
    if (metrics->n_collectors == MAX_COLLECTORS)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "metrics: over %d collectors",
                         MAX_COLLECTORS);
    metrics->collectors[metrics->n_collectors].collect = collect;
    metrics->collectors[metrics->n_collectors++].arg = arg;
    return 0;
}

/* -- series ---------------------------------------------------------------------------------------
 */

static bool has_labels(const struct metric *metric, const char *const *values)
{
    for (uint32_t i = 0; i < metric->family->n_labels; i++)
        if (strcmp(metric->values[i], values[i]) != 0)
            return false;
    return true;
}

static struct metric *make(struct metrics_family *family, const char *const *values)
{
    const struct metric_spec *spec = family->spec;
    struct metric *metric =
        family->n_series < METRIC_MAX_SERIES
            ? calloc(1, sizeof(*metric) + (spec->n_bounds + 1) * sizeof(metric->counts[0]))
            : NULL;
    if (!metric)
        return NULL;
    metric->family = family;
    metric->histogram.bounds = spec->bounds;
    metric->histogram.n_bounds = spec->n_bounds;
    metric->histogram.counts = metric->counts;
    for (uint32_t i = 0; i < family->n_labels; i++) {
        metric->values[i] = strdup(values[i]);
        if (!metric->values[i]) {
            free_metric(metric);
            return NULL;
        }
    }
    metric->next = family->series;
    family->series = metric;
    family->n_series++;
    return metric;
}

struct metric *metrics_series(struct metrics *metrics, struct metrics_family *family,
                              const char *const *values)
{
    pthread_mutex_lock(&metrics->lock);
    struct metric *metric = family->series;
    while (metric && !has_labels(metric, values))
        metric = metric->next;
    if (!metric)
        metric = make(family, values);
    if (metric)
        metric->n_refs++;
    pthread_mutex_unlock(&metrics->lock);
    return metric;
}

void metric_release(struct metric *metric)
{
    if (!metric)
        return;
    struct metrics_family *family = metric->family;
    pthread_mutex_lock(&family->metrics->lock);
    bool gone = --metric->n_refs == 0;
    for (struct metric **link = &family->series; gone && *link; link = &(*link)->next)
        if (*link == metric) {
            *link = metric->next;
            family->n_series--;
            break;
        }
    pthread_mutex_unlock(&family->metrics->lock);
    if (gone)
        free_metric(metric);
}

void metric_add(struct metric *metric, uint64_t n)
{
    if (metric)
        atomic_fetch_add_explicit(&metric->value, n, memory_order_relaxed);
}

void metric_set(struct metric *metric, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (metric)
        atomic_store_explicit(&metric->value, bits, memory_order_relaxed);
}

void metric_histogram_observe(struct metric_histogram *histogram, uint64_t units, uint64_t n)
{
    uint32_t low = 0,
             high = histogram
                        ->n_bounds; /* becomes the index of the first bound ≥ units, or n_bounds */
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (histogram->bounds[middle] < units)
            low = middle + 1;
        else
            high = middle;
    }
    atomic_fetch_add_explicit(&histogram->counts[low], n, memory_order_relaxed);
    atomic_fetch_add_explicit(&histogram->sum, units * n, memory_order_relaxed);
}

void metric_observe_n(struct metric *metric, uint64_t units, uint64_t n)
{
    if (metric && n)
        metric_histogram_observe(&metric->histogram, units, n);
}

void metric_observe(struct metric *metric, uint64_t units)
{
    metric_observe_n(metric, units, 1);
}

/* -- the text -------------------------------------------------------------------------------------
 */

/* Escapes backslashes and newlines, and quotes in label values. Bytes that are not UTF-8 become
 * U+FFFD. */
static void put_escaped(struct strbuf *out, const char *text, bool quotes)
{
    size_t n = strlen(text);
    bool valid = utf8_valid(text, n, NULL);
    for (const char *p = text; *p; p++) {
        if (*p == '\n')
            strbuf_add(out, "\\n", 2);
        else if (*p == '\\' || (quotes && *p == '"'))
            strbuf_printf(out, "\\%c", *p);
        else if (!valid && (unsigned char)*p >= 0x80)
            strbuf_add_str(out, "\xEF\xBF\xBD");
        else
            strbuf_add_char(out, *p);
    }
}

static void put_number(struct strbuf *out, double value)
{
    char text[NUMBER_BYTES];
    int n;
    if (isnan(value))
        n = snprintf(text, sizeof(text), "NaN");
    else if (isinf(value))
        n = snprintf(text, sizeof(text), value > 0 ? "+Inf" : "-Inf");
    else if (value == floor(value) && fabs(value) < 9007199254740992.0)
        n = snprintf(text, sizeof(text), "%" PRId64, (int64_t)value);
    else
        n = snprintf(text, sizeof(text), "%.15g", value);
    strbuf_add(out, text, (size_t)n);
}

/* Writes the begin of a sample's line: name, suffix, labels (with `le`, unless NULL), and a space.
 */
static void put_head(struct strbuf *out, const struct metrics_family *family, const char *suffix,
                     const char *const *values, const char *le)
{
    strbuf_add_str(out, family->spec->name);
    strbuf_add_str(out, suffix);
    if (family->n_labels || le)
        strbuf_add_char(out, '{');
    for (uint32_t i = 0; i < family->n_labels; i++) {
        if (i)
            strbuf_add_char(out, ',');
        strbuf_add_str(out, family->spec->labels[i]);
        strbuf_add(out, "=\"", 2);
        put_escaped(out, values[i], true);
        strbuf_add_char(out, '"');
    }
    if (le) {
        strbuf_add_str(out, family->n_labels ? ",le=\"" : "le=\"");
        strbuf_add_str(out, le);
        strbuf_add_char(out, '"');
    }
    strbuf_add_str(out, family->n_labels || le ? "} " : " ");
}

static void put_sample(struct metrics_family *family, const char *const *values, double value)
{
    put_head(&family->samples, family, "", values, NULL);
    put_number(&family->samples, value);
    strbuf_add_char(&family->samples, '\n');
}

static void put_bound(double bound, char out[NUMBER_BYTES])
{
    snprintf(out, NUMBER_BYTES, "%.10g", bound);
}

static void put_histogram(struct metrics_family *family, const char *const *values,
                          const double *bounds, uint32_t n_bounds, const uint64_t *counts,
                          double sum)
{
    struct strbuf *out = &family->samples;
    uint64_t n = 0;
    for (uint32_t i = 0; i <= n_bounds; i++) {
        char le[NUMBER_BYTES] = "+Inf";
        n += counts[i];
        if (i < n_bounds)
            put_bound(bounds[i], le);
        put_head(out, family, "_bucket", values, le);
        strbuf_printf(out, "%" PRIu64 "\n", n);
    }
    put_head(out, family, "_sum", values, NULL);
    put_number(out, sum);
    strbuf_add_char(out, '\n');
    put_head(out, family, "_count", values, NULL);
    strbuf_printf(out, "%" PRIu64 "\n", n);
}

void metrics_sample(struct metrics_sink *sink, struct metrics_family *family,
                    const char *const *values, double value)
{
    (void)sink;
    put_sample(family, values, value);
    for (struct metrics_family *alias = family->aliases; alias; alias = alias->next_alias)
        put_sample(alias, values, value);
}

void metrics_sample_histogram(struct metrics_sink *sink, struct metrics_family *family,
                              const char *const *values, const double *bounds, uint32_t n_bounds,
                              const uint64_t *counts, double sum)
{
    (void)sink;
    put_histogram(family, values, bounds, n_bounds, counts, sum);
    for (struct metrics_family *alias = family->aliases; alias; alias = alias->next_alias)
        put_histogram(alias, values, bounds, n_bounds, counts, sum);
}

static void sample_series(struct metrics_sink *sink, struct metrics_family *family,
                          const struct metric *metric)
{
    const struct metric_spec *spec = family->spec;
    const char *const *values = (const char *const *)metric->values;
    uint64_t raw = atomic_load_explicit(&metric->value, memory_order_relaxed);
    double value, bounds[MAX_BOUNDS];
    uint64_t counts[MAX_BOUNDS + 1];
    uint32_t n = spec->n_bounds;
    switch (spec->type) {
    case METRIC_COUNTER:
        metrics_sample(sink, family, values, (double)raw * family->unit);
        break;
    case METRIC_GAUGE:
        memcpy(&value, &raw, sizeof(value));
        metrics_sample(sink, family, values, value);
        break;
    case METRIC_HISTOGRAM:
        for (uint32_t i = 0; i < n; i++)
            bounds[i] = (double)spec->bounds[i] * family->unit;
        for (uint32_t i = 0; i <= n; i++)
            counts[i] = atomic_load_explicit(&metric->counts[i], memory_order_relaxed);
        raw = atomic_load_explicit(&metric->histogram.sum, memory_order_relaxed);
        metrics_sample_histogram(sink, family, values, bounds, n, counts,
                                 (double)raw * family->unit);
        break;
    }
}

void metrics_render(struct metrics *metrics, struct strbuf *out)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    struct metrics_sink sink = {metrics};
    pthread_mutex_lock(&metrics->scrape_lock);
    for (struct metrics_family *family = metrics->first; family; family = family->next)
        strbuf_clear(&family->samples);
    for (size_t i = 0; i < metrics->n_collectors; i++)
        metrics->collectors[i].collect(metrics->collectors[i].arg, &sink);
    pthread_mutex_lock(&metrics->lock);
    for (struct metrics_family *family = metrics->first; family; family = family->next)
        for (const struct metric *metric = family->series; metric; metric = metric->next)
            sample_series(&sink, family, metric);
    pthread_mutex_unlock(&metrics->lock);
    for (struct metrics_family *family = metrics->first; family; family = family->next) {
        strbuf_printf(out, "# HELP %s ", family->spec->name);
        put_escaped(out, family->spec->help, false);
        strbuf_printf(out, "\n# TYPE %s %s\n", family->spec->name, types[family->spec->type]);
        strbuf_add(out, strbuf_str(&family->samples), family->samples.n_bytes);
        if (strbuf_failed(&family->samples))
            out->failed = true;
    }
    pthread_mutex_unlock(&metrics->scrape_lock);
}
