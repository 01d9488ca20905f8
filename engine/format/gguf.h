/* gguf.h: reader of GGUF files, versions 2 and 3, little-endian (ggml's GGUF specification). Fills
 * a checkpoint (see checkpoint.h for the errors). One thread per call. Trusts nothing: every number
 * is checked against the format's rules, the limits below and the bytes that are left in the file
 * before anything is allocated or read by it. */
#pragma once

#include <stdint.h>

struct checkpoint;
struct error;
struct source;

enum {
    GGUF_MAX_KEYS = 65536,
    GGUF_MAX_TENSORS = 65536,
    GGUF_MAX_KEY_BYTES = 65535,
    GGUF_MAX_TENSOR_NAME_BYTES = 64,
    GGUF_MAX_STRING_BYTES = 1 << 20,
    GGUF_MAX_ARRAY_STRING_BYTES = 64 << 20, /* all strings of one array together */
    GGUF_MAX_ARRAY_ELEMENTS = 16 << 20,
    GGUF_MAX_HEADER_BYTES = 512 << 20, /* everything before the weights */
    GGUF_MIN_ALIGNMENT = 8,
    GGUF_MAX_ALIGNMENT = 64 << 10,
    GGUF_DEFAULT_ALIGNMENT = 32,
};

/* Fills format, version, digest, entries, tensors and indices of a zeroed checkpoint whose arena is
 * ready; what is there after a failure is freed with the arena. */
int gguf_read(struct source *source, struct checkpoint *ckpt, struct error *err);
