#include "manager/watch/events.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "manager/base/context.h"
#include "manager/base/message.h"
#include "manager/base/pb.h"
#include "manager/store/catalog.h"
#include "manager/store/store.h"
#include "manager/store/txn.h"
#include "manager/watch/stream_watch.h"
#include "proto/rpc/server/call.h"

enum { N_RECENT = 1024, BATCH = 128, MAX_WATCHERS = 256 };

struct watch {
    struct stream_watch stream; /* first member */
    struct events *events;
    uint64_t next_seq; /* next event to send; 0: the next new one */
    bool reading;      /* a read from the store is under way */
    bool over;         /* the call has ended; the end of the read frees the watch */
};

struct events {
    struct context *context;
    struct change_subscriber on_change;
    struct row *recent[N_RECENT]; /* by seq % N_RECENT; owns a reference to each */
    uint64_t first_recent;        /* 0: no event yet */
    struct stream_watches watches;
};

/* A read from the store that is under way. */
struct reading {
    struct watch *watch;
    uint64_t from_seq;
    struct row *rows[BATCH];
    size_t n_rows;
};

static uint64_t last_seq(const struct events *events)
{
    return events->context->catalog->last_event_seq;
}

void events_add(void *arg, struct row *row)
{
    struct events *events = arg;
    uint64_t seq = ((const pb_event *)row_message(row))->seq;
    struct row **place = &events->recent[seq % N_RECENT];
    row_release(*place);
    *place = row_retain(row);
    if (!events->first_recent)
        events->first_recent = seq;
    if (seq - events->first_recent >= N_RECENT)
        events->first_recent = seq - N_RECENT + 1;
}

static void fail_deleted(struct watch *watch)
{
    struct error err;
    error_set(&err, STATUS_OUT_OF_RANGE,
              "from_seq: event %" PRIu64 " was deleted; the oldest event is %" PRIu64,
              watch->next_seq, watch->events->context->catalog->first_event_seq);
    error_reason(&err, REASON_EVENTS_GONE);
    stream_watch_finish(&watch->stream, &err);
}

/* Sends rows in order. Rows without room at the receiver are sent again later. */
static void send_rows(struct watch *watch, struct row *const *rows, size_t n_rows)
{
    Sluice__Manager__V1__WatchEventsResponse response =
        SLUICE__MANAGER__V1__WATCH_EVENTS_RESPONSE__INIT;
    pb_event *list[BATCH];
    for (size_t i = 0; i < n_rows; i++)
        list[i] = (pb_event *)(uintptr_t)row_message(rows[i]); /* packing only reads the rows */
    response.events = list;
    response.n_events = n_rows;
    stream_watch_send(&watch->stream, &response.base);
    if (!watch->stream.blocked)
        watch->next_seq += n_rows;
}

static int run_reading(struct txn *txn, void *arg, struct error *err)
{
    struct reading *reading = arg;
    return txn_read_events(txn, reading->from_seq, BATCH, reading->rows, &reading->n_rows, err);
}

static void send_events(struct watch *watch);

static void end_reading(void *arg, const struct error *status)
{
    struct reading *reading = arg;
    struct watch *watch = reading->watch;
    watch->reading = false;
    if (watch->over) {
        free(watch);
    } else if (status->status != 0) {
        stream_watch_finish(&watch->stream, status);
    } else if (reading->n_rows == 0 ||
               ((const pb_event *)row_message(reading->rows[0]))->seq != watch->next_seq) {
        fail_deleted(watch);
    } else {
        send_rows(watch, reading->rows, reading->n_rows);
        send_events(watch);
    }
    for (size_t i = 0; i < reading->n_rows; i++)
        row_release(reading->rows[i]);
    free(reading);
}

