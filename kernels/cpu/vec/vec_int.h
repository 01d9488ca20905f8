/* vec_int.h: vectors of dwords for the integer linears, with the same names for both instruction
 * sets. The includer defines vi, VI(op) as the set's intrinsic, and VI_SI(op) as the intrinsic on
 * whole registers. The includer also defines the functions that differ between the sets:
 * vi_broadcast128, vi_load_i8, vi_load_i16, vi_load_u16, vi_madd16, vi_dot,
 * vi_dot_bytes. */
#pragma once

#include "kernels/cpu/inner.h"

ALWAYS_INLINE vi vi_zero(void)
{
    return VI_SI(setzero)();
}
ALWAYS_INLINE vi vi_set1(int32_t x)
{
    return VI(set1_epi32)(x);
}
ALWAYS_INLINE vi vi_set1_8(char x)
{
    return VI(set1_epi8)(x);
}
ALWAYS_INLINE vi vi_loadu(const void *p)
{
    return VI_SI(loadu)((const vi *)p);
}
ALWAYS_INLINE void vi_store(void *p, vi a)
{
    VI_SI(store)((vi *)p, a);
}
ALWAYS_INLINE vi vi_and(vi a, vi b)
{
    return VI_SI(and)(a, b);
}
ALWAYS_INLINE vi vi_or(vi a, vi b)
{
    return VI_SI(or)(a, b);
}
ALWAYS_INLINE vi vi_srl16(vi a, unsigned n)
{
    return VI(srl_epi16)(a, _mm_cvtsi32_si128((int)n));
}
ALWAYS_INLINE vi vi_sll16(vi a, unsigned n)
{
    return VI(sll_epi16)(a, _mm_cvtsi32_si128((int)n));
}
ALWAYS_INLINE vi vi_srl32(vi a, unsigned n)
{
    return VI(srl_epi32)(a, _mm_cvtsi32_si128((int)n));
}
#define vi_srai32(a, n) VI(srai_epi32)(a, n)
#define vi_slli32(a, n) VI(slli_epi32)(a, n)
#define vi_slli64(a, n) VI(slli_epi64)(a, n)
/* Moves the odd dwords to the places of the even ones. */
ALWAYS_INLINE vi vi_srl64_32(vi a)
{
    return VI(srli_epi64)(a, 32);
}
ALWAYS_INLINE vi vi_sub32(vi a, vi b)
{
    return VI(sub_epi32)(a, b);
}
ALWAYS_INLINE vi vi_add64(vi a, vi b)
{
    return VI(add_epi64)(a, b);
}
ALWAYS_INLINE vi vi_sub64(vi a, vi b)
{
    return VI(sub_epi64)(a, b);
}
ALWAYS_INLINE vi vi_mul32(vi a, vi b)
{
    return VI(mullo_epi32)(a, b);
}
/* Multiplies the even dwords, signed, to 64 bits. */
ALWAYS_INLINE vi vi_mul64(vi a, vi b)
{
    return VI(mul_epi32)(a, b);
}
/* Returns a + b, added in this order. Otherwise gcc makes a tree of a longer sum and keeps all
 * terms in registers. */
ALWAYS_INLINE vi vi_add32(vi a, vi b)
{
    a = VI(add_epi32)(a, b);
    __asm__("" : "+v"(a));
    return a;
}
ALWAYS_INLINE int32_t four_at(const void *p)
{
    int32_t four;
    __builtin_memcpy(&four, p, sizeof(four));
    return four;
}
