/* fuzz_tgi.c: the body of a request of text-generation-inference. The first byte chooses path and
 * strictness. A refusal has a text and names its field. An accepted request has a prompt without
 * NUL, passes or fails the checks of the server, and packs. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/tgi/tgi_error.h"
#include "server/gateway/tgi/tgi_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_ROUTES = 3, STRICT = 0x80 };

static void check_refusal(int rc, struct error *err)
{
    struct strbuf text = {0};
    tgi_request_name_field(err);
    if (!err->message[0] || err->status != rc || tgi_error_status(err) < 400)
        abort();
    tgi_error_write(err, &text);
    if (!utf8_valid(strbuf_str(&text), text.n_bytes, NULL))
        abort();
    strbuf_fini(&text);
}

static void check_accepted(struct tgi_request *request)
{
    static char model[] = "m";
    struct gateway_limits limits;
    struct limit_check check = {.limits = &limits};
    struct error err;
    void *bytes;
    size_t n_bytes;
    gateway_limits_init(&limits);
    error_clear(&err);
    request->request.model = model;
    if (!request->inputs[0] || request->request.text != request->inputs)
        abort();
    int rc = validate_generate(&request->request, &check, &err);
    if (rc)
        check_refusal(rc, &err);
    if (rpc_message_pack(&request->request.base, &bytes, &n_bytes, &err) == 0)
        free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tgi_request request;
    struct error err;
    if (!size)
        return 0;
    error_clear(&err);
    int rc = tgi_request_read(&request, (enum tgi_route)((data[0] & 0x7f) % N_ROUTES),
                              (data[0] & STRICT) != 0, (const char *)data + 1, size - 1, &err);
    if (rc)
        check_refusal(rc, &err);
    else
        check_accepted(&request);
    tgi_request_fini(&request);
    return 0;
}
