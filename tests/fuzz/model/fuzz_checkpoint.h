/* fuzz_checkpoint.h: what the fuzz targets of model files share. A file of a folder is fuzzed
 * through a link to memory, so that no input touches the disk. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/format/checkpoint_files.h"

static inline void fuzz_require(int condition, const char *what, const struct error *err)
{
    if (condition)
        return;
    fprintf(stderr, "%s: %d %s [%s]\n", what, err->status, err->message, error_reason_name(err));
    abort();
}

/* Reads every key, and the last row of every tensor. */
static inline void fuzz_walk(const struct checkpoint *ckpt)
{
    struct strbuf text = {0};
    struct error err = {0};
    unsigned char row[4096];
    for (uint64_t i = 0; i < checkpoint_n_keys(ckpt); i++) {
        checkpoint_key_type(ckpt, i, &text);
        checkpoint_key_value(ckpt, i, 200, &text);
    }
    strbuf_fini(&text);
    for (uint64_t i = 0; i < checkpoint_n_tensors(ckpt); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(ckpt, i);
        fuzz_require(checkpoint_tensor_find(ckpt, t->name) == t, "find", &err);
        if (t->dtype == DTYPE_OTHER)
            fuzz_require(checkpoint_check_type(ckpt, t, &err) == STATUS_UNIMPLEMENTED, "type",
                         &err);
        else if (t->row_bytes <= sizeof(row))
            fuzz_require(checkpoint_read_tensor_rows(ckpt, t, t->n_rows - 1, 1, row, &err) == 0,
                         "last row", &err);
    }
}

struct fuzz_folder {
    char path[64];
    char link[128];
    int fd;
};

/* Makes a folder in which the file `name` has the fuzzed bytes. */
static inline void fuzz_folder_make(struct fuzz_folder *f, const char *name)
{
    char target[64];
    snprintf(f->path, sizeof(f->path), "/tmp/sluice_fuzz_XXXXXX");
    if (!mkdtemp(f->path))
        abort();
    f->fd = memfd_create(name, MFD_CLOEXEC);
    snprintf(target, sizeof(target), "/proc/self/fd/%d", f->fd);
    snprintf(f->link, sizeof(f->link), "%s/%s", f->path, name);
    if (f->fd < 0 || symlink(target, f->link) != 0)
        abort();
}

/* Adds a file that stays the same. */
static inline void fuzz_folder_add(const struct fuzz_folder *f, const char *name, const void *bytes,
                                   size_t n_bytes)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", f->path, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n_bytes, file) != n_bytes || fclose(file) != 0)
        abort();
}

/* Removes the link and the added files; `names` ends with NULL. */
static inline void fuzz_folder_remove(const struct fuzz_folder *f, const char *const *names)
{
    char path[128];
    unlink(f->link);
    for (; *names; names++) {
        snprintf(path, sizeof(path), "%s/%s", f->path, *names);
        unlink(path);
    }
    rmdir(f->path);
}

/* Opens the folder with these bytes: it opens and can be walked, or is refused by name. */
static inline void fuzz_folder_open(const struct fuzz_folder *f, const uint8_t *data,
                                    size_t n_bytes)
{
    struct checkpoint *ckpt = NULL;
    struct error err = {0};
    if (ftruncate(f->fd, 0) != 0 || pwrite(f->fd, data, n_bytes, 0) != (ssize_t)n_bytes)
        abort();
    int rc = checkpoint_open(f->path, &ckpt, &err);
    if (rc == 0)
        fuzz_walk(ckpt);
    else
        fuzz_require(rc == STATUS_UNIMPLEMENTED ||
                         (rc == STATUS_INVALID_ARGUMENT && err.reason == REASON_MODEL_FILE_INVALID),
                     "open", &err);
    checkpoint_close(ckpt);
}

/* A safetensors file with the tensor NAME, two floats. Returns its size. */
static inline size_t fuzz_shard(const char *name, char out[256])
{
    int n = snprintf(out + 8, 248,
                     "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", name);
    memset(out, 0, 8);
    out[0] = (char)n;
    memset(out + 8 + n, 0, 8);
    return 8 + (size_t)n + 8;
}
