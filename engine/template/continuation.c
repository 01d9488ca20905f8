#include "engine/template/continuation.h"

#include <assert.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/template/conversation.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/unicode.h"

/* A mark is the lead and a letter. */
enum { N_MARKS = 26 };
static const char mark_lead[] = "SLUICE_OPEN_END_";
enum { LEAD_BYTES = sizeof(mark_lead) - 1 };
static_assert(LEAD_BYTES + 1 == CONTINUATION_MARK_BYTES, "a mark has the lead and a letter");

static const char field_name[] = "continue_final_message";

static bool fail(struct interp *in, const char *text)
{
    if (in->failed)
        return false;
    in->failed = true;
    error_field(in->err, field_name, "%s", text);
    return false;
}

/* --- begin --- */

static uint32_t marks_of_text(const struct text *text)
{
    uint32_t found = 0;
    const char *at = text->data, *end = at + text->n_bytes;
    while ((at = memmem(at, (size_t)(end - at), mark_lead, LEAD_BYTES))) {
        at += LEAD_BYTES;
        if (at < end && *at >= 'A' && *at < 'A' + N_MARKS)
            found |= UINT32_C(1) << (*at - 'A');
    }
    return found;
}

/* A bit per mark that a text of the value holds. JSON data are at most CHAT_TEMPLATE_MAX_DEPTH
 * deep. */
static uint32_t marks_of(struct value v)
{
    uint32_t found = 0;
    if (value_is_text(v))
        return marks_of_text(v.u.text);
    for (size_t i = 0; v.type == VALUE_LIST && i < v.u.list->n; i++)
        found |= marks_of(v.u.list->items[i]);
    for (size_t i = 0; v.type == VALUE_DICT && i < v.u.dict->n; i++)
        found |= marks_of(v.u.dict->entries[i].key) | marks_of(v.u.dict->entries[i].value);
    return found;
}

static struct value with_mark(struct interp *in, const struct text *open, const char *mark)
{
    char tail[CONTINUATION_MARK_BYTES + 1];
    memcpy(tail, mark, CONTINUATION_MARK_BYTES);
    tail[CONTINUATION_MARK_BYTES] = ' ';
    struct value end = text_new(in, tail, sizeof(tail));
    struct value whole = text_new(in, open->data, open->n_bytes);
    return in->failed ? value_none() : text_concat(in, whole.u.text, end.u.text);
}

/* Marks the last part of a list that has a text. */
static struct value mark_parts(struct interp *in, struct value parts, struct continuation *c)
{
    struct list *out = conversation_copy_list(in, parts.u.list);
    for (size_t i = out ? out->n : 0; i-- > 0;) {
        const struct value *text = out->items[i].type == VALUE_DICT
                                       ? dict_get_str(in, out->items[i].u.dict, "text")
                                       : NULL;
        if (!text || !value_is_text(*text))
            continue;
        c->open = text->u.text;
        struct dict *part = conversation_copy_dict(in, out->items[i].u.dict);
        if (!part || !dict_set_str(in, part, "text", with_mark(in, c->open, c->mark)))
            return value_none();
        out->items[i] = value_dict(part);
        return value_list(VALUE_LIST, out);
    }
    fail(in, "the last message has no text to continue");
    return value_none();
}

/* Marks the fields that hold the open text: reasoning stands under two names. */
static bool mark_fields(struct interp *in, struct dict *message, const char *field,
                        struct value open, const char *mark)
{
    static const char *const copies[] = {"reasoning_content", "thinking", "reasoning"};
    struct value marked = with_mark(in, open.u.text, mark);
    bool is_reasoning = strcmp(field, "content") != 0;
    if (in->failed || !is_reasoning)
        return interp_ok(in) && dict_set_str(in, message, field, marked);
    for (size_t i = 0; i < sizeof(copies) / sizeof(copies[0]); i++) {
        const struct value *copy = dict_get_str(in, message, copies[i]);
        if (copy && value_equal(in, *copy, open) && !dict_set_str(in, message, copies[i], marked))
            return false;
    }
    return interp_ok(in);
}

