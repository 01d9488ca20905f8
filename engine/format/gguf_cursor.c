/* Reads bytes, integers and strings at the GGUF reader's position, and reports errors there. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/system/source.h"
#include "base/utf8.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/gguf.h"
#include "engine/format/gguf_private.h"

int gguf_bad(const struct gguf *g, uint64_t offset, struct error *err, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES / 2];
    char index[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (g->index != NO_INDEX)
        snprintf(index, sizeof(index), "[%" PRIu64 "]", g->index);
    error_set(err, STATUS_INVALID_ARGUMENT,
              "%s: offset %" PRIu64 ": %s%s%s%s: %s; " CHECKPOINT_REMEDY,
              source_name(g->reader.source), offset, g->scope,
              g->scope[0] && g->part[0] ? ": " : "", g->part, index, text);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

int gguf_out_of_memory(const struct gguf *g, struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory reading %s %s",
                     source_name(g->reader.source), g->scope, g->part);
}

void gguf_field(struct gguf *g, const char *part, uint64_t index)
{
    g->part = part;
    g->index = index;
}

int gguf_need(const struct gguf *g, uint64_t n_bytes, struct error *err)
{
    uint64_t left = byte_reader_left(&g->reader);
    if (n_bytes <= left)
        return 0;
    if (g->reader.end < source_size(g->reader.source))
        return gguf_bad(g, g->reader.offset, err,
                        "needs %" PRIu64 " bytes, beyond the limit of %d bytes before the weights",
                        n_bytes, GGUF_MAX_HEADER_BYTES);
    return gguf_bad(g, g->reader.offset, err,
                    "needs %" PRIu64 " bytes, %" PRIu64 " are left (the file ends at %" PRIu64 ")",
                    n_bytes, left, g->reader.end);
}

int gguf_read_bytes(struct gguf *g, void *dst, size_t n_bytes, struct error *err)
{
    int rc = gguf_need(g, n_bytes, err);
    return rc ? rc : byte_reader_take(&g->reader, dst, n_bytes, err);
}

int gguf_read_u32(struct gguf *g, uint32_t *out, struct error *err)
{
    unsigned char b[4];
    int rc = gguf_read_bytes(g, b, sizeof(b), err);
    if (!rc)
        *out = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    return rc;
}

static uint64_t u64_of(const unsigned char b[8])
{
    return (uint64_t)b[0] | (uint64_t)b[1] << 8 | (uint64_t)b[2] << 16 | (uint64_t)b[3] << 24 |
           (uint64_t)b[4] << 32 | (uint64_t)b[5] << 40 | (uint64_t)b[6] << 48 |
           (uint64_t)b[7] << 56;
}

int gguf_read_u64(struct gguf *g, uint64_t *out, struct error *err)
{
    unsigned char b[8];
    const unsigned char *ahead = byte_reader_ahead(&g->reader, sizeof(b));
    if (ahead) { /* fast path: nearly every length of a string is in the buffer already */
        *out = u64_of(ahead);
        byte_reader_skip(&g->reader, sizeof(b));
        return 0;
    }
    int rc = gguf_read_bytes(g, b, sizeof(b), err);
    if (!rc)
        *out = u64_of(b);
    return rc;
}

int gguf_read_string(struct gguf *g, uint64_t limit_bytes, const char **out_text,
                     uint64_t *out_n_bytes, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint64_t n;
    int rc = gguf_read_u64(g, &n, err);
    if (rc)
        return rc;
    if (n > limit_bytes)
        return gguf_bad(g, start, err,
                        "string of %" PRIu64 " bytes is over the limit of %" PRIu64 " bytes", n,
                        limit_bytes);
    rc = gguf_need(g, n, err);
    if (rc)
        return rc;
    char *text = arena_alloc(&g->ckpt->arena, (size_t)n + 1);
    if (!text)
        return gguf_out_of_memory(g, err);
    rc = byte_reader_take(&g->reader, text, (size_t)n, err);
    if (rc)
        return rc;
    size_t wrong;
    if (!utf8_valid(text, (size_t)n, &wrong))
        return gguf_bad(g, start + 8 + wrong, err, "the string is not valid UTF-8 (byte 0x%02x)",
                        (unsigned)(unsigned char)text[wrong]);
    *out_text = text;
    *out_n_bytes = n;
    return 0;
}

int gguf_read_name(struct gguf *g, uint64_t limit_bytes, const char **out_name, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint64_t n = 0;
    const char *name = NULL;
    int rc = gguf_read_string(g, limit_bytes, &name, &n, err);
    if (rc)
        return rc;
    if (!n)
        return gguf_bad(g, start, err, "the name is empty");
    for (uint64_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return gguf_bad(g, start + 8 + i, err, "control character 0x%02x in the name",
                            (unsigned)(unsigned char)name[i]);
    *out_name = name;
    return 0;
}

void gguf_scope_name(struct gguf *g, const char *kind, const char *name)
{
    char text[ESCAPE_MAX_BYTES];
    snprintf(g->scope, sizeof(g->scope), "%s \"%s\"", kind, escape_text(name, strlen(name), text));
}
