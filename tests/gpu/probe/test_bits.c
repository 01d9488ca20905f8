/* Asks the card which bits its matrix instructions compute (tests/gpu/probe/probe.h). Each answer
 * is a line "bits  QUESTION: ANSWER". Designs depend on the answers, so no answer is a failure. But
 * the same product again must have the same bits. The emulated GPU knows few of these
 * instructions, and its float sums round otherwise. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/maths.h"
#include "tests/gpu/support/support_probe.h"
#include "tests/gpu/support/support_seed.h"

enum { M = PROBE_ROWS, WIDEST = 256, MAX_K = 4096, STEP = 128 };

static const struct gpu_probe *probe;
static const char *const type_names[] = {"bf16", "f16", "e4m3"};
static const char *const form_names[] = {"mma.sync", "wgmma SS", "wgmma RS"};

static uint32_t k_of_tests(void)
{
    return test_is_emulated() ? 2 * STEP : MAX_K;
}

static uint32_t element_bytes(enum probe_type type)
{
    return type == PROBE_E4M3 ? 1 : 2;
}

static void put(void *to, enum probe_type type, size_t at, float value)
{
    if (type == PROBE_E4M3)
        ((uint8_t *)to)[at] = maths_f32_to_f8(value);
    else
        ((uint16_t *)to)[at] =
            type == PROBE_F16 ? maths_f32_to_f16(value) : maths_f32_to_bf16(value);
}

static float value_at(const void *from, enum probe_type type, size_t at)
{
    if (type == PROBE_E4M3)
        return maths_f8_to_f32(((const uint8_t *)from)[at]);
    uint16_t half = ((const uint16_t *)from)[at];
    return type == PROBE_F16 ? maths_f16_to_f32(half) : maths_bf16_to_f32(half);
}

/* Random operands of every type: A[M][k], B[WIDEST][k]. */
struct operands {
    enum probe_type type;
    uint32_t k;
    void *a, *b;
};

static void *random_matrix(struct random *random, enum probe_type type, uint32_t n_rows, uint32_t k)
{
    void *matrix = malloc((size_t)n_rows * k * element_bytes(type));
    assert_non_null(matrix);
    for (size_t i = 0; i < (size_t)n_rows * k; i++)
        put(matrix, type, i, random_normal(random));
    return matrix;
}

static struct operands open_operands(enum probe_type type, uint32_t k)
{
    struct random random = test_random(40 + (uint64_t)type);
    struct operands o = {.type = type, .k = k};
    o.a = random_matrix(&random, type, M, k);
    o.b = random_matrix(&random, type, WIDEST, k);
    return o;
}

static void close_operands(struct operands *o)
{
    free(o->a);
    free(o->b);
}

/* y[n_blocks][M][n]; false where the card or the emulator lacks the instruction. */
static bool multiply(const struct probe_product *p)
{
    int code = probe->product(p);
    if (code != 0 && code != PROBE_ABSENT)
        fail_msg("%s, %s: %s", form_names[p->form], type_names[p->type], probe->message(code));
    return code == 0;
}

static bool multiply_operands(const struct operands *o, enum probe_form form, uint32_t n, float *y)
{
    struct probe_product p = {o->type, form, n, o->k, 0, 1, o->a, o->b, NULL};
    p.y = y;
    return multiply(&p);
}

static float *sums_of(size_t n)
{
    float *y = malloc(n * sizeof(*y));
    assert_non_null(y);
    return y;
}

static bool same_bits(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n * sizeof(float)) == 0;
}

static void answer(const char *question, const char *text)
{
    printf("bits  %s: %s\n", question, text);
    fflush(stdout);
}

static void answer_of(const struct operands *o, const char *question, bool known, bool yes)
{
    char text[128];
    snprintf(text, sizeof(text), "%s: %s", type_names[o->type], question);
    answer(text, !known ? "needs a card" : yes ? "yes" : "no");
}

