/* Unusual files of a tokenizer: JSON that is nearly valid, long lists of templates and of special
 * tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/text/tokenizer.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_gguf.h"

#define BYTE_LEVEL                                                                                 \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"                       \
    "\"decoder\":{\"type\":\"ByteLevel\"},"
#define MODEL                                                                                      \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static const char small[] = "{" BYTE_LEVEL MODEL "}";

static struct tokenizer_file file_of(const char *text)
{
    return (struct tokenizer_file){text, strlen(text)};
}

static int open_folder(const char *tokenizer, const char *config, struct tokenizer **out_tok,
                       struct error *err)
{
    struct tokenizer_folder folder = {.name = "folder", .tokenizer_json = file_of(tokenizer)};
    if (config)
        folder.tokenizer_config = file_of(config);
    return tokenizer_open_folder(&folder, out_tok, err);
}

/* --- JSON --- */

/* Symptom: files with faults were read in part. Keys behind a fault, such as add_bos_token,
 * vanished in silence. */
static void test_open_when_json_has_a_fault_then_refused_with_its_offset(void **state)
{
    (void)state;
    static const struct {
        const char *tokenizer, *config, *named;
    } rows[] = {
        {small, "{\"x\": [1 2}", "tokenizer_config.json|offset 9"},
        {small, "{\"x\" 1, \"add_bos_token\": true}", "tokenizer_config.json|offset 5"},
        {small, "{\"x\": \"\\q\", \"add_bos_token\": true}", "tokenizer_config.json|offset 7"},
        {small, "{\"x\": \"\\ud800\"}", "tokenizer_config.json|offset 7"},
        {small, "{\"x\": 01}", "tokenizer_config.json|offset 6"},
        {small, "{\"x\": 1.}", "tokenizer_config.json|offset 6"},
        {small, "{} {}", "tokenizer_config.json|offset 3"},
        {small, "{\"chat_template\": 7}", "tokenizer_config.json|offset 18"},
        {small, "{\"chat_template\": \"a\\u0000b\"}", "tokenizer_config.json|NUL"},
        {"{" BYTE_LEVEL MODEL "} x", NULL, "tokenizer.json"},
        {"{" BYTE_LEVEL MODEL ",}", NULL, "tokenizer.json"},
        {"{\"added_tokens\":[{\"id\":1.5,\"content\":\"x\"}]," BYTE_LEVEL MODEL "}", NULL,
         "tokenizer.json|offset"},
        {"{\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{"
         "\"id\":\"x\"}}],\"special_tokens\":{\"x\":{\"id\":\"x\",\"ids\":[]}}}," BYTE_LEVEL MODEL
         "}",
         NULL, "tokenizer.json|post_processor|ids"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tokenizer *tok = NULL;
        struct error err = {0};
        int rc = open_folder(rows[i].tokenizer, rows[i].config, &tok, &err);
        if (rc != STATUS_INVALID_ARGUMENT || !names_all(err.message, rows[i].named))
            fail_msg("row %zu: %d, \"%s\" in: %s", i, rc, rows[i].named, err.message);
        assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
    }
}

/* Python and editors write such files. */
static void test_open_when_json_is_unusual_then_read(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "\xEF\xBB\xBF{\"add_bos_token\": true, \"bos_token\": \"ab\"}",
        "{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": \"ab\", "
        "\"add_bos_token\": true}",
        "{\"x\": NaN, \"y\": [-Infinity, Infinity], \"bos_token\": \"ab\", \"add_bos_token\": "
        "true}",
        "{\"bos_token\": \"b\", \"add_bos_token\": true, \"\": 1, \"bos_token\": \"a\\u0062\"}",
        "{\"added_tokens_decoder\": {\"2\": {\"content\": \"ab\", \"special\": true}}, "
        "\"bos_token\": \"ab\", \"add_bos_token\": true}",
    };
    for (size_t i = 0; i < sizeof(configs) / sizeof(configs[0]); i++) {
        struct tokenizer *tok = NULL;
        struct error err = {0};
        if (open_folder(small, configs[i], &tok, &err) != 0)
            fail_msg("row %zu: %s", i, err.message);
        assert_int_equal(tokenizer_info(tok)->bos_id, 2);
        assert_true(tokenizer_info(tok)->add_bos);
        tokenizer_close(tok);
    }
}

