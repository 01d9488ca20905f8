#include "manager/base/message.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "manager/base/pb.h"
#include "proto/rpc/message/message.h"

static void *allocate(struct arena *arena, size_t n_bytes)
{
    return arena ? arena_alloc(arena, n_bytes) : malloc(n_bytes ? n_bytes : 1);
}

void *message_new_in(struct arena *arena, const ProtobufCMessageDescriptor *descriptor)
{
    ProtobufCMessage *message = allocate(arena, descriptor->sizeof_message);
    if (message)
        protobuf_c_message_init(descriptor, message);
    return message;
}

ProtobufCMessage *message_new(const ProtobufCMessageDescriptor *descriptor)
{
    return message_new_in(NULL, descriptor);
}

static ProtobufCMessage *copy_message(struct arena *arena, const ProtobufCMessage *message);

/* Copies n_bytes and `n_zeroes` zero bytes. */
static void *copy_bytes(struct arena *arena, const void *from, size_t n_bytes, size_t n_zeroes)
{
    char *copy = allocate(arena, n_bytes + n_zeroes);
    if (!copy)
        return NULL;
    memcpy(copy, from, n_bytes);
    memset(copy + n_bytes, 0, n_zeroes);
    return copy;
}

/* False where memory is exhausted; `to` is then unchanged. */
static bool copy_value(struct arena *arena, ProtobufCType type, const void *from, void *to)
{
    ProtobufCBinaryData data;
    void *value, *copy;
    if (type == PROTOBUF_C_TYPE_BYTES) {
        memcpy(&data, from, sizeof(data));
        if (data.data && !(data.data = copy_bytes(arena, data.data, data.len, 0)))
            return false;
        memcpy(to, &data, sizeof(data));
        return true;
    }
    if (type != PROTOBUF_C_TYPE_STRING && type != PROTOBUF_C_TYPE_MESSAGE) {
        memcpy(to, from, rpc_message_value_bytes(type));
        return true;
    }
    memcpy(&value, from, sizeof(value));
    copy = value;
    if (type == PROTOBUF_C_TYPE_MESSAGE)
        copy = copy_message(arena, value);
    else if (value != (const void *)protobuf_c_empty_string && value)
        copy = copy_bytes(arena, value, strlen(value), 1);
    if (value && !copy)
        return false;
    if (copy)
        memcpy(to, &copy, sizeof(copy));
    return true;
}

/* Capacity of a repeated field with n elements in an arena: the next power of two. */
static size_t capacity_of(size_t n)
{
    size_t capacity = 1;
    while (capacity < n)
        capacity *= 2;
    return capacity;
}

static bool copy_repeated(struct arena *arena, const ProtobufCFieldDescriptor *field,
                          const ProtobufCMessage *from, ProtobufCMessage *to)
{
    size_t n, *n_done = (size_t *)(void *)((char *)to + field->quantifier_offset);
    size_t n_bytes = rpc_message_value_bytes(field->type);
    const char *values;
    memcpy(&n, (const char *)from + field->quantifier_offset, sizeof(n));
    memcpy(&values, (const char *)from + field->offset, sizeof(values));
    char *copy = n ? allocate(arena, (arena ? capacity_of(n) : n) * n_bytes) : NULL;
    if (n && !copy)
        return false;
    memcpy((char *)to + field->offset, &copy, sizeof(copy));
    for (; *n_done < n; ++*n_done) /* count as copied, so that a failure frees exactly these */
        if (!copy_value(arena, field->type, values + *n_done * n_bytes, copy + *n_done * n_bytes))
            return false;
    return true;
}

static bool copy_field(struct arena *arena, const ProtobufCFieldDescriptor *field,
                       const ProtobufCMessage *from, ProtobufCMessage *to)
{
    uint32_t quantifier = 0; /* presence of an optional field, or the chosen field of a oneof */
    if (field->label == PROTOBUF_C_LABEL_REPEATED)
        return copy_repeated(arena, field, from, to);
    if (field->quantifier_offset)
        memcpy(&quantifier, (const char *)from + field->quantifier_offset, sizeof(quantifier));
    if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) && quantifier != field->id)
        return true;
    if (!copy_value(arena, field->type, (const char *)from + field->offset,
                    (char *)to + field->offset))
        return false;
    if (field->quantifier_offset)
        memcpy((char *)to + field->quantifier_offset, &quantifier, sizeof(quantifier));
    return true;
}

