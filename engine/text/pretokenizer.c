#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/pretokenizer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pcre2.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/format/escape.h"

enum { MAX_STAGES = 8, JIT_STACK_START = 32 * 1024, JIT_STACK_LIMIT = 4 * 1024 * 1024 };

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

struct rules {
    const char *names; /* each name is followed by one space */
    bool ignore_merges, add_bos;
    const char *stages[MAX_STAGES];
};

/* Each row is a set of rules; its names are values of tokenizer.ggml.pre in GGUF files. */
static const struct rules table[] = {
    {.names = "gpt-2 gpt2 phi-2 mpt olmo jais trillion granite-docling exaone4 jina-es jina-de "
              "jina-v1-en jina-v2-es jina-v2-de jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
              "modern-bert ",
     .stages = {GPT2_WORDS}},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b ",
     .stages = {"\\p{N}", GPT2_WORDS}},
    {.names = "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     .ignore_merges = true,
     .add_bos = true,
     .stages = {CL100K_WORDS("\\p{N}{1,3}")}},
    {.names = "dbrx smaug-bpe chatglm-bpe glm4 ", .stages = {CL100K_WORDS("\\p{N}{1,3}")}},
    {.names = "qwen2 stablelm2 deepseek-r1-qwen hunyuan megrez ",
     .stages = {CL100K_WORDS("\\p{N}")}},
    {.names = "gpt-4o llama4 ", .stages = {O200K_WORDS(ANY_CONTRACTIONS "?", "\\p{N}{1,3}")}},
    {.names = "tekken ",
     .ignore_merges = true,
     .add_bos = true,
     .stages = {O200K_WORDS("", "\\p{N}")}},
    {.names = "deepseek-llm ",
     .stages = {"[\\r\\n]", WS "?" DEEPSEEK_LETTERS,
                WS "?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-"
                   "\\x{3002}]+",
                WS "+$", CJK_AND_HANGUL, "\\p{N}+"}},
    {.names = "deepseek-coder ",
     .stages = {"[\\r\\n]", WS "?\\p{L}+", WS "?\\p{P}+", CJK_AND_HANGUL, "\\p{N}"}},
    {.names = "deepseek-v3 hunyuan-dense ",
     .stages = {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
                "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" WS
                "*[\\r\\n]+|" TRAILING_SPACE}},
    {.names = "falcon ", .stages = {"[\\p{P}$+<=>^~|`]+", GPT2_WORDS, "[0-9][0-9][0-9]"}},
    {.names = "default ",
     .stages = {"[\\p{P}$+<=>^~|]+", GPT2_WORDS, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = "bloom poro-chat gpt3-finnish ",
     .stages = {" ?[^(" WS "|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"}},
    {.names = "viking ",
     .stages = {" ?[^(" WS "|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+",
                "\\p{N}"}},
};

struct pretokenizer {
    const struct rules *rules;
    pcre2_code *codes[MAX_STAGES];
    size_t n_stages;
};

struct pretokenizer_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
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

static int compile(struct pretokenizer *pre, const char *pattern, struct error *err)
{
    int code;
    PCRE2_SIZE offset;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &code, &offset, NULL);
    if (!compiled) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof(text));
        return error_set(err, STATUS_INTERNAL, "pre-tokenizer pattern at %zu: %s", offset,
                         (const char *)text);
    }
    pre->codes[pre->n_stages++] = compiled;
    /* Without a JIT for this CPU the pattern is interpreted: slower, with the same matches. */
    pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    return 0;
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

