#include "engine/text/source/gguf_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint.h"
#include "engine/text/facts/fim_tokens.h"
#include "engine/text/facts/text_facts.h"
#include "engine/text/rules/pretokenizer_table.h"

#define MODEL_KEY  "tokenizer.ggml.model"
#define TOKENS_KEY "tokenizer.ggml.tokens"
#define TYPES_KEY  "tokenizer.ggml.token_type"
#define SCORES_KEY "tokenizer.ggml.scores"
#define MERGES_KEY "tokenizer.ggml.merges"

/* Values of tokenizer.ggml.token_type. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

/* Ollama calls the tokenizer of Gemma 4 "llama", and its pre-tokenizer "gemma4". Its merges count,
 * and the scores are only the ids. */
static bool is_gemma4_of_ollama(const struct text_facts *facts)
{
    const char *pre = "";
    struct error ignored;
    int rc = checkpoint_get_string_or(facts->ckpt, "tokenizer.ggml.pre", "", &pre, &ignored);
    return !rc && strcmp(facts->model, "llama") == 0 && strcmp(pre, "gemma4") == 0 &&
           checkpoint_has(facts->ckpt, MERGES_KEY);
}

static int read_model(struct text_facts *facts, struct error *err)
{
    static const struct {
        const char *name, *family; /* NULL: built */
    } models[] = {{"gpt2", NULL},
                  {"llama", NULL},
                  {"gemma4", NULL},
                  {"t5", " (Unigram)"},
                  {"bert", " (WordPiece)"}};
    const char *model, *family = "";
    int rc = checkpoint_get_string(facts->ckpt, MODEL_KEY, &model, NULL, err);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        if (strcmp(model, models[i].name) != 0)
            continue;
        facts->model = models[i].name;
        if (is_gemma4_of_ollama(facts))
            facts->model = "gemma4";
        if (!models[i].family)
            return 0;
        family = models[i].family;
    }
    char text[ESCAPE_MAX_BYTES];
    return text_facts_unbuilt(facts, MODEL_KEY, err,
                              "tokenizer \"%s\"%s is not known, only \"gpt2\" (byte-level BPE), "
                              "\"llama\" (SentencePiece BPE) and \"gemma4\" are; use a model with "
                              "one of these",
                              escape_text(model, strlen(model), text), family);
}

static int read_type(const struct text_facts *facts, uint64_t i, int64_t type,
                     struct text_token *token, struct error *err)
{
    static const uint8_t kinds[] = {
        [TYPE_NORMAL] = TOKEN_NORMAL,   [TYPE_UNKNOWN] = TOKEN_CONTROL,
        [TYPE_CONTROL] = TOKEN_CONTROL, [TYPE_USER_DEFINED] = TOKEN_USER_DEFINED,
        [TYPE_UNUSED] = TOKEN_UNUSED,   [TYPE_BYTE] = TOKEN_NORMAL};
    if (type < TYPE_NORMAL || type > TYPE_BYTE)
        return checkpoint_bad_key(facts->ckpt, TYPES_KEY, err,
                                  "element [%" PRIu64 "] is %" PRId64 ", expected %d to %d", i,
                                  type, TYPE_NORMAL, TYPE_BYTE);
    token->kind = kinds[type];
    token->flags = type == TYPE_BYTE ? TOKEN_IS_BYTE : 0;
    return 0;
}

static int read_tokens(struct text_facts *facts, struct error *err)
{
    struct checkpoint_array tokens, types = {0};
    const struct checkpoint *ckpt = facts->ckpt;
    int rc = checkpoint_get_array(ckpt, TOKENS_KEY, CHECKPOINT_STRING, &tokens, err);
    if (rc)
        return rc;
    if (tokens.n < 1 || tokens.n > TOKENIZER_MAX_VOCAB)
        return checkpoint_bad_key(ckpt, TOKENS_KEY, err, "%" PRIu64 " tokens, expected 1 to %d",
                                  tokens.n, TOKENIZER_MAX_VOCAB);
    if (checkpoint_has(ckpt, TYPES_KEY)) {
        rc = checkpoint_get_array(ckpt, TYPES_KEY, CHECKPOINT_INT, &types, err);
        if (rc)
            return rc;
        if (types.n != tokens.n)
            return checkpoint_bad_key(ckpt, TYPES_KEY, err,
                                      "%" PRIu64 " elements for %" PRIu64 " tokens", types.n,
                                      tokens.n);
    }
    facts->tokens = arena_calloc(&facts->arena, tokens.n, sizeof(*facts->tokens));
    if (!facts->tokens)
        return text_facts_no_memory(err);
    facts->n_tokens = (uint32_t)tokens.n;
    for (uint64_t i = 0; i < tokens.n && !rc; i++) {
        size_t n;
        struct text_token *t = &facts->tokens[i];
        t->text = checkpoint_array_string(&tokens, i, &n);
        /* a text over any limit stays over the limit */
        t->n_text = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
        rc = read_type(facts, i, types.n ? checkpoint_array_int(&types, i) : TYPE_NORMAL, t, err);
    }
    return rc;
}

