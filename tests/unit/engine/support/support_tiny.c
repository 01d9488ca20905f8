#include "tests/unit/engine/support/support_tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "engine/format/checkpoint.h"
#include "kernels/dtype.h"
#include "kernels/maths.h"

enum { ALIGNMENT = 32, MAX_TENSORS = 64, BLOCK = 32, SUPER_BLOCK = 256, MAX_COLS = 4096 };

struct tensor_row {
    char name[64];
    uint32_t type, cols, rows;
    float center, spread; /* values are center ± spread */
    uint64_t offset, n_bytes;
};

struct maker {
    const struct tiny_spec *spec;
    struct gguf_writer *w;
    struct tensor_row tensors[MAX_TENSORS];
    uint32_t n_tensors;
    uint64_t n_bytes;
    uint32_t state;
};

struct tiny_spec tiny_spec_default(void)
{
    return (struct tiny_spec){
        .n_layers = 2,
        .hidden = 64,
        .ffn = 256,
        .n_heads = 8,
        .n_kv_heads = 4,
        .head_dim = 32,
        .vocab = 300,
        .context = 256,
    };
}

static bool skipped(const struct maker *m, const char *name)
{
    return m->spec->skip && strcmp(m->spec->skip, name) == 0;
}

const char *tiny_prefix(enum tiny_form form)
{
    static const char *const prefixes[] = {"llama", "gpt2", "bloom"};
    return prefixes[form];
}

/* `key` below the form's prefix; valid until the next call. */
static const char *full_key(const struct maker *m, const char *key)
{
    static char full[96];
    snprintf(full, sizeof(full), "%s.%s", tiny_prefix(m->spec->form), key);
    return full;
}

static void key_u32(struct maker *m, const char *below, uint32_t value)
{
    const char *key = full_key(m, below);
    bool set = m->spec->set_key && strcmp(m->spec->set_key, key) == 0;
    if (!skipped(m, key))
        gguf_kv_u32(m->w, key, set ? m->spec->set_value : value);
}

static void key_f32(struct maker *m, const char *key, float value)
{
    uint32_t bits;
    if (m->spec->real_key && strcmp(m->spec->real_key, key) == 0)
        value = m->spec->real_value;
    if (skipped(m, key))
        return;
    memcpy(&bits, &value, sizeof(bits));
    gguf_kv(m->w, key, GGUF_F32);
    gguf_u32(m->w, bits);
}

static uint64_t row_bytes(uint32_t type, uint32_t cols)
{
    static const enum dtype dtypes[] = {
        [GGML_F32] = DTYPE_F32,   [GGML_BF16] = DTYPE_BF16, [GGML_Q8_0] = DTYPE_Q8_0,
        [GGML_Q4_1] = DTYPE_Q4_1, [GGML_Q2_K] = DTYPE_Q2_K, [GGML_Q3_K] = DTYPE_Q3_K,
        [GGML_Q4_K] = DTYPE_Q4_K, [GGML_Q5_K] = DTYPE_Q5_K, [GGML_Q6_K] = DTYPE_Q6_K,
    };
    return dtype_row_bytes(dtypes[type], cols);
}

static void add(struct maker *m, const char *name, uint32_t type, uint32_t cols, uint32_t rows,
                float center, float spread)
{
    if (skipped(m, name))
        return;
    assert_true(m->n_tensors < MAX_TENSORS);
    struct tensor_row *t = &m->tensors[m->n_tensors++];
    *t = (struct tensor_row){.type = type,
                             .cols = cols,
                             .rows = rows,
                             .center = center,
                             .spread = spread,
                             .offset = m->n_bytes};
    snprintf(t->name, sizeof(t->name), "%s", name);
    if (m->spec->wide && strcmp(m->spec->wide, name) == 0)
        t->cols += 32;
    t->n_bytes = row_bytes(type, t->cols) * rows;
    m->n_bytes += (t->n_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void add_layer(struct maker *m, uint32_t layer)
{
    const struct tiny_spec *s = m->spec;
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim, type = s->matrix_type;
    const struct {
        const char *name;
        uint32_t cols, rows;
        float spread;
    } matrices[] = {
        {"attn_q", s->hidden, q, 0.9F},        {"attn_k", s->hidden, kv, 0.9F},
        {"attn_v", s->hidden, kv, 0.2F},       {"attn_output", q, s->hidden, 0.1F},
        {"ffn_gate", s->hidden, s->ffn, 0.2F}, {"ffn_up", s->hidden, s->ffn, 0.2F},
        {"ffn_down", s->ffn, s->hidden, 0.1F},
    };
    char name[64];
    snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", layer);
    add(m, name, GGML_F32, s->hidden, 1, 1, 0.4F);
    snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", layer);
    add(m, name, GGML_F32, s->hidden, 1, 1, 0.4F);
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, matrices[i].name);
        add(m, name, type, matrices[i].cols, matrices[i].rows, 0, matrices[i].spread);
        snprintf(name, sizeof(name), "blk.%u.%s.bias", layer, matrices[i].name);
        if (s->biases)
            add(m, name, GGML_F32, matrices[i].rows, 1, 0, 0.3F);
    }
}

