/* The linear layers of bench_kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "tests/bench/kernels/bench_kernels.h"

static struct weight *make_weight(const struct bench *b, const struct bench_layer *layer)
{
    struct error err = {0};
    struct weight_desc desc = {.role = WEIGHT_LINEAR_COLUMN,
                               .source = layer->type,
                               .n_rows = layer->n,
                               .k_total = layer->k};
    size_t n_bytes = weight_bytes(b->ops, &desc, &err);
    if (n_bytes == 0)
        bench_die(&err);
    struct weight *w = NULL;
    if (weight_init(b->ops, &desc, bench_alloc(n_bytes), &w, &err) != 0)
        bench_die(&err);
    size_t row_bytes = dtype_row_bytes(layer->type, layer->k),
           block = dtype_block_bytes(layer->type);
    uint8_t *raw = bench_alloc(row_bytes * 64);
    for (uint32_t row = 0; row < layer->n; row += 64) {
        uint32_t n = layer->n - row < 64 ? layer->n - row : 64;
        bool again =
            row > 0 &&
            !dtype_is_quantized(
                layer->type); /* repeat the first rows: the time does not depend on the values */
        for (size_t i = 0; i < row_bytes * n && !again; i++)
            raw[i] = (uint8_t)bench_noise();
        for (size_t at = 0; at < row_bytes * n && !again; at += block) {
            float value = (float)((int)(bench_noise() % 2001) - 1000) * 1e-4f;
            uint16_t d = dtype_f32_to_f16(0.01f), half = dtype_f32_to_bf16(value);
            if (layer->type == DTYPE_F32 || layer->type == DTYPE_F16) {
                uint16_t f16 = dtype_f32_to_f16(value);
                memcpy(raw + at, layer->type == DTYPE_F32 ? (void *)&value : (void *)&f16, block);
                continue;
            }
            size_t scale = layer->type == DTYPE_Q2_K   ? 80
                           : layer->type == DTYPE_Q3_K ? 108
                           : layer->type == DTYPE_Q6_K ? 208
                                                       : 0;
            memcpy(raw + at + scale, layer->type == DTYPE_BF16 ? &half : &d, 2);
            if (layer->type == DTYPE_MXFP4)
                raw[at] = 120;
            if (layer->type == DTYPE_Q4_1 || layer->type == DTYPE_Q5_1 ||
                layer->type == DTYPE_Q4_K || layer->type == DTYPE_Q5_K || layer->type == DTYPE_Q2_K)
                memcpy(raw + at + scale + 2, &d, 2);
        }
        if (weight_pack_rows(b->ops, w, row, n, raw, &err) != 0)
            bench_die(&err);
    }
    free(raw);
    return w;
}

/* Runs all copies of all layers in the order of a step. Returns the seconds of the pass. */
static double time_pass(const struct bench *b, const struct bench_layer *layers,
                        struct weight ***weights, struct act **acts, float *y, uint32_t m)
{
    uint32_t n_copies = layers[0].copies;
    double begin = bench_seconds(b);
    for (uint32_t copy = 0; copy < n_copies; copy++)
        for (uint32_t i = 0; layers[i].name != NULL; i++) {
            struct tensor ty = tensor_view(y, DTYPE_F32, m, layers[i].n);
            if (op_linear(b->stream, &ty, acts[i], weights[i][copy]) != 0)
                exit(1);
        }
    return bench_seconds(b) - begin;
}

void bench_layers(const struct bench *b, const char *title, const struct bench_layer *layers,
                  const uint32_t *rows)
{
    enum { MAX_LAYERS = 8, MAX_M = 512, MAX_RUNS = 50 };
    if (strstr(title, b->only) == NULL)
        return;
    struct weight **weights[MAX_LAYERS];
    struct act *acts[MAX_LAYERS];
    uint64_t n_macs = 0, n_bytes = 0;
    uint32_t widest = 0, deepest = 0, kinds = 0;
    struct error err = {0};
    for (uint32_t i = 0; layers[i].name != NULL; i++) {
        weights[i] = bench_alloc(layers[i].copies * sizeof(struct weight *));
        for (uint32_t c = 0; c < layers[i].copies; c++) {
            weights[i][c] = make_weight(b, &layers[i]);
            kinds |= weight_act_kind(weights[i][c]);
        }
        n_macs += (uint64_t)layers[i].n * layers[i].k * layers[i].copies;
        n_bytes += dtype_row_bytes(layers[i].type, layers[i].k) * layers[i].n * layers[i].copies;
        widest = layers[i].n > widest ? layers[i].n : widest;
        deepest = layers[i].k > deepest ? layers[i].k : deepest;
        if (b->ops->act_create(b->device, MAX_M, layers[i].k, &acts[i], &err) != 0)
            bench_die(&err);
    }
    float *x = bench_alloc((size_t)MAX_M * deepest * 4),
          *y = bench_alloc((size_t)MAX_M * widest * 4);
    for (size_t i = 0; i < (size_t)MAX_M * deepest; i++) {
        x[i] = (float)((int)(bench_noise() % 2001) - 1000) * 1e-3f;
        if (bench_noise() % 10000 < b->outlier_share * 10000)
            x[i] *= 20.0f; /* outliers, as real activations have */
    }
    printf("%s: %.1f M weights, %.1f MB as stored, limit at 1 row %.0f passes/s\n", title,
           (double)n_macs * 1e-6, (double)n_bytes * 1e-6, b->read_gbs * 1e9 / (double)n_bytes);
    printf("  %6s %12s %12s %10s %12s %10s %12s\n", "rows", "ms", "rows/s", "Gop/s", "of dots",
           "GB/s", "of read rate");
    for (rows = b->rows[0] != 0 ? b->rows : rows; *rows != 0; rows++) {
        double times[MAX_RUNS], spent = 0;
        int n = 0;
        for (uint32_t i = 0; layers[i].name != NULL; i++) {
            struct tensor tx = {x, DTYPE_F32, *rows, layers[i].k, layers[i].k};
            if (op_act_prepare(b->stream, acts[i], &tx, kinds, NULL, NULL) != 0)
                exit(1);
        }
        time_pass(b, layers, weights, acts, y, *rows);
        while (n < MAX_RUNS && (n < 5 || spent < b->budget_s))
            spent += times[n++] = time_pass(b, layers, weights, acts, y, *rows);
        qsort(times, (size_t)n, sizeof(times[0]), bench_by_value);
        double t = times[n / 2], gbs = (double)n_bytes / t * 1e-9;
        double gops = 2.0 * (double)n_macs * *rows / t * 1e-9;
        printf("  %6u %12.3f %12.0f %10.1f %11.0f%% %10.1f %11.0f%%\n", *rows, t * 1e3, *rows / t,
               gops, b->dot_gops > 0 ? 100 * gops / b->dot_gops : 0, gbs, 100 * gbs / b->read_gbs);
    }
    for (uint32_t i = 0; layers[i].name != NULL; i++) {
        for (uint32_t c = 0; c < layers[i].copies; c++)
            free(weights[i][c]);
        free(weights[i]);
        b->ops->act_destroy(acts[i]);
    }
    free(x);
    free(y);
}
