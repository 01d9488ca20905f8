/* Fuzzes the readers of tokenizer files. The first byte chooses the file: tokenizer.json,
 * tokenizer.model, tekken.json, a tiktoken file, tokenizer_config.json, or vocab.json. A small
 * tokenizer.json stands beside tokenizer_config.json. merges.txt follows vocab.json behind a NUL
 * byte. A file that opens must encode a text, and its ids must decode. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/text/detokenizer.h"
#include "engine/text/tokenizer.h"

static const char small[] =
    "{\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}}";

static void use(const struct tokenizer *tok)
{
    static const char text[] =
        "ab  <s> \n12 345'S \xC3\xA9\xE4\xBD\xA0\xF0\x9F\x99\x82 \xF0\x90\xB5\x80!";
    struct token_list list = {0};
    struct error err = {0};
    struct detokenizer *d;
    struct detokenizer_delta delta;
    int rc = tokenizer_encode(tok, text, sizeof(text) - 1,
                              TOKENIZER_PARSE_SPECIAL | TOKENIZER_ADD_BOS | TOKENIZER_ADD_EOS,
                              &list, NULL, &err);
    if (rc && rc != STATUS_RESOURCE_EXHAUSTED)
        abort();
    if (detokenizer_create(tok, false, &d, &err))
        abort();
    detokenizer_begin_text(d);
    for (size_t i = 0; i < list.n_ids; i++)
        if (detokenizer_push(d, list.ids[i], &delta, &err) ||
            !utf8_valid(delta.text, delta.n_bytes, NULL))
            abort();
    detokenizer_destroy(d);
    const struct tokenizer_info *info = tokenizer_info(tok);
    for (uint32_t i = 0; i < info->n_end_ids; i++)
        if (info->end_ids[i] >= info->vocab_size)
            abort();
    token_list_fini(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    struct tokenizer_folder folder = {.name = "f"};
    struct tokenizer_file *const files[] = {&folder.tokenizer_json, &folder.tokenizer_model,
                                            &folder.tekken, &folder.tiktoken,
                                            &folder.tokenizer_config};
    struct tokenizer *tok = NULL;
    struct error err = {0};
    if (!n_bytes)
        return 0;
    /* An exact copy, so that a read past the end is seen. */
    char *copy = malloc(n_bytes - 1 ? n_bytes - 1 : 1);
    if (!copy)
        return 0;
    memcpy(copy, data + 1, n_bytes - 1);
    size_t which = data[0] % 6;
    if (which == 5) {
        const char *gap = memchr(copy, 0, n_bytes - 1);
        size_t n_vocab = gap ? (size_t)(gap - copy) : n_bytes - 1;
        size_t n_merges = n_bytes - 1 - n_vocab - (gap != NULL);
        folder.architecture = n_vocab % 2 ? "GPT2LMHeadModel" : "Qwen2ForCausalLM";
        folder.vocab_json = (struct tokenizer_file){copy, n_vocab};
        folder.merges = (struct tokenizer_file){copy + (n_bytes - 1 - n_merges), n_merges};
    } else {
        *files[which] = (struct tokenizer_file){copy, n_bytes - 1};
    }
    if (which == 4)
        folder.tokenizer_json = (struct tokenizer_file){small, sizeof(small) - 1};
    int rc = tokenizer_open_folder(&folder, &tok, &err);
    if (rc && rc != STATUS_INVALID_ARGUMENT && rc != STATUS_UNIMPLEMENTED &&
        rc != STATUS_RESOURCE_EXHAUSTED)
        abort();
    if (!rc)
        use(tok);
    tokenizer_close(tok);
    free(copy);
    return 0;
}
