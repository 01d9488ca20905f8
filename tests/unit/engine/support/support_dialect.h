/* support_dialect.h: opens a golden GGUF with other keys, and with other names of tensors. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct checkpoint;
struct gguf_writer;

/* A change of a key, by its name without the architecture. */
struct dialect_edit {
    const char *key;
    const char *name;  /* the new name; NULL: the key is dropped */
    const void *value; /* NULL: the old value stays */
    size_t n_bytes;
};

/* A tensor that the file gets, with its values. */
struct dialect_tensor {
    const char *name;
    uint32_t type;
    uint64_t dims[2];
    const void *data;
    size_t n_bytes;
};

struct dialect {
    const char *from, *to; /* names of the architecture */
    const struct dialect_edit *edits;
    size_t n_edits;
    const char *const (*tensors)[2]; /* ends of names and their replacements */
    size_t n_tensors;
    void (*more)(struct gguf_writer *); /* further keys; may be NULL */
    bool images;                        /* adds tensors of an image's part */
    const struct dialect_tensor *added; /* NULL: none; not with `images` */
};

/* Opens tests/golden/tiny/<golden>.gguf in the dialect. *out_data is the offset of the first
 * weight. The caller closes the checkpoint. Fails the test if the file cannot be read. */
struct checkpoint *dialect_open(const char *golden, const struct dialect *d, uint64_t *out_data);
