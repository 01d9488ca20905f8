/* Tests of the KV pools of a decoder: a list of planes per layer. A layer without K and V has empty
 * planes, and so has a layer that reads those of another layer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/decoder/decoder_memory.h"

enum { N_LAYERS = 4, N_BLOCKS = 7, BLOCK = 16 };

static const struct arch_mixer attention = {.name = "full_attention"};
static const struct arch_mixer none = {.name = "none", .mixing = ARCH_MIXING_NONE};
static const struct arch_ffn dense = {.name = "dense"};

static struct model_layer layers[N_LAYERS];
static const struct model_shape shape = {
    .n_layers = N_LAYERS, .hidden_dim = 64, .vocab_size = 512, .layers = layers};
static struct rank_plan plan;

static int open_plan(void **state)
{
    const struct rank rank = {.tp = 2, .n_stages = 1};
    struct error err = {0};
    (void)state;
    for (uint32_t i = 0; i < N_LAYERS; i++)
        layers[i] = (struct model_layer){.mixer = &attention,
                                         .ffn = &dense,
                                         .n_heads = 8,
                                         .n_kv_heads = 4,
                                         .k_dim = 32,
                                         .v_dim = 32,
                                         .ffn_dim = 256,
                                         .kv_source = i};
    layers[1] = (struct model_layer){.mixer = &none, .ffn = &dense, .ffn_dim = 256, .kv_source = 1};
    layers[2].kv_source = 0; /* reads the K and V of layer 0 */
    layers[3].n_kv_heads = 8;
    layers[3].k_dim = 64;
    layers[3].v_dim = 48; /* narrower than K */
    plan = (struct rank_plan){
        .rank = rank, .steps = {.n_blocks = N_BLOCKS, .block_size = BLOCK, .kv_dtype = DTYPE_BF16}};
    return rank_split_init(&plan.split, &rank, &shape, &err);
}

static int close_plan(void **state)
{
    (void)state;
    rank_split_fini(&plan.split);
    return 0;
}

static void test_planes_are_of_each_layers_own_size(void **state)
{
    static const uint64_t block_bytes[N_LAYERS][DECODER_MAX_PLANES] = {
        {2 * BLOCK * 32 * 2, 2 * BLOCK * 32 * 2},
        {0, 0},
        {0, 0},
        {4 * BLOCK * 64 * 2, 4 * BLOCK * 48 * 2},
    };
    uint64_t end = 0;
    (void)state;
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        struct decoder_plane planes[DECODER_MAX_PLANES];
        uint64_t n_bytes = decoder_memory_planes(&plan, &shape, i, planes);
        for (uint32_t p = 0; p < DECODER_MAX_PLANES; p++) {
            assert_int_equal(planes[p].block_bytes, block_bytes[i][p]);
            assert_int_equal(planes[p].offset_bytes, end);
            end += (block_bytes[i][p] * N_BLOCKS + 255) / 256 * 256;
        }
        assert_int_equal(n_bytes, end);
    }
    assert_int_equal(decoder_kv_bytes(&plan, &shape), end);
}

static void test_a_layer_reads_the_pools_of_its_source(void **state)
{
    static unsigned char base[1 << 20];
    struct kv_layer own, shared, last;
    (void)state;
    assert_true(decoder_kv_bytes(&plan, &shape) <= sizeof(base));
    decoder_memory_kv(&plan, &shape, base, 0, &own);
    decoder_memory_kv(&plan, &shape, base, 2, &shared);
    decoder_memory_kv(&plan, &shape, base, 3, &last);
    assert_ptr_equal(own.k, base);
    assert_ptr_equal(shared.k, own.k);
    assert_ptr_equal(shared.v, own.v);
    assert_int_equal(shared.n_kv_heads, 2);
    assert_int_equal(last.n_kv_heads, 4);
    assert_int_equal(last.head_dim, 64);
    assert_int_equal(last.v_dim, 48);
    assert_true((unsigned char *)last.k > (unsigned char *)own.v);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_plan, close_plan)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_planes_are_of_each_layers_own_size),
        TEST(test_a_layer_reads_the_pools_of_its_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