/* --- vocab.json and merges.txt --- */

#define VOCAB "{\"a\":0,\"b\":1,\"ab\":2,\"<|endoftext|>\":3}"
#define GPT2  "{\"tokenizer_class\":\"GPT2Tokenizer\"}"

static void test_open_when_vocab_and_merges_are_not_usable_then_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *vocab, *merges, *config, *architecture;
        int status;
        const char *named;
    } rows[] = {
        {VOCAB, "#version: 0.2\na b\n", GPT2, NULL, 0, ""},
        {VOCAB, "a b\r\n", GPT2, NULL, 0, ""},
        {VOCAB, "a b", GPT2, NULL, 0, ""}, /* the last line may lack its end */
        {VOCAB, "", GPT2, NULL, 0, ""},
        {VOCAB, "a b", "{\"tokenizer_class\":\"RobertaTokenizer\"}", "GPT2LMHeadModel",
         STATUS_UNIMPLEMENTED, "tokenizer_config.json|tokenizer_class|RobertaTokenizer"},
        {VOCAB, "a b", "{\"tokenizer_class\":null}", "FalconForCausalLM", STATUS_UNIMPLEMENTED,
         "tokenizer_class|FalconForCausalLM"},
        {VOCAB, "a b", NULL, NULL, STATUS_UNIMPLEMENTED, "tokenizer_class"},
        {VOCAB, "a b", "{\"tokenizer_class\":7}", NULL, STATUS_INVALID_ARGUMENT,
         "tokenizer_config.json|offset 19"},
        {VOCAB, NULL, GPT2, NULL, STATUS_INVALID_ARGUMENT, "folder|merges.txt"},
        {NULL, "a b", GPT2, NULL, STATUS_INVALID_ARGUMENT, "folder|vocab.json"},
        {NULL, NULL, GPT2, NULL, STATUS_INVALID_ARGUMENT, "folder|tokenizer.json"},
        {VOCAB, "#version: 0.2\na b\nab", GPT2, NULL, STATUS_INVALID_ARGUMENT, "merges.txt|line 3"},
        {VOCAB, "a b\n\na b", GPT2, NULL, STATUS_INVALID_ARGUMENT, "merges.txt|line 2"},
        {VOCAB, "a b c", GPT2, NULL, STATUS_INVALID_ARGUMENT, "merges.txt|line 1"},
        {VOCAB, "a c", GPT2, NULL, STATUS_INVALID_ARGUMENT, "merges.txt|element [0]"},
        {"{\"a\":0,\"b\":0}", "", GPT2, NULL, STATUS_INVALID_ARGUMENT, "vocab.json|offset"},
        {"{}", "", GPT2, NULL, STATUS_INVALID_ARGUMENT, "vocab.json"},
        {"{\"a\":0} x", "", GPT2, NULL, STATUS_INVALID_ARGUMENT, "vocab.json|offset 8"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tokenizer_folder folder = {.name = "folder", .architecture = rows[i].architecture};
        struct tokenizer *tok = NULL;
        struct error err = {0};
        if (rows[i].vocab)
            folder.vocab_json = file_of(rows[i].vocab);
        if (rows[i].merges)
            folder.merges = file_of(rows[i].merges);
        if (rows[i].config)
            folder.tokenizer_config = file_of(rows[i].config);
        int rc = tokenizer_open_folder(&folder, &tok, &err);
        if (rc != rows[i].status || (rc && !names_all(err.message, rows[i].named)))
            fail_msg("row %zu: %d, \"%s\" in: %s", i, rc, rows[i].named, err.message);
        tokenizer_close(tok);
    }
}

