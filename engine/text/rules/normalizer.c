#include "engine/text/rules/normalizer.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/text/find.h"
#include "base/utf8.h"
#include "engine/text/rules/new_characters.h"
#include "engine/text/rules/pattern.h"

struct step {
    struct normal_step facts; /* texts are in the arena */
    struct pattern *pattern;  /* owned */
};

struct normalizer {
    struct arena arena;
    struct step steps[TEXT_MAX_STEPS];
    uint32_t n_steps;
};

static int copy_step(struct normalizer *n, const struct normal_step *facts, struct error *err)
{
    struct step *step = &n->steps[n->n_steps++];
    *step = (struct step){.facts = *facts};
    step->facts.from = arena_strndup(&n->arena, facts->from ? facts->from : "", facts->n_from);
    step->facts.to = arena_strndup(&n->arena, facts->to ? facts->to : "", facts->n_to);
    if (!step->facts.from || !step->facts.to)
        return text_facts_no_memory(err);
    if (facts->kind == NORMAL_REPLACE_MATCH)
        return pattern_create(facts->from, facts->n_from, PATTERN_ONIGURUMA, &step->pattern, err);
    return 0;
}

int normalizer_create(const struct text_facts *facts, struct normalizer **out_normalizer,
                      struct error *err)
{
    *out_normalizer = NULL;
    if (!facts->n_normal)
        return 0;
    struct normalizer *n = calloc(1, sizeof(*n));
    if (!n)
        return text_facts_no_memory(err);
    arena_init(&n->arena, 0, 0);
    int rc = 0;
    for (uint32_t i = 0; i < facts->n_normal && !rc; i++)
        rc = copy_step(n, &facts->normal[i], err);
    if (rc)
        normalizer_destroy(n);
    else
        *out_normalizer = n;
    return rc;
}

void normalizer_destroy(struct normalizer *normalizer)
{
    if (!normalizer)
        return;
    for (uint32_t i = 0; i < normalizer->n_steps; i++)
        pattern_destroy(normalizer->steps[i].pattern);
    arena_fini(&normalizer->arena);
    free(normalizer);
}

/* --- Unicode normal forms --- */

/* Ranges of characters that no normal form changes and that combine with no character before
 * them. */
static bool is_inert(uint32_t point)
{
    static const uint32_t ranges[][2] = {
        {0, 0x9F},        {0x5D0, 0x5EA},   {0x2010, 0x2010}, {0x2012, 0x2016},   {0x2018, 0x2023},
        {0x2190, 0x2199}, {0x3001, 0x3029}, {0x4E00, 0x9FFF}, {0x1F300, 0x1FAFF},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (point <= ranges[i][1])
            return point >= ranges[i][0];
    return false;
}

/* The composed forms leave more characters as they are. */
static bool is_inert_composed(uint32_t point, bool compatible)
{
    if (is_inert(point))
        return true;
    if (point >= 0xC0 && point < 0x300) /* Latin letters, without digraphs and modifiers */
        return !compatible || (point < 0x132) || (point >= 0x180 && point < 0x1C4) ||
               (point >= 0x1CD && point < 0x1F1) || (point >= 0x1F4 && point < 0x2B0);
    if (point >= 0xA0 && point < 0xC0)
        return !compatible;
    return (point >= 0x400 && point < 0x483) || (point >= 0x621 && point <= 0x64A) ||
           (point >= 0x3041 && point <= 0x3096) || (point >= 0x30A1 && point <= 0x30FA) ||
           (point >= 0xAC00 && point <= 0xD7A3);
}

static int normalize_run(const char *text, size_t n_bytes, utf8proc_option_t options,
                         struct strbuf *out, struct error *err)
{
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n_bytes,
                                      &made, options | UTF8PROC_STABLE);
    if (n == UTF8PROC_ERROR_NOMEM)
        return text_facts_no_memory(err);
    if (n < 0) /* valid UTF-8 has no other failure: the text stays */
        strbuf_add(out, text, n_bytes);
    else
        strbuf_add(out, made, (size_t)n);
    free(made);
    return 0;
}

