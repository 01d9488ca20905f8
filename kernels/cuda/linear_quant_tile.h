/* linear_quant_tile.h: what a warp does with a pair (64 columns) of its panels and tiles, all of it
 * in shared memory (quant_index.h has the orders): codes to bytes, products by tensor cores, the
 * runs' scales. Sums are exact, so no order of them matters. Included by linear_quant.h alone. */
#pragma once

#include "kernels/cuda/linear_quant_args.h"
#include "kernels/cuda/ptx.h"

template <bool WIDE> struct quant_sum {
    typedef uint32_t type; /* modulo 2^32; T fits (weight_cpu.h, INT4_MAX_K) */
};
template <> struct quant_sum<true> {
    typedef int64_t type;
};

/* The numbers of a kernel. */
template <uint32_t FORM, uint32_t KERNEL> struct quant_tile {
    static constexpr uint32_t P = quant_panels(FORM, KERNEL), NT = quant_tiles(KERNEL),
                              SUBS = quant_subs(FORM);
    static constexpr bool WIDE = quant_is_wide(FORM), SUPER = quant_is_super(FORM),
                          MINS = quant_has_mins(FORM), OFFSETS = quant_has_offsets(FORM);
    static constexpr uint32_t ROW_WARPS = quant_row_warps(KERNEL),
                              TILE_WARPS = quant_tile_warps(KERNEL),
                              GROUP = ROW_WARPS * TILE_WARPS * 32, /* threads */
        N_STAGES = quant_n_stages(FORM, KERNEL), STAGE = quant_stage_bytes(FORM, KERNEL);
    static constexpr uint32_t PAIR = quant_pair_bytes(FORM), SUPER_BYTES = quant_super_bytes(FORM),
                              SUMS = quant_sums_bytes(FORM),
                              ALL_SUMS = SUMS + quant_hi_sums_bytes(FORM); /* of a tile */
    /* A stage: codes and scales of the panels, isd and ism of either run, lo of the tiles, hi,
     * sums. */
    static constexpr uint32_t PANELS = ROW_WARPS * P, TILES = TILE_WARPS * NT,
                              SUPERS_AT = PANELS * PAIR,
                              LO_AT = SUPERS_AT + PANELS * 2 * SUPER_BYTES,
                              HI_AT = LO_AT + TILES * QUANT_FRAGMENT_BYTES,
                              SUMS_AT = HI_AT + TILES * QUANT_FRAGMENT_BYTES;
    typedef typename quant_sum<WIDE>::type sum;
};

/* A warp's results. Wide forms add up in 32 bits first: s, and of mins m. */
template <uint32_t FORM, uint32_t KERNEL> struct quant_acc {
    typedef quant_tile<FORM, KERNEL> tile;
    typename tile::sum t[tile::P][tile::NT][4];
    int32_t s[tile::WIDE ? tile::P : 1][tile::WIDE ? tile::NT : 1][4];
    int32_t m[tile::MINS ? tile::P : 1][tile::MINS ? tile::NT : 1][4];
};

/* What a warp reads of the stage at hand. */
struct quant_place_of_warp {
    uint32_t lane;
    const uint8_t *panels, *supers, *lo, *hi, *sums;
    bool ends[2]; /* a super-block ends with the run, or what may be added in 32 bits */
};

/* Modulo 2^32. */
CUDA_DEVICE int32_t quant_mad(int32_t a, int32_t b, int32_t c)
{
    return (int32_t)((uint32_t)a * (uint32_t)b + (uint32_t)c);
}

/* Of a word with two i16. */
CUDA_DEVICE int32_t quant_half(uint32_t word, uint32_t i)
{
    return i == 0 ? (int32_t)(int16_t)(word & 0xFFFF) : (int32_t)word >> 16;
}

/* `width` bits of each byte from bit `from` on, put to bit `to`. */
template <uint32_t FROM, uint32_t TO, uint32_t WIDTH> CUDA_DEVICE uint32_t quant_bits_of(uint32_t x)
{
    constexpr uint32_t mask = 0x01010101u * (((1u << WIDTH) - 1) << TO);
    return (FROM > TO ? x >> (FROM > TO ? FROM - TO : 0) : x << (TO > FROM ? TO - FROM : 0)) & mask;
}

