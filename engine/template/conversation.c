#include "engine/template/conversation.h"

#include <string.h>

#include "base/strbuf.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/json_text.h"
#include "engine/template/value/list.h"
#include "engine/template/value/print.h"
#include "engine/template/value/text.h"

struct dict *conversation_copy_dict(struct interp *in, const struct dict *from)
{
    struct dict *out = dict_new(in);
    for (size_t i = 0; out && i < from->n; i++)
        if (!dict_set(in, out, from->entries[i].key, from->entries[i].value))
            return NULL;
    return out;
}

struct list *conversation_copy_list(struct interp *in, const struct list *from)
{
    struct list *out = list_new(in, from->n);
    for (size_t i = 0; out && i < from->n; i++)
        if (!list_add(in, out, from->items[i]))
            return NULL;
    return out;
}

/* --- reasoning --- */

/* The first name's value that is given and not null. */
static const struct value *find_reasoning(struct interp *in, const struct dict *message)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && interp_ok(in); i++) {
        const struct value *v = dict_get_str(in, message, names[i]);
        if (v && v->type != VALUE_NONE)
            return v;
    }
    return NULL;
}

/* The order of the members is that of transformers: templates that print a message show it. */
static struct value alias_reasoning(struct interp *in, struct value message)
{
    const struct value *reasoning = find_reasoning(in, message.u.dict);
    if (!reasoning)
        return message;
    struct dict *out = dict_new(in);
    if (!out || !dict_set_str(in, out, "thinking", *reasoning))
        return value_none();
    for (size_t i = 0; i < message.u.dict->n; i++)
        dict_set(in, out, message.u.dict->entries[i].key, message.u.dict->entries[i].value);
    dict_set_str(in, out, "reasoning_content", *reasoning);
    return value_dict(out);
}

/* --- arguments of tool calls --- */

/* Parses a text. Returns the text itself if the text is no JSON object. */
static struct value object_of(struct interp *in, struct value text)
{
    const struct text *json = text.u.text;
    size_t n_blank = strspn(json->data, " \t\r\n");
    if (n_blank >= json->n_bytes)
        return value_dict(dict_new(in)); /* a call without arguments */
    if (json->data[n_blank] != '{')
        return text;
    struct value v = json_text_value(in, "arguments", json->data, json->n_bytes, false);
    if (in->failed && in->err->status == STATUS_INVALID_ARGUMENT) {
        in->failed = false;
        *in->err = (struct error){0};
        return text;
    }
    return v;
}

static struct value text_of(struct interp *in, struct value object)
{
    const struct json_style style = {
        .indent = -1, .item_separator = {", ", 2, 2, NULL}, .key_separator = {": ", 2, 2, NULL}};
    size_t mark = interp_capture_begin(in);
    value_write_json(in, object, &style);
    return interp_capture_end(in, mark);
}

/* Returns the call, or a function within, with its arguments in the template's form. */
static struct value convert_call(struct interp *in, struct value call,
                                 enum conversation_arguments form)
{
    if (call.type != VALUE_DICT || in->failed)
        return call;
    const struct value *function = dict_get_str(in, call.u.dict, "function");
    bool nested = function && function->type == VALUE_DICT;
    const struct dict *holder = nested ? function->u.dict : call.u.dict;
    const struct value *given = dict_get_str(in, holder, "arguments");
    if (!given || !(form == CONVERSATION_ARGUMENTS_OBJECT ? value_is_text(*given)
                                                          : given->type == VALUE_DICT))
        return call;
    struct value converted =
        form == CONVERSATION_ARGUMENTS_OBJECT ? object_of(in, *given) : text_of(in, *given);
    struct dict *out = conversation_copy_dict(in, holder);
    if (in->failed || !out || !dict_set_str(in, out, "arguments", converted))
        return value_none();
    if (!nested)
        return value_dict(out);
    struct dict *outer = conversation_copy_dict(in, call.u.dict);
    if (!outer || !dict_set_str(in, outer, "function", value_dict(out)))
        return value_none();
    return value_dict(outer);
}

/* Puts a message's tool calls into the template's form. */
static struct value convert_calls(struct interp *in, struct value message,
                                  const struct conversation_form *form)
{
    const struct value *calls = dict_get_str(in, message.u.dict, "tool_calls");
    if (!calls || calls->type != VALUE_LIST || !calls->u.list->n)
        return message;
    const struct value *content = dict_get_str(in, message.u.dict, "content");
    bool is_empty = content && value_is_text(*content) && !content->u.text->n_bytes;
    struct dict *copy = conversation_copy_dict(in, message.u.dict);
    if (copy && is_empty && form->null_content)
        dict_set_str(in, copy, "content", value_none());
    if (in->failed || form->arguments == CONVERSATION_ARGUMENTS_AS_GIVEN)
        return in->failed ? value_none() : value_dict(copy);
    struct list *out = conversation_copy_list(in, calls->u.list);
    for (size_t i = 0; out && i < out->n; i++)
        out->items[i] = convert_call(in, out->items[i], form->arguments);
    if (in->failed || !dict_set_str(in, copy, "tool_calls", value_list(VALUE_LIST, out)))
        return value_none();
    return value_dict(copy);
}

struct value conversation_prepare(struct interp *in, struct value messages,
                                  const struct conversation_form *form)
{
    if (messages.type != VALUE_LIST || in->failed)
        return messages;
    struct list *out = conversation_copy_list(in, messages.u.list);
    for (size_t i = 0; out && i < out->n && interp_ok(in); i++) {
        if (out->items[i].type == VALUE_DICT)
            out->items[i] = alias_reasoning(in, out->items[i]);
        if (interp_ok(in) && out->items[i].type == VALUE_DICT)
            out->items[i] = convert_calls(in, out->items[i], form);
    }
    return in->failed || !out ? value_none() : value_list(VALUE_LIST, out);
}
