#include "proto/rpc/rpc_client.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/grpc_security.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/rpc_client_internal.h"
#include "proto/rpc/rpc_core.h"
#include "proto/rpc/rpc_message.h"

struct rpc_client {
    grpc_channel *channel;
    grpc_completion_queue *queue;
    pthread_t thread;
    char *target;
    size_t max_pending_bytes;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct rpc_live *live;
    bool closing;
};

void rpc_client_config_init(struct rpc_client_config *config)
{
    *config = (struct rpc_client_config){
        .max_message_bytes = 4u << 20,
        .max_pending_bytes = 1u << 20,
        .keepalive_time_ms = 60000,
        .keepalive_timeout_ms = 20000,
        .reconnect_min_ms = 100,
        .reconnect_max_ms = 1000,
    };
}

static grpc_arg int_arg(const char *key, uint64_t value)
{
    union {
        const char *in;
        char *out;
    } name = {key};
    grpc_arg arg;
    memset(&arg, 0, sizeof(arg));
    arg.type = GRPC_ARG_INTEGER;
    arg.key = name.out;
    arg.value.integer = value > INT32_MAX ? INT32_MAX : (int)value;
    return arg;
}

static grpc_channel *create_channel(const struct rpc_client_config *config)
{
    grpc_arg args[] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, config->max_message_bytes),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, INT32_MAX),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, config->keepalive_time_ms),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config->keepalive_timeout_ms),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, config->reconnect_min_ms),
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, config->reconnect_max_ms),
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, config->reconnect_max_ms),
        /* Calls are resumed by those who know what they mean; core must not repeat them. */
        int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
    };
    grpc_channel_args list = {sizeof(args) / sizeof(args[0]), args};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(config->target, credentials, &list);
    grpc_channel_credentials_release(credentials);
    return channel;
}

int rpc_client_create(const struct rpc_client_config *config, struct rpc_client **out_client,
                      struct error *err)
{
    if (config->target == NULL || config->target[0] == '\0')
        return error_set(err, STATUS_INVALID_ARGUMENT, "target: empty");
    struct rpc_client *client = calloc(1, sizeof(*client));
    char *target = strdup(config->target);
    if (client == NULL || target == NULL) {
        free(client);
        free(target);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a client");
    }
    client->target = target;
    client->max_pending_bytes = config->max_pending_bytes;
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->changed, NULL);
    rpc_core_init();
    client->channel = create_channel(config);
    client->queue = grpc_completion_queue_create_for_next(NULL);
    int err_no = pthread_create(&client->thread, NULL, rpc_core_run_queue, client->queue);
    if (err_no == 0) {
        *out_client = client;
        return 0;
    }
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->queue);
    rpc_core_run_queue(client->queue);
    grpc_completion_queue_destroy(client->queue);
    rpc_core_fini();
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    free(client);
    free(target);
    return error_errno(err, err_no, "cannot start a client thread");
}

void rpc_client_destroy(struct rpc_client *client)
{
    if (client == NULL)
        return;
    pthread_mutex_lock(&client->lock);
    client->closing = true;
    for (struct rpc_live *live = client->live; live != NULL; live = live->next)
        rpc_stream_cancel_live(live);
    while (client->live != NULL)
        pthread_cond_wait(&client->changed, &client->lock);
    pthread_mutex_unlock(&client->lock);
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->queue);
    pthread_join(client->thread, NULL);
    grpc_completion_queue_destroy(client->queue);
    rpc_core_fini();
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    free(client->target);
    free(client);
}

bool rpc_client_enter(struct rpc_client *client, struct rpc_live *live)
{
    pthread_mutex_lock(&client->lock);
    bool open = !client->closing;
    if (open) {
        live->next = client->live;
        live->at = &client->live;
        if (live->next != NULL)
            live->next->at = &live->next;
        client->live = live;
    }
    pthread_mutex_unlock(&client->lock);
    return open;
}

void rpc_client_leave(struct rpc_client *client, struct rpc_live *live)
{
    pthread_mutex_lock(&client->lock);
    *live->at = live->next;
    if (live->next != NULL)
        live->next->at = live->at;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
}

grpc_channel *rpc_client_channel(struct rpc_client *client)
{
    return client->channel;
}

grpc_completion_queue *rpc_client_queue(struct rpc_client *client)
{
    return client->queue;
}

size_t rpc_client_max_pending(const struct rpc_client *client)
{
    return client->max_pending_bytes;
}

/* --- connecting --- */

struct watch {
    struct rpc_tag tag;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool fired;
};

static void on_state(struct rpc_tag *tag, bool ok)
{
    struct watch *watch = tag->object;
    (void)ok;
    pthread_mutex_lock(&watch->lock);
    watch->fired = true;
    pthread_cond_signal(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
}

int rpc_client_wait_connected(struct rpc_client *client, uint32_t timeout_ms, struct error *err)
{
    struct watch watch = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    int64_t end_ns = clock_now_ns() + timeout_ms * NS_PER_MS;
    rpc_tag_init(&watch.tag, on_state, &watch);
    for (;;) {
        grpc_connectivity_state state = grpc_channel_check_connectivity_state(client->channel, 1);
        if (state == GRPC_CHANNEL_READY)
            return 0;
        if (clock_now_ns() >= end_ns)
            break;
        watch.fired = false;
        rpc_tag_arm(&watch.tag);
        grpc_channel_watch_connectivity_state(client->channel, state, rpc_core_deadline(end_ns),
                                              client->queue, &watch.tag);
        pthread_mutex_lock(&watch.lock);
        while (!watch.fired)
            pthread_cond_wait(&watch.changed, &watch.lock);
        pthread_mutex_unlock(&watch.lock);
    }
    error_set(err, STATUS_UNAVAILABLE, "no connection to %s within %u ms", client->target,
              timeout_ms);
    return error_reason(err, "NOT_CONNECTED");
}