template <uint32_t FORM, uint32_t RUN>
CUDA_DEVICE void quant_codes_of_run(uint32_t a[4], uint4 codes, uint2 high)
{
    constexpr uint32_t bits = quant_bits(FORM), low = bits >= 4 ? 4 : 2;
    if constexpr (bits >= 4) {
        uint32_t x = RUN == 0 ? codes.x : codes.z, y = RUN == 0 ? codes.y : codes.w;
        a[0] = quant_bits_of<0, 0, 4>(x);
        a[1] = quant_bits_of<0, 0, 4>(y);
        a[2] = quant_bits_of<4, 0, 4>(x);
        a[3] = quant_bits_of<4, 0, 4>(y);
    } else {
        uint32_t x = RUN == 0 ? codes.x : codes.y;
        a[0] = quant_bits_of<0, 0, 2>(x);
        a[1] = quant_bits_of<2, 0, 2>(x);
        a[2] = quant_bits_of<4, 0, 2>(x);
        a[3] = quant_bits_of<6, 0, 2>(x);
    }
    if constexpr (bits == 6) {
        uint32_t x = RUN == 0 ? high.x : high.y;
        a[0] |= quant_bits_of<0, 4, 2>(x);
        a[1] |= quant_bits_of<2, 4, 2>(x);
        a[2] |= quant_bits_of<4, 4, 2>(x);
        a[3] |= quant_bits_of<6, 4, 2>(x);
    } else if constexpr (bits % 2 == 1) {
        a[0] |= quant_bits_of<RUN * 4 + 0, low, 1>(high.x);
        a[1] |= quant_bits_of<RUN * 4 + 1, low, 1>(high.x);
        a[2] |= quant_bits_of<RUN * 4 + 2, low, 1>(high.x);
        a[3] |= quant_bits_of<RUN * 4 + 3, low, 1>(high.x);
    }
}

/* The A fragments of both runs of a panel's pair. */
template <uint32_t FORM>
CUDA_DEVICE void quant_codes(uint32_t a[2][4], const uint8_t *pair, uint32_t lane)
{
    constexpr uint32_t bits = quant_bits(FORM), high_at = quant_code_bytes(FORM);
    uint4 codes = make_uint4(0, 0, 0, 0);
    uint2 high = make_uint2(0, 0);
    if constexpr (bits == 8) {
        for (uint32_t run = 0; run < 2; run++) {
            codes = *(const uint4 *)(pair + run * 512 + lane * 16);
            a[run][0] = codes.x, a[run][1] = codes.y, a[run][2] = codes.z, a[run][3] = codes.w;
        }
        return;
    }
    if constexpr (bits >= 4) {
        codes = *(const uint4 *)(pair + lane * 16);
    } else {
        uint2 two = *(const uint2 *)(pair + lane * 8);
        codes.x = two.x, codes.y = two.y;
    }
    if constexpr (bits == 6)
        high = *(const uint2 *)(pair + high_at + lane * 8);
    else if constexpr (bits % 2 == 1)
        high.x = *(const uint32_t *)(pair + high_at + lane * 4);
    quant_codes_of_run<FORM, 0>(a[0], codes, high);
    quant_codes_of_run<FORM, 1>(a[1], codes, high);
}

/* Scales (or mins) of both runs: [run][sub][row g, row g+8]. `at` is the pair's. */
template <uint32_t FORM, bool IS_SIGNED>
CUDA_DEVICE void quant_scales(int32_t scale[2][quant_subs(FORM)][2], const uint8_t *at, uint32_t g)
{
    constexpr uint32_t subs = quant_subs(FORM);
    uint32_t words[2];
    if constexpr (quant_is_super(FORM) && subs == 1) {
        words[0] = *(const uint32_t *)(at + g * 4);
        words[1] = words[0] >> 16;
    } else {
        uint2 two = *(const uint2 *)(at + g * 8);
        words[0] = two.x, words[1] = two.y;
    }
#pragma unroll
    for (uint32_t run = 0; run < 2; run++)
#pragma unroll
        for (uint32_t sub = 0; sub < subs; sub++)
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                uint32_t byte = words[run] >> 8 * (2 * sub + half) & 0xFF;
                scale[run][sub][half] = !quant_is_super(FORM) ? quant_half(words[run], half)
                                        : IS_SIGNED           ? (int32_t)(int8_t)byte
                                                              : (int32_t)byte;
            }
}

