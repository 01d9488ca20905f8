/* quant_place.h: the distribution of work and data in the kernels of quantized linears
 * (linear_quant.h). The functions map threads to pieces and places of a stage, lanes to words and
 * operands, sums to results. Plain functions of numbers, for the GPU and for the CPU. On the CPU
 * tests/unit/kernels/cuda/test_cuda_quant_place.c computes whole products with them. Layouts in
 * memory: quant_index.h; fragments: fragment.h. */
#pragma once

#include "kernels/cuda/fragment.h"
#include "kernels/cuda/quant_index.h"

/* --- a stage of a group's ring: codes and scales, isd and ism of both runs, lo, hi, sums --- */

QUANT_FN uint32_t quant_group_threads(uint32_t kernel)
{
    return quant_group_warps(kernel) * CUDA_WARP;
}

/* Returns the number of panels of a group. */
QUANT_FN uint32_t quant_group_panels(uint32_t form, uint32_t kernel)
{
    return quant_row_warps(kernel) * quant_panels(form, kernel);
}

/* Returns the number of tiles of a group. */
QUANT_FN uint32_t quant_group_tiles(uint32_t kernel)
{
    return quant_tile_warps(kernel) * quant_tiles(kernel);
}

/* Returns the bytes of a tile's sums in a stage: Σlo with flags, then Σhi without. */
QUANT_FN uint32_t quant_all_sums(uint32_t form)
{
    return quant_sums_bytes(form) + quant_hi_sums_bytes(form);
}

QUANT_FN uint32_t quant_supers_at(uint32_t form, uint32_t kernel)
{
    return quant_group_panels(form, kernel) * quant_pair_bytes(form);
}

QUANT_FN uint32_t quant_lo_at(uint32_t form, uint32_t kernel)
{
    return quant_supers_at(form, kernel) +
           quant_group_panels(form, kernel) * 2 * quant_super_bytes(form);
}

QUANT_FN uint32_t quant_hi_at(uint32_t form, uint32_t kernel)
{
    return quant_lo_at(form, kernel) + quant_group_tiles(kernel) * QUANT_FRAGMENT_BYTES;
}

QUANT_FN uint32_t quant_sums_at(uint32_t form, uint32_t kernel)
{
    return quant_hi_at(form, kernel) + quant_group_tiles(kernel) * QUANT_FRAGMENT_BYTES;
}

/* --- number of 16-byte pieces of each part of a stage --- */

QUANT_FN uint32_t quant_code_pieces(uint32_t form, uint32_t kernel)
{
    return quant_group_panels(form, kernel) * (quant_pair_bytes(form) / 16);
}

QUANT_FN uint32_t quant_super_pieces(uint32_t form, uint32_t kernel)
{
    return quant_group_panels(form, kernel) * (quant_super_bytes(form) / 8);
}

QUANT_FN uint32_t quant_tile_pieces(uint32_t kernel)
{
    return quant_group_tiles(kernel) * 32;
}

QUANT_FN uint32_t quant_sum_pieces(uint32_t form, uint32_t kernel)
{
    return quant_group_tiles(kernel) * (quant_all_sums(form) / 16);
}

/* Returns the copies of a thread for n_pieces pieces. */
QUANT_FN uint32_t quant_n_copies(uint32_t n_pieces, uint32_t kernel)
{
    return (n_pieces + quant_group_threads(kernel) - 1) / quant_group_threads(kernel);
}

/* Returns the index of the piece that copy i of a thread of the group moves. */
CUDA_HD uint32_t quant_piece(uint32_t kernel, uint32_t i, uint32_t thread)
{
    return i * quant_group_threads(kernel) + thread;
}

/* Returns true if the piece exists. */
CUDA_HD bool quant_has_piece(uint32_t n_pieces, uint32_t kernel, uint32_t i, uint32_t thread)
{
    return n_pieces % quant_group_threads(kernel) == 0 || quant_piece(kernel, i, thread) < n_pieces;
}

/* Returns the byte of a thread's first piece in a part of the stage. */
CUDA_HD uint32_t quant_own_at(uint32_t thread)
{
    return thread * 16;
}

/* Returns the bytes from the thread's first piece to the piece of its copy i. */
CUDA_HD uint32_t quant_copy_at(uint32_t kernel, uint32_t i)
{
    return i * quant_group_threads(kernel) * 16;
}

/* --- the source of a piece --- */

