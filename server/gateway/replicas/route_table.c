#include "server/gateway/replicas/route_table.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash_map.h"
#include "base/system/source.h"
#include "proto/rpc/message/message.h"

enum { MAX_ROUTES_FILE_BYTES = 16 << 20, LEFTOVER_AGE_S = 60 };
#define TEMPORARY ".new-"

struct route_table {
    _Atomic uint32_t n_refs;
    Sluice__Manager__V1__RouteTable *message; /* owned */
};

static struct route_table *wrap(Sluice__Manager__V1__RouteTable *message)
{
    struct route_table *table = calloc(1, sizeof(*table));
    if (!table)
        return NULL;
    atomic_init(&table->n_refs, 1);
    table->message = message;
    return table;
}

static int parse(const void *bytes, size_t n_bytes, struct route_table **out_table,
                 struct error *err)
{
    ProtobufCMessage *message;
    int rc = rpc_message_parse(&sluice__manager__v1__route_table__descriptor, bytes, n_bytes,
                               &message, err);
    if (rc)
        return rc;
    struct route_table *table = wrap((Sluice__Manager__V1__RouteTable *)message);
    if (!table) {
        rpc_message_free(message);
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "routes: out of memory");
    }
    *out_table = table;
    return 0;
}

struct route_table *route_table_empty(void)
{
    struct route_table *table = NULL;
    struct error err;
    return parse("", 0, &table, &err) == 0 ? table : NULL;
}

int route_table_from_message(const Sluice__Manager__V1__RouteTable *message,
                             struct route_table **out_table, struct error *err)
{
    void *bytes;
    size_t n_bytes;
    int rc = rpc_message_pack(&message->base, &bytes, &n_bytes, err);
    if (rc)
        return rc;
    rc = parse(bytes, n_bytes, out_table, err);
    free(bytes);
    return rc;
}

/* Removes files that a killed server left. A living server writes its file in less than a minute.
 * A slower server loses one copy and saves the next change again. */
static void remove_leftovers(const char *path)
{
    char folder[PATH_MAX];
    struct stat st;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n_name = strlen(name);
    if (snprintf(folder, sizeof(folder), "%.*s/", slash ? (int)(slash - path) : 1,
                 slash ? path : ".") >= (int)sizeof(folder))
        return;
    DIR *dir = opendir(folder);
    int64_t now_s = clock_wall_ns() / NS_PER_S;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (strncmp(entry->d_name, name, n_name) == 0 &&
            strncmp(entry->d_name + n_name, TEMPORARY, sizeof(TEMPORARY) - 1) == 0 &&
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            now_s - st.st_mtim.tv_sec > LEFTOVER_AGE_S)
            unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
}

int route_table_load(const char *path, struct route_table **out_table, struct error *err)
{
    struct source *source;
    remove_leftovers(path);
    int rc = source_open(path, &source, err);
    if (rc)
        return rc;
    size_t n_bytes = (size_t)source_size(source);
    void *bytes = NULL;
    if (n_bytes > MAX_ROUTES_FILE_BYTES)
        rc = error_set(err, STATUS_INVALID_ARGUMENT, "routes: the file has %zu bytes, limit %d",
                       n_bytes, MAX_ROUTES_FILE_BYTES);
    if (!rc && !(bytes = malloc(n_bytes + 1)))
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "routes: out of memory");
    if (!rc)
        rc = source_read(source, 0, bytes, n_bytes, err);
    if (!rc)
        rc = parse(bytes, n_bytes, out_table, err);
    free(bytes);
    source_close(source);
    return rc;
}

static int write_all(int fd, const char *bytes, size_t n_bytes)
{
    while (n_bytes) {
        ssize_t n = write(fd, bytes, n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        bytes += n;
        n_bytes -= (size_t)n;
    }
    return 0;
}

int route_table_save(const struct route_table *table, const char *path, struct error *err)
{
    char temporary[PATH_MAX];
    void *bytes = NULL;
    size_t n_bytes;
    if (snprintf(temporary, sizeof(temporary), "%s" TEMPORARY "XXXXXX", path) >=
        (int)sizeof(temporary))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "routes: the path has more than 4,080 bytes");
    int rc = rpc_message_pack(&table->message->base, &bytes, &n_bytes, err);
    if (rc)
        return rc;
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0 || write_all(fd, bytes, n_bytes) != 0 || fsync(fd) != 0 ||
        rename(temporary, path) != 0) {
        rc = error_errno(err, errno, "routes: cannot write the copy on disk");
        if (fd >= 0)
            unlink(temporary);
    }
    if (fd >= 0)
        close(fd);
    free(bytes);
    return rc;
}

struct route_table *route_table_retain(struct route_table *table)
{
    atomic_fetch_add(&table->n_refs, 1);
    return table;
}

void route_table_release(struct route_table *table)
{
    if (!table || atomic_fetch_sub(&table->n_refs, 1) != 1)
        return;
    rpc_message_free(&table->message->base);
    free(table);
}

const Sluice__Manager__V1__RouteTable *route_table_message(const struct route_table *table)
{
    return table->message;
}

static bool has_ready(const route *r)
{
    for (size_t i = 0; i < r->n_replicas; i++)
        if ((int)r->replicas[i]->state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY &&
            !r->replicas[i]->stalled)
            return true;
    return false;
}

static bool has_coming(const route *r)
{
    for (size_t i = 0; i < r->n_replicas; i++)
        switch ((int)r->replicas[i]->state) {
        case SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PENDING:
        case SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_LOADING:
        case SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_WARMING:
        case SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY: /* only its link is not up yet
                                                                       */
            return true;
        default:
            break;
        }
    return false;
}

