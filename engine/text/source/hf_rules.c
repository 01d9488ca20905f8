#include "engine/text/source/hf_rules.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/text/facts/text_facts.h"
#include "engine/text/rules/pretokenizer_table.h"
#include "engine/text/source/json_reader.h"

/* A part of the file, its type, and where its steps go. */
struct part {
    const struct json_reader *json; /* at the object */
    struct text_facts *facts;
    struct error *err;
    const char *name; /* "normalizer", ... */
    uint32_t depth;
};

typedef int part_fn(struct part *part);

struct part_type {
    const char *type;
    part_fn *read;
};

static int unbuilt(const struct part *part, const char *what)
{
    return text_facts_unbuilt(part->facts, part->name, part->err,
                              "%s is not built; use a model without", what);
}

static int bad(const struct part *part, const char *what)
{
    return text_facts_bad(part->facts, part->name, part->err, "%s", what);
}

/* Reads a string member into *out; its absence is an error. */
static int get_string(const struct part *part, const char *key, struct json_text *out)
{
    struct json_reader value;
    if (!json_find(part->json, key, &value))
        return text_facts_bad(part->facts, part->name, part->err, "\"%s\" is missing", key);
    *out = json_string(&value);
    return json_failed(&value) ? json_error(&value, part->err) : 0;
}

static int get_bool(const struct part *part, const char *key, bool fallback, bool *out)
{
    struct json_reader value;
    *out = fallback;
    if (!json_find(part->json, key, &value) || json_peek(&value) == JSON_NULL)
        return 0;
    *out = json_bool(&value);
    return json_failed(&value) ? json_error(&value, part->err) : 0;
}

static int read_part(struct part part, const struct part_type *types, size_t n_types)
{
    struct json_text type;
    char text[ESCAPE_MAX_BYTES];
    if (part.depth > 8)
        return unbuilt(&part, "a Sequence within more than 8 others");
    int rc = get_string(&part, "type", &type);
    if (rc)
        return rc;
    for (size_t i = 0; i < n_types; i++)
        if (json_is(type, types[i].type))
            return types[i].read(&part);
    return unbuilt(&part, escape_text(type.text, type.n_bytes, text));
}

/* Reads the members of a Sequence. */
static int read_sequence(struct part *part, const char *key, const struct part_type *types,
                         size_t n_types)
{
    struct json_reader list;
    if (!json_find(part->json, key, &list))
        return text_facts_bad(part->facts, part->name, part->err, "\"%s\" is missing", key);
    json_open(&list, JSON_ARRAY);
    while (json_item(&list)) {
        struct json_reader at = list;
        struct part inner = *part;
        inner.json = &at;
        inner.depth++;
        int rc = read_part(inner, types, n_types);
        if (rc)
            return rc;
        json_skip(&list);
    }
    return json_failed(&list) ? json_error(&list, part->err) : 0;
}

/* {"String": text} or {"Regex": text}. */
static int get_pattern(const struct part *part, struct json_text *out, bool *out_literal)
{
    struct json_reader pattern, value;
    if (!json_find(part->json, "pattern", &pattern))
        return bad(part, "\"pattern\" is missing");
    *out_literal = json_find(&pattern, "String", &value);
    if (!*out_literal && !json_find(&pattern, "Regex", &value))
        return bad(part, "\"pattern\" is neither a String nor a Regex");
    *out = json_string(&value);
    return json_failed(&value) ? json_error(&value, part->err) : 0;
}

/* --- normalizer --- */

static int add_normal(struct part *part, enum normal_kind kind, struct json_text from,
                      struct json_text to)
{
    struct normal_step step = {kind, from.text, to.text, (uint32_t)from.n_bytes,
                               (uint32_t)to.n_bytes};
    return text_facts_add_normal(part->facts, step, part->err);
}

static const struct json_text nothing = {"", 0};

static int read_nfc(struct part *part)
{
    return add_normal(part, NORMAL_NFC, nothing, nothing);
}

static int read_nfd(struct part *part)
{
    return add_normal(part, NORMAL_NFD, nothing, nothing);
}

static int read_nfkc(struct part *part)
{
    return add_normal(part, NORMAL_NFKC, nothing, nothing);
}

static int read_nfkd(struct part *part)
{
    return add_normal(part, NORMAL_NFKD, nothing, nothing);
}

static int read_prepend(struct part *part)
{
    struct json_text text;
    int rc = get_string(part, "prepend", &text);
    return rc ? rc : add_normal(part, NORMAL_PREPEND, nothing, text);
}

