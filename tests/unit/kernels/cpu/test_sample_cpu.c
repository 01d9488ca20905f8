/* The sampler against f64 here, and against itself over instruction sets and threads. (Against
 * other programs: test_sample_golden.c.) */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/system/cpu.h"
#include "kernels/backend.h"
#include "kernels/cpu/sample/sample_cpu.h"
#include "kernels/cpu/sample/sample_math.h"
#include "kernels/cpu/sample/sample_nucleus.h"
#include "kernels/cpu/sample/sample_passes.h"
#include "kernels/cpu/sample/sample_philox.h"
#include "kernels/cpu/sample/sample_select.h"
#include "kernels/cpu/sample/sample_typical.h"
#include "kernels/cpu/stream_cpu.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

enum { MAX_VOCAB = 50000 };

static float logits[MAX_VOCAB];
static _Alignas(64) unsigned char scratch[SAMPLE_SCRATCH_BYTES(MAX_VOCAB)];

static struct sample_params plain_params(void)
{
    return (struct sample_params){
        .temperature = 1.0f, .top_p = 1.0f, .typical_p = 1.0f, .repetition_penalty = 1.0f};
}

static uint32_t lcg_state = 12345;
static float random_normal(void)
{
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        lcg_state = lcg_state * 1664525u + 1013904223u;
        sum += (float)(lcg_state >> 8) / 16777216.0f - 0.5f;
    }
    return sum * 1.7f;
}

static void fill_logits(uint32_t n, float spread)
{
    for (uint32_t i = 0; i < n; i++)
        logits[i] = random_normal() * spread;
}

/* --- arithmetic --- */

static void test_exp_and_log_close_to_exact(void **state)
{
    (void)state;
    for (int i = 0; i < 87000; i++) {
        float x = -(float)i * 1e-3f;
        double exact = exp((double)x);
        assert_true(fabs((double)sample_exp(x) - exact) <= 3e-7 * exact);
    }
    assert_true(sample_exp(0.0f) == 1.0f);
    assert_true(sample_exp(-87.5f) == 0.0f && sample_exp(-INFINITY) == 0.0f);
    for (float x = 1e-30f; x < 1e30f; x *= 1.013f)
        assert_true(fabs((double)sample_log(x) - log((double)x)) <=
                    2e-7 * fmax(1.0, fabs(log((double)x))));
    assert_true(sample_log(1.0f) == 0.0f);
}

static int compare_ids(const void *pa, const void *pb)
{
    uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;
    if (logits[a] != logits[b])
        return logits[a] > logits[b] ? -1 : 1;
    return a < b ? -1 : 1;
}

static void check_gathered(const struct sample_passes *passes, uint32_t n, float bound)
{
    static uint32_t ids[5000];
    double sum, want = 0.0;
    uint32_t n_ids = passes->gather_above(logits, n, bound, ids, &sum), n_want = 0;
    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > bound) {
            assert_true(n_want < n_ids && ids[n_want] == i);
            want += (double)logits[i];
            n_want++;
        }
    assert_true(n_ids == n_want && sum == want);
}

/* Checks the entropy of weights, some of which are 0: the other set's bits, and near f64's. */
static void check_entropy(const struct sample_passes *other, const float *w,
                          const struct sample_segments *seg)
{
    float sums_a[SAMPLE_SEGMENTS], sums_b[SAMPLE_SEGMENTS];
    double sum = 0.0, want = 0.0;
    uint32_t n = seg->bounds[SAMPLE_SEGMENTS];
    for (uint32_t i = 0; i < n; i++)
        sum += (double)w[i];
    for (uint32_t i = 0; i < n; i++)
        if (w[i] > 0.0f)
            want += (double)w[i] / sum * log(sum / (double)w[i]);
    float log_sum = sample_log((float)sum);
    sample_passes_base.entropy_segments(w, seg, (float)sum, log_sum, sums_a);
    other->entropy_segments(w, seg, (float)sum, log_sum, sums_b);
    assert_memory_equal(sums_a, sums_b, sizeof(sums_a));
    assert_true(fabs((double)sample_tree(sums_a) - want) < 1e-4);
}

