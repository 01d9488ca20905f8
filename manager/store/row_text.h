/* row_text.h: texts of messages and rows for people. Any thread. */
#pragma once

#include "manager/base/pb.h"

struct row;
struct strbuf;

/* Appends "; name is VALUE, asked VALUE" for each field that differs between `is` and `wanted`,
 * two messages of one type. NULL equals an empty message. Names begin with `prefix`. */
void row_message_differences(const ProtobufCMessage *is, const ProtobufCMessage *wanted,
                             const char *prefix, struct strbuf *out);

/* Appends " name=value" for each column and each requestable field of the packed rest that
 * differs from `other`. `other` NULL: for each that is set. Keys, generations and times are left
 * out; " ..." where nothing remains. */
void row_differences(const struct row *row, const struct row *other, struct strbuf *out);
