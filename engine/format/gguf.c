#include "engine/format/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/system/source.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/gguf_private.h"

/* The specification asks for a multiple of 8, ggml for a power of two. Both are accepted. */
static int read_alignment(struct gguf *g, struct error *err)
{
    const struct checkpoint_entry *e = checkpoint_entry_find(g->ckpt, "general.alignment");
    g->alignment = GGUF_DEFAULT_ALIGNMENT;
    if (!e)
        return 0;
    gguf_scope_name(g, "key", e->key);
    gguf_field(g, "", NO_INDEX);
    if (e->type != VALUE_U32)
        return gguf_bad(g, e->offset, err, "type %s, expected u32", checkpoint_type_name(e->type));
    bool is_power = e->u && !(e->u & (e->u - 1));
    if (!e->u || e->u > GGUF_MAX_ALIGNMENT || (!is_power && e->u % 8))
        return gguf_bad(g, e->offset, err,
                        "alignment %" PRIu64
                        ", expected a power of two or a multiple of 8, from 1 to %d",
                        e->u, GGUF_MAX_ALIGNMENT);
    g->alignment = e->u;
    return 0;
}

/* Refuses GGUF files that do not hold a model. */
static int check_type(const struct checkpoint *ckpt, struct error *err)
{
    static const char *const others[] = {"adapter", "mmproj", "imatrix", "controlvector"};
    const char *type = NULL;
    int rc = checkpoint_get_string_or(ckpt, "general.type", "model", &type, err);
    for (size_t i = 0; !rc && i < sizeof(others) / sizeof(others[0]); i++)
        if (strcmp(type, others[i]) == 0)
            rc = checkpoint_unbuilt_key(ckpt, "general.type", err,
                                        "the file is of type \"%s\", but a model is required; give "
                                        "the GGUF file of the model itself",
                                        type);
    return rc;
}

/* --- tensors --- */

/* ggml's type numbers. A name with dtype -1 is known but not supported. */
static const struct {
    const char *name;
    int dtype; /* -1: not supported */
} ggml_types[] = {
    [0] = {"F32", DTYPE_F32},
    [1] = {"F16", DTYPE_F16},
    [2] = {"Q4_0", DTYPE_Q4_0},
    [3] = {"Q4_1", DTYPE_Q4_1},
    [6] = {"Q5_0", DTYPE_Q5_0},
    [7] = {"Q5_1", DTYPE_Q5_1},
    [8] = {"Q8_0", DTYPE_Q8_0},
    [9] = {"Q8_1", -1},
    [10] = {"Q2_K", DTYPE_Q2_K},
    [11] = {"Q3_K", DTYPE_Q3_K},
    [12] = {"Q4_K", DTYPE_Q4_K},
    [13] = {"Q5_K", DTYPE_Q5_K},
    [14] = {"Q6_K", DTYPE_Q6_K},
    [15] = {"Q8_K", -1},
    [16] = {"IQ2_XXS", -1},
    [17] = {"IQ2_XS", -1},
    [18] = {"IQ3_XXS", -1},
    [19] = {"IQ1_S", -1},
    [20] = {"IQ4_NL", DTYPE_IQ4_NL},
    [21] = {"IQ3_S", -1},
    [22] = {"IQ2_S", -1},
    [23] = {"IQ4_XS", DTYPE_IQ4_XS},
    [24] = {"I8", DTYPE_I8},
    [25] = {"I16", -1},
    [26] = {"I32", DTYPE_I32},
    [27] = {"I64", -1},
    [28] = {"F64", -1},
    [29] = {"IQ1_M", -1},
    [30] = {"BF16", DTYPE_BF16},
    [34] = {"TQ1_0", -1},
    [35] = {"TQ2_0", -1},
    [39] = {"MXFP4", DTYPE_MXFP4},
    [40] = {"NVFP4", -1},
    [41] = {"Q1_0", -1},
    [42] = {"Q2_0", -1},
};

/* Types of ik_llama.cpp, a fork of llama.cpp, from FORK_FIRST on; and types of ggml that were
 * removed. No number of them has another meaning here. */
