/* histogram.h: request times of a load run in logarithmic buckets of 0.2 %. Memory is bounded;
 * quantiles are exact to 0.1 %. Count, minimum, maximum, mean and deviation are exact. For reports
 * of load runs and benchmarks; metrics.h is for /metrics. Single-threaded. */
#pragma once

#include <stdint.h>

struct strbuf;

enum { HISTOGRAM_BUCKETS = 12288 }; /* 1 µs · 1.002^n: up to 12 hours */

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS], n;
    int64_t min_ns, max_ns;
    double sum_ms, sum_ms2;
};

/* A zeroed histogram is an empty one. Times below 0 count as 0. */
void histogram_add(struct histogram *histogram, int64_t ns);
void histogram_add_many(struct histogram *histogram, int64_t ns, uint64_t n);
void histogram_merge(struct histogram *into, const struct histogram *from);

/* Returns the quantile in ms; 0 if the histogram is empty. The quantile is the ⌈quantile · n⌉-th
 * smallest time. Its value is the middle of its bucket, clamped to the minimum and the maximum. */
double histogram_ms(const struct histogram *histogram, double quantile);
double histogram_mean_ms(const struct histogram *histogram);
double histogram_stddev_ms(const struct histogram *histogram); /* sample deviation (n - 1) */

/* Appends {"mean": …, "stddev": …, "min": …, "p50": …, "p90": …, "p99": …, "max": …, "n": …}, times
 * in ms. */
void histogram_json(const struct histogram *histogram, struct strbuf *out);
