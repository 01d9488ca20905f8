/* Opens a GGUF model in one file or split over several, as llama.cpp's gguf-split writes them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "base/system/source.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/file_kind.h"
#include "engine/format/gguf.h"

enum { SUFFIX_BYTES = 20 /* "-00001-of-00003.gguf" */, MOST_NAMED_PARTS = 4 };

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int out_of_memory(const char *path, struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", base_name(path));
}

/* Opens one file and reads its header. The checkpoint gets the file as its last one. */
static int read_file(const char *path, struct checkpoint *ckpt, struct error *err)
{
    struct source *source = NULL;
    uint32_t file = 0;
    int rc = source_open(path, &source, err);
    if (!rc)
        rc = file_kind_check(source, err);
    if (!rc)
        rc = checkpoint_add_file(ckpt, source, base_name(path), source_name(source), &file, err);
    if (rc) {
        source_close(source);
        return rc;
    }
    return gguf_read(ckpt, file, err);
}

/* The place of a file in a split model. n_parts 1: the file is a whole model. */
struct place {
    uint64_t part, n_parts;
};

static int read_place(const struct checkpoint *ckpt, struct place *out, struct error *err)
{
    struct place place = {0, 1};
    int rc = checkpoint_get_u64_or(ckpt, "split.count", 1, &place.n_parts, err);
    if (!rc)
        rc = checkpoint_get_u64_or(ckpt, "split.no", 0, &place.part, err);
    if (rc)
        return rc;
    if (place.n_parts <= 1)
        place = (struct place){0, 1};
    if (place.n_parts > CHECKPOINT_MAX_FILES)
        return checkpoint_bad_key(ckpt, "split.count", err,
                                  "%" PRIu64 " parts are over the limit of %d", place.n_parts,
                                  CHECKPOINT_MAX_FILES);
    if (place.part >= place.n_parts)
        return checkpoint_bad_key(ckpt, "split.no", err, "part %" PRIu64 " of %" PRIu64 " parts",
                                  place.part, place.n_parts);
    *out = place;
    return 0;
}

/* Writes the part's path: the given one with another number. False: the path has no number, or
 * not the number of `place`. */
static bool part_path(const char *path, const struct place *place, uint64_t part, char *out,
                      size_t n_out)
{
    char suffix[64];
    size_t n = strlen(path);
    snprintf(suffix, sizeof(suffix), "-%05" PRIu64 "-of-%05" PRIu64 ".gguf", place->part + 1,
             place->n_parts);
    if (n < SUFFIX_BYTES || strcmp(path + n - SUFFIX_BYTES, suffix) != 0)
        return false;
    int n_written = snprintf(out, n_out, "%.*s-%05" PRIu64 "-of-%05" PRIu64 ".gguf",
                             (int)(n - SUFFIX_BYTES), path, part + 1, place->n_parts);
    return n_written > 0 && (size_t)n_written < n_out;
}

/* Adds the tensors of a part to the model. */
static int add_tensors(struct checkpoint *ckpt, const struct checkpoint *part, uint32_t file,
                       struct error *err)
{
    uint64_t n = ckpt->n_tensors + part->n_tensors;
    if (n > GGUF_MAX_TENSORS) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "%s: the parts have %" PRIu64
                  " tensors together, over the limit of %d; " CHECKPOINT_REMEDY,
                  checkpoint_label(ckpt, file), n, GGUF_MAX_TENSORS);
        return error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    for (uint64_t i = 0; i < part->n_tensors; i++) {
        struct checkpoint_tensor *t = checkpoint_add_tensor(ckpt);
        if (!t)
            return out_of_memory(ckpt->name, err);
        *t = part->tensors[i];
        t->file = file;
        t->name = arena_strndup(&ckpt->arena, t->name, strlen(t->name));
        if (!t->name)
            return out_of_memory(ckpt->name, err);
    }
    return 0;
}

/* Reads part number `part` at `path` and adds its file and tensors. */
static int add_part(struct checkpoint *ckpt, const char *path, const struct place *expected,
                    struct sha256 *sha, struct error *err)
{
    struct checkpoint part = {0};
    struct place place = {0, 1};
    uint32_t file = 0;
    arena_init(&part.arena, 0, 0);
    part.name = base_name(path);
    int rc = read_file(path, &part, err);
    if (!rc)
        rc = read_place(&part, &place, err);
    if (!rc && (place.part != expected->part || place.n_parts != expected->n_parts)) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "%s: the file is part %" PRIu64 " of %" PRIu64 ", its name says %" PRIu64
                  " of %" PRIu64 "; give each part its own name",
                  part.name, place.part + 1, place.n_parts, expected->part + 1, expected->n_parts);
        rc = error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    if (!rc)
        rc = checkpoint_add_file(ckpt, part.files[0].source, part.name, part.name, &file, err);
    if (!rc) {
        part.files[0].source = NULL; /* now the model's */
        rc = add_tensors(ckpt, &part, file, err);
    }
    if (!rc)
        sha256_update(sha, part.digest, sizeof(part.digest));
    checkpoint_close_files(&part);
    arena_fini(&part.arena);
    return rc;
}