/* Σ of the codes less zero, times b, of a sub-block: sums has Σb of the lane's two tokens. */
template <uint32_t FORM>
CUDA_DEVICE void quant_product(int32_t d[4], const uint32_t a[4], const uint32_t b[2], uint32_t sub,
                               uint32_t sums)
{
    constexpr int32_t zero = quant_zero(FORM);
    d[0] = d[2] = zero == 0 ? 0 : -zero * quant_half(sums, 0);
    d[1] = d[3] = zero == 0 ? 0 : -zero * quant_half(sums, 1);
    if constexpr (quant_subs(FORM) == 2) {
        uint32_t half[2] = {a[2 * sub], a[2 * sub + 1]};
        mma_m16n8k16_u8s8(d, half, b[sub]);
    } else if constexpr (FORM == QUANT_INT8) {
        mma_m16n8k32_s8(d, a, b);
    } else {
        mma_m16n8k32_u8s8(d, a, b);
    }
}

/* isd of a panel and run, ism 32 bytes further. */
template <typename TILE>
CUDA_DEVICE uint32_t quant_super_word(const quant_place_of_warp *at, uint32_t p, uint32_t run,
                                      uint32_t offset)
{
    const uint8_t *super = at->supers + (p * 2 + run) * TILE::SUPER_BYTES;
    return *(const uint32_t *)(super + offset + at->lane / 4 * 4);
}

