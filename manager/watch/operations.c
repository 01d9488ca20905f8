#include "manager/watch/operations.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ev.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash_map.h"
#include "base/log.h"
#include "base/seeded_bug.h"
#include "manager/base/context.h"
#include "manager/base/failpoint.h"
#include "manager/base/loop_queue.h"
#include "manager/base/message.h"
#include "manager/replicas/park_copy.h"
#include "manager/replicas/reconcile.h"
#include "manager/replicas/replica_view.h"
#include "manager/settings/settings.h"
#include "manager/slots/fleet.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/watch/memory_report.h"
#include "manager/watch/operation_end.h"
#include "manager/watch/operation_view.h"
#include "manager/watch/stream_watch.h"
#include "proto/rpc/server/call.h"

enum { ID_BYTES = 24 };
static const int64_t refused_hold_ns = NS_PER_S;
/* An unload polls this often, for this long, for memory that is not freed when the worker has
 * ended. */
static const int64_t release_poll_ns = 50 * NS_PER_MS;
static const int64_t release_wait_ns = 2 * NS_PER_S;

/* An operation that is open or watched. */
struct entry {
    char id[ID_BYTES];
    bool busy;                /* its end is on its way to the store */
    int64_t since_ns, age_ns; /* monotonic time first seen, and age at that moment (the wall clock
                               * is read once) */
    int64_t hold_until_ns;
    int64_t unreleased_ns; /* since when the memory of unloaded replicas is not freed; 0: it is
                            * freed */
    uint64_t n_changes;
    struct message_image last; /* the last view */
};

struct watch {
    struct stream_watch stream; /* first member */
    struct operations *operations;
    bool once;
    uint64_t sent_revision;
    uint32_t timeout_ms;
    ev_timer timer;
    char id[];
};

struct operations {
    struct fleet *fleet;
    struct updates *updates; /* NULL until operations_show_updates */
    struct change_subscriber on_change, on_progress;
    struct hash_map entries; /* id → struct entry */
    int64_t hold_until_ns;   /* when to retry after a failed allocation of an entry */
    struct stream_watches watches;
};

static struct entry *ensure_entry(struct operations *operations, const char *id)
{
    struct entry *entry = hash_map_get_str(&operations->entries, id);
    if (entry || strlen(id) >= ID_BYTES || !(entry = calloc(1, sizeof(*entry))))
        return entry;
    const pb_operation *row = catalog_operation(operations->fleet->context->catalog, id);
    int64_t age_ns = row ? clock_wall_ns() - row->created_unix_ns : 0;
    memcpy(entry->id, id, strlen(id) + 1);
    entry->since_ns = clock_now_ns();
    entry->age_ns = age_ns > 0 ? age_ns : 0;
    if (hash_map_put_str(&operations->entries, id, entry))
        return entry;
    free(entry);
    return NULL;
}

static void entry_destroy(struct entry *entry)
{
    message_image_fini(&entry->last);
    free(entry);
}

/* --- the view --- */

/* Sets the revision of the view, one more for every difference from the last view. False where
 * memory is exhausted. */
static bool set_revision(struct operations *operations, struct entry *entry,
                         pb_operation *operation)
{
    operation->revision = 0;
    enum message_change change =
        entry ? message_image_update(&entry->last, &operation->base) : MESSAGE_NO_MEMORY;
    if (change == MESSAGE_NO_MEMORY)
        return false;
    entry->n_changes += change == MESSAGE_CHANGED;
    operation->revision = operations->fleet->context->catalog->first_revision + entry->n_changes;
    return true;
}

pb_operation *operations_build(struct operations *operations, struct arena *arena, const char *id)
{
    const struct catalog *catalog = operations->fleet->context->catalog;
    const pb_operation *row = catalog_operation(catalog, id);
    pb_operation *operation = message_copy_in(arena, row);
    if (!operation)
        return NULL;
    if (!pb_operation_is_open(row)) {
        /* final: an ended operation does not change */
        operation->revision = catalog->manager_epoch << 32 | UINT32_MAX;
        return operation;
    }
    operation_view_overlay(operations->fleet, operations->updates, arena, operation);
    return !arena->exhausted && set_revision(operations, ensure_entry(operations, id), operation)
               ? operation
               : NULL;
}

/* --- watches --- */

static void answer_wait(struct watch *watch, pb_operation *operation)
{
    Sluice__Manager__V1__WaitOperationResponse response =
        SLUICE__MANAGER__V1__WAIT_OPERATION_RESPONSE__INIT;
    response.operation = operation;
    rpc_call_reply(watch->stream.call, &response.base);
}

