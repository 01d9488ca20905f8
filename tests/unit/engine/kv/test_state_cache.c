/* Tests the cache of recurrent states against a naive model under random operations. Also tests
 * each rule alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/kv/state_cache.h"

enum { N_SLOTS = 24, N_NODES = 60 };

static struct state_cache *make(uint32_t n_slots)
{
    struct state_cache *cache;
    struct error err;
    assert_int_equal(state_cache_create(n_slots, &cache, &err), 0);
    return cache;
}

static uint32_t rng = 1;
static uint32_t below(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (rng >> 8) % n;
}

/* The promises of the cache in the plainest form: eviction searches all slots. */
struct model {
    uint32_t refs[N_SLOTS];
    uint64_t node[N_SLOTS]; /* 0: no snapshot */
    bool lasting[N_SLOTS];
    uint64_t dropped[N_SLOTS]; /* time of the last drop */
    uint64_t now;
    uint64_t n_evictions;
};

static uint32_t model_find(const struct model *m, uint64_t node)
{
    for (uint32_t i = 0; i < N_SLOTS; i++)
        if (m->node[i] == node)
            return i;
    return STATE_SLOT_NONE;
}

/* The snapshot to evict, or STATE_SLOT_NONE. */
static uint32_t model_victim(const struct model *m)
{
    uint32_t best = STATE_SLOT_NONE;
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        if (m->refs[i] || !m->node[i])
            continue;
        if (best == STATE_SLOT_NONE || m->lasting[i] < m->lasting[best] ||
            (m->lasting[i] == m->lasting[best] && m->dropped[i] < m->dropped[best]))
            best = i;
    }
    return best;
}

static void model_unrecord(struct model *m, uint32_t i)
{
    m->node[i] = 0;
    m->lasting[i] = false;
}

static void do_take(struct state_cache *cache, struct model *m)
{
    uint32_t n_unused = 0, i = state_cache_take(cache);
    for (uint32_t k = 0; k < N_SLOTS; k++)
        n_unused += !m->refs[k] && !m->node[k];
    if (!n_unused) {
        uint32_t victim = model_victim(m);
        assert_int_equal(i, victim);
        if (victim == STATE_SLOT_NONE)
            return;
        model_unrecord(m, victim);
        m->n_evictions++;
    }
    assert_int_equal(m->refs[i], 0);
    assert_int_equal(m->node[i], 0);
    m->refs[i] = 1;
}

static void do_record(struct state_cache *cache, struct model *m, uint32_t slot)
{
    uint64_t node = 1 + below(N_NODES);
    enum state_place place = below(2) ? STATE_END : STATE_INSIDE;
    state_cache_record(cache, node, slot, place);
    if (m->node[slot] || model_find(m, node) != STATE_SLOT_NONE)
        return;
    m->node[slot] = node;
    m->lasting[slot] = place == STATE_END;
}

static void do_find(struct state_cache *cache, struct model *m)
{
    uint64_t node = 1 + below(N_NODES);
    uint32_t i = model_find(m, node);
    assert_int_equal(state_cache_peek(cache, node), i);
    assert_int_equal(state_cache_find(cache, node), i);
    if (i == STATE_SLOT_NONE)
        return;
    m->refs[i]++;
    m->lasting[i] = true;
}

static void do_forget(struct state_cache *cache, struct model *m)
{
    uint64_t node = 1 + below(N_NODES);
    uint32_t i = model_find(m, node);
    state_cache_forget(cache, node);
    if (i != STATE_SLOT_NONE)
        model_unrecord(m, i);
}

static void do_overwrite(struct state_cache *cache, struct model *m, uint32_t slot)
{
    state_cache_overwrite(cache, slot);
    m->n_evictions += m->node[slot] != 0;
    model_unrecord(m, slot);
}

static void do_drop(struct state_cache *cache, struct model *m, uint32_t slot)
{
    state_cache_drop(cache, slot);
    m->refs[slot]--;
    m->dropped[slot] = ++m->now;
}