/* A norm of GPT-2's or BLOOM's. */
static void add_norm(struct maker *m, const char *stem)
{
    char name[64];
    snprintf(name, sizeof(name), "%s.weight", stem);
    add(m, name, GGML_F32, m->spec->hidden, 1, 1, 0.4F);
    snprintf(name, sizeof(name), "%s.bias", stem);
    add(m, name, GGML_F32, m->spec->hidden, 1, 0, 0.3F);
}

static void add_gpt_layer(struct maker *m, uint32_t layer)
{
    const struct tiny_spec *s = m->spec;
    uint32_t q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const struct {
        const char *name;
        uint32_t cols, rows;
        float spread;
    } matrices[] = {
        {"attn_qkv", s->hidden, q + 2 * kv, 0.5F},
        {"attn_output", q, s->hidden, 0.1F},
        {"ffn_up", s->hidden, s->ffn, 0.2F},
        {"ffn_down", s->ffn, s->hidden, 0.1F},
    };
    char name[64];
    snprintf(name, sizeof(name), "blk.%u.attn_norm", layer);
    add_norm(m, name);
    snprintf(name, sizeof(name), "blk.%u.ffn_norm", layer);
    add_norm(m, name);
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        snprintf(name, sizeof(name), "blk.%u.%s.weight", layer, matrices[i].name);
        add(m, name, s->matrix_type, matrices[i].cols, matrices[i].rows, 0, matrices[i].spread);
        snprintf(name, sizeof(name), "blk.%u.%s.bias", layer, matrices[i].name);
        add(m, name, GGML_F32, matrices[i].rows, 1, 0, 0.3F);
    }
}

/* Uniform in ±1. */
static float next(struct maker *m)
{
    m->state = m->state * 1664525U + 1013904223U;
    return (float)(m->state >> 8) / 8388608.0F - 1.0F;
}

static void put_f32(struct maker *m, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    gguf_u32(m->w, bits);
}

static void put_u16(struct maker *m, uint16_t value)
{
    gguf_u8(m->w, (uint8_t)value);
    gguf_u8(m->w, (uint8_t)(value >> 8));
}

/* As kernels/cuda/dense/weight_dense_cuda.c stores a row. */
static void round_row(enum weight_store store, float *values, uint32_t n)
{
    float limit = store == WEIGHT_STORE_F8 ? 448.0F : 127.0F, largest = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = fmaxf(largest, fabsf(values[i]));
    float unit = largest > 0 ? largest / limit : 1;
    for (uint32_t i = 0; i < n; i++) {
        float code = fminf(fmaxf(values[i] / unit, -limit), limit);
        values[i] = unit * (store == WEIGHT_STORE_F8 ? maths_f8_to_f32(maths_f32_to_f8(code))
                                                     : rintf(code));
    }
}

static void put_floats(struct maker *m, const struct tensor_row *t)
{
    float values[MAX_COLS];
    bool rounds = t->rows > 1 && m->spec->rounded_for != WEIGHT_STORE_SOURCE;
    assert_true(!rounds || t->cols <= MAX_COLS);
    for (uint32_t r = 0; r < t->rows; r++)
        for (uint32_t begin = 0; begin < t->cols; begin += MAX_COLS) {
            uint32_t n = t->cols - begin < MAX_COLS ? t->cols - begin : MAX_COLS;
            for (uint32_t i = 0; i < n; i++)
                values[i] = t->center + t->spread * next(m);
            if (rounds)
                round_row(m->spec->rounded_for, values, n);
            for (uint32_t i = 0; i < n; i++)
                if (t->type == GGML_BF16)
                    put_u16(m, dtype_f32_to_bf16(values[i]));
                else
                    put_f32(m, values[i]);
        }
}

