/* bench_gpu.h: what the parts of bench_cuda share: the device under test, its memory and the timing
 * of calls. Failures end the program with their message. */
#pragma once

#include <stdbool.h>

#include "kernels/backend.h"
#include "tests/unit/kernels/support/support_kernels.h"

struct bench {
    bool small;
    bool once; /* each call once, for a profiler */
    const char *parts, *models, *directory;
    const char *formats; /* formats of weights, in bench_linears(); "": all */
    struct backend_module module;
    struct device *device;
    struct stream *stream;
    double copy_bytes_per_s; /* read + written */
    double bf16_flops;       /* rate of the fastest large product: cuBLASLt's or path P's */
    /* text about the cost of determinism, printed behind the table of models */
    char determinism[256];
};

/* How weights are stored. */
struct bench_format {
    const char *name;
    enum dtype type;
    enum weight_store store;
};

_Noreturn void bench_die(const struct error *err);
void *bench_allocate(struct bench *b, size_t n_bytes);
void bench_drop(struct bench *b, void *data, size_t n_bytes);
void bench_sync(struct bench *b);
void bench_upload(struct bench *b, void *dst, const void *src, size_t n_bytes);
/* The stream's workspace for ops of such a size. */
void bench_reserve(struct bench *b, const struct op_needs *needs);

enum { BENCH_REPEATS = 7 };

typedef int bench_call(struct bench *b, void *job, uint32_t i);

/* Seconds of one call, captured as one graph and replayed; the median of several. `rotate` calls in
 * a row work on different operands, so that none finds its own in the cache. */
double bench_time_captured(struct bench *b, bench_call *call, void *job, uint32_t rotate);
/* The same of a call that cannot be captured: queued many times in a row. */
double bench_time_queued(struct bench *b, bench_call *call, void *job, uint32_t rotate);
/* n_rows raw rows: 64 random ones again and again. Caller frees. */
uint8_t *bench_rows(enum dtype type, uint32_t n_rows, uint32_t k);
/* For qsort of doubles. */
int bench_by_value(const void *a, const void *b);

/* Returns the operations per second of an n³ bf16 product by cuBLASLt, as a reference. Returns 0
 * and fills err where cuBLASLt is missing. */
double bench_peak(struct bench *b, uint32_t n, struct error *err);

/* The parts; each prints a table. */
void bench_product(struct bench *b); /* sets bf16_flops */
void bench_linears(struct bench *b);
void bench_row_ops(struct bench *b);
/* Path D and path P at equal rows: what a generated token's order of sums costs. */
void bench_paths(struct bench *b);
/* Host packing of every format, without the device. */
void bench_pack(struct bench *b);
/* Loads of files with real bytes beside disk and bus. */
void bench_load(struct bench *b);
void bench_attention(struct bench *b);
void bench_sampler(struct bench *b);
void bench_models(struct bench *b);
