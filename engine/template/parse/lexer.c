#include "engine/template/parse/lexer.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/template/parse/ast.h"
#include "engine/template/parse/compiler.h"
#include "engine/template/value/string_escape.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"

enum { MAX_OPEN_BRACKETS = 256 };

struct lexer {
    struct compiler *c;
    const char *text; /* newlines normalised */
    size_t n_bytes, pos;
    uint32_t line;
    bool line_starting; /* only the whitespace of the line's start lies before pos */
    struct token *tokens;
    size_t n_tokens, capacity;
    char brackets[MAX_OPEN_BRACKETS]; /* stack of expected closing brackets */
    size_t n_brackets;
};

static struct token *push_token(struct lexer *lx, enum token_type type)
{
    if (lx->n_tokens == lx->capacity) {
        size_t capacity = lx->capacity ? lx->capacity * 2 : 256;
        struct token *grown = compiler_alloc(lx->c, capacity, sizeof(*grown), lx->line);
        if (!grown)
            return NULL;
        if (lx->n_tokens)
            memcpy(grown, lx->tokens, lx->n_tokens * sizeof(*grown));
        lx->tokens = grown;
        lx->capacity = capacity;
    }
    struct token *token = &lx->tokens[lx->n_tokens++];
    *token = (struct token){.type = (uint8_t)type, .line = lx->line};
    return token;
}

/* Advances pos and counts lines. */
static void advance_to(struct lexer *lx, size_t pos)
{
    for (; lx->pos < pos; lx->pos++)
        if (lx->text[lx->pos] == '\n')
            lx->line++;
}

static size_t skip_space(const struct lexer *lx, size_t pos)
{
    uint32_t cp;
    size_t n;
    while (pos < lx->n_bytes && (n = utf8_decode(lx->text + pos, lx->n_bytes - pos, &cp)) &&
           unicode_is_space(cp))
        pos += n;
    return pos;
}

static bool text_is_at(const struct lexer *lx, size_t pos, const char *what)
{
    size_t n = strlen(what);
    return pos <= lx->n_bytes && lx->n_bytes - pos >= n && !memcmp(lx->text + pos, what, n);
}

static bool is_sign(const struct lexer *lx, size_t pos)
{
    return pos < lx->n_bytes && (lx->text[pos] == '-' || lx->text[pos] == '+');
}

/* End of text[begin, end) without trailing whitespace. */
static size_t strip_right(const struct lexer *lx, size_t begin, size_t end)
{
    while (end > begin) {
        size_t start = end - 1;
        while (start > begin && ((unsigned char)lx->text[start] & 0xC0) == 0x80)
            start--;
        uint32_t cp;
        if (!utf8_decode(lx->text + start, end - start, &cp) || !unicode_is_space(cp))
            break;
        end = start;
    }
    return end;
}

/* Emits the data before a tag, without what the tag's sign or lstrip_blocks removes. */
static bool push_data(struct lexer *lx, size_t begin, size_t end, char sign, bool lstrip)
{
    size_t stop = end;
    if (sign == '-') {
        stop = strip_right(lx, begin, end);
    } else if (sign != '+' && lstrip) {
        size_t line_begin = end;
        while (line_begin > begin && lx->text[line_begin - 1] != '\n')
            line_begin--;
        if ((line_begin > begin || lx->line_starting) && line_begin < end &&
            skip_space(lx, line_begin) >= end)
            stop = line_begin;
    }
    if (stop > begin) {
        struct token *token = push_token(lx, TOKEN_DATA);
        const struct text *text = compiler_text(lx->c, lx->text + begin, stop - begin, lx->line);
        if (!token || !text)
            return false;
        token->text = text;
    }
    advance_to(lx, end);
    return true;
}

/* Position after the closing brackets at `pos`. Sign "+" keeps the following whitespace, "-" strips
 * it, none drops one newline. */
