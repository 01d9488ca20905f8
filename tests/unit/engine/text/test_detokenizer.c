/* Tests that text is released together with its ids and only as complete UTF-8. The pieces add up
 * to the text of one decoding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "engine/format/checkpoint.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_gguf.h"

/* In GPT-2's alphabet: F0 9F is U+00F0 U+0141, 98 80 is U+013A U+0122. */
#define EMOJI_HEAD "\xC3\xB0\xC5\x81"
#define EMOJI_TAIL "\xC4\xBA\xC4\xA2"
enum { HEAD = 256, TAIL, A_HEAD, END };

static struct tokenizer *open_small(void)
{
    static const char *const tokens[] = {EMOJI_HEAD, EMOJI_TAIL, "a" EMOJI_HEAD};
    static const char *const control[] = {"<|end|>"};
    const struct gguf_vocab v = {
        .pre = "gpt-2", .tokens = tokens, .n_tokens = 3, .control = control, .n_control = 1};
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct tokenizer *tok;
    struct error err = {0};
    gguf_begin(&w);
    gguf_vocab(&w, &v);
    gguf_finish(&w);
    if (gguf_open(&w, &c, &err) || tokenizer_open(c, &tok, &err))
        fail_msg("%s", err.message);
    checkpoint_close(c);
    gguf_writer_fini(&w);
    return tok;
}

static const struct row {
    bool skip;
    uint32_t ids[8];
    size_t n_ids;
    /* after each push, then after the flush: text and number released */
    struct {
        const char *text;
        uint32_t n_released;
    } deltas[9];
} rows[] = {
    {true, {'h', 'i'}, 2, {{"h", 1}, {"i", 1}, {"", 0}}},
    {true, {HEAD, TAIL}, 2, {{"", 0}, {"\xF0\x9F\x98\x80", 2}, {"", 0}}},
    {true, {A_HEAD, TAIL}, 2, {{"", 0}, {"a\xF0\x9F\x98\x80", 2}, {"", 0}}}, /* 'a' waits too */
    {true, {0xE2, 0x82, 0xAC, '!'}, 4, {{"", 0}, {"", 0}, {"\xE2\x82\xAC", 3}, {"!", 1}, {"", 0}}},
    /* a U+FFFD per maximal bad part */
    {true, {0xE2, 0x82, 'x'}, 3, {{"", 0}, {"", 0}, {"\xEF\xBF\xBDx", 3}, {"", 0}}},
    {true, {HEAD, 'x'}, 2, {{"", 0}, {"\xEF\xBF\xBDx", 2}, {"", 0}}},
    {true, {0x80, 0xFF}, 2, {{"\xEF\xBF\xBD", 1}, {"\xEF\xBF\xBD", 1}, {"", 0}}},
    {true, {0xE0, 0x80}, 2, {{"", 0}, {"\xEF\xBF\xBD\xEF\xBF\xBD", 2}, {"", 0}}},
    {true,
     {0xED, 0xA0, 0x80},
     3,
     {{"", 0}, {"\xEF\xBF\xBD\xEF\xBF\xBD", 2}, {"\xEF\xBF\xBD", 1}, {"", 0}}},
    {true, {0xF4, 0x90}, 2, {{"", 0}, {"\xEF\xBF\xBD\xEF\xBF\xBD", 2}, {"", 0}}},
    /* cut at the end of the sequence */
    {true, {'a', HEAD}, 2, {{"a", 1}, {"", 0}, {"\xEF\xBF\xBD", 1}}},
    {true, {0xF0, 0x9F, 0x98}, 3, {{"", 0}, {"", 0}, {"", 0}, {"\xEF\xBF\xBD", 3}}},
    /* special tokens: without or with their text, but always counted in n_released */
    {true, {'a', END}, 2, {{"a", 1}, {"", 1}, {"", 0}}},
    {false, {'a', END}, 2, {{"a", 1}, {"<|end|>", 1}, {"", 0}}},
    {true, {HEAD, END, TAIL}, 3, {{"", 0}, {"", 0}, {"\xF0\x9F\x98\x80", 3}, {"", 0}}},
    {false, {HEAD, END}, 2, {{"", 0}, {"\xEF\xBF\xBD<|end|>", 2}, {"", 0}}},
};

static void check_delta(size_t row, size_t step, const struct detokenizer_delta *got,
                        const char *text, uint32_t n_released)
{
    if (got->n_bytes != strlen(text) || memcmp(got->text, text, got->n_bytes) != 0 ||
        got->n_released != n_released)
        fail_msg("row %zu, step %zu: \"%.*s\" and %u ids, want \"%s\" and %u", row, step,
                 (int)got->n_bytes, got->text, got->n_released, text, n_released);
}

