/* super_codes_impl.h: unpacks the codes of PACK_SUPER (super_form.h) to bytes, in the names of
 * vec_int.h. */
#pragma once

#include "kernels/cpu/vec/vec_int.h"

/* Moves `width` bits of each byte from bit `from` to bit `to`. */
ALWAYS_INLINE vi super_bits(vi v, unsigned from, unsigned to, unsigned width)
{
    v = from > to ? vi_srl16(v, from - to) : to > from ? vi_sll16(v, to - from) : v;
    return vi_and(v, vi_set1_8((char)(((1U << width) - 1) << to)));
}

/* Returns the codes of column group g of a run. */
ALWAYS_INLINE vi super_codes(const uint8_t *run, unsigned bits, unsigned g)
{
    if (bits == 8)
        return vi_loadu(run + g * 64);
    const uint8_t *high = run + (bits <= 3 ? 128 : 256);
    vi q = bits <= 3 ? super_bits(vi_loadu(run + g / 4 * 64), g % 4 * 2, 0, 2)
                     : super_bits(vi_loadu(run + g % 4 * 64), g / 4 * 4, 0, 4);
    if (bits == 6)
        q = vi_or(q, super_bits(vi_loadu(high + g / 4 * 64), g % 4 * 2, 4, 2));
    else if (bits % 2 == 1)
        q = vi_or(q, super_bits(vi_loadu(high), g, bits - 1, 1));
    return q;
}
