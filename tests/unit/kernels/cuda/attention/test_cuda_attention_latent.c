/* Tests whole stages of CUDA's attention of latent caches with the functions that map threads to
 * elements (attention_latent_index.h). Scores and results are compared with plain loops. Each is
 * computed once, and each byte is written by one thread. Lanes of a load of operands meet in no
 * bank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/attention/attention_latent_index.h"
#include "kernels/maths.h"
#include "tests/unit/kernels/support/support_mma.h"

enum { STAGE = 5 }; /* in slot 1 of the ring */

/* Small whole numbers: every sum is exact, also as f16. The first elements of K are V. */
static int q_at(uint32_t query, uint32_t elem)
{
    return (int)((query * 5 + elem * 3 + query * elem) % 5) - 2;
}

static int k_at(uint32_t position, uint32_t elem)
{
    return (int)((position * 7 + elem + position * elem) % 7) - 3;
}

static int weight_at(uint32_t query, uint32_t position)
{
    return (int)((query + position * 3) % 4);
}

static uint32_t half(int x)
{
    return maths_f32_to_f16((float)x);
}

static uint32_t pair(int x, int y)
{
    return fragment_pair(half(x), half(y));
}

struct stage {
    uint32_t head_dim, v_dim, elem_bytes;
    struct latent_memory at;
    uint8_t *shared, *times; /* times: writes of each byte */
};

static void write_once(const struct stage *s, uint32_t at, const void *from, uint32_t n)
{
    assert_true(at + n <= s->at.n_bytes && at % n == 0);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(s->times[at + i]++, 0);
    memcpy(s->shared + at, from, n);
}

/* A chunk of operands: eight elements of a vector from `elem` on; 0 beyond the vector. */
static void put_operands(const struct stage *s, uint32_t at, uint32_t position, uint32_t elem)
{
    uint32_t words[4];
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t e = elem + 2 * i;
        words[i] = pair(e < s->head_dim ? k_at(position, e) : 0,
                        e + 1 < s->head_dim ? k_at(position, e + 1) : 0);
    }
    write_once(s, at, words, 16);
}

/* The copies of all threads; of codes also the operands that each thread widens. */
static uint32_t load_stage(const struct stage *s)
{
    uint32_t base = latent_slot_at(s->at, s->elem_bytes, STAGE), n_copied = 0;
    uint32_t vector_bytes = s->head_dim * s->elem_bytes;
    for (uint32_t thread = 0; thread < LATENT_THREADS; thread++)
        for (uint32_t i = 0; i < latent_copies(s->elem_bytes); i++) {
            uint32_t row = latent_copy_row(thread), chunk = latent_copy_chunk(thread, i);
            uint32_t position = latent_position(STAGE, row);
            static const uint8_t codes[16] = {0};
            if (latent_chunk_byte(chunk) >= latent_used_bytes(vector_bytes, s->elem_bytes))
                continue;
            n_copied++;
            if (s->elem_bytes == 2) {
                put_operands(s, latent_chunk_at(base, row, chunk), position, chunk * 8);
                continue;
            }
            write_once(s, latent_codes_at(base, row, chunk), codes, 16);
            for (uint32_t part = 0; part < 2; part++)
                put_operands(s, latent_chunk_at(s->at.wide, row, prefill_wide_chunk(chunk, part)),
                             position, prefill_wide_chunk(chunk, part) * 8);
        }
    assert_int_equal(n_copied, LATENT_STAGE * latent_used_bytes(vector_bytes, s->elem_bytes) / 16);
    return s->elem_bytes == 2 ? base : s->at.wide;
}

static void load_query(const struct stage *s, uint32_t q[MMA_LANES][4], uint32_t tile,
                       uint32_t step)
{
    for (uint32_t lane = 0; lane < MMA_LANES; lane++)
        for (uint32_t r = 0; r < 4; r++) {
            uint32_t query = latent_query_of(tile, lane, r);
            uint32_t elem = latent_query_elem(step, lane, r);
            bool exists = elem < s->head_dim;
            q[lane][r] = exists ? pair(q_at(query, elem), q_at(query, elem + 1)) : 0;
        }
}