enum { FORK_FIRST = 97 };
static const char *const fork_types[] = {
    "Q8_0_X4",
    "Q8_1_X4",
    "Q8_2_X4",
    [133 - FORK_FIRST] = "Q6_0",
    "IQ1_BN",
    "IQ2_BN",
    "Q8_K64",
    "IQ2_K",
    "IQ3_K",
    "IQ4_K",
    "IQ5_K",
    "IQ6_K",
    [144 - FORK_FIRST] = "IQ4_KS",
    "IQ2_KS",
    "IQ4_KSS",
    [152 - FORK_FIRST] = "IQ5_KS",
    "IQ2_KT",
    "IQ3_KT",
    "IQ4_KT",
    "IQ3_KS",
    "IQ2_KL",
    "IQ1_KT",
};

/* Returns the name of a type that is known but not supported, or NULL. */
static const char *unsupported_type(uint32_t type)
{
    static const char *const removed[] = {"Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8"};
    if (type < sizeof(ggml_types) / sizeof(ggml_types[0]) && ggml_types[type].name)
        return ggml_types[type].dtype < 0 ? ggml_types[type].name : NULL;
    if (type >= 31 && type <= 33)
        return removed[type - 31];
    if (type >= 36 && type <= 38)
        return "IQ4_NL, repacked";
    uint32_t fork = type - FORK_FIRST;
    return fork < sizeof(fork_types) / sizeof(fork_types[0]) ? fork_types[fork] : NULL;
}

/* Lists the supported types, for messages. */
static const char *list_types(char *out, size_t n_bytes)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof(ggml_types) / sizeof(ggml_types[0]); i++) {
        int dtype = ggml_types[i].dtype;
        if (!ggml_types[i].name || dtype < 0 || dtype == DTYPE_I8 || dtype == DTYPE_I32)
            continue;
        int more = snprintf(out + n, n_bytes - n, "%s%s", n ? ", " : "", ggml_types[i].name);
        if (more < 0 || (size_t)more >= n_bytes - n)
            break;
        n += (size_t)more;
    }
    return out;
}

static int read_dtype(struct gguf *g, enum dtype *out_dtype, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint32_t type;
    int rc = gguf_read_u32(g, &type, err);
    if (rc)
        return rc;
    const char *unsupported = unsupported_type(type);
    if (!unsupported &&
        (type >= sizeof(ggml_types) / sizeof(ggml_types[0]) || !ggml_types[type].name))
        return gguf_bad(g, start, err, "unknown tensor type %" PRIu32, type);
    if (unsupported) {
        char known[128];
        error_set(err, STATUS_UNIMPLEMENTED,
                  "%s: offset %" PRIu64 ": %s: tensor type %s is not known, only %s are; get the "
                  "model in one of these types, or quantize it to one",
                  source_name(g->reader.source), start, g->scope, unsupported,
                  list_types(known, sizeof(known)));
        return error_reason(err, REASON_TENSOR_TYPE_UNSUPPORTED);
    }
    *out_dtype = (enum dtype)ggml_types[type].dtype;
    return 0;
}

static int read_dims(struct gguf *g, struct checkpoint_tensor *t, struct error *err)
{
    uint64_t start = g->reader.offset;
    gguf_field(g, "n_dims", NO_INDEX);
    int rc = gguf_read_u32(g, &t->n_dims, err);
    if (rc)
        return rc;
#ifndef SLUICE_SEEDED_BUG_gguf_bounds /* planted for tests/fuzz/seeded_bug.sh */
    if (t->n_dims < 1 || t->n_dims > GGUF_MAX_DIMS)
        return gguf_bad(g, start, err, "%" PRIu32 " dimensions, expected 1 to %d", t->n_dims,
                        GGUF_MAX_DIMS);
#endif
    t->n_elems = 1;
    for (uint32_t i = 0; i < CHECKPOINT_MAX_DIMS; i++)
        t->dims[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        gguf_field(g, "dims", i);
        start = g->reader.offset;
        rc = gguf_read_u64(g, &t->dims[i], err);
        if (rc)
            return rc;
        if (!t->dims[i])
            return gguf_bad(g, start, err, "dimension is 0, expected at least 1");
        if (__builtin_mul_overflow(t->n_elems, t->dims[i], &t->n_elems) || t->n_elems > INT64_MAX)
            return gguf_bad(g, start, err, "dimension %" PRIu64 " gives more than 2^63 elements",
                            t->dims[i]);
    }
    return 0;
}

