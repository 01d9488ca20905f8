/* support_quant.h: shared parts of the tests of quantized linears on a GPU, real or emulated. There
 * are a device, the kernel set "ref" beside it, a weight on both, prepared activations, and a
 * bitwise comparison. Each test includes the file once. */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "tests/gpu/support/support_seed.h"
#include "tests/unit/kernels/support/support_kernels.h"

static struct backend_module module;
static struct device *device;
static struct stream *stream;
static struct rig cpu;

static inline int open_gpu(void **state)
{
    (void)state;
    struct error err = {0};
    int rc = backend_cuda(&module, &err);
    if (rc == 0)
        rc = module.device_ops->open(0, &device, &err);
    if (rc == 0)
        rc = module.device_ops->stream_create(device, 0, &stream, &err);
    if (rc != 0)
        print_error("%s\n", err.message);
    /* On a real GPU the tests have shapes of real models. A single CPU thread would take three
     * minutes for these. */
    cpu = rig_open("ref", test_is_wide() ? (uint32_t)sysconf(_SC_NPROCESSORS_ONLN) : 1);
    return rc;
}

static inline int close_gpu(void **state)
{
    (void)state;
    rig_close(&cpu);
    if (!module.device_ops)
        return 0;
    module.device_ops->stream_destroy(stream);
    module.device_ops->close(device);
    return 0;
}

static inline void sync_stream(void)
{
    struct error err = {0};
    if (module.device_ops->stream_sync(stream, &err) != 0)
        fail_msg("%s", err.message);
}

static inline void *on_device(const void *host, size_t n_bytes)
{
    struct error err = {0};
    void *data = NULL;
    if (module.device_ops->alloc(device, n_bytes, &data, &err) != 0)
        fail_msg("%s", err.message);
    if (host)
        assert_int_equal(module.device_ops->upload(stream, data, host, n_bytes), 0);
    sync_stream();
    return data;
}

static inline void fetch(void *host, const void *data, size_t n_bytes)
{
    assert_int_equal(module.device_ops->download(stream, host, data, n_bytes), 0);
    sync_stream();
}

static inline void drop(void *data, size_t n_bytes)
{
    module.device_ops->free(device, data, n_bytes);
}

/* A weight on the CPU and on the GPU. */
struct both {
    struct weight_desc desc;
    struct weight *cpu, *gpu;
    void *data;
};

static inline struct weight *upload_weight(const struct weight_desc *desc, const void *raw,
                                           void **out_data)
{
    struct error err = {0};
    struct weight *weight = NULL;
    size_t n_bytes = weight_bytes(module.op_table, desc, &err);
    assert_true(n_bytes > 0 && n_bytes % 256 == 0);
    uint8_t *data = on_device(NULL, n_bytes);
    for (uint32_t row = 0; row < desc->n_rows; row += WEIGHT_PACK_ROWS) {
        struct weight_copy copies[WEIGHT_MAX_COPIES];
        uint32_t n_copies = 0, left = desc->n_rows - row;
        uint32_t n_rows = left < WEIGHT_PACK_ROWS ? left : WEIGHT_PACK_ROWS;
        size_t slice_bytes = weight_slice_bytes(module.op_table, desc, n_rows);
        uint8_t *slice = aligned_alloc(64, (slice_bytes + 63) / 64 * 64);
        const uint8_t *from =
            (const uint8_t *)raw + row * dtype_row_bytes(desc->source, desc->k_total);
        if (weight_pack_slice(module.op_table, desc, row, n_rows, from, slice, copies, &n_copies,
                              &err) != 0)
            fail_msg("%s", err.message);
        for (uint32_t i = 0; i < n_copies; i++) {
            assert_true(copies[i].from + copies[i].n_bytes <= slice_bytes);
            assert_true(copies[i].to + copies[i].n_bytes <= n_bytes);
            assert_int_equal(module.device_ops->upload(stream, data + copies[i].to,
                                                       slice + copies[i].from, copies[i].n_bytes),
                             0);
        }
        sync_stream();
        free(slice);
    }
    if (weight_bind(module.op_table, desc, data, &weight, &err) != 0)
        fail_msg("%s", err.message);
    *out_data = data;
    return weight;
}

static inline struct both both_of(struct weight_desc desc, const void *raw)
{
    struct both w = {.desc = desc, .cpu = pack_weight(cpu.ops, &desc, raw)};
    w.gpu = upload_weight(&desc, raw, &w.data);
    assert_int_equal(weight_act_kind(w.gpu), ACT_INT8);
    return w;
}