static void send_view(struct watch *watch, pb_operation *operation)
{
    bool ended = !pb_operation_is_open(operation);
    if (watch->once) {
        if (ended)
            answer_wait(watch, operation);
        return;
    }
    if (operation->revision == watch->sent_revision || watch->stream.blocked)
        return;
    Sluice__Manager__V1__WatchOperationResponse response =
        SLUICE__MANAGER__V1__WATCH_OPERATION_RESPONSE__INIT;
    response.operation = operation;
    stream_watch_send(&watch->stream, &response.base);
    if (watch->stream.blocked)
        return;
    watch->sent_revision = operation->revision;
    if (ended)
        stream_watch_finish(&watch->stream, NULL);
}

static void send_current(struct watch *watch)
{
    struct error err;
    struct arena arena;
    arena_init(&arena, 0, 0);
    pb_operation *operation = operations_build(watch->operations, &arena, watch->id);
    if (operation) {
        send_view(watch, operation);
    } else if (catalog_operation(watch->operations->fleet->context->catalog, watch->id)) {
        error_no_memory(&err);
        stream_watch_finish(&watch->stream, &err);
    } else {
        error_set(&err, STATUS_NOT_FOUND, "id: no operation \"%.40s\"", watch->id);
        snprintf(err.field, sizeof(err.field), "id");
        stream_watch_finish(&watch->stream, &err);
    }
    arena_fini(&arena);
}

static void on_wait_timeout(struct ev_loop *loop, ev_timer *timer, int events)
{
    struct watch *watch = timer->data;
    struct arena arena;
    (void)loop;
    (void)events;
    arena_init(&arena, 0, 0);
    pb_operation *operation = operations_build(watch->operations, &arena, watch->id);
    if (operation)
        answer_wait(watch, operation);
    arena_fini(&arena);
}

static void watch_start(struct stream_watch *stream)
{
    struct watch *watch = (struct watch *)stream;
    if (watch->once && watch->timeout_ms) {
        ev_timer_set(&watch->timer, (double)watch->timeout_ms / 1e3, 0.);
        ev_timer_start(watch->operations->fleet->context->loop, &watch->timer);
    }
    send_current(watch);
}

static void watch_writable(struct stream_watch *stream)
{
    send_current((struct watch *)stream);
}

static void watch_done(struct stream_watch *stream)
{
    struct watch *watch = (struct watch *)stream;
    ev_timer_stop(watch->operations->fleet->context->loop, &watch->timer);
    free(watch);
}

static const struct stream_watch_ops watch_ops = {
    .start = watch_start,
    .writable = watch_writable,
    .done = watch_done,
};

void operations_watch(struct operations *operations, struct rpc_call *call, const char *id,
                      bool once, uint32_t timeout_ms)
{
    size_t n_id = strlen(id) + 1;
    struct watch *watch = stream_watch_create(sizeof(*watch) + n_id, call);
    if (!watch)
        return;
    watch->operations = operations;
    watch->once = once;
    watch->timeout_ms = timeout_ms;
    memcpy(watch->id, id, n_id);
    ev_timer_init(&watch->timer, on_wait_timeout, 0., 0.);
    watch->timer.data = watch;
    stream_watch_begin(&watch->stream, call, operations->fleet->context, &watch_ops,
                       &operations->watches);
}

static void send_all(struct operations *operations, const char *replica_id)
{
    for (struct stream_watch *at = operations->watches.first; at; at = at->next) {
        struct watch *watch = (struct watch *)at;
        const pb_operation *row = catalog_operation(operations->fleet->context->catalog, watch->id);
        bool concerned = !replica_id || !row;
        for (size_t i = 0; !concerned && i < row->n_replica_ids; i++)
            concerned = strcmp(row->replica_ids[i], replica_id) == 0;
        if (concerned)
            send_current(watch);
    }
}

static void on_progress(void *arg, const char *replica_id)
{
    send_all(arg, replica_id);
}

static void on_change(void *arg, const char *replica_id)
{
    struct operations *operations = arg;
    (void)replica_id;
    size_t cursor = 0;
    struct entry *entry;
    send_all(operations, NULL);
    while ((entry = hash_map_next(&operations->entries, &cursor, NULL, NULL))) {
        const pb_operation *row = catalog_operation(operations->fleet->context->catalog, entry->id);
        if (entry->busy || (row && pb_operation_is_open(row)))
            continue;
        hash_map_remove_str(&operations->entries, entry->id);
        entry_destroy(entry);
    }
}

void operations_end_watches(struct operations *operations, const struct error *status)
{
    stream_watch_finish_all(&operations->watches, status);
}

/* --- the end --- */

