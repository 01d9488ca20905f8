/* text_facts.h: a vocabulary and its text rules as plain data, whatever file they come from. A
 * reader (engine/text/source) fills the facts; the tokenizer is built from them. Texts are borrowed
 * from the reader's file or from the arena, until text_facts_fini(). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/error.h"
#include "engine/text/facts/tokenizer_folder.h"

struct checkpoint;

enum {
    TOKENIZER_MAX_VOCAB = 1 << 20,
    TOKENIZER_MAX_TOKEN_BYTES = 8192,
    TOKENIZER_MAX_SPECIAL_BYTES = 512, /* longest token that is matched literally in text */
    TOKENIZER_MAX_END_IDS = 32,
    TOKENIZER_MAX_AFFIXES = 8, /* ids that a plain prompt is wrapped in, at each end */
    TOKENIZER_MAX_NOTES = 8,
    TEXT_MAX_STEPS = 16, /* steps of normalization, and of splitting */
};

enum { TOKENIZER_NO_ID = -1 };

/* Tokens that mark the parts of a fill-in-the-middle prompt. */
enum tokenizer_fim {
    TOKENIZER_FIM_PREFIX, /* before the text in front of the gap */
    TOKENIZER_FIM_SUFFIX, /* before the text behind the gap */
    TOKENIZER_FIM_MIDDLE, /* the text of the gap follows */
    TOKENIZER_FIM_PADDING,
    TOKENIZER_FIM_REPOSITORY, /* the name of a repository follows */
    TOKENIZER_FIM_SEPARATOR,  /* between files */
    TOKENIZER_N_FIM,
};

enum token_kind {
    TOKEN_NORMAL, /* spelled in bytes, produced by merges */
    /* no visible text, like <|im_end|>; matched only with TOKENIZER_PARSE_SPECIAL */
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED, /* plain text; always matched literally */
    TOKEN_UNUSED,       /* padding of the vocabulary */
};

enum token_flag {
    TOKEN_IS_BYTE = 1,     /* "<0x1F>" is the byte 1F */
    TOKEN_TAKES_LEFT = 2,  /* a literal takes the white space before it ("lstrip") */
    TOKEN_TAKES_RIGHT = 4, /* a literal takes the white space after it ("rstrip") */
    TOKEN_WHOLE_WORD = 8,  /* a literal is matched only between characters that are no letters */
    TOKEN_IS_HOLE = 32,    /* the vocabulary has no token with this id */
    TOKEN_NORMALIZED = 16, /* a literal is matched in the normalized text, by its normalized text */
};

#define TEXT_SPACE_MARK "\xE2\x96\x81" /* U+2581 */

struct text_token {
    const char *text; /* NULL: the id is a hole of the vocabulary */
    uint32_t n_text;
    float score;
    uint8_t kind;  /* enum token_kind */
    uint8_t flags; /* bits of enum token_flag */
};

/* "left right": merges two tokens into the token of the joined text. */
struct text_merge {
    const char *text;
    uint32_t n_bytes, n_left;
};

/* How the text of a normal token spells its bytes. */
enum text_spelling {
    TEXT_SPELLS_ALPHABET, /* in GPT-2's byte alphabet */
    TEXT_SPELLS_MARKS,    /* as it is, but U+2581 is a space */
    TEXT_SPELLS_BYTES,    /* as it is */
};

/* Which pairs of tokens are merged, and in which order. */
enum text_merge_order {
    TEXT_MERGES_LISTED, /* the merges of the list, in its order */
    TEXT_MERGES_SCORED, /* every pair that makes a token, highest score first (SentencePiece) */
    TEXT_MERGES_RANKED, /* every pair that makes a token, lowest id first (tiktoken) */
};

enum normal_kind {
    NORMAL_NFC,
    NORMAL_NFD,
    NORMAL_NFKC,
    NORMAL_NFKD,
    NORMAL_PREPEND,       /* `to` before a text that is not empty */
    NORMAL_PREFIX_FIRST,  /* `to` before the first text of a prompt, unless it is there */
    NORMAL_PREFIX_ALWAYS, /* `to` before a text, unless it is there */
    NORMAL_REPLACE,       /* the text `from` becomes `to` */
    NORMAL_REPLACE_MATCH, /* matches of the pattern `from` become `to` */
    NORMAL_STRIP_LEFT,    /* white space at the start is dropped */
    NORMAL_STRIP_RIGHT,
    NORMAL_SQUEEZE, /* runs of `from` become one, and none at both ends */
};

struct normal_step {
    enum normal_kind kind;
    const char *from, *to;
    uint32_t n_from, n_to;
};

enum split_behavior {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS,
};

enum pattern_dialect {
    PATTERN_PCRE2,     /* our own patterns */
    PATTERN_ONIGURUMA, /* the dialect of tokenizer.json */
    PATTERN_RUST,      /* the dialect of tiktoken and tekken */
};

/* Names in place of a pattern: groups of three decimal digits, counted from the right of a run. As
 * a pattern each match would read the whole run. The second: only if no letter follows the run. */
#define TEXT_GROUPS                "(groups)"
#define TEXT_GROUPS_BEFORE_NO_WORD "(groups before no word)"

struct split_step {
    const char *pattern;
    uint32_t n_bytes;
    enum pattern_dialect dialect;
    enum split_behavior behavior;
    bool literal; /* the pattern is a plain text */
    bool invert;  /* the text between matches counts as the match */
};

