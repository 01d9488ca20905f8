#include "clients/c/sluice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "clients/c/service_config.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/listen.h"

enum { MAX_MESSAGE_BYTES = 64 << 20 };

struct sluice_client {
    struct rpc_client *rpc;
};

/* A reader and the last message, which the caller borrows. */
struct sluice_answer {
    struct rpc_reader *reader;
    ProtobufCMessage *message;
};

struct sluice_stream {
    struct sluice_answer answer;
};

/* --- errors --- */

static int fail(const struct error *from, struct sluice_error *to)
{
    int code = status_to_grpc(from->status);
    if (!to)
        return code;
    memset(to, 0, sizeof(*to));
    to->code = code;
    to->retry_after_ms = from->retry_after_ms;
    snprintf(to->field, sizeof(to->field), "%s", from->field);
    snprintf(to->reason, sizeof(to->reason), "%s", error_reason_name(from));
    snprintf(to->message, sizeof(to->message), "%s", from->message);
    return code;
}

const char *sluice_code_name(int code)
{
    return status_name(status_from_grpc(code));
}

/* --- clients --- */

/* True if the target is this machine. For targets like "dns:///host:port" the part behind the
 * scheme decides. */
static bool is_local(const char *target)
{
    static const char *const schemes[] = {"dns:", "ipv4:", "ipv6:"};
    if (strncmp(target, "unix:", 5) == 0)
        return true;
    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (strncmp(target, schemes[i], strlen(schemes[i])) == 0) {
            const char *slash = strrchr(target, '/');
            target = slash ? slash + 1 : target + strlen(schemes[i]);
            break;
        }
    return rpc_listen_is_loopback(target);
}

static const char *text(const char *given)
{
    return given ? given : "";
}

int sluice_open(const struct sluice_options *options, struct sluice_client **out_client,
                struct sluice_error *err)
{
    struct rpc_client_config config;
    struct error cause;
    struct sluice_client *client = calloc(1, sizeof(*client));
    rpc_client_config_init(&config);
    config.target = text(options->target);
    config.max_message_bytes = MAX_MESSAGE_BYTES;
    config.tls = options->tls || text(options->tls_ca)[0];
    config.tls_ca = options->tls_ca;
    config.tls_client_cert = options->tls_client_cert;
    config.tls_client_key = options->tls_client_key;
    config.server_name = options->server_name;
    config.api_key = options->api_key;
    config.service_config =
        options->service_config ? options->service_config : sluice_service_config;
    int rc = 0;
    if (!client)
        rc = error_set(&cause, STATUS_RESOURCE_EXHAUSTED, "out of memory for a client");
    else if (!config.target[0])
        rc = error_set(&cause, STATUS_INVALID_ARGUMENT, "target: give an address");
    else if (text(options->api_key)[0] && !config.tls && !options->allow_plaintext_keys &&
             !is_local(config.target))
        rc = error_set(
            &cause, STATUS_INVALID_ARGUMENT,
            "api_key: the key would cross the network to %s in plain text; give tls_ca or tls",
            config.target);
    else
        rc = rpc_client_create(&config, &client->rpc, &cause);
    if (rc) {
        free(client);
        return fail(&cause, err);
    }
    *out_client = client;
    return 0;
}

void sluice_close(struct sluice_client *client)
{
    if (!client)
        return;
    rpc_client_destroy(client->rpc);
    free(client);
}

void sluice_free(void *message)
{
    rpc_message_free(message);
}

int sluice_call(struct sluice_client *client, const char *method, const ProtobufCMessage *request,
                uint64_t timeout_ms, ProtobufCMessage **out_response, struct sluice_error *err)
{
    struct rpc_call_options options = {.timeout_ms = timeout_ms};
    struct error cause;
    int rc = rpc_client_unary(client->rpc, &sluice__v1__inference__descriptor, method, request,
                              &options, out_response, &cause);
    return rc ? fail(&cause, err) : 0;
}

/* --- Generate --- */

static int open_reader(struct sluice_client *client, const char *method,
                       const ProtobufCMessage *request, uint64_t timeout_ms,
                       struct sluice_answer *answer, struct error *cause)
{
    struct rpc_call_options options = {.timeout_ms = timeout_ms};
    return rpc_reader_open(client->rpc, &sluice__v1__inference__descriptor, method, request,
                           &options, &answer->reader, cause);
}

static int next_message(struct sluice_answer *answer, struct sluice_error *err)
{
    struct error cause;
    rpc_message_free(answer->message);
    answer->message = NULL;
    int rc = rpc_reader_next(answer->reader, &answer->message, &cause);
    return rc ? fail(&cause, err) : 0;
}

static void close_reader(struct sluice_answer *answer)
{
    rpc_reader_close(answer->reader);
    rpc_message_free(answer->message);
}

int sluice_generate(struct sluice_client *client, const Sluice__V1__GenerateRequest *request,
                    uint64_t timeout_ms, struct sluice_answer **out_answer,
                    struct sluice_error *err)
{
    struct error cause;
    struct sluice_answer *answer = calloc(1, sizeof(*answer));
    int rc = answer ? open_reader(client, "Generate", &request->base, timeout_ms, answer, &cause)
                    : error_set(&cause, STATUS_RESOURCE_EXHAUSTED, "out of memory for an answer");
    if (rc) {
        free(answer);
        return fail(&cause, err);
    }
    *out_answer = answer;
    return 0;
}