/* Distance in units of the last place. */
static uint32_t ulps_apart(float x, float y)
{
    int32_t i, j;
    memcpy(&i, &x, sizeof(i));
    memcpy(&j, &y, sizeof(j));
    int64_t a = i < 0 ? (int64_t)INT32_MIN - i : i, b = j < 0 ? (int64_t)INT32_MIN - j : j;
    int64_t apart = a > b ? a - b : b - a;
    return apart > UINT32_MAX ? UINT32_MAX : (uint32_t)apart;
}

/* Compares y[M][n] with the first n columns of wide[M][wide_n]. */
static bool same_columns(const float *y, uint32_t n, const float *wide, uint32_t wide_n)
{
    for (uint32_t r = 0; r < M; r++)
        if (!same_bits(y + (size_t)r * n, wide + (size_t)r * wide_n, n))
            return false;
    return true;
}

/* --- the answers --- */

/* Blocks of one launch; number of launches. */
enum { BLOCKS = 100, LAUNCHES = 3 };

static void check_repeats(const struct operands *o, enum probe_form form)
{
    const uint32_t n_blocks = test_is_emulated() ? 4 : BLOCKS;
    const size_t n = (size_t)M * WIDEST;
    float *y = sums_of(n * n_blocks), *first = sums_of(n);
    struct probe_product p = {o->type, form, WIDEST, o->k, 0, n_blocks, o->a, o->b, y};
    char question[96];
    bool known = true, same = true;
    for (int launch = 0; known && launch < LAUNCHES; launch++) {
        known = multiply(&p);
        if (known && launch == 0)
            memcpy(first, y, n * sizeof(*y));
        for (uint32_t i = 0; known && i < n_blocks; i++)
            same = same && same_bits(y + n * i, first, n);
    }
    snprintf(question, sizeof(question), "%s, %d repeats are equal", form_names[form],
             LAUNCHES * (int)n_blocks);
    answer_of(o, question, known, same);
    assert_true(!known || same);
    free(first);
    free(y);
}

static void test_repeats_have_the_same_bits(void **state)
{
    (void)state;
    for (int type = 0; type < N_PROBE_TYPES; type++) {
        struct operands o = open_operands((enum probe_type)type, k_of_tests());
        for (int form = 0; form < N_PROBE_FORMS; form++)
            if (form != PROBE_WGMMA_RS || type != PROBE_E4M3)
                check_repeats(&o, (enum probe_form)form);
        close_operands(&o);
    }
}

static void ask_widths(const struct operands *o)
{
    static const uint32_t widths[] = {8, 16, 32, 64, 128};
    float *wide = sums_of((size_t)M * WIDEST), *y = sums_of((size_t)M * WIDEST);
    bool known = multiply_operands(o, PROBE_WGMMA_SS, WIDEST, wide), all = true;
    char differing[64] = "";
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        bool has = known && multiply_operands(o, PROBE_WGMMA_SS, widths[i], y);
        bool same = has && same_columns(y, widths[i], wide, WIDEST);
        size_t used = strlen(differing);
        if (!has)
            known = false;
        else if (!same)
            snprintf(differing + used, sizeof(differing) - used, " %u", widths[i]);
        all = all && same;
    }
    answer_of(o, "wgmma N = 8 to 128 have the bits of N = 256", known, all);
    if (known && !all)
        answer("  these N differ", differing);
    free(y);
    free(wide);
}

/* Asks about weights as rows of A, and tokens as columns. */
static void ask_swapped(const struct operands *o)
{
    const struct operands swapped = {o->type, o->k, o->b, o->a};
    float *y = sums_of((size_t)M * M), *turned = sums_of((size_t)M * M);
    bool known = multiply_operands(o, PROBE_WGMMA_SS, M, y) &&
                 multiply_operands(&swapped, PROBE_WGMMA_SS, M, turned);
    bool same = true;
    for (uint32_t i = 0; known && i < M * M; i++)
        same = same && same_bits(&y[i], &turned[i % M * M + i / M], 1);
    answer_of(o, "wgmma, swapped operands have the same bits", known, same);
    free(turned);
    free(y);
}

