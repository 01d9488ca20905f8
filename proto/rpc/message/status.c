#include "proto/rpc/message/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "google/protobuf/any.pb-c.h"
#include "google/protobuf/duration.pb-c.h"
#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"
#include "proto/rpc/message/message.h"

static char domain[] = "sluice", tokens_sent[] = "tokens_sent", version_key[] = "version";

static char info_url[] = "type.googleapis.com/google.rpc.ErrorInfo";
static char bad_request_url[] = "type.googleapis.com/google.rpc.BadRequest";
static char retry_url[] = "type.googleapis.com/google.rpc.RetryInfo";

/* Packs one more detail; false if memory is exhausted. */
static bool add_detail(Google__Rpc__Status *status, char *url, const ProtobufCMessage *detail)
{
    struct error ignored;
    void *bytes = NULL;
    size_t n_bytes = 0;
    if (rpc_message_pack(detail, &bytes, &n_bytes, &ignored) != 0)
        return false;
    Google__Protobuf__Any *any = status->details[status->n_details++];
    google__protobuf__any__init(any);
    any->type_url = url;
    any->value.data = bytes;
    any->value.len = n_bytes;
    return true;
}

/* Every error has a reason: without a specific one, the status itself. */
static void add_info(Google__Rpc__Status *wire, struct error *copy)
{
    Google__Rpc__ErrorInfo info = GOOGLE__RPC__ERROR_INFO__INIT;
    Google__Rpc__ErrorInfo__MetadataEntry entries[2] = {
        GOOGLE__RPC__ERROR_INFO__METADATA_ENTRY__INIT,
        GOOGLE__RPC__ERROR_INFO__METADATA_ENTRY__INIT};
    Google__Rpc__ErrorInfo__MetadataEntry *metadata[2] = {&entries[0], &entries[1]};
    char n_tokens[24];
    const char *name = copy->reason ? error_reason_name(copy) : status_name(copy->status);
    info.reason = (char *)(uintptr_t)name; /* packing only reads the text */
    info.domain = domain;
    info.metadata = metadata;
    if (copy->has_tokens_sent) {
        snprintf(n_tokens, sizeof(n_tokens), "%llu", (unsigned long long)copy->n_tokens_sent);
        entries[info.n_metadata].key = tokens_sent;
        entries[info.n_metadata++].value = n_tokens;
    }
    if (copy->version[0]) {
        entries[info.n_metadata].key = version_key;
        entries[info.n_metadata++].value = copy->version;
    }
    add_detail(wire, info_url, &info.base);
}

static void add_bad_request(Google__Rpc__Status *wire, struct error *copy)
{
    Google__Rpc__BadRequest__FieldViolation violation =
        GOOGLE__RPC__BAD_REQUEST__FIELD_VIOLATION__INIT;
    Google__Rpc__BadRequest__FieldViolation *violations[1] = {&violation};
    Google__Rpc__BadRequest bad_request = GOOGLE__RPC__BAD_REQUEST__INIT;
    if (copy->field[0] == '\0')
        return;
    violation.field = copy->field;
    violation.description = copy->message;
    bad_request.n_field_violations = 1;
    bad_request.field_violations = violations;
    add_detail(wire, bad_request_url, &bad_request.base);
}

static void add_retry(Google__Rpc__Status *wire, const struct error *status)
{
    Google__Protobuf__Duration delay = GOOGLE__PROTOBUF__DURATION__INIT;
    Google__Rpc__RetryInfo retry = GOOGLE__RPC__RETRY_INFO__INIT;
    if (status->retry_after_ms == 0)
        return;
    delay.seconds = status->retry_after_ms / 1000;
    delay.nanos = (int32_t)(status->retry_after_ms % 1000) * 1000000;
    retry.retry_delay = &delay;
    add_detail(wire, retry_url, &retry.base);
}

