/* Tests whole products of quantized linears on CUDA (quant_place.h). The functions under test map
 * threads to copies, to operands of a lane, and to the resulting integers. Runs every format and
 * every size of the kernel, over odd shapes, against the weights that quant_weight_at() reads.
 * Every byte of a stage has one writer, there are no bank conflicts, and every result is computed
 * once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/linear_quant/act_quant_index.h"
#include "kernels/cuda/linear_quant/quant_place.h"
#include "tests/unit/kernels/support/support_mma.h"

enum { MAX_STAGE = 64 << 10, MAX_WARPS = 8, MAX_P = 2, MAX_NT = 8, N_SHARES = 3 };

static uint32_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

struct world {
    struct quant_layout l;
    uint32_t form, kernel, n_panels, m, k;
    uint8_t *panels;
    size_t n_weight_bytes;
    uint8_t *lo, *hi, *sums, *hi_sums, *digits;
    size_t n_fragment_bytes, n_sum_bytes, n_digit_bytes;
    int32_t *a; /* [tiles · 8][k rounded up to whole pairs] */
    uint32_t a_stride;
};

static void fill_panel(const struct world *w, uint8_t *panel)
{
    const struct quant_layout *l = &w->l;
    uint32_t pair_bytes = quant_pair_bytes(w->form);
    for (size_t i = 0; i < l->panel_bytes; i++)
        panel[i] = (uint8_t)draw(256);
    for (uint32_t run = 0; run < 2 * l->n_pairs; run++)
        for (uint32_t row = 0; row < QUANT_ROWS; row++) {
            uint8_t *scales = panel + run / 2 * pair_bytes + quant_scales_at(w->form);
            if (!quant_is_super(w->form)) {
                int16_t scale = run < l->n_runs ? (int16_t)((int)draw(201) - 100) : 0;
                memcpy(scales + quant_scale_place(w->form, run % 2, row, 0), &scale, 2);
                continue;
            }
            for (uint32_t sub = 0; sub < quant_subs(w->form) && run >= l->n_runs; sub++) {
                uint32_t at = quant_scale_place(w->form, run % 2, row, sub);
                scales[at] = 0;
                if (quant_has_mins(w->form))
                    (panel + run / 2 * pair_bytes + quant_mins_at(w->form))[at] = 0;
            }
            int16_t two[2] = {(int16_t)((int)draw(101) - 50), (int16_t)((int)draw(101) - 50)};
            if (run % (1u << l->super_shift) == 0) {
                memcpy(panel + quant_super_place(l, run, row), &two[0], 2);
                if (quant_has_mins(w->form))
                    memcpy(panel + quant_super_place(l, run, row) + QUANT_ISM_AT, &two[1], 2);
            }
        }
}

/* Writes activations in the layout that act_quant.cu writes. */
static void fill_rows(const struct world *w)
{
    uint32_t n_pairs = w->l.n_pairs, n_chunks = w->l.n_chunks;
    for (uint32_t row = 0; row < w->m; row++)
        for (uint32_t pair = 0; pair < n_pairs; pair++) {
            uint32_t tile = act_quant_tile(row), g = act_quant_tile_row(row);
            size_t tile_pair = act_quant_tile_pair(tile, n_pairs, pair);
            uint8_t *sums = w->sums + act_quant_sums_at(tile_pair);
            int32_t lo_sums[4] = {0}, hi_sums[4] = {0};
            for (uint32_t i = 0; i < 4; i++)
                for (uint32_t c = 0; c < 16; c++) {
                    uint32_t column = act_quant_quad(pair, i, c / 4) + c % 4;
                    if (column >= w->k)
                        continue;
                    int32_t lo = (int32_t)draw(255) - 127;
                    int32_t hi = draw(40) == 0 ? (int32_t)draw(41) - 20 : 0;
                    size_t at = act_quant_fragment_at(tile_pair, g, c / 4) + 4 * i + c % 4;
                    w->lo[at] = (uint8_t)lo;
                    w->hi[at] = (uint8_t)hi;
                    lo_sums[i] += lo;
                    hi_sums[i] += hi;
                    sums[g] |= (uint8_t)act_quant_run_bit((uint32_t)hi, i);
                    w->a[row * w->a_stride + column] = lo + 255 * hi;
                }
            act_quant_put_sums(sums, g, lo_sums);
            act_quant_put_sums(w->hi_sums + act_quant_sums_at(tile_pair), g, hi_sums);
            act_quant_put_digits(w->digits + act_quant_digits_at(tile, n_chunks, pair), g, pair,
                                 lo_sums, hi_sums);
        }
}

