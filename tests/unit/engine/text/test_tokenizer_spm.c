/* SentencePiece BPE in a small GGUF file that is written here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/engine/support/support_gguf.h"

static void check_ids(const struct tokenizer *tok, const char *text, unsigned flags,
                      const uint32_t *ids, size_t n_ids)
{
    struct token_list list = {0};
    struct error err = {0};
    if (tokenizer_encode(tok, text, strlen(text), flags, &list, NULL, &err))
        fail_msg("\"%s\": %s", text, err.message);
    bool same = list.n_ids == n_ids && (!n_ids || memcmp(list.ids, ids, n_ids * sizeof(*ids)) == 0);
    if (!same) {
        for (size_t i = 0; i < list.n_ids; i++)
            print_message("%u ", list.ids[i]);
        fail_msg("\"%s\": other ids", text);
    }
    token_list_fini(&list);
}

#define IDS(...)                                                                                   \
    (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t)

static const char *const spm_tokens[] = {"<unk>",
                                         "<s>",
                                         "</s>",
                                         "<0xC3>",
                                         "<0xA9>",
                                         "\xE2\x96\x81",
                                         "a",
                                         "b",
                                         "\xE2\x96\x81"
                                         "a",
                                         "ab",
                                         "\xE2\x96\x81"
                                         "ab",
                                         "bb",
                                         "<tab>"};
enum {
    SPM_C3 = 3,
    SPM_A9,
    SPM_MARK,
    SPM_A,
    SPM_B,
    SPM_MARK_A,
    SPM_AB,
    SPM_MARK_AB,
    SPM_BB,
    SPM_TAB
};

static void write_spm(struct gguf_writer *w, const char *model, const char *pre, bool integers)
{
    static const int32_t types[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4};
    /* The pair of the highest score is merged first, the leftmost of equal ones. */
    static const int32_t scores[] = {0, 0, 0, 0, 0, -9, -9, -9, -4, -2, -3, -2, 0};
    enum { N = sizeof(types) / sizeof(types[0]) };
    gguf_kv_string(w, "tokenizer.ggml.model", model);
    gguf_kv_string(w, "tokenizer.ggml.pre", pre);
    gguf_kv_strings(w, "tokenizer.ggml.tokens", spm_tokens, N);
    gguf_kv_i32s(w, "tokenizer.ggml.token_type", types, N);
    if (integers) {
        gguf_kv_i32s(w, "tokenizer.ggml.scores", scores, N);
    } else {
        gguf_kv_array(w, "tokenizer.ggml.scores", GGUF_F32, N);
        for (size_t i = 0; i < N; i++) {
            float score = (float)scores[i];
            uint32_t bits;
            memcpy(&bits, &score, sizeof(bits));
            gguf_u32(w, bits);
        }
    }
    gguf_kv_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_kv_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gguf_kv_u32(w, "tokenizer.ggml.unknown_token_id", 0);
}

static struct tokenizer *open_spm(bool integers, bool prefix)
{
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct tokenizer *tok = NULL;
    struct error err = {0};
    gguf_begin(&w);
    write_spm(&w, "llama", "default", integers);
    if (!prefix)
        gguf_kv_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
    gguf_finish(&w);
    if (gguf_open(&w, &c, &err) || tokenizer_open(c, &tok, &err))
        fail_msg("%s", err.message);
    checkpoint_close(c);
    gguf_writer_fini(&w);
    return tok;
}

static void test_encode_when_model_is_llama_then_merges_go_by_score(void **state)
{
    (void)state;
    for (int integers = 0; integers < 2; integers++) {
        struct tokenizer *tok = open_spm(integers, true);
        assert_true(tokenizer_info(tok)->add_bos);
        assert_true(tokenizer_info(tok)->strips_space);
        check_ids(tok, "ab", 0, IDS(SPM_MARK_AB));
        check_ids(tok, "abb", 0, IDS(SPM_MARK_AB, SPM_B)); /* ab and bb score the same */
        check_ids(tok, "bbb", 0, IDS(SPM_MARK, SPM_BB, SPM_B));
        check_ids(tok, "a a", 0, IDS(SPM_MARK_A, SPM_MARK_A));
        check_ids(tok, "\xC3\xA9", 0, IDS(SPM_MARK, SPM_C3, SPM_A9));
        check_ids(tok, "\xC3\xBF\xC3\xBF", 0, IDS(SPM_MARK, 0)); /* no token for byte BF */
        check_ids(tok, "a<tab>a", 0, IDS(SPM_MARK_A, SPM_TAB, SPM_A));
        check_ids(tok, "<s>a", TOKENIZER_PARSE_SPECIAL, IDS(1, SPM_MARK_A));
        check_ids(tok, "<s>a", TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_BOS, IDS(1, SPM_MARK_A));
        tokenizer_close(tok);
    }
    struct tokenizer *tok = open_spm(false, false);
    assert_false(tokenizer_info(tok)->strips_space);
    check_ids(tok, "ab", 0, IDS(SPM_AB));
    check_ids(tok, "a ab", 0, IDS(SPM_A, SPM_MARK_AB));
    tokenizer_close(tok);
}

/* Files of Ollama. Symptom: the scores, which are the ids, chose the merges. */
static void test_encode_when_ollama_calls_gemma4_llama_then_merges_go_by_rank(void **state)
{
    static const char *const models[] = {"gemma4", "llama"};
    static const char *const merges[] = {"b b", "a b", "\xE2\x96\x81 a"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct gguf_writer w = {0};
        struct checkpoint *c;
        struct tokenizer *tok = NULL;
        struct error err = {0};
        gguf_begin(&w);
        write_spm(&w, models[i], "gemma4", false);
        gguf_kv_strings(&w, "tokenizer.ggml.merges", merges, 3);
        gguf_finish(&w);
        if (gguf_open(&w, &c, &err) || tokenizer_open(c, &tok, &err))
            fail_msg("%s", err.message);
        assert_string_equal(tokenizer_info(tok)->model, "gemma4");
        check_ids(tok, "abb", 0, IDS(SPM_A, SPM_BB));
        check_ids(tok, " a", 0, IDS(SPM_MARK_A));
        check_ids(tok, "ab", 0, IDS(SPM_AB));
        tokenizer_close(tok);
        checkpoint_close(c);
        gguf_writer_fini(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_when_model_is_llama_then_merges_go_by_score),
        cmocka_unit_test(test_encode_when_ollama_calls_gemma4_llama_then_merges_go_by_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
