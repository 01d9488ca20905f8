#include "engine/format/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"
#include "base/system/source.h"
#include "base/text/json_cursor.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/file_kind.h"

enum { LENGTH_BYTES = 8, MAX_TYPE_BYTES = 32, SCRATCH_BYTES = 4096 };

static const struct {
    const char *name;
    uint32_t bits;
    enum dtype dtype;
} type_list[] = {
    {"F32", 32, DTYPE_F32},      {"F16", 16, DTYPE_F16},          {"BF16", 16, DTYPE_BF16},
    {"F64", 64, DTYPE_OTHER},    {"F8_E4M3", 8, DTYPE_OTHER},     {"F8_E5M2", 8, DTYPE_OTHER},
    {"F8_E8M0", 8, DTYPE_OTHER}, {"F8_E4M3FNUZ", 8, DTYPE_OTHER}, {"F8_E5M2FNUZ", 8, DTYPE_OTHER},
    {"F6_E2M3", 6, DTYPE_OTHER}, {"F6_E3M2", 6, DTYPE_OTHER},     {"F4", 4, DTYPE_OTHER},
    {"BOOL", 8, DTYPE_OTHER},    {"U8", 8, DTYPE_OTHER},          {"I8", 8, DTYPE_OTHER},
    {"U16", 16, DTYPE_OTHER},    {"I16", 16, DTYPE_OTHER},        {"U32", 32, DTYPE_OTHER},
    {"I32", 32, DTYPE_OTHER},    {"U64", 64, DTYPE_OTHER},        {"I64", 64, DTYPE_OTHER},
    {"C64", 64, DTYPE_OTHER},
};

enum { N_TYPES = sizeof(type_list) / sizeof(type_list[0]) };

/* A header while it is read. */
struct header {
    struct checkpoint *ckpt;
    uint32_t file;
    struct json_cursor cursor;
    struct arena scratch; /* texts of one tensor's fields */
    uint64_t data_begin;  /* offset of the weights in the file */
    uint64_t n_data;      /* bytes after the header */
    uint64_t first_tensor;
    bool is_mlx;
};

/* Where the fields of a tensor stand in the text; 0: not yet seen. */
struct fields {
    size_t type_at, shape_at, offsets_at;
    uint32_t type;
    uint64_t begin, end; /* within the weights */
};

static int read_type(struct header *h, struct fields *f, struct error *err)
{
    char text[ESCAPE_MAX_BYTES];
    const char *name = NULL;
    size_t n = 0;
    int rc = json_cursor_string(&h->cursor, &h->scratch, MAX_TYPE_BYTES, &name, &n, err);
    if (rc)
        return rc;
    for (f->type = 0; f->type < N_TYPES; f->type++)
        if (strcmp(type_list[f->type].name, name) == 0 && strlen(name) == n)
            return 0;
    return json_cursor_bad(&h->cursor, f->type_at, err, "unknown type \"%s\"",
                           escape_text(name, n, text));
}

/* A whole number that is not negative. */
static int read_whole(struct header *h, uint64_t *out, struct error *err)
{
    enum json_value value = JSON_VALUE_NULL;
    struct json_number number = {0};
    int rc = json_cursor_peek(&h->cursor, &value, err); /* passes white space */
    size_t at = h->cursor.at;
    if (!rc)
        rc = json_cursor_number(&h->cursor, &number, err);
    if (rc)
        return rc;
    if (!number.is_integer || (number.is_negative && number.i != 0))
        return json_cursor_bad(&h->cursor, at, err, "%g, expected a whole number from 0 to 2^63",
                               number.f);
    uint64_t n = number.is_negative ? 0 : number.u;
    if (n > INT64_MAX)
        return json_cursor_bad(&h->cursor, at, err, "%" PRIu64 " is over the limit of 2^63", n);
    *out = n;
    return 0;
}

