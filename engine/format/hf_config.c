/* The values of config.json and generation_config.json as metadata. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/json_cursor.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/hf.h"

/* Type of entries that mark a null, an object, or an array of containers. Marks hold no value. They
 * let a duplicate key be found. */
#define MARK N_VALUE_TYPES

struct flattener {
    struct checkpoint *ckpt;
    uint32_t file;
    struct json_cursor cursor;
};

static int read_value(struct flattener *f, const char *path, struct error *err);

/* NULL: *err says why. */
static struct checkpoint_entry *add_entry(struct flattener *f, const char *path,
                                          enum value_type type, struct error *err)
{
    struct checkpoint_entry *entry = NULL;
    if (f->ckpt->n_entries == HF_MAX_KEYS) {
        json_cursor_bad(&f->cursor, f->cursor.at, err, "more than %d keys", HF_MAX_KEYS);
        return NULL;
    }
    entry = checkpoint_add_entry(f->ckpt);
    if (entry)
        *entry = (struct checkpoint_entry){
            .key = path, .offset = f->cursor.at, .file = f->file, .type = type};
    else
        json_cursor_out_of_memory(&f->cursor, err);
    return entry;
}

/* Joins a path and the next name in the arena. A dot or backslash in the name gets a backslash, so
 * that no name can be taken for a path. */
static int join(struct flattener *f, const char *path, const char *name, const char **out,
                struct error *err)
{
    size_t n_path = strlen(path), n = n_path + 1 + strlen(name);
    for (const char *c = name; *c; c++)
        n += *c == '.' || *c == '\\';
    if (n > HF_MAX_PATH_BYTES)
        return json_cursor_bad(&f->cursor, f->cursor.at, err,
                               "the key's path is longer than %d bytes", HF_MAX_PATH_BYTES);
    char *joined = arena_alloc(&f->ckpt->arena, n + 1);
    if (!joined)
        return json_cursor_out_of_memory(&f->cursor, err);
    char *at = joined + snprintf(joined, n + 1, "%s%s", path, n_path ? "." : "");
    for (const char *c = name; *c; c++) {
        if (*c == '.' || *c == '\\')
            *at++ = '\\';
        *at++ = *c;
    }
    *at = '\0';
    *out = joined;
    return 0;
}

static int read_object(struct flattener *f, const char *path, struct error *err)
{
    if (*path && !add_entry(f, path, MARK, err))
        return err->status;
    int rc = json_cursor_enter_object(&f->cursor, err);
    while (!rc) {
        const char *key = NULL, *child = NULL;
        rc = json_cursor_next_key(&f->cursor, &f->ckpt->arena, HF_MAX_PATH_BYTES, &key, err);
        if (!rc && !key)
            break;
        if (!rc)
            rc = join(f, path, key, &child, err);
        if (!rc)
            rc = read_value(f, child, err);
    }
    return rc;
}

/* --- arrays --- */

/* The contents of an array of scalars. */
struct census {
    uint64_t n;
    enum json_value kind; /* the kind of all elements */
    bool is_mixed;        /* an element is a container, null, or of another kind */
    bool all_integers;
    size_t end; /* position after the array */
};

/* Passes over the array and counts its elements. Stops at an element that makes the array mixed, so
 * that nested arrays are not scanned once per level. */
static int count_elements(struct flattener *f, struct census *out, struct error *err)
{
    struct json_cursor *c = &f->cursor;
    *out = (struct census){.all_integers = true};
    int rc = json_cursor_enter_array(c, err);
    while (!rc) {
        enum json_value value = JSON_VALUE_NULL;
        struct json_number number = {0};
        bool more = false;
        rc = json_cursor_next_element(c, &more, err);
        if (rc || !more)
            break;
        rc = json_cursor_peek(c, &value, err);
        if (rc)
            break;
        if (!out->n)
            out->kind = value;
        out->n++;
        out->is_mixed = value != out->kind || value == JSON_VALUE_OBJECT ||
                        value == JSON_VALUE_ARRAY || value == JSON_VALUE_NULL;
        if (out->is_mixed)
            return 0;
        if (value != JSON_VALUE_NUMBER) {
            rc = json_cursor_skip(c, err);
            continue;
        }
        rc = json_cursor_number(c, &number, err);
        if (!number.is_integer || (!number.is_negative && number.u > INT64_MAX))
            out->all_integers = false;
    }
    out->end = c->at;
    return rc;
}

