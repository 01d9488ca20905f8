#include "server/worker/serve/status.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strbuf.h"
#include "base/system/cpus.h"
#include "base/system/device_name.h"
#include "base/system/memory_limit.h"
#include "engine/engine.h"
#include "proto/rpc/server/call.h"
#include "server/worker/base/message.h"
#include "server/worker/base/process.h"
#include "server/worker/base/settings.h"
#include "server/worker/park/park_copy.h"
#include "server/worker/place/place.h"
#include "server/worker/serve/meter.h"
#include "server/worker/state/worker.h"

enum { MIN_INTERVAL_MS = 50, DEFAULT_INTERVAL_MS = 1000, PROGRESS_STEPS = 32, MAX_DEVICES = 64 };

/* Weights are aligned to huge pages of this size, and the kernel is advised to use them. */
enum { HUGE_PAGE_BYTES = 2 << 20 };

struct watcher {
    struct rpc_call *call; /* retained */
    int64_t interval_ns, due_ns;
    _Atomic bool gone; /* the call has ended */
    struct watcher *next;
};

/* --- the message --- */

static size_t split_devices(const char *list, struct arena *arena, char *out[MAX_DEVICES])
{
    size_t n_names = 0;
    while (*list && n_names < MAX_DEVICES) {
        size_t n = strcspn(list, ",");
        if (n)
            out[n_names++] = message_text_n(arena, list, n);
        list += n + (list[n] == ',');
    }
    return n_names;
}

/* Returns the engine in any state of the worker, for figures; NULL before the load. */
static struct engine *loaded_engine(struct worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    struct engine *engine = worker->engine;
    pthread_mutex_unlock(&worker->lock);
    return engine;
}

/* Returns the memory that captured steps use so far. */
static uint64_t graph_bytes(const struct engine *engine, const struct executor_device *d)
{
    struct engine_stats stats = {0};
    if (engine)
        engine_get_stats(engine, &stats);
    return stats.graph_bytes < d->graph_bytes ? stats.graph_bytes : d->graph_bytes;
}

/* Fills a device's row from the plan. A loaded engine uses what was planned. A GPU's memory is
 * taken before the first weight is read. Memory for captured steps is taken step by step; the
 * rest stays reserved for them. */
static void device_memory(struct worker *worker, const struct engine *engine, bool parked,
                          const struct executor_device *d, struct arena *arena,
                          Sluice__V1__DeviceMemory *row)
{
    bool taken = engine || atomic_load(&worker->n_ranks) > 0;
    struct memory_limit limit;
    uint64_t bytes = d->weights_bytes + d->kv_bytes + d->state_bytes + d->workspace_bytes;
    sluice__v1__device_memory__init(row);
    row->device = message_text(arena, d->name);
    row->expected_bytes = bytes;
    if (!d->is_gpu)
        row->after_bytes = engine ? bytes : process_memory_bytes();
    else if (taken)
        row->after_bytes = bytes - d->graph_bytes + graph_bytes(engine, d);
    if (engine || parked) {
        row->weight_bytes = d->weights_bytes;
        row->kv_bytes = d->kv_bytes;
        row->state_bytes = d->state_bytes;
        row->workspace_bytes = d->workspace_bytes;
    }
    if (!d->is_gpu && memory_limit_read("", 0, &limit)) {
        row->total_bytes = limit.total_bytes;
        row->free_bytes = limit.free_bytes;
    } else if (d->is_gpu && engine) {
        engine_gpu_memory(engine, &row->total_bytes, &row->free_bytes);
    }
}

