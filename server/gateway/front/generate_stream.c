#include "server/gateway/front/generate_stream.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "proto/rpc/server/call.h"
#include "server/gateway/base/awake_clock.h"
#include "server/gateway/base/counters.h"
#include "server/gateway/base/limits.h"
#include "server/gateway/dispatch/dispatch.h"
#include "server/gateway/dispatch/ending.h"
#include "server/gateway/dispatch/slow_reader.h"
#include "server/gateway/front/service.h"
#include "server/gateway/relay/relay.h"

enum { LAST_ANSWER_MS = 500 };

static void retain(struct generate_stream *stream)
{
    atomic_fetch_add(&stream->n_refs, 1);
}

static void release(struct generate_stream *stream)
{
    if (atomic_fetch_sub(&stream->n_refs, 1) != 1)
        return;
    while (stream->refusals) {
        struct stream_refusal *refusal = stream->refusals;
        stream->refusals = refusal->next;
        free(refusal);
    }
    hash_map_fini(&stream->members);
    pthread_mutex_destroy(&stream->lock);
    rpc_call_release(stream->call);
    free(stream);
}

/* --- members --- */

/* Under the lock: appends the member to the queue of ready members. */
static void push_ready(struct generate_stream *stream, struct stream_member *member)
{
    member->queued = true;
    member->next_ready = NULL;
    relay_sink_retain(&member->base);
    *(stream->ready_last ? &stream->ready_last->next_ready : &stream->ready_first) = member;
    stream->ready_last = member;
}

static void on_ready(struct relay_sink *sink)
{
    struct stream_member *member = (struct stream_member *)sink;
    struct generate_stream *stream = member->stream;
    pthread_mutex_lock(&stream->lock);
    if (!member->queued && !member->gone)
        push_ready(stream, member);
    pthread_mutex_unlock(&stream->lock);
    rpc_call_kick(stream->call);
}

static void on_cut_off(struct relay_sink *sink, const struct error *status)
{
    rpc_call_abort(((struct stream_member *)sink)->stream->call, status);
}

static bool leave(struct generate_stream *stream, struct stream_member *member);

/* Called when another connection has taken the request over. Does nothing if this stream has
 * reattached the request meanwhile. The member leaves and the client's error is queued under a
 * single lock. So a refused frame is answered with goes_on before this error, or without goes_on
 * after this error. */
static void on_taken_over(struct relay_sink *sink, const struct error *why)
{
    struct stream_member *member = (struct stream_member *)sink;
    struct generate_stream *stream = member->stream;
    struct stream_refusal *refusal = generate_stream_make_refusal(member->relay->request_id, why);
    bool pause = false;
    pthread_mutex_lock(&stream->lock);
    bool left = !relay_speaks_to(member->relay, sink) && leave(stream, member);
    if (left && refusal)
        pause = generate_stream_queue_refusal(stream, refusal);
    pthread_mutex_unlock(&stream->lock);
    if (!left) {
        free(refusal);
        return;
    }
    if (refusal)
        generate_stream_tell_refusal(stream, pause);
    else
        rpc_call_finish(stream->call, why);
    relay_sink_release(sink);
}

/* Returns true once the stream's pending bytes exceed the limit, until they fall to half of the
 * limit. */
static bool on_pending(struct relay_sink *sink, int64_t more_bytes)
{
    struct generate_stream *stream = ((struct stream_member *)sink)->stream;
    int64_t limit = (int64_t)stream->service->dispatch->relays->limits->max_stream_pending_bytes;
    int64_t n_bytes = atomic_fetch_add(&stream->pending_bytes, more_bytes) + more_bytes;
    if (n_bytes > limit && !atomic_exchange(&stream->crowded, true))
        counters_refusal(stream->service->dispatch->relays->counters, LIMIT_STREAM_PENDING_BYTES);
    return atomic_load(&stream->crowded) && n_bytes > limit / 2;
}

static void on_destroy(struct relay_sink *sink)
{
    struct stream_member *member = (struct stream_member *)sink;
    if (member->answer && member->stream->form->destroy)
        member->stream->form->destroy(member->answer);
    relay_release(member->relay);
    release(member->stream);
    free(member);
}