int sluice_next(struct sluice_answer *answer, const Sluice__V1__GenerateResponse **out_message,
                struct sluice_error *err)
{
    int code = next_message(answer, err);
    if (!code)
        *out_message = (const Sluice__V1__GenerateResponse *)answer->message;
    return code;
}

void sluice_cancel(struct sluice_answer *answer)
{
    rpc_reader_cancel(answer->reader);
}

void sluice_answer_close(struct sluice_answer *answer)
{
    if (!answer)
        return;
    close_reader(answer);
    free(answer);
}

/* --- GenerateStream --- */

int sluice_stream_open(struct sluice_client *client, struct sluice_stream **out_stream,
                       struct sluice_error *err)
{
    struct error cause;
    struct sluice_stream *stream = calloc(1, sizeof(*stream));
    int rc = stream ? open_reader(client, "GenerateStream", NULL, 0, &stream->answer, &cause)
                    : error_set(&cause, STATUS_RESOURCE_EXHAUSTED, "out of memory for a stream");
    if (rc) {
        free(stream);
        return fail(&cause, err);
    }
    *out_stream = stream;
    return 0;
}

int sluice_stream_send(struct sluice_stream *stream, const Sluice__V1__GenerateStreamRequest *frame,
                       struct sluice_error *err)
{
    struct error cause;
    int rc = rpc_reader_send(stream->answer.reader, &frame->base, &cause);
    return rc ? fail(&cause, err) : 0;
}

int sluice_stream_start(struct sluice_stream *stream, const Sluice__V1__GenerateRequest *request,
                        struct sluice_error *err)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    frame.request_id = request->request_id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_START;
    frame.start = (Sluice__V1__GenerateRequest *)(uintptr_t)request;
    return sluice_stream_send(stream, &frame, err);
}

int sluice_stream_cancel(struct sluice_stream *stream, const char *request_id,
                         struct sluice_error *err)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__CancelFrame cancel = SLUICE__V1__CANCEL_FRAME__INIT;
    frame.request_id = (char *)(uintptr_t)request_id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_CANCEL;
    frame.cancel = &cancel;
    return sluice_stream_send(stream, &frame, err);
}

int sluice_stream_credit(struct sluice_stream *stream, const char *request_id, uint32_t n_tokens,
                         struct sluice_error *err)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__CreditFrame credit = SLUICE__V1__CREDIT_FRAME__INIT;
    credit.n_tokens = n_tokens;
    frame.request_id = (char *)(uintptr_t)request_id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_CREDIT;
    frame.credit = &credit;
    return sluice_stream_send(stream, &frame, err);
}

int sluice_stream_pause(struct sluice_stream *stream, const char *request_id,
                        struct sluice_error *err)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__PauseFrame pause = SLUICE__V1__PAUSE_FRAME__INIT;
    frame.request_id = (char *)(uintptr_t)request_id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_PAUSE;
    frame.pause = &pause;
    return sluice_stream_send(stream, &frame, err);
}

int sluice_stream_resume(struct sluice_stream *stream, const char *request_id,
                         struct sluice_error *err)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    Sluice__V1__ResumeFrame resume = SLUICE__V1__RESUME_FRAME__INIT;
    frame.request_id = (char *)(uintptr_t)request_id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_RESUME;
    frame.resume = &resume;
    return sluice_stream_send(stream, &frame, err);
}

int sluice_stream_update(struct sluice_stream *stream, const char *request_id,
                         const Sluice__V1__UpdateFrame *update, struct sluice_error *err)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    frame.request_id = (char *)(uintptr_t)request_id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_UPDATE;
    frame.update = (Sluice__V1__UpdateFrame *)(uintptr_t)update;
    return sluice_stream_send(stream, &frame, err);
}

int sluice_stream_reattach(struct sluice_stream *stream, const char *request_id,
                           const Sluice__V1__ReattachFrame *reattach, struct sluice_error *err)
{
    Sluice__V1__GenerateStreamRequest frame = SLUICE__V1__GENERATE_STREAM_REQUEST__INIT;
    frame.request_id = (char *)(uintptr_t)request_id;
    frame.frame_case = SLUICE__V1__GENERATE_STREAM_REQUEST__FRAME_REATTACH;
    frame.reattach = (Sluice__V1__ReattachFrame *)(uintptr_t)reattach;
    return sluice_stream_send(stream, &frame, err);
}

void sluice_stream_finish(struct sluice_stream *stream)
{
    rpc_reader_close_send(stream->answer.reader);
}

int sluice_stream_next(struct sluice_stream *stream,
                       const Sluice__V1__GenerateStreamResponse **out_frame,
                       struct sluice_error *err)
{
    int code = next_message(&stream->answer, err);
    if (!code)
        *out_frame = (const Sluice__V1__GenerateStreamResponse *)stream->answer.message;
    return code;
}

void sluice_stream_close(struct sluice_stream *stream)
{
    if (!stream)
        return;
    close_reader(&stream->answer);
    free(stream);
}
