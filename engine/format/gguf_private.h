/* gguf_private.h: shared by gguf.c (header and tensors), gguf_metadata.c and gguf_cursor.c. Errors
 * name the file, the offset and the field (gguf_field, gguf_scope_name). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/text/escape.h"
#include "engine/format/byte_reader.h"

struct checkpoint;
struct error;

#define NO_INDEX UINT64_MAX

/* The reader's position in the file. `scope`, `part` and `index` name the current field for
 * messages, for example «key "tokenizer.ggml.tokens": element [17]». */
struct gguf {
    struct byte_reader reader;
    struct checkpoint *ckpt;
    uint32_t file; /* index in the checkpoint */
    char scope[ESCAPE_MAX_BYTES + 16];
    const char *part;
    uint64_t index;
    uint64_t alignment;
};

/* Fills *err for invalid content: INVALID_ARGUMENT, MODEL_FILE_INVALID. */
int gguf_bad(const struct gguf *g, uint64_t offset, struct error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int gguf_out_of_memory(const struct gguf *g, struct error *err);

/* Names the field that is read next. `index` NO_INDEX: no index. */
void gguf_field(struct gguf *g, const char *part, uint64_t index);
/* Names the enclosing object, for example «key "general.name"». */
void gguf_scope_name(struct gguf *g, const char *kind, const char *name);

/* INVALID_ARGUMENT if fewer than n_bytes bytes are left. */
int gguf_need(const struct gguf *g, uint64_t n_bytes, struct error *err);
int gguf_read_bytes(struct gguf *g, void *dst, size_t n_bytes, struct error *err);
int gguf_read_u32(struct gguf *g, uint32_t *out, struct error *err);
int gguf_read_u64(struct gguf *g, uint64_t *out, struct error *err);
/* Reads the length and the bytes of a string. *out_text is in the arena, terminated and valid
 * UTF-8. */
int gguf_read_string(struct gguf *g, uint64_t limit_bytes, const char **out_text,
                     uint64_t *out_n_bytes, struct error *err);
/* Reads a key or a tensor name. Control characters are refused, because they could forge
 * messages. */
int gguf_read_name(struct gguf *g, uint64_t limit_bytes, const char **out_name, struct error *err);

/* Reads n metadata entries into the checkpoint and builds the index. */
int gguf_read_metadata(struct gguf *g, uint64_t n, struct error *err);
