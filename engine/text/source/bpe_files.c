#include "engine/text/source/bpe_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/text/facts/text_facts.h"
#include "engine/text/facts/tokenizer_folder.h"
#include "engine/text/rules/pretokenizer_table.h"
#include "engine/text/source/hf_tokenizer.h"
#include "engine/text/source/json_reader.h"

/* Classes of transformers that keep their vocabulary in these files. The architectures are those
 * for which transformers takes the class where the configuration names none. */
static const struct family {
    const char *classes[5], *architectures[9];
    const char *pre; /* in the table of pre-tokenizers */
    bool nfc, has_bos;
} families[] = {
    {{"GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "CodeGenTokenizerFast"},
     {"GPT2LMHeadModel", "GPTJForCausalLM", "PhiForCausalLM", "Starcoder2ForCausalLM",
      "OPTForCausalLM"},
     "gpt-2",
     false,
     true},
    {{"GPTNeoXTokenizer", "GPTNeoXTokenizerFast"}, {"GPTNeoXForCausalLM"}, "gpt-2", true, true},
    {{"Qwen2Tokenizer", "Qwen2TokenizerFast"},
     {"Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
      "Qwen3VLForConditionalGeneration"},
     "qwen2",
     false, /* the table's rules normalize */
     false},
};

/* The end token of all these classes, unless the configuration names another. */
static const char end_text[] = "<|endoftext|>";

/* The list ends with NULL. */
static bool list_has(const char *const *list, struct json_text name)
{
    while (*list && !json_is(name, *list))
        list++;
    return *list != NULL;
}

/* Opens tokenizer_config.json; false without one. */
static bool open_config(const struct tokenizer_folder *folder, struct text_facts *facts,
                        struct json_reader *out, struct error *err)
{
    if (!folder->tokenizer_config.bytes)
        return false;
    facts->file = "tokenizer_config.json";
    json_init(out, folder->tokenizer_config.bytes, folder->tokenizer_config.n_bytes, facts, err);
    return true;
}

static int find_family(const struct tokenizer_folder *folder, struct text_facts *facts,
                       const struct family **out_family, bool *out_prefix, struct error *err)
{
    struct json_reader config, value;
    struct json_text name = {"", 0};
    char text[ESCAPE_MAX_BYTES];
    *out_prefix = false;
    if (open_config(folder, facts, &config, err)) {
        struct json_reader whole = config;
        json_skip(&whole);
        json_end(&whole);
        if (json_failed(&whole))
            return json_error(&whole, err);
        if (json_find(&config, "tokenizer_class", &value) && json_peek(&value) != JSON_NULL) {
            name = json_string(&value);
            if (json_failed(&value))
                return json_error(&value, err);
        }
        if (json_find(&config, "add_prefix_space", &value) && json_peek(&value) == JSON_BOOL)
            *out_prefix = json_bool(&value);
    }
    bool by_class = name.n_bytes > 0;
    if (!by_class && folder->architecture)
        name = (struct json_text){folder->architecture, strlen(folder->architecture)};
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (list_has(by_class ? families[i].classes : families[i].architectures, name)) {
            *out_family = &families[i];
            return 0;
        }
    return text_facts_unbuilt(
        facts, "tokenizer_class", err,
        "%s \"%s\" with vocab.json and merges.txt alone is not built, only GPT2Tokenizer, "
        "CodeGenTokenizer, GPTNeoXTokenizer and Qwen2Tokenizer are; use a folder with "
        "tokenizer.json",
        by_class ? "the class" : "no class is named, and the architecture",
        escape_text(name.text, name.n_bytes, text));
}

/* Reads the lines "left right". The first line may be "#version: 0.2". */
static int read_merges(const struct tokenizer_file *file, struct text_facts *facts,
                       struct error *err)
{
    static const char version[] = "#version";
    const char *text = file->bytes, *end = text + file->n_bytes;
    uint64_t n_lines = 1;
    facts->file = "merges.txt";
    for (const char *c = text; c < end && (c = memchr(c, '\n', (size_t)(end - c))); c++)
        n_lines++;
    facts->merges = arena_calloc(&facts->arena, n_lines, sizeof(*facts->merges));
    if (!facts->merges)
        return text_facts_no_memory(err);
    for (uint64_t number = 1; text < end; number++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((stop ? stop : end) - text);
        const char *line = text;
        text = stop ? stop + 1 : end;
        n -= n && line[n - 1] == '\r';
        if (n >= sizeof(version) - 1 && memcmp(line, version, sizeof(version) - 1) == 0)
            continue;
        const char *space = n ? memchr(line, ' ', n) : NULL;
        size_t n_left = space ? (size_t)(space - line) : 0;
        if (!n_left || n_left + 1 == n || memchr(space + 1, ' ', n - n_left - 1)) {
            char part[48];
            snprintf(part, sizeof(part), "line %" PRIu64, number);
            return text_facts_bad(facts, part, err, "is not of the form \"left right\"");
        }
        facts->merges[facts->n_merges++] =
            (struct text_merge){line, n < UINT32_MAX ? (uint32_t)n : UINT32_MAX, (uint32_t)n_left};
    }
    return 0;
}

static int read_vocabulary(const struct tokenizer_folder *folder, struct text_facts *facts,
                           struct error *err)
{
    struct json_reader json;
    facts->file = "vocab.json";
    json_init(&json, folder->vocab_json.bytes, folder->vocab_json.n_bytes, facts, err);
    struct json_reader whole = json;
    json_skip(&whole);
    json_end(&whole);
    return json_failed(&whole) ? json_error(&whole, err)
                               : hf_tokenizer_read_vocab(json, facts, err);
}

/* The class's own end token. The configuration may name another. */
static void mark_end(const struct family *family, struct text_facts *facts)
{
    for (uint32_t i = 0; i < facts->n_tokens; i++) {
        const struct text_token *t = &facts->tokens[i];
        if (!t->text || t->n_text != sizeof(end_text) - 1 ||
            memcmp(t->text, end_text, sizeof(end_text) - 1) != 0)
            continue;
        text_facts_add_literal(facts, i, end_text, sizeof(end_text) - 1, true, 0);
        facts->eos_id = (int32_t)i;
        if (family->has_bos)
            facts->bos_id = (int32_t)i;
        return;
    }
}

int bpe_files_read(const struct tokenizer_folder *folder, struct text_facts *facts,
                   struct error *err)
{
    const struct family *family = NULL;
    bool prefix;
    facts->model = "gpt2";
    facts->tokens_key = "vocab.json";
    facts->merges_key = "merges.txt";
    facts->order = TEXT_MERGES_LISTED;
    int rc = find_family(folder, facts, &family, &prefix, err);
    if (rc)
        return rc;
    facts->pre = family->pre;
    if (family->nfc)
        rc = text_facts_add_normal(facts, (struct normal_step){.kind = NORMAL_NFC}, err);
    if (!rc)
        rc = pretokenizer_table_find(family->pre, facts, err);
    facts->add_bos = false; /* tokenizer_config.json may say otherwise */
    facts->n_before_literals = facts->n_normal;
    if (!rc && prefix)
        rc = text_facts_add_normal(facts, (struct normal_step){NORMAL_PREFIX_ALWAYS, "", " ", 0, 1},
                                   err);
    if (!rc)
        rc = read_merges(&folder->merges, facts, err);
    if (!rc)
        rc = read_vocabulary(folder, facts, err);
    if (!rc)
        mark_end(family, facts);
    return rc;
}
