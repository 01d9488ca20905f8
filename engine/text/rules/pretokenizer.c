#include "engine/text/rules/pretokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/text/find.h"
#include "base/utf8.h"
#include "engine/text/rules/new_characters.h"
#include "engine/text/rules/pattern.h"

enum step_kind { STEP_PATTERN, STEP_LITERAL, STEP_GROUPS, STEP_GROUPS_BEFORE_NO_WORD };

struct step {
    enum step_kind kind;
    struct pattern *pattern; /* owned; digits and what follows them for groups */
    char *literal;           /* owned */
    size_t n_literal;
    enum split_behavior behavior;
    bool invert;
};

struct pretokenizer {
    struct step steps[TEXT_MAX_STEPS];
    size_t n_steps;
    bool has_patterns;
};

static int add_step(struct pretokenizer *pre, const struct split_step *facts, struct error *err)
{
    struct step *step = &pre->steps[pre->n_steps++];
    *step = (struct step){.behavior = facts->behavior, .invert = facts->invert};
    if (facts->dialect == PATTERN_PCRE2 && strncmp(facts->pattern, "(groups", 7) == 0) {
        bool any = strcmp(facts->pattern, TEXT_GROUPS) == 0;
        step->kind = any ? STEP_GROUPS : STEP_GROUPS_BEFORE_NO_WORD;
        pre->has_patterns = true;
        const char *run =
            any ? "\\p{Nd}++"
                : "\\p{Nd}++(?![\\p{Alphabetic}\\p{M}\\p{Pc}\\xB2\\xB3\\xB9\\xBC-\\xBE])";
        return pattern_create(run, strlen(run), PATTERN_PCRE2, &step->pattern, err);
    }
    if (!facts->literal) {
        pre->has_patterns = true;
        return pattern_create(facts->pattern, facts->n_bytes, facts->dialect, &step->pattern, err);
    }
    step->kind = STEP_LITERAL;
    step->literal = malloc((size_t)facts->n_bytes + 1);
    if (!step->literal)
        return text_facts_no_memory(err);
    memcpy(step->literal, facts->pattern, facts->n_bytes);
    step->n_literal = facts->n_bytes;
    return 0;
}

int pretokenizer_create(const struct text_facts *facts, struct pretokenizer **out_pre,
                        struct error *err)
{
    struct pretokenizer *pre = calloc(1, sizeof(*pre));
    if (!pre)
        return text_facts_no_memory(err);
    int rc = 0;
    for (uint32_t i = 0; i < facts->n_splits && !rc; i++)
        rc = add_step(pre, &facts->splits[i], err);
    if (rc)
        pretokenizer_destroy(pre);
    else
        *out_pre = pre;
    return rc;
}

void pretokenizer_destroy(struct pretokenizer *pre)
{
    if (!pre)
        return;
    for (size_t i = 0; i < pre->n_steps; i++) {
        pattern_destroy(pre->steps[i].pattern);
        free(pre->steps[i].literal);
    }
    free(pre);
}

struct split {
    const struct pretokenizer *pre;
    struct pattern_scratch *scratch;
    const char *text;   /* the text that patterns see */
    const char *pieces; /* the text that pieces are taken from, of the same length */
    pretokenizer_piece_fn *on_piece;
    void *user;
    struct error *err;
};

static int split_stage(const struct split *s, size_t stage, size_t begin, size_t end);

static int pass_on(const struct split *s, size_t stage, size_t begin, size_t end)
{
    if (begin == end)
        return 0;
    if (stage == s->pre->n_steps)
        return s->on_piece(s->user, s->pieces + begin, end - begin, s->err);
    return split_stage(s, stage, begin, end);
}

/* Finds the next match in text[begin, end) from `at`. Returns 1, 0 without one, or a failure. */
static int find(const struct split *s, const struct step *step, size_t begin, size_t end, size_t at,
                size_t *out_from, size_t *out_to)
{
    const char *text = s->text + begin;
    if (at > end)
        return 0;
    if (step->pattern) {
        size_t from, to;
        int rc = pattern_find(step->pattern, s->scratch, text, end - begin, at - begin, &from, &to,
                              s->err);
        if (rc > 0) {
            *out_from = begin + from;
            *out_to = begin + to;
        }
        return rc;
    }
    const char *found = step->n_literal
                            ? find_literal(s->text + at, end - at, step->literal, step->n_literal)
                            : NULL;
    if (!found)
        return 0;
    *out_from = (size_t)(found - s->text);
    *out_to = *out_from + step->n_literal;
    return 1;
}

