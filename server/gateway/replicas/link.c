#include "server/gateway/replicas/link.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "proto/rpc/client/client.h"
#include "proto/rpc/client/stream.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/relay/relay.h"
#include "server/gateway/relay/upstream.h"
#include "server/gateway/replicas/link_internal.h"

enum { PROTOCOL_MIN = 1, PROTOCOL_MAX = 1 };
enum { RETRY_MIN_MS = 50, RETRY_MAX_MS = 1000, NEW_MS = 2000 };
static void open_stream(struct link *link);

int link_create(const struct link_shared *shared, const Sluice__Manager__V1__Route *served,
                const Sluice__Manager__V1__RouteReplica *replica, struct link **out_link,
                struct error *err)
{
    struct rpc_client_config config;
    char target[160];
    struct link *link;
    if (strlen(replica->id) >= sizeof(link->replica_id) ||
        strlen(replica->socket_path) >= sizeof(link->socket_path) ||
        strlen(served->model) >= sizeof(link->model) ||
        strlen(served->version) >= sizeof(link->version))
        return error_set(
            err, STATUS_INVALID_ARGUMENT,
            "route: replica id, socket path, model or version has more than %zu, %zu, %zu, "
            "%zu bytes",
            sizeof(link->replica_id) - 1, sizeof(link->socket_path) - 1, sizeof(link->model) - 1,
            sizeof(link->version) - 1);
    link = calloc(1, sizeof(*link));
    if (!link)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "link: out of memory");
    atomic_init(&link->n_refs, 1);
    pthread_mutex_init(&link->lock, NULL);
    link->shared = shared;
    link->epoch = replica->epoch;
    link->made_ns = clock_now_ns();
    link->next_id = 1;
    link->route_state = replica->state;
    link->max_concurrent = replica->max_concurrent_requests;
    link->retry_ms = RETRY_MIN_MS;
    snprintf(link->replica_id, sizeof(link->replica_id), "%s", replica->id);
    snprintf(link->model, sizeof(link->model), "%s", served->model);
    snprintf(link->version, sizeof(link->version), "%s", served->version);
    snprintf(link->socket_path, sizeof(link->socket_path), "%s", replica->socket_path);
    snprintf(target, sizeof(target), "unix:%s", link->socket_path);
    rpc_client_config_init(&config);
    config.target = target;
    config.max_pending_bytes = MAX_LINK_BACKLOG_BYTES;
    config.max_message_bytes = MAX_LINK_BACKLOG_BYTES;
    config.reconnect_min_ms = RETRY_MIN_MS;
    config.reconnect_max_ms = RETRY_MAX_MS;
    config.connect_timeout_ms = RETRY_MAX_MS;
    int rc = rpc_client_create(&config, &link->client, err);
    if (rc) {
        pthread_mutex_destroy(&link->lock);
        free(link);
        return rc;
    }
    link->meter = meter_hold_version(shared->meters, link->model, link->version);
    open_stream(link);
    *out_link = link;
    return 0;
}

void link_retain(struct link *link)
{
    atomic_fetch_add(&link->n_refs, 1);
}

void link_release(struct link *link)
{
    if (!link || atomic_fetch_sub(&link->n_refs, 1) != 1)
        return;
    rpc_client_destroy(link->client);
    rpc_stream_release(link->stream);
    meter_release_version(link->meter);
    hash_map_fini(&link->live);
    pthread_mutex_destroy(&link->lock);
    free(link);
}

/* Under the lock: a request ended; updates the interval between ends. */
static void count_end(struct link *link)
{
    int64_t now_ns = clock_now_ns(), gone_ns = now_ns - link->last_end_ns;
    link->interval_ns = link->interval_ns ? (7 * link->interval_ns + gone_ns) / 8 : gone_ns;
    link->last_end_ns = now_ns;
}

struct relay *link_take_live(struct link *link, uint64_t id, bool had_place)
{
    pthread_mutex_lock(&link->lock);
    struct relay *relay = hash_map_remove(&link->live, &id, sizeof(id));
    if (relay && had_place)
        count_end(link);
    bool close = link->retired && !link->live.n_entries && link->stream;
    struct rpc_stream *stream = link->stream;
    if (close)
        rpc_stream_retain(stream);
    pthread_mutex_unlock(&link->lock);
    if (close) {
        rpc_stream_cancel(stream);
        rpc_stream_release(stream);
    }
    if (relay && had_place)
        link->shared->events->on_place_free(link->shared->arg);
    return relay;
}

