#include "server/gateway/openai/openai_chat.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "server/gateway/http/http_fields.h"

/* --- content --- */

/* A part of a message's content. */
struct part {
    char *type, *text;
};

#define PART(member) HTTP_FIELD(struct part, member)

static const struct http_field part_fields[] = {
    {"type", PART(type)},
    {"text", PART(text)},
    {"refusal", PART(text)}, /* in place of "text" in a part of type "refusal" */
};

static const struct http_table part_table = {HTTP_TABLE(part_fields)};

/* True for the type of a part with a text. */
static bool is_text_type(const char *type)
{
    static const char *const types[] = {"text", "input_text", "output_text", "refusal"};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

/* Appends the text of a part to the text at the field's place. */
static int read_part(struct http_fields *r, const struct http_field *field)
{
    struct strbuf *joined = r->out;
    struct part part = {NULL, NULL};
    (void)field;
    int rc = http_fields_read(r, &part_table, &part);
    if (rc)
        return rc;
    if (!part.type || !is_text_type(part.type))
        return error_field(r->body.err, r->label,
                           "is a part of type \"%.40s\"; only parts of type \"text\" are built",
                           part.type ? part.type : "");
    if (!part.text)
        return http_fields_bad(r, "has no text");
    strbuf_add_str(joined, part.text);
    return 0;
}

/* A string, or a list of parts. */
static int read_content(struct http_fields *r, const struct http_field *field)
{
    char **out = http_fields_place(r, field->at);
    enum json_value kind;
    struct strbuf joined;
    void *message = r->out;
    int rc = http_body_kind(&r->body, &kind);
    if (rc || kind == JSON_VALUE_STRING)
        return rc ? rc : http_fields_text(r, field);
    strbuf_init(&joined, 0);
    r->out = &joined;
    rc = http_fields_list(r, field, "must be a string or a list of parts", read_part);
    r->out = message;
    if (!rc && !strbuf_failed(&joined))
        *out = arena_strndup(r->body.arena, strbuf_str(&joined), joined.n_bytes);
    if (!rc && (strbuf_failed(&joined) || !*out))
        rc = http_body_no_memory(&r->body);
    strbuf_fini(&joined);
    return rc;
}

/* --- messages --- */

static int read_tool_calls(struct http_fields *r, const struct http_field *field)
{
    enum json_value kind;
    int rc = http_body_kind(&r->body, &kind);
    if (rc)
        return rc;
    if (kind != JSON_VALUE_ARRAY)
        return http_fields_bad(r, "must be a list of calls");
    return http_body_raw(&r->body, http_fields_place(r, field->at));
}

#define MESSAGE(member) HTTP_FIELD(Sluice__V1__ChatMessage, member)

static const struct http_field message_fields[] = {
    {"role", MESSAGE(role)},
    {"content", read_content, .at = offsetof(Sluice__V1__ChatMessage, content)},
    {"name", MESSAGE(name)},
    {"tool_call_id", MESSAGE(tool_call_id)},
    {"reasoning_content", MESSAGE(reasoning_content)},
    {"reasoning", MESSAGE(reasoning_content)},
    {"tool_calls", read_tool_calls, .at = offsetof(Sluice__V1__ChatMessage, tool_calls_json)},
};

static const struct http_table message_table = {HTTP_TABLE(message_fields)};

static int read_message(struct http_fields *r, const struct http_field *field)
{
    static char system[] = "system";
    char name[ERROR_FIELD_BYTES];
    Sluice__V1__Chat *chat = http_fields_place(r, field->at);
    Sluice__V1__ChatMessage *message = arena_alloc(r->body.arena, sizeof(*message));
    void *list = http_body_grow(&r->body, chat->messages, chat->n_messages, sizeof(message));
    if (!message || !list)
        return http_body_no_memory(&r->body);
    sluice__v1__chat_message__init(message);
    chat->messages = list;
    chat->messages[chat->n_messages++] = message;
    int rc = http_fields_read(r, &message_table, message);
    if (rc)
        return rc;
    if (!message->role[0]) {
        snprintf(name, sizeof(name), "%.60s.role", r->label);
        return http_body_bad(&r->body, name, "is missing or empty");
    }
    if (strcmp(message->role, "developer") == 0)
        message->role = system;
    return 0;
}

int openai_chat_messages(struct http_fields *r, const struct http_field *field)
{
    return http_fields_list(r, field, "must be a list of messages", read_message);
}

static bool is_system(const Sluice__V1__ChatMessage *message)
{
    return strcmp(message->role, "system") == 0;
}

bool openai_chat_may_merge(const Sluice__V1__Chat *chat)
{
    for (size_t i = 1; i < chat->n_messages; i++)
        if (is_system(chat->messages[i]))
            return true;
    return false;
}

bool openai_chat_merge(Sluice__V1__Chat *chat, struct arena *arena)
{
    Sluice__V1__ChatMessage *first = arena_alloc(arena, sizeof(*first));
    Sluice__V1__ChatMessage **list =
        arena_calloc(arena, chat->n_messages + 1, sizeof(Sluice__V1__ChatMessage *));
    struct strbuf joined;
    size_t n = 1;
    if (!first || !list)
        return false;
    strbuf_init(&joined, 0);
    *first = (Sluice__V1__ChatMessage)SLUICE__V1__CHAT_MESSAGE__INIT;
    list[0] = first;
    for (size_t i = 0; i < chat->n_messages; i++) {
        Sluice__V1__ChatMessage *message = chat->messages[i];
        if (!is_system(message)) {
            list[n++] = message;
            continue;
        }
        first->role = message->role;
        strbuf_add_str(&joined, joined.n_bytes ? "\n\n" : "");
        strbuf_add_str(&joined, message->content);
    }
    char *text =
        strbuf_failed(&joined) ? NULL : arena_strndup(arena, strbuf_str(&joined), joined.n_bytes);
    strbuf_fini(&joined);
    if (!text)
        return false;
    first->content = text;
    chat->messages = list;
    chat->n_messages = n;
    return true;
}

/* --- tools and forms --- */

static int read_tool(struct http_fields *r, const struct http_field *field)
{
    Sluice__V1__Chat *chat = http_fields_place(r, field->at);
    void *list = http_body_grow(&r->body, chat->tools_json, chat->n_tools_json, sizeof(char *));
    if (!list)
        return http_body_no_memory(&r->body);
    chat->tools_json = list;
    int rc = http_body_object(&r->body, r->label, &chat->tools_json[chat->n_tools_json]);
    chat->n_tools_json += !rc;
    return rc;
}

int openai_chat_tools(struct http_fields *r, const struct http_field *field)
{
    return http_fields_list(r, field, "must be a list of tools", read_tool);
}

int openai_chat_tool_choice(struct http_fields *r, const struct http_field *field)
{
    static const char rule[] = "only \"auto\" and \"none\" are built";
    enum json_value kind;
    char *choice = NULL;
    int rc = http_body_kind(&r->body, &kind);
    (void)field;
    if (rc)
        return rc;
    if (kind != JSON_VALUE_STRING)
        return http_fields_not_built(r, rule);
    rc = http_body_text(&r->body, r->label, &choice);
    if (!rc && strcmp(choice, "auto") != 0 && strcmp(choice, "none") != 0)
        rc = http_fields_not_built(r, rule);
    return rc;
}

struct format {
    char *type;
};

/* The other keys belong to types that are not built. */
static const struct http_field format_fields[] = {{"type", HTTP_FIELD(struct format, type)}};

static const struct http_table format_table = {HTTP_TABLE(format_fields),
                                               .other = http_fields_skip};

int openai_chat_response_format(struct http_fields *r, const struct http_field *field)
{
    struct format format = {NULL};
    int rc = http_fields_read(r, &format_table, &format);
    (void)field;
    if (rc)
        return rc;
    if (!format.type)
        return error_field(r->body.err, "response_format.type", "is missing");
    if (strcmp(format.type, "text") != 0)
        return http_fields_not_built(r, "only the type \"text\" is built");
    return 0;
}
