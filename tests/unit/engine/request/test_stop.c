/* Tests of stop strings: a table of texts. Cuts into tokens change neither the place of a stop nor
 * the ids of a text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/request/stop.h"

struct row {
    const char *name;
    const char *stop[4];
    bool include;
    const char *text;     /* tokens separated by | */
    const char *expected; /* text released before the flush */
    const char *flushed;  /* text that the flush adds */
    int matched;
    uint32_t n_released; /* ids released, including the flush */
};

static const struct row rows[] = {
    {"no stop in text", {"END"}, false, "ab|cd|ef", "abcdef", "", -1, 3},
    {"inside one token", {"END"}, false, "ab|cENDd|e", "abc", "", 0, 2},
    {"across tokens", {"END"}, false, "a|bE|N|Dx", "ab", "", 0, 2},
    {"included", {"END"}, true, "a|bE|N|Dx", "abEND", "", 0, 4},
    {"a beginning is held", {"END"}, false, "a|bE|N", "a", "bEN", -1, 3},
    {"a beginning fails", {"END"}, false, "a|EN|x", "aENx", "", -1, 3},
    {"overlapping beginnings", {"aab"}, false, "a|a|a|a|b", "aa", "", 0, 2},
    {"restart inside", {"abcabd"}, false, "abcabcabd", "abc", "", 0, 1},
    {"ends first wins", {"abc", "b"}, false, "xabc", "xa", "", 1, 1},
    {"ends together: longest", {"bc", "abc", "c"}, false, "xabc", "x", "", 1, 1},
    {"at the very start", {"x"}, false, "xy|z", "", "", 0, 0},
    {"token of its own before", {"x"}, false, "a|x", "a", "", 0, 1},
    {"UTF-8 across tokens", {"é!"}, false, "caf|é|!x", "caf", "", 0, 1},
    {"UTF-8 prefix only", {"é!"}, false, "caf|é|s", "cafés", "", -1, 3},
    {"empty texts ride along", {"END"}, false, "a||bE||ND", "ab", "", 0, 4},
    {"no stops at all", {NULL}, false, "a|b", "ab", "", -1, 2},
};

static struct stop_matcher *make(const struct row *row, struct stop_set **out_set)
{
    struct stop_matcher *m;
    struct error err;
    uint32_t n = 0;
    while (n < 4 && row->stop[n])
        n++;
    assert_int_equal(stop_set_create(row->stop, n, row->include, out_set, &err), 0);
    assert_int_equal(stop_matcher_create(*out_set, &m, &err), 0);
    return m;
}

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *row = &rows[i];
        struct stop_set *set;
        struct stop_matcher *m = make(row, &set);
        struct stop_delta d;
        struct error err;
        char out[256] = "";
        int matched = -1;
        uint32_t n_released = 0;
        const char *at = row->text;
        for (bool more = true; more;) {
            size_t n = strcspn(at, "|");
            assert_int_equal(stop_matcher_push(m, at, n, 1, true, &d, &err), 0);
            strncat(out, d.text, d.n_bytes);
            n_released += d.n_released;
            matched = matched >= 0 ? matched : d.i_matched;
            more = at[n] != '\0';
            at += n + more;
        }
        if (strcmp(out, row->expected) != 0)
            fail_msg("%s: \"%s\", expected \"%s\"", row->name, out, row->expected);
        stop_matcher_flush(m, &d);
        assert_int_equal(d.n_bytes, strlen(row->flushed));
        assert_memory_equal(d.text, row->flushed, d.n_bytes);
        n_released += d.n_released;
        if (matched != row->matched || n_released != row->n_released)
            fail_msg("%s: matched %d, released %u", row->name, matched, n_released);
        stop_matcher_destroy(m);
        stop_set_destroy(set);
    }
}

static uint32_t rng = 7;
static uint32_t below(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (rng >> 8) % n;
}

/* The end of the earliest-ending occurrence (longest of equals), by trying every one. */
static int naive(const char *text, const char *const *stops, uint32_t n, size_t *out_begin)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        int best = -1;
        for (uint32_t i = 0; i < n; i++) {
            size_t len = strlen(stops[i]);
            if (len <= end && !memcmp(text + end - len, stops[i], len) &&
                (best < 0 || len > strlen(stops[best])))
                best = (int)i;
        }
        if (best >= 0) {
            *out_begin = end - strlen(stops[best]);
            return best;
        }
    }
    *out_begin = strlen(text);
    return -1;
}

static void random_text(char *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (char)('a' + below(2));
    out[n] = '\0';
}

/* Pushes the text in random pieces. After each push, the released text is that of the released
 * ids. */
static void run_cut(const char *text, const struct stop_set *set, char *out, int *out_matched)
{
    struct stop_matcher *m;
    struct stop_delta d;
    struct error err;
    size_t ends[64], at = 0, n_out = 0, length = strlen(text);
    uint32_t n_ids = 0, n_released = 0;
    *out_matched = -1;
    assert_int_equal(stop_matcher_create(set, &m, &err), 0);
    while (at < length && *out_matched < 0) {
        size_t n = below(4);
        n = n < length - at ? n : length - at;
        assert_int_equal(stop_matcher_push(m, text + at, n, 1, true, &d, &err), 0);
        at += n;
        ends[n_ids++ % 64] = at;
        memcpy(out + n_out, d.text, d.n_bytes);
        n_out += d.n_bytes;
        n_released += d.n_released;
        *out_matched = d.i_matched;
        if (*out_matched < 0)
            assert_int_equal(n_out, n_released ? ends[(n_released - 1) % 64] : 0);
    }
    if (*out_matched < 0) {
        stop_matcher_flush(m, &d);
        memcpy(out + n_out, d.text, d.n_bytes);
        n_out += d.n_bytes;
        assert_int_equal(n_released + d.n_released, n_ids);
    }
    out[n_out] = '\0';
    stop_matcher_destroy(m);
}