static void test_push_when_ids_come_then_text_and_ids_leave_together(void **state)
{
    (void)state;
    struct tokenizer *tok = open_small();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct detokenizer *d;
        struct detokenizer_delta delta;
        struct error err = {0};
        assert_int_equal(detokenizer_create(tok, rows[i].skip, &d, &err), 0);
        for (int twice = 0; twice < 2; twice++) { /* a flush leaves the detokenizer as new */
            for (size_t k = 0; k < rows[i].n_ids; k++) {
                assert_int_equal(detokenizer_push(d, rows[i].ids[k], &delta, &err), 0);
                check_delta(i, k, &delta, rows[i].deltas[k].text, rows[i].deltas[k].n_released);
            }
            size_t end = rows[i].n_ids;
            assert_int_equal(detokenizer_flush(d, &delta, &err), 0);
            check_delta(i, end, &delta, rows[i].deltas[end].text, rows[i].deltas[end].n_released);
            assert_int_equal(detokenizer_n_held(d), 0);
        }
        detokenizer_destroy(d);
    }
    tokenizer_close(tok);
}

static void test_push_when_id_is_outside_vocabulary_then_refused_and_nothing_held(void **state)
{
    (void)state;
    struct tokenizer *tok = open_small();
    struct detokenizer *d;
    struct detokenizer_delta delta;
    struct error err = {0};
    assert_int_equal(detokenizer_create(tok, true, &d, &err), 0);
    assert_int_equal(detokenizer_push(d, END + 1, &delta, &err), STATUS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "token_ids");
    assert_true(names_all(err.message, "token_ids|260"));
    assert_int_equal(detokenizer_n_held(d), 0);
    detokenizer_destroy(d);
    tokenizer_close(tok);
}

/* Random bytes: the output is valid UTF-8 at every step. The whole output does not depend on the
 * cuts into tokens. */
static void test_push_when_bytes_are_random_then_always_valid_utf8_and_all_released(void **state)
{
    (void)state;
    struct tokenizer *tok = open_small();
    struct detokenizer *d;
    struct error err = {0};
    uint32_t seed = 12345;
    assert_int_equal(detokenizer_create(tok, true, &d, &err), 0);
    for (int round = 0; round < 2000; round++) {
        struct detokenizer_delta delta;
        uint32_t n_released = 0, n_pushed = 0;
        for (int k = 0; k < 20; k++) {
            seed = seed * 1664525 + 1013904223;
            static const uint8_t likely[] = {'a', 0xC3, 0xE2, 0xF0, 0x82, 0x9F, 0x98, 0x80};
            uint32_t pick = seed >> 24;
            uint32_t id = pick < 128 ? likely[pick & 7] : (seed >> 16) % END;
            assert_int_equal(detokenizer_push(d, id, &delta, &err), 0);
            n_pushed++;
            n_released += delta.n_released;
            assert_true(utf8_valid(delta.text, delta.n_bytes, NULL));
            assert_int_equal(detokenizer_n_held(d), n_pushed - n_released);
            assert_true(delta.n_released || !delta.n_bytes);
        }
        assert_int_equal(detokenizer_flush(d, &delta, &err), 0);
        assert_true(utf8_valid(delta.text, delta.n_bytes, NULL));
        assert_int_equal(n_released + delta.n_released, n_pushed);
    }
    detokenizer_destroy(d);
    tokenizer_close(tok);
}

static void test_encode_and_push_when_text_is_any_then_round_trip(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "plain text, 123",
        "caf\xC3\xA9 \xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\x98\x80\n\n\t x",
        "\xD8\xA7\xD9\x84\xD8\xB9 \xE0\xA4\xB9\xE0\xA4\xBF <|end|>",
        "",
        "   ",
    };
    struct tokenizer *tok = open_small();
    struct detokenizer *d;
    struct error err = {0};
    assert_int_equal(detokenizer_create(tok, false, &d, &err), 0);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        for (unsigned flags = 0; flags < 2; flags++) {
            struct token_list list = {0};
            struct strbuf out = {0};
            struct detokenizer_delta delta;
            assert_int_equal(
                tokenizer_encode(tok, texts[i], strlen(texts[i]), flags, &list, NULL, &err), 0);
            for (size_t k = 0; k < list.n_ids; k++) {
                assert_int_equal(detokenizer_push(d, list.ids[k], &delta, &err), 0);
                strbuf_add(&out, delta.text, delta.n_bytes);
            }
            assert_int_equal(detokenizer_flush(d, &delta, &err), 0);
            assert_int_equal(delta.n_bytes, 0);
            assert_string_equal(strbuf_str(&out), texts[i]);
            strbuf_fini(&out);
            token_list_fini(&list);
        }
    detokenizer_destroy(d);
    tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_push_when_ids_come_then_text_and_ids_leave_together),
        cmocka_unit_test(test_push_when_id_is_outside_vocabulary_then_refused_and_nothing_held),
        cmocka_unit_test(test_push_when_bytes_are_random_then_always_valid_utf8_and_all_released),
        cmocka_unit_test(test_encode_and_push_when_text_is_any_then_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
