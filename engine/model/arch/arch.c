#include "engine/model/arch/arch.h"

#include <stdio.h>
#include <string.h>

#define ADDRESS(name) &arch_##name,
static const struct arch *const architectures[] = {ARCH_EACH(ADDRESS)};
#undef ADDRESS

enum { N_ARCHITECTURES = sizeof(architectures) / sizeof(architectures[0]) };

const struct arch *arch_at(uint32_t i)
{
    return i < N_ARCHITECTURES ? architectures[i] : NULL;
}

const struct arch *arch_find(const char *format, const char *name,
                             const struct arch_source **out_source)
{
    for (uint32_t a = 0; a < N_ARCHITECTURES; a++) {
        const struct arch *arch = architectures[a];
        for (uint32_t i = 0; i < arch->n_sources; i++) {
            const struct arch_source *source = &arch->sources[i];
            if (strcmp(source->format, format) != 0 || source->dialect_keys ||
                !arch_names_have(source->aliases, name))
                continue;
            if (out_source)
                *out_source = source;
            return arch;
        }
    }
    return NULL;
}

const struct arch *arch_find_named(const char *name)
{
    for (uint32_t a = 0; a < N_ARCHITECTURES; a++)
        if (strcmp(architectures[a]->name, name) == 0)
            return architectures[a];
    return NULL;
}

const struct arch_source *arch_find_source(const struct arch *arch, const char *format,
                                           const char *name)
{
    const struct arch_source *first = NULL;
    for (uint32_t i = 0; i < arch->n_sources; i++) {
        const struct arch_source *source = &arch->sources[i];
        if (strcmp(source->format, format) != 0 || source->dialect_keys)
            continue;
        if (arch_names_have(source->aliases, name))
            return source;
        first = first ? first : source;
    }
    return first;
}

const struct arch_tensor *arch_find_tensor(const struct arch_source *source, enum arch_slot slot)
{
    for (uint32_t i = 0; i < source->n_tensors; i++)
        if (source->tensors[i].slot == slot)
            return &source->tensors[i];
    return NULL;
}

const struct arch_param *arch_find_param(const struct arch_source *source, enum arch_param_id id,
                                         uint32_t of)
{
    for (uint32_t i = 0; i < source->n_params; i++)
        if (source->params[i].id == id && source->params[i].of == of)
            return &source->params[i];
    return NULL;
}

bool arch_reads_param(const struct arch_source *source, const char *key)
{
    for (uint32_t i = 0; i < source->n_params; i++)
        if (source->params[i].key && arch_names_have(source->params[i].key, key))
            return true;
    return false;
}

bool arch_reads_pattern(const struct arch_source *source, const char *key)
{
    for (uint32_t i = 0; i < source->n_patterns; i++)
        if (source->patterns[i].key && arch_names_have(source->patterns[i].key, key))
            return true;
    return false;
}

bool arch_reads_key(const struct arch_source *source, const char *key)
{
    return arch_reads_param(source, key) || arch_reads_pattern(source, key);
}

const struct arch_fixed_key *arch_find_fixed_key(const struct arch_source *source, const char *key)
{
    const struct arch_fixed_key *wild = NULL;
    for (uint32_t i = 0; i < source->n_fixed_keys; i++) {
        const char *name = source->fixed_keys[i].key;
        size_t n = strlen(name);
        if (strcmp(name, key) == 0)
            return &source->fixed_keys[i];
        if (n && name[n - 1] == '*' && strncmp(name, key, n - 1) == 0)
            wild = &source->fixed_keys[i];
    }
    return wild;
}

bool arch_has_attention(enum arch_mixing mixing)
{
    return mixing == ARCH_MIXING_ATTENTION || mixing == ARCH_MIXING_LATENT ||
           mixing == ARCH_MIXING_ATTENTION_MAMBA2;
}

bool arch_has_state(enum arch_mixing mixing)
{
    return mixing == ARCH_MIXING_DELTA || mixing == ARCH_MIXING_MAMBA2 ||
           mixing == ARCH_MIXING_CONV || mixing == ARCH_MIXING_ATTENTION_MAMBA2;
}

