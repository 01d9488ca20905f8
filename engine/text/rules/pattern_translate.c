#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/text/escape.h"
#include "base/utf8.h"
#include "engine/text/rules/pattern.h"

/* The pattern's text and the place that is read next. */
struct reading {
    const char *text;
    size_t n_bytes, at;
    enum pattern_dialect dialect;
    struct error *err;
};

static int unbuilt(const struct reading *r, size_t from, const char *what)
{
    char escaped[ESCAPE_MAX_BYTES];
    size_t n = r->n_bytes - from < 16 ? r->n_bytes - from : 16;
    error_set(r->err, STATUS_UNIMPLEMENTED,
              "the pattern has %s at byte %zu: \"%s\"; use a model without", what, from,
              escape_text(r->text + from, n, escaped));
    return error_reason(r->err, REASON_TOKENIZER_UNSUPPORTED);
}

static bool is_next(const struct reading *r, const char *word)
{
    size_t n = strlen(word);
    return r->n_bytes - r->at >= n && memcmp(r->text + r->at, word, n) == 0;
}

static bool ends(const struct reading *r)
{
    return r->at >= r->n_bytes;
}

static void copy(struct reading *r, struct strbuf *out, size_t n)
{
    strbuf_add(out, r->text + r->at, n);
    r->at += n;
}

/* --- escapes --- */

/* Escapes that mean the same as a piece of a PCRE2 class. */
static const struct {
    char name;
    const char *positive, *negative; /* within brackets; NULL: not there */
} classes[] = {
    {'s', "\\p{WSpace}", "\\P{WSpace}"},
    {'d', "\\p{Nd}", "\\P{Nd}"},
    {'w', "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}", NULL},
};
enum { WORD_CLASS = 2 };

/* The characters that the dialect adds to the class of words above. */
static const char *more_words(const struct reading *r)
{
    return r->dialect == PATTERN_RUST ? "\\x{200C}\\x{200D}"
                                      : "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
}

static int hex_escape(struct reading *r, struct strbuf *out, size_t from)
{
    char digits[9] = {0};
    size_t n = 0, most = r->text[r->at] == 'u' ? 4 : 2;
    r->at++;
    bool braces = is_next(r, "{");
    if (braces) {
        r->at++;
        most = 8;
    }
    while (n < most && !ends(r) && isxdigit((unsigned char)r->text[r->at]))
        digits[n++] = r->text[r->at++];
    if (!n || (braces && !is_next(r, "}")))
        return unbuilt(r, from, "an unknown escape");
    r->at += braces;
    strbuf_printf(out, "\\x{%s}", digits);
    return 0;
}

/* True for the name of a script. PCRE2 would take a bare name for the script's extensions, too. */
static bool is_script(const char *name)
{
    static const char *const others[] = {"Any",       "Alphabetic", "WSpace", "White_Space",
                                         "Uppercase", "Lowercase",  "Emoji",  "Ideographic"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strcmp(name, others[i]) == 0)
            return false;
    return strlen(name) > 2;
}

static int property(struct reading *r, struct strbuf *out, size_t from)
{
    bool negative = r->text[r->at++] == 'P';
    char name[48] = {0};
    size_t n = 0;
    if (!is_next(r, "{")) {
        if (ends(r) || !isalpha((unsigned char)r->text[r->at]))
            return unbuilt(r, from, "an unknown property");
        name[n++] = r->text[r->at++];
    } else {
        r->at++;
        if (is_next(r, "^")) {
            negative = !negative;
            r->at++;
        }
        while (n + 1 < sizeof(name) && !ends(r) &&
               (isalnum((unsigned char)r->text[r->at]) || strchr("_ -", r->text[r->at])))
            name[n++] = r->text[r->at++];
        if (!n || !is_next(r, "}"))
            return unbuilt(r, from, "an unknown property");
        r->at++;
    }
    strbuf_printf(out, "\\%c{%s%s}", negative ? 'P' : 'p', is_script(name) ? "sc:" : "", name);
    return 0;
}

