/* fuzz_guard.c: fuzzes the guard that reads a client's bytes before gRPC does. The verdict must not
 * depend on how the bytes are cut. The verdict must also equal that of a plain model. The model
 * reads whole frames, keeps an entry per stream number and sums everything again after each frame.
 * The first two bytes choose the cuts. With an odd third byte the server answers on other streams.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/rpc/guard/frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_CUTS = 3, NOW = 1000000000, N_STREAMS = 32 };

static const struct rpc_guard_limits limits = {4096, 50, 1000, 3000, 8, 500, NULL};

static enum rpc_guard_verdict feed(const uint8_t *data, size_t size, size_t step)
{
    struct rpc_guard guard;
    enum rpc_guard_verdict verdict = RPC_GUARD_GOOD;
    memset(&guard, 0, sizeof(guard));
    for (size_t at = 0; at < size && verdict == RPC_GUARD_GOOD; at += step)
        verdict =
            rpc_guard_feed(&guard, &limits, data + at, size - at < step ? size - at : step, NOW);
    rpc_guard_reset(&guard);
    return verdict;
}

/* --- the plain reading --- */

struct frame {
    const uint8_t *payload;
    size_t n;
    uint32_t stream;
    uint8_t type, flags;
};

/* All bytes of a stream's messages up to now are kept, the cost of each frame apart. */
struct plain_stream {
    bool open;
    uint8_t bytes[1 << 14];
    size_t n_bytes, n_cost;
};

struct plain {
    struct plain_stream streams[N_STREAMS];
    size_t n_between;
};

/* Cuts the message that is not whole free of those before it. True where it, or one before it,
 * announces too much. */
static bool cut_messages(struct plain_stream *s, size_t *out_n_whole)
{
    size_t at = 0;
    while (s->n_bytes - at >= 5) {
        const uint8_t *p = s->bytes + at;
        size_t n = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
        if (n > limits.max_message_bytes)
            return true;
        if (s->n_bytes - at - 5 < n)
            break;
        at += 5 + n;
    }
    *out_n_whole = at;
    memmove(s->bytes, s->bytes + at, s->n_bytes - at);
    s->n_bytes -= at;
    return false;
}

static size_t held(const struct plain *plain)
{
    size_t n = 0;
    for (size_t i = 0; i < N_STREAMS; i++)
        n += plain->streams[i].open ? plain->streams[i].n_cost : 0;
    return n;
}

/* RPC_GUARD_MESSAGE or GOOD. */
static enum rpc_guard_verdict on_data(struct plain *plain, const struct frame *f, size_t n_between)
{
    struct plain_stream *s = &plain->streams[f->stream % N_STREAMS];
    size_t n_whole = 0, n_pad = 0, skip = 0;
    if (!s->open) {
        plain->n_between = n_between + 9;
        return RPC_GUARD_GOOD;
    }
    s->n_cost += f->n;
    plain->n_between = n_between + 9;
    if (f->n > 23) {
        size_t all =
            plain->n_between < limits.max_read_bytes ? plain->n_between : limits.max_read_bytes;
        s->n_cost += all + 32;
        plain->n_between = 0;
    }
    if (held(plain) > limits.max_held_bytes)
        return RPC_GUARD_MESSAGE;
    if ((f->flags & 8) != 0 && f->n > 0) {
        skip = 1;
        n_pad = f->payload[0] < f->n - 1 ? f->payload[0] : f->n - 1;
    }
    size_t n_data = f->n - skip - n_pad;
    memcpy(s->bytes + s->n_bytes, f->payload + skip, n_data);
    s->n_bytes += n_data;
    if (cut_messages(s, &n_whole))
        return RPC_GUARD_MESSAGE;
    if (n_whole > 0 || s->n_bytes == 0)
        s->n_cost = s->n_bytes;
    if (f->flags & 1)
        memset(s, 0, sizeof(*s));
    return RPC_GUARD_GOOD;
}

static uint32_t n_open(const struct plain *plain)
{
    uint32_t n = 0;
    for (size_t i = 0; i < N_STREAMS; i++)
        n += plain->streams[i].open;
    return n;
}

