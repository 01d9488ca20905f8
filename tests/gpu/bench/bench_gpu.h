/* bench_gpu.h: what the parts of bench_cuda share: the device under test, its memory and the timing
 * of calls. Failures end the program with their message. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "kernels/backend.h"
#include "tests/unit/kernels/support/support_kernels.h"

enum { BENCH_REPEATS = 20, BENCH_MAX_ROW_COUNTS = 8 };

struct bench {
    bool small;
    bool once;        /* each call once, for a profiler */
    bool no_ceilings; /* no rates of the card: tables have times without shares */
    const char *parts, *models, *directory;
    const char *ceilings;   /* file of the card's rates, read if present, else written; or NULL */
    const char *formats;    /* formats of weights, in bench_linears(); "": all */
    const char *kv;         /* types of caches, in bench_attention(); "": all */
    const char *row_counts; /* numbers of rows in bench_linears(); "": all */
    double outliers;        /* share of 64-column chunks with a planted outlier; below 0: none */
    uint32_t n_layers;      /* the 8B shape's layers */
    double repeat_s;        /* repeats of a call take at most so long */
    bool prompts_f16;       /* prompts of quantized weights in 16 bit, in linears and models */
    uint32_t warm_ms;       /* products run so long before anything is timed */
    FILE *record;           /* lines "KEY<tab>MEDIAN<tab>LEAST" in seconds, or NULL */
    struct backend_module module;
    struct device *device;
    struct stream *stream;
    double read_bytes_per_s; /* a kernel that only reads; 0: not measured, as the next two */
    double copy_bytes_per_s; /* read + written */
    double bf16_flops;       /* rate of the fastest large product: cuBLASLt's or path P's */
    /* text about the cost of determinism, printed behind the table of models */
    char determinism[256];
};

/* Seconds of one call. */
struct bench_time {
    double median, least;
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
/* Grows the stream's workspace to the size that these ops need. */
void bench_reserve(struct bench *b, const struct op_needs *needs);

typedef int bench_call(struct bench *b, void *job, uint32_t i);

/* Returns the time of one call. Captures many calls as one graph and replays the graph. `rotate`
 * calls in a row use different operands, so that none finds its own in the cache. */
struct bench_time bench_time_captured(struct bench *b, bench_call *call, void *job,
                                      uint32_t rotate);
/* The same for a call that cannot be captured: queues the call many times in a row. */
struct bench_time bench_time_queued(struct bench *b, bench_call *call, void *job, uint32_t rotate);
/* Sorts n measured times, and returns their median and least. */
struct bench_time bench_time_of(double *seconds, uint32_t n);
/* True until n_done repeats, which took `seconds`, are enough; BENCH_REPEATS at most. */
bool bench_more_repeats(const struct bench *b, uint32_t n_done, double seconds);

/* Returns the share of a ceiling; below 0 if the ceiling was not measured. */
double bench_share(double rate, double ceiling);
/* Prints a cell, median (least), share, and records the time under `key`. */
void bench_cell(struct bench *b, const char *key, struct bench_time time, double share);
void bench_record(struct bench *b, const char *key, struct bench_time time);
/* True if `name` is an item of a list with commas, in any case. An empty list has every name. */
bool bench_lists(const char *list, const char *name);

/* n_rows raw rows: 64 random ones again and again. Caller frees. */
uint8_t *bench_rows(enum dtype type, uint32_t n_rows, uint32_t k);
/* For qsort of doubles. */
int bench_by_value(const void *a, const void *b);

/* Returns the operations per second of an n³ bf16 product by cuBLASLt, as a reference. Returns 0
 * and fills err where cuBLASLt is missing. */
double bench_peak(struct bench *b, uint32_t n, struct error *err);

/* Runs bench_cuda's other arguments alternately with VARIABLE=a and VARIABLE=b, in processes of
 * their own, and prints the ratios of the times. Begins no run that may last beyond most_s. Returns
 * the exit status. */
int bench_ab(const char *choice, uint32_t n_rounds, double most_s, int argc, char **argv);

/* The parts; each prints a table. */
void bench_card(struct bench *b); /* sets the rates */
/* Warms the card, and sets bf16_flops. */
void bench_product(struct bench *b);
void bench_linears(struct bench *b);
void bench_row_ops(struct bench *b);
/* Measures the ops of recurrent layers. */
void bench_states(struct bench *b);
/* Measures path D and path P with equal rows, to show the cost of a generated token's order of
 * sums. */
void bench_paths(struct bench *b);
/* Host packing of every format, without the device. */
void bench_pack(struct bench *b);
/* Measures loads of files with real bytes, beside the speed of disk and bus. */
void bench_load(struct bench *b);
void bench_decode_attention(struct bench *b);
void bench_prompt_attention(struct bench *b);
void bench_latent_attention(struct bench *b);
void bench_sampler(struct bench *b);
/* Measures prefill, decode, or both. */
void bench_models(struct bench *b, bool prefill, bool decode);
