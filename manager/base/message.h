/* message.h: building and copying protobuf-c messages. Rows and what travels between threads lie
 * on the heap, so that message_free() can free them. Answers and views lie in an arena. Any
 * thread; no shared state. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

struct arena;
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
/* The same with a copy of a text. */
MESSAGE_CHECKED bool message_append_text(size_t *n_items, char ***items_field, const char *text);

/* struct error to sluice.v1.Error (owned; NULL where memory is exhausted) and back. */
ProtobufCMessage *message_from_error(const struct error *err);
void message_to_error(const ProtobufCMessage *pb_error, struct error *out_err);

/* --- in an arena ---
 *
 * The end of the arena frees these messages, and message_free() must not. The arena notes a failed
 * allocation (arena->exhausted), so the end of the command checks it, and no step before. Then the
 * message is incomplete and must not be used: new messages are NULL, fields stay unchanged.
 * Everything inside is copied; a NULL source gives NULL or an empty text. */

void *message_new_in(struct arena *arena, const ProtobufCMessageDescriptor *descriptor);
void *message_copy_in(struct arena *arena, const void *source);
/* A text for a field, never NULL. */
char *message_text_in(struct arena *arena, const char *text);
char *message_printf_in(struct arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Appends a new message, a given one of the arena (NULL: nothing), or a copied text to a repeated
 * field. All its elements must come from these functions or from message_copy_in(). */
void *message_add_in(struct arena *arena, size_t *n_items, void *items_field,
                     const ProtobufCMessageDescriptor *descriptor);
void message_append_in(struct arena *arena, size_t *n_items, void *items_field, void *item);
void message_append_text_in(struct arena *arena, size_t *n_items, void *items_field,
                            const char *text);
/* struct error to sluice.v1.Error. */
void *message_from_error_in(struct arena *arena, const struct error *err);

/* --- the last packed form of a message, to notice changes --- */

/* Zeroed: there was no message yet. */
struct message_image {
    uint8_t *bytes; /* owned */
    size_t n_bytes;
};
enum message_change { MESSAGE_SAME, MESSAGE_CHANGED, MESSAGE_NO_MEMORY };
/* Compares `message` with the last one, and replaces the image by its packed form. */
enum message_change message_image_update(struct message_image *image,
                                         const ProtobufCMessage *message);
void message_image_fini(struct message_image *image);

#define MESSAGE_NEW(type, descriptor) ((type *)message_new(&(descriptor)))
#define MESSAGE_COPY(type, source)    ((type *)message_copy((source) ? &(source)->base : NULL))
