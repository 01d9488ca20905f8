#include "tests/unit/kernels/support/support_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/cpu.h"
#include "kernels/backend.h"
#include "tests/unit/kernels/support/support_amx_model.h"

const char *const *kernel_sets(void)
{
    static const char *sets[7];
    size_t n = 0;
    sets[n++] = "ref";
    if (cpu_features()->avx2)
        sets[n++] = "avx2";
    if (cpu_features()->avx512_vnni)
        sets[n++] = "avx512";
    if (cpu_features()->avx512_vnni && cpu_features()->avx512_bf16)
        sets[n++] = "avx512_bf16";
    if (cpu_features()->amx_int8)
        sets[n++] = "amx";
    sets[n] = NULL;
    return sets;
}

const char *const *linear_sets(void)
{
    static const char *sets[8];
    size_t n = 0;
    for (const char *const *set = kernel_sets(); *set != NULL; set++)
        sets[n++] = *set;
    if (cpu_features()->avx512_vnni)
        sets[n++] = AMX_MODEL;
    sets[n] = NULL;
    return sets;
}

static size_t grid_step(void)
{
    const char *text = getenv("SLUICE_TEST_STEP");
    size_t step = text ? strtoul(text, NULL, 10) : 1;
    return step > 1 ? step : 1;
}

bool grid_takes(size_t i)
{
    return i % grid_step() == 0;
}

bool grid_is_whole(void)
{
    return grid_step() == 1;
}

struct rig rig_open(const char *set, uint32_t n_threads)
{
    struct rig rig;
    struct error err = {0};
    assert_int_equal(backend_cpu()->open(0, &rig.device, &err), 0);
    assert_int_equal(backend_cpu()->stream_create(rig.device, n_threads, &rig.stream, &err), 0);
    if (strcmp(set, AMX_MODEL) == 0)
        rig.ops = amx_model_ops();
    else
        assert_int_equal(op_table_cpu(set, &rig.ops, &err), 0);
    rig.stream->ops = rig.ops;
    return rig;
}

void rig_close(struct rig *rig)
{
    backend_cpu()->stream_destroy(rig->stream);
    backend_cpu()->close(rig->device);
}

uint32_t random_u32(struct random *r)
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(z >> 32);
}

float random_uniform(struct random *r, float low, float high)
{
    return low + (high - low) * (float)(random_u32(r) >> 8) * (1.0f / 16777216.0f);
}

float random_normal(struct random *r)
{
    float sum = -6.0f;
    for (int i = 0; i < 12; i++)
        sum += random_uniform(r, 0.0f, 1.0f);
    return sum;
}

float *random_floats(struct random *r, size_t n, float outlier_share)
{
    float *x = malloc(n * sizeof(*x));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        x[i] = random_normal(r);
        if (random_uniform(r, 0.0f, 1.0f) < outlier_share)
            x[i] *= random_uniform(r, 5.0f, 300.0f);
    }
    return x;
}

/* Writes the offsets of a block's f16 scales, and returns their number, at most two. */
static int scale_offsets(enum dtype type, uint32_t out[2])
{
    switch (type) {
    case DTYPE_Q8_0:
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
        out[0] = 0;
        return 1;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        out[0] = 0;
        out[1] = 2;
        return 2;
    case DTYPE_Q2_K:
        out[0] = 80;
        out[1] = 82;
        return 2;
    case DTYPE_Q3_K:
        out[0] = 108;
        return 1;
    case DTYPE_Q6_K:
        out[0] = 208;
        return 1;
    default:
        return 0;
    }
}

uint8_t *random_rows(struct random *r, enum dtype type, uint32_t n_rows, uint32_t k)
{
    size_t row_bytes = dtype_row_bytes(type, k), block = dtype_block_bytes(type);
    assert_true(row_bytes > 0);
    uint8_t *raw = malloc(row_bytes * n_rows);
    assert_non_null(raw);
    uint32_t offsets[2];
    int n_scales = scale_offsets(type, offsets);
    for (size_t at = 0; at < row_bytes * n_rows; at += block) {
        if (type == DTYPE_F32 || type == DTYPE_F16 || type == DTYPE_BF16) {
            float value = random_normal(r) * 0.05f;
            uint16_t half = type == DTYPE_F16 ? dtype_f32_to_f16(value) : dtype_f32_to_bf16(value);
            memcpy(raw + at, type == DTYPE_F32 ? (void *)&value : (void *)&half, block);
            continue;
        }
        for (size_t i = 0; i < block; i++)
            raw[at + i] = (uint8_t)random_u32(r);
        if (type == DTYPE_MXFP4) /* scales from 2^-9 to 2^-4 */
            raw[at] = (uint8_t)(118 + random_u32(r) % 6);
        for (int i = 0; i < n_scales; i++) {
            uint16_t scale = dtype_f32_to_f16(random_normal(r) * 0.01f);
            memcpy(raw + at + offsets[i], &scale, sizeof(scale));
        }
    }
    return raw;
}

