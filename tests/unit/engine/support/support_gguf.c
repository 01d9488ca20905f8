#include "tests/unit/engine/support/support_gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/format/checkpoint.h"

static void little_endian(struct gguf_writer *w, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        strbuf_add_char(&w->bytes, (char)(value >> (8 * i)));
}

void gguf_u8(struct gguf_writer *w, uint8_t value)
{
    little_endian(w, value, 1);
}

void gguf_u32(struct gguf_writer *w, uint32_t value)
{
    little_endian(w, value, 4);
}

void gguf_u64(struct gguf_writer *w, uint64_t value)
{
    little_endian(w, value, 8);
}

void gguf_text(struct gguf_writer *w, const char *text, size_t n_bytes)
{
    gguf_u64(w, n_bytes);
    strbuf_add(&w->bytes, text, n_bytes);
}

void gguf_label(struct gguf_writer *w, const char *name)
{
    if (w->n_labels == sizeof(w->labels) / sizeof(w->labels[0]))
        return;
    struct gguf_label *label = &w->labels[w->n_labels++];
    snprintf(label->name, sizeof(label->name), "%s", name);
    label->offset = w->bytes.n_bytes;
}

static void sub_label(struct gguf_writer *w, const char *name, const char *part)
{
    char text[48];
    snprintf(text, sizeof(text), "%.36s.%s", name, part);
    gguf_label(w, text);
}

size_t gguf_at(const struct gguf_writer *w, const char *label)
{
    for (size_t i = 0; i < w->n_labels; i++)
        if (strcmp(w->labels[i].name, label) == 0)
            return w->labels[i].offset;
    fprintf(stderr, "no label %s\n", label);
    abort();
}

void gguf_begin(struct gguf_writer *w)
{
    gguf_label(w, "magic");
    strbuf_add_str(&w->bytes, "GGUF");
    gguf_label(w, "version");
    gguf_u32(w, 3);
    gguf_label(w, "n_tensors");
    gguf_u64(w, 0);
    gguf_label(w, "n_kv");
    gguf_u64(w, 0);
}

void gguf_finish(struct gguf_writer *w)
{
    for (int i = 0; i < 8; i++) {
        w->bytes.data[8 + i] = (char)(w->n_tensors >> (8 * i));
        w->bytes.data[16 + i] = (char)(w->n_kv >> (8 * i));
    }
}

void gguf_writer_fini(struct gguf_writer *w)
{
    strbuf_fini(&w->bytes);
    *w = (struct gguf_writer){0};
}

void gguf_kv(struct gguf_writer *w, const char *key, uint32_t type)
{
    w->n_kv++;
    gguf_label(w, key);
    gguf_text(w, key, strlen(key));
    sub_label(w, key, "type");
    gguf_u32(w, type);
    sub_label(w, key, "value");
}

void gguf_kv_u32(struct gguf_writer *w, const char *key, uint32_t value)
{
    gguf_kv(w, key, GGUF_U32);
    gguf_u32(w, value);
}

void gguf_kv_bool(struct gguf_writer *w, const char *key, uint8_t value)
{
    gguf_kv(w, key, GGUF_BOOL);
    gguf_u8(w, value);
}

void gguf_kv_string(struct gguf_writer *w, const char *key, const char *value)
{
    gguf_kv(w, key, GGUF_STRING);
    gguf_text(w, value, strlen(value));
}

void gguf_kv_array(struct gguf_writer *w, const char *key, uint32_t element_type, uint64_t n)
{
    gguf_kv(w, key, GGUF_ARRAY);
    sub_label(w, key, "element");
    gguf_u32(w, element_type);
    sub_label(w, key, "length");
    gguf_u64(w, n);
}

