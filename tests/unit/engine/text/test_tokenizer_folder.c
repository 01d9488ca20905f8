/* Tokenizers from the files of a folder. Ids and texts are those of tokenizers, sentencepiece and
 * tiktoken (tests/golden/make_tokenizers.py). */
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
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_golden.h"

static char *read_golden(const char *name, size_t *out_n)
{
    char path[256];
    struct strbuf buf = {0};
    char part[4096];
    size_t n;
    snprintf(path, sizeof(path), "%s/tests/golden/tokenizers/%s", SLUICE_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing", path);
    while ((n = fread(part, 1, sizeof(part), file)) > 0)
        strbuf_add(&buf, part, n);
    fclose(file);
    *out_n = buf.n_bytes;
    return strbuf_take(&buf);
}

/* Places a file of the folder by its name's end. */
static void place(struct tokenizer_folder *folder, const char *name, const char *bytes, size_t n)
{
    struct tokenizer_file file = {bytes, n};
    if (strcmp(name, "tekken.json") == 0)
        folder->tekken = file;
    else if (strstr(name, ".model"))
        folder->tokenizer_model = file;
    else
        folder->tokenizer_json = file;
}

static int open_bytes(const char *name, const char *bytes, size_t n, const char *config,
                      struct tokenizer **out_tok, struct error *err)
{
    struct tokenizer_folder folder = {.name = "folder"};
    /* An exact copy, so that a read past the end is seen. */
    char *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    place(&folder, name, copy, n);
    if (config)
        folder.tokenizer_config = (struct tokenizer_file){config, strlen(config)};
    int rc = tokenizer_open_folder(&folder, out_tok, err);
    free(copy);
    return rc;
}

static struct tokenizer *open_golden(const char *name, const char *config)
{
    size_t n;
    struct tokenizer *tok = NULL;
    struct error err = {0};
    char *bytes = read_golden(name, &n);
    if (open_bytes(name, bytes, n, config, &tok, &err))
        fail_msg("%s: %s", name, err.message);
    free(bytes);
    return tok;
}

static void decode(const struct tokenizer *tok, const struct token_list *list, struct strbuf *out)
{
    struct detokenizer *d;
    struct detokenizer_delta delta;
    struct error err = {0};
    assert_int_equal(detokenizer_create(tok, false, &d, &err), 0);
    detokenizer_begin_text(d);
    for (size_t i = 0; i < list->n_ids; i++) {
        assert_int_equal(detokenizer_push(d, list->ids[i], &delta, &err), 0);
        strbuf_add(out, delta.text, delta.n_bytes);
    }
    assert_int_equal(detokenizer_flush(d, &delta, &err), 0);
    strbuf_add(out, delta.text, delta.n_bytes);
    detokenizer_destroy(d);
}

static void check_row(const struct tokenizer *tok, struct golden *g, const char *name, uint32_t i)
{
    uint32_t n_bytes = golden_u32(g), n_ids = golden_u32(g);
    uint32_t flag = golden_u32(g); /* 0: another text follows, 1: the same text, 2: no text */
    uint32_t n_back = golden_u32(g);
    const char *text = (const char *)golden_take(g, n_bytes);
    const unsigned char *ids = golden_take(g, 2 * (size_t)n_ids);
    const char *back = (const char *)golden_take(g, n_back);
    struct token_list list = {0};
    struct strbuf out = {0};
    struct error err = {0};
    if (tokenizer_encode(tok, text, n_bytes, TOKENIZER_PARSE_SPECIAL, &list, NULL, &err))
        fail_msg("%s, string %u: %s", name, i, err.message);
    if (list.n_ids != n_ids)
        fail_msg("%s, string %u: %zu ids, want %u", name, i, list.n_ids, n_ids);
    for (uint32_t k = 0; k < n_ids; k++)
        if (list.ids[k] != ((uint32_t)ids[2 * k] | (uint32_t)ids[2 * k + 1] << 8))
            fail_msg("%s, string %u: id %u is %u", name, i, k, list.ids[k]);
    decode(tok, &list, &out);
    size_t n_want = flag ? n_bytes : n_back;
    bool right = out.n_bytes == n_want && memcmp(strbuf_str(&out), flag ? text : back, n_want) == 0;
    if (!right && flag != 2)
        fail_msg("%s, string %u: another text", name, i);
    token_list_fini(&list);
    strbuf_fini(&out);
}

static const char *const goldens[] = {"qwen2.json",      "llama2.json",          "kimi.json",
                                      "unknown.json",    "metaspace_first.json", "spm.model",
                                      "spm_plain.model", "tekken.json"};
enum { N_GOLDENS = sizeof(goldens) / sizeof(goldens[0]) };

static void test_encode_when_from_a_folder_then_ids_and_text_are_the_references(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_GOLDENS; i++) {
        struct golden g;
        char name[64];
        snprintf(name, sizeof(name), "tokenizers/%.*s.bin", (int)strcspn(goldens[i], "."),
                 goldens[i]);
        struct tokenizer *tok = open_golden(goldens[i], NULL);
        golden_open(&g, name, "SLTB");
        uint32_t n = golden_u32(&g);
        assert_true(n > 150);
        for (uint32_t row = 0; row < n; row++)
            check_row(tok, &g, goldens[i], row);
        assert_int_equal(g.at, g.n_bytes);
        golden_close(&g);
        tokenizer_close(tok);
    }
}