/* Elements of one kind, which is not a container. Their sizes come from the census. */
static int read_scalars(struct flattener *f, const char *path, const struct census *census,
                        struct error *err)
{
    struct json_cursor *c = &f->cursor;
    struct arena *arena = &f->ckpt->arena;
    bool is_text = census->kind == JSON_VALUE_STRING, is_bool = census->kind == JSON_VALUE_BOOL;
    size_t n_text = 0, n_data = is_text   ? census->end - c->at
                                : is_bool ? census->n
                                          : census->n * sizeof(uint64_t);
    struct checkpoint_entry *entry = add_entry(f, path, VALUE_ARRAY, err);
    if (!entry)
        return err->status;
    unsigned char *data = arena_alloc(arena, n_data + 1);
    uint64_t *ends = is_text ? arena_calloc(arena, census->n + 1, sizeof(*ends)) : NULL;
    if (!data || (is_text && !ends))
        return json_cursor_out_of_memory(c, err);
    entry->array.type = is_text                ? VALUE_STRING
                        : is_bool              ? VALUE_BOOL
                        : census->all_integers ? VALUE_I64
                                               : VALUE_F64;
    entry->array.n = census->n;
    entry->array.data = data;
    entry->array.ends = ends;
    int rc = json_cursor_enter_array(c, err);
    for (uint64_t i = 0; i < census->n && !rc; i++) {
        const char *text = NULL;
        size_t n = 0;
        bool more, flag = false;
        struct json_number number = {0};
        rc = json_cursor_next_element(c, &more, err);
        if (rc)
            break;
        if (is_text) {
            rc = json_cursor_string(c, arena, HF_MAX_STRING_BYTES, &text, &n, err);
            if (!rc)
                memcpy(data + n_text, text, n);
            n_text += n;
            ends[i] = n_text;
        } else if (is_bool) {
            rc = json_cursor_bool(c, &flag, err);
            data[i] = flag;
        } else {
            rc = json_cursor_number(c, &number, err);
            int64_t whole = number.is_negative ? number.i : (int64_t)number.u;
            memcpy(data + 8 * i, census->all_integers ? (void *)&whole : (void *)&number.f, 8);
        }
    }
    bool more;
    return rc ? rc : json_cursor_next_element(c, &more, err);
}

/* Containers, or elements of several kinds: one path per element. */
static int read_elements(struct flattener *f, const char *path, struct error *err)
{
    bool more = false;
    if (!add_entry(f, path, MARK, err))
        return err->status;
    int rc = json_cursor_enter_array(&f->cursor, err);
    for (uint64_t i = 0; !rc; i++) {
        char number[24];
        const char *child = NULL;
        rc = json_cursor_next_element(&f->cursor, &more, err);
        if (rc || !more)
            break;
        snprintf(number, sizeof(number), "%" PRIu64, i);
        rc = join(f, path, number, &child, err);
        if (!rc)
            rc = read_value(f, child, err);
    }
    return rc;
}

static int read_array(struct flattener *f, const char *path, struct error *err)
{
    struct json_cursor before = f->cursor;
    struct census census = {0};
    struct checkpoint_entry *entry = NULL;
    int rc = count_elements(f, &census, err);
    if (rc)
        return rc;
    if (!census.n) { /* without a kind */
        entry = add_entry(f, path, VALUE_ARRAY, err);
        if (!entry)
            return err->status;
        entry->array.type = VALUE_ARRAY;
        entry->offset = before.at;
        return 0;
    }
    f->cursor = before;
    if (!census.is_mixed)
        return read_scalars(f, path, &census, err);
    return read_elements(f, path, err);
}

/* --- values --- */

