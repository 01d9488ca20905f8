/* proto_tool.c: build-time helper between protoc and protoc-c; not part of the product.
 *
 *   proto_tool strip SET OUT            copy a FileDescriptorSet with proto3_optional cleared
 *   proto_tool presence SET NAME.proto FILE.pb-c.h FILE.pb-c.c
 *                                       give optional fields protobuf-c's has_ members
 *   proto_tool embed SET OUT.c SYMBOL   write the set as a C array
 *
 * protoc-c 1.4.1 refuses proto3 `optional`. Without the mark such a field is a oneof with one
 * member, as on the wire. For that, protoc-c generates `_x_case` and an anonymous union.
 * `presence` rewrites these to `protobuf_c_boolean has_x` and a descriptor row with label
 * OPTIONAL, which is protobuf-c's own form of presence. If a row is not found, the build fails. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
    uint8_t *data;
    size_t n_bytes, capacity;
};

struct field {
    uint32_t number, wire_type;
    const uint8_t *start;   /* start of the tag */
    const uint8_t *payload; /* bytes of a length-delimited field */
    size_t n_payload;
    uint64_t value; /* value of a varint field */
};

/* Kinds of messages in descriptor.proto that are walked. */
enum kind { KIND_SET, KIND_FILE, KIND_MESSAGE, KIND_FIELD, KIND_OTHER };

enum { FIELD_PROTO3_OPTIONAL = 17, MAX_OPTIONAL = 1024, MAX_NAME = 128 };

static _Noreturn void die(const char *what, const char *about)
{
    fprintf(stderr, "proto_tool: %s: %s\n", what, about);
    exit(1);
}

static void add(struct bytes *to, const void *data, size_t n_bytes)
{
    if (to->n_bytes + n_bytes > to->capacity) {
        to->capacity = (to->n_bytes + n_bytes) * 2 + 256;
        to->data = realloc(to->data, to->capacity);
        if (to->data == NULL)
            die("memory", "exhausted");
    }
    if (n_bytes > 0 && to->data != NULL)
        memcpy(to->data + to->n_bytes, data, n_bytes);
    to->n_bytes += n_bytes;
}

static void add_varint(struct bytes *to, uint64_t value)
{
    uint8_t text[10];
    size_t n = 0;
    do {
        text[n] = (uint8_t)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
        value >>= 7;
        n++;
    } while (value > 0);
    add(to, text, n);
}

static struct bytes read_file(const char *path)
{
    struct bytes content = {0};
    uint8_t block[65536];
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        die("cannot open", path);
    for (size_t n; (n = fread(block, 1, sizeof(block), file)) > 0;)
        add(&content, block, n);
    if (ferror(file))
        die("cannot read", path);
    fclose(file);
    return content;
}

static void write_file(const char *path, const struct bytes *content)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(content->data, 1, content->n_bytes, file) != content->n_bytes ||
        fclose(file) != 0)
        die("cannot write", path);
}

static uint64_t take_varint(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (*at == end)
            die("descriptor set", "cut short");
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80)
            return value;
    }
    die("descriptor set", "varint too long");
}

static bool next_field(const uint8_t **at, const uint8_t *end, struct field *out)
{
    if (*at == end)
        return false;
    memset(out, 0, sizeof(*out));
    out->start = *at;
    uint64_t tag = take_varint(at, end);
    out->number = (uint32_t)(tag >> 3);
    out->wire_type = (uint32_t)(tag & 7);
    size_t skip = 0;
    if (out->wire_type == 0) {
        out->value = take_varint(at, end);
    } else if (out->wire_type == 2) {
        skip = (size_t)take_varint(at, end);
        out->payload = *at;
        out->n_payload = skip;
    } else if (out->wire_type == 1 || out->wire_type == 5) {
        skip = out->wire_type == 1 ? 8 : 4;
    } else {
        die("descriptor set", "unknown wire type");
    }
    if (skip > (size_t)(end - *at))
        die("descriptor set", "cut short");
    *at += skip;
    return true;
}

static enum kind kind_of(enum kind parent, uint32_t number)
{
    switch (parent) {
    case KIND_SET:
        return number == 1 ? KIND_FILE : KIND_OTHER;
    case KIND_FILE:
        return number == 4 ? KIND_MESSAGE : number == 7 ? KIND_FIELD : KIND_OTHER;
    case KIND_MESSAGE:
        if (number == 3)
            return KIND_MESSAGE;
        return number == 2 || number == 6 ? KIND_FIELD : KIND_OTHER;
    default:
        return KIND_OTHER;
    }
}

static void strip(enum kind kind, const uint8_t *at, size_t n_bytes, struct bytes *out)
{
    const uint8_t *end = at + n_bytes;
    struct field field;
    while (next_field(&at, end, &field)) {
        enum kind child = field.wire_type == 2 ? kind_of(kind, field.number) : KIND_OTHER;
        if (kind == KIND_FIELD && field.number == FIELD_PROTO3_OPTIONAL)
            continue;
        if (child == KIND_OTHER) {
            add(out, field.start, (size_t)(at - field.start));
            continue;
        }
        struct bytes inner = {0};
        strip(child, field.payload, field.n_payload, &inner);
        add_varint(out, (uint64_t)field.number << 3 | 2);
        add_varint(out, inner.n_bytes);
        add(out, inner.data, inner.n_bytes);
        free(inner.data);
    }
}