/* Fields of later programs, which an older program passes on. */
static bool copy_unknown(struct arena *arena, const ProtobufCMessage *from, ProtobufCMessage *to)
{
    unsigned n = from->n_unknown_fields;
    if (n && !(to->unknown_fields = allocate(arena, n * sizeof(*to->unknown_fields))))
        return false;
    for (; to->n_unknown_fields < n; to->n_unknown_fields++) {
        ProtobufCMessageUnknownField *copy = &to->unknown_fields[to->n_unknown_fields];
        *copy = from->unknown_fields[to->n_unknown_fields];
        if (!(copy->data = copy_bytes(arena, copy->data, copy->len, 0)))
            return false;
    }
    return true;
}

/* Copies field by field, for speed: every poll of a worker and every change of a row makes
 * copies. */
static ProtobufCMessage *copy_message(struct arena *arena, const ProtobufCMessage *message)
{
    ProtobufCMessage *copy = message ? message_new_in(arena, message->descriptor) : NULL;
    bool complete = copy && copy_unknown(arena, message, copy);
    for (unsigned i = 0; complete && i < message->descriptor->n_fields; i++)
        complete = copy_field(arena, &message->descriptor->fields[i], message, copy);
    if (complete || arena)
        return complete ? copy : NULL;
    message_free(copy);
    return NULL;
}

ProtobufCMessage *message_copy(const ProtobufCMessage *message)
{
    return copy_message(NULL, message);
}

void *message_copy_in(struct arena *arena, const void *source)
{
    return copy_message(arena, source);
}

void message_free(ProtobufCMessage *message)
{
    protobuf_c_message_free_unpacked(message, NULL);
}

/* This allocator notes failed allocations. protobuf-c gives the same result for a malformed
 * message and for exhausted memory. */
static void *alloc_recording(void *failed, size_t n_bytes)
{
    void *memory = malloc(n_bytes);
    if (!memory)
        *(bool *)failed = true;
    return memory;
}

static void free_recording(void *failed, void *memory)
{
    (void)failed;
    free(memory);
}

int message_unpack(const ProtobufCMessageDescriptor *descriptor, const char *what,
                   const uint8_t *bytes, size_t n_bytes, ProtobufCMessage **out_message,
                   struct error *err)
{
    bool failed = false;
    ProtobufCAllocator noting = {alloc_recording, free_recording, &failed};
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &noting, n_bytes, bytes);
    if (!message)
        return failed ? error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: out of memory", what)
                      : error_set(err, STATUS_DATA_LOSS, "%s cannot be decoded", what);
    *out_message = message;
    return 0;
}

static void replace_text(char **field, char *text)
{
    if (*field != (const char *)protobuf_c_empty_string)
        free(*field);
    *field = text;
}

void message_clear(char **field)
{
    /* protobuf-c's own empty string, which protobuf-c never frees or writes. */
    replace_text(field, (char *)(uintptr_t)protobuf_c_empty_string);
}

bool message_set(char **field, const char *text)
{
    if (*field == text)
        return true;
    if (!text || !*text) {
        message_clear(field);
        return true;
    }
    char *copy = strdup(text);
    if (copy)
        replace_text(field, copy);
    return copy != NULL;
}

bool message_set_copy(void *field, const void *source)
{
    ProtobufCMessage *old, *copy = message_copy(source);
    if (source && !copy)
        return false;
    memcpy(&old, field, sizeof(old));
    message_free(old);
    memcpy(field, &copy, sizeof(copy));
    return true;
}

