#include "engine/text/rules/pretokenizer_table.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/text/facts/text_facts.h"

/* The patterns of models assume that \s is Unicode's White_Space. PCRE2's \s also matches U+180E,
 * so our patterns name the property: WS in place of \s, NOT_WS in place of \S. */
#define WS     "\\p{WSpace}"
#define NOT_WS "\\P{WSpace}"

#define CONTRACTIONS     "'s|'t|'re|'ve|'m|'ll|'d"
#define ANY_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TRAILING_SPACE   WS "+(?!" NOT_WS ")|" WS "+"

/* GPT-2: contractions, words, numbers and runs of punctuation, each with an optional leading
 * space. */
#define GPT2_WORDS CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" TRAILING_SPACE

/* cl100k, with a rule for numbers. */
#define CL100K_WORDS(number)                                                                       \
    ANY_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" number "| ?[^" WS                           \
                     "\\p{L}\\p{N}]+[\\r\\n]*|" WS "*[\\r\\n]+|" TRAILING_SPACE

/* o200k has two kinds of words: ending in lower case, or all capitals. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_WORDS(suffix, number)                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER  \
    "*" suffix "|" number "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" WS "*[\\r\\n]+|" TRAILING_SPACE

/* Letters of DeepSeek LLM: letters with case, in the Unicode version of its training. */
#define DEEPSEEK_LETTERS                                                                           \
    "[A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-"       \
    "\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}"          \
    "\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}"         \
    "\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-"           \
    "\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}"        \
    "\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-"       \
    "\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-"         \
    "\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-"        \
    "\\x{1FD3}\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}"        \
    "\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}"          \
    "\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-"        \
    "\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-"         \
    "\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"         \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-"       \
    "\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-"              \
    "\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-"         \
    "\\x{118DF}\\x{1E900}-\\x{1E943}]+"
#define CJK_AND_HANGUL "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

/* The same words, where Han characters are words of their own. */
#define OTHERS                                                                                     \
    "\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]" /* neither letters nor marks, and Han             \
                                                  */
#define NO_HAN_UPPER "[^\\p{Ll}" OTHERS
#define NO_HAN_LOWER "[^\\p{Lu}\\p{Lt}" OTHERS
#define KIMI_WORDS                                                                                 \
    "\\p{sc:Han}+|[^\\r\\n\\p{L}\\p{N}]?" NO_HAN_UPPER "*" NO_HAN_LOWER "+" ANY_CONTRACTIONS       \
    "?|[^\\r\\n\\p{L}\\p{N}]?" NO_HAN_UPPER "+" NO_HAN_LOWER "*" ANY_CONTRACTIONS                  \
    "?|\\p{N}{1,3}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" WS "*[\\r\\n]+|" TRAILING_SPACE

/* DeepSeek V3: numbers, Han characters and kana, words. */
#define CJK_RUNS          "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define ASCII_PUNCTUATION "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define DEEPSEEK_WORDS(after)                                                                      \
    ASCII_PUNCTUATION                                                                              \
    "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+" after

#define LINES "[^\\n]+|\\n+"

enum { MAX_STAGES = 6 };

struct rules {
    const char *names; /* each name is followed by one space */
    bool ignore_merges, add_bos, nfc;
    bool marks; /* merges of characters; U+2581 is a space */
    bool whole_newlines;
    const char *stages[MAX_STAGES];
};

