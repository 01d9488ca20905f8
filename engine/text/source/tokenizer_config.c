#include "engine/text/source/tokenizer_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash_map.h"
#include "base/utf8.h"
#include "engine/text/facts/fim_tokens.h"
#include "engine/text/facts/text_facts.h"
#include "engine/text/facts/tokenizer_folder.h"
#include "engine/text/source/json_reader.h"

/* The facts with the name of the file that is read, for messages. */
struct reading {
    struct text_facts *facts;
    const char *vocab_file; /* name of the vocabulary's file */
    struct error *err;
    struct hash_map ids; /* text to id + 1; filled after a few searches */
    uint32_t n_searches;
    bool no_memory; /* for the map */
};

/* Begins a file and checks its form. Returns false if there is no such file, or with *rc. */
static bool begin(struct reading *r, const struct tokenizer_file *file, const char *name,
                  struct json_reader *out, int *rc)
{
    *rc = 0;
    if (!file->bytes)
        return false;
    r->facts->file = name;
    json_init(out, file->bytes, file->n_bytes, r->facts, r->err);
    struct json_reader whole = *out;
    if (json_peek(&whole) != JSON_OBJECT)
        json_fail(&whole, "an object is expected");
    json_skip(&whole);
    json_end(&whole);
    if (json_failed(&whole))
        *rc = json_error(&whole, r->err);
    return !*rc;
}

static int end(struct reading *r, const struct json_reader *json)
{
    int rc = json_failed(json) ? json_error(json, r->err) : 0;
    r->facts->file = r->vocab_file;
    return rc;
}

/* --- tokens --- */

/* A vocabulary is searched this often from its start to its end, before a map is built. */
enum { FEW_SEARCHES = 16 };

static int64_t search_tokens(const struct text_facts *facts, struct json_text text)
{
    for (uint32_t i = 0; i < facts->n_tokens; i++)
        if (facts->tokens[i].text && facts->tokens[i].n_text == text.n_bytes &&
            memcmp(facts->tokens[i].text, text.text, text.n_bytes) == 0)
            return i;
    return TOKENIZER_NO_ID;
}

/* Adds a token to the map. The lowest id of equal texts counts. */
static void map_token(struct reading *r, uint32_t id)
{
    const struct text_token *t = &r->facts->tokens[id];
    uintptr_t value = (uintptr_t)hash_map_get(&r->ids, t->text, t->n_text);
    if (!value || value > (uintptr_t)id + 1)
        r->no_memory |= !hash_map_put(&r->ids, t->text, t->n_text, (void *)((uintptr_t)id + 1));
}

/* The lowest id of the text, or TOKENIZER_NO_ID. The time of all searches is linear in the file. */
static int64_t find_token(struct reading *r, struct json_text text)
{
    if (r->n_searches < FEW_SEARCHES) {
        r->n_searches++;
        return search_tokens(r->facts, text);
    }
    if (!r->ids.n_entries)
        for (uint32_t i = 0; i < r->facts->n_tokens && !r->no_memory; i++)
            if (r->facts->tokens[i].text)
                map_token(r, i);
    return (int64_t)(uintptr_t)hash_map_get(&r->ids, text.text, text.n_bytes) - 1;
}

/* Gives an id the text of a literal. */
static void add_literal(struct reading *r, uint32_t id, struct json_text text, bool is_control,
                        int flags)
{
    text_facts_add_literal(r->facts, id, text.text, text.n_bytes, is_control, flags);
    if (r->ids.n_entries)
        map_token(r, id);
}

static int grow(struct text_facts *facts, uint32_t n, struct error *err)
{
    if (n <= facts->n_tokens)
        return 0;
    struct text_token *wider = arena_calloc(&facts->arena, n, sizeof(*wider));
    if (!wider)
        return text_facts_no_memory(err);
    memcpy(wider, facts->tokens, facts->n_tokens * sizeof(*wider));
    facts->tokens = wider;
    facts->n_tokens = n;
    return 0;
}