/* Symptom: tiktoken.model won over a tokenizer.model of tiktoken, against the documents. */
static void test_open_when_there_are_several_vocabularies_then_the_first_counts(void **state)
{
    (void)state;
    struct tokenizer_folder folder = {.name = "folder",
                                      .tokenizer_model = file_of("a"),
                                      .tiktoken = file_of("b"),
                                      .vocab_json = file_of(VOCAB),
                                      .merges = file_of("a b"),
                                      .tokenizer_config = file_of(GPT2)};
    struct tokenizer *tok = NULL;
    struct error err = {0};
    assert_int_equal(tokenizer_open_folder(&folder, &tok, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "tokenizer.model"));
    folder.tokenizer_model = (struct tokenizer_file){0};
    assert_int_equal(tokenizer_open_folder(&folder, &tok, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "tiktoken.model"));
    folder.tokenizer_json = file_of(small);
    assert_int_equal(tokenizer_open_folder(&folder, &tok, &err), 0);
    assert_string_equal(tokenizer_info(tok)->model, "tokenizer.json");
    tokenizer_close(tok);
}

/* --- many special tokens --- */

/* Opens a vocabulary of n tokens that the config lists as special ones. Returns the CPU time. */
static int64_t time_of_specials(uint32_t n)
{
    struct strbuf tokenizer = {0}, config = {0};
    struct tokenizer *tok = NULL;
    struct error err = {0};
    int64_t best = INT64_MAX;
    strbuf_printf(&tokenizer, "{" BYTE_LEVEL "\"model\":{\"vocab\":{");
    strbuf_printf(&config, "{\"additional_special_tokens\":[");
    for (uint32_t i = 0; i < n; i++) {
        strbuf_printf(&tokenizer, "%s\"t%08x\":%u", i ? "," : "", i, i);
        strbuf_printf(&config, "%s\"t%08x\"", i ? "," : "", n - 1 - i);
    }
    strbuf_printf(&tokenizer, "},\"merges\":[]}}");
    strbuf_printf(&config, "]}");
    for (int i = 0; i < 3; i++) {
        int64_t start = clock_thread_cpu_ns();
        if (open_folder(strbuf_str(&tokenizer), strbuf_str(&config), &tok, &err) != 0)
            fail_msg("%s", err.message);
        int64_t took = clock_thread_cpu_ns() - start;
        best = took < best ? took : best;
        assert_int_equal(tokenizer_token_kind(tok, n / 2), TOKEN_CONTROL);
        tokenizer_close(tok);
    }
    strbuf_fini(&tokenizer);
    strbuf_fini(&config);
    return best;
}

/* Symptom: each special token was searched from the start of the vocabulary, so that a registration
 * of a hostile folder took a minute. Linear time would give 16, quadratic time up to 256. */
static void test_open_when_all_tokens_are_special_then_time_is_linear(void **state)
{
    (void)state;
    int64_t few = time_of_specials(1 << 12), many = time_of_specials(1 << 16);
    print_message("%.1f\n", (double)many / (double)few);
    assert_true(many < 64 * few);
}

/* --- named templates --- */

enum { N_TEMPLATES = 20 };

static void check_templates(const struct tokenizer *tok)
{
    const struct tokenizer_info *info = tokenizer_info(tok);
    assert_string_equal(info->chat_template, "D");
    assert_int_equal(info->n_templates, TOKENIZER_MAX_TEMPLATES);
    assert_string_equal(info->templates[0].name, "n0");
    assert_string_equal(info->templates[TOKENIZER_MAX_TEMPLATES - 1].text, "T14");
    assert_int_equal(info->n_notes, 1);
    assert_true(names_all(info->notes[0], "n15|15"));
}

