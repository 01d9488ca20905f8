#include "engine/model/shape_layers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text/escape.h"
#include "engine/format/checkpoint.h"
#include "engine/model/shape_mixers.h"

/* --- patterns --- */

static void set_kind(const struct shape_reader *r, struct model_layer *layer, enum arch_part part,
                     uint32_t kind)
{
    if (part == ARCH_PART_MIXER)
        layer->mixer = &r->arch->mixers[kind];
    else
        layer->ffn = &r->arch->ffns[kind];
}

static uint32_t kind_of(const struct shape_reader *r, const struct model_layer *layer,
                        enum arch_part part)
{
    return (uint32_t)(part == ARCH_PART_MIXER ? layer->mixer - r->arch->mixers
                                              : layer->ffn - r->arch->ffns);
}

static bool has_array(const struct shape_reader *r, const char *full, enum checkpoint_kind kind,
                      struct checkpoint_array *out_array)
{
    struct error ignored;
    return checkpoint_get_array(r->ckpt, full, kind, out_array, &ignored) == 0;
}

static bool has_number(const struct shape_reader *r, const char *full)
{
    double number;
    struct error ignored;
    return checkpoint_get_f64(r->ckpt, full, &number, &ignored) == 0;
}

static bool has_bool(const struct shape_reader *r, const char *full)
{
    bool truth;
    struct error ignored;
    return checkpoint_get_bool(r->ckpt, full, &truth, &ignored) == 0;
}

static bool has_text(const struct shape_reader *r, const char *full)
{
    const char *text;
    struct error ignored;
    return checkpoint_get_string_or(r->ckpt, full, NULL, &text, &ignored) == 0 && text;
}

/* True if the key's value has the form that the row reads. Arrays go into *out_array. */
static bool has_form(const struct shape_reader *r, const char *full, enum arch_pattern_form form,
                     struct checkpoint_array *out_array)
{
    switch (form) {
    case ARCH_PATTERN_LIST:
    case ARCH_PATTERN_ONLY:
        return has_array(r, full, CHECKPOINT_INT, out_array);
    case ARCH_PATTERN_FLAGS:
    case ARCH_PATTERN_MARKED:
        return has_array(r, full, CHECKPOINT_BOOL, out_array) ||
               has_array(r, full, CHECKPOINT_INT, out_array);
    case ARCH_PATTERN_NAMES:
    case ARCH_PATTERN_SAME_NAMES:
        return has_array(r, full, CHECKPOINT_STRING, out_array);
    case ARCH_PATTERN_WITHOUT:
        return false;
    case ARCH_PATTERN_CHARS:
    case ARCH_PATTERN_TEXT:
        return has_text(r, full);
    case ARCH_PATTERN_SET:
        return has_bool(r, full) || has_number(r, full);
    default:
        return has_number(r, full);
    }
}

bool shape_layers_take(const struct shape_reader *r, const char *full, const char *key)
{
    struct checkpoint_array ignored;
    for (uint32_t i = 0; i < r->source->n_patterns; i++) {
        const struct arch_pattern *p = &r->source->patterns[i];
        if (p->key && arch_names_have(p->key, key) && has_form(r, full, p->form, &ignored))
            return true;
    }
    return false;
}

/* True if a row of this form can give the kind: a list that names kinds, or a row of the kind. */
static bool may_give(const struct arch_pattern *p, uint32_t kind)
{
    return p->form == ARCH_PATTERN_NAMES || p->form == ARCH_PATTERN_SAME_NAMES || p->kind == kind ||
           ((p->form == ARCH_PATTERN_FLAGS || p->form == ARCH_PATTERN_ONLY) && p->rest == kind);
}

/* The last row wins. A layer that no row has given its kind has kind 0. */
bool shape_layers_find_key(struct shape_reader *r, enum arch_part part,
                           const struct model_layer *layer)
{
    struct checkpoint_array ignored;
    const struct arch_pattern *any = NULL;
    uint32_t kind = kind_of(r, layer, part);
    for (uint32_t i = r->source->n_patterns; i > 0; i--) {
        const struct arch_pattern *p = &r->source->patterns[i - 1];
        bool by_value = p->form == ARCH_PATTERN_SET || p->form == ARCH_PATTERN_TEXT;
        if (p->part != part || !p->key || by_value || !shape_reader_find(r, p->key) ||
            !has_form(r, r->key, p->form, &ignored))
            continue;
        if (may_give(p, kind))
            return true;
        any = p;
    }
    return any && shape_reader_find(r, any->key);
}

