#include "engine/format/gguf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/source.h"
#include "base/utf8.h"
#include "engine/format/byte_reader.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/escape.h"

#define NO_INDEX UINT64_MAX

/* The reader's place in the file. `scope`, `part` and `index` name the field being read, for
 * messages only: «key "tokenizer.ggml.tokens": element [17]». */
struct gguf {
    struct byte_reader reader;
    struct checkpoint *ckpt;
    char scope[ESCAPE_MAX_BYTES + 16];
    const char *part;
    uint64_t index;
    uint64_t alignment;
};

/* One message for everything wrong in a file. */
static int bad(const struct gguf *g, uint64_t offset, struct error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static int bad(const struct gguf *g, uint64_t offset, struct error *err, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES / 2];
    char index[32] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (g->index != NO_INDEX)
        snprintf(index, sizeof(index), "[%" PRIu64 "]", g->index);
    error_set(err, STATUS_INVALID_ARGUMENT, "%s: offset %" PRIu64 ": %s%s%s%s: %s",
              source_name(g->reader.source), offset, g->scope,
              g->scope[0] && g->part[0] ? ": " : "", g->part, index, text);
    return error_reason(err, "MODEL_FILE_INVALID");
}

static int out_of_memory(const struct gguf *g, struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory reading %s %s",
                     source_name(g->reader.source), g->scope, g->part);
}

static void at(struct gguf *g, const char *part, uint64_t index)
{
    g->part = part;
    g->index = index;
}

/* --- primitives --- */

static int need(const struct gguf *g, uint64_t n_bytes, struct error *err)
{
    uint64_t left = byte_reader_left(&g->reader);
    if (n_bytes <= left)
        return 0;
    if (g->reader.end < source_size(g->reader.source))
        return bad(g, g->reader.offset, err,
                   "needs %" PRIu64 " bytes, beyond the limit of %d bytes before the weights",
                   n_bytes, GGUF_MAX_HEADER_BYTES);
    return bad(g, g->reader.offset, err,
               "needs %" PRIu64 " bytes, %" PRIu64 " are left (the file ends at %" PRIu64 ")",
               n_bytes, left, g->reader.end);
}

static int read_bytes(struct gguf *g, void *dst, size_t n_bytes, struct error *err)
{
    int rc = need(g, n_bytes, err);
    return rc ? rc : byte_reader_take(&g->reader, dst, n_bytes, err);
}

static int read_u32(struct gguf *g, uint32_t *out, struct error *err)
{
    unsigned char b[4];
    int rc = read_bytes(g, b, sizeof(b), err);
    if (!rc)
        *out = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    return rc;
}

static int read_u64(struct gguf *g, uint64_t *out, struct error *err)
{
    uint32_t low, high;
    int rc = need(g, 8, err);
    if (!rc)
        rc = read_u32(g, &low, err);
    if (!rc)
        rc = read_u32(g, &high, err);
    if (!rc)
        *out = low | (uint64_t)high << 32;
    return rc;
}

/* Length and bytes of a string; *out_text is in the arena, terminated and valid UTF-8. */
static int read_string(struct gguf *g, uint64_t limit_bytes, const char **out_text,
                       uint64_t *out_n_bytes, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint64_t n;
    int rc = read_u64(g, &n, err);
    if (rc)
        return rc;
    if (n > limit_bytes)
        return bad(g, start, err,
                   "string of %" PRIu64 " bytes is over the limit of %" PRIu64 " bytes", n,
                   limit_bytes);
    rc = need(g, n, err);
    if (rc)
        return rc;
    char *text = arena_alloc(&g->ckpt->arena, (size_t)n + 1);
    if (!text)
        return out_of_memory(g, err);
    rc = byte_reader_take(&g->reader, text, (size_t)n, err);
    if (rc)
        return rc;
    size_t wrong;
    if (!utf8_valid(text, (size_t)n, &wrong))
        return bad(g, start + 8 + wrong, err, "the string is not valid UTF-8 (byte 0x%02x)",
                   (unsigned)(unsigned char)text[wrong]);
    *out_text = text;
    *out_n_bytes = n;
    return 0;
}

