#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/rules/pattern.h"

#include <stdlib.h>
#include <string.h>

#include <pcre2.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/text/escape.h"
#include "base/utf8.h"

enum { JIT_STACK_START = 32 * 1024, JIT_STACK_LIMIT = 64 * 1024 * 1024 };

struct pattern {
    pcre2_code *code;
};

struct pattern_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static int compile(struct pattern *pattern, const char *text, size_t n_bytes, uint32_t options,
                   struct error *err)
{
    int code;
    PCRE2_SIZE offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return text_facts_no_memory(err);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pattern->code = pcre2_compile((PCRE2_SPTR)text, n_bytes,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY |
                                      PCRE2_NEVER_BACKSLASH_C | options,
                                  &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!pattern->code) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(code, why, sizeof(why));
        error_set(err, STATUS_UNIMPLEMENTED, "the pattern is not supported at %zu: %s", offset,
                  (const char *)why);
        return error_reason(err, REASON_TOKENIZER_UNSUPPORTED);
    }
    /* Without a JIT for this CPU the pattern is interpreted: slower, with the same matches. */
    pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE);
    return 0;
}

int pattern_create(const char *text, size_t n_bytes, enum pattern_dialect dialect,
                   struct pattern **out_pattern, struct error *err)
{
    struct strbuf translated = {0};
    struct pattern *pattern = calloc(1, sizeof(*pattern));
    int rc = pattern ? 0 : text_facts_no_memory(err);
    if (!rc && dialect == PATTERN_PCRE2) {
        rc = compile(pattern, text, n_bytes, 0, err);
    } else if (!rc) {
        rc = pattern_translate(text, n_bytes, dialect, &translated, err);
        if (!rc)
            rc = compile(pattern, strbuf_str(&translated), translated.n_bytes,
                         dialect == PATTERN_ONIGURUMA ? PCRE2_MULTILINE : 0, err);
    }
    strbuf_fini(&translated);
    if (rc)
        pattern_destroy(pattern);
    else
        *out_pattern = pattern;
    return rc;
}

void pattern_destroy(struct pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

int pattern_scratch_create(struct pattern_scratch **out_scratch, struct error *err)
{
    struct pattern_scratch *s = calloc(1, sizeof(*s));
    if (s) {
        s->match = pcre2_match_data_create(1, NULL);
        s->context = pcre2_match_context_create(NULL);
        s->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    }
    if (!s || !s->match || !s->context || !s->stack) {
        pattern_scratch_destroy(s);
        return text_facts_no_memory(err);
    }
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    *out_scratch = s;
    return 0;
}

void pattern_scratch_destroy(struct pattern_scratch *scratch)
{
    if (!scratch)
        return;
    pcre2_match_data_free(scratch->match);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

void pattern_scratch_limit(struct pattern_scratch *scratch, size_t n_bytes)
{
    uint64_t limit = 1000000 + 64 * (uint64_t)n_bytes;
    pcre2_set_match_limit(scratch->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
}

int pattern_find(const struct pattern *pattern, struct pattern_scratch *scratch, const char *text,
                 size_t n_bytes, size_t at, size_t *out_from, size_t *out_to, struct error *err)
{
    int n = pcre2_match(pattern->code, (PCRE2_SPTR)text, n_bytes, at, PCRE2_NO_UTF_CHECK,
                        scratch->match, scratch->context);
    if (n == PCRE2_ERROR_NOMATCH)
        return 0;
    if (n < 0)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED,
                         "text: a pattern of the pre-tokenizer failed (PCRE2 code %d)", n);
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(scratch->match);
    *out_from = range[0];
    *out_to = range[1] > range[0] ? range[1] : range[0];
    return 1;
}