uint64_t shape_layers_count(struct shape_reader *r)
{
    for (uint32_t i = 0; i < r->source->n_patterns; i++) {
        const struct arch_pattern *p = &r->source->patterns[i];
        struct checkpoint_array array;
        struct error ignored;
        const char *text = "";
        bool names = p->form == ARCH_PATTERN_NAMES, letters = p->form == ARCH_PATTERN_CHARS;
        if ((!names && !letters) || !shape_reader_find(r, p->key) ||
            !has_form(r, r->key, p->form, &array))
            continue;
        if (letters && checkpoint_get_string_or(r->ckpt, r->key, "", &text, &ignored) != 0)
            continue;
        return names ? array.n : strlen(text);
    }
    return 0;
}

/* The number of a row's key. A negative number of ARCH_PATTERN_AFTER stands for the last layer. */
static int read_n(struct shape_reader *r, const struct arch_pattern *p, uint64_t *n)
{
    double number = 0;
    struct error ignored;
    if (p->form != ARCH_PATTERN_AFTER ||
        checkpoint_get_f64(r->ckpt, r->key, &number, &ignored) != 0 || number >= 0)
        return checkpoint_get_u64(r->ckpt, r->key, n, r->err);
    *n = UINT64_MAX;
    return 0;
}

/* True if a row with the number n gives layer i its kind. */
static bool number_chooses(enum arch_pattern_form form, uint32_t i, uint64_t n)
{
    if (!n && form != ARCH_PATTERN_AFTER)
        return false;
    switch (form) {
    case ARCH_PATTERN_LEADING:
        return i < n;
    case ARCH_PATTERN_AFTER:
        return i > n;
    case ARCH_PATTERN_LAST_OF:
        return i % n == n - 1;
    default:
        return i % n == 0;
    }
}

/* Applies a row with a number: the first or last of each n, the first n, or those after n. */
static int apply_number(struct shape_reader *r, const struct arch_pattern *p, struct model_shape *s)
{
    uint64_t n = p->form == ARCH_PATTERN_AFTER ? UINT64_MAX : p->n;
    struct checkpoint_array array;
    if (p->key && shape_reader_find(r, p->key) && has_form(r, r->key, p->form, &array)) {
        int rc = read_n(r, p, &n);
        if (rc)
            return rc;
    }
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (number_chooses(p->form, i, n))
            set_kind(r, &s->layers[i], p->part, p->kind);
    return 0;
}

/* An array per layer has an element for each layer of the model. Those of layers that only draft
 * tokens may follow. */
static int check_length(struct shape_reader *r, const struct checkpoint_array *array,
                        const struct model_shape *s)
{
    if (array->n == s->n_layers || array->n == (uint64_t)s->n_layers + s->n_draft_layers)
        return 0;
    return checkpoint_bad_key(r->ckpt, r->key, r->err,
                              "%" PRIu64 " elements for %" PRIu32 " layers", array->n, s->n_layers);
}

static int apply_list(struct shape_reader *r, const struct arch_pattern *p,
                      const struct checkpoint_array *array, struct model_shape *s)
{
    for (uint32_t i = 0; p->form == ARCH_PATTERN_ONLY && i < s->n_layers; i++)
        set_kind(r, &s->layers[i], p->part, p->rest);
    for (uint64_t i = 0; i < array->n; i++) {
        int64_t layer = checkpoint_array_int(array, i);
        if (layer < 0 || layer >= s->n_layers)
            return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                      "layer %" PRId64 " is not in 0..%" PRIu32, layer,
                                      s->n_layers - 1);
        set_kind(r, &s->layers[layer], p->part, p->kind);
    }
    return 0;
}

static int apply_flags(struct shape_reader *r, const struct arch_pattern *p,
                       const struct checkpoint_array *array, struct model_shape *s)
{
    if (!array->n && p->form == ARCH_PATTERN_FLAGS) /* some files have an empty list for none */
        return 0;
    int rc = check_length(r, array, s);
    for (uint32_t i = 0; !rc && i < s->n_layers; i++) {
        bool marked = checkpoint_array_int(array, i) != 0;
        if (marked || p->form == ARCH_PATTERN_FLAGS)
            set_kind(r, &s->layers[i], p->part, marked ? p->kind : p->rest);
    }
    return rc;
}

static const char *kind_name(const struct arch *arch, enum arch_part part, uint32_t kind)
{
    if (part == ARCH_PART_MIXER)
        return kind < arch->n_mixers ? arch->mixers[kind].name : NULL;
    return kind < arch->n_ffns ? arch->ffns[kind].name : NULL;
}

