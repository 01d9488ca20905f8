#include "tests/unit/engine/support/support_dialect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "tests/unit/engine/support/support_gguf.h"
#include "tests/unit/engine/support/support_golden.h"

enum { ALIGNMENT = 32 };

struct bytes {
    const unsigned char *data;
    size_t n, at;
};

static const unsigned char *take(struct bytes *b, size_t n)
{
    assert_true(n <= b->n - b->at);
    b->at += n;
    return b->data + b->at - n;
}

static uint64_t take_int(struct bytes *b, size_t n)
{
    uint64_t value = 0;
    memcpy(&value, take(b, n), n);
    return value;
}

static size_t size_of(uint32_t type)
{
    static const size_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

static void skip_value(struct bytes *b, uint32_t type)
{
    if (type == GGUF_STRING) {
        take(b, take_int(b, 8));
    } else if (type == GGUF_ARRAY) {
        uint32_t element = (uint32_t)take_int(b, 4);
        for (uint64_t n = take_int(b, 8); n; n--)
            skip_value(b, element);
    } else {
        take(b, size_of(type));
    }
}

static const struct dialect_edit *find_edit(const struct dialect *d, const char *key)
{
    for (size_t i = 0; i < d->n_edits; i++)
        if (strcmp(d->edits[i].key, key) == 0)
            return &d->edits[i];
    return NULL;
}

/* Copies a key with its value. */
static void copy_key(struct bytes *b, const struct dialect *d, struct gguf_writer *w)
{
    char key[128], name[160];
    size_t n = take_int(b, 8), n_from = strlen(d->from);
    snprintf(key, sizeof(key), "%.*s", (int)n, (const char *)take(b, n));
    uint32_t type = (uint32_t)take_int(b, 4);
    size_t begin = b->at;
    skip_value(b, type);
    bool own = strncmp(key, d->from, n_from) == 0 && key[n_from] == '.';
    const struct dialect_edit *edit = find_edit(d, own ? key + n_from + 1 : key);
    if (edit && !edit->name)
        return;
    if (strcmp(key, "general.architecture") == 0) {
        gguf_kv_string(w, key, d->to);
        return;
    }
    snprintf(name, sizeof(name), "%s%s%s", own ? d->to : "", own ? "." : "",
             edit  ? edit->name
             : own ? key + n_from + 1
                   : key);
    gguf_kv(w, name, type);
    if (edit && edit->value)
        strbuf_add(&w->bytes, edit->value, edit->n_bytes);
    else
        strbuf_add(&w->bytes, (const char *)b->data + begin, b->at - begin);
}

static void rename_tensor(const struct dialect *d, char name[128])
{
    for (size_t i = 0; i < d->n_tensors; i++) {
        size_t n = strlen(name), n_end = strlen(d->tensors[i][0]);
        if (n < n_end || strcmp(name + n - n_end, d->tensors[i][0]) != 0)
            continue;
        snprintf(name + n - n_end, 128 - (n - n_end), "%s", d->tensors[i][1]);
        return;
    }
}

static char *read_golden(const char *name, size_t *out_n)
{
    char path[256], part[4096];
    struct strbuf buf = {0};
    size_t n;
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s.gguf", golden_source_dir(), name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing", path);
    while ((n = fread(part, 1, sizeof(part), file)) > 0)
        strbuf_add(&buf, part, n);
    fclose(file);
    *out_n = buf.n_bytes;
    return strbuf_take(&buf);
}

struct checkpoint *dialect_open(const char *golden, const struct dialect *d, uint64_t *out_data)
{
    struct bytes b = {0};
    struct gguf_writer w = {0};
    struct checkpoint *c = NULL;
    struct error err = {0};
    char *file = read_golden(golden, &b.n);
    b.data = (const unsigned char *)file;
    take(&b, 8);
    uint64_t n_tensors = take_int(&b, 8), n_keys = take_int(&b, 8);
    gguf_begin(&w);
    for (uint64_t i = 0; i < n_keys; i++)
        copy_key(&b, d, &w);
    if (d->more)
        d->more(&w);
    for (uint64_t i = 0; i < n_tensors; i++) {
        char name[128];
        uint64_t dims[4] = {0};
        size_t n = take_int(&b, 8);
        snprintf(name, sizeof(name), "%.*s", (int)n, (const char *)take(&b, n));
        uint32_t n_dims = (uint32_t)take_int(&b, 4);
        for (uint32_t k = 0; k < n_dims; k++)
            dims[k] = take_int(&b, 8);
        uint32_t type = (uint32_t)take_int(&b, 4);
        rename_tensor(d, name);
        gguf_tensor(&w, name, type, n_dims, dims, take_int(&b, 8));
    }
    uint64_t begin = (b.at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    uint64_t end = (b.n - begin + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (d->added)
        gguf_tensor(&w, d->added->name, d->added->type, 2, d->added->dims, end);
    if (d->images) {
        static const uint64_t dims[] = {4};
        gguf_tensor(&w, "v.patch_embedding.weight", GGML_F32, 1, dims, end);
        gguf_tensor(&w, "mm.mm_input_projection.weight", GGML_F32, 1, dims, end + ALIGNMENT);
    }
    b.at = begin;
    while (w.bytes.n_bytes % ALIGNMENT)
        strbuf_add_char(&w.bytes, '\0');
    *out_data = w.bytes.n_bytes;
    strbuf_add(&w.bytes, file + b.at, b.n - b.at);
    while ((d->images || d->added) && w.bytes.n_bytes % ALIGNMENT)
        strbuf_add_char(&w.bytes, '\0');
    if (d->added)
        strbuf_add(&w.bytes, d->added->data, d->added->n_bytes);
    for (int i = 0; d->images && i < ALIGNMENT + 16; i++)
        strbuf_add_char(&w.bytes, '\0');
    gguf_finish(&w);
    if (gguf_open(&w, &c, &err) != 0)
        fail_msg("%s as %s: %s", golden, d->to, err.message);
    gguf_writer_fini(&w);
    free(file);
    return c;
}
