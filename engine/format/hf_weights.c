/* The safetensors files of a Hugging Face folder: one, or the shards that an index names. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/system/folder.h"
#include "base/text/json_cursor.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/hf.h"
#include "engine/format/safetensors.h"

enum { MAX_FILE_NAME_BYTES = 255, MOST_NAMED_FILES = 4 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* A row of the index's weight_map. */
struct row {
    const char *tensor, *shard; /* arena of the checkpoint, of the index */
    size_t at;                  /* position of the shard's name */
};

struct weight_map {
    struct json_cursor cursor;
    struct arena arena;
    struct row *rows; /* owned */
    uint64_t n_rows, capacity;
};

/* --- the index --- */

/* A shard lies in the model's folder, so its name has no folder. */
static int check_shard_name(const struct json_cursor *c, const struct row *row, size_t n,
                            struct error *err)
{
    static const char suffix[] = ".safetensors";
    size_t n_suffix = sizeof(suffix) - 1;
    char text[ESCAPE_MAX_BYTES];
    bool is_good = n > n_suffix && n <= MAX_FILE_NAME_BYTES && row->shard[0] != '.' &&
                   strcmp(row->shard + n - n_suffix, suffix) == 0;
    for (size_t i = 0; i < n; i++)
        is_good &=
            row->shard[i] != '/' && (unsigned char)row->shard[i] >= 0x20 && row->shard[i] != 0x7F;
    if (is_good)
        return 0;
    return json_cursor_bad(c, row->at, err,
                           "\"%s\", expected the name of a .safetensors file in the same folder",
                           escape_text(row->shard, n, text));
}

static struct row *add_row(struct weight_map *map)
{
    if (map->n_rows == map->capacity) {
        uint64_t wider = map->capacity ? 2 * map->capacity : 256;
        struct row *grown = realloc(map->rows, wider * sizeof(*grown));
        if (!grown)
            return NULL;
        map->rows = grown;
        map->capacity = wider;
    }
    return &map->rows[map->n_rows++];
}

static int read_map(struct weight_map *map, struct error *err)
{
    struct json_cursor *c = &map->cursor;
    int rc = json_cursor_enter_object(c, err);
    while (!rc) {
        const char *tensor = NULL;
        enum json_value value = JSON_VALUE_NULL;
        size_t n = 0;
        c->scope[0] = '\0';
        rc = json_cursor_next_key(c, &map->arena, SAFETENSORS_MAX_NAME_BYTES, &tensor, err);
        if (!rc && !tensor)
            break;
        if (!rc)
            rc = json_cursor_peek(c, &value, err); /* passes white space */
        if (rc)
            break;
        if (map->n_rows == SAFETENSORS_MAX_TENSORS)
            return json_cursor_bad(c, c->at, err, "more than %d tensors", SAFETENSORS_MAX_TENSORS);
        struct row *row = add_row(map);
        if (!row)
            return json_cursor_out_of_memory(c, err);
        *row = (struct row){.tensor = tensor, .at = c->at};
        json_cursor_scope(c, "tensor", tensor);
        rc = json_cursor_string(c, &map->arena, SAFETENSORS_MAX_NAME_BYTES, &row->shard, &n, err);
        if (!rc)
            rc = check_shard_name(c, row, n, err);
    }
    c->scope[0] = '\0';
    return rc;
}

static int read_index_members(struct weight_map *map, struct error *err)
{
    struct json_cursor *c = &map->cursor;
    size_t map_at = 0;
    int rc = json_cursor_enter_object(c, err);
    while (!rc) {
        const char *key = NULL;
        rc = json_cursor_next_key(c, &map->arena, SAFETENSORS_MAX_NAME_BYTES, &key, err);
        if (!rc && !key)
            break;
        if (!rc && strcmp(key, "weight_map") != 0) {
            rc = json_cursor_skip(c, err);
        } else if (!rc) {
            if (map_at)
                return json_cursor_bad(c, c->at, err, "the key \"weight_map\" occurs twice");
            map_at = c->at;
            rc = read_map(map, err);
        }
    }
    if (!rc)
        rc = json_cursor_end(c, err);
    if (!rc && !map->n_rows)
        rc = json_cursor_bad(c, map_at, err,
                             map_at ? "the \"weight_map\" is empty" : "no key \"weight_map\"");
    return rc;
}

static int compare_tensors(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    int order = strcmp(x->tensor, y->tensor);
    return order ? order : x->at < y->at ? -1 : x->at > y->at;
}

static int compare_shards(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    int order = strcmp(x->shard, y->shard);
    return order ? order : x->at < y->at ? -1 : x->at > y->at;
}

static int refuse_twins(struct weight_map *map, struct error *err)
{
    qsort(map->rows, map->n_rows, sizeof(*map->rows), compare_tensors);
    for (uint64_t i = 1; i < map->n_rows; i++)
        if (strcmp(map->rows[i - 1].tensor, map->rows[i].tensor) == 0) {
            json_cursor_scope(&map->cursor, "tensor", map->rows[i].tensor);
            return json_cursor_bad(&map->cursor, map->rows[i].at, err,
                                   "the key occurs twice (first at offset %zu)",
                                   map->rows[i - 1].at);
        }
    return 0;
}

