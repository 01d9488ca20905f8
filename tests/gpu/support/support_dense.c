#include "tests/gpu/support/support_dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

const struct dense_kind dense_kinds[N_DENSE_KINDS] = {
    {"f32", DTYPE_F32, WEIGHT_STORE_SOURCE},     {"f16", DTYPE_F16, WEIGHT_STORE_SOURCE},
    {"bf16", DTYPE_BF16, WEIGHT_STORE_SOURCE},   {"bf16 as int8", DTYPE_BF16, WEIGHT_STORE_INT8},
    {"bf16 as f8", DTYPE_BF16, WEIGHT_STORE_F8}, {"f32 as int8", DTYPE_F32, WEIGHT_STORE_INT8},
    {"f16 as f8", DTYPE_F16, WEIGHT_STORE_F8},   {"f16 as int8", DTYPE_F16, WEIGHT_STORE_INT8},
};

/* --- weights --- */

bool dense_kind_runs(const struct dense_kind *kind)
{
    struct error err = {0};
    struct weight_desc desc = column_desc(kind->type, 1, 1);
    desc.store = kind->store;
    if (weight_bytes(gpu.module.op_table, &desc, &err) > 0)
        return true;
    assert_int_equal(err.status, STATUS_UNIMPLEMENTED);
    assert_int_equal(kind->store, WEIGHT_STORE_F8);
    assert_non_null(strstr(err.message, "8.9"));
    print_message("%s is left out: %s\n", kind->name, err.message);
    return false;
}

static void upload_rows(struct dense_weight *weight)
{
    const struct weight_desc *desc = &weight->desc;
    const struct op_table *ops = gpu.module.op_table;
    struct error err = {0};
    size_t n_bytes = weight_bytes(ops, desc, &err);
    if (n_bytes == 0)
        fail_msg("%s", err.message);
    uint8_t *data = gpu_upload(NULL, n_bytes);
    for (uint32_t row = 0; row < desc->n_rows; row += WEIGHT_PACK_ROWS) {
        struct weight_copy copies[WEIGHT_MAX_COPIES];
        uint32_t n_copies = 0, left = desc->n_rows - row;
        uint32_t n_rows = left < WEIGHT_PACK_ROWS ? left : WEIGHT_PACK_ROWS;
        size_t slice_bytes = weight_slice_bytes(ops, desc, n_rows);
        size_t room = (slice_bytes + 63) / 64 * 64;
        uint8_t *slice = aligned_alloc(64, room);
        memset(slice, 0xFF, room); /* bytes that are not packed must show */
        if (weight_pack_slice(ops, desc, row, n_rows,
                              weight->raw + row * dtype_row_bytes(desc->source, desc->k_total),
                              slice, copies, &n_copies, &err) != 0)
            fail_msg("%s", err.message);
        for (uint32_t i = 0; i < n_copies; i++) {
            assert_true(copies[i].from + copies[i].n_bytes <= slice_bytes);
            assert_true(copies[i].to + copies[i].n_bytes <= n_bytes);
            assert_int_equal(gpu.module.device_ops->upload(gpu.stream, data + copies[i].to,
                                                           slice + copies[i].from,
                                                           copies[i].n_bytes),
                             0);
        }
        gpu_sync();
        free(slice);
    }
    if (weight_bind(ops, desc, data, &weight->w, &err) != 0)
        fail_msg("%s", err.message);
    weight->data = data;
}

/* Returns the numbers that a row is multiplied as: its own numbers, or codes of a scale. */
static void take_row(const struct dense_weight *weight, uint32_t n, const float *row)
{
    const struct weight_desc *desc = &weight->desc;
    uint32_t begin = desc->role == WEIGHT_LINEAR_ROW ? segments_begin(&desc->k_segments) : 0;
    uint32_t k = weight_k_local(weight->w);
    bool stored = desc->store != WEIGHT_STORE_SOURCE, f8 = desc->store == WEIGHT_STORE_F8;
    float limit = f8 ? 448.0f : 127.0f, largest = 0.0f;
    for (uint32_t i = 0; i < desc->k_total; i++)
        largest = fmaxf(largest, fabsf(row[i]));
    weight->scales[n] = stored ? largest / limit : 1.0f;
    for (uint32_t i = 0; i < k; i++) {
        float value = row[begin + i];
        if (stored && largest > 0.0f) {
            value /= weight->scales[n];
            value = f8 ? maths_f8_to_f32(maths_f32_to_f8(value)) : rintf(value);
        }
        weight->values[(size_t)n * k + i] = (double)value;
    }
}

