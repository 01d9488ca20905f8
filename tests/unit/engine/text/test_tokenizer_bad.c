/* Damaged and hostile tokenizer files: tokenizer.json, tokenizer.model, tekken.json and
 * tiktoken.model. Each is refused by the file's name and the place of the fault. The numbers BI-n
 * are those of the list of bad inputs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/text/tokenizer.h"
#include "tests/support/names.h"

enum kind { TOKENIZER_JSON, TOKENIZER_MODEL, TEKKEN, TIKTOKEN };
static const char *const file_names[] = {"tokenizer.json", "tokenizer.model", "tekken.json",
                                         "tiktoken.model"};

static int open_bytes(enum kind kind, const char *bytes, size_t n, struct error *err)
{
    struct tokenizer_folder folder = {.name = "folder"};
    struct tokenizer_file *const files[] = {&folder.tokenizer_json, &folder.tokenizer_model,
                                            &folder.tekken, &folder.tiktoken};
    struct tokenizer *tok = NULL;
    /* An exact copy, so that a read past the end is seen. */
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    *files[kind] = (struct tokenizer_file){copy, n};
    int rc = tokenizer_open_folder(&folder, &tok, err);
    tokenizer_close(tok);
    free(copy);
    return rc;
}

static uint32_t n_wrong;

static int begin(void **state)
{
    (void)state;
    n_wrong = 0;
    return 0;
}

/* The file must be refused as damaged, by its name and the values of `named`. */
static void refuse(enum kind kind, const char *bytes, size_t n, const char *named)
{
    struct error err = {0};
    int rc = open_bytes(kind, bytes, n, &err);
    if (rc != STATUS_INVALID_ARGUMENT || err.reason != REASON_MODEL_FILE_INVALID ||
        !names_all(err.message, file_names[kind]) || !names_all(err.message, named)) {
        print_error("%s: %d, want \"%s\": %s\n%.*s\n", file_names[kind], rc, named, err.message,
                    (int)(n < 200 ? n : 200), bytes);
        n_wrong++;
    }
}

static void refuse_text(enum kind kind, const char *text, const char *named)
{
    refuse(kind, text, strlen(text), named);
}

/* --- every file --- */

static void test_open_when_the_file_is_of_another_kind_then_refused(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } files[] = {{"", 0},       {"\0\0\0\0\0\0\0", 7}, {"not a model", 11},
                 {"<html>", 6}, {"\xFF\xFE{", 3},      {"GGUF\3\0\0\0", 8}};
    (void)state;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) /* BI-1, BI-2, BI-4 */
        for (enum kind kind = TOKENIZER_JSON; kind <= TIKTOKEN; kind++)
            refuse(kind, files[i].bytes, files[i].n, "");
    assert_int_equal(n_wrong, 0);
}

/* --- tokenizer.json --- */

#define BYTE_LEVEL                                                                                 \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"                       \
    "\"decoder\":{\"type\":\"ByteLevel\"},"
#define MODEL(vocab, merges) "{" BYTE_LEVEL "\"model\":{\"vocab\":" vocab ",\"merges\":" merges "}}"
#define AB                   "{\"a\":0,\"b\":1,\"ab\":2}"
#define ADDED(token)                                                                               \
    "{\"added_tokens\":[" token "]," BYTE_LEVEL "\"model\":{\"vocab\":" AB ",\"merges\":[]}}"

