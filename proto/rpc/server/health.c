#include "proto/rpc/server/health.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash_map.h"
#include "grpc/health/v1/health.pb-c.h"
#include "proto/rpc/server/call.h"
#include "proto/rpc/server/health_internal.h"

enum { MAX_NAME_BYTES = 256, MAX_LIST = 100, MAX_WATCHES = 1024 };

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;
#define SERVING         GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING     GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct entry {
    serving_status status;
    char name[];
};

/* A Watch call. Lock order: health, then call. So messages are pushed under the health lock, and
 * callbacks of a call (which hold no call lock) may take it. */
struct watch {
    struct watch *next;
    struct rpc_health *health;
    struct rpc_call *call; /* retained */
    bool stale;            /* the newest status could not be queued */
    char name[];
};

struct rpc_health {
    pthread_mutex_t lock;
    struct hash_map entries; /* struct entry, owned */
    struct watch *watches;
    size_t n_watches;
    bool shut_down;
};

int rpc_health_create(struct rpc_health **out_health, struct error *err)
{
    struct rpc_health *health = calloc(1, sizeof(*health));
    if (health == NULL)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "no memory for health");
    pthread_mutex_init(&health->lock, NULL);
    rpc_health_set(health, "", false);
    rpc_health_set(health, HEALTH_LIVENESS, true);
    *out_health = health;
    return 0;
}

void rpc_health_destroy(struct rpc_health *health)
{
    size_t cursor = 0;
    if (health == NULL)
        return;
    for (struct entry *entry;
         (entry = hash_map_next(&health->entries, &cursor, NULL, NULL)) != NULL;)
        free(entry);
    hash_map_fini(&health->entries);
    pthread_mutex_destroy(&health->lock);
    free(health);
}

/* Under the lock. */
static serving_status status_of(const struct rpc_health *health, const char *name)
{
    const struct entry *entry = hash_map_get_str(&health->entries, name);
    return entry != NULL ? entry->status : SERVICE_UNKNOWN;
}

static void push_status(struct watch *watch)
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = status_of(watch->health, watch->name);
    watch->stale = rpc_call_send(watch->call, &response.base) == STATUS_RESOURCE_EXHAUSTED;
}

static void push_all(struct rpc_health *health, const char *name)
{
    for (struct watch *watch = health->watches; watch != NULL; watch = watch->next)
        if (strcmp(watch->name, name) == 0)
            push_status(watch);
}

/* Under the lock. */
static void set_status(struct rpc_health *health, const char *name, serving_status status)
{
    size_t n_name = strlen(name);
    struct entry *entry = hash_map_get_str(&health->entries, name);
    if (n_name > MAX_NAME_BYTES || (entry != NULL && entry->status == status))
        return;
    if (entry == NULL) {
        entry = malloc(sizeof(*entry) + n_name + 1);
        if (entry == NULL)
            return;
        memcpy(entry->name, name, n_name + 1);
        if (!hash_map_put_str(&health->entries, name, entry)) {
            free(entry);
            return;
        }
    }
    entry->status = status;
    push_all(health, entry->name);
}

void rpc_health_set(struct rpc_health *health, const char *name, bool serving)
{
    pthread_mutex_lock(&health->lock);
    set_status(health, name, serving && !health->shut_down ? SERVING : NOT_SERVING);
    pthread_mutex_unlock(&health->lock);
}

bool rpc_health_is_serving(struct rpc_health *health, const char *name)
{
    pthread_mutex_lock(&health->lock);
    bool serving = status_of(health, name) == SERVING;
    pthread_mutex_unlock(&health->lock);
    return serving;
}

void rpc_health_forget(struct rpc_health *health, const char *name)
{
    pthread_mutex_lock(&health->lock);
    struct entry *entry = hash_map_remove_str(&health->entries, name);
    if (entry != NULL)
        push_all(health, entry->name);
    free(entry);
    pthread_mutex_unlock(&health->lock);
}

void rpc_health_shutdown(struct rpc_health *health)
{
    size_t cursor = 0;
    pthread_mutex_lock(&health->lock);
    health->shut_down = true;
    for (struct entry *entry;
         (entry = hash_map_next(&health->entries, &cursor, NULL, NULL)) != NULL;)
        if (strcmp(entry->name, HEALTH_LIVENESS) != 0)
            set_status(health, entry->name, NOT_SERVING);
    pthread_mutex_unlock(&health->lock);
}

/* --- handlers --- */

static void handle_check(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct rpc_health *health = context;
    const Grpc__Health__V1__HealthCheckRequest *request =
        (const Grpc__Health__V1__HealthCheckRequest *)message;
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    struct error err;
    pthread_mutex_lock(&health->lock);
    response.status = status_of(health, request->service);
    pthread_mutex_unlock(&health->lock);
    if (response.status != SERVICE_UNKNOWN) {
        rpc_call_reply(call, &response.base);
        return;
    }
    error_set(&err, STATUS_NOT_FOUND, "service: \"%.200s\" has no health status", request->service);
    rpc_call_finish(call, &err);
}

