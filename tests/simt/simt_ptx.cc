/* Operations of a whole warp, computed by the last lane to arrive, and copies into shared memory.
 */
#include "tests/simt/simt_ptx.h"

#include "kernels/maths.h"
#include "tests/simt/simt_word.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

/* --- words (simt_thread.h) --- */

void simt_complete_shuffle(void *const operands[SIMT_WARP], uint32_t lanes)
{
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        simt_word *own = (simt_word *)operands[__builtin_ctz(left)];
        bool exists = own->source < SIMT_WARP && (lanes >> own->source & 1);
        own->result = exists ? ((const simt_word *)operands[own->source])->value : UINT64_MAX;
    }
}

template <typename Add>
static void fold(void *const operands[SIMT_WARP], uint32_t lanes, uint64_t x, Add add)
{
    for (uint32_t left = lanes; left != 0; left &= left - 1) {
        unsigned lane = (unsigned)__builtin_ctz(left);
        x = add(x, ((const simt_word *)operands[lane])->value, lane);
    }
    for (uint32_t left = lanes; left != 0; left &= left - 1)
        ((simt_word *)operands[__builtin_ctz(left)])->result = x;
}

void simt_complete_ballot(void *const operands[SIMT_WARP], uint32_t lanes)
{
    fold(operands, lanes, 0, [](uint64_t x, uint64_t y, unsigned lane) { return x | y << lane; });
}

void simt_complete_sum(void *const operands[SIMT_WARP], uint32_t lanes)
{
    fold(operands, lanes, 0, [](uint64_t x, uint64_t y, unsigned) { return x + y; });
}

void simt_complete_max(void *const operands[SIMT_WARP], uint32_t lanes)
{
    fold(operands, lanes, (uint64_t)INT64_MIN,
         [](uint64_t x, uint64_t y, unsigned) { return (int64_t)y > (int64_t)x ? y : x; });
}

void simt_complete_min(void *const operands[SIMT_WARP], uint32_t lanes)
{
    fold(operands, lanes, (uint64_t)INT64_MAX,
         [](uint64_t x, uint64_t y, unsigned) { return (int64_t)y < (int64_t)x ? y : x; });
}

/* --- products --- */

uint32_t add_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t d = 0;
    for (int i = 0; i < 32; i += 16) { /* two bf16 have an exact sum in f64 if not far apart */
        double x = maths_bf16_to_f32((uint16_t)(a >> i)), y = maths_bf16_to_f32((uint16_t)(b >> i));
        d |= (uint32_t)maths_f32_to_bf16((float)(x + y)) << i;
    }
    return d;
}

static float from_bf16(uint16_t x)
{
    return simt_bits<float>((uint32_t)x << 16);
}

static float from_f16(uint16_t x)
{
#ifdef __F16C__
    return _cvtsh_ss(x);
#else
    float magnitude = (x & 0x7C00) == 0x7C00
                          ? simt_bits<float>(0x7F800000u | (uint32_t)(x & 0x3FF) << 13)
                          : simt_bits<float>((uint32_t)(x & 0x7FFF) << 13) * 0x1p112f;
    return x & 0x8000 ? -magnitude : magnitude;
#endif
}

/* E4M3: bias 7, no infinities, 0x7F and 0xFF are NaN. */
static float from_e4m3(uint8_t x)
{
    int exponent = x >> 3 & 15, fraction = x & 7;
    float magnitude =
        exponent == 0 ? ldexpf((float)fraction, -9) : ldexpf((float)(8 + fraction), exponent - 10);
    if ((x & 0x7F) == 0x7F)
        magnitude = NAN;
    return x & 0x80 ? -magnitude : magnitude;
}

template <typename Sum> struct mma_operand {
    Sum *d;
    const uint32_t *a, *b;
};

enum { MMA_M = 16, MMA_N = 8 };

static float add(float d, double sum)
{
    return (float)((double)d + sum);
}

