#include "engine/text/source/tiktoken_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/text/facts/text_facts.h"
#include "engine/text/rules/pretokenizer_table.h"
#include "engine/text/source/base64.h"
#include "engine/text/source/json_reader.h"

/* Room for special tokens behind the ranks of a tiktoken file. */
enum { MAX_LINE = 2 * TOKENIZER_MAX_TOKEN_BYTES, N_SPECIALS = 4096 };

static void set_rules(struct text_facts *facts)
{
    facts->order = TEXT_MERGES_RANKED;
    facts->spelling = TEXT_SPELLS_BYTES;
    facts->whole_first = true;
}

static struct text_token special(struct text_facts *facts, const char *text, struct error *err)
{
    char *copy = arena_strndup(&facts->arena, text, strlen(text));
    if (!copy)
        text_facts_no_memory(err);
    return (struct text_token){
        .text = copy, .n_text = (uint32_t)strlen(text), .kind = TOKEN_CONTROL};
}

/* --- tiktoken --- */

struct line {
    const char *text;
    size_t n_bytes, number;
};

static int bad_line(const struct text_facts *facts, const struct line *line, struct error *err)
{
    char part[48];
    snprintf(part, sizeof(part), "line %zu", line->number);
    return text_facts_bad(facts, part, err, "is not of the form \"base64 rank\"");
}

static int read_line(struct text_facts *facts, const struct line *line, struct error *err)
{
    const char *space = memchr(line->text, ' ', line->n_bytes);
    size_t n_code = space ? (size_t)(space - line->text) : 0, n = 0;
    uint64_t rank = 0;
    if (!n_code || n_code > MAX_LINE || n_code + 1 == line->n_bytes || line->n_bytes - n_code > 10)
        return bad_line(facts, line, err);
    for (size_t i = n_code + 1; i < line->n_bytes; i++) {
        if (line->text[i] < '0' || line->text[i] > '9')
            return bad_line(facts, line, err);
        rank = rank * 10 + (uint64_t)(line->text[i] - '0');
    }
    char *bytes = arena_alloc(&facts->arena, n_code);
    if (!bytes)
        return text_facts_no_memory(err);
    if (!base64_decode(line->text, n_code, bytes, &n) || !n ||
        rank >= TOKENIZER_MAX_VOCAB - N_SPECIALS || facts->tokens[rank].text)
        return bad_line(facts, line, err);
    facts->tokens[rank] = (struct text_token){.text = bytes, .n_text = (uint32_t)n};
    if (facts->n_tokens <= rank)
        facts->n_tokens = (uint32_t)rank + 1;
    return 0;
}

/* Special tokens of families whose tiktoken file is all that their folder has. */
static int add_llama3(struct text_facts *facts, struct error *err)
{
    static const char *const named[] = {
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|step_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    };
    enum { N_NAMED = sizeof(named) / sizeof(named[0]), N_ALL = 256 };
    uint32_t first = facts->n_tokens;
    for (uint32_t i = 0; i < N_ALL; i++) {
        char text[48];
        snprintf(text, sizeof(text), "<|reserved_special_token_%" PRIu32 "|>", i + 2 - N_NAMED);
        facts->tokens[facts->n_tokens] = special(facts, i < N_NAMED ? named[i] : text, err);
        if (!facts->tokens[facts->n_tokens++].text)
            return STATUS_RESOURCE_EXHAUSTED;
    }
    facts->bos_id = (int32_t)first;
    facts->eos_id = (int32_t)first + 1;
    return 0;
}

static int choose_family(struct text_facts *facts, struct error *err)
{
    static const struct {
        uint32_t n_ranks;
        const char *pre;
    } families[] = {
        {50256, "gpt-2"},    {100256, "dbrx"},   {128000, "llama-bpe"}, {151643, "qwen2"},
        {163584, "kimi-k2"}, {199998, "gpt-4o"}, {200000, "llama4"},    {248044, "qwen35"},
    };
    facts->pre = NULL;
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (families[i].n_ranks == facts->n_tokens)
            facts->pre = families[i].pre;
    if (!facts->pre)
        return text_facts_unbuilt(facts, "ranks", err,
                                  "no family with %" PRIu32 " ranks is known, so that the pattern "
                                  "is not known; use a model with tokenizer.json",
                                  facts->n_tokens);
    int rc = pretokenizer_table_find(facts->pre, facts, err);
    facts->n_normal = 0; /* tiktoken normalizes nothing */
    set_rules(facts);
    if (!rc && facts->n_tokens == 128000)
        rc = add_llama3(facts, err);
    return rc;
}

