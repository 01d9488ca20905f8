#include "engine/format/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/system/folder.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/gguf.h"
#include "engine/format/hf.h"

int checkpoint_open(const char *path, struct checkpoint **out_checkpoint, struct error *err)
{
    struct checkpoint *ckpt = calloc(1, sizeof(*ckpt));
    if (!ckpt)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "model file: out of memory");
    arena_init(&ckpt->arena, 256 * 1024, 0);
    int rc =
        folder_is_one(path) ? hf_open_folder(path, ckpt, err) : gguf_open_model(path, ckpt, err);
    if (!rc)
        rc = checkpoint_check(ckpt, err);
    if (rc) {
        checkpoint_close(ckpt);
        return rc;
    }
    *out_checkpoint = ckpt;
    return 0;
}

void checkpoint_close(struct checkpoint *ckpt)
{
    if (!ckpt)
        return;
    checkpoint_close_files(ckpt);
    arena_fini(&ckpt->arena);
    free(ckpt);
}

const char *checkpoint_name(const struct checkpoint *ckpt)
{
    return ckpt->name;
}

const char *checkpoint_format(const struct checkpoint *ckpt)
{
    return ckpt->format;
}

uint32_t checkpoint_format_version(const struct checkpoint *ckpt)
{
    return ckpt->version;
}

const char *checkpoint_architecture(const struct checkpoint *ckpt)
{
    return ckpt->architecture;
}

uint64_t checkpoint_n_tokens(const struct checkpoint *ckpt)
{
    const struct checkpoint_entry *e = checkpoint_entry_find(ckpt, "tokenizer.ggml.tokens");
    bool listed = e && e->type == VALUE_ARRAY && e->array.type == VALUE_STRING;
    return listed ? e->array.n : ckpt->n_tokens;
}

void checkpoint_set_n_tokens(struct checkpoint *ckpt, uint64_t n_tokens)
{
    ckpt->n_tokens = n_tokens;
}

void checkpoint_digest(const struct checkpoint *ckpt, uint8_t out_digest[SHA256_BYTES])
{
    memcpy(out_digest, ckpt->digest, SHA256_BYTES);
}

/* --- growth --- */

/* Returns the list with room for one more element of n_bytes, in the arena; NULL: out of memory.
 * The arena keeps the shorter lists, together no larger than the last one. */
static void *grow(struct arena *arena, void *list, uint64_t n, uint64_t *capacity, size_t n_bytes)
{
    if (n < *capacity)
        return list;
    uint64_t wider = n < 16 ? 32 : 2 * n;
    void *grown = arena_calloc(arena, wider, n_bytes);
    if (!grown)
        return NULL;
    if (n)
        memcpy(grown, list, n * n_bytes);
    *capacity = wider;
    return grown;
}

struct checkpoint_tensor *checkpoint_add_tensor(struct checkpoint *ckpt)
{
    struct checkpoint_tensor *list =
        grow(&ckpt->arena, ckpt->tensors, ckpt->n_tensors, &ckpt->tensors_capacity, sizeof(*list));
    if (!list)
        return NULL;
    ckpt->tensors = list;
    return &list[ckpt->n_tensors++];
}

struct checkpoint_entry *checkpoint_add_entry(struct checkpoint *ckpt)
{
    struct checkpoint_entry *list =
        grow(&ckpt->arena, ckpt->entries, ckpt->n_entries, &ckpt->entries_capacity, sizeof(*list));
    if (!list)
        return NULL;
    ckpt->entries = list;
    return &list[ckpt->n_entries++];
}

/* --- indices --- */

/* qsort's callback has no context, so names are stored beside the numbers while sorting. */
struct named {
    const char *name;
    uint32_t index;
};

static int compare_named(const void *a, const void *b)
{
    const struct named *x = a;
    const struct named *y = b;
    int order = strcmp(x->name, y->name);
    if (order)
        return order;
    return x->index < y->index ? -1 : x->index > y->index;
}

static bool sort_names(struct named *named, uint64_t n, uint32_t *out_order, uint64_t *out_first,
                       uint64_t *out_second)
{
    qsort(named, n, sizeof(*named), compare_named);
    for (uint64_t i = 0; i < n; i++) {
        out_order[i] = named[i].index;
        if (i && strcmp(named[i - 1].name, named[i].name) == 0) {
            *out_first = named[i - 1].index;
            *out_second = named[i].index;
            return false;
        }
    }
    return true;
}

