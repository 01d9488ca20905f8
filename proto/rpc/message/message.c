#include "proto/rpc/message/message.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/utf8.h"
#include "proto/rpc/message/fill.h"
#include "proto/rpc/message/wire.h"

/* Memory of protobuf-c per wire field while it scans, and per unknown field that it keeps. */
enum { SCANNED_FIELD_BYTES = 40, UNKNOWN_FIELD_BYTES = 64 };
/* Largest memory of a list element per byte on the wire. */
enum { LIST_EXPANSION = 8 };

struct walk {
    const ProtobufCMessageDescriptor *root;
    const uint8_t *start; /* start of the root message, for offsets */
    struct error *err;
    const char *path[RPC_MESSAGE_MAX_DEPTH + 1]; /* names of the fields above the current one */
    size_t n_path;
    size_t n_unknown;
    size_t memory_bytes; /* estimated memory of the decoded form */
    struct rpc_fill fill;
};

struct span {
    const uint8_t *at, *end;
};

static int malformed(struct walk *walk, const uint8_t *at, const char *what)
{
    error_set(walk->err, STATUS_INVALID_ARGUMENT, "%s is malformed at byte %zu: %s",
              walk->root->name, (size_t)(at - walk->start), what);
    return error_reason(walk->err, REASON_MESSAGE_MALFORMED);
}

static bool take_long_varint(struct span *span, uint64_t *out_value)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (span->at == span->end)
            return false;
        uint8_t byte = *span->at++;
        value |= shift < 64 ? (uint64_t)(byte & 0x7F) << shift : 0;
        if (byte < 0x80) {
            *out_value = value;
            return true;
        }
    }
    return false;
}

static inline bool take_varint(struct span *span, uint64_t *out_value)
{
    if (span->at == span->end || *span->at >= 0x80)
        return take_long_varint(span, out_value);
    *out_value = *span->at++;
    return true;
}

/* Bits beyond the 64th are dropped here, but would make a bool true in protobuf-c. */
static bool is_too_long(const uint8_t *from, const uint8_t *end)
{
    return end - from == 10 && end[-1] > 1;
}

/* Reads a tag or length, of which protobuf-c reads five bytes. */
static bool take_short_varint(struct walk *walk, struct span *span, uint64_t *out_value)
{
    const uint8_t *from = span->at;
    bool taken = take_varint(span, out_value);
    walk->fill.odd |= span->at - from > 5;
    return taken;
}

static int charge(struct walk *walk, size_t n_bytes)
{
    walk->memory_bytes += n_bytes;
    if (walk->memory_bytes <= RPC_MESSAGE_MAX_EXPANSION)
        return 0;
    error_set(walk->err, STATUS_RESOURCE_EXHAUSTED, "%s would need more than %d bytes when decoded",
              walk->root->name, RPC_MESSAGE_MAX_EXPANSION);
    return error_reason(walk->err, REASON_MESSAGE_TOO_LARGE);
}

static void format_path(const struct walk *walk, const char *leaf, char *out, size_t n_out)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i <= walk->n_path && n < n_out; i++) {
        const char *name = i < walk->n_path ? walk->path[i] : leaf;
        int added = snprintf(out + n, n_out - n, "%s%s", i > 0 ? "." : "", name);
        n += added > 0 ? (size_t)added : 0;
    }
}

static int check_string(struct walk *walk, const ProtobufCFieldDescriptor *field,
                        const uint8_t *bytes, size_t n_bytes)
{
    char path[ERROR_FIELD_BYTES];
    size_t offset = 0;
    const uint8_t *nul = n_bytes > 0 ? memchr(bytes, 0, n_bytes) : NULL;
    bool valid = n_bytes == 0 || utf8_valid((const char *)bytes, n_bytes, &offset);
    if (valid && nul == NULL)
        return charge(walk, n_bytes + 1);
    format_path(walk, field->name, path, sizeof(path));
    if (!valid)
        return error_field(walk->err, path, "byte %zu is not valid UTF-8", offset);
    return error_field(walk->err, path, "byte %zu is NUL, which a string must not contain",
                       (size_t)(nul - bytes));
}

static int check_packed(struct walk *walk, const ProtobufCFieldDescriptor *field,
                        ProtobufCMessage *message, struct span span)
{
    const uint8_t *start = span.at;
    size_t n_bytes = (size_t)(span.end - span.at);
    enum wire wire = wire_of(field->type);
    if (wire == WIRE_FIXED32 || wire == WIRE_FIXED64) {
        size_t size = wire == WIRE_FIXED32 ? 4 : 8;
        if (n_bytes % size != 0)
            return malformed(walk, span.at, "a packed field ends inside an element");
        rpc_fill_packed(&walk->fill, message, field, start, n_bytes, n_bytes / size);
        return charge(walk, n_bytes);
    }
    size_t n_elements = 0;
    uint64_t value = 0;
    while (span.at < span.end) {
        const uint8_t *at = span.at;
        if (!take_varint(&span, &value))
            return malformed(walk, at, "a varint is cut short or longer than 10 bytes");
        walk->fill.odd |= is_too_long(at, span.at);
        n_elements++;
    }
    rpc_fill_packed(&walk->fill, message, field, start, n_bytes, n_elements);
    return charge(walk, n_elements * 8);
}

