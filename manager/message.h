/* message.h: building and copying protobuf-c messages on the heap, so that every message the
 * manager holds can be freed by message_free(). Any thread; no shared state. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

struct error;

/* A message with every field at its default; owned. NULL where memory is exhausted. */
ProtobufCMessage *message_new(const ProtobufCMessageDescriptor *descriptor);
/* A deep copy; owned. NULL where memory is exhausted. `message` NULL gives NULL. */
ProtobufCMessage *message_copy(const ProtobufCMessage *message);
void message_free(ProtobufCMessage *message); /* NULL is accepted */

/* Replaces a string field by a copy of `text` (NULL: empty). The field is left empty where memory
 * is exhausted, which a reader shows as "not known". */
void message_set(char **field, const char *text);

/* Appends `item` (takes, on success only) to a repeated field given by its count and array. */
bool message_append(size_t *n_items, void *items_field, void *item);

/* struct error to sluice.v1.Error (owned) and back. */
ProtobufCMessage *message_from_error(const struct error *err);
void message_to_error(const ProtobufCMessage *pb_error, struct error *out_err);

#define MESSAGE_NEW(type, descriptor) ((type *)message_new(&(descriptor)))
#define MESSAGE_COPY(type, source)    ((type *)message_copy((source) ? &(source)->base : NULL))
