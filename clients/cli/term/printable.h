/* printable.h: what others wrote (models, their files, servers) on a person's terminal: without the
 * control characters by which it could move the cursor, set the title or type commands. Pipes and
 * files get every byte as it is. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include <protobuf-c/protobuf-c.h>

struct strbuf;

/* Appends the text with its control characters, save newlines and tabs, as \x1B (U+0080 to U+009F
 * as \u009B). */
void printable_add(struct strbuf *out, const char *text);
/* Writes the text; so where `out` is a terminal. */
void printable_write(FILE *out, const char *text);
/* Where stdout is a terminal: control characters in all strings of the message become '?'. */
void printable_message(ProtobufCMessage *message);
