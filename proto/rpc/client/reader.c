/* reader.c: the blocking reader of stream.h: one message waits at a time, flow control holds the
 * others back. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "proto/rpc/client/client_internal.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"

struct rpc_reader {
    struct rpc_stream *stream; /* owned */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ProtobufCMessage *waiting; /* owned */
    bool ended, writable;
    struct error status;
};

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    struct rpc_reader *reader = arg;
    rpc_stream_pause_reads(stream);
    pthread_mutex_lock(&reader->lock);
    reader->waiting = (ProtobufCMessage *)(uintptr_t)message;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->lock);
}

static void on_status(void *arg, struct rpc_stream *stream, const struct error *status)
{
    struct rpc_reader *reader = arg;
    (void)stream;
    pthread_mutex_lock(&reader->lock);
    reader->status = *status;
    reader->ended = true;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->lock);
}

static void on_writable(void *arg, struct rpc_stream *stream)
{
    struct rpc_reader *reader = arg;
    (void)stream;
    pthread_mutex_lock(&reader->lock);
    reader->writable = true;
    pthread_cond_broadcast(&reader->changed);
    pthread_mutex_unlock(&reader->lock);
}

static const struct rpc_stream_events events = {.on_message = on_message,
                                                .takes_messages = true,
                                                .on_writable = on_writable,
                                                .on_status = on_status};

static void destroy(struct rpc_reader *reader)
{
    rpc_message_free(reader->waiting);
    pthread_cond_destroy(&reader->changed);
    pthread_mutex_destroy(&reader->lock);
    free(reader);
}

int rpc_reader_open(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                    const char *method, const ProtobufCMessage *request,
                    const struct rpc_call_options *options, struct rpc_reader **out_reader,
                    struct error *err)
{
    struct rpc_reader *reader = calloc(1, sizeof(*reader));
    if (reader == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a call");
    pthread_mutex_init(&reader->lock, NULL);
    pthread_cond_init(&reader->changed, NULL);
    int rc = rpc_stream_open(client, service, method, request, options, &events, reader,
                             &reader->stream, err);
    if (rc != 0) {
        destroy(reader);
        return rc;
    }
    *out_reader = reader;
    return 0;
}

int rpc_reader_next(struct rpc_reader *reader, ProtobufCMessage **out_message, struct error *err)
{
    pthread_mutex_lock(&reader->lock);
    while (reader->waiting == NULL && !reader->ended)
        pthread_cond_wait(&reader->changed, &reader->lock);
    ProtobufCMessage *message = reader->waiting;
    reader->waiting = NULL;
    bool failed = message == NULL && reader->status.status != 0;
    if (failed)
        *err = reader->status;
    pthread_mutex_unlock(&reader->lock);
    if (failed)
        return err->status;
    if (message != NULL)
        rpc_stream_resume_reads(reader->stream);
    *out_message = message;
    return 0;
}

/* Fills the reason why nothing can be sent any more. */
static int fill_send_error(struct rpc_reader *reader, struct error *err)
{
    pthread_mutex_lock(&reader->lock);
    bool failed = reader->ended && reader->status.status != 0;
    if (failed)
        *err = reader->status;
    pthread_mutex_unlock(&reader->lock);
    return failed ? err->status : error_set(err, STATUS_CANCELLED, "the call has ended");
}

int rpc_reader_send(struct rpc_reader *reader, const ProtobufCMessage *message, struct error *err)
{
    for (;;) {
        pthread_mutex_lock(&reader->lock);
        reader->writable = false;
        pthread_mutex_unlock(&reader->lock);
        int rc = rpc_stream_send(reader->stream, message);
        if (rc == 0)
            return 0;
        if (rc != STATUS_RESOURCE_EXHAUSTED)
            return fill_send_error(reader, err);
        pthread_mutex_lock(&reader->lock);
        while (!reader->writable && !reader->ended)
            pthread_cond_wait(&reader->changed, &reader->lock);
        pthread_mutex_unlock(&reader->lock);
    }
}

void rpc_reader_close_send(struct rpc_reader *reader)
{
    rpc_stream_close_send(reader->stream);
}

void rpc_reader_cancel(struct rpc_reader *reader)
{
    rpc_stream_cancel(reader->stream);
}

void rpc_reader_close(struct rpc_reader *reader)
{
    if (reader == NULL)
        return;
    rpc_stream_cancel(reader->stream);
    pthread_mutex_lock(&reader->lock);
    while (!reader->ended)
        pthread_cond_wait(&reader->changed, &reader->lock);
    pthread_mutex_unlock(&reader->lock);
    rpc_stream_release(reader->stream);
    destroy(reader);
}