static int read_replace(struct part *part)
{
    struct json_text from, to;
    bool literal;
    int rc = get_pattern(part, &from, &literal);
    if (!rc)
        rc = get_string(part, "content", &to);
    return rc ? rc : add_normal(part, literal ? NORMAL_REPLACE : NORMAL_REPLACE_MATCH, from, to);
}

static int read_strip(struct part *part)
{
    bool left, right;
    int rc = get_bool(part, "strip_left", true, &left);
    if (!rc)
        rc = get_bool(part, "strip_right", true, &right);
    if (!rc && left)
        rc = add_normal(part, NORMAL_STRIP_LEFT, nothing, nothing);
    if (!rc && right)
        rc = add_normal(part, NORMAL_STRIP_RIGHT, nothing, nothing);
    return rc;
}

static int read_normalizers(struct part *part);

static const struct part_type normalizers[] = {
    {"Sequence", read_normalizers},
    {"NFC", read_nfc},
    {"NFD", read_nfd},
    {"NFKC", read_nfkc},
    {"NFKD", read_nfkd},
    {"Prepend", read_prepend},
    {"Replace", read_replace},
    {"Strip", read_strip},
};
enum { N_NORMALIZERS = sizeof(normalizers) / sizeof(normalizers[0]) };

static int read_normalizers(struct part *part)
{
    return read_sequence(part, "normalizers", normalizers, N_NORMALIZERS);
}

int hf_rules_normalizer(struct json_reader json, struct text_facts *facts, struct error *err)
{
    int rc = 0;
    if (json_peek(&json) != JSON_NULL)
        rc = read_part((struct part){&json, facts, err, "normalizer", 0}, normalizers,
                       N_NORMALIZERS);
    facts->n_before_literals = facts->n_normal;
    return rc;
}

/* --- pre-tokenizer --- */

static int add_split(struct part *part, struct split_step step)
{
    if (!part->facts->by_characters)
        return unbuilt(part, "a step after ByteLevel");
    return text_facts_add_split(part->facts, step, part->err);
}

static int get_behavior(const struct part *part, enum split_behavior fallback,
                        enum split_behavior *out)
{
    static const struct {
        const char *name;
        enum split_behavior behavior;
    } names[] = {{"Removed", SPLIT_REMOVED},
                 {"Isolated", SPLIT_ISOLATED},
                 {"MergedWithPrevious", SPLIT_WITH_PREVIOUS},
                 {"MergedWithNext", SPLIT_WITH_NEXT},
                 {"Contiguous", SPLIT_CONTIGUOUS}};
    struct json_reader value;
    *out = fallback;
    if (!json_find(part->json, "behavior", &value))
        return 0;
    struct json_text name = json_string(&value);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (json_is(name, names[i].name)) {
            *out = names[i].behavior;
            return 0;
        }
    return bad(part, "\"behavior\" is unknown");
}

static int read_split(struct part *part)
{
    struct json_text pattern;
    struct split_step step = {.dialect = PATTERN_ONIGURUMA};
    int rc = get_pattern(part, &pattern, &step.literal);
    if (!rc)
        rc = get_behavior(part, SPLIT_ISOLATED, &step.behavior);
    if (!rc)
        rc = get_bool(part, "invert", false, &step.invert);
    if (rc)
        return rc;
    step.pattern = pattern.text;
    step.n_bytes = (uint32_t)pattern.n_bytes;
    if (!step.literal && step.behavior == SPLIT_ISOLATED)
        pretokenizer_table_simplify(&step);
    return add_split(part, step);
}

static struct split_step own_pattern(const char *pattern, enum split_behavior behavior)
{
    return (struct split_step){
        .pattern = pattern, .n_bytes = (uint32_t)strlen(pattern), .behavior = behavior};
}

static int read_digits(struct part *part)
{
    bool individual;
    int rc = get_bool(part, "individual_digits", false, &individual);
    return rc ? rc
              : add_split(part,
                          own_pattern("\\p{N}", individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS));
}

static int read_byte_level(struct part *part)
{
    bool prefix, pattern;
    int rc = get_bool(part, "add_prefix_space", true, &prefix);
    if (!rc)
        rc = get_bool(part, "use_regex", true, &pattern);
    if (!rc && prefix && part->facts->n_splits)
        rc = unbuilt(part, "ByteLevel with add_prefix_space after another step");
    if (!rc && prefix)
        rc = add_normal(part, NORMAL_PREFIX_ALWAYS, nothing, (struct json_text){" ", 1});
    if (!rc && pattern)
        rc = add_split(part, own_pattern(pretokenizer_table_gpt2(), SPLIT_ISOLATED));
    part->facts->by_characters = false;
    return rc;
}