static int read_tensor(struct gguf *g, uint64_t i, struct checkpoint_tensor *t, struct error *err)
{
    g->scope[0] = '\0';
    gguf_field(g, "tensor name", i);
    t->directory_bytes = g->reader.offset;
    int rc = gguf_read_name(g, GGUF_MAX_TENSOR_NAME_BYTES, &t->name, err);
    if (rc)
        return rc;
    gguf_scope_name(g, "tensor", t->name);
    rc = read_dims(g, t, err);
    if (rc)
        return rc;
    gguf_field(g, "type", NO_INDEX);
    uint64_t start = g->reader.offset;
    rc = read_dtype(g, &t->dtype, err);
    if (rc)
        return rc;
    t->type_name = dtype_name(t->dtype);
    t->file = g->file;
    uint32_t block = dtype_block_elems(t->dtype);
    if (t->dims[0] % block)
        return gguf_bad(g, start, err,
                        "rows of %" PRIu64 " elements do not divide into %s blocks of %" PRIu32,
                        t->dims[0], dtype_name(t->dtype), block);
    t->n_rows = t->n_elems / t->dims[0];
    if (__builtin_mul_overflow(t->dims[0] / block, (uint64_t)dtype_block_bytes(t->dtype),
                               &t->row_bytes) ||
        __builtin_mul_overflow(t->row_bytes, t->n_rows, &t->n_bytes) || t->n_bytes > INT64_MAX)
        return gguf_bad(g, start, err, "shape and type give more than 2^63 bytes");
    gguf_field(g, "offset", NO_INDEX);
    start = g->reader.offset;
    rc = gguf_read_u64(g, &t->offset_bytes, err);
    if (!rc && t->offset_bytes % g->alignment)
        rc = gguf_bad(g, start, err, "%" PRIu64 " is not a multiple of the alignment %" PRIu64,
                      t->offset_bytes, g->alignment);
    return rc;
}

static uint64_t align_up(uint64_t offset, uint64_t alignment)
{
    uint64_t rest = offset % alignment;
    return rest ? offset + (alignment - rest) : offset;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = *(const struct checkpoint_tensor *const *)a;
    const struct checkpoint_tensor *y = *(const struct checkpoint_tensor *const *)b;
    if (x->offset_bytes != y->offset_bytes)
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    return x->directory_bytes < y->directory_bytes ? -1 : 1;
}

/* Checks the tensors' offsets, which count from the first aligned byte after the directory. The
 * weights must lie inside the file, in order, with only padding between them. */
