#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/format/checkpoint_files.h"
#include "engine/text/rules/normalizer.h"
#include "engine/text/rules/pattern.h"
#include "engine/text/rules/pretokenizer.h"
#include "engine/text/source/bpe_files.h"
#include "engine/text/source/gguf_text.h"
#include "engine/text/source/hf_tokenizer.h"
#include "engine/text/source/spm_model.h"
#include "engine/text/source/tiktoken_file.h"
#include "engine/text/source/tokenizer_config.h"
#include "engine/text/tokenizer_private.h"

/* --- literals --- */

/* The text of a literal that is matched in normalized text. */
static int normalize_literal(struct tokenizer *tok, const struct token *t, struct strbuf *text,
                             struct error *err)
{
    struct strbuf spare = {0};
    struct pattern_scratch *scratch = NULL;
    int rc = pattern_scratch_create(&scratch, err);
    strbuf_clear(text);
    strbuf_add(text, t->text, t->n_text);
    if (!rc)
        rc = normalizer_apply(tok->normalizer, 0, tok->n_before_literals, scratch,
                              NORMALIZER_INSIDE, text, &spare, err);
    pattern_scratch_destroy(scratch);
    strbuf_fini(&spare);
    return rc;
}

/* Adds a special token to the literals of the raw text. If normalization changes the literal, adds
 * the token to the literals of the normalized text. */
static int add_literal(struct tokenizer *tok, const struct text_facts *facts, uint32_t id,
                       struct error *err)
{
    const struct token *t = &tok->vocab.tokens[id];
    struct strbuf text = {0};
    bool changed = false;
    int rc = 0;
    if (t->flags & TOKEN_NORMALIZED && tok->n_before_literals &&
        facts->order == TEXT_MERGES_SCORED) { /* SentencePiece matches its own spelling */
        changed = true;
        for (uint32_t i = 0; i < t->n_text; i++)
            if (t->text[i] == ' ')
                strbuf_add_str(&text, TEXT_SPACE_MARK);
            else
                strbuf_add_char(&text, t->text[i]);
    } else if (t->flags & TOKEN_NORMALIZED && tok->n_before_literals) {
        /* A control token that stays the same is matched in the raw text, where places can be
         * guarded. */
        rc = normalize_literal(tok, t, &text, err);
        changed = t->kind != TOKEN_CONTROL || text.n_bytes != t->n_text ||
                  memcmp(text.data, t->text, t->n_text) != 0;
    }
    if (!rc && !changed && t->n_text) {
        literals_add(&tok->raw, t->text, t->n_text, id);
    } else if (!rc && text.n_bytes) {
        const char *copy = arena_strndup(&tok->vocab.arena, text.data, text.n_bytes);
        if (copy)
            literals_add(&tok->normalized, copy, (uint32_t)text.n_bytes, id);
        else
            rc = text_facts_no_memory(err);
    }
    strbuf_fini(&text);
    return rc;
}

static int load_literals(struct tokenizer *tok, const struct text_facts *facts, struct error *err)
{
    const struct vocab *vocab = &tok->vocab;
    uint32_t n = 0;
    for (uint32_t i = 0; i < vocab->n_tokens; i++)
        n += vocab->tokens[i].kind == TOKEN_CONTROL || vocab->tokens[i].kind == TOKEN_USER_DEFINED;
    int rc = literals_init(&tok->raw, &tok->vocab.arena, n, err);
    if (!rc)
        rc = literals_init(&tok->normalized, &tok->vocab.arena, n, err);
    for (uint32_t i = 0; i < vocab->n_tokens && !rc; i++)
        if (vocab->tokens[i].kind == TOKEN_CONTROL || vocab->tokens[i].kind == TOKEN_USER_DEFINED)
            rc = add_literal(tok, facts, i, err);
    literals_sort(&tok->raw);
    literals_sort(&tok->normalized);
    return rc;
}

/* --- facts for users --- */

