/* The warpgroup's multiplication: queued by each warp for its 16 of 64 rows, done when it is waited
 * for. Source of layouts: PTX ISA, "Shared Memory Matrix Layout" (k along a row, 128-byte swizzle)
 * and "Register Fragments for wgmma.mma_async.m64nNk16". */
#include "tests/simt/simt_wgmma.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/maths.h"

enum {
    BASE = 1024 + 128, /* address of dynamic shared memory */
    ROWS = 16,         /* rows of a warp */
    COLUMNS = 256,
    K = 16,
    WARPS = 4,
    N_SUMS = 128,
};

/* The multiplication as one thread describes it. */
struct simt_wgmma_call {
    float *d;
    uint64_t a, b;
    bool is_f16;
    uint64_t sum_of_a, sum_of_b; /* checksums of the operands when the multiplication was queued */
    bool is_last;                /* last multiplication of its group */
    bool has_sums;               /* the first of those on d: */
    float sums[N_SUMS];          /* d as it was */
};

uint32_t wgmma_address(const void *shared)
{
    if (!simt_is_shared(shared, 1))
        simt_fail("wgmma_address: %p is not in the block's shared memory", shared);
    return (uint32_t)((const unsigned char *)shared - simt_tls.block->dynamic_shared) + BASE;
}

/* --- operands --- */

static void check_layout(const char *what, uint64_t matrix)
{
    if (matrix >> 62 != 1 || (matrix >> 32 & 0x3FFF) != 1024 / 16 || (matrix >> 49 & 7) != 0)
        simt_fail("wgmma: descriptor %016llx of %s is of another layout than 128-byte rows, turned",
                  (unsigned long long)matrix, what);
}

/* Returns 16 bytes of a row (a step has two). The layout swizzles within eight rows of 128 bytes:
 * bits 4 to 6 of an address are XORed with the row's bits, 7 to 9. */
static const unsigned char *piece_at(uint64_t matrix, unsigned row, unsigned piece)
{
    uint32_t begin = (uint32_t)(matrix & 0x3FFF) << 4, eight = (uint32_t)(matrix >> 32 & 0x3FFF)
                                                               << 4;
    uint32_t at = begin + row / 8 * eight + row % 8 * 128 + piece * 16;
    at ^= (at >> 7 & 7) << 4;
    const unsigned char *shared = simt_tls.block->dynamic_shared + (at - BASE);
    if (at < BASE || !simt_is_shared(shared, 16))
        simt_fail("wgmma: address %u is not in the block's shared memory", at);
    return shared;
}

static uint64_t sum_of(uint64_t matrix, unsigned first, unsigned n_rows)
{
    uint64_t sum = 1469598103934665603u;
    for (unsigned row = first; row < first + n_rows; row++)
        for (unsigned piece = 0; piece < 2; piece++) {
            uint64_t words[2];
            memcpy(words, piece_at(matrix, row, piece), sizeof(words));
            sum = ((sum ^ words[0]) * 1099511628211u ^ words[1]) * 1099511628211u;
        }
    return sum;
}

static unsigned first_row(void)
{
    return simt_tls.self->warp % WARPS * ROWS;
}

/* --- queueing --- */

static void check_fenced(const char *what, uint64_t matrix, unsigned n_rows)
{
    const unsigned char *first = simt_tls.block->dynamic_shared - BASE;
    first += ((uint32_t)(matrix & 0x3FFF) << 4) / 1024 * 1024;
    const simt_thread *t = simt_unfenced(first, n_rows * 128);
    if (t != NULL)
        simt_fail("wgmma: thread %u has copied to %s without wgmma_fence_shared",
                  t->warp * SIMT_WARP + t->lane, what);
}

static void queue(void *const operands[SIMT_WARP], uint32_t lanes)
{
    simt_wgmma_call *first = (simt_wgmma_call *)operands[0];
    if (lanes != 0xFFFFFFFFu)
        simt_fail("wgmma in a warp of lanes %08x", lanes);
    check_layout("A", first->a);
    check_layout("B", first->b);
    for (unsigned lane = 1; lane < SIMT_WARP; lane++) {
        const simt_wgmma_call *other = (const simt_wgmma_call *)operands[lane];
        if (other->a != first->a || other->b != first->b)
            simt_fail("wgmma: lane %u has other descriptors than lane 0", lane);
    }
    check_fenced("A", first->a, WARPS * ROWS);
    check_fenced("B", first->b, COLUMNS);
    first->sum_of_a = sum_of(first->a, first_row(), ROWS);
    first->sum_of_b = sum_of(first->b, 0, COLUMNS);
}