/* Room for ids up to the highest key of the object, so that the array grows once. */
static int grow_to_keys(struct reading *r, struct json_reader object, bool ids_are_values)
{
    struct json_text key;
    uint32_t n = 0;
    json_open(&object, JSON_OBJECT);
    while (json_key(&object, &key)) {
        uint32_t id = UINT32_MAX;
        char digits[12] = {0};
        if (ids_are_values) {
            id = json_uint(&object, TOKENIZER_MAX_VOCAB - 1);
        } else {
            if (key.n_bytes && key.n_bytes < 8)
                memcpy(digits, key.text, key.n_bytes);
            char *stop;
            unsigned long value = strtoul(digits, &stop, 10);
            if (*stop || stop == digits || value >= TOKENIZER_MAX_VOCAB)
                json_fail(&object, "a key is no id");
            id = (uint32_t)value;
            json_skip(&object);
        }
        n = id >= n ? id + 1 : n;
    }
    if (json_failed(&object))
        return json_error(&object, r->err);
    return grow(r->facts, n, r->err);
}

static int flags_of(struct json_reader token, bool *out_special)
{
    static const struct {
        const char *key;
        int flag;
    } keys[] = {{"lstrip", TOKEN_TAKES_LEFT},
                {"rstrip", TOKEN_TAKES_RIGHT},
                {"single_word", TOKEN_WHOLE_WORD},
                {"normalized", TOKEN_NORMALIZED}};
    struct json_reader value;
    int flags = 0;
    *out_special = json_find(&token, "special", &value) && json_bool(&value);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (json_find(&token, keys[i].key, &value) && json_bool(&value))
            flags |= keys[i].flag;
    return flags;
}

/* Reads "added_tokens_decoder" of tokenizer_config.json: its flags replace those of
 * tokenizer.json. */
static int read_decoder(struct reading *r, struct json_reader config)
{
    struct json_reader list, content;
    struct json_text key;
    if (!json_find(&config, "added_tokens_decoder", &list) || json_peek(&list) == JSON_NULL)
        return 0;
    int rc = grow_to_keys(r, list, false);
    if (rc)
        return rc;
    json_open(&list, JSON_OBJECT);
    while (json_key(&list, &key)) {
        char digits[12] = {0};
        memcpy(digits, key.text, key.n_bytes < 8 ? key.n_bytes : 8);
        uint32_t id = (uint32_t)strtoul(digits, NULL, 10);
        struct json_reader token = list;
        json_skip(&list);
        if (!json_find(&token, "content", &content))
            continue;
        struct json_text text = json_string(&content);
        struct text_token *t = &r->facts->tokens[id];
        bool same =
            t->text && t->n_text == text.n_bytes && memcmp(t->text, text.text, text.n_bytes) == 0;
        /* A text that the vocabulary has under another id keeps that id, as in `tokenizers`. */
        if (!text.n_bytes || (t->text && !same) || (!same && find_token(r, text) >= 0))
            continue;
        bool special;
        int flags = flags_of(token, &special);
        add_literal(r, id, text, special, flags);
    }
    return json_failed(&list) ? json_error(&list, r->err) : 0;
}

/* Reads added_tokens.json: text to id. Needed for a vocabulary without tokenizer.json. */
static int read_added(struct reading *r, const struct tokenizer_folder *folder)
{
    struct json_reader json;
    struct json_text text;
    int rc;
    if (!begin(r, &folder->added_tokens, "added_tokens.json", &json, &rc))
        return rc;
    rc = grow_to_keys(r, json, true);
    if (rc)
        return rc;
    json_open(&json, JSON_OBJECT);
    while (json_key(&json, &text)) {
        uint32_t id = json_uint(&json, TOKENIZER_MAX_VOCAB - 1);
        if (!json_failed(&json) && text.n_bytes && id < r->facts->n_tokens &&
            !r->facts->tokens[id].text)
            add_literal(r, id, text, false, 0);
    }
    return end(r, &json);
}

/* --- special tokens --- */

/* The text of a special token: a string, or an object with "content". */
static bool special_text(struct json_reader value, struct json_text *out)
{
    struct json_reader content;
    if (json_peek(&value) == JSON_STRING)
        *out = json_string(&value);
    else if (json_find(&value, "content", &content) && json_peek(&content) == JSON_STRING)
        *out = json_string(&content);
    else
        return false;
    return out->n_bytes > 0;
}

