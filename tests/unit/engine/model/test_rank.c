/* Tests of the split of heads, MLP and vocabulary over ranks, and of the team of rank threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/forward/rank_team.h"
#include "engine/model/model.h"
#include "engine/model/rank.h"
#include "tests/support/names.h"

enum { N_LAYERS = 3 };

static struct model_layer layers[N_LAYERS];

static struct model_shape shape_of(uint32_t heads, uint32_t kv, uint32_t hd, uint32_t ffn)
{
    for (uint32_t i = 0; i < N_LAYERS; i++)
        layers[i] = (struct model_layer){.mixer = &arch_llama.mixers[0],
                                         .ffn = &arch_llama.ffns[0],
                                         .n_heads = heads,
                                         .n_kv_heads = kv,
                                         .k_dim = hd,
                                         .v_dim = hd,
                                         .ffn_dim = ffn,
                                         .kv_source = i};
    return (struct model_shape){
        .n_layers = N_LAYERS, .hidden_dim = 64, .vocab_size = 1000, .layers = layers};
}

static void test_split_shared_kv_head_is_held_by_both(void **state)
{
    /* The sample model: 9 heads over 3 KV heads. Segments hold 1 1 1 1 1 1 1 2 heads. */
    const struct model_shape s = shape_of(9, 3, 64, 1536);
    static const struct {
        uint32_t tp, index, head_begin, n_heads, kv_begin, n_kv;
    } rows[] = {
        {1, 0, 0, 9, 0, 3}, {2, 0, 0, 4, 0, 2}, {2, 1, 4, 5, 1, 2}, {4, 0, 0, 2, 0, 1},
        {4, 1, 2, 2, 0, 2}, {4, 2, 4, 2, 1, 1}, {4, 3, 6, 3, 2, 1}, {8, 7, 7, 2, 2, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct rank rank = {.index = rows[i].index, .tp = rows[i].tp, .n_stages = 1};
        struct rank_split split;
        struct error err = {0};
        assert_int_equal(rank_split_init(&split, &rank, &s, &err), 0);
        assert_int_equal(split.n_layers, N_LAYERS);
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            assert_int_equal(split.layers[l].head_begin, rows[i].head_begin);
            assert_int_equal(split.layers[l].n_heads, rows[i].n_heads);
            assert_int_equal(split.layers[l].kv_begin, rows[i].kv_begin);
            assert_int_equal(split.layers[l].n_kv_heads, rows[i].n_kv);
        }
        rank_split_fini(&split);
    }
}

static void test_split_ranks_cover_everything_once(void **state)
{
    const struct model_shape s = shape_of(12, 4, 48, 352);
    (void)state;
    for (uint32_t tp = 1; tp <= 4; tp *= 2) {
        uint32_t head = 0, ffn = 0, vocab = 0;
        for (uint32_t r = 0; r < tp; r++) {
            struct rank rank = {.index = r, .tp = tp, .n_stages = 1};
            struct rank_split split;
            struct error err = {0};
            assert_int_equal(rank_split_init(&split, &rank, &s, &err), 0);
            const struct layer_split *layer = &split.layers[1];
            assert_int_equal(layer->head_begin, head);
            assert_int_equal(segments_begin(&layer->ffn), ffn);
            assert_int_equal(segments_begin(&split.vocab), vocab);
            head += layer->n_heads;
            ffn = segments_end(&layer->ffn);
            vocab = segments_end(&split.vocab);
            rank_split_fini(&split);
        }
        assert_int_equal(head, 12);
        assert_int_equal(ffn, 352);
        assert_int_equal(vocab, 1000);
    }
}

/* Symptom: a stage read K and V at an address before its cache, since another stage had them. */
static void test_split_through_shared_kv_refused(void **state)
{
    struct model_shape s = shape_of(8, 4, 16, 128);
    (void)state;
    layers[2].kv_source = 0;
    for (uint32_t cut = 1; cut < N_LAYERS; cut++) {
        struct rank rank = {
            .tp = 1, .n_stages = 2, .stage = 1, .layer_begin = cut, .n_layers = N_LAYERS - cut};
        struct rank_split split;
        struct error err = {0};
        assert_false(rank_may_cut(&s, cut));
        assert_int_equal(rank_split_init(&split, &rank, &s, &err), STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, "gpu_layers");
        rank_split_fini(&split);
    }
    layers[2].kv_source = 1;
    assert_true(rank_may_cut(&s, 1));
    assert_false(rank_may_cut(&s, 2));
}

