#include "server/gateway/openai/openai_error.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/base/error_names.h"
#include "server/gateway/http/http_error.h"

static const struct error_name names_of_chat[] = {{"output.top_n", "top_logprobs"},
                                                  {"token_ids.ids", "messages"},
                                                  {"prompt.token_ids", "messages"},
                                                  {"prompt", "messages"},
                                                  {"text", "messages"},
                                                  {NULL, NULL}};

static const struct error_name names_of_text[] = {{"output.top_n", "logprobs"},
                                                  {"token_ids.ids", "prompt"},
                                                  {"prompt.token_ids", "prompt"},
                                                  {"text", "prompt"},
                                                  {NULL, NULL}};

/* The names in both APIs; the tables above come first. */
static const struct error_name names[] = {
    {"output.return_full_text", "echo"},
    {"output.truncate", "truncate_prompt_tokens"},
    {"stopping.include_stop", "include_stop_str_in_output"},
    {"chat.template_variables_json", "chat_template_kwargs"},
    {"chat.template_override", "chat_template"},
    {"chat.tools_json", "tools"},
    {"chat.continue_field", "continue_final_message"},
    {"version", "model"},
    {"sampling.", ""},
    {"stopping.", ""},
    {"output.", ""},
    {"chat.", ""},
    {NULL, NULL},
};

void openai_error_name_field(struct error *err, bool is_chat)
{
    static const char json[] = "_json", calls[] = ".tool_calls_json";
    char name[ERROR_FIELD_BYTES];
    if (!error_names_apply(err, is_chat ? names_of_chat : names_of_text))
        error_names_apply(err, names);
    const char *found = strstr(err->field, calls);
    if (!found)
        return;
    const char *end = found + strlen(calls);
    snprintf(name, sizeof(name), "%.*s%s", (int)(end - strlen(json) - err->field), err->field, end);
    error_names_set(err, name);
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