struct text_template {
    const char *name, *text; /* terminated */
};

struct text_facts {
    struct arena arena;
    const struct checkpoint *ckpt; /* the GGUF file, for messages; else NULL */
    const char *file;              /* name for messages */
    const char *tokens_key, *merges_key;
    const char *model; /* "gpt2", "llama", "tekken", ... */
    const char *pre;   /* name of the pre-tokenizer */

    struct text_token *tokens;
    uint32_t n_tokens;
    struct text_merge *merges;
    uint64_t n_merges;
    enum text_spelling spelling;
    enum text_merge_order order;
    bool by_characters;  /* merges start from characters, not from bytes */
    bool byte_fallback;  /* a character without a token becomes its bytes' tokens */
    bool fuse_unknown;   /* a run of characters without tokens becomes one unknown token */
    bool whole_first;    /* a piece that is a token becomes that token, without merges */
    bool whole_newlines; /* the same for a piece of newlines alone */
    bool texts_differ;   /* a text that occurs twice is an error, also of tokens not normal */
    bool strips_space;   /* decoding drops one space at the start of a text */

    struct normal_step normal[TEXT_MAX_STEPS];
    uint32_t n_normal;
    uint32_t n_before_literals; /* steps before the match of normalized literals */
    struct split_step splits[TEXT_MAX_STEPS];
    uint32_t n_splits;

    int32_t bos_id, eos_id, unknown_id, padding_id;
    int32_t fim_ids[TOKENIZER_N_FIM];
    uint32_t end_ids[TOKENIZER_MAX_END_IDS];
    uint32_t n_end_ids;
    bool add_bos, add_eos;
    /* Ids around a plain prompt. None: bos_id and eos_id. */
    uint32_t prefix[TOKENIZER_MAX_AFFIXES], suffix[TOKENIZER_MAX_AFFIXES];
    uint32_t n_prefix, n_suffix;
    const char *chat_template; /* terminated; NULL without one */
    struct text_template templates[TOKENIZER_MAX_TEMPLATES];
    uint32_t n_templates;
    bool drops_templates;                   /* a note names a template beyond the limit */
    const char *notes[TOKENIZER_MAX_NOTES]; /* corrected faults of the file */
    uint32_t n_notes;
};

/* Makes empty facts: no ids, no steps. */
void text_facts_init(struct text_facts *facts, const char *file);
void text_facts_fini(struct text_facts *facts);

/* Fill *err about a part of the file: "<file>: <part>: <text>; <remedy>". INVALID_ARGUMENT
 * (MODEL_FILE_INVALID). For a GGUF file the part is a key. */
int text_facts_bad(const struct text_facts *facts, const char *part, struct error *err,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));
int text_facts_missing(const struct text_facts *facts, const char *part, struct error *err);
/* The same for a part that is well-formed and not supported: UNIMPLEMENTED
 * (TOKENIZER_UNSUPPORTED). `text` includes the remedy. */
int text_facts_unbuilt(const struct text_facts *facts, const char *part, struct error *err,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));
static inline int text_facts_no_memory(struct error *err)
{
    return error_no_memory(err);
}

/* As in base/error.h: clang's analyzer sees that these never return 0. */
#if defined(__clang_analyzer__) && !defined(TEXT_FACTS_BODIES)
static inline int text_facts_is_set(int status)
{
    if (status >= 0)
        __builtin_unreachable();
    return status;
}
#define text_facts_bad(...)     text_facts_is_set(text_facts_bad(__VA_ARGS__))
#define text_facts_missing(...) text_facts_is_set(text_facts_missing(__VA_ARGS__))
#define text_facts_unbuilt(...) text_facts_is_set(text_facts_unbuilt(__VA_ARGS__))
#endif

/* Adds one sentence about a fault that was corrected. Further notes than fit are dropped. */
int text_facts_note(struct text_facts *facts, struct error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Adds a named template. Both texts stay valid as long as the facts. A name that is there already
 * gets the new text. Beyond the limit, a note names the template. "default" is the chat template
 * itself. */
int text_facts_add_template(struct text_facts *facts, const char *name, const char *text,
                            struct error *err);
/* Adds the note about a template beyond the limit. */
int text_facts_drop_template(struct text_facts *facts, const char *name, struct error *err);
/* Adds an id that ends a generation, once. Ids outside the vocabulary are ignored. */
void text_facts_add_end(struct text_facts *facts, int64_t id);
/* Adds the ids of special tokens whose text ends a turn or a document. */
void text_facts_find_ends(struct text_facts *facts);
/* Adds a step. UNIMPLEMENTED if there are too many. */
int text_facts_add_normal(struct text_facts *facts, struct normal_step step, struct error *err);
int text_facts_add_split(struct text_facts *facts, struct split_step step, struct error *err);
/* Makes a token one that is matched literally; `flags` replaces its flags. */
void text_facts_add_literal(struct text_facts *facts, uint32_t id, const char *text, size_t n_bytes,
                            bool is_control, int flags);
/* Adds the normalization of SentencePiece: a space before the text, and U+2581 for spaces. */
int text_facts_add_marks(struct text_facts *facts, bool add_prefix, bool squeeze,
                         struct error *err);
/* The value of "<0x1F>" is 0x1F; -1 for other texts. */
int text_facts_byte_of(const char *text, size_t n_bytes);