static void mark_special(struct reading *r, struct json_text text)
{
    struct text_facts *facts = r->facts;
    int64_t id = find_token(r, text);
    if (id >= 0 && facts->tokens[id].kind == TOKEN_USER_DEFINED)
        facts->tokens[id].kind = TOKEN_CONTROL;
    else if (id >= 0 && facts->tokens[id].kind == TOKEN_NORMAL &&
             !(facts->tokens[id].flags & TOKEN_IS_BYTE))
        text_facts_add_literal(facts, (uint32_t)id, facts->tokens[id].text, text.n_bytes, true, 0);
}

static void read_specials(struct reading *r, struct json_reader object)
{
    struct text_facts *facts = r->facts;
    const struct {
        const char *key;
        int32_t *out;
    } keys[] = {{"bos_token", &facts->bos_id},
                {"eos_token", &facts->eos_id},
                {"unk_token", &facts->unknown_id},
                {"pad_token", &facts->padding_id}};
    struct json_reader value;
    struct json_text text;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (!json_find(&object, keys[i].key, &value) || !special_text(value, &text))
            continue;
        mark_special(r, text);
        int64_t id = find_token(r, text);
        /* The model's own unknown token decides what characters without a token become. */
        bool own = keys[i].out == &facts->unknown_id && *keys[i].out != TOKENIZER_NO_ID;
        if (id >= 0 && !own)
            *keys[i].out = (int32_t)id;
    }
    if (json_find(&object, "additional_special_tokens", &value) &&
        json_peek(&value) == JSON_ARRAY) {
        json_open(&value, JSON_ARRAY);
        while (json_item(&value)) {
            if (special_text(value, &text))
                mark_special(r, text);
            json_skip(&value);
        }
    }
}

static int read_special_map(struct reading *r, const struct tokenizer_folder *folder)
{
    struct json_reader json;
    int rc;
    if (!begin(r, &folder->special_tokens_map, "special_tokens_map.json", &json, &rc))
        return rc;
    read_specials(r, json);
    return end(r, &json);
}

/* A flag of the tokenizer's class replaces the post-processor's template. */
static void read_affix(struct json_reader config, const char *key, int32_t id, bool *adds,
                       uint32_t *n)
{
    struct json_reader value;
    if (!json_find(&config, key, &value) || json_peek(&value) != JSON_BOOL)
        return;
    *adds = json_bool(&value) && id != TOKENIZER_NO_ID;
    *n = 0; /* bos_id or eos_id alone */
}

/* --- chat templates --- */

/* A terminated copy of the text of a template, or of its name. */
static int copy_text(struct reading *r, struct json_reader value, const char **out)
{
    struct json_text text = json_string(&value);
    if (!json_failed(&value) && memchr(text.text, 0, text.n_bytes))
        json_fail(&value, "a template has a NUL byte");
    if (json_failed(&value))
        return json_error(&value, r->err);
    *out = arena_strndup(&r->facts->arena, text.text, text.n_bytes);
    return *out ? 0 : text_facts_no_memory(r->err);
}

/* "chat_template": a text, or a list of {"name", "template"}. */
static int read_templates(struct reading *r, struct json_reader config)
{
    struct json_reader list, name, text;
    const char *word = NULL, *body = NULL;
    int rc = 0;
    if (!json_find(&config, "chat_template", &list) || json_peek(&list) == JSON_NULL)
        return 0;
    if (json_peek(&list) == JSON_STRING)
        return copy_text(r, list, &r->facts->chat_template);
    json_open(&list, JSON_ARRAY);
    for (; !rc && json_item(&list); json_skip(&list)) {
        if (!json_find(&list, "name", &name) || !json_find(&list, "template", &text))
            continue;
        rc = copy_text(r, name, &word);
        if (!rc)
            rc = copy_text(r, text, &body);
        if (!rc)
            rc = text_facts_add_template(r->facts, word, body, r->err);
    }
    if (rc)
        return rc;
    return json_failed(&list) ? json_error(&list, r->err) : 0;
}

