#include "proto/rpc/message/schema.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash_map.h"

/* Made by proto_tool from the .proto files. */
extern const unsigned char sluice_descriptor_set[];
extern const size_t sluice_descriptor_set_bytes;

enum { MAX_SYMBOL_BYTES = 256, MAX_IMPORTS = 64 };

/* Field numbers of descriptor.proto. */
enum {
    SET_FILE = 1,
    FILE_NAME = 1,
    FILE_PACKAGE = 2,
    FILE_DEPENDENCY = 3,
    FILE_MESSAGE = 4,
    FILE_ENUM = 5,
    FILE_SERVICE = 6,
    MESSAGE_FIELD = 2,
    MESSAGE_NESTED = 3,
    MESSAGE_ENUM = 4,
    MESSAGE_ONEOF = 8,
    ENUM_VALUE = 2,
    SERVICE_METHOD = 2,
    ANY_NAME = 1,
    METHOD_CLIENT_STREAMING = 5,
    METHOD_SERVER_STREAMING = 6,
};

struct rpc_schema {
    struct rpc_schema_file *files;
    size_t n_files;
    struct hash_map by_name;   /* values: index + 1 */
    struct hash_map by_symbol; /* values: index + 1 of the declaring file */
    struct hash_map messages;  /* values: index + 1 of the declaring file */
    struct hash_map shapes;    /* "package.Service/Method" → shape + 1 */
};

struct item {
    uint32_t number;
    uint64_t value;       /* of a varint */
    const uint8_t *bytes; /* of a length-delimited field */
    size_t n_bytes;
};

struct cursor {
    const uint8_t *at, *end;
};

