#include "kernels/cpu/sample/sample_nucleus.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/sample/sample_select.h"

/* Weights are positive floats, so their order is that of their bits. */
enum { N_BUCKETS = 1024, FEW = 256, HIGH_SHIFT = 20, LOW_SHIFT = 10 };

/* Sums of at most 2^20 terms in different orders differ by less than this relative amount. */
static const double MARGIN = 1e-9;

static uint32_t bucket_of(float w, int shift)
{
    uint32_t bits;
    memcpy(&bits, &w, sizeof(bits));
    bits >>= shift;
    if (shift == LOW_SHIFT)
        return bits % N_BUCKETS;
    return bits < N_BUCKETS ? bits : N_BUCKETS - 1;
}

/* Finds the bucket in which the sum reaches `wanted`; *mass is the sum before. Moves the bucket's
 * ids to the front of ids[0..n) and adds to *mass the weights above the bucket. Returns the number
 * of ids in the bucket; 0 if the sum does not reach `wanted`. */
static uint32_t narrow(const float *w, uint32_t *ids, uint32_t n, int shift, double wanted,
                       double *mass)
{
    double sums[N_BUCKETS] = {0};
    for (uint32_t i = 0; i < n; i++)
        sums[bucket_of(w[ids[i]], shift)] += (double)w[ids[i]];
    uint32_t bucket = N_BUCKETS, n_inside = 0;
    while (bucket > 0 && *mass + sums[bucket - 1] < wanted)
        *mass += sums[--bucket];
    if (bucket == 0)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = ids[i];
        if (bucket_of(w[id], shift) != bucket - 1)
            continue;
        ids[i] = ids[n_inside];
        ids[n_inside++] = id;
    }
    return n_inside;
}

/* Walks through the tokens in order, starting from a sum of `mass`. Sets *out_close if a sum came
 * so near to `wanted` that another order of addition could change the result. */
static uint32_t walk(const float *w, uint32_t *ids, uint32_t n, double mass, double wanted,
                     bool *out_close)
{
    uint32_t done = 0, step = 64, i = 0;
    *out_close = fabs(mass - wanted) <= wanted * MARGIN;
    while (i < n) {
        if (i == done) {
            uint32_t k = n - done < step ? n - done : step;
            sample_select_sorted(w, ids + done, n - done, k);
            done += k;
            step *= 4;
        }
        mass += (double)w[ids[i++]];
        *out_close |= fabs(mass - wanted) <= wanted * MARGIN;
        if (mass >= wanted)
            break;
    }
    return i > 0 ? ids[i - 1] : SAMPLE_NO_TOKEN;
}

uint32_t sample_nucleus_last(const float *w, uint32_t *ids, uint32_t n, double wanted)
{
    double mass = 0.0;
    bool close = true;
    uint32_t last = SAMPLE_NO_TOKEN, n_left = n;
    if (n > FEW)
        n_left = narrow(w, ids, n, HIGH_SHIFT, wanted, &mass);
    if (n > FEW && n_left > FEW)
        n_left = narrow(w, ids, n_left, LOW_SHIFT, wanted, &mass);
    if (n_left > 0 && n > FEW)
        last = walk(w, ids, n_left, mass, wanted, &close);
    if (close)
        last = walk(w, ids, n, 0.0, wanted, &close);
    return last;
}
