#include "server/gateway/openai/openai_chat.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/strbuf.h"
#include "server/gateway/http/http_body.h"
#include "server/gateway/openai/openai_field.h"

enum { NAME_BYTES = 96 };

/* --- content --- */

/* True for the type of a part with a text. The text is in the key "text" or
 * "refusal". */
static bool is_text_type(const char *type)
{
    static const char *const types[] = {"text", "input_text", "output_text", "refusal"};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

/* Skips a key that no part of text has. */
static int ignore_key(struct http_body *body, const char *key, struct openai_ignored *ignored)
{
    char every[NAME_BYTES];
    snprintf(every, sizeof(every), "messages[].content[].%.60s", key);
    return openai_field_ignore(body, ignored, every);
}

static int read_part(struct http_body *body, const char *name, struct strbuf *joined,
                     struct openai_ignored *ignored)
{
    const char *key;
    bool is_null;
    char *type = NULL, *text = NULL;
    int rc = http_body_enter_object(body, name);
    while (!rc && (rc = http_body_key(body, &key)) == 0 && key) {
        rc = http_body_null(body, &is_null);
        if (rc || is_null) /* as if it were absent */
            continue;
        if (strcmp(key, "type") == 0)
            rc = http_body_text(body, name, &type);
        else if (strcmp(key, "text") == 0 || strcmp(key, "refusal") == 0)
            rc = http_body_text(body, name, &text);
        else
            rc = ignore_key(body, key, ignored);
    }
    if (rc)
        return rc;
    if (!type || !is_text_type(type))
        return error_field(body->err, name,
                           "is a part of type \"%.40s\"; only parts of type \"text\" are built",
                           type ? type : "");
    if (!text)
        return http_body_bad(body, name, "has no text");
    strbuf_add_str(joined, text);
    return 0;
}

static int read_parts(struct http_body *body, const char *name, char **out,
                      struct openai_ignored *ignored)
{
    struct strbuf joined;
    bool more = true;
    char part[NAME_BYTES];
    strbuf_init(&joined, 0);
    int rc = http_body_enter_list(body, name, "must be a string or a list of parts");
    for (size_t i = 0; !rc && (rc = http_body_more(body, &more)) == 0 && more; i++) {
        snprintf(part, sizeof(part), "%.70s[%zu]", name, i);
        rc = read_part(body, part, &joined, ignored);
    }
    if (!rc) {
        char *text = strbuf_failed(&joined)
                         ? NULL
                         : arena_strndup(body->arena, strbuf_str(&joined), joined.n_bytes);
        if (text)
            *out = text;
        else
            rc = http_body_no_memory(body);
    }
    strbuf_fini(&joined);
    return rc;
}

/* A string, or a list of parts. */
static int read_content(struct http_body *body, const char *name, char **out,
                        struct openai_ignored *ignored)
{
    enum json_value kind;
    int rc = http_body_kind(body, &kind);
    if (rc)
        return rc;
    return kind == JSON_VALUE_STRING ? http_body_text(body, name, out)
                                     : read_parts(body, name, out, ignored);
}

/* --- messages --- */

static int read_tool_calls(struct http_body *body, const char *name, char **out)
{
    enum json_value kind;
    int rc = http_body_kind(body, &kind);
    if (rc)
        return rc;
    if (kind != JSON_VALUE_ARRAY)
        return http_body_bad(body, name, "must be a list of calls");
    return http_body_raw(body, out);
}

/* Refuses a second value that differs from the first. */
static int check_once(struct http_body *body, const char *name, const char *before,
                      const char *after)
{
    if (before[0] && strcmp(before, after) != 0)
        return http_body_bad(body, name, "is given twice, with two values");
    return 0;
}

static int read_text_once(struct http_body *body, const char *name, char **out)
{
    const char *before = *out;
    int rc = http_body_text(body, name, out);
    return rc ? rc : check_once(body, name, before, *out);
}

static int read_member(struct http_body *body, const char *name, const char *key,
                       Sluice__V1__ChatMessage *message, struct openai_ignored *ignored)
{
    bool is_null;
    char every[NAME_BYTES];
    int rc = http_body_null(body, &is_null);
    if (rc || is_null) /* as if it were absent */
        return rc;
    if (strcmp(key, "role") == 0)
        return read_text_once(body, name, &message->role);
    if (strcmp(key, "content") == 0) {
        const char *before = message->content;
        rc = read_content(body, name, &message->content, ignored);
        return rc ? rc : check_once(body, name, before, message->content);
    }
    if (strcmp(key, "name") == 0)
        return read_text_once(body, name, &message->name);
    if (strcmp(key, "tool_call_id") == 0)
        return read_text_once(body, name, &message->tool_call_id);
    if (strcmp(key, "reasoning_content") == 0 || strcmp(key, "reasoning") == 0)
        return read_text_once(body, name, &message->reasoning_content);
    if (strcmp(key, "tool_calls") == 0)
        return read_tool_calls(body, name, &message->tool_calls_json);
    snprintf(every, sizeof(every), "messages[].%.60s", key);
    return openai_field_ignore(body, ignored, every);
}

static int read_message(struct http_body *body, size_t i, Sluice__V1__ChatMessage *message,
                        struct openai_ignored *ignored)
{
    static char system[] = "system";
    char name[NAME_BYTES];
    const char *key;
    snprintf(name, sizeof(name), "messages[%zu]", i);
    int rc = http_body_enter_object(body, name);
    while (!rc && (rc = http_body_key(body, &key)) == 0 && key) {
        snprintf(name, sizeof(name), "messages[%zu].%.60s", i, key);
        rc = read_member(body, name, key, message, ignored);
    }
    if (rc)
        return rc;
    snprintf(name, sizeof(name), "messages[%zu].role", i);
    if (!message->role[0])
        return http_body_bad(body, name, "is missing or empty");
    if (strcmp(message->role, "developer") == 0)
        message->role = system;
    return 0;
}

int openai_chat_messages(struct http_body *body, Sluice__V1__Chat *chat,
                         struct openai_ignored *ignored)
{
    bool more = true;
    int rc = http_body_enter_list(body, "messages", "must be a list of messages");
    chat->n_messages = 0;
    while (!rc && (rc = http_body_more(body, &more)) == 0 && more) {
        Sluice__V1__ChatMessage *message = arena_alloc(body->arena, sizeof(*message));
        void *list = http_body_grow(body, chat->messages, chat->n_messages, sizeof(message));
        if (!message || !list)
            return http_body_no_memory(body);
        sluice__v1__chat_message__init(message);
        chat->messages = list;
        chat->messages[chat->n_messages] = message;
        rc = read_message(body, chat->n_messages++, message, ignored);
    }
    return rc;
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

int openai_chat_tools(struct http_body *body, Sluice__V1__Chat *chat)
{
    bool more = true;
    int rc = http_body_enter_list(body, "tools", "must be a list of tools");
    chat->n_tools_json = 0;
    while (!rc && (rc = http_body_more(body, &more)) == 0 && more) {
        char name[NAME_BYTES];
        void *list = http_body_grow(body, chat->tools_json, chat->n_tools_json, sizeof(char *));
        if (!list)
            return http_body_no_memory(body);
        chat->tools_json = list;
        snprintf(name, sizeof(name), "tools[%zu]", chat->n_tools_json);
        rc = http_body_object(body, name, &chat->tools_json[chat->n_tools_json]);
        chat->n_tools_json += !rc;
    }
    return rc;
}

int openai_chat_tool_choice(struct http_body *body)
{
    static const char rule[] = "only \"auto\" and \"none\" are built";
    enum json_value kind;
    char *choice = NULL;
    int rc = http_body_kind(body, &kind);
    if (rc)
        return rc;
    if (kind != JSON_VALUE_STRING)
        return openai_field_not_built(body, "tool_choice", rule);
    rc = http_body_text(body, "tool_choice", &choice);
    if (!rc && strcmp(choice, "auto") != 0 && strcmp(choice, "none") != 0)
        rc = openai_field_not_built(body, "tool_choice", rule);
    return rc;
}

int openai_chat_response_format(struct http_body *body)
{
    const char *key;
    char *type = NULL;
    int rc = http_body_enter_object(body, "response_format");
    while (!rc && (rc = http_body_key(body, &key)) == 0 && key)
        rc = strcmp(key, "type") == 0 ? http_body_text(body, "response_format.type", &type)
                                      : http_body_skip(body);
    if (rc)
        return rc;
    if (!type)
        return http_body_bad(body, "response_format.type", "is missing");
    if (strcmp(type, "text") != 0)
        return openai_field_not_built(body, "response_format", "only the type \"text\" is built");
    return 0;
}