/* Normalizes the parts of the text that may change. A part begins with the last inert
 * character before it, since a mark may combine with this character. */
static int normal_form(enum normal_kind kind, const char *text, size_t n_bytes, struct strbuf *out,
                       struct error *err)
{
    bool composed = kind == NORMAL_NFC || kind == NORMAL_NFKC;
    bool compatible = kind == NORMAL_NFKC || kind == NORMAL_NFKD;
    utf8proc_option_t options = composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (compatible)
        options |= UTF8PROC_COMPAT;
    size_t begin = 0, last_inert = 0; /* text that is not written; the last inert character */
    bool in_run = false;
    int rc = 0;
    for (size_t i = 0; i < n_bytes && !rc;) {
        uint32_t point;
        size_t n = utf8_decode(text + i, n_bytes - i, &point);
        bool inert = composed ? is_inert_composed(point, compatible) : is_inert(point);
        if (!inert && !in_run) {
            strbuf_add(out, text + begin, last_inert - begin);
            begin = last_inert;
            in_run = true;
        } else if (inert && in_run) {
            rc = normalize_run(text + begin, i - begin, options, out, err);
            begin = i;
            in_run = false;
        }
        if (inert)
            last_inert = i;
        i += n;
    }
    if (!rc && in_run)
        rc = normalize_run(text + begin, n_bytes - begin, options, out, err);
    else
        strbuf_add(out, text + begin, n_bytes - begin);
    return rc;
}

/* --- other steps --- */

static void replace(const struct normal_step *s, const char *text, size_t n_bytes,
                    struct strbuf *out)
{
    size_t begin = 0;
    while (s->n_from && begin < n_bytes) {
        const char *found = find_literal(text + begin, n_bytes - begin, s->from, s->n_from);
        if (!found)
            break;
        size_t at = (size_t)(found - text);
        strbuf_add(out, text + begin, at - begin);
        strbuf_add(out, s->to, s->n_to);
        begin = at + s->n_from;
    }
    strbuf_add(out, text + begin, n_bytes - begin);
}

static int replace_matches(const struct step *step, struct pattern_scratch *scratch,
                           const char *text, size_t n_bytes, struct strbuf *out, struct error *err)
{
    size_t begin = 0, at = 0, from, to;
    int rc = 0;
    struct strbuf stand_in = {0};
    const char *seen = text; /* the text that the pattern sees */
    if (new_characters_in(text, n_bytes)) {
        if (!strbuf_add(&stand_in, text, n_bytes))
            return text_facts_no_memory(err);
        new_characters_replace(text, n_bytes, stand_in.data);
        seen = stand_in.data;
    }
    pattern_scratch_limit(scratch, n_bytes);
    while (at <= n_bytes &&
           (rc = pattern_find(step->pattern, scratch, seen, n_bytes, at, &from, &to, err)) > 0) {
        uint32_t point;
        strbuf_add(out, text + begin, from - begin);
        strbuf_add(out, step->facts.to, step->facts.n_to);
        begin = at = to;
        if (from == to)
            at += to < n_bytes ? utf8_decode(text + to, n_bytes - to, &point) : 1;
    }
    strbuf_add(out, text + begin, n_bytes - begin);
    strbuf_fini(&stand_in);
    return rc < 0 ? rc : 0;
}

static bool is_space(const char *text, size_t n_bytes, size_t *out_n)
{
    uint32_t point;
    *out_n = utf8_decode(text, n_bytes, &point);
    return (point >= 9 && point <= 13) || point == ' ' || point == 0x85 || point == 0xA0 ||
           point == 0x1680 || (point >= 0x2000 && point <= 0x200A) || point == 0x2028 ||
           point == 0x2029 || point == 0x202F || point == 0x205F || point == 0x3000;
}

