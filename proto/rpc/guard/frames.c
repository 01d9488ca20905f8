#include "proto/rpc/guard/frames.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { N_HEAD = 9, N_PREFACE = 24, N_PREFIX = 5, BURST = 2, FIRST_ROOM = 8 };
enum {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RST_STREAM = 3,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6,
    FRAME_CONTINUATION = 9,
    ACK = 1,
    END_STREAM = 1,
    END_HEADERS = 4,
    PADDED = 8
};
/* A client that measures its bandwidth has one ping under way; a client that checks the
 * connection has another. UNANSWERED_MANY is harmless in one read of gRPC. */
enum { UNANSWERED_FEW = 4, UNANSWERED_MANY = 64 };
/* gRPC copies pieces of up to SMALL bytes. For larger pieces gRPC refers to its read buffer,
 * with SLICE bytes each. */
enum { SMALL = 23, SLICE = 32 };

struct rpc_guard_stream {
    uint32_t id;
    uint8_t n_prefix; /* bytes of the message's prefix so far; N_PREFIX: within the message */
    uint32_t n_left;  /* bytes left of the message, once its prefix is complete */
    uint64_t n_held;
};

static const char preface[N_PREFACE + 1] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The bucket of resets of all connections leaks ALL_TIMES one connection's rate. Up to FULL_S
 * seconds of fill, a connection may send full bursts; up to SMALL_S, bursts of 1/SMALL_SHARE;
 * then of 1/LAST_SHARE. Each reset costs gRPC a call with some 10 KiB, so full bursts of a
 * thousand connections are too many. */
enum { ALL_TIMES = 4, FULL_S = 1, SMALL_S = 2, SMALL_SHARE = 4, LAST_SHARE = 32 };

/* Returns the burst that a connection may send at this fill of the common bucket. */
static uint64_t burst_at(const struct rpc_guard_limits *limits, int64_t fill_ns)
{
    uint64_t second = (uint64_t)limits->max_resets_per_second * NS_PER_S;
    if (fill_ns <= FULL_S * NS_PER_S)
        return second * BURST;
    uint64_t burst = second / (fill_ns <= SMALL_S * NS_PER_S ? SMALL_SHARE : LAST_SHARE);
    return burst > NS_PER_S ? burst : NS_PER_S;
}

/* True if a connection with n_x_s in its own bucket may reset a stream; counts the reset in the
 * common bucket. The stored value is the time when that bucket is empty (virtual scheduling
 * algorithm, ITU-T I.371). */
