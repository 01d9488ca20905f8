#include "server/worker/tools/inspection.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/engine.h"
#include "engine/engine_facts.h"
#include "server/worker/base/message.h"

static int out_of_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "inspect: out of memory");
}

/* Makes a list of n messages of `size` bytes each; `init` sets one. Returns the first message; NULL
 * without memory. *out_list: the messages' addresses, for the field of the parent. */
static void *make_list(struct arena *arena, size_t n, size_t size, void ***out_list)
{
    char *messages = arena_calloc(arena, n + 1, size);
    void **list = arena_calloc(arena, n + 1, sizeof(*list));
    if (!messages || !list)
        return NULL;
    for (size_t i = 0; i < n; i++)
        list[i] = messages + i * size;
    *out_list = list;
    return messages;
}

#define MAKE_LIST(arena, n, type, field) make_list(arena, n, sizeof(type), (void ***)&(field))

static int add_layers(struct arena *arena, const struct engine_facts *facts,
                      Sluice__V1__Inspection *out, struct error *err)
{
    Sluice__V1__LayerKind *rows =
        MAKE_LIST(arena, facts->n_layers, Sluice__V1__LayerKind, out->layers);
    if (!rows)
        return out_of_memory(err);
    for (uint32_t i = 0; i < facts->n_layers; i++) {
        const struct engine_layer_kind *kind = &facts->layers[i];
        Sluice__V1__LayerKind *row = &rows[i];
        sluice__v1__layer_kind__init(row);
        row->layers = arena_calloc(arena, kind->n_layers, sizeof(*row->layers));
        if (!row->layers)
            return out_of_memory(err);
        memcpy(row->layers, kind->layers, kind->n_layers * sizeof(*row->layers));
        row->n_layers = kind->n_layers;
        row->mixer = message_text(arena, kind->mixer);
        row->reach = message_text(arena, kind->reach);
        row->reach_tokens = kind->reach_tokens;
        row->has_rope = kind->rope >= 0;
        row->rope = kind->rope >= 0 ? (uint32_t)kind->rope : 0;
        row->n_heads = kind->n_heads;
        row->n_kv_heads = kind->n_kv_heads;
        row->key_dim = kind->k_dim;
        row->value_dim = kind->v_dim;
        row->ffn = message_text(arena, kind->ffn);
        row->ffn_form = message_text(arena, kind->ffn_form);
        row->activation = message_text(arena, kind->activation);
        row->ffn_dim = kind->ffn_dim;
        row->n_state_heads = kind->n_state_heads;
        row->n_state_key_heads = kind->n_state_keys;
        row->state_key_dim = kind->state_key_dim;
        row->state_value_dim = kind->state_dim;
        row->conv_width = kind->conv_width;
        row->state_bytes = kind->state_bytes;
    }
    out->n_layers = facts->n_layers;
    return 0;
}

static int add_ropes(struct arena *arena, const struct engine_facts *facts,
                     Sluice__V1__Inspection *out, struct error *err)
{
    Sluice__V1__RopeSet *rows = MAKE_LIST(arena, facts->n_ropes, Sluice__V1__RopeSet, out->ropes);
    if (!rows)
        return out_of_memory(err);
    for (uint32_t i = 0; i < facts->n_ropes; i++) {
        const struct engine_rope_facts *rope = &facts->ropes[i];
        sluice__v1__rope_set__init(&rows[i]);
        rows[i].rope = rope->rope;
        rows[i].n_rotated = rope->n_rotated;
        rows[i].frequency_base = rope->base;
        rows[i].scaling = message_text(arena, rope->scaling);
        rows[i].factor = rope->factor;
        rows[i].original_context = rope->original_context;
    }
    out->n_ropes = facts->n_ropes;
    return 0;
}

static int add_experts(struct arena *arena, const struct engine_expert_facts *experts,
                       Sluice__V1__Inspection *out, struct error *err)
{
    if (!experts->n)
        return 0;
    Sluice__V1__ExpertFacts *row = arena_alloc(arena, sizeof(*row));
    if (!row)
        return out_of_memory(err);
    sluice__v1__expert_facts__init(row);
    row->n_experts = experts->n;
    row->n_used = experts->n_used;
    row->ffn_dim = experts->ffn_dim;
    row->shared_ffn_dim = experts->shared_ffn_dim;
    row->n_groups = experts->n_groups;
    row->n_groups_used = experts->n_groups_used;
    row->score = message_text(arena, experts->score);
    row->renormalised = experts->renormalised;
    row->scale = experts->scale;
    out->experts = row;
    return 0;
}

