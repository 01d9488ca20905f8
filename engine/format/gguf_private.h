/* gguf_private.h: between gguf.c (header and tensors), gguf_metadata.c and gguf_cursor.c. Errors
 * name the file, the offset and the field (gguf_field, gguf_scope_name). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "engine/format/byte_reader.h"
#include "engine/format/escape.h"

struct checkpoint;
struct error;

#define NO_INDEX UINT64_MAX

/* The reader's place in the file. `scope`, `part` and `index` name the field being read, for
 * messages only: «key "tokenizer.ggml.tokens": element [17]». */
struct gguf {
    struct byte_reader reader;
    struct checkpoint *ckpt;
    char scope[ESCAPE_MAX_BYTES + 16];
    const char *part;
    uint64_t index;
    uint64_t alignment;
};

/* One message for everything wrong in a file: INVALID_ARGUMENT, MODEL_FILE_INVALID. */
int gguf_bad(const struct gguf *g, uint64_t offset, struct error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
int gguf_out_of_memory(const struct gguf *g, struct error *err);

/* The field that is read next; `index` NO_INDEX: it has none. */
void gguf_field(struct gguf *g, const char *part, uint64_t index);
/* What it is part of: «key "general.name"». */
void gguf_scope_name(struct gguf *g, const char *kind, const char *name);

/* Whether so many bytes are left. */
int gguf_need(const struct gguf *g, uint64_t n_bytes, struct error *err);
int gguf_read_bytes(struct gguf *g, void *dst, size_t n_bytes, struct error *err);
int gguf_read_u32(struct gguf *g, uint32_t *out, struct error *err);
int gguf_read_u64(struct gguf *g, uint64_t *out, struct error *err);
/* Length and bytes of a string; *out_text is in the arena, terminated and valid UTF-8. */
int gguf_read_string(struct gguf *g, uint64_t limit_bytes, const char **out_text,
                     uint64_t *out_n_bytes, struct error *err);
/* Keys and tensor names: no control characters, so that no message can be forged with them. */
int gguf_read_name(struct gguf *g, uint64_t limit_bytes, const char **out_name, struct error *err);

/* The n entries, into the checkpoint, and its index of them. */
int gguf_read_metadata(struct gguf *g, uint64_t n, struct error *err);