static size_t after_close(const struct lexer *lx, size_t pos, char sign)
{
    if (sign == '-')
        return skip_space(lx, pos);
    if (sign != '+' && pos < lx->n_bytes && lx->text[pos] == '\n')
        return pos + 1;
    return pos;
}

static void finish_tag(struct lexer *lx, size_t pos)
{
    advance_to(lx, pos);
    lx->line_starting = pos > 0 && lx->text[pos - 1] == '\n';
}

static bool lex_comment(struct lexer *lx, size_t begin)
{
    uint32_t line = lx->line;
    for (size_t i = begin; i + 1 < lx->n_bytes; i++) {
        if (lx->text[i] != '#' || lx->text[i + 1] != '}')
            continue;
        char sign = i > begin ? lx->text[i - 1] : 0;
        finish_tag(lx, after_close(lx, i + 2, sign));
        return true;
    }
    return compiler_fail(lx->c, STATUS_INVALID_ARGUMENT, line, "comment '{#' has no end '#}'");
}

/* Matches `{% word %}` at pos. Returns the position after "%}", or 0. *out_sign is the closing
 * sign. */
static size_t match_word_tag(const struct lexer *lx, size_t pos, const char *word, char *out_sign)
{
    size_t i = pos + 2;
    if (is_sign(lx, i))
        i++;
    i = skip_space(lx, i);
    if (!text_is_at(lx, i, word))
        return 0;
    i = skip_space(lx, i + strlen(word));
    *out_sign = 0;
    if (is_sign(lx, i) && text_is_at(lx, i + 1, "%}"))
        *out_sign = lx->text[i++];
    return text_is_at(lx, i, "%}") ? i + 2 : 0;
}

static bool lex_raw(struct lexer *lx, size_t begin)
{
    uint32_t line = lx->line;
    for (size_t i = begin; i + 1 < lx->n_bytes; i++) {
        char sign;
        size_t end;
        if (lx->text[i] != '{' || lx->text[i + 1] != '%' ||
            !(end = match_word_tag(lx, i, "endraw", &sign)))
            continue;
        char open_sign = is_sign(lx, i + 2) ? lx->text[i + 2] : 0;
        if (!push_data(lx, begin, i, open_sign, true))
            return false;
        finish_tag(lx, after_close(lx, end, sign));
        return true;
    }
    return compiler_fail(lx->c, STATUS_INVALID_ARGUMENT, line,
                         "'raw' block has no '{%% endraw %%}'");
}

static bool digit_run(const struct lexer *lx, size_t *pos)
{
    size_t i = *pos;
    if (i >= lx->n_bytes || !isdigit((unsigned char)lx->text[i]))
        return false;
    while (i < lx->n_bytes &&
           (isdigit((unsigned char)lx->text[i]) ||
            (lx->text[i] == '_' && i + 1 < lx->n_bytes && isdigit((unsigned char)lx->text[i + 1]))))
        i++;
    *pos = i;
    return true;
}

/* Copies a number without underscores into buf. Returns false if the number is too long. */
static bool number_text(const struct lexer *lx, size_t begin, size_t end, char *buf, size_t size)
{
    size_t n = 0;
    for (size_t i = begin; i < end; i++) {
        if (lx->text[i] == '_')
            continue;
        if (n + 1 >= size)
            return false;
        buf[n++] = lx->text[i];
    }
    buf[n] = '\0';
    return true;
}

static size_t based_digits(const struct lexer *lx, size_t i, int base)
{
    while (i < lx->n_bytes) {
        char ch = (char)tolower((unsigned char)lx->text[i]);
        int digit = isdigit((unsigned char)ch) ? ch - '0'
                    : ch >= 'a' && ch <= 'f'   ? ch - 'a' + 10
                                               : 99;
        if (digit >= base && ch != '_')
            break;
        i++;
    }
    return i;
}

