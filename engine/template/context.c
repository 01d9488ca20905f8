/* What a render sees: the caller's messages, tools and variables as values. */
#include "engine/template/context.h"

#include <string.h>

#include <jansson.h>

#include "base/utf8.h"
#include "engine/template/chat_template.h"

static struct value from_json(struct interp *in, const char *field, const json_t *json,
                              unsigned depth);

static struct value from_json_object(struct interp *in, const char *field, const json_t *json,
                                     unsigned depth)
{
    struct dict *dict = dict_new(in);
    const char *key;
    size_t n_key;
    json_t *item;
    void *iter = json_object_iter((json_t *)(uintptr_t)json);
    for (; iter && interp_ok(in); iter = json_object_iter_next((json_t *)(uintptr_t)json, iter)) {
        key = json_object_iter_key(iter);
        n_key = strlen(key);
        item = json_object_iter_value(iter);
        struct value name = text_new(in, key, n_key);
        struct value v = from_json(in, field, item, depth + 1);
        if (interp_ok(in))
            dict_set(in, dict, name, v);
    }
    return in->failed ? value_none() : value_dict(dict);
}

static struct value from_json_array(struct interp *in, const char *field, const json_t *json,
                                    unsigned depth)
{
    size_t n = json_array_size(json);
    struct list *list = list_new(in, n);
    for (size_t i = 0; i < n && interp_ok(in); i++)
        list_add(in, list, from_json(in, field, json_array_get(json, i), depth + 1));
    return in->failed ? value_none() : value_list(VALUE_LIST, list);
}

static struct value from_json(struct interp *in, const char *field, const json_t *json,
                              unsigned depth)
{
    if (depth > CHAT_TEMPLATE_MAX_DEPTH) {
        in->failed = true;
        error_field(in->err, field, "is nested deeper than %d levels", CHAT_TEMPLATE_MAX_DEPTH);
        return value_none();
    }
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return from_json_object(in, field, json, depth);
    case JSON_ARRAY:
        return from_json_array(in, field, json, depth);
    case JSON_STRING:
        return text_new(in, json_string_value(json), json_string_length(json));
    case JSON_INTEGER:
        return value_int(json_integer_value(json));
    case JSON_REAL:
        return value_float(json_real_value(json));
    case JSON_TRUE:
        return value_bool(true);
    case JSON_FALSE:
        return value_bool(false);
    case JSON_NULL:
        break;
    }
    return value_none();
}

struct value value_from_json_text(struct interp *in, const char *field, const char *json)
{
    json_error_t where;
    if (in->failed)
        return value_none();
    json_t *root = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
    if (!root) {
        in->failed = true;
        error_field(in->err, field, "byte %d: %s", where.position, where.text);
        return value_none();
    }
    struct value v = from_json(in, field, root, 0);
    json_decref(root);
    return v;
}

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
    struct value v = value_from_json_text(in, field, json);
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
    struct value v = value_from_json_text(in, field, json);
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

bool context_build(struct interp *in, const struct chat_template_input *input)
{
    struct dict *dict = dict_new(in);
    dict_set_str(in, dict, "messages", messages_value(in, input));
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