/* Keys and tensor names: no control characters, so that no message can be forged with them. */
static int read_name(struct gguf *g, uint64_t limit_bytes, const char **out_name, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint64_t n = 0;
    const char *name = NULL;
    int rc = read_string(g, limit_bytes, &name, &n, err);
    if (rc)
        return rc;
    if (!n)
        return bad(g, start, err, "the name is empty");
    for (uint64_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7F)
            return bad(g, start + 8 + i, err, "control character 0x%02x in the name",
                       (unsigned)(unsigned char)name[i]);
    *out_name = name;
    return 0;
}

static void scope_name(struct gguf *g, const char *kind, const char *name)
{
    char text[ESCAPE_MAX_BYTES];
    snprintf(g->scope, sizeof(g->scope), "%s \"%s\"", kind, escape_text(name, strlen(name), text));
}

/* --- metadata --- */

static int read_type(struct gguf *g, enum value_type *out_type, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint32_t type;
    int rc = read_u32(g, &type, err);
    if (rc)
        return rc;
    if (type >= N_VALUE_TYPES)
        return bad(g, start, err, "unknown value type %" PRIu32 " (0 to %d are known)", type,
                   N_VALUE_TYPES - 1);
    *out_type = (enum value_type)type;
    return 0;
}

static int check_bools(const struct gguf *g, uint64_t start, const unsigned char *data, uint64_t n,
                       struct error *err)
{
    for (uint64_t i = 0; i < n; i++)
        if (data[i] > 1)
            return bad(g, start + i, err, "bool is 0x%02x, want 0 or 1", (unsigned)data[i]);
    return 0;
}

static int read_string_array(struct gguf *g, uint64_t n, struct checkpoint_entry *entry,
                             struct error *err)
{
    /* Each string takes at least its 8-byte length in the file, so `ends` is no larger than what is
     * left. The text gathers in a buffer that grows with what was read. */
    uint64_t *ends = arena_calloc(&g->ckpt->arena, n + 1, sizeof(*ends));
    if (!ends)
        return out_of_memory(g, err);
    unsigned char *data = NULL;
    uint64_t used = 0, capacity = 0;
    int rc = 0;
    for (uint64_t i = 0; i < n && !rc; i++) {
        uint64_t start = g->reader.offset;
        uint64_t length = 0;
        at(g, "element", i);
        rc = read_u64(g, &length, err);
        if (!rc && length > GGUF_MAX_STRING_BYTES)
            rc = bad(g, start, err, "string of %" PRIu64 " bytes is over the limit of %d bytes",
                     length, GGUF_MAX_STRING_BYTES);
        if (!rc && used + length > GGUF_MAX_ARRAY_STRING_BYTES)
            rc = bad(g, start, err, "the array's strings are over the limit of %d bytes together",
                     GGUF_MAX_ARRAY_STRING_BYTES);
        if (!rc)
            rc = need(g, length, err);
        if (!rc && (!data || used + length > capacity)) {
            uint64_t wider = 2 * (used + length) + 4096;
            unsigned char *grown = realloc(data, (size_t)wider);
            if (!grown) {
                free(data);
                return out_of_memory(g, err);
            }
            data = grown;
            capacity = wider;
        }
        if (!rc && length)
            rc = byte_reader_take(&g->reader, data + used, (size_t)length, err);
        size_t wrong;
        if (!rc && length && !utf8_valid((const char *)data + used, (size_t)length, &wrong))
            rc = bad(g, start + 8 + wrong, err, "the string is not valid UTF-8 (byte 0x%02x)",
                     (unsigned)data[used + wrong]);
        used += length;
        ends[i] = used;
    }
    if (!rc) {
        const char *kept = arena_strndup(&g->ckpt->arena, (const char *)data, (size_t)used);
        entry->array.data = (const unsigned char *)kept;
        entry->array.ends = ends;
        rc = kept ? 0 : out_of_memory(g, err);
    }
    free(data);
    return rc;
}