static bool lex_number(struct lexer *lx)
{
    size_t begin = lx->pos, end = begin;
    char buf[64];
    int base = 10;
    bool is_float = false;
    const char *prefixes = "xob";
    const char *prefix = begin + 2 < lx->n_bytes && lx->text[begin] == '0'
                             ? strchr(prefixes, tolower((unsigned char)lx->text[begin + 1]))
                             : NULL;
    if (prefix && *prefix) {
        base = *prefix == 'x' ? 16 : *prefix == 'o' ? 8 : 2;
        begin += 2;
        end = based_digits(lx, begin, base);
    } else {
        digit_run(lx, &end);
        bool after_dot = begin > 0 && lx->text[begin - 1] == '.';
        size_t i = end;
        if (!after_dot && text_is_at(lx, i, ".") && (++i, digit_run(lx, &i))) {
            end = i;
            is_float = true;
        }
        i = end;
        if (!after_dot && i < lx->n_bytes && tolower((unsigned char)lx->text[i]) == 'e') {
            i++;
            if (is_sign(lx, i))
                i++;
            if (digit_run(lx, &i)) {
                end = i;
                is_float = true;
            }
        }
    }
    struct token *token = push_token(lx, is_float ? TOKEN_FLOAT : TOKEN_INTEGER);
    if (!token)
        return false;
    errno = 0;
    char *rest = buf;
    bool fits = number_text(lx, begin, end, buf, sizeof(buf));
    if (fits && is_float)
        token->real = strtod(buf, &rest);
    else if (fits)
        token->integer = strtoll(buf, &rest, base);
    bool leading_zeros =
        !is_float && base == 10 && buf[0] == '0' && strspn(buf, "0") != strlen(buf);
    if (fits && !is_float && base == 10 && errno == ERANGE && !leading_zeros && !*rest) {
        token->text = compiler_text(lx->c, buf, strlen(buf), lx->line);
        advance_to(lx, end);
        return token->text != NULL;
    }
    if (!fits || rest == buf || *rest || (errno == ERANGE && !is_float) || leading_zeros)
        return compiler_fail(lx->c, STATUS_INVALID_ARGUMENT, lx->line,
                             "number '%.*s' is malformed or outside 64 bits",
                             (int)(end - begin > 40 ? 40 : end - begin), lx->text + begin);
    advance_to(lx, end);
    return true;
}

static bool lex_string(struct lexer *lx)
{
    char quote = lx->text[lx->pos];
    size_t begin = lx->pos + 1, end = begin;
    while (end < lx->n_bytes && lx->text[end] != quote)
        end += lx->text[end] == '\\' ? 2 : 1;
    if (end >= lx->n_bytes)
        return compiler_fail(lx->c, STATUS_INVALID_ARGUMENT, lx->line,
                             "string literal has no closing %c", quote);
    char *decoded = compiler_alloc(lx->c, end - begin + 1, 1, lx->line);
    struct token *token = push_token(lx, TOKEN_STRING);
    if (!decoded || !token)
        return false;
    size_t n_bytes = 0;
    const char *problem = string_unescape(lx->text + begin, end - begin, decoded, &n_bytes);
    if (problem)
        return compiler_fail(lx->c, STATUS_INVALID_ARGUMENT, lx->line, "string literal: %s",
                             problem);
    token->text = compiler_text(lx->c, decoded, n_bytes, lx->line);
    advance_to(lx, end + 1);
    return token->text != NULL;
}

static const struct {
    char text[3];
    uint8_t op;
} operators[] = {
    {"//", OP_FLOORDIV}, {"**", OP_POW},   {"==", OP_EQ},      {"!=", OP_NE},      {">=", OP_GE},
    {"<=", OP_LE},       {"+", OP_ADD},    {"-", OP_SUB},      {"/", OP_DIV},      {"*", OP_MUL},
    {"%", OP_MOD},       {"~", OP_TILDE},  {"[", OP_LBRACKET}, {"]", OP_RBRACKET}, {"(", OP_LPAREN},
    {")", OP_RPAREN},    {"{", OP_LBRACE}, {"}", OP_RBRACE},   {">", OP_GT},       {"<", OP_LT},
    {"=", OP_ASSIGN},    {".", OP_DOT},    {":", OP_COLON},    {"|", OP_PIPE},     {",", OP_COMMA},
    {";", OP_SEMICOLON},
};

