/* The metadata of a GGUF file: keys, types, scalars, strings and arrays. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/gguf.h"
#include "engine/format/gguf_private.h"

static int read_type(struct gguf *g, enum value_type *out_type, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint32_t type;
    int rc = gguf_read_u32(g, &type, err);
    if (rc)
        return rc;
    if (type >= N_VALUE_TYPES)
        return gguf_bad(g, start, err, "unknown value type %" PRIu32 " (0 to %d are known)", type,
                        N_VALUE_TYPES - 1);
    *out_type = (enum value_type)type;
    return 0;
}

static int check_bools(const struct gguf *g, uint64_t start, const unsigned char *data, uint64_t n,
                       struct error *err)
{
    for (uint64_t i = 0; i < n; i++)
        if (data[i] > 1)
            return gguf_bad(g, start + i, err, "bool is 0x%02x, expected 0 or 1",
                            (unsigned)data[i]);
    return 0;
}

/* The bytes of an array's strings, one after the other. Memory grows only with what was read. */
struct gathered {
    unsigned char *data;
    uint64_t n_bytes, capacity;
};

static int make_room(const struct gguf *g, struct gathered *text, uint64_t n_bytes,
                     struct error *err)
{
    if (text->data && text->n_bytes + n_bytes <= text->capacity)
        return 0;
    uint64_t wider = 2 * (text->n_bytes + n_bytes) + 4096;
    unsigned char *grown = realloc(text->data, (size_t)wider);
    if (!grown)
        return gguf_out_of_memory(g, err);
    text->data = grown;
    text->capacity = wider;
    return 0;
}

/* Reads a string's length and its bytes, which must be valid UTF-8. */
static int gather_string(struct gguf *g, struct gathered *text, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint64_t length = 0;
    size_t wrong;
    int rc = gguf_read_u64(g, &length, err);
    if (rc)
        return rc;
    if (length > GGUF_MAX_STRING_BYTES)
        return gguf_bad(g, start, err, "string of %" PRIu64 " bytes is over the limit of %d bytes",
                        length, GGUF_MAX_STRING_BYTES);
    if (text->n_bytes + length > GGUF_MAX_ARRAY_STRING_BYTES)
        return gguf_bad(g, start, err,
                        "the array's strings are over the limit of %d bytes together",
                        GGUF_MAX_ARRAY_STRING_BYTES);
    const unsigned char *ahead = byte_reader_ahead(&g->reader, length);
    rc = ahead ? 0 : gguf_need(g, length, err);
    if (!rc)
        rc = make_room(g, text, length, err);
    if (!rc && ahead) {
        memcpy(text->data + text->n_bytes, ahead, (size_t)length);
        byte_reader_skip(&g->reader, (size_t)length);
    } else if (!rc && length) {
        rc = byte_reader_take(&g->reader, text->data + text->n_bytes, (size_t)length, err);
    }
    if (rc)
        return rc;
    if (length && !utf8_valid((const char *)text->data + text->n_bytes, (size_t)length, &wrong))
        return gguf_bad(g, start + 8 + wrong, err, "the string is not valid UTF-8 (byte 0x%02x)",
                        (unsigned)text->data[text->n_bytes + wrong]);
    text->n_bytes += length;
    return 0;
}

static int read_string_array(struct gguf *g, uint64_t n, struct checkpoint_entry *entry,
                             struct error *err)
{
    /* Each string has at least an 8-byte length in the file. So `ends` is no larger than the rest
     * of the file. */
    uint64_t *ends = arena_calloc(&g->ckpt->arena, n + 1, sizeof(*ends));
    if (!ends)
        return gguf_out_of_memory(g, err);
    struct gathered text = {0};
    int rc = 0;
    for (uint64_t i = 0; i < n && !rc; i++) {
        gguf_field(g, "element", i);
        rc = gather_string(g, &text, err);
        ends[i] = text.n_bytes;
    }
    if (!rc) {
        const char *kept =
            arena_strndup(&g->ckpt->arena, (const char *)text.data, (size_t)text.n_bytes);
        entry->array.data = (const unsigned char *)kept;
        entry->array.ends = ends;
        rc = kept ? 0 : gguf_out_of_memory(g, err);
    }
    free(text.data);
    return rc;
}

