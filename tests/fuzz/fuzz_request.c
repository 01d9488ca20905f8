/* fuzz_request.c: bytes from a client. First byte chooses the message; the rest goes the way a
 * request goes: wire checks, decoding, field validation. Whatever is accepted must be valid UTF-8
 * and pack again. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/base/validate.h"
#include "sluice/manager/v1/manager.pb-c.h"
#include "sluice/manager/v1/routing.pb-c.h"
#include "sluice/v1/inference.pb-c.h"
#include "sluice/worker/v1/worker.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const messages[] = {
    &sluice__v1__generate_request__descriptor,
    &sluice__v1__tokenize_request__descriptor,
    &sluice__v1__detokenize_request__descriptor,
    &sluice__v1__generate_stream_request__descriptor,
    &sluice__worker__v1__serve_request__descriptor,
    &sluice__worker__v1__serve_response__descriptor,
    &sluice__manager__v1__register_model_version_request__descriptor,
    &sluice__manager__v1__load_model_version_request__descriptor,
    &sluice__manager__v1__route_table__descriptor,
};

/* Validates a frame in the steps of generate_stream_frames.c. */
static int validate_stream_frame(const Sluice__V1__GenerateStreamRequest *frame,
                                 struct limit_check *check, struct error *err)
{
    const char *id = NULL;
    int rc = validate_frame(frame, &id, err);
    if (!id || strlen(id) > 128)
        abort(); /* an answer names it */
    if (!rc && frame->frame_case == SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_START)
        rc = validate_generate(frame->start, check, err);
    if (!rc && frame->frame_case == SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_UPDATE)
        rc = validate_update(frame->update, check, err);
    return rc;
}

static void validate(size_t kind, const ProtobufCMessage *message)
{
    struct gateway_limits limits;
    struct limit_check check = {.limits = &limits};
    struct error err;
    int rc = 0;
    gateway_limits_init(&limits);
    error_clear(&err);
    if (kind == 0)
        rc = validate_generate((const Sluice__V1__GenerateRequest *)message, &check, &err);
    else if (kind == 1)
        rc = validate_tokenize((const Sluice__V1__TokenizeRequest *)message, &check, &err);
    else if (kind == 2)
        rc = validate_detokenize((const Sluice__V1__DetokenizeRequest *)message, &err);
    else if (kind == 3)
        rc =
            validate_stream_frame((const Sluice__V1__GenerateStreamRequest *)message, &check, &err);
    if (rc && (!err.message[0] || err.status != rc))
        abort(); /* a refusal must have a text and a matching status */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ProtobufCMessage *message;
    struct error err;
    void *bytes;
    size_t n_bytes;
    if (!size)
        return 0;
    size_t kind = data[0] % (sizeof(messages) / sizeof(messages[0]));
    if (rpc_message_parse(messages[kind], data + 1, size - 1, &message, &err) != 0)
        return 0;
    validate(kind, message);
    if (rpc_message_pack(message, &bytes, &n_bytes, &err) == 0)
        free(bytes);
    rpc_message_free(message);
    return 0;
}