/* Folders without tokenizer.json: the class decides the rules. */
static void
test_encode_when_from_vocab_and_merges_then_ids_and_text_are_the_references(void **state)
{
    (void)state;
    static const struct {
        const char *golden, *config, *architecture;
    } rows[] = {
        {"files_gpt2", "{\"tokenizer_class\":\"GPT2Tokenizer\"}", NULL},
        {"files_gpt2", "{\"model_max_length\":1024}", "GPT2LMHeadModel"},
        {"files_gpt2", NULL, "GPT2LMHeadModel"},
        {"files_gpt2_prefix",
         "{\"tokenizer_class\":\"GPT2TokenizerFast\",\"add_prefix_space\":true}", NULL},
        {"files_neox", "{\"tokenizer_class\":\"GPTNeoXTokenizer\"}", NULL},
        {"files_qwen2", "{\"tokenizer_class\":\"Qwen2Tokenizer\",\"eos_token\":\"<|im_end|>\"}",
         "GPT2LMHeadModel"},
    };
    size_t n_vocab, n_merges;
    char *vocab = read_golden("files/vocab.json", &n_vocab);
    char *merges = read_golden("files/merges.txt", &n_merges);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tokenizer_folder folder = {.name = "folder",
                                          .architecture = rows[i].architecture,
                                          .vocab_json = {vocab, n_vocab},
                                          .merges = {merges, n_merges}};
        struct tokenizer *tok = NULL;
        struct error err = {0};
        struct golden g;
        char name[64];
        if (rows[i].config)
            folder.tokenizer_config =
                (struct tokenizer_file){rows[i].config, strlen(rows[i].config)};
        if (tokenizer_open_folder(&folder, &tok, &err) != 0)
            fail_msg("%s: %s", rows[i].golden, err.message);
        snprintf(name, sizeof(name), "tokenizers/%s.bin", rows[i].golden);
        golden_open(&g, name, "SLTB");
        uint32_t n = golden_u32(&g);
        assert_true(n > 150);
        for (uint32_t row = 0; row < n; row++)
            check_row(tok, &g, rows[i].golden, row);
        golden_close(&g);
        const struct tokenizer_info *info = tokenizer_info(tok);
        bool is_qwen = strcmp(rows[i].golden, "files_qwen2") == 0;
        assert_int_equal(info->eos_id, (int32_t)info->vocab_size - (is_qwen ? 1 : 2));
        assert_int_equal(info->bos_id, is_qwen ? TOKENIZER_NO_ID : info->eos_id);
        assert_false(info->add_bos);
        tokenizer_close(tok);
    }
    free(vocab);
    free(merges);
}

