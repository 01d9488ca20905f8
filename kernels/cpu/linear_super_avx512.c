/* linear_super_impl.h in AVX-512 VNNI: 16 outputs in the 16 dword lanes. From EXPAND_ROWS rows on
 * codes are unpacked to bytes once for all rows, and a tile is 6 rows × 2 panels. */
#include <immintrin.h>

#include "kernels/cpu/inner.h"
#include "kernels/cpu/stream_cpu.h"

typedef __m512i vi;

ALWAYS_INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
ALWAYS_INLINE vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
ALWAYS_INLINE vi vi_set1_8(char x)
{
    return _mm512_set1_epi8(x);
}
ALWAYS_INLINE vi vi_loadu(const void *p)
{
    return _mm512_loadu_si512(p);
}
ALWAYS_INLINE vi vi_load_i8(const void *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}
ALWAYS_INLINE vi vi_load_i16(const int16_t *p)
{
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
ALWAYS_INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
ALWAYS_INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
ALWAYS_INLINE vi vi_srl16(vi a, unsigned n)
{
    return _mm512_srl_epi16(a, _mm_cvtsi32_si128((int)n));
}
ALWAYS_INLINE vi vi_sll16(vi a, unsigned n)
{
    return _mm512_sll_epi16(a, _mm_cvtsi32_si128((int)n));
}
ALWAYS_INLINE vi vi_srl32(vi a, unsigned n)
{
    return _mm512_srl_epi32(a, _mm_cvtsi32_si128((int)n));
}
#define vi_srai32(a, n) _mm512_srai_epi32(a, n)
#define vi_slli32(a, n) _mm512_slli_epi32(a, n)
#define vi_slli64(a, n) _mm512_slli_epi64(a, n)
/* The odd dwords where the even ones are. */
ALWAYS_INLINE vi vi_srl64_32(vi a)
{
    return _mm512_srli_epi64(a, 32);
}
ALWAYS_INLINE vi vi_add32(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
ALWAYS_INLINE vi vi_add64(vi a, vi b)
{
    return _mm512_add_epi64(a, b);
}
ALWAYS_INLINE vi vi_sub64(vi a, vi b)
{
    return _mm512_sub_epi64(a, b);
}
ALWAYS_INLINE vi vi_mul32(vi a, vi b)
{
    return _mm512_mullo_epi32(a, b);
}
/* Products of the even dwords, signed, in 64 bits. */
ALWAYS_INLINE vi vi_mul64(vi a, vi b)
{
    return _mm512_mul_epi32(a, b);
}
/* acc + the products of 16-bit pairs. */
ALWAYS_INLINE vi vi_madd16(vi acc, vi a, vi b)
{
    return _mm512_dpwssd_epi32(acc, a, b);
}
/* acc + the products of four unsigned codes and four signed bytes. */
ALWAYS_INLINE vi vi_dot(vi acc, vi codes, vi a)
{
    return _mm512_dpbusd_epi32(acc, codes, a);
}

/* 16 finished totals of a row from output n on. */
ALWAYS_INLINE void super_put(const struct linear_job *job, uint32_t row, uint32_t n, vi even,
                             vi odd);

/* clang-format off */
#include "kernels/cpu/linear_super_impl.h"
/* clang-format on */

enum { EXPAND_ROWS = 8 };
_Static_assert(2 * (SUPER_MAX_K / RUN_K) * (INT8_RUN_BYTES + 256) <= STREAM_SCRATCH_BYTES,
               "two unpacked panels of the widest weight must fit the scratch of a member");

ALWAYS_INLINE void super_put(const struct linear_job *job, uint32_t row, uint32_t n, vi even,
                             vi odd)
{
    uint32_t left = job->w->base.n_rows - n;
    __mmask16 mask = (__mmask16)(left >= PANEL_ROWS ? 0xFFFF : (1U << left) - 1);
    if (job->y == NULL) {
        vi low = _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32)),
           high = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 16),
                                          _mm512_slli_epi64(_mm512_srli_epi64(odd, 16), 32));
        _mm512_mask_storeu_epi32(job->sums + row * job->sums_stride + n, mask,
                                 _mm512_and_si512(low, _mm512_set1_epi32(0xFFFF)));
        _mm512_mask_storeu_epi32(job->high + row * job->y_stride + n, mask, high);
        return;
    }
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    __m512 total = _mm512_permutex2var_ps(_mm512_castps256_ps512(_mm512_cvtepi64_ps(even)), order,
                                          _mm512_castps256_ps512(_mm512_cvtepi64_ps(odd)));
    __m512 scale = _mm512_mul_ps(_mm512_loadu_ps(weight_units(job->w) + n),
                                 _mm512_set1_ps(job->act->scale[row]));
    _mm512_mask_storeu_ps(job->y + row * job->y_stride + n, mask, _mm512_mul_ps(total, scale));
}

ALWAYS_INLINE void rows_packed(const struct linear_job *job, const struct linear_share *share,
                               uint32_t n, struct super_form f)
{
    struct super_source src = super_packed(job->w, f, n);
    uint32_t row = share->row_begin;
    for (; row + 4 <= share->row_end; row += 4)
        super_tile(job, row, &src, f, f.bits, 4);
    if (row + 2 <= share->row_end) {
        super_tile(job, row, &src, f, f.bits, 2);
        row += 2;
    }
    if (row < share->row_end)
        super_tile(job, row, &src, f, f.bits, 1);
}

