/* Tests of act_quant.cu on the CPU: the lines of act_quant_index.h that nvcc compiles, in the order
 * of its threads, over odd shapes. Figures and whole planes are compared with those of the plain
 * kernel set. Each column, lane and byte has one owner. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/act_cpu.h"
#include "kernels/cpu/inner.h"
#include "kernels/cuda/linear_quant/act_quant_heads.h"
#include "kernels/cuda/linear_quant/act_quant_index.h"
#include "tests/unit/kernels/support/support_kernels.h"

static const uint32_t widths[] = {1, 15, 31, 32, 63, 64, 65, 100, 576, 1024, 1056, 4097};
static const uint32_t heights[] = {1, 2, 7, 8, 9, 17};

enum { N_WIDTHS = sizeof(widths) / sizeof(widths[0]), N_HEIGHTS = sizeof(heights) / sizeof(int) };

/* --- a row's figures --- */

static void test_threads_stage_every_column_once(void **state)
{
    (void)state;
    static const uint32_t ks[] = {1, 255, 256, 257, 2047, 2049, 8191, 8192, 8193, 20001};
    for (size_t c = 0; c < sizeof(ks) / sizeof(ks[0]); c++) {
        uint32_t k = ks[c], end = 0;
        uint8_t *taken = calloc(1, k);
        for (uint32_t from = 0; from < k; from += ACT_QUANT_STAGED) {
            uint32_t to = act_quant_staged_end(from, k);
            assert_int_equal(from, end);
            assert_true(to > from && to - from <= ACT_QUANT_STAGED);
            end = to;
            for (uint32_t tid = 0; tid < ACT_QUANT_THREADS; tid++)
                for (uint32_t i = from + tid; i < to; i += ACT_QUANT_COLUMNS)
                    for (uint32_t j = 0; j < ACT_QUANT_BATCH; j++) {
                        uint32_t column = act_quant_column(i, j);
                        if (column >= to)
                            continue;
                        assert_int_equal(act_quant_staged_at(column, from), column - from);
                        assert_true(act_quant_staged_at(column, from) < ACT_QUANT_AT_LANES);
                        assert_int_equal(taken[column]++, 0);
                    }
        }
        assert_int_equal(end, k);
        assert_null(memchr(taken, 0, k));
        free(taken);
    }
}

/* Σ|x| of a row in the order in which the threads add it. */
static float sum_of(const float *x, uint32_t k, const uint32_t *bounds, uint32_t n_parts)
{
    float lanes[ACT_QUANT_LANES] = {0}, parts[CUDA_SEGMENTS];
    for (uint32_t from = 0; from < k; from += ACT_QUANT_STAGED)
        for (uint32_t tid = 0; tid < ACT_QUANT_THREADS; tid++) {
            uint32_t part = act_quant_part(tid), lane = act_quant_part_lane(tid);
            uint32_t to = act_quant_staged_end(from, k);
            if (part >= n_parts)
                continue;
            uint32_t begin = bounds[part], end = bounds[part + 1], last = to < end ? to : end;
            for (uint32_t i = act_quant_lane_first(from, begin, lane); i < last; i += CUDA_LANES)
                lanes[tid] += fabsf(x[i]);
        }
    for (uint32_t half = CUDA_LANES / 2; half > 0; half /= 2)
        for (uint32_t tid = 0; tid < ACT_QUANT_THREADS; tid++)
            if (act_quant_folds(tid, half))
                lanes[act_quant_fold_to(tid, half)] += lanes[act_quant_fold_from(tid, half)];
    uint32_t present = 0;
    for (uint32_t p = 0; p < n_parts; p++) {
        parts[p] = lanes[act_quant_part_sum_at(p)];
        present |= act_quant_part_bit(bounds, p);
    }
    return cuda_tree_sum(parts, present, n_parts);
}

/* The lanes take the columns of a part in turn. Each lane starts at its first column that is not
 * staged yet. */
static void test_lanes_take_the_columns_of_a_part_in_turn(void **state)
{
    (void)state;
    for (uint32_t begin = 0; begin < 40; begin += 3)
        for (uint32_t from = 0; from < 80; from += 7)
            for (uint32_t lane = 0; lane < CUDA_LANES; lane++) {
                uint32_t wanted = begin + lane;
                while (wanted < from)
                    wanted += CUDA_LANES;
                assert_int_equal(act_quant_lane_first(from, begin, lane), wanted);
            }
}