bool arch_is_transposed(enum arch_transform transform)
{
    return transform == ARCH_TRANSFORM_TRANSPOSE || transform == ARCH_TRANSFORM_TRANSPOSE_BY_ROW;
}

bool arch_is_by_head(const struct arch_tensor *row)
{
    const char *first = strstr(row->name, "%u");
    bool is_head_norm = row->slot == ARCH_ATTN_Q_NORM || row->slot == ARCH_ATTN_K_NORM;
    return is_head_norm && first && strstr(first + 2, "%u") &&
           strstr(first + 2, "%u") < row->name + strcspn(row->name, "|");
}

/* --- names --- */

/* The next of several names, and its length; NULL after the last. */
static const char *next_name(const char *names, const char *previous, size_t *n)
{
    const char *name = previous ? previous + *n : names;
    if (!name || (previous && *name != '|'))
        return NULL;
    name += previous != NULL;
    *n = strcspn(name, "|");
    return name;
}

/* True if `name` begins as pattern[0..n), where %u stands for digits. *out_n is the length of that
 * part of the name. */
static bool begins_so(const char *pattern, size_t n, const char *name, size_t *out_n)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (pattern[i] == '%' && i + 1 < n && pattern[i + 1] == 'u') {
            size_t n_digits = strspn(name + at, "0123456789");
            if (!n_digits)
                return false;
            at += n_digits;
            i++;
        } else if (pattern[i] != name[at++]) {
            return false;
        }
    }
    *out_n = at;
    return true;
}

bool arch_names_have(const char *names, const char *name)
{
    size_t n = 0, n_begin;
    for (const char *at = next_name(names, NULL, &n); at; at = next_name(names, at, &n))
        if (begins_so(at, n, name, &n_begin) && !name[n_begin])
            return true;
    return false;
}

bool arch_names_begin(const char *names, const char *name)
{
    size_t n = 0, n_begin;
    for (const char *at = next_name(names, NULL, &n); at; at = next_name(names, at, &n))
        if (begins_so(at, n, name, &n_begin))
            return true;
    return false;
}

bool arch_name_at(const char *names, uint32_t i, uint32_t layer, uint32_t expert, char *out,
                  uint32_t n_bytes)
{
    const uint32_t numbers[] = {layer, expert};
    size_t n = 0, at = 0;
    uint32_t n_numbers = 0;
    const char *name = next_name(names, NULL, &n);
    for (; name && i; i--)
        name = next_name(names, name, &n);
    if (!name)
        return false;
    for (size_t k = 0; k < n && at < n_bytes; k++) {
        if (name[k] != '%') {
            out[at++] = name[k];
            continue;
        }
        if (k + 1 >= n || name[k + 1] != 'u' || n_numbers >= 2)
            return false;
        at += (size_t)snprintf(out + at, n_bytes - at, "%u", numbers[n_numbers++]);
        k++;
    }
    if (at >= n_bytes)
        return false;
    out[at] = '\0';
    return true;
}

/* --- soundness --- */

static bool is_of_rope(enum arch_param_id id)
{
    return id >= ARCH_PARAM_ROT_DIM;
}

static bool is_of_mixer(enum arch_param_id id)
{
    return id == ARCH_PARAM_KEY_DIM || id == ARCH_PARAM_VALUE_DIM || id == ARCH_PARAM_KV_HEADS ||
           id == ARCH_PARAM_KV_FACTOR || id == ARCH_PARAM_HEADS;
}

static bool uses_rope(const struct arch *arch, uint32_t set)
{
    for (uint32_t i = 0; i < arch->n_mixers; i++)
        if (arch_has_attention(arch->mixers[i].mixing) && arch->mixers[i].rope == set)
            return true;
    return false;
}

static bool is_text(enum arch_param_id id)
{
    return id == ARCH_PARAM_ROPE_SCALING || id == ARCH_PARAM_ACTIVATION ||
           id == ARCH_PARAM_EXPERT_METHOD;
}