/* How well a weighted version can serve now. */
enum fitness { FIT_LOADED, FIT_COMING, FIT_USABLE };

static enum fitness fitness_of(const struct route_wish *wish, const route *r)
{
    if (wish->usable ? wish->usable(wish->arg, r) : has_ready(r))
        return FIT_USABLE;
    return has_coming(r) ? FIT_COMING : FIT_LOADED;
}

/* A session's score at a version: exponentially distributed, with the version's weight as rate. */
static double score_of(const route *r, const char *session_key)
{
    uint64_t session = hash_bytes(session_key, strlen(session_key), 0);
    uint64_t hash = hash_bytes(r->version, strlen(r->version), session);
    double u = ((double)(hash >> 11) + 0.5) * 0x1p-53; /* in (0, 1) */
    return -log(u) / r->traffic_weight;
}

/* Result of a pass over the weighted versions of a fitness: sum of weights, drawn version,
 * session's home. The weights are laid end to end, and `at` (< sum) falls into the drawn
 * version's. */
struct weighing {
    uint64_t sum;
    const route *drawn, *home;
    double best_score;
};

static struct weighing weigh(const struct route_table *table, const struct route_wish *wish,
                             enum fitness fitness, uint64_t at)
{
    struct weighing w = {0};
    for (size_t i = 0; i < table->message->n_routes; i++) {
        const route *r = table->message->routes[i];
        if (strcmp(r->model, wish->model) != 0 || !r->loaded || !r->traffic_weight ||
            fitness_of(wish, r) < fitness)
            continue;
        if (!w.drawn && at - w.sum < r->traffic_weight)
            w.drawn = r;
        w.sum += r->traffic_weight;
        if (!r->sticky || !wish->session_key || !wish->session_key[0])
            continue;
        double score = score_of(r, wish->session_key);
        if (!w.home || score < w.best_score) {
            w.home = r;
            w.best_score = score;
        }
    }
    return w;
}

/* Returns NULL if no loaded version has a weight. */
static const route *pick_by_weight(const struct route_table *table, const struct route_wish *wish)
{
    for (int fitness = FIT_USABLE; fitness >= FIT_LOADED; fitness--) {
        struct weighing w = weigh(table, wish, (enum fitness)fitness, 0);
        if (w.home)
            return w.home;
        if (w.sum)
            w = weigh(table, wish, (enum fitness)fitness, wish->draw % w.sum);
        if (w.drawn) /* NULL if a version became unusable between the two passes */
            return w.drawn;
    }
    return NULL;
}

static const route *pick_default(const struct route_table *table, const char *model)
{
    const route *best = NULL;
    for (size_t i = 0; i < table->message->n_routes; i++) {
        const route *r = table->message->routes[i];
        if (strcmp(r->model, model) != 0 || !r->loaded)
            continue;
        if (r->is_default)
            return r;
        if (!best || r->sequence > best->sequence)
            best = r;
    }
    return best;
}

bool route_is_parked(const route *r)
{
    bool parked = false;
    for (size_t i = 0; i < r->n_replicas; i++) {
        int state = (int)r->replicas[i]->state;
        parked |= state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED;
        if (state != SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_PARKED &&
            state != SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_FAILED)
            return false;
    }
    return parked;
}

static int check_route(const route *r, const route **out_route, struct error *err)
{
    if (route_is_parked(r) && !r->wakes) {
        error_set(err, STATUS_FAILED_PRECONDITION,
                  "version \"%s\" of model \"%s\" is parked; WakeModelVersion wakes it", r->version,
                  r->model);
        error_version(err, r->version);
        return error_reason(err, REASON_MODEL_PARKED);
    }
    *out_route = r;
    return 0;
}

static int pick_named(const struct route_table *table, const char *model, const char *version,
                      const route **out_route, struct error *err)
{
    bool known = false;
    for (size_t i = 0; i < table->message->n_routes; i++) {
        const route *r = table->message->routes[i];
        if (strcmp(r->model, model) != 0)
            continue;
        known = true;
        if (strcmp(r->version, version) != 0)
            continue;
        if (!r->loaded) {
            error_set(err, STATUS_FAILED_PRECONDITION,
                      "version: \"%s\" of model \"%s\" is not loaded", version, model);
            return error_reason(err, REASON_MODEL_NOT_LOADED);
        }
        return check_route(r, out_route, err);
    }
    if (known)
        error_set(err, STATUS_NOT_FOUND, "version: model \"%s\" has no version \"%s\"", model,
                  version);
    else
        error_set(err, STATUS_NOT_FOUND, "model: no model \"%s\" is registered", model);
    return error_reason(err, known ? REASON_VERSION_NOT_FOUND : REASON_MODEL_NOT_FOUND);
}

int route_table_pick(const struct route_table *table, const struct route_wish *wish,
                     const route **out_route, struct error *err)
{
    const char *model = wish->model;
    if (wish->version && wish->version[0])
        return pick_named(table, model, wish->version, out_route, err);
    bool known = false;
    for (size_t i = 0; !known && i < table->message->n_routes; i++)
        known = strcmp(table->message->routes[i]->model, model) == 0;
    if (!known)
        return pick_named(table, model, "", out_route, err);
    const route *found = pick_by_weight(table, wish);
    if (!found)
        found = pick_default(table, model);
    if (found)
        return check_route(found, out_route, err);
    error_set(err, STATUS_FAILED_PRECONDITION, "model: no version of \"%s\" is loaded", model);
    return error_reason(err, REASON_MODEL_NOT_LOADED);
}