/* Each row is a set of rules; its names are values of tokenizer.ggml.pre in GGUF files. */
static const struct rules table[] = {
    {.names = "gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling exaone4 jina-es jina-de "
              "jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
              "modern-bert ",
     .stages = {GPT2_WORDS}},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ",
     .stages = {"\\p{N}", GPT2_WORDS}},
    {.names = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     .ignore_merges = true,
     .add_bos = true,
     .stages = {CL100K_WORDS("\\p{N}{1,3}")}},
    {.names = "dbrx smaug-bpe chatglm-bpe glm4 ", .stages = {CL100K_WORDS("\\p{N}{1,3}")}},
    {.names = "qwen2 ", .nfc = true, .stages = {CL100K_WORDS("\\p{N}")}},
    {.names = "stablelm2 deepseek-r1-qwen hunyuan megrez kormo solar-open grok-2 f2llmv2 ",
     .stages = {CL100K_WORDS("\\p{N}")}},
    {.names = "qwen35 ",
     .nfc = true,
     .stages = {ANY_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS
                                 "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" WS "*[\\r\\n]+|" TRAILING_SPACE}},
    {.names = "gpt-4o llama4 minimax-m2 kanana2 talkie ",
     .stages = {O200K_WORDS(ANY_CONTRACTIONS "?", "\\p{N}{1,3}")}},
    {.names = "tekken ",
     .ignore_merges = true,
     .add_bos = true,
     .stages = {O200K_WORDS("", "\\p{N}")}},
    {.names = "kimi-k2 ", .stages = {KIMI_WORDS}},
    {.names = "bailingmoe bailingmoe2 llada-moe ",
     .stages = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^" WS
                "\\p{L}\\p{N}]++[\\r\\n]*|" WS "*[\\r\\n]|" TRAILING_SPACE}},
    {.names = "seed-coder ",
     .stages = {ANY_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS
                                 "\\p{L}\\p{N}\\r\\n]+|" WS "*[\\r\\n]+|" TRAILING_SPACE}},
    {.names = "exaone-moe ",
     .stages = {ANY_CONTRACTIONS
                "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^" WS
                "\\p{L}\\p{N}]+[\\r\\n/]?|" WS "*[\\r\\n]|" TRAILING_SPACE}},
    {.names = "minicpm5 ",
     .ignore_merges = true,
     .stages = {"\\p{N}{1,3}", CL100K_WORDS("\\p{N}+")}},
    {.names = "laguna ", .stages = {LINES, CL100K_WORDS("\\p{N}")}},
    {.names = "jais-2 ",
     .stages = {ANY_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^" WS
                                 "\\p{L}\\p{N}]+[\\r\\n]*|" WS "*[\\r\\n]+|" WS "{512}(?!" NOT_WS
                                 ")|" WS "{256}(?!" NOT_WS ")|" WS "{128}(?!" NOT_WS ")|" WS
                                 "{64}(?!" NOT_WS ")|" WS "{32}(?!" NOT_WS ")|" WS "{16}(?!" NOT_WS
                                 ")|" WS "{8}(?!" NOT_WS ")|" WS "{4}(?!" NOT_WS ")|" WS
                                 "{1,2}(?!" NOT_WS ")|" WS}},
    {.names = "tiny_aya cohere2moe cohere2_moe ",
     .stages = {TEXT_GROUPS_BEFORE_NO_WORD, O200K_WORDS(ANY_CONTRACTIONS "?", "\\p{N}{1,3}")}},
    {.names = "superbpe ", .stages = {"\\p{N}+", TEXT_GROUPS}},
    {.names = "afmoe ",
     .stages = {TEXT_GROUPS,
                "[\\x{4E00}-\\x{9FFF}\\x{3400}-\\x{4DBF}\\x{F900}-\\x{FAFF}\\x{3040}-\\x{309F}"
                "\\x{30A0}-\\x{30FF}\\x{FF65}-\\x{FF9F}\\x{2F00}-\\x{2FDF}\\x{E40}-\\x{E7F}"
                "\\x{E80}-\\x{EFF}\\x{1780}-\\x{17FF}\\x{1000}-\\x{109F}\\x{AA60}-\\x{AA7F}"
                "\\x{A9E0}-\\x{A9FF}\\x{AC00}-\\x{D7AF}\\x{1100}-\\x{11FF}]+",
                DEEPSEEK_WORDS("[\\r\\n]*|" WS "*[\\r\\n]+|" TRAILING_SPACE)}},
    {.names = "youtu ",
     .ignore_merges = true,
     .stages = {"[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}"
                "\\x{2018}\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}"
                "\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" CJK_RUNS,
                O200K_WORDS(ANY_CONTRACTIONS "?", "\\p{N}")}},
    {.names = "deepseek-llm ",
     .stages = {"[\\r\\n]", WS "?" DEEPSEEK_LETTERS,
                WS "?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-"
                   "\\x{3002}]+",
                WS "+$", CJK_AND_HANGUL, "\\p{N}+"}},
    {.names = "deepseek-coder ",
     .stages = {"[\\r\\n]", WS "?\\p{L}+", WS "?\\p{P}+", CJK_AND_HANGUL, "\\p{N}"}},
    {.names = "deepseek-v3 hunyuan-dense joyai-llm hy_v4 ",
     .stages = {"\\p{N}{1,3}", CJK_RUNS,
                DEEPSEEK_WORDS("[\\r\\n]*|" WS "*[\\r\\n]+|" TRAILING_SPACE)}},
    {.names = "spark2_5 ",
     .stages = {"\\p{N}{1,3}", CJK_RUNS, DEEPSEEK_WORDS("|[\\r\\n]|" TRAILING_SPACE), "\\p{N}"}},
    {.names = "falcon ", .stages = {"[\\p{P}$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"}},
    {.names = "default ",
     .stages = {"[\\p{P}$+<=>^~|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = "bloom poro-chat gpt3-finnish ",
     .stages = {" ?[^(" WS "|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"}},
    {.names = "viking ",
     .stages = {" ?[^(" WS "|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+",
                "\\p{N}"}},
    {.names = "gemma4 ", .marks = true, .whole_newlines = true, .stages = {LINES}},
    {.names = "sarvam-moe ", .marks = true, .stages = {LINES}},
};