static const char *keep(struct tokenizer *tok, const char *text, bool *failed)
{
    const char *copy = text ? arena_strndup(&tok->vocab.arena, text, strlen(text)) : NULL;
    *failed |= text && !copy;
    return copy;
}

static int note_empty_tokens(struct tokenizer *tok, struct text_facts *facts, struct error *err)
{
    const struct vocab *vocab = &tok->vocab;
    if (!vocab->n_empty)
        return 0;
    return text_facts_note(facts, err,
                           "%" PRIu32 " of %" PRIu32 " tokens have no text, the first is token "
                           "%" PRIu32 "; the text of such a token N is [EMPTY_N].",
                           vocab->n_empty, vocab->n_tokens, vocab->first_empty);
}

static void load_affixes(struct tokenizer_info *info, const struct text_facts *facts)
{
    memcpy(info->prefix, facts->prefix, sizeof(info->prefix));
    memcpy(info->suffix, facts->suffix, sizeof(info->suffix));
    info->n_prefix = facts->n_prefix;
    info->n_suffix = facts->n_suffix;
    if (!info->n_prefix && info->bos_id != TOKENIZER_NO_ID)
        info->prefix[info->n_prefix++] = (uint32_t)info->bos_id;
    if (!info->n_suffix && info->eos_id != TOKENIZER_NO_ID)
        info->suffix[info->n_suffix++] = (uint32_t)info->eos_id;
}

static int load_info(struct tokenizer *tok, struct text_facts *facts, struct error *err)
{
    struct tokenizer_info *info = &tok->info;
    bool failed = false;
    int rc = note_empty_tokens(tok, facts, err);
    if (rc)
        return rc;
    info->model = keep(tok, facts->model, &failed);
    info->pre = keep(tok, facts->pre, &failed);
    info->vocab_size = tok->vocab.n_tokens;
    info->n_holes = tok->vocab.n_holes;
    info->max_token_bytes = tok->vocab.max_token_bytes;
    info->bos_id = facts->bos_id;
    info->eos_id = facts->eos_id;
    info->unknown_id = facts->unknown_id;
    info->padding_id = facts->padding_id;
    memcpy(info->fim_ids, facts->fim_ids, sizeof(info->fim_ids));
    memcpy(info->end_ids, facts->end_ids, sizeof(info->end_ids));
    info->n_end_ids = facts->n_end_ids;
    info->add_bos = facts->add_bos;
    info->add_eos = facts->add_eos;
    info->strips_space = facts->strips_space;
    load_affixes(info, facts);
    info->n_notes = facts->n_notes;
    for (uint32_t i = 0; i < facts->n_notes; i++)
        info->notes[i] = keep(tok, facts->notes[i], &failed);
    info->chat_template = keep(tok, facts->chat_template, &failed);
    info->n_templates = facts->n_templates;
    for (uint32_t i = 0; i < facts->n_templates; i++)
        info->templates[i] = (struct text_template){keep(tok, facts->templates[i].name, &failed),
                                                    keep(tok, facts->templates[i].text, &failed)};
    return failed ? text_facts_no_memory(err) : 0;
}

/* --- opening --- */

static int load(struct tokenizer *tok, struct text_facts *facts, struct error *err)
{
    tok->whole_first = facts->whole_first;
    tok->whole_newlines = facts->whole_newlines;
    tok->by_characters = facts->by_characters;
    tok->n_before_literals = facts->n_before_literals;
    int rc = vocab_load(&tok->vocab, facts, err);
    if (!rc)
        rc = normalizer_create(facts, &tok->normalizer, err);
    if (!rc)
        rc = pretokenizer_create(facts, &tok->pre, err);
    if (rc == STATUS_UNIMPLEMENTED)
        return error_prefix(err, "%s", facts->file);
    if (!rc)
        rc = bpe_load(&tok->bpe, facts, &tok->vocab, err);
    if (!rc)
        rc = load_literals(tok, facts, err);
    return rc ? rc : load_info(tok, facts, err);
}