static int read_shape(struct header *h, struct checkpoint_tensor *t, struct error *err)
{
    uint64_t shape[CHECKPOINT_MAX_DIMS];
    uint32_t n = 0;
    bool more = false;
    int rc = json_cursor_enter_array(&h->cursor, err);
    t->n_elems = 1;
    for (;;) {
        if (!rc)
            rc = json_cursor_next_element(&h->cursor, &more, err);
        if (rc || !more)
            break;
        size_t at = h->cursor.at;
        if (n == CHECKPOINT_MAX_DIMS)
            return json_cursor_bad(&h->cursor, at, err, "more than %d dimensions",
                                   CHECKPOINT_MAX_DIMS);
        rc = read_whole(h, &shape[n], err);
        if (rc)
            return rc;
        if (!shape[n])
            return json_cursor_bad(&h->cursor, at, err, "dimension is 0, expected at least 1");
        if (__builtin_mul_overflow(t->n_elems, shape[n], &t->n_elems) || t->n_elems > INT64_MAX)
            return json_cursor_bad(&h->cursor, at, err,
                                   "dimension %" PRIu64 " gives more than 2^63 elements", shape[n]);
        n++;
    }
    for (uint32_t i = 0; i < CHECKPOINT_MAX_DIMS; i++)
        t->dims[i] = i < n ? shape[n - 1 - i] : 1;
    t->n_dims = n ? n : 1; /* a scalar: one element */
    return rc;
}

static int read_offsets(struct header *h, struct fields *f, struct error *err)
{
    uint64_t pair[2] = {0, 0};
    bool more = true;
    int rc = json_cursor_enter_array(&h->cursor, err);
    for (int i = 0; i < 2 && !rc; i++) {
        rc = json_cursor_next_element(&h->cursor, &more, err);
        if (!rc && !more)
            return json_cursor_bad(&h->cursor, f->offsets_at, err, "expected two offsets");
        if (!rc)
            rc = read_whole(h, &pair[i], err);
    }
    if (!rc)
        rc = json_cursor_next_element(&h->cursor, &more, err);
    if (rc)
        return rc;
    if (more)
        return json_cursor_bad(&h->cursor, f->offsets_at, err, "expected two offsets");
    if (pair[0] > pair[1])
        return json_cursor_bad(&h->cursor, f->offsets_at, err,
                               "the weights end at %" PRIu64 ", before their begin %" PRIu64,
                               pair[1], pair[0]);
    if (pair[1] > h->n_data)
        return json_cursor_bad(&h->cursor, f->offsets_at, err,
                               "the weights end at %" PRIu64 ", but only %" PRIu64
                               " bytes follow the header, so the end of the file is missing",
                               pair[1], h->n_data);
    f->begin = pair[0];
    f->end = pair[1];
    return 0;
}

static int read_field(struct header *h, const char *key, struct checkpoint_tensor *t,
                      struct fields *f, struct error *err)
{
    enum json_value value = JSON_VALUE_NULL;
    char text[ESCAPE_MAX_BYTES];
    size_t *at = strcmp(key, "dtype") == 0          ? &f->type_at
                 : strcmp(key, "shape") == 0        ? &f->shape_at
                 : strcmp(key, "data_offsets") == 0 ? &f->offsets_at
                                                    : NULL;
    int rc = json_cursor_peek(&h->cursor, &value, err); /* passes white space */
    if (rc)
        return rc;
    if (!at)
        return json_cursor_bad(&h->cursor, h->cursor.at, err,
                               "key \"%s\", expected dtype, shape and data_offsets",
                               escape_text(key, strlen(key), text));
    if (*at)
        return json_cursor_bad(&h->cursor, h->cursor.at, err, "the key \"%s\" occurs twice", key);
    *at = h->cursor.at;
    return at == &f->type_at    ? read_type(h, f, err)
           : at == &f->shape_at ? read_shape(h, t, err)
                                : read_offsets(h, f, err);
}

/* Computes the sizes and compares them with the offsets. */
static int check_tensor(struct header *h, struct checkpoint_tensor *t, const struct fields *f,
                        struct error *err)
{
    uint64_t n_bits = 0;
    uint32_t bits = type_list[f->type].bits;
    t->type_name = type_list[f->type].name;
    t->dtype = type_list[f->type].dtype;
    t->n_rows = t->n_elems / t->dims[0];
    if (__builtin_mul_overflow(t->n_elems, (uint64_t)bits, &n_bits) || n_bits % 8 != 0 ||
        n_bits / 8 != f->end - f->begin)
        return json_cursor_bad(&h->cursor, f->offsets_at, err,
                               "%" PRIu64 " bytes of weights, but shape and type %s give %" PRIu64
                               " elements of %" PRIu32 " bits",
                               f->end - f->begin, t->type_name, t->n_elems, bits);
    t->n_bytes = n_bits / 8;
    t->row_bytes = t->dtype == DTYPE_OTHER ? 0 : t->dims[0] * (bits / 8);
    t->offset_bytes = h->data_begin + f->begin;
    t->file = h->file;
    return 0;
}