/* What is in 32 bits joins the 64. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_flush(quant_acc<FORM, KERNEL> *acc, const quant_place_of_warp *at,
                             uint32_t p, uint32_t nt, uint32_t run)
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint32_t isd = 0, ism = 0;
    if constexpr (tile::SUPER)
        isd = quant_super_word<tile>(at, p, run, 0);
    if constexpr (tile::MINS)
        ism = quant_super_word<tile>(at, p, run, 32);
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        int32_t factor = tile::SUPER ? quant_half(isd, e / 2) : 1;
        acc->t[p][nt][e] += (int64_t)factor * acc->s[p][nt][e];
        acc->s[p][nt][e] = 0;
        if constexpr (tile::MINS) {
            acc->t[p][nt][e] += (int64_t)quant_half(ism, e / 2) * acc->m[p][nt][e];
            acc->m[p][nt][e] = 0;
        }
    }
}

/* 255 times the outlier plane of a tile's run, past the 32-bit sums, which it would overflow. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void
quant_outliers(quant_acc<FORM, KERNEL> *acc, const quant_place_of_warp *at,
               const uint32_t a[][2][4], const int32_t scale[][2][quant_subs(FORM)][2],
               const int32_t min[][2][quant_subs(FORM)][2], uint32_t nt, uint32_t run)
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint32_t t = at->lane % 4;
    const uint8_t *sums_at = at->sums + nt * tile::ALL_SUMS + tile::SUMS;
    uint2 four = *(const uint2 *)(at->hi + nt * QUANT_FRAGMENT_BYTES + at->lane * 16 + run * 8);
    uint32_t b[2] = {four.x, four.y};
#pragma unroll
    for (uint32_t sub = 0; sub < tile::SUBS; sub++) {
        uint32_t at_sums = tile::SUBS == 1
                               ? t * 8 + run * 4
                               : QUANT_SUMS16_AT - QUANT_SUMS32_AT + t * 16 + run * 8 + sub * 4;
        uint32_t sums = tile::SUMS > 16 ? *(const uint32_t *)(sums_at + at_sums) : 0;
#pragma unroll
        for (uint32_t p = 0; p < tile::P; p++) {
            int32_t d[4];
            uint32_t isd = tile::SUPER ? quant_super_word<tile>(at, p, run, 0) : 0;
            uint32_t ism = tile::MINS ? quant_super_word<tile>(at, p, run, 32) : 0;
            quant_product<FORM>(d, a[p][run], b, sub, sums);
#pragma unroll
            for (uint32_t e = 0; e < 4; e++) {
                int32_t factor = 255 * scale[p][run][sub][e / 2];
                if constexpr (tile::SUPER)
                    factor *= quant_half(isd, e / 2);
                if constexpr (tile::WIDE)
                    acc->t[p][nt][e] += (int64_t)factor * d[e];
                else
                    acc->t[p][nt][e] += (uint32_t)factor * (uint32_t)d[e];
                if constexpr (tile::MINS)
                    acc->t[p][nt][e] +=
                        (int64_t)(255 * quant_half(ism, e / 2) * min[p][run][sub][e / 2]) *
                        quant_half(sums, e % 2);
            }
        }
    }
}

/* The pair at hand into the results. */
template <uint32_t FORM, uint32_t KERNEL>
CUDA_DEVICE void quant_pair(quant_acc<FORM, KERNEL> *acc, const quant_place_of_warp *at)
{
    typedef quant_tile<FORM, KERNEL> tile;
    uint32_t a[tile::P][2][4], g = at->lane / 4, t = at->lane % 4;
    int32_t scale[tile::P][2][tile::SUBS][2], min[tile::P][2][tile::SUBS][2];
#pragma unroll
    for (uint32_t p = 0; p < tile::P; p++) {
        const uint8_t *pair = at->panels + p * tile::PAIR;
        quant_codes<FORM>(a[p], pair, at->lane);
        quant_scales<FORM, true>(scale[p], pair + quant_scales_at(FORM), g);
        if constexpr (tile::MINS)
            quant_scales<FORM, false>(min[p], pair + quant_mins_at(FORM), g);
    }
#pragma unroll
    for (uint32_t nt = 0; nt < tile::NT; nt++) {
        uint4 four = *(const uint4 *)(at->lo + nt * QUANT_FRAGMENT_BYTES + at->lane * 16);
        const uint8_t *sums_at = at->sums + nt * tile::ALL_SUMS;
        uint2 flags = *(const uint2 *)sums_at;
        const uint32_t b[2][2] = {{four.x, four.y}, {four.z, four.w}};
        uint32_t sums[2][2] = {{0, 0}, {0, 0}}; /* [run][sub] */
        if constexpr (tile::SUMS > 16 && tile::SUBS == 1) {
            uint2 two = *(const uint2 *)(sums_at + QUANT_SUMS32_AT + t * 8);
            sums[0][0] = two.x, sums[1][0] = two.y;
        } else if constexpr (tile::SUMS > 16) {
            uint4 all = *(const uint4 *)(sums_at + QUANT_SUMS16_AT + t * 16);
            sums[0][0] = all.x, sums[0][1] = all.y, sums[1][0] = all.z, sums[1][1] = all.w;
        }
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
                        int32_t by = scale[p][run][sub][e / 2];
                        if constexpr (tile::WIDE)
                            acc->s[p][nt][e] = quant_mad(by, d[e], acc->s[p][nt][e]);
                        else
                            acc->t[p][nt][e] += (uint32_t)by * (uint32_t)d[e];
                        if constexpr (tile::MINS)
                            acc->m[p][nt][e] =
                                quant_mad(min[p][run][sub][e / 2],
                                          quant_half(sums[run][sub], e % 2), acc->m[p][nt][e]);
                    }
                }
                if constexpr (tile::WIDE)
                    if (at->ends[run])
                        quant_flush<FORM, KERNEL>(acc, at, p, nt, run);
            }
#pragma unroll
        for (uint32_t run = 0; run < 2; run++)
            if (((flags.x | flags.y) & 0x01010101u << run) != 0)
                quant_outliers<FORM, KERNEL>(acc, at, a, scale, min, nt, run);
    }
}
