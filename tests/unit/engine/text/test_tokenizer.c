/* Byte-level BPE on small vocabularies made here; the sample model's ids are checked against the
 * reference tokenizers in test_tokenizer_golden.c. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "engine/text/tokenizer.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_gguf.h"

/* U+0120 is the space in GPT-2's alphabet. */
#define SP "\xC4\xA0"

static const char *const words[] = {"he", "ll", "hell", "hello", SP "w", "aa", "aaaa", "lo"};
static const char *const merges[] = {"h e",   "l l", "he ll", "hell o",
                                     SP " w", "a a", "aa aa", "l o"};
static const char *const control[] = {"<|end|>", "<|end", "<|start|>"};
static const char *const user[] = {"<tab>"};

enum { HE = 256, LL, HELL, HELLO, SPACE_W, AA, AAAA, LO, END_FULL, END_PART, START, TAB, N_VOCAB };

static const struct gguf_vocab small = {.pre = "gpt-2",
                                        .tokens = words,
                                        .n_tokens = 8,
                                        .merges = merges,
                                        .n_merges = 8,
                                        .control = control,
                                        .n_control = 3,
                                        .user = user,
                                        .n_user = 1};

static int open_vocab(const struct gguf_vocab *vocab, void (*more)(struct gguf_writer *),
                      struct tokenizer **out_tok, struct error *err)
{
    struct gguf_writer w = {0};
    struct checkpoint *c;
    gguf_begin(&w);
    gguf_vocab(&w, vocab);
    if (more)
        more(&w);
    gguf_finish(&w);
    int rc = gguf_open(&w, &c, err);
    gguf_writer_fini(&w);
    if (rc)
        fail_msg("the test's own file: %s", err->message);
    rc = tokenizer_open(c, out_tok, err);
    checkpoint_close(c);
    return rc;
}

static struct tokenizer *must_open(const struct gguf_vocab *vocab,
                                   void (*more)(struct gguf_writer *))
{
    struct tokenizer *tok = NULL;
    struct error err = {0};
    if (open_vocab(vocab, more, &tok, &err))
        fail_msg("%s", err.message);
    return tok;
}

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

static void test_encode_when_merges_compete_then_lowest_rank_then_leftmost_wins(void **state)
{
    (void)state;
    struct tokenizer *tok = must_open(&small, NULL);
    check_ids(tok, "hello", 0, IDS(HELLO));
    check_ids(tok, "hell", 0, IDS(HELL));
    check_ids(tok, "helo", 0, IDS(HE, LO));
    check_ids(tok, "lll", 0, IDS(LL, 'l'));
    check_ids(tok, "hello w", 0, IDS(HELLO, SPACE_W));
    check_ids(tok, "aaaaa", 0, IDS(AAAA, 'a'));
    check_ids(tok, "aaaaaaa", 0, IDS(AAAA, AA, 'a'));
    check_ids(tok, "\xC3\xA9", 0, IDS(0xC3, 0xA9));
    check_ids(tok, "", 0, NULL, 0);
    tokenizer_close(tok);
}

static void test_encode_when_text_spells_special_tokens_then_flag_decides(void **state)
{
    (void)state;
    struct tokenizer *tok = must_open(&small, NULL);
    check_ids(tok, "<|end|>", TOKENIZER_PARSE_SPECIAL, IDS(END_FULL));
    check_ids(tok, "<|end>", TOKENIZER_PARSE_SPECIAL, IDS(END_PART, '>'));
    check_ids(tok, "<|en", TOKENIZER_PARSE_SPECIAL, IDS('<', '|', 'e', 'n'));
    check_ids(tok, "he<|start|>hello<|end|>", TOKENIZER_PARSE_SPECIAL,
              IDS(HE, START, HELLO, END_FULL));
    check_ids(tok, "<|end|>", 0, IDS('<', '|', 'e', 'n', 'd', '|', '>'));
    check_ids(tok, "he<tab>", 0, IDS(HE, TAB)); /* user-defined: plain vocabulary */
    check_ids(tok, "he<tab>", TOKENIZER_PARSE_SPECIAL, IDS(HE, TAB));
    tokenizer_close(tok);
}