static int32_t add(int32_t d, int32_t sum)
{
    return (int32_t)((uint32_t)d + (uint32_t)sum); /* wraps */
}

/* Loads two registers of a lane along K. They are `step` apart in the fragment, with half of K
 * between them. */
template <typename Element, unsigned K, typename Number, typename Widen>
static void unpack(Number *out, unsigned stride, const uint32_t *fragment, unsigned step,
                   unsigned t, Widen widen)
{
    constexpr unsigned n = 4 / sizeof(Element); /* in a register */
    for (unsigned r = 0; r < 2; r++) {
        Element elements[n];
        memcpy(elements, &fragment[r * step], sizeof(elements));
        for (unsigned i = 0; i < n; i++)
            out[(r * (K / 2) + t * n + i) * stride] = widen(elements[i]);
    }
}

/* Number: a type that holds the elements, their products and sums of K products exactly. Nearly
 * exact is enough if only the rounding to Sum shows. */
template <typename A, typename B, unsigned K, typename Number, typename Sum, typename WidenA,
          typename WidenB>
static void multiply(void *const operands[SIMT_WARP], WidenA widen_a, WidenB widen_b)
{
    constexpr unsigned n_parts = MMA_N * sizeof(Number) / 32;
    typedef Number part __attribute__((vector_size(32)));
    Number a[MMA_M][K], sums[MMA_N];
    part b[K][n_parts]; /* [K][MMA_N] */
    for (unsigned lane = 0; lane < SIMT_WARP; lane++) {
        const mma_operand<Sum> *own = (const mma_operand<Sum> *)operands[lane];
        unsigned g = lane / 4, t = lane % 4;
        unpack<A, K>(a[g], 1, own->a, 2, t, widen_a);
        unpack<A, K>(a[g + 8], 1, own->a + 1, 2, t, widen_a);
        unpack<B, K>((Number *)b + g, MMA_N, own->b, 1, t, widen_b);
    }
    for (unsigned m = 0; m < MMA_M; m++) {
        part low = {}, high = {};
        for (unsigned k = 0; k < K; k++) {
            low += a[m][k] * b[k][0];
            if constexpr (n_parts == 2)
                high += a[m][k] * b[k][1];
        }
        memcpy(sums, &low, sizeof(low));
        if constexpr (n_parts == 2)
            memcpy(&sums[MMA_N / 2], &high, sizeof(high));
        for (unsigned n = 0; n < MMA_N; n++) {
            const mma_operand<Sum> *own = (const mma_operand<Sum> *)operands[m % 8 * 4 + n / 2];
            Sum *d = &own->d[m / 8 * 2 + n % 2];
            *d = add(*d, sums[n]);
        }
    }
}

static void need_whole_warp(uint32_t lanes)
{
    if (lanes != 0xFFFFFFFFu)
        simt_fail("mma or ldmatrix in a warp of lanes %08x", lanes);
}

template <typename Sum>
static void mma(enum simt_exchange_kind kind, Sum *d, const uint32_t *a, const uint32_t *b,
                simt_complete *complete)
{
    mma_operand<Sum> operand = {d, a, b};
    simt_exchange(kind, 0xFFFFFFFFu, &operand, complete);
}

void mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma(SIMT_MMA_BF16, d, a, b, [](void *const operands[SIMT_WARP], uint32_t lanes) {
        need_whole_warp(lanes);
        multiply<uint16_t, uint16_t, 16, double, float>(operands, from_bf16, from_bf16);
    });
}

void mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma(SIMT_MMA_F16, d, a, b, [](void *const operands[SIMT_WARP], uint32_t lanes) {
        need_whole_warp(lanes);
        multiply<uint16_t, uint16_t, 16, double, float>(operands, from_f16, from_f16);
    });
}

/* --- conversions --- */

uint32_t pack_bf16x2(float x, float y)
{
    return maths_f32_to_bf16(x) | (uint32_t)maths_f32_to_bf16(y) << 16;
}