/* --- the shards --- */

static int read_shard(struct hf_reader *reader, const char *name, struct error *err)
{
    uint32_t file = 0;
    bool is_mlx = false;
    int rc = hf_add_file(reader, name, UINT64_MAX, &file, err);
    if (!rc)
        rc = safetensors_read(reader->ckpt, file, reader->sha, &is_mlx, err);
    if (!rc && is_mlx)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "%s: MLX wrote the file, and its weights may differ from the original's; "
                         "get the original model, or a GGUF file",
                         checkpoint_label(reader->ckpt, file));
    return rc;
}

/* Refuses a model with missing shards, and names them. The rows are sorted by shard. */
static int check_shards(const struct hf_reader *reader, const struct weight_map *map,
                        struct error *err)
{
    struct strbuf names = {0};
    uint64_t n_missing = 0, at = 0;
    for (uint64_t i = 0; i < map->n_rows; i++) {
        const char *shard = map->rows[i].shard;
        if ((i && strcmp(map->rows[i - 1].shard, shard) == 0) || folder_has(reader->folder, shard))
            continue;
        if (!n_missing)
            at = map->rows[i].at;
        if (n_missing++ < MOST_NAMED_FILES)
            strbuf_printf(&names, "%s%.100s", n_missing > 1 ? ", " : "", shard);
    }
    int rc = 0;
    if (n_missing)
        rc =
            json_cursor_bad(&map->cursor, at, err, "%" PRIu64 " files are missing: %s%s", n_missing,
                            strbuf_str(&names), n_missing > MOST_NAMED_FILES ? ", ..." : "");
    strbuf_fini(&names);
    return rc;
}

static int index_tensors(struct checkpoint *ckpt, struct error *err)
{
    uint64_t first, second;
    if (checkpoint_index_tensors(ckpt, &first, &second))
        return 0;
    if (first == UINT64_MAX)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", ckpt->name);
    const struct checkpoint_tensor *t = &ckpt->tensors[first];
    return checkpoint_bad_tensor(ckpt, &ckpt->tensors[second], err,
                                 "the name occurs twice (first in %s, offset %" PRIu64 ")",
                                 checkpoint_label(ckpt, t->file), t->directory_bytes);
}

/* Each tensor of the index lies in its shard. A shard may have more tensors. */
static int check_rows(const struct checkpoint *ckpt, struct weight_map *map, struct error *err)
{
    for (uint64_t i = 0; i < map->n_rows; i++) {
        const struct row *row = &map->rows[i];
        const struct checkpoint_tensor *t = checkpoint_tensor_find(ckpt, row->tensor);
        if (t && strcmp(ckpt->files[t->file].name, row->shard) == 0)
            continue;
        json_cursor_scope(&map->cursor, "tensor", row->tensor);
        return json_cursor_bad(&map->cursor, row->at, err, "%s has no tensor of that name%s%s",
                               row->shard, t ? ", it lies in " : "",
                               t ? ckpt->files[t->file].name : "");
    }
    return 0;
}

static int read_shards(struct hf_reader *reader, struct weight_map *map, struct error *err)
{
    int rc = refuse_twins(map, err);
    if (rc)
        return rc;
    qsort(map->rows, map->n_rows, sizeof(*map->rows), compare_shards);
    rc = check_shards(reader, map, err);
    for (uint64_t i = 0; i < map->n_rows && !rc; i++)
        if (!i || strcmp(map->rows[i - 1].shard, map->rows[i].shard) != 0)
            rc = read_shard(reader, map->rows[i].shard, err);
    if (!rc)
        rc = index_tensors(reader->ckpt, err);
    return rc ? rc : check_rows(reader->ckpt, map, err);
}

static int read_sharded(struct hf_reader *reader, struct error *err)
{
    struct weight_map map = {0};
    uint32_t file = 0;
    char *text = NULL;
    size_t n = 0;
    arena_init(&map.arena, 64 * 1024, 0);
    int rc = hf_add_file(reader, index_name, HF_MAX_INDEX_BYTES, &file, err);
    if (!rc)
        rc = hf_read_text(reader, file, &text, &n, err);
    if (!rc)
        rc = json_cursor_init(&map.cursor, text, n, checkpoint_label(reader->ckpt, file), 0, err);
    if (!rc)
        rc = read_index_members(&map, err);
    if (!rc)
        rc = read_shards(reader, &map, err);
    free(text);
    free(map.rows);
    arena_fini(&map.arena);
    return rc;
}

/* --- MXFP4 with scales apart --- */

enum { PAIR_BYTES = 16, PAIR_ELEMS = 32 };
static const uint64_t JOINED = UINT64_MAX; /* scales_bytes of scales that are another's part */

