/* message.h: building protobuf messages in an arena, and printing them for people. A message and
 * all it points to live as long as the arena; nothing in it is freed on its own. */
#pragma once

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "base/arena.h"
#include "sluice/v1/common.pb-c.h"

struct error;
struct strbuf;

/* A copy for a string field; the empty string of protobuf-c for NULL, "" or no memory. */
char *message_text(struct arena *arena, const char *text);
char *message_text_n(struct arena *arena, const char *text, size_t n_bytes);
/* The same for what a model wrote: it may hold a NUL, which would end the field there; each becomes
 * U+001A (SUBSTITUTE), which is as long, so that a resume counts the same bytes. */
char *message_model_text(struct arena *arena, const char *text, size_t n_bytes);

/* NULL where there is no memory. */
Sluice__V1__Error *message_error(struct arena *arena, const struct error *err);

/* Deep copy (rpc_message_free), or NULL. */
ProtobufCMessage *message_copy(const ProtobufCMessage *message);

/* Appends one "name: value" line per field that is set, nested messages indented, bytes and long
 * strings cut. */
void message_print(const ProtobufCMessage *message, unsigned indent, struct strbuf *out);