int pretokenizer_create(const char *name, struct pretokenizer **out_pre, struct error *err)
{
    const struct rules *rules = find_rules(name);
    if (!rules) {
        char text[ESCAPE_MAX_BYTES], known[256];
        error_set(
            err, STATUS_UNIMPLEMENTED,
            "pre-tokenizer \"%s\" is not known, only %s and others of the same rules are; use "
            "a model with one of these",
            escape_text(name, strlen(name), text), list_known(known, sizeof(known)));
        return error_reason(err, REASON_PRE_TOKENIZER_UNKNOWN);
    }
    struct pretokenizer *pre = calloc(1, sizeof(*pre));
    if (!pre)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "pre-tokenizer: out of memory");
    pre->rules = rules;
    for (size_t i = 0; i < MAX_STAGES && rules->stages[i]; i++) {
        int rc = compile(pre, rules->stages[i], err);
        if (rc) {
            pretokenizer_destroy(pre);
            return rc;
        }
    }
    *out_pre = pre;
    return 0;
}

void pretokenizer_destroy(struct pretokenizer *pre)
{
    if (!pre)
        return;
    for (size_t i = 0; i < pre->n_stages; i++)
        pcre2_code_free(pre->codes[i]);
    free(pre);
}

bool pretokenizer_ignores_merges(const struct pretokenizer *pre)
{
    return pre->rules->ignore_merges;
}

bool pretokenizer_adds_bos(const struct pretokenizer *pre)
{
    return pre->rules->add_bos;
}

int pretokenizer_scratch_create(struct pretokenizer_scratch **out_scratch, struct error *err)
{
    struct pretokenizer_scratch *s = calloc(1, sizeof(*s));
    if (s) {
        s->match = pcre2_match_data_create(1, NULL);
        s->context = pcre2_match_context_create(NULL);
        s->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    }
    if (!s || !s->match || !s->context || !s->stack) {
        pretokenizer_scratch_destroy(s);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "pre-tokenizer: out of memory");
    }
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    *out_scratch = s;
    return 0;
}

void pretokenizer_scratch_destroy(struct pretokenizer_scratch *scratch)
{
    if (!scratch)
        return;
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

struct split {
    const struct pretokenizer *pre;
    struct pretokenizer_scratch *scratch;
    pretokenizer_piece_fn *on_piece;
    void *user;
    struct error *err;
};

static int split_stage(const struct split *s, size_t stage, const char *text, size_t n_bytes);

static int pass_on(const struct split *s, size_t stage, const char *text, size_t n_bytes)
{
    if (!n_bytes)
        return 0;
    if (stage == s->pre->n_stages)
        return s->on_piece(s->user, text, n_bytes, s->err);
    return split_stage(s, stage, text, n_bytes);
}

static int split_stage(const struct split *s, size_t stage, const char *text, size_t n_bytes)
{
    size_t begin = 0; /* start of the text that is not passed on yet */
    size_t at = 0;
    while (at < n_bytes) {
        int n = pcre2_match(s->pre->codes[stage], (PCRE2_SPTR)text, n_bytes, at, PCRE2_NO_UTF_CHECK,
                            s->scratch->match, s->scratch->context);
        if (n == PCRE2_ERROR_NOMATCH)
            break;
        if (n < 0)
            return error_set(s->err, STATUS_RESOURCE_EXHAUSTED,
                             "text: pattern %zu of the pre-tokenizer failed (PCRE2 code %d)", stage,
                             n);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(s->scratch->match);
        size_t from = range[0], to = range[1];
        if (to == from) { /* no pattern matches the empty string; in any case, always advance */
            uint32_t point;
            at = from + utf8_decode(text + from, n_bytes - from, &point);
            continue;
        }
        int rc = pass_on(s, stage + 1, text + begin, from - begin);
        if (!rc)
            rc = pass_on(s, stage + 1, text + from, to - from);
        if (rc)
            return rc;
        begin = at = to;
    }
    return pass_on(s, stage + 1, text + begin, n_bytes - begin);
}

int pretokenizer_split(const struct pretokenizer *pre, struct pretokenizer_scratch *scratch,
                       const char *text, size_t n_bytes, pretokenizer_piece_fn *on_piece,
                       void *user, struct error *err)
{
    struct split s = {pre, scratch, on_piece, user, err};
    uint64_t limit = 1000000 + 64 * (uint64_t)n_bytes;
    pcre2_set_match_limit(scratch->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    return pass_on(&s, 0, text, n_bytes);
}
