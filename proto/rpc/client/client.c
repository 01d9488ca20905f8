#include "proto/rpc/client/client.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <grpc/grpc_security.h>

#include "base/clock.h"
#include "base/error.h"
#include "proto/rpc/client/client_internal.h"
#include "proto/rpc/core/core.h"
#include "proto/rpc/core/tls_internal.h"
#include "proto/rpc/core/unix_path.h"
#include "proto/rpc/message/message.h"

struct rpc_client {
    grpc_channel *channel;
    grpc_completion_queue *queue;
    pthread_t thread;
    char *target;        /* as given */
    int folder;          /* folder of a unix socket (unix_path.h); -1: none */
    char *authorization; /* NULL without a key */
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
        .connect_timeout_ms = 10000,
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

static grpc_arg string_arg(const char *key, const char *value)
{
    union {
        const char *in;
        char *out;
    } name = {key}, text = {value};
    grpc_arg arg;
    memset(&arg, 0, sizeof(arg));
    arg.type = GRPC_ARG_STRING;
    arg.key = name.out;
    arg.value.string = text.out;
    return arg;
}

/* `target` is gRPC's name for config->target. */
static grpc_channel *create_channel(const struct rpc_client_config *config, const char *target,
                                    grpc_channel_credentials *credentials)
{
    bool named = config->tls && config->server_name != NULL && config->server_name[0] != '\0';
    bool retries = config->service_config != NULL && config->service_config[0] != '\0';
    grpc_arg args[16] = {
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, config->max_message_bytes),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, INT32_MAX),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, config->keepalive_time_ms),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, config->keepalive_timeout_ms),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, config->reconnect_min_ms),
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, config->connect_timeout_ms),
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, config->reconnect_max_ms),
        int_arg(GRPC_ARG_ENABLE_RETRIES, retries ? 1 : 0),
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
    };
    size_t n = 0;
    while (args[n].key != NULL)
        n++;
    if (named)
        args[n++] = string_arg(GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, config->server_name);
    if (retries)
        args[n++] = string_arg(GRPC_ARG_SERVICE_CONFIG, config->service_config);
    grpc_channel_args list = {n, args};
    return grpc_channel_create(target, credentials, &list);
}

static int create_credentials(const struct rpc_client_config *config,
                              grpc_channel_credentials **out_credentials, struct error *err)
{
    if (config->tls)
        return rpc_tls_channel_credentials(config->tls_ca, config->tls_client_cert,
                                           config->tls_client_key, out_credentials, err);
    *out_credentials = grpc_insecure_credentials_create();
    return 0;
}

/* Makes "Bearer KEY", owned; NULL without a key. */
static int make_authorization(const char *key, char **out_text, struct error *err)
{
    size_t n = key != NULL ? strlen(key) : 0;
    *out_text = NULL;
    if (n == 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] > '~')
            return error_set(err, STATUS_INVALID_ARGUMENT,
                             "API key: byte %zu is not a printable ASCII character", i + 1);
    *out_text = malloc(n + sizeof("Bearer "));
    if (*out_text == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a client");
    memcpy(*out_text, "Bearer ", 7);
    memcpy(*out_text + 7, key, n + 1);
    return 0;
}

/* Frees everything but gRPC's objects. */
static void free_client(struct rpc_client *client)
{
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    if (client->folder >= 0)
        close(client->folder);
    free(client->authorization);
    free(client->target);
    free(client);
}

/* Makes gRPC's name of the target; *out_target is owned. */
static int name_target(struct rpc_client *client, char **out_target, struct error *err)
{
    static const char scheme[] = "unix:";
    size_t n_scheme = sizeof(scheme) - 1;
    if (strncmp(client->target, scheme, n_scheme) == 0)
        return rpc_unix_path_target(client->target + n_scheme, out_target, &client->folder, err);
    *out_target = strdup(client->target);
    return *out_target != NULL
               ? 0
               : error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a client");
}

static int start_client(struct rpc_client *client, const struct rpc_client_config *config,
                        struct error *err)
{
    grpc_channel_credentials *credentials = NULL;
    char *target = NULL;
    int rc = name_target(client, &target, err);
    if (rc != 0)
        return rc;
    rpc_core_init();
    rc = create_credentials(config, &credentials, err);
    if (rc != 0) {
        free(target);
        rpc_core_fini();
        return rc;
    }
    client->channel = create_channel(config, target, credentials);
    free(target);
    grpc_channel_credentials_release(credentials);
    client->queue = grpc_completion_queue_create_for_next(NULL);
    int err_no = pthread_create(&client->thread, NULL, rpc_core_run_queue, client->queue);
    if (err_no == 0)
        return 0;
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->queue);
    rpc_core_run_queue(client->queue);
    grpc_completion_queue_destroy(client->queue);
    rpc_core_fini();
    return error_errno(err, err_no, "cannot start a client thread");
}

int rpc_client_create(const struct rpc_client_config *config, struct rpc_client **out_client,
                      struct error *err)
{
    if (config->target == NULL || config->target[0] == '\0')
        return error_set(err, STATUS_INVALID_ARGUMENT, "target: must not be empty");
    struct rpc_client *client = calloc(1, sizeof(*client));
    if (client == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a client");
    pthread_mutex_init(&client->lock, NULL);
    pthread_cond_init(&client->changed, NULL);
    client->folder = -1;
    client->max_pending_bytes = config->max_pending_bytes;
    client->target = strdup(config->target);
    int rc = client->target != NULL
                 ? make_authorization(config->api_key, &client->authorization, err)
                 : error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for a client");
    if (rc == 0)
        rc = start_client(client, config, err);
    if (rc != 0) {
        free_client(client);
        return rc;
    }
    *out_client = client;
    return 0;
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
    free_client(client);
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

const char *rpc_client_authorization(const struct rpc_client *client)
{
    return client->authorization;
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

void rpc_client_connect_now(struct rpc_client *client)
{
    grpc_channel_reset_connect_backoff(client->channel);
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
    return error_reason(err, REASON_NOT_CONNECTED);
}