static int keep_file(struct reading *r, const struct tokenizer_file *file, const char *name,
                     const char **out)
{
    if (!utf8_valid(file->bytes, file->n_bytes, NULL) || memchr(file->bytes, 0, file->n_bytes)) {
        r->facts->file = name;
        return text_facts_bad(r->facts, "text", r->err, "is not UTF-8");
    }
    *out = arena_strndup(&r->facts->arena, file->bytes, file->n_bytes);
    return *out ? 0 : text_facts_no_memory(r->err);
}

/* A file of a template replaces what the configuration has. */
static int read_template_files(struct reading *r, const struct tokenizer_folder *folder)
{
    struct text_facts *facts = r->facts;
    struct json_reader json;
    int rc;
    if (begin(r, &folder->chat_template_json, "chat_template.json", &json, &rc)) {
        rc = read_templates(r, json);
        if (!rc)
            rc = end(r, &json);
    }
    if (!rc && folder->chat_template.bytes)
        rc = keep_file(r, &folder->chat_template, "chat_template.jinja", &facts->chat_template);
    for (uint32_t i = 0; i < folder->n_templates && !rc; i++) {
        const char *name = folder->template_names[i], *text = NULL;
        rc = keep_file(r, &folder->templates[i], name, &text);
        const char *copy = arena_strndup(&facts->arena, name, strlen(name));
        if (!rc)
            rc = copy ? text_facts_add_template(facts, copy, text, r->err)
                      : text_facts_no_memory(r->err);
    }
    if (!rc && folder->dropped_template && !facts->drops_templates)
        rc = text_facts_drop_template(facts, folder->dropped_template, r->err);
    return rc;
}

static int read_tokenizer_config(struct reading *r, const struct tokenizer_folder *folder)
{
    struct text_facts *facts = r->facts;
    struct json_reader json, value;
    int rc;
    if (!begin(r, &folder->tokenizer_config, "tokenizer_config.json", &json, &rc))
        return rc;
    rc = read_decoder(r, json);
    if (rc)
        return rc;
    read_specials(r, json);
    read_affix(json, "add_bos_token", facts->bos_id, &facts->add_bos, &facts->n_prefix);
    read_affix(json, "add_eos_token", facts->eos_id, &facts->add_eos, &facts->n_suffix);
    /* With SentencePiece, "legacy": false means one space before the first text alone. */
    if (facts->order == TEXT_MERGES_SCORED && json_find(&json, "legacy", &value) &&
        json_peek(&value) == JSON_BOOL && !json_bool(&value))
        for (uint32_t i = 0; i < facts->n_normal; i++)
            if (facts->normal[i].kind == NORMAL_PREPEND)
                facts->normal[i].kind = NORMAL_PREFIX_FIRST;
    rc = read_templates(r, json);
    return rc ? rc : end(r, &json);
}

/* --- all files --- */

static int check_affixes(const struct text_facts *facts, struct error *err)
{
    for (uint32_t i = 0; i < TOKENIZER_MAX_AFFIXES; i++)
        if ((i < facts->n_prefix && facts->prefix[i] >= facts->n_tokens) ||
            (i < facts->n_suffix && facts->suffix[i] >= facts->n_tokens))
            return text_facts_bad(facts, "post_processor", err,
                                  "a template has an id outside the vocabulary");
    return 0;
}

int tokenizer_config_read(const struct tokenizer_folder *folder, struct text_facts *facts,
                          struct error *err)
{
    struct reading r = {.facts = facts, .vocab_file = facts->file, .err = err};
    int rc = read_added(&r, folder);
    if (!rc)
        rc = read_special_map(&r, folder);
    if (!rc)
        rc = read_tokenizer_config(&r, folder);
    if (!rc)
        rc = read_template_files(&r, folder);
    if (!rc && (r.no_memory || facts->arena.exhausted))
        rc = text_facts_no_memory(err);
    hash_map_fini(&r.ids);
    if (!rc)
        rc = check_affixes(facts, err);
    for (uint32_t i = 0; i < folder->n_end_ids; i++)
        text_facts_add_end(facts, folder->end_ids[i]);
    text_facts_add_end(facts, facts->eos_id);
    text_facts_find_ends(facts);
    fim_tokens_find(facts);
    if (facts->eos_id == TOKENIZER_NO_ID && facts->n_end_ids)
        facts->eos_id = (int32_t)facts->end_ids[0];
    return rc;
}
