/* Tests of the elements that a lane has of a tile (fragment.h). Multiplications and loads written
 * after the PTX ISA (support_mma.c) must use the same layout of a matrix. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/fragment.h"
#include "kernels/maths.h"
#include "tests/unit/kernels/support/support_mma.h"

/* Small whole numbers that differ within a row or column. */
static int a_at(uint32_t row, uint32_t k)
{
    return (int)(row * 7 + k * 3) % 11 - 5;
}

static int b_at(uint32_t k, uint32_t column)
{
    return (int)(column * 5 + k * 2) % 7 - 3;
}

static uint32_t half(int x)
{
    return maths_f32_to_f16((float)x);
}

static uint32_t byte(int x)
{
    return (uint32_t)x & 0xFF;
}

static void check_sums(double d[MMA_LANES][4], uint32_t n_k)
{
    for (uint32_t lane = 0; lane < MMA_LANES; lane++)
        for (uint32_t e = 0; e < 4; e++) {
            double wanted = 0;
            for (uint32_t k = 0; k < n_k; k++)
                wanted +=
                    a_at(fragment_sum_row(lane, e), k) * b_at(k, fragment_sum_column(lane, e));
            assert_true(d[lane][e] == wanted);
        }
}

static void test_halves_are_where_the_isa_has_them(void **state)
{
    (void)state;
    uint32_t a[MMA_LANES][4], b[MMA_LANES][2];
    double d[MMA_LANES][4] = {{0}};
    for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t row = fragment_a_row(lane, r), k = fragment_a_halves(lane, r);
            a[lane][r] = fragment_pair(half(a_at(row, k)), half(a_at(row, k + 1)));
        }
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t k = fragment_b_halves(lane, r), column = fragment_group(lane);
            b[lane][r] = fragment_pair(half(b_at(k, column)), half(b_at(k + 1, column)));
        }
    }
    mma_k16(d, a, b, mma_f16);
    check_sums(d, 16);
}

static void test_bytes_are_where_the_isa_has_them(void **state)
{
    (void)state;
    uint32_t a[MMA_LANES][4], b[MMA_LANES][2], half_a[MMA_LANES][2], half_b[MMA_LANES];
    double d[MMA_LANES][4] = {{0}}, half_d[MMA_LANES][4] = {{0}};
    for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t row = fragment_a_row(lane, r), k = fragment_a_bytes(lane, r);
            a[lane][r] = fragment_four(byte(a_at(row, k)), byte(a_at(row, k + 1)),
                                       byte(a_at(row, k + 2)), byte(a_at(row, k + 3)));
        }
        for (uint32_t r = 0; r < 2; r++) {
            uint32_t k = fragment_b_bytes(lane, r), column = fragment_group(lane);
            b[lane][r] = fragment_four(byte(b_at(k, column)), byte(b_at(k + 1, column)),
                                       byte(b_at(k + 2, column)), byte(b_at(k + 3, column)));
        }
        half_a[lane][0] = a[lane][0], half_a[lane][1] = a[lane][1], half_b[lane] = b[lane][0];
    }
    mma_k32(d, a, b, mma_s8, mma_s8);
    check_sums(d, 32);
    mma_k16_bytes(half_d, half_a, half_b, mma_s8, mma_s8);
    check_sums(half_d, 16);
}

/* Three tiles of halves, in rows of 32 bytes with a distance that avoids bank conflicts: A, B by
 * rows, and B transposed. */
static void test_loads_give_what_multiplications_take(void **state)
{
    (void)state;
    enum { LINE = 48 }; /* eight rows in different banks */
    static uint8_t shared[3][16 * LINE];
    uint32_t at[3][MMA_LANES], a[MMA_LANES][4], b[MMA_LANES][4], turned[MMA_LANES][4];
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t column = 0; column < 16; column++) {
            uint16_t x = (uint16_t)half(a_at(row, column)), y = (uint16_t)half(b_at(column, row));
            uint16_t z = (uint16_t)half(b_at(row, column));
            memcpy(&shared[0][row * LINE + column * 2], &x, 2);
            /* a row of this matrix is a column of B */
            memcpy(&shared[1][row * LINE + column * 2], &y, 2);
            memcpy(&shared[2][row * LINE + column * 2], &z, 2);
        }
    for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
        at[0][lane] = fragment_load_a_row(lane) * LINE + fragment_load_a_piece(lane) * 16;
        at[1][lane] = fragment_load_b_row(lane) * LINE + fragment_load_b_piece(lane) * 16;
        at[2][lane] = fragment_load_turned_row(lane) * LINE + fragment_load_turned_piece(lane) * 16;
    }
    mma_load(a, shared[0], at[0]);
    mma_load(b, shared[1], at[1]);
    mma_load_turned(turned, shared[2], at[2]);
    for (uint32_t tile = 0; tile < 2; tile++) {
        uint32_t two[2][MMA_LANES][2];
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            for (uint32_t r = 0; r < 2; r++) {
                two[0][lane][r] = b[lane][2 * tile + r];
                two[1][lane][r] = turned[lane][2 * tile + r];
            }
        for (uint32_t by = 0; by < 2; by++) {
            double d[MMA_LANES][4] = {{0}};
            mma_k16(d, a, two[by], mma_f16);
            for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                for (uint32_t e = 0; e < 4; e++) {
                    uint32_t column = 8 * tile + fragment_sum_column(lane, e);
                    double wanted = 0;
                    for (uint32_t k = 0; k < 16; k++)
                        wanted += a_at(fragment_sum_row(lane, e), k) * b_at(k, column);
                    assert_true(d[lane][e] == wanted);
                }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves_are_where_the_isa_has_them),
        cmocka_unit_test(test_bytes_are_where_the_isa_has_them),
        cmocka_unit_test(test_loads_give_what_multiplications_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
