/* Fuzzes the tokenizer with random bytes as text. The first byte chooses the pre-tokenizer and the
 * parsing of special tokens. Bad UTF-8 is refused; other text comes back byte for byte, also piece
 * by piece. A tokenizer that composes characters (NFC) gives back other bytes; these come back byte
 * for byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/utf8.h"
#include "engine/format/checkpoint.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"
#include "tests/unit/engine/support/support_gguf.h"

static const char *const names[] = {
    "gpt-2",  "smollm", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-coder", "deepseek-v3",
    "falcon", "gpt-4o", "tekken",    "bloom", "viking",       "default",        "dbrx"};
enum { N_NAMES = sizeof(names) / sizeof(names[0]) };

static struct tokenizer *open_one(const char *pre)
{
    /* The alphabet's U+0120 is a space, U+010A a line feed, U+00C3 U+00A9 the bytes of e acute. */
    static const char *const tokens[] = {
        "th",   "he", "the", "\xC4\xA0t",        "\xC4\xA0\xC4\xA0", "aa",
        "aaaa", "12", "123", "\xC3\x83\xC2\xA9", "\xC4\x8A\xC4\x8A", "!!",
        "'s"};
    static const char *const merges[] = {
        "t h",   "h e", "th e", "\xC4\xA0 t",        "\xC4\xA0 \xC4\xA0", "a a",
        "aa aa", "1 2", "12 3", "\xC3\x83 \xC2\xA9", "\xC4\x8A \xC4\x8A", "! !",
        "' s"};
    static const char *const control[] = {"<|im_start|>", "<|im_end|>", "<|"};
    static const char *const user[] = {"<tab>", "\t\t"};
    const struct gguf_vocab v = {.pre = pre,
                                 .tokens = tokens,
                                 .n_tokens = sizeof(tokens) / sizeof(tokens[0]),
                                 .merges = merges,
                                 .n_merges = sizeof(merges) / sizeof(merges[0]),
                                 .control = control,
                                 .n_control = 3,
                                 .user = user,
                                 .n_user = 2};
    struct gguf_writer w = {0};
    struct checkpoint *c;
    struct tokenizer *tok;
    struct error err = {0};
    gguf_begin(&w);
    gguf_vocab(&w, &v);
    gguf_finish(&w);
    if (gguf_open(&w, &c, &err) || tokenizer_open(c, &tok, &err)) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    checkpoint_close(c);
    gguf_writer_fini(&w);
    return tok;
}

/* Decodes the list, piece by piece. *out is owned. */
static void decode(const struct tokenizer *tok, const struct token_list *list, struct strbuf *out)
{
    struct detokenizer *d;
    struct detokenizer_delta delta;
    struct error err = {0};
    size_t n_released = 0;
    if (detokenizer_create(tok, false, &d, &err))
        abort();
    for (size_t i = 0; i < list->n_ids; i++) {
        if (detokenizer_push(d, list->ids[i], &delta, &err) ||
            !utf8_valid(delta.text, delta.n_bytes, NULL))
            abort();
        strbuf_add(out, delta.text, delta.n_bytes);
        n_released += delta.n_released;
    }
    if (detokenizer_flush(d, &delta, &err) || delta.n_bytes || n_released != list->n_ids)
        abort();
    detokenizer_destroy(d);
}

static bool is_text(const struct strbuf *out, const char *text, size_t n_bytes)
{
    return out->n_bytes == n_bytes && (n_bytes == 0 || memcmp(out->data, text, n_bytes) == 0);
}

static void check_back(const struct tokenizer *tok, const struct token_list *list, const char *text,
                       size_t n_bytes, bool composes)
{
    struct strbuf out = {0}, again = {0};
    struct token_list second = {0};
    struct error err = {0};
    size_t n_lost = 0;
    decode(tok, list, &out);
    if (!is_text(&out, text, n_bytes)) {
        if (!composes || tokenizer_encode(tok, out.data, out.n_bytes, 0, &second, &n_lost, &err))
            abort();
        decode(tok, &second, &again);
        if (!is_text(&again, out.data, out.n_bytes))
            abort();
    }
    token_list_fini(&second);
    strbuf_fini(&again);
    strbuf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static struct tokenizer *tokenizers[N_NAMES];
    struct token_list list = {0};
    struct error err = {0};
    size_t n_lost = 0;
    if (!n_bytes)
        return 0;
    size_t which = (data[0] >> 1) % N_NAMES;
    unsigned flags = data[0] & 1 ? TOKENIZER_PARSE_SPECIAL : 0;
    if (!tokenizers[which])
        tokenizers[which] = open_one(names[which]);
    /* An exact copy, so that a read past the end is seen. */
    char *text = malloc(n_bytes - 1 ? n_bytes - 1 : 1);
    if (!text)
        return 0;
    memcpy(text, data + 1, n_bytes - 1);
    bool valid = utf8_valid(text, n_bytes - 1, NULL);
    int rc = tokenizer_encode(tokenizers[which], text, n_bytes - 1, flags, &list, &n_lost, &err);
    if (valid != (rc == 0) || (rc && rc != STATUS_INVALID_ARGUMENT) || n_lost)
        abort();
    if (rc == 0)
        check_back(tokenizers[which], &list, text, n_bytes - 1, strcmp(names[which], "qwen2") == 0);
    token_list_fini(&list);
    free(text);
    return 0;
}
