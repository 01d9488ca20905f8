/* folder.h: the names in a folder of model files. A path "ROOT/./REST" is opened below ROOT only
 * (beneath.h). Any thread. */
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

bool folder_has(const struct folder *folder, const char *name);
/* True if the names are those of a model: config.json, or a *.gguf. Reads no file. */
bool folder_has_model(const struct folder *folder);