/* Symptom: a model with more than 8 templates lost the others in silence. */
static void test_templates_when_there_are_too_many_then_a_note_names_the_first_lost(void **state)
{
    (void)state;
    struct strbuf config = {0};
    struct tokenizer *tok = NULL;
    struct error err = {0};
    strbuf_printf(&config, "{\"chat_template\":[");
    for (int i = 0; i < N_TEMPLATES; i++)
        strbuf_printf(&config, "{\"name\":\"n%d\",\"template\":\"T%d\"},", i, i);
    strbuf_printf(&config, "{\"name\":\"n3\",\"template\":\"T3\"},"
                           "{\"name\":\"default\",\"template\":\"D\"}]}");
    if (open_folder(small, strbuf_str(&config), &tok, &err) != 0)
        fail_msg("%s", err.message);
    check_templates(tok);
    tokenizer_close(tok);
    strbuf_fini(&config);

    struct tokenizer_folder folder = {.name = "folder",
                                      .tokenizer_json = file_of(small),
                                      .chat_template = file_of("D"),
                                      .n_templates = TOKENIZER_MAX_TEMPLATES,
                                      .dropped_template = "n15"};
    char texts[TOKENIZER_MAX_TEMPLATES][2][16];
    for (int i = 0; i < TOKENIZER_MAX_TEMPLATES; i++) {
        snprintf(texts[i][0], sizeof(texts[i][0]), "n%d", i);
        snprintf(texts[i][1], sizeof(texts[i][1]), "T%d", i);
        folder.template_names[i] = texts[i][0];
        folder.templates[i] = file_of(texts[i][1]);
    }
    assert_int_equal(tokenizer_open_folder(&folder, &tok, &err), 0);
    check_templates(tok);
    tokenizer_close(tok);
}

/* A GGUF file with a vocabulary; gguf_templates() adds the rest. */
static int open_named(const char *architecture, const char *pre, void (*more)(struct gguf_writer *),
                      struct tokenizer **out_tok, struct error *err)
{
    static const char *const tokens[] = {"ab"}, *const merges[] = {"a b"};
    const struct gguf_vocab vocab = {
        .pre = pre, .tokens = tokens, .n_tokens = 1, .merges = merges, .n_merges = 1};
    struct gguf_writer w = {0};
    struct checkpoint *c = NULL;
    gguf_begin(&w);
    gguf_kv_string(&w, "general.architecture", architecture);
    gguf_vocab(&w, &vocab);
    if (more)
        more(&w);
    gguf_finish(&w);
    if (gguf_open(&w, &c, err) != 0)
        fail_msg("%s", err->message);
    int rc = tokenizer_open(c, out_tok, err);
    checkpoint_close(c);
    gguf_writer_fini(&w);
    return rc;
}

static int open_gguf(void (*more)(struct gguf_writer *), struct tokenizer **out_tok,
                     struct error *err)
{
    return open_named("llama", "gpt-2", more, out_tok, err);
}

static void many_templates(struct gguf_writer *w)
{
    char names[N_TEMPLATES][16], key[64], text[16];
    const char *list[N_TEMPLATES];
    gguf_kv_string(w, "tokenizer.chat_template", "D");
    for (int i = 0; i < N_TEMPLATES; i++) {
        snprintf(names[i], sizeof(names[i]), "n%d", i);
        snprintf(key, sizeof(key), "tokenizer.chat_template.n%d", i);
        snprintf(text, sizeof(text), "T%d", i);
        gguf_kv_string(w, key, text);
        list[i] = names[i];
    }
    gguf_kv_strings(w, "tokenizer.chat_templates", list, N_TEMPLATES);
}

static void wrong_list(struct gguf_writer *w)
{
    static const int32_t numbers[] = {1, 2};
    gguf_kv_i32s(w, "tokenizer.chat_templates", numbers, 2);
}

static void test_templates_when_a_gguf_file_has_too_many_then_a_note(void **state)
{
    (void)state;
    struct tokenizer *tok = NULL;
    struct error err = {0};
    assert_int_equal(open_gguf(many_templates, &tok, &err), 0);
    check_templates(tok);
    tokenizer_close(tok);
}

/* Symptom: the length of the list was read although the list was none. */
static void test_templates_when_the_list_has_another_type_then_its_key_is_named(void **state)
{
    (void)state;
    struct tokenizer *tok = NULL;
    struct error err = {0};
    assert_int_equal(open_gguf(wrong_list, &tok, &err), STATUS_INVALID_ARGUMENT);
    assert_true(names_all(err.message, "tokenizer.chat_templates"));
    assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
}