static void test_any_cut_into_tokens_same_match(void **state)
{
    (void)state;
    for (int round = 0; round < 4000; round++) {
        char stops[3][12], text[64], out[128];
        const char *list[3] = {stops[0], stops[1], stops[2]};
        struct stop_set *set;
        struct error err;
        size_t begin;
        uint32_t n = 1 + below(3);
        int matched;
        for (uint32_t i = 0; i < n; i++)
            random_text(stops[i], 1 + below(8));
        random_text(text, below(60));
        assert_int_equal(stop_set_create(list, n, false, &set, &err), 0);
        int expected = naive(text, list, n, &begin);
        run_cut(text, set, out, &matched);
        assert_int_equal(strlen(out), begin);
        assert_memory_equal(out, text, begin);
        assert_true(matched == expected || !strcmp(list[matched], list[expected]));
        stop_set_destroy(set);
    }
}

static void test_unarmed_text_neither_matches_nor_is_held(void **state)
{
    (void)state;
    struct stop_set *set;
    const struct row row = {.stop = {"END"}};
    struct stop_matcher *m = make(&row, &set);
    struct stop_delta d;
    struct error err;
    assert_int_equal(stop_matcher_push(m, "xENDEN", 6, 2, false, &d, &err), 0);
    assert_int_equal(d.n_bytes, 6);
    assert_int_equal(d.n_released, 2);
    assert_int_equal(stop_matcher_push(m, "D", 1, 1, true, &d, &err), 0);
    assert_int_equal(d.i_matched, -1); /* "EN" came before the matcher was armed */
    assert_int_equal(stop_matcher_push(m, "END", 3, 1, true, &d, &err), 0);
    assert_int_equal(d.i_matched, 0);
    stop_matcher_destroy(m);
    stop_set_destroy(set);
}

/* New stop strings are searched in held text, and not in released text. */
static void test_replaced_strings_see_what_is_held(void **state)
{
    (void)state;
    static const struct {
        const char *first, *pushed, *second, *released;
        int matched;
        const char *then, *after;
        int then_matched;
    } cases[] = {
        {"abcd", "xabc", "abc", "", 0, "", "", -1},     /* the held text equals the new string */
        {"abcd", "xabc", "bc", "a", 0, "", "", -1},     /* the held text contains it */
        {"abcd", "xabc", "xa", "abc", -1, "xa", "", 0}, /* "x" was released */
        {"abcd", "xabc", "cz", "ab", -1, "z", "", 0},   /* the held text may begin the new string */
        {"abcd", "xabc", "q", "abc", -1, "d", "d", -1}, /* the old string no longer matches */
        {"abcd", "xabc", "", "abc", -1, "abcd", "abcd", -1}, /* no stop strings are left */
        {"zz", "abc", "abc", "", -1, "abc", "", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct stop_set *first, *second;
        struct stop_matcher *m;
        struct stop_delta d;
        struct error err;
        assert_int_equal(stop_set_create(&cases[i].first, 1, false, &first, &err), 0);
        assert_int_equal(
            stop_set_create(&cases[i].second, cases[i].second[0] != '\0', false, &second, &err), 0);
        assert_int_equal(stop_matcher_create(first, &m, &err), 0);
        /* An id per byte, so that ids are held exactly as text is. */
        for (const char *at = cases[i].pushed; *at; at++)
            assert_int_equal(stop_matcher_push(m, at, 1, 1, true, &d, &err), 0);
        stop_matcher_replace(m, second, true, &d);
        stop_set_destroy(first);
        assert_int_equal(d.i_matched, cases[i].matched);
        assert_int_equal(d.n_bytes, strlen(cases[i].released));
        assert_memory_equal(d.text, cases[i].released, d.n_bytes);
        assert_int_equal(d.n_released, d.n_bytes);
        assert_int_equal(
            stop_matcher_push(m, cases[i].then, strlen(cases[i].then), 1, true, &d, &err), 0);
        assert_int_equal(d.i_matched, cases[i].then_matched);
        assert_int_equal(d.n_bytes, strlen(cases[i].after));
        stop_matcher_destroy(m);
        stop_set_destroy(second);
    }
}

static void test_longest_stop_and_long_token(void **state)
{
    (void)state;
    static char stop[STOP_MAX_BYTES + 1], text[40000];
    struct stop_set *set;
    struct stop_matcher *m;
    struct stop_delta d;
    struct error err;
    memset(stop, 'a', STOP_MAX_BYTES);
    memset(text, 'a', sizeof(text));
    const char *list[] = {stop};
    assert_int_equal(stop_set_create(list, 1, false, &set, &err), 0);
    assert_int_equal(stop_matcher_create(set, &m, &err), 0);
    for (int i = 0; i < STOP_MAX_BYTES - 1; i++) {
        assert_int_equal(stop_matcher_push(m, "a", 1, 1, true, &d, &err), 0);
        assert_int_equal(d.n_bytes, 0);
    }
    text[0] = 'b';
    assert_int_equal(stop_matcher_push(m, text, sizeof(text), 1, true, &d, &err), 0);
    assert_int_equal(d.i_matched, 0);
    assert_int_equal(d.n_bytes, STOP_MAX_BYTES); /* 255 times a, then b */
    assert_int_equal(d.n_released, STOP_MAX_BYTES);
    stop_matcher_destroy(m);
    stop_set_destroy(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_any_cut_into_tokens_same_match),
        cmocka_unit_test(test_unarmed_text_neither_matches_nor_is_held),
        cmocka_unit_test(test_replaced_strings_see_what_is_held),
        cmocka_unit_test(test_longest_stop_and_long_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
