#include "clients/cli/term/output.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>
#include <openssl/evp.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/utf8.h"
#include "proto/rpc/message/message.h"

void output_table_init(struct output_table *table, size_t n_columns, const char *const *headers)
{
    *table = (struct output_table){.n_columns = n_columns};
    output_table_add(table, headers);
}

void output_table_add(struct output_table *table, const char *const *cells)
{
    if (table->n_rows == table->capacity) {
        size_t capacity = table->capacity ? table->capacity * 2 : 16;
        char **grown = realloc(table->cells, capacity * table->n_columns * sizeof(*grown));
        if (!grown)
            return;
        table->cells = grown;
        table->capacity = capacity;
    }
    for (size_t i = 0; i < table->n_columns; i++)
        table->cells[table->n_rows * table->n_columns + i] =
            strdup(cells[i] && cells[i][0] ? cells[i] : "-");
    table->n_rows++;
}

static size_t display_width(const char *text)
{
    size_t n = 0;
    for (const char *p = text; *p; p++)
        n += ((unsigned char)*p & 0xC0) != 0x80;
    return n;
}

/* True if the column may be left out, and no row has a text there. */
static bool is_hidden(const struct output_table *table, size_t column)
{
    if (!(table->optional >> column & 1))
        return false;
    for (size_t r = 1; r < table->n_rows; r++) {
        const char *cell = table->cells[r * table->n_columns + column];
        if (cell && strcmp(cell, "-") != 0)
            return false;
    }
    return true;
}

void output_table_print(const struct output_table *table)
{
    size_t widths[OUTPUT_TABLE_MAX_COLUMNS] = {0};
    for (size_t r = 0; r < table->n_rows; r++)
        for (size_t c = 0; c < table->n_columns; c++) {
            const char *cell = table->cells[r * table->n_columns + c];
            size_t width = cell ? display_width(cell) : 0;
            if (width > widths[c])
                widths[c] = width;
        }
    for (size_t r = 0; r < table->n_rows; r++) {
        for (size_t c = 0; c < table->n_columns; c++) {
            const char *cell = table->cells[r * table->n_columns + c];
            if (is_hidden(table, c))
                continue;
            cell = cell ? cell : "";
            fputs(cell, stdout);
            if (c + 1 < table->n_columns)
                printf("%*s", (int)(widths[c] - display_width(cell)) + 2, "");
        }
        fputc('\n', stdout);
    }
}

void output_table_fini(struct output_table *table)
{
    for (size_t i = 0; i < table->n_rows * table->n_columns; i++)
        free(table->cells[i]);
    free(table->cells);
    *table = (struct output_table){0};
}

const char *output_age(int64_t unix_ns, char out[32])
{
    int64_t age = clock_wall_ns() - unix_ns;
    if (unix_ns <= 0)
        snprintf(out, 32, "-");
    else
        format_ms(age > 0 ? (uint64_t)(age / NS_PER_MS) : 0, out);
    return out;
}

