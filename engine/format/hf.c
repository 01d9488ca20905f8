#include "engine/format/hf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"
#include "base/strbuf.h"
#include "base/system/folder.h"
#include "base/system/source.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint_store.h"
#include "engine/format/gguf.h"

enum { PATH_BYTES = 4096, HASH_CHUNK_BYTES = 64 * 1024, MOST_NAMED_FILES = 4 };

static const char config_name[] = "config.json";
static const char generation_name[] = "generation_config.json";
static const char snapshots_name[] = "snapshots";
static const char templates_name[] = "additional_chat_templates";

/* Files for the readers of tokenizers and templates, in the order of the digest. */
static const struct {
    const char *name;
    uint64_t max_bytes;
} sidecars[] = {
    {"tokenizer.json", 256 << 20},   {"tokenizer_config.json", 32 << 20},
    {"added_tokens.json", 32 << 20}, {"special_tokens_map.json", 32 << 20},
    {"tokenizer.model", 64 << 20},   {"tekken.json", 256 << 20},
    {"tiktoken.model", 64 << 20},    {"vocab.json", 64 << 20},
    {"merges.txt", 64 << 20},        {"chat_template.jinja", 4 << 20},
    {"chat_template.json", 4 << 20},
};

enum { TEMPLATE_BYTES = 4 << 20 };

/* --- files --- */

static int too_long(const struct hf_reader *reader, struct error *err)
{
    return error_set(err, STATUS_INVALID_ARGUMENT, "%s: the path is too long", reader->ckpt->name);
}

static int open_file(const struct hf_reader *reader, const char *name, const char *label,
                     struct source **out_source, struct error *err)
{
    char path[PATH_BYTES];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", reader->path, name) >= sizeof(path))
        return too_long(reader, err);
    if (source_open(path, out_source, err) == 0)
        return 0;
    if (err->status ==
        STATUS_NOT_FOUND) { /* the folder lists the name: a link without its target */
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "%s: a link that leads to no file; download the model again", label);
        return error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    return error_prefix(err, "%s", reader->ckpt->name);
}

static void hash_place(struct sha256 *sha, const char *name, uint64_t size)
{
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(size >> (8 * i));
    sha256_update(sha, name, strlen(name) + 1);
    sha256_update(sha, bytes, sizeof(bytes));
}

int hf_add_file(struct hf_reader *reader, const char *name, uint64_t max_bytes, uint32_t *out_file,
                struct error *err)
{
    struct source *source = NULL;
    struct strbuf label = {0};
    strbuf_printf(&label, "%s/%s", reader->ckpt->name, name);
    int rc = open_file(reader, name, strbuf_str(&label), &source, err);
    if (!rc && source_size(source) > max_bytes) {
        error_set(err, STATUS_INVALID_ARGUMENT,
                  "%s: %" PRIu64 " bytes are over the limit of %" PRIu64
                  " bytes; " CHECKPOINT_REMEDY,
                  strbuf_str(&label), source_size(source), max_bytes);
        rc = error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    if (!rc)
        rc = checkpoint_add_file(reader->ckpt, source, name, strbuf_str(&label), out_file, err);
    if (rc)
        source_close(source);
    else
        hash_place(reader->sha, name, source_size(source));
    strbuf_fini(&label);
    return rc;
}

int hf_read_text(struct hf_reader *reader, uint32_t file, char **out_text, size_t *out_n_bytes,
                 struct error *err)
{
    struct source *source = reader->ckpt->files[file].source;
    size_t n = (size_t)source_size(source);
    char *text = malloc(n + 1);
    if (!text)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory",
                         checkpoint_label(reader->ckpt, file));
    int rc = source_read(source, 0, text, n, err);
    if (rc) {
        free(text);
        return rc;
    }
    sha256_update(reader->sha, text, n);
    *out_text = text;
    *out_n_bytes = n;
    return 0;
}

static int read_config(struct hf_reader *reader, const char *name, const char *prefix,
                       struct error *err)
{
    uint32_t file = 0;
    char *text = NULL;
    size_t n = 0;
    int rc = hf_add_file(reader, name, HF_MAX_CONFIG_BYTES, &file, err);
    if (!rc)
        rc = hf_read_text(reader, file, &text, &n, err);
    if (!rc)
        rc = hf_config_read(reader->ckpt, file, prefix, text, n, err);
    free(text);
    return rc;
}

