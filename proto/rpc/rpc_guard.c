#include "proto/rpc/rpc_guard.h"

#include <stdbool.h>
#include <string.h>

#include "base/clock.h"

enum { N_HEAD = 9, N_PREFACE = 24, BURST = 2 };
enum {
    FRAME_HEADERS = 1,
    FRAME_RST_STREAM = 3,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6,
    FRAME_CONTINUATION = 9,
    ACK = 1,
    END_HEADERS = 4
};

static const char preface[N_PREFACE + 1] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* False where the bucket runs over. */
static bool count_reset(struct rpc_guard *guard, const struct rpc_guard_limits *limits,
                        int64_t now_ns)
{
    uint64_t room = (uint64_t)limits->max_resets_per_second * BURST * NS_PER_S;
    uint64_t leaked = (uint64_t)(now_ns - guard->at_ns);
    if (guard->at_ns == 0 || leaked > BURST * (uint64_t)NS_PER_S)
        guard->n_resets_x_s = 0;
    else if (leaked * limits->max_resets_per_second >= guard->n_resets_x_s)
        guard->n_resets_x_s = 0;
    else
        guard->n_resets_x_s -= leaked * limits->max_resets_per_second;
    guard->at_ns = now_ns;
    guard->n_resets_x_s += NS_PER_S;
    return guard->n_resets_x_s <= room;
}

/* A frame's header is whole. */
static enum rpc_guard_verdict on_frame(struct rpc_guard *guard,
                                       const struct rpc_guard_limits *limits, int64_t now_ns)
{
    uint8_t type = guard->head[3], flags = guard->head[4];
    guard->left = (uint32_t)guard->head[0] << 16 | (uint32_t)guard->head[1] << 8 | guard->head[2];
    if (guard->in_block != (type == FRAME_CONTINUATION))
        return RPC_GUARD_HEADER_BLOCK; /* nothing may stand between (section 6.2) */
    bool asks = (type == FRAME_PING || type == FRAME_SETTINGS) && (flags & ACK) == 0;
    if ((type == FRAME_RST_STREAM || asks) && !count_reset(guard, limits, now_ns))
        return RPC_GUARD_RESETS;
    if (type != FRAME_HEADERS && type != FRAME_CONTINUATION)
        return RPC_GUARD_GOOD;
    /* A continuation costs its header, too: endless empty ones are a flood as well. */
    guard->n_block = (type == FRAME_HEADERS ? 0 : guard->n_block + N_HEAD) + guard->left;
    guard->in_block = (flags & END_HEADERS) == 0;
    return guard->n_block > limits->max_block_bytes ? RPC_GUARD_HEADER_BLOCK : RPC_GUARD_GOOD;
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
        size_t n = smaller(guard->left, n_bytes);
        if (n > 0) {
            guard->left -= (uint32_t)n;
        } else {
            n = smaller((size_t)(N_HEAD - guard->n_head), n_bytes);
            memcpy(guard->head + guard->n_head, at, n);
            guard->n_head = (uint8_t)(guard->n_head + n);
        }
        at += n;
        n_bytes -= n;
        if (guard->n_head < N_HEAD)
            continue;
        guard->n_head = 0;
        enum rpc_guard_verdict verdict = on_frame(guard, limits, now_ns);
        if (verdict != RPC_GUARD_GOOD)
            return verdict;
    }
    return RPC_GUARD_GOOD;
}