static void world_open(struct world *w, uint32_t form, uint32_t kernel, uint32_t n_panels,
                       uint32_t m, uint32_t k, uint32_t super_runs)
{
    memset(w, 0, sizeof(*w));
    w->form = form, w->kernel = kernel, w->n_panels = n_panels, w->m = m, w->k = k;
    w->l = quant_layout_of(form, k, super_runs);
    w->n_weight_bytes = n_panels * w->l.panel_bytes;
    w->panels = aligned_alloc(16, w->n_weight_bytes);
    for (uint32_t p = 0; p < n_panels; p++)
        fill_panel(w, w->panels + quant_panel_from(&w->l, p));
    size_t n_tiles = quant_n_tiles(m), pairs = n_tiles * w->l.n_pairs;
    w->n_fragment_bytes = pairs * QUANT_FRAGMENT_BYTES;
    w->n_sum_bytes = pairs * QUANT_SUMS_BYTES;
    w->n_digit_bytes = n_tiles * w->l.n_chunks * QUANT_CHUNK_BYTES;
    w->lo = calloc(1, w->n_fragment_bytes);
    w->hi = calloc(1, w->n_fragment_bytes);
    w->sums = calloc(1, w->n_sum_bytes);
    w->hi_sums = calloc(1, w->n_sum_bytes);
    w->digits = calloc(1, w->n_digit_bytes);
    w->a_stride = w->l.n_pairs * QUANT_PAIR;
    w->a = calloc(n_tiles * QUANT_TILE * w->a_stride, sizeof(*w->a));
    fill_rows(w);
}

static void world_close(struct world *w)
{
    free(w->panels);
    free(w->lo);
    free(w->hi);
    free(w->sums);
    free(w->hi_sums);
    free(w->digits);
    free(w->a);
}

/* Returns the exact integer sum T of a weight row of a panel and an activation row. */
static int64_t wanted_of(const struct world *w, uint32_t panel, uint32_t row, uint32_t token)
{
    int64_t sum = 0;
    for (uint32_t k = 0; k < w->k; k++)
        sum += (int64_t)quant_weight_at(&w->l, w->panels + quant_panel_from(&w->l, panel), row, k) *
               w->a[token * w->a_stride + k];
    return sum;
}

/* --- a stage --- */

struct stage {
    uint8_t bytes[MAX_STAGE];
    uint8_t times[MAX_STAGE / 16];
};

static void copy(struct stage *stage, uint32_t at, const uint8_t *from, const uint8_t *begin,
                 size_t n_bytes)
{
    assert_true(at % 16 == 0 && at + 16 <= MAX_STAGE);
    assert_int_equal(stage->times[at / 16]++, 0);
    assert_true(!from || (from >= begin && from + 16 <= begin + n_bytes));
    assert_int_equal(from ? (size_t)(from - begin) % 16 : 0, 0);
    memset(stage->bytes + at, 0, 16);
    if (from)
        memcpy(stage->bytes + at, from, 16);
}

