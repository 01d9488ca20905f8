/* Blocks are found by their tokens, what came before them and the salt, all compared in full. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/prefix_cache.h"

enum { BLOCK = 4 };

static const struct prefix_salt salt_a = {{1, 2}}, salt_b = {{1, 3}}, salt_c = {{2, 2}};
static const uint32_t one[BLOCK] = {1, 2, 3, 4}, two[BLOCK] = {5, 6, 7, 8};

static struct prefix_cache *make(uint32_t n_blocks)
{
    struct prefix_cache *cache;
    struct error err;
    assert_int_equal(prefix_cache_create(n_blocks, BLOCK, &cache, &err), 0);
    return cache;
}

static void test_find_after_same_parent_and_salt_only(void **state)
{
    (void)state;
    struct prefix_cache *cache = make(8);
    uint32_t known;
    uint64_t node_1, node_2, node = 0;
    node_1 = prefix_cache_insert(cache, &salt_a, PREFIX_ROOT, one, 3, &known);
    assert_int_equal(known, 3);
    node_2 = prefix_cache_insert(cache, &salt_a, node_1, two, 5, &known);
    assert_true(known == 5 && node_2 != node_1);
    assert_int_equal(prefix_cache_find(cache, &salt_a, PREFIX_ROOT, one, &node), 3);
    assert_int_equal(node, node_1);
    assert_int_equal(prefix_cache_find(cache, &salt_a, node_1, two, &node), 5);
    static const struct prefix_salt *others[] = {&salt_b, &salt_c};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(prefix_cache_find(cache, others[i], PREFIX_ROOT, one, &node),
                         KV_BLOCK_NONE);
        assert_int_equal(prefix_cache_find(cache, others[i], node_1, two, &node), KV_BLOCK_NONE);
    }
    /* The same tokens elsewhere in a chain are another block. */
    assert_int_equal(prefix_cache_find(cache, &salt_a, PREFIX_ROOT, two, &node), KV_BLOCK_NONE);
    assert_int_equal(prefix_cache_find(cache, &salt_a, node_2, two, &node), KV_BLOCK_NONE);
    prefix_cache_destroy(cache);
}

/* Entries of different parents may share a bucket. The lookup must compare the parent. */
static void test_other_parents_in_the_same_bucket_find_nothing(void **state)
{
    (void)state;
    struct prefix_cache *cache = make(8);
    uint32_t known;
    uint64_t node = prefix_cache_insert(cache, &salt_a, 1000, one, 3, &known);
    for (uint64_t parent = 0; parent < 300; parent++)
        assert_int_equal(prefix_cache_find(cache, &salt_a, parent, one, &node), KV_BLOCK_NONE);
    assert_int_equal(prefix_cache_find(cache, &salt_a, 1000, one, &node), 3);
    prefix_cache_destroy(cache);
}

static void test_insert_equal_block_is_known_already(void **state)
{
    (void)state;
    struct prefix_cache *cache = make(8);
    uint32_t known;
    uint64_t node = prefix_cache_insert(cache, &salt_a, PREFIX_ROOT, one, 3, &known), found = 0;
    assert_int_equal(prefix_cache_insert(cache, &salt_a, PREFIX_ROOT, one, 6, &known), node);
    assert_int_equal(known, 3);
    assert_int_equal(prefix_cache_n_entries(cache), 1);
    assert_int_equal(prefix_cache_insert(cache, &salt_b, PREFIX_ROOT, one, 6, &known), node + 1);
    assert_int_equal(known, 6);
    assert_int_equal(prefix_cache_find(cache, &salt_b, PREFIX_ROOT, one, &found), 6);
    prefix_cache_destroy(cache);
}

static void test_removed_parent_hides_children_for_good(void **state)
{
    (void)state;
    struct prefix_cache *cache = make(8);
    uint32_t known;
    uint64_t node = prefix_cache_insert(cache, &salt_a, PREFIX_ROOT, one, 3, &known), found = 0;
    prefix_cache_insert(cache, &salt_a, node, two, 4, &known);
    prefix_cache_remove(cache, 3);
    prefix_cache_remove(cache, 3);
    assert_int_equal(prefix_cache_find(cache, &salt_a, PREFIX_ROOT, one, &found), KV_BLOCK_NONE);
    uint64_t again = prefix_cache_insert(cache, &salt_a, PREFIX_ROOT, one, 3, &known);
    assert_true(again != node);
    assert_int_equal(prefix_cache_find(cache, &salt_a, again, two, &found), KV_BLOCK_NONE);
    prefix_cache_destroy(cache);
}

/* Every entry of a full cache is found, whatever the buckets. After its removal no entry is found.
 */
static void test_many_entries_come_and_go(void **state)
{
    (void)state;
    enum { N = 500 };
    struct prefix_cache *cache = make(N);
    uint64_t nodes[N], found = 0;
    uint32_t known;
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t tokens[BLOCK] = {i, round, i % 3, 9};
            nodes[i] = prefix_cache_insert(cache, &salt_a, i ? nodes[i - 1] : PREFIX_ROOT, tokens,
                                           i, &known);
            assert_int_equal(known, i);
        }
        assert_int_equal(prefix_cache_n_entries(cache), N);
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t tokens[BLOCK] = {i, round, i % 3, 9};
            uint64_t parent = i ? nodes[i - 1] : PREFIX_ROOT;
            assert_int_equal(prefix_cache_find(cache, &salt_a, parent, tokens, &found), i);
            assert_int_equal(found, nodes[i]);
            assert_int_equal(prefix_cache_node(cache, i), nodes[i]);
        }
        for (uint32_t i = 0; i < N; i++)
            prefix_cache_remove(cache, (i * 7) % N);
        assert_int_equal(prefix_cache_n_entries(cache), 0);
        assert_int_equal(prefix_cache_node(cache, round), 0);
    }
    prefix_cache_destroy(cache);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find_after_same_parent_and_salt_only),
        cmocka_unit_test(test_other_parents_in_the_same_bucket_find_nothing),
        cmocka_unit_test(test_insert_equal_block_is_known_already),
        cmocka_unit_test(test_removed_parent_hides_children_for_good),
        cmocka_unit_test(test_many_entries_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
