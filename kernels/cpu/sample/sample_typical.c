#include "kernels/cpu/sample/sample_typical.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/sample/sample_math.h"
#include "kernels/cpu/sample/sample_passes.h"
#include "kernels/cpu/sample/sample_select.h"

/* Distances are floats from 0 on and below 2^9: their order is that of their bits, and the highest
 * 20 of the 30 bits that they use are looked at. */
enum { N_BUCKETS = 1024, FEW = 256, HIGH_SHIFT = 21, LOW_SHIFT = 11 };

/* Sums of at most 2^20 terms in another order differ by less than this share. */
static const double MARGIN = 1e-9;

/* Hardly a window reaches further to the less likely tokens, of which there are many. */
#define NEAR 4.0f

struct typical {
    float log_sum, entropy;
    float centre; /* the least weight whose −log p is below the entropy */
    float limit;  /* a distance, of `test_fn` */
};

static float distance_of(const struct typical *t, float w)
{
    return fabsf((t->log_sum - sample_log(w)) - t->entropy);
}

static bool is_likelier(const struct typical *t, float w)
{
    return t->log_sum - sample_log(w) < t->entropy;
}

static bool is_nearer_or_likelier(const struct typical *t, float w)
{
    return w >= t->centre || distance_of(t, w) < t->limit;
}

static bool is_likelier_and_farther(const struct typical *t, float w)
{
    return w >= t->centre && distance_of(t, w) > t->limit;
}

typedef bool test_fn(const struct typical *t, float w);

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* The least weight that passes; where none does, what is above all of them. sample_log never falls
 * as w grows (a test goes through all weights), so neither does any test. */
static float least_weight(const struct typical *t, test_fn *test)
{
    uint32_t low = bits_of(FLT_MIN), high = bits_of(1.0f) + 1;
    float w;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        memcpy(&w, &middle, sizeof(w));
        if (test(t, w))
            high = middle;
        else
            low = middle + 1;
    }
    memcpy(&w, &low, sizeof(w));
    return w;
}

/* Puts those of ids[0..n) first that lie in the bucket in which the sum, *mass before it, reaches
 * `wanted`, and adds to *mass what is nearer. How many; 0 where the sum does not get there. */
static uint32_t narrow(const struct typical *t, const float *w, uint32_t *ids, uint32_t n,
                       int shift, double wanted, double *mass)
{
    double sums[N_BUCKETS] = {0};
    for (uint32_t i = 0; i < n; i++)
        sums[(bits_of(distance_of(t, w[ids[i]])) >> shift) % N_BUCKETS] += (double)w[ids[i]];
    uint32_t bucket = 0, n_inside = 0;
    while (bucket < N_BUCKETS && *mass + sums[bucket] < wanted)
        *mass += sums[bucket++];
    if (bucket == N_BUCKETS)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = ids[i];
        if ((bits_of(distance_of(t, w[id])) >> shift) % N_BUCKETS != bucket)
            continue;
        ids[i] = ids[n_inside];
        ids[n_inside++] = id;
    }
    return n_inside;
}

/* Tokens in the order of weights, of which the ends that meet at the entropy are sorted as far as
 * the walk has come: [left, right) is taken, [sorted_left, sorted_right) sorted. */
struct walk {
    uint32_t left, right, sorted_left, sorted_right;
    uint32_t left_step, right_step;
};

static struct walk start_walk(const struct typical *t, const float *w, uint32_t *ids, uint32_t n)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++)
        if (w[ids[i]] >= t->centre) {
            uint32_t id = ids[i];
            ids[i] = ids[n_left];
            ids[n_left++] = id;
        }
    return (struct walk){n_left, n_left, n_left, n_left, 64, 64};
}

