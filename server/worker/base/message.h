/* message.h: builds protobuf messages in an arena, and prints them for people. A message and its
 * parts live as long as the arena and are not freed separately. */
#pragma once

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "base/arena.h"
#include "sluice/v1/common.pb-c.h"

struct error;
struct strbuf;

/* Returns a copy for a string field; protobuf-c's empty string for NULL, "" or exhausted memory. */
char *message_text(struct arena *arena, const char *text);
char *message_text_n(struct arena *arena, const char *text, size_t n_bytes);
/* Like message_text_n, for text of a model. A NUL would end the field, so each NUL becomes
 * U+001A (SUBSTITUTE). That has the same length, so a resume counts the same bytes. */
char *message_model_text(struct arena *arena, const char *text, size_t n_bytes);

/* Returns NULL if memory is exhausted. */
Sluice__V1__Error *message_error(struct arena *arena, const struct error *err);

/* Returns a deep copy (rpc_message_free), or NULL. */
ProtobufCMessage *message_copy(const ProtobufCMessage *message);

/* Appends a line "name: value" for each field that is set. Nested messages are indented; bytes
 * and long strings are cut. */
void message_print(const ProtobufCMessage *message, unsigned indent, struct strbuf *out);