int tiktoken_file_read(const char *bytes, size_t n_bytes, struct text_facts *facts,
                       struct error *err)
{
    facts->model = "tiktoken";
    facts->tokens_key = "ranks";
    facts->tokens = arena_calloc(&facts->arena, TOKENIZER_MAX_VOCAB, sizeof(*facts->tokens));
    if (!facts->tokens)
        return text_facts_no_memory(err);
    size_t number = 0;
    int rc = 0;
    for (size_t at = 0; at < n_bytes && !rc;) {
        const char *end = memchr(bytes + at, '\n', n_bytes - at);
        size_t n = end ? (size_t)(end - bytes) - at : n_bytes - at;
        struct line line = {bytes + at, n, ++number};
        if (line.n_bytes && line.text[n - 1] == '\r')
            line.n_bytes--;
        rc = line.n_bytes ? read_line(facts, &line, err) : 0;
        at += n + 1;
    }
    if (!rc && !facts->n_tokens)
        rc = text_facts_bad(facts, "ranks", err, "the file has none");
    return rc ? rc : choose_family(facts, err);
}

/* --- tekken --- */

struct tekken {
    uint32_t n_vocab, n_special; /* all ids; special ones among them */
};

static int read_config(struct json_reader root, struct text_facts *facts, struct tekken *tekken,
                       struct error *err)
{
    struct json_reader config, value;
    if (!json_find(&root, "config", &config))
        return text_facts_bad(facts, "config", err, "is missing");
    struct split_step split = {.dialect = PATTERN_RUST};
    if (!json_find(&config, "pattern", &value))
        return text_facts_bad(facts, "config.pattern", err, "is missing");
    struct json_text pattern = json_string(&value);
    if (json_failed(&value))
        return json_error(&value, err);
    split.pattern = pattern.text;
    split.n_bytes = pattern.n_bytes < UINT32_MAX ? (uint32_t)pattern.n_bytes : UINT32_MAX;
    int rc = text_facts_add_split(facts, split, err);
    const struct {
        const char *key;
        uint32_t *out;
    } numbers[] = {{"default_vocab_size", &tekken->n_vocab},
                   {"default_num_special_tokens", &tekken->n_special}};
    for (size_t i = 0; i < 2 && !rc; i++) {
        if (!json_find(&config, numbers[i].key, &value))
            return text_facts_bad(facts, numbers[i].key, err, "is missing");
        *numbers[i].out = json_uint(&value, TOKENIZER_MAX_VOCAB);
        if (json_failed(&value))
            rc = json_error(&value, err);
    }
    if (!rc && tekken->n_vocab <= tekken->n_special)
        rc = text_facts_bad(facts, "config.default_vocab_size", err,
                            "%" PRIu32 " is not above default_num_special_tokens", tekken->n_vocab);
    return rc;
}

/* Reads one entry of `vocab`. Entries beyond the vocabulary's size are ignored, as in
 * mistral-common. */
static void read_entry(struct json_reader *json, struct text_facts *facts,
                       const struct tekken *tekken)
{
    struct json_text key, code = {NULL, 0};
    uint32_t rank = UINT32_MAX;
    size_t n = 0;
    json_open(json, JSON_OBJECT);
    while (json_key(json, &key)) {
        if (json_is(key, "rank"))
            rank = json_uint(json, TOKENIZER_MAX_VOCAB);
        else if (json_is(key, "token_bytes"))
            code = json_string(json);
        else
            json_skip(json);
    }
    if (json_failed(json) || (rank != UINT32_MAX && rank >= tekken->n_vocab - tekken->n_special))
        return;
    struct text_token *t = &facts->tokens[tekken->n_special + (rank == UINT32_MAX ? 0 : rank)];
    char *bytes = code.n_bytes <= MAX_LINE ? arena_alloc(&facts->arena, code.n_bytes + 1) : NULL;
    if (rank == UINT32_MAX || !bytes || !base64_decode(code.text, code.n_bytes, bytes, &n) || !n ||
        t->text)
        json_fail(json, "an entry has no rank or no bytes, or repeats a rank");
    else
        *t = (struct text_token){.text = bytes, .n_text = (uint32_t)n};
}