static int place_tensors(struct gguf *g, struct error *err)
{
    struct checkpoint *ckpt = g->ckpt;
    uint64_t size = source_size(g->reader.source);
    uint64_t data = align_up(g->reader.offset, g->alignment);
    struct checkpoint_tensor **order =
        arena_calloc(&ckpt->arena, ckpt->n_tensors + 1, sizeof(struct checkpoint_tensor *));
    if (!order)
        return gguf_out_of_memory(g, err);
    gguf_field(g, "offset", NO_INDEX);
    for (uint64_t i = 0; i < ckpt->n_tensors; i++) {
        struct checkpoint_tensor *t = &ckpt->tensors[i];
        order[i] = t;
        uint64_t room = size > data ? size - data : 0;
        if (t->offset_bytes <= room && t->n_bytes <= room - t->offset_bytes)
            continue;
        gguf_scope_name(g, "tensor", t->name);
        return gguf_bad(g, t->directory_bytes, err,
                        "%" PRIu64 " bytes at %" PRIu64
                        " after the directory reach beyond the file's %" PRIu64
                        " bytes, so the end of the file is missing",
                        t->n_bytes, t->offset_bytes, size);
    }
    qsort(order, ckpt->n_tensors, sizeof(struct checkpoint_tensor *), compare_offsets);
    uint64_t expected = 0;
    for (uint64_t i = 0; i < ckpt->n_tensors; i++) {
        const struct checkpoint_tensor *t = order[i];
        gguf_scope_name(g, "tensor", t->name);
        if (t->offset_bytes < expected)
            return gguf_bad(g, t->directory_bytes, err,
                            "its weights at %" PRIu64
                            " overlap the tensor before, which ends at %" PRIu64,
                            t->offset_bytes, expected);
        if (t->offset_bytes > expected)
            return gguf_bad(g, t->directory_bytes, err,
                            "gap before its weights: they start at %" PRIu64 ", expected %" PRIu64,
                            t->offset_bytes, expected);
        expected = align_up(t->offset_bytes + t->n_bytes, g->alignment);
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
        return gguf_out_of_memory(g, err);
    for (uint64_t i = 0; i < n; i++) {
        int rc = read_tensor(g, i, &ckpt->tensors[i], err);
        if (rc)
            return rc;
        ckpt->n_tensors = i + 1;
    }
    uint64_t first, second;
    if (!checkpoint_index_tensors(ckpt, &first, &second)) {
        if (first == UINT64_MAX)
            return gguf_out_of_memory(g, err);
        gguf_scope_name(g, "tensor", ckpt->tensors[second].name);
        gguf_field(g, "", NO_INDEX);
        return gguf_bad(g, ckpt->tensors[second].directory_bytes, err,
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
    gguf_field(g, "magic", NO_INDEX);
    int rc = gguf_read_bytes(g, magic, sizeof(magic), err);
    if (rc)
        return rc;
    if (memcmp(magic, "GGUF", 4) != 0)
        return gguf_bad(g, 0, err, "\"%s\", expected \"GGUF\"",
                        escape_text(magic, sizeof(magic), text));
    gguf_field(g, "version", NO_INDEX);
    rc = gguf_read_u32(g, &g->ckpt->version, err);
    if (rc)
        return rc;
    uint32_t version = g->ckpt->version;
    if (version && !(version & 0xFFFF))
        return gguf_bad(g, 4, err, "0x%08" PRIx32 ": a big-endian file, expected little-endian",
                        version);
    if (version < 2 || version > 3)
        return gguf_bad(g, 4, err, "%" PRIu32 ", expected 2 or 3", version);
    return 0;
}

/* Reads a count of records that have at least min_bytes bytes each. */
static int read_count(struct gguf *g, const char *what, uint64_t limit, uint64_t min_bytes,
                      uint64_t *out, struct error *err)
{
    uint64_t start = g->reader.offset;
    uint64_t n;
    gguf_field(g, what, NO_INDEX);
    int rc = gguf_read_u64(g, &n, err);
    if (rc)
        return rc;
    if (n > limit)
        return gguf_bad(g, start, err, "%" PRIu64 " is over the limit of %" PRIu64, n, limit);
    if (n * min_bytes > byte_reader_left(&g->reader))
        return gguf_bad(g, start, err,
                        "%" PRIu64 " records of at least %" PRIu64 " bytes, only %" PRIu64
                        " bytes are left",
                        n, min_bytes, byte_reader_left(&g->reader));
    *out = n;
    return 0;
}

int gguf_read(struct checkpoint *ckpt, uint32_t file, struct error *err)
{
    struct gguf g = {.ckpt = ckpt, .file = file, .part = "header", .index = NO_INDEX};
    uint64_t n_tensors = 0, n_keys = 0;
    int rc = byte_reader_init(&g.reader, ckpt->files[file].source, GGUF_MAX_HEADER_BYTES, err);
    if (rc)
        return rc;
    ckpt->format = "gguf";
    rc = read_magic(&g, err);
    if (!rc) /* smallest tensor: name length and 1 byte, n_dims, one dimension, type, offset */
        rc = read_count(&g, "n_tensors", GGUF_MAX_TENSORS, 9 + 4 + 8 + 4 + 8, &n_tensors, err);
    if (!rc) /* smallest key: key length and 1 byte, type, one byte */
        rc = read_count(&g, "n_kv", GGUF_MAX_KEYS, 9 + 4 + 1, &n_keys, err);
    if (!rc)
        rc = gguf_read_metadata(&g, n_keys, err);
    if (!rc)
        rc = read_alignment(&g, err);
    if (!rc)
        rc = check_type(g.ckpt, err);
    if (!rc)
        rc = read_tensors(&g, n_tensors, err);
    if (!rc)
        byte_reader_digest(&g.reader, ckpt->digest);
    byte_reader_fini(&g.reader);
    return rc;
}