static const struct rules *find_rules(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        for (const char *at = table[i].names; *at; at = strchr(at, ' ') + 1)
            if (strncmp(at, name, n) == 0 && at[n] == ' ' && !strchr(name, ' '))
                return &table[i];
    return NULL;
}

/* The first name of each row, for messages. */
static const char *list_known(char *out, size_t n_bytes)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        int n_name = (int)strcspn(table[i].names, " ");
        int more = snprintf(out + n, n_bytes - n, "%s%.*s", n ? ", " : "", n_name, table[i].names);
        if (more < 0 || (size_t)more >= n_bytes - n)
            break;
        n += (size_t)more;
    }
    return out;
}

static int unknown(const char *name, struct error *err)
{
    char text[ESCAPE_MAX_BYTES], known[256];
    error_set(err, STATUS_UNIMPLEMENTED,
              "pre-tokenizer \"%s\" is not known, only %s and others of the same rules are; use "
              "a model with one of these",
              escape_text(name, strlen(name), text), list_known(known, sizeof(known)));
    return error_reason(err, REASON_PRE_TOKENIZER_UNKNOWN);
}

int pretokenizer_table_find(const char *name, struct text_facts *facts, struct error *err)
{
    const struct rules *rules = find_rules(name);
    if (!rules)
        return unknown(name, err);
    int rc = 0;
    facts->whole_first = rules->ignore_merges;
    facts->whole_newlines = rules->whole_newlines;
    facts->add_bos = rules->add_bos;
    if (rules->nfc)
        rc = text_facts_add_normal(facts, (struct normal_step){.kind = NORMAL_NFC}, err);
    if (rules->marks) {
        facts->by_characters = facts->byte_fallback = true;
        facts->spelling = TEXT_SPELLS_MARKS;
        rc = text_facts_add_normal(
            facts, (struct normal_step){NORMAL_REPLACE, " ", TEXT_SPACE_MARK, 1, 3}, err);
    }
    for (size_t i = 0; i < MAX_STAGES && rules->stages[i] && !rc; i++) {
        const char *pattern = rules->stages[i];
        rc = text_facts_add_split(
            facts, (struct split_step){.pattern = pattern, .n_bytes = (uint32_t)strlen(pattern)},
            err);
    }
    return rc;
}

const char *pretokenizer_table_gpt2(void)
{
    return GPT2_WORDS;
}

void pretokenizer_table_simplify(struct split_step *step)
{
    static const struct {
        const char *pattern, *name;
    } known[] = {
        {"\\d{1,3}(?=(?:\\d{3})*\\b)", TEXT_GROUPS_BEFORE_NO_WORD},
        {"\\d{1,3}(?=(\\d{3})*\\b)", TEXT_GROUPS_BEFORE_NO_WORD},
        {"\\d{1,3}(?=(?:\\d{3})*(?!\\d))", TEXT_GROUPS},
        {"(?=(\\d{3})+(?!\\d))", TEXT_GROUPS},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strlen(known[i].pattern) == step->n_bytes &&
            memcmp(known[i].pattern, step->pattern, step->n_bytes) == 0)
            *step = (struct split_step){.pattern = known[i].name,
                                        .n_bytes = (uint32_t)strlen(known[i].name)};
}
