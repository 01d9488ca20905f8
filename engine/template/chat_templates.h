/* chat_templates.h: the chat templates of a model by name, as transformers chooses among them. A
 * set without templates is a model that cannot chat. A single thread fills the set. Afterwards any
 * number of threads may find and render. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct chat_template;
struct chat_templates;
struct error;

enum {
    CHAT_TEMPLATES_MAX = 16,
    CHAT_TEMPLATES_NAME_BYTES = 96, /* longest name, with its end */
};
#define CHAT_TEMPLATES_DEFAULT "default"

/* *out_set is owned and empty. RESOURCE_EXHAUSTED: no memory. */
int chat_templates_create(struct chat_templates **out_set, struct error *err);
void chat_templates_destroy(struct chat_templates *set);

/* Compiles a template (text and name borrowed for the call) and probes the form of its tool calls.
 * A name that is in the set is replaced. A template that does not compile stays in the set with its
 * error, which chat_templates_find() returns: other templates can still be used.
 * INVALID_ARGUMENT: a name that is empty or too long, or too many templates. RESOURCE_EXHAUSTED:
 * no memory. */
int chat_templates_add(struct chat_templates *set, const char *name, const char *text,
                       struct error *err);
/* Does the same with a compiled template, which the set takes on success. */
int chat_templates_add_compiled(struct chat_templates *set, const char *name,
                                struct chat_template *template, struct error *err);

/* Finds the template of a conversation. `name` empty: "tool_use" if the conversation has tools and
 * the set has that template, else "default". *out_template is borrowed from the set.
 * FAILED_PRECONDITION (reason NO_CHAT_TEMPLATE): the set has no default. INVALID_ARGUMENT (field
 * "template"): no such name; the message lists the names. Otherwise the error of its compilation.
 */
int chat_templates_find(const struct chat_templates *set, const char *name, bool has_tools,
                        const struct chat_template **out_template, struct error *err);

/* True if a conversation without tools can be rendered: the default compiles. */
bool chat_templates_can_chat(const struct chat_templates *set);
/* Name number i in the order of addition; NULL after the last. */
const char *chat_templates_name(const struct chat_templates *set, size_t i);
/* Why template number i cannot be rendered; status 0 if it can. */
const struct error *chat_templates_error(const struct chat_templates *set, size_t i);