/* Adds a row for each device that holds layers. */
static size_t gpu_memory(struct worker *worker, const struct engine *engine, bool parked,
                         const struct executor_plan *plan, struct arena *arena,
                         Sluice__V1__DeviceMemory ***out_memory)
{
    Sluice__V1__DeviceMemory **list = arena_calloc(arena, plan->n_devices, sizeof(*list));
    Sluice__V1__DeviceMemory *rows = arena_calloc(arena, plan->n_devices, sizeof(*rows));
    if (!list || !rows)
        return 0;
    for (uint32_t i = 0; i < plan->n_devices; i++) {
        device_memory(worker, engine, parked, &plan->devices[i], arena, &rows[i]);
        list[i] = &rows[i];
    }
    *out_memory = list;
    return plan->n_devices;
}

void status_memory(struct worker *worker, struct arena *arena, size_t *out_n,
                   Sluice__V1__DeviceMemory ***out_memory)
{
    char *names[MAX_DEVICES];
    struct memory_limit limit;
    size_t n = split_devices(worker->settings->devices, arena, names);
    Sluice__V1__DeviceMemory **list = arena_calloc(arena, n, sizeof(*list));
    Sluice__V1__DeviceMemory *rows = arena_calloc(arena, n, sizeof(*rows));
    struct engine *engine = loaded_engine(worker);
    struct executor_plan plan = {0};
    pthread_mutex_lock(&worker->lock);
    struct executor_plan planned = worker->planned;
    bool parked = worker->state == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_PARKED;
    pthread_mutex_unlock(&worker->lock);
    uint64_t planned_bytes =
        planned.weights_bytes + planned.kv_bytes + planned.state_bytes + planned.workspace_bytes;
    *out_n = 0;
    if (!list || !rows)
        return;
    if (engine)
        plan = *engine_memory(engine);
    else if (parked) /* a parked worker holds all that it planned: the weights */
        plan = planned;
    if (device_name_is_gpu(worker->settings->devices)) {
        *out_n = gpu_memory(worker, engine, parked, engine ? &plan : &planned, arena, out_memory);
        return;
    }
    (void)memory_limit_read("", 0, &limit);
    uint64_t now_bytes = process_memory_bytes();
    /* Memory of a process is not known by NUMA node: each device gets an equal share. */
    for (size_t i = 0; i < n; i++) {
        sluice__v1__device_memory__init(&rows[i]);
        rows[i].device = names[i];
        rows[i].before_bytes = worker->memory_at_start_bytes / n;
        rows[i].after_bytes = now_bytes / n;
        rows[i].weight_bytes = plan.weights_bytes / n;
        rows[i].kv_bytes = plan.kv_bytes / n;
        rows[i].state_bytes = plan.state_bytes / n;
        rows[i].workspace_bytes = plan.workspace_bytes / n;
        rows[i].expected_bytes = planned_bytes / n;
        rows[i].free_bytes = limit.free_bytes;
        rows[i].total_bytes = limit.total_bytes;
        list[i] = &rows[i];
    }
    *out_n = n;
    *out_memory = list;
}

static void add_ranks(struct worker *worker, struct arena *arena,
                      Sluice__Worker__V1__WorkerStatus *status)
{
    uint32_t n = atomic_load(&worker->n_ranks);
    Sluice__V1__RankProgress **list = arena_calloc(arena, n, sizeof(*list));
    Sluice__V1__RankProgress *rows = arena_calloc(arena, n, sizeof(*rows));
    bool loading = status->state == SLUICE__WORKER__V1__WORKER_STATE__WORKER_STATE_LOADING;
    if (!n || !list || !rows)
        return;
    for (uint32_t r = 0; r < n; r++) {
        sluice__v1__rank_progress__init(&rows[r]);
        rows[r].rank = r;
        rows[r].bytes_done = atomic_load(&worker->rank_done[r]);
        rows[r].bytes_total = atomic_load(&worker->rank_total[r]);
        rows[r].stage = message_text(arena, !loading              ? "warm"
                                            : rows[r].bytes_total ? "pack"
                                                                  : "open");
        list[r] = &rows[r];
    }
    status->ranks = list;
    status->n_ranks = n;
    uint64_t done = rows[0].bytes_done, total = rows[0].bytes_total;
    int64_t elapsed_ns = clock_now_ns() - worker->started_ns;
    if (loading && done && total > done)
        status->eta_ms = (uint64_t)((double)elapsed_ns * (double)(total - done) / (double)done) /
                         (uint64_t)NS_PER_MS;
}