/* Refuses a model with missing parts, and names them. */
static int check_parts(const char *path, const struct place *place, struct error *err)
{
    char other[4096];
    struct strbuf names = {0};
    uint64_t n_missing = 0;
    int rc = 0;
    for (uint64_t i = 0; i < place->n_parts && !rc; i++) {
        struct source *source = NULL;
        if (!part_path(path, place, i, other, sizeof(other)))
            break;
        rc = source_open(other, &source, err);
        source_close(source);
        if (rc != STATUS_NOT_FOUND)
            continue;
        rc = 0;
        if (n_missing++ < MOST_NAMED_PARTS)
            strbuf_printf(&names, "%s%.100s", n_missing > 1 ? ", " : "", base_name(other));
    }
    if (!rc && n_missing) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "%s is part %" PRIu64 " of a model in %" PRIu64 " files, and %" PRIu64
                  " of them are missing: %s%s; put all parts into one folder",
                  base_name(path), place->part + 1, place->n_parts, n_missing, strbuf_str(&names),
                  n_missing > MOST_NAMED_PARTS ? ", ..." : "");
        rc = error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    strbuf_fini(&names);
    return rc;
}

/* Refuses names that occur in two parts, and a wrong number of tensors. */
static int check_whole(struct checkpoint *ckpt, struct error *err)
{
    uint64_t n = ckpt->n_tensors, first = 0, second = 0;
    int rc = checkpoint_get_u64_or(ckpt, "split.tensors.count", n, &n, err);
    if (rc)
        return rc;
    if (n != ckpt->n_tensors)
        return checkpoint_bad_key(ckpt, "split.tensors.count", err,
                                  "%" PRIu64 " tensors, the parts have %" PRIu64, n,
                                  ckpt->n_tensors);
    if (checkpoint_index_tensors(ckpt, &first, &second))
        return 0;
    if (first == UINT64_MAX)
        return out_of_memory(ckpt->name, err);
    return checkpoint_bad_tensor(ckpt, &ckpt->tensors[second], err,
                                 "the name occurs twice (first in %s)",
                                 checkpoint_label(ckpt, ckpt->tensors[first].file));
}

/* Adds the other parts. The checkpoint holds the first one. */
static int read_parts(const char *path, const struct place *first, struct checkpoint *ckpt,
                      struct error *err)
{
    char other[4096];
    struct sha256 *sha = NULL;
    int rc = sha256_create(&sha, err);
    if (rc)
        return rc;
    sha256_update(sha, ckpt->digest, sizeof(ckpt->digest));
    for (uint64_t i = 1; i < first->n_parts && !rc; i++) {
        struct place expected = {i, first->n_parts};
        part_path(path, first, i, other, sizeof(other));
        rc = add_part(ckpt, other, &expected, sha, err);
    }
    if (!rc)
        rc = check_whole(ckpt, err);
    if (rc) {
        sha256_destroy(sha);
        return rc;
    }
    sha256_final(sha, ckpt->digest);
    return 0;
}

/* Names the model after the file. */
static int name_model(const char *path, struct checkpoint *ckpt, struct error *err)
{
    const char *name = base_name(path);
    ckpt->name = arena_strndup(&ckpt->arena, name, strlen(name));
    ckpt->architecture = "";
    return ckpt->name ? 0 : out_of_memory(path, err);
}

/* Forgets everything that was read. */
static void empty(struct checkpoint *ckpt)
{
    checkpoint_close_files(ckpt);
    arena_fini(&ckpt->arena);
    *ckpt = (struct checkpoint){0};
    arena_init(&ckpt->arena, 256 * 1024, 0);
}

static int read_split(const char *path, const struct place *given, struct checkpoint *ckpt,
                      struct error *err)
{
    char first_path[4096];
    struct place place = *given;
    if (!part_path(path, given, 0, first_path, sizeof(first_path)))
        return checkpoint_bad_key(ckpt, "split.count", err,
                                  "the file is part %" PRIu64 " of %" PRIu64
                                  ", and its name does not end in -%05" PRIu64 "-of-%05" PRIu64
                                  ".gguf",
                                  place.part + 1, place.n_parts, place.part + 1, place.n_parts);
    int rc = check_parts(path, given, err);
    if (!rc && given->part != 0) {
        empty(ckpt);
        rc = name_model(first_path, ckpt, err);
        if (!rc)
            rc = read_file(first_path, ckpt, err);
        if (!rc)
            rc = read_place(ckpt, &place, err);
        if (!rc && (place.part != 0 || place.n_parts != given->n_parts))
            rc = checkpoint_bad_key(ckpt, "split.no", err,
                                    "part %" PRIu64 " of %" PRIu64 ", the name says 1 of %" PRIu64,
                                    place.part + 1, place.n_parts, given->n_parts);
    }
    return rc ? rc : read_parts(first_path, &place, ckpt, err);
}

int gguf_open_model(const char *path, struct checkpoint *ckpt, struct error *err)
{
    struct place place = {0, 1};
    struct error ignored;
    int rc = name_model(path, ckpt, err);
    if (!rc)
        rc = read_file(path, ckpt, err);
    if (!rc)
        rc = read_place(ckpt, &place, err);
    if (!rc && place.n_parts > 1)
        rc = read_split(path, &place, ckpt, err);
    if (!rc && checkpoint_has(ckpt, "general.architecture"))
        checkpoint_get_string(ckpt, "general.architecture", &ckpt->architecture, NULL, &ignored);
    return rc;
}
