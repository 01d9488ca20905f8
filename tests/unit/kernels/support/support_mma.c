#include "tests/unit/kernels/support/support_mma.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/maths.h"

double mma_f16(uint32_t bits)
{
    return (double)maths_f16_to_f32((uint16_t)bits);
}

double mma_bf16(uint32_t bits)
{
    return (double)maths_bf16_to_f32((uint16_t)bits);
}

double mma_f8(uint32_t bits)
{
    return (double)maths_f8_to_f32((uint8_t)bits);
}

double mma_s8(uint32_t bits)
{
    return (double)(int8_t)bits;
}

double mma_u8(uint32_t bits)
{
    return (double)(uint8_t)bits;
}

/* The sums, from whole matrices. */
static void multiply(double d[MMA_LANES][4], double a[16][32], double b[32][8], int k)
{
    for (int lane = 0; lane < MMA_LANES; lane++) {
        int group_id = lane >> 2, thread_in_group = lane % 4;
        for (int i = 0; i < 4; i++) {
            int row = i < 2 ? group_id : group_id + 8, col = thread_in_group * 2 + (i & 1);
            for (int j = 0; j < k; j++)
                d[lane][i] += a[row][j] * b[j][col];
        }
    }
}

void mma_k16(double d[MMA_LANES][4], uint32_t a[MMA_LANES][4], uint32_t b[MMA_LANES][2],
             mma_value *value)
{
    double whole_a[16][32], whole_b[32][8];
    for (int lane = 0; lane < MMA_LANES; lane++) {
        int group_id = lane >> 2, thread_in_group = lane % 4;
        for (int i = 0; i < 8; i++) {
            int row = i < 2 || (i >= 4 && i < 6) ? group_id : group_id + 8;
            int col = thread_in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
            whole_a[row][col] = value(a[lane][i / 2] >> 16 * (i & 1) & 0xFFFF);
        }
        for (int i = 0; i < 4; i++) {
            int row = thread_in_group * 2 + (i & 1) + (i < 2 ? 0 : 8);
            whole_b[row][group_id] = value(b[lane][i / 2] >> 16 * (i & 1) & 0xFFFF);
        }
    }
    multiply(d, whole_a, whole_b, 16);
}

void mma_k32(double d[MMA_LANES][4], uint32_t a[MMA_LANES][4], uint32_t b[MMA_LANES][2],
             mma_value *a_value, mma_value *b_value)
{
    double whole_a[16][32], whole_b[32][8];
    for (int lane = 0; lane < MMA_LANES; lane++) {
        int group_id = lane >> 2, thread_in_group = lane % 4;
        for (int i = 0; i < 16; i++) {
            int row = i < 4 || (i >= 8 && i < 12) ? group_id : group_id + 8;
            int col = thread_in_group * 4 + (i & 3) + (i < 8 ? 0 : 16);
            whole_a[row][col] = a_value(a[lane][i / 4] >> 8 * (i & 3) & 0xFF);
        }
        for (int i = 0; i < 8; i++) {
            int row = thread_in_group * 4 + (i & 3) + (i < 4 ? 0 : 16);
            whole_b[row][group_id] = b_value(b[lane][i / 4] >> 8 * (i & 3) & 0xFF);
        }
    }
    multiply(d, whole_a, whole_b, 32);
}

void mma_k16_bytes(double d[MMA_LANES][4], uint32_t a[MMA_LANES][2], const uint32_t b[MMA_LANES],
                   mma_value *a_value, mma_value *b_value)
{
    double whole_a[16][32], whole_b[32][8];
    for (int lane = 0; lane < MMA_LANES; lane++) {
        int group_id = lane >> 2, thread_in_group = lane % 4;
        for (int i = 0; i < 8; i++) {
            int row = i < 4 ? group_id : group_id + 8, col = thread_in_group * 4 + (i & 3);
            whole_a[row][col] = a_value(a[lane][i / 4] >> 8 * (i & 3) & 0xFF);
        }
        for (int i = 0; i < 4; i++)
            whole_b[thread_in_group * 4 + i][group_id] = b_value(b[lane] >> 8 * i & 0xFF);
    }
    multiply(d, whole_a, whole_b, 16);
}

/* Rows of a matrix are the addresses of eight lanes; they are read at once. */
static void read_rows(uint8_t rows[4][8][16], const uint8_t *shared, const uint32_t at[MMA_LANES])
{
    for (int m = 0; m < 4; m++) {
        uint32_t banks = 0;
        for (int i = 0; i < 8; i++) {
            uint32_t from = at[8 * m + i];
            assert_int_equal(from % 16, 0);
            assert_int_equal(banks & 1u << from % 128 / 16, 0);
            banks |= 1u << from % 128 / 16;
            memcpy(rows[m][i], shared + from, 16);
        }
    }
}

void mma_load(uint32_t r[MMA_LANES][4], const uint8_t *shared, const uint32_t at[MMA_LANES])
{
    uint8_t rows[4][8][16];
    read_rows(rows, shared, at);
    for (int lane = 0; lane < MMA_LANES; lane++)
        for (int m = 0; m < 4; m++)
            memcpy(&r[lane][m], &rows[m][lane / 4][lane % 4 * 4], 4);
}

void mma_load_turned(uint32_t r[MMA_LANES][4], const uint8_t *shared, const uint32_t at[MMA_LANES])
{
    uint8_t rows[4][8][16];
    read_rows(rows, shared, at);
    for (int lane = 0; lane < MMA_LANES; lane++)
        for (int m = 0; m < 4; m++) {
            uint16_t two[2];
            for (int i = 0; i < 2; i++)
                memcpy(&two[i], &rows[m][lane % 4 * 2 + i][lane / 4 * 2], 2);
            r[lane][m] = two[0] | (uint32_t)two[1] << 16;
        }
}

void mma_check_banks(const uint32_t at[MMA_LANES], uint32_t n_bytes)
{
    uint32_t at_once = 128 / n_bytes;
    for (uint32_t begin = 0; begin < MMA_LANES; begin += at_once) {
        uint32_t taken[32];
        memset(taken, 0xFF, sizeof(taken));
        for (uint32_t lane = begin; lane < begin + at_once; lane++)
            for (uint32_t i = 0; i < n_bytes; i += 4) {
                uint32_t word = (at[lane] + i) / 4, *bank = &taken[word % 32];
                /* a word is broadcast to all lanes */
                assert_true(*bank == UINT32_MAX || *bank == word);
                *bank = word;
            }
    }
}
