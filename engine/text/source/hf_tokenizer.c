#include "engine/text/source/hf_tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/text/facts/text_facts.h"
#include "engine/text/source/hf_rules.h"
#include "engine/text/source/json_reader.h"

/* Where the file's parts begin. */
struct parts {
    struct json_reader added, normalizer, pre_tokenizer, post_processor, decoder, model;
    struct json_reader vocab, merges;
    bool has_model;
};

/* An absent part is null. */
static struct json_reader absent_part(struct text_facts *facts, struct error *err)
{
    static const char null[] = "null";
    struct json_reader none;
    json_init(&none, null, sizeof(null) - 1, facts, err);
    return none;
}

static int read_parts(struct json_reader root, struct text_facts *facts, struct parts *parts,
                      struct error *err)
{
    const struct {
        const char *key;
        struct json_reader *out;
    } keys[] = {{"added_tokens", &parts->added},
                {"normalizer", &parts->normalizer},
                {"pre_tokenizer", &parts->pre_tokenizer},
                {"decoder", &parts->decoder},
                {"post_processor", &parts->post_processor},
                {"model", &parts->model}};
    struct json_reader none = absent_part(facts, err);
    struct json_text key;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        *keys[i].out = none;
    json_open(&root, JSON_OBJECT);
    while (json_key(&root, &key)) {
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
            if (json_is(key, keys[i].key))
                *keys[i].out = root;
        parts->has_model |= json_is(key, "model");
        json_skip(&root);
    }
    json_end(&root);
    if (json_failed(&root))
        return json_error(&root, err);
    return parts->has_model ? 0 : text_facts_bad(facts, "model", err, "is missing");
}

/* --- the model --- */

static int unbuilt(const struct text_facts *facts, const char *part, const char *what,
                   struct error *err)
{
    return text_facts_unbuilt(facts, part, err, "%s is not built; use a model without", what);
}

struct model {
    struct json_text type, unknown;
    bool has_vocab, has_merges;
    bool has_dropout, has_prefix, has_suffix;
};

/* A string member that may be null. */
static struct json_text optional_string(struct json_reader *json)
{
    if (json_peek(json) != JSON_NULL)
        return json_string(json);
    json_skip(json);
    return (struct json_text){"", 0};
}

static void read_member(struct json_reader *json, struct json_text key, struct text_facts *facts,
                        struct parts *parts, struct model *model)
{
    if (json_is(key, "type")) {
        model->type = json_string(json);
    } else if (json_is(key, "unk_token")) {
        model->unknown = optional_string(json);
    } else if (json_is(key, "continuing_subword_prefix")) {
        model->has_prefix = optional_string(json).n_bytes > 0;
    } else if (json_is(key, "end_of_word_suffix")) {
        model->has_suffix = optional_string(json).n_bytes > 0;
    } else if (json_is(key, "dropout") && json_peek(json) == JSON_NUMBER) {
        model->has_dropout = json_number(json) > 0;
    } else if (json_is(key, "byte_fallback") && json_peek(json) == JSON_BOOL) {
        facts->byte_fallback = json_bool(json);
    } else if (json_is(key, "fuse_unk") && json_peek(json) == JSON_BOOL) {
        facts->fuse_unknown = json_bool(json);
    } else if (json_is(key, "ignore_merges") && json_peek(json) == JSON_BOOL) {
        facts->whole_first = json_bool(json);
    } else {
        if (json_is(key, "vocab")) {
            parts->vocab = *json;
            model->has_vocab = true;
        } else if (json_is(key, "merges")) {
            parts->merges = *json;
            model->has_merges = true;
        }
        json_skip(json);
    }
}

static int read_model(struct text_facts *facts, struct parts *parts, struct model *model,
                      struct error *err)
{
    struct json_reader json = parts->model;
    struct json_text key;
    char text[ESCAPE_MAX_BYTES];
    json_open(&json, JSON_OBJECT);
    while (json_key(&json, &key))
        read_member(&json, key, facts, parts, model);
    if (json_failed(&json))
        return json_error(&json, err);
    if (model->type.text && !json_is(model->type, "BPE"))
        return unbuilt(facts, "model.type",
                       escape_text(model->type.text, model->type.n_bytes, text), err);
    if (!model->has_vocab || !model->has_merges)
        return text_facts_bad(facts, model->has_vocab ? "model.merges" : "model.vocab", err,
                              "is missing");
    if (model->has_dropout || model->has_prefix || model->has_suffix)
        return unbuilt(facts,
                       model->has_dropout  ? "model.dropout"
                       : model->has_prefix ? "model.continuing_subword_prefix"
                                           : "model.end_of_word_suffix",
                       "this setting", err);
    return 0;
}