static void put_score(const struct stage *s, uint32_t quarter, uint32_t query, uint32_t position,
                      double sum)
{
    float x = (float)sum;
    write_once(s, s->at.dots + 4 * latent_dot_at(quarter, query, position), &x, 4);
}

/* A warp's quarter of the scores of 16 positions. */
static void score(const struct stage *s, uint32_t base, uint32_t warp)
{
    uint32_t quarter = latent_quarter_of(warp), part = latent_half_of(warp);
    static double d[LATENT_ROW_TILES][2][MMA_LANES][4];
    memset(d, 0, sizeof(d));
    for (uint32_t i = 0; i < LATENT_STEPS; i++) {
        uint32_t step = latent_step(quarter, i), at[MMA_LANES], r[MMA_LANES][4], q[MMA_LANES][4],
                 b[2][MMA_LANES][2];
        if (!latent_has_step(step, s->head_dim))
            continue;
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            at[lane] = latent_key_at(base, part, step, lane);
        mma_load(r, s->shared, at);
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            for (uint32_t two = 0; two < 2; two++)
                memcpy(b[two][lane], &r[lane][2 * two], 8);
        for (uint32_t m = 0; m < LATENT_ROW_TILES; m++) {
            load_query(s, q, m, step);
            mma_k16(d[m][0], q, b[0], mma_f16);
            mma_k16(d[m][1], q, b[1], mma_f16);
        }
    }
    for (uint32_t lane = 0; lane < MMA_LANES; lane++)
        for (uint32_t m = 0; m < LATENT_ROW_TILES; m++)
            for (uint32_t n = 0; n < 2; n++)
                for (uint32_t e = 0; e < 4; e++)
                    put_score(s, quarter, latent_query_of(m, lane, e / 2),
                              latent_score_position(part, n, lane, e % 2),
                              d[m][n][lane][latent_register(e / 2, e % 2)]);
}

/* Each thread finds the scores of its query, and stores their weights. */
static void weigh(const struct stage *s)
{
    for (uint32_t thread = 0; thread < LATENT_THREADS; thread++) {
        uint32_t query = latent_own_query(thread), words[2];
        int p[LATENT_OWN];
        for (uint32_t i = 0; i < LATENT_OWN; i++) {
            float quarters[LATENT_QUARTERS];
            uint32_t in = latent_own_position(thread, i);
            int wanted = 0;
            for (uint32_t k = 0; k < LATENT_QUARTERS; k++)
                memcpy(&quarters[k], s->shared + s->at.dots + 4 * latent_dot_at(k, query, in), 4);
            for (uint32_t e = 0; e < s->head_dim; e++)
                wanted += q_at(query, e) * k_at(latent_position(STAGE, in), e);
            assert_true(latent_dot(quarters) == (float)wanted);
            p[i] = weight_at(query, in);
        }
        words[0] = pair(p[0], p[1]);
        words[1] = pair(p[2], p[3]);
        write_once(s, latent_weights_at(s->at.weights, thread), words, 8);
    }
}