static enum rpc_guard_verdict on_frame(struct plain *plain, const struct frame *f)
{
    struct plain_stream *s = &plain->streams[f->stream % N_STREAMS];
    if (f->type == 0)
        return on_data(plain, f, plain->n_between);
    plain->n_between += 9 + f->n;
    if (f->type == 3 || (f->type == 1 && (f->flags & 1) != 0))
        memset(s, 0, sizeof(*s));
    else if (f->type == 1 && f->stream % 2 == 1 && !s->open) {
        if (n_open(plain) == limits.max_streams)
            return RPC_GUARD_STREAMS;
        s->open = true;
    }
    return RPC_GUARD_GOOD;
}

/* Makes whole frames of few kinds and streams, so that short inputs reach many states. The first
 * byte of a frame chooses its kind, the next bytes its flags, stream and length. */
static size_t make_frames(const uint8_t *data, size_t size, uint8_t *out, size_t room,
                          struct frame *frames, size_t max_frames, size_t *out_n)
{
    static const uint8_t types[] = {0, 0, 0, 0, 1, 1, 3, 2};
    size_t n = 0, n_frames = 0;
    while (size >= 4 && n_frames < max_frames) {
        struct frame f = {.type = types[data[0] % 8], .stream = data[1] % 20u};
        f.flags = f.type == 1 ? (uint8_t)(4 | (data[2] & 1)) : (uint8_t)(data[2] & 9);
        f.n = data[3];
        data += 4;
        size -= 4;
        f.n = f.n < size ? f.n : size;
        if (n + 9 + f.n > room)
            break;
        const uint8_t head[9] = {0, 0, (uint8_t)f.n, f.type, f.flags, 0, 0, 0, (uint8_t)f.stream};
        memcpy(out + n, head, 9);
        memcpy(out + n + 9, data, f.n);
        f.payload = out + n + 9;
        n += 9 + f.n;
        data += f.n;
        size -= f.n;
        frames[n_frames++] = f;
    }
    *out_n = n_frames;
    return n;
}

/* The server sends the client's frame back on a neighbouring stream. */
static void send_back(struct rpc_guard *guard, struct plain *plain, const struct frame *f)
{
    bool ends = f->type == 3 || (f->type < 2 && (f->flags & 1) != 0);
    uint8_t head[9];
    memcpy(head, f->payload - 9, 9);
    head[8] ^= 2;
    rpc_guard_sent(guard, head, 9);
    rpc_guard_sent(guard, f->payload, f->n);
    if (ends)
        memset(&plain->streams[head[8] % N_STREAMS], 0, sizeof(plain->streams[0]));
}

static enum rpc_guard_verdict feed_frame(struct rpc_guard *guard, const struct frame *f,
                                         size_t step, int64_t now_ns)
{
    enum rpc_guard_verdict verdict = RPC_GUARD_GOOD;
    size_t n = 9 + f->n;
    for (size_t at = 0; at < n && verdict == RPC_GUARD_GOOD; at += step)
        verdict = rpc_guard_feed(guard, &limits, f->payload - 9 + at, n - at < step ? n - at : step,
                                 now_ns);
    return verdict;
}

static void compare_readings(const uint8_t *data, size_t size, size_t step, bool echo)
{
    enum { MAX_FRAMES = 200, ROOM = 1 << 15 };
    static struct plain plain;
    static uint8_t bytes[ROOM];
    struct frame frames[MAX_FRAMES];
    size_t n_frames = 0;
    struct rpc_guard guard;
    memset(&plain, 0, sizeof(plain));
    memset(&guard, 0, sizeof(guard));
    guard.n_preface = 24;
    make_frames(data, size, bytes, ROOM, frames, MAX_FRAMES, &n_frames);
    for (size_t i = 0; i < n_frames; i++) {
        enum rpc_guard_verdict mine = on_frame(&plain, &frames[i]);
        enum rpc_guard_verdict its = feed_frame(&guard, &frames[i], step, NOW + (int64_t)i * NOW);
        if (mine != its)
            abort();
        if (its != RPC_GUARD_GOOD)
            break;
        if (echo)
            send_back(&guard, &plain, &frames[i]);
        if (guard.n_held != held(&plain) || guard.n_streams != n_open(&plain))
            abort();
    }
    rpc_guard_reset(&guard);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < N_CUTS)
        return 0;
    size_t a = 1 + data[0] % 64, b = 1 + 16 * (size_t)data[1];
    if (feed(data + N_CUTS, size - N_CUTS, a) != feed(data + N_CUTS, size - N_CUTS, b))
        abort();
    compare_readings(data + N_CUTS, size - N_CUTS, a, data[2] % 2 == 1);
    return 0;
}