static void add_counters(struct worker *worker, struct engine *engine, struct arena *arena,
                         Sluice__Worker__V1__WorkerStatus *status)
{
    struct engine_stats stats;
    Sluice__Worker__V1__WorkerCounters *c = arena_alloc(arena, sizeof(*c));
    if (!c)
        return;
    sluice__worker__v1__worker_counters__init(c);
    engine_get_stats(engine, &stats);
    c->n_steps = stats.n_steps;
    c->n_decode_rows = stats.n_decode_rows;
    c->n_decode_steps = stats.n_decode_steps;
    c->n_prefill_tokens = stats.n_prefill_rows;
    c->n_preemptions = stats.n_preemptions;
    c->n_rope_crossings = stats.n_rope_crossings;
    c->n_generated_tokens = atomic_load(&worker->n_generated_tokens);
    c->n_cached_tokens = atomic_load(&worker->n_cached_tokens);
    c->n_accepted_requests = atomic_load(&worker->n_accepted);
    c->n_ok_requests = atomic_load(&worker->n_ok);
    c->n_failed_requests = atomic_load(&worker->n_failed);
    c->n_cancelled_requests = atomic_load(&worker->n_cancelled);
    c->n_expired_requests = atomic_load(&worker->n_expired);
    c->n_refused_requests = atomic_load(&worker->n_refused);
    c->prefill_ns = atomic_load(&worker->prefill_ns);
    c->decode_ns = atomic_load(&worker->decode_ns);
    c->n_prompt_tokens = atomic_load(&worker->n_prompt_tokens);
    c->n_prefix_query_tokens = stats.n_prefix_query_tokens;
    c->n_prefix_hit_tokens = stats.n_prefix_hit_tokens;
    c->n_drafted_tokens = stats.n_drafted_tokens;
    c->n_accepted_tokens = stats.n_accepted_tokens;
    c->n_mixed_steps = stats.n_mixed_steps;
    c->n_path_d_rows = stats.n_path_d_rows;
    c->n_path_p_rows = stats.n_path_p_rows;
    c->n_snapshot_hits = stats.n_snapshot_hits;
    c->n_snapshot_evictions = stats.n_snapshot_evictions;
    c->n_moved_states = stats.n_moved_out;
    worker_meter_fill(worker->meter, arena, c);
    status->counters = c;
}

static bool is_sealed(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_WRITE);
}

static void list_packed(const struct executor_packed *from, bool loaded, struct arena *arena,
                        Sluice__Worker__V1__WorkerStatus *status)
{
    struct executor_packed packed = *from;
    Sluice__Worker__V1__PackedMemory **list = arena_calloc(arena, packed.n_ranks, sizeof(*list));
    Sluice__Worker__V1__PackedMemory *rows = arena_calloc(arena, packed.n_ranks, sizeof(*rows));
    if (!list || !rows)
        return;
    for (uint32_t r = 0; r < packed.n_ranks; r++) {
        struct stat st;
        if (fstat(packed.fds[r], &st) != 0)
            return;
        sluice__worker__v1__packed_memory__init(&rows[r]);
        rows[r].rank = r;
        rows[r].fd = packed.fds[r];
        rows[r].inode = st.st_ino;
        rows[r].sealed = is_sealed(packed.fds[r]);
        rows[r].bytes = loaded || !rows[r].sealed ? packed.n_bytes[r] : (uint64_t)st.st_size;
        rows[r].mapped = loaded ? packed.mapped : rows[r].sealed;
        list[r] = &rows[r];
    }
    status->packed = list;
    status->n_packed = packed.n_ranks;
    status->packed_note = message_text(arena, loaded ? packed.why : "");
}