static const struct relay_sink_ops member_ops = {
    .name = "stream",
    .ready = on_ready,
    .cut_off = on_cut_off,
    .taken_over = on_taken_over,
    .pending = on_pending,
    .watched = true,
    .destroy = on_destroy,
};

struct stream_member *generate_stream_find(struct generate_stream *stream, const char *request_id)
{
    pthread_mutex_lock(&stream->lock);
    struct stream_member *member = hash_map_get_str(&stream->members, request_id);
    if (member)
        relay_sink_retain(&member->base);
    pthread_mutex_unlock(&stream->lock);
    return member;
}

static int too_many(struct generate_stream *stream, struct error *err)
{
    counters_refusal(stream->service->dispatch->relays->counters, LIMIT_STREAM_REQUESTS);
    error_set(err, STATUS_RESOURCE_EXHAUSTED,
              "request_id: %zu requests are live on this stream, limit %llu",
              stream->members.n_entries,
              (unsigned long long)stream->service->dispatch->relays->limits->max_stream_requests);
    err->retry_after_ms = 1000;
    return error_reason(err, REASON_STREAM_REQUESTS);
}

int generate_stream_add(struct generate_stream *stream, struct relay *relay, void *answer,
                        struct stream_member **out_member, struct error *err)
{
    int rc = 0;
    struct stream_member *member = calloc(1, sizeof(*member));
    if (!member)
        return error_set(err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    relay_sink_init(&member->base, &member_ops);
    member->stream = stream;
    retain(stream);
    member->relay = relay;
    relay_retain(relay);
    pthread_mutex_lock(&stream->lock);
    if (stream->over)
        rc = error_set(err, STATUS_CANCELLED, "the client cancelled or is gone");
    else if (stream->members.n_entries >=
             stream->service->dispatch->relays->limits->max_stream_requests)
        rc = too_many(stream, err);
    else if (!hash_map_put_str(&stream->members, relay->request_id, member))
        rc = error_set(err, STATUS_RESOURCE_EXHAUSTED, "request: out of memory");
    else
        relay_sink_retain(&member->base); /* reference for the map */
    if (!rc)
        member->answer = answer;
    pthread_mutex_unlock(&stream->lock);
    if (rc)
        relay_sink_release(&member->base);
    else
        *out_member = member;
    return rc;
}

/* Under the lock. Returns true if the map's reference is now the caller's. */
static bool leave(struct generate_stream *stream, struct stream_member *member)
{
    const char *id = member->relay->request_id;
    bool was_in = !member->gone && hash_map_get_str(&stream->members, id) == member;
    member->gone = true;
    if (was_in)
        hash_map_remove_str(&stream->members, id);
    return was_in;
}

bool generate_stream_has(struct generate_stream *stream, const struct stream_member *member)
{
    pthread_mutex_lock(&stream->lock);
    bool has = !member->gone;
    pthread_mutex_unlock(&stream->lock);
    return has;
}

void generate_stream_remove(struct generate_stream *stream, struct stream_member *member)
{
    pthread_mutex_lock(&stream->lock);
    bool was_in = leave(stream, member);
    pthread_mutex_unlock(&stream->lock);
    if (was_in)
        relay_sink_release(&member->base);
    rpc_call_kick(stream->call);
}

/* Returns any member, retained; NULL if there is none. */
static struct stream_member *any_member(struct generate_stream *stream)
{
    size_t cursor = 0;
    pthread_mutex_lock(&stream->lock);
    struct stream_member *member = hash_map_next(&stream->members, &cursor, NULL, NULL);
    if (member)
        relay_sink_retain(&member->base);
    pthread_mutex_unlock(&stream->lock);
    return member;
}

/* Returns every member, retained, in an array that the caller frees; none if memory is
 * exhausted. */
static struct stream_member **all_members(struct generate_stream *stream, size_t *out_n)
{
    size_t cursor = 0, n = 0;
    struct stream_member *member;
    pthread_mutex_lock(&stream->lock);
    struct stream_member **all = calloc(stream->members.n_entries + 1, sizeof(*all));
    while (all && (member = hash_map_next(&stream->members, &cursor, NULL, NULL))) {
        relay_sink_retain(&member->base);
        all[n++] = member;
    }
    pthread_mutex_unlock(&stream->lock);
    *out_n = n;
    return all;
}

/* --- frames to the client --- */

static struct stream_member *pop_ready(struct generate_stream *stream)
{
    struct stream_member *member = stream->ready_first;
    if (!member)
        return NULL;
    stream->ready_first = member->next_ready;
    if (!stream->ready_first)
        stream->ready_last = NULL;
    member->queued = false;
    return member;
}

struct put {
    struct stream_member *member;
    struct rpc_out *out;
    bool has_put;
};

static void put_frame(void *ctx, const struct relay_frame *frame)
{
    struct put *put = ctx;
    const struct stream_member *member = put->member;
    put->has_put = member->stream->form->put(member->answer, member->relay, frame, put->out);
}

/* Delivers frames of a request until one of them gives a message. A last frame may give none. */
static enum relay_delivery deliver(struct stream_member *member, struct put *put)
{
    enum relay_delivery delivery = RELAY_PUT;
    while (delivery == RELAY_PUT && !put->has_put)
        delivery = relay_deliver(member->relay, &member->base, put_frame, put);
    return delivery;
}

/* Puts the next message of the first request that has one. */
static bool put_member(struct generate_stream *stream, struct rpc_out *out)
{
    struct stream_member *member;
    enum relay_delivery delivery = RELAY_NOTHING;
    while (delivery == RELAY_NOTHING && (member = pop_ready(stream))) {
        struct put put = {.member = member, .out = out};
        if (!member->gone)
            delivery = deliver(member, &put);
        if (delivery == RELAY_PUT) {
            push_ready(stream, member);
            stream->in_flight = member; /* keeps the reference that the queue held */
            break;
        }
        if (delivery == RELAY_PUT_LAST) {
            if (leave(stream, member))
                relay_sink_release(&member->base);
            dispatch_sink_gone(member->relay, &member->base, relay_outcome(member->relay));
        }
        relay_sink_release(&member->base);
    }
    return delivery != RELAY_NOTHING;
}

/* Reports to the member in flight that its frame was taken. */
static void settle(struct generate_stream *stream)
{
    atomic_store(&stream->put_ns, 0);
    if (!stream->in_flight)
        return;
    relay_taken(stream->in_flight->relay, &stream->in_flight->base);
    relay_sink_release(&stream->in_flight->base);
    stream->in_flight = NULL;
}

/* Continues the members that were paused because too many bytes waited at the stream. */
static void recheck_members(struct generate_stream *stream)
{
    size_t cursor = 0;
    struct stream_member *member;
    int64_t limit = (int64_t)stream->service->dispatch->relays->limits->max_stream_pending_bytes;
    if (!atomic_load(&stream->crowded) || atomic_load(&stream->pending_bytes) > limit / 2)
        return;
    atomic_store(&stream->crowded, false);
    while ((member = hash_map_next(&stream->members, &cursor, NULL, NULL)))
        relay_recheck(member->relay);
}

/* True if the server is leaving and a stream without requests may end now. Afterwards gRPC closes
 * a connection without calls. A client that writes at that moment loses unread answers. So the
 * last answer gets LAST_ANSWER_MS to arrive. */
static bool may_end(const struct generate_stream *stream)
{
    return atomic_load(&stream->service->dispatch->relays->leaving) &&
           clock_now_ns() - stream->last_put_ns > LAST_ANSWER_MS * NS_PER_MS;
}

static void end(struct generate_stream *stream, struct rpc_out *out)
{
    struct error err;
    if (!stream->half_closed) {
        error_set(&err, STATUS_UNAVAILABLE, "the server is going away");
        error_reason(&err, REASON_DRAINING);
        err.retry_after_ms = 1000;
    }
    rpc_out_finish(out, stream->half_closed ? NULL : &err);
}

/* Called when nothing is in flight, under the call's lock. */
static void on_next(void *arg, struct rpc_out *out)
{
    struct generate_stream *stream = arg;
    pthread_mutex_lock(&stream->lock);
    settle(stream);
    bool put = generate_stream_put_refusal(stream, out) || put_member(stream, out);
    recheck_members(stream);
    if (put)
        stream->last_put_ns = clock_now_ns();
    bool idle = !stream->members.n_entries && !stream->refusals;
    if (idle && (stream->half_closed || may_end(stream))) {
        end(stream, out);
        put = true;
    }
    if (put)
        atomic_store(&stream->put_ns,
                     awake_clock_ticked_ns(stream->service->dispatch->relays->clock));
    pthread_mutex_unlock(&stream->lock);
}

/* --- the call --- */

static void on_taken(void *arg, struct rpc_call *call)
{
    struct generate_stream *stream = arg;
    pthread_mutex_lock(&stream->lock);
    bool resume = stream->reads_paused && stream->n_refusals <= STREAM_MAX_REFUSALS / 2;
    if (resume)
        stream->reads_paused = false;
    pthread_mutex_unlock(&stream->lock);
    if (resume)
        rpc_call_resume_reads(call);
}

static void on_half_close(void *arg, struct rpc_call *call)
{
    struct generate_stream *stream = arg;
    size_t n;
    pthread_mutex_lock(&stream->lock);
    stream->half_closed = true;
    pthread_mutex_unlock(&stream->lock);
    struct stream_member **all = all_members(stream, &n);
    for (size_t i = 0; i < n; i++) {
        relay_no_more_frames(all[i]->relay, &all[i]->base);
        relay_sink_release(&all[i]->base);
    }
    free(all);
    rpc_call_kick(call);
}

/* Cancels the requests at the engine now; on_done may come later. */
static void on_cancel(void *arg, struct rpc_call *call)
{
    struct generate_stream *stream = arg;
    struct error why;
    size_t n;
    pthread_mutex_lock(&stream->lock);
    stream->over = true;
    pthread_mutex_unlock(&stream->lock);
    struct stream_member **all = all_members(stream, &n);
    error_set(&why, STATUS_CANCELLED, "the client cancelled or is gone");
    for (size_t i = 0; i < n; i++) {
        if (all[i]->relay->window_ms)
            dispatch_sink_gone(all[i]->relay, &all[i]->base, rpc_call_result(call));
        else
            dispatch_cancel(all[i]->relay, &why);
        relay_sink_release(&all[i]->base);
    }
    free(all);
}

static void unlist(struct generate_stream *stream)
{
    struct service *service = stream->service;
    pthread_mutex_lock(&service->lock);
    struct generate_stream **at = &service->streams;
    while (*at && *at != stream)
        at = &(*at)->next;
    if (*at)
        *at = stream->next;
    pthread_mutex_unlock(&service->lock);
}

/* Removes the member, ends its request and drops the caller's reference. */
static void end_member(struct generate_stream *stream, struct stream_member *member,
                       struct rpc_call *call)
{
    generate_stream_remove(stream, member);
    dispatch_sink_gone(member->relay, &member->base, rpc_call_result(call));
    relay_sink_release(&member->base);
}

static void on_done(void *arg, struct rpc_call *call)
{
    struct generate_stream *stream = arg;
    struct stream_member *member;
    size_t n;
    unlist(stream);
    pthread_mutex_lock(&stream->lock);
    stream->over = true;
    settle(stream);
    pthread_mutex_unlock(&stream->lock);
    struct stream_member **all = all_members(stream, &n);
    for (size_t i = 0; i < n; i++)
        end_member(stream, all[i], call);
    free(all);
    while ((member = any_member(stream))) /* there was no memory for the array */
        end_member(stream, member, call);
    pthread_mutex_lock(&stream->lock);
    while ((member = pop_ready(stream)))
        relay_sink_release(&member->base);
    pthread_mutex_unlock(&stream->lock);
    release(stream);
}

static void on_message(void *arg, struct rpc_call *call, const ProtobufCMessage *message)
{
    struct generate_stream *stream = arg;
    (void)call;
    stream->form->on_message(stream, message);
}

static void on_bad_message(void *arg, struct rpc_call *call, const struct error *err)
{
    (void)call;
    generate_stream_refuse(arg, "", err, NULL);
}

static const struct rpc_call_events events = {
    .on_message = on_message,
    .on_bad_message = on_bad_message,
    .on_half_close = on_half_close,
    .on_cancel = on_cancel,
    .on_done = on_done,
    .on_taken = on_taken,
    .next = on_next,
};

const struct stream_form generate_stream_form = {.on_message = generate_stream_on_frame,
                                                 .put = generate_stream_put_frame,
                                                 .put_refusal = generate_stream_put_refused};

void handle_generate_stream(void *context, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)request;
    generate_stream_open(context, call, &generate_stream_form);
}