static int read_number(struct flattener *f, const char *path, struct error *err)
{
    struct json_number number = {0};
    struct checkpoint_entry *entry = add_entry(f, path, VALUE_F64, err);
    if (!entry)
        return err->status;
    int rc = json_cursor_number(&f->cursor, &number, err);
    if (rc)
        return rc;
    if (!number.is_integer) {
        entry->f = number.f;
    } else if (number.is_negative || number.u <= INT64_MAX) {
        entry->type = VALUE_I64;
        entry->i = number.is_negative ? number.i : (int64_t)number.u;
    } else {
        entry->type = VALUE_U64;
        entry->u = number.u;
    }
    return 0;
}

static int read_text(struct flattener *f, const char *path, struct error *err)
{
    const char *text = NULL;
    size_t n = 0;
    struct checkpoint_entry *entry = add_entry(f, path, VALUE_STRING, err);
    if (!entry)
        return err->status;
    int rc = json_cursor_string(&f->cursor, &f->ckpt->arena, HF_MAX_STRING_BYTES, &text, &n, err);
    if (rc)
        return rc;
    entry->string.data = text;
    entry->string.n_bytes = n;
    return 0;
}

static int read_bool(struct flattener *f, const char *path, struct error *err)
{
    bool flag = false;
    struct checkpoint_entry *entry = add_entry(f, path, VALUE_BOOL, err);
    if (!entry)
        return err->status;
    int rc = json_cursor_bool(&f->cursor, &flag, err);
    if (!rc)
        entry->u = flag;
    return rc;
}

/* Calls itself through read_object() and read_array(); the cursor limits the depth. */
static int read_value(struct flattener *f, const char *path, struct error *err)
{
    enum json_value value = JSON_VALUE_NULL;
    int rc = json_cursor_peek(&f->cursor, &value, err);
    if (rc)
        return rc;
    json_cursor_scope(&f->cursor, "key", path);
    switch (value) {
    case JSON_VALUE_OBJECT:
        return read_object(f, path, err);
    case JSON_VALUE_ARRAY:
        return read_array(f, path, err);
    case JSON_VALUE_STRING:
        return read_text(f, path, err);
    case JSON_VALUE_NUMBER:
        return read_number(f, path, err);
    case JSON_VALUE_BOOL:
        return read_bool(f, path, err);
    default:
        return add_entry(f, path, MARK, err) ? json_cursor_null(&f->cursor, err) : err->status;
    }
}

int hf_config_read(struct checkpoint *ckpt, uint32_t file, const char *prefix, const char *text,
                   size_t n_bytes, struct error *err)
{
    struct flattener f = {.ckpt = ckpt, .file = file};
    int rc = json_cursor_init(&f.cursor, text, n_bytes, checkpoint_label(ckpt, file), 0, err);
    f.cursor.allows_nan = true;
    if (!rc)
        rc = read_object(&f, prefix, err);
    f.cursor.scope[0] = '\0';
    return rc ? rc : json_cursor_end(&f.cursor, err);
}

/* --- the merge --- */

static const char *const wrappers[] = {"text_config", "llm_config"};

/* Keys of the top level that hide the text model's. */
static const char *const top_level[] = {"tie_word_embeddings", "eos_token_id",  "bos_token_id",
                                        "pad_token_id",        "architectures", "model_type"};

static bool is_value(const struct checkpoint_entry *entry)
{
    return entry && entry->type != MARK;
}

/* The first name of a path. */
static bool first_name_is(const char *path, const char *name)
{
    size_t n = strlen(name);
    return strncmp(path, name, n) == 0 && (path[n] == '.' || path[n] == '\0');
}

static bool is_top_level(const char *key)
{
    for (size_t i = 0; i < sizeof(top_level) / sizeof(top_level[0]); i++)
        if (first_name_is(key, top_level[i]))
            return true;
    return false;
}

/* The part of the path below the wrapper; NULL: not below. */
static const char *below(const char *key, const char *wrapper)
{
    size_t n = strlen(wrapper);
    return strncmp(key, wrapper, n) == 0 && key[n] == '.' ? key + n + 1 : NULL;
}

