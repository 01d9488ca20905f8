/* fuzz_generate.c: the body of a request of KServe's generate extension. The first byte chooses the
 * path and the strictness. A refusal has a text. An accepted request has a prompt, passes or fails
 * the checks of the server, and packs. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/kserve_http/kserve_http_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { STREAMS = 1, STRICT = 2 };

static void check_refusal(int rc, uint64_t given, struct error *err)
{
    kserve_request_name_field(given, err);
    if (!err->message[0] || err->status != rc)
        abort();
}

static void check_accepted(const struct kserve_request *request)
{
    struct gateway_limits limits;
    struct limit_check check = {.limits = &limits};
    struct error err;
    void *bytes;
    size_t n_bytes;
    gateway_limits_init(&limits);
    error_clear(&err);
    if (request->generate.prompt_case != SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT)
        abort();
    int rc = validate_generate(&request->generate, &check, &err);
    if (rc)
        check_refusal(rc, request->given, &err);
    if (rpc_message_pack(&request->generate.base, &bytes, &n_bytes, &err) == 0)
        free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kserve_http_request request;
    struct error err;
    if (!size)
        return 0;
    error_clear(&err);
    int rc =
        kserve_http_request_read(&request, "m", "1", (data[0] & STREAMS) != 0,
                                 (data[0] & STRICT) != 0, (const char *)data + 1, size - 1, &err);
    if (rc)
        check_refusal(rc, request.base.given, &err);
    else
        check_accepted(&request.base);
    kserve_http_request_fini(&request);
    return 0;
}
