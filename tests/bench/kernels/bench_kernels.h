/* bench_kernels.h: common parts of bench_kernels. The options and limits of a run, clocks and
 * memory. Single thread. Every function ends the program if it fails. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct device;
struct error;
struct op_table;
struct stream;

struct bench {
    struct device *device;
    struct stream *stream;
    const struct op_table *ops;
    uint32_t n_threads;
    double budget_s, read_gbs, update_gbs, dot_gops; /* dot_gops: 0 if unknown */
    double outlier_share;
    uint32_t rows[16]; /* row counts of --rows; rows[0] = 0: the row counts of each set of layers */
    const char *only;
};

struct bench_layer {
    const char *name;
    enum dtype type;
    uint32_t n, k, copies; /* copies: number of such matrices that a pass reads */
};

enum bench_recurrent_op { BENCH_OP_CONV, BENCH_OP_DELTA, BENCH_OP_SSM };

/* Wall time; with one thread its CPU time, which other load on the machine disturbs less. */
double bench_seconds(const struct bench *b);
void bench_die(const struct error *err);
/* Zeros, in huge pages where there are any. The caller frees them. */
void *bench_alloc(size_t n_bytes);
uint32_t bench_noise(void);
/* For qsort of doubles. */
int bench_by_value(const void *a, const void *b);

/* Returns the read bandwidth in GB/s over a buffer as large as a model's weights. */
double bench_read_bandwidth(const struct bench *b, size_t n_bytes);
/* Returns the bandwidth in GB/s, reads and writes together, of changing a buffer in place. */
double bench_update_bandwidth(const struct bench *b, size_t n_bytes);
/* The dot rate: Gop/s of vpdpbusd on 512 bits, as many as the threads can start. Without AVX-512
 * VNNI: of pairs of vpmaddubsw and vpaddw on 256 bits; 0 without AVX2. */
double bench_dot_rate(const struct bench *b);
const char *bench_dot_name(void);

/* Times the linears of `layers` for each number of rows; `rows` ends with 0. */
void bench_layers(const struct bench *b, const char *title, const struct bench_layer *layers,
                  const uint32_t *rows);

/* The recurrent ops of a model, with states of all layers, in which n_rows rows of each of n_seqs
 * sequences pass. Qwen3.5-0.8B: 16 heads of 128 x 128. Mamba-2: 64 heads of 128 x 64. */
void bench_recurrent(const struct bench *b, enum bench_recurrent_op op, uint32_t n_seqs,
                     uint32_t n_rows);