/* The first stage alone computes the inputs of all layers. */
static void test_split_of_per_layer_inputs_refused(void **state)
{
    struct model_shape s = shape_of(8, 4, 16, 128);
    struct rank rank = {.tp = 1, .n_stages = 2, .n_layers = 1};
    struct rank_split split;
    struct error err = {0};
    (void)state;
    s.layer_embd_dim = 4;
    assert_false(rank_may_cut(&s, 1));
    assert_int_equal(rank_split_init(&split, &rank, &s, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "gpu_layers");
    rank_split_fini(&split);
}

static void test_split_impossible_refused(void **state)
{
    static const struct {
        uint32_t tp, heads, ffn, n_stages;
        int status;
        const char *text;
    } rows[] = {
        {8, 4, 256, 1, STATUS_INVALID_ARGUMENT, "tp 8"},
        {4, 8, 64, 1, STATUS_INVALID_ARGUMENT, "64"},
        {3, 8, 256, 1, STATUS_INVALID_ARGUMENT, "tp 3"},
        {1, 8, 256, 0, STATUS_INTERNAL, "stage 0 of 0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct model_shape s = shape_of(rows[i].heads, rows[i].heads, 32, rows[i].ffn);
        struct rank rank = {.index = 0, .tp = rows[i].tp, .n_stages = rows[i].n_stages};
        struct rank_split split;
        struct error err = {0};
        assert_int_equal(rank_split_init(&split, &rank, &s, &err), rows[i].status);
        if (!names_all(err.message, rows[i].text))
            fail_msg("\"%s\" does not say \"%s\"", err.message, rows[i].text);
        rank_split_fini(&split);
    }
}

/* Layers differ in hybrid models, so the refusal names the layer. */
static void test_layer_that_cannot_be_divided_is_named(void **state)
{
    const struct model_shape s = shape_of(8, 4, 32, 256);
    struct rank rank = {.index = 0, .tp = 2, .n_stages = 1};
    struct rank_split split;
    struct error err = {0};
    (void)state;
    layers[1].ffn_dim = 32;
    assert_int_equal(rank_split_init(&split, &rank, &s, &err), STATUS_INVALID_ARGUMENT);
    if (!names_all(err.message, "layer 1|tp 2|MLP|32"))
        fail_msg("%s", err.message);
    rank_split_fini(&split);
}

/* Each layer is divided by its own numbers. The workspace is as wide as the widest layer. */
static void test_split_each_layer_by_its_own_numbers(void **state)
{
    const struct model_shape s = shape_of(8, 4, 32, 256);
    struct rank rank = {.index = 1, .tp = 2, .n_stages = 1};
    struct rank_split split;
    struct error err = {0};
    (void)state;
    layers[1].n_heads = layers[1].n_kv_heads = 12;
    layers[1].ffn_dim = 512;
    layers[2] = (struct model_layer){.mixer = &arch_llama.mixers[0], .ffn = &arch_llama.ffns[0]};
    assert_int_equal(rank_split_init(&split, &rank, &s, &err), 0);
    assert_int_equal(split.layers[0].n_heads, 4);
    assert_int_equal(split.layers[0].n_kv_heads, 2);
    assert_int_equal(segments_len(&split.layers[0].ffn), 128);
    assert_int_equal(split.layers[1].n_heads, 6);
    assert_int_equal(split.layers[1].kv_begin, 6);
    assert_int_equal(segments_len(&split.layers[1].ffn), 256);
    assert_int_equal(split.layers[2].n_heads, 0);
    assert_int_equal(split.most.n_heads, 6);
    assert_int_equal(split.most.queries, 6 * 32);
    assert_int_equal(split.most.values, 6 * 32);
    assert_int_equal(split.most.ffn, 256);
    rank_split_fini(&split);
}

/* A rank's part of the mixed values begins at a multiple of 32 elements, as its part of the queries
 * does. With heads of 64 and 16 elements, two heads are a unit; with 16 and 64 as well. */
static void test_split_heads_by_both_widths(void **state)
{
    struct error err = {0};
    (void)state;
    for (uint32_t wide = 0; wide < 2; wide++) {
        const struct model_shape s = shape_of(7, 1, 64, 256);
        uint32_t heads = 0;
        for (uint32_t i = 0; i < N_LAYERS; i++) {
            layers[i].k_dim = wide ? 16 : 64;
            layers[i].v_dim = wide ? 64 : 16;
        }
        for (uint32_t index = 0; index < 4; index++) {
            struct rank rank = {.index = index, .tp = 4, .n_stages = 1};
            struct rank_split split;
            assert_int_equal(rank_split_init(&split, &rank, &s, &err), 0);
            const struct layer_split *layer = &split.layers[0];
            assert_int_equal(layer->head_begin, heads);
            assert_int_equal(heads % 2, 0);
            assert_int_equal(segments_begin(&layer->mixed), heads * layers[0].v_dim);
            assert_int_equal(segments_len(&layer->mixed), layer->n_heads * layers[0].v_dim);
            assert_int_equal(segments_begin(&layer->queries), heads * layers[0].k_dim);
            assert_int_equal(segments_len(&layer->queries), layer->n_heads * layers[0].k_dim);
            assert_int_equal(split.most.values, layers[0].v_dim);
            assert_int_equal(split.most.keys, layers[0].k_dim);
            assert_int_equal(split.most.head_dim, 64);
            heads += layer->n_heads;
            rank_split_fini(&split);
        }
        assert_int_equal(heads, 7);
    }
}

static void test_stages_take_their_layers(void **state)
{
    const struct model_shape s = shape_of(8, 8, 32, 256);
    struct rank first = {.tp = 1, .n_stages = 2, .n_layers = 1};
    struct rank last = {.tp = 1, .n_stages = 2, .stage = 1, .layer_begin = 1};
    struct rank_split split;
    struct error err = {0};
    (void)state;
    last.n_layers = s.n_layers - 1;
    assert_true(rank_is_first(&first) && !rank_is_last(&first));
    assert_true(!rank_is_first(&last) && rank_is_last(&last));
    assert_int_equal(rank_split_init(&split, &first, &s, &err), 0);
    assert_int_equal(split.layer_begin, 0);
    assert_int_equal(split.n_layers, 1);
    rank_split_fini(&split);
    assert_int_equal(rank_split_init(&split, &last, &s, &err), 0);
    assert_int_equal(split.layer_begin, 1);
    assert_int_equal(split.n_layers, s.n_layers - 1);
    rank_split_fini(&split);
    last.n_layers++;
    assert_int_equal(rank_split_init(&split, &last, &s, &err), STATUS_INTERNAL);
}

struct count_job {
    atomic_uint calls[8];
    atomic_uint arrived;
    uint32_t n_ranks;
};

/* A job that returns only when all ranks run it at the same time. */
static void meet(void *ctx, uint32_t rank)
{
    struct count_job *job = ctx;
    atomic_fetch_add(&job->calls[rank], 1);
    unsigned target = (atomic_fetch_add(&job->arrived, 1) / job->n_ranks + 1) * job->n_ranks;
    while (atomic_load(&job->arrived) < target)
        ;
}

static void test_team_runs_every_rank_at_once(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        struct rank_team *team = NULL;
        struct error err = {0};
        struct count_job job = {.n_ranks = n};
        assert_int_equal(rank_team_create(n, &team, &err), 0);
        for (int i = 0; i < 50; i++)
            rank_team_run(team, meet, &job);
        for (uint32_t r = 0; r < n; r++)
            assert_int_equal(job.calls[r], 50);
        rank_team_destroy(team);
    }
    rank_team_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_shared_kv_head_is_held_by_both),
        cmocka_unit_test(test_split_ranks_cover_everything_once),
        cmocka_unit_test(test_split_through_shared_kv_refused),
        cmocka_unit_test(test_split_of_per_layer_inputs_refused),
        cmocka_unit_test(test_split_impossible_refused),
        cmocka_unit_test(test_layer_that_cannot_be_divided_is_named),
        cmocka_unit_test(test_split_each_layer_by_its_own_numbers),
        cmocka_unit_test(test_split_heads_by_both_widths),
        cmocka_unit_test(test_stages_take_their_layers),
        cmocka_unit_test(test_team_runs_every_rank_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
