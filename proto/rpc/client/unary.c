/* unary.c: the unary calls of client.h, as streams with one message each way. */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "proto/rpc/client/client_internal.h"
#include "proto/rpc/message/message.h"

/* The callee frees `response`. */
typedef void done_fn(void *arg, ProtobufCMessage *response, const struct error *status);

struct unary {
    done_fn *done;
    void *arg;
    ProtobufCMessage *response;
    unsigned n_messages;
    struct rpc_stream *stream;
    bool kept; /* the caller holds the stream */
};

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    struct unary *unary = arg;
    (void)stream;
    if (unary->n_messages++ > 0) {
        rpc_message_free((ProtobufCMessage *)(uintptr_t)message);
        return;
    }
    unary->response = (ProtobufCMessage *)(uintptr_t)message;
}

static void on_status(void *arg, struct rpc_stream *stream, const struct error *status)
{
    struct unary *unary = arg;
    struct error local = *status;
    ProtobufCMessage *response = unary->response;
    if (local.status == 0 && unary->n_messages != 1)
        error_set(&local, STATUS_INTERNAL, "a unary call got %u answers", unary->n_messages);
    if (local.status != 0) {
        rpc_message_free(response);
        response = NULL;
    }
    unary->done(unary->arg, response, &local);
    if (!unary->kept)
        rpc_stream_release(stream);
    free(unary);
}

static const struct rpc_stream_events events = {
    .on_message = on_message, .takes_messages = true, .on_status = on_status};

static int start(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                 const char *method, const ProtobufCMessage *request,
                 const struct rpc_call_options *options, struct unary *unary,
                 struct rpc_stream **out_stream, struct error *err)
{
    unary->kept = out_stream != NULL;
    int rc = rpc_stream_open(client, service, method, request, options, &events, unary,
                             out_stream != NULL ? out_stream : &unary->stream, err);
    if (rc != 0)
        free(unary);
    return rc;
}

/* --- asynchronous --- */

struct reply {
    rpc_reply_fn *on_reply;
    void *arg;
};

static void pass_on(void *arg, ProtobufCMessage *response, const struct error *status)
{
    struct reply *reply = arg;
    reply->on_reply(reply->arg, response, status);
    rpc_message_free(response);
    free(reply);
}

int rpc_client_unary_open(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                          const char *method, const ProtobufCMessage *request,
                          const struct rpc_call_options *options, rpc_reply_fn *on_reply, void *arg,
                          struct rpc_stream **out_stream, struct error *err)
{
    struct unary *unary = calloc(1, sizeof(*unary));
    struct reply *reply = calloc(1, sizeof(*reply));
    if (unary == NULL || reply == NULL) {
        free(unary);
        free(reply);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a call");
    }
    *reply = (struct reply){on_reply, arg};
    unary->done = pass_on;
    unary->arg = reply;
    int rc = start(client, service, method, request, options, unary, out_stream, err);
    if (rc != 0)
        free(reply);
    return rc;
}

int rpc_client_unary_async(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                           const char *method, const ProtobufCMessage *request,
                           const struct rpc_call_options *options, rpc_reply_fn *on_reply,
                           void *arg, struct error *err)
{
    return rpc_client_unary_open(client, service, method, request, options, on_reply, arg, NULL,
                                 err);
}

/* --- synchronous --- */

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool answered;
    ProtobufCMessage *response;
    struct error status;
};

static void wake(void *arg, ProtobufCMessage *response, const struct error *status)
{
    struct waiter *waiter = arg;
    pthread_mutex_lock(&waiter->lock);
    waiter->status = *status;
    waiter->response = response;
    waiter->answered = true;
    pthread_cond_signal(&waiter->changed);
    pthread_mutex_unlock(&waiter->lock);
}

int rpc_client_unary(struct rpc_client *client, const ProtobufCServiceDescriptor *service,
                     const char *method, const ProtobufCMessage *request,
                     const struct rpc_call_options *options, ProtobufCMessage **out_response,
                     struct error *err)
{
    struct waiter waiter = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    struct unary *unary = calloc(1, sizeof(*unary));
    if (unary == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a call");
    unary->done = wake;
    unary->arg = &waiter;
    int rc = start(client, service, method, request, options, unary, NULL, err);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&waiter.lock);
    while (!waiter.answered)
        pthread_cond_wait(&waiter.changed, &waiter.lock);
    pthread_mutex_unlock(&waiter.lock);
    if (waiter.status.status != 0) {
        *err = waiter.status;
        return err->status;
    }
    *out_response = waiter.response;
    return 0;
}