/* Hashes a whole file, piece by piece. */
static int hash_file(struct hf_reader *reader, uint32_t file, struct error *err)
{
    struct source *source = reader->ckpt->files[file].source;
    uint64_t size = source_size(source);
    unsigned char *chunk = malloc(HASH_CHUNK_BYTES);
    int rc = chunk ? 0
                   : error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory",
                               checkpoint_label(reader->ckpt, file));
    for (uint64_t at = 0; at < size && !rc; at += HASH_CHUNK_BYTES) {
        size_t n = size - at < HASH_CHUNK_BYTES ? (size_t)(size - at) : HASH_CHUNK_BYTES;
        rc = source_read(source, at, chunk, n, err);
        if (!rc)
            sha256_update(reader->sha, chunk, n);
    }
    free(chunk);
    return rc;
}

static int add_sidecar(struct hf_reader *reader, const char *name, uint64_t max_bytes,
                       struct error *err)
{
    uint32_t file = 0;
    int rc = hf_add_file(reader, name, max_bytes, &file, err);
    if (rc)
        return rc;
    reader->ckpt->files[file].is_sidecar = true;
    return hash_file(reader, file, err);
}

/* The named templates, in the order of their names. */
static int add_templates(struct hf_reader *reader, struct error *err)
{
    static const char suffix[] = ".jinja";
    char path[PATH_BYTES], name[PATH_BYTES];
    struct folder folder = {0};
    uint32_t n_templates = 0;
    if (!folder_has(reader->folder, templates_name))
        return 0;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", reader->path, templates_name) >= sizeof(path))
        return too_long(reader, err);
    int rc = folder_list(path, &folder, err);
    if (rc)
        return error_prefix(err, "%s", reader->ckpt->name);
    for (size_t i = 0; i < folder.n_names && !rc; i++) {
        size_t n = strlen(folder.names[i]), n_suffix = sizeof(suffix) - 1;
        if (n <= n_suffix || strcmp(folder.names[i] + n - n_suffix, suffix) != 0)
            continue;
        if (n_templates++ == HF_MAX_TEMPLATES) {
            error_set(err, STATUS_INVALID_ARGUMENT, "%s/%s: more than %d templates",
                      reader->ckpt->name, templates_name, HF_MAX_TEMPLATES);
            rc = error_reason(err, REASON_MODEL_FILE_INVALID);
            break;
        }
        snprintf(name, sizeof(name), "%s/%s", templates_name, folder.names[i]);
        rc = add_sidecar(reader, name, TEMPLATE_BYTES, err);
    }
    folder_fini(&folder);
    return rc;
}

static int read_files(struct hf_reader *reader, struct error *err)
{
    int rc = read_config(reader, config_name, "", err);
    if (!rc && folder_has(reader->folder, generation_name))
        rc = read_config(reader, generation_name, "generation_config", err);
    if (!rc)
        rc = hf_config_finish(reader->ckpt, err);
    for (size_t i = 0; i < sizeof(sidecars) / sizeof(sidecars[0]) && !rc; i++)
        if (folder_has(reader->folder, sidecars[i].name))
            rc = add_sidecar(reader, sidecars[i].name, sidecars[i].max_bytes, err);
    if (!rc)
        rc = add_templates(reader, err);
    return rc ? rc : hf_weights_read(reader, err);
}

/* --- folders --- */

/* Names the model after its folder. In a Hub cache, "models--ORG--NAME/snapshots/REVISION" gives
 * "ORG/NAME". */
static int name_model(const char *path, struct checkpoint *ckpt, struct error *err)
{
    bool is_hub;
    size_t n = 0;
    const char *begin = folder_model_name(path, &n, &is_hub);
    char *name = arena_strndup(&ckpt->arena, begin, n);
    if (!name)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "model folder: out of memory");
    char *gap = is_hub ? strstr(name, "--") : NULL;
    if (gap) {
        *gap = '/';
        memmove(gap + 1, gap + 2, strlen(gap + 2) + 1);
    }
    ckpt->name = name;
    return 0;
}

/* True for the parts of a split GGUF model after the first: "NAME-00002-of-00003.gguf". */
static bool is_later_part(const char *name, size_t n)
{
    unsigned part = 0;
    return folder_part_suffix(name, n, &part) && part != 1;
}

/* The only GGUF model of a folder: a file, or the first part of a split one. NULL: none; *out_n is
 * the number of models. */
