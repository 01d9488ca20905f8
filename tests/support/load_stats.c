#include "tests/support/load_stats.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

static const double growth = 1.02;

void histogram_add(struct histogram *histogram, int64_t ns)
{
    double us = (double)ns / 1e3;
    int bucket = us <= 1 ? 0 : (int)(log(us) / log(growth)) + 1;
    histogram->counts[bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1]++;
    histogram->n++;
    if (ns > histogram->max_ns)
        histogram->max_ns = ns;
}

void histogram_merge(struct histogram *into, const struct histogram *from)
{
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++)
        into->counts[i] += from->counts[i];
    into->n += from->n;
    if (from->max_ns > into->max_ns)
        into->max_ns = from->max_ns;
}

double histogram_ms(const struct histogram *histogram, double quantile)
{
    uint64_t rank = (uint64_t)ceil(quantile * (double)histogram->n), seen = 0;
    for (int i = 0; i < HISTOGRAM_BUCKETS && histogram->n; i++) {
        seen += histogram->counts[i];
        if (seen >= rank)
            return pow(growth, i) / 1e3;
    }
    return 0;
}

void histogram_json(const struct histogram *histogram, const char *name, struct strbuf *out)
{
    strbuf_printf(out, "\"%s\": {\"p50\": %.2f, \"p99\": %.2f, \"max\": %.2f, \"n\": %llu}", name,
                  histogram_ms(histogram, 0.5), histogram_ms(histogram, 0.99),
                  (double)histogram->max_ns / 1e6, (unsigned long long)histogram->n);
}

static void read_stat(int pid, struct process_usage *out)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(text, 1, sizeof(text) - 1, file) : 0;
    text[n] = '\0';
    if (file)
        fclose(file);
    const char *at = strrchr(text, ')');
    unsigned long long ticks = 0;
    for (int field = 2; at && field < 24; field++) {
        at = strchr(at + 1, ' ');
        if (at && (field + 1 == 14 || field + 1 == 15))
            ticks += strtoull(at + 1, NULL, 10);
        if (at && field + 1 == 20)
            out->n_threads = strtoull(at + 1, NULL, 10);
        if (at && field + 1 == 24)
            out->rss_bytes = strtoull(at + 1, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    }
    out->cpu_ns =
        (int64_t)(ticks * (unsigned long long)NS_PER_S / (unsigned long long)sysconf(_SC_CLK_TCK));
}

void process_usage_read(int pid, struct process_usage *out_usage)
{
    char path[64];
    memset(out_usage, 0, sizeof(*out_usage));
    read_stat(pid, out_usage);
    snprintf(path, sizeof(path), "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        out_usage->n_fds++;
    if (dir)
        closedir(dir);
    out_usage->n_fds -= out_usage->n_fds >= 2 ? 2 : 0; /* . and .. */
}