static struct relay *find_live(struct link *link, uint64_t id)
{
    pthread_mutex_lock(&link->lock);
    struct relay *relay = hash_map_get(&link->live, &id, sizeof(id));
    if (relay)
        relay_retain(relay);
    pthread_mutex_unlock(&link->lock);
    return relay;
}

/* True if the worker refused the request before the request had a place. */
static bool was_refused(const Sluice__Worker__V1__StepItem *item)
{
    return item->error && upstream_is_queue_refusal(reason_parse(item->error->reason));
}

/* The worker refuses new requests: the link takes none until it is linked again. */
static void set_draining(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    bool changed = link->state == LINK_READY;
    if (changed)
        link->state = LINK_DRAINING;
    pthread_mutex_unlock(&link->lock);
    if (changed)
        link->shared->events->on_change(link->shared->arg);
}

static void on_item(struct link *link, const Sluice__Worker__V1__StepItem *item, bool more)
{
    struct relay *relay = find_live(link, item->id);
    if (!relay)
        return; /* cancelled here; the worker has not noticed yet */
    enum relay_progress progress = relay_on_item(relay, item, more);
    bool leaves = progress != RELAY_GOES_ON && progress != RELAY_LEAVES;
    struct relay *mine = leaves ? link_take_live(link, item->id, !was_refused(item)) : NULL;
    if (mine && progress == RELAY_MOVES)
        set_draining(link);
    if (mine || progress == RELAY_OVER || progress == RELAY_LEAVES)
        link->shared->events->on_return(link->shared->arg, relay, progress, item);
    relay_release(mine);
    relay_release(relay);
}

/* Under the link's lock: stores the worker's load. */
static void store_load(struct link *link, const Sluice__Worker__V1__Load *load)
{
    struct load_totals totals = {
        .n_preemptions = load->n_preemptions,
        .n_prefix_query_tokens = load->n_prefix_query_tokens,
        .n_prefix_hit_tokens = load->n_prefix_hit_tokens,
        .n_snapshot_hits = load->n_snapshot_hits,
        .n_snapshot_evictions = load->n_snapshot_evictions,
    };
    link->load = (struct link_load){
        .n_running = load->n_running,
        .n_queued = load->n_queued,
        .n_paused = load->n_paused,
        .free_kv_tokens = load->free_kv_tokens,
        .cached_kv_tokens = load->cached_kv_tokens,
        .total_kv_tokens = load->total_kv_tokens,
        .free_window_tokens = load->free_window_tokens,
        .cached_window_tokens = load->cached_window_tokens,
        .total_window_tokens = load->total_window_tokens,
        .n_state_slots = load->n_state_slots,
        .n_states_used = load->n_states_used,
        .n_snapshots = load->n_snapshots,
        .kv_block_tokens = load->kv_block_tokens,
    };
    meter_load(link->meter, &link->totals, &totals);
}

static void on_load(struct link *link, const Sluice__Worker__V1__Load *load)
{
    int64_t awake_ns = awake_clock_ticked_ns(link->shared->clock);
    bool back = false;
    pthread_mutex_lock(&link->lock);
    stall_heard(&link->stall, awake_ns);
    if (load) {
        link->facts.n_running = load->n_running;
        link->facts.n_queued = load->n_queued;
        store_load(link, load);
        back = stall_on_load(&link->stall, load->progress, load->n_ready, awake_ns);
    }
    pthread_mutex_unlock(&link->lock);
    if (!back)
        return;
    log_info(LOG_EVENT("replica recovered"), LOG_STR("replica", link->replica_id),
             LOG_U64("epoch", link->epoch));
    link->shared->events->on_change(link->shared->arg);
}

static void on_hello(struct link *link, struct rpc_stream *stream,
                     const Sluice__Worker__V1__HelloReply *hello)
{
    if (hello->protocol < PROTOCOL_MIN || hello->protocol > PROTOCOL_MAX ||
        hello->epoch != link->epoch) {
        log_error(LOG_EVENT("replica refused"), LOG_STR("replica", link->replica_id),
                  LOG_U64("epoch", link->epoch), LOG_U64("its_epoch", hello->epoch),
                  LOG_U64("protocol", hello->protocol));
        rpc_stream_cancel(stream);
        return;
    }
    pthread_mutex_lock(&link->lock);
    if (link->state == LINK_CONNECTING)
        link->state = LINK_READY;
    link->retry_ms = RETRY_MIN_MS;
    link->has_facts = true;
    if (hello->info && hello->info->limits)
        link->max_concurrent = hello->info->limits->max_concurrent_requests;
    stall_hello(&link->stall, hello->heartbeat_ms, awake_clock_ticked_ns(link->shared->clock));
    snprintf(link->facts.numerics_id, sizeof(link->facts.numerics_id), "%s", hello->numerics_id);
    fingerprint_make(hello->weights_digest, hello->numerics_id, link->facts.fingerprint);
    snprintf(link->facts.device_group, sizeof(link->facts.device_group), "%s", hello->device_group);
    snprintf(link->facts.replica_id, sizeof(link->facts.replica_id), "%s", link->replica_id);
    pthread_mutex_unlock(&link->lock);
    on_load(link, hello->load);
    log_info(LOG_EVENT("replica linked"), LOG_STR("replica", link->replica_id),
             LOG_U64("epoch", link->epoch), LOG_STR("model", link->model),
             LOG_STR("version", link->version));
    link->shared->events->on_change(link->shared->arg);
}

