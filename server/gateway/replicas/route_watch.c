#include "server/gateway/replicas/route_watch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "proto/rpc/message/message.h"
#include "proto/rpc/server/listeners.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/replicas/replicas.h"

enum { RETRY_MS = 200, ASK_AGAIN_MS = 1000, ASK_TIMEOUT_MS = 5000, MAX_DEMANDS = 128 };
/* A refusal holds until the next answer, at most for REFUSED_MS, which covers the next question
 * with its time-out. A woken version may wait for WOKEN_MS to start. */
enum { REFUSED_MS = 2 * (ASK_AGAIN_MS + ASK_TIMEOUT_MS), WOKEN_MS = 60000 };

/* A version that the manager was asked to wake. */
struct demand {
    char model[65], version[33];
    int64_t asked_ns;
    int64_t answered_ns;  /* asked_ns of the question that was answered last */
    int64_t woken_ns;     /* when the manager answered that the version wakes; 0: never */
    int64_t refused_ns;   /* when the manager refused; 0: it did not, or has not answered */
    struct error refusal; /* set with refused_ns */
};

/* A WakeVersion call that is under way. */
struct question {
    struct route_watch *watch;
    char model[65], version[33];
    int64_t asked_ns;
};

struct route_watch {
    struct route_watch_config config;
    struct rpc_client *client;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping;
    struct rpc_reader *reader;          /* the open reader, for cancelling */
    atomic_bool connected;              /* the manager sends its routes */
    struct demand demands[MAX_DEMANDS]; /* the latest wakes; under the lock */
};

static void on_table(struct route_watch *watch, const Sluice__Manager__V1__RouteTable *message)
{
    struct error err;
    struct route_table *table;
    const char *path = watch->config.routes_file;
    if (route_table_from_message(message, &table, &err) != 0) {
        log_error(LOG_EVENT("routes refused"), LOG_STR("message", err.message));
        return;
    }
    if (path && path[0] && route_table_save(table, path, &err) != 0)
        log_warn(LOG_EVENT("routes not saved"), LOG_STR("message", err.message));
    log_info(LOG_EVENT("routes"), LOG_U64("generation", message->generation),
             LOG_U64("versions", message->n_routes));
    watch->config.apply(watch->config.arg, table);
}

static bool set_reader(struct route_watch *watch, struct rpc_reader *reader)
{
    pthread_mutex_lock(&watch->lock);
    bool go = !watch->stopping;
    watch->reader = go ? reader : NULL;
    pthread_mutex_unlock(&watch->lock);
    return go;
}

static uint64_t known_generation(struct replicas *replicas)
{
    struct route_table *routes = replicas_routes(replicas);
    uint64_t generation = route_table_message(routes)->generation;
    route_table_release(routes);
    return generation;
}

/* Lists where clients reach this server: TCP with the bound port, and the unix socket. */
static size_t address_list(const struct route_watch_config *config, char *tcp, size_t tcp_bytes,
                           char *out_list[2])
{
    size_t n = 0;
    const char *listen = config->listen, *colon = strrchr(listen, ':');
    if (colon) {
        snprintf(tcp, tcp_bytes, "%.*s:%u", (int)(colon - listen), listen,
                 (unsigned)atomic_load(config->port));
        out_list[n++] = tcp;
    }
    if (config->listen_unix[0])
        out_list[n++] = (char *)(uintptr_t)config->listen_unix;
    return n;
}

/* Lists the addresses of HTTP, the first TCP address with its bound port. */
static size_t http_list(const struct route_watch_config *config, struct rpc_addresses *out,
                        char *out_list[RPC_MAX_ADDRESSES])
{
    struct error ignored; /* the server has checked the addresses */
    bool is_first = true;
    if (!config->http_listen ||
        rpc_listeners_split("--http-listen", config->http_listen, out, &ignored) != 0)
        return 0;
    for (size_t i = 0; i < out->n; i++) {
        char *text = out->list[i], *colon = strrchr(text, ':');
        out_list[i] = text;
        if (!is_first || strncmp(text, "unix:", 5) == 0 || !colon)
            continue;
        uint16_t port = config->http_port(config->arg);
        is_first = false;
        if (port)
            snprintf(colon, RPC_ADDRESS_BYTES - (size_t)(colon - text), ":%u", (unsigned)port);
    }
    return out->n;
}

