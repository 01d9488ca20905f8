#include "server/gateway/relay/registry.h"

#include <string.h>

#include "base/error.h"
#include "server/gateway/relay/relay.h"

void registry_init(struct registry *registry)
{
    *registry = (struct registry){.lock = PTHREAD_MUTEX_INITIALIZER};
}

void registry_fini(struct registry *registry)
{
    hash_map_fini(&registry->map);
    pthread_mutex_destroy(&registry->lock);
}

/* Caller and id with a NUL between them. Neither contains a NUL, so different pairs give
 * different keys. */
struct key {
    char bytes[CALLER_BYTES + REQUEST_ID_BYTES];
    size_t n;
};

static void make_key(struct key *key, const char *caller, const char *request_id)
{
    size_t n_caller = strnlen(caller, CALLER_BYTES - 1);
    size_t n_id = strnlen(request_id, REQUEST_ID_BYTES);
    memcpy(key->bytes, caller, n_caller);
    key->bytes[n_caller] = '\0';
    memcpy(key->bytes + n_caller + 1, request_id, n_id);
    key->n = n_caller + 1 + n_id;
}

int registry_add(struct registry *registry, const char *caller, const char *request_id,
                 struct relay *relay, struct error *err)
{
    struct key key;
    int rc = 0;
    make_key(&key, caller, request_id);
    pthread_mutex_lock(&registry->lock);
    if (hash_map_get(&registry->map, key.bytes, key.n)) {
        error_set(err, STATUS_ALREADY_EXISTS, "request_id: \"%s\" is live already", request_id);
        rc = error_reason(err, REASON_REQUEST_ID_LIVE);
    } else if (!hash_map_put(&registry->map, key.bytes, key.n, relay)) {
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "request_id: out of memory");
    } else {
        relay_retain(relay);
    }
    pthread_mutex_unlock(&registry->lock);
    return rc;
}

void registry_remove(struct registry *registry, const char *caller, const char *request_id,
                     struct relay *relay)
{
    struct key key;
    make_key(&key, caller, request_id);
    pthread_mutex_lock(&registry->lock);
    bool removed = hash_map_get(&registry->map, key.bytes, key.n) == relay &&
                   hash_map_remove(&registry->map, key.bytes, key.n) != NULL;
    pthread_mutex_unlock(&registry->lock);
    if (removed)
        relay_release(relay);
}

struct relay *registry_find(struct registry *registry, const char *caller, const char *request_id)
{
    struct key key;
    make_key(&key, caller, request_id);
    pthread_mutex_lock(&registry->lock);
    struct relay *relay = hash_map_get(&registry->map, key.bytes, key.n);
    if (relay)
        relay_retain(relay);
    pthread_mutex_unlock(&registry->lock);
    return relay;
}

void registry_each(struct registry *registry, void (*visit)(void *ctx, struct relay *relay),
                   void *ctx)
{
    size_t cursor = 0;
    struct relay *relay;
    pthread_mutex_lock(&registry->lock);
    while ((relay = hash_map_next(&registry->map, &cursor, NULL, NULL)))
        visit(ctx, relay);
    pthread_mutex_unlock(&registry->lock);
}
