/* Tests the KV cache against a naive model under random operations. Also tests each rule alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/kv/kv_cache.h"

enum { N_BLOCKS = 40, N_SLOTS = 7, MAX_LEN = 12 };

static uint32_t n_evicted, last_evicted, evicted[8]; /* evicted: the first evicted blocks */
static bool model_kept[N_BLOCKS];

static void on_evict(void *ctx, uint32_t block)
{
    (void)ctx;
    assert_true(model_kept[block]);
    model_kept[block] = false;
    if (n_evicted < 8)
        evicted[n_evicted] = block;
    n_evicted++;
    last_evicted = block;
}

static struct kv_cache *make_cache(uint32_t n_blocks, uint32_t max_proven)
{
    struct kv_cache_config cfg = {.n_blocks = n_blocks,
                                  .n_slots = N_SLOTS,
                                  .max_blocks_per_seq = MAX_LEN,
                                  .max_proven = max_proven,
                                  .on_evict = on_evict};
    struct kv_cache *cache;
    struct error err;
    memset(model_kept, 0, sizeof(model_kept));
    n_evicted = 0;
    assert_int_equal(kv_cache_create(&cfg, &cache, &err), 0);
    return cache;
}

struct model {
    uint32_t tables[N_SLOTS][MAX_LEN], lens[N_SLOTS];
};

static uint32_t model_refs(const struct model *m, uint32_t block)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < N_SLOTS; s++)
        for (uint32_t i = 0; i < m->lens[s]; i++)
            n += m->tables[s][i] == block;
    return n;
}

static void check(const struct kv_cache *cache, const struct model *m)
{
    uint32_t n_held = 0, n_kept_free = 0;
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        uint32_t refs = model_refs(m, b);
        assert_int_equal(kv_cache_n_refs(cache, b), refs);
        n_held += refs > 0;
        n_kept_free += !refs && model_kept[b];
    }
    assert_int_equal(kv_cache_n_free(cache), N_BLOCKS - n_held);
    assert_int_equal(kv_cache_n_kept_free(cache), n_kept_free);
    for (uint32_t s = 0; s < N_SLOTS; s++) {
        uint32_t n_exclusive = 0;
        assert_int_equal(kv_cache_table_len(cache, s), m->lens[s]);
        assert_memory_equal(kv_cache_table(cache, s), m->tables[s], m->lens[s] * sizeof(uint32_t));
        for (uint32_t i = 0; i < m->lens[s]; i++)
            n_exclusive += model_refs(m, m->tables[s][i]) == 1;
        assert_int_equal(kv_cache_n_exclusive(cache, s), n_exclusive);
    }
}

static uint32_t rng = 1;
static uint32_t below(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (rng >> 8) % n;
}

static void do_grow(struct kv_cache *cache, struct model *m, uint32_t s)
{
    bool can = m->lens[s] < MAX_LEN && kv_cache_n_free(cache);
    assert_int_equal(kv_cache_grow(cache, s), can);
    if (!can)
        return;
    uint32_t block = kv_cache_table(cache, s)[m->lens[s]];
    assert_int_equal(model_refs(m, block), 0);
    assert_false(model_kept[block]); /* the block's old contents are forgotten */
    m->tables[s][m->lens[s]++] = block;
}

static void do_attach(struct kv_cache *cache, struct model *m, uint32_t s)
{
    uint32_t block = below(N_BLOCKS);
    bool twice = false; /* a sequence never holds a block twice */
    for (uint32_t i = 0; i < m->lens[s]; i++)
        twice |= m->tables[s][i] == block;
    if (twice || m->lens[s] == MAX_LEN || (!model_refs(m, block) && !model_kept[block]))
        return;
    kv_cache_attach(cache, s, block);
    m->tables[s][m->lens[s]++] = block;
}