/* Unpacks the codes of a panel to [run][group][row 16][4 columns]. */
ALWAYS_INLINE void expand(const struct super_source *src, struct super_form f, uint32_t n_runs,
                          uint32_t runs, uint8_t *dst)
{
    const uint8_t *super = src->codes[0];
    for (uint32_t i = 0; i < n_runs; super += src->code_super)
        for (uint32_t r = 0; r < runs && i < n_runs; r++, i++, dst += INT8_RUN_BYTES)
#pragma GCC unroll 8
            for (unsigned g = 0; g < 8; g++)
                _mm512_store_si512(dst + g * 64, super_codes(super + r * src->code_run, f.bits, g));
}

/* The scales and offsets of a panel as src->pairs has them. */
ALWAYS_INLINE void expand_scales(const struct super_source *src, struct super_form f,
                                 uint32_t n_runs, uint32_t runs, uint8_t *dst)
{
    const vi bits = vi_set1((1 << SUPER_LOW_BITS) - 1);
    const uint32_t n_halves = f.subs == 2 ? 2 : 1;
    const uint8_t *super = src->packed[0];
    for (uint32_t i = 0; i < n_runs; super += src->super_bytes) {
        const int16_t *isd = (const int16_t *)(const void *)super;
        for (uint32_t r = 0; r < runs && i < n_runs; r++, i++)
            for (uint32_t h = 0; h < n_halves; h++, dst += 128) {
                uint32_t sub = r * f.subs + h;
                vi scale = vi_load_i16(isd), offset = vi_zero();
                if (f.subs > 0)
                    scale = vi_mul32(scale, super_scale(src, super, f, NULL, i, sub));
                if (f.offsets)
                    offset = vi_load_i16(isd + PANEL_ROWS);
                if (f.offsets && f.subs > 0) {
                    vi mins = vi_loadu(super + src->at.mins + sub / 4 * 64);
                    mins = vi_and(vi_srl32(mins, 8 * super_min_byte(sub)), vi_set1(255));
                    offset = vi_mul32(offset, mins);
                }
                _mm512_store_si512(dst,
                                   vi_or(vi_and(scale, bits), vi_slli32(vi_and(offset, bits), 16)));
                scale = vi_and(vi_srai32(scale, SUPER_LOW_BITS), vi_set1(0xFFFF));
                _mm512_store_si512(dst + 64,
                                   vi_or(scale, vi_slli32(vi_srai32(offset, SUPER_LOW_BITS), 16)));
            }
    }
}

/* Panels n and next (which may be the same: then it is done twice). */
ALWAYS_INLINE void rows_expanded(const struct linear_job *job, const struct linear_share *share,
                                 uint32_t n, uint32_t next, struct super_form f)
{
    const struct weight_cpu *w = job->w;
    uint32_t runs = f.bits == 8 ? 8 : w->super_runs, n_runs = w->k_pad / RUN_K;
    struct super_source src = super_packed(w, f, n), second = super_packed(w, f, next);
    src.n = 2;
    src.packed[1] = second.packed[0];
    src.outputs[1] = next;
    src.codes[1] = second.codes[0];
    if (f.bits < 8) {
        size_t code_bytes = (size_t)n_runs * INT8_RUN_BYTES;
        uint8_t *bytes = share->scratch, *pairs = bytes + 2 * code_bytes;
        uint8_t *other = pairs + (size_t)n_runs * (f.subs == 2 ? 256 : 128);
        expand(&src, f, n_runs, runs, bytes);
        expand_scales(&src, f, n_runs, runs, pairs);
        src.codes[0] = src.codes[1] = bytes;
        src.pairs[0] = src.pairs[1] = pairs;
        if (next != n) {
            expand(&second, f, n_runs, runs, bytes + code_bytes);
            expand_scales(&second, f, n_runs, runs, other);
            src.codes[1] = bytes + code_bytes;
            src.pairs[1] = other;
        }
        src.code_run = INT8_RUN_BYTES;
        src.code_super = runs * INT8_RUN_BYTES;
    }
    uint32_t row = share->row_begin;
    for (; row + 6 <= share->row_end; row += 6)
        super_tile(job, row, &src, f, 8, 6);
    if (row + 4 <= share->row_end) {
        super_tile(job, row, &src, f, 8, 4);
        row += 4;
    }
    if (row + 2 <= share->row_end) {
        super_tile(job, row, &src, f, 8, 2);
        row += 2;
    }
    if (row < share->row_end)
        super_tile(job, row, &src, f, 8, 1);
}

ALWAYS_INLINE void linear_form(const struct linear_job *job, const struct linear_share *share,
                               struct super_form f)
{
    uint32_t n = share->n_begin;
    if (share->row_end - share->row_begin < EXPAND_ROWS) {
        for (; n < share->n_end; n += PANEL_ROWS)
            rows_packed(job, share, n, f);
        return;
    }
    for (; n < share->n_end; n += 2 * PANEL_ROWS)
        rows_expanded(job, share, n, n + PANEL_ROWS < share->n_end ? n + PANEL_ROWS : n, f);
}

void linear_super_avx512(const struct linear_job *job, const struct linear_share *share)
{
    switch ((enum dtype)job->w->base.source) {
#define FORM(type)                                                                                 \
    case type:                                                                                     \
        linear_form(job, share, super_forms[type]);                                                \
        break;
        FORM(DTYPE_Q8_0)
        FORM(DTYPE_Q5_0)
        FORM(DTYPE_Q5_1)
        FORM(DTYPE_Q2_K)
        FORM(DTYPE_Q3_K)
        FORM(DTYPE_Q5_K)
        FORM(DTYPE_Q6_K)
    default:
        break;
    }
}
