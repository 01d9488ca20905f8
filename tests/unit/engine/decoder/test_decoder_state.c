/* Tests of the states of recurrent layers: their sizes, the parts that each rank holds, and their
 * places in a slot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/decoder/decoder_memory.h"

enum { MAX_LAYERS = 48 };

static const struct arch_mixer attention = {.name = "full_attention"};
static const struct arch_mixer delta = {.name = "delta", .mixing = ARCH_MIXING_DELTA};
static const struct arch_mixer mamba = {.name = "mamba", .mixing = ARCH_MIXING_MAMBA2};
static const struct arch_mixer conv = {.name = "conv", .mixing = ARCH_MIXING_CONV};
static const struct arch_ffn dense = {.name = "dense"};

static struct model_layer layers[MAX_LAYERS];

/* Layers of one kind; each fourth is attention. */
static struct model_shape shape_of(const struct arch_mixer *mixer, uint32_t n_layers,
                                   struct model_state state)
{
    for (uint32_t i = 0; i < n_layers; i++) {
        bool attends = i % 4 == 3;
        layers[i] = (struct model_layer){.mixer = attends ? &attention : mixer,
                                         .ffn = &dense,
                                         .n_heads = attends ? 8 : 0,
                                         .n_kv_heads = attends ? 8 : 0,
                                         .k_dim = attends ? 32 : 0,
                                         .v_dim = attends ? 32 : 0,
                                         .q_dim = attends ? 32 : 0,
                                         .o_dim = attends ? 32 : 0,
                                         .ffn_dim = 256,
                                         .kv_source = i};
    }
    return (struct model_shape){.n_layers = n_layers,
                                .hidden_dim = 64,
                                .vocab_size = 512,
                                .state = state,
                                .layers = layers};
}

static struct rank_plan plan_of(const struct model_shape *shape, uint32_t index, uint32_t tp)
{
    const struct rank rank = {.index = index, .tp = tp, .n_stages = 1};
    struct rank_plan plan = {.rank = rank, .steps = {.n_state_slots = 3, .max_rows = 8}};
    struct error err = {0};
    if (rank_split_init(&plan.split, &rank, shape, &err) != 0)
        fail_msg("%s", err.message);
    return plan;
}

/* Qwen3-Next 80B: 36 of 48 layers, 2.1 MiB each. */
static void test_a_slot_of_qwen3_next_has_75_mib(void **state)
{
    const struct model_shape shape =
        shape_of(&delta, 48, (struct model_state){16, 32, 128, 128, 4, false, false});
    struct rank_plan plan = plan_of(&shape, 0, 1);
    uint64_t floats = 3 * (2 * 16 * 128 + 32 * 128) + 32 * 128 * 128;
    (void)state;
    assert_int_equal(shape_state_floats(&shape, 0), floats);
    assert_int_equal(shape_state_floats(&shape, 3), 0);
    assert_int_equal(decoder_state_bytes(&plan, &shape), 36 * floats * 4);
    assert_in_range(decoder_state_bytes(&plan, &shape) >> 20, 75, 75);
    rank_split_fini(&plan.split);
}