/* Names of the optional fields of a file; a name occurs once for each field with that name. */
struct names {
    char name[MAX_OPTIONAL][MAX_NAME];
    size_t n;
};

static void copy_name(char out[MAX_NAME], const struct field *field)
{
    if (field->payload == NULL || field->n_payload >= MAX_NAME)
        die("a name is missing or too long", "in a descriptor");
    memcpy(out, field->payload, field->n_payload);
    out[field->n_payload] = '\0';
}

static void collect_optional(enum kind kind, const uint8_t *at, size_t n_bytes, struct names *out)
{
    const uint8_t *end = at + n_bytes;
    struct field field;
    char name[MAX_NAME] = "";
    bool optional = false;
    while (next_field(&at, end, &field)) {
        enum kind child = field.wire_type == 2 ? kind_of(kind, field.number) : KIND_OTHER;
        if (child != KIND_OTHER)
            collect_optional(child, field.payload, field.n_payload, out);
        if (kind == KIND_FIELD && field.number == 1)
            copy_name(name, &field);
        if (kind == KIND_FIELD && field.number == FIELD_PROTO3_OPTIONAL)
            optional = field.value != 0;
    }
    if (!optional)
        return;
    if (out->n == MAX_OPTIONAL)
        die("too many optional fields near", name);
    memcpy(out->name[out->n++], name, MAX_NAME);
}

static void file_optionals(const struct bytes *set, const char *file_name, struct names *out)
{
    const uint8_t *at = set->data;
    struct field file;
    while (next_field(&at, set->data + set->n_bytes, &file)) {
        const uint8_t *inner = file.payload;
        struct field field;
        char name[MAX_NAME] = "";
        while (next_field(&inner, file.payload + file.n_payload, &field))
            if (field.number == 1)
                copy_name(name, &field);
        if (strcmp(name, file_name) == 0) {
            collect_optional(KIND_FILE, file.payload, file.n_payload, out);
            return;
        }
    }
    die("no such file in the set", file_name);
}

static bool is_optional(const struct names *names, const char *name, size_t n_bytes)
{
    for (size_t i = 0; i < names->n; i++)
        if (strlen(names->name[i]) == n_bytes && memcmp(names->name[i], name, n_bytes) == 0)
            return true;
    return false;
}

/* Returns the field's name if `text` contains "_<name>_case<after>", else NULL. Only names of
 * `optional` fields count; the case of a real oneof has no leading underscore. */
static const char *case_member(const struct names *names, const char *text, char after,
                               size_t *out_n_name)
{
    static const char suffix[] = "_case";
    for (const char *at = strstr(text, suffix); at != NULL; at = strstr(at + 1, suffix)) {
        if (at[sizeof(suffix) - 1] != after)
            continue;
        const char *start = at;
        while (start > text && (start[-1] == '_' || (start[-1] >= 'a' && start[-1] <= 'z') ||
                                (start[-1] >= '0' && start[-1] <= '9')))
            start--;
        if (*start == '_' && is_optional(names, start + 1, (size_t)(at - start - 1))) {
            *out_n_name = (size_t)(at - start - 1);
            return start + 1;
        }
    }
    return NULL;
}

/* Calls `rewrite` for each line of a text; it may write a new line to `out`. Returns the number
 * of rewritten lines. */
typedef bool (*line_fn)(const struct names *names, char *line, struct bytes *out);

static size_t rewrite_lines(const struct bytes *in, const struct names *names, line_fn rewrite,
                            struct bytes *out)
{
    size_t n_rewritten = 0;
    const uint8_t *at = in->data, *end = in->data + in->n_bytes;
    while (at < end) {
        const uint8_t *stop = memchr(at, '\n', (size_t)(end - at));
        size_t n = stop != NULL ? (size_t)(stop - at) + 1 : (size_t)(end - at);
        char *line = calloc(1, n + 1);
        if (line == NULL)
            die("memory", "exhausted");
        memcpy(line, at, n);
        if (rewrite(names, line, out))
            n_rewritten++;
        else
            add(out, line, n);
        free(line);
        at += n;
    }
    return n_rewritten;
}

/* "  Pkg__Message__XCase _x_case;" -> "  protobuf_c_boolean has_x;" */
static bool rewrite_member(const struct names *names, char *line, struct bytes *out)
{
    char text[MAX_NAME + 64];
    size_t n_name = 0;
    const char *name = case_member(names, line, ';', &n_name);
    if (name == NULL)
        return false;
    int n = snprintf(text, sizeof(text), "  protobuf_c_boolean has_%.*s;\n", (int)n_name, name);
    add(out, text, (size_t)n);
    return true;
}

