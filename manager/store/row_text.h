/* row_text.h: messages and rows as people read them. Any thread. */
#pragma once

#include "manager/base/pb.h"

struct strbuf;

/* Appends "; name is VALUE, asked VALUE" for each field that says another thing in `wanted` than in
 * `is`, of the same type; NULL is the same as nothing set. Names begin with `prefix`. */
void message_differences(const ProtobufCMessage *is, const ProtobufCMessage *wanted,
                         const char *prefix, struct strbuf *out);