static void on_step(struct link *link, const Sluice__Worker__V1__Step *step)
{
    for (size_t i = 0; i < step->n_items; i++)
        on_item(link, step->items[i],
                i + 1 < step->n_items && step->items[i + 1]->id == step->items[i]->id);
    on_load(link, step->load);
}

/* A planted bug: the first two items of a frame swap their texts. */
static void swap_texts(const Sluice__Worker__V1__Step *step)
{
    if (step->n_items < 2)
        return;
    char *text = step->items[0]->text;
    step->items[0]->text = step->items[1]->text;
    step->items[1]->text = text;
}

static void on_message(void *arg, struct rpc_stream *stream, const ProtobufCMessage *message)
{
    struct link *link = arg;
    const Sluice__Worker__V1__ServeResponse *response =
        (const Sluice__Worker__V1__ServeResponse *)message;
    switch (response->frame_case) {
    case SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_HELLO:
        on_hello(link, stream, response->hello);
        break;
    case SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_STEP:
        if (seeded_bug("I4_swaps_texts"))
            swap_texts(response->step);
        on_step(link, response->step);
        break;
    case SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_LOAD:
        on_load(link, response->load);
        break;
    case SLUICE__WORKER__V1__SERVE_RESPONSE__FRAME_DRAINING:
        set_draining(link);
        break;
    default:
        break;
    }
}

/* How a link's stream ended. */
struct link_end {
    bool was_linked; /* the worker had answered the hello, and the route still lists the replica */
    bool was_asked_for; /* the manager or a signal has asked the worker to end */
    size_t n_requests;  /* requests that were live */
};

/* A worker that was asked to end says so with its last status. A draining replica that had no
 * requests left may be killed before it says so. */
static bool was_asked_for(const struct link *link, const struct error *status)
{
    bool drains = link->route_state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_DRAINING;
    return status->reason == REASON_DRAINING || (drains && link->live.n_entries == 0);
}

/* The stream is gone. Returns every live request, linked by next_lost; the caller owns the
 * references. */
static struct relay *go_down(struct link *link, const struct error *status,
                             struct link_end *out_end)
{
    struct relay *lost = NULL, *relay;
    size_t cursor = 0;
    pthread_mutex_lock(&link->lock);
    *out_end = (struct link_end){
        .was_linked = !link->retired && (link->state == LINK_READY || link->state == LINK_DRAINING),
        .was_asked_for = was_asked_for(link, status),
        .n_requests = link->live.n_entries,
    };
    struct rpc_stream *old = link->stream;
    link->stream = NULL;
    link->state = LINK_DOWN;
    link->load = (struct link_load){0}; /* the old process's requests do not count any more */
    link->retry_at_ns = clock_now_ns() + (int64_t)link->retry_ms * NS_PER_MS;
    link->retry_ms = link->retry_ms * 2 > RETRY_MAX_MS ? RETRY_MAX_MS : link->retry_ms * 2;
    while ((relay = hash_map_next(&link->live, &cursor, NULL, NULL))) {
        relay->next_lost = lost;
        lost = relay;
    }
    hash_map_fini(&link->live);
    pthread_mutex_unlock(&link->lock);
    rpc_stream_release(old);
    return lost;
}

static void on_status(void *arg, struct rpc_stream *stream, const struct error *status)
{
    struct link *link = arg;
    struct link_end end;
    (void)stream;
    struct relay *lost = go_down(link, status, &end);
    if (end.was_linked && end.was_asked_for) {
        log_info(LOG_EVENT("replica ended"), LOG_STR("replica", link->replica_id),
                 LOG_U64("epoch", link->epoch), LOG_U64("requests", end.n_requests));
    } else if (end.was_linked) {
        log_warn(LOG_EVENT("replica lost"), LOG_STR("replica", link->replica_id),
                 LOG_U64("epoch", link->epoch), LOG_STR("status", status_name(status->status)),
                 LOG_STR("message", status->message), LOG_U64("requests", end.n_requests));
        meter_replica_lost(link->meter);
    }
    link->shared->events->on_change(link->shared->arg);
    while (lost) {
        struct relay *relay = lost;
        lost = relay->next_lost;
        link->shared->events->on_return(link->shared->arg, relay, RELAY_LOST, NULL);
        relay_release(relay);
    }
    link_release(link); /* drops the stream's reference; the list of links holds another */
}