/* --- tokens --- */

/* The flags of an entry of "added_tokens". */
struct added {
    struct json_text text;
    uint32_t id;
    bool special, lstrip, rstrip, single_word, normalized;
};

static struct added read_added(struct json_reader *json)
{
    struct added added = {.id = UINT32_MAX};
    struct json_text key;
    json_open(json, JSON_OBJECT);
    while (json_key(json, &key)) {
        bool *flag = json_is(key, "special")       ? &added.special
                     : json_is(key, "lstrip")      ? &added.lstrip
                     : json_is(key, "rstrip")      ? &added.rstrip
                     : json_is(key, "single_word") ? &added.single_word
                     : json_is(key, "normalized")  ? &added.normalized
                                                   : NULL;
        if (flag)
            *flag = json_bool(json);
        else if (json_is(key, "content"))
            added.text = json_string(json);
        else if (json_is(key, "id"))
            added.id = json_uint(json, TOKENIZER_MAX_VOCAB - 1);
        else
            json_skip(json);
    }
    if (added.id == UINT32_MAX || !added.text.n_bytes)
        json_fail(json, "an added token has no id or no content");
    return added;
}

/* The highest id of both lists, plus one. */
static int count_tokens(struct text_facts *facts, const struct parts *parts, struct error *err)
{
    struct json_reader json = parts->vocab;
    struct json_text key;
    uint32_t n = 0;
    json_open(&json, JSON_OBJECT);
    while (json_key(&json, &key)) {
        uint32_t id = json_uint(&json, TOKENIZER_MAX_VOCAB - 1);
        n = id >= n ? id + 1 : n;
    }
    if (json_failed(&json))
        return json_error(&json, err);
    json = parts->added;
    if (json_peek(&json) != JSON_NULL) {
        json_open(&json, JSON_ARRAY);
        while (json_item(&json)) {
            uint32_t id = read_added(&json).id;
            n = id != UINT32_MAX && id >= n ? id + 1 : n;
        }
    }
    if (json_failed(&json))
        return json_error(&json, err);
    if (!n)
        return text_facts_bad(facts, facts->tokens_key, err, "is empty");
    facts->n_tokens = n;
    facts->tokens = arena_calloc(&facts->arena, n, sizeof(*facts->tokens));
    return facts->tokens ? 0 : text_facts_no_memory(err);
}

static int read_vocab(struct text_facts *facts, const struct parts *parts, struct json_text unknown,
                      struct error *err)
{
    struct json_reader json = parts->vocab;
    struct json_text text;
    json_open(&json, JSON_OBJECT);
    while (json_key(&json, &text)) {
        uint32_t id = json_uint(&json, TOKENIZER_MAX_VOCAB - 1);
        if (json_failed(&json))
            break;
        struct text_token *t = &facts->tokens[id];
        if (t->text) {
            json_fail(&json, "two tokens have this id");
            break;
        }
        t->text = text.text;
        t->n_text = text.n_bytes < UINT32_MAX ? (uint32_t)text.n_bytes : UINT32_MAX;
        bool byte = facts->byte_fallback && text_facts_byte_of(text.text, text.n_bytes) >= 0;
        t->flags = byte ? TOKEN_IS_BYTE : 0;
        if (unknown.n_bytes && unknown.n_bytes == text.n_bytes &&
            memcmp(unknown.text, text.text, text.n_bytes) == 0)
            facts->unknown_id = (int32_t)id;
    }
    return json_failed(&json) ? json_error(&json, err) : 0;
}

static int read_added_tokens(struct text_facts *facts, const struct parts *parts, struct error *err)
{
    struct json_reader json = parts->added;
    if (json_peek(&json) == JSON_NULL)
        return 0;
    json_open(&json, JSON_ARRAY);
    while (json_item(&json)) {
        struct added added = read_added(&json);
        if (json_failed(&json))
            break;
        struct text_token *t = &facts->tokens[added.id];
        bool other = t->text && (!added.text.text || t->n_text != added.text.n_bytes ||
                                 memcmp(t->text, added.text.text, t->n_text) != 0);
        if (other) {
            json_fail(&json, "an added token has the id of another token");
            break;
        }
        text_facts_add_literal(facts, added.id, added.text.text, added.text.n_bytes, added.special,
                               (added.lstrip ? TOKEN_TAKES_LEFT : 0) |
                                   (added.rstrip ? TOKEN_TAKES_RIGHT : 0) |
                                   (added.single_word ? TOKEN_WHOLE_WORD : 0) |
                                   (added.normalized ? TOKEN_NORMALIZED : 0));
    }
    return json_failed(&json) ? json_error(&json, err) : 0;
}