static void test_the_sum_of_a_row_has_the_references_bits(void **state)
{
    (void)state;
    enum { K = 20001 };
    struct random random = {11};
    struct rig rig = rig_open("ref", 1);
    const struct cpu_inner *inner = inner_of(rig.ops);
    float *x = random_floats(&random, K, 0.01f);
    for (uint32_t n_parts = 1; n_parts <= CUDA_SEGMENTS; n_parts *= 2)
        for (size_t c = 0; c <= N_WIDTHS; c++) {
            uint32_t k = c < N_WIDTHS ? widths[c] : K, bounds[CUDA_SEGMENTS + 1];
            float parts[CUDA_SEGMENTS] = {0}, unused;
            for (uint32_t p = 0; p <= n_parts; p++)
                bounds[p] = cuda_segment_bound(k, p * (CUDA_SEGMENTS / n_parts));
            for (uint32_t p = 0; p < n_parts; p++)
                if (bounds[p] < bounds[p + 1])
                    inner->abs_stats(x + bounds[p], bounds[p + 1] - bounds[p], &parts[p], &unused);
            float wanted = tree_sum(parts, bounds, n_parts);
            float found = sum_of(x, k, bounds, n_parts);
            assert_same_bits(&found, &wanted, sizeof(found), "sum of magnitudes");
        }
    free(x);
    rig_close(&rig);
}

static void test_figures_of_ranks_and_rows_have_places_of_their_own(void **state)
{
    (void)state;
    enum { ROWS = 5, RANKS = 8 };
    uint8_t taken[RANKS * ROWS * 2] = {0};
    for (uint32_t rank = 0; rank < RANKS; rank++)
        for (uint32_t row = 0; row < ROWS; row++)
            for (uint32_t i = 0; i < 2; i++)
                assert_int_equal(taken[act_quant_stats_at(rank, ROWS, row) + i]++, 0);
    assert_null(memchr(taken, 0, sizeof(taken)));
    assert_int_equal(act_quant_stats_at(3, ROWS, 2), 34); /* ranks are gathered one by one */
    for (uint32_t n = 1; n <= RANKS; n *= 2)
        assert_int_equal(__builtin_popcount(act_quant_rank_bits(n)), n);
    assert_true(act_quant_stats_at(1, 1u << 31, 0) == (size_t)1 << 32);
}

static void test_shared_memory_holds_each_figure_apart(void **state)
{
    (void)state;
    assert_true(ACT_QUANT_AT_LANES + ACT_QUANT_LANES <= ACT_QUANT_AT_MAX);
    assert_true(ACT_QUANT_AT_MAX + cuda_warp_of(ACT_QUANT_THREADS - 1) < ACT_QUANT_AT_SUM);
    assert_true(ACT_QUANT_AT_SUM < ACT_QUANT_AT_LARGEST);
    assert_int_equal(ACT_QUANT_N_SHARED, ACT_QUANT_AT_LARGEST + 1);
    assert_int_equal(ACT_QUANT_SHARED_BYTES, ACT_QUANT_N_SHARED * sizeof(float));
    assert_true(ACT_QUANT_SHARED_BYTES + 8192 <= 48 << 10);
}

/* Rows of heads: every head of every row has one row of the planes, in the tiles of its head. Other
 * rows have no source. */
static void test_rows_of_heads_begin_with_a_tile(void **state)
{
    (void)state;
    enum { K = 48, HEADS = 3, STRIDE = HEADS * K + 5 };
    static const float x[20 * STRIDE];
    for (uint32_t m = 1; m <= 20; m++) {
        struct quant_head_rows q = {{.x = x, .x_stride = STRIDE, .k = K}, m};
        uint32_t padded = quant_padded_rows(m), n_found = 0;
        assert_true(padded % QUANT_TILE == 0 && padded >= m && padded < m + QUANT_TILE);
        for (uint32_t row = 0; row < HEADS * padded; row++) {
            const float *from = quant_head_row(&q, row);
            uint32_t head = row / padded, in_head = row % padded;
            n_found += from != NULL;
            if (in_head < m)
                assert_ptr_equal(from, x + in_head * STRIDE + head * K);
        }
        assert_int_equal(n_found, HEADS * m);
    }
}