/* Spaces become U+2581, which also stands before the text. */
static int read_metaspace(struct part *part)
{
    static const struct json_text mark = {TEXT_SPACE_MARK, 3}, space = {" ", 1};
    struct json_text replacement, scheme = {"always", 6};
    struct json_reader value;
    bool prefix, split;
    int rc = get_string(part, "replacement", &replacement);
    if (!rc && !json_is(replacement, TEXT_SPACE_MARK))
        rc = unbuilt(part, "Metaspace with another replacement than U+2581");
    if (!rc && part->facts->n_splits)
        rc = unbuilt(part, "Metaspace after another step");
    if (!rc)
        rc = get_bool(part, "add_prefix_space", true, &prefix);
    if (!rc)
        rc = get_bool(part, "split", true, &split);
    if (!rc && json_find(part->json, "prepend_scheme", &value))
        rc = get_string(part, "prepend_scheme", &scheme);
    else if (!rc && !prefix)
        scheme = (struct json_text){"never", 5};
    if (!rc)
        rc = add_normal(part, NORMAL_REPLACE, space, mark);
    if (!rc && !json_is(scheme, "never"))
        rc = add_normal(part, json_is(scheme, "first") ? NORMAL_PREFIX_FIRST : NORMAL_PREFIX_ALWAYS,
                        nothing, mark);
    struct split_step step = own_pattern(TEXT_SPACE_MARK, SPLIT_WITH_NEXT);
    step.literal = true;
    return rc || !split ? rc : add_split(part, step);
}

static int read_whitespace(struct part *part)
{
    struct split_step step = own_pattern("\\w+|[^\\w\\s]+", SPLIT_REMOVED);
    step.invert = true;
    step.dialect = PATTERN_RUST;
    return add_split(part, step);
}

static int read_whitespace_split(struct part *part)
{
    return add_split(part, own_pattern("\\p{WSpace}", SPLIT_REMOVED));
}

static int read_punctuation(struct part *part)
{
    struct split_step step = own_pattern("[!-/:-@\\[-`{-~\\p{P}]", SPLIT_ISOLATED);
    int rc = get_behavior(part, SPLIT_ISOLATED, &step.behavior);
    return rc ? rc : add_split(part, step);
}

static int read_pre_tokenizers(struct part *part);

static const struct part_type pre_tokenizers[] = {
    {"Sequence", read_pre_tokenizers},
    {"Split", read_split},
    {"Digits", read_digits},
    {"ByteLevel", read_byte_level},
    {"Metaspace", read_metaspace},
    {"Whitespace", read_whitespace},
    {"WhitespaceSplit", read_whitespace_split},
    {"Punctuation", read_punctuation},
};
enum { N_PRE_TOKENIZERS = sizeof(pre_tokenizers) / sizeof(pre_tokenizers[0]) };

static int read_pre_tokenizers(struct part *part)
{
    return read_sequence(part, "pretokenizers", pre_tokenizers, N_PRE_TOKENIZERS);
}

int hf_rules_pre_tokenizer(struct json_reader json, struct text_facts *facts, struct error *err)
{
    facts->by_characters = true;
    if (json_peek(&json) == JSON_NULL)
        return 0;
    return read_part((struct part){&json, facts, err, "pre_tokenizer", 0}, pre_tokenizers,
                     N_PRE_TOKENIZERS);
}

/* --- decoder --- */

static int read_byte_level_decoder(struct part *part)
{
    part->facts->spelling = TEXT_SPELLS_ALPHABET;
    return 0;
}

static int read_metaspace_decoder(struct part *part)
{
    struct json_text scheme = {"always", 6};
    struct json_reader value;
    bool prefix;
    int rc = get_bool(part, "add_prefix_space", true, &prefix);
    if (!rc && json_find(part->json, "prepend_scheme", &value))
        rc = get_string(part, "prepend_scheme", &scheme);
    part->facts->spelling = TEXT_SPELLS_MARKS;
    part->facts->strips_space = prefix && !json_is(scheme, "never");
    return rc;
}

static int read_replace_decoder(struct part *part)
{
    struct json_text from, to;
    bool literal;
    int rc = get_pattern(part, &from, &literal);
    if (!rc)
        rc = get_string(part, "content", &to);
    if (!rc && !(literal && json_is(from, TEXT_SPACE_MARK) && json_is(to, " ")))
        rc = unbuilt(part, "a Replace of anything but U+2581 by a space");
    part->facts->spelling = TEXT_SPELLS_MARKS;
    return rc;
}