/* True if the key's value gives the layers of kind `rest` the row's kind. */
static int chooses_kind(struct shape_reader *r, const struct arch_pattern *p, bool *out_chooses)
{
    struct checkpoint_array array;
    *out_chooses = p->n != 0;
    if (!shape_reader_find(r, p->key) || !has_form(r, r->key, p->form, &array))
        return 0;
    const char *text = "";
    double number = 0;
    struct error ignored;
    int rc = 0;
    if (p->form == ARCH_PATTERN_TEXT) {
        rc = checkpoint_get_string_or(r->ckpt, r->key, "", &text, r->err);
        *out_chooses = arch_names_have(kind_name(r->arch, p->part, p->kind), text);
    } else if (checkpoint_get_bool(r->ckpt, r->key, out_chooses, &ignored) != 0) {
        rc = checkpoint_get_f64(r->ckpt, r->key, &number, r->err);
        *out_chooses = number != 0;
    }
    return rc;
}

static int apply_value(struct shape_reader *r, const struct arch_pattern *p, struct model_shape *s)
{
    bool chooses = false;
    int rc = chooses_kind(r, p, &chooses);
    for (uint32_t i = 0; !rc && chooses && i < s->n_layers; i++)
        if (kind_of(r, &s->layers[i], p->part) == p->rest)
            set_kind(r, &s->layers[i], p->part, p->kind);
    return rc;
}

/* A text with a letter for each layer. Those of layers that only draft tokens may follow. */
static int apply_chars(struct shape_reader *r, const struct arch_pattern *p, struct model_shape *s)
{
    const char *text;
    int rc = checkpoint_get_string_or(r->ckpt, r->key, "", &text, r->err);
    if (rc)
        return rc;
    size_t n = strlen(text);
    if (n != s->n_layers && n != (size_t)s->n_layers + s->n_draft_layers)
        return checkpoint_bad_key(r->ckpt, r->key, r->err, "%zu letters for %" PRIu32 " layers", n,
                                  s->n_layers);
    for (uint32_t i = 0; i < s->n_layers; i++)
        if ((unsigned char)text[i] == p->n)
            set_kind(r, &s->layers[i], p->part, p->kind);
    return 0;
}

static int apply_names(struct shape_reader *r, const struct arch_pattern *p,
                       const struct checkpoint_array *array, struct model_shape *s)
{
    int rc = check_length(r, array, s);
    for (uint32_t i = 0; !rc && i < s->n_layers; i++) {
        size_t n = 0;
        const char *text = checkpoint_array_string(array, i, &n), *name;
        uint32_t kind = 0;
        char word[SHAPE_MAX_KEY], escaped[ESCAPE_MAX_BYTES];
        snprintf(word, sizeof(word), "%.*s", (int)(n < sizeof(word) ? n : 0), text);
        while ((name = kind_name(r->arch, p->part, kind)) != NULL && !arch_names_have(name, word))
            kind++;
        if (!name)
            return checkpoint_unbuilt_key(
                r->ckpt, r->key, r->err,
                "layer %" PRIu32 " is \"%s\", a kind of layer that architecture %s does not have; "
                "use a model without such layers, or a newer Sluice",
                i, escape_text(text, n, escaped), r->arch->name);
        if (p->form == ARCH_PATTERN_SAME_NAMES && kind != kind_of(r, &s->layers[i], p->part))
            return checkpoint_unbuilt_key(
                r->ckpt, r->key, r->err,
                "layer %" PRIu32 " is \"%s\", and other keys make the layer \"%s\"; use a model "
                "whose keys agree",
                i, name, kind_name(r->arch, p->part, kind_of(r, &s->layers[i], p->part)));
        set_kind(r, &s->layers[i], p->part, kind);
    }
    return rc;
}

static int apply_pattern(struct shape_reader *r, const struct arch_pattern *p,
                         struct model_shape *s)
{
    struct checkpoint_array array = {0};
    if (p->form <= ARCH_PATTERN_AFTER)
        return apply_number(r, p, s);
    if (p->form == ARCH_PATTERN_SET || p->form == ARCH_PATTERN_TEXT)
        return apply_value(r, p, s);
    if (shape_reader_find(r, p->key) == (p->form == ARCH_PATTERN_WITHOUT))
        return 0;
    if (p->form == ARCH_PATTERN_WITHOUT) {
        for (uint32_t i = 0; i < s->n_layers; i++)
            set_kind(r, &s->layers[i], p->part, p->kind);
        return 0;
    }
    if (!has_form(r, r->key, p->form, &array))
        return 0;
    if (p->form == ARCH_PATTERN_LIST || p->form == ARCH_PATTERN_ONLY)
        return apply_list(r, p, &array, s);
    if (p->form == ARCH_PATTERN_CHARS)
        return apply_chars(r, p, s);
    return p->form == ARCH_PATTERN_NAMES || p->form == ARCH_PATTERN_SAME_NAMES
               ? apply_names(r, p, &array, s)
               : apply_flags(r, p, &array, s);
}