/* Writes blocks of 256 random codes and sub-scales. The factors spread the values over most of
 * ±spread. */
static void put_super_blocks(struct maker *m, const struct tensor_row *t)
{
    static const struct {
        /* sizes of a block, and places of its factors; 0: no minimum */
        uint32_t type, n_bytes, d_at, min_at;
        float d, min; /* values for spread 1 */
    } formats[] = {
        {GGML_Q2_K, 84, 80, 82, 1 / 12.0F, 1 / 8.0F},
        {GGML_Q3_K, 110, 108, 0, 1 / 64.0F, 0},
        {GGML_Q4_K, 144, 0, 2, 1 / 256.0F, 1 / 34.0F},
        {GGML_Q5_K, 176, 0, 2, 1 / 512.0F, 1 / 34.0F},
        {GGML_Q6_K, 210, 208, 0, 1 / 2048.0F, 0},
    };
    uint32_t f = 0;
    while (formats[f].type != t->type)
        f++;
    for (uint64_t b = 0; b < (uint64_t)t->cols * t->rows / SUPER_BLOCK; b++) {
        float scale = t->spread * (0.75F + 0.25F * next(m));
        for (uint32_t i = 0; i < formats[f].n_bytes; i++)
            if (i == formats[f].d_at || (formats[f].min > 0 && i == formats[f].min_at)) {
                put_u16(m, dtype_f32_to_f16(
                               scale * (i == formats[f].d_at ? formats[f].d : formats[f].min)));
                i++;
            } else {
                gguf_u8(m->w, (uint8_t)(int8_t)(127 * next(m)));
            }
    }
}

static void put_weights(struct maker *m, const struct tensor_row *t)
{
    uint64_t n_elems = (uint64_t)t->cols * t->rows;
    if (t->type == GGML_F32 || t->type == GGML_BF16) {
        put_floats(m, t);
        return;
    }
    if (t->type >= GGML_Q2_K) {
        put_super_blocks(m, t);
        return;
    }
    for (uint64_t b = 0; b < n_elems / BLOCK; b++) {
        float scale = t->spread * (0.75F + 0.25F * next(m));
        bool q4 = t->type == GGML_Q4_1;
        put_u16(m, dtype_f32_to_f16(q4 ? scale / 8 : scale / 127));
        if (q4)
            put_u16(m, dtype_f32_to_f16(-scale));
        for (uint32_t i = 0; i < (q4 ? BLOCK / 2 : BLOCK); i++)
            gguf_u8(m->w, (uint8_t)(int8_t)(127 * next(m)));
    }
}

