/* Files of Ollama: GGUF with other names. Each file is a golden checkpoint, written again with
 * Ollama's names. The model must be the same: its shape, and the tensor of every slot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/format/checkpoint.h"
#include "engine/model/model.h"
#include "tests/support/names.h"
#include "tests/unit/engine/support/support_gguf.h"

/* --- writing a file again --- */

enum { ALIGNMENT = 32 };

/* A change of a key, by its name without the architecture. */
struct edit {
    const char *key;
    const char *name;  /* the new name; NULL: the key is dropped */
    const void *value; /* NULL: the old value stays */
    size_t n_bytes;
};

struct dialect {
    const char *from, *to; /* names of the architecture */
    const struct edit *edits;
    size_t n_edits;
    const char *const (*tensors)[2]; /* ends of names and their replacements */
    size_t n_tensors;
    void (*more)(struct gguf_writer *); /* further keys; may be NULL */
    bool images;                        /* adds a tensor of an image's part */
};

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

static const struct edit *find_edit(const struct dialect *d, const char *key)
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
    const struct edit *edit = find_edit(d, own ? key + n_from + 1 : key);
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
    snprintf(path, sizeof(path), "%s/tests/golden/tiny/%s.gguf", SLUICE_SOURCE_DIR, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing", path);
    while ((n = fread(part, 1, sizeof(part), file)) > 0)
        strbuf_add(&buf, part, n);
    fclose(file);
    *out_n = buf.n_bytes;
    return strbuf_take(&buf);
}