struct listing {
    Grpc__Health__V1__HealthListResponse response;
    Grpc__Health__V1__HealthListResponse__StatusesEntry entries[MAX_LIST];
    Grpc__Health__V1__HealthListResponse__StatusesEntry *pointers[MAX_LIST];
    Grpc__Health__V1__HealthCheckResponse statuses[MAX_LIST];
};

static void fill_listing(struct rpc_health *health, struct listing *listing)
{
    size_t cursor = 0;
    size_t n = 0;
    for (struct entry *entry;
         n < MAX_LIST && (entry = hash_map_next(&health->entries, &cursor, NULL, NULL)) != NULL;
         n++) {
        grpc__health__v1__health_check_response__init(&listing->statuses[n]);
        grpc__health__v1__health_list_response__statuses_entry__init(&listing->entries[n]);
        listing->statuses[n].status = entry->status;
        listing->entries[n].key = entry->name;
        listing->entries[n].value = &listing->statuses[n];
        listing->pointers[n] = &listing->entries[n];
    }
    grpc__health__v1__health_list_response__init(&listing->response);
    listing->response.n_statuses = n;
    listing->response.statuses = listing->pointers;
}

static void handle_list(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct rpc_health *health = context;
    struct error err;
    struct listing *listing = malloc(sizeof(*listing));
    (void)message;
    pthread_mutex_lock(&health->lock);
    if (listing == NULL || health->entries.n_entries > MAX_LIST) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "%zu services exceed the limit of List (%d)",
                  health->entries.n_entries, MAX_LIST);
        rpc_call_finish(call, &err);
    } else {
        fill_listing(health, listing);
        rpc_call_reply(call, &listing->response.base);
    }
    pthread_mutex_unlock(&health->lock);
    free(listing);
}

static void watch_writable(void *arg, struct rpc_call *call)
{
    struct watch *watch = arg;
    (void)call;
    pthread_mutex_lock(&watch->health->lock);
    if (watch->stale)
        push_status(watch);
    pthread_mutex_unlock(&watch->health->lock);
}

static void watch_done(void *arg, struct rpc_call *call)
{
    struct watch *watch = arg;
    struct rpc_health *health = watch->health;
    pthread_mutex_lock(&health->lock);
    for (struct watch **at = &health->watches; *at != NULL; at = &(*at)->next) {
        if (*at != watch)
            continue;
        *at = watch->next;
        health->n_watches--;
        break;
    }
    pthread_mutex_unlock(&health->lock);
    rpc_call_release(call);
    free(watch);
}

static const struct rpc_call_events watch_events = {
    .on_writable = watch_writable,
    .on_done = watch_done,
};

static void handle_watch(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct rpc_health *health = context;
    const Grpc__Health__V1__HealthCheckRequest *request =
        (const Grpc__Health__V1__HealthCheckRequest *)message;
    struct error err;
    size_t n_name = strlen(request->service);
    struct watch *watch = n_name <= MAX_NAME_BYTES ? calloc(1, sizeof(*watch) + n_name + 1) : NULL;
    if (watch == NULL) {
        if (n_name <= MAX_NAME_BYTES)
            error_set(&err, STATUS_RESOURCE_EXHAUSTED, "service: out of memory");
        else
            error_field(&err, "service", "%zu bytes exceed the limit of %d", n_name,
                        MAX_NAME_BYTES);
        rpc_call_finish(call, &err);
        return;
    }
    watch->health = health;
    watch->call = call;
    memcpy(watch->name, request->service, n_name + 1);
    pthread_mutex_lock(&health->lock);
    bool full = health->n_watches == MAX_WATCHES;
    if (full) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "more than %d health watches", MAX_WATCHES);
        rpc_call_finish(call, &err);
    } else {
        rpc_call_retain(call);
        rpc_call_set_events(call, &watch_events, watch);
        watch->next = health->watches;
        health->watches = watch;
        health->n_watches++;
        push_status(watch);
    }
    pthread_mutex_unlock(&health->lock);
    if (full)
        free(watch);
}

void rpc_health_service(struct rpc_health *health, struct rpc_service *out_service)
{
    static const struct rpc_method methods[] = {
        {"Check", RPC_SHAPE_UNARY, handle_check},
        {"List", RPC_SHAPE_UNARY, handle_list},
        {"Watch", RPC_SHAPE_SERVER_STREAM, handle_watch},
    };
    *out_service = (struct rpc_service){&grpc__health__v1__health__descriptor, methods,
                                        sizeof(methods) / sizeof(methods[0]), health};
}
