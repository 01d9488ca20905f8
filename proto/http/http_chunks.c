#include "proto/http/http_chunks.h"

#include <stdbool.h>

#include "base/strbuf.h"

enum { MAX_SIZE_DIGITS = 8, MAX_EXTENSION_BYTES = 256, MAX_TRAILER_BYTES = 4096 };

enum {
    AT_SIZE,
    AT_EXTENSION,
    AT_SIZE_LF,
    AT_DATA,
    AT_DATA_CR,
    AT_DATA_LF,
    AT_TRAILER_START, /* the first byte of a trailer line, or of the empty line */
    AT_TRAILER,
    AT_TRAILER_LF,
    AT_LAST_LF,
    AT_END,
};

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static bool is_text(char c)
{
    return (unsigned char)c >= 0x20 ? (unsigned char)c != 0x7F : c == '\t';
}

static bool on_size(struct http_chunks *chunks, char c)
{
    int digit = hex_value(c);
    if (digit >= 0 && chunks->n_digits < MAX_SIZE_DIGITS) {
        chunks->n_left = chunks->n_left * 16 + (uint64_t)digit;
        chunks->n_digits++;
        return true;
    }
    if (digit >= 0 || chunks->n_digits == 0)
        return false;
    chunks->n_line = 0;
    chunks->state = c == '\r' ? AT_SIZE_LF : AT_EXTENSION;
    return c == '\r' || c == ';';
}

/* Handles one byte outside the data. False for broken framing. */
static bool on_byte(struct http_chunks *chunks, char c)
{
    switch (chunks->state) {
    case AT_SIZE:
        return on_size(chunks, c);
    case AT_EXTENSION:
        if (c == '\r')
            chunks->state = AT_SIZE_LF;
        return c == '\r' || (is_text(c) && ++chunks->n_line <= MAX_EXTENSION_BYTES);
    case AT_SIZE_LF:
        chunks->state = chunks->n_left ? AT_DATA : AT_TRAILER_START;
        chunks->n_line = 0;
        return c == '\n';
    case AT_DATA_CR:
        chunks->state = AT_DATA_LF;
        return c == '\r';
    case AT_DATA_LF:
        chunks->state = AT_SIZE;
        chunks->n_digits = 0;
        return c == '\n';
    case AT_TRAILER_START:
        chunks->state = c == '\r' ? AT_LAST_LF : AT_TRAILER;
        return c == '\r' || (c != ' ' && c != '\t' && is_text(c));
    case AT_TRAILER:
        if (c == '\r')
            chunks->state = AT_TRAILER_LF;
        return c == '\r' || (is_text(c) && ++chunks->n_line <= MAX_TRAILER_BYTES);
    case AT_TRAILER_LF:
        chunks->state = AT_TRAILER_START;
        return c == '\n';
    case AT_LAST_LF:
        chunks->state = AT_END;
        return c == '\n';
    default:
        return false;
    }
}

unsigned http_chunks_decode(struct http_chunks *chunks, const char *bytes, size_t n_bytes,
                            size_t *out_used, struct strbuf *body)
{
    size_t at = 0;
    unsigned status = 0;
    while (!status && chunks->state != AT_END && at < n_bytes) {
        if (chunks->state != AT_DATA) {
            if (!on_byte(chunks, bytes[at++]))
                status = 400;
            continue;
        }
        size_t n = n_bytes - at < chunks->n_left ? n_bytes - at : (size_t)chunks->n_left;
        if (!strbuf_add(body, bytes + at, n))
            status = body->limit && n > body->limit - body->n_bytes ? 413 : 503;
        at += n;
        chunks->n_left -= n;
        if (chunks->n_left == 0)
            chunks->state = AT_DATA_CR;
    }
    *out_used = at;
    return status ? status : (chunks->state == AT_END ? 200 : 0);
}
