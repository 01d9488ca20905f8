/* Tests of rows that do not lie one after the other in the file. Each read is compared with
 * elements picked from the whole tensor. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/load/loader_rows.h"
#include "tests/unit/engine/support/support_gguf.h"

enum { K = 6, ROWS = 24, MATRICES = 3, N = K * ROWS * MATRICES };

static struct checkpoint *ckpt;
static const struct checkpoint_tensor *cube, *vector;
static float all[N];

static int open_file(void **state)
{
    const uint64_t cube_dims[] = {K, ROWS, MATRICES}, vector_dims[] = {ROWS, MATRICES};
    struct gguf_writer w = {.n_tensors = 0};
    struct error err = {0};
    (void)state;
    gguf_begin(&w);
    gguf_kv_string(&w, "general.architecture", "llama");
    gguf_tensor(&w, "cube", GGML_F32, 3, cube_dims, 0);
    gguf_tensor(&w, "vector", GGML_F32, 2, vector_dims, N * sizeof(float));
    gguf_weights(&w, 32, (N + ROWS * MATRICES) * sizeof(float));
    gguf_finish(&w);
    assert_int_equal(gguf_open(&w, &ckpt, &err), 0);
    gguf_writer_fini(&w);
    cube = checkpoint_tensor_find(ckpt, "cube");
    vector = checkpoint_tensor_find(ckpt, "vector");
    return checkpoint_read_tensor_rows(ckpt, cube, 0, cube->n_rows, all, &err);
}

static int close_file(void **state)
{
    (void)state;
    checkpoint_close(ckpt);
    return 0;
}

/* A slot's matrix: the rows of one of three slots that share matrix `block` of the tensor. */
static struct weight_place matrix_place(struct row_map map, uint32_t first, uint32_t n_rows,
                                        uint32_t block)
{
    return (struct weight_place){
        .tensor = cube,
        .desc = {.role = WEIGHT_LINEAR_COLUMN, .source = DTYPE_F32, .n_rows = n_rows, .k_total = K},
        .map = map,
        .first = first,
        .block = block,
        .blocks = 1,
        .row_bytes = K * sizeof(float),
    };
}

static void check_rows(const struct weight_place *place, const uint32_t *rows)
{
    float got[ROWS * K];
    struct error err = {0};
    for (uint32_t begin = 0; begin < place->desc.n_rows; begin += 5) {
        uint32_t left = place->desc.n_rows - begin, n = left < 5 ? left : 5;
        assert_int_equal(loader_rows_read(ckpt, place, begin, n, (void *)got, &err), 0);
        for (uint32_t r = 0; r < n; r++)
            assert_memory_equal(got + r * K,
                                all + ((size_t)place->block * ROWS + rows[begin + r]) * K,
                                K * sizeof(float));
    }
    loader_rows_drop(ckpt, place, 0, place->desc.n_rows);
}

static void test_rows_behind_those_of_other_slots(void **state)
{
    /* rows 8 to 23 are the slot's; this rank holds rows 2 to 8 of these */
    struct weight_place place = matrix_place((struct row_map){8, 16, ROWS}, 2, 7, 1);
    const uint32_t rows[] = {10, 11, 12, 13, 14, 15, 16};
    (void)state;
    check_rows(&place, rows);
}

static void test_rows_that_alternate_by_head(void **state)
{
    /* per head two rows of Q, two of K, two of V; K's rows 1 to 6 */
    struct weight_place place = matrix_place((struct row_map){2, 2, 6}, 1, 6, 2);
    const uint32_t rows[] = {3, 8, 9, 14, 15, 20};
    (void)state;
    check_rows(&place, rows);
}

/* Both of two places whose rows alternate are read at once, and equal what each reads alone. */
static void check_both(const struct weight_place *a, const struct weight_place *b)
{
    float both[2][ROWS * K], alone[ROWS * K];
    struct error err = {0};
    const struct weight_place *places[] = {a, b};
    uint32_t n = a->desc.n_rows, width = a->row_bytes / sizeof(float);
    assert_true(loader_rows_alternate(a, b) && loader_rows_alternate(b, a));
    assert_int_equal(
        loader_rows_read_both(ckpt, a, b, 0, n, (void *)both[0], (void *)both[1], &err), 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(loader_rows_read(ckpt, places[i], 0, n, (void *)alone, &err), 0);
        assert_memory_equal(both[i], alone, (size_t)n * width * sizeof(float));
    }
}

static void test_two_places_that_alternate(void **state)
{
    (void)state;
    for (uint32_t second = 0; second < 2; second++) {
        struct weight_place a = matrix_place((struct row_map){second, 1, 2}, 3, 8, 1),
                            b = matrix_place((struct row_map){!second, 1, 2}, 3, 8, 1);
        check_both(&a, &b);
        b.block = 0;
        assert_false(loader_rows_alternate(&a, &b));
        b = matrix_place((struct row_map){second, 1, 2}, 3, 8, 1);
        assert_false(loader_rows_alternate(&a, &b));
        a = matrix_place((struct row_map){second, 1, 2}, 1, 2, 2);
        a.is_transposed = true;
        a.desc.k_total = ROWS;
        a.row_bytes = ROWS * sizeof(float);
        b = a;
        b.map.begin = !second;
        check_both(&a, &b);
    }
}

