/* Types of metadata values, and values as readable text. */
#include <inttypes.h>
#include <string.h>

#include "base/strbuf.h"
#include "base/utf8.h"
#include "engine/format/checkpoint_store.h"

static const struct {
    const char *name;
    uint32_t n_bytes;
} types[N_VALUE_TYPES] = {
    [VALUE_U8] = {"u8", 1},       [VALUE_I8] = {"i8", 1},     [VALUE_U16] = {"u16", 2},
    [VALUE_I16] = {"i16", 2},     [VALUE_U32] = {"u32", 4},   [VALUE_I32] = {"i32", 4},
    [VALUE_F32] = {"f32", 4},     [VALUE_BOOL] = {"bool", 1}, [VALUE_STRING] = {"string", 0},
    [VALUE_ARRAY] = {"array", 0}, [VALUE_U64] = {"u64", 8},   [VALUE_I64] = {"i64", 8},
    [VALUE_F64] = {"f64", 8},
};

const char *checkpoint_type_name(enum value_type type)
{
    return type < N_VALUE_TYPES ? types[type].name : "?";
}

uint32_t checkpoint_value_bytes(enum value_type type)
{
    return type < N_VALUE_TYPES ? types[type].n_bytes : 0;
}

static uint64_t little_endian(const unsigned char *p, uint32_t n_bytes)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < n_bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

int64_t checkpoint_value_int(enum value_type type, const unsigned char *data, uint64_t i)
{
    uint32_t n = checkpoint_value_bytes(type);
    uint64_t raw = little_endian(data + i * n, n);
    switch (type) {
    case VALUE_I8:
        return (int8_t)raw;
    case VALUE_I16:
        return (int16_t)raw;
    case VALUE_I32:
        return (int32_t)raw;
    case VALUE_I64:
        return (int64_t)raw;
    default:
        return raw > INT64_MAX ? INT64_MAX : (int64_t)raw;
    }
}

double checkpoint_value_float(enum value_type type, const unsigned char *data, uint64_t i)
{
    uint32_t n = checkpoint_value_bytes(type);
    uint64_t raw = little_endian(data + i * n, n);
    if (type == VALUE_F64) {
        double value;
        memcpy(&value, &raw, sizeof(value));
        return value;
    }
    uint32_t low = (uint32_t)raw;
    float value;
    memcpy(&value, &low, sizeof(value));
    return (double)value;
}

uint64_t checkpoint_n_keys(const struct checkpoint *ckpt)
{
    return ckpt->n_entries;
}

const char *checkpoint_key(const struct checkpoint *ckpt, uint64_t i)
{
    return ckpt->entries[i].key;
}

void checkpoint_key_type(const struct checkpoint *ckpt, uint64_t i, struct strbuf *out)
{
    const struct checkpoint_entry *e = &ckpt->entries[i];
    if (e->type == VALUE_ARRAY)
        strbuf_printf(out, "array of %s", checkpoint_type_name(e->array.type));
    else
        strbuf_add_str(out, checkpoint_type_name(e->type));
}

static void add_quoted(struct strbuf *out, const char *text, size_t n_bytes, size_t max_bytes)
{
    size_t start = out->n_bytes;
    strbuf_add_char(out, '"');
    for (size_t i = 0; i < n_bytes;) {
        uint32_t point = 0;
        size_t length = utf8_decode(text + i, n_bytes - i, &point);
        if (out->n_bytes - start > max_bytes) {
            strbuf_add_str(out, "\"...");
            return;
        }
        if (point == '\n')
            strbuf_add_str(out, "\\n");
        else if (point == '"' || point == '\\')
            strbuf_printf(out, "\\%c", (int)point);
        else if (!length || point < 0x20 || (point >= 0x7F && point <= 0x9F))
            strbuf_printf(out, "\\x%02x", (unsigned)(unsigned char)text[i]);
        else
            strbuf_add(out, text + i, length);
        i += length ? length : 1;
    }
    strbuf_add_char(out, '"');
}

static void add_array(const struct checkpoint_entry *e, size_t max_bytes, struct strbuf *out)
{
    size_t start = out->n_bytes;
    enum value_type type = e->array.type;
    strbuf_add_char(out, '[');
    for (uint64_t i = 0; i < e->array.n; i++) {
        if (i)
            strbuf_add_str(out, ", ");
        if (out->n_bytes - start > max_bytes) {
            strbuf_printf(out, "... %" PRIu64 " elements", e->array.n);
            break;
        }
        if (type == VALUE_STRING) {
            uint64_t begin = i ? e->array.ends[i - 1] : 0;
            add_quoted(out, (const char *)e->array.data + begin, (size_t)(e->array.ends[i] - begin),
                       max_bytes);
        } else if (type == VALUE_F32 || type == VALUE_F64) {
            strbuf_printf(out, "%.9g", checkpoint_value_float(type, e->array.data, i));
        } else if (type == VALUE_BOOL) {
            strbuf_add_str(out, e->array.data[i] ? "true" : "false");
        } else {
            strbuf_printf(out, "%" PRId64, checkpoint_value_int(type, e->array.data, i));
        }
    }
    strbuf_add_char(out, ']');
}

void checkpoint_key_value(const struct checkpoint *ckpt, uint64_t i, size_t max_bytes,
                          struct strbuf *out)
{
    const struct checkpoint_entry *e = &ckpt->entries[i];
    switch (e->type) {
    case VALUE_STRING:
        add_quoted(out, e->string.data, e->string.n_bytes, max_bytes);
        break;
    case VALUE_ARRAY:
        add_array(e, max_bytes, out);
        break;
    case VALUE_F32:
    case VALUE_F64:
        strbuf_printf(out, "%.9g", e->f);
        break;
    case VALUE_BOOL:
        strbuf_add_str(out, e->u ? "true" : "false");
        break;
    case VALUE_I8:
    case VALUE_I16:
    case VALUE_I32:
    case VALUE_I64:
        strbuf_printf(out, "%" PRId64, e->i);
        break;
    default:
        strbuf_printf(out, "%" PRIu64, e->u);
        break;
    }
}