/* --- byte-level BPE, and the BPE of characters with listed merges --- */

static int read_merges(struct text_facts *facts, struct error *err)
{
    struct checkpoint_array merges;
    if (!checkpoint_has(facts->ckpt, MERGES_KEY)) /* an error once the tokens are checked */
        return 0;
    int rc = checkpoint_get_array(facts->ckpt, MERGES_KEY, CHECKPOINT_STRING, &merges, err);
    if (rc)
        return rc;
    facts->merges = arena_calloc(&facts->arena, merges.n + 1, sizeof(*facts->merges));
    if (!facts->merges)
        return text_facts_no_memory(err);
    facts->n_merges = merges.n;
    for (uint64_t i = 0; i < merges.n; i++) {
        size_t n;
        const char *text = checkpoint_array_string(&merges, i, &n);
        /* The left token may be a space, so the separator is never the first byte. */
        const char *space = n > 2 ? memchr(text + 1, ' ', n - 2) : NULL;
        facts->merges[i] = (struct text_merge){text, n < UINT32_MAX ? (uint32_t)n : UINT32_MAX,
                                               space ? (uint32_t)(space - text) : 0};
    }
    return 0;
}

/* Architectures whose published files lack the name of the pre-tokenizer, or have "default" in its
 * place. */
static const struct nameless {
    const char *architecture, *pre;
    uint32_t id; /* only where this token has this text */
    const char *text;
} nameless[] = {
    {"gptoss", "gpt-4o", 0, NULL},
    {"mistral3", "tekken", 0, NULL},
    {"llama", "llama-bpe", 128009, "<|eot_id|>"},
};

/* The name of the pre-tokenizer that the file should have; NULL: the file's own. */
static const char *correct_pre(const struct text_facts *facts, const char *name)
{
    const char *architecture;
    struct error ignored;
    if (strcmp(name, "default") != 0 ||
        checkpoint_get_string(facts->ckpt, "general.architecture", &architecture, NULL, &ignored))
        return NULL;
    for (size_t i = 0; i < sizeof(nameless) / sizeof(nameless[0]); i++) {
        const struct nameless *row = &nameless[i];
        const struct text_token *t = row->id < facts->n_tokens ? &facts->tokens[row->id] : NULL;
        bool same = !row->text || (t && t->text && strlen(row->text) == t->n_text &&
                                   memcmp(row->text, t->text, t->n_text) == 0);
        if (same && strcmp(row->architecture, architecture) == 0)
            return row->pre;
    }
    return NULL;
}

static int read_listed(struct text_facts *facts, struct error *err)
{
    const char *name = "gemma4";
    int rc = 0;
    facts->order = TEXT_MERGES_LISTED;
    facts->texts_differ = true;
    if (strcmp(facts->model, "gemma4") != 0)
        rc = checkpoint_get_string_or(facts->ckpt, "tokenizer.ggml.pre", "default", &name, err);
    if (rc)
        return rc;
    const char *own = correct_pre(facts, name);
    if (own) {
        rc = text_facts_note(facts, err,
                             "The key tokenizer.ggml.pre is absent or \"default\"; the model is "
                             "served with the pre-tokenizer \"%s\" of its family.",
                             own);
        name = own;
    }
    if (rc)
        return rc;
    facts->pre = name;
    rc = pretokenizer_table_find(name, facts, err);
    if (rc == STATUS_UNIMPLEMENTED)
        return error_prefix(err, "%s: key \"tokenizer.ggml.pre\"", facts->file);
    return rc ? rc : read_merges(facts, err);
}

/* --- SentencePiece BPE --- */

