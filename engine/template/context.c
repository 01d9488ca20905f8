/* Builds the variables of a render from the caller's messages, tools and variables. */
#include "engine/template/context.h"

#include <string.h>

#include "base/utf8.h"
#include "engine/template/chat_template.h"
#include "engine/template/continuation.h"
#include "engine/template/conversation.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/json_text.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

static struct value checked_text(struct interp *in, const char *field, const char *data,
                                 size_t n_bytes)
{
    size_t offset;
    if (in->failed)
        return value_none();
    if (!utf8_valid(data, n_bytes, &offset)) {
        in->failed = true;
        error_field(in->err, field, "byte %zu is not UTF-8", offset);
        return value_none();
    }
    return text_new(in, data, n_bytes);
}

static void set_text(struct interp *in, struct dict *dict, const char *key, const char *text)
{
    if (text)
        dict_set_str(in, dict, key, checked_text(in, key, text, strlen(text)));
}

static void wrong_type(struct interp *in, const char *field, const char *wanted, struct value v)
{
    if (in->failed)
        return;
    in->failed = true;
    error_field(in->err, field, "must be a JSON %s, not '%s'", wanted, value_type_name(v));
}

/* Adds the members of a JSON object to dict. */
static void merge_json(struct interp *in, struct dict *dict, const char *field, const char *json)
{
    struct value v = json_text_value(in, field, json, strlen(json), false);
    if (v.type != VALUE_DICT) {
        wrong_type(in, field, "object", v);
        return;
    }
    for (size_t i = 0; i < v.u.dict->n && interp_ok(in); i++)
        dict_set(in, dict, v.u.dict->entries[i].key, v.u.dict->entries[i].value);
}

static struct value message_value(struct interp *in, const struct chat_message *message)
{
    struct dict *dict = dict_new(in);
    set_text(in, dict, "role", message->role);
    if (message->content)
        dict_set_str(
            in, dict, "content",
            checked_text(in, "messages.content", message->content, message->n_content_bytes));
    set_text(in, dict, "name", message->name);
    if (message->extra_json && interp_ok(in))
        merge_json(in, dict, "messages.extra_json", message->extra_json);
    return in->failed ? value_none() : value_dict(dict);
}

static struct value json_list(struct interp *in, const char *field, const char *json)
{
    struct value v = json_text_value(in, field, json, strlen(json), false);
    if (v.type != VALUE_LIST && v.type != VALUE_NONE)
        wrong_type(in, field, "array", v);
    return v;
}

static struct value messages_value(struct interp *in, const struct chat_template_input *input)
{
    if (input->messages_json)
        return json_list(in, "messages", input->messages_json);
    struct list *list = list_new(in, input->n_messages);
    for (size_t i = 0; i < input->n_messages && interp_ok(in); i++)
        list_add(in, list, message_value(in, &input->messages[i]));
    return in->failed ? value_none() : value_list(VALUE_LIST, list);
}

bool context_build(struct interp *in, const struct chat_template_input *input,
                   const struct conversation_form *form, struct continuation *out_continuation)
{
    struct dict *dict = dict_new(in);
    struct value messages = conversation_prepare(in, messages_value(in, input), form);
    if (input->continue_field && interp_ok(in))
        continuation_begin(in, &messages, input->continue_field, out_continuation);
    if (interp_ok(in))
        dict_set_str(in, dict, "messages", messages);
    dict_set_str(in, dict, "tools",
                 input->tools_json ? json_list(in, "tools", input->tools_json) : value_none());
    if (interp_ok(in))
        dict_set_str(in, dict, "documents", value_none());
    dict_set_str(in, dict, "add_generation_prompt", value_bool(input->add_generation_prompt));
    set_text(in, dict, "bos_token", input->bos_token);
    set_text(in, dict, "eos_token", input->eos_token);
    set_text(in, dict, "unk_token", input->unk_token);
    set_text(in, dict, "pad_token", input->pad_token);
    if (input->kwargs_json && interp_ok(in))
        merge_json(in, dict, input->kwargs_name ? input->kwargs_name : "kwargs",
                   input->kwargs_json);
    in->context = dict;
    in->now_unix_s = input->now_unix_s;
    return interp_ok(in);
}
