/* support_gguf.h: writes small GGUF files for tests, byte by byte, and records the offset of each
 * field. So a test can break a field and expect its offset in the message. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/strbuf.h"

struct checkpoint;
struct error;

/* Type numbers as they stand in files. */
enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};
enum {
    GGML_F32 = 0,
    GGML_F16 = 1,
    GGML_Q4_1 = 3,
    GGML_Q8_0 = 8,
    GGML_Q2_K = 10,
    GGML_Q3_K = 11,
    GGML_Q4_K = 12,
    GGML_Q5_K = 13,
    GGML_Q6_K = 14,
    GGML_IQ1_S = 19,
    GGML_BF16 = 30
};

struct gguf_label {
    char name[48];
    size_t offset;
};

struct gguf_writer {
    struct strbuf bytes;
    uint64_t n_tensors, n_kv; /* patched into the header by gguf_finish() */
    struct gguf_label labels[96];
    size_t n_labels;
};

/* Header of version 3. A zeroed struct first. */
void gguf_begin(struct gguf_writer *w);
/* Patches the counts. */
void gguf_finish(struct gguf_writer *w);
void gguf_writer_fini(struct gguf_writer *w);

void gguf_u8(struct gguf_writer *w, uint8_t value);
void gguf_u32(struct gguf_writer *w, uint32_t value);
void gguf_u64(struct gguf_writer *w, uint64_t value);
/* writes length and bytes */
void gguf_text(struct gguf_writer *w, const char *text, size_t n_bytes);
/* names the place of the next byte */
void gguf_label(struct gguf_writer *w, const char *name);
/* returns a label's offset; fails for an unknown label */
size_t gguf_at(const struct gguf_writer *w, const char *label);

/* Key and type; labels "<key>" and "<key>.type"; the value follows and gets "<key>.value". */
void gguf_kv(struct gguf_writer *w, const char *key, uint32_t type);
void gguf_kv_u32(struct gguf_writer *w, const char *key, uint32_t value);
void gguf_kv_bool(struct gguf_writer *w, const char *key, uint8_t value);
void gguf_kv_string(struct gguf_writer *w, const char *key, const char *value);
/* Element type and length; labels "<key>.element" and "<key>.length". */
void gguf_kv_array(struct gguf_writer *w, const char *key, uint32_t element_type, uint64_t n);
void gguf_kv_strings(struct gguf_writer *w, const char *key, const char *const *texts, size_t n);
void gguf_kv_i32s(struct gguf_writer *w, const char *key, const int32_t *values, size_t n);

/* Directory entry; labels "<name>", "<name>.n_dims", "<name>.dims", "<name>.type",
 * "<name>.offset". */
void gguf_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                 const uint64_t *dims, uint64_t offset);
/* Zeros up to the alignment, then n_bytes of weights that count up from 0. */
void gguf_weights(struct gguf_writer *w, size_t alignment, size_t n_bytes);

/* checkpoint_open() on bytes, through a memory file. */
int gguf_open_bytes(const void *bytes, size_t n_bytes, struct checkpoint **out_ckpt,
                    struct error *err);
int gguf_open(const struct gguf_writer *w, struct checkpoint **out_ckpt, struct error *err);

/* A tokenizer of 256 bytes plus `tokens` (texts in GPT-2's byte alphabet) and merges. Types: normal
 * for bytes and tokens, then n_control control tokens and n_user user-defined ones. */
struct gguf_vocab {
    const char *pre; /* tokenizer.ggml.pre; NULL: no such key */
    const char *const *tokens;
    size_t n_tokens;
    const char *const *merges;
    size_t n_merges;
    const char *const *control;
    size_t n_control;
    const char *const *user;
    size_t n_user;
};
void gguf_vocab(struct gguf_writer *w, const struct gguf_vocab *vocab);
/* Text of one byte in GPT-2's alphabet: 1 or 2 bytes and a terminator. */
void gguf_byte_text(uint8_t byte, char out[3]);

/* The sample model: SLUICE_MODEL, or where etc/fetch_model.sh puts it. */
const char *gguf_sample_path(void);
