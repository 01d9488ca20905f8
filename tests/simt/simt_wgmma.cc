/* Multiplications of a warpgroup. Each warp queues the product of its 16 of 64 rows, and the wait
 * runs it. Source of layouts: PTX ISA, "Shared Memory Matrix Layout" (128-byte swizzle, rows along
 * k or along n) and "Register Fragments for wgmma.mma_async.m64nNk16". */
#include "tests/simt/simt_wgmma.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/maths.h"

enum {
    BASE = 1024 + 128, /* address of dynamic shared memory */
    ROWS = 16,         /* rows of a warp */
    K = 16,
    MAX_K = SIMT_WGMMA_K, /* elements of 8 bits */
    WARPS = 4,
    MAX_SUMS = 128,
    A_WORDS = 4, /* registers of A */
};

/* A form of the instruction. */
struct form {
    unsigned n;           /* columns */
    bool is_f16;          /* else bf16 */
    bool has_a_registers; /* else A lies in shared memory */
    bool has_turned_b;    /* rows of B lie along n, not along k */
    bool is_e4m3 = false; /* 8 bits, 32 along k, both in shared memory along k */

    bool operator==(const form &other) const
    {
        return n == other.n && is_f16 == other.is_f16 && has_a_registers == other.has_a_registers &&
               has_turned_b == other.has_turned_b && is_e4m3 == other.is_e4m3;
    }
};

/* The multiplication as one thread describes it. */
struct simt_wgmma_call {
    form shape;
    float *d;
    bool adds;
    uint64_t a, b;
    const uint32_t *a_registers;
    /* contents of these registers when the multiplication was queued */
    uint32_t a_words[A_WORDS];
    uint64_t sum_of_a, sum_of_b; /* checksums of the operands at that time */
    bool is_last;                /* last multiplication of its group */
    bool has_sums;               /* the multiplication is the first one on its sums d */
    float sums[MAX_SUMS];        /* values of d before it */
};

uint32_t wgmma_address(const void *shared)
{
    if (!simt_is_shared(shared, 1))
        simt_fail("wgmma_address: %p is not in the block's shared memory", shared);
    return (uint32_t)((const unsigned char *)shared - simt_tls.block->dynamic_shared) + BASE;
}

/* --- operands --- */

static uint32_t begin_of(uint64_t matrix)
{
    return (uint32_t)(matrix & 0x3FFF) << 4;
}

/* Bytes between groups of 64 columns, for rows along n. */
static uint32_t leading_of(uint64_t matrix)
{
    return (uint32_t)(matrix >> 16 & 0x3FFF) << 4;
}

/* Bytes between groups of eight rows. */
static uint32_t stride_of(uint64_t matrix)
{
    return (uint32_t)(matrix >> 32 & 0x3FFF) << 4;
}

static void check_layout(const char *what, uint64_t matrix)
{
    if (matrix >> 62 != 1 || stride_of(matrix) != 1024 || (matrix >> 49 & 7) != 0)
        simt_fail("wgmma: descriptor %016llx of %s is of another layout than 128-byte rows, turned",
                  (unsigned long long)matrix, what);
}

/* The layout swizzles within eight rows of 128 bytes: bits 4 to 6 of an address are XORed with the
 * row's bits, 7 to 9. */
static const unsigned char *shared_at(uint32_t at)
{
    const simt_block *block = simt_tls.block;
    at ^= (at >> 7 & 7) << 4;
    if (at < BASE || at - BASE + 16 > block->dynamic_shared_bytes)
        simt_fail("wgmma: address %u is not in the block's shared memory", at);
    return block->dynamic_shared + (at - BASE);
}

/* Returns 16 bytes of a row that lies along k (a step has two). */
static const unsigned char *piece_at(uint64_t matrix, unsigned row, unsigned piece)
{
    return shared_at(begin_of(matrix) + row / 8 * stride_of(matrix) + row % 8 * 128 + piece * 16);
}

/* Returns 16 bytes, columns 8 · piece and following, of row k of a matrix whose rows lie along
 * n. */
