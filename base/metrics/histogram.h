/* histogram.h: times of a load run, in logarithmic buckets of 0.2 %: bounded memory however many
 * are added, quantiles to 0.1 %; count, least, largest, mean and deviation are exact. For figures
 * that people and benches read; what /metrics tells is in metrics.h. One thread. */
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

/* In ms; 0 where there is none. The quantile's sample is the ⌈quantile · n⌉-th smallest: its
 * bucket's middle, kept between the least and the largest. */
double histogram_ms(const struct histogram *histogram, double quantile);
double histogram_mean_ms(const struct histogram *histogram);
double histogram_stddev_ms(const struct histogram *histogram); /* of the sample (n - 1) */

/* {"mean": …, "stddev": …, "min": …, "p50": …, "p90": …, "p99": …, "max": …, "n": …}, times in
 * ms. */
void histogram_json(const struct histogram *histogram, struct strbuf *out);
