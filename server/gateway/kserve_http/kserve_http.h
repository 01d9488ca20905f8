/* kserve_http.h: answers KServe v2 over HTTP, as far as models of text need it: Triton's generate
 * extension, probes and metadata. Tensors are for gRPC (kserve/). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "proto/http/http_server.h"

struct dispatch;
struct error;

/* The argument of the handlers. */
struct kserve_http {
    struct dispatch *dispatch;
    bool is_strict; /* unknown names are refused */
};

/* POST /v2/models/{}/generate and /generate_stream, also below /versions/{}. */
http_handler_fn kserve_http_generate, kserve_http_generate_stream;
/* POST .../infer: refuses, and names what is built. */
http_handler_fn kserve_http_infer;

/* kserve_http_models.c: GET /v2, /v2/models/{} and /v2/models/{}/ready, the last two also below
 * /versions/{}. */
http_handler_fn kserve_http_server, kserve_http_model, kserve_http_model_ready;
/* Probes: GET /v2/health/live and /v2/health/ready, which need no key. */
http_page_fn kserve_http_live, kserve_http_ready;

/* Fills in {"error": TEXT} for a refusal before the handler. */
http_refusal_fn kserve_http_error;

/* Answers {"error": TEXT}. `given` is that of the request, or 0. */
void kserve_http_refuse(struct http_exchange *http, uint64_t given, const struct error *err);
