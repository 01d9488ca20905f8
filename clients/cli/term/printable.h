/* printable.h: prints foreign text (of models, files, servers) safely on a terminal. Control
 * characters could move the cursor, set the title or type commands. Pipes and files get every byte
 * unchanged. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#include <protobuf-c/protobuf-c.h>

struct strbuf;

/* Appends the text. Control characters, except newlines and tabs, become \x1B and so on (U+0080 to
 * U+009F as \u009B). */
void printable_add(struct strbuf *out, const char *text);
/* Writes the text; to a terminal as printable_add does. */
void printable_write(FILE *out, const char *text);
/* If stdout is a terminal, replaces control characters in all strings of the message by '?'. */
void printable_message(ProtobufCMessage *message);