/* Planes of a head begin n_tiles tiles after those of the head before it. */
static void test_planes_of_a_head_are_those_of_its_tiles(void **state)
{
    (void)state;
    for (size_t c = 0; c < N_WIDTHS; c++) {
        uint32_t k = widths[c], n_pairs = quant_n_pairs(k);
        struct quant_layout l = quant_layout_of(QUANT_INT8, k, 1);
        static float scale[64];
        uint8_t base[1] = {0};
        struct quant_planes p = {base, base, base, base, base, scale}, q = p;
        quant_skip_tiles(&q, &l, 3);
        size_t at = act_quant_tile_pair(3, n_pairs, 0);
        assert_int_equal(q.lo - p.lo, act_quant_fragment_at(at, 0, 0));
        assert_int_equal(q.hi - p.hi, act_quant_fragment_at(at, 0, 0));
        assert_int_equal(q.sums - p.sums, act_quant_sums_at(at));
        assert_int_equal(q.hi_sums - p.hi_sums, act_quant_sums_at(at));
        assert_int_equal(q.digits - p.digits, 3 * (size_t)l.n_chunks * QUANT_CHUNK_BYTES);
        assert_int_equal(l.n_chunks, quant_n_chunks(k));
        assert_int_equal(q.scale - p.scale, 3 * QUANT_TILE);
    }
}

/* --- planes --- */

struct planes {
    struct quant_act_layout at;
    uint8_t *bytes; /* poisoned */
};

/* Quantizes a pair of a row, its four lanes one after the other. */
static void quantize_pair(const struct planes *to, const float *x, uint32_t row, uint32_t n_rows,
                          uint32_t pair, uint32_t k, float inv)
{
    uint32_t tile = act_quant_tile(row), g = act_quant_tile_row(row), any = 0;
    uint32_t n_pairs = quant_n_pairs(k);
    int32_t lo[4] = {0}, hi[4] = {0};
    size_t at = act_quant_tile_pair(tile, n_pairs, pair);
    for (uint32_t t = 0; t < ACT_QUANT_LANES_OF_PAIR; t++) {
        uint32_t low[4], high[4];
        for (uint32_t i = 0; i < 4; i++) {
            struct act_quad four = act_quant_four(x, act_quant_quad(pair, i, t), k, inv);
            low[i] = four.lo;
            high[i] = four.hi;
            lo[i] += four.lo_sum;
            hi[i] += four.hi_sum;
            any |= act_quant_run_bit(four.hi, i);
        }
        if (pair >= n_pairs)
            continue;
        size_t fragment = act_quant_fragment_at(at, g, t);
        memcpy(to->bytes + to->at.lo + fragment, low, sizeof(low));
        memcpy(to->bytes + to->at.hi + fragment, high, sizeof(high));
    }
    if (pair < n_pairs) {
        uint8_t *flags = to->bytes + to->at.sums + act_quant_sums_at(at);
        act_quant_put_sums(flags, g, lo);
        act_quant_put_sums(to->bytes + to->at.hi_sums + act_quant_sums_at(at), g, hi);
        for (uint32_t i = g; i == g || (row + 1 == n_rows && i < QUANT_TILE); i++)
            flags[i] = i == g ? (uint8_t)any : 0;
    }
    act_quant_put_digits(to->bytes + to->at.digits +
                             act_quant_digits_at(tile, quant_n_chunks(k), pair),
                         g, pair, lo, hi);
}

static void quantize_rows(const struct planes *to, const float *x, uint32_t m, uint32_t k,
                          const float *scales)
{
    for (uint32_t row = 0; row < m; row++) {
        uint32_t n = act_quant_digit_pairs(k);
        uint8_t *taken = calloc(1, n);
        bool finite = !isnan(scales[row]);
        float inv = act_quant_inverse(scales[row]);
        for (uint32_t tid = 0; tid < ACT_QUANT_THREADS; tid += ACT_QUANT_LANES_OF_PAIR) {
            for (uint32_t t = 0; t < ACT_QUANT_LANES_OF_PAIR; t++) {
                assert_int_equal(act_quant_pair(tid + t), act_quant_pair(tid));
                assert_int_equal(act_quant_pair_lane(tid + t), t);
            }
            for (uint32_t pair = act_quant_pair(tid); pair < n; pair += ACT_QUANT_PAIRS) {
                assert_int_equal(taken[pair]++, 0);
                quantize_pair(to, finite ? x + (size_t)row * k : NULL, row, m, pair, k, inv);
            }
        }
        assert_null(memchr(taken, 0, n));
        free(taken);
    }
}