static void check(const struct state_cache *cache, const struct model *m)
{
    uint32_t n_free = 0, n_snapshots = 0;
    for (uint32_t i = 0; i < N_SLOTS; i++) {
        n_free += m->refs[i] == 0;
        n_snapshots += m->node[i] != 0;
        assert_int_equal(state_cache_n_refs(cache, i), m->refs[i]);
        assert_int_equal(state_cache_is_snapshot(cache, i), m->node[i] != 0);
    }
    assert_int_equal(state_cache_n_free(cache), n_free);
    assert_int_equal(state_cache_n_snapshots(cache), n_snapshots);
    assert_int_equal(state_cache_n_evictions(cache), m->n_evictions);
    for (uint64_t node = 1; node <= N_NODES; node++)
        assert_int_equal(state_cache_peek(cache, node), model_find(m, node));
}

static void test_random_operations_agree_with_naive_model(void **state)
{
    (void)state;
    struct state_cache *cache = make(N_SLOTS);
    struct model m = {0};
    for (int step = 0; step < 100000; step++) {
        uint32_t slot = below(N_SLOTS), op = below(14);
        if (op < 4)
            do_take(cache, &m);
        else if (op < 6)
            do_find(cache, &m);
        else if (op == 6)
            do_forget(cache, &m);
        else if (!m.refs[slot])
            continue;
        else if (op == 7)
            do_overwrite(cache, &m, slot);
        else if (op == 8) {
            state_cache_hold(cache, slot);
            m.refs[slot]++;
        } else if (op < 11)
            do_record(cache, &m, slot);
        else
            do_drop(cache, &m, slot);
        if (step % 8 == 0)
            check(cache, &m);
    }
    assert_true(m.n_evictions > 1000);
    for (uint32_t i = 0; i < N_SLOTS; i++)
        while (m.refs[i])
            do_drop(cache, &m, i);
    check(cache, &m);
    assert_int_equal(state_cache_n_free(cache), N_SLOTS);
    state_cache_destroy(cache);
}

/* Records a snapshot that nobody holds. */
static uint32_t keep(struct state_cache *cache, uint64_t node, enum state_place place)
{
    uint32_t slot = state_cache_take(cache);
    assert_int_not_equal(slot, STATE_SLOT_NONE);
    state_cache_record(cache, node, slot, place);
    state_cache_drop(cache, slot);
    return slot;
}

static void test_eviction_takes_unfound_insides_first_then_least_recently_used(void **state)
{
    (void)state;
    struct state_cache *cache = make(4);
    uint32_t end = keep(cache, 1, STATE_END), found = keep(cache, 2, STATE_INSIDE);
    uint32_t old = keep(cache, 3, STATE_INSIDE), new = keep(cache, 4, STATE_INSIDE);
    assert_int_equal(state_cache_find(cache, 2), found);
    state_cache_drop(cache, found);
    assert_int_equal(state_cache_n_free(cache), 4);
    const uint32_t expected[] = {old, new, end, found};
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(state_cache_take(cache), expected[i]);
    assert_int_equal(state_cache_take(cache), STATE_SLOT_NONE);
    assert_int_equal(state_cache_n_snapshots(cache), 0);
    assert_int_equal(state_cache_n_evictions(cache), 4);
    state_cache_destroy(cache);
}

/* A snapshot that a sequence reads stays with the sequence when its block goes. */
static void test_forgotten_snapshot_stays_with_its_holder(void **state)
{
    (void)state;
    struct state_cache *cache = make(2);
    uint32_t slot = keep(cache, 7, STATE_END);
    assert_int_equal(state_cache_find(cache, 7), slot);
    state_cache_forget(cache, 7);
    assert_int_equal(state_cache_peek(cache, 7), STATE_SLOT_NONE);
    assert_int_equal(state_cache_n_refs(cache, slot), 1);
    assert_int_not_equal(state_cache_take(cache), slot);
    assert_int_equal(state_cache_take(cache), STATE_SLOT_NONE);
    state_cache_drop(cache, slot);
    assert_int_equal(state_cache_n_free(cache), 1);
    state_cache_destroy(cache);
}

static void test_no_slots_is_refused(void **state)
{
    (void)state;
    struct state_cache *cache;
    struct error err;
    assert_int_equal(state_cache_create(0, &cache, &err), STATUS_INVALID_ARGUMENT);
    state_cache_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations_agree_with_naive_model),
        cmocka_unit_test(test_eviction_takes_unfound_insides_first_then_least_recently_used),
        cmocka_unit_test(test_forgotten_snapshot_stays_with_its_holder),
        cmocka_unit_test(test_no_slots_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
