/* folder.h: the names in a folder of model files. A path "ROOT/./REST" is opened below ROOT only
 * (beneath.h). Also the rules by which a path names a model. Any thread. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct error;

enum { FOLDER_MAX_NAMES = 65536 };

struct folder {
    char **names; /* owned; sorted by bytes */
    size_t n_names;
};

/* True if the path leads to a folder. False on every error: the caller opens the path as a file
 * next, and that call explains the error. */
bool folder_is_one(const char *path);

/* Lists all names but "." and "..". *out_folder is owned: folder_fini(). INVALID_ARGUMENT (reason
 * MODEL_FILE_INVALID) if there are more than FOLDER_MAX_NAMES. */
int folder_list(const char *path, struct folder *out_folder, struct error *err);
void folder_fini(struct folder *folder);

/* Makes a model's path absolute and resolves its links, like realpath(). False sets errno. A link
 * named *.gguf to a file with another name keeps its own name. The Hub cache has such links: its
 * contents have no names, and a split model needs those of its parts. */
bool folder_resolve(const char *path, char out_path[PATH_MAX]);
/* True if a link of this name to a file at `target` keeps its name. */
bool folder_keeps_name(const char *name, const char *target);

/* Returns the start of a model's name within its path, and its length. In a Hub cache,
 * "models--ORG--NAME/snapshots/REVISION" has the name "ORG--NAME" (*out_is_hub). Every other path
 * has its last name, without slashes at the end. */
const char *folder_model_name(const char *path, size_t *out_n, bool *out_is_hub);
/* The length of the ending "-00002-of-00003.gguf" of name[0..n), a part of a split model. *out_part
 * (may be NULL) is the part's number. 0: the name has no such ending. */
size_t folder_part_suffix(const char *name, size_t n, unsigned *out_part);

bool folder_has(const struct folder *folder, const char *name);
/* True if the names are those of a model: config.json, or a *.gguf. Reads no file. */
bool folder_has_model(const struct folder *folder);
