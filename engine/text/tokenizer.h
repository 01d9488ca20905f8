/* tokenizer.h: text to token ids, by the vocabulary and the rules of a model's files. Immutable
 * once open: any number of threads may encode at once. Keeps copies; the files may be closed
 * earlier. Chat templates are only passed on as text.
 *
 * Errors about the model file name the key and have reason MODEL_FILE_INVALID. An unsupported
 * tokenizer or pre-tokenizer is UNIMPLEMENTED, with its name. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/text/facts/text_facts.h"
#include "engine/text/facts/tokenizer_folder.h"
#include "engine/text/vocab/token_list.h"

struct checkpoint;
struct error;
struct tokenizer;

struct tokenizer_info {
    const char *model; /* "gpt2", "llama", "tokenizer.json", ... */
    const char *pre;   /* name of the pre-tokenizer in the file; "default" if the file has none */
    uint32_t vocab_size;
    uint32_t n_holes;         /* ids below vocab_size without a token: never to be drawn */
    uint32_t max_token_bytes; /* longest token: n tokens decode to at most n times as many bytes */
    /* TOKENIZER_NO_ID if the file has no such id, or an id outside the vocabulary. */
    int32_t bos_id, eos_id, unknown_id, padding_id;
    /* Tokens of fill-in-the-middle prompts; TOKENIZER_NO_ID: the model has no such token. */
    int32_t fim_ids[TOKENIZER_N_FIM];
    /* Ids that end a generation, without duplicates. The file's keys for eos, end of turn and end
     * of message come first. Special tokens with an end token's text follow. */
    uint32_t end_ids[TOKENIZER_MAX_END_IDS];
    uint32_t n_end_ids;
    bool add_bos, add_eos; /* expected by the model around a plain prompt */
    /* Ids that TOKENIZER_ADD_BOS and TOKENIZER_ADD_EOS add; bos_id and eos_id alone as a rule. */
    uint32_t prefix[TOKENIZER_MAX_AFFIXES], suffix[TOKENIZER_MAX_AFFIXES];
    uint32_t n_prefix, n_suffix;
    bool strips_space; /* a space at the start of a decoded text is no part of the text */
    /* Faults of the file that were corrected here, one sentence each. */
    const char *notes[TOKENIZER_MAX_NOTES];
    uint32_t n_notes;
    const char *chat_template; /* NULL if the file has none; UTF-8, terminated */
    struct text_template templates[TOKENIZER_MAX_TEMPLATES]; /* further ones, by name */
    uint32_t n_templates;
};

int tokenizer_open(const struct checkpoint *ckpt, struct tokenizer **out_tokenizer,
                   struct error *err);
/* The same from the files of a Hugging Face folder. A part of tokenizer.json that is not built is
 * UNIMPLEMENTED, with its name. */
int tokenizer_open_folder(const struct tokenizer_folder *folder, struct tokenizer **out_tokenizer,
                          struct error *err);
void tokenizer_close(struct tokenizer *tok);

/* True if the model has the tokens of fill-in-the-middle prompts. */
static inline bool tokenizer_fills_gaps(const struct tokenizer_info *info)
{
    return info->fim_ids[TOKENIZER_FIM_PREFIX] != TOKENIZER_NO_ID &&
           info->fim_ids[TOKENIZER_FIM_SUFFIX] != TOKENIZER_NO_ID &&
           info->fim_ids[TOKENIZER_FIM_MIDDLE] != TOKENIZER_NO_ID;
}

/* Borrowed until close. */
const struct tokenizer_info *tokenizer_info(const struct tokenizer *tok);

enum tokenizer_flags {
    TOKENIZER_PARSE_SPECIAL = 1, /* literals of control tokens in the text become their ids */
    /* start with bos, if the model has one; once, even if the text begins with bos */
    TOKENIZER_ADD_BOS = 2,
    TOKENIZER_ADD_EOS = 4,
    /* No literal becomes a token of fim_ids, also of tokens that are always matched. */
    TOKENIZER_NO_FIM = 8,
    TOKENIZER_NO_SPACE = 16, /* the text goes on: no space is put before it */
};

/* Appends the ids of text[0..n_bytes) to *list, which is unchanged on failure. O(n log n) for any
 * text. Bytes without a token are skipped, as in the reference tokenizers; *out_n_lost (may be
 * NULL) counts them. INVALID_ARGUMENT (field "text", byte offset) if the text is not UTF-8;
 * RESOURCE_EXHAUSTED. */
int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, unsigned flags,
                     struct token_list *list, size_t *out_n_lost, struct error *err);

/* Same as tokenizer_encode(), but at the byte offsets no_control_at[n_places] (ascending) no
 * control token is matched: the literal there is plain text. */
int tokenizer_encode_guarded(const struct tokenizer *tok, const char *text, size_t n_bytes,
                             unsigned flags, const size_t *no_control_at, size_t n_places,
                             struct token_list *list, struct error *err);

/* True if the literal of a control token begins at text[0]. */
bool tokenizer_control_at(const struct tokenizer *tok, const char *text, size_t n_bytes);

/* The bytes of a token, followed by a NUL. They need not be valid UTF-8 on their own. NULL for an
 * id outside the vocabulary. Borrowed until close. */
const char *tokenizer_token_bytes(const struct tokenizer *tok, uint32_t id, size_t *out_n_bytes);
/* TOKEN_UNUSED for an id outside the vocabulary. */
enum token_kind tokenizer_token_kind(const struct tokenizer *tok, uint32_t id);
/* True for an id below vocab_size that has no token. */
bool tokenizer_is_hole(const struct tokenizer *tok, uint32_t id);
/* Id of the token with exactly these bytes, control tokens included, or TOKENIZER_NO_ID. */
int32_t tokenizer_find(const struct tokenizer *tok, const char *bytes, size_t n_bytes);