/* Returns the byte of a panel of a part. */
CUDA_HD size_t quant_panel_from(const struct quant_layout *l, uint32_t panel)
{
    return panel * l->panel_bytes;
}

/* Returns the panel, relative to the group's first, of a piece of codes and scales. */
CUDA_HD uint32_t quant_code_panel(uint32_t form, uint32_t piece)
{
    return piece / (quant_pair_bytes(form) / 16);
}

/* Returns the byte of a piece of codes and scales within its panel, for a pair. */
CUDA_HD size_t quant_code_from(uint32_t form, uint32_t piece, uint32_t pair)
{
    return piece % (quant_pair_bytes(form) / 16) * 16 + (size_t)pair * quant_pair_bytes(form);
}

/* Returns the panel, relative to the group's first, of a piece of isd and ism. */
CUDA_HD uint32_t quant_super_panel(uint32_t form, uint32_t piece)
{
    return piece / (quant_super_bytes(form) / 8);
}

/* Returns the byte of a piece of isd and ism among its panel's super-blocks. A pair has pieces for
 * each of its two runs. If one super-block has both runs, both have the same source. */
CUDA_HD uint32_t quant_super_from(const struct quant_layout *l, uint32_t form, uint32_t piece,
                                  uint32_t pair)
{
    uint32_t per_run = quant_super_bytes(form) / 16, rest = piece % (2 * per_run);
    uint32_t super = (2 * pair + rest / per_run) >> l->super_shift;
    return super * quant_super_bytes(form) + rest % per_run * 16;
}

/* Returns the tile, relative to the group's first, of a piece of lo or hi. */
CUDA_HD uint32_t quant_piece_tile(uint32_t piece)
{
    return piece / 32;
}

/* Returns the row of activations of a piece of lo or hi. */
CUDA_HD uint32_t quant_piece_row(uint32_t tile, uint32_t piece)
{
    return tile * QUANT_TILE + fragment_group(piece % 32);
}

/* Returns the index of a tile's pair among the pairs of all tiles. */
CUDA_HD size_t quant_fragment_of(const struct quant_layout *l, uint32_t tile, uint32_t pair)
{
    return (size_t)tile * l->n_pairs + pair;
}

/* Returns the byte of a piece of lo, or of hi. `fragment` is the index of the tile's pair. */
CUDA_HD size_t quant_fragment_from(size_t fragment, uint32_t piece)
{
    return fragment * QUANT_FRAGMENT_BYTES + piece % 32 * 16;
}

/* Returns the byte of the outlier flag of the piece's row. */
CUDA_HD size_t quant_flag_from(size_t fragment, uint32_t piece)
{
    return fragment * QUANT_SUMS_BYTES + fragment_group(piece % 32);
}

/* Returns the tile of a piece of sums. */
CUDA_HD uint32_t quant_sum_tile(uint32_t form, uint32_t piece)
{
    return piece / (quant_all_sums(form) / 16);
}

/* Returns true if a piece of sums belongs to Σhi, false if it belongs to Σlo. */
CUDA_HD bool quant_is_hi_sum(uint32_t form, uint32_t piece)
{
    return piece % (quant_all_sums(form) / 16) * 16 >= quant_sums_bytes(form);
}

/* Returns the byte of a piece of sums. `fragment` is the index of the tile's pair. */
CUDA_HD size_t quant_sum_from(uint32_t form, size_t fragment, uint32_t piece)
{
    uint32_t at = piece % (quant_all_sums(form) / 16) * 16;
    return fragment * QUANT_SUMS_BYTES +
           (at < quant_sums_bytes(form) ? at : at - quant_sums_bytes(form) + QUANT_SUMS32_AT);
}

/* Returns the first row of activations of a tile. */
CUDA_HD uint32_t quant_first_token(uint32_t tile)
{
    return tile * QUANT_TILE;
}

/* --- distribution of panels, tiles and pairs --- */

/* Returns a block's first panel. */
CUDA_HD uint32_t quant_block_panel(uint32_t form, uint32_t kernel, uint32_t block)
{
    return block * quant_group_panels(form, kernel);
}

/* Returns a block's first tile. */
CUDA_HD uint32_t quant_block_tile(uint32_t kernel, uint32_t block)
{
    return block * quant_group_tiles(kernel);
}

/* Returns the group of a thread within its block. */
CUDA_HD uint32_t quant_group_of(uint32_t kernel, uint32_t thread)
{
    return thread / quant_group_threads(kernel);
}