bool message_append(size_t *n_items, void *items_field, void *item)
{
    void **items;
    memcpy(&items, items_field, sizeof(items));
    void **grown = realloc(items, (*n_items + 1) * sizeof(*grown));
    if (!grown)
        return false;
    grown[(*n_items)++] = item;
    memcpy(items_field, &grown, sizeof(grown));
    return true;
}

bool message_append_text(size_t *n_items, char ***items_field, const char *text)
{
    char *copy = strdup(text);
    if (copy && message_append(n_items, items_field, copy))
        return true;
    free(copy);
    return false;
}

char *message_text_in(struct arena *arena, const char *text)
{
    char *copy = text && *text ? arena_strndup(arena, text, strlen(text)) : NULL;
    return copy ? copy : (char *)(uintptr_t)protobuf_c_empty_string;
}

char *message_printf_in(struct arena *arena, const char *format, ...)
{
    char text[ERROR_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return message_text_in(arena, text);
}

void message_append_in(struct arena *arena, size_t *n_items, void *items_field, void *item)
{
    void **items;
    size_t n = *n_items;
    memcpy(&items, items_field, sizeof(items));
    if (n == 0 || capacity_of(n) == n) { /* full */
        void **grown = item ? arena_calloc(arena, capacity_of(n + 1), sizeof(*grown)) : NULL;
        if (grown && n)
            memcpy(grown, items, n * sizeof(*grown));
        items = grown;
    }
    if (!item || !items)
        return;
    items[(*n_items)++] = item;
    memcpy(items_field, &items, sizeof(items));
}

void *message_add_in(struct arena *arena, size_t *n_items, void *items_field,
                     const ProtobufCMessageDescriptor *descriptor)
{
    void *item = message_new_in(arena, descriptor);
    message_append_in(arena, n_items, items_field, item);
    return item;
}

void message_append_text_in(struct arena *arena, size_t *n_items, void *items_field,
                            const char *text)
{
    message_append_in(arena, n_items, items_field, message_text_in(arena, text));
}

void *message_from_error_in(struct arena *arena, const struct error *err)
{
    pb_error *out = message_new_in(arena, &sluice__v1__error__descriptor);
    if (!out)
        return NULL;
    out->code = status_to_grpc(err->status);
    out->retry_after_ms = err->retry_after_ms;
    out->message = message_text_in(arena, err->message);
    out->field = message_text_in(arena, err->field);
    out->reason = message_text_in(arena, error_reason_name(err));
    return out;
}

ProtobufCMessage *message_from_error(const struct error *err)
{
    struct arena arena;
    arena_init(&arena, 1024, 0);
    ProtobufCMessage *message = message_from_error_in(&arena, err);
    ProtobufCMessage *copy = arena.exhausted ? NULL : message_copy(message);
    arena_fini(&arena);
    return copy;
}

static void copy_text(char *out, size_t n_bytes, const char *text)
{
    size_t n = strlen(text);
    if (n >= n_bytes)
        n = n_bytes - 1;
    memcpy(out, text, n);
    out[n] = '\0';
}

void message_to_error(const ProtobufCMessage *message, struct error *out_err)
{
    const pb_error *from = (const pb_error *)message;
    int rc = status_from_grpc(from->code);
    error_set(out_err, rc ? rc : STATUS_UNKNOWN, "%s", from->message);
    copy_text(out_err->field, sizeof(out_err->field), from->field);
    error_reason_parse(out_err, from->reason);
    out_err->retry_after_ms = from->retry_after_ms;
}

enum message_change message_image_update(struct message_image *image,
                                         const ProtobufCMessage *message)
{
    size_t n_bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n_bytes ? n_bytes : 1);
    if (!bytes)
        return MESSAGE_NO_MEMORY;
    protobuf_c_message_pack(message, bytes);
    bool same = image->bytes && image->n_bytes == n_bytes && !memcmp(image->bytes, bytes, n_bytes);
    free(image->bytes);
    *image = (struct message_image){bytes, n_bytes};
    return same ? MESSAGE_SAME : MESSAGE_CHANGED;
}

void message_image_fini(struct message_image *image)
{
    free(image->bytes);
    *image = (struct message_image){NULL, 0};
}
