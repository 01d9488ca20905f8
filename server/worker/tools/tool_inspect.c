#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sha256.h"
#include "base/strbuf.h"
#include "base/system/source.h"
#include "engine/engine.h"
#include "engine/engine_facts.h"
#include "server/worker/base/facts.h"
#include "server/worker/base/message.h"
#include "server/worker/base/settings.h"
#include "server/worker/tools/inspection.h"
#include "server/worker/tools/tool.h"

enum { VALUE_BYTES = 512, HASH_CHUNK_BYTES = 1 << 20, MAX_GROUPS = 64 /* types of a format */ };

struct inspection {
    const struct settings *settings;
    struct arena *arena;
    struct checkpoint *ckpt;
    struct tokenizer *tok;
    Sluice__Worker__V1__InspectReport *report;
};

static int out_of_memory(struct error *err)
{
    return error_set(err, STATUS_RESOURCE_EXHAUSTED, "inspect: out of memory");
}

static int hash_contents(struct source *source, char out_hex[SHA256_HEX_BYTES], struct error *err)
{
    struct sha256 *sha = NULL;
    uint8_t digest[SHA256_BYTES];
    uint64_t size = source_size(source);
    unsigned char *chunk = malloc(HASH_CHUNK_BYTES);
    int rc = chunk ? sha256_create(&sha, err) : out_of_memory(err);
    for (uint64_t at = 0; at < size && !rc; at += HASH_CHUNK_BYTES) {
        size_t n = size - at < HASH_CHUNK_BYTES ? (size_t)(size - at) : HASH_CHUNK_BYTES;
        rc = source_read(source, at, chunk, n, err);
        if (!rc)
            sha256_update(sha, chunk, n);
        source_drop(source, at, n);
    }
    if (!rc)
        rc = source_check(source, err);
    free(chunk);
    if (rc) {
        sha256_destroy(sha);
        return rc;
    }
    sha256_final(sha, digest);
    sha256_hex(digest, out_hex);
    return 0;
}

static int add_file(struct inspection *in, uint32_t i, Sluice__Worker__V1__ModelFile *file,
                    struct error *err)
{
    struct source *source = checkpoint_file_source(in->ckpt, i);
    struct source_stat stat;
    char hex[SHA256_HEX_BYTES] = "";
    int rc = in->settings->verify ? hash_contents(source, hex, err) : 0;
    if (rc)
        return rc;
    source_stat(source, &stat);
    sluice__worker__v1__model_file__init(file);
    file->name = message_text(in->arena, checkpoint_file_name(in->ckpt, i));
    file->size_bytes = stat.size_bytes;
    file->modified_unix_ns = stat.mtime_ns;
    file->inode = stat.inode;
    file->sha256 = message_text(in->arena, hex);
    return 0;
}

static int add_files(struct inspection *in, struct error *err)
{
    uint32_t n = checkpoint_n_files(in->ckpt);
    Sluice__Worker__V1__ModelFile *files = arena_calloc(in->arena, n, sizeof(*files));
    Sluice__Worker__V1__ModelFile **list = arena_calloc(in->arena, n, sizeof(*list));
    if (!files || !list)
        return out_of_memory(err);
    for (uint32_t i = 0; i < n; i++) {
        if (add_file(in, i, &files[i], err) != 0)
            return err->status;
        list[i] = &files[i];
    }
    in->report->files = list;
    in->report->n_files = n;
    return 0;
}

/* The group of a type; a new one if there is none yet. NULL: too many. */
static Sluice__Worker__V1__TensorGroup *
find_group(struct inspection *in, Sluice__Worker__V1__TensorGroup *groups, const char *type)
{
    size_t n = in->report->n_groups;
    for (size_t i = 0; i < n; i++)
        if (strcmp(groups[i].format, type) == 0)
            return &groups[i];
    if (n == MAX_GROUPS)
        return NULL;
    sluice__worker__v1__tensor_group__init(&groups[n]);
    groups[n].format = message_text(in->arena, type);
    in->report->groups[in->report->n_groups++] = &groups[n];
    return &groups[n];
}

static int add_groups(struct inspection *in, struct error *err)
{
    Sluice__Worker__V1__TensorGroup *groups = arena_calloc(in->arena, MAX_GROUPS, sizeof(*groups));
    in->report->groups = arena_calloc(in->arena, MAX_GROUPS, sizeof(*in->report->groups));
    if (!groups || !in->report->groups)
        return out_of_memory(err);
    for (uint64_t i = 0; i < checkpoint_n_tensors(in->ckpt); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(in->ckpt, i);
        Sluice__Worker__V1__TensorGroup *group = find_group(in, groups, t->type_name);
        if (!group)
            return out_of_memory(err);
        group->n_tensors++;
        group->n_elements += t->n_elems;
        group->bytes += t->n_bytes;
    }
    in->report->tensor_count = (uint32_t)checkpoint_n_tensors(in->ckpt);
    return 0;
}