/* A warp's elements of the sums; `seen`: times of each result. */
static void add_values(const struct stage *s, uint32_t base, uint32_t warp, uint8_t *seen)
{
    for (uint32_t i = 0; i < LATENT_SETS; i++) {
        uint32_t set = latent_set_of(warp, i);
        static double d[LATENT_ROW_TILES][2][MMA_LANES][4];
        memset(d, 0, sizeof(d));
        for (uint32_t k = 0; k < 2 && latent_has_step(set, s->v_dim); k++)
            for (uint32_t m = 0; m < LATENT_ROW_TILES; m++) {
                uint32_t at[MMA_LANES], p[MMA_LANES][4], r[MMA_LANES][4], b[2][MMA_LANES][2];
                for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                    at[lane] = latent_weight_at(s->at.weights, m, k, lane);
                mma_load(p, s->shared, at);
                for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                    at[lane] = latent_value_at(base, k, set, lane);
                mma_load_turned(r, s->shared, at);
                for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                    for (uint32_t two = 0; two < 2; two++)
                        memcpy(b[two][lane], &r[lane][2 * two], 8);
                mma_k16(d[m][0], p, b[0], mma_f16);
                mma_k16(d[m][1], p, b[1], mma_f16);
            }
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            for (uint32_t m = 0; m < LATENT_ROW_TILES; m++)
                for (uint32_t n = 0; n < 2; n++)
                    for (uint32_t e = 0; e < 4; e++) {
                        uint32_t query = latent_query_of(m, lane, e / 2);
                        uint32_t elem = latent_value_elem(set, n, lane, e % 2);
                        int wanted = 0;
                        if (elem >= s->v_dim)
                            continue;
                        for (uint32_t p = 0; p < LATENT_STAGE; p++)
                            wanted += weight_at(query, p) * k_at(latent_position(STAGE, p), elem);
                        assert_true(d[m][n][lane][latent_register(e / 2, e % 2)] == wanted);
                        assert_int_equal(seen[query * s->v_dim + elem]++, 0);
                    }
    }
}

static void check_stage(uint32_t head_dim, uint32_t v_dim, uint32_t elem_bytes)
{
    struct stage s = {head_dim, v_dim, elem_bytes, latent_memory_of(elem_bytes), NULL, NULL};
    uint8_t *seen = calloc(LATENT_QUERIES, v_dim);
    s.shared = aligned_alloc(128, cuda_round_up(s.at.n_bytes, 128));
    s.times = calloc(s.at.n_bytes, 1);
    assert_true(s.at.n_bytes <= SHARED_PER_BLOCK);
    uint32_t base = load_stage(&s);
    for (uint32_t warp = 0; warp < LATENT_WARPS; warp++)
        score(&s, base, warp);
    weigh(&s);
    for (uint32_t warp = 0; warp < LATENT_WARPS; warp++)
        add_values(&s, base, warp, seen);
    for (uint32_t i = 0; i < LATENT_QUERIES * v_dim; i++)
        assert_int_equal(seen[i], 1);
    free(seen);
    free(s.times);
    free(s.shared);
}

static void test_a_stage_has_every_score_and_result_once(void **state)
{
    static const uint32_t dims[][2] = {{576, 512}, {24, 16}, {40, 40}, {192, 128}, {320, 200}};
    (void)state;
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++)
        for (uint32_t elem_bytes = 1; elem_bytes <= 2; elem_bytes++)
            if (dims[i][0] * elem_bytes % 16 == 0)
                check_stage(dims[i][0], dims[i][1], elem_bytes);
}

/* The arrays of shared memory lie one after the other. A warp's reads of scores and codes meet in
 * no bank. */
static void test_arrays_of_shared_memory_are_apart(void **state)
{
    (void)state;
    for (uint32_t elem_bytes = 1; elem_bytes <= 2; elem_bytes++) {
        struct latent_memory m = latent_memory_of(elem_bytes);
        assert_int_equal(latent_slot_at(m, elem_bytes, 4), m.ring);
        assert_true(latent_slot_at(m, elem_bytes, 5) + LATENT_STAGE * LATENT_DIM * elem_bytes <=
                    m.wide);
        assert_true(m.wide <= m.dots && m.dots < m.weights && m.weights < m.keep);
        assert_true(m.keep + 4 * LATENT_QUERIES <= m.scales &&
                    m.scales + 4 * LATENT_STAGE <= m.broken && m.broken + LATENT_STAGE <= m.sums);
        assert_int_equal(m.sums + 4 * (latent_sum_at(LATENT_QUERIES - 1, 2) + 1), m.n_bytes);
        uint32_t at[MMA_LANES];
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            at[lane] =
                m.dots + 4 * latent_dot_at(0, latent_own_query(lane), latent_own_position(lane, 0));
        mma_check_banks(at, 16);
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            at[lane] = latent_codes_at(m.ring, latent_copy_row(lane), latent_copy_chunk(lane, 0));
        mma_check_banks(at, 16);
    }
}