static void sort_further(struct walk *k, const float *w, uint32_t *ids, uint32_t n)
{
    if (k->left == k->sorted_left && k->left > 0) {
        uint32_t step = k->left < k->left_step ? k->left : k->left_step;
        k->sorted_left -= step;
        sample_select(w, ids, k->left, k->sorted_left);
        sample_select_sorted(w, ids + k->sorted_left, step, step);
        k->left_step *= 4;
    }
    if (k->right == k->sorted_right && k->right < n) {
        uint32_t step = n - k->right < k->right_step ? n - k->right : k->right_step;
        sample_select_sorted(w, ids + k->right, n - k->right, step);
        k->sorted_right += step;
        k->right_step *= 4;
    }
}

/* The token that is taken last, from a sum of `mass` on. *out_close: some sum came so near to
 * `wanted` that another order of adding could have decided otherwise. n ≥ 1. */
static uint32_t walk(const struct typical *t, const float *w, uint32_t *ids, uint32_t n,
                     double mass, double wanted, bool *out_close)
{
    struct walk k = start_walk(t, w, ids, n);
    uint32_t last;
    *out_close = fabs(mass - wanted) <= wanted * MARGIN;
    do {
        sort_further(&k, w, ids, n);
        float before = k.left > 0 ? distance_of(t, w[ids[k.left - 1]]) : INFINITY;
        float after = k.right < n ? distance_of(t, w[ids[k.right]]) : INFINITY;
        last = ids[before <= after ? --k.left : k.right++];
        mass += (double)w[last];
        *out_close |= fabs(mass - wanted) <= wanted * MARGIN;
    } while (mass < wanted && (k.left > 0 || k.right < n));
    return last;
}

static uint32_t find_last(const struct typical *t, const float *w, uint32_t *ids, uint32_t n,
                          double wanted)
{
    double mass = 0.0;
    bool close = true;
    uint32_t last = 0, n_left = n;
    if (n > FEW)
        n_left = narrow(t, w, ids, n, HIGH_SHIFT, wanted, &mass);
    if (n > FEW && n_left > FEW)
        n_left = narrow(t, w, ids, n_left, LOW_SHIFT, wanted, &mass);
    if (n > FEW && n_left > 0)
        last = walk(t, w, ids, n_left, mass, wanted, &close);
    if (close)
        last = walk(t, w, ids, n, 0.0, wanted, &close);
    return last;
}

/* Removes what is not taken when `last` is taken last; all tokens that may be likelier than the
 * window are among ids, and all of last's weight. */
static void keep_window(struct typical *t, float *w, uint32_t n, const uint32_t *ids,
                        uint32_t n_ids, uint32_t last)
{
    float end = w[last], low, high;
    bool likelier = end >= t->centre;
    t->limit = distance_of(t, end);
    if (likelier) {
        low = least_weight(t, is_nearer_or_likelier);
        high = nextafterf(end, INFINITY);
    } else {
        low = end;
        high = least_weight(t, is_likelier_and_farther);
    }
    sample_passes()->cut_below(w, n, low);
    for (uint32_t i = 0; i < n_ids; i++) {
        uint32_t id = ids[i];
        if (w[id] >= high || (w[id] == end && (likelier ? id < last : id > last)))
            w[id] = 0.0f;
    }
}

void sample_keep_typical(float *w, uint32_t n, uint32_t *ids, float log_sum, float entropy,
                         double wanted)
{
    struct typical t = {.log_sum = log_sum, .entropy = entropy, .limit = NEAR};
    double mass;
    t.centre = least_weight(&t, is_likelier);
    float bound = nextafterf(least_weight(&t, is_nearer_or_likelier), 0.0f);
    uint32_t last = 0, n_ids = sample_passes()->gather_above(w, n, bound, ids, &mass);
    bool found = n_ids > 0 && mass > wanted * 1.0001;
    if (found) {
        last = find_last(&t, w, ids, n_ids, wanted);
        found = distance_of(&t, w[last]) < NEAR; /* all that are as near were looked at */
    }
    if (!found) {
        n_ids = sample_passes()->gather_above(w, n, 0.0f, ids, &mass);
        last = find_last(&t, w, ids, n_ids, wanted);
    }
    keep_window(&t, w, n, ids, n_ids, last);
}