/* True if a kind of the architecture reads the parameter. */
static bool is_read(const struct arch *arch, enum arch_param_id id)
{
    bool windows = false, chunks = false, temperature = false, experts = false;
    bool states = false, latent = false, as_values = false, bare = false;
    for (uint32_t i = 0; i < arch->n_mixers; i++) {
        states |= arch_has_state(arch->mixers[i].mixing);
        latent |= arch->mixers[i].mixing == ARCH_MIXING_LATENT;
        windows |= arch->mixers[i].reach == ARCH_REACH_WINDOW;
        chunks |= arch->mixers[i].reach == ARCH_REACH_CHUNK;
        as_values |= arch->mixers[i].keys_as_values;
        bare |= arch->mixers[i].head_norms == ARCH_HEAD_NORMS_BARE;
        temperature |= arch->mixers[i].has_temperature;
    }
    for (uint32_t i = 0; i < arch->n_ffns; i++)
        experts |= arch->ffns[i].body == ARCH_FFN_EXPERTS || arch->ffns[i].body == ARCH_FFN_BOTH;
    if (id >= ARCH_PARAM_STATE_WIDTH && id <= ARCH_PARAM_STATE_TILED)
        return states;
    if (id >= ARCH_PARAM_LATENT_Q && id <= ARCH_PARAM_LATENT_EPS)
        return latent;
    if (id == ARCH_PARAM_WINDOW || id == ARCH_PARAM_USE_WINDOW)
        return windows;
    if (id == ARCH_PARAM_CHUNK)
        return chunks;
    if (id == ARCH_PARAM_KEYS_AS_VALUES)
        return as_values;
    if (id >= ARCH_PARAM_TEMPERATURE && id <= ARCH_PARAM_USE_TEMPERATURE)
        return temperature;
    if (id == ARCH_PARAM_BARE_NORMS || id == ARCH_PARAM_NO_BARE_NORMS_EXPERTS)
        return bare;
    return experts || id < ARCH_PARAM_EXPERTS || id > ARCH_PARAM_EXPERT_SIGMOID_VOCAB;
}

static bool param_is_sound(const struct arch *arch, const struct arch_param *p)
{
    if ((unsigned)p->id >= N_ARCH_PARAMS || (unsigned)p->absent > ARCH_ABSENT_MIXER_0 ||
        (p->absent == ARCH_ABSENT_MIXER_0 && (!is_of_mixer(p->id) || !p->of)) ||
        (p->absent != ARCH_ABSENT_FALLBACK && p->fallback != 0) ||
        (!p->key && p->absent == ARCH_ABSENT_REFUSE) ||
        (is_text(p->id) && p->absent == ARCH_ABSENT_FALLBACK &&
         (p->id != ARCH_PARAM_ROPE_SCALING ||
          !(p->fallback >= 0 && p->fallback <= ROPE_SCALING_PROPORTIONAL))))
        return false;
    if (!is_read(arch, p->id))
        return false;
    if (is_of_rope(p->id))
        return uses_rope(arch, p->of);
    return is_of_mixer(p->id) ? p->of < arch->n_mixers : p->of == 0;
}

static bool params_are_sound(const struct arch *arch, const struct arch_source *source)
{
    static const enum arch_param_id needed[] = {ARCH_PARAM_LAYERS, ARCH_PARAM_CONTEXT,
                                                ARCH_PARAM_HIDDEN, ARCH_PARAM_NORM_EPS};
    bool attends = false, states = false;
    for (uint32_t i = 0; i < arch->n_mixers; i++) {
        attends |= arch_has_attention(arch->mixers[i].mixing);
        states |= arch_has_state(arch->mixers[i].mixing);
    }
    if ((attends && !arch_find_param(source, ARCH_PARAM_HEADS, 0)) ||
        (states && !arch_find_param(source, ARCH_PARAM_STATE_WIDTH, 0)))
        return false;
    for (uint32_t i = 0; i < source->n_params; i++)
        if (!param_is_sound(arch, &source->params[i]) ||
            arch_find_param(source, source->params[i].id, source->params[i].of) !=
                &source->params[i])
            return false;
    for (uint32_t i = 0; i < ARCH_N_OF(needed); i++)
        if (!arch_find_param(source, needed[i], 0))
            return false;
    for (uint32_t set = 0; set < ARCH_MAX_ROPES; set++)
        if (uses_rope(arch, set) && !arch_find_param(source, ARCH_PARAM_ROPE_BASE, set))
            return false;
    return true;
}