static void do_write(struct kv_cache *cache, struct model *m, uint32_t s)
{
    uint32_t from, to;
    if (!m->lens[s])
        return;
    uint32_t i = below(m->lens[s]), block = m->tables[s][i];
    bool shared = model_refs(m, block) > 1, can = !shared || kv_cache_n_free(cache);
    assert_int_equal(kv_cache_needs_copy(cache, s, i), shared);
    assert_int_equal(kv_cache_make_writable(cache, s, i, &from, &to), can);
    if (shared && can) {
        assert_int_equal(from, block);
        assert_int_not_equal(to, block);
        assert_int_equal(model_refs(m, to), 0);
        m->tables[s][i] = to;
    } else {
        assert_int_equal(to, KV_BLOCK_NONE);
        assert_true(shared || !model_kept[block]);
    }
}

/* Replaces a random entry by another block. The cache does not compare contents. */
static void do_replace(struct kv_cache *cache, struct model *m, uint32_t s)
{
    uint32_t block = below(N_BLOCKS);
    if (!m->lens[s] || (!model_refs(m, block) && !model_kept[block]))
        return;
    uint32_t i = below(m->lens[s]);
    for (uint32_t k = 0; k < m->lens[s]; k++)
        if (m->tables[s][k] == block && k != i)
            return;
    kv_cache_replace(cache, s, i, block);
    m->tables[s][i] = block;
}

static void test_random_operations_agree_with_naive_model(void **state)
{
    (void)state;
    struct kv_cache *cache = make_cache(N_BLOCKS, N_BLOCKS / 3);
    struct model m = {0};
    for (int step = 0; step < 60000; step++) {
        uint32_t s = below(N_SLOTS), other = below(N_SLOTS);
        switch (below(14)) {
        case 0:
            kv_cache_clear(cache, s);
            m.lens[s] = 0;
            break;
        case 1:
            if (s != other && !m.lens[other]) {
                uint32_t n = below(m.lens[s] + 1);
                kv_cache_share(cache, s, other, n);
                memcpy(m.tables[other], m.tables[s], n * sizeof(uint32_t));
                m.lens[other] = n;
            }
            break;
        case 2:
        case 3:
            do_attach(cache, &m, s);
            break;
        case 4:
        case 5:
            if (m.lens[s]) {
                uint32_t block = m.tables[s][below(m.lens[s])];
                kv_cache_keep(cache, block);
                model_kept[block] = true;
            }
            break;
        case 6:
        case 7:
            do_write(cache, &m, s);
            break;
        case 8:
            do_replace(cache, &m, s);
            break;
        case 9:
            if (s != other && !m.lens[other]) {
                kv_cache_move(cache, s, other);
                memcpy(m.tables[other], m.tables[s], m.lens[s] * sizeof(uint32_t));
                m.lens[other] = m.lens[s];
                m.lens[s] = 0;
            }
            break;
        default:
            do_grow(cache, &m, s);
        }
        if (step % 16 == 0)
            check(cache, &m);
    }
    assert_true(n_evicted > 1000);
    for (uint32_t s = 0; s < N_SLOTS; s++)
        kv_cache_clear(cache, s);
    assert_int_equal(kv_cache_n_free(cache), N_BLOCKS);
    kv_cache_destroy(cache);
}

static void test_kept_blocks_evicted_least_recently_used_first_tails_before_heads(void **state)
{
    (void)state;
    struct kv_cache *cache = make_cache(4, 0);
    uint32_t first[2], second[2];
    for (uint32_t s = 0; s < 2; s++)
        for (uint32_t i = 0; i < 2; i++) {
            assert_true(kv_cache_grow(cache, s));
            kv_cache_keep(cache, kv_cache_table(cache, s)[i]);
            model_kept[kv_cache_table(cache, s)[i]] = true;
        }
    memcpy(first, kv_cache_table(cache, 0), sizeof(first));
    memcpy(second, kv_cache_table(cache, 1), sizeof(second));
    kv_cache_clear(cache, 0);
    kv_cache_clear(cache, 1);
    assert_int_equal(kv_cache_n_free(cache), 4);
    assert_int_equal(kv_cache_n_kept_free(cache), 4);
    kv_cache_attach(cache, 2, first[0]); /* block first[0] is now the most recently used */
    kv_cache_clear(cache, 2);
    const uint32_t expected[] = {first[1], second[1], second[0], first[0]};
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(kv_cache_grow(cache, 3));
        assert_int_equal(last_evicted, expected[i]);
    }
    assert_false(kv_cache_grow(cache, 3));
    kv_cache_destroy(cache);
}