bool checkpoint_index_entries(struct checkpoint *ckpt, uint64_t *out_first, uint64_t *out_second)
{
    uint64_t n = ckpt->n_entries;
    struct named *named = arena_calloc(&ckpt->arena, n + 1, sizeof(*named));
    ckpt->entries_by_key = arena_calloc(&ckpt->arena, n + 1, sizeof(uint32_t));
    *out_first = *out_second = UINT64_MAX;
    if (!named || !ckpt->entries_by_key)
        return false;
    for (uint64_t i = 0; i < n; i++)
        named[i] = (struct named){ckpt->entries[i].key, (uint32_t)i};
    return sort_names(named, n, ckpt->entries_by_key, out_first, out_second);
}

bool checkpoint_index_tensors(struct checkpoint *ckpt, uint64_t *out_first, uint64_t *out_second)
{
    uint64_t n = ckpt->n_tensors;
    struct named *named = arena_calloc(&ckpt->arena, n + 1, sizeof(*named));
    ckpt->tensors_by_name = arena_calloc(&ckpt->arena, n + 1, sizeof(uint32_t));
    *out_first = *out_second = UINT64_MAX;
    if (!named || !ckpt->tensors_by_name)
        return false;
    for (uint64_t i = 0; i < n; i++)
        named[i] = (struct named){ckpt->tensors[i].name, (uint32_t)i};
    return sort_names(named, n, ckpt->tensors_by_name, out_first, out_second);
}