static int read_array(struct gguf *g, struct checkpoint_entry *entry, struct error *err)
{
    uint64_t start = g->reader.offset;
    enum value_type type = VALUE_U8;
    uint64_t n;
    gguf_field(g, "element type", NO_INDEX);
    int rc = read_type(g, &type, err);
    if (rc)
        return rc;
    if (type == VALUE_ARRAY)
        return gguf_bad(g, start, err, "an array of arrays (nesting limit 1)");
    gguf_field(g, "array length", NO_INDEX);
    start = g->reader.offset;
    rc = gguf_read_u64(g, &n, err);
    if (rc)
        return rc;
    if (n > GGUF_MAX_ARRAY_ELEMENTS)
        return gguf_bad(g, start, err, "%" PRIu64 " elements are over the limit of %d", n,
                        GGUF_MAX_ARRAY_ELEMENTS);
    uint64_t element_bytes = type == VALUE_STRING ? 8 : checkpoint_value_bytes(type);
    uint64_t left = byte_reader_left(&g->reader);
    if (n * element_bytes > left)
        return gguf_bad(g, start, err,
                        "%" PRIu64 " elements of at least %" PRIu64 " bytes, only %" PRIu64
                        " bytes are left",
                        n, element_bytes, left);
    entry->array.type = type;
    entry->array.n = n;
    if (type == VALUE_STRING)
        return read_string_array(g, n, entry, err);
    start = g->reader.offset;
    unsigned char *data = arena_alloc(&g->ckpt->arena, (size_t)(n * element_bytes) + 1);
    if (!data)
        return gguf_out_of_memory(g, err);
    entry->array.data = data;
    rc = byte_reader_take(&g->reader, data, (size_t)(n * element_bytes), err);
    if (!rc && type == VALUE_BOOL)
        rc = check_bools(g, start, data, n, err);
    return rc;
}

static int read_scalar(struct gguf *g, struct checkpoint_entry *entry, struct error *err)
{
    unsigned char raw[8] = {0};
    uint64_t start = g->reader.offset;
    int rc = gguf_read_bytes(g, raw, checkpoint_value_bytes(entry->type), err);
    if (rc)
        return rc;
    if (entry->type == VALUE_F32 || entry->type == VALUE_F64)
        entry->f = checkpoint_value_float(entry->type, raw, 0);
    else if (entry->type == VALUE_U64)
        memcpy(&entry->u, raw, sizeof(raw));
    else
        entry->i = checkpoint_value_int(entry->type, raw, 0);
    return entry->type == VALUE_BOOL ? check_bools(g, start, raw, 1, err) : 0;
}

static int read_entry(struct gguf *g, uint64_t i, struct checkpoint_entry *entry, struct error *err)
{
    g->scope[0] = '\0';
    gguf_field(g, "metadata key", i);
    int rc = gguf_read_name(g, GGUF_MAX_KEY_BYTES, &entry->key, err);
    if (rc)
        return rc;
    gguf_scope_name(g, "key", entry->key);
    gguf_field(g, "type", NO_INDEX);
    rc = read_type(g, &entry->type, err);
    if (rc)
        return rc;
    gguf_field(g, "value", NO_INDEX);
    entry->offset = g->reader.offset;
    entry->file = g->file;
    if (entry->type == VALUE_ARRAY)
        return read_array(g, entry, err);
    if (entry->type != VALUE_STRING)
        return read_scalar(g, entry, err);
    uint64_t n = 0;
    rc = gguf_read_string(g, GGUF_MAX_STRING_BYTES, &entry->string.data, &n, err);
    entry->string.n_bytes = (size_t)n;
    return rc;
}

int gguf_read_metadata(struct gguf *g, uint64_t n, struct error *err)
{
    struct checkpoint *ckpt = g->ckpt;
    ckpt->entries = arena_calloc(&ckpt->arena, n + 1, sizeof(*ckpt->entries));
    if (!ckpt->entries)
        return gguf_out_of_memory(g, err);
    for (uint64_t i = 0; i < n; i++) {
        int rc = read_entry(g, i, &ckpt->entries[i], err);
        if (rc)
            return rc;
        ckpt->n_entries = i + 1;
    }
    uint64_t first, second;
    if (!checkpoint_index_entries(ckpt, &first, &second)) {
        if (first == UINT64_MAX)
            return gguf_out_of_memory(g, err);
        gguf_scope_name(g, "key", ckpt->entries[second].key);
        gguf_field(g, "", NO_INDEX);
        return gguf_bad(g, ckpt->entries[second].offset, err,
                        "the key occurs twice (first value at offset %" PRIu64 ")",
                        ckpt->entries[first].offset);
    }
    return 0;
}
