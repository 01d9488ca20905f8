/* The recurrent layers of bench_kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/bench/kernels/bench_kernels.h"

static float *random_values(size_t n)
{
    float *x = bench_alloc(n * sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((int)(bench_noise() % 2001) - 1000) * 1e-3f;
    return x;
}

void bench_recurrent(const struct bench *b, enum bench_recurrent_op op, uint32_t n_seqs,
                     uint32_t n_rows)
{
    enum { LAYERS = 18, WIDTH = 4, D = 128, HEADS = 16, SSM_HEADS = 64, SSM_DIM = 64, MOST = 6144 };
    static const char *const names[] = {"convolution", "delta net", "Mamba-2"};
    uint32_t m = n_seqs * n_rows, x_cols = op == BENCH_OP_SSM ? SSM_HEADS * SSM_DIM + 2 * D : MOST,
             y_cols = op == BENCH_OP_CONV    ? MOST
                      : op == BENCH_OP_DELTA ? HEADS * D
                                             : SSM_HEADS * SSM_DIM;
    uint64_t state_floats = op == BENCH_OP_CONV ? (WIDTH - 1) * MOST : (uint64_t)y_cols * D;
    float *pool = bench_alloc(LAYERS * n_seqs * state_floats * sizeof(float)),
          *w = random_values(WIDTH * MOST), *dt = random_values((size_t)m * SSM_HEADS),
          *first = random_values((size_t)m * x_cols), *x = random_values((size_t)m * x_cols),
          *y = bench_alloc((size_t)m * y_cols * sizeof(float)), *a = random_values(SSM_HEADS);
    uint32_t *reads = bench_alloc(2 * m * sizeof(*reads)), *writes = reads + m;
    for (uint32_t i = 0; i < SSM_HEADS; i++)
        a[i] = -0.1f - a[i] * a[i];
    for (uint32_t r = 0; r < m; r++) {
        reads[r] = r % n_rows == 0 ? r / n_rows : RECURRENT_PREVIOUS;
        writes[r] = (r + 1) % n_rows == 0 ? r / n_rows : RECURRENT_NONE;
    }
    const struct conv_params conv = {MOST, WIDTH, w, NULL, true};
    const struct delta_params delta = {HEADS, HEADS, D, D, 0,     HEADS, HEADS,
                                       0,     false, a, w, 1e-6f, 0.088f};
    const struct ssm_params ssm = {1, SSM_HEADS, D, SSM_DIM, a, w, w};
    const struct state_rows rows = {reads, writes, m};
    struct tensor tx = tensor_view(x, DTYPE_F32, m, x_cols),
                  ty = tensor_view(y, DTYPE_F32, m, y_cols),
                  tdt = {dt, DTYPE_F32, m, op == BENCH_OP_DELTA ? HEADS : SSM_HEADS, SSM_HEADS};
    double times[200], total = 0;
    int n = 0, rc = 0;
    while (n < 200 && (n < 5 || total < b->budget_s)) {
        double spent = 0;
        for (int l = 0; l < LAYERS && rc == 0; l++) {
            const struct state_view state = {pool + l * n_seqs * state_floats, state_floats,
                                             n_seqs};
            memcpy(x, first, (size_t)m * x_cols * sizeof(float)); /* the delta net norms x */
            double begin = bench_seconds(b);
            rc = op == BENCH_OP_CONV ? op_conv(b->stream, &tx, &tx, &state, &rows, &conv)
                 : op == BENCH_OP_DELTA
                     ? op_delta_net(b->stream, &ty, &tx, &tdt, &tdt, &state, &rows, &delta)
                     : op_ssm(b->stream, &ty, &tx, &tdt, &state, &rows, &ssm);
            spent += bench_seconds(b) - begin;
        }
        if (rc != 0)
            exit(1);
        total += times[n++] = spent;
    }
    qsort(times, (size_t)n, sizeof(times[0]), bench_by_value);
    double t = times[n / 2], gbs = 8.0 * LAYERS * n_seqs * (double)state_floats / t * 1e-9;
    printf("  %s, 18 layers, %u sequences of %u rows: %.3f ms, %.0f tokens/s, %.0f a thread; "
           "states %.1f GB/s, %.0f%% of updates\n",
           names[op], n_seqs, n_rows, t * 1e3, m / t, m / t / b->n_threads, gbs,
           100 * gbs / b->update_gbs);
    free(pool);
    free(w);
    free(dt);
    free(first);
    free(x);
    free(y);
    free(a);
    free(reads);
}