static bool patterns_are_sound(const struct arch *arch, const struct arch_source *source)
{
    for (uint32_t i = 0; i < source->n_patterns; i++) {
        const struct arch_pattern *p = &source->patterns[i];
        uint32_t n_kinds = p->part == ARCH_PART_MIXER ? arch->n_mixers : arch->n_ffns;
        bool has_n = p->form <= ARCH_PATTERN_AFTER || p->form == ARCH_PATTERN_CHARS ||
                     p->form == ARCH_PATTERN_SET;
        bool has_rest = p->form == ARCH_PATTERN_FLAGS || p->form == ARCH_PATTERN_SET ||
                        p->form == ARCH_PATTERN_TEXT || p->form == ARCH_PATTERN_ONLY;
        if ((unsigned)p->part > ARCH_PART_FFN || (unsigned)p->form >= N_ARCH_PATTERN_FORMS ||
            (p->form == ARCH_PATTERN_CHARS && (!p->key || !p->n)) || p->kind >= n_kinds ||
            p->rest >= n_kinds || (!p->key && !p->n) || (!has_n && p->n) ||
            (!has_rest && p->rest) || (has_rest && !p->key) ||
            ((p->form == ARCH_PATTERN_NAMES || p->form == ARCH_PATTERN_SAME_NAMES) && p->kind))
            return false;
    }
    return true;
}

/* The matrices of heads in one tensor may lie in rows or in columns. */
static bool transforms_agree(const struct arch_tensor *a, const struct arch_tensor *b)
{
    bool by_head = arch_slot_facts(a->slot)->by_head && arch_slot_facts(b->slot)->by_head;
    return a->transform == b->transform || by_head;
}

/* False if a slot that shares the tensor differs in `required` or in the transform. */
static bool agrees_with_others(const struct arch_source *source, const struct arch_tensor *row)
{
    for (uint32_t i = 0; i < source->n_tensors; i++)
        if (strcmp(source->tensors[i].name, row->name) == 0 &&
            (source->tensors[i].required != row->required ||
             !transforms_agree(&source->tensors[i], row)))
            return false;
    return true;
}

static bool has_partner(const struct arch_source *source, const struct arch_tensor *row)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < source->n_tensors; i++)
        n += strcmp(source->tensors[i].name, row->name) == 0;
    return n > 1;
}

/* True if the slot's values can lie in that way. A transform of no effect is an error in the
 * table. */
static bool transform_is_sound(const struct arch_source *source, const struct arch_tensor *row)
{
    bool vector = arch_slot_facts(row->slot)->rows == ARCH_DIM_ONE;
    bool is_query = row->slot == ARCH_ATTN_Q || row->slot == ARCH_ATTN_GATE ||
                    row->slot == ARCH_LATENT_Q_NOPE || row->slot == ARCH_LATENT_Q_ROPE;
    switch (row->transform) {
    case ARCH_TRANSFORM_NONE:
        return !arch_slot_facts(row->slot)->by_head;
    case ARCH_TRANSFORM_PLUS_ONE:
        return arch_slot_facts(row->slot)->is_norm;
    case ARCH_TRANSFORM_TRANSPOSE:
        return !vector;
    case ARCH_TRANSFORM_BY_HEAD:
        return row->slot >= ARCH_ATTN_Q && row->slot <= ARCH_ATTN_V_BIAS &&
               has_partner(source, row);
    case ARCH_TRANSFORM_BY_ROW:
        return has_partner(source, row);
    case ARCH_TRANSFORM_TRANSPOSE_BY_ROW:
        return !vector && has_partner(source, row);
    case ARCH_TRANSFORM_BY_QUERY_HEAD:
        return is_query && has_partner(source, row);
    case ARCH_TRANSFORM_BY_STATE_HEAD:
        return row->slot >= ARCH_STATE_Q && row->slot <= ARCH_STATE_BETA &&
               has_partner(source, row);
    case ARCH_TRANSFORM_MINUS_EXP:
        return row->slot == ARCH_STATE_A;
    case ARCH_TRANSFORM_HEADS:
    case ARCH_TRANSFORM_HEADS_TRANSPOSED:
        return arch_slot_facts(row->slot)->by_head;
    default:
        return false;
    }
}