static int read_array(struct gguf *g, struct checkpoint_entry *entry, struct error *err)
{
    uint64_t start = g->reader.offset;
    enum value_type type = VALUE_U8;
    uint64_t n;
    at(g, "element type", NO_INDEX);
    int rc = read_type(g, &type, err);
    if (rc)
        return rc;
    if (type == VALUE_ARRAY)
        return bad(g, start, err, "an array of arrays (nesting limit 1)");
    at(g, "array length", NO_INDEX);
    start = g->reader.offset;
    rc = read_u64(g, &n, err);
    if (rc)
        return rc;
    if (n > GGUF_MAX_ARRAY_ELEMENTS)
        return bad(g, start, err, "%" PRIu64 " elements are over the limit of %d", n,
                   GGUF_MAX_ARRAY_ELEMENTS);
    uint64_t element_bytes = type == VALUE_STRING ? 8 : value_type_bytes(type);
    uint64_t left = byte_reader_left(&g->reader);
    if (n * element_bytes > left)
        return bad(g, start, err,
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
        return out_of_memory(g, err);
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
    int rc = read_bytes(g, raw, value_type_bytes(entry->type), err);
    if (rc)
        return rc;
    if (entry->type == VALUE_F32 || entry->type == VALUE_F64)
        entry->f = value_float(entry->type, raw, 0);
    else if (entry->type == VALUE_U64)
        memcpy(&entry->u, raw, sizeof(raw));
    else
        entry->i = value_int(entry->type, raw, 0);
    return entry->type == VALUE_BOOL ? check_bools(g, start, raw, 1, err) : 0;
}

static int read_entry(struct gguf *g, uint64_t i, struct checkpoint_entry *entry, struct error *err)
{
    g->scope[0] = '\0';
    at(g, "metadata key", i);
    int rc = read_name(g, GGUF_MAX_KEY_BYTES, &entry->key, err);
    if (rc)
        return rc;
    scope_name(g, "key", entry->key);
    at(g, "type", NO_INDEX);
    rc = read_type(g, &entry->type, err);
    if (rc)
        return rc;
    at(g, "value", NO_INDEX);
    entry->offset = g->reader.offset;
    if (entry->type == VALUE_ARRAY)
        return read_array(g, entry, err);
    if (entry->type != VALUE_STRING)
        return read_scalar(g, entry, err);
    uint64_t n = 0;
    rc = read_string(g, GGUF_MAX_STRING_BYTES, &entry->string.data, &n, err);
    entry->string.n_bytes = (size_t)n;
    return rc;
}

static int read_metadata(struct gguf *g, uint64_t n, struct error *err)
{
    struct checkpoint *ckpt = g->ckpt;
    ckpt->entries = arena_calloc(&ckpt->arena, n + 1, sizeof(*ckpt->entries));
    if (!ckpt->entries)
        return out_of_memory(g, err);
    for (uint64_t i = 0; i < n; i++) {
        int rc = read_entry(g, i, &ckpt->entries[i], err);
        if (rc)
            return rc;
        ckpt->n_entries = i + 1;
    }
    uint64_t first, second;
    if (!checkpoint_index_entries(ckpt, &first, &second)) {
        if (first == UINT64_MAX)
            return out_of_memory(g, err);
        scope_name(g, "key", ckpt->entries[second].key);
        at(g, "", NO_INDEX);
        return bad(g, ckpt->entries[second].offset, err,
                   "the key occurs twice (first value at offset %" PRIu64 ")",
                   ckpt->entries[first].offset);
    }
    return 0;
}

static int read_alignment(struct gguf *g, struct error *err)
{
    const struct checkpoint_entry *e = checkpoint_entry_find(g->ckpt, "general.alignment");
    g->alignment = GGUF_DEFAULT_ALIGNMENT;
    if (!e)
        return 0;
    scope_name(g, "key", e->key);
    at(g, "", NO_INDEX);
    if (e->type != VALUE_U32)
        return bad(g, e->offset, err, "type %s, want u32", stored_type_name(e->type));
    if (e->u < GGUF_MIN_ALIGNMENT || e->u > GGUF_MAX_ALIGNMENT || (e->u & (e->u - 1)))
        return bad(g, e->offset, err, "alignment %" PRIu64 ", want a power of two from %d to %d",
                   e->u, GGUF_MIN_ALIGNMENT, GGUF_MAX_ALIGNMENT);
    g->alignment = e->u;
    return 0;
}

/* A model split over several files names its parts here; one part alone would be an incomplete
 * model. */
static int check_split(struct gguf *g, struct error *err)
{
    const struct checkpoint_entry *e = checkpoint_entry_find(g->ckpt, "split.count");
    uint64_t n = 0;
    if (!e)
        return 0;
    int rc = checkpoint_get_u64(g->ckpt, "split.count", &n, err);
    if (rc || n <= 1)
        return rc;
    return error_set(err, STATUS_UNIMPLEMENTED,
                     "%s: offset %" PRIu64 ": key \"split.count\": a model in %" PRIu64
                     " files is not supported; join its parts first",
                     source_name(g->reader.source), e->offset, n);
}

/* --- tensors --- */

/* ggml's type numbers. A name without a dtype is known and not built. */
static const struct {
    const char *name;
    int dtype; /* -1: not built */
} ggml_types[] = {
    [0] = {"F32", DTYPE_F32},    [1] = {"F16", DTYPE_F16},    [2] = {"Q4_0", DTYPE_Q4_0},
    [3] = {"Q4_1", DTYPE_Q4_1},  [6] = {"Q5_0", DTYPE_Q5_0},  [7] = {"Q5_1", DTYPE_Q5_1},
    [8] = {"Q8_0", DTYPE_Q8_0},  [9] = {"Q8_1", -1},          [10] = {"Q2_K", DTYPE_Q2_K},
    [11] = {"Q3_K", DTYPE_Q3_K}, [12] = {"Q4_K", DTYPE_Q4_K}, [13] = {"Q5_K", DTYPE_Q5_K},
    [14] = {"Q6_K", DTYPE_Q6_K}, [15] = {"Q8_K", -1},         [16] = {"IQ2_XXS", -1},
    [17] = {"IQ2_XS", -1},       [18] = {"IQ3_XXS", -1},      [19] = {"IQ1_S", -1},
    [20] = {"IQ4_NL", -1},       [21] = {"IQ3_S", -1},        [22] = {"IQ2_S", -1},
    [23] = {"IQ4_XS", -1},       [24] = {"I8", DTYPE_I8},     [25] = {"I16", -1},
    [26] = {"I32", DTYPE_I32},   [27] = {"I64", -1},          [28] = {"F64", -1},
    [29] = {"IQ1_M", -1},        [30] = {"BF16", DTYPE_BF16}, [34] = {"TQ1_0", -1},
    [35] = {"TQ2_0", -1},        [39] = {"MXFP4", -1},
};

static int read_dtype(struct gguf *g, enum dtype *out_dtype, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint32_t type;
    int rc = read_u32(g, &type, err);
    if (rc)
        return rc;
    if (type >= sizeof(ggml_types) / sizeof(ggml_types[0]) || !ggml_types[type].name)
        return bad(g, start, err, "unknown tensor type %" PRIu32, type);
    if (ggml_types[type].dtype < 0) {
        error_set(err, STATUS_UNIMPLEMENTED,
                  "%s: offset %" PRIu64 ": %s: tensor type %s is not supported",
                  source_name(g->reader.source), start, g->scope, ggml_types[type].name);
        return error_reason(err, "TENSOR_TYPE_UNSUPPORTED");
    }
    *out_dtype = (enum dtype)ggml_types[type].dtype;
    return 0;
}

static int read_dims(struct gguf *g, struct checkpoint_tensor *t, struct error *err)
{
    uint64_t start = g->reader.offset;
    at(g, "n_dims", NO_INDEX);
    int rc = read_u32(g, &t->n_dims, err);
    if (rc)
        return rc;
#ifndef SLUICE_SEEDED_BUG_gguf_bounds /* planted for tests/fuzz/seeded_bug.sh */
    if (t->n_dims < 1 || t->n_dims > CHECKPOINT_MAX_DIMS)
        return bad(g, start, err, "%" PRIu32 " dimensions, want 1 to %d", t->n_dims,
                   CHECKPOINT_MAX_DIMS);
#endif
    t->n_elems = 1;
    for (uint32_t i = 0; i < CHECKPOINT_MAX_DIMS; i++)
        t->dims[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        at(g, "dims", i);
        start = g->reader.offset;
        rc = read_u64(g, &t->dims[i], err);
        if (rc)
            return rc;
        if (!t->dims[i])
            return bad(g, start, err, "dimension is 0, want at least 1");
        if (__builtin_mul_overflow(t->n_elems, t->dims[i], &t->n_elems) || t->n_elems > INT64_MAX)
            return bad(g, start, err, "dimension %" PRIu64 " makes more than 2^63 elements",
                       t->dims[i]);
    }
    return 0;
}

static int read_tensor(struct gguf *g, uint64_t i, struct checkpoint_tensor *t, struct error *err)
{
    g->scope[0] = '\0';
    at(g, "tensor name", i);
    t->directory_bytes = g->reader.offset;
    int rc = read_name(g, GGUF_MAX_TENSOR_NAME_BYTES, &t->name, err);
    if (rc)
        return rc;
    scope_name(g, "tensor", t->name);
    rc = read_dims(g, t, err);
    if (rc)
        return rc;
    at(g, "type", NO_INDEX);
    uint64_t start = g->reader.offset;
    rc = read_dtype(g, &t->dtype, err);
    if (rc)
        return rc;
    uint32_t block = dtype_block_elems(t->dtype);
    if (t->dims[0] % block)
        return bad(g, start, err,
                   "rows of %" PRIu64 " elements do not divide into %s blocks of %" PRIu32,
                   t->dims[0], dtype_name(t->dtype), block);
    t->n_rows = t->n_elems / t->dims[0];
    if (__builtin_mul_overflow(t->dims[0] / block, (uint64_t)dtype_block_bytes(t->dtype),
                               &t->row_bytes) ||
        __builtin_mul_overflow(t->row_bytes, t->n_rows, &t->n_bytes) || t->n_bytes > INT64_MAX)
        return bad(g, start, err, "shape times type makes more than 2^63 bytes");
    at(g, "offset", NO_INDEX);
    start = g->reader.offset;
    rc = read_u64(g, &t->offset_bytes, err);
    if (!rc && t->offset_bytes % g->alignment)
        rc = bad(g, start, err, "%" PRIu64 " is not a multiple of the alignment %" PRIu64,
                 t->offset_bytes, g->alignment);
    return rc;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = *(const struct checkpoint_tensor *const *)a;
    const struct checkpoint_tensor *y = *(const struct checkpoint_tensor *const *)b;
    if (x->offset_bytes != y->offset_bytes)
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    return x->directory_bytes < y->directory_bytes ? -1 : 1;
}

/* Offsets count from the first aligned byte after the directory. The weights must lie inside the
 * file and follow each other with nothing but padding between them. */
static int place_tensors(struct gguf *g, struct error *err)
{
    struct checkpoint *ckpt = g->ckpt;
    uint64_t size = source_size(g->reader.source);
    uint64_t data = (g->reader.offset + g->alignment - 1) & ~(g->alignment - 1);
    struct checkpoint_tensor **order =
        arena_calloc(&ckpt->arena, ckpt->n_tensors + 1, sizeof(struct checkpoint_tensor *));
    if (!order)
        return out_of_memory(g, err);
    at(g, "offset", NO_INDEX);
    for (uint64_t i = 0; i < ckpt->n_tensors; i++) {
        struct checkpoint_tensor *t = &ckpt->tensors[i];
        order[i] = t;
        uint64_t room = size > data ? size - data : 0;
        if (t->offset_bytes <= room && t->n_bytes <= room - t->offset_bytes)
            continue;
        scope_name(g, "tensor", t->name);
        return bad(g, t->directory_bytes, err,
                   "%" PRIu64 " bytes at %" PRIu64
                   " after the directory reach beyond the file's %" PRIu64 " bytes",
                   t->n_bytes, t->offset_bytes, size);
    }
    qsort(order, ckpt->n_tensors, sizeof(struct checkpoint_tensor *), compare_offsets);
    uint64_t expected = 0;
    for (uint64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct checkpoint_tensor *t = order[i];
        scope_name(g, "tensor", t->name);
        if (t->offset_bytes < expected)
            return bad(g, t->directory_bytes, err,
                       "its weights at %" PRIu64
                       " overlap the tensor before, which ends at %" PRIu64,
                       t->offset_bytes, expected);
        if (t->offset_bytes > expected)
            return bad(g, t->directory_bytes, err,
                       "hole before its weights: they start at %" PRIu64 ", expected %" PRIu64,
                       t->offset_bytes, expected);
        expected = (t->offset_bytes + t->n_bytes + g->alignment - 1) & ~(g->alignment - 1);
    }
    for (uint64_t i = 0; i < ckpt->n_tensors; i++)
        ckpt->tensors[i].offset_bytes += data;
    return 0;
}

static int read_tensors(struct gguf *g, uint64_t n, struct error *err)
{
    struct checkpoint *ckpt = g->ckpt;
    ckpt->tensors = arena_calloc(&ckpt->arena, n + 1, sizeof(*ckpt->tensors));
    if (!ckpt->tensors)
        return out_of_memory(g, err);
    for (uint64_t i = 0; i < n; i++) {
        int rc = read_tensor(g, i, &ckpt->tensors[i], err);
        if (rc)
            return rc;
        ckpt->n_tensors = i + 1;
    }
    uint64_t first, second;
    if (!checkpoint_index_tensors(ckpt, &first, &second)) {
        if (first == UINT64_MAX)
            return out_of_memory(g, err);
        scope_name(g, "tensor", ckpt->tensors[second].name);
        at(g, "", NO_INDEX);
        return bad(g, ckpt->tensors[second].directory_bytes, err,
                   "the name occurs twice (first at offset %" PRIu64 ")",
                   ckpt->tensors[first].directory_bytes);
    }
    return place_tensors(g, err);
}

/* --- header --- */

static int read_magic(struct gguf *g, struct error *err)
{
    char magic[4];
    char text[ESCAPE_MAX_BYTES];
    at(g, "magic", NO_INDEX);
    int rc = read_bytes(g, magic, sizeof(magic), err);
    if (rc)
        return rc;
    if (memcmp(magic, "GGUF", 4) != 0)
        return bad(g, 0, err, "\"%s\", want \"GGUF\"", escape_text(magic, sizeof(magic), text));
    at(g, "version", NO_INDEX);
    rc = read_u32(g, &g->ckpt->version, err);
    if (rc)
        return rc;
    uint32_t version = g->ckpt->version;
    if (version && !(version & 0xFFFF))
        return bad(g, 4, err, "0x%08" PRIx32 ": a big-endian file, want little-endian", version);
    if (version < 2 || version > 3)
        return bad(g, 4, err, "%" PRIu32 ", want 2 or 3", version);
    return 0;
}

/* A count of records of at least min_bytes each. */
static int read_count(struct gguf *g, const char *what, uint64_t limit, uint64_t min_bytes,
                      uint64_t *out, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint64_t n;
    at(g, what, NO_INDEX);
    int rc = read_u64(g, &n, err);
    if (rc)
        return rc;
    if (n > limit)
        return bad(g, start, err, "%" PRIu64 " is over the limit of %" PRIu64, n, limit);
    if (n * min_bytes > byte_reader_left(&g->reader))
        return bad(g, start, err,
                   "%" PRIu64 " records of at least %" PRIu64 " bytes, only %" PRIu64
                   " bytes are left",
                   n, min_bytes, byte_reader_left(&g->reader));
    *out = n;
    return 0;
}

int gguf_read(struct source *source, struct checkpoint *ckpt, struct error *err)
{
    struct gguf g = {.ckpt = ckpt, .part = "header", .index = NO_INDEX};
    uint64_t n_tensors = 0, n_keys = 0;
    int rc = byte_reader_init(&g.reader, source, GGUF_MAX_HEADER_BYTES, err);
    if (rc)
        return rc;
    ckpt->format = "gguf";
    rc = read_magic(&g, err);
    if (!rc) /* name length + 1 byte, n_dims, one dimension, type, offset */
        rc = read_count(&g, "n_tensors", GGUF_MAX_TENSORS, 9 + 4 + 8 + 4 + 8, &n_tensors, err);
    if (!rc) /* key length + 1 byte, type, one byte */
        rc = read_count(&g, "n_kv", GGUF_MAX_KEYS, 9 + 4 + 1, &n_keys, err);
    if (!rc)
        rc = read_metadata(&g, n_keys, err);
    if (!rc)
        rc = read_alignment(&g, err);
    if (!rc)
        rc = check_split(&g, err);
    if (!rc)
        rc = read_tensors(&g, n_tensors, err);
    if (!rc)
        byte_reader_digest(&g.reader, ckpt->digest);
    byte_reader_fini(&g.reader);
    return rc;
}