const char *output_enum(const ProtobufCEnumDescriptor *descriptor, int value, char out[32])
{
    const ProtobufCEnumValue *found = protobuf_c_enum_descriptor_get_value(descriptor, value);
    if (!found) {
        snprintf(out, 32, "%d", value);
        return out;
    }
    /* Skip the enum's own name in upper snake case: one underscore for each of its words. */
    const char *name = found->name;
    size_t humps = 0;
    for (const char *p = descriptor->short_name; *p; p++)
        humps += isupper((unsigned char)*p) != 0;
    for (; humps && strchr(name, '_'); humps--)
        name = strchr(name, '_') + 1;
    snprintf(out, 32, "%s", name);
    for (char *p = out; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return out;
}

static json_t *message_json(const ProtobufCMessage *message);

static json_t *bytes_json(const ProtobufCBinaryData *bytes)
{
    char *text = malloc(bytes->len / 3 * 4 + 8);
    if (!text)
        return json_null();
    int n = EVP_EncodeBlock((unsigned char *)text, bytes->data, (int)bytes->len);
    json_t *value = json_stringn(text, n > 0 ? (size_t)n : 0);
    free(text);
    return value;
}

static json_t *scalar_json(const ProtobufCFieldDescriptor *field, const void *at)
{
    switch (field->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return json_integer(*(const int32_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
        return json_integer(*(const uint32_t *)at);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return json_integer((json_int_t) * (const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64: {
        uint64_t value = *(const uint64_t *)at;
        char text[24];
        snprintf(text, sizeof(text), "%" PRIu64, value);
        return value <= INT64_MAX ? json_integer((json_int_t)value) : json_string(text);
    }
    case PROTOBUF_C_TYPE_FLOAT:
        return isfinite(*(const float *)at) ? json_real((double)*(const float *)at) : json_null();
    case PROTOBUF_C_TYPE_DOUBLE:
        return isfinite(*(const double *)at) ? json_real(*(const double *)at) : json_null();
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumValue *value =
            protobuf_c_enum_descriptor_get_value(field->descriptor, *(const int *)at);
        return value ? json_string(value->name) : json_integer(*(const int *)at);
    }
    case PROTOBUF_C_TYPE_STRING:
        return *(char *const *)at ? json_string(*(char *const *)at) : json_string("");
    case PROTOBUF_C_TYPE_BYTES:
        return bytes_json(at);
    case PROTOBUF_C_TYPE_MESSAGE:
        return *(ProtobufCMessage *const *)at ? message_json(*(ProtobufCMessage *const *)at) : NULL;
    default:
        return NULL;
    }
}

/* NULL for an empty list; only the outer message includes empty lists. */
static json_t *repeated_json(const ProtobufCFieldDescriptor *field, const char *base)
{
    size_t n = *(const size_t *)(const void *)(base + field->quantifier_offset);
    const char *items = *(char *const *)(const void *)(base + field->offset);
    if (!n)
        return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list,
                              scalar_json(field, items + i * rpc_message_value_bytes(field->type)));
    return list;
}

/* True if a singular field is set. */
static bool present(const ProtobufCFieldDescriptor *field, const char *base)
{
    const void *quantifier = base + field->quantifier_offset;
    if (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
        return *(const uint32_t *)quantifier == field->id;
    if (field->label == PROTOBUF_C_LABEL_OPTIONAL && field->quantifier_offset)
        return *(const protobuf_c_boolean *)quantifier;
    return true;
}

static json_t *message_json(const ProtobufCMessage *message)
{
    json_t *object = json_object();
    const char *base = (const char *)message;
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        json_t *value = NULL;
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            value = repeated_json(field, base);
        else if (present(field, base))
            value = scalar_json(field, base + field->offset);
        if (value)
            json_object_set_new(object, field->name, value);
    }
    return object;
}

/* Adds empty lists of the outer message, for scripts that loop over them. */
static void name_empty_lists(const ProtobufCMessageDescriptor *descriptor, json_t *object)
{
    for (unsigned i = 0; i < descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
        if (field->label == PROTOBUF_C_LABEL_REPEATED && !json_object_get(object, field->name))
            json_object_set_new(object, field->name, json_array());
    }
}

void output_json(const ProtobufCMessage *message)
{
    json_t *object = message_json(message);
    name_empty_lists(message->descriptor, object);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    puts(text ? text : "{}");
    free(text);
    json_decref(object);
}

void output_json_error(const struct error *err)
{
    json_t *object =
        json_pack("{s:{s:s,s:s,s:s,s:s}}", "error", "code", status_name(err->status), "reason",
                  error_reason_name(err), "field", err->field, "message", err->message);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    fprintf(stderr, "%s\n", text ? text : "{\"error\":{\"code\":\"INTERNAL\"}}");
    free(text);
    json_decref(object);
}

void output_sampling(const Sluice__V1__DefaultSampling *s)
{
    const struct {
        bool has;
        double value;
        const char *name;
    } fields[] = {{s->has_temperature, (double)s->temperature, "temperature"},
                  {s->has_top_k, s->top_k, "top_k"},
                  {s->has_top_p, (double)s->top_p, "top_p"},
                  {s->has_min_p, (double)s->min_p, "min_p"},
                  {s->has_typical_p, (double)s->typical_p, "typical_p"},
                  {s->has_repetition_penalty, (double)s->repetition_penalty, "repetition_penalty"}};
    const char *comma = "";
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!fields[i].has)
            continue;
        printf("%s%s %g", comma, fields[i].name, fields[i].value);
        comma = ", ";
    }
    if (s->n_suppress_tokens)
        printf("%ssuppress_tokens", comma);
    for (size_t i = 0; i < s->n_suppress_tokens; i++)
        printf(" %" PRIu32, s->suppress_tokens[i]);
}

int output_flush(const char *what, struct error *err)
{
    struct pollfd gone = {.fd = STDOUT_FILENO};
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    bool closed = errno == EPIPE || (poll(&gone, 1, 0) > 0 && (gone.revents & POLLERR));
    if (errno)
        error_errno(err, errno, "cannot write %s to stdout", what);
    else
        error_set(err, STATUS_UNAVAILABLE, "cannot write %s to stdout: an earlier write failed",
                  what);
    return closed ? error_reason(err, REASON_STDOUT_CLOSED) : err->status;
}

double output_kv_used(const Sluice__Manager__V1__Replica *replica)
{
    if (!replica->total_kv_tokens || replica->free_kv_tokens > replica->total_kv_tokens)
        return -1;
    return (double)(replica->total_kv_tokens - replica->free_kv_tokens) /
           (double)replica->total_kv_tokens;
}

const char *output_kv_text(const Sluice__Manager__V1__Replica *replica, char out[16])
{
    double used = output_kv_used(replica);
    if (used < 0)
        snprintf(out, 16, "-");
    else /* never print 0 % for a pool in use */
        snprintf(out, 16, used > 0 && used < 0.01 ? "<1 %%" : "%.0f %%", used * 100);
    return out;
}

const char *output_states_text(const Sluice__Manager__V1__Replica *replica, char out[24])
{
    *out = '\0';
    if (replica->n_state_slots)
        snprintf(out, 24, "%" PRIu32 "/%" PRIu32, replica->n_states_used, replica->n_state_slots);
    return out;
}

const char *output_snapshots_text(const Sluice__Manager__V1__Replica *replica, char out[48])
{
    *out = '\0';
    if (replica->n_state_slots)
        snprintf(out, 48, "%" PRIu32 " (%" PRIu64 " evicted)", replica->n_snapshots,
                 replica->n_snapshot_evictions);
    return out;
}

const char *output_layers(const Sluice__V1__Plan *plan, const Sluice__V1__DevicePlan *device,
                          char out[OUTPUT_STAGE_BYTES])
{
    out[0] = '\0';
    if (plan->pp > 1 && device->n_layers)
        snprintf(out, OUTPUT_STAGE_BYTES, ", stage %" PRIu32 ", layers %" PRIu32 "-%" PRIu32,
                 device->stage, device->first_layer, device->first_layer + device->n_layers - 1);
    return out;
}

void output_prediction(const Sluice__V1__Plan *plan)
{
    const Sluice__V1__Prediction *p = plan->prediction;
    uint64_t wire = 0;
    char size[32];
    if (!p)
        return;
    for (size_t i = 0; i < plan->n_devices; i++)
        if (plan->devices[i]->wire_token_bytes > wire)
            wire = plan->devices[i]->wire_token_bytes;
    printf("predicted from typical figures (%s): %.0f tokens/s for a request, %.0f for %" PRIu32
           " at once, prompts %.0f tokens/s",
           p->kind, p->tokens_per_second_alone, p->tokens_per_second, p->n_requests,
           p->prompt_tokens_per_second);
    if (wire)
        printf("; a rank sends %s a token", format_bytes(wire, size));
    putchar('\n');
}

const char *output_stages(const Sluice__V1__Plan *plan, char out[OUTPUT_STAGE_BYTES])
{
    out[0] = '\0';
    if (plan->pp > 1)
        snprintf(out, OUTPUT_STAGE_BYTES, ", pp %" PRIu32, plan->pp);
    return out;
}

const char *output_replica_state(const Sluice__Manager__V1__Replica *replica, char out[80])
{
    char state[32];
    output_enum(&sluice__manager__v1__replica_state__descriptor, (int)replica->state, state);
    snprintf(out, 80, "%s%s%s%s", state, replica->stalled ? " (stalled)" : "",
             replica->reason[0] ? " " : "", replica->reason);
    return out;
}