struct dense_weight dense_weight_make(const struct dense_kind *kind, const struct weight_desc *desc,
                                      const uint8_t *raw)
{
    struct dense_weight weight = {.desc = *desc, .raw = (uint8_t *)(uintptr_t)raw};
    float *row = malloc(desc->k_total * sizeof(float));
    size_t row_bytes = dtype_row_bytes(desc->source, desc->k_total);
    weight.desc.store = kind->store;
    upload_rows(&weight);
    weight.values = malloc((size_t)desc->n_rows * weight_k_local(weight.w) * sizeof(double));
    weight.scales = malloc(desc->n_rows * sizeof(float));
    for (uint32_t n = 0; n < desc->n_rows; n++) {
        dtype_to_f32(desc->source, raw + n * row_bytes, desc->k_total, row);
        take_row(&weight, n, row);
    }
    free(row);
    return weight;
}

void dense_weight_drop(struct dense_weight *weight)
{
    weight_unbind(gpu.module.op_table, weight->w);
    gpu_drop(weight->data, 0);
    free(weight->raw);
    free(weight->values);
    free(weight->scales);
}

/* --- the product in f64 --- */

/* Converts a row of activations to the values that the device multiplies. Returns the row's scale.
 */
static float take_activations(const struct dense_weight *weight, const float *x, uint32_t k,
                              double *values)
{
    bool f8 = weight->desc.store == WEIGHT_STORE_F8, int8 = weight->desc.store == WEIGHT_STORE_INT8;
    float top = 1e-30f;
    for (uint32_t i = 0; i < k; i++)
        top = fmaxf(top, fabsf(x[i]));
    for (uint32_t i = 0; i < k; i++) {
        float value = x[i];
        if (f8)
            value = maths_f8_to_f32(maths_f32_to_f8(value * (448.0f / top)));
        else if (int8 || weight->desc.source == DTYPE_BF16)
            value = maths_bf16_to_f32(maths_f32_to_bf16(value));
        else if (weight->desc.source == DTYPE_F16)
            value = maths_f16_to_f32(maths_f32_to_f16(fmaxf(fminf(value, 65504.0f), -65504.0f)));
        values[i] = (double)value;
    }
    return f8 ? top / 448.0f : 1.0f;
}

void dense_exact(const struct dense_weight *weight, const float *x, uint32_t m, double *exact,
                 double *magnitude)
{
    uint32_t n = weight->desc.n_rows, k = weight_k_local(weight->w);
    double *values = malloc(k * sizeof(double));
    for (uint32_t r = 0; r < m; r++) {
        float scale = take_activations(weight, x + (size_t)r * k, k, values);
        for (uint32_t c = 0; c < n; c++) {
            double sum = 0.0, size = 0.0, factor = (double)scale * (double)weight->scales[c];
            for (uint32_t i = 0; i < k; i++) {
                double product = values[i] * weight->values[(size_t)c * k + i];
                sum += product;
                size += fabs(product);
            }
            exact[(size_t)r * n + c] = sum * factor;
            magnitude[(size_t)r * n + c] = size * factor;
        }
    }
    free(values);
}

/* --- runs --- */

void dense_run(const struct weight *w, const float *device_x, uint32_t m, uint32_t pad,
               const struct role_run *roles, uint32_t n_roles, float *y)
{
    const struct op_table *ops = gpu.module.op_table;
    uint32_t n = weight_n_rows(w), k = weight_k_local(w);
    size_t stride = n + pad, n_floats = (m + 1) * stride;
    float *all = poisoned(n_floats), *untouched = poisoned(n_floats);
    struct error err = {0};
    struct act *act = NULL;
    float *device_y = gpu_upload(all, n_floats * sizeof(float));
    if (ops->act_create(gpu.device, m, k, &act, &err) != 0)
        fail_msg("%s", err.message);
    struct tensor tx = tensor_view((void *)(uintptr_t)device_x, DTYPE_F32, m, k);
    struct tensor ty = tensor_view(device_y, DTYPE_F32, m, n);
    ty.row_stride = stride;
    gpu.stream->roles = roles;
    gpu.stream->n_roles = n_roles;
    assert_int_equal(op_act_prepare(gpu.stream, act, &tx, weight_act_kind(w), NULL, NULL), 0);
    assert_int_equal(op_linear(gpu.stream, &ty, act, w), 0);
    gpu.stream->n_roles = 0;
    gpu_fetch(all, device_y, n_floats * sizeof(float));
    for (uint32_t r = 0; r <= m; r++) {
        uint32_t written = r < m ? n : 0;
        if (y && r < m)
            memcpy(y + (size_t)r * n, all + r * stride, n * sizeof(float));
        assert_same_bits(all + r * stride + written, untouched + r * stride + written,
                         (stride - written) * sizeof(float), "beside the result");
    }
    ops->act_destroy(act);
    gpu_drop(device_y, 0);
    free(all);
    free(untouched);
}