const struct checkpoint_entry *checkpoint_entry_find(const struct checkpoint *ckpt, const char *key)
{
    uint64_t low = 0, high = ckpt->n_entries;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        const struct checkpoint_entry *entry = &ckpt->entries[ckpt->entries_by_key[mid]];
        int order = strcmp(key, entry->key);
        if (!order)
            return entry;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

const struct checkpoint_tensor *checkpoint_tensor_find(const struct checkpoint *ckpt,
                                                       const char *name)
{
    uint64_t low = 0, high = ckpt->n_tensors;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        const struct checkpoint_tensor *tensor = &ckpt->tensors[ckpt->tensors_by_name[mid]];
        int order = strcmp(name, tensor->name);
        if (!order)
            return tensor;
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

/* --- metadata --- */

static int find_or_fail(const struct checkpoint *ckpt, const char *key,
                        const struct checkpoint_entry **out_entry, struct error *err)
{
    *out_entry = checkpoint_entry_find(ckpt, key);
    if (*out_entry)
        return 0;
    return checkpoint_missing_key(ckpt, key, err);
}

bool checkpoint_has(const struct checkpoint *ckpt, const char *key)
{
    return checkpoint_entry_find(ckpt, key) != NULL;
}

static enum checkpoint_kind kind_of(enum value_type type)
{
    switch (type) {
    case VALUE_BOOL:
        return CHECKPOINT_BOOL;
    case VALUE_F32:
    case VALUE_F64:
        return CHECKPOINT_FLOAT;
    case VALUE_STRING:
        return CHECKPOINT_STRING;
    case VALUE_ARRAY:
        return CHECKPOINT_ARRAY;
    default:
        return CHECKPOINT_INT;
    }
}

static bool is_signed(enum value_type type)
{
    return type == VALUE_I8 || type == VALUE_I16 || type == VALUE_I32 || type == VALUE_I64;
}

int checkpoint_get_u64(const struct checkpoint *ckpt, const char *key, uint64_t *out,
                       struct error *err)
{
    const struct checkpoint_entry *e;
    int rc = find_or_fail(ckpt, key, &e, err);
    if (rc)
        return rc;
    if (kind_of(e->type) != CHECKPOINT_INT)
        return checkpoint_bad_key(ckpt, key, err, "type %s, expected an integer",
                                  checkpoint_type_name(e->type));
    if (is_signed(e->type) && e->i < 0)
        return checkpoint_bad_key(ckpt, key, err, "%" PRId64 " is negative", e->i);
    *out = e->u;
    return 0;
}

int checkpoint_get_f64(const struct checkpoint *ckpt, const char *key, double *out,
                       struct error *err)
{
    const struct checkpoint_entry *e;
    int rc = find_or_fail(ckpt, key, &e, err);
    if (rc)
        return rc;
    double value;
    if (kind_of(e->type) == CHECKPOINT_FLOAT)
        value = e->f;
    else if (kind_of(e->type) == CHECKPOINT_INT)
        value = is_signed(e->type) ? (double)e->i : (double)e->u;
    else
        return checkpoint_bad_key(ckpt, key, err, "type %s, expected a number",
                                  checkpoint_type_name(e->type));
    if (!isfinite(value))
        return checkpoint_bad_key(ckpt, key, err, "%g is not a finite number", value);
    *out = value;
    return 0;
}

int checkpoint_get_bool(const struct checkpoint *ckpt, const char *key, bool *out,
                        struct error *err)
{
    const struct checkpoint_entry *e;
    int rc = find_or_fail(ckpt, key, &e, err);
    if (rc)
        return rc;
    if (e->type != VALUE_BOOL)
        return checkpoint_bad_key(ckpt, key, err, "type %s, expected bool",
                                  checkpoint_type_name(e->type));
    *out = e->u != 0;
    return 0;
}

int checkpoint_get_string(const struct checkpoint *ckpt, const char *key, const char **out_text,
                          size_t *out_n_bytes, struct error *err)
{
    const struct checkpoint_entry *e;
    int rc = find_or_fail(ckpt, key, &e, err);
    if (rc)
        return rc;
    if (e->type != VALUE_STRING)
        return checkpoint_bad_key(ckpt, key, err, "type %s, expected string",
                                  checkpoint_type_name(e->type));
    if (memchr(e->string.data, '\0', e->string.n_bytes))
        return checkpoint_bad_key(ckpt, key, err, "the text has a NUL byte inside");
    *out_text = e->string.data;
    if (out_n_bytes)
        *out_n_bytes = e->string.n_bytes;
    return 0;
}

int checkpoint_get_u64_or(const struct checkpoint *ckpt, const char *key, uint64_t fallback,
                          uint64_t *out, struct error *err)
{
    if (checkpoint_has(ckpt, key))
        return checkpoint_get_u64(ckpt, key, out, err);
    *out = fallback;
    return 0;
}

int checkpoint_get_f64_or(const struct checkpoint *ckpt, const char *key, double fallback,
                          double *out, struct error *err)
{
    if (checkpoint_has(ckpt, key))
        return checkpoint_get_f64(ckpt, key, out, err);
    *out = fallback;
    return 0;
}

int checkpoint_get_bool_or(const struct checkpoint *ckpt, const char *key, bool fallback, bool *out,
                           struct error *err)
{
    if (checkpoint_has(ckpt, key))
        return checkpoint_get_bool(ckpt, key, out, err);
    *out = fallback;
    return 0;
}

int checkpoint_get_string_or(const struct checkpoint *ckpt, const char *key, const char *fallback,
                             const char **out_text, struct error *err)
{
    if (checkpoint_has(ckpt, key))
        return checkpoint_get_string(ckpt, key, out_text, NULL, err);
    *out_text = fallback;
    return 0;
}

int checkpoint_get_array(const struct checkpoint *ckpt, const char *key, enum checkpoint_kind kind,
                         struct checkpoint_array *out_array, struct error *err)
{
    static const char *const names[] = {"bool", "integers", "floats", "strings", "arrays"};
    const struct checkpoint_entry *e;
    int rc = find_or_fail(ckpt, key, &e, err);
    if (rc)
        return rc;
    if (e->type != VALUE_ARRAY)
        return checkpoint_bad_key(ckpt, key, err, "type %s, expected an array of %s",
                                  checkpoint_type_name(e->type), names[kind]);
    if (kind_of(e->array.type) != kind && (e->array.n || e->array.type != VALUE_ARRAY))
        return checkpoint_bad_key(ckpt, key, err, "array of %s, expected an array of %s",
                                  checkpoint_type_name(e->array.type), names[kind]);
    *out_array = (struct checkpoint_array){.kind = kind,
                                           .element_type = e->array.type,
                                           .n = e->array.n,
                                           .data = e->array.data,
                                           .ends = e->array.ends};
    return 0;
}

int64_t checkpoint_array_int(const struct checkpoint_array *array, uint64_t i)
{
    return checkpoint_value_int((enum value_type)array->element_type, array->data, i);
}

double checkpoint_array_float(const struct checkpoint_array *array, uint64_t i)
{
    return checkpoint_value_float((enum value_type)array->element_type, array->data, i);
}

const char *checkpoint_array_string(const struct checkpoint_array *array, uint64_t i,
                                    size_t *out_n_bytes)
{
    uint64_t begin = i ? array->ends[i - 1] : 0;
    *out_n_bytes = (size_t)(array->ends[i] - begin);
    return (const char *)array->data + begin;
}

/* --- tensors --- */

uint64_t checkpoint_n_tensors(const struct checkpoint *ckpt)
{
    return ckpt->n_tensors;
}

const struct checkpoint_tensor *checkpoint_tensor_at(const struct checkpoint *ckpt, uint64_t i)
{
    return &ckpt->tensors[i];
}