/* --- merges --- */

/* Reads a merge: "left right" or ["left", "right"]. */
static struct text_merge read_merge(struct json_reader *json, struct text_facts *facts)
{
    if (json_peek(json) == JSON_STRING) {
        struct json_text text = json_string(json);
        const char *space = text.n_bytes > 2 ? memchr(text.text + 1, ' ', text.n_bytes - 2) : NULL;
        return (struct text_merge){text.text,
                                   text.n_bytes < UINT32_MAX ? (uint32_t)text.n_bytes : UINT32_MAX,
                                   space ? (uint32_t)(space - text.text) : 0};
    }
    struct json_text side[2] = {{"", 0}, {"", 0}};
    uint32_t n = 0;
    json_open(json, JSON_ARRAY);
    while (json_item(json)) {
        struct json_text text = json_string(json);
        if (n < 2)
            side[n] = text;
        n++;
    }
    if (n != 2 || side[0].n_bytes + side[1].n_bytes > 2 * TOKENIZER_MAX_TOKEN_BYTES)
        json_fail(json, "a merge is not two tokens");
    if (json_failed(json))
        return (struct text_merge){"", 0, 0};
    size_t n_left = side[0].n_bytes, n_right = side[1].n_bytes;
    char *joined = arena_alloc(&facts->arena, n_left + n_right + 1);
    if (!joined) {
        json_fail(json, "no memory");
        return (struct text_merge){"", 0, 0};
    }
    memcpy(joined, side[0].text, n_left);
    joined[n_left] = ' ';
    memcpy(joined + n_left + 1, side[1].text, n_right);
    return (struct text_merge){joined, (uint32_t)(n_left + n_right + 1), (uint32_t)n_left};
}

static int read_merges(struct text_facts *facts, const struct parts *parts, struct error *err)
{
    struct json_reader json = parts->merges;
    uint64_t n = 0;
    json_open(&json, JSON_ARRAY);
    while (json_item(&json)) {
        json_skip(&json);
        n++;
    }
    if (json_failed(&json))
        return json_error(&json, err);
    facts->merges = arena_calloc(&facts->arena, n + 1, sizeof(*facts->merges));
    if (!facts->merges)
        return text_facts_no_memory(err);
    json = parts->merges;
    json_open(&json, JSON_ARRAY);
    while (json_item(&json)) {
        struct text_merge merge = read_merge(&json, facts);
        if (!json_failed(&json))
            facts->merges[facts->n_merges++] = merge;
    }
    return json_failed(&json) ? json_error(&json, err) : 0;
}

int hf_tokenizer_read_vocab(struct json_reader vocab, struct text_facts *facts, struct error *err)
{
    struct parts parts = {.vocab = vocab, .added = absent_part(facts, err)};
    int rc = count_tokens(facts, &parts, err);
    return rc ? rc : read_vocab(facts, &parts, (struct json_text){"", 0}, err);
}

int hf_tokenizer_read(const char *bytes, size_t n_bytes, struct text_facts *facts,
                      struct error *err)
{
    struct json_reader root;
    struct parts parts = {0};
    struct model model = {{NULL, 0}, {"", 0}, false, false, false, false, false};
    json_init(&root, bytes, n_bytes, facts, err);
    facts->model = "tokenizer.json";
    facts->tokens_key = "model.vocab";
    facts->merges_key = "model.merges";
    facts->pre = "tokenizer.json";
    facts->order = TEXT_MERGES_LISTED;
    int rc = read_parts(root, facts, &parts, err);
    if (!rc)
        rc = read_model(facts, &parts, &model, err);
    if (!rc)
        rc = hf_rules_normalizer(parts.normalizer, facts, err);
    if (!rc)
        rc = hf_rules_pre_tokenizer(parts.pre_tokenizer, facts, err);
    if (!rc)
        rc = hf_rules_decoder(parts.decoder, facts, err);
    if (!rc)
        rc = hf_rules_post_processor(parts.post_processor, facts, err);
    if (!rc && (facts->spelling == TEXT_SPELLS_ALPHABET) == facts->by_characters)
        rc = unbuilt(facts, "decoder", "ByteLevel in only one of pre_tokenizer and decoder", err);
    if (!rc)
        rc = count_tokens(facts, &parts, err);
    if (!rc)
        rc = read_vocab(facts, &parts, model.unknown, err);
    if (!rc)
        rc = read_added_tokens(facts, &parts, err);
    return rc ? rc : read_merges(facts, &parts, err);
}