/* --- numbers per layer --- */

static int read_head_dims(struct shape_reader *r, const struct model_shape *s, uint32_t of,
                          uint32_t i, struct model_layer *layer)
{
    uint64_t derived = s->hidden_dim % layer->n_heads ? 0 : s->hidden_dim / layer->n_heads;
    layer->k_dim = (uint32_t)derived;
    int rc = shape_reader_layer_u32(r, ARCH_PARAM_KEY_DIM, of, i, derived != 0, MODEL_MAX_HEAD_DIM,
                                    derived, &layer->k_dim);
    if (rc)
        return rc;
    /* an architecture without a row for the dimension has hidden / heads, checked by nobody yet */
    if (!layer->k_dim)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu32 " heads do not divide the hidden size %" PRIu32
                                  ", and no key gives their dimension",
                                  layer->n_heads, s->hidden_dim);
    if (layer->k_dim % 2 || layer->k_dim > MODEL_MAX_HEAD_DIM)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "head dimension %" PRIu32 " is not an even number up to %d",
                                  layer->k_dim, MODEL_MAX_HEAD_DIM);
    layer->v_dim = layer->k_dim;
    rc = shape_reader_layer_u32(r, ARCH_PARAM_VALUE_DIM, of, i, 1, MODEL_MAX_HEAD_DIM, layer->k_dim,
                                &layer->v_dim);
    layer->q_dim = layer->k_dim;
    layer->o_dim = layer->v_dim;
    return rc;
}

/* Reads if the values have a matrix. Without a row for the parameter, the file's tensors tell. */
static int read_values(struct shape_reader *r, struct model_layer *layer)
{
    bool are_keys = false;
    int rc = shape_reader_bool(r, ARCH_PARAM_KEYS_AS_VALUES, 0, &are_keys);
    if (layer->mixer->keys_as_values)
        layer->values = !arch_find_param(r->source, ARCH_PARAM_KEYS_AS_VALUES, 0)
                            ? SHAPE_VALUES_BY_TENSOR
                        : are_keys ? SHAPE_VALUES_ARE_KEYS
                                   : SHAPE_VALUES_OWN;
    return rc;
}

static int read_attention(struct shape_reader *r, const struct model_shape *s, uint32_t i,
                          struct model_layer *layer)
{
    uint32_t of = (uint32_t)(layer->mixer - r->arch->mixers);
    int rc =
        shape_reader_layer_u32(r, ARCH_PARAM_HEADS, of, i, 1, MODEL_MAX_HEADS, 0, &layer->n_heads);
    if (rc)
        return rc;
    rc = read_values(r, layer);
    if (rc)
        return rc;
    layer->n_kv_heads = layer->n_heads;
    rc = shape_reader_layer_u32(r, ARCH_PARAM_KV_HEADS, of, i, 1, layer->n_heads, layer->n_heads,
                                &layer->n_kv_heads);
    if (rc)
        return rc;
    uint32_t factor = 1;
    rc = shape_reader_layer_u32(r, ARCH_PARAM_KV_FACTOR, of, i, 1, MODEL_MAX_HEADS, 1, &factor);
    if (rc)
        return rc;
    layer->n_kv_heads *= factor;
    if (layer->n_heads % layer->n_kv_heads)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "%" PRIu32 " KV heads do not divide the %" PRIu32 " heads",
                                  layer->n_kv_heads, layer->n_heads);
    return read_head_dims(r, s, of, i, layer);
}

/* The width of a layer's dense FFN. LFM2 derives the width from the file's number. */
static int read_ffn(struct shape_reader *r, const struct model_shape *s, uint32_t i, uint32_t *out)
{
    bool adjust = false;
    double factor = 1;
    uint32_t multiple = 1;
    int rc = shape_reader_layer_u32(r, ARCH_PARAM_FFN, 0, i, 1, MODEL_MAX_FFN,
                                    4 * (uint64_t)s->hidden_dim, out);
    if (!rc)
        rc = shape_reader_bool(r, ARCH_PARAM_FFN_ADJUST, 0, &adjust);
    if (!rc)
        rc = shape_reader_f64(r, ARCH_PARAM_FFN_FACTOR, 0, 1e-3, 1e3, SHAPE_UNSET, &factor);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_FFN_MULTIPLE, 0, 1, MODEL_MAX_FFN, 0, &multiple);
    if (rc || !adjust)
        return rc;
    uint64_t two_thirds = 2 * (uint64_t)*out / 3;
    uint64_t width = (uint64_t)(factor * (double)two_thirds);
    width = (width + multiple - 1) / multiple * multiple;
    if (!width || width > MODEL_MAX_FFN)
        return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                  "with the multiple %" PRIu32 ", the FFN's width %" PRIu64
                                  " is not in 1..%d",
                                  multiple, width, MODEL_MAX_FFN);
    *out = (uint32_t)width;
    return 0;
}

