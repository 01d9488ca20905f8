/* Tests of arena, strbuf, hash_map and pages. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/hash_map.h"
#include "base/pages.h"
#include "base/strbuf.h"
#include "tests/unit/base/support_cmocka.h"

static void test_arena_objects_are_zeroed_aligned_and_apart(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, 256, 0);
    unsigned char *last = NULL;
    for (size_t n = 1; n < 2000; n += 37) {
        unsigned char *p = arena_alloc(&arena, n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(p[i], 0);
        memset(p, 0xAA, n);
        if (last)
            assert_int_equal(last[0], 0xAA);
        last = p;
    }
    arena_reset(&arena);
    assert_int_equal(arena.used_bytes, 0);
    arena_fini(&arena);
}

static void test_arena_chunks_of_many_pages_are_zeroed_and_keep_what_is_written(void **state)
{
    (void)state;
    enum { N = 3, BYTES = 700 * 1000 };
    struct arena arena;
    unsigned char *block[N];
    arena_init(&arena, 1 << 20, 0);
    for (int i = 0; i < N; i++) {
        block[i] = arena_alloc(&arena, BYTES);
        assert_non_null(block[i]);
        for (size_t at = 0; at < BYTES; at++)
            assert_int_equal(block[i][at], 0);
        memset(block[i], i + 1, BYTES);
    }
    for (int i = 0; i < N; i++)
        for (size_t at = 0; at < BYTES; at += 4096)
            assert_int_equal(block[i][at], i + 1);
    unsigned char page[3 * 4096] = {7};
    pages_touch(page, sizeof(page));
    pages_touch(page, 1);
    assert_int_equal(page[0], 7);
    arena_fini(&arena);
}

static void test_arena_refuses_over_its_limit_and_on_overflow(void **state)
{
    (void)state;
    struct arena arena;
    arena_init(&arena, 0, 1000);
    assert_non_null(arena_alloc(&arena, 900));
    assert_false(arena.exhausted);
    assert_null(arena_alloc(&arena, 200));
    assert_true(arena.exhausted);
    arena_reset(&arena);
    assert_false(arena.exhausted);
    assert_non_null(arena_alloc(&arena, 900));
    assert_null(arena_calloc(&arena, SIZE_MAX / 2, 16));
    assert_null(arena_alloc(&arena, SIZE_MAX));
    arena.exhausted = false;
    assert_null(arena_strndup(&arena, "x", SIZE_MAX - 1));
    assert_true(arena.exhausted);
    arena_fini(&arena);
}

static void test_strbuf_builds_consumes_and_limits(void **state)
{
    (void)state;
    struct strbuf buf;
    strbuf_init(&buf, 0);
    assert_string_equal(strbuf_str(&buf), "");
    for (int i = 0; i < 1000; i++)
        assert_true(strbuf_printf(&buf, "%d,", i));
    assert_memory_equal(strbuf_str(&buf), "0,1,2,", 6);
    strbuf_consume(&buf, 4);
    assert_memory_equal(strbuf_str(&buf), "2,3,", 4);
    strbuf_consume(&buf, SIZE_MAX);
    assert_int_equal(buf.n_bytes, 0);
    char *taken = strbuf_take(&buf);
    assert_string_equal(taken, "");
    free(taken);
    strbuf_init(&buf, 8);
    assert_true(strbuf_add_str(&buf, "12345678"));
    assert_false(strbuf_add_char(&buf, '9'));
    assert_true(strbuf_failed(&buf));
    assert_null(strbuf_take(&buf));
    strbuf_init(&buf, 100); /* the memory doubles beyond this limit */
    for (int i = 0; i < 100; i++)
        assert_true(strbuf_add_char(&buf, 'x'));
    assert_false(strbuf_add_char(&buf, 'x'));
    assert_int_equal(buf.n_bytes, 100);
    strbuf_fini(&buf);
}

static void test_strbuf_adds_numbers_as_printf_does(void **state)
{
    (void)state;
    static const uint64_t numbers[] = {0, 9, 10, 99, 100, 4294967295u, UINT64_MAX / 10, UINT64_MAX};
    struct strbuf buf, expected;
    strbuf_init(&buf, 0);
    strbuf_init(&expected, 0);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        assert_true(strbuf_add_number(&buf, numbers[i]));
        strbuf_printf(&expected, "%" PRIu64, numbers[i]);
        assert_string_equal(strbuf_str(&buf), strbuf_str(&expected));
    }
    strbuf_fini(&expected);
    strbuf_fini(&buf);
}

static void test_hash_map_against_an_array(void **state)
{
    (void)state;
    enum { N = 512 };
    static int values[N];
    bool there[N] = {false};
    struct hash_map map = {0};
    uint32_t random = 12345;
    size_t n_there = 0;
    for (int step = 0; step < 200000; step++) {
        random = random * 1664525 + 1013904223;
        uint32_t key = (random >> 8) % N;
        if (random >> 31) {
            assert_true(hash_map_put(&map, &key, sizeof(key), &values[key]));
            n_there += !there[key];
            there[key] = true;
        } else {
            void *gone = hash_map_remove(&map, &key, sizeof(key));
            assert_ptr_equal(gone, there[key] ? (void *)&values[key] : NULL);
            n_there -= there[key];
            there[key] = false;
        }
        assert_int_equal(map.n_entries, n_there);
    }
    size_t cursor = 0, n_seen = 0;
    while (hash_map_next(&map, &cursor, NULL, NULL))
        n_seen++;
    assert_int_equal(n_seen, n_there);
    for (uint32_t key = 0; key < N; key++)
        assert_int_equal(hash_map_get(&map, &key, sizeof(key)) != NULL, there[key]);
    assert_true(map.n_slots <= 4 * N); /* deleted slots are reused */
    hash_map_fini(&map);
}

static void test_hash_map_keys_are_bytes_of_any_length(void **state)
{
    (void)state;
    int a, b, c;
    struct hash_map map = {0};
    assert_true(hash_map_put(&map, "", 0, &a));
    assert_true(hash_map_put(&map, "x\0y", 3, &b));
    assert_true(hash_map_put_str(&map, "x", &c));
    assert_ptr_equal(hash_map_get(&map, NULL, 0), &a);
    assert_ptr_equal(hash_map_get(&map, "x\0y", 3), &b);
    assert_ptr_equal(hash_map_get_str(&map, "x"), &c);
    assert_null(hash_map_get_str(&map, "y"));
    hash_map_fini(&map);
}

/* Servers choose by this hash, and all servers must make the same choice. */
static void test_hash_is_of_the_bytes_and_the_seed_alone(void **state)
{
    (void)state;
    const char text[] = "sluice, a gate for water";
    assert_true(hash_bytes(text, strlen(text), 77) == UINT64_C(0x39ae43f705a7a52a));
    assert_true(hash_bytes(text, 5, 77) != hash_bytes(text, 5, 78));
    assert_true(hash_bytes(text, 5, 77) != hash_bytes(text, 6, 77));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena_objects_are_zeroed_aligned_and_apart),
        cmocka_unit_test(test_arena_chunks_of_many_pages_are_zeroed_and_keep_what_is_written),
        cmocka_unit_test(test_arena_refuses_over_its_limit_and_on_overflow),
        cmocka_unit_test(test_strbuf_builds_consumes_and_limits),
        cmocka_unit_test(test_strbuf_adds_numbers_as_printf_does),
        cmocka_unit_test(test_hash_map_against_an_array),
        cmocka_unit_test(test_hash_is_of_the_bytes_and_the_seed_alone),
        cmocka_unit_test(test_hash_map_keys_are_bytes_of_any_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
