/* chat_template.h: turns a conversation into prompt text by a model's own Jinja template, with the
 * semantics that Hugging Face chat templates are written for (trim_blocks and lstrip_blocks on,
 * raise_exception, strftime_now, tojson without HTML escapes, loop controls, generation tags).
 * The interpreter is a subset of Jinja2 written for hostile input: no I/O, immutable values, and
 * limits on steps, memory, output and depth. What it cannot do is refused by name and line.
 *
 * A compiled template is immutable: any number of threads may render it at once. Compile and render
 * run on request threads, never on the engine's loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/template/value/limits.h"

struct chat_template;
struct error;
struct strbuf;

/* Compiles UTF-8 text (borrowed for the call). *out_template is owned. Errors: INVALID_ARGUMENT for
 * bad syntax, UNIMPLEMENTED for a construct outside the subset, RESOURCE_EXHAUSTED for a limit,
 * reason TEMPLATE_LIMIT; each message names the line and the construct. */
int chat_template_compile(const char *text, size_t n_bytes, struct chat_template **out_template,
                          struct error *err);
void chat_template_destroy(struct chat_template *template);

/* One message. Strings are NUL-terminated UTF-8 except content, which may hold NUL bytes. */
struct chat_message {
    const char *role;
    const char *content; /* NULL: none */
    size_t n_content_bytes;
    const char *name;       /* NULL: the key is absent */
    const char *extra_json; /* NULL, or a JSON object whose members are added to the message
                               (tool_calls, tool_call_id, ...; "content" replaces the text) */
};

/* Whether a text is JSON as a render takes it, of one kind, without the same key twice in an
 * object. INVALID_ARGUMENT with the field's name where it is not; RESOURCE_EXHAUSTED
 * (TEMPLATE_LIMIT). */
enum chat_template_json { CHAT_TEMPLATE_JSON_OBJECT, CHAT_TEMPLATE_JSON_ARRAY };
int chat_template_check_json(const char *field, const char *json, enum chat_template_json kind,
                             struct error *err);

/* Everything a render sees. A zeroed struct is an empty conversation. NULL texts are absent. */
struct chat_template_input {
    const struct chat_message *messages;
    size_t n_messages;
    const char *messages_json; /* instead of `messages`: a JSON array, taken as it is */
    const char *tools_json;    /* JSON array; NULL: tools is none */
    const char *kwargs_json; /* JSON object: further top-level variables; they win over the rest */
    const char *kwargs_name; /* what errors call it; NULL: "kwargs" */
    const char *bos_token, *eos_token, *unk_token, *pad_token;
    bool add_generation_prompt;
    int64_t now_unix_s; /* what strftime_now shows, in UTC: a re-run renders the same text */
    struct chat_template_limits limits;
};

/* Appends the rendered text to `out`, which is untouched on failure. Errors: INVALID_ARGUMENT with
 * the line for what the template or its data did wrong (reason TEMPLATE_REFUSED, with the
 * template's own words, where it called raise_exception), INVALID_ARGUMENT with the field's name
 * for bad JSON or UTF-8 in the input, RESOURCE_EXHAUSTED (TEMPLATE_LIMIT) for a limit. */
int chat_template_render(const struct chat_template *template,
                         const struct chat_template_input *input, struct strbuf *out,
                         struct error *err);