/* The length of a path's first name: up to the first dot without a backslash (see join()). */
static size_t first_name_bytes(const char *path)
{
    const char *at = path;
    while (*at && *at != '.')
        at += *at == '\\' && at[1] ? 2 : 1;
    return (size_t)(at - path);
}

/* True if the text model has a value of the same first name. The index is that of the file. */
static bool is_hidden(const struct checkpoint *ckpt, const char *key, const char *wrapper)
{
    char name[HF_MAX_PATH_BYTES + 32];
    snprintf(name, sizeof(name), "%s.%.*s", wrapper, (int)first_name_bytes(key), key);
    const struct checkpoint_entry *whole = checkpoint_entry_find(ckpt, name);
    if (!whole || is_value(whole))
        return whole != NULL;
    /* a mark: null, or a container, which has paths below */
    size_t n = strlen(name);
    for (uint64_t i = 0; i < ckpt->n_entries; i++)
        if (is_value(&ckpt->entries[i]) && strncmp(ckpt->entries[i].key, name, n) == 0 &&
            ckpt->entries[i].key[n] == '.')
            return true;
    return false;
}

/* Chooses the final key of each entry; NULL: the entry is hidden. */
static void choose_key(const struct checkpoint *ckpt, const char *wrapper,
                       struct checkpoint_entry *entry)
{
    const char *inner = below(entry->key, wrapper);
    if (!inner) {
        bool own = !first_name_is(entry->key, "generation_config") && !is_top_level(entry->key);
        if (own && is_hidden(ckpt, entry->key, wrapper))
            entry->key = NULL;
        return;
    }
    if (is_top_level(inner) && is_value(checkpoint_entry_find(ckpt, inner)))
        return;
    entry->spelled = entry->key;
    entry->key = inner;
}

static int index_keys(struct checkpoint *ckpt, struct error *err)
{
    uint64_t first, second;
    if (checkpoint_index_entries(ckpt, &first, &second))
        return 0;
    if (first == UINT64_MAX)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", ckpt->name);
    const struct checkpoint_entry *e = &ckpt->entries[second];
    char name[ESCAPE_MAX_BYTES];
    error_set(err, STATUS_INVALID_ARGUMENT,
              "%s: offset %" PRIu64 ": key \"%s\": the key occurs twice (first at offset %" PRIu64
              "); " CHECKPOINT_REMEDY,
              checkpoint_label(ckpt, e->file), e->offset, escape_text(e->key, strlen(e->key), name),
              ckpt->entries[first].offset);
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

static int merge(struct checkpoint *ckpt, struct error *err)
{
    int rc = index_keys(ckpt, err);
    if (rc)
        return rc;
    const char *wrapper = NULL;
    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]) && !wrapper; i++) {
        const struct checkpoint_entry *e = checkpoint_entry_find(ckpt, wrappers[i]);
        for (uint64_t k = 0; e && k < ckpt->n_entries && !wrapper; k++)
            if (below(ckpt->entries[k].key, wrappers[i]))
                wrapper = wrappers[i];
    }
    struct checkpoint_entry *kept = arena_calloc(&ckpt->arena, ckpt->n_entries + 1, sizeof(*kept));
    if (!kept)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", ckpt->name);
    uint64_t n = 0;
    for (uint64_t i = 0; i < ckpt->n_entries; i++) {
        struct checkpoint_entry entry = ckpt->entries[i];
        if (!is_value(&entry))
            continue;
        if (wrapper)
            choose_key(ckpt, wrapper, &entry);
        if (entry.key)
            kept[n++] = entry;
    }
    ckpt->entries = kept;
    ckpt->n_entries = n;
    return index_keys(ckpt, err);
}

/* --- facts --- */

