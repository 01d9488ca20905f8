/* Tests of the partition of CUDA's dense linears. Every column is read once, and the cut depends on
 * K alone. Shared memory has room for its data, without bank conflicts. E4M3 is tested with all its
 * codes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/dense_index.h"
#include "kernels/segments.h"
#include "tests/unit/kernels/support/support_kernels.h"

static const uint32_t odd[] = {1,  2,  7,   15,  16,  17,   31,   32,   33,   63,    64,    65,
                               96, 97, 288, 576, 577, 1065, 4096, 4097, 8960, 14336, 28672, 100001};
enum { N_ODD = sizeof(odd) / sizeof(odd[0]), N_BANKS = 32, MAX_SHARED = 227 << 10 };

static void test_slices_are_the_contracts_segments(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_ODD; i++) {
        struct dense_slices slices = dense_slices_of(odd[i]);
        struct segments seg;
        struct error err = {0};
        assert_int_equal(segments_init(&seg, odd[i], 1, 1, 0, &err), 0);
        assert_int_equal(slices.count, N_SEGMENTS);
        for (uint32_t s = 0; s < N_SEGMENTS; s++) {
            assert_int_equal(slices.bounds[s], seg.bounds[s]);
            assert_int_equal(slices.present >> s & 1, seg.bounds[s] < seg.bounds[s + 1]);
        }
        assert_int_equal(slices.bounds[N_SEGMENTS], odd[i]);
    }
    static const uint32_t some[] = {0, 0, 32, 96, 100};
    struct dense_slices slices = dense_slices_from(some, 4);
    assert_int_equal(slices.present, 0xE);
    assert_int_equal(slices.bounds[8], 100);
}

/* Checks groups of a slice, four lanes each, against the padded row. Every column of the slice
 * belongs to one lane, and no lane reads beyond. */
static void test_lanes_read_every_column_of_a_slice_once(void **state)
{
    (void)state;
    for (int f = 0; f < N_DENSE_FORMS; f++)
        for (uint32_t i = 0; i < N_ODD; i++) {
            enum dense_form form = (enum dense_form)f;
            uint32_t k = odd[i], group = dense_group(form), place = group / 4;
            struct dense_slices slices = dense_slices_of(k);
            uint8_t *times = calloc(k + group, 1);
            for (uint32_t s = 0; s < slices.count; s++) {
                uint32_t begin = slices.bounds[s], end = slices.bounds[s + 1];
                for (uint32_t g = 0; g < dense_n_groups(begin, end, group); g++)
                    for (uint32_t t = 0; t < 4; t++) {
                        uint32_t column = begin + g * group + t * place;
                        if (column >= end)
                            continue;
                        size_t at = (size_t)column * dense_weight_bytes(form);
                        assert_int_equal(at % DENSE_PIECE, 0);
                        assert_true(at + DENSE_PIECE <= dense_row_bytes(form, k));
                        if (form != DENSE_F32)
                            assert_true(column + place <= dense_act_stride(k));
                        for (uint32_t c = 0; c < place; c++)
                            times[column + c]++;
                    }
            }
            for (uint32_t c = 0; c < k; c++)
                assert_int_equal(times[c], 1);
            free(times);
        }
}

static void test_paired_columns_change_places_within_16(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 64; k += DENSE_PAIRED) {
        uint32_t seen = 0;
        for (uint32_t i = 0; i < DENSE_PAIRED; i++) {
            uint32_t at = dense_paired_at(k + i);
            assert_int_equal(at / DENSE_PAIRED, k / DENSE_PAIRED);
            seen |= 1u << at % DENSE_PAIRED;
            /* word t has bytes 4t … 4t+3: (0, 2) are fragment columns 2t, 2t+1, (1, 3) + 8 */
            assert_int_equal(at % DENSE_PAIRED, 2 * (i / 4) + (i % 4) / 2 + (i % 2 ? 8 : 0));
        }
        assert_int_equal(seen, 0xFFFF);
    }
}