/* Returns the index of a thread in its group. */
CUDA_HD uint32_t quant_thread_of(uint32_t kernel, uint32_t thread)
{
    return thread % quant_group_threads(kernel);
}

/* Returns a group's index among all groups that share the columns. */
CUDA_HD uint32_t quant_share_of(uint32_t block, uint32_t n_groups, uint32_t group)
{
    return block * n_groups + group;
}

/* Returns a warp's first panel, relative to the group's first. */
CUDA_HD uint32_t quant_warp_panel(uint32_t form, uint32_t kernel, uint32_t thread)
{
    uint32_t warp = quant_thread_of(kernel, thread) / CUDA_WARP;
    return warp / quant_tile_warps(kernel) * quant_panels(form, kernel);
}

/* Returns a warp's first tile, relative to the group's first. */
CUDA_HD uint32_t quant_warp_tile(uint32_t kernel, uint32_t thread)
{
    uint32_t warp = quant_thread_of(kernel, thread) / CUDA_WARP;
    return warp % quant_tile_warps(kernel) * quant_tiles(kernel);
}

/* Returns the place of a group's shared memory. If the group is a warp, its sums lie there
 * afterwards. */
CUDA_HD uint32_t quant_group_at(uint32_t form, uint32_t kernel, uint32_t group)
{
    return group * quant_group_bytes(form, kernel);
}

/* Returns the number of runs, a power of two, after which the 32-bit sums are added to the 64-bit
 * sums. That is at the end of a super-block, or before the sums can overflow. */
CUDA_HD uint32_t quant_ends_every(const struct quant_layout *l, uint32_t form)
{
    return quant_is_super(form) ? 1u << l->super_shift : quant_flush_runs(form);
}

/* Returns true if the 32-bit sums are added after the pair. */
CUDA_HD bool quant_ends(uint32_t pair, uint32_t ends_every)
{
    return ((2 * pair + 2) & (ends_every - 1)) == 0;
}

QUANT_FN uint32_t quant_max_threads(uint32_t form, uint32_t kernel)
{
    return quant_max_warps(form, kernel) * CUDA_WARP;
}

CUDA_HD uint32_t quant_n_threads(const struct quant_plan *plan)
{
    return plan->n_warps * CUDA_WARP;
}

/* --- a lane's words of a stage: bytes from a panel's pair, or from the warp's first tile --- */

/* Returns the byte of panel p's codes and scales. */
CUDA_HD uint32_t quant_stage_pair(uint32_t form, uint32_t p)
{
    return p * quant_pair_bytes(form);
}

/* Returns the byte of isd and ism of panel p for a run. */
CUDA_HD uint32_t quant_stage_super(uint32_t form, uint32_t p, uint32_t run)
{
    return (p * 2 + run) * quant_super_bytes(form);
}

/* Returns the byte of lo, or of hi, of tile nt. */
CUDA_HD uint32_t quant_stage_fragment(uint32_t nt)
{
    return nt * QUANT_FRAGMENT_BYTES;
}

/* Returns the byte of the sums of tile nt. */
CUDA_HD uint32_t quant_stage_sums(uint32_t form, uint32_t nt)
{
    return nt * quant_all_sums(form);
}

/* Returns the byte of a lane's codes. A lane reads 16 bytes per run (8 bits), 16 bytes for both
 * runs (4 to 6 bits), or 8 bytes for both (fewer bits). */
CUDA_HD uint32_t quant_lane_codes(uint32_t form, uint32_t run, uint32_t lane)
{
    return quant_bits(form) == 8   ? run * 512 + lane * 16
           : quant_bits(form) >= 4 ? lane * 16
                                   : lane * 8;
}

/* Returns the byte of a lane's high bits of both runs: 8 bytes for codes of 6 bits, else 4
 * bytes. */
CUDA_HD uint32_t quant_lane_high(uint32_t form, uint32_t lane)
{
    return quant_code_bytes(form) + lane * (quant_bits(form) == 6 ? 8 : 4);
}

/* isd of rows g and g + 8 stand at quant_lane_super(), ism as many bytes further. */
enum { QUANT_ISM_AT = 32 };

QUANT_FN bool quant_scales_are_a_word(uint32_t form)
{
    return quant_is_super(form) && quant_subs(form) == 1;
}

