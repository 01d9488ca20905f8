#include "clients/cli/term/printable.h"

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/strbuf.h"

/* Returns the bytes of the control character at `at`, or 0. A carriage return before a newline is
 * no control character; alone it would overwrite the line. */
static size_t control_bytes(const unsigned char *at)
{
    if (at[0] == '\n' || at[0] == '\t' || (at[0] == '\r' && at[1] == '\n'))
        return 0;
    if (at[0] == 0xC2 && at[1] >= 0x80 && at[1] < 0xA0)
        return 2;
    return at[0] < 0x20 || at[0] == 0x7F;
}

void printable_add(struct strbuf *out, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        size_t n_plain = 0, n = 0;
        while (at[n_plain] && (n = control_bytes(at + n_plain)) == 0)
            n_plain++;
        strbuf_add(out, at, n_plain);
        at += n_plain;
        if (n)
            strbuf_printf(out, n == 1 ? "\\x%02X" : "\\u%04X", at[n - 1]);
        at += n;
    }
}

void printable_write(FILE *out, const char *text)
{
    struct strbuf shown;
    if (!isatty(fileno(out))) {
        fputs(text, out);
        return;
    }
    strbuf_init(&shown, 0);
    printable_add(&shown, text);
    fputs(strbuf_str(&shown), out);
    strbuf_fini(&shown);
}

static void blank_string(char *text)
{
    for (unsigned char *at = (unsigned char *)text; at && *at;) {
        size_t n = control_bytes(at);
        memset(at, '?', n);
        at += n ? n : 1;
    }
}

static void blank_fields(ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        char *base = (char *)message;
        bool repeated = field->label == PROTOBUF_C_LABEL_REPEATED;
        bool oneof = (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
        bool text = field->type == PROTOBUF_C_TYPE_STRING;
        if ((!text && field->type != PROTOBUF_C_TYPE_MESSAGE) ||
            (oneof &&
             *(const uint32_t *)(const void *)(base + field->quantifier_offset) != field->id))
            continue;
        size_t n = repeated ? *(const size_t *)(const void *)(base + field->quantifier_offset) : 1;
        void *at = base + field->offset;
        void **values = repeated ? *(void ***)at : at;
        for (size_t j = 0; j < n; j++)
            if (text)
                blank_string(values[j]);
            else if (values[j])
                blank_fields(values[j]);
    }
}

void printable_message(ProtobufCMessage *message)
{
    if (isatty(STDOUT_FILENO))
        blank_fields(message);
}