static int read_scores(struct text_facts *facts, struct error *err)
{
    struct checkpoint_array scores;
    const struct checkpoint *ckpt = facts->ckpt;
    struct error other;
    bool integers = checkpoint_get_array(ckpt, SCORES_KEY, CHECKPOINT_INT, &scores, &other) == 0;
    int rc = integers ? 0 : checkpoint_get_array(ckpt, SCORES_KEY, CHECKPOINT_FLOAT, &scores, err);
    if (rc)
        return rc;
    if (scores.n != facts->n_tokens)
        return checkpoint_bad_key(ckpt, SCORES_KEY, err,
                                  "%" PRIu64 " elements for %" PRIu32 " tokens", scores.n,
                                  facts->n_tokens);
    for (uint32_t i = 0; i < facts->n_tokens; i++) {
        double score = integers ? (double)checkpoint_array_int(&scores, i)
                                : checkpoint_array_float(&scores, i);
        if (!isfinite(score))
            return checkpoint_bad_key(ckpt, SCORES_KEY, err, "element [%" PRIu32 "] is not finite",
                                      i);
        facts->tokens[i].score = (float)score;
    }
    return 0;
}

/* The tokenizer of Phi-3 takes the white space after its control tokens. GGUF has no key for
 * this. */
static void mark_phi3(struct text_facts *facts)
{
    static const char *const plain[] = {"<unk>", "<s>", "<|endoftext|>"};
    const char *architecture;
    struct error err;
    if (checkpoint_get_string(facts->ckpt, "general.architecture", &architecture, NULL, &err) ||
        strcmp(architecture, "phi3") != 0)
        return;
    for (uint32_t i = 0; i < facts->n_tokens; i++) {
        struct text_token *t = &facts->tokens[i];
        bool takes = t->kind == TOKEN_CONTROL;
        for (size_t k = 0; k < sizeof(plain) / sizeof(plain[0]); k++)
            takes &= strlen(plain[k]) != t->n_text || memcmp(plain[k], t->text, t->n_text) != 0;
        t->flags |= takes ? TOKEN_TAKES_RIGHT : 0;
    }
}

static int read_scored(struct text_facts *facts, struct error *err)
{
    bool add_prefix, squeeze;
    int rc = read_scores(facts, err);
    if (!rc)
        rc = checkpoint_get_bool_or(facts->ckpt, "tokenizer.ggml.add_space_prefix", true,
                                    &add_prefix, err);
    if (!rc)
        rc = checkpoint_get_bool_or(facts->ckpt, "tokenizer.ggml.remove_extra_whitespaces", false,
                                    &squeeze, err);
    if (rc)
        return rc;
    facts->order = TEXT_MERGES_SCORED;
    facts->spelling = TEXT_SPELLS_MARKS;
    facts->by_characters = facts->byte_fallback = facts->fuse_unknown = true;
    facts->strips_space = add_prefix;
    facts->add_bos = true;
    for (uint32_t i = 0; i < facts->n_tokens; i++)
        if (facts->tokens[i].kind == TOKEN_USER_DEFINED)
            facts->tokens[i].flags |= TOKEN_NORMALIZED;
    mark_phi3(facts);
    return text_facts_add_marks(facts, add_prefix, squeeze, err);
}

/* --- ids and flags --- */

/* Reads an id. An id outside the vocabulary counts as absent: converters write -1 or 4294967295 for
 * "none". */
static int read_id(struct text_facts *facts, const char *key, int32_t *out_id, struct error *err)
{
    double value;
    *out_id = TOKENIZER_NO_ID;
    if (!checkpoint_has(facts->ckpt, key))
        return 0;
    int rc = checkpoint_get_f64(facts->ckpt, key, &value, err);
    if (rc)
        return rc;
    if (!(value >= 0 && value < facts->n_tokens))
        return text_facts_note(facts, err,
                               "The key %s names token %.0f, but the file has %" PRIu32
                               " tokens; the model is served as if the key were absent.",
                               key, value, facts->n_tokens);
    uint64_t id;
    rc = checkpoint_get_u64(facts->ckpt, key, &id, err);
    if (!rc)
        *out_id = (int32_t)id;
    return rc;
}

/* Ollama's list of end tokens. */
static int read_end_list(struct text_facts *facts, struct error *err)
{
    static const char key[] = "tokenizer.ggml.eos_token_ids";
    struct checkpoint_array ids;
    if (!checkpoint_has(facts->ckpt, key))
        return 0;
    int rc = checkpoint_get_array(facts->ckpt, key, CHECKPOINT_INT, &ids, err);
    if (rc)
        return rc;
    for (uint64_t i = 0; i < ids.n && i < TOKENIZER_MAX_END_IDS; i++)
        text_facts_add_end(facts, checkpoint_array_int(&ids, i));
    return 0;
}