static void test_decode_tiles_fit_and_cover(void **state)
{
    (void)state;
    static const uint32_t limits[] = {99 << 10, 163 << 10, MAX_SHARED};
    for (int f = 0; f < N_DENSE_FORMS; f++)
        for (size_t l = 0; l < sizeof(limits) / sizeof(limits[0]); l++)
            for (uint32_t m = 1; m < 800; m++) {
                enum dense_form form = (enum dense_form)f;
                uint32_t n_slices = 1u << m % 4;
                uint32_t i = dense_choose_tile(form, m / 4, n_slices, limits[l]);
                struct dense_tile tile = dense_decode_tile(i, n_slices);
                assert_true(i < dense_n_tiles(form));
                assert_true(dense_shared_bytes(form, tile, n_slices) <= limits[l]);
                if (m / 4 <= 8)
                    assert_int_equal(tile.n_token_tiles, 1);
                assert_int_equal(dense_tile_tokens(tile), tile.n_token_tiles * 8);
                if (i + 1 < dense_n_tiles(form) && limits[l] == MAX_SHARED)
                    assert_true(m / 4 <= dense_tile_tokens(tile));
                assert_int_equal(dense_n_threads(n_slices), n_slices * 32);
                if (m / 4 > 32 && form != DENSE_F32 && form != DENSE_F8 && form != DENSE_INT8 &&
                    limits[l] == MAX_SHARED)
                    assert_int_equal(tile.n_token_tiles, 8);
            }
    for (uint32_t i = 0; i < DENSE_N_TILES; i++) {
        struct dense_tile tile = dense_decode_tile(i, 8);
        for (uint32_t gated = 0; gated < 2; gated++) {
            uint32_t rows = dense_block_rows(tile, gated), times[2][64] = {{0}};
            for (uint32_t p = 0; p < dense_w_pieces(tile); p++)
                for (uint32_t g = 0; g < 8; g++)
                    times[gated ? p / 2 % 2 : 0][dense_piece_row(p, gated) + g]++;
            for (uint32_t r = 0; r < rows; r++)
                assert_true(times[0][r] == 1 && times[gated][r] == 1);
            for (uint32_t j = 0; j < N_ODD; j++) {
                uint32_t n_blocks = dense_n_blocks(odd[j], rows);
                assert_true(n_blocks * rows >= odd[j] && (n_blocks - 1) * rows < odd[j]);
            }
        }
    }
}

/* Lane (g, t) writes token 2t of row g: no two of a warp in one bank. */
static void test_sums_are_put_into_different_banks(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < DENSE_N_TILES; i++) {
        uint32_t pitch = dense_sums_pitch(dense_decode_tile(i, 8)), seen = 0;
        for (uint32_t lane = 0; lane < DENSE_WARP; lane++)
            seen |= 1u << (lane % 4 * 2 * pitch + lane / 4) % N_BANKS;
        assert_int_equal(seen, 0xFFFFFFFF);
    }
}

static void test_prompt_stages_hold_each_piece_in_a_bank_of_its_own(void **state)
{
    (void)state;
    for (int f = DENSE_F16; f < N_DENSE_FORMS; f++) /* two blocks an SM */
        assert_true(2 * (prompt_shared_bytes((enum dense_form)f) + 1024) <= 228 << 10 &&
                    prompt_shared_bytes((enum dense_form)f) >=
                        3 * prompt_stage_bytes((enum dense_form)f));
    static const uint32_t lines[] = {64, 128};
    for (int l = 0; l < 2; l++) {
        uint32_t pieces = lines[l] / DENSE_PIECE;
        uint8_t *taken = calloc(PROMPT_TILE * pieces, 1);
        for (uint32_t row = 0; row < PROMPT_TILE; row++)
            for (uint32_t p = 0; p < pieces; p++) {
                uint32_t at = prompt_piece_at(row, p, lines[l]);
                assert_int_equal(at % DENSE_PIECE, 0);
                assert_true(at / DENSE_PIECE < PROMPT_TILE * pieces);
                assert_int_equal(taken[at / DENSE_PIECE]++, 0);
            }
        free(taken);
        for (uint32_t row = 0; row < PROMPT_TILE; row += 8) /* the 8 rows of one ldmatrix */
            for (uint32_t p = 0; p < pieces; p++) {
                uint32_t seen = 0;
                for (uint32_t r = 0; r < 8; r++)
                    seen |= 1u << prompt_piece_at(row + r, p, lines[l]) % 128 / DENSE_PIECE;
                assert_int_equal(seen, 0xFF);
            }
    }
    for (int f = DENSE_F16; f < N_DENSE_FORMS; f++) {
        enum dense_form form = (enum dense_form)f;
        assert_int_equal(prompt_step(form) * dense_act_bytes(form), PROMPT_LINE);
        assert_true(prompt_n_stages(form) * prompt_stage_bytes(form) <= 99 << 10);
    }
}

