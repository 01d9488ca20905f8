/* support_kernels.h: what the kernel tests share: a stream per kernel set, random rows of every
 * format, packing, poisoned buffers. Failures end the test through cmocka. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/device.h"
#include "kernels/ops.h"

struct rig {
    struct device *device;
    struct stream *stream;
    const struct op_table *ops;
};

/* The kernel sets this processor runs, NULL-terminated; "ref" first. */
const char *const *kernel_sets(void);

/* Returns these sets and, with AVX-512, the AMX kernels, which take any number of rows. The AMX
 * kernels run over a model of the tile instructions (support_amx_model.h). */
const char *const *linear_sets(void);

/* A stream of n_threads with the named set. */
struct rig rig_open(const char *set, uint32_t n_threads);
void rig_close(struct rig *rig);

/* Returns true if the i-th case of a large grid runs. All cases run, or every n-th with
 * SLUICE_TEST_STEP=n (tests/run.sh; tests/long.sh runs all). */
bool grid_takes(size_t i);
/* Returns true if every case runs (no SLUICE_TEST_STEP above 1). */
bool grid_is_whole(void);

/* A repeatable stream of random numbers. */
struct random {
    uint64_t state;
};
uint32_t random_u32(struct random *r);
float random_uniform(struct random *r, float low, float high);
float random_normal(struct random *r);

/* f32 values with a few outliers, as activations have them. Caller frees. */
float *random_floats(struct random *r, size_t n, float outlier_share);
/* Returns n_rows raw rows of k elements, with scales near 0.01. The caller frees the rows. */
uint8_t *random_rows(struct random *r, enum dtype type, uint32_t n_rows, uint32_t k);

/* Packs raw rows of a whole weight, without a split over ranks. The caller frees the weight. */
struct weight *pack_weight(const struct op_table *ops, const struct weight_desc *desc,
                           const void *raw);
struct weight_desc column_desc(enum dtype type, uint32_t n, uint32_t k);
struct weight_desc row_desc(enum dtype type, uint32_t n, uint32_t k, uint32_t tp, uint32_t index);

struct act *make_act(const struct rig *rig, uint32_t max_rows, uint32_t max_k);

/* Computes y[m, n] = x · Wᵀ by act_prepare and linear. Fills y with NaN before. A guard of one row
 * must stay. */
void run_linear_op(const struct rig *rig, const struct weight *w, const float *x, uint32_t m,
                   uint32_t k, float *y);

/* n floats of NaN. Caller frees. */
float *poisoned(size_t n);
void assert_same_bits(const void *a, const void *b, size_t n_bytes, const char *what);