/* Reads what follows a backslash. `within`: inside brackets. */
static int escape(struct reading *r, struct strbuf *out, bool within)
{
    size_t from = r->at++;
    if (ends(r))
        return unbuilt(r, from, "a backslash at the end");
    char c = r->text[r->at];
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        bool negative = c == toupper((unsigned char)classes[i].name);
        if (c != classes[i].name && !negative)
            continue;
        if (negative && within && !classes[i].negative)
            return unbuilt(r, from, "a negated class within brackets");
        const char *more = i == WORD_CLASS ? more_words(r) : "";
        r->at++;
        if (within)
            strbuf_printf(out, "%s%s", negative ? classes[i].negative : classes[i].positive, more);
        else
            strbuf_printf(out, "[%s%s%s]", negative ? "^" : "", classes[i].positive, more);
        return 0;
    }
    if (c == 'x' || c == 'u')
        return hex_escape(r, out, from);
    if (c == 'p' || c == 'P')
        return property(r, out, from);
    static const char control[] = "n\nr\rt\tf\fv\va\ae\x1B";
    for (size_t i = 0; i + 1 < sizeof(control) - 1; i += 2)
        if (c == control[i]) {
            strbuf_printf(out, "\\x{%02X}", (unsigned)control[i + 1]);
            r->at++;
            return 0;
        }
    if (!within && (c == 'b' || c == 'B')) {
        const char *w = classes[WORD_CLASS].positive, *more = more_words(r);
        strbuf_printf(out,
                      c == 'b' ? "(?:(?<=[%s%s])(?![%s%s])|(?<![%s%s])(?=[%s%s]))"
                               : "(?:(?<=[%s%s])(?=[%s%s])|(?<![%s%s])(?![%s%s]))",
                      w, more, w, more, w, more, w, more);
        r->at++;
        return 0;
    }
    if (!within && (c == 'A' || c == 'z')) {
        strbuf_printf(out, "\\%c", c);
        r->at++;
        return 0;
    }
    if (isalnum((unsigned char)c))
        return unbuilt(r, from, "an unknown escape");
    uint32_t point;
    size_t n = utf8_decode(r->text + r->at, r->n_bytes - r->at, &point);
    if (point < 128)
        strbuf_add_char(out, '\\');
    copy(r, out, n);
    return 0;
}

/* --- brackets --- */

static int brackets(struct reading *r, struct strbuf *out, int depth);

/* Reads the items of one operand, up to "&&" or the bracket's end, without brackets around. A
 * nested class is united with the others. *out_nested: the operand is one nested negated class. */
static int operand(struct reading *r, struct strbuf *out, int depth, bool *out_nested)
{
    size_t first = r->at;
    *out_nested = false;
    while (!ends(r) && !is_next(r, "&&") && (r->text[r->at] != ']' || r->at == first)) {
        int rc = 0;
        uint32_t point;
        if (is_next(r, "[:"))
            return unbuilt(r, r->at, "a POSIX class");
        if (is_next(r, "[^")) {
            bool alone = r->at == first;
            size_t from = r->at;
            rc = brackets(r, out, depth + 1);
            if (!rc && !(alone && (is_next(r, "]") || is_next(r, "&&"))))
                return unbuilt(r, from, "a negated class beside others");
            *out_nested = true;
            if (rc || *out_nested)
                return rc;
        } else if (is_next(r, "[")) {
            struct strbuf inner = {0};
            rc = brackets(r, &inner, depth + 1);
            if (!rc && (inner.n_bytes < 2 || inner.data[0] != '['))
                rc = unbuilt(r, first, "an intersection within a class");
            if (!rc)
                strbuf_add(out, inner.data + 1, inner.n_bytes - 2);
            strbuf_fini(&inner);
        } else if (is_next(r, "\\")) {
            rc = escape(r, out, true);
        } else {
            size_t n = utf8_decode(r->text + r->at, r->n_bytes - r->at, &point);
            if (r->text[r->at] == ']')
                strbuf_add_char(out, '\\');
            copy(r, out, n);
        }
        if (rc)
            return rc;
    }
    return 0;
}

/* Writes all general categories but those in `items`, a list of \\p{Xx} and \\p{X}. Returns false
 * if the list has other items. */