static Sluice__V1__IgnoredKind ignored_kind(enum engine_ignored_kind kind)
{
    switch (kind) {
    case ENGINE_IGNORED_KEY:
        return SLUICE__V1__IGNORED_KIND__IGNORED_KIND_KEY;
    case ENGINE_IGNORED_TENSOR:
        return SLUICE__V1__IGNORED_KIND__IGNORED_KIND_TENSOR;
    case ENGINE_IGNORED_ROW:
        return SLUICE__V1__IGNORED_KIND__IGNORED_KIND_ROW;
    }
    return SLUICE__V1__IGNORED_KIND__IGNORED_KIND_UNSPECIFIED;
}

static int add_ignored(struct arena *arena, const struct engine_facts *facts,
                       Sluice__V1__Inspection *out, struct error *err)
{
    Sluice__V1__IgnoredPart *rows =
        MAKE_LIST(arena, facts->n_ignored, Sluice__V1__IgnoredPart, out->ignored);
    if (!rows)
        return out_of_memory(err);
    for (uint32_t i = 0; i < facts->n_ignored; i++) {
        const struct engine_ignored *part = &facts->ignored[i];
        sluice__v1__ignored_part__init(&rows[i]);
        rows[i].kind = ignored_kind(part->kind);
        rows[i].rule = message_text(arena, part->rule);
        rows[i].why = message_text(arena, part->why);
        rows[i].n_parts = part->n;
        rows[i].bytes = part->n_bytes;
        rows[i].first = message_text(arena, part->first);
    }
    out->n_ignored = facts->n_ignored;
    return 0;
}

static int add_model(struct arena *arena, const struct engine_facts *facts,
                     Sluice__V1__Inspection *out, struct error *err)
{
    out->n_loaded_parameters = facts->n_loaded;
    out->n_active_parameters = facts->n_active;
    out->norm = message_text(arena, facts->norm);
    out->residual = message_text(arena, facts->residual);
    out->tied_output = facts->tied_output;
    out->context_limit = message_text(arena, facts->context_limit);
    int rc = add_layers(arena, facts, out, err);
    if (!rc)
        rc = add_ropes(arena, facts, out, err);
    if (!rc)
        rc = add_experts(arena, &facts->experts, out, err);
    return rc ? rc : add_ignored(arena, facts, out, err);
}

/* --- tokenizer --- */

static int add_tokens(struct arena *arena, const struct tokenizer *tok, const uint32_t *ids,
                      size_t n_ids, size_t *out_n, Sluice__V1__NamedToken ***out, struct error *err)
{
    Sluice__V1__NamedToken *rows = MAKE_LIST(arena, n_ids, Sluice__V1__NamedToken, *out);
    if (!rows)
        return out_of_memory(err);
    for (size_t i = 0; i < n_ids; i++) {
        size_t n = 0;
        const char *bytes = tokenizer_token_bytes(tok, ids[i], &n);
        sluice__v1__named_token__init(&rows[i]);
        rows[i].id = ids[i];
        if (bytes && utf8_valid(bytes, n, NULL))
            rows[i].text = message_model_text(arena, bytes, n);
    }
    *out_n = n_ids;
    return 0;
}

static void count_kinds(const struct tokenizer *tok, Sluice__V1__TokenizerFacts *row)
{
    for (uint32_t id = 0; id < row->vocab_size; id++) {
        enum token_kind kind = tokenizer_token_kind(tok, id);
        row->n_added_tokens += kind == TOKEN_CONTROL || kind == TOKEN_USER_DEFINED;
        row->n_control_tokens += kind == TOKEN_CONTROL;
    }
}