/* Ids of fill-in-the-middle prompts. Older files have other names for three of them. */
static int read_fim_ids(struct text_facts *facts, struct error *err)
{
    static const struct {
        const char *key;
        enum tokenizer_fim fim;
    } ids[] = {
        {"tokenizer.ggml.fim_pre_token_id", TOKENIZER_FIM_PREFIX},
        {"tokenizer.ggml.fim_suf_token_id", TOKENIZER_FIM_SUFFIX},
        {"tokenizer.ggml.fim_mid_token_id", TOKENIZER_FIM_MIDDLE},
        {"tokenizer.ggml.fim_pad_token_id", TOKENIZER_FIM_PADDING},
        {"tokenizer.ggml.fim_rep_token_id", TOKENIZER_FIM_REPOSITORY},
        {"tokenizer.ggml.fim_sep_token_id", TOKENIZER_FIM_SEPARATOR},
        {"tokenizer.ggml.prefix_token_id", TOKENIZER_FIM_PREFIX},
        {"tokenizer.ggml.suffix_token_id", TOKENIZER_FIM_SUFFIX},
        {"tokenizer.ggml.middle_token_id", TOKENIZER_FIM_MIDDLE},
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]) && !rc; i++)
        if (facts->fim_ids[ids[i].fim] == TOKENIZER_NO_ID)
            rc = read_id(facts, ids[i].key, &facts->fim_ids[ids[i].fim], err);
    if (!rc)
        fim_tokens_find(facts);
    return rc;
}

static int read_ids(struct text_facts *facts, struct error *err)
{
    int32_t end_of_turn = TOKENIZER_NO_ID, end_of_message = TOKENIZER_NO_ID;
    const struct {
        const char *key;
        int32_t *out;
    } ids[] = {
        {"tokenizer.ggml.bos_token_id", &facts->bos_id},
        {"tokenizer.ggml.eos_token_id", &facts->eos_id},
        {"tokenizer.ggml.unknown_token_id", &facts->unknown_id},
        {"tokenizer.ggml.padding_token_id", &facts->padding_id},
        {"tokenizer.ggml.eot_token_id", &end_of_turn},
        {"tokenizer.ggml.eom_token_id", &end_of_message},
    };
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        int rc = read_id(facts, ids[i].key, ids[i].out, err);
        if (rc)
            return rc;
    }
    text_facts_add_end(facts, facts->eos_id);
    text_facts_add_end(facts, end_of_turn);
    text_facts_add_end(facts, end_of_message);
    int rc = read_end_list(facts, err);
    text_facts_find_ends(facts);
    return rc ? rc : read_fim_ids(facts, err);
}

/* Reads the named templates: tokenizer.chat_template.NAME for each name in a list. */
static int read_named_templates(struct text_facts *facts, struct error *err)
{
    static const char list[] = "tokenizer.chat_templates";
    struct checkpoint_array names;
    if (!checkpoint_has(facts->ckpt, list))
        return 0;
    int rc = checkpoint_get_array(facts->ckpt, list, CHECKPOINT_STRING, &names, err);
    if (rc)
        return rc;
    for (uint64_t i = 0; i < names.n && !rc && !facts->drops_templates; i++) {
        char key[160];
        size_t n;
        const char *name = checkpoint_array_string(&names, i, &n), *text = NULL;
        if (n > 64 || memchr(name, 0, n))
            return checkpoint_bad_key(facts->ckpt, list, err,
                                      "name %" PRIu64 " has a NUL byte or more than 64 bytes", i);
        snprintf(key, sizeof(key), "tokenizer.chat_template.%.*s", (int)n, name);
        rc = checkpoint_get_string_or(facts->ckpt, key, NULL, &text, err);
        if (rc || !text)
            continue;
        const char *copy = arena_strndup(&facts->arena, name, n);
        rc = copy ? text_facts_add_template(facts, copy, text, err) : text_facts_no_memory(err);
    }
    return rc;
}

int gguf_text_read(const struct checkpoint *ckpt, struct text_facts *facts, struct error *err)
{
    facts->ckpt = ckpt;
    facts->tokens_key = TOKENS_KEY;
    facts->merges_key = MERGES_KEY;
    int rc = read_model(facts, err);
    if (!rc)
        rc = read_tokens(facts, err);
    if (!rc)
        rc = strcmp(facts->model, "llama") == 0 ? read_scored(facts, err) : read_listed(facts, err);
    if (!rc)
        rc = read_ids(facts, err);
    if (!rc)
        rc = checkpoint_get_bool_or(ckpt, "tokenizer.ggml.add_bos_token", facts->add_bos,
                                    &facts->add_bos, err);
    if (!rc)
        rc = checkpoint_get_bool_or(ckpt, "tokenizer.ggml.add_eos_token", false, &facts->add_eos,
                                    err);
    if (!rc)
        rc = checkpoint_get_string_or(ckpt, "tokenizer.chat_template", NULL, &facts->chat_template,
                                      err);
    return rc ? rc : read_named_templates(facts, err);
}