static void ask_registers(const struct operands *o)
{
    static const uint32_t widths[] = {8, 64, WIDEST};
    float *shared = sums_of((size_t)M * WIDEST), *registers = sums_of((size_t)M * WIDEST);
    bool known = true, same = true;
    for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++) {
        known = known && multiply_operands(o, PROBE_WGMMA_SS, widths[i], shared) &&
                multiply_operands(o, PROBE_WGMMA_RS, widths[i], registers);
        same = same && known && same_columns(shared, widths[i], registers, widths[i]);
    }
    answer_of(o, "wgmma RS has the bits of SS (N = 8, 64, 256)", known, same);
    free(registers);
    free(shared);
}

static void ask_mma(const struct operands *o)
{
    float *wgmma = sums_of((size_t)M * WIDEST), *mma = sums_of((size_t)M * WIDEST);
    bool known = multiply_operands(o, PROBE_WGMMA_SS, WIDEST, wgmma) &&
                 multiply_operands(o, PROBE_MMA, WIDEST, mma);
    uint32_t n_differ = 0, most = 0;
    for (size_t i = 0; known && i < (size_t)M * WIDEST; i++) {
        uint32_t apart = ulps_apart(wgmma[i], mma[i]);
        n_differ += apart > 0;
        most = apart > most ? apart : most;
    }
    char question[128];
    snprintf(question, sizeof(question),
             "wgmma has the bits of mma.sync (%u of %u differ, at most %u ulp)", n_differ,
             M * WIDEST, most);
    answer_of(o, known ? question : "wgmma has the bits of mma.sync", known, n_differ == 0);
    free(mma);
    free(wgmma);
}

/* A copy of a matrix with other rows or columns: row r from row (r + shift) % n_rows, `more`
 * columns of zeros behind. */
static void *changed(const void *from, size_t element, uint32_t n_rows, uint32_t k, uint32_t shift,
                     uint32_t more)
{
    char *to = calloc((size_t)n_rows, (k + more) * element);
    assert_non_null(to);
    for (uint32_t r = 0; r < n_rows; r++)
        memcpy(to + (k + more) * element * r,
               (const char *)from + k * element * ((r + shift) % n_rows), k * element);
    return to;
}

static void ask_places(const struct operands *o)
{
    enum { SHIFT = 21 };
    const size_t element = element_bytes(o->type);
    struct operands moved = *o, longer = *o;
    float *y = sums_of((size_t)M * WIDEST), *other = sums_of((size_t)M * WIDEST);
    moved.a = changed(o->a, element, M, o->k, SHIFT, 0);
    longer.a = changed(o->a, element, M, o->k, 0, STEP);
    longer.b = changed(o->b, element, WIDEST, o->k, 0, STEP);
    longer.k = o->k + STEP;
    bool same = true, known = multiply_operands(o, PROBE_WGMMA_SS, WIDEST, y) &&
                              multiply_operands(&moved, PROBE_WGMMA_SS, WIDEST, other);
    for (uint32_t r = 0; known && r < M; r++)
        same = same && same_bits(other + (size_t)r * WIDEST, y + (size_t)((r + SHIFT) % M) * WIDEST,
                                 WIDEST);
    answer_of(o, "a row's bits do not depend on its place", known, same);
    known = known && multiply_operands(&longer, PROBE_WGMMA_SS, WIDEST, other);
    answer_of(o, "zeros behind the end of k keep the bits", known,
              known && same_columns(y, WIDEST, other, WIDEST));
    free(longer.b);
    free(longer.a);
    free(moved.a);
    free(other);
    free(y);
}

/* A copy whose columns stand in reverse order within each group. */
static void *reversed(const void *from, size_t element, uint32_t n_rows, uint32_t k, uint32_t group)
{
    char *to = malloc((size_t)n_rows * k * element);
    assert_non_null(to);
    for (size_t i = 0; i < (size_t)n_rows * k; i++)
        memcpy(to + i * element,
               (const char *)from + (i - i % group + group - 1 - i % group) * element, element);
    return to;
}

/* Asks if columns of an instruction may be reordered without a change of bits. Kernels may then
 * read columns in a convenient order. */