/* Fills slot 0 with n kept blocks and clears the slot. */
static void keep_chain(struct kv_cache *cache, uint32_t n, uint32_t *out_blocks)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_true(kv_cache_grow(cache, 0));
        out_blocks[i] = kv_cache_table(cache, 0)[i];
        kv_cache_keep(cache, out_blocks[i]);
        model_kept[out_blocks[i]] = true;
    }
    kv_cache_clear(cache, 0);
}

static void find_chain(struct kv_cache *cache, const uint32_t *blocks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_true(model_kept[blocks[i]]);
        kv_cache_attach(cache, 1, blocks[i]);
    }
    kv_cache_clear(cache, 1);
}

static bool have_common(const uint32_t *a, uint32_t n_a, const uint32_t *b, uint32_t n_b)
{
    for (uint32_t i = 0; i < n_a * n_b; i++)
        if (a[i / n_b] == b[i % n_b])
            return true;
    return false;
}

/* A prompt that was found again stays cached while 100 other prompts come once each. */
static void test_what_was_found_again_outlives_what_came_once(void **state)
{
    (void)state;
    struct kv_cache *cache = make_cache(16, 8);
    uint32_t shared[6], once[4];
    keep_chain(cache, 6, shared);
    find_chain(cache, shared, 6);
    for (uint32_t i = 0; i < 100; i++) {
        keep_chain(cache, 4, once);
        assert_false(have_common(shared, 6, once, 4));
    }
    find_chain(cache, shared, 6);
    kv_cache_destroy(cache);
}

/* The old contents of a block do not count for its new contents. */
static void test_a_block_taken_for_something_else_has_to_prove_itself_anew(void **state)
{
    (void)state;
    struct kv_cache *cache = make_cache(8, 8);
    uint32_t first[8], again[4], once[4];
    keep_chain(cache, 8, first);
    find_chain(cache, first, 8);
    keep_chain(cache, 8, first); /* new contents in all proven blocks */
    find_chain(cache, first, 4);
    memcpy(again, first, sizeof(again));
    for (uint32_t i = 0; i < 20; i++) {
        keep_chain(cache, 4, once);
        assert_false(have_common(again, 4, once, 4));
    }
    kv_cache_destroy(cache);
}

/* Beyond max_proven, the least recently used proven block loses that state. A chain loses its last
 * blocks first. */
