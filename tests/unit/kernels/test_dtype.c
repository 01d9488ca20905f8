/* Conversions over every bit pattern, and block formats against the gguf package's values
 * (tests/golden/dequant.bin). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dequant.h"
#include "tests/unit/kernels/support/support_kernels.h"

/* The value of an f16 from its fields, in float64. */
static double f16_value(uint32_t bits)
{
    uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == 31)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, -24);
    return sign * ldexp(1024 + fraction, (int)exponent - 25);
}

static void test_every_f16_and_bf16_goes_to_f32_and_back(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 65536; bits++) {
        float f = dtype_f16_to_f32((uint16_t)bits), b = dtype_bf16_to_f32((uint16_t)bits);
        uint32_t wide;
        memcpy(&wide, &b, sizeof(wide));
        assert_int_equal(wide, bits << 16);
        if (isnan(f16_value(bits))) {
            assert_true(isnan(f));
            assert_true(isnan(dtype_f16_to_f32(dtype_f32_to_f16(f))));
        } else {
            assert_true((double)f == f16_value(bits));
            assert_int_equal(dtype_f32_to_f16(f), bits);
        }
        if (isnan(b))
            assert_true(isnan(dtype_bf16_to_f32(dtype_f32_to_bf16(b))));
        else
            assert_int_equal(dtype_f32_to_bf16(b), bits);
    }
}

/* Between two neighbours: the nearer one, and the even one in the middle. */
static void test_f32_rounds_to_the_nearest_even_half(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7BFF; bits++) {
        float low = dtype_f16_to_f32((uint16_t)bits), high = dtype_f16_to_f32((uint16_t)(bits + 1));
        float middle = low + (high - low) * 0.5f; /* exact: f16 has 13 bits fewer */
        uint32_t even = bits & 1 ? bits + 1 : bits;
        assert_int_equal(dtype_f32_to_f16(middle), even);
        assert_int_equal(dtype_f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(dtype_f32_to_f16(nextafterf(middle, 0.0f)), bits);
        assert_int_equal(dtype_f32_to_f16(nextafterf(middle, 1e9f)), bits + 1);
    }
    assert_int_equal(dtype_f32_to_f16(65519.996f), 0x7BFF);
    assert_int_equal(dtype_f32_to_f16(65520.0f), 0x7C00);
    assert_int_equal(dtype_f32_to_f16(INFINITY), 0x7C00);
    assert_int_equal(dtype_f32_to_bf16(dtype_bf16_to_f32(0x3F80) + 0x1p-8f),
                     0x3F80); /* tie to even */
    assert_int_equal(dtype_f32_to_bf16(dtype_bf16_to_f32(0x3F81) + 0x1p-8f), 0x3F82);
    assert_int_equal(dtype_f32_to_bf16(3.4028235e38f), 0x7F80);
}

static enum dtype type_of_gguf(uint32_t id)
{
    static const int types[40] = {
        [1] = DTYPE_F16,     [2] = DTYPE_Q4_0,  [3] = DTYPE_Q4_1,  [6] = DTYPE_Q5_0,
        [7] = DTYPE_Q5_1,    [8] = DTYPE_Q8_0,  [10] = DTYPE_Q2_K, [11] = DTYPE_Q3_K,
        [12] = DTYPE_Q4_K,   [13] = DTYPE_Q5_K, [14] = DTYPE_Q6_K, [20] = DTYPE_IQ4_NL,
        [23] = DTYPE_IQ4_XS, [30] = DTYPE_BF16, [39] = DTYPE_MXFP4};
    assert_true(id < 40);
    return (enum dtype)types[id];
}

static void read_exactly(FILE *file, void *out, size_t n_bytes)
{
    assert_int_equal(fread(out, 1, n_bytes, file), n_bytes);
}