static const struct rpc_stream_events stream_events = {.on_message = on_message,
                                                       .on_status = on_status};

static void send_hello(struct link *link, struct rpc_stream *stream)
{
    Sluice__Worker__V1__ServeRequest request = SLUICE__WORKER__V1__SERVE_REQUEST__INIT;
    Sluice__Worker__V1__Hello hello = SLUICE__WORKER__V1__HELLO__INIT;
    char version[] = SLUICE_VERSION;
    hello.protocol_min = PROTOCOL_MIN;
    hello.protocol_max = PROTOCOL_MAX;
    hello.server_id = (char *)(uintptr_t)link->shared->server_id;
    hello.server_epoch = link->shared->server_epoch;
    hello.software_version = version;
    hello.expected_epoch = link->epoch;
    request.frame_case = SLUICE__WORKER__V1__SERVE_REQUEST__FRAME_HELLO;
    request.hello = &hello;
    rpc_stream_send(stream, &request.base);
}

static void open_stream(struct link *link)
{
    struct error err;
    struct rpc_stream *stream = NULL;
    pthread_mutex_lock(&link->lock);
    bool wanted = link->state == LINK_DOWN && !link->retired;
    if (wanted)
        link->state = LINK_CONNECTING;
    pthread_mutex_unlock(&link->lock);
    if (!wanted)
        return;
    link_retain(link);
    rpc_client_connect_now(link->client);
    int rc = rpc_stream_open(link->client, &sluice__worker__v1__worker__descriptor, "Serve", NULL,
                             NULL, &stream_events, link, &stream, &err);
    if (rc) {
        pthread_mutex_lock(&link->lock);
        link->state = LINK_DOWN;
        link->retry_at_ns = clock_now_ns() + RETRY_MAX_MS * NS_PER_MS;
        pthread_mutex_unlock(&link->lock);
        link_release(link);
        return;
    }
    /* The stream is stored before the hello is sent. The answer makes the link usable, and a
     * usable link needs a stream. */
    pthread_mutex_lock(&link->lock);
    bool lasts = link->state != LINK_DOWN;
    if (lasts) {
        link->stream = stream;
        rpc_stream_retain(stream);
    }
    pthread_mutex_unlock(&link->lock);
    if (lasts)
        send_hello(link, stream);
    rpc_stream_release(stream);
}

/* Ends the stalled link's stream; its requests continue at other replicas. The process may
 * answer the next hello. No requests go there until its load shows progress (on_load). */
static void give_up_stalled(struct link *link, struct rpc_stream *stream, size_t n_live)
{
    log_warn(LOG_EVENT("replica stalled"), LOG_STR("replica", link->replica_id),
             LOG_U64("epoch", link->epoch), LOG_U64("requests", n_live),
             LOG_U64("stall_timeout_ms", link->shared->limits->stall_ms));
    counters_event(link->shared->counters, COUNTER_STALL);
    link->shared->events->on_change(link->shared->arg);
    rpc_stream_cancel(stream);
    rpc_stream_release(stream);
}

void link_tick(struct link *link, int64_t now_ns)
{
    struct rpc_stream *stream = NULL;
    pthread_mutex_lock(&link->lock);
    bool due = link->state == LINK_DOWN && !link->retired && now_ns >= link->retry_at_ns;
    bool linked = link->stream && (link->state == LINK_READY || link->state == LINK_DRAINING);
    size_t n_live = link->live.n_entries;
    if (linked && stall_found(&link->stall, awake_clock_ticked_ns(link->shared->clock),
                              link->shared->limits->stall_ms)) {
        stream = link->stream;
        rpc_stream_retain(stream);
    }
    pthread_mutex_unlock(&link->lock);
    if (stream)
        give_up_stalled(link, stream, n_live);
    else if (due)
        open_stream(link);
}

void link_retire(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    link->retired = true;
    struct rpc_stream *stream = link->live.n_entries ? NULL : link->stream;
    if (stream)
        rpc_stream_retain(stream);
    pthread_mutex_unlock(&link->lock);
    if (stream)
        rpc_stream_cancel(stream);
    rpc_stream_release(stream);
}

