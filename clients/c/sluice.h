/* sluice.h: libsluice, the C client of a sluice-server. Requests and answers are the messages that
 * protoc-c makes of sluice/v1/inference.proto; this library sends them: unary, streaming, and many
 * on one bidirectional stream, with cancel, deadlines, TLS, an API key, and the retry policy of
 * clients/service_config.json.
 *
 * A client and everything opened on it may be used from any thread, and by several, save where a
 * function says otherwise. Functions that return int return 0, or the gRPC status code (1 to 16)
 * with *err filled (which may be NULL); outputs are untouched then. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <sluice/v1/inference.pb-c.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLUICE_API __attribute__((visibility("default")))

/* What went wrong: the status and its google.rpc details. */
struct sluice_error {
    int code;                /* gRPC status code */
    uint32_t retry_after_ms; /* RetryInfo; 0: nothing is said */
    char field[96];          /* BadRequest: the field at fault ("sampling.top_p"), or empty */
    char reason[40];         /* ErrorInfo ("QUEUE_FULL"), or empty */
    char message[512];
};
/* "INVALID_ARGUMENT" and so on. */
SLUICE_API const char *sluice_code_name(int code);

/* How to reach the server. A zeroed struct with a target is enough; strings are copied. */
struct sluice_options {
    /* "127.0.0.1:8001", "unix:/run/sluice/server.sock" (a path, not a URI), "dns:///host:port" */
    const char *target;
    bool tls;                                     /* also where tls_ca is given */
    const char *tls_ca;                           /* PEM file; NULL: the system's CAs */
    const char *tls_client_cert, *tls_client_key; /* PEM files, or NULL */
    const char *server_name;    /* that the server's certificate has; NULL: the target's host */
    const char *api_key;        /* or NULL; goes over TLS or to this machine only */
    bool allow_plaintext_keys;  /* unless something else encrypts */
    const char *service_config; /* JSON; NULL: the one of clients/service_config.json; "": none */
};

struct sluice_client;
/* Connects at the first call. *out_client is owned. */
SLUICE_API int sluice_open(const struct sluice_options *options, struct sluice_client **out_client,
                           struct sluice_error *err);
/* Cancels what runs. Close answers and streams first. NULL is accepted. */
SLUICE_API void sluice_close(struct sluice_client *client);

/* Unary calls by their name in the .proto: "Complete", "Tokenize", "ListModels"; timeout_ms 0: no
 * deadline. *out_response is owned (sluice_free). */
SLUICE_API int sluice_call(struct sluice_client *client, const char *method,
                           const ProtobufCMessage *request, uint64_t timeout_ms,
                           ProtobufCMessage **out_response, struct sluice_error *err);
SLUICE_API void sluice_free(void *message); /* NULL is accepted */

/* --- Generate: one answer, as it comes --- */

struct sluice_answer;
/* *out_answer is owned. The request is borrowed for the call. */
SLUICE_API int sluice_generate(struct sluice_client *client,
                               const Sluice__V1__GenerateRequest *request, uint64_t timeout_ms,
                               struct sluice_answer **out_answer, struct sluice_error *err);
/* Waits for the next message: *out_message is borrowed until the next call, and NULL after the last
 * one. One thread. */
SLUICE_API int sluice_next(struct sluice_answer *answer,
                           const Sluice__V1__GenerateResponse **out_message,
                           struct sluice_error *err);
/* Ends it, from any thread: the next sluice_next returns CANCELLED (1). */
SLUICE_API void sluice_cancel(struct sluice_answer *answer);
SLUICE_API void sluice_answer_close(struct sluice_answer *answer); /* NULL is accepted */

/* --- GenerateStream: many answers on one stream --- */

struct sluice_stream;
/* *out_stream is owned. Requests that are lost with their connection are not repeated. */
SLUICE_API int sluice_stream_open(struct sluice_client *client, struct sluice_stream **out_stream,
                                  struct sluice_error *err);
/* Any frame; waits while 1 MiB is unsent. Any thread. */
SLUICE_API int sluice_stream_send(struct sluice_stream *stream,
                                  const Sluice__V1__GenerateStreamRequest *frame,
                                  struct sluice_error *err);
/* The usual frames. `request_id` is the start's. */
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
/* A refusal is an error frame with goes_on: the request runs on as it was. */
SLUICE_API int sluice_stream_update(struct sluice_stream *stream, const char *request_id,
                                    const Sluice__V1__UpdateFrame *update,
                                    struct sluice_error *err);
/* Takes up a request that was started with reattach_window_ms, on this stream or one that is lost;
 * `reattach` says what the client has, the stream goes on after it. */
SLUICE_API int sluice_stream_reattach(struct sluice_stream *stream, const char *request_id,
                                      const Sluice__V1__ReattachFrame *reattach,
                                      struct sluice_error *err);
/* No more frames from here: the stream ends when the last answer has. */
SLUICE_API void sluice_stream_finish(struct sluice_stream *stream);
/* As sluice_next. An error of one request is a frame, not an error here. One thread. */
SLUICE_API int sluice_stream_next(struct sluice_stream *stream,
                                  const Sluice__V1__GenerateStreamResponse **out_frame,
                                  struct sluice_error *err);
SLUICE_API void sluice_stream_close(struct sluice_stream *stream); /* NULL is accepted */

#ifdef __cplusplus
}
#endif