static bool track_bracket(struct lexer *lx, char ch)
{
    const char *open = "([{", *close = ")]}";
    const char *found = strchr(open, ch);
    if (found) {
        if (lx->n_brackets == MAX_OPEN_BRACKETS)
            return compiler_fail(lx->c, STATUS_RESOURCE_EXHAUSTED, lx->line,
                                 "more than %d open brackets", MAX_OPEN_BRACKETS);
        lx->brackets[lx->n_brackets++] = close[found - open];
    } else if (strchr(close, ch)) {
        if (!lx->n_brackets || lx->brackets[lx->n_brackets - 1] != ch)
            return compiler_fail(lx->c, STATUS_INVALID_ARGUMENT, lx->line, "unexpected '%c'", ch);
        lx->n_brackets--;
    }
    return true;
}

static bool lex_operator(struct lexer *lx)
{
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        if (!text_is_at(lx, lx->pos, operators[i].text))
            continue;
        if (!track_bracket(lx, operators[i].text[0]))
            return false;
        struct token *token = push_token(lx, TOKEN_OPERATOR);
        if (!token)
            return false;
        token->op = operators[i].op;
        lx->pos += strlen(operators[i].text);
        return true;
    }
    return compiler_fail(lx->c, STATUS_INVALID_ARGUMENT, lx->line, "unexpected character '%c'",
                         isprint((unsigned char)lx->text[lx->pos]) ? lx->text[lx->pos] : '?');
}

static bool is_name_byte(char ch)
{
    return isalnum((unsigned char)ch) || ch == '_' || (unsigned char)ch >= 0x80;
}

static bool lex_name(struct lexer *lx)
{
    size_t end = lx->pos;
    while (end < lx->n_bytes && is_name_byte(lx->text[end]))
        end++;
    struct token *token = push_token(lx, TOKEN_NAME);
    if (!token)
        return false;
    token->text = compiler_intern(lx->c, lx->text + lx->pos, end - lx->pos, lx->line);
    lx->pos = end;
    return token->text != NULL;
}

/* Closes the tag if its end is at the current position. */
static bool lex_tag_end(struct lexer *lx, bool variable)
{
    size_t i = lx->pos;
    char sign = 0;
    if (is_sign(lx, i) && text_is_at(lx, i + 1, variable ? "}}" : "%}") &&
        (!variable || lx->text[i] == '-'))
        sign = lx->text[i++];
    if (!text_is_at(lx, i, variable ? "}}" : "%}"))
        return false;
    if (!push_token(lx, variable ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END))
        return false;
    if (variable)
        finish_tag(lx, sign == '-' ? skip_space(lx, i + 2) : i + 2);
    else
        finish_tag(lx, after_close(lx, i + 2, sign));
    return true;
}

static bool lex_tag(struct lexer *lx, bool variable)
{
    uint32_t opened = lx->line;
    lx->n_brackets = 0;
    if (!push_token(lx, variable ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN))
        return false;
    while (lx->pos < lx->n_bytes) {
        if (!lx->n_brackets && lex_tag_end(lx, variable))
            return true;
        if (lx->c->failed)
            return false;
        char ch = lx->text[lx->pos];
        size_t after = skip_space(lx, lx->pos);
        bool ok;
        if (after > lx->pos) {
            advance_to(lx, after);
            ok = true;
        } else if (isdigit((unsigned char)ch)) {
            ok = lex_number(lx);
        } else if (is_name_byte(ch)) {
            ok = lex_name(lx);
        } else if (ch == '\'' || ch == '"') {
            ok = lex_string(lx);
        } else {
            ok = lex_operator(lx);
        }
        if (!ok)
            return false;
    }
    return compiler_fail(lx->c, STATUS_INVALID_ARGUMENT, opened, "tag '%s' has no end '%s'",
                         variable ? "{{" : "{%", variable ? "}}" : "%}");
}

