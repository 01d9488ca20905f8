/* linear_quant_tile.h: the work of a warp on a pair (64 columns) of its panels and tiles, all in
 * shared memory (layouts: quant_index.h). Steps: codes to bytes, products by tensor cores, the
 * runs' scales. Sums are exact, so their order is free. Included by linear_quant.h and widen.cu
 * alone. */
#pragma once

#include "kernels/cuda/linear_quant/linear_quant_args.h"
#include "kernels/cuda/linear_quant/quant_place.h"
#include "kernels/cuda/ptx.h"

template <bool WIDE> struct quant_sum {
    typedef uint32_t type; /* modulo 2^32; T fits (weight_cpu.h, INT4_MAX_K) */
};
template <> struct quant_sum<true> {
    typedef int64_t type;
};

/* The constants of a kernel. */
template <uint32_t FORM, uint32_t KERNEL> struct quant_tile {
    static constexpr uint32_t P = quant_panels(FORM, KERNEL), NT = quant_tiles(KERNEL),
                              SUBS = quant_subs(FORM);
    static constexpr bool WIDE = quant_is_wide(FORM), SUPER = quant_is_super(FORM),
                          MINS = quant_has_mins(FORM), OFFSETS = quant_has_offsets(FORM);
    static constexpr uint32_t LAST = P - 1, GROUP = quant_group_threads(KERNEL);
    static constexpr uint32_t N_STAGES = quant_n_stages(FORM, KERNEL), AHEAD = N_STAGES - 1,
                              STAGE = quant_stage_bytes(FORM, KERNEL);
    static constexpr uint32_t PAIR = quant_pair_bytes(FORM), SUMS = quant_sums_bytes(FORM);
    static constexpr uint32_t SUPERS_AT = quant_supers_at(FORM, KERNEL),
                              LO_AT = quant_lo_at(FORM, KERNEL), HI_AT = quant_hi_at(FORM, KERNEL),
                              SUMS_AT = quant_sums_at(FORM, KERNEL);
    typedef typename quant_sum<WIDE>::type sum;
};

/* A warp's results. Wide forms first add in 32 bits: s, and m for mins. */
template <uint32_t FORM, uint32_t KERNEL> struct quant_acc {
    typedef quant_tile<FORM, KERNEL> tile;
    typename tile::sum t[tile::P][tile::NT][4];
    int32_t s[tile::WIDE ? tile::P : 1][tile::WIDE ? tile::NT : 1][4];
    int32_t m[tile::MINS ? tile::P : 1][tile::MINS ? tile::NT : 1][4];
};

/* The places that a warp reads in the current stage. */
struct quant_place_of_warp {
    uint32_t lane;
    const uint8_t *panels, *supers, *lo, *hi, *sums;
    bool ends[2]; /* for each run of the pair: true if the 32-bit sums are added to the 64-bit sums
                     after the run */
};

/* Loads the A fragments of both runs of a panel's pair. */
template <uint32_t FORM>
CUDA_DEVICE void quant_codes(uint32_t a[2][4], const uint8_t *pair, uint32_t lane)
{
    constexpr uint32_t bits = quant_bits(FORM);
    uint32_t codes[4] = {}, high[2] = {};
    if constexpr (bits == 8) {
        for (uint32_t run = 0; run < 2; run++) {
            uint4 x = *(const uint4 *)(pair + quant_lane_codes(FORM, run, lane));
            const uint32_t words[4] = {x.x, x.y, x.z, x.w};
            quant_fragment_a(FORM, run, a[run], words, high);
        }
        return;
    }
    if constexpr (bits >= 4) {
        uint4 x = *(const uint4 *)(pair + quant_lane_codes(FORM, 0, lane));
        codes[0] = x.x, codes[1] = x.y, codes[2] = x.z, codes[3] = x.w;
    } else {
        uint2 x = *(const uint2 *)(pair + quant_lane_codes(FORM, 0, lane));
        codes[0] = x.x, codes[1] = x.y;
    }
    if constexpr (bits == 6) {
        uint2 x = *(const uint2 *)(pair + quant_lane_high(FORM, lane));
        high[0] = x.x, high[1] = x.y;
    } else if constexpr (quant_high_bytes(FORM) > 0) {
        high[0] = *(const uint32_t *)(pair + quant_lane_high(FORM, lane));
    }
    quant_fragment_a(FORM, 0, a[0], codes, high);
    quant_fragment_a(FORM, 1, a[1], codes, high);
}