static const char *const old_specials[] = {
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
};

static void read_special(struct json_reader *json, struct text_facts *facts,
                         const struct tekken *tekken)
{
    struct json_text key, text = {NULL, 0};
    uint32_t rank = UINT32_MAX;
    bool control = true;
    json_open(json, JSON_OBJECT);
    while (json_key(json, &key)) {
        if (json_is(key, "rank"))
            rank = json_uint(json, TOKENIZER_MAX_VOCAB);
        else if (json_is(key, "token_str"))
            text = json_string(json);
        else if (json_is(key, "is_control"))
            control = json_bool(json);
        else
            json_skip(json);
    }
    if (json_failed(json))
        return;
    if (rank >= tekken->n_special || !text.n_bytes || text.n_bytes > TOKENIZER_MAX_SPECIAL_BYTES)
        json_fail(json, "a special token has no text, or a rank outside the special tokens");
    else
        facts->tokens[rank] =
            (struct text_token){.text = text.text,
                                .n_text = (uint32_t)text.n_bytes,
                                .kind = (uint8_t)(control ? TOKEN_CONTROL : TOKEN_USER_DEFINED)};
}

static int read_specials(struct json_reader root, struct text_facts *facts,
                         const struct tekken *tekken, struct error *err)
{
    struct json_reader list;
    if (json_find(&root, "special_tokens", &list) && json_peek(&list) != JSON_NULL) {
        json_open(&list, JSON_ARRAY);
        while (json_item(&list))
            read_special(&list, facts, tekken);
        if (json_failed(&list))
            return json_error(&list, err);
    } else {
        for (uint32_t i = 0; i < sizeof(old_specials) / sizeof(old_specials[0]); i++)
            if (i < tekken->n_special)
                facts->tokens[i] = special(facts, old_specials[i], err);
    }
    for (uint32_t i = 0; i < tekken->n_special; i++) {
        char text[32];
        if (facts->tokens[i].text)
            continue;
        snprintf(text, sizeof(text), "<SPECIAL_%" PRIu32 ">", i);
        facts->tokens[i] = special(facts, text, err);
        if (!facts->tokens[i].text)
            return STATUS_RESOURCE_EXHAUSTED;
    }
    return 0;
}

static int32_t find_special(const struct text_facts *facts, const struct tekken *tekken,
                            const char *text)
{
    for (uint32_t i = 0; i < tekken->n_special; i++)
        if (facts->tokens[i].text && facts->tokens[i].n_text == strlen(text) &&
            memcmp(facts->tokens[i].text, text, facts->tokens[i].n_text) == 0)
            return (int32_t)i;
    return TOKENIZER_NO_ID;
}

int tiktoken_file_read_tekken(const char *bytes, size_t n_bytes, struct text_facts *facts,
                              struct error *err)
{
    struct json_reader root, vocab;
    struct tekken tekken = {0};
    facts->model = "tekken";
    facts->tokens_key = "vocab";
    facts->pre = "tekken";
    set_rules(facts);
    json_init(&root, bytes, n_bytes, facts, err);
    struct json_reader whole = root;
    json_skip(&whole);
    json_end(&whole);
    if (json_failed(&whole))
        return json_error(&whole, err);
    int rc = read_config(root, facts, &tekken, err);
    if (rc)
        return rc;
    facts->n_tokens = tekken.n_vocab;
    facts->tokens = arena_calloc(&facts->arena, tekken.n_vocab, sizeof(*facts->tokens));
    if (!facts->tokens)
        return text_facts_no_memory(err);
    if (!json_find(&root, "vocab", &vocab))
        return text_facts_bad(facts, "vocab", err, "is missing");
    json_open(&vocab, JSON_ARRAY);
    while (json_item(&vocab))
        read_entry(&vocab, facts, &tekken);
    if (json_failed(&vocab))
        return json_error(&vocab, err);
    rc = read_specials(root, facts, &tekken, err);
    facts->bos_id = find_special(facts, &tekken, "<s>");
    facts->eos_id = find_special(facts, &tekken, "</s>");
    facts->unknown_id = find_special(facts, &tekken, "<unk>");
    facts->padding_id = find_special(facts, &tekken, "<pad>");
    facts->add_bos = facts->bos_id != TOKENIZER_NO_ID;
    text_facts_add_end(facts, facts->eos_id);
    return rc;
}
