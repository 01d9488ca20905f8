/* byte_reader.h: reads a source from its start towards its end, buffered, with the position known
 * at every byte and everything consumed hashed. One thread. Does not judge: it only refuses to
 * leave the file or the limit. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sha256.h"

struct error;
struct source;

struct byte_reader {
    struct source *source;   /* borrowed */
    uint64_t offset;         /* of the next byte */
    uint64_t end;            /* file size or the limit, whichever is less */
    struct sha256 *sha;      /* owned */
    unsigned char *buffer;   /* owned */
    size_t n_used, n_buffer; /* consumed / filled bytes of the buffer */
};

int byte_reader_init(struct byte_reader *reader, struct source *source, uint64_t limit_bytes,
                     struct error *err);
void byte_reader_fini(struct byte_reader *reader);

uint64_t byte_reader_left(const struct byte_reader *reader);
/* Exactly n_bytes, which the caller has checked against byte_reader_left(). */
int byte_reader_take(struct byte_reader *reader, void *dst, size_t n_bytes, struct error *err);
/* n_bytes that lie in the buffer, to be looked at in place; NULL where not all of them do, which
 * says nothing of the source. What was looked at is taken by byte_reader_skip(). */
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
/* Digest of all consumed bytes followed by the file's size (8 bytes, little-endian). Once. */
void byte_reader_digest(struct byte_reader *reader, uint8_t out_digest[SHA256_BYTES]);
