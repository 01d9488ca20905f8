#include "tests/unit/engine/support/support_late_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"

enum { MAX_COPIES = 512 };

struct late_stream {
    struct stream base;
    struct {
        void *to;
        const void *from;
        size_t n_bytes;
    } copies[MAX_COPIES];
    size_t n_queued, n_done, n_whole; /* whole slices are queued so far */
    struct error sticky;
    struct late_stream *next;
};

struct event {
    struct late_stream *stream;
    size_t at;
};

struct late late;
static struct late_stream *streams; /* a single thread makes and destroys the streams */

const struct late_failure late_failures[N_LATE_CALLS] = {
    [LATE_STREAM_CREATE] = {STATUS_RESOURCE_EXHAUSTED, "no stream"},
    [LATE_ALLOC_HOST] = {STATUS_RESOURCE_EXHAUSTED, "no pinned memory"},
    [LATE_EVENT_CREATE] = {STATUS_RESOURCE_EXHAUSTED, "no event"},
    [LATE_UPLOAD] = {STATUS_INTERNAL, "the device failed: upload"},
    [LATE_DOWNLOAD] = {STATUS_INTERNAL, "the device failed: download"},
    [LATE_EVENT_RECORD] = {STATUS_INTERNAL, "the device failed: event record"},
    [LATE_EVENT_WAIT] = {STATUS_INTERNAL, "the device failed: event wait"},
    [LATE_STREAM_SYNC] = {STATUS_INTERNAL, "the device failed: sync"},
};

void late_reset(void)
{
    assert_int_equal(atomic_load(&late.n_live), 0);
    memset(&late, 0, sizeof(late));
}

static int try_call(enum late_call call, struct error *err)
{
    if (atomic_fetch_add(&late.n_calls[call], 1) + 1 != late.fail_at[call])
        return 0;
    return error_set(err, late_failures[call].status, "%s", late_failures[call].text);
}

static void do_copies(struct late_stream *s, size_t end)
{
    for (; s->n_done < end; s->n_done++)
        memcpy(s->copies[s->n_done].to, s->copies[s->n_done].from, s->copies[s->n_done].n_bytes);
}

/* Fills the memory with bytes that are not weights. */
static int alloc_host(struct device *device, size_t n_bytes, void **out_data, struct error *err)
{
    int rc = try_call(LATE_ALLOC_HOST, err);
    (void)device;
    if (rc)
        return rc;
    *out_data = aligned_alloc(256, (n_bytes + 255) / 256 * 256);
    assert_non_null(*out_data);
    memset(*out_data, 0xEE, n_bytes);
    late.slice_bytes = n_bytes;
    atomic_fetch_add(&late.n_live, 1);
    return 0;
}

static bool is_within(const void *at, const void *begin, size_t n_bytes)
{
    return (uintptr_t)at >= (uintptr_t)begin && (uintptr_t)at < (uintptr_t)begin + n_bytes;
}

/* Fails the test if a copy from or to this memory is under way. */
static void free_host(struct device *device, void *data, size_t n_bytes)
{
    (void)device;
    assert_int_equal(n_bytes, late.slice_bytes);
    for (const struct late_stream *s = streams; s; s = s->next)
        for (size_t i = s->n_done; i < s->n_queued; i++)
            assert_false(is_within(s->copies[i].from, data, n_bytes) ||
                         is_within(s->copies[i].to, data, n_bytes));
    free(data);
    atomic_fetch_sub(&late.n_live, 1);
}

static int stream_create(struct device *device, uint32_t n_threads, struct stream **out_stream,
                         struct error *err)
{
    int rc = try_call(LATE_STREAM_CREATE, err);
    (void)n_threads;
    if (rc)
        return rc;
    struct late_stream *s = calloc(1, sizeof(*s));
    assert_non_null(s);
    s->base.device = device;
    s->next = streams;
    streams = s;
    *out_stream = &s->base;
    atomic_fetch_add(&late.n_live, 1);
    return 0;
}

static void stream_destroy(struct stream *stream)
{
    struct late_stream *s = (struct late_stream *)stream, **at = &streams;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s);
    atomic_fetch_sub(&late.n_live, 1);
}

static int stream_sync(struct stream *stream, struct error *err)
{
    struct late_stream *s = (struct late_stream *)stream;
    do_copies(s, s->n_queued);
    if (!s->sticky.status)
        return try_call(LATE_STREAM_SYNC, err);
    *err = s->sticky;
    return err->status;
}

static int queue(struct stream *stream, enum late_call call, void *to, const void *from,
                 size_t n_bytes)
{
    struct late_stream *s = (struct late_stream *)stream;
    int rc = try_call(call, &s->sticky);
    if (rc)
        return rc;
    assert_true(s->n_queued < MAX_COPIES);
    atomic_fetch_add(&late.n_beside, s->n_done < s->n_whole);
    s->copies[s->n_queued].to = to;
    s->copies[s->n_queued].from = from;
    s->copies[s->n_queued++].n_bytes = n_bytes;
    return 0;
}

static int upload(struct stream *stream, void *to, const void *from, size_t n_bytes)
{
    return queue(stream, LATE_UPLOAD, to, from, n_bytes);
}

static int download(struct stream *stream, void *to, const void *from, size_t n_bytes)
{
    return queue(stream, LATE_DOWNLOAD, to, from, n_bytes);
}

static int event_create(struct device *device, struct event **out_event, struct error *err)
{
    int rc = try_call(LATE_EVENT_CREATE, err);
    (void)device;
    if (rc)
        return rc;
    *out_event = calloc(1, sizeof(**out_event));
    assert_non_null(*out_event);
    atomic_fetch_add(&late.n_live, 1);
    return 0;
}

static void event_destroy(struct event *event)
{
    free(event);
    atomic_fetch_sub(&late.n_live, 1);
}

static int event_record(struct stream *stream, struct event *event)
{
    struct late_stream *s = (struct late_stream *)stream;
    int rc = try_call(LATE_EVENT_RECORD, &s->sticky);
    if (rc)
        return rc;
    event->stream = s;
    event->at = s->n_whole = s->n_queued;
    return 0;
}

static int event_wait(struct event *event, struct error *err)
{
    int rc = try_call(LATE_EVENT_WAIT, err);
    if (rc)
        return rc;
    if (event->stream)
        do_copies(event->stream, event->at);
    return 0;
}

static const struct device_ops device_ops = {
    .name = "late",
    .alloc_host = alloc_host,
    .free_host = free_host,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_sync = stream_sync,
    .upload = upload,
    .download = download,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_wait = event_wait,
};
struct device late_device = {.ops = &device_ops};