static void strip(bool left, const char *text, size_t n_bytes, struct strbuf *out)
{
    size_t begin = 0, end = 0, n;
    if (left) {
        while (begin < n_bytes && is_space(text + begin, n_bytes - begin, &n))
            begin += n;
        end = n_bytes;
    } else {
        for (size_t i = 0; i < n_bytes; i += n)
            if (!is_space(text + i, n_bytes - i, &n))
                end = i + n;
    }
    strbuf_add(out, text + begin, end - begin);
}

static void prefix(const struct normal_step *s, enum normalizer_place place, const char *text,
                   size_t n_bytes, struct strbuf *out)
{
    bool has = n_bytes >= s->n_to && memcmp(text, s->to, s->n_to) == 0;
    bool wants = place == NORMALIZER_FIRST || s->kind != NORMAL_PREFIX_FIRST;
    bool adds = s->kind == NORMAL_PREPEND || (!has && wants);
    if (adds && n_bytes && place != NORMALIZER_GOES_ON)
        strbuf_add(out, s->to, s->n_to);
    strbuf_add(out, text, n_bytes);
}

static void squeeze(const struct normal_step *s, const char *text, size_t n_bytes,
                    struct strbuf *out)
{
    size_t n_gap = 0, n_begin = out->n_bytes;
    for (size_t i = 0; i < n_bytes;) {
        bool found =
            s->n_from && n_bytes - i >= s->n_from && memcmp(text + i, s->from, s->n_from) == 0;
        if (!found) {
            if (n_gap && out->n_bytes > n_begin)
                strbuf_add(out, s->from, s->n_from);
            strbuf_add_char(out, text[i]);
            n_gap = 0;
        } else {
            n_gap++;
        }
        i += found ? s->n_from : 1;
    }
}

static int apply(const struct step *step, struct pattern_scratch *scratch,
                 enum normalizer_place place, const char *text, size_t n_bytes, struct strbuf *out,
                 struct error *err)
{
    switch (step->facts.kind) {
    case NORMAL_NFC:
    case NORMAL_NFD:
    case NORMAL_NFKC:
    case NORMAL_NFKD:
        return normal_form(step->facts.kind, text, n_bytes, out, err);
    case NORMAL_PREPEND:
    case NORMAL_PREFIX_FIRST:
    case NORMAL_PREFIX_ALWAYS:
        prefix(&step->facts, place, text, n_bytes, out);
        return 0;
    case NORMAL_REPLACE:
        replace(&step->facts, text, n_bytes, out);
        return 0;
    case NORMAL_REPLACE_MATCH:
        return replace_matches(step, scratch, text, n_bytes, out, err);
    case NORMAL_STRIP_LEFT:
    case NORMAL_STRIP_RIGHT:
        strip(step->facts.kind == NORMAL_STRIP_LEFT, text, n_bytes, out);
        return 0;
    case NORMAL_SQUEEZE:
        squeeze(&step->facts, text, n_bytes, out);
        return 0;
    }
    return 0;
}

uint32_t normalizer_n_steps(const struct normalizer *normalizer)
{
    return normalizer ? normalizer->n_steps : 0;
}

int normalizer_apply(const struct normalizer *normalizer, uint32_t first, uint32_t end,
                     struct pattern_scratch *scratch, enum normalizer_place place,
                     struct strbuf *text, struct strbuf *spare, struct error *err)
{
    for (uint32_t i = first; i < end; i++) {
        strbuf_clear(spare);
        int rc = apply(&normalizer->steps[i], scratch, place, strbuf_str(text), text->n_bytes,
                       spare, err);
        if (!rc && strbuf_failed(spare))
            rc = text_facts_no_memory(err);
        if (rc)
            return rc;
        struct strbuf swap = *text;
        *text = *spare;
        *spare = swap;
    }
    return 0;
}