int tokenizer_open_facts(struct text_facts *facts, struct tokenizer **out_tokenizer,
                         struct error *err)
{
    struct tokenizer *tok = calloc(1, sizeof(*tok));
    if (!tok)
        return text_facts_no_memory(err);
    int rc = load(tok, facts, err);
    if (rc)
        tokenizer_close(tok);
    else
        *out_tokenizer = tok;
    return rc;
}

static int open_gguf(const struct checkpoint *ckpt, struct tokenizer **out_tokenizer,
                     struct error *err)
{
    struct text_facts facts;
    text_facts_init(&facts, checkpoint_name(ckpt));
    int rc = gguf_text_read(ckpt, &facts, err);
    if (!rc)
        rc = tokenizer_open_facts(&facts, out_tokenizer, err);
    text_facts_fini(&facts);
    return rc;
}

static int read_tiktoken(const struct tokenizer_file *file, const char *name,
                         struct text_facts *facts, struct error *err)
{
    facts->file = name;
    return tiktoken_file_read(file->bytes, file->n_bytes, facts, err);
}

/* tokenizer.model is of SentencePiece or of tiktoken. */
static int read_model(const struct tokenizer_file *file, struct text_facts *facts,
                      struct error *err)
{
    facts->file = "tokenizer.model";
    return spm_model_is(file->bytes, file->n_bytes)
               ? spm_model_read(file->bytes, file->n_bytes, facts, err)
               : read_tiktoken(file, "tokenizer.model", facts, err);
}