static void follow(struct route_watch *watch)
{
    Sluice__Manager__V1__WatchRoutesRequest request =
        SLUICE__MANAGER__V1__WATCH_ROUTES_REQUEST__INIT;
    char version[] = SLUICE_VERSION, tcp[128];
    char *addresses[2], *https[RPC_MAX_ADDRESSES];
    struct rpc_addresses http;
    struct rpc_reader *reader;
    struct error err;
    request.server_id = (char *)(uintptr_t)watch->config.server_id;
    request.pid = (uint32_t)getpid();
    request.software_version = version;
    request.known_generation = known_generation(watch->config.replicas);
    request.addresses = addresses;
    request.n_addresses = address_list(&watch->config, tcp, sizeof(tcp), addresses);
    request.http_addresses = https;
    request.n_http_addresses = http_list(&watch->config, &http, https);
    rpc_client_connect_now(watch->client);
    int rc = rpc_reader_open(watch->client, &sluice__manager__v1__routing__descriptor,
                             "WatchRoutes", &request.base, NULL, &reader, &err);
    if (rc)
        return;
    ProtobufCMessage *message = NULL;
    error_set(&err, STATUS_UNAVAILABLE, "the stream of routes ended");
    bool go = set_reader(watch, reader);
    while (go && rpc_reader_next(reader, &message, &err) == 0 && message) {
        if (!watch->connected)
            log_info(LOG_EVENT("manager connected"));
        watch->connected = true;
        on_table(watch, (const Sluice__Manager__V1__RouteTable *)message);
        rpc_message_free(message);
    }
    bool running = set_reader(watch, NULL); /* false: the server ends and has cancelled the call */
    if (watch->connected && go && running)
        log_warn(LOG_EVENT("manager lost"), LOG_STR("message", err.message));
    watch->connected = false;
    rpc_reader_close(reader);
}

/* Under the lock. Returns NULL if no wake was asked for lately. */
static struct demand *find_demand(struct route_watch *watch, const char *model, const char *version)
{
    for (size_t i = 0; i < MAX_DEMANDS; i++)
        if (strcmp(watch->demands[i].model, model) == 0 &&
            strcmp(watch->demands[i].version, version) == 0)
            return &watch->demands[i];
    return NULL;
}

/* Under the lock: true if the manager should be asked now, at most once a second for each
 * version. Counts as asked then. */
static bool may_ask_now(struct route_watch *watch, const route *parked)
{
    int64_t now_ns = clock_now_ns();
    struct demand *found = find_demand(watch, parked->model, parked->version);
    struct demand *demand = found ? found : &watch->demands[0];
    for (size_t i = 1; !found && i < MAX_DEMANDS; i++) /* replaces the oldest wake */
        if (watch->demands[i].asked_ns < demand->asked_ns)
            demand = &watch->demands[i];
    if (demand->asked_ns && now_ns - demand->asked_ns < ASK_AGAIN_MS * NS_PER_MS)
        return false; /* this version, or MAX_DEMANDS others, were asked for within the second */
    if (!found)
        *demand = (struct demand){.model = ""};
    snprintf(demand->model, sizeof(demand->model), "%s", parked->model);
    snprintf(demand->version, sizeof(demand->version), "%s", parked->version);
    demand->asked_ns = now_ns;
    return true;
}

/* Under the lock. */
static bool is_refused(const struct demand *demand)
{
    return demand->refused_ns && clock_now_ns() - demand->refused_ns < REFUSED_MS * NS_PER_MS;
}

bool route_watch_refused(struct route_watch *watch, const char *model, const char *version,
                         struct error *out_why)
{
    if (!watch)
        return false;
    pthread_mutex_lock(&watch->lock);
    const struct demand *demand = find_demand(watch, model, version);
    bool refused = demand && is_refused(demand);
    if (refused && out_why)
        *out_why = demand->refusal;
    pthread_mutex_unlock(&watch->lock);
    return refused;
}

bool route_watch_hopes(struct route_watch *watch, const char *model, const char *version)
{
    if (!watch)
        return false;
    pthread_mutex_lock(&watch->lock);
    const struct demand *demand = find_demand(watch, model, version);
    bool hopes = demand && !is_refused(demand);
    pthread_mutex_unlock(&watch->lock);
    return hopes;
}

bool route_watch_connected(const struct route_watch *watch)
{
    return watch && atomic_load(&watch->connected);
}

bool route_watch_woke(struct route_watch *watch, const char *model, const char *version)
{
    if (!watch)
        return false;
    pthread_mutex_lock(&watch->lock);
    const struct demand *demand = find_demand(watch, model, version);
    bool woke =
        demand && demand->woken_ns && clock_now_ns() - demand->woken_ns < WOKEN_MS * NS_PER_MS;
    pthread_mutex_unlock(&watch->lock);
    return woke;
}

/* Under the lock: stores an answer, unless a later question has been answered. */
static void store_answer(struct demand *demand, const struct question *question,
                         const struct error *refusal)
{
    bool unanswered =
        refusal && !refusal->reason &&
        (refusal->status == STATUS_UNAVAILABLE || refusal->status == STATUS_DEADLINE_EXCEEDED ||
         refusal->status == STATUS_CANCELLED);
    if (question->asked_ns < demand->answered_ns)
        return;
    demand->answered_ns = question->asked_ns;
    demand->refused_ns = refusal ? clock_now_ns() : 0;
    if (refusal)
        demand->refusal = *refusal;
    else /* the version was woken now, or by another server before */
        demand->woken_ns = clock_now_ns();
    if (unanswered) /* gRPC's text would reveal the path of the socket */
        error_set(&demand->refusal, STATUS_UNAVAILABLE, "the manager does not answer");
}