static bool tensors_are_sound(const struct arch_source *source)
{
    for (uint32_t i = 0; i < source->n_tensors; i++) {
        const struct arch_tensor *t = &source->tensors[i];
        if ((unsigned)t->slot >= N_ARCH_SLOTS || arch_find_tensor(source, t->slot) != t ||
            !agrees_with_others(source, t) || !transform_is_sound(source, t))
            return false;
    }
    return true;
}

static bool has_param(const struct arch_source *source, enum arch_param_id id)
{
    return arch_find_param(source, id, 0) != NULL;
}

/* True if the source, or the table's source of another format, has norms of heads. */
static bool has_head_norms(const struct arch *arch, const struct arch_source *source)
{
    bool found =
        arch_find_tensor(source, ARCH_ATTN_Q_NORM) || arch_find_tensor(source, ARCH_ATTN_K_NORM);
    for (uint32_t i = 0; !found && i < arch->n_sources; i++)
        found = arch_find_tensor(&arch->sources[i], ARCH_ATTN_Q_NORM) != NULL;
    return found;
}

/* Values that nothing reads must be 0. */
static bool mixer_is_sound(const struct arch *arch, const struct arch_mixer *m,
                           const struct arch_source *source)
{
    bool attends = arch_has_attention(m->mixing);
    bool bare = m->head_norms == ARCH_HEAD_NORMS_BARE;
    bool weights = has_head_norms(arch, source);
    if (!m->name || (unsigned)m->mixing >= N_ARCH_MIXINGS ||
        (unsigned)m->reach > ARCH_REACH_CHUNK || (unsigned)m->head_norm > ARCH_NORM_LAYER ||
        (unsigned)m->head_norm_scope > ARCH_SCOPE_WHOLE ||
        (unsigned)m->head_norms > ARCH_HEAD_NORMS_BARE)
        return false;
    if (m->rope >= ARCH_MAX_ROPES && m->rope != ARCH_NO_ROPE)
        return false;
    if ((m->reach == ARCH_REACH_WINDOW && !has_param(source, ARCH_PARAM_WINDOW)) ||
        (m->reach == ARCH_REACH_CHUNK && !has_param(source, ARCH_PARAM_CHUNK)) ||
        (m->has_temperature && !has_param(source, ARCH_PARAM_TEMPERATURE)))
        return false;
    if (!attends && (m->reach || bare || m->bare_value_norm || m->has_temperature ||
                     m->keys_as_values || m->head_norm_scope || m->rope != ARCH_NO_ROPE))
        return false;
    if (m->mixing == ARCH_MIXING_LATENT && (bare || m->bare_value_norm || m->has_temperature))
        return false;
    if (m->norm_before_gate && m->mixing != ARCH_MIXING_MAMBA2 &&
        m->mixing != ARCH_MIXING_ATTENTION_MAMBA2)
        return false;
    if (m->head_norm_scope && (bare || !weights))
        return false;
    /* A rank then computes all heads of Q and K. The decoder takes the rank's own after the norm
     * and before rope, and copies no keys as values. */
    const struct arch_tensor *values = arch_find_tensor(source, ARCH_ATTN_V);
    if (m->head_norm_scope == ARCH_SCOPE_WHOLE &&
        (m->norm_after_rope || !values || !values->required))
        return false;
    return (attends && (bare || weights)) || (!m->head_norm && !m->norm_after_rope);
}