static void test_expansion_equals_the_gguf_package_bit_for_bit(void **state)
{
    (void)state;
    FILE *file = fopen(SLUICE_SOURCE_DIR "/tests/golden/dequant.bin", "rb");
    assert_non_null(file);
    struct {
        char magic[4];
        uint32_t n_types;
    } head;
    read_exactly(file, &head, sizeof(head));
    assert_memory_equal(head.magic, "SLDQ", 4);
    bool is_compared[N_DTYPES] = {0};
    for (uint32_t t = 0; t < head.n_types; t++) {
        uint32_t record[4]; /* GGUF type, blocks, bytes and values per block */
        read_exactly(file, record, sizeof(record));
        enum dtype type = type_of_gguf(record[0]);
        is_compared[type] = true;
        size_t n_raw = (size_t)record[1] * record[2], n = (size_t)record[1] * record[3];
        assert_int_equal(dtype_row_bytes(type, n), n_raw);
        uint8_t *raw = malloc(n_raw);
        float *want = malloc(n * sizeof(float)), *got = poisoned(n);
        read_exactly(file, raw, n_raw);
        read_exactly(file, want, n * sizeof(float));
        assert_true(dtype_to_f32(type, raw, n, got));
        assert_same_bits(want, got, n * sizeof(float), dtype_name(type));
        if (dequant_is_4bit(type))
            for (size_t run = 0; run < n / 32; run++) { /* as packing reads the blocks */
                float d, m;
                uint8_t q[32];
                dequant_run_4bit(type, raw, run, &d, &m, q);
                for (int i = 0; i < 32; i++)
                    assert_true(q[i] < 16 &&
                                (type == DTYPE_Q4_0 ? d * ((float)q[i] - 8.0f)
                                                    : d * (float)q[i] + m) == want[run * 32 + i]);
            }
        if (dtype_is_quantized(type) && type != DTYPE_Q8_0 && !dequant_is_4bit(type))
            for (size_t i = 0; i < n; i++) { /* and in the integers of the format */
                struct dequant_run run;
                dequant_run_exact(type, raw, i / 32, &run);
                const int8_t *table = dequant_table(type);
                int h = i % 32 / 16, code = run.q[i % 32],
                    q = table ? table[code] : code - (int)dequant_zero(type);
                float offset = type == DTYPE_Q5_1 ? run.m : -(-run.m * (float)run.mins[h]);
                float scaled = run.d * (float)run.scales[h] * (float)q;
                assert_true((run.m == 0.0f ? scaled : scaled + offset) == want[i]);
            }
        free(got);
        free(want);
        free(raw);
    }
    fclose(file);
    /* no format is read whose values no other program has checked */
    for (enum dtype type = 0; type < N_DTYPES; type++)
        if (dtype_is_quantized(type) || type == DTYPE_F16 || type == DTYPE_BF16)
            assert_true(is_compared[type]);
}

/* gpt-oss in safetensors: byte j of a block has elements 2j and 2j + 1. */
static void test_mxfp4_of_gpt_oss_becomes_blocks_with_the_same_values(void **state)
{
    (void)state;
    enum { N = 96 };
    static const float values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    struct random r = {3};
    uint8_t pairs[N / 2], scales[N / 32] = {127, 0, 130}, raw[N / 32 * 17];
    float got[N];
    for (size_t i = 0; i < sizeof(pairs); i++)
        pairs[i] = (uint8_t)random_u32(&r);
    dtype_mxfp4_from_pairs(pairs, scales, N, raw);
    assert_true(dtype_to_f32(DTYPE_MXFP4, raw, N, got));
    for (size_t i = 0; i < N; i++) {
        float want = ldexpf(values[pairs[i / 2] >> i % 2 * 4 & 15], scales[i / 32] - 127);
        assert_true(got[i] == want);
    }
}

static void test_sizes_that_do_not_fit_give_zero(void **state)
{
    (void)state;
    float out[32];
    assert_int_equal(dtype_row_bytes(DTYPE_Q4_1, 64), 40);
    assert_int_equal(dtype_row_bytes(DTYPE_Q4_1, 33), 0);
    assert_int_equal(dtype_row_bytes(DTYPE_Q6_K, 32), 0);
    assert_int_equal(dtype_row_bytes(DTYPE_F32, UINT64_MAX / 2), 0);
    assert_int_equal(dtype_row_bytes(N_DTYPES, 32), 0);
    assert_string_equal(dtype_name(DTYPE_Q3_K), "Q3_K");
    assert_string_equal(dtype_name((enum dtype)99), "?");
    assert_false(dtype_to_f32(DTYPE_I32, out, 1, out));
    assert_true(dtype_is_quantized(DTYPE_Q5_1) && !dtype_is_quantized(DTYPE_BF16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_f16_and_bf16_goes_to_f32_and_back),
        cmocka_unit_test(test_f32_rounds_to_the_nearest_even_half),
        cmocka_unit_test(test_expansion_equals_the_gguf_package_bit_for_bit),
        cmocka_unit_test(test_mxfp4_of_gpt_oss_becomes_blocks_with_the_same_values),
        cmocka_unit_test(test_sizes_that_do_not_fit_give_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
