#include "engine/template/value/string_escape.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/utf8.h"

static int hex_digit(char ch)
{
    if (isdigit((unsigned char)ch))
        return ch - '0';
    ch = (char)tolower((unsigned char)ch);
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

/* Reads exactly n_digits hexadecimal digits at s[*pos]. Returns false if there are fewer. */
static bool hex_number(const char *s, size_t n_bytes, size_t *pos, size_t n_digits, uint32_t *out)
{
    if (n_bytes - *pos < n_digits)
        return false;
    uint32_t number = 0;
    for (size_t i = 0; i < n_digits; i++) {
        int digit = hex_digit(s[*pos + i]);
        if (digit < 0)
            return false;
        number = number << 4 | (uint32_t)digit;
    }
    *pos += n_digits;
    *out = number;
    return true;
}

static uint32_t octal_number(const char *s, size_t n_bytes, size_t *pos)
{
    uint32_t number = 0;
    for (int i = 0; i < 3 && *pos < n_bytes && s[*pos] >= '0' && s[*pos] <= '7'; i++)
        number = number * 8 + (uint32_t)(s[(*pos)++] - '0');
    return number;
}

/* Decodes the escape whose letter is at s[*pos]. */
static const char *unescape_one(const char *s, size_t n_bytes, size_t *pos, char *out, size_t *n)
{
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    char letter = s[*pos];
    const char *simple = letter ? strchr(letters, letter) : NULL;
    if (letter == '\n') {
        (*pos)++;
        return NULL;
    }
    if (simple) {
        out[(*n)++] = meanings[simple - letters];
        (*pos)++;
        return NULL;
    }
    uint32_t cp;
    if (letter >= '0' && letter <= '7') {
        cp = octal_number(s, n_bytes, pos);
    } else if (letter == 'x' || letter == 'u' || letter == 'U') {
        (*pos)++;
        size_t n_digits = letter == 'x' ? 2 : letter == 'u' ? 4 : 8;
        if (!hex_number(s, n_bytes, pos, n_digits, &cp))
            return "\\x, \\u and \\U need 2, 4 and 8 hexadecimal digits";
    } else if (letter == 'N') {
        return "\\N{...} is not supported";
    } else {
        out[(*n)++] = '\\'; /* unknown escapes are kept */
        return NULL;
    }
    char encoded[4];
    size_t n_encoded = utf8_encode(cp, encoded);
    if (!n_encoded)
        return "escape is not a Unicode character";
    memcpy(out + *n, encoded, n_encoded);
    *n += n_encoded;
    return NULL;
}

const char *string_unescape(const char *literal, size_t n_bytes, char *out, size_t *out_bytes)
{
    size_t n = 0, pos = 0;
    while (pos < n_bytes) {
        if (literal[pos] != '\\' || pos + 1 >= n_bytes) {
            out[n++] = literal[pos++];
            continue;
        }
        pos++;
        const char *problem = unescape_one(literal, n_bytes, &pos, out, &n);
        if (problem)
            return problem;
    }
    *out_bytes = n;
    return NULL;
}