static const unsigned char *turned_piece_at(uint64_t matrix, unsigned k, unsigned piece)
{
    return shared_at(begin_of(matrix) + k / 8 * stride_of(matrix) + k % 8 * 128 +
                     piece / 8 * leading_of(matrix) + piece % 8 * 16);
}

/* Calls see(bytes) for each 16 bytes of an operand. */
template <typename See>
static void each_piece(uint64_t matrix, unsigned first, unsigned n_rows, bool turned, See see)
{
    if (turned) {
        for (unsigned k = 0; k < K; k++)
            for (unsigned piece = 0; piece < n_rows / 8; piece++)
                see(turned_piece_at(matrix, k, piece));
        return;
    }
    for (unsigned row = first; row < first + n_rows; row++)
        for (unsigned piece = 0; piece < 2; piece++)
            see(piece_at(matrix, row, piece));
}

static uint64_t sum_of(uint64_t matrix, unsigned first, unsigned n_rows, bool turned)
{
    uint64_t sum = 1469598103934665603u;
    each_piece(matrix, first, n_rows, turned, [&sum](const unsigned char *piece) {
        uint64_t words[2];
        memcpy(words, piece, sizeof(words));
        sum = sum * 1099511628211u + (words[0] * 0x9E3779B97F4A7C15u ^ words[1]);
    });
    return sum;
}

static unsigned first_row(void)
{
    return simt_tls.self->warp % WARPS * ROWS;
}

/* --- queueing --- */

static void check_fenced(const char *what, uint64_t matrix, unsigned n_rows, bool turned)
{
    const simt_thread *t = NULL;
    if (!simt_any_unfenced())
        return;
    each_piece(matrix, 0, n_rows, turned,
               [&t](const unsigned char *piece) { t = t != NULL ? t : simt_unfenced(piece); });
    if (t != NULL)
        simt_fail("wgmma: thread %u has copied to %s without wgmma_fence_shared",
                  t->warp * SIMT_WARP + t->lane, what);
}

static void queue(void *const operands[SIMT_WARP], uint32_t lanes)
{
    simt_wgmma_call *first = (simt_wgmma_call *)operands[0];
    const form &shape = first->shape;
    if (lanes != 0xFFFFFFFFu)
        simt_fail("wgmma in a warp of lanes %08x", lanes);
    if (!shape.has_a_registers)
        check_layout("A", first->a);
    check_layout("B", first->b);
    for (unsigned lane = 1; lane < SIMT_WARP; lane++) {
        const simt_wgmma_call *other = (const simt_wgmma_call *)operands[lane];
        if (other->a != first->a || other->b != first->b || other->adds != first->adds ||
            !(other->shape == shape))
            simt_fail("wgmma: lane %u has another form or other descriptors than lane 0", lane);
    }
    if (!shape.has_a_registers) {
        check_fenced("A", first->a, WARPS * ROWS, false);
        first->sum_of_a = sum_of(first->a, first_row(), ROWS, false);
    }
    check_fenced("B", first->b, shape.n, shape.has_turned_b);
    first->sum_of_b = sum_of(first->b, 0, shape.n, shape.has_turned_b);
}

static unsigned n_sums(const form &shape)
{
    return shape.n / 2;
}

/* Returns the first multiplication under way on the sums d; NULL: none. */
static simt_wgmma_call *under_way(const float *d)
{
    for (simt_wgmma_call *call : simt_tls.self->wgmma_calls)
        if (call->d == d)
            return call;
    return NULL;
}

static void multiply(const form &shape, float *d, bool adds, const uint32_t *a_registers,
                     uint64_t a, uint64_t b)
{
    simt_thread *self = simt_tls.self;
    if (!self->wgmma_fenced)
        simt_fail("wgmma: no wgmma_fence since the last wgmma_commit");
    const simt_wgmma_call *before = under_way(d);
    simt_wgmma_call call = {shape, d,     adds,           a,  b, a_registers, {0}, 0,
                            0,     false, before == NULL, {0}};
    size_t n_bytes = n_sums(shape) * sizeof(float);
    if (a_registers != NULL)
        memcpy(call.a_words, a_registers, sizeof(call.a_words));
    for (const simt_wgmma_call *other : self->wgmma_calls)
        if (other->d != d && d + n_sums(shape) > other->d && other->d + n_sums(other->shape) > d)
            simt_fail("wgmma: sums of two multiplications under way overlap");
    if (before != NULL && before->shape.n != shape.n)
        simt_fail("wgmma: multiplications of two shapes are under way on the same sums");
    if (call.has_sums) {
        memcpy(call.sums, d, n_bytes);
        memset(d, 0xFF, n_bytes);
    }
    simt_exchange(SIMT_WGMMA, 0xFFFFFFFFu, &call, queue);
    self->wgmma_calls.push_back(new simt_wgmma_call(call));
}