static void write_keys(struct maker *m)
{
    const struct tiny_spec *s = m->spec;
    if (!skipped(m, "general.architecture"))
        gguf_kv_string(m->w, "general.architecture",
                       s->architecture ? s->architecture : tiny_prefix(s->form));
    gguf_kv_string(m->w, "general.name", "tiny");
    key_u32(m, "block_count", s->n_layers);
    key_u32(m, "context_length", s->context);
    key_u32(m, "embedding_length", s->hidden);
    key_u32(m, "feed_forward_length", s->ffn);
    key_u32(m, "attention.head_count", s->n_heads);
    key_u32(m, "attention.head_count_kv", s->n_kv_heads);
    key_u32(m, "attention.key_length", s->head_dim);
    key_u32(m, "attention.value_length", s->head_dim);
    if (s->form == TINY_LLAMA)
        key_u32(m, "rope.dimension_count", s->head_dim);
    key_u32(m, "vocab_size", s->vocab);
    if (s->form != TINY_LLAMA) {
        key_f32(m, full_key(m, "attention.layer_norm_epsilon"), 1e-2F);
        return;
    }
    key_f32(m, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    key_f32(m, "llama.rope.freq_base", 10000);
}

/* Returns true if write_keys() writes the key. */
static bool is_own_key(const struct maker *m, const char *key)
{
    static const char *const keys[] = {
        "block_count",          "context_length",         "embedding_length",
        "feed_forward_length",  "attention.head_count",   "attention.head_count_kv",
        "attention.key_length", "attention.value_length", "vocab_size"};
    static const char *const own[] = {"llama.rope.dimension_count",
                                      "llama.attention.layer_norm_rms_epsilon",
                                      "llama.rope.freq_base", "gpt2.attention.layer_norm_epsilon",
                                      "bloom.attention.layer_norm_epsilon"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(key, full_key(m, keys[i])) == 0)
            return true;
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        if (strcmp(key, own[i]) == 0)
            return true;
    return false;
}

static void write_extra_keys(struct maker *m)
{
    const struct tiny_spec *s = m->spec;
    if (s->set_key && !is_own_key(m, s->set_key))
        gguf_kv_u32(m->w, s->set_key, s->set_value);
    if (s->text_key)
        gguf_kv_string(m->w, s->text_key, s->text_value);
    if (s->real_key && !is_own_key(m, s->real_key))
        key_f32(m, s->real_key, s->real_value);
    for (uint32_t i = 0; i < s->n_keys; i++) {
        const struct tiny_key *k = &s->keys[i];
        if (k->type == GGUF_STRING)
            gguf_kv_string(m->w, k->key, k->text);
        else if (k->type == GGUF_F32)
            key_f32(m, k->key, k->real);
        else if (k->type == GGUF_BOOL)
            gguf_kv_bool(m->w, k->key, (uint8_t)k->number);
        else
            gguf_kv_u32(m->w, k->key, k->number);
    }
}

static void list_tensors(struct maker *m)
{
    const struct tiny_spec *s = m->spec;
    add(m, "token_embd.weight", s->matrix_type, s->hidden, s->vocab, 0, 1);
    if (s->form == TINY_GPT2)
        add(m, "position_embd.weight", GGML_F32, s->hidden, s->context, 0, 0.7F);
    if (s->form == TINY_BLOOM)
        add_norm(m, "token_embd_norm");
    if (s->form == TINY_LLAMA)
        add(m, "output_norm.weight", GGML_F32, s->hidden, 1, 1, 0.4F);
    else
        add_norm(m, "output_norm");
    if (s->untied)
        add(m, "output.weight", s->matrix_type, s->hidden, s->vocab, 0, 0.3F);
    if (s->rope_freqs)
        add(m, "rope_freqs.weight", GGML_F32, s->head_dim / 2, 1, 3, 2);
    if (s->extra_tensor)
        add(m, s->extra_tensor, GGML_F32, 32, 1, 0, 1);
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        s->form == TINY_LLAMA ? add_layer(m, layer) : add_gpt_layer(m, layer);
}

void tiny_write(const struct tiny_spec *spec, struct gguf_writer *w)
{
    struct maker m = {.spec = spec, .w = w, .state = 12345};
    gguf_begin(w);
    write_keys(&m);
    write_extra_keys(&m);
    if (spec->tokenizer)
        gguf_vocab(w, spec->tokenizer);
    list_tensors(&m);
    for (uint32_t i = 0; i < m.n_tensors; i++) {
        const struct tensor_row *t = &m.tensors[i];
        uint64_t dims[2] = {t->cols, t->rows};
        gguf_tensor(w, t->name, t->type, t->rows == 1 ? 1 : 2, dims, t->offset);
    }
    gguf_finish(w);
    for (uint32_t i = 0; i < m.n_tensors; i++) {
        while (w->bytes.n_bytes % ALIGNMENT)
            gguf_u8(w, 0);
        put_weights(&m, &m.tensors[i]);
    }
    assert_false(strbuf_failed(&w->bytes));
}

struct checkpoint *tiny_open(const struct tiny_spec *spec)
{
    struct gguf_writer w = {0};
    struct error err = {0};
    struct checkpoint *ckpt = NULL;
    tiny_write(spec, &w);
    if (gguf_open(&w, &ckpt, &err) != 0)
        fail_msg("tiny checkpoint: %s", err.message);
    gguf_writer_fini(&w);
    return ckpt;
}