static void fetch_weights(struct stage *stage, const struct world *w, uint32_t thread,
                          uint32_t first_panel, uint32_t pair)
{
    const uint32_t form = w->form, kernel = w->kernel, own = quant_own_at(thread);
    uint32_t n = quant_code_pieces(form, kernel);
    for (uint32_t i = 0; i < quant_n_copies(n, kernel); i++) {
        uint32_t piece = quant_piece(kernel, i, thread);
        uint32_t panel = first_panel + quant_code_panel(form, piece);
        panel = panel < w->n_panels ? panel : w->n_panels - 1;
        if (quant_has_piece(n, kernel, i, thread))
            copy(stage, own + quant_copy_at(kernel, i),
                 w->panels + quant_panel_from(&w->l, panel) + quant_code_from(form, piece, pair),
                 w->panels, w->n_weight_bytes);
    }
    n = quant_super_pieces(form, kernel);
    for (uint32_t i = 0; quant_is_super(form) && i < quant_n_copies(n, kernel); i++) {
        uint32_t piece = quant_piece(kernel, i, thread);
        uint32_t panel = first_panel + quant_super_panel(form, piece);
        panel = panel < w->n_panels ? panel : w->n_panels - 1;
        if (quant_has_piece(n, kernel, i, thread))
            copy(stage, quant_supers_at(form, kernel) + own + quant_copy_at(kernel, i),
                 w->panels + quant_panel_from(&w->l, panel) + w->l.supers_at +
                     quant_super_from(&w->l, form, piece, pair),
                 w->panels, w->n_weight_bytes);
    }
}

static void fetch_rows(struct stage *stage, const struct world *w, uint32_t thread,
                       uint32_t first_tile, uint32_t pair)
{
    const uint32_t form = w->form, kernel = w->kernel, own = quant_own_at(thread);
    for (uint32_t i = 0; i < quant_n_copies(quant_tile_pieces(kernel), kernel); i++) {
        uint32_t piece = quant_piece(kernel, i, thread), to = own + quant_copy_at(kernel, i);
        uint32_t tile = first_tile + quant_piece_tile(piece);
        bool valid = quant_piece_row(tile, piece) < w->m;
        size_t fragment = quant_fragment_of(&w->l, valid ? tile : 0, pair);
        uint8_t flag = w->sums[quant_flag_from(fragment, piece)];
        copy(stage, quant_lo_at(form, kernel) + to,
             valid ? w->lo + quant_fragment_from(fragment, piece) : NULL, w->lo,
             w->n_fragment_bytes);
        copy(stage, quant_hi_at(form, kernel) + to,
             valid && flag ? w->hi + quant_fragment_from(fragment, piece) : NULL, w->hi,
             w->n_fragment_bytes);
    }
    uint32_t n = quant_sum_pieces(form, kernel);
    for (uint32_t i = 0; i < quant_n_copies(n, kernel); i++) {
        uint32_t piece = quant_piece(kernel, i, thread);
        uint32_t tile = first_tile + quant_sum_tile(form, piece);
        bool valid = quant_first_token(tile) < w->m;
        size_t fragment = quant_fragment_of(&w->l, valid ? tile : 0, pair);
        const uint8_t *from = quant_is_hi_sum(form, piece) ? w->hi_sums : w->sums;
        if (quant_has_piece(n, kernel, i, thread))
            copy(stage, quant_sums_at(form, kernel) + own + quant_copy_at(kernel, i),
                 valid ? from + quant_sum_from(form, fragment, piece) : NULL, from, w->n_sum_bytes);
    }
}

static void fetch(struct stage *stage, const struct world *w, uint32_t first_panel,
                  uint32_t first_tile, uint32_t pair)
{
    uint32_t n_bytes = quant_stage_bytes(w->form, w->kernel);
    memset(stage, 0, sizeof(*stage));
    for (uint32_t thread = 0; thread < quant_group_threads(w->kernel); thread++) {
        fetch_weights(stage, w, thread, first_panel, pair);
        fetch_rows(stage, w, thread, first_tile, pair);
    }
    for (uint32_t i = 0; i < MAX_STAGE / 16; i++)
        assert_int_equal(stage->times[i], i < n_bytes / 16);
}

/* --- a warp --- */

struct sums {
    int64_t t[MAX_P][MAX_NT][MMA_LANES][4];
    int32_t s[MAX_P][MAX_NT][MMA_LANES][4], m[MAX_P][MAX_NT][MMA_LANES][4];
};

/* Reads n words of a lane. Checks that the same read by all lanes has no bank conflict. */
static void read_words(uint32_t *words, const struct stage *stage, uint32_t base,
                       const uint32_t at[MMA_LANES], uint32_t lane, uint32_t n)
{
    if (lane == 0)
        mma_check_banks(at, 4 * n);
    assert_true(base + at[lane] + 4 * n <= MAX_STAGE);
    memcpy(words, stage->bytes + base + at[lane], 4 * n);
}