/* Returns the place of the scales of rows g and g + 8 for both runs. A lane reads four bytes if
 * scales are bytes and a run has one scale, else eight. */
CUDA_HD uint32_t quant_lane_scales(uint32_t form, uint32_t lane)
{
    return fragment_group(lane) * (quant_scales_are_a_word(form) ? 4 : 8);
}

/* Returns the place of isd of rows g and g + 8; ism is QUANT_ISM_AT bytes further. */
CUDA_HD uint32_t quant_lane_super(uint32_t lane)
{
    return fragment_group(lane) * 4;
}

/* Returns the place of a lane's 16 bytes of lo, of both runs. */
CUDA_HD uint32_t quant_lane_lo(uint32_t lane)
{
    return lane * 16;
}

/* Returns the place of a lane's 8 bytes of hi, of one run. */
CUDA_HD uint32_t quant_lane_hi(uint32_t lane, uint32_t run)
{
    return lane * 16 + run * 8;
}

/* Returns the place of the sums of a lane's two rows of activations, relative to the tile's sums. A
 * lane reads both runs (8 bytes), or both runs and halves (16 bytes). */
CUDA_HD uint32_t quant_lane_sums(uint32_t form, uint32_t lane)
{
    return quant_subs(form) == 1 ? QUANT_SUMS32_AT + fragment_member(lane) * 8
                                 : QUANT_SUMS16_AT + fragment_member(lane) * 16;
}

/* Returns the place of Σhi of a run and half, relative to the tile's sums. */
CUDA_HD uint32_t quant_lane_hi_sums(uint32_t form, uint32_t lane, uint32_t run, uint32_t sub)
{
    return quant_sums_bytes(form) + quant_lane_sums(form, lane) - QUANT_SUMS32_AT +
           (quant_subs(form) == 1 ? run * 4 : run * 8 + sub * 4);
}

/* Returns true if any row of the tile has outliers in a run. The words low and high hold the flags
 * of the eight rows, a byte per row. */
CUDA_HD bool quant_any_flag(uint32_t low, uint32_t high, uint32_t run)
{
    return ((low | high) & 0x01010101u << run) != 0;
}

/* --- words to operands --- */

/* Moves `width` bits of each byte of x from bit `from` to bit `to`. */
CUDA_HD uint32_t quant_bits_of(uint32_t x, uint32_t from, uint32_t to, uint32_t width)
{
    return (from > to ? x >> (from - to) : x << (to - from)) &
           0x01010101u * (((1u << width) - 1) << to);
}

/* Returns the bytes that the low 16 bits of `selector` choose, four bits each, from those of x and
 * then of y. */
CUDA_HD uint32_t quant_choose_bytes(uint32_t x, uint32_t y, uint32_t selector)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(x, y, selector);
#else
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t from = selector >> 4 * i & 7;
        bytes |= ((from < 4 ? x : y) >> from % 4 * 8 & 0xFF) << 8 * i;
    }
    return bytes;
#endif
}

/* Returns the table's values for the four codes in the low 16 bits of `codes`, without their
 * bits 3. Each half of the table gives a value. `halves` are selectors of the half by the codes'
 * bits 3 (quant_table_halves). */
CUDA_HD uint32_t quant_look_up(uint32_t form, uint32_t codes, uint32_t halves)
{
    uint32_t low = quant_choose_bytes(quant_table_word(form, 0), quant_table_word(form, 1), codes);
    uint32_t high = quant_choose_bytes(quant_table_word(form, 2), quant_table_word(form, 3), codes);
    return quant_choose_bytes(low, high, halves);
}

/* Returns selectors of byte i, or byte i of the second word where code i is 8 or more. */
CUDA_HD uint32_t quant_table_halves(uint32_t codes)
{
    return (codes & 0x88888888u) >> 1 | 0x32103210u;
}

/* Looks up both half words of a lane's word. */
CUDA_HD void quant_look_up_word(uint32_t form, uint32_t word, uint32_t *out_low, uint32_t *out_high)
{
    uint32_t codes = word & 0x77777777u, halves = quant_table_halves(word);
    *out_low = quant_look_up(form, codes, halves);
    *out_high = quant_look_up(form, codes >> 16, halves >> 16);
}

/* Builds the A fragment of a run from a lane's words: `codes` are those of quant_lane_codes() (8
 * bits: of the run), `high` those of quant_lane_high(). */