/* The part of a text that waits for its neighbour. */
struct pending {
    size_t begin, end;
    bool is_match; /* the last part that went in was a match */
};

/* Takes the next part, a match or the text between matches, and passes on what is complete. */
static int add_part(const struct split *s, size_t stage, struct pending *p, size_t begin,
                    size_t end, bool is_match)
{
    const struct step *step = &s->pre->steps[stage];
    if (begin == end)
        return 0;
    is_match ^= step->invert;
    bool joins = false;
    if (p->begin < p->end)
        joins = step->behavior == SPLIT_WITH_PREVIOUS ? is_match && !p->is_match
                : step->behavior == SPLIT_WITH_NEXT   ? !is_match && p->is_match
                : step->behavior == SPLIT_CONTIGUOUS  ? is_match == p->is_match
                                                      : false;
    int rc = joins ? 0 : pass_on(s, stage + 1, p->begin, p->end);
    if (!joins)
        p->begin = begin;
    p->end = end;
    p->is_match = is_match;
    if (step->behavior == SPLIT_REMOVED && is_match)
        p->begin = end;
    return rc;
}

/* Passes on the decimal digits of text[begin, end) in groups of three, counted from the right. */
static int pass_groups(const struct split *s, size_t stage, size_t begin, size_t end)
{
    size_t n_digits = 0;
    for (size_t i = begin; i < end; i++)
        n_digits += ((unsigned char)s->text[i] & 0xC0) != 0x80;
    size_t n_first = (n_digits - 1) % 3 + 1, n = 0;
    int rc = 0;
    for (size_t i = begin + 1; i < end && !rc; i++) {
        if (((unsigned char)s->text[i] & 0xC0) == 0x80 || ++n < n_first)
            continue;
        rc = pass_on(s, stage, begin, i);
        begin = i;
        n_first = 3;
        n = 0;
    }
    return rc ? rc : pass_on(s, stage, begin, end);
}

static int split_stage(const struct split *s, size_t stage, size_t begin, size_t end)
{
    const struct step *step = &s->pre->steps[stage];
    struct pending p = {begin, begin, false};
    size_t done = begin, at = begin, from = 0, to = 0;
    int rc;
    while ((rc = find(s, step, begin, end, at, &from, &to)) > 0) {
        if (step->behavior == SPLIT_ISOLATED) { /* whatever counts as the match */
            rc = pass_on(s, stage + 1, done, from);
            if (!rc && step->kind >= STEP_GROUPS)
                rc = pass_groups(s, stage + 1, from, to);
            else if (!rc)
                rc = pass_on(s, stage + 1, from, to);
        } else {
            rc = add_part(s, stage, &p, done, from, false);
            if (!rc)
                rc = add_part(s, stage, &p, from, to, true);
        }
        if (rc)
            return rc;
        done = to;
        at = to;
        if (from == to) { /* an empty match splits, too */
            uint32_t point;
            at += to < end ? utf8_decode(s->text + to, end - to, &point) : 1;
        }
    }
    if (rc)
        return rc;
    if (step->behavior == SPLIT_ISOLATED)
        return pass_on(s, stage + 1, done, end);
    rc = add_part(s, stage, &p, done, end, false);
    return rc ? rc : pass_on(s, stage + 1, p.begin, p.end);
}

int pretokenizer_split(const struct pretokenizer *pre, struct pattern_scratch *scratch,
                       struct strbuf *stand_in, const char *text, size_t n_bytes,
                       pretokenizer_piece_fn *on_piece, void *user, struct error *err)
{
    struct split s = {pre, scratch, text, text, on_piece, user, err};
    if (pre->has_patterns) {
        pattern_scratch_limit(scratch, n_bytes);
        if (new_characters_in(text, n_bytes)) {
            strbuf_clear(stand_in);
            if (!strbuf_add(stand_in, text, n_bytes))
                return text_facts_no_memory(err);
            new_characters_replace(text, n_bytes, stand_in->data);
            s.text = stand_in->data;
        }
    }
    return pass_on(&s, 0, 0, n_bytes);
}