/* Reads the vocabulary: the first of the folder's files that is there. */
static int read_vocabulary(const struct tokenizer_folder *folder, struct text_facts *facts,
                           struct error *err)
{
    if (folder->tekken.bytes) {
        facts->file = "tekken.json";
        return tiktoken_file_read_tekken(folder->tekken.bytes, folder->tekken.n_bytes, facts, err);
    }
    if (folder->tokenizer_json.bytes) {
        facts->file = "tokenizer.json";
        return hf_tokenizer_read(folder->tokenizer_json.bytes, folder->tokenizer_json.n_bytes,
                                 facts, err);
    }
    if (folder->tokenizer_model.bytes)
        return read_model(&folder->tokenizer_model, facts, err);
    if (folder->tiktoken.bytes)
        return read_tiktoken(&folder->tiktoken, "tiktoken.model", facts, err);
    if (folder->vocab_json.bytes && folder->merges.bytes)
        return bpe_files_read(folder, facts, err);
    const char *lacks = folder->merges.bytes       ? "has merges.txt without vocab.json"
                        : folder->vocab_json.bytes ? "has vocab.json without merges.txt"
                                                   : "has no vocabulary";
    error_set(err, STATUS_INVALID_ARGUMENT,
              "%s: the folder %s; get another copy of the folder, with one of tokenizer.json, "
              "tokenizer.model, tekken.json, tiktoken.model, or vocab.json and merges.txt",
              folder->name, lacks);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int tokenizer_open_folder(const struct tokenizer_folder *folder, struct tokenizer **out_tokenizer,
                          struct error *err)
{
    struct text_facts facts;
    text_facts_init(&facts, folder->name);
    int rc = read_vocabulary(folder, &facts, err);
    if (!rc)
        rc = tokenizer_config_read(folder, &facts, err);
    if (!rc)
        rc = tokenizer_open_facts(&facts, out_tokenizer, err);
    text_facts_fini(&facts);
    return rc;
}

/* --- the files of a checkpoint --- */

static int read_sidecar(const struct checkpoint *ckpt, const char *name,
                        struct tokenizer_file *out_file, struct error *err)
{
    char *bytes;
    size_t n_bytes;
    if (checkpoint_find_sidecar(ckpt, name) == UINT32_MAX)
        return 0;
    int rc = checkpoint_read_sidecar(ckpt, name, &bytes, &n_bytes, err);
    if (!rc)
        *out_file = (struct tokenizer_file){bytes, n_bytes};
    return rc;
}

/* additional_chat_templates/NAME.jinja. */
static int read_named_templates(const struct checkpoint *ckpt, struct tokenizer_folder *folder,
                                struct arena *arena, struct error *err)
{
    static const char prefix[] = "additional_chat_templates/", suffix[] = ".jinja";
    enum { N_PREFIX = sizeof(prefix) - 1, N_SUFFIX = sizeof(suffix) - 1 };
    int rc = 0;
    for (uint32_t i = 0, file; (file = checkpoint_sidecar_at(ckpt, i)) != UINT32_MAX && !rc; i++) {
        const char *name = checkpoint_file_name(ckpt, file);
        size_t n = strlen(name);
        if (n <= N_PREFIX + N_SUFFIX || strncmp(name, prefix, N_PREFIX) != 0)
            continue;
        const char *stem = arena_strndup(arena, name + N_PREFIX, n - N_PREFIX - N_SUFFIX);
        if (!stem)
            return text_facts_no_memory(err);
        if (folder->n_templates == TOKENIZER_MAX_TEMPLATES) {
            folder->dropped_template = stem;
            break;
        }
        folder->template_names[folder->n_templates] = stem;
        rc = read_sidecar(ckpt, name, &folder->templates[folder->n_templates++], err);
    }
    return rc;
}

static int open_sidecars(const struct checkpoint *ckpt, struct tokenizer **out_tokenizer,
                         struct error *err)
{
    struct tokenizer_folder folder = {.name = checkpoint_name(ckpt),
                                      .architecture = checkpoint_architecture(ckpt)};
    /* Vocabularies first, in the order of read_vocabulary(). */
    struct {
        const char *name;
        struct tokenizer_file *file;
    } files[] = {{"tekken.json", &folder.tekken},
                 {"tokenizer.json", &folder.tokenizer_json},
                 {"tokenizer.model", &folder.tokenizer_model},
                 {"tiktoken.model", &folder.tiktoken},
                 {"vocab.json", &folder.vocab_json},
                 {"merges.txt", &folder.merges},
                 {"tokenizer_config.json", &folder.tokenizer_config},
                 {"added_tokens.json", &folder.added_tokens},
                 {"special_tokens_map.json", &folder.special_tokens_map},
                 {"chat_template.jinja", &folder.chat_template},
                 {"chat_template.json", &folder.chat_template_json}};
    enum { N_WHOLE = 4, N_VOCABULARIES = 6, N_FILES = sizeof(files) / sizeof(files[0]) };
    struct arena arena;
    bool found = false;
    int rc = 0;
    arena_init(&arena, 0, 0);
    folder.n_end_ids = checkpoint_end_ids(ckpt, &folder.end_ids);
    for (size_t i = 0; i < N_FILES && !rc; i++) {
        if (i < N_VOCABULARIES && found)
            continue; /* a vocabulary that comes before it counts */
        rc = read_sidecar(ckpt, files[i].name, files[i].file, err);
        found |= i < N_WHOLE && files[i].file->bytes;
    }
    if (!rc)
        rc = read_named_templates(ckpt, &folder, &arena, err);
    if (!rc)
        rc = tokenizer_open_folder(&folder, out_tokenizer, err);
    for (size_t i = 0; i < N_FILES; i++)
        free((void *)(uintptr_t)files[i].file->bytes);
    for (uint32_t i = 0; i < folder.n_templates; i++)
        free((void *)(uintptr_t)folder.templates[i].bytes);
    arena_fini(&arena);
    return rc;
}

int tokenizer_open(const struct checkpoint *ckpt, struct tokenizer **out_tokenizer,
                   struct error *err)
{
    bool is_gguf = strcmp(checkpoint_format(ckpt), "gguf") == 0;
    return is_gguf ? open_gguf(ckpt, out_tokenizer, err) : open_sidecars(ckpt, out_tokenizer, err);
}

void tokenizer_close(struct tokenizer *tok)
{
    if (!tok)
        return;
    normalizer_destroy(tok->normalizer);
    pretokenizer_destroy(tok->pre);
    bpe_fini(&tok->bpe);
    vocab_fini(&tok->vocab);
    free(tok);
}