static void on_woken(void *arg, const ProtobufCMessage *message, const struct error *status)
{
    struct question *question = arg;
    struct route_watch *watch = question->watch;
    const Sluice__Manager__V1__WakeVersionResponse *response =
        (const Sluice__Manager__V1__WakeVersionResponse *)message;
    pthread_mutex_lock(&watch->lock);
    struct demand *demand = find_demand(watch, question->model, question->version);
    if (demand)
        store_answer(demand, question, response ? NULL : status);
    pthread_mutex_unlock(&watch->lock);
    if (!response)
        log_warn(LOG_EVENT("parked version not woken"), LOG_STR("model", question->model),
                 LOG_STR("version", question->version), LOG_STR("why", status->message));
    else if (response->n_woken)
        counters_event(watch->config.counters, COUNTER_WAKE);
    free(question);
}

void route_watch_wake(struct route_watch *watch, const route *parked)
{
    Sluice__Manager__V1__WakeVersionRequest request =
        SLUICE__MANAGER__V1__WAKE_VERSION_REQUEST__INIT;
    const struct rpc_call_options options = {.timeout_ms = ASK_TIMEOUT_MS};
    struct error err;
    struct question *question = watch ? malloc(sizeof(*question)) : NULL;
    if (!question) /* a waiting request asks again soon */
        return;
    question->watch = watch;
    snprintf(question->model, sizeof(question->model), "%s", parked->model);
    snprintf(question->version, sizeof(question->version), "%s", parked->version);
    request.server_id = (char *)(uintptr_t)watch->config.server_id;
    request.model = parked->model;
    request.version = parked->version;
    pthread_mutex_lock(&watch->lock); /* the client lives until `stopping` */
    bool asks = !watch->stopping && may_ask_now(watch, parked);
    question->asked_ns = clock_now_ns();
    int rc = asks ? rpc_client_unary_async(watch->client, &sluice__manager__v1__routing__descriptor,
                                           "WakeVersion", &request.base, &options, on_woken,
                                           question, &err)
                  : 0;
    pthread_mutex_unlock(&watch->lock);
    if (rc || !asks)
        free(question);
    if (rc)
        log_warn(LOG_EVENT("parked version not woken"), LOG_STR("why", err.message));
    else if (asks)
        log_info(LOG_EVENT("wake requested"), LOG_STR("model", parked->model),
                 LOG_STR("version", parked->version));
}

int route_watch_ask(struct route_watch *watch, const ProtobufCServiceDescriptor *service,
                    const char *method, const ProtobufCMessage *request, uint32_t timeout_ms,
                    rpc_reply_fn *on_reply, void *arg, struct error *err)
{
    const struct rpc_call_options options = {.timeout_ms = timeout_ms};
    if (!watch)
        return error_set(err, STATUS_UNAVAILABLE, "this server has no manager");
    pthread_mutex_lock(&watch->lock); /* the client lives until `stopping` */
    int rc = watch->stopping ? error_set(err, STATUS_UNAVAILABLE, "the server is going away")
                             : rpc_client_unary_async(watch->client, service, method, request,
                                                      &options, on_reply, arg, err);
    pthread_mutex_unlock(&watch->lock);
    return rc;
}

static void *run(void *arg)
{
    struct route_watch *watch = arg;
    bool stopping = false;
    while (!stopping) {
        follow(watch);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += RETRY_MS * 1000000L;
        until.tv_sec += until.tv_nsec / NS_PER_S;
        until.tv_nsec %= NS_PER_S;
        pthread_mutex_lock(&watch->lock);
        if (!watch->stopping)
            pthread_cond_timedwait(&watch->wake, &watch->lock, &until);
        stopping = watch->stopping;
        pthread_mutex_unlock(&watch->lock);
    }
    return NULL;
}

int route_watch_create(const struct route_watch_config *config, struct route_watch **out_watch,
                       struct error *err)
{
    struct rpc_client_config client;
    char target[160];
    struct route_watch *watch = calloc(1, sizeof(*watch));
    if (!watch)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "routes: out of memory");
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&watch->lock, NULL);
    watch->config = *config;
    rpc_client_config_init(&client);
    snprintf(target, sizeof(target), "unix:%s", config->manager_socket);
    client.target = target;
    client.max_message_bytes = 16 << 20;
    client.reconnect_min_ms = RETRY_MS / 2;
    client.reconnect_max_ms = RETRY_MS;
    client.connect_timeout_ms = RETRY_MS;
    int rc = rpc_client_create(&client, &watch->client, err);
    if (!rc && pthread_create(&watch->thread, NULL, run, watch) != 0) {
        rpc_client_destroy(watch->client);
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "routes: cannot start a thread");
    }
    if (rc) {
        pthread_cond_destroy(&watch->wake);
        pthread_mutex_destroy(&watch->lock);
        free(watch);
        return rc;
    }
    *out_watch = watch;
    return 0;
}

void route_watch_stop(struct route_watch *watch)
{
    if (!watch)
        return;
    pthread_mutex_lock(&watch->lock);
    watch->stopping = true;
    if (watch->reader)
        rpc_reader_cancel(watch->reader);
    pthread_cond_signal(&watch->wake);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    rpc_client_destroy(watch->client);
}

void route_watch_destroy(struct route_watch *watch)
{
    if (!watch)
        return;
    pthread_cond_destroy(&watch->wake);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}