static void ask_columns(const struct operands *o)
{
    const size_t element = element_bytes(o->type);
    const uint32_t instruction = o->type == PROBE_E4M3 ? 32 : 16;
    float *y = sums_of((size_t)M * WIDEST), *other = sums_of((size_t)M * WIDEST);
    bool known = multiply_operands(o, PROBE_WGMMA_SS, WIDEST, y);
    for (uint32_t group = instruction; group >= instruction / 2; group /= 2) {
        struct operands turned = *o;
        char question[96];
        turned.a = reversed(o->a, element, M, o->k, group);
        turned.b = reversed(o->b, element, WIDEST, o->k, group);
        bool has = known && multiply_operands(&turned, PROBE_WGMMA_SS, WIDEST, other);
        snprintf(question, sizeof(question), "wgmma, columns reversed within %u keep the bits",
                 group);
        answer_of(o, question, has, has && same_columns(y, WIDEST, other, WIDEST));
        free(turned.b);
        free(turned.a);
    }
    free(other);
    free(y);
}

static void test_order_of_sums(void **state)
{
    (void)state;
    for (int type = 0; type < N_PROBE_TYPES; type++) {
        struct operands o = open_operands((enum probe_type)type, k_of_tests());
        ask_widths(&o);
        ask_swapped(&o);
        if (type != PROBE_E4M3)
            ask_registers(&o);
        ask_mma(&o);
        ask_places(&o);
        ask_columns(&o);
        close_operands(&o);
    }
}

/* Multiplies so that one sum is 2^power + addend. `apart`: in two multiplications, else in one. */
static bool add_to_power(enum probe_type type, enum probe_form form, uint32_t power, float addend,
                         bool apart, float *out)
{
    const uint32_t k = STEP, second = apart ? 64 : 1, n = WIDEST;
    char *a = calloc(M * k, element_bytes(type)), *b = calloc((size_t)n * k, element_bytes(type));
    float *y = sums_of((size_t)M * n);
    const struct probe_product p = {type, form, n, k, 0, 1, a, b, y};
    assert_true(a && b);
    put(a, type, 0, ldexpf(1.0F, (int)(power / 2)));
    put(b, type, 0, ldexpf(1.0F, (int)(power - power / 2)));
    put(a, type, second, addend);
    put(b, type, second, 1.0F);
    bool known = multiply(&p);
    *out = y[0];
    free(y);
    free(b);
    free(a);
    return known;
}

/* Bits behind the leading one that a sum keeps, and what becomes of the rest. */
static void ask_precision(enum probe_type type, enum probe_form form, bool apart)
{
    /* All of f32; products of E4M3 numbers are smaller. */
    const uint32_t most = type == PROBE_E4M3 ? 16 : 23;
    uint32_t kept = 0;
    float sum = 0.0F;
    bool known = add_to_power(type, form, 0, 1.0F, apart, &sum);
    char question[96], text[96];
    while (known && kept < most && add_to_power(type, form, kept + 1, 1.0F, apart, &sum) &&
           sum == ldexpf(1.0F, (int)kept + 1) + 1.0F)
        kept++;
    const char *rest = "";
    if (known && kept + 2 <= most && add_to_power(type, form, kept + 2, 3.0F, apart, &sum))
        rest =
            sum == ldexpf(1.0F, (int)kept + 2) ? ", the rest is cut off" : ", the rest is rounded";
    snprintf(question, sizeof(question), "%s, %s: bits kept behind the leading one, %s",
             type_names[type], form_names[form], apart ? "sum + product" : "in one instruction");
    snprintf(text, sizeof(text), "%s%u%s", kept == most ? "at least " : "", kept, rest);
    answer(question, known ? text : "needs a card");
}

static void test_precision_of_sums(void **state)
{
    (void)state;
    for (int type = 0; type < N_PROBE_TYPES; type++)
        for (int form = 0; form < PROBE_WGMMA_RS; form++) {
            ask_precision((enum probe_type)type, (enum probe_form)form, true);
            ask_precision((enum probe_type)type, (enum probe_form)form, false);
        }
}