static void test_passes_every_isa_same_bits(void **state)
{
    (void)state;
    static float a[5000], b[5000];
    static const uint32_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 255, 288, 1000, 4097};
    const struct sample_passes *others[2];
    size_t n_others = 0;
    if (cpu_features()->avx2)
        others[n_others++] = &sample_passes_avx2;
    if (cpu_features()->avx512_vnni)
        others[n_others++] = &sample_passes_avx512;
    for (size_t o = 0; o < n_others; o++)
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            uint32_t n = sizes[s];
            float max_a, max_b, sums_a[SAMPLE_SEGMENTS], sums_b[SAMPLE_SEGMENTS];
            struct sample_segments seg;
            fill_logits(n, 5.0f);
            sample_segments_init(&seg, n);
            assert_true(sample_passes_base.max_checked(logits, n, &max_a));
            assert_true(others[o]->max_checked(logits, n, &max_b));
            assert_true(max_a == max_b);
            sample_passes_base.exp_row(a, logits, n, max_a, 0.7f);
            others[o]->exp_row(b, logits, n, max_b, 0.7f);
            assert_memory_equal(a, b, n * sizeof(float));
            sample_passes_base.sum_segments(a, &seg, sums_a);
            others[o]->sum_segments(b, &seg, sums_b);
            assert_memory_equal(sums_a, sums_b, sizeof(sums_a));
            sample_passes_base.cut_below(a, n, 0.1f);
            others[o]->cut_below(b, n, 0.1f);
            assert_memory_equal(a, b, n * sizeof(float));
            check_entropy(others[o], a, &seg);
            logits[n - 1] = logits[0] = logits[n / 2]; /* equals go by id */
            sample_passes_base.keep_to(a, logits, n, logits[n / 2], n / 2);
            others[o]->keep_to(b, logits, n, logits[n / 2], n / 2);
            assert_memory_equal(a, b, n * sizeof(float));
            for (uint32_t i = 0; i < n; i++)
                assert_true(a[i] ==
                            (compare_ids(&(uint32_t){i}, &(uint32_t){n / 2}) > 0 && i != n / 2
                                 ? -INFINITY
                                 : logits[i]));
            for (uint32_t i = 0; i <= n; i += 1 + n / 50) {
                float bound = logits[(i * 7) % n];
                uint32_t next = i;
                while (next < n && !(logits[next] > bound))
                    next++;
                assert_int_equal(sample_passes_base.next_above(logits, i, n, bound), next);
                assert_int_equal(others[o]->next_above(logits, i, n, bound), next);
                check_gathered(&sample_passes_base, n, bound);
                check_gathered(others[o], n, bound);
            }
            sample_passes_base.add_watermark(a, n, n * 31);
            others[o]->add_watermark(b, n, n * 31);
            assert_memory_equal(a, b, n * sizeof(float));
        }
}

static void test_watermark_adds_to_what_philox_calls_green(void **state)
{
    (void)state;
    static float x[5003];
    static const uint32_t previous[] = {0, 1, 49151, 0xFFFFFFFF};
    for (size_t p = 0; p < sizeof(previous) / sizeof(previous[0]); p++) {
        uint32_t n = 5002 - (uint32_t)p, n_green = 0;
        memset(x, 0, sizeof(x));
        sample_passes()->add_watermark(x, n, previous[p]);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t counter[4] = {i / 4, 0, 0, SAMPLE_WATERMARK_TAG};
            const uint32_t key[2] = {previous[p], SAMPLE_WATERMARK_KEY};
            uint32_t words[4];
            sample_philox4x32_10(counter, key, words);
            bool is_green = words[i % 4] < 1u << 31;
            n_green += is_green;
            assert_true(x[i] == (is_green ? SAMPLE_WATERMARK_DELTA : 0.0f));
        }
        assert_true(x[n] == 0.0f && n_green > 2300 && n_green < 2700);
    }
}

static void test_select_equals_full_sort(void **state)
{
    (void)state;
    static uint32_t sorted[3000], ids[3000], top[3000];
    static const float spreads[] = {0.0f, 3.0f, 1e-6f};
    for (size_t s = 0; s < 3; s++) {
        fill_logits(3000, spreads[s]);
        for (uint32_t i = 0; i < 3000; i += 7)
            logits[i] = -INFINITY;
        for (uint32_t i = 0; i < 3000; i++)
            sorted[i] = i;
        qsort(sorted, 3000, sizeof(*sorted), compare_ids);
        static const uint32_t counts[] = {1, 2, 20, 64, 999, 2999, 3000};
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            for (uint32_t i = 0; i < 3000; i++)
                ids[i] = i;
            sample_select_sorted(logits, ids, 3000, counts[c]);
            assert_memory_equal(ids, sorted, counts[c] * sizeof(*ids));
            assert_int_equal(sample_top(logits, 3000, counts[c], top), counts[c]);
            assert_memory_equal(top, sorted, counts[c] * sizeof(*top));
        }
    }
}