bool continuation_begin(struct interp *in, struct value *messages, const char *field,
                        struct continuation *out_continuation)
{
    struct continuation *c = out_continuation;
    size_t n = messages->type == VALUE_LIST ? messages->u.list->n : 0;
    if (!n || messages->u.list->items[n - 1].type != VALUE_DICT)
        return fail(in, "there is no message to continue");
    uint32_t used = marks_of(*messages);
    unsigned i_mark = 0;
    while (i_mark < N_MARKS && used >> i_mark & 1)
        i_mark++;
    if (i_mark == N_MARKS)
        return fail(in, "the messages use every mark, SLUICE_OPEN_END_A to _Z");
    memcpy(c->mark, mark_lead, LEAD_BYTES);
    c->mark[LEAD_BYTES] = (char)('A' + i_mark);
    c->mark[CONTINUATION_MARK_BYTES] = '\0';
    struct list *list = conversation_copy_list(in, messages->u.list);
    struct dict *last =
        list ? conversation_copy_dict(in, messages->u.list->items[n - 1].u.dict) : NULL;
    const struct value *open = last ? dict_get_str(in, last, field) : NULL;
    if (open && open->type == VALUE_LIST) {
        dict_set_str(in, last, field, mark_parts(in, *open, c));
    } else if (open && value_is_text(*open)) {
        c->open = open->u.text;
        mark_fields(in, last, field, *open, c->mark);
    } else {
        return fail(in, "the last message has no text in the field to continue");
    }
    if (in->failed)
        return false;
    list->items[n - 1] = value_dict(last);
    *messages = value_list(VALUE_LIST, list);
    return true;
}

/* --- cut --- */

/* Bytes of the text without the white space at its end, as in Python. */
static size_t rstrip(const char *text, size_t n_bytes)
{
    while (n_bytes) {
        size_t begin = n_bytes - 1;
        uint32_t code = 0;
        while (begin && ((unsigned char)text[begin] & 0xC0) == 0x80)
            begin--;
        if (!utf8_decode(text + begin, n_bytes - begin, &code) || !unicode_is_space(code))
            break;
        n_bytes = begin;
    }
    return n_bytes;
}

static size_t lstrip(const char *text, size_t n_bytes)
{
    size_t at = 0, n;
    uint32_t code;
    while (at < n_bytes && (n = utf8_decode(text + at, n_bytes - at, &code)) &&
           unicode_is_space(code))
        at += n;
    return at;
}

/* Removes the marks of a text that the template renders more than once, with their spaces. */
static void drop_marks(struct strbuf *out, const char *mark)
{
    size_t to = 0;
    for (size_t i = 0; i < out->n_bytes;) {
        if (out->n_bytes - i < CONTINUATION_MARK_BYTES ||
            memcmp(out->data + i, mark, CONTINUATION_MARK_BYTES) != 0) {
            out->data[to++] = out->data[i++];
            continue;
        }
        i += CONTINUATION_MARK_BYTES;
        i += i < out->n_bytes && out->data[i] == ' ';
    }
    out->n_bytes = to;
    out->data[to] = '\0';
}

bool continuation_cut(struct interp *in, const struct continuation *c)
{
    struct strbuf *out = &in->out;
    const char *open = c->open->data;
    size_t n = out->n_bytes, begin = lstrip(open, c->open->n_bytes);
    size_t end = rstrip(open, c->open->n_bytes);
    while (n >= CONTINUATION_MARK_BYTES &&
           memcmp(out->data + n - CONTINUATION_MARK_BYTES, c->mark, CONTINUATION_MARK_BYTES) != 0)
        n--;
    if (n < CONTINUATION_MARK_BYTES ||
        (begin < end && !memmem(out->data, out->n_bytes, open + begin, end - begin)))
        return fail(in, "the template does not render the text to continue");
    bool trimmed = n >= out->n_bytes || out->data[n] != ' ';
    n -= CONTINUATION_MARK_BYTES;
    out->n_bytes = trimmed ? rstrip(out->data, n) : n;
    out->data[out->n_bytes] = '\0';
    drop_marks(out, c->mark);
    return true;
}