static inline struct both random_both(struct random *r, struct weight_desc desc)
{
    uint8_t *raw = random_rows(r, desc.source, desc.n_rows, desc.k_total);
    struct both w = both_of(desc, raw);
    free(raw);
    return w;
}

static inline void both_free(struct both *w)
{
    weight_unbind(module.op_table, w->gpu);
    drop(w->data, 0);
    free(w->cpu);
}

/* Prepared activations of m rows on the device, and their memory. */
struct prepared {
    struct act *act;
    void *x;
    size_t n_bytes;
};

static inline struct prepared prepare(const float *x, uint32_t m, uint32_t k,
                                      const struct segments *seg, struct comm *comm)
{
    struct error err = {0};
    struct prepared p = {.n_bytes = (size_t)m * k * sizeof(float)};
    p.x = on_device(x, p.n_bytes);
    assert_int_equal(module.op_table->act_create(device, m, k, &p.act, &err), 0);
    struct tensor tx = tensor_view(p.x, DTYPE_F32, m, k);
    assert_int_equal(op_act_prepare(stream, p.act, &tx, ACT_INT8, seg, comm), 0);
    return p;
}

static inline void prepared_free(struct prepared *p)
{
    sync_stream();
    module.op_table->act_destroy(p->act);
    drop(p->x, p->n_bytes);
}

static inline float *poison_on_device(size_t n)
{
    float *host = poisoned(n);
    float *data = on_device(host, n * sizeof(float));
    free(host);
    return data;
}

/* Multiplies the first m rows of x on the device, and compares with `wanted`. A poisoned row behind
 * them must stay. */
static inline void check_segments(const struct both *w, const float *x, uint32_t m,
                                  const struct segments *seg, const float *wanted, const char *what)
{
    uint32_t n = w->desc.n_rows, k = weight_k_local(w->cpu);
    size_t y_bytes = (size_t)(m + 1) * n * sizeof(float);
    float *device_y = poison_on_device((size_t)(m + 1) * n), *y = poisoned((size_t)(m + 1) * n);
    struct prepared p = prepare(x, m, k, seg, NULL);
    struct tensor ty = tensor_view(device_y, DTYPE_F32, m, n);
    assert_int_equal(op_linear(stream, &ty, p.act, w->gpu), 0);
    fetch(y, device_y, y_bytes);
    assert_same_bits(y, wanted, y_bytes - n * sizeof(float), what);
    for (uint32_t i = 0; i < n; i++)
        assert_true(isnan(y[(size_t)m * n + i]));
    prepared_free(&p);
    drop(device_y, y_bytes);
    free(y);
}

static inline void check_rows(const struct both *w, const float *x, uint32_t m, const float *wanted,
                              const char *what)
{
    check_segments(w, x, m, NULL, wanted, what);
}

enum pattern { NO_OUTLIERS, SOME_OUTLIERS, ALL_OUTLIERS, SPIKES, N_PATTERNS };

static inline float *activations(struct random *r, enum pattern pattern, uint32_t m, uint32_t k)
{
    float *x = random_floats(r, (size_t)m * k,
                             pattern == SOME_OUTLIERS  ? 0.002f
                             : pattern == ALL_OUTLIERS ? 0.2f
                                                       : 0.0f);
    for (size_t i = 0; i < (size_t)m * k; i++)
        if (pattern == NO_OUTLIERS)
            x[i] = random_uniform(r, -1.0f, 1.0f);
        else if (pattern == SPIKES)
            x[i] = random_u32(r) % 61 == 0 ? random_uniform(r, -1.0f, 1.0f) * 1e5f : x[i] * 0.01f;
    return x;
}

/* Some rows with NaN and infinities, one of zeros. */
static inline void break_rows(float *x, uint32_t m, uint32_t k)
{
    for (uint32_t r = 0; r < m; r++) {
        float *row = x + (size_t)r * k;
        if (r % 11 == 6)
            row[r % k] = NAN;
        else if (r % 11 == 9)
            row[(r * 7) % k] = r % 2 ? INFINITY : -INFINITY;
        else if (r % 37 == 5)
            memset(row, 0, k * sizeof(float));
    }
}

static const enum dtype formats[] = {DTYPE_Q4_0,   DTYPE_Q4_1,   DTYPE_Q4_K, DTYPE_Q8_0, DTYPE_Q5_0,
                                     DTYPE_Q5_1,   DTYPE_Q5_K,   DTYPE_Q6_K, DTYPE_Q2_K, DTYPE_Q3_K,
                                     DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};
enum { N_FORMATS = sizeof(formats) / sizeof(formats[0]) };