static bool is_busy(void *arg, const char *id, int64_t now_ns)
{
    struct operations *operations = arg;
    /* Called for each open operation in each pass, so its time counts from the first pass. */
    struct entry *entry = ensure_entry(operations, id);
    return entry && (entry->busy || entry->hold_until_ns > now_ns);
}

static int64_t hold_ns(void *arg, int64_t now_ns)
{
    struct operations *operations = arg;
    int64_t at = operations->hold_until_ns > now_ns ? operations->hold_until_ns : INT64_MAX;
    size_t cursor = 0;
    struct entry *entry;
    while ((entry = hash_map_next(&operations->entries, &cursor, NULL, NULL)))
        if (entry->hold_until_ns > now_ns && entry->hold_until_ns < at)
            at = entry->hold_until_ns;
    return at;
}

static uint32_t grace_ms(void *arg, const char *replica_id)
{
    struct operations *operations = arg;
    const struct catalog *catalog = operations->fleet->context->catalog;
    for (size_t i = 0; catalog_operation_at(catalog, i); i++) {
        const pb_operation *row = catalog_operation_at(catalog, i);
        if (!pb_operation_is_open(row) || (int)row->kind == OPERATION_LOAD)
            continue;
        for (size_t j = 0; j < row->n_replica_ids; j++)
            if (strcmp(row->replica_ids[j], replica_id) == 0)
                return (uint32_t)row_extra(catalog_at(catalog, TABLE_OPERATION, i));
    }
    return (uint32_t)operations->fleet->context->settings->drain_grace_ms;
}

struct ending {
    struct operations *operations;
    char id[ID_BYTES];
    struct arena arena;
    pb_operation *operation; /* the row to record; in the arena */
    bool not_kept;           /* a park whose replica serves on, as the park copy failed */
};

static void ending_destroy(struct ending *ending)
{
    arena_fini(&ending->arena);
    free(ending);
}

static int run_ending(struct txn *txn, void *arg, struct error *err)
{
    const struct ending *ending = arg;
    return operation_end_record(txn, ending->id, ending->operation, ending->not_kept, err);
}

/* Forgets the drains of replicas that stay, as their memory report is written. */
static void forget_drains(struct fleet *fleet, const pb_operation *operation)
{
    if ((int)operation->kind != OPERATION_PARK && (int)operation->kind != OPERATION_RESTART)
        return;
    for (size_t i = 0; i < operation->n_replica_ids; i++) {
        const pb_replica *row = catalog_replica(fleet->context->catalog, operation->replica_ids[i]);
        if (row && !row->retiring)
            replica_forget_drain(fleet, row->id);
    }
}

static void end_ending(void *arg, const struct error *status)
{
    struct ending *ending = arg;
    struct fleet *fleet = ending->operations->fleet;
    struct entry *entry = hash_map_get_str(&ending->operations->entries, ending->id);
    failpoint("finish.after_commit");
    if (entry)
        entry->busy = false;
    if (status->status != 0 && entry)
        entry->hold_until_ns = clock_now_ns() + refused_hold_ns;
    if (status->status == 0)
        forget_drains(fleet, ending->operation);
    if (status->status == 0)
        log_info(LOG_EVENT("operation ended"), LOG_STR("operation", ending->id),
                 LOG_STR("state", pb_operation_state_name(ending->operation->state)));
    ending_destroy(ending);
    if (status->status != STATUS_CANCELLED)
        change_hub_notify(&fleet->context->changes, NULL);
}

/* Builds the row to record for the end. False where memory is exhausted. *out_left belongs to
 * its memory report (memory_report.h). */
static bool build_end(struct ending *ending, const char *id, enum operation_state state,
                      enum reason reason, struct memory_report_left *out_left)
{
    struct operations *operations = ending->operations;
    struct fleet *fleet = operations->fleet;
    struct arena *arena = &ending->arena;
    pb_operation *operation = operations_build(operations, arena, id);
    if (!operation)
        return false;
    operation->state = (Sluice__Manager__V1__OperationState)state;
    operation->eta_ms = 0;
    operation->revision = 0;
    if (state != OPERATION_DONE)
        operation->error = operation_view_error(fleet, arena, operation, reason);
    operation->result = memory_report_build(fleet, arena, operation, out_left);
    operation->stage = message_text_in(arena, operation_view_final_stage(fleet, operation, state));
    ending->operation = operation;
    return !arena->exhausted;
}

static const char *what_was_done(const pb_operation *operation)
{
    switch ((int)operation->kind) {
    case OPERATION_UNLOAD:
        return "the version is unloaded";
    case OPERATION_PARK:
        return "the version is parked";
    default:
        return "the replicas have ended";
    }
}

