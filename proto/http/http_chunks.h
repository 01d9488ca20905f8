/* http_chunks.h: decodes a chunked request body (RFC 9112, section 7.1), strictly. CRLF stands
 * after each size and each chunk, and a size has at most 8 hex digits. Extensions and trailers are
 * bounded, and dropped. Each body has a decoder of its own. Single-threaded. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct strbuf;

/* A zeroed struct begins a body. */
struct http_chunks {
    int state;
    uint32_t n_digits, n_line; /* digits of the size; bytes of the line or of all trailers */
    uint64_t n_left;           /* bytes of this chunk that have not come */
};

/* Decodes as many of the bytes as belong to the body, and appends the content to `body`.
 * *out_used is the number of bytes that were used. Returns 0 if more bytes are needed, and 200 at
 * the body's end. Errors: 400 for broken framing, 413 above the body's limit (strbuf), 503 if
 * memory is exhausted. */
unsigned http_chunks_decode(struct http_chunks *chunks, const char *bytes, size_t n_bytes,
                            size_t *out_used, struct strbuf *body);