static void codes_of(uint32_t a[2][4], const struct world *w, const struct stage *stage,
                     uint32_t base, uint32_t lane)
{
    const uint32_t form = w->form, bits = quant_bits(form);
    uint32_t at[MMA_LANES], codes[4] = {0}, high[2] = {0};
    for (uint32_t run = 0; run < 2; run++) {
        for (uint32_t i = 0; i < MMA_LANES; i++)
            at[i] = quant_lane_codes(form, run, i);
        read_words(codes, stage, base, at, lane, bits >= 4 ? 4 : 2);
        for (uint32_t i = 0; i < MMA_LANES; i++)
            at[i] = quant_lane_high(form, i);
        if (quant_high_bytes(form) > 0)
            read_words(high, stage, base, at, lane, bits == 6 ? 2 : 1);
        quant_fragment_a(form, run, a[run], codes, high);
    }
}

/* Reads the words with the scales (or mins) of both runs. */
static void scale_words(uint32_t words[2], const struct world *w, const struct stage *stage,
                        uint32_t base, uint32_t lane)
{
    uint32_t n = quant_scales_are_a_word(w->form) ? 1 : 2;
    memcpy(words, stage->bytes + base + quant_lane_scales(w->form, lane), 4 * n);
    if (n == 1)
        words[1] = quant_second_run(words[0]);
}

static uint32_t word_at(const struct stage *stage, uint32_t at)
{
    uint32_t word;
    memcpy(&word, stage->bytes + at, 4);
    return word;
}

/* Computes Σ (code − zero) · b of a sub-block for all lanes. The zero's part comes from the lanes'
 * Σb. */
static void product(double d[MMA_LANES][4], const struct world *w, uint32_t a[MMA_LANES][4],
                    uint32_t b[MMA_LANES][2], uint32_t sub, const uint32_t sums[MMA_LANES])
{
    for (uint32_t lane = 0; lane < MMA_LANES; lane++)
        for (uint32_t e = 0; e < 4; e++)
            d[lane][e] = quant_less_zero(w->form, sums[lane], quant_column_half(e));
    if (quant_subs(w->form) == 2) {
        uint32_t half_a[MMA_LANES][2], half_b[MMA_LANES];
        for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
            memcpy(half_a[lane], a[lane] + quant_sub_word(sub), 8);
            half_b[lane] = b[lane][sub];
        }
        mma_k16_bytes(d, half_a, half_b, mma_u8, mma_s8);
    } else {
        mma_k32(d, a, b, quant_is_signed(w->form) ? mma_s8 : mma_u8, mma_s8);
    }
}

/* Places in the stage for panel p and tile nt of a warp, and the operands of all its lanes. */
struct operands {
    uint32_t a[2][MMA_LANES][4], scales[MMA_LANES][2], mins[MMA_LANES][2];
    uint32_t supers; /* place of the super-block factors of run 0 */
    uint32_t fragment, hi, sums;
};

static void operands_of(struct operands *o, const struct world *w, const struct stage *stage,
                        uint32_t thread, uint32_t p, uint32_t nt)
{
    const uint32_t form = w->form, kernel = w->kernel;
    uint32_t panel = quant_warp_panel(form, kernel, thread) + p;
    uint32_t tile = quant_warp_tile(kernel, thread) + nt, pair = quant_stage_pair(form, panel);
    for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
        uint32_t a[2][4];
        codes_of(a, w, stage, pair, lane);
        memcpy(o->a[0][lane], a[0], 16);
        memcpy(o->a[1][lane], a[1], 16);
        scale_words(o->scales[lane], w, stage, pair + quant_scales_at(form), lane);
        if (quant_has_mins(form))
            scale_words(o->mins[lane], w, stage, pair + quant_mins_at(form), lane);
    }
    o->supers = quant_supers_at(form, kernel) + quant_stage_super(form, panel, 0);
    o->fragment = quant_lo_at(form, kernel) + quant_stage_fragment(tile);
    o->hi = quant_hi_at(form, kernel) + quant_stage_fragment(tile);
    o->sums = quant_sums_at(form, kernel) + quant_stage_sums(form, tile);
}