static void add_replaced(struct bytes *out, const char *text, const char *old, const char *new)
{
    const char *at = strstr(text, old);
    if (at == NULL || strstr(at + 1, old) != NULL)
        die("unexpected line from protoc-c", text);
    add(out, text, (size_t)(at - text));
    add(out, new, strlen(new));
    add(out, at + strlen(old), strlen(at + strlen(old)));
}

/* "  offsetof(Pkg__Message, _x_case)," -> "... has_x)," */
static bool rewrite_offset(const struct names *names, char *line, struct bytes *out)
{
    char old[MAX_NAME + 16], new[MAX_NAME + 16];
    size_t n_name = 0;
    const char *name = case_member(names, line, ')', &n_name);
    if (name == NULL)
        return false;
    snprintf(old, sizeof(old), "_%.*s_case)", (int)n_name, name);
    snprintf(new, sizeof(new), "has_%.*s)", (int)n_name, name);
    add_replaced(out, line, old, new);
    return true;
}

/* Rewrites descriptor rows. A row spans lines: name, number, label, type, offset of the case,
 * offset of the member, ..., flags. Rows are rewritten as a whole, because the label comes
 * before the case. */
static size_t rewrite_rows(const struct bytes *in, const struct names *names, struct bytes *out)
{
    static const char row_start[] = "  {\n    \"";
    static const char row_end[] = "\n  },\n";
    size_t n_rewritten = 0;
    char *text = calloc(1, in->n_bytes + 1);
    if (text == NULL)
        die("memory", "exhausted");
    if (in->data != NULL)
        memcpy(text, in->data, in->n_bytes);
    char *at = text;
    for (char *row; (row = strstr(at, row_start)) != NULL;) {
        char *end = strstr(row, row_end);
        if (end == NULL)
            die("a descriptor row has no end", row);
        end += strlen(row_end);
        add(out, at, (size_t)(row - at));
        char saved = *end;
        *end = '\0';
        struct bytes row_bytes = {(uint8_t *)row, (size_t)(end - row), 0};
        struct bytes moved = {0}, labelled = {0};
        if (rewrite_lines(&row_bytes, names, rewrite_offset, &moved) == 1) {
            add(&moved, "", 1);
            add_replaced(&labelled, (char *)moved.data, "PROTOBUF_C_LABEL_NONE",
                         "PROTOBUF_C_LABEL_OPTIONAL");
            add(&labelled, "", 1);
            add_replaced(out, (char *)labelled.data, "0 | PROTOBUF_C_FIELD_FLAG_ONEOF", "0");
            n_rewritten++;
        } else {
            add(out, row, (size_t)(end - row));
        }
        free(moved.data);
        free(labelled.data);
        *end = saved;
        at = end;
    }
    add(out, at, strlen(at));
    free(text);
    return n_rewritten;
}

static void presence(const char *set_path, const char *proto, const char *header,
                     const char *source)
{
    static struct names names;
    struct bytes set = read_file(set_path), h = read_file(header), c = read_file(source);
    struct bytes new_h = {0}, new_c = {0};
    file_optionals(&set, proto, &names);
    if (rewrite_lines(&h, &names, rewrite_member, &new_h) != names.n)
        die("some optional field has no case member", header);
    if (rewrite_rows(&c, &names, &new_c) != names.n)
        die("some optional field has no descriptor row", source);
    write_file(header, &new_h);
    write_file(source, &new_c);
    free(set.data);
    free(h.data);
    free(c.data);
    free(new_h.data);
    free(new_c.data);
}

static void embed(const char *set_path, const char *out_path, const char *symbol)
{
    struct bytes set = read_file(set_path), out = {0};
    char text[256];
    int n = snprintf(text, sizeof(text),
                     "/* Made by proto_tool embed. */\n#include <stddef.h>\n"
                     "extern const unsigned char %s[];\nextern const size_t %s_bytes;\n"
                     "const unsigned char %s[] = {",
                     symbol, symbol, symbol);
    add(&out, text, (size_t)n);
    for (size_t i = 0; i < set.n_bytes; i++) {
        n = snprintf(text, sizeof(text), "%s%u,", i % 20 == 0 ? "\n" : "", set.data[i]);
        add(&out, text, (size_t)n);
    }
    n = snprintf(text, sizeof(text), "\n};\nconst size_t %s_bytes = %zu;\n", symbol, set.n_bytes);
    add(&out, text, (size_t)n);
    write_file(out_path, &out);
    free(set.data);
    free(out.data);
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "strip") == 0) {
        struct bytes set = read_file(argv[2]), out = {0};
        strip(KIND_SET, set.data, set.n_bytes, &out);
        write_file(argv[3], &out);
        free(set.data);
        free(out.data);
    } else if (argc == 6 && strcmp(argv[1], "presence") == 0) {
        presence(argv[2], argv[3], argv[4], argv[5]);
    } else if (argc == 5 && strcmp(argv[1], "embed") == 0) {
        embed(argv[2], argv[3], argv[4]);
    } else {
        fprintf(stderr, "usage: proto_tool strip|presence|embed ...\n");
        return 2;
    }
    return 0;
}
