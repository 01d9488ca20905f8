/* support_tiny.h: makes small Llama, GPT-2 and BLOOM checkpoints in memory, whole or broken in one
 * place. Weights come from a fixed generator: peaked attention, norms away from one, biases away
 * from zero. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/weight.h"
#include "tests/unit/engine/support/support_gguf.h"

/* A further key: a text, an f32 or (type GGUF_U32, GGUF_BOOL) a number. */
struct tiny_key {
    const char *key;
    uint32_t type;
    uint32_t number;
    float real;
    const char *text;
};

enum tiny_form { TINY_LLAMA, TINY_GPT2, TINY_BLOOM };

struct tiny_spec {
    enum tiny_form form;
    uint32_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, context;
    /* GGML_F32, GGML_BF16, GGML_Q8_0, GGML_Q4_1 or, where rows are multiples of 256, one of
     * GGML_Q2_K to GGML_Q6_K. */
    uint32_t matrix_type;
    /* F32 matrices hold only values that this store represents exactly */
    enum weight_store rounded_for;
    bool untied, biases, rope_freqs;
    const char *architecture; /* NULL: the architecture of the form */
    const char *skip;         /* the key or tensor of this name is left out */
    const char *wide;         /* the tensor of this name gets 32 more columns */
    const char *extra_tensor; /* f32, 32 elements */
    const char *set_key;      /* a u32 key that takes set_value instead of its own, or is added */
    uint32_t set_value;
    const char *text_key, *text_value; /* a string key that is added */
    const char *real_key;              /* an f32 key that is added or changed */
    float real_value;
    const struct tiny_key *keys; /* [n_keys], added */
    uint32_t n_keys;
    const struct gguf_vocab *tokenizer; /* NULL: the file has no tokenizer */
};

/* "llama", "gpt2", "bloom": the prefix of the form's keys. */
const char *tiny_prefix(enum tiny_form form);

/* Llama, 2 layers, hidden 64, MLP 256, 8 heads of 32 over 4 KV heads, 300 tokens, 256 positions,
 * f32. */
struct tiny_spec tiny_spec_default(void);

/* Writes the file's bytes into *w. The caller zeroes *w before and calls gguf_writer_fini() after.
 */
void tiny_write(const struct tiny_spec *spec, struct gguf_writer *w);
/* Writes a checkpoint and opens it. Fails the test if the reader refuses it. */
struct checkpoint *tiny_open(const struct tiny_spec *spec);