static bool count_among_all(const struct rpc_guard_limits *limits, uint64_t n_x_s, int64_t now_ns)
{
    int64_t rate = (int64_t)limits->max_resets_per_second * ALL_TIMES, empty, next;
    if (limits->all_resets == NULL || rate == 0)
        return n_x_s <= burst_at(limits, 0);
    empty = atomic_load_explicit(limits->all_resets, memory_order_relaxed);
    do {
        next = (empty > now_ns ? empty : now_ns) + NS_PER_S / rate;
        if (n_x_s > burst_at(limits, next - now_ns))
            return false;
        if (next - now_ns > SMALL_S * NS_PER_S)
            return true; /* not counted: a bucket at this fill grows no further, and is empty
                          * after SMALL_S seconds without resets */
    } while (!atomic_compare_exchange_weak_explicit(limits->all_resets, &empty, next,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* Counts a reset; false if a bucket overflows. */
static bool count_reset(struct rpc_guard *guard, const struct rpc_guard_limits *limits,
                        int64_t now_ns)
{
    uint64_t leaked = (uint64_t)(now_ns - guard->at_ns);
    if (guard->at_ns == 0 || leaked > BURST * (uint64_t)NS_PER_S)
        guard->n_resets_x_s = 0;
    else if (leaked * limits->max_resets_per_second >= guard->n_resets_x_s)
        guard->n_resets_x_s = 0;
    else
        guard->n_resets_x_s -= leaked * limits->max_resets_per_second;
    guard->at_ns = now_ns;
    guard->n_resets_x_s += NS_PER_S;
    return count_among_all(limits, guard->n_resets_x_s, now_ns);
}

/* --- streams --- */

/* Returns the index of the first stream with a number of at least `id`. */
static uint32_t place_of(const struct rpc_guard *guard, uint32_t id)
{
    uint32_t low = 0, high = guard->n_streams;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (guard->streams[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static struct rpc_guard_stream *find_stream(const struct rpc_guard *guard, uint32_t id)
{
    uint32_t i = place_of(guard, id);
    return i < guard->n_streams && guard->streams[i].id == id ? &guard->streams[i] : NULL;
}

static bool make_room(struct rpc_guard *guard, uint32_t max_streams)
{
    if (guard->n_streams < guard->n_room)
        return true;
    uint32_t n_room =
        (uint32_t)smaller(guard->n_room == 0 ? FIRST_ROOM : 2 * (size_t)guard->n_room, max_streams);
    if (n_room <= guard->n_room)
        return false;
    struct rpc_guard_stream *streams = realloc(guard->streams, n_room * sizeof(*streams));
    if (streams == NULL)
        return false;
    guard->streams = streams;
    guard->n_room = n_room;
    return true;
}

/* Returns false if there are too many streams. gRPC ignores streams with even numbers. */
static bool open_stream(struct rpc_guard *guard, const struct rpc_guard_limits *limits, uint32_t id)
{
    uint32_t i = place_of(guard, id);
    if (id % 2 == 0 || (i < guard->n_streams && guard->streams[i].id == id))
        return true;
    if (!make_room(guard, limits->max_streams))
        return false;
    memmove(&guard->streams[i + 1], &guard->streams[i],
            (guard->n_streams - i) * sizeof(*guard->streams));
    memset(&guard->streams[i], 0, sizeof(guard->streams[i]));
    guard->streams[i].id = id;
    guard->n_streams++;
    return true;
}

static void end_stream(struct rpc_guard *guard, uint32_t id)
{
    struct rpc_guard_stream *stream = find_stream(guard, id);
    if (stream == NULL)
        return;
    guard->n_held -= stream->n_held;
    guard->n_streams--;
    memmove(stream, stream + 1,
            (size_t)(&guard->streams[guard->n_streams] - stream) * sizeof(*stream));
}

/* --- messages --- */

static void hold(struct rpc_guard *guard, struct rpc_guard_stream *stream, size_t n)
{
    stream->n_held += n;
    guard->n_held += n;
}

static void release(struct rpc_guard *guard, struct rpc_guard_stream *stream)
{
    guard->n_held -= stream->n_held;
    stream->n_held = 0;
}

/* Reads the next bytes of a stream's messages. */
static enum rpc_guard_verdict on_message_bytes(struct rpc_guard *guard,
                                               const struct rpc_guard_limits *limits,
                                               struct rpc_guard_stream *stream, const uint8_t *at,
                                               size_t n_bytes)
{
    while (n_bytes > 0) {
        size_t n = 1;
        if (stream->n_prefix == N_PREFIX) {
            n = smaller(stream->n_left, n_bytes);
            stream->n_left -= (uint32_t)n;
        } else {
            /* The first byte of the prefix is the compression flag, not a part of the length. */
            stream->n_left = stream->n_prefix == 0 ? 0 : stream->n_left << 8 | *at;
            if (++stream->n_prefix == N_PREFIX && stream->n_left > limits->max_message_bytes)
                return RPC_GUARD_MESSAGE;
        }
        at += n;
        n_bytes -= n;
        if (stream->n_prefix == N_PREFIX && stream->n_left == 0) {
            stream->n_prefix = 0;
            release(guard, stream);
            hold(guard, stream, n_bytes + guard->n_data); /* the frame's remaining bytes belong
                                                           * to the next message */
        }
    }
    return RPC_GUARD_GOOD;
}

static void on_data_end(struct rpc_guard *guard, struct rpc_guard_stream *stream)
{
    if (guard->in.head[4] & END_STREAM)
        end_stream(guard, guard->data_stream);
    else if (stream->n_prefix == 0)
        release(guard, stream); /* only padding is left */
    guard->data_stream = 0;
}

static enum rpc_guard_verdict on_data(struct rpc_guard *guard,
                                      const struct rpc_guard_limits *limits, const uint8_t *at,
                                      size_t n_bytes)
{
    struct rpc_guard_stream *stream = find_stream(guard, guard->data_stream);
    if (stream == NULL) { /* the server has ended the stream */
        guard->data_stream = 0;
        return RPC_GUARD_GOOD;
    }
    bool last = n_bytes == guard->in.left;
    if (guard->pad_next) {
        guard->pad_next = 0;
        guard->n_data -= (uint32_t)smaller(guard->n_data, (size_t)*at + 1);
        at++;
        n_bytes--;
    }
    size_t n = smaller(n_bytes, guard->n_data);
    guard->n_data -= (uint32_t)n;
    enum rpc_guard_verdict verdict = on_message_bytes(guard, limits, stream, at, n);
    if (last)
        on_data_end(guard, stream);
    return verdict;
}

/* Handles the complete header of a DATA frame. */
static enum rpc_guard_verdict on_data_frame(struct rpc_guard *guard,
                                            const struct rpc_guard_limits *limits, uint32_t id)
{
    uint8_t flags = guard->in.head[4];
    struct rpc_guard_stream *stream = find_stream(guard, id);
    guard->data_stream = stream != NULL ? id : 0;
    guard->n_data = guard->in.left;
    guard->pad_next = (flags & PADDED) != 0;
    if (stream == NULL)
        return RPC_GUARD_GOOD;
    hold(guard, stream, guard->in.left);
    if (guard->in.left > SMALL) {
        hold(guard, stream, guard->n_between + SLICE);
        guard->n_between = 0;
    }
    if (guard->in.left == 0)
        on_data_end(guard, stream);
    return guard->n_held > limits->max_held_bytes ? RPC_GUARD_MESSAGE : RPC_GUARD_GOOD;
}

/* --- frames --- */

static uint32_t stream_of(const struct rpc_guard_frame *frame)
{
    const uint8_t *h = frame->head;
    return (uint32_t)(h[5] & 0x7f) << 24 | (uint32_t)h[6] << 16 | (uint32_t)h[7] << 8 | h[8];
}

/* Returns how many of the bytes belong to the frame's header. The header is complete if n_head
 * is 0 afterwards. */
static size_t read_head(struct rpc_guard_frame *frame, const uint8_t *at, size_t n_bytes)
{
    size_t n = smaller((size_t)(N_HEAD - frame->n_head), n_bytes);
    memcpy(frame->head + frame->n_head, at, n);
    frame->n_head = (uint8_t)((frame->n_head + n) % N_HEAD);
    if (frame->n_head == 0)
        frame->left =
            (uint32_t)frame->head[0] << 16 | (uint32_t)frame->head[1] << 8 | frame->head[2];
    return n;
}

static enum rpc_guard_verdict on_headers(struct rpc_guard *guard,
                                         const struct rpc_guard_limits *limits, uint8_t type)
{
    uint8_t flags = guard->in.head[4];
    /* A continuation also counts its header: endless empty continuations are a flood, too. */
    guard->n_block = (type == FRAME_HEADERS ? 0 : guard->n_block + N_HEAD) + guard->in.left;
    guard->in_block = (flags & END_HEADERS) == 0;
    if (guard->n_block > limits->max_block_bytes)
        return RPC_GUARD_HEADER_BLOCK;
    if (type != FRAME_HEADERS)
        return RPC_GUARD_GOOD;
    if (flags & END_STREAM)
        end_stream(guard, stream_of(&guard->in));
    else if (!open_stream(guard, limits, stream_of(&guard->in)))
        return RPC_GUARD_STREAMS;
    return RPC_GUARD_GOOD;
}

/* Counts a PING or SETTINGS frame that needs an answer. */
static enum rpc_guard_verdict on_question(struct rpc_guard *guard,
                                          const struct rpc_guard_limits *limits, int64_t now_ns)
{
    guard->n_unanswered++;
    if (guard->n_unanswered > UNANSWERED_MANY)
        return RPC_GUARD_RESETS;
    if (guard->n_unanswered > UNANSWERED_FEW && !count_reset(guard, limits, now_ns))
        return RPC_GUARD_RESETS;
    return RPC_GUARD_GOOD;
}

/* Handles a complete frame header. */
static enum rpc_guard_verdict on_frame(struct rpc_guard *guard,
                                       const struct rpc_guard_limits *limits, int64_t now_ns)
{
    uint8_t type = guard->in.head[3], flags = guard->in.head[4];
    if (guard->in_block != (type == FRAME_CONTINUATION))
        return RPC_GUARD_HEADER_BLOCK; /* no other frame may come between (RFC 9113, section 6.2) */
    guard->data_stream = 0;
    guard->n_between = (uint32_t)smaller((size_t)guard->n_between + N_HEAD, limits->max_read_bytes);
    if (type == FRAME_DATA)
        return on_data_frame(guard, limits, stream_of(&guard->in));
    guard->n_between += guard->in.left;
    if (type == FRAME_HEADERS || type == FRAME_CONTINUATION)
        return on_headers(guard, limits, type);
    if (type == FRAME_RST_STREAM) {
        end_stream(guard, stream_of(&guard->in));
        return count_reset(guard, limits, now_ns) ? RPC_GUARD_GOOD : RPC_GUARD_RESETS;
    }
    if ((type == FRAME_PING || type == FRAME_SETTINGS) && (flags & ACK) == 0)
        return on_question(guard, limits, now_ns);
    return RPC_GUARD_GOOD;
}

enum rpc_guard_verdict rpc_guard_feed(struct rpc_guard *guard,
                                      const struct rpc_guard_limits *limits, const void *bytes,
                                      size_t n_bytes, int64_t now_ns)
{
    const uint8_t *at = bytes;
    for (; n_bytes > 0 && guard->n_preface < N_PREFACE; at++, n_bytes--)
        if (*at != (uint8_t)preface[guard->n_preface++])
            return RPC_GUARD_NOT_HTTP2;
    while (n_bytes > 0) {
        enum rpc_guard_verdict verdict = RPC_GUARD_GOOD;
        size_t n = smaller(guard->in.left, n_bytes);
        if (n > 0) {
            if (guard->data_stream != 0)
                verdict = on_data(guard, limits, at, n);
            guard->in.left -= (uint32_t)n;
        } else {
            n = read_head(&guard->in, at, n_bytes);
            guard->has_spoken |= guard->in.n_head == 0;
            if (guard->in.n_head == 0)
                verdict = on_frame(guard, limits, now_ns);
        }
        if (verdict != RPC_GUARD_GOOD)
            return verdict;
        at += n;
        n_bytes -= n;
    }
    return RPC_GUARD_GOOD;
}

static void on_sent_frame(struct rpc_guard *guard)
{
    uint8_t type = guard->out.head[3], flags = guard->out.head[4];
    bool ends = (type == FRAME_DATA || type == FRAME_HEADERS) && (flags & END_STREAM) != 0;
    bool answers = (type == FRAME_PING || type == FRAME_SETTINGS) && (flags & ACK) != 0;
    if (ends || type == FRAME_RST_STREAM)
        end_stream(guard, stream_of(&guard->out));
    if (answers && guard->n_unanswered > 0)
        guard->n_unanswered--;
}

void rpc_guard_sent(struct rpc_guard *guard, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;
    while (n_bytes > 0) {
        size_t n = smaller(guard->out.left, n_bytes);
        if (n > 0) {
            guard->out.left -= (uint32_t)n;
        } else {
            n = read_head(&guard->out, at, n_bytes);
            if (guard->out.n_head == 0)
                on_sent_frame(guard);
        }
        at += n;
        n_bytes -= n;
    }
}

void rpc_guard_reset(struct rpc_guard *guard)
{
    free(guard->streams);
    memset(guard, 0, sizeof(*guard));
}