static void add_ids(struct gguf_writer *w)
{
    gguf_kv_u32(w, "tokenizer.ggml.bos_token_id", START);
    gguf_kv_u32(w, "tokenizer.ggml.eos_token_id", END_FULL);
    gguf_kv_u32(w, "tokenizer.ggml.eot_token_id", END_FULL);
    gguf_kv_u32(w, "tokenizer.ggml.eom_token_id", END_PART);
    gguf_kv_bool(w, "tokenizer.ggml.add_bos_token", 1);
    gguf_kv_string(w, "tokenizer.chat_template", "{{ messages }}");
}

static void test_info_when_ids_are_given_then_ends_are_gathered_once(void **state)
{
    (void)state;
    struct tokenizer *tok = must_open(&small, add_ids);
    const struct tokenizer_info *info = tokenizer_info(tok);
    assert_int_equal(info->vocab_size, N_VOCAB);
    assert_int_equal(info->bos_id, START);
    assert_int_equal(info->padding_id, TOKENIZER_NO_ID);
    assert_int_equal(info->n_end_ids, 2);
    assert_int_equal(info->end_ids[0], END_FULL);
    assert_int_equal(info->end_ids[1], END_PART);
    assert_true(info->add_bos);
    assert_false(info->add_eos);
    assert_string_equal(info->chat_template, "{{ messages }}");
    assert_string_equal(info->pre, "gpt-2");
    assert_int_equal(info->max_token_bytes, 9);
    check_ids(tok, "he", TOKENIZER_ADD_BOS | TOKENIZER_ADD_EOS, IDS(START, HE, END_FULL));
    tokenizer_close(tok);
}

/* Symptom: the eos key of a file named <|endoftext|>, so a chat ran through <|im_end|> to
 * max_tokens. */
