/* fuzz_openai.c: the body of a request of OpenAI's API. The first byte chooses path and strictness.
 * A refusal has a text and a body of UTF-8. An accepted body passes or fails the checks of the
 * server, and packs. The names of ignored fields fit into a header. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "proto/http/http_exchange.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/http/http_error.h"
#include "server/gateway/openai/openai_chat.h"
#include "server/gateway/openai/openai_error.h"
#include "server/gateway/openai/openai_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHAT = 1, STRICT = 0x80 };

static void check_refusal(int rc, const struct error *err, bool is_chat)
{
    struct http_reply reply = {.status = 0};
    char headers[HTTP_ERROR_HEADER_BYTES];
    size_t wrong;
    if (!err->message[0] || err->status != rc)
        abort();
    openai_error_reply(err, is_chat, headers, &reply);
    bool is_temporary = reply.status == 429; /* out of memory */
    if ((reply.status != 400 && !is_temporary) ||
        !utf8_valid(strbuf_str(&reply.body), reply.body.n_bytes, &wrong))
        abort();
    strbuf_fini(&reply.body);
}

static void check_ignored(const struct openai_request *request)
{
    for (const char *p = strbuf_str(&request->ignored); *p; p++)
        if (*p < ' ' || *p > '~')
            abort();
}

static void check_prompt(struct openai_request *request, size_t i)
{
    struct gateway_limits limits;
    struct limit_check check = {.limits = &limits};
    struct error err;
    void *bytes;
    size_t n_bytes;
    gateway_limits_init(&limits);
    error_clear(&err);
    if (!openai_request_choose(request, i))
        return;
    int rc = validate_generate(&request->request, &check, &err);
    if (rc)
        check_refusal(rc, &err, request->is_chat);
    if (rpc_message_pack(&request->request.base, &bytes, &n_bytes, &err) == 0)
        free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct openai_request request;
    struct error err;
    if (!size)
        return 0;
    bool is_chat = (data[0] & CHAT) != 0;
    error_clear(&err);
    int rc = openai_request_read(&request, is_chat, (data[0] & STRICT) != 0, (const char *)data + 1,
                                 size - 1, &err);
    if (rc)
        check_refusal(rc, &err, is_chat);
    check_ignored(&request);
    for (size_t i = 0; !rc && i < openai_request_n_prompts(&request); i++)
        check_prompt(&request, i);
    if (!rc && is_chat && openai_chat_may_merge(&request.chat) &&
        openai_chat_merge(&request.chat, &request.arena))
        check_prompt(&request, 0);
    openai_request_fini(&request);
    return 0;
}