static int add_end_id(struct checkpoint *ckpt, const char *key, int64_t id, struct error *err)
{
    if (id < 0 || id > UINT32_MAX)
        return checkpoint_bad_key(ckpt, key, err, "%" PRId64 " is no token id", id);
    for (uint32_t i = 0; i < ckpt->n_end_ids; i++)
        if (ckpt->end_ids[i] == (uint32_t)id)
            return 0;
    if (ckpt->n_end_ids == CHECKPOINT_MAX_END_IDS)
        return checkpoint_bad_key(ckpt, key, err, "more than %d end ids", CHECKPOINT_MAX_END_IDS);
    ckpt->end_ids[ckpt->n_end_ids++] = (uint32_t)id;
    return 0;
}

/* eos_token_id is a number or a list. */
static int read_end_ids(struct checkpoint *ckpt, const char *key, struct error *err)
{
    const struct checkpoint_entry *e = checkpoint_entry_find(ckpt, key);
    struct checkpoint_array list;
    uint64_t id = 0;
    if (!e)
        return 0;
    if (e->type != VALUE_ARRAY) {
        int rc = checkpoint_get_u64(ckpt, key, &id, err);
        return rc ? rc : add_end_id(ckpt, key, id > UINT32_MAX ? -1 : (int64_t)id, err);
    }
    int rc = checkpoint_get_array(ckpt, key, CHECKPOINT_INT, &list, err);
    for (uint64_t i = 0; !rc && i < list.n; i++)
        rc = add_end_id(ckpt, key, checkpoint_array_int(&list, i), err);
    return rc;
}

static int read_architecture(struct checkpoint *ckpt, struct error *err)
{
    struct checkpoint_array list = {0};
    int rc = 0;
    ckpt->architecture = "";
    if (checkpoint_has(ckpt, "architectures"))
        rc = checkpoint_get_array(ckpt, "architectures", CHECKPOINT_STRING, &list, err);
    if (rc || !list.n)
        return rc ? rc : checkpoint_get_string_or(ckpt, "model_type", "", &ckpt->architecture, err);
    size_t n = 0;
    const char *name = checkpoint_array_string(&list, 0, &n);
    ckpt->architecture = arena_strndup(&ckpt->arena, name, n);
    if (!ckpt->architecture)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", ckpt->name);
    if (strlen(ckpt->architecture) != n)
        return checkpoint_bad_key(ckpt, "architectures", err, "the text has a NUL byte inside");
    return 0;
}

/* The objects in which quantized checkpoints describe themselves; MLX writes "quantization". */
static const char *const quantizations[] = {"quantization_config", "compression_config",
                                            "quantization"};

static int refuse_quantized(const struct checkpoint *ckpt, struct error *err)
{
    for (uint64_t i = 0; i < ckpt->n_entries; i++)
        for (size_t k = 0; k < sizeof(quantizations) / sizeof(quantizations[0]); k++) {
            const char *key = ckpt->entries[i].key, *method = NULL;
            char method_key[64];
            struct error ignored;
            if (!first_name_is(key, quantizations[k]))
                continue;
            snprintf(method_key, sizeof(method_key), "%s.quant_method", quantizations[k]);
            if (checkpoint_has(ckpt, method_key) &&
                checkpoint_get_string(ckpt, method_key, &method, NULL, &ignored) == 0)
                key = method_key;
            /* A table that can read MXFP4 names these keys; others refuse them. */
            if (k == 0 && method && strcmp(method, "mxfp4") == 0)
                continue;
            char text[ESCAPE_MAX_BYTES];
            checkpoint_unbuilt_key(ckpt, key, err,
                                   "quantized Hugging Face checkpoints (%s) are not supported; get "
                                   "the original model, or a quantized GGUF file",
                                   method ? escape_text(method, strlen(method), text)
                                          : "no method is named");
            return err->status;
        }
    return 0;
}

int hf_config_finish(struct checkpoint *ckpt, struct error *err)
{
    int rc = merge(ckpt, err);
    if (!rc)
        rc = read_architecture(ckpt, err);
    if (!rc)
        rc = refuse_quantized(ckpt, err);
    if (!rc)
        rc = read_end_ids(ckpt, "eos_token_id", err);
    if (!rc)
        rc = read_end_ids(ckpt, "generation_config.eos_token_id", err);
    return rc;
}
