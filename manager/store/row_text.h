/* row_text.h: messages and rows as people read them. Any thread. */
#pragma once

#include "manager/base/pb.h"

struct row;
struct strbuf;

/* Appends "; name is VALUE, asked VALUE" for each field that says another thing in `wanted` than in
 * `is`, of the same type; NULL is the same as nothing set. Names begin with `prefix`. */
void row_message_differences(const ProtobufCMessage *is, const ProtobufCMessage *wanted,
                             const char *prefix, struct strbuf *out);

/* Appends " name=value" for each column, and each field of the rest that a caller can
 * have asked for, that differs from `other`'s, or where that is NULL for each that says something;
 * keys, generations and times are left out. " ..." where nothing is left. For people. */
void row_differences(const struct row *row, const struct row *other, struct strbuf *out);