/* The nucleus by a full sort, with each wanted share, also one that a sum hits exactly. */
static void test_nucleus_ends_where_a_full_sort_says(void **state)
{
    (void)state;
    enum { N = 20000 };
    static uint32_t sorted[N], ids[N];
    static const float spreads[] = {0.0f, 1e-6f, 0.02f, 1.0f, 4.0f, 30.0f};
    static const double shares[] = {1e-9, 0.1, 0.5, 0.9, 0.95, 0.9999, 1.0, 1.1};
    enum { N_SHARES = sizeof(shares) / sizeof(shares[0]) };
    for (size_t s = 0; s < sizeof(spreads) / sizeof(spreads[0]); s++) {
        uint32_t n = s % 2 == 0 ? N : N - 3;
        float max;
        fill_logits(n, spreads[s]);
        assert_true(sample_passes()->max_checked(logits, n, &max));
        sample_passes()->exp_row(logits, logits, n, max, 1.0f);
        uint32_t n_positive = 0;
        for (uint32_t i = 0; i < n; i++)
            if (logits[i] > 0.0f)
                sorted[n_positive++] = i;
        memcpy(ids, sorted, n_positive * sizeof(*ids));
        qsort(sorted, n_positive, sizeof(*sorted), compare_ids);
        double total = 0.0, prefix = 0.0;
        for (uint32_t i = 0; i < n_positive; i++) {
            total += (double)logits[sorted[i]];
            prefix = i == n_positive / 3 ? total : prefix;
        }
        for (size_t w = 0; w <= N_SHARES; w++) {
            double wanted = w < N_SHARES ? total * shares[w] : prefix, mass = 0.0;
            uint32_t last = 0;
            for (uint32_t i = 0; i < n_positive && mass < wanted; i++) {
                last = sorted[i];
                mass += (double)logits[last];
            }
            assert_int_equal(sample_nucleus_last(logits, ids, n_positive, wanted), last);
        }
    }
    assert_int_equal(sample_nucleus_last(logits, ids, 0, 0.5), SAMPLE_NO_TOKEN);
}

/* The bisection for the ends of a typical window relies on this. */
static void test_log_never_falls_from_one_weight_to_the_next(void **state)
{
    (void)state;
    enum { STRIDE = 61, RUN = 3 }; /* runs of neighbours, some 50 million in all */
    uint32_t one, least;
    float edge = 1.0f, before = -INFINITY;
    memcpy(&one, &edge, sizeof(one));
    edge = 1.17549435e-38f;
    memcpy(&least, &edge, sizeof(least));
    for (uint32_t bits = least; bits <= one; bits += bits % STRIDE < RUN ? 1 : STRIDE - RUN) {
        float w;
        memcpy(&w, &bits, sizeof(w));
        float log_w = sample_log(w);
        if (log_w < before)
            fail_msg("log %a is below that of a lower weight", (double)w);
        before = log_w;
    }
}

/* Computes the window by a full sort. In the order of weights, two ends walk outwards from the
 * entropy, the nearer token first. Returns the sum of a third of the tokens, where the window comes
 * so far. */
static double keep_typical_by_sort(float *w, uint32_t *ids, uint32_t n, float log_sum,
                                   float entropy, double wanted)
{
    uint32_t right = 0;
    while (right < n && log_sum - sample_log(w[ids[right]]) < entropy)
        right++;
    uint32_t left = right;
    double mass = 0.0, third = 0.0;
    while ((left > 0 || right < n) && (left == right || mass < wanted)) {
        float before = INFINITY, after = INFINITY;
        if (left > 0)
            before = fabsf((log_sum - sample_log(w[ids[left - 1]])) - entropy);
        if (right < n)
            after = fabsf((log_sum - sample_log(w[ids[right]])) - entropy);
        mass += (double)w[ids[before <= after ? --left : right++]];
        third = right - left == n / 3 ? mass : third;
    }
    for (uint32_t i = 0; i < n; i++)
        if (i < left || i >= right)
            w[ids[i]] = 0.0f;
    return third;
}

/* Entropies are the row's own and others: between two clusters, above or below all tokens. Some
 * weights are equal many times, and some sums hit `wanted` exactly. */