static void read_older(struct watch *watch)
{
    struct error err;
    struct reading *reading = calloc(1, sizeof(*reading));
    int rc = reading ? 0 : error_no_memory(&err);
    if (reading) {
        reading->watch = watch;
        reading->from_seq = watch->next_seq;
        rc = store_submit(watch->events->context->store, run_reading, end_reading, reading, &err);
    }
    if (rc == 0) {
        watch->reading = true;
        return;
    }
    free(reading);
    stream_watch_finish(&watch->stream, &err);
}

/* Sends until the watch has all events, or the receiver has no room. */
static void send_events(struct watch *watch)
{
    struct events *events = watch->events;
    while (!watch->reading && !watch->stream.blocked && watch->next_seq <= last_seq(events)) {
        struct row *rows[BATCH];
        size_t n_rows = 0;
        if (!events->first_recent || watch->next_seq < events->first_recent) {
            read_older(watch);
            return;
        }
        while (n_rows < BATCH && watch->next_seq + n_rows <= last_seq(events)) {
            rows[n_rows] = events->recent[(watch->next_seq + n_rows) % N_RECENT];
            n_rows++;
        }
        uint64_t before = watch->next_seq;
        send_rows(watch, rows, n_rows);
        if (watch->next_seq == before)
            return;
    }
}

/* Ends the watch with the error; nothing is sent before the end. */
static void refuse(struct watch *watch, const struct error *err)
{
    watch->next_seq = UINT64_MAX;
    stream_watch_finish(&watch->stream, err);
}

static void watch_start(struct stream_watch *stream)
{
    struct watch *watch = (struct watch *)stream;
    struct events *events = watch->events;
    struct error err;
    if (events->watches.n > MAX_WATCHERS) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED,
                  "%d watches of events are open: that is the limit", MAX_WATCHERS);
        error_reason(&err, REASON_TOO_MANY_WATCHERS);
        refuse(watch, &err);
        return;
    }
    if (!watch->next_seq)
        watch->next_seq = last_seq(events) + 1;
    if (watch->next_seq > last_seq(events) + 1) {
        error_set(&err, STATUS_OUT_OF_RANGE,
                  "from_seq: %" PRIu64 " is beyond the next event, %" PRIu64, watch->next_seq,
                  last_seq(events) + 1);
        error_reason(&err, REASON_EVENTS_TO_COME);
        refuse(watch, &err);
    } else if (watch->next_seq < events->context->catalog->first_event_seq) {
        fail_deleted(watch);
        watch->next_seq = UINT64_MAX;
    } else {
        send_events(watch);
    }
}

static void watch_writable(struct stream_watch *stream)
{
    send_events((struct watch *)stream);
}

static void watch_done(struct stream_watch *stream)
{
    struct watch *watch = (struct watch *)stream;
    watch->over = true;
    if (!watch->reading)
        free(watch);
}

static const struct stream_watch_ops watch_ops = {
    .start = watch_start,
    .writable = watch_writable,
    .done = watch_done,
};

void events_watch(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct events *events = context;
    struct watch *watch = stream_watch_create(sizeof(*watch), call);
    if (!watch)
        return;
    watch->events = events;
    watch->next_seq = ((const Sluice__Manager__V1__WatchEventsRequest *)request)->from_seq;
    stream_watch_begin(&watch->stream, call, events->context, &watch_ops, &events->watches);
}

void events_end_watches(struct events *events, const struct error *status)
{
    stream_watch_finish_all(&events->watches, status);
}

static void on_change(void *arg, const char *replica_id)
{
    const struct events *events = arg;
    (void)replica_id;
    for (struct stream_watch *watch = events->watches.first; watch; watch = watch->next)
        send_events((struct watch *)watch);
}

int events_create(struct context *context, struct events **out_events, struct error *err)
{
    struct events *events = calloc(1, sizeof(*events));
    if (!events)
        return error_no_memory(err);
    events->context = context;
    change_hub_subscribe(&context->changes, &events->on_change, on_change, events);
    *out_events = events;
    return 0;
}

void events_destroy(struct events *events)
{
    if (!events)
        return;
    for (size_t i = 0; i < N_RECENT; i++)
        row_release(events->recent[i]);
    free(events);
}
