#include "server/gateway/kserve_http/kserve_http_request.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "server/gateway/http/http_body.h"
#include "server/gateway/http/http_ignored.h"
#include "server/gateway/kserve/kserve_fields.h"

struct reader {
    struct kserve_http_request *request;
    struct http_body body;
    bool is_strict;
};

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

static int pass_over(struct reader *r, const char *name)
{
    if (r->is_strict)
        return http_body_bad(&r->body, name, "is unknown");
    http_ignored_add(&r->request->ignored, name);
    return http_body_skip(&r->body);
}

/* sampling_parameters is a JSON text in ModelInfer, and may be the object itself here. */
static int read_sampling_object(struct reader *r, const struct kserve_field *field,
                                const char *name)
{
    char *text;
    int rc = http_body_raw(&r->body, &text);
    if (rc)
        return rc;
    const struct kserve_value value = {.kind = KSERVE_BYTES, .text = text, .n_text = strlen(text)};
    return kserve_fields_set(&r->request->base, field, name, &value, 1, r->body.err);
}

static int read_field(struct reader *r, const char *name)
{
    enum json_value kind;
    bool is_null = false;
    int rc = http_body_null(&r->body, &is_null);
    const struct kserve_field *field = rc || is_null ? NULL : find(name);
    if (rc || is_null)
        return rc;
    if (!field)
        return pass_over(r, name);
    rc = http_body_kind(&r->body, &kind);
    if (rc)
        return rc;
    if (kind == JSON_VALUE_OBJECT && strcmp(name, "sampling_parameters") == 0)
        return read_sampling_object(r, field, name);
    return kserve_sampling_value(&r->request->base, &r->body.cursor, field, name, r->body.err);
}

static int read_parameters(struct reader *r)
{
    const char *name;
    bool is_null;
    int rc = http_body_null(&r->body, &is_null);
    if (rc || is_null)
        return rc;
    rc = http_body_enter_object(&r->body, "parameters");
    while (!rc) {
        rc = http_body_key(&r->body, &name);
        if (!rc && !name)
            return 0;
        if (!rc)
            rc = read_field(r, name);
    }
    return rc;
}

static int read_id(struct reader *r)
{
    bool is_null;
    int rc = http_body_null(&r->body, &is_null);
    if (rc || is_null)
        return rc;
    rc = http_body_text(&r->body, "id", &r->request->id);
    if (!rc && strlen(r->request->id) > KSERVE_MAX_ID_BYTES)
        rc = error_field(r->body.err, "id", "%zu bytes, limit %d", strlen(r->request->id),
                         KSERVE_MAX_ID_BYTES);
    return rc;
}

static int read_keys(struct reader *r)
{
    const char *name;
    for (;;) {
        int rc = http_body_key(&r->body, &name);
        if (!rc && !name)
            return http_body_end(&r->body);
        if (!rc && strcmp(name, "parameters") == 0)
            rc = read_parameters(r);
        else if (!rc && strcmp(name, "id") == 0)
            rc = read_id(r);
        else if (!rc)
            rc = read_field(r, name);
        if (rc)
            return rc;
    }
}

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
    rc = kserve_request_complete(base, true, err);
    return rc || !strbuf_failed(&request->ignored) ? rc : error_no_memory(err);
}

int kserve_http_request_read(struct kserve_http_request *request, const char *model,
                             const char *version, bool streams, bool is_strict, const char *body,
                             size_t n_bytes, struct error *err)
{
    struct reader r = {.request = request, .is_strict = is_strict};
    request->id = NULL;
    strbuf_init(&request->ignored, 0);
    kserve_request_init(&request->base, model, version);
    int rc = http_body_init(&r.body, body, n_bytes, &request->base.arena, err);
    if (!rc)
        rc = read_keys(&r);
    return rc ? rc : complete(request, streams, err);
}

void kserve_http_request_fini(struct kserve_http_request *request)
{
    kserve_request_fini(&request->base);
    strbuf_fini(&request->ignored);
}