/* The set was made at build time, so a malformed one is answered by simply ending early. */
static bool take_varint(struct cursor *cursor, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && cursor->at < cursor->end; shift += 7) {
        uint8_t byte = *cursor->at++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool next_item(struct cursor *cursor, struct item *out)
{
    uint64_t tag = 0, value = 0;
    if (!take_varint(cursor, &tag))
        return false;
    *out = (struct item){.number = (uint32_t)(tag >> 3)};
    size_t skip = (tag & 7) == 1 ? 8 : (tag & 7) == 5 ? 4 : 0;
    if (((tag & 7) == 0 || (tag & 7) == 2) && !take_varint(cursor, &value))
        return false;
    if ((tag & 7) == 2)
        skip = value;
    if (skip > (size_t)(cursor->end - cursor->at))
        return false;
    out->value = value;
    out->bytes = cursor->at;
    out->n_bytes = skip;
    cursor->at += skip;
    return true;
}

static struct cursor inside(const struct item *item)
{
    return (struct cursor){item->bytes, item->bytes + item->n_bytes};
}

static void *index_value(size_t index)
{
    return (void *)(uintptr_t)(index + 1);
}

static size_t value_index(const void *value)
{
    return value != NULL ? (size_t)(uintptr_t)value - 1 : SIZE_MAX;
}

/* "scope.name"; false where it does not fit. */
static bool join(char out[MAX_SYMBOL_BYTES], const char *scope, char separator, const char *name)
{
    int n = scope[0] == '\0' ? snprintf(out, MAX_SYMBOL_BYTES, "%s", name)
                             : snprintf(out, MAX_SYMBOL_BYTES, "%s%c%s", scope, separator, name);
    return n > 0 && n < MAX_SYMBOL_BYTES;
}

static bool declaration_name(struct cursor cursor, char out[MAX_SYMBOL_BYTES])
{
    struct item item;
    while (next_item(&cursor, &item)) {
        if (item.number != ANY_NAME || item.n_bytes >= MAX_SYMBOL_BYTES)
            continue;
        memcpy(out, item.bytes, item.n_bytes);
        out[item.n_bytes] = '\0';
        return true;
    }
    return false;
}

/* Declares scope.name for a file; *out_symbol is the full name. */
static bool declare(struct rpc_schema *schema, size_t i_file, const char *scope, struct item *item,
                    char out_symbol[MAX_SYMBOL_BYTES])
{
    char name[MAX_SYMBOL_BYTES];
    return declaration_name(inside(item), name) && join(out_symbol, scope, '.', name) &&
           hash_map_put_str(&schema->by_symbol, out_symbol, index_value(i_file));
}

static bool index_enum(struct rpc_schema *schema, size_t i_file, const char *scope,
                       struct item *item)
{
    char symbol[MAX_SYMBOL_BYTES];
    struct cursor cursor = inside(item);
    struct item value;
    bool ok = declare(schema, i_file, scope, item, symbol);
    /* Values of an enum are siblings of the enum, not members. */
    while (ok && next_item(&cursor, &value))
        if (value.number == ENUM_VALUE)
            ok = declare(schema, i_file, scope, &value, symbol);
    return ok;
}

static bool index_message(struct rpc_schema *schema, size_t i_file, const char *scope,
                          struct item *item)
{
    char symbol[MAX_SYMBOL_BYTES], inner[MAX_SYMBOL_BYTES];
    struct cursor cursor = inside(item);
    struct item member;
    bool ok = declare(schema, i_file, scope, item, symbol) &&
              hash_map_put_str(&schema->messages, symbol, index_value(i_file));
    while (ok && next_item(&cursor, &member)) {
        if (member.number == MESSAGE_NESTED)
            ok = index_message(schema, i_file, symbol, &member);
        else if (member.number == MESSAGE_ENUM)
            ok = index_enum(schema, i_file, symbol, &member);
        else if (member.number == MESSAGE_FIELD || member.number == MESSAGE_ONEOF)
            ok = declare(schema, i_file, symbol, &member, inner);
    }
    return ok;
}

static bool index_method(struct rpc_schema *schema, const char *service, struct item *item)
{
    char name[MAX_SYMBOL_BYTES], path[MAX_SYMBOL_BYTES];
    struct cursor cursor = inside(item);
    struct item field;
    bool client = false, server = false;
    while (next_item(&cursor, &field)) {
        client |= field.number == METHOD_CLIENT_STREAMING && field.value != 0;
        server |= field.number == METHOD_SERVER_STREAMING && field.value != 0;
    }
    enum rpc_shape shape = client && server ? RPC_SHAPE_BIDI
                           : client         ? RPC_SHAPE_CLIENT_STREAM
                           : server         ? RPC_SHAPE_SERVER_STREAM
                                            : RPC_SHAPE_UNARY;
    return declaration_name(inside(item), name) && join(path, service, '/', name) &&
           hash_map_put_str(&schema->shapes, path, index_value(shape));
}

static bool index_service(struct rpc_schema *schema, size_t i_file, const char *scope,
                          struct item *item)
{
    char symbol[MAX_SYMBOL_BYTES], method[MAX_SYMBOL_BYTES];
    struct cursor cursor = inside(item);
    struct item member;
    bool ok = declare(schema, i_file, scope, item, symbol);
    while (ok && next_item(&cursor, &member))
        if (member.number == SERVICE_METHOD)
            ok = declare(schema, i_file, symbol, &member, method) &&
                 index_method(schema, symbol, &member);
    return ok;
}

static char *copy_text(const struct item *item)
{
    char *text = malloc(item->n_bytes + 1);
    if (text == NULL)
        return NULL;
    memcpy(text, item->bytes, item->n_bytes);
    text[item->n_bytes] = '\0';
    return text;
}

static bool index_symbols(struct rpc_schema *schema, size_t i_file, const char *package)
{
    const struct rpc_schema_file *file = &schema->files[i_file];
    struct cursor cursor = {file->bytes, file->bytes + file->n_bytes};
    struct item item;
    bool ok = true;
    while (ok && next_item(&cursor, &item)) {
        if (item.number == FILE_MESSAGE)
            ok = index_message(schema, i_file, package, &item);
        else if (item.number == FILE_ENUM)
            ok = index_enum(schema, i_file, package, &item);
        else if (item.number == FILE_SERVICE)
            ok = index_service(schema, i_file, package, &item);
    }
    return ok;
}

/* Files come after their imports in a set made with --include_imports. */
static bool index_file(struct rpc_schema *schema, struct item *item)
{
    struct rpc_schema_file *file = &schema->files[schema->n_files];
    struct cursor cursor = inside(item);
    struct item field;
    size_t imports[MAX_IMPORTS];
    char *package = NULL;
    file->bytes = item->bytes;
    file->n_bytes = item->n_bytes;
    size_t i_file = schema->n_files++;
    while (next_item(&cursor, &field)) {
        char *text = field.number <= FILE_DEPENDENCY ? copy_text(&field) : NULL;
        if (field.number == FILE_NAME && file->name == NULL) {
            file->name = text;
            continue;
        }
        if (field.number == FILE_PACKAGE && package == NULL) {
            package = text;
            continue;
        }
        if (field.number == FILE_DEPENDENCY && text != NULL && file->n_imports < MAX_IMPORTS)
            imports[file->n_imports++] = rpc_schema_find_file(schema, text);
        free(text);
    }
    size_t *copy = malloc((file->n_imports + 1) * sizeof(*copy));
    if (copy != NULL && file->n_imports > 0)
        memcpy(copy, imports, file->n_imports * sizeof(*copy));
    file->imports = copy;
    bool ok = copy != NULL && file->name != NULL &&
              hash_map_put_str(&schema->by_name, file->name, index_value(i_file)) &&
              index_symbols(schema, i_file, package != NULL ? package : "");
    free(package);
    return ok;
}

int rpc_schema_create(struct rpc_schema **out_schema, struct error *err)
{
    struct cursor cursor = {sluice_descriptor_set,
                            sluice_descriptor_set + sluice_descriptor_set_bytes};
    struct rpc_schema *schema = calloc(1, sizeof(*schema));
    struct item item;
    size_t n_files = 0;
    while (next_item(&cursor, &item))
        n_files += item.number == SET_FILE;
    if (schema != NULL)
        schema->files = calloc(n_files + 1, sizeof(*schema->files));
    bool ok = schema != NULL && schema->files != NULL;
    cursor.at = sluice_descriptor_set;
    while (ok && next_item(&cursor, &item))
        if (item.number == SET_FILE)
            ok = index_file(schema, &item);
    if (!ok) {
        rpc_schema_destroy(schema);
        return error_set(err, STATUS_INTERNAL, "the embedded descriptor set cannot be indexed");
    }
    *out_schema = schema;
    return 0;
}

void rpc_schema_destroy(struct rpc_schema *schema)
{
    if (schema == NULL)
        return;
    for (size_t i = 0; i < schema->n_files; i++) {
        free((void *)(uintptr_t)schema->files[i].name);
        free((void *)(uintptr_t)schema->files[i].imports);
    }
    free(schema->files);
    hash_map_fini(&schema->by_name);
    hash_map_fini(&schema->by_symbol);
    hash_map_fini(&schema->messages);
    hash_map_fini(&schema->shapes);
    free(schema);
}

size_t rpc_schema_n_files(const struct rpc_schema *schema)
{
    return schema->n_files;
}

const struct rpc_schema_file *rpc_schema_file(const struct rpc_schema *schema, size_t i_file)
{
    return &schema->files[i_file];
}

size_t rpc_schema_find_file(const struct rpc_schema *schema, const char *name)
{
    return value_index(hash_map_get_str(&schema->by_name, name));
}

size_t rpc_schema_find_symbol(const struct rpc_schema *schema, const char *symbol)
{
    return value_index(hash_map_get_str(&schema->by_symbol, symbol));
}

bool rpc_schema_is_message(const struct rpc_schema *schema, const char *symbol)
{
    return hash_map_get_str(&schema->messages, symbol) != NULL;
}

int rpc_schema_method_shape(const struct rpc_schema *schema, const char *service,
                            const char *method)
{
    char path[MAX_SYMBOL_BYTES];
    if (!join(path, service, '/', method))
        return -1;
    size_t shape = value_index(hash_map_get_str(&schema->shapes, path));
    return shape == SIZE_MAX ? -1 : (int)shape;
}