static int64_t time_of(const struct tokenizer *tok, const char *unit, size_t n)
{
    size_t n_unit = strlen(unit);
    char *text = malloc(n);
    assert_non_null(text);
    n -= n % n_unit;
    for (size_t i = 0; i < n; i += n_unit)
        memcpy(text + i, unit, n_unit);
    int64_t best = INT64_MAX;
    for (int i = 0; i < 3; i++) {
        struct token_list list = {0};
        struct error err = {0};
        int64_t start = clock_thread_cpu_ns();
        assert_int_equal(tokenizer_encode(tok, text, n, 0, &list, NULL, &err), 0);
        int64_t took = clock_thread_cpu_ns() - start;
        best = took < best ? took : best;
        token_list_fini(&list);
    }
    free(text);
    return best;
}

/* A sanitizer's allocator looks through the shadow of each large block that it gives back. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { MOST_TIMES = 200 };
#else
enum { MOST_TIMES = 30 };
#endif

/* Linear time would give 10. A heap of all candidates, or a merge loop that searches, gives far
 * more. The bound leaves room for caches. A busy machine takes time from a thread for moments, so a
 * long time is measured again. */
static void test_encode_when_text_is_ten_times_as_long_then_time_is_about_ten_times(void **state)
{
    (void)state;
    static const char *const units[] = {"a", " ", "1", "ab", "\xE4\xBD\xA0", "the quick fox "};
    for (size_t i = 0; i < N_GOLDENS; i++) {
        struct tokenizer *tok = open_golden(goldens[i], NULL);
        for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
            int64_t small = time_of(tok, units[u], 100000), large = time_of(tok, units[u], 1000000);
            for (int again = 0; again < 8 && large >= MOST_TIMES * small; again++) {
                int64_t took = time_of(tok, units[u], 1000000);
                large = took < large ? took : large;
            }
            print_message("%s, unit %zu: %.1f\n", goldens[i], u, (double)large / (double)small);
            assert_true(large < MOST_TIMES * small);
        }
        tokenizer_close(tok);
    }
}

/* Symptom: tokenizer.json cut in transfer. Each prefix is refused by the file's name, and no read
 * goes beyond. A tokenizer.model has no length, so some prefixes of it are whole files. The test
 * cuts a file of each kind at every byte. */
static void test_open_when_file_is_cut_then_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_GOLDENS; i++) {
        size_t n;
        char *bytes = read_golden(goldens[i], &n);
        bool every = strcmp(goldens[i], "llama2.json") == 0 ||
                     strcmp(goldens[i], "spm_plain.model") == 0 ||
                     strcmp(goldens[i], "tekken.json") == 0;
        const char *name = strstr(goldens[i], ".model")             ? "tokenizer.model"
                           : strcmp(goldens[i], "tekken.json") == 0 ? "tekken.json"
                                                                    : "tokenizer.json";
        for (size_t cut = 0; cut < n; cut += every || cut < 400 ? 1 : 331) {
            struct tokenizer *tok = NULL;
            struct error err = {0};
            int rc = open_bytes(goldens[i], bytes, cut, NULL, &tok, &err);
            if (rc && rc != STATUS_INVALID_ARGUMENT && rc != STATUS_UNIMPLEMENTED)
                fail_msg("%s cut at %zu: %d: %s", goldens[i], cut, rc, err.message);
            if (rc && !names_all(err.message, name))
                fail_msg("%s cut at %zu does not name the file: %s", goldens[i], cut, err.message);
            if (!rc && !strstr(goldens[i], ".model"))
                fail_msg("%s cut at %zu opens", goldens[i], cut);
            tokenizer_close(tok);
        }
        free(bytes);
    }
}

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"
#define BYTE_LEVEL                                                                                 \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"                       \
    "\"decoder\":{\"type\":\"ByteLevel\"},"

