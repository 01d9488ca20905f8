/* tokenizer.h: byte-level BPE from a checkpoint's metadata (tokenizer.ggml.*). Immutable once open:
 * any number of threads encode at once. It keeps copies; the checkpoint may be closed before it.
 * Knows nothing of chat templates beyond handing out their text.
 *
 * Errors of the model file name the key and carry reason MODEL_FILE_INVALID; a tokenizer model or
 * pre-tokenizer that is not built is UNIMPLEMENTED with its name. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/text/token_list.h"

struct checkpoint;
struct error;
struct tokenizer;

enum {
    TOKENIZER_MAX_VOCAB = 1 << 20,
    TOKENIZER_MAX_TOKEN_BYTES = 8192,
    TOKENIZER_MAX_SPECIAL_BYTES = 512, /* of a token that is matched literally in text */
    TOKENIZER_MAX_NOTES = 8,
    TOKENIZER_MAX_END_IDS = 24, /* three named by keys, the others by their text */
};

enum { TOKENIZER_NO_ID = -1 };

enum token_kind {
    TOKEN_NORMAL,       /* spelled in bytes, made by merges */
    TOKEN_CONTROL,      /* <|im_end|>: no text for the reader; matched only with parse_special */
    TOKEN_USER_DEFINED, /* plain text matched literally, always */
    TOKEN_UNUSED,       /* padding of the vocabulary */
};

struct tokenizer_info {
    const char *model; /* "gpt2" */
    const char *pre;   /* pre-tokenizer, as the file names it; "default" where it does not */
    uint32_t vocab_size;
    uint32_t max_token_bytes; /* longest spelling in bytes: n tokens decode to at most n times it */
    /* TOKENIZER_NO_ID where absent, or where the file names an id that is no token. */
    int32_t bos_id, eos_id, unknown_id, padding_id;
    /* Ids that end a generation, without repeats: eos, end of turn, end of message as the file's
     * keys name them, then special tokens with the text of an end token. */
    uint32_t end_ids[TOKENIZER_MAX_END_IDS];
    uint32_t n_end_ids;
    bool add_bos, add_eos; /* what the model wants around a plain prompt */
    /* What is wrong in the file and was mended here, one sentence each. */
    const char *notes[TOKENIZER_MAX_NOTES];
    uint32_t n_notes;
    const char *chat_template; /* NULL where the file has none; UTF-8, terminated */
};

int tokenizer_open(const struct checkpoint *ckpt, struct tokenizer **out_tokenizer,
                   struct error *err);
void tokenizer_close(struct tokenizer *tok);

/* Borrowed until close. */
const struct tokenizer_info *tokenizer_info(const struct tokenizer *tok);

enum tokenizer_flags {
    TOKENIZER_PARSE_SPECIAL = 1, /* control tokens' literals in the text become their ids */
    TOKENIZER_ADD_BOS = 2,       /* put bos first, if the model has one */
    TOKENIZER_ADD_EOS = 4,
};

/* Appends the ids of text[0..n_bytes) to *list, unchanged on failure. The work is O(n log n) for
 * any text. Bytes that the vocabulary has no token for are left out, as the reference tokenizers
 * do; *out_n_lost (may be NULL) counts them. Errors: INVALID_ARGUMENT (field "text", byte offset)
 * where the text is not UTF-8, RESOURCE_EXHAUSTED. */
int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t n_bytes, unsigned flags,
                     struct token_list *list, size_t *out_n_lost, struct error *err);

/* As tokenizer_encode(), but no control token's literal begins at the bytes no_control_at[n_places]
 * (ascending): what stands there is text. */
int tokenizer_encode_guarded(const struct tokenizer *tok, const char *text, size_t n_bytes,
                             unsigned flags, const size_t *no_control_at, size_t n_places,
                             struct token_list *list, struct error *err);

/* Whether the literal of a control token begins at text[0]. */
bool tokenizer_control_at(const struct tokenizer *tok, const char *text, size_t n_bytes);

/* The bytes a token stands for (not necessarily UTF-8 on their own), with a NUL after them. NULL
 * for an id outside the vocabulary. Borrowed until close. */
const char *tokenizer_token_bytes(const struct tokenizer *tok, uint32_t id, size_t *out_n_bytes);
/* TOKEN_UNUSED for an id outside the vocabulary. */
enum token_kind tokenizer_token_kind(const struct tokenizer *tok, uint32_t id);
/* Id of the token whose bytes are exactly these, control tokens included, or TOKENIZER_NO_ID. */
int32_t tokenizer_find(const struct tokenizer *tok, const char *bytes, size_t n_bytes);