void wgmma_m64n256k16_bf16(float d[128], uint64_t a, uint64_t b)
{
    multiply({256, false, false, false}, d, true, NULL, a, b);
}

void wgmma_m64n256k16_f16(float d[128], uint64_t a, uint64_t b)
{
    multiply({256, true, false, false}, d, true, NULL, a, b);
}

void wgmma_m64n128k16_bf16(float d[64], uint64_t a, uint64_t b, bool adds)
{
    multiply({128, false, false, false}, d, adds, NULL, a, b);
}

void wgmma_m64n128k16_f16(float d[64], uint64_t a, uint64_t b, bool adds)
{
    multiply({128, true, false, false}, d, adds, NULL, a, b);
}

void wgmma_turned_m64n128k16_bf16(float d[64], const uint32_t a[4], uint64_t b)
{
    multiply({128, false, true, true}, d, true, a, 0, b);
}

void wgmma_turned_m64n128k16_f16(float d[64], const uint32_t a[4], uint64_t b)
{
    multiply({128, true, true, true}, d, true, a, 0, b);
}

void wgmma_turned_m64n64k16_bf16(float d[32], const uint32_t a[4], uint64_t b)
{
    multiply({64, false, true, true}, d, true, a, 0, b);
}

void wgmma_turned_m64n64k16_f16(float d[32], const uint32_t a[4], uint64_t b)
{
    multiply({64, true, true, true}, d, true, a, 0, b);
}

void wgmma_m64n128k32_e4m3_first(float d[64], uint64_t a, uint64_t b)
{
    multiply({128, false, false, false, true}, d, false, NULL, a, b);
}

void wgmma_m64n128k32_e4m3(float d[64], uint64_t a, uint64_t b)
{
    multiply({128, false, false, false, true}, d, true, NULL, a, b);
}

void wgmma_fence_shared(void)
{
    simt_fence_copies();
}

void wgmma_fence(void)
{
    simt_tls.self->wgmma_fenced = true;
}

void wgmma_commit(void)
{
    simt_thread *self = simt_tls.self;
    self->wgmma_fenced = false;
    if (!self->wgmma_calls.empty())
        self->wgmma_calls.back()->is_last = true;
}

/* --- waiting --- */

static float widen(uint16_t half, bool is_f16)
{
    return is_f16 ? maths_f16_to_f32(half) : maths_bf16_to_f32(half);
}

static unsigned n_k(const form &shape)
{
    return shape.is_e4m3 ? MAX_K : K;
}

static void widen_bytes(float out[MAX_K], uint64_t matrix, unsigned row)
{
    for (unsigned piece = 0; piece < 2; piece++) {
        const unsigned char *codes = piece_at(matrix, row, piece);
        for (unsigned i = 0; i < 16; i++)
            out[piece * 16 + i] = maths_f8_to_f32(codes[i]);
    }
}

static void widen_row(float out[MAX_K], uint64_t matrix, unsigned row, const form &shape)
{
    if (shape.is_e4m3) {
        widen_bytes(out, matrix, row);
        return;
    }
    for (unsigned piece = 0; piece < 2; piece++) {
        uint16_t halves[8];
        memcpy(halves, piece_at(matrix, row, piece), sizeof(halves));
        for (unsigned i = 0; i < 8; i++)
            out[piece * 8 + i] = widen(halves[i], shape.is_f16);
    }
}

