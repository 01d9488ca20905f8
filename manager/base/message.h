/* message.h: building and copying protobuf-c messages on the heap, so that message_free() can
 * free every message of the manager. Any thread; no shared state. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct error;

/* An unchecked failure would leave a row or an answer incomplete, so the compiler warns. */
#define MESSAGE_CHECKED __attribute__((warn_unused_result))

/* A message with every field at its default; owned. NULL where memory is exhausted. */
ProtobufCMessage *message_new(const ProtobufCMessageDescriptor *descriptor);
/* A deep copy; owned. NULL where memory is exhausted. `message` NULL gives NULL. */
ProtobufCMessage *message_copy(const ProtobufCMessage *message);
/* Unpacks bytes; *out_message is owned. Errors: RESOURCE_EXHAUSTED, or DATA_LOSS ("WHAT cannot
 * be decoded"). */
int message_unpack(const ProtobufCMessageDescriptor *descriptor, const char *what,
                   const uint8_t *bytes, size_t n_bytes, ProtobufCMessage **out_message,
                   struct error *err);
void message_free(ProtobufCMessage *message); /* NULL is accepted */

/* Replaces a string field by a copy of `text` (NULL: empty). False where memory is exhausted;
 * the field is then unchanged. */
MESSAGE_CHECKED bool message_set(char **field, const char *text);
void message_clear(char **field); /* makes the field empty; needs no memory */

/* Replaces a message field by a deep copy of `source` (a message, or NULL to clear the field).
 * Fails like message_set(). */
MESSAGE_CHECKED bool message_set_copy(void *field, const void *source);

/* Appends `item` (takes, on success only) to a repeated field given by its count and array. */
MESSAGE_CHECKED bool message_append(size_t *n_items, void *items_field, void *item);
/* The same with a copy of a text or of a message. */
MESSAGE_CHECKED bool message_append_text(size_t *n_items, char ***items_field, const char *text);
MESSAGE_CHECKED bool message_append_copy(size_t *n_items, void *items_field, const void *source);

/* struct error to sluice.v1.Error (owned; NULL where memory is exhausted) and back. */
ProtobufCMessage *message_from_error(const struct error *err);
void message_to_error(const ProtobufCMessage *pb_error, struct error *out_err);

#define MESSAGE_NEW(type, descriptor) ((type *)message_new(&(descriptor)))
#define MESSAGE_COPY(type, source)    ((type *)message_copy((source) ? &(source)->base : NULL))
