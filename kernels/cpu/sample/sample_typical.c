#include "kernels/cpu/sample/sample_typical.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/sample/sample_math.h"
#include "kernels/cpu/sample/sample_passes.h"
#include "kernels/cpu/sample/sample_select.h"

/* Distances are floats in [0, 2^9), so their order is that of their bits. They use 30 bits, and the
 * buckets cover the highest 20. */
enum { N_BUCKETS = 1024, FEW = 256, HIGH_SHIFT = 21, LOW_SHIFT = 11 };

/* Sums of at most 2^20 terms in different orders differ by less than this relative amount. */
static const double MARGIN = 1e-9;

/* Distance up to which less likely tokens are gathered first. There are many less likely tokens.
 * The kept tokens are rarely farther from the entropy than this. */
#define NEAR 4.0f

struct typical {
    float log_sum, entropy;
    float centre; /* the smallest weight whose −log p is below the entropy */
    float limit;  /* a distance, used by test_fn */
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

/* Returns the smallest weight that passes; if none passes, a value above all weights. The function
 * sample_log is monotonic in w (a unit test covers all weights), so every test is monotonic too. */
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

/* Finds the bucket in which the sum reaches `wanted`; *mass is the sum before. Moves the bucket's
 * ids to the front of ids[0..n) and adds to *mass the weights of nearer tokens. Returns the number
 * of ids in the bucket; 0 if the sum does not reach `wanted`. */
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

/* Tokens in order of weight. The two ends that meet at the entropy are sorted as far as the walk
 * has come. The range [left, right) is taken, [sorted_left, sorted_right) is sorted. */
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

/* Returns the token that is taken last, starting from a sum of `mass`; n ≥ 1. Sets *out_close if a
 * sum came so near to `wanted` that another order of addition could change the result. */
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

/* Removes the tokens outside the window that ends with `last`. The list `ids` has all tokens that
 * may be likelier than the window, and all with the weight of `last`. */
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
        found = distance_of(&t, w[last]) < NEAR; /* all tokens as near as this were in ids */
    }
    if (!found) {
        n_ids = sample_passes()->gather_above(w, n, 0.0f, ids, &mass);
        last = find_last(&t, w, ids, n_ids, wanted);
    }
    keep_window(&t, w, n, ids, n_ids, last);
}
