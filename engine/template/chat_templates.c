#include "engine/template/chat_templates.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "engine/template/chat_template.h"

struct entry {
    char name[CHAT_TEMPLATES_NAME_BYTES];
    struct chat_template *template; /* NULL: does not compile */
    struct error error;
};

struct chat_templates {
    struct entry entries[CHAT_TEMPLATES_MAX];
    size_t n;
};

int chat_templates_create(struct chat_templates **out_set, struct error *err)
{
    struct chat_templates *set = calloc(1, sizeof(*set));
    if (!set)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "chat templates: out of memory");
    *out_set = set;
    return STATUS_OK;
}

void chat_templates_destroy(struct chat_templates *set)
{
    if (!set)
        return;
    for (size_t i = 0; i < set->n; i++)
        chat_template_destroy(set->entries[i].template);
    free(set);
}

static struct entry *find_entry(const struct chat_templates *set, const char *name)
{
    for (size_t i = 0; set && i < set->n; i++)
        if (strcmp(set->entries[i].name, name) == 0)
            return (struct entry *)(uintptr_t)&set->entries[i];
    return NULL;
}

/* Returns the entry of the name, which may be new. NULL: err is set. */
static struct entry *make_entry(struct chat_templates *set, const char *name, struct error *err)
{
    struct entry *entry = find_entry(set, name);
    size_t n_bytes = strlen(name);
    if (entry)
        return entry;
    if (!n_bytes || n_bytes >= CHAT_TEMPLATES_NAME_BYTES) {
        error_set(err, STATUS_INVALID_ARGUMENT, "chat template \"%.80s\": a name has 1 to %d bytes",
                  name, CHAT_TEMPLATES_NAME_BYTES - 1);
        return NULL;
    }
    if (set->n == CHAT_TEMPLATES_MAX) {
        error_set(err, STATUS_INVALID_ARGUMENT, "chat template \"%s\": more than %d templates",
                  name, CHAT_TEMPLATES_MAX);
        return NULL;
    }
    entry = &set->entries[set->n++];
    memcpy(entry->name, name, n_bytes + 1);
    return entry;
}

int chat_templates_add(struct chat_templates *set, const char *name, const char *text,
                       struct error *err)
{
    struct chat_template *template = NULL;
    struct error why = {0};
    int rc = chat_template_compile(text, strlen(text), &template, &why);
    /* lack of memory says nothing about the template */
    if (rc == STATUS_RESOURCE_EXHAUSTED && !why.reason) {
        *err = why;
        return rc;
    }
    struct entry *entry = make_entry(set, name, err);
    if (!entry) {
        chat_template_destroy(template);
        return err->status;
    }
    if (rc && strcmp(name, CHAT_TEMPLATES_DEFAULT) == 0)
        error_prefix(&why, "the model's chat template");
    else if (rc)
        error_prefix(&why, "the model's chat template \"%s\"", name);
    if (template)
        chat_template_probe(template);
    chat_template_destroy(entry->template);
    entry->template = template;
    entry->error = why;
    return STATUS_OK;
}

int chat_templates_add_compiled(struct chat_templates *set, const char *name,
                                struct chat_template *template, struct error *err)
{
    struct entry *entry = make_entry(set, name, err);
    if (!entry)
        return err->status;
    chat_template_probe(template);
    chat_template_destroy(entry->template);
    entry->template = template;
    entry->error = (struct error){0};
    return STATUS_OK;
}

static int unknown_name(const struct chat_templates *set, const char *name, struct error *err)
{
    struct strbuf names = {0};
    for (size_t i = 0; set && i < set->n; i++)
        strbuf_printf(&names, "%s%s", i ? ", " : "", set->entries[i].name);
    int rc =
        names.n_bytes
            ? error_field(err, "template", "the model has no template \"%.80s\"; it has: %s", name,
                          strbuf_str(&names))
            : error_field(err, "template", "the model has no template \"%.80s\", nor any", name);
    strbuf_fini(&names);
    return rc;
}

int chat_templates_find(const struct chat_templates *set, const char *name, bool has_tools,
                        const struct chat_template **out_template, struct error *err)
{
    const struct entry *entry = NULL;
    if (name && name[0]) {
        entry = find_entry(set, name);
        if (!entry)
            return unknown_name(set, name, err);
    }
    if (!entry && has_tools)
        entry = find_entry(set, "tool_use");
    if (!entry)
        entry = find_entry(set, CHAT_TEMPLATES_DEFAULT);
    if (!entry) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "the model has no chat template%s; give text or token_ids, or "
                  "template_override",
                  set && set->n ? " named \"default\"" : "");
        return error_reason(err, REASON_NO_CHAT_TEMPLATE);
    }
    if (!entry->template) {
        *err = entry->error;
        return err->status;
    }
    *out_template = entry->template;
    return STATUS_OK;
}

bool chat_templates_can_chat(const struct chat_templates *set)
{
    const struct entry *entry = find_entry(set, CHAT_TEMPLATES_DEFAULT);
    return entry && entry->template;
}

const char *chat_templates_name(const struct chat_templates *set, size_t i)
{
    return set && i < set->n ? set->entries[i].name : NULL;
}

const struct error *chat_templates_error(const struct chat_templates *set, size_t i)
{
    return &set->entries[i].error;
}