/* Places of a row's column c in lo and in hi, as the head of quant_index.h defines them. */
static size_t byte_of(uint32_t row, uint32_t c, uint32_t n_pairs)
{
    uint32_t g = row % 8, in_run = c % 32, group = in_run / 4, lane = g * 4 + group % 4;
    size_t tile_pair = (size_t)(row / 8) * n_pairs + c / 64;
    return tile_pair * 512 + lane * 16 + c / 32 % 2 * 8 + group / 4 * 4 + c % 4;
}

static int32_t short_of(const uint8_t *at)
{
    int16_t x;
    memcpy(&x, at, sizeof(x));
    return x;
}

/* Sums of [begin, begin + n) of a row's plane. */
static int32_t sum_of_plane(const int8_t *plane, uint32_t begin, uint32_t n)
{
    int32_t sum = 0;
    for (uint32_t i = begin; i < begin + n; i++)
        sum += plane[i];
    return sum;
}

static void check_sums(const uint8_t *sums, uint32_t g, const int8_t *plane, uint32_t pair)
{
    for (uint32_t run = 0; run < 2; run++) {
        uint32_t begin = pair * 64 + run * 32;
        const uint8_t *at32 = sums + 16 + (g / 2 * 4 + run * 2 + g % 2) * 2;
        assert_int_equal(short_of(at32), sum_of_plane(plane, begin, 32));
        for (uint32_t half = 0; half < 2; half++) {
            const uint8_t *at16 = sums + 48 + (g / 2 * 8 + run * 4 + half * 2 + g % 2) * 2;
            assert_int_equal(short_of(at16), sum_of_plane(plane, begin + half * 16, 16));
        }
    }
}

/* Σa of run `run` of a row from its digits. */
static int32_t digits_of(const uint8_t *digits, uint32_t g, uint32_t run, size_t chunk)
{
    uint32_t i = run % 32, group = i / 4, lane = g * 4 + group % 4;
    const uint8_t *at = digits + chunk * 768 + lane * 8 + group / 4 * 4 + i % 4;
    return (int8_t)at[0] + 128 * (int8_t)at[256] + 16384 * (int8_t)at[512];
}

/* A row's planes, padded with zeros to whole chunks, against what the reference has prepared. */
static void check_row(const struct planes *p, const struct act_cpu *act, uint32_t row, uint32_t k)
{
    uint32_t n_pairs = (k + 63) / 64, n_chunks = (k + 1023) / 1024, g = row % 8;
    int8_t *lo = calloc(n_chunks, 1024), *hi = calloc(n_chunks, 1024);
    memcpy(lo, act_lo(act, row), act->k_pad);
    for (uint32_t i = 0; i < act->n_outliers[row]; i++)
        memcpy(hi + 4 * (size_t)act_outliers(act, row)[i].group, &act_outliers(act, row)[i].hi, 4);
    for (uint32_t c = 0; c < n_pairs * 64; c++) {
        assert_int_equal((int8_t)p->bytes[p->at.lo + byte_of(row, c, n_pairs)], lo[c]);
        assert_int_equal((int8_t)p->bytes[p->at.hi + byte_of(row, c, n_pairs)], hi[c]);
    }
    for (uint32_t pair = 0; pair < n_pairs; pair++) {
        size_t at = ((size_t)(row / 8) * n_pairs + pair) * 112;
        const uint8_t *sums = p->bytes + p->at.sums + at;
        check_sums(sums, g, lo, pair);
        check_sums(p->bytes + p->at.hi_sums + at, g, hi, pair);
        for (uint32_t run = 0; run < 2; run++) {
            bool any = false;
            for (uint32_t c = pair * 64 + run * 32; c < pair * 64 + run * 32 + 32; c++)
                any = any || hi[c] != 0;
            assert_int_equal(sums[g] >> run & 1, any);
        }
        assert_int_equal(sums[g] >> 2, 0);
    }
    for (uint32_t run = 0; run < n_chunks * 32; run++)
        assert_int_equal(
            digits_of(p->bytes + p->at.digits, g, run, (size_t)(row / 8) * n_chunks + run / 32),
            sum_of_plane(lo, run * 32, 32) + 255 * sum_of_plane(hi, run * 32, 32));
    free(lo);
    free(hi);
}