/* Returns isd or ism of a run, for the row of sum e. */
static int32_t super_of(const struct world *w, const struct stage *stage, const struct operands *o,
                        uint32_t run, uint32_t lane, uint32_t e, uint32_t offset)
{
    uint32_t at = o->supers + quant_stage_super(w->form, 0, run) + quant_lane_super(lane) + offset;
    return quant_half(word_at(stage, at), quant_row_half(e));
}

static void flush(struct sums *acc, const struct world *w, const struct stage *stage,
                  const struct operands *o, uint32_t p, uint32_t nt, uint32_t run)
{
    for (uint32_t lane = 0; lane < MMA_LANES; lane++)
        for (uint32_t e = 0; e < 4; e++) {
            int64_t *t = &acc->t[p][nt][lane][e];
            int32_t *s = &acc->s[p][nt][lane][e], *m = &acc->m[p][nt][lane][e];
            int32_t isd = quant_is_super(w->form) ? super_of(w, stage, o, run, lane, e, 0) : 1;
            *t = quant_mad_wide(isd, *s, *t);
            if (quant_has_mins(w->form))
                *t = quant_mad_wide(super_of(w, stage, o, run, lane, e, QUANT_ISM_AT), *m, *t);
            *s = *m = 0;
        }
}

static void outliers(struct sums *acc, const struct world *w, const struct stage *stage,
                     struct operands *o, uint32_t p, uint32_t nt, uint32_t run)
{
    const uint32_t form = w->form;
    for (uint32_t sub = 0; sub < quant_subs(form); sub++) {
        uint32_t b[MMA_LANES][2], sums[MMA_LANES] = {0};
        double d[MMA_LANES][4];
        for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
            memcpy(b[lane], stage->bytes + o->hi + quant_lane_hi(lane, run), 8);
            if (quant_sums_bytes(form) > 16)
                sums[lane] = word_at(stage, o->sums + quant_lane_hi_sums(form, lane, run, sub));
        }
        product(d, w, o->a[run], b, sub, sums);
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            for (uint32_t e = 0; e < 4; e++) {
                int64_t *t = &acc->t[p][nt][lane][e];
                uint32_t half = quant_row_half(e);
                int32_t factor = quant_outlier_factor(
                    quant_scale_of(form, o->scales[lane][run], sub, half, true));
                if (quant_is_super(form))
                    factor = quant_product_of(factor, super_of(w, stage, o, run, lane, e, 0));
                if (quant_is_wide(form))
                    *t = quant_mad_wide(factor, (int32_t)d[lane][e], *t);
                else
                    *t = quant_mad_bits(factor, (int32_t)d[lane][e], (uint32_t)*t);
                if (quant_has_mins(form)) {
                    factor = quant_product_of(
                        quant_outlier_factor(super_of(w, stage, o, run, lane, e, QUANT_ISM_AT)),
                        quant_scale_of(form, o->mins[lane][run], sub, half, false));
                    *t = quant_mad_wide(factor, quant_half(sums[lane], quant_column_half(e)), *t);
                }
            }
    }
}

/* Computes one run of a panel and tile, from the bytes lo. */
static void run_of(struct sums *acc, const struct world *w, const struct stage *stage,
                   struct operands *o, uint32_t p, uint32_t nt, uint32_t run)
{
    const uint32_t form = w->form;
    for (uint32_t sub = 0; sub < quant_subs(form); sub++) {
        uint32_t b[MMA_LANES][2], sums[MMA_LANES] = {0}, at[MMA_LANES], words[4];
        double d[MMA_LANES][4];
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            at[lane] = quant_lane_lo(lane);
        for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
            read_words(words, stage, o->fragment, at, lane, 4);
            memcpy(b[lane], words + 2 * run, 8);
            if (quant_sums_bytes(form) > 16) /* [run][sub] */
                sums[lane] = word_at(stage, o->sums + quant_lane_sums(form, lane) +
                                                4 * (quant_subs(form) * run + sub));
        }
        product(d, w, o->a[run], b, sub, sums);
        for (uint32_t lane = 0; lane < MMA_LANES; lane++)
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t half = quant_row_half(e);
                int32_t by = quant_scale_of(form, o->scales[lane][run], sub, half, true);
                int32_t x = (int32_t)d[lane][e], *s = &acc->s[p][nt][lane][e];
                int64_t *t = &acc->t[p][nt][lane][e];
                if (quant_is_wide(form))
                    *s = quant_mad(by, x, *s);
                else
                    *t = quant_mad_bits(by, x, (uint32_t)*t);
                if (quant_has_mins(form))
                    acc->m[p][nt][lane][e] = quant_mad(
                        quant_scale_of(form, o->mins[lane][run], sub, half, false),
                        quant_half(sums[lane], quant_column_half(e)), acc->m[p][nt][lane][e]);
            }
    }
}