uint32_t pack_f16x2(float x, float y)
{
    return maths_f32_to_f16(x) | (uint32_t)maths_f32_to_f16(y) << 16;
}

void unpack_f16x2(float out[2], uint32_t pair)
{
    out[0] = from_f16((uint16_t)pair);
    out[1] = from_f16((uint16_t)(pair >> 16));
}

/* A difference of two f16 is exact in f64 and, but for the widest apart, in f32. */
uint32_t sub_f16x2(uint32_t x, uint32_t y)
{
    float a[2], b[2];
    unpack_f16x2(a, x);
    unpack_f16x2(b, y);
    return pack_f16x2(a[0] - b[0], a[1] - b[1]);
}

static const struct e4m3_table {
    float value[256];
    e4m3_table()
    {
        for (int i = 0; i < 256; i++)
            value[i] = from_e4m3((uint8_t)i);
    }
} e4m3;

void unpack_e4m3x4(uint32_t pairs[2], uint32_t codes)
{
    float x[4];
    for (int i = 0; i < 4; i++)
        x[i] = e4m3.value[codes >> (8 * i) & 0xFF];
    pairs[0] = pack_f16x2(x[0], x[1]);
    pairs[1] = pack_f16x2(x[2], x[3]);
}

void mma_m16n8k32_e4m3(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma(SIMT_MMA_E4M3, d, a, b, [](void *const operands[SIMT_WARP], uint32_t lanes) {
        auto widen = [](uint8_t x) { return e4m3.value[x]; };
        need_whole_warp(lanes);
        multiply<uint8_t, uint8_t, 32, double, float>(operands, widen, widen);
    });
}

void mma_m16n8k32_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma(SIMT_MMA_S8, d, a, b, [](void *const operands[SIMT_WARP], uint32_t lanes) {
        auto widen = [](int8_t x) { return (int32_t)x; };
        need_whole_warp(lanes);
        multiply<int8_t, int8_t, 32, int32_t, int32_t>(operands, widen, widen);
    });
}

void mma_m16n8k32_u8s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2])
{
    mma(SIMT_MMA_U8S8, d, a, b, [](void *const operands[SIMT_WARP], uint32_t lanes) {
        need_whole_warp(lanes);
        multiply<uint8_t, int8_t, 32, int32_t, int32_t>(
            operands, [](uint8_t x) { return (int32_t)x; }, [](int8_t x) { return (int32_t)x; });
    });
}

/* --- shared memory --- */

struct matrix_operand {
    uint32_t *r;
    const unsigned char *row;
};

static void load_rows(void *const operands[SIMT_WARP], uint32_t lanes)
{
    need_whole_warp(lanes);
    for (unsigned lane = 0; lane < SIMT_WARP; lane++)
        for (unsigned m = 0; m < 4; m++) {
            const unsigned char *row = ((matrix_operand *)operands[m * 8 + lane / 4])->row;
            memcpy(&((matrix_operand *)operands[lane])->r[m], row + lane % 4 * 4, 4);
        }
}

static void load_columns(void *const operands[SIMT_WARP], uint32_t lanes)
{
    need_whole_warp(lanes);
    for (unsigned lane = 0; lane < SIMT_WARP; lane++)
        for (unsigned m = 0; m < 4; m++) {
            uint16_t pair[2];
            for (unsigned i = 0; i < 2; i++) {
                unsigned row = lane % 4 * 2 + i, column = lane / 4;
                memcpy(&pair[i], ((matrix_operand *)operands[m * 8 + row])->row + column * 2, 2);
            }
            memcpy(&((matrix_operand *)operands[lane])->r[m], pair, 4);
        }
}

enum { WORD_BYTES = 4 };

static void check_shared(const char *what, const void *p, size_t n_bytes = 16)
{
    if ((uintptr_t)p % n_bytes != 0)
        simt_fail("%s: %p is not %zu-byte aligned", what, p, n_bytes);
    if (!simt_is_shared(p, n_bytes))
        simt_fail("%s: %p is not in the block's shared memory", what, p);
}