/* Loads scales (or mins) of both runs: [run][sub][row g, row g+8]. `at` is the pair's. */
template <uint32_t FORM, bool IS_SIGNED>
CUDA_DEVICE void quant_scales(int32_t scale[2][quant_subs(FORM)][2], const uint8_t *at,
                              uint32_t lane)
{
    constexpr uint32_t subs = quant_subs(FORM);
    const uint8_t *own = at + quant_lane_scales(FORM, lane);
    uint32_t words[2];
    if constexpr (quant_scales_are_a_word(FORM)) {
        words[0] = *(const uint32_t *)own;
        words[1] = quant_second_run(words[0]);
    } else {
        uint2 two = *(const uint2 *)own;
        words[0] = two.x, words[1] = two.y;
    }
#pragma unroll
    for (uint32_t run = 0; run < 2; run++)
#pragma unroll
        for (uint32_t sub = 0; sub < subs; sub++)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++)
                scale[run][sub][half] = quant_scale_of(FORM, words[run], sub, half, IS_SIGNED);
}

/* Computes Σ (code − zero)·b of a sub-block; `sums` has Σb of the lane's two tokens. */
template <uint32_t FORM>
CUDA_DEVICE void quant_product(int32_t d[4], const uint32_t a[4], const uint32_t b[2], uint32_t sub,
                               uint32_t sums)
{
#pragma unroll
    for (uint32_t e = 0; e < 4; e++)
        d[e] = quant_less_zero(FORM, sums, quant_column_half(e));
    if constexpr (quant_subs(FORM) == 2)
        mma_m16n8k16_u8s8(d, a + quant_sub_word(sub), b[sub]);
    else if constexpr (quant_is_signed(FORM))
        mma_m16n8k32_s8(d, a, b);
    else
        mma_m16n8k32_u8s8(d, a, b);
}

/* Returns isd of a panel and run; ism is QUANT_ISM_AT bytes further. */
template <uint32_t FORM>
CUDA_DEVICE uint32_t quant_super_word(const quant_place_of_warp *at, uint32_t p, uint32_t run,
                                      uint32_t offset)
{
    const uint8_t *super = at->supers + quant_stage_super(FORM, p, run);
    const uint8_t *own = super + quant_lane_super(at->lane);
    return *(const uint32_t *)(own + offset);
}

/* Adds the 32-bit sums to the 64-bit sums. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_flush(quant_acc<FORM, KERNEL> *acc, const quant_place_of_warp *at,
                             uint32_t p, uint32_t nt, uint32_t run)
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint32_t isd = 0, ism = 0;
    if constexpr (tile::SUPER)
        isd = quant_super_word<FORM>(at, p, run, 0);
    if constexpr (tile::MINS)
        ism = quant_super_word<FORM>(at, p, run, QUANT_ISM_AT);
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        uint32_t half = quant_row_half(e);
        int32_t factor = tile::SUPER ? quant_half(isd, half) : 1;
        acc->t[p][nt][e] = quant_mad_wide(factor, acc->s[p][nt][e], acc->t[p][nt][e]);
        acc->s[p][nt][e] = 0;
        if constexpr (tile::MINS) {
            acc->t[p][nt][e] =
                quant_mad_wide(quant_half(ism, half), acc->m[p][nt][e], acc->t[p][nt][e]);
            acc->m[p][nt][e] = 0;
        }
    }
}

/* Adds 255 times the outlier plane of a tile's run. The product would overflow the 32-bit sums, so
 * it goes to the 64-bit sums. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void
quant_outliers(quant_acc<FORM, KERNEL> *acc, const quant_place_of_warp *at,
               const uint32_t a[][2][4], const int32_t scale[][2][quant_subs(FORM)][2],
               const int32_t min[][2][quant_subs(FORM)][2], uint32_t nt, uint32_t run)
{
    typedef quant_tile<FORM, KERNEL> tile;
    const uint8_t *sums_at = at->sums + quant_stage_sums(FORM, nt);
    const uint8_t *hi = at->hi + quant_stage_fragment(nt);
    uint2 four = *(const uint2 *)(hi + quant_lane_hi(at->lane, run));
    uint32_t b[2] = {four.x, four.y};
#pragma unroll
    for (uint32_t sub = 0; sub < tile::SUBS; sub++) {
        uint32_t sums = 0;
        if constexpr (tile::SUMS > 16)
            sums = *(const uint32_t *)(sums_at + quant_lane_hi_sums(FORM, at->lane, run, sub));
#pragma unroll
        for (uint32_t p = 0; p < tile::P; p++) {
            int32_t d[4];
            uint32_t isd = tile::SUPER ? quant_super_word<FORM>(at, p, run, 0) : 0;
            uint32_t ism = tile::MINS ? quant_super_word<FORM>(at, p, run, QUANT_ISM_AT) : 0;
            quant_product<FORM>(d, a[p][run], b, sub, sums);
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                uint32_t half = quant_row_half(e);
                int32_t factor = quant_outlier_factor(scale[p][run][sub][half]);
                if constexpr (tile::SUPER)
                    factor = quant_product_of(factor, quant_half(isd, half));
                if constexpr (tile::WIDE)
                    acc->t[p][nt][e] = quant_mad_wide(factor, d[e], acc->t[p][nt][e]);
                else
                    acc->t[p][nt][e] = quant_mad_bits(factor, d[e], acc->t[p][nt][e]);
                if constexpr (tile::MINS) {
                    factor = quant_product_of(quant_outlier_factor(quant_half(ism, half)),
                                              min[p][run][sub][half]);
                    acc->t[p][nt][e] = quant_mad_wide(
                        factor, quant_half(sums, quant_column_half(e)), acc->t[p][nt][e]);
                }
            }
        }
    }
}

/* Loads Σlo of the lane's two rows of activations, [run][sub]. */
template <uint32_t FORM>
CUDA_DEVICE void quant_lo_sums(uint32_t sums[2][2], const uint8_t *sums_at, uint32_t lane)
{
    if constexpr (quant_sums_bytes(FORM) > 16 && quant_subs(FORM) == 1) {
        uint2 two = *(const uint2 *)(sums_at + quant_lane_sums(FORM, lane));
        sums[0][0] = two.x, sums[1][0] = two.y;
    } else if constexpr (quant_sums_bytes(FORM) > 16) {
        uint4 all = *(const uint4 *)(sums_at + quant_lane_sums(FORM, lane));
        sums[0][0] = all.x, sums[0][1] = all.y, sums[1][0] = all.z, sums[1][1] = all.w;
    }
}