static void pair_of_warp(struct sums *acc, const struct world *w, const struct stage *stage,
                         uint32_t thread, uint32_t pair, bool is_last)
{
    const uint32_t ends_every = quant_ends_every(&w->l, w->form);
    const bool ends[2] = {ends_every == 1, quant_ends(pair, ends_every) || is_last};
    for (uint32_t p = 0; p < quant_panels(w->form, w->kernel); p++)
        for (uint32_t nt = 0; nt < quant_tiles(w->kernel); nt++) {
            struct operands o;
            operands_of(&o, w, stage, thread, p, nt);
            for (uint32_t run = 0; run < 2; run++) {
                run_of(acc, w, stage, &o, p, nt, run);
                if (quant_is_wide(w->form) && ends[run])
                    flush(acc, w, stage, &o, p, nt, run);
                if (quant_any_flag(word_at(stage, o.sums), word_at(stage, o.sums + 4), run))
                    outliers(acc, w, stage, &o, p, nt, run);
            }
        }
}

/* Adds the offsets of all chunks in a share. */
static void offsets_of(struct sums *acc, const struct world *w, uint32_t first_panel,
                       uint32_t first_tile, uint32_t share)
{
    for (uint32_t chunk = share; chunk < w->l.n_chunks; chunk += N_SHARES)
        for (uint32_t p = 0; p < quant_panels(w->form, w->kernel); p++)
            for (uint32_t nt = 0; nt < quant_tiles(w->kernel); nt++) {
                uint32_t high[MMA_LANES][4] = {{0}}, low[MMA_LANES][4] = {{0}};
                uint32_t panel = first_panel + p, tile = first_tile + nt;
                panel = panel < w->n_panels ? panel : w->n_panels - 1;
                tile = tile < quant_n_tiles(w->m) ? tile : quant_n_tiles(w->m) - 1;
                for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                    for (uint32_t i = 0; i < 2; i++) {
                        uint32_t x[4], group = quant_offset_group(chunk, i, lane);
                        if (group >= w->l.n_groups)
                            continue;
                        memcpy(x,
                               w->panels + quant_panel_from(&w->l, panel) +
                                   quant_offset_from(&w->l, group, lane),
                               16);
                        for (uint32_t half = 0; half < 2; half++) {
                            high[lane][quant_offset_register(i, half)] = x[half];
                            low[lane][quant_offset_register(i, half)] = x[2 + half];
                        }
                    }
                for (uint32_t j = 0; j < QUANT_DIGITS; j++) {
                    uint32_t b[MMA_LANES][2];
                    double d[MMA_LANES][4] = {{0}};
                    for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                        memcpy(b[lane],
                               w->digits + quant_digits_from(&w->l, tile, chunk) +
                                   quant_digit_at(j, lane),
                               8);
                    mma_k32(d, high, b, mma_s8, mma_s8);
                    for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                        for (uint32_t e = 0; e < 4; e++)
                            d[lane][e] = quant_of_high((int32_t)d[lane][e]);
                    mma_k32(d, low, b, mma_u8, mma_s8);
                    for (uint32_t lane = 0; lane < MMA_LANES; lane++)
                        for (uint32_t e = 0; e < 4; e++) {
                            int64_t *t = &acc->t[p][nt][lane][e];
                            int32_t x = (int32_t)d[lane][e];
                            *t = quant_is_wide(w->form)
                                     ? *t + quant_digit_wide(x, j)
                                     : (int64_t)((uint32_t)*t + quant_digit_bits(x, j));
                        }
                }
            }
}