/* Records memory that was not freed. Unload and park exist to free memory, so they fail; other
 * operations keep their state and only note it. */
static void record_unreleased(struct ending *ending, const struct error *err)
{
    pb_operation *operation = ending->operation;
    int kind = (int)operation->kind;
    pb_error *error = message_from_error_in(&ending->arena, err);
    if ((int)operation->state != OPERATION_DONE ||
        (kind != OPERATION_UNLOAD && kind != OPERATION_PARK && kind != OPERATION_SCALE)) {
        operation->result->unreleased = error;
        return;
    }
    operation->state = (Sluice__Manager__V1__OperationState)OPERATION_FAILED;
    operation->error = error;
    operation->stage = message_text_in(&ending->arena, "stop");
}

/* True once the memory of the replicas that left is freed, or the wait for it is over. Else the
 * entry is held until the next try. */
static bool is_settled(struct entry *entry, struct ending *ending,
                       const struct memory_report_left *left)
{
    struct error err;
    int64_t now_ns = clock_now_ns();
    if (!left->some)
        return true;
    bool back = memory_report_check_released(ending->operation->result, left,
                                             what_was_done(ending->operation), &err) == 0;
    if (back && !left->pending)
        return true;
    if (!entry->unreleased_ns)
        entry->unreleased_ns = now_ns;
    if (now_ns - entry->unreleased_ns < release_wait_ns) {
        entry->hold_until_ns = now_ns + release_poll_ns;
        return false;
    }
    if (!back) /* else the driver does not answer */
        record_unreleased(ending, &err);
    return true;
}

/* Submits the record of the end. On failure the entry stays held until the next try. */
static void record_end(struct entry *entry, struct ending *ending, enum operation_state state)
{
    struct fleet *fleet = ending->operations->fleet;
    struct error err;
    failpoint("finish.before_record");
    ending->operation->result->elapsed_ms =
        (uint64_t)(entry->age_ns + clock_now_ns() - entry->since_ns) / NS_PER_MS;
    ending->not_kept = (int)ending->operation->kind == OPERATION_PARK &&
                       state == OPERATION_FAILED &&
                       park_copy_why_not(fleet, ending->operation, &err);
    memcpy(ending->id, entry->id, sizeof(ending->id));
    if (store_submit(fleet->context->store, run_ending, end_ending, ending, &err) == 0) {
        entry->busy = true;
        entry->hold_until_ns = 0;
        return;
    }
    ending_destroy(ending);
}

static void finish(void *arg, const char *id, enum operation_state state, enum reason reason)
{
    struct operations *operations = arg;
    struct memory_report_left left = {.holder = 0};
    if (state == OPERATION_CANCELLED && seeded_bug("I2_leaves_an_operation_open"))
        return;
    struct entry *entry = ensure_entry(operations, id);
    struct ending *ending = entry ? calloc(1, sizeof(*ending)) : NULL;
    if (!entry) {
        operations->hold_until_ns = clock_now_ns() + refused_hold_ns;
        return;
    }
    entry->hold_until_ns = clock_now_ns() + refused_hold_ns; /* the next try after a failure */
    if (!ending)
        return;
    ending->operations = operations;
    arena_init(&ending->arena, 0, 0);
    if (build_end(ending, id, state, reason, &left) && is_settled(entry, ending, &left) &&
        !ending->arena.exhausted)
        record_end(entry, ending, state);
    else
        ending_destroy(ending);
}

struct operation_ops operations_ops(struct operations *operations)
{
    return (struct operation_ops){.arg = operations,
                                  .is_busy = is_busy,
                                  .hold_ns = hold_ns,
                                  .grace_ms = grace_ms,
                                  .finish = finish};
}

void operations_show_updates(struct operations *operations, struct updates *updates)
{
    operations->updates = updates;
}

int operations_create(struct fleet *fleet, struct operations **out_operations, struct error *err)
{
    struct operations *operations = calloc(1, sizeof(*operations));
    if (!operations)
        return error_no_memory(err);
    operations->fleet = fleet;
    change_hub_subscribe(&fleet->context->changes, &operations->on_change, on_change, operations);
    change_hub_subscribe(&fleet->context->progress, &operations->on_progress, on_progress,
                         operations);
    *out_operations = operations;
    return 0;
}

void operations_destroy(struct operations *operations)
{
    size_t cursor = 0;
    struct entry *entry;
    if (!operations)
        return;
    while ((entry = hash_map_next(&operations->entries, &cursor, NULL, NULL)))
        entry_destroy(entry);
    hash_map_fini(&operations->entries);
    free(operations);
}
