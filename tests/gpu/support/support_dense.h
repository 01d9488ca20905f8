/* support_dense.h: shared parts of the tests of CUDA's dense linears. There are the device,
 * weights on the device, and the product in f64 of the numbers that are multiplied. Failures end
 * the test. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/gpu/support/support_gpu.h"

/* A checkpoint's type, and the form in which the device stores it. */
struct dense_kind {
    const char *name;
    enum dtype type;
    enum weight_store store;
};
enum { N_DENSE_KINDS = 8 };
extern const struct dense_kind dense_kinds[N_DENSE_KINDS];

/* Returns true if the device multiplies the kind: f8 from compute capability 8.9 on. A refused kind
 * has a reason. */
bool dense_kind_runs(const struct dense_kind *kind);

/* A weight on the device, and the numbers of the f64 product: w[n][k] · w_scale[n]. */
struct dense_weight {
    struct weight_desc desc;
    struct weight *w;
    void *data;
    uint8_t *raw;
    double *values;
    float *scales;
};
struct dense_weight dense_weight_make(const struct dense_kind *kind, const struct weight_desc *desc,
                                      const uint8_t *raw); /* raw: taken; rows of k_total */
void dense_weight_drop(struct dense_weight *weight);

/* Computes exact[m][n] in f64, and the sums of magnitudes. Allowed errors are relative to these
 * sums. */
void dense_exact(const struct dense_weight *weight, const float *x, uint32_t m, double *exact,
                 double *magnitude);

/* Computes y[m, n] of rows x (device memory, dense) by op_linear. Rows of the device's y have n +
 * pad poisoned floats, and there is a row more. The caller's y gets the results; all other floats
 * must still be poison. roles: NULL, or how the rows are split. */
void dense_run(const struct weight *w, const float *device_x, uint32_t m, uint32_t pad,
               const struct role_run *roles, uint32_t n_roles, float *y);
