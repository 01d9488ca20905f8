#include "engine/format/byte_reader.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/source.h"

enum { BUFFER_BYTES = 256 * 1024 };

int byte_reader_init(struct byte_reader *reader, struct source *source, uint64_t limit_bytes,
                     struct error *err)
{
    struct byte_reader r = {.source = source, .end = source_size(source)};
    if (r.end > limit_bytes)
        r.end = limit_bytes;
    r.buffer = malloc(BUFFER_BYTES);
    if (!r.buffer)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", source_name(source));
    int rc = sha256_create(&r.sha, err);
    if (rc) {
        free(r.buffer);
        return rc;
    }
    *reader = r;
    return 0;
}

void byte_reader_fini(struct byte_reader *reader)
{
    sha256_destroy(reader->sha);
    free(reader->buffer);
    *reader = (struct byte_reader){0};
}

uint64_t byte_reader_left(const struct byte_reader *reader)
{
    return reader->end - reader->offset;
}

static int refill(struct byte_reader *reader, struct error *err)
{
    sha256_update(reader->sha, reader->buffer, reader->n_used);
    reader->n_used = 0;
    reader->n_buffer = 0;
    uint64_t left = byte_reader_left(reader);
    size_t n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
    int rc = source_read(reader->source, reader->offset, reader->buffer, n, err);
    if (!rc)
        reader->n_buffer = n;
    return rc;
}

int byte_reader_take(struct byte_reader *reader, void *dst, size_t n_bytes, struct error *err)
{
    unsigned char *out = dst;
    while (n_bytes) {
        if (reader->n_used == reader->n_buffer) {
            int rc = refill(reader, err);
            if (rc)
                return rc;
        }
        size_t n = reader->n_buffer - reader->n_used;
        if (n > n_bytes)
            n = n_bytes;
        memcpy(out, reader->buffer + reader->n_used, n);
        reader->n_used += n;
        reader->offset += n;
        out += n;
        n_bytes -= n;
    }
    return 0;
}

void byte_reader_digest(struct byte_reader *reader, uint8_t out_digest[SHA256_BYTES])
{
    uint64_t size = source_size(reader->source);
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(size >> (8 * i));
    sha256_update(reader->sha, reader->buffer, reader->n_used);
    sha256_update(reader->sha, bytes, sizeof(bytes));
    sha256_final(reader->sha, out_digest);
    reader->sha = NULL;
}
