#include "engine/model/model_find.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint.h"
#include "engine/model/arch/arch.h"

enum { MAX_KEY = 256 };

/* Where the formats name the architecture. */
static const struct format {
    const char *name, *arch_key;
    bool has_prefix; /* the architecture's name comes before each of its keys */
} formats[] = {
    {"gguf", "general.architecture", true},
    {"hf", "architectures", false},
    {"hf", "model_type", false},
};

/* The text of a key, or the first text of its list. */
static int read_name(const struct checkpoint *ckpt, const char *key, char *out, size_t n_bytes,
                     struct error *err)
{
    struct checkpoint_array array;
    struct error ignored;
    const char *text;
    size_t n = 0;
    int rc = 0;
    if (checkpoint_get_array(ckpt, key, CHECKPOINT_STRING, &array, &ignored) == 0 && array.n > 0)
        text = checkpoint_array_string(&array, 0, &n);
    else
        rc = checkpoint_get_string(ckpt, key, &text, &n, err);
    if (!rc)
        snprintf(out, n_bytes, "%.*s", (int)(n < n_bytes ? n : n_bytes - 1), text);
    return rc;
}

static bool is_variant(const struct checkpoint *ckpt, const char *prefix,
                       const struct arch_variant *variant)
{
    char key[MAX_KEY];
    uint64_t n = 0;
    bool flag = true;
    struct error ignored;
    if (variant->tensor)
        return checkpoint_tensor_find(ckpt, variant->tensor) != NULL;
    snprintf(key, sizeof(key), "%s%s", prefix, variant->key);
    if (!checkpoint_has(ckpt, key))
        return false;
    if (checkpoint_get_bool(ckpt, key, &flag, &ignored) == 0)
        return flag;
    return checkpoint_get_u64(ckpt, key, &n, &ignored) != 0 || n;
}

/* Replaces the architecture by the first of its variants that fits the file. */
static void find_variant(const struct checkpoint *ckpt, const char *name, const char *prefix,
                         const struct arch **arch, const struct arch_source **source)
{
    for (uint32_t i = 0; *source && i < (*source)->n_variants; i++) {
        const struct arch_variant *variant = &(*source)->variants[i];
        if (!is_variant(ckpt, prefix, variant))
            continue;
        *arch = arch_find_named(variant->arch);
        *source = *arch ? arch_find_source(*arch, checkpoint_format(ckpt), name) : NULL;
        return;
    }
}

/* True if the file has one of the keys, which follow `prefix`. `out_key` gets the first such key.
 */
static bool has_one_of(const struct checkpoint *ckpt, const char *prefix, const char *keys,
                       char out_key[MAX_KEY])
{
    char key[MAX_KEY - MODEL_PREFIX_BYTES];
    for (uint32_t i = 0; arch_name_at(keys, i, 0, 0, key, sizeof(key)); i++) {
        snprintf(out_key, MAX_KEY, "%s%s", prefix, key);
        if (checkpoint_has(ckpt, out_key))
            return true;
    }
    return false;
}

/* True if the file's context has at least the tokens that the dialect demands. */
static bool has_context(const struct checkpoint *ckpt, const char *prefix,
                        const struct arch_source *dialect)
{
    const struct arch_param *row = NULL;
    char key[MAX_KEY];
    uint64_t context = 0;
    struct error ignored;
    for (const struct arch_source *s = dialect; s && !row; s = s->base)
        row = arch_find_param(s, ARCH_PARAM_CONTEXT, 0);
    return row && row->key && has_one_of(ckpt, prefix, row->key, key) &&
           checkpoint_get_u64(ckpt, key, &context, &ignored) == 0 &&
           context >= dialect->dialect_context;
}

/* The source of the file's dialect; `source` itself in the plain one. */
static const struct arch_source *find_dialect(const struct checkpoint *ckpt, const char *name,
                                              const char *prefix, const struct arch *arch,
                                              const struct arch_source *source)
{
    char key[MAX_KEY];
    for (uint32_t i = 0; i < arch->n_sources; i++) {
        const struct arch_source *s = &arch->sources[i];
        if (s->dialect_keys && strcmp(s->format, source->format) == 0 &&
            arch_names_have(s->aliases, name) && has_one_of(ckpt, prefix, s->dialect_keys, key) &&
            (!s->dialect_context || has_context(ckpt, prefix, s)))
            return s;
    }
    return source;
}

int model_find_arch(const struct checkpoint *ckpt, const struct arch **arch,
                    const struct arch_source **out_source, char out_prefix[MODEL_PREFIX_BYTES],
                    struct error *err)
{
    const char *format = checkpoint_format(ckpt), *last_key = NULL;
    const struct arch *given = *arch;
    char name[MODEL_PREFIX_BYTES - 1] = "";
    *out_source = NULL;
    for (uint32_t i = 0; i < ARCH_N_OF(formats); i++) {
        if (strcmp(formats[i].name, format) != 0 ||
            (last_key && !checkpoint_has(ckpt, formats[i].arch_key)))
            continue;
        last_key = formats[i].arch_key;
        int rc = read_name(ckpt, last_key, name, sizeof(name), err);
        if (rc)
            return rc;
        out_prefix[0] = '\0';
        if (formats[i].has_prefix)
            snprintf(out_prefix, MODEL_PREFIX_BYTES, "%s.", name);
        *arch = given ? given : arch_find(format, name, out_source);
        if (given)
            *out_source = arch_find_source(given, format, name);
        else
            find_variant(ckpt, name, out_prefix, arch, out_source);
        if (*out_source) {
            *out_source = find_dialect(ckpt, name, out_prefix, *arch, *out_source);
            return 0;
        }
    }
    if (!last_key || given)
        return error_set(err, STATUS_UNIMPLEMENTED,
                         "%s: architecture %s is not described for the format %s",
                         checkpoint_name(ckpt), given ? given->name : "(any)", format);
    char text[ESCAPE_MAX_BYTES];
    return checkpoint_unbuilt_key(
        ckpt, last_key, err,
        "architecture \"%s\" is not known; use a model of a known architecture (docs/use/models.md "
        "lists them)",
        escape_text(name, strlen(name), text));
}
