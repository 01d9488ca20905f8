/* sluice.h: libsluice, the C client of a sluice-server. protoc-c makes the messages from
 * sluice/v1/inference.proto. This library makes the calls: unary calls, streamed answers, and
 * many requests on a single bidirectional stream. Calls can be cancelled and have deadlines. TLS,
 * an API key, and the retry policy of clients/service_config.json are supported.
 *
 * Threads: a client, its answers and its streams may be used from several threads, unless a
 * function says otherwise. Errors: functions that return int return 0, or the gRPC status code (1
 * to 16). Then *err is filled (err may be NULL) and outputs are untouched. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sluice/v1/inference.pb-c.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_API __attribute__((visibility("default")))

/* An error: the gRPC status and its google.rpc details. */
struct sluice_error {
    int code;                /* gRPC status code */
    uint32_t retry_after_ms; /* from RetryInfo; 0: no advice */
    char field[96];          /* from BadRequest: the wrong field ("sampling.top_p"), or empty */
    char reason[40];         /* from ErrorInfo ("QUEUE_FULL"), or empty */
    char message[512];
};
/* Returns the name of a gRPC status code: "INVALID_ARGUMENT" and so on. */
SLUICE_API const char *sluice_code_name(int code);

/* How to reach the server. A zeroed struct with a target is enough. Strings are copied. */
struct sluice_options {
    /* "127.0.0.1:8001", "unix:/run/sluice/server.sock" (a path, not a URI), "dns:///host:port" */
    const char *target;
    bool tls;                                     /* implied by tls_ca */
    const char *tls_ca;                           /* PEM file; NULL: the system's CAs */
    const char *tls_client_cert, *tls_client_key; /* PEM files, or NULL */
    const char *server_name;    /* name in the server's certificate; NULL: the target's host */
    const char *api_key;        /* or NULL; sent over TLS or to this machine only */
    bool allow_plaintext_keys;  /* allow api_key without TLS */
    const char *service_config; /* JSON; NULL: clients/service_config.json; "": no retries */
};

struct sluice_client;
/* Creates a client; the first call connects. The caller owns *out_client. */
SLUICE_API int sluice_open(const struct sluice_options *options, struct sluice_client **out_client,
                           struct sluice_error *err);
/* Cancels running calls. Close answers and streams first. NULL is accepted. */
SLUICE_API void sluice_close(struct sluice_client *client);

/* Makes a unary call by its name in the .proto: "Complete", "Tokenize", "ListModels". timeout_ms 0:
 * no deadline. The caller owns *out_response (sluice_free). */
SLUICE_API int sluice_call(struct sluice_client *client, const char *method,
                           const ProtobufCMessage *request, uint64_t timeout_ms,
                           ProtobufCMessage **out_response, struct sluice_error *err);
SLUICE_API void sluice_free(void *message); /* NULL is accepted */

/* --- Generate: a single answer, streamed --- */

struct sluice_answer;
/* Starts an answer. The caller owns *out_answer. The request is borrowed during this call. */
SLUICE_API int sluice_generate(struct sluice_client *client,
                               const Sluice__V1__GenerateRequest *request, uint64_t timeout_ms,
                               struct sluice_answer **out_answer, struct sluice_error *err);
/* Waits for the next message. *out_message is borrowed until the next call; NULL after the last
 * message. Call from a single thread at a time. */
SLUICE_API int sluice_next(struct sluice_answer *answer,
                           const Sluice__V1__GenerateResponse **out_message,
                           struct sluice_error *err);
/* Cancels the answer: the next sluice_next returns CANCELLED (1). Any thread. */
SLUICE_API void sluice_cancel(struct sluice_answer *answer);
SLUICE_API void sluice_answer_close(struct sluice_answer *answer); /* NULL is accepted */

/* --- GenerateStream: many answers on one stream --- */

struct sluice_stream;
/* Opens a stream. The caller owns *out_stream. Requests that are lost with their connection are not
 * repeated. */
SLUICE_API int sluice_stream_open(struct sluice_client *client, struct sluice_stream **out_stream,
                                  struct sluice_error *err);
/* Sends any frame; waits while 1 MiB is unsent. Any thread. */
SLUICE_API int sluice_stream_send(struct sluice_stream *stream,
                                  const Sluice__V1__GenerateStreamRequest *frame,
                                  struct sluice_error *err);
/* The common frames. `request_id` is the id of the request in the start frame. */
SLUICE_API int sluice_stream_start(struct sluice_stream *stream,
                                   const Sluice__V1__GenerateRequest *request,
                                   struct sluice_error *err);
SLUICE_API int sluice_stream_cancel(struct sluice_stream *stream, const char *request_id,
                                    struct sluice_error *err);
SLUICE_API int sluice_stream_credit(struct sluice_stream *stream, const char *request_id,
                                    uint32_t n_tokens, struct sluice_error *err);
SLUICE_API int sluice_stream_pause(struct sluice_stream *stream, const char *request_id,
                                   struct sluice_error *err);
SLUICE_API int sluice_stream_resume(struct sluice_stream *stream, const char *request_id,
                                    struct sluice_error *err);
/* Changes a running request. A refused update is an error frame with goes_on: the request continues
 * unchanged. */
SLUICE_API int sluice_stream_update(struct sluice_stream *stream, const char *request_id,
                                    const Sluice__V1__UpdateFrame *update,
                                    struct sluice_error *err);
/* Continues a request that was started with reattach_window_ms, on this or on a lost stream.
 * `reattach` has the number of tokens that the client received; the stream continues after them. */
SLUICE_API int sluice_stream_reattach(struct sluice_stream *stream, const char *request_id,
                                      const Sluice__V1__ReattachFrame *reattach,
                                      struct sluice_error *err);
/* Sends no more frames. The stream ends after the last answer. */
SLUICE_API void sluice_stream_finish(struct sluice_stream *stream);
/* Waits for the next frame, like sluice_next. The error of a request is a frame, not an error of
 * this function. Call from a single thread at a time. */
SLUICE_API int sluice_stream_next(struct sluice_stream *stream,
                                  const Sluice__V1__GenerateStreamResponse **out_frame,
                                  struct sluice_error *err);
SLUICE_API void sluice_stream_close(struct sluice_stream *stream); /* NULL is accepted */

#ifdef __cplusplus
}
#endif