/* Opens the golden file in the dialect. *out_data is the offset of the first weight. */
static struct checkpoint *open_again(const char *golden, const struct dialect *d,
                                     uint64_t *out_data)
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
    if (d->images) {
        static const uint64_t dims[] = {4};
        uint64_t begin = (b.at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        uint64_t end = (b.n - begin + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        gguf_tensor(&w, "v.patch_embedding.weight", GGML_F32, 1, dims, end);
        gguf_tensor(&w, "mm.mm_input_projection.weight", GGML_F32, 1, dims, end + ALIGNMENT);
    }
    b.at = (b.at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    while (w.bytes.n_bytes % ALIGNMENT)
        strbuf_add_char(&w.bytes, '\0');
    *out_data = w.bytes.n_bytes;
    strbuf_add(&w.bytes, file + b.at, b.n - b.at);
    while (d->images && w.bytes.n_bytes % ALIGNMENT)
        strbuf_add_char(&w.bytes, '\0');
    for (int i = 0; d->images && i < ALIGNMENT + 16; i++)
        strbuf_add_char(&w.bytes, '\0');
    gguf_finish(&w);
    if (gguf_open(&w, &c, &err) != 0)
        fail_msg("%s as %s: %s", golden, d->to, err.message);
    gguf_writer_fini(&w);
    free(file);
    return c;
}

/* --- comparison --- */

struct opened {
    struct checkpoint *ckpt;
    struct model model;
    uint64_t data;
};

static void open_model(const char *golden, const struct dialect *d, struct opened *out)
{
    struct error err = {0};
    out->ckpt = open_again(golden, d, &out->data);
    if (model_init(&out->model, out->ckpt, NULL, &err) != 0)
        fail_msg("%s as %s: %s", golden, d->to, err.message);
}

static void close_model(struct opened *o)
{
    model_fini(&o->model);
    checkpoint_close(o->ckpt);
}

static void compare_slot(const struct opened *a, const struct opened *b, enum arch_slot slot,
                         uint32_t layer)
{
    const struct checkpoint_tensor *x = model_tensor(&a->model, slot, layer, 0);
    const struct checkpoint_tensor *y = model_tensor(&b->model, slot, layer, 0);
    if (!x != !y)
        fail_msg("slot %d of layer %u is in one file alone", (int)slot, layer);
    if (!x)
        return;
    assert_int_equal(x->dtype, y->dtype);
    assert_int_equal(x->n_bytes, y->n_bytes);
    if (x->offset_bytes - a->data != y->offset_bytes - b->data)
        fail_msg("slot %d of layer %u: %s and %s", (int)slot, layer, x->name, y->name);
}

static void compare(const char *golden, const struct dialect *plain, const struct dialect *ollama)
{
    struct opened a, b;
    open_model(golden, plain, &a);
    open_model(golden, ollama, &b);
    struct model_shape x = a.model.shape, y = b.model.shape;
    assert_ptr_equal(a.model.arch, b.model.arch);
    assert_memory_equal(x.layers, y.layers, x.n_layers * sizeof(*x.layers));
    for (uint32_t i = 0; i < ARCH_MAX_ROPES; i++) {
        assert_int_equal(x.ropes[i].scaling, y.ropes[i].scaling);
        assert_memory_equal(&x.ropes[i], &y.ropes[i], sizeof(x.ropes[i]));
    }
    x.layers = y.layers = NULL;
    assert_memory_equal(&x, &y, sizeof(x));
    for (int slot = 0; slot < N_ARCH_SLOTS; slot++)
        for (uint32_t layer = 0; layer < (slot < ARCH_FIRST_LAYER_SLOT ? 1 : x.n_layers); layer++)
            compare_slot(&a, &b, (enum arch_slot)slot, layer);
    close_model(&a);
    close_model(&b);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define EDITS(rows)  .edits = rows, .n_edits = COUNT(rows)

/* --- gpt-oss --- */

static void test_gptoss_when_written_by_ollama_then_the_same_model(void **state)
{
    (void)state;
    static const struct edit edits[] = {{"expert_feed_forward_length", NULL, NULL, 0},
                                        {"rope.scaling.type", NULL, NULL, 0}};
    static const char *const tensors[][2] = {
        {".attn_sinks.weight", ".attn_sinks"},
        {".attn_output.weight", ".attn_out.weight"},
        {".attn_output.bias", ".attn_out.bias"},
        {".post_attention_norm.weight", ".ffn_norm.weight"},
    };
    const struct dialect plain = {.from = "gpt-oss", .to = "gpt-oss"};
    const struct dialect ollama = {.from = "gpt-oss",
                                   .to = "gptoss",
                                   EDITS(edits),
                                   .tensors = tensors,
                                   .n_tensors = COUNT(tensors)};
    compare("gpt_oss", &plain, &ollama);
}

/* --- Gemma 3 --- */

static const uint32_t long_context = 131072;
static const float eight = 8, epsilon = 1e-6f;

static void image_keys(struct gguf_writer *w)
{
    gguf_kv_u32(w, "gemma3.vision.block_count", 27);
    gguf_kv_u32(w, "gemma3.mm.tokens_per_image", 256);
}

static const struct edit gemma3_plain[] = {
    {"context_length", "context_length", &long_context, sizeof(long_context)},
    {"attention.layer_norm_rms_epsilon", "attention.layer_norm_rms_epsilon", &epsilon,
     sizeof(epsilon)},
    {"rope.scaling.factor", "rope.scaling.factor", &eight, sizeof(eight)},
};

/* Symptom: a 4B model was served without the linear scaling of its global layers. */
static void test_gemma3_when_written_by_ollama_then_scaled_by_8(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"context_length", "context_length", &long_context, sizeof(long_context)},
        {"attention.layer_norm_rms_epsilon", NULL, NULL, 0},
        {"rope.freq_base", "rope.global.freq_base", NULL, 0},
        {"rope.scaling.type", NULL, NULL, 0},
        {"rope.scaling.factor", NULL, NULL, 0},
    };
    const struct dialect plain = {.from = "gemma3", .to = "gemma3", EDITS(gemma3_plain)};
    struct dialect ollama = {.from = "gemma3", .to = "gemma3", EDITS(edits)};
    compare("gemma3", &plain, &ollama);
    ollama.more = image_keys;
    ollama.images = true;
    compare("gemma3", &plain, &ollama);
}

/* The 1B model has a context of 32,768 and no scaling, and so has a plain file without a factor. */
static void test_gemma3_when_the_context_is_short_or_the_file_plain_then_not_scaled(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"rope.freq_base", "rope.global.freq_base", NULL, 0},
        {"rope.scaling.type", NULL, NULL, 0},
        {"rope.scaling.factor", NULL, NULL, 0},
    };
    static const struct edit plain[] = {
        {"context_length", "context_length", &long_context, sizeof(long_context)},
        {"rope.scaling.type", NULL, NULL, 0},
        {"rope.scaling.factor", NULL, NULL, 0},
    };
    const struct dialect files[] = {{.from = "gemma3", .to = "gemma3", EDITS(edits)},
                                    {.from = "gemma3", .to = "gemma3", EDITS(plain)}};
    for (size_t i = 0; i < COUNT(files); i++) {
        struct opened o;
        open_model("gemma3", &files[i], &o);
        assert_int_equal(o.model.shape.ropes[0].scaling, ROPE_SCALING_NONE);
        close_model(&o);
    }
}

/* --- Mistral 3 --- */

static void mistral_images(struct gguf_writer *w)
{
    gguf_kv_u32(w, "mistral3.vision.block_count", 24);
    gguf_kv_u32(w, "mistral3.image_token_index", 10);
    gguf_kv_u32(w, "mistral3.spatial_merge_size", 2);
    gguf_kv_bool(w, "mistral3.mm.projector_bias", 0);
}

static void test_mistral3_when_written_by_ollama_then_the_same_model(void **state)
{
    (void)state;
    static const struct edit edits[] = {
        {"rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast", NULL, 0},
        {"rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow", NULL, 0},
        {"rope.scaling.yarn_log_multiplier", "rope.scaling.mscale_all_dim", NULL, 0},
        {"attention.temperature_scale", "rope.scaling_beta", NULL, 0},
    };
    const struct dialect plain = {.from = "mistral3", .to = "mistral3"};
    const struct dialect ollama = {
        .from = "mistral3", .to = "mistral3", EDITS(edits), .more = mistral_images, .images = true};
    compare("ministral3", &plain, &ollama);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gptoss_when_written_by_ollama_then_the_same_model),
        cmocka_unit_test(test_gemma3_when_written_by_ollama_then_scaled_by_8),
        cmocka_unit_test(test_gemma3_when_the_context_is_short_or_the_file_plain_then_not_scaled),
        cmocka_unit_test(test_mistral3_when_written_by_ollama_then_the_same_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