/* Writes B to b[k][n]. */
static void widen_turned(double *b, uint64_t matrix, unsigned n, bool is_f16)
{
    for (unsigned k = 0; k < K; k++)
        for (unsigned piece = 0; piece < n / 8; piece++) {
            uint16_t halves[8];
            memcpy(halves, turned_piece_at(matrix, k, piece), sizeof(halves));
            for (unsigned i = 0; i < 8; i++)
                b[k * n + piece * 8 + i] = (double)widen(halves[i], is_f16);
        }
}

static void widen_columns(double *b, uint64_t matrix, const form &shape)
{
    float column[MAX_K];
    for (unsigned n = 0; n < shape.n; n++) {
        widen_row(column, matrix, n, shape);
        for (unsigned k = 0; k < n_k(shape); k++)
            b[k * shape.n + n] = (double)column[k];
    }
}

/* Returns true if no number is infinite or NaN: 0 · x is then 0 for each x. */
static bool are_finite(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * 0.0;
    return sum == 0;
}

/* Returns B until the next call in this block. */
static const simt_columns *columns_of(const simt_wgmma_call *call)
{
    const form &shape = call->shape;
    simt_columns *c = &simt_tls.block->columns;
    uint32_t kind = shape.n << 3 | (uint32_t)shape.is_f16 << 2 | (uint32_t)shape.has_turned_b << 1 |
                    (uint32_t)shape.is_e4m3;
    if (c->kind == kind && c->sum == call->sum_of_b)
        return c;
    if (shape.has_turned_b)
        widen_turned(c->numbers, call->b, shape.n, shape.is_f16);
    else
        widen_columns(c->numbers, call->b, shape);
    c->kind = kind;
    c->sum = call->sum_of_b;
    c->is_finite = are_finite(c->numbers, (size_t)n_k(shape) * shape.n);
    return c;
}

/* Reads row `row` of the warp's 16 rows of A from the lanes' registers. */
static void gather_row(float out[K], void *const operands[SIMT_WARP], unsigned row, bool is_f16)
{
    for (unsigned k = 0; k < K; k++) {
        const simt_wgmma_call *lane = (const simt_wgmma_call *)operands[row % 8 * 4 + k % 8 / 2];
        uint32_t word = lane->a_words[row / 8 + k / 8 * 2];
        out[k] = widen((uint16_t)(k % 2 ? word >> 16 : word), is_f16);
    }
}

/* SIMT_WGMMA=wrong multiplies wrongly. SIMT_WGMMA=askew rounds differently in all warps but the
 * first. The startup checks should find both. */
static float error_of_rows(void)
{
    static const char *const text = getenv("SIMT_WGMMA");
    static const bool wrong = text != NULL && strcmp(text, "wrong") == 0;
    static const bool askew = text != NULL && strcmp(text, "askew") == 0;
    return wrong ? 0.25f : askew && first_row() != 0 ? 2e-6f : 0.0f;
}

static void check_unchanged(void *const operands[SIMT_WARP])
{
    const simt_wgmma_call *first = (const simt_wgmma_call *)operands[0];
    const form &shape = first->shape;
    if ((!shape.has_a_registers && first->sum_of_a != sum_of(first->a, first_row(), ROWS, false)) ||
        first->sum_of_b != sum_of(first->b, 0, shape.n, shape.has_turned_b))
        simt_fail("wgmma: its operands in shared memory were written before it was waited for");
    for (unsigned lane = 0; lane < SIMT_WARP; lane++) {
        const simt_wgmma_call *call = (const simt_wgmma_call *)operands[lane];
        if (call->a_registers != NULL &&
            memcmp(call->a_registers, call->a_words, sizeof(call->a_words)) != 0)
            simt_fail("wgmma: its operand in registers was changed before it was waited for");
        uint32_t all = UINT32_MAX, words[MAX_SUMS];
        memcpy(words, call->d, n_sums(shape) * sizeof(float));
        for (unsigned i = 0; i < n_sums(shape); i++)
            all &= words[i];
        if (all != UINT32_MAX)
            simt_fail("wgmma: its sums were changed before it was waited for");
    }
}

/* Returns the first 14 bits of a sum. */
static float cut(float sum)
{
    return simt_bits<float>(simt_bits<uint32_t>(sum) & ~0x3FFu);
}

