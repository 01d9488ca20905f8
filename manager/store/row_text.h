/* row_text.h: texts of messages and rows for people. Any thread. */
#pragma once

#include "manager/base/pb.h"

struct row;
struct strbuf;

/* Appends "; name is VALUE, asked VALUE" for each field that differs between `is` and `wanted`,
 * two messages of one type. NULL equals an empty message. Names begin with `prefix`. */
void row_message_differences(const ProtobufCMessage *is, const ProtobufCMessage *wanted,
                             const char *prefix, struct strbuf *out);

/* Appends " name=value" for each value of `row` that differs from `other`. With `other` NULL: for
 * each value that is set. Values are the columns, and the fields in the message that a request can
 * set. Keys, generations and times are left out. Appends " ..." if there is nothing to append. */
void row_differences(const struct row *row, const struct row *other, struct strbuf *out);