CUDA_HD void quant_fragment_a(uint32_t form, uint32_t run, uint32_t a[4], const uint32_t codes[4],
                              const uint32_t high[2])
{
    const uint32_t bits = quant_bits(form), low = bits >= 4 ? 4 : 2;
    if (bits == 8) {
        a[0] = codes[0], a[1] = codes[1], a[2] = codes[2], a[3] = codes[3];
        return;
    }
    if (quant_has_table(form)) {
        quant_look_up_word(form, codes[2 * run], &a[0], &a[2]);
        quant_look_up_word(form, codes[2 * run + 1], &a[1], &a[3]);
        return;
    }
    if (bits >= 4) {
        a[0] = quant_bits_of(codes[2 * run], 0, 0, 4);
        a[1] = quant_bits_of(codes[2 * run + 1], 0, 0, 4);
        a[2] = quant_bits_of(codes[2 * run], 4, 0, 4);
        a[3] = quant_bits_of(codes[2 * run + 1], 4, 0, 4);
    } else {
        a[0] = quant_bits_of(codes[run], 0, 0, 2);
        a[1] = quant_bits_of(codes[run], 2, 0, 2);
        a[2] = quant_bits_of(codes[run], 4, 0, 2);
        a[3] = quant_bits_of(codes[run], 6, 0, 2);
    }
    if (bits == 6) {
        a[0] |= quant_bits_of(high[run], 0, 4, 2);
        a[1] |= quant_bits_of(high[run], 2, 4, 2);
        a[2] |= quant_bits_of(high[run], 4, 4, 2);
        a[3] |= quant_bits_of(high[run], 6, 4, 2);
    } else if (bits % 2 == 1) {
        a[0] |= quant_bits_of(high[0], run * 4, low, 1);
        a[1] |= quant_bits_of(high[0], run * 4 + 1, low, 1);
        a[2] |= quant_bits_of(high[0], run * 4 + 2, low, 1);
        a[3] |= quant_bits_of(high[0], run * 4 + 3, low, 1);
    }
}

/* Returns the first of the two words of the A fragment for sub-block `sub` of a run, 16 columns
 * each. */
CUDA_HD uint32_t quant_sub_word(uint32_t sub)
{
    return 2 * sub;
}

/* Returns i16 number i of a word. */
CUDA_HD int32_t quant_half(uint32_t word, uint32_t i)
{
    return i == 0 ? (int32_t)(int16_t)(word & 0xFFFF) : (int32_t)word >> 16;
}

/* Returns the second run's scales from a word that holds them in its upper half. */
CUDA_HD uint32_t quant_second_run(uint32_t word)
{
    return word >> 16;
}

/* Returns the scale (or unsigned min) of row g + 8·half, from the run's word. */
CUDA_HD int32_t quant_scale_of(uint32_t form, uint32_t word, uint32_t sub, uint32_t half,
                               bool is_signed)
{
    uint32_t byte = word >> 8 * (2 * sub + half) & 0xFF;
    return !quant_is_super(form) ? quant_half(word, half)
           : is_signed           ? (int32_t)(int8_t)byte
                                 : (int32_t)byte;
}

/* Returns which of the lane's rows sum e belongs to: 0 for row g, 1 for row g + 8. */
CUDA_HD uint32_t quant_row_half(uint32_t e)
{
    return e / 2;
}

/* Returns which of the lane's two columns sum e belongs to. */
CUDA_HD uint32_t quant_column_half(uint32_t e)
{
    return e % 2;
}

/* --- integers --- */

/* Returns a·b + c modulo 2^32 as a signed number. */
CUDA_HD int32_t quant_mad(int32_t a, int32_t b, int32_t c)
{
    return (int32_t)((uint32_t)a * (uint32_t)b + (uint32_t)c);
}

/* Returns a·b + c modulo 2^32 as unsigned bits. */
CUDA_HD uint32_t quant_mad_bits(int32_t a, int32_t b, uint32_t c)
{
    return (uint32_t)a * (uint32_t)b + c;
}

CUDA_HD int64_t quant_mad_wide(int32_t a, int32_t b, int64_t c)
{
    return (int64_t)a * b + c;
}

CUDA_HD int32_t quant_product_of(int32_t a, int32_t b)
{
    return a * b;
}

/* Returns the start of a product of codes: −zero · Σb. */
CUDA_HD int32_t quant_less_zero(uint32_t form, uint32_t sums, uint32_t i)
{
    return quant_zero(form) == 0 ? 0 : -quant_zero(form) * quant_half(sums, i);
}