static void test_rows_are_padded_to_lines(void **state)
{
    (void)state;
    assert_int_equal(dense_row_bytes(DENSE_BF16, 576), 1152);
    assert_int_equal(dense_row_bytes(DENSE_BF16, 33), 128);
    assert_int_equal(dense_row_bytes(DENSE_INT8, 64), 64);
    assert_int_equal(dense_row_bytes(DENSE_F8, 65), 128);
    assert_int_equal(dense_row_bytes(DENSE_F32, 17), 128);
    assert_int_equal(dense_act_stride(65), 128);
}

/* --- E4M3 --- */

/* Every column of a padded row belongs to one thread, in batches of any size. */
static void test_gated_rows_are_cut_into_fours_of_threads(void **state)
{
    (void)state;
    enum { THREADS = 256 };
    for (uint32_t i = 0; i < N_ODD; i++)
        for (uint32_t batch = 1; batch <= 2; batch++) {
            uint32_t n = (uint32_t)dense_act_stride(odd[i]), n_found = 0;
            uint8_t *times = calloc(n, 1);
            for (uint32_t thread = 0; thread < THREADS; thread++)
                for (uint32_t at = gate_column(thread); at < n;
                     at = gate_batch_column(at, batch, THREADS))
                    for (uint32_t j = 0; j < batch; j++) {
                        uint32_t column = gate_batch_column(at, j, THREADS);
                        if (column < n)
                            assert_int_equal(times[column]++, 0);
                        n_found += column < n ? ACT_COLUMNS : 0;
                    }
            assert_int_equal(n_found, n);
            assert_int_equal(gate_bytes(odd[i]), n * sizeof(float));
            free(times);
        }
    assert_true(gate_bytes(28672) <= gate_max_bytes(MAX_SHARED));
}

static void test_every_f8_code_goes_there_and_back(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 256; code++) {
        float value = maths_f8_to_f32((uint8_t)code);
        uint32_t exponent = code >> 3 & 15, fraction = code & 7;
        if ((code & 0x7F) == 0x7F) {
            assert_true(isnan(value));
            assert_int_equal(maths_f32_to_f8(value), code);
            continue;
        }
        double wanted =
            exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, (int)exponent - 10);
        assert_true((double)value == (code & 0x80 ? -wanted : wanted));
        assert_int_equal(signbit(value) != 0, code >> 7);
        assert_int_equal(maths_f32_to_f8(value), code);
    }
}

/* Between neighbours: below the middle down, above it up, the middle to the even one. */
static void test_f8_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 0x7E; code++)
        for (uint32_t sign = 0; sign < 256; sign += 128) {
            float low = maths_f8_to_f32((uint8_t)code), high = maths_f8_to_f32((uint8_t)(code + 1));
            float middle = (low + high) / 2.0f, flip = sign ? -1.0f : 1.0f;
            uint32_t even = code % 2 ? code + 1 : code;
            assert_int_equal(maths_f32_to_f8(flip * middle), sign | even);
            assert_int_equal(maths_f32_to_f8(flip * nextafterf(middle, 0.0f)), sign | code);
            assert_int_equal(maths_f32_to_f8(flip * nextafterf(middle, 1e9f)), sign | (code + 1));
        }
}

static void test_f8_saturates_and_keeps_nan(void **state)
{
    (void)state;
    static const float large[] = {448.0f, 448.1f, 464.0f, 1e9f, 3e38f, INFINITY};
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        assert_int_equal(maths_f32_to_f8(large[i]), 0x7E);
        assert_int_equal(maths_f32_to_f8(-large[i]), 0xFE);
    }
    assert_int_equal(maths_f32_to_f8(NAN) & 0x7F, 0x7F);
    assert_int_equal(maths_f32_to_f8(0.0f), 0);
    assert_int_equal(maths_f32_to_f8(-0.0f), 0x80);
    assert_int_equal(maths_f32_to_f8(1e-40f), 0);
}