static int add_tokenizer(struct arena *arena, const struct tokenizer *tok,
                         Sluice__V1__Inspection *out, struct error *err)
{
    const struct tokenizer_info *info = tokenizer_info(tok);
    const uint32_t bos = (uint32_t)info->bos_id, eos = (uint32_t)info->eos_id;
    const uint32_t *before = info->n_prefix ? info->prefix : &bos;
    const uint32_t *after = info->n_suffix ? info->suffix : &eos;
    uint32_t n_before = info->n_prefix ? info->n_prefix : info->bos_id != TOKENIZER_NO_ID;
    uint32_t n_after = info->n_suffix ? info->n_suffix : info->eos_id != TOKENIZER_NO_ID;
    uint32_t fim[TOKENIZER_N_FIM], n_fim = 0;
    Sluice__V1__TokenizerFacts *row = arena_alloc(arena, sizeof(*row));
    if (!row)
        return out_of_memory(err);
    sluice__v1__tokenizer_facts__init(row);
    row->model = message_text(arena, info->model);
    row->pre = message_text(arena, info->pre);
    row->vocab_size = info->vocab_size;
    row->n_holes = info->n_holes;
    count_kinds(tok, row);
    int rc = add_tokens(arena, tok, before, info->add_bos ? n_before : 0, &row->n_before_prompt,
                        &row->before_prompt, err);
    if (!rc)
        rc = add_tokens(arena, tok, after, info->add_eos ? n_after : 0, &row->n_after_prompt,
                        &row->after_prompt, err);
    if (!rc)
        rc = add_tokens(arena, tok, info->end_ids, info->n_end_ids, &row->n_ends, &row->ends, err);
    for (size_t i = 0; i < TOKENIZER_N_FIM && tokenizer_fills_gaps(info); i++)
        if (info->fim_ids[i] != TOKENIZER_NO_ID)
            fim[n_fim++] = (uint32_t)info->fim_ids[i];
    if (!rc)
        rc = add_tokens(arena, tok, fim, n_fim, &row->n_fim, &row->fim, err);
    out->tokenizer = row;
    return rc;
}

/* --- parts of any model --- */

static int by_bytes(const void *a, const void *b)
{
    const Sluice__V1__TensorFormat *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes)
                                : strcmp(x->format, y->format);
}

static int add_formats(struct arena *arena, const Sluice__Worker__V1__InspectReport *report,
                       Sluice__V1__Inspection *out, struct error *err)
{
    Sluice__V1__TensorFormat *rows =
        MAKE_LIST(arena, report->n_groups, Sluice__V1__TensorFormat, out->formats);
    if (!rows)
        return out_of_memory(err);
    for (size_t i = 0; i < report->n_groups; i++) {
        const Sluice__Worker__V1__TensorGroup *group = report->groups[i];
        sluice__v1__tensor_format__init(&rows[i]);
        rows[i].format = group->format;
        rows[i].n_tensors = group->n_tensors;
        rows[i].n_parameters = group->n_elements;
        rows[i].bytes = group->bytes;
    }
    if (report->n_groups)
        qsort(rows, report->n_groups, sizeof(*rows), by_bytes);
    out->n_formats = report->n_groups;
    return 0;
}

static int add_templates(struct arena *arena, const Sluice__Worker__V1__InspectReport *report,
                         Sluice__V1__Inspection *out, struct error *err)
{
    size_t n = report->n_named_templates + 1;
    Sluice__V1__TemplateFacts *rows =
        MAKE_LIST(arena, n, Sluice__V1__TemplateFacts, out->templates);
    if (!rows)
        return out_of_memory(err);
    for (size_t i = 0; i < n; i++)
        sluice__v1__template_facts__init(&rows[i]);
    if (report->chat_template[0]) {
        rows[0].name = message_text(arena, CHAT_TEMPLATES_DEFAULT);
        rows[0].error = report->chat_template_error;
        out->n_templates = 1;
    }
    for (size_t i = 0; i < report->n_named_templates; i++) {
        rows[out->n_templates].name = report->named_templates[i]->name;
        rows[out->n_templates++].error = report->named_templates[i]->error;
    }
    return 0;
}

int inspection_make(struct arena *arena, const struct tokenizer *tok,
                    const struct engine_facts *facts,
                    const Sluice__Worker__V1__InspectReport *report, Sluice__V1__Inspection **out,
                    struct error *err)
{
    Sluice__V1__Inspection *made = arena_alloc(arena, sizeof(*made));
    if (!made)
        return out_of_memory(err);
    sluice__v1__inspection__init(made);
    made->info = report->info;
    made->unsupported_reason = report->unsupported_reason;
    made->n_files = (uint32_t)report->n_files;
    for (size_t i = 0; i < report->n_files; i++)
        made->file_bytes += report->files[i]->size_bytes;
    made->notes = report->notes;
    made->n_notes = report->n_notes;
    int rc = add_formats(arena, report, made, err);
    if (!rc && facts)
        rc = add_model(arena, facts, made, err);
    if (!rc && tok)
        rc = add_tokenizer(arena, tok, made, err);
    if (!rc)
        rc = add_templates(arena, report, made, err);
    if (!rc)
        *out = made;
    return rc;
}
