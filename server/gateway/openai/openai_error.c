#include "server/gateway/openai/openai_error.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/http/http_error.h"

/* A row renames a field that begins with `from`. NULL: the name is the same in both APIs. */
struct rename {
    const char *from, *chat, *text;
};

static const struct rename renames[] = {
    {"output.top_n", "top_logprobs", "logprobs"},
    {"output.return_full_text", "echo", NULL},
    {"output.truncate", "truncate_prompt_tokens", NULL},
    {"stopping.include_stop", "include_stop_str_in_output", NULL},
    {"chat.template_variables_json", "chat_template_kwargs", NULL},
    {"chat.template_override", "chat_template", NULL},
    {"chat.tools_json", "tools", NULL},
    {"chat.continue_field", "continue_final_message", NULL},
    {"token_ids.ids", "messages", "prompt"},
    {"prompt.token_ids", "messages", "prompt"},
    {"prompt", "messages", "prompt"},
    {"text", "messages", "prompt"},
    {"version", "model", NULL},
    {"sampling.", "", NULL},
    {"stopping.", "", NULL},
    {"output.", "", NULL},
    {"chat.", "", NULL},
};

/* True if `field` is `from` or a part of `from`, such as an element. A `from` that ends with a
 * point matches every field below. */
static bool begins(const char *field, const char *from)
{
    size_t n = strlen(from);
    return strncmp(field, from, n) == 0 &&
           (from[n - 1] == '.' || field[n] == '\0' || field[n] == '[' || field[n] == '.');
}

/* Writes the name that OpenAI's API has for a field of GenerateRequest. */
static void write_name(const char *field, bool is_chat, char *out, size_t n_out)
{
    snprintf(out, n_out, "%s", field);
    for (size_t i = 0; i < sizeof(renames) / sizeof(renames[0]); i++) {
        const struct rename *row = &renames[i];
        if (!begins(field, row->from))
            continue;
        snprintf(out, n_out, "%s%s", is_chat || !row->text ? row->chat : row->text,
                 field + strlen(row->from));
        break;
    }
    char *calls = strstr(out, ".tool_calls_json");
    if (calls)
        memmove(calls + strlen(".tool_calls"), calls + strlen(".tool_calls_json"),
                strlen(calls + strlen(".tool_calls_json")) + 1);
}

void openai_error_rename(struct error *err, const char *name)
{
    char text[ERROR_MESSAGE_BYTES];
    size_t n = strlen(err->field);
    if (strncmp(err->message, err->field, n) == 0) {
        snprintf(text, sizeof(text), "%s%.400s", name, err->message + n);
        snprintf(err->message, sizeof(err->message), "%s", text);
    }
    snprintf(err->field, sizeof(err->field), "%s", name);
}

void openai_error_name_field(struct error *err, bool is_chat)
{
    char name[ERROR_FIELD_BYTES];
    if (!err->field[0])
        return;
    write_name(err->field, is_chat, name, sizeof(name));
    openai_error_rename(err, name);
}

/* OpenAI's code for a reason; NULL: the reason's own name. */
static const char *code_of(enum reason reason)
{
    switch (reason) {
    case REASON_CONTEXT_TOO_LONG:
    case REASON_INPUT_TOO_LONG:
    case REASON_TOTAL_TOO_LONG:
        return "context_length_exceeded";
    case REASON_MODEL_NOT_FOUND:
    case REASON_VERSION_NOT_FOUND:
        return "model_not_found";
    default:
        return NULL;
    }
}

void openai_error_reply(const struct error *err, bool is_chat, char *out_headers,
                        struct http_reply *reply)
{
    struct error named = *err;
    bool of_model = err->reason == REASON_MODEL_NOT_FOUND ||
                    err->reason == REASON_VERSION_NOT_FOUND ||
                    err->reason == REASON_MODEL_NOT_LOADED || err->reason == REASON_MODEL_PARKED;
    openai_error_name_field(&named, is_chat);
    if (of_model)
        snprintf(named.field, sizeof(named.field), "model");
    http_error_reply_as(&named, code_of(err->reason), out_headers, reply);
}
