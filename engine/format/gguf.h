/* gguf.h: reader of GGUF files, versions 2 and 3, little-endian (ggml's GGUF specification). Fills
 * a checkpoint; errors are those of checkpoint.h. Each call uses a single thread. Trusts nothing:
 * before memory is allocated or read by a number, the number is checked. Checks use the format's
 * rules, the limits below and the bytes left in the file. */
#pragma once

#include <stdint.h>

struct checkpoint;
struct error;

enum {
    GGUF_MAX_KEYS = 65536,
    GGUF_MAX_TENSORS = 65536,
    GGUF_MAX_KEY_BYTES = 65535,
    GGUF_MAX_TENSOR_NAME_BYTES = 64,
    GGUF_MAX_STRING_BYTES = 1 << 20,
    GGUF_MAX_ARRAY_STRING_BYTES = 64 << 20, /* all strings of one array together */
    GGUF_MAX_ARRAY_ELEMENTS = 16 << 20,
    GGUF_MAX_HEADER_BYTES = 512 << 20, /* everything before the weights */
    GGUF_MAX_DIMS = 4,
    GGUF_MAX_ALIGNMENT = 1 << 30,
    GGUF_DEFAULT_ALIGNMENT = 32,
};

/* Fills format, version, digest, entries, tensors and indices of a checkpoint from its file number
 * `file`. The checkpoint has an initialised arena and no tensors yet. After a failure, the arena
 * owns the partial results. */
int gguf_read(struct checkpoint *ckpt, uint32_t file, struct error *err);

/* Opens the GGUF file at `path` and fills a new checkpoint. A part of a split model opens all
 * parts (keys split.no, split.count and split.tensors.count). They lie beside it and are named
 * NAME-00001-of-0000N.gguf. The metadata are those of the first part. */
int gguf_open_model(const char *path, struct checkpoint *ckpt, struct error *err);