static int read_tensor(struct header *h, const char *name, size_t name_at, struct error *err)
{
    struct fields f = {0};
    if (h->ckpt->n_tensors == SAFETENSORS_MAX_TENSORS)
        return json_cursor_bad(&h->cursor, name_at, err, "more than %d tensors",
                               SAFETENSORS_MAX_TENSORS);
    struct checkpoint_tensor *t = checkpoint_add_tensor(h->ckpt);
    if (!t)
        return json_cursor_out_of_memory(&h->cursor, err);
    t->name = name;
    t->directory_bytes = h->cursor.file_offset + name_at;
    json_cursor_scope(&h->cursor, "tensor", name);
    int rc = json_cursor_enter_object(&h->cursor, err);
    while (!rc) {
        const char *key = NULL;
        arena_reset(&h->scratch);
        rc = json_cursor_next_key(&h->cursor, &h->scratch, MAX_TYPE_BYTES, &key, err);
        if (!rc && !key)
            break;
        if (!rc)
            rc = read_field(h, key, t, &f, err);
    }
    if (rc)
        return rc;
    if (!f.type_at || !f.shape_at || !f.offsets_at)
        return json_cursor_bad(&h->cursor, name_at, err, "%s is missing",
                               !f.type_at    ? "dtype"
                               : !f.shape_at ? "shape"
                                             : "data_offsets");
    rc = check_tensor(h, t, &f, err);
    h->cursor.scope[0] = '\0';
    return rc;
}

/* __metadata__: strings by name. Only "format" has a meaning. */
static int read_metadata(struct header *h, struct error *err)
{
    json_cursor_scope(&h->cursor, "key", "__metadata__");
    int rc = json_cursor_enter_object(&h->cursor, err);
    while (!rc) {
        const char *key = NULL, *value = NULL;
        size_t n = 0;
        arena_reset(&h->scratch);
        rc = json_cursor_next_key(&h->cursor, &h->scratch, SAFETENSORS_MAX_NAME_BYTES, &key, err);
        if (!rc && !key)
            break;
        if (!rc)
            rc = json_cursor_string(&h->cursor, &h->scratch, h->cursor.n_bytes, &value, &n, err);
        if (!rc && strcmp(key, "format") == 0)
            h->is_mlx = strcmp(value, "mlx") == 0;
    }
    h->cursor.scope[0] = '\0';
    return rc;
}

static int read_members(struct header *h, struct error *err)
{
    size_t metadata_at = 0;
    int rc = json_cursor_enter_object(&h->cursor, err);
    while (!rc) {
        const char *name = NULL;
        rc = json_cursor_next_key(&h->cursor, &h->ckpt->arena, SAFETENSORS_MAX_NAME_BYTES, &name,
                                  err);
        if (!rc && !name)
            break;
        if (rc)
            return rc;
        size_t name_at = h->cursor.at;
        if (strcmp(name, "__metadata__") == 0) {
            if (metadata_at)
                return json_cursor_bad(&h->cursor, name_at, err,
                                       "the key \"__metadata__\" occurs twice");
            metadata_at = name_at;
            rc = read_metadata(h, err);
        } else {
            rc = read_tensor(h, name, name_at, err);
        }
    }
    return rc ? rc : json_cursor_end(&h->cursor, err);
}

static int compare_places(const void *a, const void *b)
{
    const struct checkpoint_tensor *x = *(const struct checkpoint_tensor *const *)a;
    const struct checkpoint_tensor *y = *(const struct checkpoint_tensor *const *)b;
    if (x->offset_bytes != y->offset_bytes)
        return x->offset_bytes < y->offset_bytes ? -1 : 1;
    return x->directory_bytes < y->directory_bytes ? -1 : 1;
}

