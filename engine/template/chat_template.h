/* chat_template.h: renders a conversation to prompt text with the model's own Jinja template. The
 * semantics are those that Hugging Face chat templates expect: trim_blocks and lstrip_blocks on,
 * raise_exception, strftime_now, tojson without HTML escapes, loop controls, generation tags.
 * Messages are prepared as transformers does: reasoning under several names, an open message. The
 * interpreter supports a subset of Jinja2 and assumes hostile input: no I/O, immutable values,
 * limits on steps, memory, output and depth. Unsupported constructs are refused with name and line.
 *
 * A compiled template is immutable: any number of threads may render it at once. Compile and render
 * on request threads, never on the engine's loop. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/template/value/limits.h"

struct chat_template;
struct error;
struct strbuf;

/* Compiles UTF-8 text (borrowed for the call). *out_template is owned. INVALID_ARGUMENT: bad
 * syntax. UNIMPLEMENTED: a construct outside the subset. RESOURCE_EXHAUSTED (reason
 * TEMPLATE_LIMIT): a limit. Each message names line and construct. */
int chat_template_compile(const char *text, size_t n_bytes, struct chat_template **out_template,
                          struct error *err);
void chat_template_destroy(struct chat_template *template);

/* Renders short conversations to learn how the template reads tool calls. A template may want
 * arguments as an object or as JSON text, and empty content as "" or none. Later renders convert
 * calls to that form, so a caller may give either form. Call before the template is shared. Without
 * a call, messages stay as they are given. */
void chat_template_probe(struct chat_template *template);

/* A chat message. Strings are NUL-terminated UTF-8, except content, which may contain NUL bytes. */
struct chat_message {
    const char *role;
    const char *content; /* NULL: none */
    size_t n_content_bytes;
    const char *name; /* NULL: the key is absent */
    /* NULL, or a JSON object whose members are added to the message (tool_calls, tool_call_id, ...;
     * "content" replaces the text) */
    const char *extra_json;
};

/* Checks that a text is JSON of the given kind, without duplicate keys in an object.
 * INVALID_ARGUMENT with the field's name if it is not; RESOURCE_EXHAUSTED (TEMPLATE_LIMIT). */
enum chat_template_json { CHAT_TEMPLATE_JSON_OBJECT, CHAT_TEMPLATE_JSON_ARRAY };
int chat_template_check_json(const char *field, const char *json, enum chat_template_json kind,
                             struct error *err);

/* All input of a render. A zeroed struct is an empty conversation. NULL texts are absent. */
struct chat_template_input {
    const struct chat_message *messages;
    size_t n_messages;
    const char *messages_json; /* used instead of `messages` if not NULL: a JSON array */
    const char *tools_json;    /* JSON array; NULL: tools is none */
    /* JSON object of further top-level variables; they override the others */
    const char *kwargs_json;
    const char *kwargs_name; /* name in error messages; NULL: "kwargs" */
    const char *bos_token, *eos_token, *unk_token, *pad_token;
    bool add_generation_prompt;
    /* Field of the last message whose text stays open: "content" or "reasoning_content". The output
     * ends behind that text. NULL: no message stays open. */
    const char *continue_field;
    /* time for strftime_now, in UTC; fixed, so that a repeated render gives the same text */
    int64_t now_unix_s;
    struct chat_template_limits limits;
};

/* Appends the rendered text to `out`, which is untouched on failure. INVALID_ARGUMENT with the
 * line: a fault of the template or its data. Reason TEMPLATE_REFUSED, with the template's message,
 * if the template called raise_exception. INVALID_ARGUMENT with the field's name: bad JSON or UTF-8
 * in the input. INVALID_ARGUMENT (field "continue_final_message"): the text to continue is absent
 * or not rendered. RESOURCE_EXHAUSTED (TEMPLATE_LIMIT): a limit. */
int chat_template_render(const struct chat_template *template,
                         const struct chat_template_input *input, struct strbuf *out,
                         struct error *err);
