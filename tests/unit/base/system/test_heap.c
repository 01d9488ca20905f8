/* Tests that memory of a load peak returns to the system after the peak. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/system/heap.h"

static bool at(struct heap_watch *watch, uint64_t n_live, int64_t ms)
{
    return heap_watch(watch, n_live, 0, 1000 * NS_PER_S + ms * NS_PER_MS);
}

static void test_only_a_flood_that_is_over_gives_back(void **state)
{
    struct heap_watch watch = {0};
    (void)state;
    assert_false(at(&watch, HEAP_FLOOD - 1, 0));
    assert_false(at(&watch, 0, 10000)); /* HEAP_FLOOD - 1 is no flood */
    assert_false(at(&watch, 1000, 10000));
    assert_false(at(&watch, 251, 20000));
    assert_false(at(&watch, 250, 20500));
    assert_false(at(&watch, 400, 21000)); /* again */
    assert_false(at(&watch, 100, 21000 + HEAP_CALM_MS - 1));
    assert_true(at(&watch, 100, 21000 + HEAP_CALM_MS));
    assert_false(at(&watch, 100, 30000)); /* the peak since the trim is now 100 */
    assert_false(at(&watch, 20, 30000 + HEAP_CALM_MS - 1));
    assert_true(at(&watch, 20, 30000 + HEAP_CALM_MS));
    assert_false(at(&watch, 0, 60000));
}

static void test_calls_that_are_short_are_a_flood_too(void **state)
{
    struct heap_watch watch = {0};
    (void)state;
    assert_false(heap_watch(&watch, 2, 1000, NS_PER_S));
    assert_false(heap_watch(&watch, 2, 1010, 2 * NS_PER_S));
    assert_true(heap_watch(&watch, 2, 1020, 3 * NS_PER_S));
    assert_false(heap_watch(&watch, 2, 1030, 9 * NS_PER_S));
}

static long resident_pages(void)
{
    char line[128], *rest;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof(line), file));
    fclose(file);
    strtol(line, &rest, 10); /* the size */
    return strtol(rest, NULL, 10);
}

/* The freed blocks lie below a live block. glibc alone does not return such pages to the system. */
static void test_pages_go_back(void **state)
{
    enum { N = 4096, BYTES = 8 << 10 };
    static void
        *blocks[N + 1]; /* static and written to, so that the compiler keeps the allocations */
    struct heap_watch watch = {0};
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("left out: sanitizers have an allocator of their own\n");
    return;
#endif
    long before = resident_pages(), page = sysconf(_SC_PAGESIZE);
    for (int i = 0; i <= N; i++) {
        blocks[i] = malloc(BYTES);
        assert_non_null(blocks[i]);
        for (int k = 0; k < BYTES; k += 512)
            ((volatile uint8_t *)blocks[i])[k] = 1;
    }
    for (int i = 0; i < N; i++)
        free(blocks[i]);
    long kept = resident_pages() - before, all = (long)N * BYTES / page;
    assert_true(kept > all / 2);
    at(&watch, 1000, 0);
    assert_true(at(&watch, 0, 2 * HEAP_CALM_MS));
    assert_true(resident_pages() - before < all / 10);
    free(blocks[N]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_a_flood_that_is_over_gives_back),
        cmocka_unit_test(test_calls_that_are_short_are_a_flood_too),
        cmocka_unit_test(test_pages_go_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