/* The layout that a descriptor names: bits 4 to 6 of an address are turned by bits 7 to 9. Pieces
 * are put where it has them, at any step and of any eight rows, and stages keep its alignment. */
static void test_wgmma_reads_pieces_where_they_are_put(void **state)
{
    (void)state;
    assert_true(wgmma_shared_bytes() <= MAX_SHARED);
    assert_int_equal(wgmma_stage_bytes() % WGMMA_EIGHT, 0);
    assert_int_equal(PROMPT_TILE * PROMPT_LINE % WGMMA_EIGHT, 0); /* where weight rows begin */
    assert_int_equal(PROMPT_WARP_ROWS * PROMPT_LINE % WGMMA_EIGHT,
                     0); /* the second group's tokens */
    for (uint32_t address = 0; address < 4096; address += 16) {
        assert_true(wgmma_skip(address) < WGMMA_EIGHT);
        assert_int_equal((address + wgmma_skip(address)) % WGMMA_EIGHT, 0);
    }
    uint32_t tile = 3 * WGMMA_EIGHT;
    for (uint32_t c = 0; c < PROMPT_LINE / WGMMA_STEP; c++) {
        uint64_t matrix = wgmma_matrix(tile + c * WGMMA_STEP);
        uint32_t begin = (uint32_t)(matrix & 0x3FFF) << 4, eight = (matrix >> 32 & 0x3FFF) << 4;
        assert_int_equal(matrix >> 62, 1);
        /* the base offset and the reserved bits are 0 */
        assert_int_equal(matrix >> 46 & 0xFFFF, 0);
        for (uint32_t row = 0; row < WGMMA_ROWS; row++)
            for (uint32_t p = 0; p < WGMMA_STEP / DENSE_PIECE; p++) {
                uint32_t at = begin + row / 8 * eight + row % 8 * 128 + p * DENSE_PIECE;
                at ^= (at >> 7 & 7) << 4;
                assert_int_equal(at, tile + prompt_piece_at(row, 2 * c + p, PROMPT_LINE));
            }
    }
    assert_int_equal(wgmma_matrix(227 << 10) & 0x3FFF, (227 << 10) >> 4);
}

/* --- stores --- */

static void test_cpu_sets_refuse_stored_weights(void **state)
{
    (void)state;
    for (const char *const *set = kernel_sets(); *set != NULL; set++) {
        struct rig rig = rig_open(*set, 1);
        struct error err = {0};
        struct weight_desc desc = column_desc(DTYPE_BF16, 4, 64);
        assert_true(weight_bytes(rig.ops, &desc, &err) > 0);
        for (int store = WEIGHT_STORE_INT8; store <= WEIGHT_STORE_F8; store++) {
            desc.store = (enum weight_store)store;
            assert_int_equal(weight_bytes(rig.ops, &desc, &err), 0);
            assert_int_equal(err.status, STATUS_UNIMPLEMENTED);
        }
        desc.source = DTYPE_Q8_0; /* kept as they are */
        assert_true(weight_bytes(rig.ops, &desc, &err) > 0);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slices_are_the_contracts_segments),
        cmocka_unit_test(test_lanes_read_every_column_of_a_slice_once),
        cmocka_unit_test(test_paired_columns_change_places_within_16),
        cmocka_unit_test(test_decode_tiles_fit_and_cover),
        cmocka_unit_test(test_sums_are_put_into_different_banks),
        cmocka_unit_test(test_prompt_stages_hold_each_piece_in_a_bank_of_its_own),
        cmocka_unit_test(test_wgmma_reads_pieces_where_they_are_put),
        cmocka_unit_test(test_rows_are_padded_to_lines),
        cmocka_unit_test(test_gated_rows_are_cut_into_fours_of_threads),
        cmocka_unit_test(test_every_f8_code_goes_there_and_back),
        cmocka_unit_test(test_f8_rounds_to_nearest_even),
        cmocka_unit_test(test_f8_saturates_and_keeps_nan),
        cmocka_unit_test(test_cpu_sets_refuse_stored_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
