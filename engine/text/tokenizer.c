#include "engine/text/tokenizer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/format/checkpoint.h"
#include "engine/format/escape.h"
#include "engine/text/bpe.h"
#include "engine/text/pretokenizer.h"
#include "engine/text/vocab.h"

enum { MAX_TEXT_BYTES = 1 << 28 };

struct tokenizer {
    struct tokenizer_info info;
    struct vocab vocab;
    struct bpe bpe;
    struct pretokenizer *pre;
};

/* --- loading --- */

static int load_model(const struct checkpoint *ckpt, struct error *err)
{
    const char *model;
    if (strcmp(checkpoint_format(ckpt), "gguf") != 0) {
        error_set(err, STATUS_UNIMPLEMENTED,
                  "%s: the tokenizer of a Hugging Face folder is not supported; get the model as a "
                  "GGUF file",
                  checkpoint_name(ckpt));
        return error_reason(err, REASON_TOKENIZER_UNSUPPORTED);
    }
    int rc = checkpoint_get_string(ckpt, "tokenizer.ggml.model", &model, NULL, err);
    if (rc)
        return rc;
    if (strcmp(model, "gpt2") == 0)
        return 0;
    static const char *const families[][2] = {
        {"llama", " (SentencePiece)"}, {"t5", " (Unigram)"}, {"bert", " (WordPiece)"}};
    char text[ESCAPE_MAX_BYTES];
    const char *family = "";
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strcmp(model, families[i][0]) == 0)
            family = families[i][1];
    checkpoint_unbuilt_key(ckpt, "tokenizer.ggml.model", err,
                           "tokenizer \"%s\"%s is not known, only \"gpt2\" (byte-level BPE) is; "
                           "use a model with a byte-level BPE tokenizer",
                           escape_text(model, strlen(model), text), family);
    return error_reason(err, REASON_TOKENIZER_UNSUPPORTED);
}

static int load_pre(struct tokenizer *tok, const struct checkpoint *ckpt, struct error *err)
{
    const char *name;
    int rc = checkpoint_get_string_or(ckpt, "tokenizer.ggml.pre", "default", &name, err);
    if (rc)
        return rc;
    rc = pretokenizer_create(name, &tok->pre, err);
    if (rc == STATUS_UNIMPLEMENTED)
        return error_prefix(err, "%s: key \"tokenizer.ggml.pre\"", checkpoint_name(ckpt));
    if (rc)
        return rc;
    tok->info.pre = arena_strndup(&tok->vocab.arena, name, strlen(name));
    return tok->info.pre ? 0
                         : error_set(err, STATUS_RESOURCE_EXHAUSTED, "tokenizer: out of memory");
}

static int add_note(struct tokenizer *tok, struct error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int add_note(struct tokenizer *tok, struct error *err, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    const char *note = arena_strndup(&tok->vocab.arena, text, strlen(text));
    if (!note)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "tokenizer: out of memory");
    assert(tok->info.n_notes < TOKENIZER_MAX_NOTES);
    tok->info.notes[tok->info.n_notes++] = note;
    return 0;
}

/* Loads an id. An id outside the vocabulary counts as absent: converters write -1 or 4294967295 for
 * "none". */
static int load_id(struct tokenizer *tok, const struct checkpoint *ckpt, const char *key,
                   int32_t *out_id, struct error *err)
{
    uint64_t id;
    double value;
    *out_id = TOKENIZER_NO_ID;
    if (!checkpoint_has(ckpt, key))
        return 0;
    int rc = checkpoint_get_f64(ckpt, key, &value, err);
    if (rc)
        return rc;
    if (!(value >= 0 && value < tok->vocab.n_tokens))
        return add_note(tok, err,
                        "The key %s names token %.0f, but the file has %" PRIu32
                        " tokens; the model is served as if the key were absent.",
                        key, value, tok->vocab.n_tokens);
    rc = checkpoint_get_u64(ckpt, key, &id, err);
    if (!rc)
        *out_id = (int32_t)id;
    return rc;
}