/* --- a block --- */

/* Adds a warp's sums to the results of its panels and tokens. Checks that each place is used once.
 */
static void put_warp(const struct world *w, const struct sums *acc, int64_t *results,
                     uint8_t *times, uint32_t thread, uint32_t panel, uint32_t tile)
{
    const uint32_t form = w->form, kernel = w->kernel;
    uint32_t n = quant_n_puts(kernel, quant_warp_rows(form, kernel)), n_seen = 0;
    uint8_t *seen = calloc(quant_group_bytes(form, kernel), 1);
    int64_t *own = calloc(quant_group_bytes(form, kernel), sizeof(*own));
    for (uint32_t p = 0; p < quant_panels(form, kernel); p++)
        for (uint32_t nt = 0; nt < quant_tiles(kernel); nt++)
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t at[MMA_LANES], bytes = quant_is_wide(form) ? 8 : 4;
                for (uint32_t lane = 0; lane < MMA_LANES; lane++) {
                    uint32_t place = quant_sum_place(form, kernel, nt, p, lane, e);
                    at[lane] = place * bytes;
                    /* these kernels pass the sums through shared memory */
                    if (kernel != QUANT_LARGE)
                        assert_true(at[lane] + bytes <= quant_group_bytes(form, kernel));
                    assert_int_equal(seen[place]++, 0);
                    own[place] = acc->t[p][nt][lane][e];
                }
                if (kernel != QUANT_LARGE)
                    mma_check_banks(at, bytes);
            }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t token = quant_put_token(i, quant_warp_rows(form, kernel));
        uint32_t row = quant_put_row(i, quant_warp_rows(form, kernel));
        uint32_t place = quant_sum_of(form, kernel, token, row);
        uint32_t to_panel = panel + quant_panel_of_row(row);
        uint32_t to_token = quant_first_token(tile) + token;
        n_seen += seen[place];
        if (to_panel >= w->n_panels || to_token >= w->m)
            continue;
        size_t at = (size_t)to_token * w->n_panels * QUANT_ROWS +
                    quant_row_of(to_panel, quant_row_in_panel(row));
        results[at] += own[place];
        times[at]++;
    }
    assert_int_equal(n_seen, n);
    assert_int_equal(quant_warp_panel(form, kernel, thread) % quant_panels(form, kernel), 0);
    free(seen);
    free(own);
}

static void block_of(const struct world *w, int64_t *results, uint8_t *times, uint32_t row_block,
                     uint32_t token_block)
{
    const uint32_t form = w->form, kernel = w->kernel, n_threads = quant_group_threads(kernel);
    static struct stage stage;
    static struct sums acc[MAX_WARPS];
    uint32_t first_panel = quant_block_panel(form, kernel, row_block);
    uint32_t first_tile = quant_block_tile(kernel, token_block);
    for (uint32_t share = 0; share < N_SHARES; share++) {
        uint32_t begin, end;
        memset(acc, 0, sizeof(acc));
        cuda_piece(0, w->l.n_pairs, share, N_SHARES, &begin, &end);
        for (uint32_t pair = begin; pair < end; pair++) {
            fetch(&stage, w, first_panel, first_tile, pair);
            for (uint32_t thread = 0; thread < n_threads; thread += CUDA_WARP)
                pair_of_warp(&acc[thread / CUDA_WARP], w, &stage, thread, pair, pair + 1 == end);
        }
        for (uint32_t thread = 0; thread < n_threads; thread += CUDA_WARP) {
            uint32_t panel = first_panel + quant_warp_panel(form, kernel, thread);
            uint32_t tile = first_tile + quant_warp_tile(kernel, thread);
            if (quant_has_offsets(form))
                offsets_of(&acc[thread / CUDA_WARP], w, panel, tile, share);
            put_warp(w, &acc[thread / CUDA_WARP], results, times, thread, panel, tile);
        }
    }
}

