/* super_codes_impl.h: unpacks the codes of PACK_SUPER (super_form.h) to bytes, in the names of
 * vec_int.h. */
#pragma once

#include "kernels/cpu/super_form.h"
#include "kernels/cpu/vec/vec_int.h"
#include "kernels/dequant_at.h"

/* Moves `width` bits of each byte from bit `from` to bit `to`. */
ALWAYS_INLINE vi super_bits(vi v, unsigned from, unsigned to, unsigned width)
{
    v = from > to ? vi_srl16(v, from - to) : to > from ? vi_sll16(v, to - from) : v;
    return vi_and(v, vi_set1_8((char)(((1U << width) - 1) << to)));
}

/* Returns table[code] + zero for 4-bit codes. */
ALWAYS_INLINE vi super_look_up(vi codes, struct super_form f)
{
    static const int8_t iq4[16] = DEQUANT_IQ4_TABLE, fp4[16] = DEQUANT_MXFP4_TABLE;
    __m128i table =
        _mm_loadu_si128((const __m128i *)(const void *)(f.table == SUPER_IQ4 ? iq4 : fp4));
    table = _mm_add_epi8(table, _mm_set1_epi8((char)f.zero));
    return VI(shuffle_epi8)(vi_broadcast128(table), codes);
}

/* Returns the codes of column group g of a run, without their zero: f.bits bits each, or bytes if
 * code_bits is 8. */
ALWAYS_INLINE vi super_codes(const uint8_t *run, struct super_form f, unsigned code_bits,
                             unsigned g)
{
    const unsigned bits = code_bits;
    if (bits == 8)
        return vi_loadu(run + g * 64);
    const uint8_t *high = run + (bits <= 3 ? 128 : 256);
    vi q = bits <= 3 ? super_bits(vi_loadu(run + g / 4 * 64), g % 4 * 2, 0, 2)
                     : super_bits(vi_loadu(run + g % 4 * 64), g / 4 * 4, 0, 4);
    if (bits == 6)
        q = vi_or(q, super_bits(vi_loadu(high + g / 4 * 64), g % 4 * 2, 4, 2));
    else if (bits % 2 == 1)
        q = vi_or(q, super_bits(vi_loadu(high), g, bits - 1, 1));
    return f.table != SUPER_NO_TABLE ? super_look_up(q, f) : q;
}