static void multiply(float d[N_SUMS], uint64_t a, uint64_t b, bool is_f16)
{
    simt_thread *self = simt_tls.self;
    if (!self->wgmma_fenced)
        simt_fail("wgmma: no wgmma_fence since the last wgmma_commit");
    simt_wgmma_call call = {d, a, b, is_f16, 0, 0, false, self->wgmma_calls.empty(), {0}};
    if (call.has_sums) {
        memcpy(call.sums, d, sizeof(call.sums));
        memset(d, 0xFF, sizeof(call.sums));
    } else if (self->wgmma_calls.front()->d != d) {
        simt_fail("wgmma: sums of two multiplications under way are not the same ones");
    }
    simt_exchange(is_f16 ? SIMT_WGMMA_F16 : SIMT_WGMMA_BF16, 0xFFFFFFFFu, &call, queue);
    self->wgmma_calls.push_back(new simt_wgmma_call(call));
}

void wgmma_m64n256k16_bf16(float d[128], uint64_t a, uint64_t b)
{
    multiply(d, a, b, false);
}

void wgmma_m64n256k16_f16(float d[128], uint64_t a, uint64_t b)
{
    multiply(d, a, b, true);
}

void wgmma_fence_shared(void)
{
    simt_tls.self->unfenced.clear();
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

static void widen(float out[K], uint64_t matrix, unsigned row, bool is_f16)
{
    for (unsigned piece = 0; piece < 2; piece++) {
        uint16_t halves[8];
        memcpy(halves, piece_at(matrix, row, piece), sizeof(halves));
        for (unsigned i = 0; i < 8; i++)
            out[piece * 8 + i] =
                is_f16 ? maths_f16_to_f32(halves[i]) : maths_bf16_to_f32(halves[i]);
    }
}

/* SIMT_WGMMA: "wrong" multiplies wrongly, "askew" rounds otherwise in all warps but the first: for
 * the checks that should find it. */
static float error_of_rows(void)
{
    static const char *const text = getenv("SIMT_WGMMA");
    static const bool wrong = text != NULL && strcmp(text, "wrong") == 0;
    static const bool askew = text != NULL && strcmp(text, "askew") == 0;
    return wrong ? 0.25f : askew && first_row() != 0 ? 2e-6f : 0.0f;
}

static void finish(void *const operands[SIMT_WARP], uint32_t)
{
    const simt_wgmma_call *first = (const simt_wgmma_call *)operands[0];
    static thread_local float b[COLUMNS][K];
    const float error = error_of_rows();
    float a[K];
    if (first->sum_of_a != sum_of(first->a, first_row(), ROWS) ||
        first->sum_of_b != sum_of(first->b, 0, COLUMNS))
        simt_fail("wgmma: its operands in shared memory were written before it was waited for");
    for (unsigned n = 0; n < COLUMNS; n++)
        widen(b[n], first->b, n, first->is_f16);
    for (unsigned row = 0; row < ROWS; row++) {
        widen(a, first->a, first_row() + row, first->is_f16);
        for (unsigned n = 0; n < COLUMNS; n++) {
            simt_wgmma_call *own = (simt_wgmma_call *)operands[row % 8 * 4 + n % 8 / 2];
            float *d = &own->sums[n / 8 * 4 + row / 8 * 2 + n % 2];
            double sum = 0;
            for (unsigned k = 0; k < K; k++)
                sum += (double)a[k] * b[n][k];
            *d = (float)((double)*d + sum + error);
        }
    }
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
        if (calls.empty()) {
            memcpy(call->d, call->sums, sizeof(call->sums));
        } else {
            calls.front()->has_sums = true;
            memcpy(calls.front()->sums, call->sums, sizeof(call->sums));
        }
        delete call;
    }
}

void wgmma_wait_but_one(void)
{
    wait(1);
}

void wgmma_wait(float d[128])
{
    std::vector<simt_wgmma_call *> &calls = simt_tls.self->wgmma_calls;
    if (!calls.empty() && calls.front()->d != d)
        simt_fail("wgmma_wait: other sums than those under way");
    wait(0);
}