static void check(uint32_t form, uint32_t kernel, uint32_t n_panels, uint32_t m, uint32_t k,
                  uint32_t super_runs)
{
    struct world w;
    world_open(&w, form, kernel, n_panels, m, k, super_runs);
    size_t n = (size_t)m * n_panels * QUANT_ROWS;
    int64_t *results = calloc(n, sizeof(*results));
    uint8_t *times = calloc(n, 1);
    uint32_t panels = quant_group_panels(form, kernel);
    uint32_t tokens = quant_group_tiles(kernel) * QUANT_TILE;
    for (uint32_t r = 0; r * panels < n_panels; r++)
        for (uint32_t t = 0; t * tokens < m; t++)
            block_of(&w, results, times, r, t);
    for (uint32_t token = 0; token < m; token++)
        for (uint32_t panel = 0; panel < n_panels; panel++)
            for (uint32_t row = 0; row < QUANT_ROWS; row += 3) {
                size_t at = (size_t)token * n_panels * QUANT_ROWS + quant_row_of(panel, row);
                int64_t wanted = wanted_of(&w, panel, row, token);
                assert_int_equal(times[at], N_SHARES);
                if (quant_is_wide(form))
                    assert_true(results[at] == wanted);
                else
                    assert_int_equal((uint32_t)results[at], (uint32_t)wanted);
            }
    free(results);
    free(times);
    world_close(&w);
}

static void test_every_format_and_size_gives_every_sum(void **state)
{
    (void)state;
    static const uint32_t rows[N_QUANT_KERNELS] = {5, 13, 30, 70};
    for (uint32_t form = 0; form < N_QUANT_FORMS; form++)
        for (uint32_t kernel = 0; kernel < N_QUANT_KERNELS; kernel++) {
            uint32_t super = quant_is_super(form) ? 8 : 1;
            check(form, kernel, 3, rows[kernel], 288, super);
            check(form, kernel, 1, 1, 32, 1);
            if (kernel == QUANT_ROWS_8) {
                check(form, kernel, 2, 9, 1120, super); /* two chunks of offsets, two tiles */
                for (uint32_t runs = 1; quant_is_super(form) && runs < 8; runs *= 2)
                    check(form, kernel, 2, 3, 416, runs);
            }
        }
}

static void test_groups_share_pairs_and_memory(void **state)
{
    (void)state;
    for (uint32_t form = 0; form < N_QUANT_FORMS; form++)
        for (uint32_t kernel = 0; kernel < N_QUANT_KERNELS; kernel++) {
            uint32_t n_threads = quant_group_threads(kernel);
            assert_int_equal(quant_sums_at(form, kernel) +
                                 quant_group_tiles(kernel) * quant_all_sums(form),
                             quant_stage_bytes(form, kernel));
            assert_true(quant_stage_bytes(form, kernel) <= MAX_STAGE);
            for (uint32_t thread = 0; thread < 2 * n_threads; thread += 7) {
                uint32_t group = quant_group_of(kernel, thread);
                assert_int_equal(group * n_threads + quant_thread_of(kernel, thread), thread);
                assert_true(quant_group_at(form, kernel, group) % 16 == 0);
                assert_true(quant_warp_panel(form, kernel, thread) <
                            quant_group_panels(form, kernel));
                assert_true(quant_warp_tile(kernel, thread) < quant_group_tiles(kernel));
            }
            for (uint32_t group = 0; group < 3; group++)
                assert_int_equal(quant_group_at(form, kernel, group),
                                 group * quant_group_bytes(form, kernel));
            struct quant_plan plan = {.n_warps = quant_max_warps(form, kernel)};
            assert_int_equal(quant_max_threads(form, kernel), plan.n_warps * CUDA_WARP);
            assert_int_equal(quant_n_threads(&plan), plan.n_warps * CUDA_WARP);
        }
    for (uint32_t n_groups = 1; n_groups <= 8; n_groups *= 2)
        for (uint32_t block = 0; block < 3; block++)
            for (uint32_t group = 0; group < n_groups; group++)
                assert_int_equal(quant_share_of(block, n_groups, group), block * n_groups + group);
    assert_true(quant_scaled_sum(6, 0.5f, 4.0f) == 12.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_format_and_size_gives_every_sum),
        cmocka_unit_test(test_groups_share_pairs_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
