#include "proto/rpc/guard/goaway.h"

#include <string.h>

enum { N_HEAD = 9, N_GOAWAY = 17, N_PING = 17, AT_FLAGS = 4, AT_NUMBER = 16, ACK = 1 };

/* 2^31 - 1 is the highest stream number; error code 0 is NO_ERROR. */
static const uint8_t goaway_frame[N_GOAWAY] = {0, 0, 8, 7, 0, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff};
/* The last byte tells the first PING from the second. */
static const uint8_t ping_frame[N_PING] = {0,   0,   8,   6,   0,   0,   0,   0, 0,
                                           'l', 'e', 'a', 'v', 'i', 'n', 'g', 0};
/* For every length of the answer's start: how much of the start is also its end (Knuth, Morris,
 * Pratt). */
static const uint8_t overlap[N_PING] = {0, 1, 0, 0, 0, 1, 2, 2, 2};

static bool awaits_answer(const struct rpc_goaway *goaway)
{
    return goaway->stage == RPC_GOAWAY_SAID || goaway->stage == RPC_GOAWAY_ASKED;
}

void rpc_goaway_begin(struct rpc_goaway *goaway)
{
    if (goaway->stage == RPC_GOAWAY_NONE)
        goaway->stage = RPC_GOAWAY_WANTED;
}

void rpc_goaway_end(struct rpc_goaway *goaway)
{
    if (!rpc_goaway_is_midway(goaway))
        goaway->n_said = goaway->n_saying = 0;
    goaway->stage = RPC_GOAWAY_DONE;
}

void rpc_goaway_sent(struct rpc_goaway *goaway, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;
    while (n_bytes > 0) {
        size_t n = goaway->left < n_bytes ? goaway->left : n_bytes;
        if (n > 0) {
            goaway->left -= (uint32_t)n;
        } else {
            n = (size_t)(N_HEAD - goaway->n_head) < n_bytes ? (size_t)(N_HEAD - goaway->n_head)
                                                            : n_bytes;
            memcpy(goaway->head + goaway->n_head, at, n);
            goaway->n_head = (uint8_t)((goaway->n_head + n) % N_HEAD);
            if (goaway->n_head == 0)
                goaway->left = (uint32_t)goaway->head[0] << 16 | (uint32_t)goaway->head[1] << 8 |
                               goaway->head[2];
        }
        goaway->has_sent = goaway->has_sent || (goaway->n_head == 0 && goaway->left == 0);
        at += n;
        n_bytes -= n;
    }
}

static void put_ping(struct rpc_goaway *goaway, enum rpc_goaway_stage stage)
{
    goaway->stage = (uint8_t)stage;
    memcpy(goaway->bytes + goaway->n_saying, ping_frame, N_PING);
    goaway->bytes[goaway->n_saying + AT_NUMBER] = (uint8_t)stage;
    goaway->n_saying += N_PING;
    goaway->n_matched = 0;
}

size_t rpc_goaway_next(struct rpc_goaway *goaway, uint8_t **out_bytes)
{
    bool between = goaway->has_sent && goaway->n_head == 0 && goaway->left == 0;
    if (!between && !rpc_goaway_is_midway(goaway))
        return 0;
    if (goaway->n_said == goaway->n_saying) {
        goaway->n_said = goaway->n_saying = 0;
        if (goaway->stage == RPC_GOAWAY_WANTED) {
            memcpy(goaway->bytes, goaway_frame, N_GOAWAY);
            goaway->n_saying = N_GOAWAY;
            put_ping(goaway, RPC_GOAWAY_SAID);
        } else if (goaway->stage == RPC_GOAWAY_HEARD) {
            put_ping(goaway, RPC_GOAWAY_ASKED);
        }
    }
    *out_bytes = goaway->bytes + goaway->n_said;
    return (size_t)(goaway->n_saying - goaway->n_said);
}

void rpc_goaway_said(struct rpc_goaway *goaway, size_t n_bytes)
{
    goaway->n_said += (uint8_t)n_bytes;
}

bool rpc_goaway_is_midway(const struct rpc_goaway *goaway)
{
    return goaway->n_said > 0 && goaway->n_said < goaway->n_saying;
}

/* The answer equals the PING with the ACK flag. */
static uint8_t answer_at(const struct rpc_goaway *goaway, size_t i)
{
    return i == AT_FLAGS ? ACK : i == AT_NUMBER ? goaway->stage : ping_frame[i];
}

void rpc_goaway_heard(struct rpc_goaway *goaway, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;
    for (size_t i = 0; i < n_bytes && awaits_answer(goaway); i++) {
        while (goaway->n_matched > 0 && answer_at(goaway, goaway->n_matched) != at[i])
            goaway->n_matched = overlap[goaway->n_matched - 1];
        if (answer_at(goaway, goaway->n_matched) == at[i])
            goaway->n_matched++;
        if (goaway->n_matched == N_PING) {
            goaway->n_matched = 0;
            goaway->stage = goaway->stage == RPC_GOAWAY_SAID ? RPC_GOAWAY_HEARD : RPC_GOAWAY_DONE;
        }
    }
}

bool rpc_goaway_is_unheard(const struct rpc_goaway *goaway)
{
    return goaway->stage == RPC_GOAWAY_WANTED || goaway->stage == RPC_GOAWAY_SAID;
}

bool rpc_goaway_is_open(const struct rpc_goaway *goaway)
{
    return goaway->stage != RPC_GOAWAY_NONE && goaway->stage != RPC_GOAWAY_DONE;
}