static void test_info_when_no_key_names_an_end_then_its_text_does(void **state)
{
    (void)state;
    static const struct {
        const char *control[4], *user[2], *plain; /* tokens in this order: plain, control, user */
        uint32_t ends[4];
        uint32_t n_ends;
    } rows[] = {
        {{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, {NULL}, "x1", {259, 257}, 2},
        {{"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}, {NULL}, "x1", {257, 259, 258}, 3},
        {{"<s>", "</s>"}, {"<end_of_turn>"}, "x1", {259, 258}, 2},
        {{"< EOT >", "_<EOT>"}, {"<end_of_utterance>"}, "x1", {259, 257, 258}, 3},
        /* a plain token that spells an end is no end */
        {{"<s>"}, {NULL}, "</s>", {0}, 0},
        {{"<s>"}, {"<|end|>"}, "x1", {258}, 1},
        /* harmony: <|end|> ends a channel of an answer */
        {{"<|return|>", "<|call|>", "<|end|>"}, {NULL}, "x1", {257, 258}, 2},
        {{"<|im_end|>x", "<|im_end"}, {NULL}, "x1", {0}, 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct gguf_vocab v = {.pre = "gpt-2",
                               .tokens = &rows[i].plain,
                               .n_tokens = 1,
                               .control = rows[i].control,
                               .user = rows[i].user};
        while (v.n_control < 4 && rows[i].control[v.n_control])
            v.n_control++;
        while (v.n_user < 2 && rows[i].user[v.n_user])
            v.n_user++;
        struct tokenizer *tok = must_open(&v, NULL);
        const struct tokenizer_info *info = tokenizer_info(tok);
        assert_int_equal(info->n_end_ids, rows[i].n_ends);
        for (uint32_t e = 0; e < rows[i].n_ends; e++)
            assert_int_equal(info->end_ids[e], rows[i].ends[e]);
        tokenizer_close(tok);
    }
}

static void test_tokens_when_looked_up_then_bytes_kind_and_id_agree(void **state)
{
    (void)state;
    struct tokenizer *tok = must_open(&small, NULL);
    size_t n;
    for (uint32_t b = 0; b < 256; b++) {
        const char *bytes = tokenizer_token_bytes(tok, b, &n);
        assert_int_equal(n, 1);
        assert_int_equal((unsigned char)bytes[0], b);
        assert_int_equal(tokenizer_find(tok, bytes, 1), b);
    }
    const char *bytes = tokenizer_token_bytes(tok, SPACE_W, &n);
    assert_int_equal(n, 2);
    assert_memory_equal(bytes, " w", 2);
    assert_int_equal(tokenizer_find(tok, "<|end|>", 7), END_FULL);
    assert_int_equal(tokenizer_find(tok, "nothing", 7), TOKENIZER_NO_ID);
    assert_int_equal(tokenizer_token_kind(tok, END_FULL), TOKEN_CONTROL);
    assert_int_equal(tokenizer_token_kind(tok, TAB), TOKEN_USER_DEFINED);
    assert_int_equal(tokenizer_token_kind(tok, HE), TOKEN_NORMAL);
    assert_null(tokenizer_token_bytes(tok, N_VOCAB, &n));
    tokenizer_close(tok);
}

static void test_encode_when_text_is_not_utf8_then_byte_is_named_and_list_kept(void **state)
{
    (void)state;
    struct tokenizer *tok = must_open(&small, NULL);
    struct token_list list = {0};
    struct error err = {0};
    assert_int_equal(tokenizer_encode(tok, "he", 2, 0, &list, NULL, &err), 0);
    static const char *const bad[] = {"ab\xFF", "ab\xC0\x80", "ab\xED\xA0\x80", "ab\xE2\x82"};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(tokenizer_encode(tok, bad[i], strlen(bad[i]), 0, &list, NULL, &err),
                         STATUS_INVALID_ARGUMENT);
        assert_string_equal(err.field, "text");
        assert_true(names_all(err.message, "text|UTF-8|byte 2"));
        assert_int_equal(list.n_ids, 1);
    }
    token_list_fini(&list);
    tokenizer_close(tok);
}

/* A merge may join bytes only inside a piece. Each pair of these characters has a merge, so the ids
 * show where a rule cuts. The test encodes text in which each piece is one token. */
static void test_pretokenizers_when_named_then_text_is_cut_by_their_rules(void **state)
{
    (void)state;
    /* Every merge of the pieces below, left to right, with all prefixes as tokens. */
    static const char *const tokens[] = {"12",  "123", "1234",      SP "1", SP "12", "ab",
                                         "ab1", "!!",  "!!!",       SP "a", SP "ab", SP SP,
                                         "'S",  "b'",  "!\xC4\x8A", "'s",   "ab)"};
    static const char *const joins[] = {
        SP " 1", SP "1 2", SP " a",   SP "a b", "1 2", "12 3",       "123 4", "a b", "ab 1",
        "! !",   "!! !",   SP " " SP, "' S",    "b '", "! \xC4\x8A", "' s",   "ab )"};
    enum {
        T12 = 256,
        T123,
        T1234,
        T_1,
        T_12,
        TAB_,
        TAB1,
        TX2,
        TX3,
        T_A,
        T_AB,
        T_SP2,
        TQS,
        TBQ,
        TXNL,
        TQS_LOW,
        TAB_BRACKET
    };
    static const struct {
        const char *pre, *text;
        uint32_t ids[8];
        size_t n_ids;
    } rows[] = {
        {"gpt-2", "ab1234 12", {TAB_, T1234, T_12}, 3},
        {"smollm", "ab1234 12", {TAB_, '1', '2', '3', '4', ' ', '1', '2'}, 8},
        {"qwen2", "ab1234 12", {TAB_, '1', '2', '3', '4', ' ', '1', '2'}, 8},
        {"llama-bpe", "ab1234 12", {TAB_, T123, '4', ' ', T12}, 5},
        {"gpt-4o", "ab1234 12", {TAB_, T123, '4', ' ', T12}, 5},
        {"tekken", "ab12", {TAB_, '1', '2'}, 3},
        {"deepseek-llm", "ab1234 12", {TAB_, T1234, ' ', T12}, 4},
        {"deepseek-coder", "ab12!!", {TAB_, '1', '2', TX2}, 4},
        {"deepseek-v3", "ab1234 12", {TAB_, T123, '4', ' ', T12}, 5},
        {"falcon", "ab1234!!!", {TAB_, T123, '4', TX3}, 4},
        {"gpt-2", "a  ab", {'a', ' ', T_AB}, 3}, /* the last space goes to the word */
        {"gpt-2", "a  ", {'a', T_SP2}, 2},
        {"gpt-2", "ab's", {TAB_, TQS_LOW}, 2},
        {"gpt-2", "ab'S", {TAB_, '\'', 'S'}, 3}, /* contractions in lower case only */
        {"llama-bpe", "ab'S", {TAB_, TQS}, 2},   /* contractions in any case */
        {"gpt-2", "!\n", {'!', '\n'}, 2},
        {"llama-bpe", "!\n", {TXNL}, 1}, /* the line end goes to the punctuation */
        {"bloom", "ab1!", {TAB1, '!'}, 2},
        {"bloom", "ab(ab)", {TAB_, '(', TAB_, ')'}, 4}, /* BLOOM's rule cuts at brackets */
        {"viking", "ab)", {TAB_, ')'}, 2},              /* "ab)" is a token, so a cut shows */
        {"default", "ab12!!", {TAB_, T12, TX2}, 3},
        {NULL, "ab12!!", {TAB_, T12, TX2}, 3}, /* no key: default */
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct gguf_vocab v = {.pre = rows[i].pre,
                               .tokens = tokens,
                               .n_tokens = sizeof(tokens) / sizeof(tokens[0]),
                               .merges = joins,
                               .n_merges = sizeof(joins) / sizeof(joins[0])};
        struct tokenizer *tok = must_open(&v, NULL);
        print_message("%s: %s\n", rows[i].pre ? rows[i].pre : "(none)", rows[i].text);
        check_ids(tok, rows[i].text, 0, rows[i].ids, rows[i].n_ids);
        tokenizer_close(tok);
    }
}

static void test_encode_when_rules_ignore_merges_then_whole_piece_is_its_token(void **state)
{
    (void)state;
    static const char *const tokens[] = {"xyz"}; /* no merge makes "xyz" */
    struct gguf_vocab v = {.pre = "llama-bpe", .tokens = tokens, .n_tokens = 1};
    struct tokenizer *tok = must_open(&v, NULL);
    check_ids(tok, "xyz", 0, IDS(256));
    assert_true(tokenizer_info(tok)->add_bos);
    tokenizer_close(tok);
    v.pre = "qwen2";
    tok = must_open(&v, NULL);
    check_ids(tok, "xyz", 0, IDS('x', 'y', 'z'));
    tokenizer_close(tok);
}

/* A quadratic merge loop would need hours for this. */
static void test_encode_when_10_mb_of_one_character_then_done_in_seconds(void **state)
{
    (void)state;
    enum { N = 10 << 20 };
    static const char *const runs[] = {"a", " ", "\xCC\x81", "!", "\n", "1"};
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "deepseek-llm"};
    char *text = malloc(N);
    assert_non_null(text);
    for (size_t p = 0; p < 4; p++) {
        struct gguf_vocab v = small;
        v.pre = pres[p];
        struct tokenizer *tok = must_open(&v, NULL);
        for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
            size_t unit = strlen(runs[i]);
            size_t n = p == 0 && i == 0 ? N : N / 8;
            n -= n % unit;
            for (size_t k = 0; k < n; k += unit)
                memcpy(text + k, runs[i], unit);
            struct token_list list = {0};
            struct error err = {0};
            int64_t start = clock_now_ns();
            int rc = tokenizer_encode(tok, text, n, 0, &list, NULL, &err);
            if (rc)
                fail_msg("%s, run %zu: %s", pres[p], i, err.message);
            assert_int_equal(list.n_ids, i == 0 ? n / 4 : n);
            assert_true(clock_now_ns() - start < 60 * NS_PER_S);
            token_list_fini(&list);
        }
        tokenizer_close(tok);
    }
    free(text);
}

struct thread_work {
    const struct tokenizer *tok;
    uint64_t sum;
};

static void *encode_many(void *arg)
{
    struct thread_work *work = arg;
    for (int i = 0; i < 300; i++) {
        char text[64];
        struct token_list list = {0};
        struct error err;
        int n = snprintf(text, sizeof(text), "hello w%d <|end|> aaaa helo", i);
        if (tokenizer_encode(work->tok, text, (size_t)n, TOKENIZER_PARSE_SPECIAL, &list, NULL,
                             &err) == 0)
            for (size_t k = 0; k < list.n_ids; k++)
                work->sum = work->sum * 31 + list.ids[k];
        token_list_fini(&list);
    }
    return NULL;
}

static void test_encode_when_many_threads_then_same_ids(void **state)
{
    (void)state;
    struct tokenizer *tok = must_open(&small, NULL);
    pthread_t threads[4];
    struct thread_work work[4];
    for (int i = 0; i < 4; i++) {
        work[i] = (struct thread_work){.tok = tok};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_many, &work[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 1; i < 4; i++)
        assert_true(work[i].sum == work[0].sum);
    tokenizer_close(tok);
}

/* --- bad vocabularies --- */

static void write_model(struct gguf_writer *w, const char *model)
{
    gguf_kv_string(w, "tokenizer.ggml.model", model);
}

static void bad_no_model(struct gguf_writer *w)
{
    gguf_kv_u32(w, "x", 1);
}

static void bad_wordpiece(struct gguf_writer *w)
{
    write_model(w, "bert");
}

static void bad_no_tokens(struct gguf_writer *w)
{
    write_model(w, "gpt2");
}

static void bad_zero_tokens(struct gguf_writer *w)
{
    write_model(w, "gpt2");
    gguf_kv_strings(w, "tokenizer.ggml.tokens", NULL, 0);
}

static void bad_twice(struct gguf_writer *w)
{
    write_model(w, "gpt2");
    gguf_kv_strings(w, "tokenizer.ggml.tokens", (const char *const[]){"a", "b", "a"}, 3);
}

static void bad_long_token(struct gguf_writer *w)
{
    char *text = malloc(1 << 20);
    assert_non_null(text);
    memset(text, 'x', 1 << 20);
    write_model(w, "gpt2");
    gguf_kv_array(w, "tokenizer.ggml.tokens", GGUF_STRING, 1);
    gguf_text(w, text, 1 << 20);
    free(text);
}

static void write_tokens(struct gguf_writer *w)
{
    write_model(w, "gpt2");
    gguf_kv_strings(w, "tokenizer.ggml.tokens", (const char *const[]){"a", "b", "<0x-1>", "ab"}, 4);
}

static void bad_types_length(struct gguf_writer *w)
{
    write_tokens(w);
    gguf_kv_i32s(w, "tokenizer.ggml.token_type", (const int32_t[]){1, 1, 1}, 3);
}

static void bad_type_value(struct gguf_writer *w)
{
    write_tokens(w);
    gguf_kv_i32s(w, "tokenizer.ggml.token_type", (const int32_t[]){1, 1, 1, 7}, 4);
}

static void bad_types_type(struct gguf_writer *w)
{
    write_tokens(w);
    gguf_kv_u32(w, "tokenizer.ggml.token_type", 1);
}

static void bad_scores_length(struct gguf_writer *w)
{
    write_model(w, "llama");
    gguf_kv_strings(w, "tokenizer.ggml.tokens", (const char *const[]){"a", "b", "ab"}, 3);
    gguf_kv_array(w, "tokenizer.ggml.scores", GGUF_F32, 2);
    gguf_u32(w, 0);
    gguf_u32(w, 0);
}

static void bad_byte_token(struct gguf_writer *w)
{
    write_tokens(w);
    gguf_kv_i32s(w, "tokenizer.ggml.token_type", (const int32_t[]){1, 1, 6, 1}, 4);
}

static void bad_pre(struct gguf_writer *w)
{
    write_tokens(w);
    gguf_kv_string(w, "tokenizer.ggml.pre", "wizard\n");
}

static void bad_no_merges(struct gguf_writer *w)
{
    write_tokens(w);
}

static void bad_merge_form(struct gguf_writer *w)
{
    write_tokens(w);
    gguf_kv_strings(w, "tokenizer.ggml.merges", (const char *const[]){"a b", "ab"}, 2);
}

static void bad_merge_left(struct gguf_writer *w)
{
    write_tokens(w);
    gguf_kv_strings(w, "tokenizer.ggml.merges", (const char *const[]){"q b"}, 1);
}

static void bad_merge_result(struct gguf_writer *w)
{
    write_tokens(w);
    gguf_kv_strings(w, "tokenizer.ggml.merges", (const char *const[]){"b a"}, 1);
}

static void write_merges(struct gguf_writer *w)
{
    write_tokens(w);
    gguf_kv_strings(w, "tokenizer.ggml.merges", (const char *const[]){"a b"}, 1);
}

static void bad_bos_type(struct gguf_writer *w)
{
    write_merges(w);
    gguf_kv_string(w, "tokenizer.ggml.bos_token_id", "1");
}

static void bad_add_bos(struct gguf_writer *w)
{
    write_merges(w);
    gguf_kv_u32(w, "tokenizer.ggml.add_bos_token", 1);
}

static const struct bad_vocab {
    void (*write)(struct gguf_writer *w);
    int status;
    const char *key, *text;
} bad_vocabs[] = {
    {bad_no_model, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.model", ""},
    {bad_wordpiece, STATUS_UNIMPLEMENTED, "tokenizer.ggml.model", "bert"},
    {bad_no_tokens, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.tokens", ""},
    {bad_zero_tokens, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.tokens", "0|1|1048576"},
    {bad_twice, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.tokens", "element [2]|a"},
    {bad_long_token, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.tokens", "8192"},
    {bad_types_length, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.token_type", "3|4"},
    {bad_type_value, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.token_type", "element [3]|7|1|6"},
    {bad_types_type, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.token_type", "u32"},
    {bad_scores_length, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.scores", "2|3"}, /* BI-19 */
    {bad_byte_token, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.tokens",
     "element [2]|\"<0x-1>\"|0xNN"},
    {bad_pre, STATUS_UNIMPLEMENTED, "tokenizer.ggml.pre", "wizard\\x0a"},
    {bad_no_merges, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.merges", ""},
    {bad_merge_form, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.merges", "element [1]|ab"},
    {bad_merge_left, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.merges", "element [0]|q b"},
    {bad_merge_result, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.merges", "element [0]|b a"},
    {bad_bos_type, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.bos_token_id", "string"},
    {bad_add_bos, STATUS_INVALID_ARGUMENT, "tokenizer.ggml.add_bos_token", "u32|bool"},
};

static void test_open_when_vocabulary_is_bad_then_key_and_rule_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_vocabs) / sizeof(bad_vocabs[0]); i++) {
        const struct bad_vocab *row = &bad_vocabs[i];
        struct gguf_writer w = {0};
        struct checkpoint *c = NULL;
        struct tokenizer *tok = NULL;
        struct error err = {0};
        gguf_begin(&w);
        row->write(&w);
        gguf_finish(&w);
        if (gguf_open(&w, &c, &err))
            fail_msg("row %zu: the test's own file: %s", i, err.message);
        int rc = tokenizer_open(c, &tok, &err);
        if (rc != row->status || !strstr(err.message, row->key) ||
            !names_all(err.message, row->text))
            fail_msg("row %zu: %d, want %d, \"%s\" and \"%s\" in: %s", i, rc, row->status, row->key,
                     row->text, err.message);
        if (rc == STATUS_INVALID_ARGUMENT)
            assert_int_equal(err.reason, REASON_MODEL_FILE_INVALID);
        checkpoint_close(c);
        gguf_writer_fini(&w);
    }
}

static void add_outside_ids(struct gguf_writer *w)
{
    gguf_kv_u32(w, "tokenizer.ggml.bos_token_id", UINT32_MAX);
    gguf_kv(w, "tokenizer.ggml.padding_token_id", GGUF_I32);
    gguf_u32(w, UINT32_MAX); /* -1 */
    gguf_kv_u32(w, "tokenizer.ggml.unknown_token_id", N_VOCAB);
    gguf_kv_u32(w, "tokenizer.ggml.eos_token_id", N_VOCAB);
    gguf_kv_u32(w, "tokenizer.ggml.eot_token_id", N_VOCAB - 1);
}

/* Symptom: a file with padding_token_id or bos_token_id 4294967295 was refused. */
static void test_info_when_an_id_is_no_token_then_it_is_absent_with_a_note(void **state)
{
    (void)state;
    struct tokenizer *tok = must_open(&small, add_outside_ids);
    const struct tokenizer_info *info = tokenizer_info(tok);
    assert_int_equal(info->bos_id, TOKENIZER_NO_ID);
    assert_int_equal(info->padding_id, TOKENIZER_NO_ID);
    assert_int_equal(info->unknown_id, TOKENIZER_NO_ID);
    assert_int_equal(info->eos_id, TOKENIZER_NO_ID);
    assert_int_equal(info->end_ids[0], N_VOCAB - 1);
    assert_int_equal(info->n_notes, 4);
    check_ids(tok, "he", TOKENIZER_ADD_BOS | TOKENIZER_ADD_EOS, IDS(HE));
    tokenizer_close(tok);
    tok = must_open(&small, add_ids);
    assert_int_equal(tokenizer_info(tok)->n_notes, 0);
    tokenizer_close(tok);
}

/* Symptom: a file with a token without text was refused. */
static void test_tokens_when_a_text_is_empty_then_a_placeholder_with_a_note(void **state)
{
    (void)state;
    static const char *const tokens[] = {"he", "", "x1", ""};
    static const char *const control_tokens[] = {"<|end|>", ""};
    const struct gguf_vocab v = {
        .pre = "gpt-2", .tokens = tokens, .n_tokens = 4, .control = control_tokens, .n_control = 2};
    struct tokenizer *tok = must_open(&v, NULL);
    size_t n;
    const char *text = tokenizer_token_bytes(tok, 257, &n);
    assert_int_equal(n, strlen("[EMPTY_257]"));
    assert_memory_equal(text, "[EMPTY_257]", n);
    text = tokenizer_token_bytes(tok, 261, &n);
    assert_memory_equal(text, "[EMPTY_261]", n);
    assert_int_equal(tokenizer_token_kind(tok, 261), TOKEN_CONTROL);
    assert_int_equal(tokenizer_find(tok, "[EMPTY_259]", 11), 259);
    assert_int_equal(tokenizer_info(tok)->n_notes, 1);
    tokenizer_close(tok);
}

static void test_encode_when_vocabulary_lacks_a_byte_then_it_is_counted(void **state)
{
    (void)state;
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct tokenizer *tok;
    struct error err;
    struct token_list list = {0};
    size_t n_lost = 99;
    gguf_begin(&w);
    write_merges(&w);
    gguf_finish(&w);
    assert_int_equal(gguf_open(&w, &c, &err), 0);
    assert_int_equal(tokenizer_open(c, &tok, &err), 0);
    assert_int_equal(tokenizer_encode(tok, "axxb", 4, 0, &list, &n_lost, &err), 0);
    assert_int_equal(n_lost, 2);
    assert_int_equal(list.n_ids, 1); /* "ab": the reference joins the remaining bytes, too */
    assert_int_equal(list.ids[0], 3);
    token_list_fini(&list);
    tokenizer_close(tok);
    checkpoint_close(c);
    gguf_writer_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode_when_merges_compete_then_lowest_rank_then_leftmost_wins),
        cmocka_unit_test(test_encode_when_text_spells_special_tokens_then_flag_decides),
        cmocka_unit_test(test_info_when_ids_are_given_then_ends_are_gathered_once),
        cmocka_unit_test(test_info_when_no_key_names_an_end_then_its_text_does),
        cmocka_unit_test(test_tokens_when_looked_up_then_bytes_kind_and_id_agree),
        cmocka_unit_test(test_encode_when_text_is_not_utf8_then_byte_is_named_and_list_kept),
        cmocka_unit_test(test_pretokenizers_when_named_then_text_is_cut_by_their_rules),
        cmocka_unit_test(test_encode_when_rules_ignore_merges_then_whole_piece_is_its_token),
        cmocka_unit_test(test_encode_when_10_mb_of_one_character_then_done_in_seconds),
        cmocka_unit_test(test_encode_when_many_threads_then_same_ids),
        cmocka_unit_test(test_open_when_vocabulary_is_bad_then_key_and_rule_are_named),
        cmocka_unit_test(test_info_when_an_id_is_no_token_then_it_is_absent_with_a_note),
        cmocka_unit_test(test_tokens_when_a_text_is_empty_then_a_placeholder_with_a_note),
        cmocka_unit_test(test_encode_when_vocabulary_lacks_a_byte_then_it_is_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