static void test_open_when_a_part_is_not_built_then_its_name_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        int status;
        const char *names;
    } rows[] = {
        {"{" BYTE_LEVEL "\"model\":{\"type\":\"BPE\"," VOCAB "}}", 0, ""},
        {"{" BYTE_LEVEL "\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0.5]]}}",
         STATUS_UNIMPLEMENTED, "tokenizer.json|model.type|Unigram"},
        {"{" BYTE_LEVEL "\"model\":{\"type\":\"BPE\",\"dropout\":0.1," VOCAB "}}",
         STATUS_UNIMPLEMENTED, "model.dropout"},
        {"{" BYTE_LEVEL "\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"," VOCAB "}}",
         STATUS_UNIMPLEMENTED, "model.end_of_word_suffix"},
        {"{\"normalizer\":{\"type\":\"Lowercase\"}," BYTE_LEVEL "\"model\":{" VOCAB "}}",
         STATUS_UNIMPLEMENTED, "normalizer|Lowercase"},
        {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},\"model\":{" VOCAB "}}",
         STATUS_UNIMPLEMENTED, "pre_tokenizer|UnicodeScripts"},
        {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a)\\\\1\"},\"behavior\":"
         "\"Isolated\"},\"decoder\":{\"type\":\"Fuse\"},\"model\":{" VOCAB "}}",
         STATUS_UNIMPLEMENTED, "tokenizer.json|escape"},
        {"{\"decoder\":{\"type\":\"WordPiece\"},\"model\":{" VOCAB "}}", STATUS_UNIMPLEMENTED,
         "decoder|WordPiece"},
        {"{\"post_processor\":{\"type\":\"BertProcessing\"}," BYTE_LEVEL "\"model\":{" VOCAB "}}",
         STATUS_UNIMPLEMENTED, "post_processor|BertProcessing"},
        {"{" BYTE_LEVEL "\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a c\"]}}",
         STATUS_INVALID_ARGUMENT, "model.merges|element [0]"},
        {"{" BYTE_LEVEL "\"model\":{\"vocab\":{\"a\":4294967295},\"merges\":[]}}",
         STATUS_INVALID_ARGUMENT, "tokenizer.json|offset"},
        {"{" BYTE_LEVEL "\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}",
         STATUS_INVALID_ARGUMENT, "two tokens have this id"},
        {"[]", STATUS_INVALID_ARGUMENT, "tokenizer.json|offset 0"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct tokenizer *tok = NULL;
        struct error err = {0};
        int rc = open_bytes("x.json", rows[i].json, strlen(rows[i].json), NULL, &tok, &err);
        if (rc != rows[i].status || (rc && !names_all(err.message, rows[i].names)))
            fail_msg("row %zu: %d: %s", i, rc, err.message);
        if (rc)
            assert_int_equal(err.reason, rc == STATUS_UNIMPLEMENTED ? REASON_TOKENIZER_UNSUPPORTED
                                                                    : REASON_MODEL_FILE_INVALID);
        tokenizer_close(tok);
    }
}

static size_t count(const struct tokenizer *tok, const char *text, unsigned flags, uint32_t id)
{
    struct token_list list = {0};
    struct error err = {0};
    assert_int_equal(tokenizer_encode(tok, text, strlen(text), flags, &list, NULL, &err), 0);
    size_t n = 0;
    for (size_t i = 0; i < list.n_ids; i++)
        n += list.ids[i] == id;
    token_list_fini(&list);
    return n;
}

