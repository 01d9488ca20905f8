#include "engine/template/value/cursor.h"

#include "base/utf8.h"
#include "engine/template/value/dict.h"
#include "engine/template/value/interp.h"
#include "engine/template/value/list.h"
#include "engine/template/value/text.h"
#include "engine/template/value/value.h"

bool cursor_open(struct interp *in, struct value v, struct cursor *out_cursor)
{
    switch ((enum value_type)v.type) {
    case VALUE_UNSET:
    case VALUE_UNDEFINED:
    case VALUE_STRING:
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
    case VALUE_ITERATOR:
    case VALUE_RANGE:
    case VALUE_DICT:
        *out_cursor = (struct cursor){.source = v};
        return interp_ok(in);
    default:
        interp_fail(in, "'%s' object is not iterable", value_type_name(v));
        return false;
    }
}

bool cursor_next(struct interp *in, struct cursor *cursor, struct value *out_item)
{
    struct value v = cursor->source;
    if (!interp_step(in, 1))
        return false;
    size_t i = cursor->i;
    switch ((enum value_type)v.type) {
    case VALUE_STRING: {
        if (cursor->offset >= v.u.text->n_bytes)
            return false;
        uint32_t cp;
        size_t n =
            utf8_decode(v.u.text->data + cursor->offset, v.u.text->n_bytes - cursor->offset, &cp);
        *out_item = text_part(in, v.u.text, cursor->offset, cursor->offset + (n ? n : 1));
        cursor->offset += n ? n : 1;
        return interp_ok(in);
    }
    case VALUE_ITERATOR:
        if (v.u.list->pos >= v.u.list->n)
            return false;
        *out_item = v.u.list->items[v.u.list->pos++];
        return true;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW:
        if (i >= v.u.list->n)
            return false;
        *out_item = v.u.list->items[i];
        break;
    case VALUE_RANGE:
        if (i >= v.u.range->n)
            return false;
        *out_item =
            value_int((int64_t)((uint64_t)v.u.range->start + i * (uint64_t)v.u.range->step));
        break;
    case VALUE_DICT:
        if (i >= v.u.dict->n)
            return false;
        *out_item = v.u.dict->entries[i].key;
        break;
    default:
        return false;
    }
    cursor->i++;
    return true;
}
