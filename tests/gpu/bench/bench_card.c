/* bench_card.c: the limits of the card: a kernel that only reads, a copy, a bf16 product. All after
 * two seconds of products, because a card that was idle has other clocks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "tests/gpu/bench/bench_gpu.h"
#include "tests/gpu/support/support_probe.h"

struct copy_job {
    unsigned char *a, *b;
    size_t n_bytes;
};

static int call_copy(struct bench *b, void *ctx, uint32_t i)
{
    struct copy_job *job = ctx;
    unsigned char *from = i % 2 ? job->b : job->a, *to = i % 2 ? job->a : job->b;
    return b->module.device_ops->copy(b->stream, to, from, job->n_bytes);
}

static void measure_copy(struct bench *b)
{
    struct copy_job job = {.n_bytes = b->small ? 1 << 16 : (size_t)2 << 30};
    job.a = bench_allocate(b, job.n_bytes);
    job.b = bench_allocate(b, job.n_bytes);
    struct bench_time time = bench_time_captured(b, call_copy, &job, 2);
    b->copy_bytes_per_s = 2 * (double)job.n_bytes / time.median;
    bench_drop(b, job.b, job.n_bytes);
    bench_drop(b, job.a, job.n_bytes);
    printf("Device copy: %.2f TB/s (read + written).\n", b->copy_bytes_per_s * 1e-12);
    bench_record(b, "copy 2 GiB", time);
}

/* Blocks and threads of an SM. */
static const struct occupancy {
    uint32_t blocks, threads;
} occupancies[] = {{1, 512}, {1, 1024}, {2, 512}, {2, 1024}, {4, 256}, {4, 512}, {8, 256}};

static void measure_read(struct bench *b)
{
    enum { SAMPLES = 20 };
    const size_t n_bytes = b->small ? 1 << 18 : (size_t)2 << 30;
    const uint32_t n = b->small || b->once ? 1 : SAMPLES;
    const char *why = NULL;
    const struct gpu_probe *probe = support_probe_open(&why);
    struct bench_time best = {0};
    if (probe == NULL) {
        printf("Read stream: not measured (%s), so shares are of the copy.\n", why);
        b->read_bytes_per_s = b->copy_bytes_per_s;
        return;
    }
    printf("Read stream, TB/s by blocks x threads an SM:");
    for (size_t i = 0; i < sizeof(occupancies) / sizeof(occupancies[0]); i++) {
        const struct occupancy *o = &occupancies[i];
        double seconds[SAMPLES];
        int code = probe->read_stream(n_bytes, o->blocks, o->threads, n, seconds);
        if (code != 0) {
            const char *message = probe->message(code);
            fprintf(stderr, "bench_cuda: read stream: %s\n", message);
            continue;
        }
        struct bench_time time = bench_time_of(seconds, n);
        printf("%s %ux%u %.2f", i ? "," : "", o->blocks, o->threads,
               (double)n_bytes / time.median * 1e-12);
        if (best.median <= 0.0 || time.median < best.median)
            best = time;
    }
    if (best.median <= 0.0) {
        printf(" none. So shares are of the copy.\n");
        b->read_bytes_per_s = b->copy_bytes_per_s;
        return;
    }
    b->read_bytes_per_s = (double)n_bytes / best.median;
    printf(". The best, %.2f TB/s, is the read rate that shares are of.\n",
           b->read_bytes_per_s * 1e-12);
    bench_record(b, "read 2 GiB", best);
}

/* The rates as lines "NAME<tab>RATE" of a file. */
struct rate {
    const char *name;
    double *value;
};

static void write_rates(const char *path, const struct rate *rates, uint32_t n)
{
    FILE *file = fopen(path, "w");
    for (uint32_t i = 0; file && i < n; i++)
        fprintf(file, "%s\t%.9g\n", rates[i].name, *rates[i].value);
    if (file == NULL || fclose(file) != 0)
        fprintf(stderr, "bench_cuda: %s: not written\n", path);
}

/* Returns true if the file has all rates. */
static bool read_rates(const char *path, const struct rate *rates, uint32_t n)
{
    char line[128];
    uint32_t n_found = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        char *tab = strchr(line, '\t');
        for (uint32_t i = 0; tab && i < n; i++)
            if (strncmp(line, rates[i].name, (size_t)(tab - line)) == 0) {
                *rates[i].value = strtod(tab + 1, NULL);
                n_found++;
            }
    }
    if (file)
        fclose(file);
    return n_found == n;
}

void bench_card(struct bench *b)
{
    const struct rate rates[] = {
        {"read", &b->read_bytes_per_s}, {"copy", &b->copy_bytes_per_s}, {"bf16", &b->bf16_flops}};
    const uint32_t n = sizeof(rates) / sizeof(rates[0]);
    if (b->ceilings && read_rates(b->ceilings, rates, n))
        b->no_ceilings = true;
    bench_product(b);
    if (b->no_ceilings)
        return;
    measure_copy(b);
    measure_read(b);
    printf("\n");
    if (b->ceilings)
        write_rates(b->ceilings, rates, n);
}
