/* Tests of the parts of a device's one allocation. Parts are aligned, do not overlap, stay within
 * the plan, and can be freed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cuda/host/arena.h"

enum { BYTES = 4096 };

static _Alignas(ARENA_ALIGN) unsigned char memory[BYTES + 2 * ARENA_ALIGN];

static struct arena fresh(void)
{
    return (struct arena){.base = memory, .n_bytes = BYTES};
}

static void test_parts_lie_one_after_the_other_aligned(void **state)
{
    static const struct {
        size_t n_bytes, at;
    } rows[] = {{1, 0}, {256, 256}, {257, 512}, {0, 1024}, {1000, 1024}, {2048, 2048}};
    struct arena a = fresh();
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        assert_ptr_equal(arena_take(&a, rows[i].n_bytes), memory + rows[i].at);
    assert_int_equal(arena_left(&a), 0);
    assert_null(arena_take(&a, 1));
}

/* A request that does not fit takes nothing; nor does a size that overflows. */
static void test_too_much_takes_nothing(void **state)
{
    static const size_t much[] = {BYTES + 1, SIZE_MAX, SIZE_MAX - 254, SIZE_MAX / 2};
    struct arena a = fresh();
    (void)state;
    assert_ptr_equal(arena_take(&a, BYTES - 256), memory);
    for (size_t i = 0; i < sizeof(much) / sizeof(much[0]); i++)
        assert_null(arena_take(&a, much[i]));
    assert_null(arena_take(&a, 257));
    assert_int_equal(a.n_live, 1);
    assert_ptr_equal(arena_take(&a, 256), memory + BYTES - 256);
}

static void test_the_last_part_comes_back_at_once_and_others_with_all(void **state)
{
    struct arena a = fresh();
    (void)state;
    void *first = arena_take(&a, 300), *second = arena_take(&a, 300), *third = arena_take(&a, 300);
    assert_true(arena_give(&a, third, 300));
    assert_ptr_equal(arena_take(&a, 100), third);
    assert_true(arena_give(&a, first, 300));
    assert_int_equal(arena_left(&a), BYTES - 5 * ARENA_ALIGN);
    assert_true(arena_give(&a, third, 100));
    assert_int_equal(arena_left(&a), BYTES - 4 * ARENA_ALIGN);
    assert_true(arena_give(&a, second, 300));
    assert_int_equal(arena_left(&a), BYTES); /* the part of `first` is free again, too */
    assert_ptr_equal(arena_take(&a, BYTES), memory);
}

static void test_what_is_not_the_arenas_is_left(void **state)
{
    struct arena a = {.base = memory + ARENA_ALIGN, .n_bytes = BYTES}, none = {.base = NULL};
    (void)state;
    assert_non_null(arena_take(&a, 256));
    assert_false(arena_give(&a, memory, 256));
    assert_false(arena_give(&a, memory + ARENA_ALIGN + BYTES, 256));
    assert_false(arena_give(&a, NULL, 0));
    assert_int_equal(a.n_live, 1);
    assert_false(arena_give(&none, memory, 1));
    assert_false(arena_give(&none, NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_lie_one_after_the_other_aligned),
        cmocka_unit_test(test_too_much_takes_nothing),
        cmocka_unit_test(test_the_last_part_comes_back_at_once_and_others_with_all),
        cmocka_unit_test(test_what_is_not_the_arenas_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