static size_t find_tag(const struct lexer *lx)
{
    for (size_t i = lx->pos; i + 1 < lx->n_bytes; i++)
        if (lx->text[i] == '{' &&
            (lx->text[i + 1] == '%' || lx->text[i + 1] == '{' || lx->text[i + 1] == '#'))
            return i;
    return lx->n_bytes;
}

static bool lex_next(struct lexer *lx)
{
    size_t tag = find_tag(lx);
    if (tag == lx->n_bytes)
        return push_data(lx, lx->pos, tag, '+', false);
    char kind = lx->text[tag + 1], sign = is_sign(lx, tag + 2) ? lx->text[tag + 2] : 0;
    if (!push_data(lx, lx->pos, tag, sign, kind != '{'))
        return false;
    char close_sign;
    size_t raw = kind == '%' ? match_word_tag(lx, tag, "raw", &close_sign) : 0;
    if (raw && close_sign != '+') {
        finish_tag(lx, close_sign == '-' ? skip_space(lx, raw) : raw);
        return lex_raw(lx, lx->pos);
    }
    size_t begin = tag + 2 + (sign ? 1 : 0);
    advance_to(lx, begin);
    lx->line_starting = false;
    return kind == '#' ? lex_comment(lx, begin) : lex_tag(lx, kind == '{');
}

/* Changes "\r\n" and "\r" to "\n", and drops one newline at the end. */
static char *normalise(struct compiler *c, const char *source, size_t n_bytes, size_t *out_bytes)
{
    char *text = compiler_alloc(c, n_bytes + 1, 1, 1);
    size_t n = 0;
    for (size_t i = 0; text && i < n_bytes; i++) {
        bool pair = source[i] == '\r' && i + 1 < n_bytes && source[i + 1] == '\n';
        if (!pair)
            text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && text[n - 1] == '\n')
        n--;
    *out_bytes = n;
    return text;
}

bool lexer_run(struct compiler *c, const char *source, size_t n_bytes,
               const struct token **out_tokens)
{
    struct lexer lx = {.c = c, .line = 1, .line_starting = true};
    lx.text = normalise(c, source, n_bytes, &lx.n_bytes);
    if (!lx.text)
        return false;
    while (lx.pos < lx.n_bytes)
        if (!lex_next(&lx))
            return false;
    if (!push_token(&lx, TOKEN_EOF))
        return false;
    *out_tokens = lx.tokens;
    return true;
}

void lexer_describe(const struct token *token, char *out, size_t n_bytes)
{
    switch ((enum token_type)token->type) {
    case TOKEN_EOF:
        snprintf(out, n_bytes, "end of template");
        return;
    case TOKEN_DATA:
        snprintf(out, n_bytes, "text");
        return;
    case TOKEN_BLOCK_BEGIN:
        snprintf(out, n_bytes, "'{%%'");
        return;
    case TOKEN_BLOCK_END:
        snprintf(out, n_bytes, "'%%}'");
        return;
    case TOKEN_VARIABLE_BEGIN:
        snprintf(out, n_bytes, "'{{'");
        return;
    case TOKEN_VARIABLE_END:
        snprintf(out, n_bytes, "'}}'");
        return;
    case TOKEN_NAME:
        snprintf(out, n_bytes, "'%.40s'", token->text->data);
        return;
    case TOKEN_STRING:
        snprintf(out, n_bytes, "a string");
        return;
    case TOKEN_INTEGER:
    case TOKEN_FLOAT:
        snprintf(out, n_bytes, "a number");
        return;
    case TOKEN_OPERATOR:
        break;
    }
    const char *op = "?";
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++)
        if (operators[i].op == token->op)
            op = operators[i].text;
    snprintf(out, n_bytes, "'%s'", op);
}