/* True if the file's own number of positions is 0, and does not mean "no limit". GGUF files may say
 * so by 0 where the key may be absent. A config.json says so by null. */
static bool sees_nothing(struct shape_reader *r, enum arch_param_id id, uint32_t n_positions)
{
    const struct arch_param *row = arch_find_param(r->source, id, 0);
    if (n_positions || !row || !shape_reader_has(r, id, 0))
        return false;
    bool may_be_absent = row->absent == ARCH_ABSENT_FALLBACK && row->fallback == 0;
    return !may_be_absent || strcmp(r->source->format, "gguf") != 0;
}

/* Refuses a window or chunk of 0 positions that a layer would have. */
static int check_reach(struct shape_reader *r, const struct model_shape *s, enum arch_param_id id,
                       enum arch_reach reach, uint32_t n_positions)
{
    for (uint32_t i = 0; i < s->n_layers; i++)
        if (s->layers[i].mixer->reach == reach && sees_nothing(r, id, n_positions))
            return checkpoint_bad_key(r->ckpt, r->key, r->err,
                                      "layer %" PRIu32 " would see 0 positions, the number is not "
                                      "in 1..%d",
                                      i, MODEL_MAX_CONTEXT);
    return 0;
}

static int read_layer(struct shape_reader *r, struct model_shape *s, uint32_t window,
                      uint32_t chunk, uint32_t i)
{
    struct model_layer *layer = &s->layers[i];
    int rc = 0;
    layer->kv_source = i;
    if (layer->mixer->mixing == ARCH_MIXING_LATENT)
        rc = shape_mixers_read_latent(r, s, i, layer);
    else if (arch_has_attention(layer->mixer->mixing))
        rc = read_attention(r, s, i, layer);
    layer->window = layer->mixer->reach == ARCH_REACH_WINDOW ? window : 0;
    layer->chunk = layer->mixer->reach == ARCH_REACH_CHUNK ? chunk : 0;
    if (!rc && (layer->ffn->body == ARCH_FFN_DENSE || layer->ffn->body == ARCH_FFN_BOTH))
        rc = read_ffn(r, s, i, &layer->ffn_dim);
    return rc;
}

int shape_layers_read(struct shape_reader *r, struct model_shape *s)
{
    uint32_t window = 0, chunk = 0;
    bool use_window = true;
    int rc = shape_reader_u32(r, ARCH_PARAM_WINDOW, 0, 0, MODEL_MAX_CONTEXT, UINT32_MAX, &window);
    if (!rc)
        rc = shape_reader_bool(r, ARCH_PARAM_USE_WINDOW, 0, &use_window);
    if (!rc)
        rc = shape_reader_u32(r, ARCH_PARAM_CHUNK, 0, 0, MODEL_MAX_CONTEXT, 0, &chunk);
    s->layers = calloc(s->n_layers, sizeof(*s->layers));
    if (!rc && !s->layers)
        rc = error_set(r->err, STATUS_RESOURCE_EXHAUSTED, "out of memory for %u layers",
                       s->n_layers);
    for (uint32_t i = 0; !rc && i < s->n_layers; i++) {
        set_kind(r, &s->layers[i], ARCH_PART_MIXER, 0);
        set_kind(r, &s->layers[i], ARCH_PART_FFN, 0);
    }
    for (uint32_t i = 0; !rc && i < r->source->n_patterns; i++)
        rc = apply_pattern(r, &r->source->patterns[i], s);
    if (!rc && use_window)
        rc = check_reach(r, s, ARCH_PARAM_WINDOW, ARCH_REACH_WINDOW, window);
    if (!rc)
        rc = check_reach(r, s, ARCH_PARAM_CHUNK, ARCH_REACH_CHUNK, chunk);
    if (!rc)
        rc = shape_mixers_read_states(r, s);
    for (uint32_t i = 0; !rc && i < s->n_layers; i++)
        rc = read_layer(r, s, use_window ? window : 0, chunk, i);
    return rc ? rc : shape_mixers_read_shared_kv(r, s);
}