static int note_empty_tokens(struct tokenizer *tok, struct error *err)
{
    const struct vocab *vocab = &tok->vocab;
    if (!vocab->n_empty)
        return 0;
    return add_note(tok, err,
                    "%" PRIu32 " of %" PRIu32 " tokens have no text, the first is token %" PRIu32
                    "; the text of such a token N is [EMPTY_N].",
                    vocab->n_empty, vocab->n_tokens, vocab->first_empty);
}

static void add_end_id(struct tokenizer_info *info, int32_t id)
{
    for (uint32_t i = 0; i < info->n_end_ids; i++)
        if (info->end_ids[i] == (uint32_t)id)
            return;
    if (id != TOKENIZER_NO_ID)
        info->end_ids[info->n_end_ids++] = (uint32_t)id;
}

/* Texts of tokens that end a turn or a document. Many files lack the keys for such tokens, or name
 * the wrong token; then the text decides. The list is that of llama.cpp (llama-vocab.cpp,
 * special_eog_ids). */
static const char *const end_texts[] = {
    "<|eot_id|>",      "<|im_end|>",    "<|end|>",
    "<|return|>",      "<|call|>",      "<|flush|>",
    "<|calls|>",       "<end_of_turn>", "<|endoftext|>",
    "<|end_of_text|>", "<|eom_id|>",    "<end_of_utterance>",
    "< EOT >",         "_<EOT>",        "[EOT]",
    "[EOS]",           "</s>",          "<｜end▁of▁sentence｜>",
};
enum { N_END_TEXTS = sizeof(end_texts) / sizeof(end_texts[0]) };
static_assert(N_END_TEXTS + 3 <= TOKENIZER_MAX_END_IDS, "each end text has a place");

/* The special token with exactly this text, or TOKENIZER_NO_ID. */
static int32_t find_special(const struct vocab *vocab, const char *text)
{
    uint32_t n_bytes = (uint32_t)strlen(text);
    const struct vocab_key key = {text, n_bytes, n_bytes};
    int32_t id;
    vocab_find_texts(vocab, &key, 1, &id);
    if (id == TOKENIZER_NO_ID)
        return id;
    enum token_kind kind = vocab->tokens[id].kind;
    return kind == TOKEN_CONTROL || kind == TOKEN_USER_DEFINED ? id : TOKENIZER_NO_ID;
}

/* True if <|end|> separates channels of one answer: the vocabulary is of the harmony format. */
static bool separates_channels(const struct vocab *vocab, const char *text)
{
    return strcmp(text, "<|end|>") == 0 && find_special(vocab, "<|return|>") != TOKENIZER_NO_ID &&
           find_special(vocab, "<|call|>") != TOKENIZER_NO_ID;
}

static void find_end_ids(struct tokenizer *tok)
{
    for (uint32_t i = 0; i < N_END_TEXTS; i++)
        if (!separates_channels(&tok->vocab, end_texts[i]))
            add_end_id(&tok->info, find_special(&tok->vocab, end_texts[i]));
}

static int load_ids(struct tokenizer *tok, const struct checkpoint *ckpt, struct error *err)
{
    struct tokenizer_info *info = &tok->info;
    int32_t end_of_turn = TOKENIZER_NO_ID, end_of_message = TOKENIZER_NO_ID;
    const struct {
        const char *key;
        int32_t *out;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &info->bos_id},
        {"tokenizer.ggml.eos_token_id", &info->eos_id},
        {"tokenizer.ggml.unknown_token_id", &info->unknown_id},
        {"tokenizer.ggml.padding_token_id", &info->padding_id},
        {"tokenizer.ggml.eot_token_id", &end_of_turn},
        {"tokenizer.ggml.eom_token_id", &end_of_message},
    };
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        int rc = load_id(tok, ckpt, ids[i].key, ids[i].out, err);
        if (rc)
            return rc;
    }
    add_end_id(info, info->eos_id);
    add_end_id(info, end_of_turn);
    add_end_id(info, end_of_message);
    find_end_ids(tok);
    return 0;
}