static bool ffn_is_sound(const struct arch_ffn *f, const struct arch_source *source)
{
    const struct arch_router *r = &f->router;
    bool experts = f->body == ARCH_FFN_EXPERTS || f->body == ARCH_FFN_BOTH;
    if (!f->name || (unsigned)f->body > ARCH_FFN_BOTH || (unsigned)f->form > ARCH_FFN_PLAIN ||
        (unsigned)f->activation >= N_ACTIVATIONS || (unsigned)r->score > ROUTER_SQRT_SOFTPLUS ||
        (unsigned)r->group_score > ROUTER_GROUP_TOP_TWO ||
        (unsigned)r->weight > ARCH_EXPERT_WEIGHT_INPUT)
        return false;
    if (experts)
        return has_param(source, ARCH_PARAM_EXPERTS);
    return !r->score && !r->group_score && !r->softmax_by_max && !r->weight && !(r->min_sum > 0) &&
           !(r->add_sum > 0);
}

/* True if a pattern can choose the kind. */
static bool can_choose(const struct arch_source *source, enum arch_part part, uint32_t kind)
{
    for (uint32_t i = 0; i < source->n_patterns; i++) {
        const struct arch_pattern *p = &source->patterns[i];
        bool has_rest = p->form == ARCH_PATTERN_FLAGS || p->form == ARCH_PATTERN_ONLY;
        if (p->part == part &&
            (p->kind == kind || p->form == ARCH_PATTERN_NAMES || (has_rest && p->rest == kind)))
            return true;
    }
    return kind == 0;
}

static bool kinds_are_sound(const struct arch *arch, const struct arch_source *source)
{
    bool has_rope = false;
    if (!arch->n_mixers || arch->n_mixers > ARCH_MAX_MIXERS || !arch->n_ffns ||
        arch->n_ffns > ARCH_MAX_FFNS)
        return false;
    for (uint32_t i = 0; i < arch->n_mixers; i++) {
        if (!mixer_is_sound(arch, &arch->mixers[i], source) ||
            !can_choose(source, ARCH_PART_MIXER, i))
            return false;
        has_rope |= arch->mixers[i].rope != ARCH_NO_ROPE;
    }
    for (uint32_t i = 0; i < arch->n_ffns; i++)
        if (!ffn_is_sound(&arch->ffns[i], source) || !can_choose(source, ARCH_PART_FFN, i))
            return false;
    return has_rope == (source->rope_style != ROPE_NONE);
}

/* Values that the rule does not read must be 0. */
static bool fixed_key_is_sound(const struct arch_fixed_key *k, const struct arch_source *source)
{
    bool has_slot = (unsigned)k->slot < N_ARCH_SLOTS && arch_find_tensor(source, k->slot);
    if ((unsigned)k->rule > ARCH_KEY_OPEN || (k->text != NULL) != (k->rule == ARCH_KEY_TEXT) ||
        (k->rule != ARCH_KEY_NUMBER && k->value != 0))
        return false;
    return k->rule == ARCH_KEY_TENSOR ? has_slot : !k->slot;
}

bool arch_source_is_sound(const struct arch *arch, const struct arch_source *source)
{
    for (uint32_t i = 0; i < source->n_fixed_keys; i++)
        if (!fixed_key_is_sound(&source->fixed_keys[i], source))
            return false;
    for (uint32_t i = 0; i < source->n_variants; i++) {
        const struct arch_variant *v = &source->variants[i];
        if (!v->arch || !arch_find_named(v->arch) || (v->key != NULL) == (v->tensor != NULL))
            return false;
    }
    if ((source->counts_drafts && !source->draft_layers) ||
        (source->draft_layers != NULL) != has_param(source, ARCH_PARAM_DRAFT_LAYERS))
        return false;
    return kinds_are_sound(arch, source) && tensors_are_sound(source) &&
           params_are_sound(arch, source) && patterns_are_sound(arch, source);
}