static void test_typical_keeps_what_a_full_sort_says(void **state)
{
    (void)state;
    enum { N = 6000 };
    static uint32_t sorted[N], ids[N];
    static float kept[N], expected[N];
    static const float spreads[] = {0.0f, 1e-6f, 0.02f, 1.0f, 4.0f, 30.0f};
    static const double shares[] = {1e-9, 0.1, 0.5, 0.9, 0.9999, 1.0, 1.1};
    static const float shifts[] = {0.0f, 0.37f, -2.0f, 6.0f, -30.0f, 60.0f};
    enum { N_SHARES = sizeof(shares) / sizeof(shares[0]) };
    for (uint32_t s = 0; s < 3 * sizeof(spreads) / sizeof(spreads[0]); s++) {
        uint32_t n = s % 4 == 0 ? N : s % 4 == 1 ? 200 : N - 3;
        float max;
        fill_logits(n, spreads[s / 3]);
        if (s % 3 == 1) /* few different logits, each many times */
            for (uint32_t i = 0; i < n; i++)
                logits[i] = rintf(logits[i]);
        if (s % 3 == 2) /* a token with nearly all the weight */
            logits[n / 2] += 12.0f;
        assert_true(sample_passes()->max_checked(logits, n, &max));
        sample_passes()->exp_row(logits, logits, n, max, 1.0f);
        uint32_t n_positive = 0;
        double total = 0.0, third = 0.0, entropy = 0.0;
        for (uint32_t i = 0; i < n; i++)
            if (logits[i] > 0.0f)
                sorted[n_positive++] = i;
        qsort(sorted, n_positive, sizeof(*sorted), compare_ids);
        for (uint32_t i = 0; i < n_positive; i++)
            total += (double)logits[sorted[i]];
        for (uint32_t i = 0; i < n_positive; i++)
            entropy += (double)logits[sorted[i]] / total * log(total / (double)logits[sorted[i]]);
        for (size_t w = 0; w < (N_SHARES + 1) * sizeof(shifts) / sizeof(shifts[0]); w++) {
            /* the last share, `third`, needs a walk to the end */
            size_t share = w % (N_SHARES + 1);
            double wanted = share < N_SHARES ? total * shares[share] : third;
            float log_sum = sample_log((float)total);
            float around = (float)entropy + shifts[w / (N_SHARES + 1)];
            memcpy(kept, logits, n * sizeof(*kept));
            memcpy(expected, logits, n * sizeof(*expected));
            sample_keep_typical(kept, n, ids, log_sum, around, wanted);
            third = keep_typical_by_sort(expected, sorted, n_positive, log_sum, around, wanted);
            assert_memory_equal(kept, expected, n * sizeof(*kept));
        }
    }
}

/* --- results --- */