/* Lists the memfds of the packed weights, also while they are being packed. For a GPU the park
 * copy is listed instead: other processes cannot use device memory. */
static void add_packed(struct worker *worker, struct engine *engine, struct arena *arena,
                       Sluice__Worker__V1__WorkerStatus *status)
{
    struct executor_packed packed = {.n_ranks = (uint32_t)worker->settings->packed_fds};
    bool on_gpu = device_name_is_gpu(worker->settings->devices);
    if (engine && on_gpu) {
        list_packed(park_copy_borrow(worker->copy), true, arena, status);
        park_copy_return(worker->copy);
        return;
    }
    if (engine)
        engine_get_packed(engine, &packed);
    else
        memcpy(packed.fds, worker->packed_fds, sizeof(packed.fds));
    list_packed(&packed, engine != NULL, arena, status);
}

static char *own_cpus(const struct settings *settings, struct arena *arena)
{
    struct strbuf text = {0};
    if (settings->place && settings->place->own)
        cpus_format(&settings->place->cpus, &text);
    char *copy = message_text(arena, strbuf_str(&text));
    strbuf_fini(&text);
    return copy;
}

void status_fill(struct worker *worker, struct arena *arena,
                 Sluice__Worker__V1__WorkerStatus *status)
{
    const struct settings *s = worker->settings;
    sluice__worker__v1__worker_status__init(status);
    pthread_mutex_lock(&worker->lock);
    struct engine *engine = worker->engine;
    struct error failure = worker->failure;
    status->state = worker->state;
    status->load_ms = worker->load_ms;
    status->warm_ms = worker->warm_ms;
    status->info = worker->info;
    pthread_mutex_unlock(&worker->lock);
    status->replica_id = message_text(arena, s->replica);
    status->pid = (uint32_t)getpid();
    status->start_ticks = worker->start_ticks;
    status->epoch = s->epoch;
    status->protocol_min = WORKER_PROTOCOL_MIN;
    status->protocol_max = WORKER_PROTOCOL_MAX;
    status->software_version = message_text(arena, SLUICE_VERSION);
    status->model = message_text(arena, s->name);
    status->version = message_text(arena, s->version_id);
    status->device_group = message_text(arena, s->device_group);
    status->cpus = own_cpus(s, arena);
    status->weights_digest =
        message_text(arena, status->info ? status->info->weights_digest : s->digest);
    add_ranks(worker, arena, status);
    add_packed(worker, engine, arena, status);
    status_memory(worker, arena, &status->n_memory, &status->memory);
    if (failure.status)
        status->error = message_error(arena, &failure);
    if (!engine)
        return;
    status->numerics_id = message_text(arena, engine_numerics_id(engine));
    status->huge_page_bytes = engine_memory(engine)->huge_page_bytes;
    status->huge_page_size = status->huge_page_bytes ? HUGE_PAGE_BYTES : 0;
    status->load = arena_alloc(arena, sizeof(*status->load));
    if (status->load) {
        sluice__worker__v1__load__init(status->load);
        worker_fill_load(worker, engine, status->load);
    }
    add_counters(worker, engine, arena, status);
}

/* --- watchers --- */

static void on_done(void *arg, struct rpc_call *call)
{
    struct watcher *watcher = arg;
    (void)call;
    atomic_store(&watcher->gone, true);
}

static const struct rpc_call_events watcher_events = {.on_done = on_done};