/* --- tokenizers that are not built --- */

static void test_open_when_the_tokenizer_is_no_bpe_then_its_kind_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *model, *named;
    } rows[] = {{"t5", "tokenizer.ggml.model|t5|Unigram"},
                {"bert", "tokenizer.ggml.model|bert|WordPiece"},
                {"rwkv", "tokenizer.ggml.model|rwkv"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct gguf_writer w = {0};
        struct checkpoint *c = NULL;
        struct tokenizer *tok = NULL;
        struct error err = {0};
        gguf_begin(&w);
        gguf_kv_string(&w, "tokenizer.ggml.model", rows[i].model);
        gguf_finish(&w);
        assert_int_equal(gguf_open(&w, &c, &err), 0);
        int rc = tokenizer_open(c, &tok, &err);
        if (rc != STATUS_UNIMPLEMENTED || !names_all(err.message, rows[i].named))
            fail_msg("%s: %d: %s", rows[i].model, rc, err.message);
        assert_int_equal(err.reason, REASON_TOKENIZER_UNSUPPORTED);
        checkpoint_close(c);
        gguf_writer_fini(&w);
    }
    static const char unigram[] =
        "{" BYTE_LEVEL "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",-1.5]]}}";
    struct tokenizer *tok = NULL;
    struct error err = {0};
    assert_int_equal(open_folder(unigram, NULL, &tok, &err), STATUS_UNIMPLEMENTED);
    assert_true(names_all(err.message, "tokenizer.json|model.type|Unigram"));
}

/* --- files of Ollama --- */

static void end_list(struct gguf_writer *w)
{
    static const int32_t ids[] = {7, 256, 7};
    gguf_kv_i32s(w, "tokenizer.ggml.eos_token_ids", ids, 3);
}

static void test_gguf_when_the_pre_tokenizer_is_unnamed_then_that_of_the_family(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *pre, *want;
    } rows[] = {
        {"gptoss", "default", "gpt-4o"},   {"gptoss", NULL, "gpt-4o"},
        {"gptoss", "gpt-2", "gpt-2"},      {"mistral3", "default", "tekken"},
        {"llama", "default", "default"}, /* no token of Llama 3 */
        {"gpt-oss", "default", "default"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tokenizer *tok = NULL;
        struct error err = {0};
        if (open_named(rows[i].architecture, rows[i].pre, end_list, &tok, &err) != 0)
            fail_msg("row %zu: %s", i, err.message);
        const struct tokenizer_info *info = tokenizer_info(tok);
        bool corrected = strcmp(rows[i].pre ? rows[i].pre : "default", rows[i].want) != 0;
        assert_string_equal(info->pre, rows[i].want);
        assert_int_equal(info->n_notes, corrected);
        assert_true(!corrected || names_all(info->notes[0], rows[i].want));
        assert_int_equal(info->n_end_ids, 2);
        assert_int_equal(info->end_ids[0], 7);
        assert_int_equal(info->end_ids[1], 256);
        tokenizer_close(tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_when_json_has_a_fault_then_refused_with_its_offset),
        cmocka_unit_test(test_open_when_json_is_unusual_then_read),
        cmocka_unit_test(test_open_when_vocab_and_merges_are_not_usable_then_refused_by_name),
        cmocka_unit_test(test_open_when_there_are_several_vocabularies_then_the_first_counts),
        cmocka_unit_test(test_open_when_all_tokens_are_special_then_time_is_linear),
        cmocka_unit_test(test_templates_when_there_are_too_many_then_a_note_names_the_first_lost),
        cmocka_unit_test(test_templates_when_a_gguf_file_has_too_many_then_a_note),
        cmocka_unit_test(test_open_when_the_tokenizer_is_no_bpe_then_its_kind_is_named),
        cmocka_unit_test(test_gguf_when_the_pre_tokenizer_is_unnamed_then_that_of_the_family),
        cmocka_unit_test(test_templates_when_the_list_has_another_type_then_its_key_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