static int load_info(struct tokenizer *tok, const struct checkpoint *ckpt, struct error *err)
{
    struct tokenizer_info *info = &tok->info;
    const char *template;
    info->model = "gpt2";
    info->vocab_size = tok->vocab.n_tokens;
    info->max_token_bytes = tok->vocab.max_token_bytes;
    int rc = load_ids(tok, ckpt, err);
    if (!rc)
        rc = note_empty_tokens(tok, err);
    if (!rc)
        rc = checkpoint_get_bool_or(ckpt, "tokenizer.ggml.add_bos_token",
                                    pretokenizer_adds_bos(tok->pre), &info->add_bos, err);
    if (!rc)
        rc = checkpoint_get_bool_or(ckpt, "tokenizer.ggml.add_eos_token", false, &info->add_eos,
                                    err);
    if (!rc)
        rc = checkpoint_get_string_or(ckpt, "tokenizer.chat_template", NULL, &template, err);
    if (rc || !template)
        return rc;
    info->chat_template = arena_strndup(&tok->vocab.arena, template, strlen(template));
    return info->chat_template
               ? 0
               : error_set(err, STATUS_RESOURCE_EXHAUSTED, "tokenizer: out of memory");
}

int tokenizer_open(const struct checkpoint *ckpt, struct tokenizer **out_tokenizer,
                   struct error *err)
{
    struct tokenizer *tok = calloc(1, sizeof(*tok));
    if (!tok)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "tokenizer: out of memory");
    int rc = load_model(ckpt, err);
    if (!rc)
        rc = vocab_load(&tok->vocab, ckpt, err);
    if (!rc)
        rc = load_pre(tok, ckpt, err);
    if (!rc)
        rc = bpe_load(&tok->bpe, ckpt, &tok->vocab, err);
    if (!rc)
        rc = load_info(tok, ckpt, err);
    if (rc) {
        tokenizer_close(tok);
        return rc;
    }
    *out_tokenizer = tok;
    return 0;
}

void tokenizer_close(struct tokenizer *tok)
{
    if (!tok)
        return;
    pretokenizer_destroy(tok->pre);
    bpe_fini(&tok->bpe);
    vocab_fini(&tok->vocab);
    free(tok);
}

const struct tokenizer_info *tokenizer_info(const struct tokenizer *tok)
{
    return &tok->info;
}

/* --- encoding --- */

struct encoding {
    const struct tokenizer *tok;
    struct token_list *list;
    struct pretokenizer_scratch *pre;
    struct bpe_scratch bpe;
    size_t n_lost;
    const size_t *no_control_at; /* ascending; entries before i_place are passed */
    size_t n_places, i_place;
};

static bool is_guarded(struct encoding *e, size_t at)
{
    while (e->i_place < e->n_places && e->no_control_at[e->i_place] < at)
        e->i_place++;
    return e->i_place < e->n_places && e->no_control_at[e->i_place] == at;
}

static int on_piece(void *user, const char *piece, size_t n_bytes, struct error *err)
{
    struct encoding *e = user;
    const struct vocab *vocab = &e->tok->vocab;
    if (pretokenizer_ignores_merges(e->tok->pre)) {
        int32_t id = vocab_find_bytes(vocab, piece, n_bytes);
        if (id >= 0 && vocab->tokens[id].kind == TOKEN_NORMAL)
            return token_list_add(e->list, (uint32_t)id, err);
    }
    return bpe_encode(&e->tok->bpe, vocab, &e->bpe, piece, n_bytes, e->list, &e->n_lost, err);
}

static int encode_plain(struct encoding *e, const char *text, size_t n_bytes, struct error *err)
{
    return pretokenizer_split(e->tok->pre, e->pre, text, n_bytes, on_piece, e, err);
}

/* Encodes a text. Special tokens split the text: the leftmost first, the longest of those. The text
 * between them goes through the pre-tokenizer piece by piece. */