static double *values_of(const void *matrix, const struct operands *o, uint32_t n_rows)
{
    double *values = malloc((size_t)n_rows * o->k * sizeof(*values));
    assert_non_null(values);
    for (size_t i = 0; i < (size_t)n_rows * o->k; i++)
        values[i] = (double)value_at(matrix, o->type, i);
    return values;
}

/* The exact product [M][n]; the caller frees it. */
static double *exact_of(const struct operands *o, uint32_t n)
{
    double *a = values_of(o->a, o, M), *b = values_of(o->b, o, n);
    double *exact = calloc((size_t)M * n, sizeof(*exact));
    assert_non_null(exact);
    for (uint32_t r = 0; r < M; r++)
        for (uint32_t c = 0; c < n; c++)
            for (uint32_t i = 0; i < o->k; i++)
                exact[r * n + c] += a[(size_t)r * o->k + i] * b[(size_t)c * o->k + i];
    free(b);
    free(a);
    return exact;
}

/* sqrt(Σ(y − exact)² / Σ exact²) of n values. */
static double error_of(const float *y, const double *exact, size_t n)
{
    double squares = 0.0, errors = 0.0;
    for (size_t i = 0; i < n; i++) {
        squares += exact[i] * exact[i];
        errors += ((double)y[i] - exact[i]) * ((double)y[i] - exact[i]);
    }
    return sqrt(errors / squares);
}

static void ask_error(const struct operands *o, enum probe_form form, uint32_t promote,
                      const double *exact)
{
    enum { N = 64 };
    float *y = sums_of((size_t)M * N);
    const struct probe_product p = {o->type, form, N, o->k, promote, 1, o->a, o->b, y};
    char question[96], text[32] = "needs a card";
    if (multiply(&p))
        snprintf(text, sizeof(text), "%.2e", error_of(y, exact, (size_t)M * N));
    if (promote)
        snprintf(question, sizeof(question), "%s: error, promoted every %u of %u k",
                 type_names[o->type], promote, o->k);
    else
        snprintf(question, sizeof(question), "%s: error of one %s chain over %u k",
                 type_names[o->type], form_names[form], o->k);
    answer(question, text);
    free(y);
}

static void test_error_of_sums(void **state)
{
    (void)state;
    for (int type = 0; type < N_PROBE_TYPES; type++) {
        struct operands o = open_operands((enum probe_type)type, k_of_tests());
        double *exact = exact_of(&o, 64);
        ask_error(&o, PROBE_MMA, 0, exact);
        ask_error(&o, PROBE_WGMMA_SS, 0, exact);
        for (uint32_t promote = 128; type == PROBE_E4M3 && promote >= 32; promote /= 2)
            ask_error(&o, PROBE_WGMMA_SS, promote, exact);
        free(exact);
        close_operands(&o);
    }
}

static void test_widened_codes(void **state)
{
    (void)state;
    uint64_t n_checked = 0, n_wrong = 0;
    char text[96];
    int code = probe->widen(&n_checked, &n_wrong);
    if (code != 0 && code != PROBE_ABSENT)
        fail_msg("%s", probe->message(code));
    snprintf(text, sizeof(text), "%s (%llu of %llu wrong)", n_wrong == 0 ? "yes" : "no",
             (unsigned long long)n_wrong, (unsigned long long)n_checked);
    answer("4-bit codes widen exactly to f16, sums up to 2048", code == 0 ? text : "needs a card");
}

static int open_probe(void **state)
{
    (void)state;
    const char *why = NULL;
    probe = support_probe_open(&why);
    if (probe == NULL)
        print_error("%s\n", why);
    return probe ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeats_have_the_same_bits),
        cmocka_unit_test(test_order_of_sums),
        cmocka_unit_test(test_precision_of_sums),
        cmocka_unit_test(test_error_of_sums),
        cmocka_unit_test(test_widened_codes),
    };
    if (getenv("SLUICE_TEST_FILTER"))
        cmocka_set_test_filter(getenv("SLUICE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, open_probe, NULL);
}