static void test_open_when_json_is_damaged_then_key_or_offset_is_named(void **state)
{
    static const struct {
        const char *text, *named;
    } rows[] = {
        {MODEL("{\"a\xFF\":0}", "[]"), "offset"}, /* BI-5 */
        {MODEL("{\"a\":0,\"a\":1}", "[]"), ""},   /* BI-6 */
        {MODEL("{\"a\":1.5}", "[]"), "offset"},   /* BI-10 */
        {MODEL("{\"a\":1e400}", "[]"), "offset"},
        {MODEL("{\"a\":-1}", "[]"), "offset"},
        {MODEL("{\"a\":18446744073709551616}", "[]"), "offset"},
        {MODEL("{\"a\":1048576}", "[]"), "offset"},
        {MODEL("{\"a\":null}", "[]"), "offset"},
        {MODEL("[\"a\"]", "[]"), ""},
        {MODEL("{}", "[]"), ""},
        {MODEL(AB, "{}"), ""},
        {MODEL(AB, "[[[\"a\",\"b\"]]]"), ""},               /* BI-15 */
        {MODEL(AB, "[\"a\"]"), "model.merges|element [0]"}, /* BI-19 */
        {MODEL(AB, "[\"a b\",\"a x\"]"), "model.merges|element [1]"},
        {MODEL(AB, "[\"a b\",\"b a\"]"), "model.merges|element [1]"},
        {MODEL(AB, "[[\"a\",\"b\",\"a\"]]"), ""},
        {ADDED("{\"id\":4294967295,\"content\":\"x\"}"), "offset"},
        {ADDED("{\"id\":-1,\"content\":\"x\"}"), "offset"},
        {ADDED("{\"id\":3}"), ""},
        {ADDED("7"), ""},
        {MODEL(AB, "[]") "x", "offset"},
        {MODEL(AB, "[]") "{}", "offset"},
        {"{\"version\":\"1.0\"}", "model"},
        {"{\"model\":7}", ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        refuse_text(TOKENIZER_JSON, rows[i].text, rows[i].named);
    assert_int_equal(n_wrong, 0);
}

/* BI-7: a parser that calls itself would leave its stack. */
static void test_open_when_json_is_deep_then_refused(void **state)
{
    static const char *const openings[] = {
        "{\"model\":", "{\"x\":", "{\"normalizer\":", "{\"added_tokens\":"};
    (void)state;
    for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++)
        for (int object = 0; object < 2; object++) {
            struct strbuf text = {0};
            strbuf_add_str(&text, openings[i]);
            for (int k = 0; k < 10000; k++)
                strbuf_add_str(&text, object ? "{\"a\":" : "[");
            refuse(TOKENIZER_JSON, strbuf_str(&text), text.n_bytes, "offset");
            refuse(TEKKEN, strbuf_str(&text), text.n_bytes, "offset");
            strbuf_fini(&text);
        }
    assert_int_equal(n_wrong, 0);
}

/* BI-18: a token of 1 MB. */
static void test_open_when_a_token_is_long_then_refused(void **state)
{
    enum { N = 1 << 20 };
    struct strbuf json = {0}, ranks = {0};
    (void)state;
    strbuf_add_str(&json, "{" BYTE_LEVEL "\"model\":{\"merges\":[],\"vocab\":{\"");
    for (int i = 0; i < N; i++)
        strbuf_add_str(&json, "a");
    strbuf_add_str(&json, "\":0}}}");
    refuse(TOKENIZER_JSON, strbuf_str(&json), json.n_bytes, "");
    for (int i = 0; i < N; i++)
        strbuf_add_str(&ranks, "AAAA");
    strbuf_add_str(&ranks, " 0\n");
    refuse(TIKTOKEN, strbuf_str(&ranks), ranks.n_bytes, "line 1");
    strbuf_fini(&ranks);
    strbuf_fini(&json);
    assert_int_equal(n_wrong, 0);
}

/* --- tokenizer.model --- */

/* A piece of the text, score 0 and a type. */
static void add_piece(struct strbuf *model, const char *text, size_t n, int type)
{
    const char head[] = {'\n', (char)(n + 9), '\n', (char)n};
    const char tail[] = {'\x15', 0, 0, 0, 0, '\x18', (char)type};
    assert_true(n < 100);
    strbuf_add(model, head, 4);
    strbuf_add(model, text, n);
    strbuf_add(model, tail, 7);
}

/* Pieces <unk>, <s>, </s> and a, with the trainer's type BPE. */
static void add_model(struct strbuf *model)
{
    static const char trainer[] = {'\x12', 2, '\x18', 2};
    add_piece(model, "<unk>", 5, 2);
    add_piece(model, "<s>", 3, 3);
    add_piece(model, "</s>", 4, 3);
    add_piece(model, "a", 1, 1);
    strbuf_add(model, trainer, sizeof(trainer));
}

static void test_open_when_a_model_is_damaged_then_the_offset_is_named(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *named;
    } rows[] = {
        /* BI-14: a string of 2^64 - 1 bytes, and other lengths beyond the file */
        {"\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 11, "offset"},
        {"\x12\xFF\xFF\xFF\xFF\x0F", 6, "offset"},
        {"\x0A\x7F", 2, "offset"},
        {"\x0A\x03\x0A\x7F\x61", 5, "offset"},         /* a length beyond the piece */
        {"\x0A\x05\x15\x00\x00\xC0\x7F", 7, "offset"}, /* a score that is no number */
        {"\x0A\x05\x15\x00\x00\x80\x7F", 7, "offset"},
        {"\x0A\x02\x18\x09", 4, "offset"}, /* a type that does not exist */
        {"\x0A\x02\x18\x00", 4, "offset"},
        {"\x0A\x04\x0A\x02\xC3\x28", 6, "offset"}, /* BI-5 */
        {"\x02\x00", 2, "offset"},                 /* field 0 */
        {"\x0B\x0C", 2, "offset"},                 /* a group */
        {"\x0F", 1, "offset"},                     /* type 7 of the wire */
        {"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 11, "offset"},
    };
    struct error err = {0};
    (void)state;
    struct strbuf good = {0};
    add_model(&good);
    if (open_bytes(TOKENIZER_MODEL, strbuf_str(&good), good.n_bytes, &err) != 0)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strbuf model = {0};
        strbuf_add(&model, strbuf_str(&good), good.n_bytes);
        strbuf_add(&model, rows[i].bytes, rows[i].n);
        refuse(TOKENIZER_MODEL, strbuf_str(&model), model.n_bytes, rows[i].named);
        strbuf_fini(&model);
    }
    strbuf_fini(&good);
    assert_int_equal(n_wrong, 0);
}

/* --- tiktoken.model --- */

static void test_open_when_a_tiktoken_line_is_bad_then_the_line_is_named(void **state)
{
    static const struct {
        const char *text, *named;
    } rows[] = {
        {"YQ== 0\nYg==\n", "line 2"},
        {"YQ== 0\nYg== \n", "line 2"},
        {"YQ== 0\n 1\n", "line 2"},
        {"YQ== 0\nYg== -1\n", "line 2"},
        {"YQ== 0\nYg== 1.5\n", "line 2"},
        {"YQ== 0\nYg== 1e3\n", "line 2"},
        {"YQ== 0\nYg== 4294967296\n", "line 2"},
        {"YQ== 0\nYg== 18446744073709551617\n", "line 2"},
        {"YQ== 0\nYg== 1048576\n", "line 2"},
        {"YQ== 0\nYg== 0\n", "line 2"}, /* a rank twice */
        {"YQ== 0\nY*== 1\n", "line 2"},
        {"YQ== 0\nYg== 1 2\n", "line 2"},
        {"\n\r\n", "ranks"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        refuse_text(TIKTOKEN, rows[i].text, rows[i].named);
    assert_int_equal(n_wrong, 0);
}

/* --- tekken.json --- */

#define CONFIG(n, special)                                                                         \
    "\"config\":{\"pattern\":\"[a-z]+\",\"default_vocab_size\":" n                                 \
    ",\"default_num_special_tokens\":" special "}"
#define ENTRY(rank, code) "{\"rank\":" rank ",\"token_bytes\":\"" code "\"}"

static void test_open_when_tekken_is_damaged_then_key_or_offset_is_named(void **state)
{
    static const struct {
        const char *text, *named;
    } rows[] = {
        {"{" CONFIG("2147483648", "1") ",\"vocab\":[]}", "offset"}, /* absurd counts */
        {"{" CONFIG("18446744073709551615", "1") ",\"vocab\":[]}", "offset"},
        {"{" CONFIG("-3", "1") ",\"vocab\":[]}", "offset"},
        {"{" CONFIG("3.5", "1") ",\"vocab\":[]}", "offset"},
        {"{" CONFIG("3", "1048577") ",\"vocab\":[]}", "offset"},
        {"{" CONFIG("3", "3") ",\"vocab\":[]}", "config.default_vocab_size|3"},
        {"{" CONFIG("3", "1") "}", "vocab"},
        {"{" CONFIG("3", "1") ",\"vocab\":{}}", "offset"},
        {"{" CONFIG("3", "1") ",\"vocab\":[[[]]]}", "offset"}, /* BI-15 */
        {"{" CONFIG("3", "1") ",\"vocab\":[{}]}", "offset"},
        {"{" CONFIG("3", "1") ",\"vocab\":[" ENTRY("0", "YQ==") "," ENTRY("0", "Yg==") "]}",
         "offset"},
        {"{" CONFIG("3", "1") ",\"vocab\":[" ENTRY("0", "Y") "]}", "offset"},
        {"{" CONFIG("3", "1") ",\"vocab\":[" ENTRY("0", "") "]}", "offset"},
        {"{" CONFIG("3", "1") ",\"vocab\":[" ENTRY("-1", "YQ==") "]}", "offset"},
        {"{" CONFIG("3", "1") ",\"vocab\":[" ENTRY("0", "YQ==") "," ENTRY(
             "1", "Yg==") "],\"special_tokens\":[{\"rank\":7,\"token_str\":\"<s>\"}]}",
         "offset"},
        {"{\"vocab\":[]}", "config"},
        {"{\"config\":7,\"vocab\":[]}", "config"},
        {"{\"config\":{},\"vocab\":[]}", "config.pattern"},
        {"[]", ""},
        {"{" CONFIG("3", "1") ",\"vocab\":[" ENTRY("0", "YQ==") "," ENTRY("1", "Yg==") "]} x",
         "offset"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        refuse_text(TEKKEN, rows[i].text, rows[i].named);
    assert_int_equal(n_wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_open_when_the_file_is_of_another_kind_then_refused, begin),
        cmocka_unit_test_setup(test_open_when_json_is_damaged_then_key_or_offset_is_named, begin),
        cmocka_unit_test_setup(test_open_when_json_is_deep_then_refused, begin),
        cmocka_unit_test_setup(test_open_when_a_token_is_long_then_refused, begin),
        cmocka_unit_test_setup(test_open_when_a_model_is_damaged_then_the_offset_is_named, begin),
        cmocka_unit_test_setup(test_open_when_a_tiktoken_line_is_bad_then_the_line_is_named, begin),
        cmocka_unit_test_setup(test_open_when_tekken_is_damaged_then_key_or_offset_is_named, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