void generate_stream_open(struct service *service, struct rpc_call *call,
                          const struct stream_form *form)
{
    struct generate_stream *stream = calloc(1, sizeof(*stream));
    struct error err;
    if (!stream) {
        error_set(&err, STATUS_RESOURCE_EXHAUSTED, "the stream: out of memory");
        rpc_call_finish(call, &err);
        return;
    }
    atomic_init(&stream->n_refs, 1);
    pthread_mutex_init(&stream->lock, NULL);
    stream->service = service;
    stream->form = form;
    stream->call = call;
    stream->refusals_end = &stream->refusals;
    rpc_call_retain(call);
    pthread_mutex_lock(&service->lock);
    stream->next = service->streams;
    service->streams = stream;
    pthread_mutex_unlock(&service->lock);
    rpc_call_set_events(call, &events, stream); /* on_done drops the first reference */
    /* A leaving server ends the stream now; without headers gRPC clients retry the call. */
    if (!atomic_load(&service->dispatch->relays->leaving))
        rpc_call_send_headers(call);
}

/* --- all streams --- */

enum { SLOW_AT_ONCE = 64 };

static bool is_slow(struct generate_stream *stream, int64_t awake_ns)
{
    int64_t limit_ns =
        (int64_t)stream->service->dispatch->relays->limits->slow_reader_ms * NS_PER_MS;
    int64_t put_ns = atomic_load(&stream->put_ns);
    bool slow = put_ns && awake_ns - put_ns > limit_ns;
    if (slow)
        atomic_store(&stream->put_ns, 0); /* a slow stream is reported once */
    return slow;
}

