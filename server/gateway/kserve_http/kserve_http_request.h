/* kserve_http_request.h: reads the body of Triton's generate extension into a request:
 * {"text_input": TEXT, NAME: VALUE, ..., "parameters": {NAME: VALUE, ...}}. The names are those of
 * ModelInfer (kserve_fields.h), beside `parameters` or in it. Plain functions; any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/strbuf.h"
#include "server/gateway/kserve/kserve_request.h"

struct error;

struct kserve_http_request {
    struct kserve_request base;
    char *id;              /* in the arena; NULL: none */
    struct strbuf ignored; /* unknown names, between commas */
};

/* `model` and `version` are borrowed. INVALID_ARGUMENT or UNIMPLEMENTED with the name at fault.
 * Call fini in any case. */
int kserve_http_request_read(struct kserve_http_request *request, const char *model,
                             const char *version, bool streams, bool is_strict, const char *body,
                             size_t n_bytes, struct error *err);
void kserve_http_request_fini(struct kserve_http_request *request);
