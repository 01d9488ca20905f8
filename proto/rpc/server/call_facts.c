/* Facts and settings of a call. No function here starts a batch. */
#include <string.h>

#include <grpc/grpc_security.h>
#include <grpc/slice.h>

#include "proto/rpc/message/status.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/call_internal.h"

void rpc_call_set_events(struct rpc_call *call, const struct rpc_call_events *events, void *arg)
{
    pthread_mutex_lock(&call->lock);
    call->events = events;
    call->events_arg = arg;
    pthread_mutex_unlock(&call->lock);
}

size_t rpc_call_pending_bytes(struct rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    size_t n_bytes = call->queue.pending_bytes;
    pthread_mutex_unlock(&call->lock);
    return n_bytes;
}

bool rpc_call_cancelled(struct rpc_call *call)
{
    pthread_mutex_lock(&call->lock);
    bool cancelled = call->aborted || (call->closed && call->peer_cancelled != 0);
    pthread_mutex_unlock(&call->lock);
    return cancelled;
}

const char *rpc_call_method(const struct rpc_call *call)
{
    return call->path;
}

const char *rpc_call_peer(const struct rpc_call *call)
{
    return call->peer;
}

int64_t rpc_call_deadline_ns(const struct rpc_call *call)
{
    return call->deadline_ns;
}

const char *rpc_call_metadata(const struct rpc_call *call, const char *key, size_t *out_n_bytes)
{
    for (size_t i = 0; i < call->n_headers; i++) {
        if (strcmp(call->headers[i].key, key) != 0)
            continue;
        if (out_n_bytes != NULL)
            *out_n_bytes = call->headers[i].n_value;
        return call->headers[i].value;
    }
    return NULL;
}

size_t rpc_call_n_metadata(const struct rpc_call *call, const char *key)
{
    size_t n = 0;
    for (size_t i = 0; i < call->n_headers; i++)
        n += strcmp(call->headers[i].key, key) == 0;
    return n;
}

int rpc_call_peer_name(const struct rpc_call *call, char *out_name, size_t n_out)
{
    static const char *const properties[] = {
        GRPC_PEER_URI_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME};
    grpc_auth_context *context = grpc_call_auth_context(call->core);
    const grpc_auth_property *found = NULL;
    int rc = STATUS_NOT_FOUND;
    if (context == NULL)
        return rc;
    bool known = grpc_auth_context_peer_is_authenticated(context) != 0;
    for (size_t i = 0; known && found == NULL && i < sizeof(properties) / sizeof(*properties);
         i++) {
        grpc_auth_property_iterator it =
            grpc_auth_context_find_properties_by_name(context, properties[i]);
        found = grpc_auth_property_iterator_next(&it);
    }
    if (found != NULL) {
        rc = found->value_length > 0 && found->value_length < n_out ? 0 : STATUS_INVALID_ARGUMENT;
        for (size_t i = 0; rc == 0 && i < found->value_length; i++)
            if (found->value[i] <= ' ' || found->value[i] > '~')
                rc = STATUS_INVALID_ARGUMENT;
    }
    if (rc == 0) {
        memcpy(out_name, found->value, found->value_length);
        out_name[found->value_length] = '\0';
    }
    grpc_auth_context_release(context);
    return rc;
}

int rpc_call_set_tenant(struct rpc_call *call, const char *tenant)
{
    size_t n = strlen(tenant);
    if (n > RPC_MAX_TENANT)
        return STATUS_INVALID_ARGUMENT;
    memcpy(call->tenant, tenant, n + 1);
    return 0;
}

const char *rpc_call_tenant(const struct rpc_call *call)
{
    return call->tenant;
}

int rpc_call_add_trailer(struct rpc_call *call, const char *key, const char *value)
{
    grpc_slice key_slice = grpc_slice_from_copied_string(key);
    grpc_slice value_slice = grpc_slice_from_copied_string(value);
    int rc = 0;
    if (!grpc_header_key_is_legal(key_slice) || grpc_is_binary_header(key_slice) ||
        !grpc_header_nonbin_value_is_legal(value_slice))
        rc = STATUS_INVALID_ARGUMENT;
    pthread_mutex_lock(&call->lock);
    if (rc == 0 && (call->dead || call->ended))
        rc = STATUS_CANCELLED;
    if (rc == 0 && call->n_trailers == RPC_CALL_MAX_TRAILERS)
        rc = STATUS_RESOURCE_EXHAUSTED;
    if (rc == 0) {
        call->trailers[call->n_trailers].key = key_slice;
        call->trailers[call->n_trailers++].value = value_slice;
    }
    pthread_mutex_unlock(&call->lock);
    if (rc != 0) {
        grpc_slice_unref(key_slice);
        grpc_slice_unref(value_slice);
    }
    return rc;
}

void rpc_call_set_role(struct rpc_call *call, enum role role)
{
    call->role = role;
}

enum role rpc_call_role(const struct rpc_call *call)
{
    return call->role;
}

bool rpc_call_peer_uid(const struct rpc_call *call, uint32_t *out_uid)
{
    if (call->peer_known)
        *out_uid = call->peer_ids.uid;
    return call->peer_known;
}
