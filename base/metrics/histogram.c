#include "base/metrics/histogram.h"

#include <inttypes.h>
#include <math.h>

#include "base/strbuf.h"

static const double growth = 1.002;

void histogram_add_many(struct histogram *histogram, int64_t ns, uint64_t n)
{
    ns = ns > 0 ? ns : 0;
    double us = (double)ns / 1e3, ms = us / 1e3;
    int bucket = us <= 1 ? 0 : (int)(log(us) / log(growth)) + 1;
    if (!n)
        return;
    histogram->counts[bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1] += n;
    if (!histogram->n || ns < histogram->min_ns)
        histogram->min_ns = ns;
    if (ns > histogram->max_ns)
        histogram->max_ns = ns;
    histogram->n += n;
    histogram->sum_ms += ms * (double)n;
    histogram->sum_ms2 += ms * ms * (double)n;
}

void histogram_add(struct histogram *histogram, int64_t ns)
{
    histogram_add_many(histogram, ns, 1);
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
    if (!from->n)
        return;
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
        into->counts[i] += from->counts[i];
    if (!into->n || from->min_ns < into->min_ns)
        into->min_ns = from->min_ns;
    if (from->max_ns > into->max_ns)
        into->max_ns = from->max_ns;
    into->n += from->n;
    into->sum_ms += from->sum_ms;
    into->sum_ms2 += from->sum_ms2;
}

/* Returns the middle of a bucket. Bucket i lies between growth^(i-1) and growth^i µs; bucket 0
 * holds all times up to 1 µs. */
static double bucket_ms(const struct histogram *histogram, int bucket)
{
    double ms = pow(growth, bucket - 0.5) / 1e3;
    double min = (double)histogram->min_ns / 1e6, max = (double)histogram->max_ns / 1e6;
    return ms < min ? min : ms > max ? max : ms;
}

double histogram_ms(const struct histogram *histogram, double quantile)
{
    uint64_t rank = (uint64_t)ceil(quantile * (double)histogram->n), seen = 0;
    rank = rank ? rank : 1;
    for (int i = 0; i < HISTOGRAM_BUCKETS && histogram->n; i++) {
        seen += histogram->counts[i];
        if (seen >= rank)
            return bucket_ms(histogram, i);
    }
    return 0;
}

double histogram_mean_ms(const struct histogram *histogram)
{
    return histogram->n ? histogram->sum_ms / (double)histogram->n : 0;
}

double histogram_stddev_ms(const struct histogram *histogram)
{
    double n = (double)histogram->n, mean = histogram_mean_ms(histogram);
    double variance = n > 1 ? (histogram->sum_ms2 - n * mean * mean) / (n - 1) : 0;
    return variance > 0 ? sqrt(variance) : 0;
}

void histogram_json(const struct histogram *histogram, struct strbuf *out)
{
    if (!histogram->n) {
        strbuf_add_str(out, "{\"mean\": null, \"stddev\": null, \"min\": null, \"p50\": null, "
                            "\"p90\": null, \"p99\": null, \"max\": null, \"n\": 0}");
        return;
    }
    strbuf_printf(out,
                  "{\"mean\": %.3f, \"stddev\": %.3f, \"min\": %.3f, \"p50\": %.3f, \"p90\": %.3f, "
                  "\"p99\": %.3f, \"max\": %.3f, \"n\": %" PRIu64 "}",
                  histogram_mean_ms(histogram), histogram_stddev_ms(histogram),
                  (double)histogram->min_ns / 1e6, histogram_ms(histogram, 0.5),
                  histogram_ms(histogram, 0.9), histogram_ms(histogram, 0.99),
                  (double)histogram->max_ns / 1e6, histogram->n);
}