bool link_is_finished(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    bool ended = link->retired && link->state == LINK_DOWN && !link->stream;
    pthread_mutex_unlock(&link->lock);
    return ended && atomic_load(&link->n_refs) == 1;
}

void link_shutdown(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    link->retired = true;
    struct rpc_client *client = link->client;
    link->client = NULL;
    pthread_mutex_unlock(&link->lock);
    rpc_client_destroy(client);
}

bool link_matches(const struct link *link, const Sluice__Manager__V1__RouteReplica *replica)
{
    return link->epoch == replica->epoch && strcmp(link->replica_id, replica->id) == 0 &&
           strcmp(link->socket_path, replica->socket_path) == 0;
}

bool link_serves(const struct link *link, const char *model, const char *version)
{
    return strcmp(link->model, model) == 0 && strcmp(link->version, version) == 0;
}

bool link_usable(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    bool usable = link->state == LINK_READY && !link->retired && link->stream &&
                  !link->stall.stalled &&
                  link->route_state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY;
    pthread_mutex_unlock(&link->lock);
    return usable;
}

bool link_is_new(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    bool new = link->state == LINK_CONNECTING && !link->retired &&
               !link->has_facts &&clock_now_ns() - link->made_ns < NEW_MS *NS_PER_MS &&
               link->route_state == SLUICE__MANAGER__V1__REPLICA_STATE__REPLICA_STATE_READY;
    pthread_mutex_unlock(&link->lock);
    return new;
}

uint32_t link_n_live(struct link *link)
{
    pthread_mutex_lock(&link->lock);
    uint32_t n = (uint32_t)link->live.n_entries;
    pthread_mutex_unlock(&link->lock);
    return n;
}

void link_get_view(struct link *link, struct link_view *out_view)
{
    snprintf(out_view->model, sizeof(out_view->model), "%s", link->model);
    snprintf(out_view->version, sizeof(out_view->version), "%s", link->version);
    snprintf(out_view->replica_id, sizeof(out_view->replica_id), "%s", link->replica_id);
    out_view->usable = link_usable(link);
    pthread_mutex_lock(&link->lock);
    out_view->load = link->load;
    pthread_mutex_unlock(&link->lock);
}

const char *link_replica_id(const struct link *link)
{
    return link->replica_id;
}

void link_get_queue(struct link *link, struct link_queue *out_queue)
{
    uint64_t limit = link->shared->limits->max_concurrent;
    pthread_mutex_lock(&link->lock);
    uint32_t n_live = (uint32_t)link->live.n_entries, n_queued = link->facts.n_queued;
    uint32_t own = link->max_concurrent;
    out_queue->interval_ns = link->interval_ns;
    pthread_mutex_unlock(&link->lock);
    out_queue->n_live = n_live;
    out_queue->holds = !own || own > limit;
    out_queue->n_places = out_queue->holds ? (uint32_t)limit : own;
    uint32_t n_over = n_live > out_queue->n_places ? n_live - out_queue->n_places : 0;
    out_queue->n_waiting = n_over > n_queued ? n_over : n_queued;
}

uint32_t link_n_live_of(struct link *link, const char *caller)
{
    uint32_t n = 0;
    size_t cursor = 0;
    const struct relay *relay;
    pthread_mutex_lock(&link->lock);
    while ((relay = hash_map_next(&link->live, &cursor, NULL, NULL)))
        n += strcmp(relay->caller, caller) == 0;
    pthread_mutex_unlock(&link->lock);
    return n;
}

void link_set_listed(struct link *link, Sluice__Manager__V1__ReplicaState state)
{
    pthread_mutex_lock(&link->lock);
    link->route_state = state;
    link->retired = false;
    pthread_mutex_unlock(&link->lock);
}

uint64_t link_affinity(const struct link *link, const char *session_key)
{
    uint64_t session = hash_bytes(session_key, strlen(session_key), 0);
    return hash_bytes(link->replica_id, strlen(link->replica_id), session);
}

bool link_has_numerics(struct link *link, const char *numerics_id)
{
    pthread_mutex_lock(&link->lock);
    bool same = strcmp(link->facts.numerics_id, numerics_id) == 0;
    pthread_mutex_unlock(&link->lock);
    return same;
}

bool link_get_facts(struct link *link, struct link_facts *out_facts)
{
    pthread_mutex_lock(&link->lock);
    bool has = link->has_facts;
    *out_facts = link->facts;
    pthread_mutex_unlock(&link->lock);
    return has;
}

struct rpc_client *link_client(struct link *link)
{
    return link->client;
}