enum { PART = 16 }; /* columns that are summed side by side; each sum runs along k */

static void multiply_row(const form &shape, const float a[MAX_K], const double *b,
                         double sums[PART])
{
    typedef double part __attribute__((vector_size(32)));
    typedef double columns __attribute__((vector_size(32), aligned(8), may_alias));
    part s0 = {}, s1 = {}, s2 = {}, s3 = {};
    for (unsigned k = 0; k < n_k(shape); k++) {
        const columns *x = (const columns *)(b + k * shape.n);
        s0 += (double)a[k] * x[0];
        s1 += (double)a[k] * x[1];
        s2 += (double)a[k] * x[2];
        s3 += (double)a[k] * x[3];
    }
    const part all[] = {s0, s1, s2, s3};
    memcpy(sums, all, sizeof(all));
}

static bool is_all_zero(const float *x, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (x[i] != 0.0f)
            return false;
    return true;
}

static void finish(void *const operands[SIMT_WARP], uint32_t)
{
    const simt_wgmma_call *first = (const simt_wgmma_call *)operands[0];
    const form &shape = first->shape;
    double sums[PART];
    const float error = error_of_rows();
    float a[MAX_K];
    check_unchanged(operands);
    const simt_columns *b = columns_of(first);
    for (unsigned row = 0; row < ROWS; row++) {
        if (shape.has_a_registers)
            gather_row(a, operands, row, shape.is_f16);
        else
            widen_row(a, first->a, first_row() + row, shape);
        /* most rows of a small prompt's tile */
        bool is_zero = b->is_finite && is_all_zero(a, n_k(shape));
        if (is_zero)
            memset(sums, 0, sizeof(sums));
        for (unsigned n = 0; n < shape.n; n++) {
            simt_wgmma_call *own = (simt_wgmma_call *)operands[row % 8 * 4 + n % 8 / 2];
            float *d = &own->sums[n / 8 * 4 + row / 8 * 2 + n % 2];
            if (n % PART == 0 && !is_zero)
                multiply_row(shape, a, b->numbers + n, sums);
            *d = (float)((first->adds ? (double)*d : 0.0) + sums[n % PART] + error);
            *d = shape.is_e4m3 ? cut(*d) : *d;
        }
    }
}

/* Gives the sums to the next multiplication on them, else to the kernel. */
static void hand_over(const simt_wgmma_call *call)
{
    size_t n_bytes = n_sums(call->shape) * sizeof(float);
    simt_wgmma_call *next = under_way(call->d);
    if (next != NULL)
        next->has_sums = true;
    memcpy(next != NULL ? next->sums : call->d, call->sums, n_bytes);
}

static void wait(unsigned n_under_way)
{
    std::vector<simt_wgmma_call *> &calls = simt_tls.self->wgmma_calls;
    unsigned n_groups = 0;
    for (const simt_wgmma_call *call : calls)
        n_groups += call->is_last;
    if (!calls.empty() && !calls.back()->is_last)
        simt_fail("wgmma_wait: multiplications without wgmma_commit");
    for (; n_groups > n_under_way;) {
        simt_wgmma_call *call = calls.front();
        simt_exchange(SIMT_WGMMA_WAIT, 0xFFFFFFFFu, call, finish);
        n_groups -= call->is_last;
        calls.erase(calls.begin());
        hand_over(call);
        delete call;
    }
}

void wgmma_wait_but_one(void)
{
    wait(1);
}

void wgmma_wait_all(void)
{
    wait(0);
}

void simt_wgmma_settled(const float *d)
{
    if (under_way(d) != NULL)
        simt_fail("wgmma: sums are used that were not waited for");
}

static void wait_for(const float *d)
{
    std::vector<simt_wgmma_call *> &calls = simt_tls.self->wgmma_calls;
    if (!calls.empty() && calls.front()->d != d)
        simt_fail("wgmma_wait: other sums than those under way");
    wait(0);
}

void wgmma_wait(float d[128])
{
    wait_for(d);
}

void wgmma_wait_64(float d[64])
{
    wait_for(d);
}
