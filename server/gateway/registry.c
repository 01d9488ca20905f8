#include "server/gateway/registry.h"

#include <string.h>

#include "base/error.h"
#include "base/strbuf.h"
#include "server/gateway/relay.h"

void registry_init(struct registry *registry)
{
    *registry = (struct registry){.lock = PTHREAD_MUTEX_INITIALIZER};
}

void registry_fini(struct registry *registry)
{
    hash_map_fini(&registry->map);
    pthread_mutex_destroy(&registry->lock);
}

/* Caller and id with a NUL between: neither contains one, so no two pairs give the same key. */
static bool make_key(struct strbuf *key, const char *caller, const char *request_id)
{
    strbuf_init(key, 0);
    strbuf_add(key, caller, strlen(caller) + 1);
    return strbuf_add_str(key, request_id);
}

int registry_add(struct registry *registry, const char *caller, const char *request_id,
                 struct relay *relay, struct error *err)
{
    struct strbuf key;
    int rc = 0;
    bool made = make_key(&key, caller, request_id);
    pthread_mutex_lock(&registry->lock);
    if (made && hash_map_get(&registry->map, key.data, key.n_bytes)) {
        error_set(err, STATUS_ALREADY_EXISTS, "request_id: \"%s\" is live already", request_id);
        rc = error_reason(err, "REQUEST_ID_LIVE");
    } else if (!made || !hash_map_put(&registry->map, key.data, key.n_bytes, relay)) {
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "request_id: out of memory");
    } else {
        relay_retain(relay);
    }
    pthread_mutex_unlock(&registry->lock);
    strbuf_fini(&key);
    return rc;
}

void registry_remove(struct registry *registry, const char *caller, const char *request_id,
                     struct relay *relay)
{
    struct strbuf key;
    bool removed = false;
    if (make_key(&key, caller, request_id)) {
        pthread_mutex_lock(&registry->lock);
        if (hash_map_get(&registry->map, key.data, key.n_bytes) == relay)
            removed = hash_map_remove(&registry->map, key.data, key.n_bytes) != NULL;
        pthread_mutex_unlock(&registry->lock);
    }
    strbuf_fini(&key);
    if (removed)
        relay_release(relay);
}

struct relay *registry_find(struct registry *registry, const char *caller, const char *request_id)
{
    struct strbuf key;
    struct relay *relay = NULL;
    if (make_key(&key, caller, request_id)) {
        pthread_mutex_lock(&registry->lock);
        relay = hash_map_get(&registry->map, key.data, key.n_bytes);
        if (relay)
            relay_retain(relay);
        pthread_mutex_unlock(&registry->lock);
    }
    strbuf_fini(&key);
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