void gguf_kv_strings(struct gguf_writer *w, const char *key, const char *const *texts, size_t n)
{
    gguf_kv_array(w, key, GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        gguf_text(w, texts[i], strlen(texts[i]));
}

void gguf_kv_i32s(struct gguf_writer *w, const char *key, const int32_t *values, size_t n)
{
    gguf_kv_array(w, key, GGUF_I32, n);
    for (size_t i = 0; i < n; i++)
        gguf_u32(w, (uint32_t)values[i]);
}

void gguf_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                 const uint64_t *dims, uint64_t offset)
{
    w->n_tensors++;
    gguf_label(w, name);
    gguf_text(w, name, strlen(name));
    sub_label(w, name, "n_dims");
    gguf_u32(w, n_dims);
    sub_label(w, name, "dims");
    for (uint32_t i = 0; i < n_dims; i++)
        gguf_u64(w, dims[i]);
    sub_label(w, name, "type");
    gguf_u32(w, type);
    sub_label(w, name, "offset");
    gguf_u64(w, offset);
}

void gguf_weights(struct gguf_writer *w, size_t alignment, size_t n_bytes)
{
    while (w->bytes.n_bytes % alignment)
        gguf_u8(w, 0);
    gguf_label(w, "weights");
    for (size_t i = 0; i < n_bytes; i++)
        gguf_u8(w, (uint8_t)i);
}

int gguf_open_bytes(const void *bytes, size_t n_bytes, struct checkpoint **out_ckpt,
                    struct error *err)
{
    char path[64];
    int fd = memfd_create("model.gguf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bytes, n_bytes) != (ssize_t)n_bytes)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int rc = checkpoint_open(path, out_ckpt, err);
    close(fd);
    return rc;
}

int gguf_open(const struct gguf_writer *w, struct checkpoint **out_ckpt, struct error *err)
{
    return gguf_open_bytes(w->bytes.data, w->bytes.n_bytes, out_ckpt, err);
}

void gguf_byte_text(uint8_t byte, char out[3])
{
    uint32_t point = byte;
    uint32_t n_hidden = 0;
    for (uint32_t b = 0; b <= byte; b++) {
        bool hidden = b <= 0x20 || (b >= 0x7F && b <= 0xA0) || b == 0xAD;
        if (b == byte && hidden)
            point = 0x100 + n_hidden;
        n_hidden += hidden;
    }
    char text[4];
    size_t n = utf8_encode(point, text);
    memcpy(out, text, n);
    out[n] = '\0';
}

void gguf_vocab(struct gguf_writer *w, const struct gguf_vocab *v)
{
    enum { NORMAL = 1, CONTROL = 3, USER = 4 };
    size_t n_normal = 256 + v->n_tokens;
    size_t n = n_normal + v->n_control + v->n_user;
    char bytes[256][3];
    const char **texts = calloc(n, sizeof(*texts));
    int32_t *types = calloc(n, sizeof(*types));
    if (!texts || !types)
        abort();
    for (size_t i = 0; i < n; i++) {
        types[i] = i < n_normal ? NORMAL : i < n_normal + v->n_control ? CONTROL : USER;
        if (i < 256) {
            gguf_byte_text((uint8_t)i, bytes[i]);
            texts[i] = bytes[i];
        } else if (i < n_normal) {
            texts[i] = v->tokens[i - 256];
        } else if (types[i] == CONTROL) {
            texts[i] = v->control[i - n_normal];
        } else {
            texts[i] = v->user[i - n_normal - v->n_control];
        }
    }
    gguf_kv_string(w, "tokenizer.ggml.model", "gpt2");
    if (v->pre)
        gguf_kv_string(w, "tokenizer.ggml.pre", v->pre);
    gguf_kv_strings(w, "tokenizer.ggml.tokens", texts, n);
    gguf_kv_i32s(w, "tokenizer.ggml.token_type", types, n);
    gguf_kv_strings(w, "tokenizer.ggml.merges", v->merges, v->n_merges);
    free(texts);
    free(types);
}

const char *gguf_sample_path(void)
{
    static char path[4096];
    const char *given = getenv("SLUICE_MODEL");
    const char *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    const char *file = "sluice/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (given && given[0])
        return given;
    if (cache && cache[0])
        snprintf(path, sizeof(path), "%s/%s", cache, file);
    else
        snprintf(path, sizeof(path), "%s/.cache/%s", home ? home : "", file);
    return path;
}