static int walk_message(struct walk *walk, const ProtobufCMessageDescriptor *descriptor,
                        ProtobufCMessage *message, struct span span);

static int check_payload(struct walk *walk, const ProtobufCFieldDescriptor *field,
                         ProtobufCMessage *message, struct span payload)
{
    size_t n_bytes = (size_t)(payload.end - payload.at);
    switch (field->type) {
    case PROTOBUF_C_TYPE_STRING:
        rpc_fill_bytes(&walk->fill, message, field, payload.at, n_bytes);
        return check_string(walk, field, payload.at, n_bytes);
    case PROTOBUF_C_TYPE_BYTES:
        rpc_fill_bytes(&walk->fill, message, field, payload.at, n_bytes);
        return charge(walk, n_bytes);
    case PROTOBUF_C_TYPE_MESSAGE:
        break;
    default:
        return check_packed(walk, field, message, payload);
    }
    if (walk->n_path == RPC_MESSAGE_MAX_DEPTH)
        return malformed(walk, payload.at, "messages are nested too deep");
    walk->path[walk->n_path++] = field->name;
    ProtobufCMessage *child = rpc_fill_child(&walk->fill, message, field);
    int rc = walk_message(walk, field->descriptor, child, payload);
    walk->n_path--;
    return rc;
}

/* A field's value: a number, or the bytes after a length. */
struct value {
    uint64_t number;
    struct span payload;
};

static int check_known(struct walk *walk, const ProtobufCFieldDescriptor *field,
                       ProtobufCMessage *message, enum wire wire, const uint8_t *at,
                       const struct value *value)
{
    if (wire == WIRE_BYTES) {
        bool packable = field->label == PROTOBUF_C_LABEL_REPEATED;
        if (wire_of(field->type) == WIRE_BYTES || packable)
            return check_payload(walk, field, message, value->payload);
    } else if (wire == wire_of(field->type)) {
        rpc_fill_number(&walk->fill, message, field, value->number);
        return 0;
    }
    char path[ERROR_FIELD_BYTES];
    format_path(walk, field->name, path, sizeof(path));
    return error_field(walk->err, path, "wrong wire type %d at byte %zu of %s", (int)wire,
                       (size_t)(at - walk->start), walk->root->name);
}

/* Reads the value after a tag. */
static int take_value(struct walk *walk, struct span *span, enum wire wire, struct value *out)
{
    const uint8_t *at = span->at;
    uint64_t value = 0;
    size_t n_bytes = 0;
    switch (wire) {
    case WIRE_VARINT:
        if (!take_varint(span, &out->number))
            return malformed(walk, at, "a varint is cut short or longer than 10 bytes");
        walk->fill.odd |= is_too_long(at, span->at);
        return 0;
    case WIRE_FIXED64:
        n_bytes = 8;
        break;
    case WIRE_FIXED32:
        n_bytes = 4;
        break;
    case WIRE_BYTES:
        if (!take_short_varint(walk, span, &value))
            return malformed(walk, at, "a length is cut short or longer than 10 bytes");
        if (value > (uint64_t)(span->end - span->at))
            return malformed(walk, at, "a length goes beyond the end");
        n_bytes = (size_t)value;
        break;
    default:
        return malformed(walk, at, "unknown wire type");
    }
    if (n_bytes > (size_t)(span->end - span->at))
        return malformed(walk, at, "a number goes beyond the end");
    if (wire == WIRE_FIXED64 || wire == WIRE_FIXED32)
        memcpy(&out->number, span->at, n_bytes); /* little-endian, like every supported machine */
    out->payload = (struct span){span->at, span->at + n_bytes};
    span->at += n_bytes;
    return 0;
}

/* Field numbers mostly count from 1 without gaps. */
static const ProtobufCFieldDescriptor *find_field(const ProtobufCMessageDescriptor *descriptor,
                                                  uint64_t number)
{
    if (number <= descriptor->n_fields && descriptor->fields[number - 1].id == number)
        return &descriptor->fields[number - 1];
    return protobuf_c_message_descriptor_get_field(descriptor, (unsigned)number);
}

/* Charges a message that occurs again and is merged into the earlier one. protobuf-c rebuilds
 * each list of the two. Many occurrences would cost quadratic time and, in an arena, memory.
 * `n_bytes`: bytes of the enclosing message so far. */
static int charge_again(struct walk *walk, const ProtobufCMessageDescriptor *descriptor,
                        const ProtobufCFieldDescriptor *field, size_t n_bytes, uint64_t *seen)
{
    if (field->type != PROTOBUF_C_TYPE_MESSAGE || field->label == PROTOBUF_C_LABEL_REPEATED)
        return 0;
    uint64_t bit = (uint64_t)1 << (size_t)(field - descriptor->fields) % 64;
    bool again = (*seen & bit) != 0;
    *seen |= bit;
    return again ? charge(walk, LIST_EXPANSION * n_bytes) : 0;
}