/* Takes slow streams, retained; fewer than SLOW_AT_ONCE means that no more are left. */
static uint32_t take_slow(struct service *service, struct generate_stream *out[SLOW_AT_ONCE],
                          int64_t awake_ns)
{
    uint32_t n = 0;
    pthread_mutex_lock(&service->lock);
    for (struct generate_stream *s = service->streams; s && n < SLOW_AT_ONCE; s = s->next)
        if (is_slow(s, awake_ns)) {
            retain(s);
            out[n++] = s;
        }
    pthread_mutex_unlock(&service->lock);
    return n;
}

void generate_streams_tick(struct service *service, int64_t awake_ns)
{
    struct generate_stream *slow[SLOW_AT_ONCE];
    if (atomic_load(&service->dispatch->relays->leaving))
        generate_streams_drain(service);
    for (uint32_t n = SLOW_AT_ONCE; n == SLOW_AT_ONCE;) {
        n = take_slow(service, slow, awake_ns);
        for (uint32_t i = 0; i < n; i++) {
            struct error err;
            slow_reader_found(service->dispatch->relays, &err);
            rpc_call_abort(slow[i]->call, &err);
            release(slow[i]);
        }
    }
}

void generate_streams_drain(struct service *service)
{
    size_t n = 0;
    pthread_mutex_lock(&service->lock);
    for (struct generate_stream *s = service->streams; s; s = s->next)
        n++;
    struct generate_stream **all = calloc(n + 1, sizeof(*all));
    n = 0;
    for (struct generate_stream *s = service->streams; s && all; s = s->next) {
        retain(s);
        all[n++] = s;
    }
    pthread_mutex_unlock(&service->lock);
    for (size_t i = 0; i < n; i++) {
        rpc_call_kick(all[i]->call);
        release(all[i]);
    }
    free(all);
}