static void check_planes(const struct rig *rig, uint32_t m, uint32_t k, struct random *random)
{
    float *x = random_floats(random, (size_t)m * k, 0.02f), *scales = poisoned(m);
    if (m > 2)
        x[(size_t)2 * k] = INFINITY; /* the row's integers are 0, its scale NaN */
    struct tensor tx = tensor_view(x, DTYPE_F32, m, k);
    struct act *act = make_act(rig, m, k);
    assert_int_equal(op_act_prepare(rig->stream, act, &tx, ACT_INT8, NULL, NULL), 0);
    const struct act_cpu *ref = act_cpu(act);
    for (uint32_t row = 0; row < m; row++) {
        float sum = ref->stats[2 * row], max = ref->stats[2 * row + 1];
        scales[row] = act_quant_is_finite(sum) ? act_quant_scale(sum, max, k) : NAN;
        if (!isnan(scales[row]) || !isnan(ref->scale[row]))
            assert_same_bits(&scales[row], &ref->scale[row], sizeof(float), "scale");
    }
    struct planes p = {quant_act_layout_of(m, k), NULL};
    p.bytes = malloc(p.at.scale);
    memset(p.bytes, 0xA5, p.at.scale);
    quantize_rows(&p, x, m, k, scales);
    for (uint32_t row = 0; row < m; row++)
        check_row(&p, ref, row, k);
    for (uint32_t pair = 0; pair < quant_n_pairs(k); pair++) /* rows missing in the last tile */
        for (uint32_t g = (m - 1) % 8 + 1; g < 8; g++)
            assert_int_equal(
                p.bytes[p.at.sums + ((size_t)((m - 1) / 8) * quant_n_pairs(k) + pair) * 112 + g],
                0);
    free(p.bytes);
    free(x);
    free(scales);
    rig->ops->act_destroy(act);
}

static void test_planes_hold_the_references_integers(void **state)
{
    (void)state;
    struct random random = {13};
    struct rig rig = rig_open("ref", 1);
    for (size_t w = 0; w < N_WIDTHS; w++)
        for (size_t h = 0; h < N_HEIGHTS; h++)
            check_planes(&rig, heights[h], widths[w], &random);
    rig_close(&rig);
}

static void test_the_smallest_scale_and_what_is_not_finite(void **state)
{
    (void)state;
    assert_true(act_quant_scale(0.0f, 0.0f, 64) == 1e-30f);
    assert_true(act_quant_scale(64.0f, 64000.0f, 64) == 2.0f); /* max|x| decides */
    assert_true(act_quant_scale(6400.0f, 100.0f, 64) == 100.0f * 0.034539763f);
    assert_true(act_quant_is_finite(3.4028234663852886e38f));
    assert_false(act_quant_is_finite(INFINITY) || act_quant_is_finite(NAN));
}

/* --- an embedding's row --- */

static void test_a_table_gives_the_row_that_was_asked_for(void **state)
{
    (void)state;
    enum { ROWS = 37, K = 96 };
    struct random random = {17};
    struct quant_layout l = quant_layout_of(QUANT_INT8, K, 1);
    size_t n_panels = (ROWS + QUANT_ROWS - 1) / QUANT_ROWS, n_bytes = n_panels * l.panel_bytes;
    uint8_t *data = malloc(n_bytes);
    float units[ROWS];
    for (size_t i = 0; i < n_bytes; i++)
        data[i] = (uint8_t)random_u32(&random);
    for (uint32_t row = 0; row < ROWS; row++)
        units[row] = random_uniform(&random, 0.001f, 0.01f);
    struct quant_embedding w = {data, units, l, ROWS, K};
    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t k = 0; k < K; k++) {
            const uint8_t *panel = data + (size_t)(row / 16) * l.panel_bytes;
            int32_t integer = quant_weight_at(&l, panel, row % 16, k);
            assert_true(embed_quant_value(&w, row, k) == (float)integer * units[row]);
        }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_stage_every_column_once),
        cmocka_unit_test(test_lanes_take_the_columns_of_a_part_in_turn),
        cmocka_unit_test(test_the_sum_of_a_row_has_the_references_bits),
        cmocka_unit_test(test_figures_of_ranks_and_rows_have_places_of_their_own),
        cmocka_unit_test(test_shared_memory_holds_each_figure_apart),
        cmocka_unit_test(test_rows_of_heads_begin_with_a_tile),
        cmocka_unit_test(test_planes_of_a_head_are_those_of_its_tiles),
        cmocka_unit_test(test_planes_hold_the_references_integers),
        cmocka_unit_test(test_the_smallest_scale_and_what_is_not_finite),
        cmocka_unit_test(test_a_table_gives_the_row_that_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