void ldmatrix_x4(uint32_t r[4], const void *shared_row)
{
    matrix_operand operand = {r, (const unsigned char *)shared_row};
    check_shared("ldmatrix_x4", shared_row);
    simt_exchange(SIMT_LDMATRIX, 0xFFFFFFFFu, &operand, load_rows);
}

void ldmatrix_x4_trans(uint32_t r[4], const void *shared_row)
{
    matrix_operand operand = {r, (const unsigned char *)shared_row};
    check_shared("ldmatrix_x4_trans", shared_row);
    simt_exchange(SIMT_LDMATRIX_TRANS, 0xFFFFFFFFu, &operand, load_columns);
}

static void check_global(const char *what, const void *p, size_t n_bytes = 16)
{
    if ((uintptr_t)p % n_bytes != 0)
        simt_fail("%s: %p is not %zu-byte aligned", what, p, n_bytes);
    if (simt_is_shared(p, n_bytes))
        simt_fail("%s: %p is shared memory, not global", what, p);
}

void cp_async_16(void *shared, const void *global, bool valid)
{
    simt_copy copy = {shared, {0}};
    check_shared("cp_async_16", shared);
    if (valid) {
        check_global("cp_async_16", global);
        memcpy(copy.bytes, global, sizeof(copy.bytes));
    }
    memset(shared, 0xFF, sizeof(copy.bytes));
    simt_tls.self->copies.push_back(copy);
}

void cp_async_once_16(void *shared, const void *global, bool valid)
{
    cp_async_16(shared, global, valid);
}

/* A copy of a word, whose place is marked by an odd address. */
void cp_async_4(void *shared, const void *global)
{
    simt_copy copy = {(unsigned char *)shared + 1, {0}};
    check_shared("cp_async_4", shared, WORD_BYTES);
    check_global("cp_async_4", global, WORD_BYTES);
    memcpy(copy.bytes, global, WORD_BYTES);
    memset(shared, 0xFF, WORD_BYTES);
    simt_tls.self->copies.push_back(copy);
}

/* Returns true if the copy was one of a word. */
static bool end_word(const simt_copy &copy)
{
    if ((uintptr_t)copy.to % WORD_BYTES == 0)
        return false;
    memcpy((unsigned char *)copy.to - 1, copy.bytes, WORD_BYTES);
    return true;
}

void cp_async_commit(void)
{
    simt_thread *self = simt_tls.self;
    self->copy_groups.push_back(self->copies.size() - self->n_grouped);
    self->n_grouped = self->copies.size();
}

void simt_cp_async_wait(unsigned n_under_way)
{
    simt_thread *self = simt_tls.self;
    size_t n_done = 0, n_groups = self->copy_groups.size();
    if (n_groups <= n_under_way)
        return;
    n_groups -= n_under_way;
    for (size_t i = 0; i < n_groups; i++)
        n_done += self->copy_groups[i];
    for (size_t i = 0; i < n_done; i++) {
        if (end_word(self->copies[i]))
            continue; /* no operand of wgmma */
        memcpy(self->copies[i].to, self->copies[i].bytes, sizeof(self->copies[i].bytes));
        simt_note_copy(self->copies[i].to);
    }
    self->copies.erase(self->copies.begin(), self->copies.begin() + (ptrdiff_t)n_done);
    self->copy_groups.erase(self->copy_groups.begin(),
                            self->copy_groups.begin() + (ptrdiff_t)n_groups);
    self->n_grouped -= n_done;
}

float exp2_near(float x)
{
    return x < -126.0f ? 0.0f : exp2f(x);
}

uint4 load_once_16(const void *global)
{
    uint4 x;
    check_global("load_once_16", global);
    memcpy(&x, global, sizeof(x));
    return x;
}