static int encode_text(struct encoding *e, const char *text, size_t n_bytes, bool control,
                       struct error *err)
{
    const struct vocab *vocab = &e->tok->vocab;
    size_t begin = 0;
    for (size_t i = 0; i < n_bytes;) {
        unsigned char first = (unsigned char)text[i];
        int32_t id = TOKENIZER_NO_ID;
        if (vocab->specials_begin[first] < vocab->specials_begin[first + 1])
            id = vocab_match_special(vocab, text + i, n_bytes - i, control && !is_guarded(e, i));
        if (id == TOKENIZER_NO_ID) {
            i++;
            continue;
        }
        int rc = encode_plain(e, text + begin, i - begin, err);
        if (!rc)
            rc = token_list_add(e->list, (uint32_t)id, err);
        if (rc)
            return rc;
        i += vocab->tokens[id].n_bytes;
        begin = i;
    }
    return encode_plain(e, text + begin, n_bytes - begin, err);
}

static int encode(struct encoding *e, const char *text, size_t n_bytes, unsigned flags,
                  struct error *err)
{
    const struct tokenizer_info *info = &e->tok->info;
    struct token_list *list = e->list;
    size_t n_before = list->n_ids;
    size_t wrong;
    if (n_bytes > MAX_TEXT_BYTES)
        return error_field(err, "text", "%zu bytes are over the limit of %d", n_bytes,
                           MAX_TEXT_BYTES);
    if (!utf8_valid(text, n_bytes, &wrong))
        return error_field(err, "text", "not valid UTF-8 at byte %zu", wrong);
    int rc = pretokenizer_scratch_create(&e->pre, err);
    if (!rc && (flags & TOKENIZER_ADD_BOS) && info->bos_id != TOKENIZER_NO_ID)
        rc = token_list_add(list, (uint32_t)info->bos_id, err);
    if (!rc)
        rc = encode_text(e, text, n_bytes, flags & TOKENIZER_PARSE_SPECIAL, err);
    if (!rc && (flags & TOKENIZER_ADD_EOS) && info->eos_id != TOKENIZER_NO_ID)
        rc = token_list_add(list, (uint32_t)info->eos_id, err);
    pretokenizer_scratch_destroy(e->pre);
    bpe_scratch_fini(&e->bpe);
    if (rc)
        list->n_ids = n_before;
    return rc;
}

int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, unsigned flags,
                     struct token_list *list, size_t *out_n_lost, struct error *err)
{
    struct encoding e = {.tok = tok, .list = list};
    int rc = encode(&e, text, n_bytes, flags, err);
    if (!rc && out_n_lost)
        *out_n_lost = e.n_lost;
    return rc;
}

int tokenizer_encode_guarded(const struct tokenizer *tok, const char *text, size_t n_bytes,
                             unsigned flags, const size_t *no_control_at, size_t n_places,
                             struct token_list *list, struct error *err)
{
    struct encoding e = {
        .tok = tok, .list = list, .no_control_at = no_control_at, .n_places = n_places};
    return encode(&e, text, n_bytes, flags, err);
}

bool tokenizer_control_at(const struct tokenizer *tok, const char *text, size_t n_bytes)
{
    int32_t id = vocab_match_special(&tok->vocab, text, n_bytes, true);
    return id != TOKENIZER_NO_ID && tok->vocab.tokens[id].kind == TOKEN_CONTROL;
}

/* --- tokens --- */

const char *tokenizer_token_bytes(const struct tokenizer *tok, uint32_t id, size_t *out_n_bytes)
{
    if (id >= tok->vocab.n_tokens)
        return NULL;
    *out_n_bytes = tok->vocab.tokens[id].n_bytes;
    return tok->vocab.tokens[id].bytes;
}

enum token_kind tokenizer_token_kind(const struct tokenizer *tok, uint32_t id)
{
    return id < tok->vocab.n_tokens ? tok->vocab.tokens[id].kind : TOKEN_UNUSED;
}

int32_t tokenizer_find(const struct tokenizer *tok, const char *bytes, size_t n_bytes)
{
    return vocab_find_bytes(&tok->vocab, bytes, n_bytes);
}
