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

/* ALREADY_EXISTS on a live duplicate. Retains the relay. */
int registry_add(struct registry *registry, const char *caller, const char *request_id,
                 struct relay *relay, struct error *err);
/* Drops the entry if it is this relay's, and its reference. */
void registry_remove(struct registry *registry, const char *caller, const char *request_id,
                     struct relay *relay);
/* Retained, or NULL. */
struct relay *registry_find(struct registry *registry, const char *caller, const char *request_id);
/* Calls visit for each relay, under the lock: it must not take other locks than the relay's. */
void registry_each(struct registry *registry, void (*visit)(void *ctx, struct relay *relay),
                   void *ctx);