static int add_tensors(struct inspection *in, struct error *err)
{
    uint64_t n = checkpoint_n_tensors(in->ckpt);
    Sluice__Worker__V1__TensorInfo **list = arena_calloc(in->arena, n, sizeof(*list));
    Sluice__Worker__V1__TensorInfo *infos = arena_calloc(in->arena, n, sizeof(*infos));
    if (!list || !infos)
        return out_of_memory(err);
    for (uint64_t i = 0; i < n; i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(in->ckpt, i);
        Sluice__Worker__V1__TensorInfo *info = &infos[i];
        sluice__worker__v1__tensor_info__init(info);
        info->name = message_text(in->arena, t->name);
        info->format = message_text(in->arena, t->type_name);
        info->offset = t->offset_bytes;
        info->bytes = t->n_bytes;
        info->file = message_text(in->arena, checkpoint_file_name(in->ckpt, t->file));
        info->shape = arena_calloc(in->arena, t->n_dims, sizeof(*info->shape));
        if (!info->shape)
            return out_of_memory(err);
        info->n_shape = t->n_dims;
        for (uint32_t k = 0; k < t->n_dims; k++)
            info->shape[k] = t->dims[t->n_dims - 1 - k];
        list[i] = info;
    }
    in->report->tensors = list;
    in->report->n_tensors = n;
    return 0;
}

static int add_metadata(struct inspection *in, struct error *err)
{
    uint64_t n = checkpoint_n_keys(in->ckpt);
    Sluice__Worker__V1__MetadataEntry **list = arena_calloc(in->arena, n, sizeof(*list));
    Sluice__Worker__V1__MetadataEntry *entries = arena_calloc(in->arena, n, sizeof(*entries));
    if (!list || !entries)
        return out_of_memory(err);
    for (uint64_t i = 0; i < n; i++) {
        struct strbuf text = {0};
        sluice__worker__v1__metadata_entry__init(&entries[i]);
        entries[i].key = message_text(in->arena, checkpoint_key(in->ckpt, i));
        checkpoint_key_type(in->ckpt, i, &text);
        entries[i].type = message_text(in->arena, strbuf_str(&text));
        strbuf_clear(&text);
        checkpoint_key_value(in->ckpt, i, VALUE_BYTES, &text);
        entries[i].value = message_text(in->arena, strbuf_str(&text));
        strbuf_fini(&text);
        list[i] = &entries[i];
    }
    in->report->metadata = list;
    in->report->n_metadata = n;
    return 0;
}

/* Returns why a template cannot be rendered, or "". */
static char *template_error(struct inspection *in, const char *text)
{
    struct chat_template *compiled = NULL;
    struct error why;
    bool bad = chat_template_compile(text, strlen(text), &compiled, &why) != 0;
    chat_template_destroy(compiled);
    return message_text(in->arena, bad ? why.message : "");
}

/* An unusable template affects chat only: the template's error is reported, and inspect
 * succeeds. */
static int add_templates(struct inspection *in, struct error *err)
{
    const struct tokenizer_info *info = in->tok ? tokenizer_info(in->tok) : NULL;
    if (info && info->chat_template) {
        in->report->chat_template = message_text(in->arena, info->chat_template);
        in->report->chat_template_error = template_error(in, info->chat_template);
    }
    if (!info || !info->n_templates)
        return 0;
    Sluice__Worker__V1__NamedTemplate **list =
        arena_calloc(in->arena, info->n_templates, sizeof(*list));
    Sluice__Worker__V1__NamedTemplate *named =
        arena_calloc(in->arena, info->n_templates, sizeof(*named));
    if (!list || !named)
        return out_of_memory(err);
    for (uint32_t i = 0; i < info->n_templates; i++) {
        sluice__worker__v1__named_template__init(&named[i]);
        named[i].name = message_text(in->arena, info->templates[i].name);
        named[i].text = message_text(in->arena, info->templates[i].text);
        named[i].error = template_error(in, info->templates[i].text);
        list[i] = &named[i];
    }
    in->report->named_templates = list;
    in->report->n_named_templates = info->n_templates;
    return 0;
}