/* Returns the factor of outliers: an outlier counts 255 times its value in the plane. */
CUDA_HD int32_t quant_outlier_factor(int32_t scale)
{
    return 255 * scale;
}

/* --- offsets: 32 runs at a time, multiplied with the digits of Σa --- */

/* Returns a lane's group of four runs in a chunk, for half i of its operands. */
CUDA_HD uint32_t quant_offset_group(uint32_t chunk, uint32_t i, uint32_t lane)
{
    return chunk * 8 + i * 4 + fragment_member(lane);
}

/* Returns the place of a lane's 16 bytes of a group in a panel: the high bytes of rows g and g + 8,
 * then the low bytes. */
CUDA_HD uint32_t quant_offset_from(const struct quant_layout *l, uint32_t group, uint32_t lane)
{
    return l->offsets_at + group * QUANT_GROUP_BYTES + fragment_group(lane) * 16;
}

/* Returns the register of half i for the rows from 8·half on. */
CUDA_HD uint32_t quant_offset_register(uint32_t i, uint32_t half)
{
    return 2 * i + half;
}

/* Returns the byte of a tile's digits of a chunk. */
CUDA_HD size_t quant_digits_from(const struct quant_layout *l, uint32_t tile, uint32_t chunk)
{
    return ((size_t)tile * l->n_chunks + chunk) * QUANT_CHUNK_BYTES;
}

/* Returns the byte of digit j of a lane within them. */
CUDA_HD uint32_t quant_digit_at(uint32_t j, uint32_t lane)
{
    return j * 256 + lane * 8;
}

/* Scales a sum over high bytes of offsets, so that a sum over low bytes can be added. */
CUDA_HD int32_t quant_of_high(int32_t sum)
{
    return sum * 256;
}

/* Scales the sum of digit j, modulo 2^32. */
CUDA_HD uint32_t quant_digit_bits(int32_t sum, uint32_t j)
{
    return (uint32_t)sum * (1u << 7 * j);
}

/* Scales the sum of digit j in 64 bits. */
CUDA_HD int64_t quant_digit_wide(int32_t sum, uint32_t j)
{
    return (int64_t)sum * (1u << 7 * j);
}

/* --- results --- */

/* Returns the row of activations of sum e of tile `tile`; its row of the panel is
 * fragment_sum_row(). */
CUDA_HD uint32_t quant_token_of(uint32_t tile, uint32_t lane, uint32_t e)
{
    return tile * QUANT_TILE + fragment_sum_column(lane, e);
}

/* Element of a warp's sums in shared memory. By token and row of its panels, or by sum e of tile nt
 * and panel p. */
CUDA_HD uint32_t quant_sum_of(uint32_t form, uint32_t kernel, uint32_t token, uint32_t row)
{
    return token * quant_sum_stride(form, kernel) + row;
}

CUDA_HD uint32_t quant_sum_place(uint32_t form, uint32_t kernel, uint32_t nt, uint32_t p,
                                 uint32_t lane, uint32_t e)
{
    return quant_sum_of(form, kernel, quant_token_of(nt, lane, e),
                        p * QUANT_ROWS + fragment_sum_row(lane, e));
}

/* Results of a warp's tiles with n_rows rows each; token and row of result i, relative to the
 * first. */
CUDA_HD uint32_t quant_n_puts(uint32_t kernel, uint32_t n_rows)
{
    return quant_tiles(kernel) * QUANT_TILE * n_rows;
}

CUDA_HD uint32_t quant_put_token(uint32_t i, uint32_t n_rows)
{
    return i / n_rows;
}

CUDA_HD uint32_t quant_put_row(uint32_t i, uint32_t n_rows)
{
    return i % n_rows;
}

QUANT_FN uint32_t quant_warp_rows(uint32_t form, uint32_t kernel)
{
    return quant_panels(form, kernel) * QUANT_ROWS;
}

CUDA_HD uint32_t quant_panel_of_row(uint32_t row)
{
    return row / QUANT_ROWS;
}

CUDA_HD uint32_t quant_row_in_panel(uint32_t row)
{
    return row % QUANT_ROWS;
}

/* Converts a sum T to a float. */
CUDA_HD float quant_scaled_sum(int64_t sum, float unit, float scale)
{
    return (float)sum * (unit * scale);
}