static int read_strip_decoder(struct part *part)
{
    struct json_text content;
    struct json_reader start, stop;
    int rc = get_string(part, "content", &content);
    if (rc)
        return rc;
    if (!json_is(content, " ") || !json_find(part->json, "start", &start) ||
        json_uint(&start, 1) != 1 || json_failed(&start) || !json_find(part->json, "stop", &stop) ||
        json_uint(&stop, 0) || json_failed(&stop))
        return unbuilt(part, "a Strip of anything but one space at the start");
    part->facts->strips_space = true;
    return 0;
}

/* ByteFallback is what byte tokens mean here in any case; Fuse joins the tokens, as here. */
static int read_nothing(struct part *part)
{
    (void)part;
    return 0;
}

static int read_decoders(struct part *part);

static const struct part_type decoders[] = {
    {"Sequence", read_decoders},
    {"ByteLevel", read_byte_level_decoder},
    {"Metaspace", read_metaspace_decoder},
    {"Replace", read_replace_decoder},
    {"Strip", read_strip_decoder},
    {"ByteFallback", read_nothing},
    {"Fuse", read_nothing},
};
enum { N_DECODERS = sizeof(decoders) / sizeof(decoders[0]) };

static int read_decoders(struct part *part)
{
    return read_sequence(part, "decoders", decoders, N_DECODERS);
}

int hf_rules_decoder(struct json_reader json, struct text_facts *facts, struct error *err)
{
    struct part part = {&json, facts, err, "decoder", 0};
    facts->spelling = TEXT_SPELLS_BYTES;
    if (json_peek(&json) == JSON_NULL)
        return unbuilt(&part, "a file without a decoder");
    return read_part(part, decoders, N_DECODERS);
}

/* --- post-processor --- */

/* Reads the ids of a special token of a template. */
static int add_affix(const struct part *part, struct json_text name, uint32_t *ids, uint32_t *n)
{
    struct json_reader tokens, token, list;
    struct json_text key;
    if (!json_find(part->json, "special_tokens", &tokens))
        return bad(part, "\"special_tokens\" is missing");
    json_open(&tokens, JSON_OBJECT);
    bool found = false;
    while (!found && json_key(&tokens, &key)) {
        token = tokens;
        found = key.n_bytes == name.n_bytes && memcmp(key.text, name.text, key.n_bytes) == 0;
        json_skip(&tokens);
    }
    if (!found || !json_find(&token, "ids", &list))
        return bad(part, "a template names a token without ids");
    uint32_t n_before = *n;
    json_open(&list, JSON_ARRAY);
    while (json_item(&list)) {
        if (*n == TOKENIZER_MAX_AFFIXES)
            return unbuilt(part, "a template with more than 8 tokens at one end");
        ids[(*n)++] = json_uint(&list, TOKENIZER_MAX_VOCAB - 1);
    }
    if (!json_failed(&list) && *n == n_before) /* this also bounds the searches */
        return bad(part, "a template names a token without ids");
    return json_failed(&list) ? json_error(&list, part->err) : 0;
}

static int read_template(struct part *part)
{
    struct json_reader list, piece, value;
    struct text_facts *facts = part->facts;
    bool after = false;
    if (!json_find(part->json, "single", &list))
        return bad(part, "\"single\" is missing");
    facts->n_prefix = facts->n_suffix = 0;
    json_open(&list, JSON_ARRAY);
    while (json_item(&list)) {
        int rc = 0;
        if (json_find(&list, "Sequence", &piece)) {
            if (after)
                return unbuilt(part, "a template that repeats the text");
            after = true;
        } else if (json_find(&list, "SpecialToken", &piece) && json_find(&piece, "id", &value)) {
            struct json_text name = json_string(&value);
            rc = after ? add_affix(part, name, facts->suffix, &facts->n_suffix)
                       : add_affix(part, name, facts->prefix, &facts->n_prefix);
        } else {
            rc = bad(part, "a template has an unknown piece");
        }
        if (rc)
            return rc;
        json_skip(&list);
    }
    facts->add_bos = facts->n_prefix > 0;
    facts->add_eos = facts->n_suffix > 0;
    return json_failed(&list) ? json_error(&list, part->err) : 0;
}

static int read_processors(struct part *part);

static const struct part_type processors[] = {{"Sequence", read_processors},
                                              {"TemplateProcessing", read_template},
                                              {"ByteLevel", read_nothing}};
enum { N_PROCESSORS = sizeof(processors) / sizeof(processors[0]) };

static int read_processors(struct part *part)
{
    return read_sequence(part, "processors", processors, N_PROCESSORS);
}

int hf_rules_post_processor(struct json_reader json, struct text_facts *facts, struct error *err)
{
    if (json_peek(&json) == JSON_NULL)
        return 0;
    return read_part((struct part){&json, facts, err, "post_processor", 0}, processors,
                     N_PROCESSORS);
}