static int add_notes(struct inspection *in, struct error *err)
{
    const struct tokenizer_info *info = in->tok ? tokenizer_info(in->tok) : NULL;
    uint32_t n_notes = info ? info->n_notes : 0;
    struct default_sampling sampling;
    struct default_sampling_notes unused;
    default_sampling_read(in->ckpt, &sampling, &unused);
    if (!n_notes && !unused.n)
        return 0;
    in->report->notes = arena_calloc(in->arena, n_notes + unused.n, sizeof(*in->report->notes));
    if (!in->report->notes)
        return out_of_memory(err);
    for (uint32_t i = 0; i < n_notes; i++)
        in->report->notes[in->report->n_notes++] = message_text(in->arena, info->notes[i]);
    for (uint32_t i = 0; i < unused.n; i++)
        in->report->notes[in->report->n_notes++] = message_text(in->arena, unused.texts[i]);
    return 0;
}

/* A well-formed but unsupported model is reported as such; other errors end the inspection. */
static int note_unsupported(struct inspection *in, int rc, const struct error *err)
{
    if (rc != STATUS_UNIMPLEMENTED)
        return rc;
    if (!in->report->unsupported_reason[0])
        in->report->unsupported_reason = message_text(in->arena, err->message);
    return 0;
}

/* Plans a load. A plan that fails for another reason than the settings leaves the facts usable. */
static int add_plan(struct inspection *in, const struct engine_facts *facts, struct error *err)
{
    Sluice__V1__Inspection *made = in->report->inspection;
    int rc =
        tool_plan_make(in->settings, in->ckpt, in->tok, &facts->model, in->arena, &made->plan, err);
    if (!rc || rc == STATUS_INVALID_ARGUMENT)
        return rc;
    made->plan_error = message_error(in->arena, err);
    return made->plan_error ? 0 : out_of_memory(err);
}

/* The parts that register, doctor and people read. `facts` NULL: they are not known. */
static int add_parts(struct inspection *in, const struct engine_facts *facts, struct error *err)
{
    int rc = add_templates(in, err);
    struct facts_limits limits = {.chat = in->report->chat_template[0] &&
                                          !in->report->chat_template_error[0]};
    if (!rc)
        rc = facts_model_info(in->arena, in->ckpt, in->tok, facts ? &facts->model : NULL, &limits,
                              &in->report->info, err);
    if (!rc)
        rc = add_notes(in, err);
    if (!rc)
        rc = add_groups(in, err);
    if (!rc && in->settings->tensors)
        rc = add_tensors(in, err);
    if (!rc && in->settings->metadata)
        rc = add_metadata(in, err);
    return rc ? rc : add_files(in, err);
}

static int inspect(struct inspection *in, struct error *err)
{
    struct engine_facts facts;
    int rc = note_unsupported(in, tokenizer_open(in->ckpt, &in->tok, err), err);
    if (rc)
        return rc;
    if (in->tok) /* rows of the vocabulary without a token are not loaded */
        checkpoint_set_n_tokens(in->ckpt, tokenizer_info(in->tok)->vocab_size);
    rc = engine_facts_read(in->ckpt, &facts, err);
    bool known = rc == 0;
    rc = note_unsupported(in, rc, err);
    if (!rc)
        rc = add_parts(in, known ? &facts : NULL, err);
    if (!rc)
        rc = inspection_make(in->arena, in->tok, known ? &facts : NULL, in->report,
                             &in->report->inspection, err);
    if (!rc && in->settings->plan && known && in->tok)
        rc = add_plan(in, &facts, err);
    if (known)
        engine_facts_fini(&facts);
    return rc;
}

int tool_inspect(const struct settings *settings, struct arena *arena,
                 Sluice__Worker__V1__ToolReport *report, struct error *err)
{
    struct inspection in = {.settings = settings, .arena = arena};
    in.report = arena_alloc(arena, sizeof(*in.report));
    if (!in.report)
        return out_of_memory(err);
    sluice__worker__v1__inspect_report__init(in.report);
    int rc = checkpoint_open(settings->model, &in.ckpt, err);
    if (!rc)
        rc = facts_check_digest(in.ckpt, settings->digest, err);
    if (!rc)
        rc = inspect(&in, err);
    tokenizer_close(in.tok);
    checkpoint_close(in.ckpt);
    if (rc)
        return rc;
    report->result_case = SLUICE__WORKER__V1__TOOL_REPORT__RESULT_INSPECT;
    report->inspect = in.report;
    return 0;
}