static void test_more_proven_than_allowed_the_oldest_tail_is_as_new(void **state)
{
    (void)state;
    struct kv_cache *cache = make_cache(16, 8);
    uint32_t a[6], b[6], once[4];
    keep_chain(cache, 6, a);
    find_chain(cache, a, 6);
    keep_chain(cache, 6, b);
    find_chain(cache, b, 6); /* 12 are proven: the last 4 of a are too many */
    n_evicted = 0;
    keep_chain(cache, 4, once); /* from the unused blocks */
    keep_chain(cache, 4, once);
    assert_int_equal(n_evicted, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(evicted[i], a[5 - i]);
    for (uint32_t i = 0; i < 100; i++)
        keep_chain(cache, 4, once);
    find_chain(cache, b, 6);
    find_chain(cache, a, 2);
    /* Proven blocks are evicted if no others are left: the ends of chains first. */
    for (uint32_t i = 0; i < 12; i++)
        assert_true(kv_cache_grow(cache, 2));
    for (uint32_t i = 0; i < 4; i++)
        assert_true(kv_cache_grow(cache, 3));
    assert_int_equal(last_evicted, a[0]);
    assert_false(kv_cache_grow(cache, 3));
    kv_cache_destroy(cache);
}

/* kv_cache_peek() gives unused blocks, then kept ones, then proven ones, as kv_cache_grow() does.
 */
static void test_peek_tells_what_growing_takes_and_takes_nothing(void **state)
{
    (void)state;
    struct kv_cache *cache = make_cache(16, 8);
    struct kv_peek peek = KV_PEEK_FIRST;
    uint32_t proven[3], new[4], expected[16];
    keep_chain(cache, 3, proven);
    find_chain(cache, proven, 3);
    keep_chain(cache, 4, new);
    n_evicted = 0;
    for (uint32_t i = 0; i < 16; i++)
        expected[i] = kv_cache_peek(cache, &peek);
    assert_int_equal(kv_cache_peek(cache, &peek), KV_BLOCK_NONE);
    assert_int_equal(kv_cache_peek(cache, &peek), KV_BLOCK_NONE);
    assert_int_equal(kv_cache_n_free(cache), 16);
    assert_int_equal(kv_cache_n_kept_free(cache), 7);
    assert_int_equal(n_evicted, 0);
    for (uint32_t i = 0; i < 16; i++) {
        assert_true(kv_cache_grow(cache, 2 + i / MAX_LEN));
        assert_int_equal(kv_cache_table(cache, 2 + i / MAX_LEN)[i % MAX_LEN], expected[i]);
    }
    assert_int_equal(n_evicted, 7);
    assert_int_equal(expected[15], proven[0]);
    kv_cache_destroy(cache);
}

static void test_version_changes_with_entries_not_with_growth(void **state)
{
    (void)state;
    struct kv_cache *cache = make_cache(16, 8);
    uint32_t version = kv_cache_table_version(cache, 0), from, to;
    for (uint32_t i = 0; i < 4; i++)
        assert_true(kv_cache_grow(cache, 0));
    kv_cache_trim(cache, 0, 4);
    assert_true(kv_cache_make_writable(cache, 0, 3, &from, &to));
    kv_cache_replace(cache, 0, 1, kv_cache_table(cache, 0)[1]);
    assert_int_equal(kv_cache_table_version(cache, 0), version);
    kv_cache_share(cache, 0, 1, 4);
    assert_true(kv_cache_make_writable(cache, 0, 3, &from, &to)); /* a copy */
    assert_int_not_equal(kv_cache_table_version(cache, 0), version);
    version = kv_cache_table_version(cache, 0);
    kv_cache_replace(cache, 0, 3, kv_cache_table(cache, 1)[3]);
    assert_int_not_equal(kv_cache_table_version(cache, 0), version);
    version = kv_cache_table_version(cache, 0);
    kv_cache_trim(cache, 0, 2);
    assert_int_not_equal(kv_cache_table_version(cache, 0), version);
    version = kv_cache_table_version(cache, 0);
    kv_cache_clear(cache, 0);
    assert_int_not_equal(kv_cache_table_version(cache, 0), version);
    kv_cache_clear(cache, 1);
    kv_cache_destroy(cache);
}

/* Blocks from the front of a table: kept ones are evicted first, others are taken last. So peeks
 * stay right where a window moves on. Order of a full pool: unused, passed, new, proven. */
static void test_front_of_a_table_goes_and_peeks_stay_right(void **state)
{
    (void)state;
    struct kv_cache *cache = make_cache(16, 8);
    uint32_t kept[2], window[4], expected[12];
    struct kv_peek peek = KV_PEEK_FIRST;
    keep_chain(cache, 2, kept);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(kv_cache_grow(cache, 0));
        window[i] = kv_cache_table(cache, 0)[i];
    }
    for (uint32_t i = 1; i < 3; i++) {
        kv_cache_keep(cache, window[i]);
        model_kept[window[i]] = true;
    }
    for (uint32_t i = 0; i < 10; i++)
        expected[i] = kv_cache_peek(cache, &peek);
    uint32_t version = kv_cache_table_version(cache, 0);
    kv_cache_drop_front(cache, 0, false);
    kv_cache_drop_front(cache, 0, true);
    assert_int_equal(kv_cache_table_version(cache, 0), version);
    assert_int_equal(kv_cache_front(cache, 0), 2);
    assert_int_equal(kv_cache_table_len(cache, 0), 4);
    assert_int_equal(kv_cache_table(cache, 0)[1], KV_BLOCK_NONE);
    assert_int_equal(kv_cache_n_free(cache), 14);
    assert_int_equal(kv_cache_n_exclusive(cache, 0), 2);
    expected[10] = window[0];
    expected[11] = window[1];
    kv_cache_share(cache, 0, 1, 4);
    assert_int_equal(kv_cache_front(cache, 1), 2);
    assert_int_equal(kv_cache_n_refs(cache, window[3]), 2);
    kv_cache_clear(cache, 1);
    peek = KV_PEEK_FIRST;
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t next = kv_cache_peek(cache, &peek);
        assert_int_equal(next, expected[i]);
        assert_true(kv_cache_grow(cache, 1));
        assert_int_equal(kv_cache_table(cache, 1)[i], next);
        peek = KV_PEEK_FIRST;
    }
    assert_int_equal(evicted[0], window[1]); /* before the blocks that were kept earlier */
    kv_cache_move(cache, 0, 2);
    assert_int_equal(kv_cache_front(cache, 2), 2);
    assert_int_equal(kv_cache_front(cache, 0), 0);
    kv_cache_trim(cache, 2, 1);
    assert_int_equal(kv_cache_table_len(cache, 2), 1);
    kv_cache_clear(cache, 2);
    kv_cache_skip(cache, 2, 3);
    assert_true(kv_cache_grow(cache, 2));
    assert_int_equal(kv_cache_table_len(cache, 2), 4);
    assert_int_equal(kv_cache_front(cache, 2), 3);
    kv_cache_clear(cache, 2);
    assert_int_equal(kv_cache_front(cache, 2), 0);
    kv_cache_destroy(cache);
}

