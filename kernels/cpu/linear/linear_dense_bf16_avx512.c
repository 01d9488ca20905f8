/* BF16 linears by vdpbf16ps, two columns per instruction. The bits are those of
 * linear_dense_avx512.c (dense.h). The rate is twice as high if the processor issues vdpbf16ps as
 * often as an FMA. */
/* Include order matters: each header uses functions of the headers above it. */
/* clang-format off */
#include "kernels/cpu/vec/vec_avx512.h"

#define DENSE_ROWS      12
#define DENSE_BF16_ROWS 12
#define DENSE_PAIR_ROWS 12
#define DENSE_DOT_BF16(acc, w, x)                                                                  \
    _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(w), (__m512bh)_mm512_castps_si512(x))

#include "kernels/cpu/linear/dense_impl.h"
/* clang-format on */

#include <math.h>
#include <pthread.h>
#include <string.h>

void dense_linear_bf16_avx512(const struct linear_job *job, const struct linear_share *share)
{
    if (job->w->format == PACK_BF16)
        dense_share(job, share, FORM_BF16_DOT);
    else
        dense_linear_avx512(job, share);
}

enum { CHECKS = 256, LANES = 16 };

static bool dot_checks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Returns a pseudo-random bf16 of either sign between 2^-12 and 2^4. */
static uint16_t draw_bf16(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    uint32_t bits = *state >> 12;
    return (uint16_t)((bits & 0x807F) | (115 + (bits >> 8) % 16) << 7);
}

static float from_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Compares chains of products by the instruction with chains of FMAs, the odd column first. */
static void check_dot(void)
{
    uint32_t state = 1;
    float want[LANES] = {0}, got[LANES];
    __m512 acc = _mm512_setzero_ps();
    dot_checks = true;
    for (int i = 0; i < CHECKS; i++) {
        uint16_t w[2 * LANES], x[2 * LANES];
        for (int j = 0; j < 2 * LANES; j++) {
            w[j] = draw_bf16(&state);
            x[j] = draw_bf16(&state);
        }
        acc = DENSE_DOT_BF16(acc, _mm512_loadu_ps(w), _mm512_loadu_ps(x));
        _mm512_storeu_ps(got, acc);
        for (int j = 0; j < LANES; j++) {
            want[j] = fmaf(from_bf16(w[2 * j + 1]), from_bf16(x[2 * j + 1]), want[j]);
            want[j] = fmaf(from_bf16(w[2 * j]), from_bf16(x[2 * j]), want[j]);
            dot_checks = dot_checks && got[j] == want[j];
        }
    }
}

bool dense_dot_bf16_checks(void)
{
    pthread_once(&once, check_dot);
    return dot_checks;
}