static void test_logprobs_are_log_softmax_of_unmodified_logits(void **state)
{
    (void)state;
    uint32_t n = 49152;
    fill_logits(n, 4.0f);
    struct sample_bias bias = {77, 40.0f};
    struct sample_params params = plain_params();
    struct sample_result result;
    double max = -1e30, sum = 0.0;
    params.temperature = 0.0f;
    params.biases = &bias;
    params.n_biases = 1;
    params.want_logprob = 1;
    params.n_top = 20;
    for (uint32_t i = 0; i < n; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    sample_row_cpu(logits, n, &params, scratch, &result);
    assert_int_equal(result.id, 77);
    assert_true(fabs((double)result.logprob - ((double)logits[77] - max - log(sum))) < 1e-5);
    assert_int_equal(result.n_top, 20);
    for (uint32_t i = 0; i < 20; i++) {
        double exact = (double)logits[result.top_ids[i]] - max - log(sum);
        assert_true(fabs((double)result.top_logprobs[i] - exact) < 1e-5);
        assert_true(!i || result.top_logprobs[i] <= result.top_logprobs[i - 1]);
    }
}

static void test_bad_rows_have_a_status_of_their_own(void **state)
{
    (void)state;
    static const struct {
        float value;
        int status;
    } bad[] = {{NAN, STATUS_DATA_LOSS}, {INFINITY, STATUS_DATA_LOSS}, {-INFINITY, 0}};
    struct sample_params params = plain_params();
    struct sample_result result;
    for (size_t i = 0; i < 3; i++)
        for (uint32_t at = 0; at < 300; at += 37) {
            fill_logits(300, 2.0f);
            logits[at] = bad[i].value;
            sample_row_cpu(logits, 300, &params, scratch, &result);
            assert_int_equal(result.status, bad[i].status);
            assert_true(bad[i].status || result.id != at);
        }
    fill_logits(300, 2.0f);
    static const uint32_t none[10];
    params.allowed_mask = none;
    sample_row_cpu(logits, 300, &params, scratch, &result);
    assert_int_equal(result.status, STATUS_FAILED_PRECONDITION);
}

static void test_extreme_parameters_give_a_token(void **state)
{
    (void)state;
    static const struct {
        float temperature, top_p, min_p, typical_p, repetition, presence;
        uint32_t top_k;
    } rows[] = {
        {1e-45f, 1, 0, 1, 1, 0, 0},      {1e-30f, 0.5f, 0.5f, 0.5f, 1, 0, 3},
        {100, 1e-38f, 0, 1, 1, 0, 0},    {100, 1, 1, 1, 1, 0, 0},
        {1, 1, 0, 1e-38f, 1, 0, 0},      {1, 1, 0, 1, 1e-45f, 0, 0},
        {1, 1, 0, 1, 10, 2, 0xFFFFFFFF}, {1, 0.999999f, 0, 0.999999f, 1, -2, 999},
        {100, 0.9999f, 0, 1, 1, 0, 0},   {100, 1, 0, 0.9999f, 1, 0, 700},
    };
    struct sample_count counts[] = {{5, 3}, {900, 0}, {999, 4000000000u}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sample_params params = plain_params();
        struct sample_result result;
        params.temperature = rows[i].temperature;
        params.top_p = rows[i].top_p;
        params.min_p = rows[i].min_p;
        params.typical_p = rows[i].typical_p;
        params.repetition_penalty = rows[i].repetition;
        params.presence_penalty = rows[i].presence;
        params.frequency_penalty = rows[i].presence;
        params.top_k = rows[i].top_k;
        params.counts = counts;
        params.n_counts = 3;
        for (uint32_t seed = 0; seed < 20; seed++) {
            fill_logits(1000, 3.0f);
            params.seed = seed;
            sample_row_cpu(logits, 1000, &params, scratch, &result);
            assert_int_equal(result.status, 0);
            assert_true(result.id < 1000);
        }
    }
}

/* With equal weights at the nucleus's end, the lower ids belong to the nucleus, as many as needed.
 * Runs with 64 tokens, which are searched whole, and with many. */
static void test_ties_at_the_end_of_a_nucleus_go_to_the_lower_ids(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {64, 1000, 5000};
    for (size_t v = 0; v < sizeof(vocabs) / sizeof(vocabs[0]); v++) {
        struct sample_params params = plain_params();
        uint32_t n = vocabs[v], last = n / 4, highest = 0;
        for (uint32_t i = 0; i < n; i++)
            logits[i] = 2.0f;
        params.top_p = ((float)last + 0.5f) / (float)n; /* the share ends within token `last` */
        /* 20 draws for each token that may be drawn */
        for (uint32_t i = 0; i < 20 * (last + 1); i++) {
            struct sample_result result;
            params.position = i;
            sample_row_cpu(logits, n, &params, scratch, &result);
            assert_int_equal(result.status, 0);
            highest = result.id > highest ? result.id : highest;
        }
        assert_int_equal(highest, last);
    }
}

/* 20,000 draws follow the distribution: chi-squared over 50 tokens, far beyond its 1 - 1e-9 point.
 */
static void test_draws_follow_weights(void **state)
{
    (void)state;
    enum { VOCAB = 50, DRAWS = 20000 };
    uint32_t seen[VOCAB] = {0};
    struct sample_params params = plain_params();
    fill_logits(VOCAB, 1.0f);
    params.seed = 99;
    for (uint32_t i = 0; i < DRAWS; i++) {
        struct sample_result result;
        params.position = i / 8;
        params.choice = i % 8;
        sample_row_cpu(logits, VOCAB, &params, scratch, &result);
        seen[result.id]++;
    }
    double sum = 0.0, chi = 0.0;
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    for (uint32_t i = 0; i < VOCAB; i++) {
        double expected = exp((double)logits[i]) / sum * DRAWS;
        chi += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    assert_true(chi < 130.0);
}

static void test_rows_any_thread_count_same_results(void **state)
{
    (void)state;
    enum { ROWS = 9, VOCAB = 777 };
    static float all[ROWS * VOCAB];
    struct sample_params params[ROWS];
    struct sample_result results[3][ROWS];
    static const uint32_t n_threads[] = {1, 2, 4};
    struct error err;
    struct device *device;
    memset(results, 0, sizeof(results));
    fill_logits(ROWS * VOCAB, 2.0f);
    memcpy(all, logits, sizeof(all));
    all[4 * VOCAB + 3] = NAN; /* a broken row among the others */
    for (uint32_t r = 0; r < ROWS; r++) {
        params[r] = plain_params();
        params[r].seed = r;
        params[r].top_p = 0.9f;
        params[r].want_logprob = 1;
        params[r].n_top = 3;
    }
    assert_int_equal(backend_cpu()->open(0, &device, &err), 0);
    struct tensor t = tensor_view(all, DTYPE_F32, ROWS, VOCAB);
    for (size_t i = 0; i < 3; i++) {
        struct stream *stream;
        assert_int_equal(backend_cpu()->stream_create(device, n_threads[i], &stream, &err), 0);
        assert_int_equal(sample_rows_cpu(stream, &t, params, results[i]), 0);
        backend_cpu()->stream_destroy(stream);
        for (uint32_t r = 0; r < ROWS; r++)
            assert_int_equal(results[i][r].status, r == 4 ? STATUS_DATA_LOSS : 0);
        results[i][4].logprob = 0.0f; /* NaN differs from itself only in name */
    }
    assert_memory_equal(results[0], results[1], sizeof(results[0]));
    assert_memory_equal(results[0], results[2], sizeof(results[0]));
    t.n_cols = 0;
    assert_int_equal(sample_rows_cpu(NULL, &t, params, results[0]), STATUS_INTERNAL);
    backend_cpu()->close(device);
}

/* A thread touches no more scratch than the plan of a load counts. */
static void test_scratch_no_more_is_touched_than_is_planned(void **state)
{
    (void)state;
    enum { THREADS = 2, ROWS = 4, VOCAB = 49152, PAGE = 4096 };
    static float all[ROWS * VOCAB];
    static unsigned char resident[STREAM_SCRATCH_BYTES / PAGE];
    struct sample_params params[ROWS];
    struct sample_result results[ROWS];
    struct device *device;
    struct stream *stream;
    struct error err;
    for (uint32_t i = 0; i < ROWS * VOCAB; i++)
        all[i] = random_normal();
    for (uint32_t r = 0; r < ROWS; r++) {
        params[r] = plain_params();
        params[r].typical_p = 0.9f;
        params[r].top_k = 1000;
        params[r].want_logprob = 1;
    }
    assert_int_equal(backend_cpu()->open(0, &device, &err), 0);
    assert_int_equal(backend_cpu()->stream_create(device, THREADS, &stream, &err), 0);
    struct tensor t = tensor_view(all, DTYPE_F32, ROWS, VOCAB);
    assert_int_equal(sample_rows_cpu(stream, &t, params, results), 0);
    size_t planned = stream->ops->scratch_bytes(VOCAB, 64);
    for (uint32_t m = 0; m < THREADS; m++) {
        size_t n_pages = 0;
        assert_int_equal(
            mincore(stream_scratch(stream_cpu(stream), m), STREAM_SCRATCH_BYTES, resident), 0);
        for (size_t i = 0; i < sizeof(resident); i++)
            n_pages += resident[i] & 1;
        assert_true(n_pages > 0);
        /* A huge page is resident as a whole. So a count of 1 MiB or more shows nothing. */
        if (n_pages * PAGE < 1 << 20)
            assert_true(n_pages * PAGE <= planned);
    }
    backend_cpu()->stream_destroy(stream);
    backend_cpu()->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_and_log_close_to_exact),
        cmocka_unit_test(test_passes_every_isa_same_bits),
        cmocka_unit_test(test_watermark_adds_to_what_philox_calls_green),
        cmocka_unit_test(test_select_equals_full_sort),
        cmocka_unit_test(test_nucleus_ends_where_a_full_sort_says),
        cmocka_unit_test(test_log_never_falls_from_one_weight_to_the_next),
        cmocka_unit_test(test_typical_keeps_what_a_full_sort_says),
        cmocka_unit_test(test_logprobs_are_log_softmax_of_unmodified_logits),
        cmocka_unit_test(test_bad_rows_have_a_status_of_their_own),
        cmocka_unit_test(test_extreme_parameters_give_a_token),
        cmocka_unit_test(test_ties_at_the_end_of_a_nucleus_go_to_the_lower_ids),
        cmocka_unit_test(test_draws_follow_weights),
        cmocka_unit_test(test_rows_any_thread_count_same_results),
        cmocka_unit_test(test_scratch_no_more_is_touched_than_is_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
