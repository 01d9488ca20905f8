/* load_stats.h: what the load client counts: times in logarithmic buckets of 2 %, and what /proc
 * says of the processes under load. One thread each; add up at the end. */
#pragma once

#include <stdint.h>

#include "base/strbuf.h"

enum { HISTOGRAM_BUCKETS = 1200 }; /* 1 µs · 1.02^n: up to 5 hours */

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS], n;
    int64_t max_ns;
};
void histogram_add(struct histogram *histogram, int64_t ns);
void histogram_merge(struct histogram *into, const struct histogram *from);
/* Upper edge of the bucket that holds the quantile, in ms; 0 where there is none. */
double histogram_ms(const struct histogram *histogram, double quantile);
/* "NAME": {"p50": …, "p99": …, "max": …, "n": …} */
void histogram_json(const struct histogram *histogram, const char *name, struct strbuf *out);

struct process_usage {
    int64_t cpu_ns; /* user and system */
    uint64_t rss_bytes, n_fds, n_threads;
};
/* Zeroes where there is no such process. */
void process_usage_read(int pid, struct process_usage *out_usage);