static void test_config_when_it_names_tokens_then_ids_flags_and_templates_are_its_own(void **state)
{
    (void)state;
    static const char config[] =
        "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"add_bos_token\":true,"
        "\"added_tokens_decoder\":{\"1500\":{\"content\":\"<far>\",\"special\":true},"
        "\"1\":{\"content\":\"<s>\",\"special\":true}},"
        "\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},"
        "{\"name\":\"tool_use\",\"template\":\"T\"}]}";
    struct tokenizer *tok = open_golden("llama2.json", config);
    const struct tokenizer_info *info = tokenizer_info(tok);
    assert_int_equal(info->bos_id, 1);
    assert_int_equal(info->eos_id, 2);
    assert_int_equal(info->vocab_size, 1501);
    assert_true(info->add_bos);
    assert_string_equal(info->chat_template, "D");
    assert_int_equal(info->n_templates, 1);
    assert_string_equal(info->templates[0].name, "tool_use");
    assert_string_equal(info->templates[0].text, "T");
    assert_int_equal(tokenizer_token_kind(tok, 1500), TOKEN_CONTROL);
    assert_int_equal(tokenizer_token_kind(tok, 1400), TOKEN_UNUSED);
    /* Symptom: a prompt that begins with <s> got a second one. */
    const unsigned both = TOKENIZER_ADD_BOS | TOKENIZER_PARSE_SPECIAL;
    assert_int_equal(count(tok, "a", both, 1), 1);
    assert_int_equal(count(tok, "<s>a", both, 1), 1);
    assert_int_equal(count(tok, "<s>a", TOKENIZER_PARSE_SPECIAL, 1), 1);
    assert_int_equal(count(tok, "<far>", TOKENIZER_PARSE_SPECIAL, 1500), 1);
    tokenizer_close(tok);
}

static void test_ends_when_the_folder_lists_many_then_all_are_kept(void **state)
{
    (void)state;
    uint32_t ends[40];
    size_t n;
    struct tokenizer *tok = NULL;
    struct error err = {0};
    char *bytes = read_golden("llama2.json", &n);
    for (uint32_t i = 0; i < 40; i++)
        ends[i] = 10 + i / 2;
    struct tokenizer_folder folder = {
        .name = "f", .tokenizer_json = {bytes, n}, .end_ids = ends, .n_end_ids = 40};
    assert_int_equal(tokenizer_open_folder(&folder, &tok, &err), 0);
    const struct tokenizer_info *info = tokenizer_info(tok);
    assert_true(info->n_end_ids >= 20);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(info->end_ids[i], 10 + i);
    tokenizer_close(tok);
    free(bytes);
}

/* A detokenizer that continues a prompt keeps the space of the first token: "is" + " Paris". */
static void test_decode_when_it_continues_then_the_first_space_stays(void **state)
{
    (void)state;
    struct tokenizer *tok = open_golden("spm.model", NULL);
    struct token_list list = {0};
    struct detokenizer *d;
    struct detokenizer_delta delta;
    struct error err = {0};
    assert_int_equal(tokenizer_encode(tok, "a", 1, 0, &list, NULL, &err), 0);
    assert_int_equal(detokenizer_create(tok, false, &d, &err), 0);
    assert_int_equal(detokenizer_push(d, list.ids[0], &delta, &err), 0);
    assert_true(delta.n_bytes >= 1 && delta.text[0] == ' ');
    detokenizer_begin_text(d);
    assert_int_equal(detokenizer_push(d, list.ids[0], &delta, &err), 0);
    assert_true(delta.n_bytes == 0 || delta.text[0] != ' ');
    detokenizer_destroy(d);
    token_list_fini(&list);
    tokenizer_close(tok);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_when_from_a_folder_then_ids_and_text_are_the_references),
        cmocka_unit_test(
            test_encode_when_from_vocab_and_merges_then_ids_and_text_are_the_references),
        cmocka_unit_test(test_encode_when_text_is_ten_times_as_long_then_time_is_about_ten_times),
        cmocka_unit_test(test_open_when_file_is_cut_then_refused),
        cmocka_unit_test(test_open_when_a_part_is_not_built_then_its_name_is_told),
        cmocka_unit_test(test_config_when_it_names_tokens_then_ids_flags_and_templates_are_its_own),
        cmocka_unit_test(test_ends_when_the_folder_lists_many_then_all_are_kept),
        cmocka_unit_test(test_decode_when_it_continues_then_the_first_space_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
