/* Reads sampling_parameters: the JSON object of Triton's vLLM backend. */
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/text/json_cursor.h"
#include "server/gateway/kserve/kserve_fields.h"
#include "server/gateway/kserve/kserve_request.h"

enum { MAX_KEY_BYTES = 256 };

static const char name[] = "sampling_parameters";

struct list {
    struct kserve_value *values; /* in the arena */
    size_t n, capacity;
};

static int add(struct kserve_request *request, struct list *list, const char *label,
               const struct kserve_value *value, struct error *err)
{
    if (list->n == (size_t)2 * KSERVE_MAX_ELEMENTS)
        return error_field(err, label, "has more than %d elements", KSERVE_MAX_ELEMENTS);
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 4;
        struct kserve_value *more = arena_calloc(&request->arena, capacity, sizeof(*more));
        if (!more)
            return error_no_memory(err);
        for (size_t i = 0; i < list->n; i++)
            more[i] = list->values[i];
        list->values = more;
        list->capacity = capacity;
    }
    list->values[list->n++] = *value;
    return 0;
}

static int read_scalar(struct kserve_request *request, struct json_cursor *cursor,
                       const char *label, struct kserve_value *out, struct error *err)
{
    enum json_value kind;
    struct json_number number;
    int rc = json_cursor_peek(cursor, &kind, err);
    *out = (struct kserve_value){.kind = KSERVE_BYTES};
    if (rc)
        return err->status;
    if (kind == JSON_VALUE_STRING) {
        rc = json_cursor_text(cursor, &request->arena, &out->text, &out->n_text, err);
    } else if (kind == JSON_VALUE_BOOL) {
        out->kind = KSERVE_BOOL;
        rc = json_cursor_bool(cursor, &out->is_true, err);
    } else if (kind == JSON_VALUE_NUMBER) {
        rc = json_cursor_number(cursor, &number, err);
        if (rc)
            return err->status;
        out->kind = !number.is_integer   ? KSERVE_FLOAT
                    : number.is_negative ? KSERVE_INT
                                         : KSERVE_UINT;
        out->i = number.i;
        out->u = number.u;
        out->f = number.f;
    } else {
        return error_field(err, label,
                           "must be a text, a number, true or false, or a list of these");
    }
    return rc ? err->status : 0;
}

static int read_array(struct kserve_request *request, struct json_cursor *cursor, const char *label,
                      struct list *list, struct error *err)
{
    bool more = true;
    if (json_cursor_enter_array(cursor, err) != 0)
        return err->status;
    for (;;) {
        struct kserve_value value;
        if (json_cursor_next_element(cursor, &more, err) != 0)
            return err->status;
        if (!more)
            return 0;
        int rc = read_scalar(request, cursor, label, &value, err);
        if (!rc)
            rc = add(request, list, label, &value, err);
        if (rc)
            return rc;
    }
}

/* An object becomes pairs of key and value. */
static int read_object(struct kserve_request *request, struct json_cursor *cursor,
                       const char *label, struct list *list, struct error *err)
{
    if (json_cursor_enter_object(cursor, err) != 0)
        return err->status;
    for (;;) {
        struct kserve_value key = {.kind = KSERVE_BYTES}, value;
        if (json_cursor_next_text_key(cursor, &request->arena, &key.text, &key.n_text, err) != 0)
            return err->status;
        if (!key.text)
            return 0;
        int rc = read_scalar(request, cursor, label, &value, err);
        if (!rc)
            rc = add(request, list, label, &key, err);
        if (!rc)
            rc = add(request, list, label, &value, err);
        if (rc)
            return rc;
    }
}

int kserve_sampling_value(struct kserve_request *request, struct json_cursor *cursor,
                          const struct kserve_field *field, const char *label, struct error *err)
{
    bool is_pairs = kserve_fields_is_pairs(field);
    enum json_value kind;
    struct list list = {0};
    struct kserve_value value;
    int rc = json_cursor_peek(cursor, &kind, err);
    if (rc)
        return err->status;
    if (is_pairs && kind != JSON_VALUE_OBJECT)
        return error_field(err, label, "must be an object");
    if (is_pairs)
        rc = read_object(request, cursor, label, &list, err);
    else if (kind == JSON_VALUE_OBJECT) /* the field refuses the object */
        rc = json_cursor_skip(cursor, err) != 0
                 ? err->status
                 : add(request, &list, label, &(struct kserve_value){.kind = KSERVE_OBJECT}, err);
    else if (kind == JSON_VALUE_ARRAY)
        rc = read_array(request, cursor, label, &list, err);
    else if ((rc = read_scalar(request, cursor, label, &value, err)) == 0)
        rc = add(request, &list, label, &value, err);
    return rc ? rc : kserve_fields_set(request, field, label, list.values, list.n, err);
}

static int read_key(struct kserve_request *request, struct json_cursor *cursor, const char *key,
                    struct error *err)
{
    char label[ERROR_FIELD_BYTES];
    enum json_value kind;
    snprintf(label, sizeof(label), "%s.%.60s", name, key);
    if (json_cursor_peek(cursor, &kind, err) != 0)
        return err->status;
    const struct kserve_field *field = kserve_fields_find(KSERVE_JSON, key, label, err);
    if (!field)
        return err->status;
    if (kind == JSON_VALUE_NULL) /* as if the key were absent */
        return json_cursor_null(cursor, err) == 0 ? 0 : err->status;
    return kserve_sampling_value(request, cursor, field, label, err);
}

static int read_text(struct kserve_request *request, const char *text, size_t n_bytes,
                     struct error *err)
{
    struct json_cursor cursor;
    const char *key = "";
    int rc = 0;
    if (json_cursor_init(&cursor, text, n_bytes, NULL, 0, err) != 0 ||
        json_cursor_enter_object(&cursor, err) != 0)
        return err->status;
    while (!rc) {
        if (json_cursor_next_key(&cursor, &request->arena, MAX_KEY_BYTES, &key, err) != 0)
            return err->status;
        if (!key)
            break;
        rc = read_key(request, &cursor, key, err);
    }
    return rc || json_cursor_end(&cursor, err) == 0 ? rc : err->status;
}

int kserve_sampling_read(struct kserve_request *request, const char *text, size_t n_bytes,
                         struct error *err)
{
    char why[ERROR_MESSAGE_BYTES];
    int rc = read_text(request, text, n_bytes, err);
    if (rc != STATUS_INVALID_ARGUMENT || err->field[0])
        return rc;
    snprintf(why, sizeof(why), "%s", err->message); /* text that is not the JSON expected */
    return error_field(err, name, "%.400s", why);
}