/* A rank holds adjacent heads of the values, and the heads of the keys that they read. */
static void test_ranks_hold_the_keys_that_their_heads_read(void **state)
{
    static const struct {
        uint32_t n_keys, n_heads;
        bool tiled;
        uint32_t tp, index, head_begin, heads, key_begin, keys;
    } rows[] = {
        {4, 8, false, 2, 0, 0, 4, 0, 2}, {4, 8, false, 2, 1, 4, 4, 2, 2},
        {4, 8, true, 2, 1, 4, 4, 0, 4}, /* heads 4 to 7 read keys 0 to 3 */
        {8, 8, true, 2, 1, 4, 4, 4, 4},  {2, 8, false, 4, 1, 2, 2, 0, 1},
        {6, 12, true, 4, 1, 3, 3, 3, 3}, {5, 10, true, 2, 1, 5, 5, 0, 5},
        {1, 8, true, 4, 3, 6, 2, 0, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct model_shape shape = shape_of(
            &delta, 2,
            (struct model_state){rows[i].n_keys, rows[i].n_heads, 32, 32, 4, false, rows[i].tiled});
        struct rank_plan plan = plan_of(&shape, rows[i].index, rows[i].tp);
        const struct state_split *split = &plan.split.layers[0].state;
        if (split->head_begin != rows[i].head_begin || split->n_heads != rows[i].heads ||
            split->key_begin != rows[i].key_begin || split->n_keys != rows[i].keys)
            fail_msg("row %zu: heads %u + %u, keys %u + %u", i, split->head_begin, split->n_heads,
                     split->key_begin, split->n_keys);
        assert_int_equal(split->n_values, rows[i].heads * 32);
        rank_split_fini(&plan.split);
    }
}

/* A rank norms whole groups of Mamba-2. Where ranks divide a group, each of them computes the whole
 * group, and takes its part of the values afterwards. */
static void test_ranks_compute_whole_groups(void **state)
{
    static const struct {
        uint32_t tp, index, head_begin, heads, key_begin, keys, out_begin, out;
    } rows[] = {
        {2, 1, 4, 4, 1, 1, 128, 128},
        {4, 1, 0, 4, 0, 1, 64, 64},
        {4, 2, 4, 4, 1, 1, 128, 64},
    };
    const struct model_shape shape =
        shape_of(&mamba, 2, (struct model_state){2, 8, 16, 32, 4, false, false});
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rank_plan plan = plan_of(&shape, rows[i].index, rows[i].tp);
        const struct state_split *split = &plan.split.layers[0].state;
        assert_int_equal(split->head_begin, rows[i].head_begin);
        assert_int_equal(split->n_heads, rows[i].heads);
        assert_int_equal(split->key_begin, rows[i].key_begin);
        assert_int_equal(split->n_keys, rows[i].keys);
        assert_int_equal(split->n_values, rows[i].heads * 32);
        assert_int_equal(segments_begin(&split->out), rows[i].out_begin);
        assert_int_equal(segments_len(&split->out), rows[i].out);
        rank_split_fini(&plan.split);
    }
}

/* A short convolution has channels alone. */
static void test_ranks_divide_the_channels_of_a_convolution(void **state)
{
    (void)state;
    const struct model_shape shape =
        shape_of(&conv, 2, (struct model_state){0, 1, 0, 96, 3, false, false});
    struct rank_plan plan = plan_of(&shape, 0, 2);
    assert_int_equal(shape_state_floats(&shape, 0), 2 * 96);
    assert_int_equal(decoder_state_bytes(&plan, &shape),
                     2 * 2 * segments_len(&plan.split.layers[0].state.out) * sizeof(float));
    assert_int_equal(plan.split.layers[0].state.n_heads, 0);
    rank_split_fini(&plan.split);
}

/* The parts of a slot do not overlap, and begin at multiples of 64 bytes. */
static void test_the_parts_of_a_slot_follow_one_another(void **state)
{
    (void)state;
    const struct model_shape shape =
        shape_of(&delta, 5, (struct model_state){3, 9, 7, 5, 4, false, true});
    struct rank_plan plan = plan_of(&shape, 0, 1);
    const uint64_t floats[N_DECODER_STATES] = {3 * 21, 3 * 21, 3 * 45, 9 * 7 * 5};
    uint64_t end = 0;
    for (uint32_t i = 0; i < 5; i++) {
        struct decoder_state_layout layout;
        decoder_memory_state(&plan, &shape, i, &layout);
        for (uint32_t p = 0; p < N_DECODER_STATES && i != 3; p++) {
            assert_int_equal(layout.parts[p] % 16, 0);
            assert_true(layout.parts[p] >= end);
            end = layout.parts[p] + floats[p];
        }
        assert_true(layout.end >= end);
    }
    rank_split_fini(&plan.split);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_slot_of_qwen3_next_has_75_mib),
        cmocka_unit_test(test_ranks_hold_the_keys_that_their_heads_read),
        cmocka_unit_test(test_ranks_compute_whole_groups),
        cmocka_unit_test(test_ranks_divide_the_channels_of_a_convolution),
        cmocka_unit_test(test_the_parts_of_a_slot_follow_one_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
