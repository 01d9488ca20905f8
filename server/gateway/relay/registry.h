/* registry.h: live requests by (caller, request_id). Lock inside; any thread. Holds a reference to
 * each relay. */
#pragma once

#include <pthread.h>

#include "base/hash_map.h"

struct error;
struct relay;

struct registry {
    pthread_mutex_t lock;
    struct hash_map map;
};

void registry_init(struct registry *registry);
void registry_fini(struct registry *registry);

/* Adds the relay and retains it. ALREADY_EXISTS if the id is live. */
int registry_add(struct registry *registry, const char *caller, const char *request_id,
                 struct relay *relay, struct error *err);
/* Removes the entry and releases its reference, if the entry is this relay's. */
void registry_remove(struct registry *registry, const char *caller, const char *request_id,
                     struct relay *relay);
/* Returns the relay, retained, or NULL. */
struct relay *registry_find(struct registry *registry, const char *caller, const char *request_id);
/* Calls visit for each relay, under the lock. visit may take no lock but the relay's. */
void registry_each(struct registry *registry, void (*visit)(void *ctx, struct relay *relay),
                   void *ctx);