static int walk_message(struct walk *walk, const ProtobufCMessageDescriptor *descriptor,
                        ProtobufCMessage *message, struct span span)
{
    const uint8_t *start = span.at;
    uint64_t seen = 0;
    int rc = charge(walk, descriptor->sizeof_message);
    while (rc == 0 && span.at < span.end) {
        const uint8_t *at = span.at;
        uint64_t tag = 0;
        struct value value = {0, {NULL, NULL}};
        if (!take_short_varint(walk, &span, &tag))
            return malformed(walk, at, "a tag is cut short or longer than 10 bytes");
        uint64_t number = tag >> 3;
        if (number == 0 || number > 0x1FFFFFFF)
            return malformed(walk, at, "field number out of range");
        enum wire wire = (enum wire)(tag & 7);
        rc = take_value(walk, &span, wire, &value);
        if (rc == 0)
            rc = charge(walk, SCANNED_FIELD_BYTES);
        if (rc != 0)
            return rc;
        const ProtobufCFieldDescriptor *field = find_field(descriptor, number);
        walk->fill.odd |= field == NULL;
        if (field != NULL) {
            rc = charge_again(walk, descriptor, field, (size_t)(span.at - start), &seen);
            if (rc == 0)
                rc = check_known(walk, field, message, wire, at, &value);
        } else if (++walk->n_unknown > RPC_MESSAGE_MAX_UNKNOWN_FIELDS) {
            rc = malformed(walk, at, "more than 1024 unknown fields");
        } else {
            rc = charge(walk, UNKNOWN_FIELD_BYTES + (size_t)(span.at - at));
        }
    }
    return rc;
}

/* An allocator that records a failure: unpack also returns NULL for malformed messages. */
struct recording {
    struct arena *arena; /* NULL: the heap */
    bool failed;
};

static void *recording_alloc(void *data, size_t n_bytes)
{
    struct recording *recording = data;
    void *memory =
        recording->arena != NULL ? arena_alloc(recording->arena, n_bytes) : malloc(n_bytes);
    recording->failed = recording->failed || memory == NULL;
    return memory;
}

static void recording_free(void *data, void *memory)
{
    if (((struct recording *)data)->arena == NULL)
        free(memory);
}

int rpc_message_parse_in(struct arena *arena, const ProtobufCMessageDescriptor *descriptor,
                         const void *bytes, size_t n_bytes, ProtobufCMessage **out_message,
                         struct error *err)
{
    static const uint8_t nothing[1];
    const uint8_t *start = n_bytes > 0 ? bytes : nothing;
    struct walk walk = {.root = descriptor, .start = start, .err = err};
    ProtobufCMessage *filled = NULL;
    if (arena != NULL) {
        walk.fill.arena = arena;
        filled = rpc_fill_root(&walk.fill, descriptor);
    }
    int rc = walk_message(&walk, descriptor, filled, (struct span){start, start + n_bytes});
    if (rc != 0)
        return rc;
    if (filled != NULL && !walk.fill.odd) {
        *out_message = filled;
        return 0;
    }
    struct recording recording = {.arena = arena};
    ProtobufCAllocator allocator = {recording_alloc, recording_free, &recording};
    ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, &allocator, n_bytes, start);
    if (message == NULL && recording.failed)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "%s: no memory to decode the message",
                         descriptor->name);
    if (message == NULL) {
        error_set(err, STATUS_INVALID_ARGUMENT, "%s cannot be decoded", descriptor->name);
        return error_reason(err, REASON_MESSAGE_MALFORMED);
    }
    *out_message = message;
    return 0;
}

int rpc_message_parse(const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                      size_t n_bytes, ProtobufCMessage **out_message, struct error *err)
{
    return rpc_message_parse_in(NULL, descriptor, bytes, n_bytes, out_message, err);
}

void rpc_message_free(ProtobufCMessage *message)
{
    if (message != NULL)
        protobuf_c_message_free_unpacked(message, NULL);
}

int rpc_message_pack(const ProtobufCMessage *message, void **out_bytes, size_t *out_n_bytes,
                     struct error *err)
{
    size_t n_bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(n_bytes > 0 ? n_bytes : 1);
    if (bytes == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a message of %zu bytes",
                         n_bytes);
    *out_n_bytes = protobuf_c_message_pack(message, bytes);
    *out_bytes = bytes;
    return 0;
}

size_t rpc_message_value_bytes(ProtobufCType type)
{
    if (type == PROTOBUF_C_TYPE_BYTES)
        return sizeof(ProtobufCBinaryData);
    size_t n_bytes = number_bytes(type);
    return n_bytes > 0 ? n_bytes : sizeof(void *); /* a string or a message */
}