struct weight *pack_weight(const struct op_table *ops, const struct weight_desc *desc,
                           const void *raw)
{
    struct error err = {0};
    size_t n_bytes = weight_bytes(ops, desc, &err);
    if (n_bytes == 0)
        fail_msg("weight_bytes: %s", err.message);
    assert_int_equal(n_bytes % 64, 0);
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, 64, n_bytes), 0);
    memset(memory, 0, n_bytes);
    struct weight *w = NULL;
    assert_int_equal(weight_init(ops, desc, memory, &w, &err), 0);
    size_t row_bytes = dtype_row_bytes(desc->source, desc->k_total);
    for (uint32_t row = 0; row < desc->n_rows; row += WEIGHT_PACK_ROWS) {
        uint32_t n = desc->n_rows - row < WEIGHT_PACK_ROWS ? desc->n_rows - row : WEIGHT_PACK_ROWS;
        if (weight_pack_rows(ops, w, row, n, (const uint8_t *)raw + row * row_bytes, &err) != 0)
            fail_msg("weight_pack_rows: %s", err.message);
    }
    return w;
}

struct weight_desc column_desc(enum dtype type, uint32_t n, uint32_t k)
{
    return (struct weight_desc){
        .role = WEIGHT_LINEAR_COLUMN, .source = type, .n_rows = n, .k_total = k};
}

struct weight_desc row_desc(enum dtype type, uint32_t n, uint32_t k, uint32_t tp, uint32_t index)
{
    struct error err = {0};
    struct weight_desc desc = {
        .role = WEIGHT_LINEAR_ROW, .source = type, .n_rows = n, .k_total = k};
    assert_int_equal(segments_init(&desc.k_segments, k, 1, tp, index, &err), 0);
    return desc;
}

struct act *make_act(const struct rig *rig, uint32_t max_rows, uint32_t max_k)
{
    struct act *act = NULL;
    struct error err = {0};
    assert_int_equal(rig->ops->act_create(rig->device, max_rows, max_k, &act, &err), 0);
    return act;
}

void run_linear_op(const struct rig *rig, const struct weight *w, const float *x, uint32_t m,
                   uint32_t k, float *y)
{
    uint32_t n = weight_n_rows(w);
    float *guarded = poisoned((size_t)(m + 1) * n);
    struct act *act = make_act(rig, m, k);
    struct tensor tx = tensor_view((void *)(uintptr_t)x, DTYPE_F32, m, k),
                  ty = tensor_view(guarded, DTYPE_F32, m, n);
    assert_int_equal(op_act_prepare(rig->stream, act, &tx, weight_act_kind(w), NULL, NULL), 0);
    assert_int_equal(op_linear(rig->stream, &ty, act, w), 0);
    for (uint32_t i = 0; i < n; i++)
        assert_true(isnan(guarded[(size_t)m * n + i]));
    memcpy(y, guarded, (size_t)m * n * sizeof(*y));
    rig->ops->act_destroy(act);
    free(guarded);
}

float *poisoned(size_t n)
{
    float *x = malloc(n * sizeof(*x));
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = NAN;
    return x;
}

void assert_same_bits(const void *a, const void *b, size_t n_bytes, const char *what)
{
    if (memcmp(a, b, n_bytes) == 0)
        return;
    const uint32_t *p = a, *q = b;
    for (size_t i = 0; i < n_bytes / 4; i++)
        if (p[i] != q[i]) {
            float f, g;
            memcpy(&f, &p[i], 4);
            memcpy(&g, &q[i], 4);
            fail_msg("%s: element %zu: %08x (%g) and %08x (%g)", what, i, p[i], (double)f, q[i],
                     (double)g);
        }
}