void rpc_status_pack(const struct error *status, void **out_bytes, size_t *out_n_bytes)
{
    struct error copy = *status;
    struct error ignored;
    Google__Protobuf__Any any[3];
    Google__Protobuf__Any *details[3] = {&any[0], &any[1], &any[2]};
    Google__Rpc__Status wire = GOOGLE__RPC__STATUS__INIT;
    wire.code = status_to_grpc(status->status);
    wire.message = copy.message;
    wire.details = details;
    *out_bytes = NULL;
    *out_n_bytes = 0;

    add_info(&wire, &copy);
    add_bad_request(&wire, &copy);
    add_retry(&wire, status);
    if (wire.n_details > 0 && rpc_message_pack(&wire.base, out_bytes, out_n_bytes, &ignored) != 0)
        *out_bytes = NULL;
    for (size_t i = 0; i < wire.n_details; i++)
        free(any[i].value.data);
}

static void take_info(const Google__Rpc__ErrorInfo *info, struct error *out)
{
    if (strcmp(info->reason, status_name(out->status)) != 0)
        error_reason_parse(out, info->reason);
    for (size_t i = 0; i < info->n_metadata; i++) {
        const char *value = info->metadata[i]->value;
        if (strcmp(info->metadata[i]->key, tokens_sent) == 0)
            error_tokens_sent(out, strtoull(value, NULL, 10));
        else if (strcmp(info->metadata[i]->key, version_key) == 0)
            error_version(out, value);
    }
}

static void take_bad_request(const Google__Rpc__BadRequest *bad_request, struct error *out)
{
    if (bad_request->n_field_violations > 0)
        snprintf(out->field, sizeof(out->field), "%s", bad_request->field_violations[0]->field);
}

static void take_retry(const Google__Rpc__RetryInfo *retry, struct error *out)
{
    const Google__Protobuf__Duration *delay = retry->retry_delay;
    if (delay == NULL || delay->seconds < 0 || delay->nanos < 0)
        return;
    uint64_t seconds = delay->seconds > 4000000 ? 4000000 : (uint64_t)delay->seconds;
    out->retry_after_ms = (uint32_t)(seconds * 1000 + (uint64_t)delay->nanos / 1000000 % 1000);
}

static void take_detail(const Google__Protobuf__Any *any, struct error *out)
{
    struct error ignored;
    ProtobufCMessage *message = NULL;
    const ProtobufCMessageDescriptor *descriptor = NULL;
    if (strcmp(any->type_url, info_url) == 0)
        descriptor = &google__rpc__error_info__descriptor;
    else if (strcmp(any->type_url, bad_request_url) == 0)
        descriptor = &google__rpc__bad_request__descriptor;
    else if (strcmp(any->type_url, retry_url) == 0)
        descriptor = &google__rpc__retry_info__descriptor;
    if (descriptor == NULL ||
        rpc_message_parse(descriptor, any->value.data, any->value.len, &message, &ignored) != 0)
        return;
    if (descriptor == &google__rpc__error_info__descriptor)
        take_info((const Google__Rpc__ErrorInfo *)message, out);
    else if (descriptor == &google__rpc__bad_request__descriptor)
        take_bad_request((const Google__Rpc__BadRequest *)message, out);
    else
        take_retry((const Google__Rpc__RetryInfo *)message, out);
    rpc_message_free(message);
}

void rpc_status_unpack(int grpc_code, const char *message, size_t n_message, const void *details,
                       size_t n_details, struct error *out_error)
{
    struct error ignored;
    ProtobufCMessage *wire = NULL;
    if (n_message >= ERROR_MESSAGE_BYTES)
        n_message = ERROR_MESSAGE_BYTES - 1;
    size_t i_bad = 0;
    if (n_message > 0 && !utf8_valid(message, n_message, &i_bad))
        n_message = i_bad;
    error_set(out_error, status_from_grpc(grpc_code), "%.*s", (int)n_message,
              n_message > 0 ? message : "");
    if (n_details == 0 || rpc_message_parse(&google__rpc__status__descriptor, details, n_details,
                                            &wire, &ignored) != 0)
        return;
    const Google__Rpc__Status *status = (const Google__Rpc__Status *)wire;
    for (size_t i = 0; i < status->n_details; i++)
        take_detail(status->details[i], out_error);
    rpc_message_free(wire);
}