/* Every head of every row has one query of one tile; other queries name no row or no head. */
static void test_tiles_have_every_query_once(void **state)
{
    static const uint32_t heads[] = {1, 2, 5, 16, 20, 31, 32, 33, 64, 128};
    enum { ROWS = 70 };
    (void)state;
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        uint32_t n = heads[i], rows = latent_tile_rows(n), n_tiles = latent_n_tiles(2, n);
        uint8_t *seen = calloc(ROWS, 2 * (size_t)n);
        struct attention_cuda a = {.n_heads = 2 * n, .heads_per_kv = n};
        for (uint32_t block = 0; block < prefill_n_blocks(ROWS, rows); block++)
            for (uint32_t y = 0; y < n_tiles; y++) {
                struct attention_tile tile = attention_tile_of(y, n_tiles, 2, LATENT_QUERIES);
                for (uint32_t q = 0; q < LATENT_QUERIES; q++) {
                    uint32_t in = latent_query_row(q, n), row = block * rows + in;
                    uint32_t slot = latent_query_slot(q, n, tile.first_slot);
                    uint32_t head = attention_head_at(&a, tile.i_kv, slot);
                    if (in < rows && row < ROWS && head < 2 * n)
                        assert_int_equal(seen[row * 2 * n + head]++, 0);
                }
            }
        for (uint32_t x = 0; x < ROWS * 2 * n; x++)
            assert_int_equal(seen[x], 1);
        free(seen);
    }
}

static void test_stages_cover_a_span(void **state)
{
    (void)state;
    for (uint32_t position = 0; position < 1700; position += 37)
        for (uint32_t window = 0; window <= 600; window += 150) {
            struct attention_span span = attention_span_of(position, window, 0);
            uint32_t first, group, end = latent_stages(span, &first), n = 0;
            assert_true(latent_position(first, 0) <= span.begin &&
                        latent_position(first + 1, 0) > span.begin);
            assert_true(latent_position(end, 0) >= span.end &&
                        latent_position(end - 1, 0) < span.end);
            uint32_t groups = decode_groups(span, 4, &group), next = first;
            for (; group < groups; group++) {
                uint32_t begin, stop = latent_group_stages(span, group, &begin);
                assert_int_equal(begin, next);
                assert_true(stop > begin);
                n += stop - begin;
                next = stop;
            }
            assert_int_equal(n, end - first);
            for (uint32_t s = first; s < end; s++) {
                bool whole = true;
                for (uint32_t i = 0; i < LATENT_STAGE; i++)
                    whole = whole && attention_sees(span, latent_position(s, i));
                assert_int_equal(latent_is_whole(span, span, s), whole);
            }
        }
}

/* The kernel takes caches of whole chunks within its widths. */
static void test_caches_that_the_kernel_takes(void **state)
{
    static char pool[1];
    (void)state;
    struct kv_cuda kv = {pool, pool, DTYPE_BF16, 1, 32, 1, 576, 512};
    assert_true(latent_is_tiled(&kv));
    kv.head_dim = 580; /* too wide */
    assert_false(latent_is_tiled(&kv));
    kv.head_dim = 572; /* vectors of 1,144 bytes */
    assert_false(latent_is_tiled(&kv));
    kv.dtype = DTYPE_I8; /* padded codes */
    kv.head_dim = 570;
    assert_false(latent_is_tiled(&kv));
    kv.head_dim = 560;
    assert_true(latent_is_tiled(&kv));
    kv.dtype = DTYPE_F32;
    assert_false(latent_is_tiled(&kv));
    kv.dtype = DTYPE_F16;
    kv.v_dim = 520;
    assert_false(latent_is_tiled(&kv));
    kv.v_dim = 512;
    assert_true(latent_is_tiled(&kv));
    kv.v = NULL;
    assert_false(latent_is_tiled(&kv));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_stage_has_every_score_and_result_once),
        cmocka_unit_test(test_arrays_of_shared_memory_are_apart),
        cmocka_unit_test(test_tiles_have_every_query_once),
        cmocka_unit_test(test_stages_cover_a_span),
        cmocka_unit_test(test_caches_that_the_kernel_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
