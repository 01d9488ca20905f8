#include "server/gateway/replicas/replicas.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"
#include "server/gateway/replicas/link.h"

int replicas_init(struct replicas *replicas, const struct link_shared *shared, struct error *err)
{
    *replicas = (struct replicas){.shared = shared, .routes = route_table_empty()};
    pthread_mutex_init(&replicas->lock, NULL);
    return replicas->routes ? 0
                            : error_set(err, STATUS_RESOURCE_EXHAUSTED, "server: out of memory");
}

void replicas_shutdown(struct replicas *replicas)
{
    for (uint32_t i = 0; i < replicas->n_links; i++)
        link_shutdown(replicas->links[i]);
}

void replicas_fini(struct replicas *replicas)
{
    for (uint32_t i = 0; i < replicas->n_links; i++)
        link_release(replicas->links[i]);
    free(replicas->links);
    route_table_release(replicas->routes);
    pthread_mutex_destroy(&replicas->lock);
}

struct route_table *replicas_routes(struct replicas *replicas)
{
    pthread_mutex_lock(&replicas->lock);
    struct route_table *table = route_table_retain(replicas->routes);
    pthread_mutex_unlock(&replicas->lock);
    return table;
}

static bool is_listed(const Sluice__Manager__V1__RouteTable *table, const struct link *link)
{
    for (size_t i = 0; i < table->n_routes; i++)
        for (size_t k = 0; k < table->routes[i]->n_replicas; k++)
            if (link_matches(link, table->routes[i]->replicas[k]))
                return true;
    return false;
}

/* Under the lock. */
static struct link *find_link(struct replicas *replicas,
                              const Sluice__Manager__V1__RouteReplica *replica)
{
    for (uint32_t i = 0; i < replicas->n_links; i++)
        if (link_matches(replicas->links[i], replica))
            return replicas->links[i];
    return NULL;
}

/* True once the worker may answer a hello. */
static bool is_linkable(const Sluice__Manager__V1__RouteReplica *replica)
{
    return replica->socket_path[0] &&
           (replica->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY ||
            replica->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_DRAINING);
}

static void add_link(struct replicas *replicas, struct link *link)
{
    pthread_mutex_lock(&replicas->lock);
    struct link **grown = realloc(replicas->links, (replicas->n_links + 1) * sizeof(*grown));
    if (grown) {
        replicas->links = grown;
        replicas->links[replicas->n_links++] = link;
    }
    pthread_mutex_unlock(&replicas->lock);
    if (!grown)
        link_shutdown(link);
}

static void sync_replica(struct replicas *replicas, const route *r,
                         const Sluice__Manager__V1__RouteReplica *replica)
{
    struct error err;
    struct link *link;
    pthread_mutex_lock(&replicas->lock);
    link = find_link(replicas, replica);
    if (link)
        link_set_listed(link, replica->state);
    pthread_mutex_unlock(&replicas->lock);
    if (link || !is_linkable(replica))
        return;
    if (link_create(replicas->shared, r, replica, &link, &err) != 0)
        log_error(LOG_EVENT("replica not linked"), LOG_STR("replica", replica->id),
                  LOG_STR("message", err.message));
    else
        add_link(replicas, link);
}

static void retire_unlisted(struct replicas *replicas, const Sluice__Manager__V1__RouteTable *table)
{
    uint32_t n = 0;
    pthread_mutex_lock(&replicas->lock);
    struct link **gone = malloc((replicas->n_links + 1) * sizeof(struct link *));
    for (uint32_t i = 0; gone && i < replicas->n_links; i++) {
        if (is_listed(table, replicas->links[i]))
            continue;
        gone[n++] = replicas->links[i];
        link_retain(replicas->links[i]);
    }
    pthread_mutex_unlock(&replicas->lock);
    for (uint32_t i = 0; i < n; i++) {
        link_retire(gone[i]);
        link_release(gone[i]);
    }
    free(gone);
}

struct route_table *replicas_set_routes(struct replicas *replicas, struct route_table *table)
{
    pthread_mutex_lock(&replicas->lock);
    struct route_table *old = replicas->routes;
    replicas->routes = table;
    pthread_mutex_unlock(&replicas->lock);
    return old;
}

void replicas_sync_links(struct replicas *replicas, const Sluice__Manager__V1__RouteTable *table)
{
    retire_unlisted(replicas, table);
    for (size_t i = 0; i < table->n_routes; i++)
        for (size_t k = 0; k < table->routes[i]->n_replicas; k++)
            sync_replica(replicas, table->routes[i], table->routes[i]->replicas[k]);
}

static bool has_link(struct replicas *replicas, const route *wanted,
                     bool (*is_one)(struct link *link))
{
    bool found = false;
    pthread_mutex_lock(&replicas->lock);
    for (uint32_t i = 0; !found && i < replicas->n_links; i++)
        found = link_serves(replicas->links[i], wanted->model, wanted->version) &&
                is_one(replicas->links[i]);
    pthread_mutex_unlock(&replicas->lock);
    return found;
}

bool replicas_take_requests(void *arg, const route *wanted)
{
    return has_link(arg, wanted, link_usable);
}

bool replicas_will_take_requests(void *arg, const route *wanted)
{
    /* A new link may become usable between the two. */
    return has_link(arg, wanted, link_is_new) || has_link(arg, wanted, link_usable);
}

bool replicas_are_linked(struct replicas *replicas)
{
    struct route_table *routes = replicas_routes(replicas);
    const Sluice__Manager__V1__RouteTable *table = route_table_message(routes);
    bool ready = table->generation > 0;
    for (size_t i = 0; ready && i < table->n_routes; i++)
        for (size_t k = 0; ready && k < table->routes[i]->n_replicas; k++) {
            const Sluice__Manager__V1__RouteReplica *replica = table->routes[i]->replicas[k];
            if (replica->state != SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY)
                continue;
            ready = false;
            pthread_mutex_lock(&replicas->lock);
            for (uint32_t l = 0; l < replicas->n_links && !ready; l++)
                ready =
                    link_matches(replicas->links[l], replica) && link_usable(replicas->links[l]);
            pthread_mutex_unlock(&replicas->lock);
        }
    route_table_release(routes);
    return ready;
}

/* Takes a finished link off the list; the caller owns the list's reference. No other thread
 * holds the link or can find it. */
static struct link *take_finished(struct replicas *replicas)
{
    struct link *dead = NULL;
    pthread_mutex_lock(&replicas->lock);
    for (uint32_t i = 0; !dead && i < replicas->n_links; i++) {
        if (!link_is_finished(replicas->links[i]))
            continue;
        dead = replicas->links[i];
        replicas->links[i] = replicas->links[--replicas->n_links];
    }
    pthread_mutex_unlock(&replicas->lock);
    return dead;
}

void replicas_tick(struct replicas *replicas, int64_t now_ns)
{
    struct link *dead;
    pthread_mutex_lock(&replicas->lock);
    uint32_t n = replicas->n_links;
    struct link **links = malloc((n + 1) * sizeof(struct link *));
    for (uint32_t i = 0; links && i < n; i++) {
        links[i] = replicas->links[i];
        link_retain(links[i]);
    }
    pthread_mutex_unlock(&replicas->lock);
    for (uint32_t i = 0; links && i < n; i++) {
        link_tick(links[i], now_ns);
        link_release(links[i]);
    }
    free(links);
    while ((dead = take_finished(replicas))) {
        link_shutdown(dead);
        link_release(dead);
    }
}
