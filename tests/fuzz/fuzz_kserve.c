/* fuzz_kserve.c: requests of the two gRPC facades. The first byte chooses KServe or VllmEngine; the
 * rest goes the way of a request: wire checks, decoding, tensors, validation. An accepted request
 * is one that Sluice's own checks can read, and a refusal has a text and its status. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "proto/rpc/message/message.h"
#include "server/gateway/base/validate.h"
#include "server/gateway/kserve/kserve_request.h"
#include "server/gateway/vllm/vllm_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_refusal(int rc, const struct error *err)
{
    if (rc && (!err->message[0] || err->status != rc ||
               !utf8_valid(err->field, strlen(err->field), NULL)))
        abort();
}

static int validate(Sluice__V1__GenerateRequest *generate, struct error *err)
{
    static char model[] = "m";
    struct gateway_limits limits;
    struct limit_check check = {.limits = &limits};
    void *bytes;
    size_t n_bytes;
    gateway_limits_init(&limits);
    if (!generate->model[0])
        generate->model = model;
    int rc = validate_generate(generate, &check, err);
    if (!rc && rpc_message_pack(&generate->base, &bytes, &n_bytes, err) == 0)
        free(bytes);
    return rc;
}

static void read_kserve(const ProtobufCMessage *message, bool may_stream)
{
    struct kserve_request request;
    struct error err;
    error_clear(&err);
    int rc = kserve_request_read(&request, (const Inference__ModelInferRequest *)message,
                                 may_stream, &err);
    if (!rc)
        rc = validate(&request.generate, &err);
    if (rc)
        kserve_request_name_field(request.given, &err);
    check_refusal(rc, &err);
    kserve_request_fini(&request);
}

static void read_vllm(const ProtobufCMessage *message)
{
    struct vllm_request request;
    struct error err;
    error_clear(&err);
    int rc =
        vllm_request_read(&request, (const Vllm__Grpc__Engine__GenerateRequest *)message, &err);
    if (!rc)
        rc = validate(&request.generate, &err);
    if (rc)
        vllm_request_name_field(&err);
    check_refusal(rc, &err);
    vllm_request_fini(&request);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ProtobufCMessage *message;
    struct error err;
    if (!size)
        return 0;
    int kind = data[0] % 3;
    const ProtobufCMessageDescriptor *descriptor =
        kind == 2 ? &vllm__grpc__engine__generate_request__descriptor
                  : &inference__model_infer_request__descriptor;
    if (rpc_message_parse(descriptor, data + 1, size - 1, &message, &err) != 0)
        return 0;
    if (kind == 2)
        read_vllm(message);
    else
        read_kserve(message, kind == 1);
    rpc_message_free(message);
    return 0;
}