void status_handle_watch(void *context, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct worker *worker = context;
    const Sluice__Worker__V1__WatchStatusRequest *request =
        (const Sluice__Worker__V1__WatchStatusRequest *)message;
    struct error err;
    struct watcher *watcher;
    uint32_t ms = request->interval_ms ? request->interval_ms : DEFAULT_INTERVAL_MS;
    if (request->protocol_max &&
        worker_check_protocol(request->protocol_min, request->protocol_max, &err) != 0) {
        rpc_call_finish(call, &err);
        return;
    }
    if (atomic_load(&worker->ending) || !(watcher = calloc(1, sizeof(*watcher)))) {
        error_set(&err, STATUS_UNAVAILABLE, "the worker is ending");
        rpc_call_finish(call, &err);
        return;
    }
    watcher->interval_ns = (ms < MIN_INTERVAL_MS ? MIN_INTERVAL_MS : ms) * NS_PER_MS;
    watcher->call = call;
    rpc_call_retain(call);
    rpc_call_set_events(call, &watcher_events, watcher);
    pthread_mutex_lock(&worker->lock);
    watcher->next = worker->watchers;
    worker->watchers = watcher;
    pthread_mutex_unlock(&worker->lock);
    wake_signal(&worker->status); /* due_ns is 0: the first status is sent at once */
}

void status_sweep(struct worker *worker)
{
    struct watcher *gone = NULL;
    pthread_mutex_lock(&worker->lock);
    for (struct watcher **link = &worker->watchers; *link;) {
        struct watcher *watcher = *link;
        if (!atomic_load(&watcher->gone)) {
            link = &watcher->next;
            continue;
        }
        *link = watcher->next;
        watcher->next = gone;
        gone = watcher;
    }
    pthread_mutex_unlock(&worker->lock);
    while (gone) {
        struct watcher *next = gone->next;
        rpc_call_release(gone->call);
        free(gone);
        gone = next;
    }
}

/* Sends the status to the watchers that are due, or to all. A slow watcher misses messages; its
 * next message is the newest. No watcher gets a message if there was no memory for it (status
 * NULL). Returns when the next is due. */
static int64_t push(struct worker *worker, const Sluice__Worker__V1__WorkerStatus *status, bool all,
                    bool last)
{
    int64_t now_ns = clock_now_ns();
    int64_t next_ns = now_ns + DEFAULT_INTERVAL_MS * NS_PER_MS;
    pthread_mutex_lock(&worker->lock);
    for (struct watcher *watcher = worker->watchers; watcher; watcher = watcher->next) {
        if (all || watcher->due_ns <= now_ns) {
            if (status)
                rpc_call_send(watcher->call, &status->base);
            watcher->due_ns = now_ns + watcher->interval_ns;
        }
        if (last)
            rpc_call_finish(watcher->call, NULL);
        if (watcher->due_ns < next_ns)
            next_ns = watcher->due_ns;
    }
    pthread_mutex_unlock(&worker->lock);
    return next_ns;
}

void *status_run(void *arg)
{
    struct worker *worker = arg;
    bool changed = true, last = false;
    while (!last) {
        Sluice__Worker__V1__WorkerStatus status;
        struct arena arena;
        last = atomic_load(&worker->ending);
        arena_init(&arena, 0, 0);
        status_fill(worker, &arena, &status);
        status_sweep(worker);
        int64_t next_ns = push(worker, arena.exhausted ? NULL : &status, changed || last, last);
        arena_fini(&arena);
        int64_t wait_ns = next_ns - clock_now_ns();
        changed = !last && wake_wait(&worker->status, wait_ns > 0 ? wait_ns : 0);
    }
    return NULL;
}

void status_on_progress(void *ctx, uint32_t rank, uint64_t bytes_done, uint64_t bytes_total)
{
    struct worker *worker = ctx;
    if (rank >= WORKER_MAX_RANKS)
        return;
    uint64_t before = atomic_exchange(&worker->rank_done[rank], bytes_done);
    atomic_store(&worker->rank_total[rank], bytes_total);
    uint32_t n = atomic_load(&worker->n_ranks);
    while (n <= rank && !atomic_compare_exchange_weak(&worker->n_ranks, &n, rank + 1))
        ;
    uint64_t unit = bytes_total / PROGRESS_STEPS + 1;
    if (bytes_done / unit != before / unit)
        wake_signal(&worker->status);
}