static const char *find_gguf(const struct folder *folder, size_t *out_n, struct strbuf *names)
{
    const char *found = NULL;
    *out_n = 0;
    for (size_t i = 0; i < folder->n_names; i++) {
        const char *name = folder->names[i];
        size_t n = strlen(name);
        if (n < 6 || strcmp(name + n - 5, ".gguf") != 0 || strncmp(name, "mmproj", 6) == 0)
            continue;
        if (is_later_part(name, n))
            continue;
        char text[ESCAPE_MAX_BYTES];
        if ((*out_n)++ < MOST_NAMED_FILES)
            strbuf_printf(names, "%s%s", *out_n > 1 ? ", " : "", escape_text(name, n, text));
        found = name;
    }
    return *out_n == 1 ? found : NULL;
}

static bool has_gguf(const struct folder *folder)
{
    struct strbuf names = {0};
    size_t n = 0;
    find_gguf(folder, &n, &names);
    strbuf_fini(&names);
    return n != 0;
}

/* Fills *err for a repository in the Hub's cache, which holds a folder per snapshot. */
static void name_snapshots(const char *path, const struct checkpoint *ckpt, struct error *err)
{
    char place[PATH_BYTES], text[ESCAPE_MAX_BYTES];
    struct folder folder = {0};
    struct strbuf names = {0};
    struct error ignored;
    if ((size_t)snprintf(place, sizeof(place), "%s/%s", path, snapshots_name) < sizeof(place))
        (void)folder_list(place, &folder, &ignored); /* no names without access */
    for (size_t i = 0; i < folder.n_names && i < MOST_NAMED_FILES; i++)
        strbuf_printf(&names, "%s%s/%s", i ? ", " : "", snapshots_name,
                      escape_text(folder.names[i], strlen(folder.names[i]), text));
    error_set(
        err, STATUS_INVALID_ARGUMENT,
        "%s is a repository of the Hub's cache; give the folder of a snapshot below %s/%s%s%s%s",
        ckpt->name, snapshots_name, names.n_bytes ? " (" : "", strbuf_str(&names),
        folder.n_names > MOST_NAMED_FILES ? ", ..." : "", names.n_bytes ? ")" : "");
    strbuf_fini(&names);
    folder_fini(&folder);
}

/* A folder without the files of a Hugging Face model. */
static int open_other(const char *path, const struct folder *folder, struct checkpoint *ckpt,
                      struct error *err)
{
    char file[PATH_BYTES];
    struct strbuf names = {0};
    size_t n = 0;
    const char *gguf = find_gguf(folder, &n, &names);
    int rc = 0;
    if (gguf && (size_t)snprintf(file, sizeof(file), "%s/%s", path, gguf) < sizeof(file)) {
        rc = gguf_open_model(file, ckpt, err);
    } else {
        if (n > 1)
            error_set(err, STATUS_INVALID_ARGUMENT,
                      "%s is a folder with %zu GGUF models (%s%s); give the path of one of them",
                      ckpt->name, n, strbuf_str(&names), n > MOST_NAMED_FILES ? ", ..." : "");
        else if (folder_has(folder, snapshots_name))
            name_snapshots(path, ckpt, err);
        else if (folder_has(folder, "adapter_config.json"))
            error_set(err, STATUS_INVALID_ARGUMENT,
                      "%s is the folder of an adapter; give the folder of the model itself",
                      ckpt->name);
        else
            error_set(err, STATUS_INVALID_ARGUMENT,
                      "%s is a folder without %s and without a GGUF file; give the path of a GGUF "
                      "file, or of the folder that holds %s",
                      ckpt->name, config_name, config_name);
        rc = error_reason(err, REASON_MODEL_FILE_INVALID);
    }
    strbuf_fini(&names);
    return rc;
}

static int read_model(struct hf_reader *reader, struct error *err)
{
    int rc = sha256_create(&reader->sha, err);
    if (rc)
        return rc;
    reader->ckpt->format = "hf";
    rc = read_files(reader, err);
    if (rc) {
        sha256_destroy(reader->sha);
        return rc;
    }
    sha256_final(reader->sha, reader->ckpt->digest);
    return 0;
}

int hf_open_folder(const char *path, struct checkpoint *ckpt, struct error *err)
{
    struct folder folder = {0};
    ckpt->architecture = "";
    int rc = name_model(path, ckpt, err);
    if (!rc)
        rc = folder_list(path, &folder, err);
    if (!rc && folder_has(&folder, config_name) &&
        (hf_weights_exist(&folder) || !has_gguf(&folder))) {
        struct hf_reader reader = {.path = path, .folder = &folder, .ckpt = ckpt};
        rc = read_model(&reader, err);
    } else if (!rc) {
        rc = open_other(path, &folder, ckpt, err);
    }
    folder_fini(&folder);
    return rc;
}
