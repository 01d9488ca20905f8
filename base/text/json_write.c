#include "base/text/json_write.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/strbuf.h"
#include "base/utf8.h"

/* Returns the letter of a short escape, or 0. */
static char short_escape(char c)
{
    switch (c) {
    case '"':
    case '\\':
        return c;
    case '\n':
        return 'n';
    case '\r':
        return 'r';
    case '\t':
        return 't';
    case '\b':
        return 'b';
    case '\f':
        return 'f';
    default:
        return 0;
    }
}

/* Returns the number of bytes from the start that need no escape. */
static size_t plain_bytes(const char *bytes, size_t n_bytes)
{
    size_t n = 0;
    while (n < n_bytes && (unsigned char)bytes[n] >= 0x20 && (unsigned char)bytes[n] < 0x7F &&
           bytes[n] != '"' && bytes[n] != '\\')
        n++;
    return n;
}

void json_write_text(struct strbuf *out, const char *bytes, size_t n_bytes)
{
    size_t at = 0;
    strbuf_add_char(out, '"');
    while (at < n_bytes) {
        size_t n = plain_bytes(bytes + at, n_bytes - at);
        uint32_t code_point = 0;
        strbuf_add(out, bytes + at, n);
        at += n;
        if (at == n_bytes)
            break;
        char letter = short_escape(bytes[at]);
        size_t n_step = utf8_decode(bytes + at, n_bytes - at, &code_point);
        if (letter) {
            strbuf_add_char(out, '\\');
            strbuf_add_char(out, letter);
        } else if (!n_step) {
            strbuf_add_str(out, "\xEF\xBF\xBD");
        } else if (n_step == 1) {
            strbuf_printf(out, "\\u%04x", (unsigned)code_point);
        } else {
            strbuf_add(out, bytes + at, n_step);
        }
        at += n_step ? n_step : 1;
    }
    strbuf_add_char(out, '"');
}

void json_write_float(struct strbuf *out, double value)
{
    if (isnan(value))
        strbuf_add_str(out, "null");
    else
        strbuf_printf(out, "%.9g", isinf(value) ? -3.4028234e38 : value);
}