static void test_rows_that_alternate_one_by_one(void **state)
{
    struct weight_place place = matrix_place((struct row_map){1, 1, 2}, 3, 8, 0);
    const uint32_t rows[] = {7, 9, 11, 13, 15, 17, 19, 21};
    (void)state;
    check_rows(&place, rows);
}

/* The matrix lies transposed: [ROWS inputs, K outputs]; odd outputs are another slot's. */
static void test_columns(void **state)
{
    float got[3 * ROWS];
    struct error err = {0};
    (void)state;
    for (uint32_t alternate = 1; alternate <= 2; alternate++) {
        struct weight_place place =
            matrix_place((struct row_map){0, 1, alternate}, 1, alternate == 1 ? 3 : 2, 1);
        place.is_transposed = true;
        place.desc.k_total = ROWS;
        place.row_bytes = ROWS * sizeof(float);
        assert_int_equal(loader_rows_read(ckpt, &place, 0, place.desc.n_rows, (void *)got, &err),
                         0);
        for (uint32_t r = 0; r < place.desc.n_rows; r++)
            for (uint32_t c = 0; c < ROWS; c++)
                assert_memory_equal(&got[r * ROWS + c], &all[(ROWS + c) * K + (1 + r) * alternate],
                                    sizeof(float));
        loader_rows_drop(ckpt, &place, 0, place.desc.n_rows);
    }
}

static void test_vectors(void **state)
{
    float whole[ROWS * MATRICES], got[ROWS * MATRICES];
    struct error err = {0};
    /* the odd elements of every part, from the second on */
    struct weight_place place = {
        .tensor = vector,
        .desc = {.role = WEIGHT_VECTOR, .source = DTYPE_F32, .n_rows = 1, .k_total = 3 * MATRICES},
        .map = {1, 1, 2},
        .first = 1,
        .blocks = MATRICES,
        .row_bytes = 3 * MATRICES * sizeof(float),
    };
    (void)state;
    assert_int_equal(checkpoint_read_tensor_rows(ckpt, vector, 0, MATRICES, whole, &err), 0);
    assert_int_equal(loader_rows_read(ckpt, &place, 0, 1, (void *)got, &err), 0);
    for (uint32_t m = 0; m < MATRICES; m++)
        for (uint32_t i = 0; i < 3; i++)
            assert_memory_equal(&got[m * 3 + i], &whole[m * ROWS + 3 + 2 * i], sizeof(float));
    place.plus_one = true;
    assert_int_equal(loader_rows_read(ckpt, &place, 0, 1, (void *)got, &err), 0);
    for (uint32_t m = 0; m < MATRICES; m++)
        for (uint32_t i = 0; i < 3; i++) {
            float wanted = whole[m * ROWS + 3 + 2 * i] + 1;
            assert_memory_equal(&got[m * 3 + i], &wanted, sizeof(float));
        }
    place.plus_one = false;
    place.minus_exp = true;
    assert_int_equal(loader_rows_read(ckpt, &place, 0, 1, (void *)got, &err), 0);
    for (uint32_t m = 0; m < MATRICES; m++)
        for (uint32_t i = 0; i < 3; i++) {
            float wanted = (float)-exp((double)whole[m * ROWS + 3 + 2 * i]);
            assert_memory_equal(&got[m * 3 + i], &wanted, sizeof(float));
        }
}

static void test_chunks_are_whole_pack_rows(void **state)
{
    struct weight_place place = matrix_place((struct row_map){0, ROWS, ROWS}, 0, ROWS, 0);
    (void)state;
    assert_int_equal(loader_rows_chunk(&place, 1, 0), WEIGHT_PACK_ROWS);
    assert_int_equal(loader_rows_chunk(&place, 1 << 20, 0) % WEIGHT_PACK_ROWS, 0);
    uint32_t rows = loader_rows_chunk(&place, 4096, 0);
    place.is_transposed = true; /* a row of the file gives one element of a row: more at once */
    assert_true(loader_rows_chunk(&place, 4096, 1 << 20) > rows);
    /* symptom: 512 rows of any length, which passed the promised peak with wide FFNs */
    place.row_bytes = 100000;
    assert_int_equal(loader_rows_chunk(&place, 4096, 1 << 20), WEIGHT_PACK_ROWS);
    assert_int_equal(loader_rows_chunk(&place, 4096, 20 << 20), 192);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_behind_those_of_other_slots),
        cmocka_unit_test(test_rows_that_alternate_by_head),
        cmocka_unit_test(test_rows_that_alternate_one_by_one),
        cmocka_unit_test(test_two_places_that_alternate),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_chunks_are_whole_pack_rows),
    };
    return cmocka_run_group_tests(tests, open_file, close_file);
}