/* A forgotten block is as any unused block, held or not. */
static void test_a_forgotten_block_is_not_kept(void **state)
{
    (void)state;
    struct kv_cache *cache = make_cache(8, 4);
    uint32_t blocks[2];
    keep_chain(cache, 2, blocks);
    kv_cache_forget(cache, blocks[0]);
    assert_int_equal(kv_cache_n_kept_free(cache), 1);
    assert_int_equal(kv_cache_n_free(cache), 8);
    kv_cache_attach(cache, 0, blocks[1]);
    kv_cache_forget(cache, blocks[1]);
    kv_cache_clear(cache, 0);
    assert_int_equal(kv_cache_n_kept_free(cache), 0);
    assert_int_equal(kv_cache_n_free(cache), 8);
    assert_int_equal(n_evicted, 0);
    kv_cache_destroy(cache);
}

static void test_create_zero_dimension_is_refused(void **state)
{
    (void)state;
    struct error err;
    struct kv_cache *cache = NULL;
    struct kv_cache_config cfg = {.n_blocks = 0, .n_slots = 1, .max_blocks_per_seq = 1};
    assert_int_equal(kv_cache_create(&cfg, &cache, &err), STATUS_INVALID_ARGUMENT);
    assert_null(cache);
    kv_cache_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations_agree_with_naive_model),
        cmocka_unit_test(test_kept_blocks_evicted_least_recently_used_first_tails_before_heads),
        cmocka_unit_test(test_what_was_found_again_outlives_what_came_once),
        cmocka_unit_test(test_a_block_taken_for_something_else_has_to_prove_itself_anew),
        cmocka_unit_test(test_more_proven_than_allowed_the_oldest_tail_is_as_new),
        cmocka_unit_test(test_peek_tells_what_growing_takes_and_takes_nothing),
        cmocka_unit_test(test_version_changes_with_entries_not_with_growth),
        cmocka_unit_test(test_front_of_a_table_goes_and_peeks_stay_right),
        cmocka_unit_test(test_a_forgotten_block_is_not_kept),
        cmocka_unit_test(test_create_zero_dimension_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