/* The weights follow each other and fill the file. */
static int check_places(struct header *h, struct error *err)
{
    struct checkpoint *ckpt = h->ckpt;
    uint64_t n = ckpt->n_tensors - h->first_tensor, expected = h->data_begin;
    const struct checkpoint_tensor **order = malloc((n + 1) * sizeof(*order));
    if (!order)
        return json_cursor_out_of_memory(&h->cursor, err);
    for (uint64_t i = 0; i < n; i++)
        order[i] = &ckpt->tensors[h->first_tensor + i];
    qsort(order, n, sizeof(*order), compare_places);
    int rc = 0;
    for (uint64_t i = 0; i < n && !rc; i++) {
        uint64_t begin = order[i]->offset_bytes;
        if (begin < expected)
            rc = checkpoint_bad_tensor(ckpt, order[i], err,
                                       "its weights at byte %" PRIu64
                                       " overlap the tensor before, which ends at %" PRIu64,
                                       begin, expected);
        else if (begin > expected)
            rc = checkpoint_bad_tensor(ckpt, order[i], err,
                                       "gap before its weights: they start at byte %" PRIu64
                                       ", expected %" PRIu64,
                                       begin, expected);
        expected = begin + order[i]->n_bytes;
    }
    free(order);
    if (!rc && expected != h->data_begin + h->n_data)
        rc = json_cursor_bad(&h->cursor, expected - h->cursor.file_offset, err,
                             "%" PRIu64 " bytes follow the last tensor, expected none",
                             h->data_begin + h->n_data - expected);
    return rc;
}

static int bad_length(const char *label, uint64_t n_header, uint64_t size, struct error *err)
{
    error_set(err, STATUS_INVALID_ARGUMENT,
              "%s: offset 0: header of %" PRIu64
              " bytes, expected 2 to %d, and at most the %" PRIu64
              " bytes after the length; " CHECKPOINT_REMEDY,
              label, n_header, SAFETENSORS_MAX_HEADER_BYTES,
              size > LENGTH_BYTES ? size - LENGTH_BYTES : 0);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

/* Reads the length and checks it. */
static int read_length(struct source *source, const char *label, unsigned char bytes[LENGTH_BYTES],
                       uint64_t *out, struct error *err)
{
    uint64_t size = source_size(source), n_header = 0;
    if (size < LENGTH_BYTES + 2) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "%s: offset 0: the file has %" PRIu64
                  " bytes, a safetensors file has at least 10; " CHECKPOINT_REMEDY,
                  label, size);
        return error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    int rc = source_read(source, 0, bytes, LENGTH_BYTES, err);
    if (rc)
        return rc;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        n_header = n_header << 8 | bytes[i];
    if (n_header < 2 || n_header > SAFETENSORS_MAX_HEADER_BYTES || n_header > size - LENGTH_BYTES) {
        rc = file_kind_explain(source, label, "a safetensors file",
                               err); /* a better message, if it applies */
        return rc ? rc : bad_length(label, n_header, size, err);
    }
    *out = n_header;
    return 0;
}

int safetensors_read(struct checkpoint *ckpt, uint32_t file, struct sha256 *sha, bool *out_is_mlx,
                     struct error *err)
{
    struct source *source = ckpt->files[file].source;
    const char *label = checkpoint_label(ckpt, file);
    unsigned char length[LENGTH_BYTES];
    uint64_t n_header = 0;
    int rc = read_length(source, label, length, &n_header, err);
    if (rc)
        return rc;
    char *text = malloc(n_header);
    if (!text)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", label);
    struct header h = {
        .ckpt = ckpt,
        .file = file,
        .data_begin = LENGTH_BYTES + n_header,
        .n_data = source_size(source) - LENGTH_BYTES - n_header,
        .first_tensor = ckpt->n_tensors,
    };
    arena_init(&h.scratch, SCRATCH_BYTES, 0);
    rc = source_read(source, LENGTH_BYTES, text, n_header, err);
    if (!rc)
        rc = json_cursor_init(&h.cursor, text, n_header, label, LENGTH_BYTES, err);
    if (!rc)
        rc = read_members(&h, err);
    if (!rc)
        rc = check_places(&h, err);
    if (!rc) {
        sha256_update(sha, length, sizeof(length));
        sha256_update(sha, text, n_header);
        *out_is_mlx = h.is_mlx;
    }
    arena_fini(&h.scratch);
    free(text);
    return rc;
}
