#include "server/gateway/kserve_http/kserve_http_request.h"

#include <string.h>

#include "base/error.h"
#include "server/gateway/http/http_fields.h"
#include "server/gateway/kserve/kserve_fields.h"

/* Finds a name in any of the sources: the extension has one JSON object for tensors, parameters and
 * sampling parameters. */
static const struct kserve_field *find(const char *name)
{
    static const enum kserve_source sources[] = {KSERVE_TENSOR, KSERVE_PARAMETER, KSERVE_JSON};
    const struct kserve_field *field = NULL;
    struct error unknown;
    for (size_t i = 0; !field && i < sizeof(sources) / sizeof(sources[0]); i++)
        field = kserve_fields_find(sources[i], name, name, &unknown);
    return field;
}

/* Reads a name of KServe's own table (kserve_fields.h), which refuses a second value. The text of
 * sampling_parameters may be the object itself here. */
static int read_name(struct http_fields *r, const struct http_field *row)
{
    struct kserve_http_request *request = r->out;
    const struct kserve_field *field = find(row->name);
    enum json_value kind;
    char *text;
    if (!field)
        return http_fields_ignore(r, row);
    int rc = http_body_kind(&r->body, &kind);
    if (rc)
        return rc;
    if (kind != JSON_VALUE_OBJECT || strcmp(row->name, "sampling_parameters") != 0)
        return kserve_sampling_value(&request->base, &r->body.cursor, field, r->label, r->body.err);
    rc = http_body_raw(&r->body, &text);
    if (rc)
        return rc;
    const struct kserve_value value = {.kind = KSERVE_BYTES, .text = text, .n_text = strlen(text)};
    return kserve_fields_set(&request->base, field, r->label, &value, 1, r->body.err);
}

static int read_id(struct http_fields *r, const struct http_field *field)
{
    char **id = http_fields_place(r, field->at);
    int rc = http_body_text(&r->body, r->label, id);
    if (!rc && strlen(*id) > KSERVE_MAX_ID_BYTES)
        rc = error_field(r->body.err, r->label, "%zu bytes, limit %d", strlen(*id),
                         KSERVE_MAX_ID_BYTES);
    return rc;
}

static const struct http_table parameters = {.is_flat = true, .other = read_name};

static const struct http_field fields[] = {
    {"id", read_id, .at = offsetof(struct kserve_http_request, id)},
    {"parameters", http_fields_object, .table = &parameters},
};

static const struct http_table table = {HTTP_TABLE(fields), .other = read_name};

static int complete(struct kserve_http_request *request, bool streams, struct error *err)
{
    struct kserve_request *base = &request->base;
    int rc = 0;
    if (base->sampling_text)
        rc = kserve_sampling_read(base, base->sampling_text, base->n_sampling_text, err);
    if (rc)
        return rc;
    if (kserve_fields_is_in(find("stream"), base->given) && base->streams != streams)
        return error_field(err, "stream",
                           streams ? "must be true; POST .../generate answers once"
                                   : "must be false; POST .../generate_stream answers in parts");
    if (base->timeout_us) {
        error_field(err, "timeout", "is not built over HTTP; close the connection instead");
        err->status = STATUS_UNIMPLEMENTED;
        return STATUS_UNIMPLEMENTED;
    }
    base->streams = streams;
    base->outputs |= 1u << KSERVE_OUTPUT_TEXT;
    return kserve_request_complete(base, true, err);
}

int kserve_http_request_read(struct kserve_http_request *request, const char *model,
                             const char *version, bool streams, bool is_strict, const char *body,
                             size_t n_bytes, struct error *err)
{
    struct http_fields r = {.body = {.arena = &request->base.arena, .err = err},
                            .ignored = &request->ignored,
                            .is_strict = is_strict,
                            .out = request};
    request->id = NULL;
    strbuf_init(&request->ignored, 0);
    kserve_request_init(&request->base, model, version);
    int rc = http_fields_read_body(&r, body, n_bytes, &table);
    return rc ? rc : complete(request, streams, err);
}

void kserve_http_request_fini(struct kserve_http_request *request)
{
    kserve_request_fini(&request->base);
    strbuf_fini(&request->ignored);
}
