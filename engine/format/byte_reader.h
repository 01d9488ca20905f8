/* byte_reader.h: reads a source from start to end, buffered. The position of every byte is known,
 * and all consumed bytes are hashed. Single-threaded. Checks only that reads stay within the file
 * and the limit. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

struct error;
struct source;

struct byte_reader {
    struct source *source;   /* borrowed */
    uint64_t offset;         /* offset of the next byte */
    uint64_t end;            /* file size or limit, whichever is smaller */
    struct sha256 *sha;      /* owned */
    unsigned char *buffer;   /* owned */
    size_t n_used, n_buffer; /* consumed / filled bytes of the buffer */
};

int byte_reader_init(struct byte_reader *reader, struct source *source, uint64_t limit_bytes,
                     struct error *err);
void byte_reader_fini(struct byte_reader *reader);

uint64_t byte_reader_left(const struct byte_reader *reader);
/* Reads exactly n_bytes. The caller has checked byte_reader_left(). */
int byte_reader_take(struct byte_reader *reader, void *dst, size_t n_bytes, struct error *err);
/* Returns the next n_bytes in the buffer, without consuming them. NULL if not all of them are in
 * the buffer; the source may still have them. Consume them with byte_reader_skip(). */
static inline const unsigned char *byte_reader_ahead(const struct byte_reader *reader,
                                                     uint64_t n_bytes)
{
    bool there = n_bytes <= reader->n_buffer - reader->n_used;
    return there ? reader->buffer + reader->n_used : NULL;
}
static inline void byte_reader_skip(struct byte_reader *reader, size_t n_bytes)
{
    reader->n_used += n_bytes;
    reader->offset += n_bytes;
}
/* Digest of all consumed bytes, followed by the file's size (8 bytes, little-endian). Call once. */
void byte_reader_digest(struct byte_reader *reader, uint8_t out_digest[SHA256_BYTES]);