static bool add_other_categories(const char *items, struct strbuf *out)
{
    static const char all[][3] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                  "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                  "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};
    enum { N_ALL = sizeof(all) / sizeof(all[0]) };
    bool named[N_ALL] = {false};
    while (*items) {
        size_t n = strncmp(items, "\\p{", 3) == 0 ? strcspn(items + 3, "}") : 0;
        if (n < 1 || n > 2)
            return false;
        for (size_t i = 0; i < N_ALL; i++)
            named[i] |= strncmp(all[i], items + 3, n) == 0;
        items += 3 + n + 1;
    }
    for (size_t i = 0; i < N_ALL; i++)
        if (!named[i])
            strbuf_printf(out, "\\p{%s}", all[i]);
    return true;
}

/* Writes "first && other", where `other` is a negated class: as one class if possible. A loop over
 * one class takes no stack. */
static void intersect(const char *first, const char *other, struct strbuf *out)
{
    struct strbuf categories = {0};
    if (strncmp(other, "[^", 2) == 0 && add_other_categories(first, &categories))
        strbuf_printf(out, "[^%s%s", strbuf_str(&categories), other + 2);
    else
        strbuf_printf(out, "(?:(?=%s)[%s])", other, first);
    strbuf_fini(&categories);
}

/* Reads a bracket expression. An intersection A && B becomes (?:(?=B)A). */
static int brackets(struct reading *r, struct strbuf *out, int depth)
{
    struct strbuf first = {0}, others = {0}, single = {0};
    size_t from = r->at++;
    int rc = 0;
    if (depth > PATTERN_MAX_DEPTH)
        return unbuilt(r, from, "deeper brackets than are supported");
    bool negative = is_next(r, "^"), nested = false;
    r->at += negative;
    rc = operand(r, &first, depth, &nested);
    if (!rc && nested && negative)
        rc = unbuilt(r, from, "a negated class of a negated class");
    while (!rc && is_next(r, "&&")) {
        struct strbuf next = {0};
        bool next_nested;
        r->at += 2;
        rc = operand(r, &next, depth, &next_nested);
        if (next_nested && !others.n_bytes)
            strbuf_add(&single, strbuf_str(&next), next.n_bytes);
        else
            strbuf_clear(&single);
        strbuf_printf(&others, next_nested ? "(?=%s)" : "(?=[%s])", strbuf_str(&next));
        strbuf_fini(&next);
    }
    if (!rc && negative && others.n_bytes)
        rc = unbuilt(r, from, "a negated intersection");
    if (!rc && !is_next(r, "]"))
        rc = unbuilt(r, from, "a bracket without an end");
    if (!rc && single.n_bytes && !nested) {
        r->at++;
        intersect(strbuf_str(&first), strbuf_str(&single), out);
    } else if (!rc) {
        r->at++;
        if (others.n_bytes)
            strbuf_printf(out, "(?:%s", strbuf_str(&others));
        if (nested)
            strbuf_add(out, strbuf_str(&first), first.n_bytes);
        else
            strbuf_printf(out, "[%s%s]", negative ? "^" : "", strbuf_str(&first));
        if (others.n_bytes)
            strbuf_add_char(out, ')');
    }
    strbuf_fini(&first);
    strbuf_fini(&others);
    strbuf_fini(&single);
    return rc;
}

/* --- groups and quantifiers --- */

static int alternatives(struct reading *r, struct strbuf *out, int depth);

