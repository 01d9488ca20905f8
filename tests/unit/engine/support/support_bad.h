/* support_bad.h: tables of bad model files. Each row is a golden folder or GGUF file with a change,
 * and the error that the change must give. A check prints all rows with another result, and fails
 * then. */
#pragma once

#include <stddef.h>

#include "tests/unit/engine/support/support_dialect.h"

/* A folder where `old` in config.json is `now`. */
struct bad_folder {
    const char *golden, *old, *now;
    int status;
    const char *named; /* values that the error names, separated by '|' */
};

/* A GGUF file of this architecture with a change of a key. */
struct bad_gguf {
    const char *golden, *arch;
    struct dialect_edit edit;
    int status;
    const char *named;
};

/* A GGUF file without a tensor. */
struct bad_tensor {
    const char *golden, *arch, *tensor;
    const char *named;
};

void bad_folders_check(const struct bad_folder *rows, size_t n);
void bad_ggufs_check(const struct bad_gguf *rows, size_t n);
void bad_tensors_check(const struct bad_tensor *rows, size_t n);