/* Adds the current pair to the results. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_pair(quant_acc<FORM, KERNEL> *acc, const quant_place_of_warp *at)
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint32_t a[tile::P][2][4];
    int32_t scale[tile::P][2][tile::SUBS][2], min[tile::P][2][tile::SUBS][2];
#pragma unroll
    for (uint32_t p = 0; p < tile::P; p++) {
        const uint8_t *pair = at->panels + quant_stage_pair(FORM, p);
        quant_codes<FORM>(a[p], pair, at->lane);
        quant_scales<FORM, true>(scale[p], pair + quant_scales_at(FORM), at->lane);
        if constexpr (tile::MINS)
            quant_scales<FORM, false>(min[p], pair + quant_mins_at(FORM), at->lane);
    }
#pragma unroll
    for (uint32_t nt = 0; nt < tile::NT; nt++) {
        const uint8_t *lo = at->lo + quant_stage_fragment(nt);
        uint4 four = *(const uint4 *)(lo + quant_lane_lo(at->lane));
        const uint8_t *sums_at = at->sums + quant_stage_sums(FORM, nt);
        uint2 flags = *(const uint2 *)sums_at;
        const uint32_t b[2][2] = {{four.x, four.y}, {four.z, four.w}};
        uint32_t sums[2][2] = {{0, 0}, {0, 0}}; /* [run][sub] */
        quant_lo_sums<FORM>(sums, sums_at, at->lane);
#pragma unroll
        for (uint32_t run = 0; run < 2; run++)
#pragma unroll
            for (uint32_t p = 0; p < tile::P; p++) {
#pragma unroll
                for (uint32_t sub = 0; sub < tile::SUBS; sub++) {
                    int32_t d[4];
                    quant_product<FORM>(d, a[p][run], b[run], sub, sums[run][sub]);
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++) {
                        int32_t by = scale[p][run][sub][quant_row_half(e)];
                        if constexpr (tile::WIDE)
                            acc->s[p][nt][e] = quant_mad(by, d[e], acc->s[p][nt][e]);
                        else
                            acc->t[p][nt][e] = quant_mad_bits(by, d[e], acc->t[p][nt][e]);
                        if constexpr (tile::MINS)
                            acc->m[p][nt][e] = quant_mad(
                                min[p][run][sub][quant_row_half(e)],
                                quant_half(sums[run][sub], quant_column_half(e)), acc->m[p][nt][e]);
                    }
                }
                if constexpr (tile::WIDE)
                    if (at->ends[run])
                        quant_flush<FORM, KERNEL>(acc, at, p, nt, run);
            }
#pragma unroll
        for (uint32_t run = 0; run < 2; run++)
            if (quant_any_flag(flags.x, flags.y, run))
                quant_outliers<FORM, KERNEL>(acc, at, a, scale, min, nt, run);
    }
}