static int group(struct reading *r, struct strbuf *out, int depth)
{
    static const char *const openings[] = {
        "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
    size_t from = r->at;
    if (depth > PATTERN_MAX_DEPTH)
        return unbuilt(r, from, "deeper groups than are supported");
    if (is_next(r, "(?i)")) {
        copy(r, out, 4);
        return 0;
    }
    size_t n = 0;
    for (size_t i = 0; i < sizeof(openings) / sizeof(openings[0]); i++)
        if (is_next(r, openings[i]))
            n = strlen(openings[i]);
    if (!n && (is_next(r, "(?") || is_next(r, "(*")))
        return unbuilt(r, from, "a group of an unknown kind");
    if (n) {
        copy(r, out, n);
    } else { /* no reference to a group is supported, so that its text is not needed */
        r->at++;
        strbuf_add_str(out, "(?:");
    }
    int rc = alternatives(r, out, depth + 1);
    if (!rc && !is_next(r, ")"))
        return unbuilt(r, from, "a group without an end");
    if (!rc)
        copy(r, out, 1);
    return rc;
}

/* Length of a "{n}", "{n,}" or "{n,m}" at the place; 0 for a plain brace. */
static size_t repeat_length(const struct reading *r)
{
    size_t i = r->at + 1, n_digits = 0;
    while (i < r->n_bytes && (isdigit((unsigned char)r->text[i]) || r->text[i] == ',')) {
        n_digits += r->text[i] != ',';
        i++;
    }
    bool ok = n_digits && i < r->n_bytes && r->text[i] == '}' && r->text[r->at + 1] != ',';
    return ok ? i + 1 - r->at : 0;
}

/* Reads the quantifier after an atom that begins at out[atom]. */
static int quantifier(struct reading *r, struct strbuf *out, size_t atom)
{
    if (ends(r))
        return 0;
    char c = r->text[r->at];
    if (c == '*' || c == '+' || c == '?') {
        copy(r, out, 1);
        if (!ends(r) && (r->text[r->at] == '+' || r->text[r->at] == '?'))
            copy(r, out, 1); /* a possessive or a lazy quantifier */
        return 0;
    }
    size_t n = c == '{' ? repeat_length(r) : 0;
    if (!n)
        return 0;
    copy(r, out, n);
    if (is_next(r, "?")) {
        copy(r, out, 1);
    } else if (is_next(r, "+")) {
        if (r->dialect == PATTERN_RUST) {
            copy(r, out, 1);
            return 0;
        }
        /* In Oniguruma the plus repeats the repetition; in PCRE2 it would be possessive. */
        struct strbuf repeated = {0};
        r->at++;
        strbuf_printf(&repeated, "(?:%s)+", strbuf_str(out) + atom);
        out->n_bytes = atom;
        strbuf_add(out, strbuf_str(&repeated), repeated.n_bytes);
        strbuf_fini(&repeated);
    }
    return 0;
}

static int atom(struct reading *r, struct strbuf *out, int depth)
{
    uint32_t point;
    char c = r->text[r->at];
    if (c == '\\')
        return escape(r, out, false);
    if (c == '[')
        return brackets(r, out, 0);
    if (c == '(')
        return group(r, out, depth);
    size_t n = utf8_decode(r->text + r->at, r->n_bytes - r->at, &point);
    if (c == '{' || c == '}' || c == ']' || c == '#')
        strbuf_add_char(out, '\\');
    copy(r, out, n);
    return 0;
}

static int alternatives(struct reading *r, struct strbuf *out, int depth)
{
    int rc = 0;
    while (!rc && !ends(r) && r->text[r->at] != ')') {
        char c = r->text[r->at];
        if (c == '|') {
            copy(r, out, 1);
            continue;
        }
        if (c == '*' || c == '+' || c == '?')
            return unbuilt(r, r->at, "a quantifier without an atom");
        size_t begin = out->n_bytes;
        rc = atom(r, out, depth);
        if (!rc)
            rc = quantifier(r, out, begin);
    }
    return rc;
}

int pattern_translate(const char *text, size_t n_bytes, enum pattern_dialect dialect,
                      struct strbuf *out, struct error *err)
{
    struct reading r = {text, n_bytes, 0, dialect, err};
    size_t bad;
    if (n_bytes > PATTERN_MAX_BYTES)
        return unbuilt(&r, 0, "more bytes than are supported");
    if (!utf8_valid(text, n_bytes, &bad) || memchr(text, 0, n_bytes))
        return unbuilt(&r, 0, "bytes that are not supported");
    int rc = alternatives(&r, out, 0);
    if (!rc && !ends(&r))
        rc = unbuilt(&r, r.at, "a parenthesis too many");
    if (!rc && strbuf_failed(out))
        rc = text_facts_no_memory(err);
    return rc;
}