static bool is_bytes(const struct checkpoint_tensor *t, uint32_t n_dims)
{
    return strcmp(t->type_name, "U8") == 0 && t->n_dims == n_dims;
}

/* The tensor's name with "_scales" in place of "_blocks"; false for another name. */
static bool scales_name(const char *blocks, char name[SAFETENSORS_MAX_NAME_BYTES + 1])
{
    static const char ending[] = "_blocks";
    size_t n = strlen(blocks), n_ending = sizeof(ending) - 1;
    if (n < n_ending || n > SAFETENSORS_MAX_NAME_BYTES ||
        strcmp(blocks + n - n_ending, ending) != 0)
        return false;
    snprintf(name, SAFETENSORS_MAX_NAME_BYTES + 1, "%.*s_scales", (int)(n - n_ending), blocks);
    return true;
}

/* U8 [experts, rows, K / 32, 16] and scales U8 [experts, rows, K / 32] are one tensor of MXFP4. */
static int join_scales(const struct checkpoint *ckpt, struct checkpoint_tensor *t,
                       const struct checkpoint_tensor *scales, struct error *err)
{
    if (!is_bytes(scales, 3) || t->dims[0] != PAIR_BYTES || scales->dims[0] != t->dims[1] ||
        scales->dims[1] != t->dims[2] || scales->dims[2] != t->dims[3])
        return checkpoint_bad_tensor(ckpt, scales, err,
                                     "the shape does not fit that of the tensor \"%s\"", t->name);
    t->type_name = dtype_name(DTYPE_MXFP4);
    t->dtype = DTYPE_MXFP4;
    t->n_dims = 3;
    t->dims[0] = t->dims[1] * PAIR_ELEMS;
    t->dims[1] = t->dims[2];
    t->dims[2] = t->dims[3];
    t->dims[3] = 1;
    t->n_rows = t->dims[1] * t->dims[2];
    t->n_elems = t->dims[0] * t->n_rows;
    t->row_bytes = dtype_row_bytes(DTYPE_MXFP4, t->dims[0]);
    t->n_bytes += scales->n_bytes;
    t->scales_bytes = scales->offset_bytes;
    t->scales_file = scales->file;
    return 0;
}

/* Joins elements and scales, and takes the scales off the list. */
static int join_all_scales(struct checkpoint *ckpt, struct error *err)
{
    char name[SAFETENSORS_MAX_NAME_BYTES + 1];
    uint64_t n = 0;
    for (uint64_t i = 0; i < ckpt->n_tensors; i++) {
        struct checkpoint_tensor *t = &ckpt->tensors[i];
        if (!is_bytes(t, 4) || !scales_name(t->name, name))
            continue;
        const struct checkpoint_tensor *scales = checkpoint_tensor_find(ckpt, name);
        int rc =
            scales ? join_scales(ckpt, t, scales, err) : checkpoint_missing_tensor(ckpt, name, err);
        if (rc)
            return rc;
        ckpt->tensors[scales - ckpt->tensors].scales_bytes = JOINED;
        n++;
    }
    if (!n)
        return 0;
    n = 0;
    for (uint64_t i = 0; i < ckpt->n_tensors; i++)
        if (ckpt->tensors[i].scales_bytes != JOINED)
            ckpt->tensors[n++] = ckpt->tensors[i];
    ckpt->n_tensors = n;
    return index_tensors(ckpt, err);
}

/* Says what the folder has in place of safetensors. */
static int no_weights(const struct hf_reader *reader, struct error *err)
{
    const char *other = NULL;
    for (size_t i = 0; i < reader->folder->n_names; i++) {
        const char *name = reader->folder->names[i], *dot = strrchr(name, '.');
        if (dot && (strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".bin") == 0 ||
                    strcmp(dot, ".pth") == 0 || strcmp(dot, ".h5") == 0 ||
                    strcmp(dot, ".msgpack") == 0 || strcmp(dot, ".onnx") == 0))
            other = name;
    }
    char text[ESCAPE_MAX_BYTES] = "";
    if (other)
        escape_text(other, strlen(other), text);
    error_set(err, STATUS_INVALID_ARGUMENT,
              "%s has neither %s nor %s%s%s%s; get the model's weights as safetensors",
              reader->ckpt->name, single_name, index_name, other ? ", only \"" : "", text,
              other ? "\"" : "");
    return error_reason(err, REASON_MODEL_FILE_INVALID);
}

bool hf_weights_exist(const struct folder *folder)
{
    return folder_has(folder, single_name) || folder_has(folder, index_name);
}

int hf_weights_read(struct hf_reader *reader, struct error *err)
{
    if (folder_has(reader->folder, single_name)) {
        int rc = read_shard(reader, single_name, err);
        if (!rc)
            rc = index_tensors(reader->ckpt, err);
        return rc ? rc : join_all_scales(reader->ckpt, err);
    }
    if (!folder_has(reader->folder, index_name))
        return no_weights(reader, err);
    int rc = read_sharded(reader, err);
    return rc ? rc : join_all_scales(reader->ckpt, err);
}
