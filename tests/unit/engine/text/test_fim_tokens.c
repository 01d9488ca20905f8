/* Tokens of fill-in-the-middle prompts: found by the keys of a GGUF file, or by their texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/text/tokenizer.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_gguf.h"

enum { FIRST = 256 }; /* the first id behind the bytes */

static struct tokenizer *open_gguf(const struct gguf_vocab *vocab,
                                   void (*more)(struct gguf_writer *))
{
    struct gguf_writer w = {0};
    struct checkpoint *ckpt;
    struct tokenizer *tok = NULL;
    struct error err = {0};
    gguf_begin(&w);
    gguf_vocab(&w, vocab);
    if (more)
        more(&w);
    gguf_finish(&w);
    if (gguf_open(&w, &ckpt, &err) || tokenizer_open(ckpt, &tok, &err))
        fail_msg("%s", err.message);
    gguf_writer_fini(&w);
    checkpoint_close(ckpt);
    return tok;
}

/* A folder whose added tokens have these texts, from id 256 on. */
static struct tokenizer *open_folder(const char *const *texts, size_t n, const char *is_special)
{
    struct strbuf json = {0};
    struct tokenizer *tok = NULL;
    struct error err = {0};
    strbuf_add_str(&json, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(&json,
                      "%s{\"id\":%zu,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                      "\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                      i ? "," : "", FIRST + i, texts[i], is_special);
    strbuf_add_str(&json, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                          "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
                          "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
                          "\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned b = 0; b < 256; b++) {
        char text[3];
        gguf_byte_text((uint8_t)b, text);
        strbuf_printf(&json, "%s\"%s%s\":%u", b ? "," : "",
                      text[0] == '"' || text[0] == '\\' ? "\\" : "", text, b);
    }
    strbuf_add_str(&json, "},\"merges\":[]}}");
    const struct tokenizer_folder folder = {.name = "folder",
                                            .tokenizer_json = {strbuf_str(&json), json.n_bytes}};
    if (tokenizer_open_folder(&folder, &tok, &err))
        fail_msg("%s", err.message);
    strbuf_fini(&json);
    return tok;
}

static void check_fim(const struct tokenizer *tok, const int32_t want[TOKENIZER_N_FIM])
{
    for (int i = 0; i < TOKENIZER_N_FIM; i++)
        assert_int_equal(tokenizer_info(tok)->fim_ids[i], want[i]);
}

#define FIM(...)                                                                                   \
    (const int32_t[TOKENIZER_N_FIM])                                                               \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void add_keys(struct gguf_writer *w)
{
    gguf_kv_u32(w, "tokenizer.ggml.fim_pre_token_id", 257);
    gguf_kv_u32(w, "tokenizer.ggml.fim_suf_token_id", 258);
    gguf_kv_u32(w, "tokenizer.ggml.fim_mid_token_id", 256);
    gguf_kv_u32(w, "tokenizer.ggml.fim_sep_token_id", 259);
}

static void add_old_keys(struct gguf_writer *w)
{
    gguf_kv_u32(w, "tokenizer.ggml.prefix_token_id", 257);
    gguf_kv_u32(w, "tokenizer.ggml.suffix_token_id", 258);
    gguf_kv_u32(w, "tokenizer.ggml.middle_token_id", 256);
}

static void add_one_key(struct gguf_writer *w)
{
    gguf_kv_u32(w, "tokenizer.ggml.fim_pre_token_id", 257);
}

static void test_gguf_when_keys_name_the_tokens_then_the_keys_count(void **state)
{
    static const char *const texts[] = {"<mid>", "<pre>", "<suf>", "<sep>"};
    static const struct gguf_vocab vocab = {.pre = "gpt-2", .control = texts, .n_control = 4};
    (void)state;
    struct tokenizer *tok = open_gguf(&vocab, add_keys);
    assert_true(tokenizer_fills_gaps(tokenizer_info(tok)));
    check_fim(tok, FIM(257, 258, 256, -1, -1, 259));
    tokenizer_close(tok);
    tok = open_gguf(&vocab, add_old_keys);
    check_fim(tok, FIM(257, 258, 256, -1, -1, -1));
    tokenizer_close(tok);
    /* a part alone builds no prompt */
    tok = open_gguf(&vocab, add_one_key);
    assert_false(tokenizer_fills_gaps(tokenizer_info(tok)));
    check_fim(tok, FIM(-1, -1, -1, -1, -1, -1));
    tokenizer_close(tok);
    tok = open_gguf(&vocab, NULL);
    assert_false(tokenizer_fills_gaps(tokenizer_info(tok)));
    tokenizer_close(tok);
}

static void test_gguf_when_it_has_no_keys_then_the_texts_decide(void **state)
{
    static const char *const texts[] = {"<|fim_pad|>",    "<|fim_prefix|>", "<|fim_middle|>",
                                        "<|fim_suffix|>", "<|file_sep|>",   "<|repo_name|>"};
    static const char *const mixed[] = {"<|fim_prefix|>", "<fim_suffix>", "<fim-middle>"};
    static const struct gguf_vocab qwen = {.pre = "gpt-2", .control = texts, .n_control = 6};
    static const struct gguf_vocab other = {.pre = "gpt-2", .control = mixed, .n_control = 3};
    (void)state;
    struct tokenizer *tok = open_gguf(&qwen, NULL);
    check_fim(tok, FIM(257, 259, 258, 256, 261, 260));
    tokenizer_close(tok);
    /* tokens of different families are not one family's */
    tok = open_gguf(&other, NULL);
    assert_false(tokenizer_fills_gaps(tokenizer_info(tok)));
    tokenizer_close(tok);
}

static void test_folder_when_added_tokens_are_a_family_then_they_are_found(void **state)
{
    static const char *const rows[][3] = {
        {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
        {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
        {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
        {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
        {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
        {"▁<PRE>", "▁<SUF>", "▁<MID>"},
        {"<PRE>", "<SUF>", "<MID>"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int special = 0; special < 2; special++) {
            struct tokenizer *tok = open_folder(rows[i], 3, special ? "true" : "false");
            check_fim(tok, FIM(256, 257, 258, -1, -1, -1));
            tokenizer_close(tok);
        }
}

static size_t count_above_bytes(const struct tokenizer *tok, const char *text, unsigned flags)
{
    struct token_list list = {0};
    struct error err = {0};
    size_t n = 0;
    assert_int_equal(tokenizer_encode(tok, text, strlen(text), flags, &list, NULL, &err), 0);
    for (size_t i = 0; i < list.n_ids; i++)
        n += list.ids[i] >= FIRST;
    token_list_fini(&list);
    return n;
}

/* Tokens that are no control tokens are matched in every text: a user's text could close the
 * gap. */
static void test_encode_when_fim_is_off_then_no_text_becomes_a_fim_token(void **state)
{
    static const char *const texts[] = {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<tab>"};
    static const char text[] = "a<fim_suffix>b<tab><fim_middle>c<fim_prefix>";
    (void)state;
    struct tokenizer *tok = open_folder(texts, 4, "false");
    assert_int_equal(count_above_bytes(tok, text, 0), 4);
    assert_int_equal(count_above_bytes(tok, text, TOKENIZER_NO_FIM), 1);
    assert_int_equal(count_above_bytes(tok, text, TOKENIZER_NO_FIM | TOKENIZER_PARSE_SPECIAL), 1);
    tokenizer_close(tok);
    tok = open_folder(texts, 4, "true");
    assert_int_equal(count_above_bytes(tok, text, 0), 0);
    assert_int_equal(count_above_bytes(tok, text, TOKENIZER_NO_FIM | TOKENIZER_PARSE_SPECIAL), 1);
    tokenizer_close(tok);
}

/* The text behind a gap goes on: SentencePiece's space before a text is no part of the text. */
static void test_encode_when_the_text_goes_on_then_no_space_is_put_before_it(void **state)
{
    char path[256];
    struct strbuf bytes = {0};
    char part[4096];
    size_t n;
    struct tokenizer *tok = NULL;
    struct token_list with = {0}, without = {0};
    struct error err = {0};
    (void)state;
    snprintf(path, sizeof(path), "%s/tests/golden/tokenizers/llama2.json", SLUICE_SOURCE_DIR);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    while ((n = fread(part, 1, sizeof(part), file)) > 0)
        strbuf_add(&bytes, part, n);
    fclose(file);
    const struct tokenizer_folder folder = {.name = "folder",
                                            .tokenizer_json = {strbuf_str(&bytes), bytes.n_bytes}};
    assert_int_equal(tokenizer_open_folder(&folder, &tok, &err), 0);
    assert_int_equal(tokenizer_encode(tok, " the", 4, TOKENIZER_NO_SPACE, &with, NULL, &err), 0);
    assert_int_equal(tokenizer_encode(tok, "the", 3, 0, &without, NULL, &err), 0);
    assert_int_equal(with.n_ids, without.n_ids);
    assert_memory_equal(with.ids, without.ids, with.n_ids * sizeof(*with.ids));
    without.n_ids = 0;
    assert_int_equal(tokenizer_encode(tok, "the", 3, TOKENIZER_NO_SPACE, &without, NULL, &err), 0);
    const char *first = tokenizer_token_bytes(tok, without.ids[0], &n);
    assert_true(n > 0 && first[0] == 't');
    token_list_fini(&with);
    token_list_fini(&without);
    tokenizer_close(tok);
    strbuf_fini(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_when_keys_name_the_tokens_then_the_keys_count),
        cmocka_unit_test(test_gguf_when_it_has_no_keys_then_the_texts_decide),
        cmocka_unit_test(test_folder_when_added_tokens_are_a_family_then_they_are_found),
        cmocka_unit_test(test_encode_when_fim_is_off_then_no_text_becomes_a_fim_token),
        cmocka_unit_test(test_encode_when_the_text_goes_on_then_no_space_is_put_before_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
